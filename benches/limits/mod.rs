//! The limits of the machine that kernels are measured against: read bandwidth and integer peak.
//!
//! Read: a loop that loads every byte once, with the prefetching of the kernels. Peak: the widest 8-bit
//! multiply-add the processor has (`vpdpbusd`, else `vpmaddubsw` and an addition), counted in
//! multiply-adds. 15-bit activations need two of them per weight, so their products reach half of it.

/// Folds every byte of `bytes`; the result only keeps the loop alive.
pub(crate) fn read(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { x86::read(bytes) };
    }
    let mut lanes = [0u64; 8];
    for block in bytes.as_chunks::<64>().0 {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane ^= u64::from_le_bytes(*word);
        }
    }
    lanes.iter().fold(0, |all, lane| all ^ lane)
}

/// Name of the peak loop of this machine.
pub(crate) fn peak_name() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_vnni() {
            return "vpdpbusd";
        }
        if is_x86_feature_detected!("avx2") {
            return "vpmaddubsw";
        }
    }
    "none"
}

/// Runs `rounds` rounds of the peak loop; returns the multiply-adds done (0: no such instruction).
pub(crate) fn peak(rounds: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_vnni() {
            // SAFETY: the processor has AVX-512 F and VNNI.
            return unsafe { x86::peak_vnni(rounds) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { x86::peak_avx2(rounds) };
        }
    }
    let _ = rounds;
    0
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    pub(crate) fn has_vnni() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni")
    }

    #[target_feature(enable = "avx2")]
    pub(crate) fn read(bytes: &[u8]) -> u64 {
        let mut lanes = [_mm256_setzero_si256(); 4];
        for block in bytes.as_chunks::<128>().0 {
            let at = block.as_ptr();
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(8192).cast());
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(8256).cast());
            for (lane, part) in lanes.iter_mut().zip(block.as_chunks::<32>().0) {
                // SAFETY: the part has 32 bytes.
                let value = unsafe { _mm256_loadu_si256(part.as_ptr().cast()) };
                *lane = _mm256_xor_si256(*lane, value);
            }
        }
        let all = lanes.iter().fold(_mm256_setzero_si256(), |all, lane| _mm256_xor_si256(all, *lane));
        _mm256_extract_epi64::<0>(all).cast_unsigned()
    }

    #[target_feature(enable = "avx2")]
    pub(crate) fn peak_avx2(rounds: u64) -> u64 {
        let mut sums = [_mm256_setzero_si256(); 8];
        let mut codes = _mm256_set1_epi8(black_box(3));
        let x = [_mm256_set1_epi8(black_box(5)), _mm256_set1_epi8(black_box(-6))];
        for _ in 0..rounds {
            for pair in sums.as_chunks_mut::<2>().0 {
                // SAFETY: no instruction; the compiler must take `codes` for new and cannot hoist.
                unsafe { asm!("/* {0} */", inout(ymm_reg) codes, options(pure, nomem, nostack)) };
                for (sum, x) in pair.iter_mut().zip(x) {
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(codes, x));
                }
            }
        }
        black_box(sums);
        rounds * 8 * 32
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(crate) fn peak_vnni(rounds: u64) -> u64 {
        let mut sums = [_mm512_setzero_si512(); 16];
        let codes = _mm512_set1_epi8(black_box(3));
        let x = _mm512_set1_epi8(black_box(5));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, codes, x);
                // SAFETY: no instruction; the compiler cannot turn the loop into a multiplication.
                unsafe { asm!("/* {0} */", inout(zmm_reg) * sum, options(pure, nomem, nostack)) };
            }
        }
        black_box(sums);
        rounds * 16 * 64
    }
}
