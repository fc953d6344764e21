//! The AVX-512 kernels in software: the source of the set once more, over [`intrinsics512`], which computes
//! each of its 512-bit instructions lane by lane. So every x86-64 machine with AVX2 tests that source. The
//! instructions themselves are held against their AVX2 halves, and against hardware where there is any.
//!
//! Must hold: nothing here is compiled with an AVX-512 feature, or the compiler could put real instructions
//! in the place of the software ones.

#[expect(clippy::duplicate_mod, reason = "the same source over other instructions is the point")]
#[path = "../avx512.rs"]
mod avx512;
mod intrinsics512;
mod tests;

crate::arch::kernel_table!(
    #[target_feature(enable = "avx2,fma")]
    AVX512_SOFTWARE,
    "avx512vnni-software",
    arch::x86_64::software::avx512::Avx512Vnni,
    || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
);
