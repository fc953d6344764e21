//! AVX-512 with VNNI (F, BW, VL, VNNI).
//!
//! The arithmetic of [`super::avx2`] at twice the width, with `vpdpwssds`: two products of 16-bit integers
//! added to a 32-bit lane. (It saturates where `vpdpwssd` wraps, and no sum here comes that far. But
//! compilers leave it whole, while they take chains of `vpdpwssd` apart into `vpmaddwd` and additions.) A
//! register of packed codes is two blocks of 64 columns, and the plane order of activations puts their
//! planes side by side: the lower half of a register belongs to the even block, the upper half to the odd
//! one. What is not here is inherited from the AVX2 set.
//!
//! Must hold: 32-bit lanes never overflow; the bounds stand at the loops.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi32_si128, _mm_fmadd_ps, _mm_loadl_epi64, _mm_loadu_ps, _mm_loadu_si128, _mm_setzero_ps,
    _mm_unpacklo_epi64, _mm256_add_epi32, _mm256_castps256_ps128, _mm256_cvtepi32_ps, _mm256_extractf128_ps,
    _mm256_loadu_si256, _mm256_mullo_epi32, _mm256_permute2x128_si256, _mm256_set_m128i, _mm256_set1_epi32,
    _mm256_sub_epi32, _mm256_unpackhi_epi32, _mm256_unpacklo_epi32,
};

// All that is wider than AVX2, and nothing else: `super` decides between hardware and a software model.
use super::intrinsics512::*;
use crate::act::{ActRow, Activations, BLOCK};
use crate::arch::codes::{Codes, Words};
use crate::arch::x86_64::avx2::{Avx2, PLANE, PREFETCH, activations, block_offset, chains_from, prefetch, step};
use crate::arch::x86_64::tile::{self, TileIsa};
use crate::arch::{Factors, GROUP_CHAINS, Isa};
use crate::dispatch::OutputWindow;
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

impl Words for __m512i {
    const LANES: usize = 32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: by the caller's promise, here and below.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn words(blocks: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_loadu_si512(blocks.cast()) }
    }

    #[inline(always)]
    unsafe fn bytes(blocks: *const u8, stride: usize) -> Self {
        // SAFETY: as above.
        unsafe {
            let (even, odd) = (_mm_loadu_si128(blocks.cast()), _mm_loadu_si128(blocks.add(stride).cast()));
            _mm512_cvtepu8_epi16(_mm256_set_m128i(odd, even))
        }
    }

    #[inline(always)]
    unsafe fn nibbles(blocks: *const u8, stride: usize) -> Self {
        // SAFETY: as above.
        unsafe {
            let (even, odd) = (_mm_loadl_epi64(blocks.cast()), _mm_loadl_epi64(blocks.add(stride).cast()));
            // A byte's high nibble goes to the low bits of the word after.
            let bytes = _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(even, odd));
            _mm512_or_si512(bytes, _mm512_slli_epi32::<12>(bytes))
        }
    }

    #[inline(always)]
    unsafe fn signed(bytes: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(bytes.cast())) }
    }

    #[inline(always)]
    unsafe fn right(self, bits: i32) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_srl_epi16(self, _mm_cvtsi32_si128(bits)) }
    }

    #[inline(always)]
    unsafe fn left(self, bits: i32) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_sll_epi16(self, _mm_cvtsi32_si128(bits)) }
    }

    #[inline(always)]
    unsafe fn and(self, mask: i16) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_and_si512(self, _mm512_set1_epi16(mask)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_or_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn lookup(self, table: [u8; 16]) -> Self {
        let [a, b, c, d] = bytemuck::cast::<_, [i32; 4]>(table);
        // SAFETY: as above.
        unsafe { _mm512_shuffle_epi8(_mm512_set4_epi32(d, c, b, a), self) }
    }
}

/// `sums[k] += products of vector k` for the 128 codes at `codes` and the activations at `v`.
///
/// # Safety
/// AVX-512BW and VNNI; two blocks at `codes`, 128 values in the order of the codes at `v`.
#[inline(always)]
unsafe fn add_pair<C: Codes>(sums: &mut [__m512i; 4], codes: *const u8, v: *const i16) {
    // SAFETY: by the caller's promise. In column order too, a vector is 32 codes.
    unsafe {
        let planes = C::planes(C::load::<__m512i>(codes));
        for k in 0..4 {
            sums[k] = _mm512_dpwssds_epi32(sums[k], planes[k], load(v.add(k * PLANE)));
        }
    }
}

/// As [`add_pair`] for one pair in plane order, the planes summed: pairs follow one another without a dependency, so
/// a chain through the planes costs no time and saves the additions.
///
/// # Safety
/// As [`add_pair`].
#[inline(always)]
unsafe fn pair_sums<C: Codes>(codes: *const u8, v: *const i16) -> __m512i {
    // SAFETY: by the caller's promise.
    unsafe {
        let planes = C::planes(C::load::<__m512i>(codes));
        let mut sum = _mm512_setzero_si512();
        for (k, plane) in planes.into_iter().enumerate() {
            sum = _mm512_dpwssds_epi32(sum, plane, load(v.add(k * PLANE)));
        }
        sum
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
    type Lanes = crate::arch::x86_64::lanes::Ymm;

    #[inline(always)]
    fn row_dot<C: Codes>(codes: &[u8], x: &ActRow<'_>, cols: usize) -> i64 {
        // A pair adds at most `2 * 15 * 16256 < 2^19` (nibbles) or `2 * 128 * 16256 < 2^22` (int8) to a
        // lane: 512 pairs stay below 2^31.
        const FLUSH: usize = 512;
        let bytes = 2 * C::BLOCK_BYTES;
        let pairs = codes.len() / bytes;
        let v = activations::<C>(x);
        let mut total = 0i64;
        // SAFETY: this function is compiled into the set that has the instructions. Whole pairs lie inside
        // the row; the rest is copied to a buffer of the size of a pair. Activations are padded to pairs.
        unsafe {
            for from in (0..pairs).step_by(FLUSH) {
                let mut sums = [_mm512_setzero_si512(); 4];
                for pair in from..pairs.min(from + FLUSH) {
                    let at = codes.as_ptr().add(pair * bytes);
                    let v = v.as_ptr().add(pair * PAIR);
                    for line in (0..bytes).step_by(64) {
                        prefetch(at.wrapping_add(PREFETCH + line));
                    }
                    add_pair::<C>(&mut sums, at, v);
                }
                total += wide_sum(&sums);
            }
            if pairs * PAIR < cols {
                let mut copy = [0u8; PAIR];
                let rest = &codes[pairs * bytes..];
                copy[..rest.len()].copy_from_slice(rest);
                let mut sums = [_mm512_setzero_si512(); 4];
                let v = v.as_ptr().add(pairs * PAIR);
                add_pair::<C>(&mut sums, copy.as_ptr(), v);
                total += wide_sum(&sums);
            }
        }
        if C::OFFSET != 0 {
            let sum: i64 = x.sums[..cols.div_ceil(BLOCK)].iter().map(|sum| i64::from(*sum)).sum();
            total -= i64::from(C::OFFSET) * sum;
        }
        total
    }

    #[inline(always)]
    fn chains<C: Codes>(codes: &[u8], x: &ActRow<'_>, cols: usize, unit: usize, factors: &impl Factors) -> f32 {
        if !C::PLANES || unit != BLOCK {
            return Avx2::chains::<C>(codes, x, cols, unit, factors);
        }
        let bytes = 2 * C::BLOCK_BYTES; // of a pair of units
        let steps = codes.len() / (UNITS / 2 * bytes);
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
                    let at = codes.as_ptr().add(pair * bytes);
                    prefetch(at.wrapping_add(PREFETCH));
                    *z = pair_sums::<C>(at, x.planes.as_ptr().add(pair * PAIR));
                }
                prefetch(factors.address(unit + PREFETCH / C::BLOCK_BYTES));
                let offsets = _mm256_mullo_epi32(sums, _mm256_set1_epi32(C::OFFSET));
                let dots = _mm256_sub_epi32(eight_sums(&z), offsets);
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
                let at = block_offset::<C>(first + b);
                for (k, steps) in block.as_chunks::<8>().0.iter().enumerate() {
                    let at = at + k * step::<C>();
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
