//! AVX2 and FMA.
//!
//! Codes and activations meet as 16-bit integers: `vpmaddwd` adds two products of a code (at most 8 bits
//! and a sign) and an activation (|v| <= 16256) exactly into 32 bits. Seen as 16-bit words, a row of
//! nibbles holds columns `4 j + k` at bits `4 k`, and the activation planes are laid out to match
//! (the plane order of [`crate::act`]): three shifts and masks line up 64 codes. Narrower codes widen to such
//! words ([`crate::arch::codes`]). The offset of stored codes is taken off once per block through the block sums.
//!
//! Must hold: 32-bit lanes never overflow. A block of 64 nibbles adds at most `4 * 2 * 15 * 16256 < 2^21`
//! to a lane, a block of 64 int8 codes `4 * 2 * 128 * 16256 < 2^24`; see `FLUSH`.

use std::arch::x86_64::*;

use super::tile;
use crate::act::{ActRow, Activations, BLOCK};
use crate::arch::codes::{Codes, Eight, Words};
use crate::arch::{Factors, GROUP_CHAINS, Isa, Scalar};
use crate::dispatch::OutputWindow;
use crate::matrix::MatrixView;

use tile::TileIsa;

/// Bytes of codes to fetch ahead of use: a row-major matrix is one linear stream.
pub(super) const PREFETCH: usize = 8192;
/// Blocks after which 32-bit lanes are widened: they stay below `128 * 2^24 = 2^31`.
const FLUSH: usize = 128;

/// The AVX2 and FMA kernels.
pub(crate) struct Avx2;

/// Where the activations of block `block` lie in plane order.
pub(super) const fn plane_offset(block: usize) -> usize {
    (block / 2) * (2 * BLOCK) + (block % 2) * 16
}

/// Distance of the planes within 128 columns.
pub(super) const PLANE: usize = 32;

/// Where the activations that block `block` meets begin.
#[inline(always)]
pub(super) const fn block_offset<C: Codes>(block: usize) -> usize {
    if C::PLANES { plane_offset(block) } else { block * BLOCK }
}

/// Distance of the sixteen activations that one vector of a block meets from the next sixteen.
#[inline(always)]
pub(super) const fn step<C: Codes>() -> usize {
    if C::PLANES { PLANE } else { BLOCK / 4 }
}

/// The activations that blocks of codes meet, in their order.
#[inline(always)]
pub(super) fn activations<'a, C: Codes>(x: &ActRow<'a>) -> &'a [i16] {
    if C::PLANES { x.planes } else { x.codes }
}

impl Words for __m256i {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: by the caller's promise, here and below.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn words(blocks: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(blocks.cast()) }
    }

    #[inline(always)]
    unsafe fn bytes(blocks: *const u8, _stride: usize) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(blocks.cast())) }
    }

    #[inline(always)]
    unsafe fn nibbles(blocks: *const u8, _stride: usize) -> Self {
        // SAFETY: as above.
        unsafe {
            // A byte's high nibble goes to the low bits of the word after.
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(blocks.cast()));
            _mm256_or_si256(bytes, _mm256_slli_epi32::<12>(bytes))
        }
    }

    #[inline(always)]
    unsafe fn signed(bytes: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes.cast())) }
    }

    #[inline(always)]
    unsafe fn right(self, bits: i32) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_srl_epi16(self, _mm_cvtsi32_si128(bits)) }
    }

    #[inline(always)]
    unsafe fn left(self, bits: i32) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_sll_epi16(self, _mm_cvtsi32_si128(bits)) }
    }

    #[inline(always)]
    unsafe fn and(self, mask: i16) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_and_si256(self, _mm256_set1_epi16(mask)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_or_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn lookup(self, table: [u8; 16]) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), self) }
    }
}

/// The eight partial sums of `stored code * v` over a block.
///
/// # Safety
/// AVX2; a block of codes at `codes`, its activations at `v` and three times `step::<C>()` on.
#[inline(always)]
unsafe fn block_sums<C: Codes>(codes: *const u8, v: *const i16) -> __m256i {
    // SAFETY: the four vectors of 16 activations of a block lie inside the padded row.
    unsafe {
        let [a, b, c, d] = C::planes(C::load::<__m256i>(codes));
        let a = _mm256_madd_epi16(a, load(v));
        let b = _mm256_madd_epi16(b, load(v.add(step::<C>())));
        let c = _mm256_madd_epi16(c, load(v.add(2 * step::<C>())));
        let d = _mm256_madd_epi16(d, load(v.add(3 * step::<C>())));
        _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d))
    }
}

/// Sixteen activation codes.
///
/// # Safety
/// AVX2; sixteen values at `v`.
#[inline(always)]
unsafe fn load(v: *const i16) -> __m256i {
    // SAFETY: by the caller's promise.
    unsafe { _mm256_loadu_si256(v.cast()) }
}

/// The activations that block `block` meets.
///
/// # Safety
/// The block exists in `x`.
#[inline(always)]
unsafe fn activations_at<C: Codes>(x: &ActRow<'_>, block: usize) -> *const i16 {
    // SAFETY: rows are padded to whole blocks and pairs of blocks.
    unsafe { activations::<C>(x).as_ptr().add(block_offset::<C>(block)) }
}

/// The last, partial block of a row in a buffer of whole size; zero activations meet what is added.
#[inline(always)]
pub(super) fn padded_block(codes: &[u8], from: usize) -> [u8; BLOCK] {
    let mut bytes = [0u8; BLOCK];
    let rest = &codes[from.min(codes.len())..];
    let count = rest.len().min(BLOCK);
    bytes[..count].copy_from_slice(&rest[..count]);
    bytes
}

/// As [`block_sums`] for any block of a row, whole or partial.
///
/// # Safety
/// AVX2; `block < cols.div_ceil(BLOCK)` for the `cols` columns of `codes` and `x`.
#[inline(always)]
unsafe fn any_block_sums<C: Codes>(codes: &[u8], x: &ActRow<'_>, block: usize) -> __m256i {
    let (from, bytes) = (block * C::BLOCK_BYTES, C::BLOCK_BYTES);
    // SAFETY: a whole block lies inside the slice, a partial one inside the copy.
    unsafe {
        if from + bytes <= codes.len() {
            block_sums::<C>(codes.as_ptr().add(from), activations_at::<C>(x, block))
        } else {
            let copy = padded_block(codes, from);
            block_sums::<C>(copy.as_ptr(), activations_at::<C>(x, block))
        }
    }
}

/// Sum of the eight lanes.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn horizontal_sum(lanes: __m256i) -> i32 {
    // SAFETY: register operations only.
    unsafe {
        let four = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
        let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
        let one = _mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
        _mm_cvtsi128_si32(one)
    }
}

/// The sums of four vectors, in order.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn four_sums(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m128i {
    // SAFETY: register operations only.
    unsafe {
        let all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all))
    }
}

/// Asks for the line at `address`, which need not be valid: prefetching never faults.
///
/// # Safety
/// SSE.
#[inline(always)]
pub(super) unsafe fn prefetch<T>(address: *const T) {
    // SAFETY: see above.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

/// Eight codes from column `col` on, as f32.
///
/// # Safety
/// AVX2; `col` is a multiple of `C::ALIGNMENT`; the eight codes lie inside `codes`.
#[inline(always)]
unsafe fn eight_codes<C: Codes>(codes: &[u8], col: usize) -> __m256 {
    // SAFETY: by the caller's promise.
    unsafe {
        let Some(Eight { low, bits, high }) = C::eight(codes.as_ptr(), col) else {
            return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(codes.as_ptr().add(col).cast())));
        };
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let shifts = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(bits));
        let low = _mm256_srlv_epi32(_mm256_set1_epi32(low.cast_signed()), shifts);
        let low = _mm256_and_si256(low, _mm256_set1_epi32((1 << bits) - 1));
        let high = _mm256_srlv_epi32(_mm256_set1_epi32((high << bits).cast_signed()), lanes);
        let high = _mm256_and_si256(high, _mm256_set1_epi32(1 << bits));
        let stored = _mm256_or_si256(low, high);
        _mm256_cvtepi32_ps(_mm256_sub_epi32(stored, _mm256_set1_epi32(C::OFFSET)))
    }
}

/// The chains over units of `BLOCKS` blocks (0: any number, given by `blocks`), continued from `acc`, which
/// holds the units before `from`, a multiple of four.
///
/// # Safety
/// AVX2 and FMA; `codes` holds `cols` codes, `x` as many activations, `factors` every unit.
#[inline(always)]
pub(super) unsafe fn chains_from<C: Codes, const BLOCKS: usize>(
    codes: &[u8],
    x: &ActRow<'_>,
    cols: usize,
    blocks: usize,
    factors: &impl Factors,
    from: usize,
    acc: __m128,
) -> f32 {
    let per_unit = if BLOCKS == 0 { blocks } else { BLOCKS };
    let units = cols.div_ceil(per_unit * BLOCK);
    // Quads of units whose code bytes are all there; an odd last column still fills its byte.
    let whole_blocks = codes.len() / C::BLOCK_BYTES;
    let quads = whole_blocks / per_unit / GROUP_CHAINS;
    // SAFETY: every block below `quads * 4 * per_unit` is whole; the rest goes through `any_block_sums`.
    unsafe {
        let mut acc = acc;
        for quad in from / GROUP_CHAINS..quads {
            let unit = quad * GROUP_CHAINS;
            let first = codes.as_ptr().add(unit * per_unit * C::BLOCK_BYTES);
            let bytes = GROUP_CHAINS * per_unit * C::BLOCK_BYTES;
            for line in (0..bytes).step_by(64) {
                prefetch(first.wrapping_add(line + PREFETCH));
            }
            // As far ahead in the scales as in the codes.
            prefetch(factors.address(unit + PREFETCH * GROUP_CHAINS / bytes));
            let mut sums = [_mm256_setzero_si256(); GROUP_CHAINS];
            for (u, sum) in sums.iter_mut().enumerate() {
                for b in u * per_unit..(u + 1) * per_unit {
                    let at = first.add(b * C::BLOCK_BYTES);
                    let v = activations_at::<C>(x, unit * per_unit + b);
                    *sum = _mm256_add_epi32(*sum, block_sums::<C>(at, v));
                }
            }
            let mut dots = four_sums(sums[0], sums[1], sums[2], sums[3]);
            if C::OFFSET != 0 {
                dots = _mm_sub_epi32(dots, stored_offsets::<C, BLOCKS>(x, unit * per_unit, per_unit));
            }
            let scale = factors.four(unit);
            acc = _mm_fmadd_ps(_mm_cvtepi32_ps(dots), _mm_loadu_ps(scale.as_ptr()), acc);
        }
        let tail = from.max(quads * GROUP_CHAINS);
        if tail < units {
            // The last units, at most four: chains without one stay as they are.
            let (mut sums, mut offsets, mut scales) =
                ([_mm256_setzero_si256(); GROUP_CHAINS], [0i32; GROUP_CHAINS], [0f32; GROUP_CHAINS]);
            let last = cols.div_ceil(BLOCK);
            for unit in tail..units {
                let u = unit - tail;
                for block in unit * per_unit..last.min((unit + 1) * per_unit) {
                    sums[u] = _mm256_add_epi32(sums[u], any_block_sums::<C>(codes, x, block));
                    offsets[u] += C::OFFSET * x.sums[block];
                }
                scales[u] = factors.at(unit);
            }
            let dots =
                _mm_sub_epi32(four_sums(sums[0], sums[1], sums[2], sums[3]), _mm_loadu_si128(offsets.as_ptr().cast()));
            let next = _mm_fmadd_ps(_mm_cvtepi32_ps(dots), _mm_loadu_ps(scales.as_ptr()), acc);
            let taken = _mm_cmpgt_epi32(_mm_set1_epi32((units - tail) as i32), _mm_setr_epi32(0, 1, 2, 3));
            acc = _mm_blendv_ps(acc, next, _mm_castsi128_ps(taken));
        }
        let mut chains = [0.0f32; GROUP_CHAINS];
        _mm_storeu_ps(chains.as_mut_ptr(), acc);
        crate::arch::join(chains)
    }
}

/// `offset * sum of activations` of four units: what the offset of stored codes adds to their dots.
///
/// # Safety
/// AVX2; the `4 * per_unit` blocks from `block` on exist.
#[inline(always)]
unsafe fn stored_offsets<C: Codes, const BLOCKS: usize>(x: &ActRow<'_>, block: usize, per_unit: usize) -> __m128i {
    // SAFETY: `block` starts four sums in the slice, by the caller's promise.
    unsafe {
        if BLOCKS == 1 {
            let sums = _mm_loadu_si128(x.sums[block..block + GROUP_CHAINS].as_ptr().cast());
            return _mm_mullo_epi32(sums, _mm_set1_epi32(C::OFFSET));
        }
        let mut offsets = [0i32; GROUP_CHAINS];
        for (u, offset) in offsets.iter_mut().enumerate() {
            let from = block + u * per_unit;
            *offset = x.sums[from..from + per_unit].iter().sum::<i32>() * C::OFFSET;
        }
        _mm_loadu_si128(offsets.as_ptr().cast())
    }
}

impl Isa for Avx2 {
    type Lanes = crate::arch::x86_64::lanes::Ymm;

    #[inline(always)]
    fn row_dot<C: Codes>(codes: &[u8], x: &ActRow<'_>, cols: usize) -> i64 {
        let blocks = cols.div_ceil(BLOCK);
        let whole = codes.len() / C::BLOCK_BYTES;
        let mut total = 0i64;
        // SAFETY: this function is compiled into sets that have AVX2; blocks below `whole` lie inside the
        // row, the last one goes through `any_block_sums`. Lanes hold at most FLUSH blocks.
        unsafe {
            for from in (0..whole).step_by(FLUSH) {
                let mut lanes = _mm256_setzero_si256();
                for block in from..whole.min(from + FLUSH) {
                    let at = codes.as_ptr().add(block * C::BLOCK_BYTES);
                    prefetch(at.wrapping_add(PREFETCH));
                    let sums = block_sums::<C>(at, activations_at::<C>(x, block));
                    lanes = _mm256_add_epi32(lanes, sums);
                }
                let low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(lanes));
                let high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256::<1>(lanes));
                let mut wide = [0i64; 4];
                _mm256_storeu_si256(wide.as_mut_ptr().cast(), _mm256_add_epi64(low, high));
                total += wide.iter().sum::<i64>();
            }
            if whole < blocks {
                total += i64::from(horizontal_sum(any_block_sums::<C>(codes, x, whole)));
            }
        }
        if C::OFFSET != 0 {
            let sum: i64 = x.sums[..blocks].iter().map(|sum| i64::from(*sum)).sum();
            total -= i64::from(C::OFFSET) * sum;
        }
        total
    }

    #[inline(always)]
    fn chains<C: Codes>(codes: &[u8], x: &ActRow<'_>, cols: usize, unit: usize, factors: &impl Factors) -> f32 {
        // SAFETY: this function is compiled into sets that have AVX2 and FMA; the slices belong to one
        // row of a checked matrix and activations of the same width.
        unsafe {
            let start = _mm_setzero_ps();
            match unit {
                BLOCK => chains_from::<C, 1>(codes, x, cols, 1, factors, 0, start),
                _ if unit.is_multiple_of(BLOCK) => chains_from::<C, 0>(codes, x, cols, unit / BLOCK, factors, 0, start),
                _ => Scalar::chains::<C>(codes, x, cols, unit, factors),
            }
        }
    }

    #[inline(always)]
    fn tiles(weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>) -> usize {
        tile::matmul::<Self>(weights, x, out)
    }

    #[inline(always)]
    fn accumulate<C: Codes, const N: usize>(codes: &[&[u8]; N], first: usize, factors: &[f32; N], acc: &mut [f32]) {
        if !first.is_multiple_of(C::ALIGNMENT) {
            return Scalar::accumulate::<C, N>(codes, first, factors, acc);
        }
        let whole = acc.len() / 8 * 8;
        // SAFETY: this function is compiled into sets that have AVX2 and FMA; eight sums from `col` on lie
        // inside `acc`, and as many codes inside each row, whose first column here is `first`.
        unsafe {
            let factors = factors.map(|factor| _mm256_set1_ps(factor));
            for col in (0..whole).step_by(8) {
                let at = acc.as_mut_ptr().add(col);
                let mut sums = _mm256_loadu_ps(at);
                for (codes, factor) in codes.iter().zip(factors) {
                    sums = _mm256_fmadd_ps(factor, eight_codes::<C>(codes, first + col), sums);
                }
                _mm256_storeu_ps(at, sums);
            }
        }
        Scalar::accumulate::<C, N>(codes, first + whole, factors, &mut acc[whole..]);
    }
}

impl TileIsa for Avx2 {
    // Eight accumulators, two vectors of codes and a broadcast fit sixteen registers.
    const X_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn unit_dots<C: Codes, const N: usize>(
        panel: &[tile::Step],
        first: usize,
        x: &[*const i16; N],
        dots: &mut [[i32; tile::ROWS]; N],
    ) {
        // SAFETY: AVX2 by the caller's promise; codes are read from whole `Step`s, activations from blocks
        // that the caller promises to exist.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; N];
            for (b, block) in panel.chunks(tile::BLOCK_STEPS).enumerate() {
                let at = block_offset::<C>(first + b);
                // Unrolled further, the loop over steps would not fit the registers.
                for (k, steps) in block.chunks(8).enumerate() {
                    let at = at + k * step::<C>();
                    for (d, steps) in steps.as_chunks::<4>().0.iter().enumerate() {
                        for (odd, step) in steps.iter().enumerate() {
                            let low = _mm256_load_si256(step.0.as_ptr().cast());
                            let high = _mm256_load_si256(step.0.as_ptr().add(8).cast());
                            for n in 0..N {
                                let pair = x[n].add(at + 8 * d + 2 * odd).cast::<i32>();
                                let pair = _mm256_set1_epi32(pair.read_unaligned());
                                let (low, high) = (_mm256_madd_epi16(low, pair), _mm256_madd_epi16(high, pair));
                                sums[n][0] = _mm256_add_epi32(sums[n][0], low);
                                sums[n][1] = _mm256_add_epi32(sums[n][1], high);
                            }
                        }
                    }
                }
            }
            for (dots, sums) in dots.iter_mut().zip(&sums) {
                _mm256_storeu_si256(dots.as_mut_ptr().cast(), sums[0]);
                _mm256_storeu_si256(dots.as_mut_ptr().add(8).cast(), sums[1]);
            }
        }
    }
}
