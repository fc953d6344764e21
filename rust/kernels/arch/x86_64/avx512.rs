//! AVX-512 with VNNI (F, BW, VL, VNNI).
//!
//! The arithmetic of [`super::avx2`] at twice the width, with `vpdpwssds`: two products of 16-bit integers
//! added to a 32-bit lane. (It saturates where `vpdpwssd` wraps, and no sum here comes that far. But
//! compilers leave it whole, while they take chains of `vpdpwssd` apart into `vpmaddwd` and additions.) A
//! 64-byte load of nibbles is two blocks of 64 columns, and the nibble order of activations puts their
//! planes side by side: the lower half of a register belongs to the even block, the upper half to the odd
//! one. What is not here is inherited from the AVX2 set.
//!
//! Must hold: 32-bit lanes never overflow; the bounds stand at the loops.

use std::arch::x86_64::{
    __m256i, _mm_fmadd_ps, _mm_loadu_ps, _mm_setzero_ps, _mm256_add_epi32, _mm256_castps256_ps128, _mm256_cvtepi32_ps,
    _mm256_extractf128_ps, _mm256_loadu_si256, _mm256_permute2x128_si256, _mm256_slli_epi32, _mm256_sub_epi32,
    _mm256_unpackhi_epi32, _mm256_unpacklo_epi32,
};

// All that is wider than AVX2, and nothing else: `super` decides between hardware and a software model.
use super::intrinsics512::*;
use crate::act::{ActRow, Activations, BLOCK};
use crate::arch::x86_64::avx2::{Avx2, PLANE, PREFETCH, chains_from, prefetch};
use crate::arch::x86_64::tile::{self, TileIsa};
use crate::arch::{Codes, Factors, GROUP_CHAINS, Isa};
use crate::dispatch::OutputWindow;
use crate::format::nibble::OFFSET;
use crate::matrix::MatrixView;

/// Columns of a pair of blocks.
const PAIR: usize = 2 * BLOCK;
/// Units summed per step of the chains: two of each chain.
const UNITS: usize = 2 * GROUP_CHAINS;

/// Independent sums of a tile's product with few activation rows.
const SETS: usize = 4;

/// The AVX-512 VNNI kernels.
pub(crate) struct Avx512Vnni;

/// Thirty-two activation codes.
///
/// # Safety
/// AVX-512F; thirty-two values at `v`.
#[inline(always)]
unsafe fn load(v: *const i16) -> __m512i {
    // SAFETY: by the caller's promise.
    unsafe { _mm512_loadu_si512(v.cast()) }
}

/// The four planes of the 128 nibbles at `codes`, as words.
///
/// # Safety
/// AVX-512BW; 64 bytes at `codes`.
#[inline(always)]
unsafe fn planes(codes: *const u8) -> [__m512i; 4] {
    // SAFETY: by the caller's promise.
    unsafe {
        let mask = _mm512_set1_epi16(15);
        let words = _mm512_loadu_si512(codes.cast());
        [
            _mm512_and_si512(words, mask),
            _mm512_and_si512(_mm512_srli_epi16::<4>(words), mask),
            _mm512_and_si512(_mm512_srli_epi16::<8>(words), mask),
            _mm512_srli_epi16::<12>(words),
        ]
    }
}

/// `sums[k] += products of plane k` for the 128 nibbles at `codes` and the activations at `v`.
///
/// # Safety
/// AVX-512BW and VNNI; 64 bytes at `codes`, 128 values in nibble order at `v`.
#[inline(always)]
unsafe fn add_pair(sums: &mut [__m512i; 4], codes: *const u8, v: *const i16) {
    // SAFETY: by the caller's promise.
    unsafe {
        let planes = planes(codes);
        for k in 0..4 {
            sums[k] = _mm512_dpwssds_epi32(sums[k], planes[k], load(v.add(k * PLANE)));
        }
    }
}

/// As [`add_pair`] for one pair, the planes summed: pairs follow one another without a dependency, so a
/// chain through the planes costs no time and saves the additions.
///
/// # Safety
/// As [`add_pair`].
#[inline(always)]
unsafe fn pair_sums(codes: *const u8, v: *const i16) -> __m512i {
    // SAFETY: by the caller's promise.
    unsafe {
        let planes = planes(codes);
        let mut sum = _mm512_setzero_si512();
        for (k, plane) in planes.into_iter().enumerate() {
            sum = _mm512_dpwssds_epi32(sum, plane, load(v.add(k * PLANE)));
        }
        sum
    }
}

/// `sums[k] += products` of the 32 codes from `32 k` on, for the 128 int8 codes at `codes`.
///
/// # Safety
/// AVX-512BW and VNNI; 128 bytes at `codes`, 128 values in column order at `v`.
#[inline(always)]
unsafe fn add_bytes(sums: &mut [__m512i; 4], codes: *const u8, v: *const i16) {
    // SAFETY: by the caller's promise.
    unsafe {
        for (k, sum) in sums.iter_mut().enumerate() {
            let words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(codes.add(32 * k).cast()));
            *sum = _mm512_dpwssds_epi32(*sum, words, load(v.add(32 * k)));
        }
    }
}

/// The sum of all lanes of four vectors, in 64 bits.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn wide_sum(sums: &[__m512i; 4]) -> i64 {
    // SAFETY: register operations only.
    unsafe {
        let mut total = _mm512_setzero_si512();
        for sum in sums {
            let low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(*sum));
            let high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64::<1>(*sum));
            total = _mm512_add_epi64(total, _mm512_add_epi64(low, high));
        }
        _mm512_reduce_add_epi64(total)
    }
}

/// The dots of eight blocks, in order, whose partial sums lie in the halves of four vectors.
///
/// # Safety
/// AVX-512F and AVX2.
#[inline(always)]
unsafe fn eight_sums(z: &[__m512i; 4]) -> __m256i {
    // SAFETY: register operations only.
    unsafe {
        // Within each 128-bit lane: sums of elements 0 and 2, of 1 and 3, for two vectors at once.
        let t0 = _mm512_add_epi32(_mm512_unpacklo_epi32(z[0], z[1]), _mm512_unpackhi_epi32(z[0], z[1]));
        let t1 = _mm512_add_epi32(_mm512_unpacklo_epi32(z[2], z[3]), _mm512_unpackhi_epi32(z[2], z[3]));
        // Within each lane: the lane sums of z[0], z[1], z[2], z[3].
        let lanes = _mm512_add_epi32(_mm512_unpacklo_epi64(t0, t1), _mm512_unpackhi_epi64(t0, t1));
        // Two lanes make a half: those of even blocks and those of odd blocks, here side by side.
        let (even, odd) = (_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
        let (first, last) = (_mm256_unpacklo_epi32(even, odd), _mm256_unpackhi_epi32(even, odd));
        let low = _mm256_permute2x128_si256::<0x20>(first, last);
        let high = _mm256_permute2x128_si256::<0x31>(first, last);
        _mm256_add_epi32(low, high)
    }
}

impl Isa for Avx512Vnni {
    #[inline(always)]
    fn row_dot<C: Codes>(codes: &[u8], x: &ActRow<'_>, cols: usize) -> i64 {
        // A pair adds at most `2 * 15 * 16256 < 2^19` (nibbles) or `2 * 128 * 16256 < 2^22` (int8) to a
        // lane: 512 pairs stay below 2^31.
        const FLUSH: usize = 512;
        let bytes = if C::NIBBLE { PAIR / 2 } else { PAIR };
        let pairs = codes.len() / bytes;
        let v = if C::NIBBLE { x.planes } else { x.codes };
        let mut total = 0i64;
        // SAFETY: this function is compiled into the set that has the instructions. Whole pairs lie inside
        // the row; the rest is copied to a buffer of the size of a pair. Activations are padded to pairs.
        unsafe {
            for from in (0..pairs).step_by(FLUSH) {
                let mut sums = [_mm512_setzero_si512(); 4];
                for pair in from..pairs.min(from + FLUSH) {
                    let at = codes.as_ptr().add(pair * bytes);
                    let v = v.as_ptr().add(pair * PAIR);
                    prefetch(at.wrapping_add(PREFETCH));
                    if C::NIBBLE {
                        add_pair(&mut sums, at, v);
                    } else {
                        prefetch(at.wrapping_add(PREFETCH + 64));
                        add_bytes(&mut sums, at, v);
                    }
                }
                total += wide_sum(&sums);
            }
            if pairs * PAIR < cols {
                let mut copy = [0u8; PAIR];
                let rest = &codes[pairs * bytes..];
                copy[..rest.len()].copy_from_slice(rest);
                let mut sums = [_mm512_setzero_si512(); 4];
                let v = v.as_ptr().add(pairs * PAIR);
                if C::NIBBLE {
                    add_pair(&mut sums, copy.as_ptr(), v);
                } else {
                    add_bytes(&mut sums, copy.as_ptr(), v);
                }
                total += wide_sum(&sums);
            }
        }
        if C::NIBBLE {
            let sum: i64 = x.sums[..cols.div_ceil(BLOCK)].iter().map(|sum| i64::from(*sum)).sum();
            total -= i64::from(OFFSET) * sum;
        }
        total
    }

    #[inline(always)]
    fn chains<C: Codes>(codes: &[u8], x: &ActRow<'_>, cols: usize, unit: usize, factors: &impl Factors) -> f32 {
        if !C::NIBBLE || unit != BLOCK {
            return Avx2::chains::<C>(codes, x, cols, unit, factors);
        }
        // Bytes of a pair of units.
        const BYTES: usize = PAIR / 2;
        let steps = codes.len() / (UNITS / 2 * BYTES);
        // SAFETY: this function is compiled into the set that has the instructions. The code bytes of
        // whole steps lie inside the row, and so do their activations, sums and factors; the rest of the
        // row is left to the AVX2 kernel, from a multiple of four units on.
        unsafe {
            let mut acc = _mm_setzero_ps();
            for step in 0..steps {
                let unit = step * UNITS;
                // What can be out of range comes first: loads of codes do not move across a check.
                let sums = _mm256_loadu_si256(x.sums[unit..unit + UNITS].as_ptr().cast());
                let scales = [factors.four(unit), factors.four(unit + GROUP_CHAINS)];
                let mut z = [_mm512_setzero_si512(); 4];
                for (pair, z) in z.iter_mut().enumerate() {
                    let pair = unit / 2 + pair;
                    let at = codes.as_ptr().add(pair * BYTES);
                    prefetch(at.wrapping_add(PREFETCH));
                    *z = pair_sums(at, x.planes.as_ptr().add(pair * PAIR));
                }
                prefetch(factors.address(unit + PREFETCH / (BYTES / 2)));
                // The offset of stored nibbles is 8.
                let dots = _mm256_sub_epi32(eight_sums(&z), _mm256_slli_epi32::<3>(sums));
                let dots = _mm256_cvtepi32_ps(dots);
                acc = _mm_fmadd_ps(_mm256_castps256_ps128(dots), _mm_loadu_ps(scales[0].as_ptr()), acc);
                acc = _mm_fmadd_ps(_mm256_extractf128_ps::<1>(dots), _mm_loadu_ps(scales[1].as_ptr()), acc);
            }
            chains_from::<C, 1>(codes, x, cols, 1, factors, steps * UNITS, acc)
        }
    }

    #[inline(always)]
    fn tiles(weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>) -> usize {
        tile::matmul::<Self>(weights, x, out)
    }

    #[inline(always)]
    fn accumulate<C: Codes, const N: usize>(codes: &[&[u8]; N], first: usize, factors: &[f32; N], acc: &mut [f32]) {
        Avx2::accumulate::<C, N>(codes, first, factors, acc);
    }
}

impl TileIsa for Avx512Vnni {
    const X_ROWS: usize = 8;

    #[inline(always)]
    unsafe fn unit_dots<C: Codes, const N: usize>(
        panel: &[tile::Step],
        first: usize,
        x: &[*const i16; N],
        dots: &mut [[i32; tile::ROWS]; N],
    ) {
        // SAFETY: AVX-512 VNNI by the caller's promise; codes are read from whole `Step`s, activations from
        // blocks that the caller promises to exist. A unit has at most 512 columns: lanes stay below
        // `256 * 2 * 128 * 16256 < 2^31`.
        unsafe {
            // A product takes several cycles to arrive: neighbouring steps add to different sums.
            let sets = if N == 8 { 2 } else { SETS };
            let mut sums = [[_mm512_setzero_si512(); N]; SETS];
            for (b, block) in panel.chunks(tile::BLOCK_STEPS).enumerate() {
                let at = tile::pairs_at::<C>(first + b);
                for (k, steps) in block.as_chunks::<8>().0.iter().enumerate() {
                    let at = at + k * tile::plane::<C>();
                    for (d, step) in steps.iter().enumerate() {
                        let codes = _mm512_loadu_si512(step.0.as_ptr().cast());
                        let sums = &mut sums[d % sets];
                        for n in 0..N {
                            let pair = x[n].add(at + 2 * d).cast::<i32>().read_unaligned();
                            sums[n] = _mm512_dpwssds_epi32(sums[n], codes, _mm512_set1_epi32(pair));
                        }
                    }
                }
            }
            let [first, rest @ ..] = sums;
            let sums = rest.iter().fold(first, |all, set| std::array::from_fn(|n| _mm512_add_epi32(all[n], set[n])));
            for (dots, sum) in dots.iter_mut().zip(sums) {
                _mm512_storeu_si512(dots.as_mut_ptr().cast(), sum);
            }
        }
    }
}
