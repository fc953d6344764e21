//! Kernel sets of x86-64.

mod avx2;
mod avx512;
mod lanes;
#[cfg(test)]
mod software;
mod tile;

use super::kernel_table;
#[cfg(test)]
pub(crate) use software::AVX512_SOFTWARE;

/// The 512-bit instructions of [`avx512`]. That file takes them from here by name, so that the same source
/// can be tested over a software model of each.
mod intrinsics512 {
    pub(super) use std::arch::x86_64::{
        __m512i, _mm512_add_epi32, _mm512_add_epi64, _mm512_and_si512, _mm512_castsi512_si256, _mm512_cvtepi8_epi16,
        _mm512_cvtepi32_epi64, _mm512_cvtepu8_epi16, _mm512_cvtepu8_epi32, _mm512_dpwssds_epi32,
        _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_or_si512, _mm512_reduce_add_epi64, _mm512_set1_epi16,
        _mm512_set1_epi32, _mm512_set4_epi32, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_sll_epi16,
        _mm512_slli_epi32, _mm512_srl_epi16, _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
        _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    };
}

kernel_table!(
    #[target_feature(enable = "avx2,fma")]
    AVX2,
    "avx2",
    arch::x86_64::avx2::Avx2,
    || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
);

// `is_x86_feature_detected` answers for the operating system too: without saved ZMM state it says no.
kernel_table!(
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
    AVX512_VNNI,
    "avx512vnni",
    arch::x86_64::avx512::Avx512Vnni,
    || {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
    }
);
