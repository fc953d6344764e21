//! Products of several activation rows: tiles of sixteen weight rows, one lane each.
//!
//! A panel (sixteen rows, up to eight blocks of 64 columns) is unpacked once to signed 16-bit codes and
//! transposed, so that one vector holds the same pair of columns of all rows and an activation pair is a
//! broadcast; no sum crosses lanes. The panel and the running sums stay in the first-level cache while up to
//! [`X_BATCH`] activation rows pass by. The rows of a tile lie one after another in memory, so the next tile
//! is fetched ahead as one linear stream.
//!
//! Must hold: each output sees the same floating-point steps in the same order as in
//! [`crate::arch::Isa::chains`] and `row_dot`; only the order of exact integer sums differs.

use std::arch::x86_64::*;

use super::avx2::{activations, padded_block, prefetch};
use crate::act::{ActRow, Activations, BLOCK, Precision};
use crate::arch::codes::{Byte, Codes, Crumb, Nibble, Triple};
use crate::arch::{GROUP_CHAINS, join};
use crate::dispatch::OutputWindow;
use crate::format::{Format, Grouping};
use crate::matrix::MatrixView;

/// Weight rows of a tile.
pub(super) const ROWS: usize = 16;
/// Fewest activation rows for which unpacking pays.
const X_MIN: usize = 4;
/// Most activation rows whose sums are kept at a time.
const X_BATCH: usize = 64;
/// Blocks of a panel.
const PANEL_BLOCKS: usize = 8;
/// Steps (pairs of columns) of a block.
pub(super) const BLOCK_STEPS: usize = BLOCK / 2;

/// One pair of columns of all rows: the low and the high half of a lane are its two codes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Step(pub(super) [i32; ROWS]);

/// What a tile kernel needs of an instruction set beyond AVX2.
pub(super) trait TileIsa {
    /// Activation rows computed at a time.
    const X_ROWS: usize;

    /// `dots[n][row] = sum over the steps of code pair . activation pair`, where step `d` of the `k`-th
    /// eight steps of block `first + b` meets the pair at `block_offset::<C>(first + b) + k * step::<C>() + 2 d`
    /// of `x[n]`.
    ///
    /// # Safety
    /// The processor has the instruction set; `panel` is a whole number of blocks, all of which lie inside
    /// the rows of activations `x`.
    unsafe fn unit_dots<C: Codes, const N: usize>(
        panel: &[Step],
        first: usize,
        x: &[*const i16; N],
        dots: &mut [[i32; ROWS]; N],
    );
}

/// What the sums of a matrix consist of; the factor of a unit is the product of the scales named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sum {
    /// One exact integer per row.
    Whole,
    /// Chains over groups, with their scales.
    Groups,
    /// Chains over blocks, with the activations' scales.
    Blocks,
    /// Chains over blocks, with both.
    GroupsAndBlocks,
}

/// Memory of a tile, on the stack of the kernel.
struct Scratch {
    panel: [Step; PANEL_BLOCKS * BLOCK_STEPS],
    chains: [[[f32; ROWS]; GROUP_CHAINS]; X_BATCH],
    // Whole sums: integers below 2^53, so exact.
    whole: [[f64; ROWS]; X_BATCH],
    // Scales of the panel's units.
    scales: [[f32; ROWS]; PANEL_BLOCKS],
}

/// The product of one tile with a batch of activation rows.
struct Tile<'a> {
    weights: MatrixView<'a>,
    row: usize,
    x: &'a Activations,
    x_first: usize,
    x_count: usize,
    sum: Sum,
    /// Blocks of a unit: of a scale group, or of the stretch after which a whole sum is widened.
    unit_blocks: usize,
}

/// Computes all whole tiles; returns the number of rows done, 0 if tiles do not serve this product.
#[inline(always)]
pub(super) fn matmul<T: TileIsa>(weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>) -> usize {
    if x.rows() < X_MIN || weights.rows() < ROWS {
        return 0;
    }
    let (sum, unit) = match (weights.format().grouping(), x.precision()) {
        (Grouping::Row, Precision::A16) => (Sum::Whole, PANEL_BLOCKS * BLOCK),
        (Grouping::Row, Precision::A8) => (Sum::Blocks, BLOCK),
        (Grouping::Columns(_), Precision::A8) => (Sum::GroupsAndBlocks, BLOCK),
        (Grouping::Columns(group), Precision::A16) => (Sum::Groups, group),
        _ => return 0,
    };
    if unit % BLOCK != 0 || unit > PANEL_BLOCKS * BLOCK {
        return 0;
    }
    let mut scratch = Scratch {
        panel: [Step([0; ROWS]); PANEL_BLOCKS * BLOCK_STEPS],
        chains: [[[0.0; ROWS]; GROUP_CHAINS]; X_BATCH],
        whole: [[0.0; ROWS]; X_BATCH],
        scales: [[0.0; ROWS]; PANEL_BLOCKS],
    };
    let rows = weights.rows() / ROWS * ROWS;
    for x_first in (0..x.rows()).step_by(X_BATCH) {
        let x_count = X_BATCH.min(x.rows() - x_first);
        for row in (0..rows).step_by(ROWS) {
            let weights = *weights;
            let tile = Tile { weights, row, x, x_first, x_count, sum, unit_blocks: unit / BLOCK };
            match weights.format() {
                Format::Int8Row => tile.compute::<T, Byte>(&mut scratch, out),
                Format::Int2Row => tile.compute::<T, Crumb>(&mut scratch, out),
                Format::Int3G64 => tile.compute::<T, Triple>(&mut scratch, out),
                _ => tile.compute::<T, Nibble>(&mut scratch, out),
            }
        }
    }
    rows
}

impl Tile<'_> {
    #[inline(always)]
    fn compute<T: TileIsa, C: Codes>(&self, scratch: &mut Scratch, out: &mut OutputWindow<'_>) {
        scratch.chains[..self.x_count].fill([[0.0; ROWS]; GROUP_CHAINS]);
        scratch.whole[..self.x_count].fill([0.0; ROWS]);
        let blocks = self.weights.cols().div_ceil(BLOCK);
        // Whole units.
        let panel_blocks = PANEL_BLOCKS / self.unit_blocks * self.unit_blocks;
        for first in (0..blocks).step_by(panel_blocks) {
            let count = panel_blocks.min(blocks - first);
            self.pack::<C>(first, count, &mut scratch.panel);
            self.pack_scales(first, count, &mut scratch.scales);
            let mut x = 0;
            while x < self.x_count {
                x += self.panel_rows::<T, C>(first, count, x, scratch);
            }
        }
        for x in 0..self.x_count {
            self.finish(scratch, x, out);
        }
    }

    /// One pass of some activation rows over a panel; returns how many.
    #[inline(always)]
    fn panel_rows<T: TileIsa, C: Codes>(&self, first: usize, count: usize, x: usize, scratch: &mut Scratch) -> usize {
        match (self.x_count - x).min(T::X_ROWS) {
            8.. => self.panel_x::<T, C, 8>(first, count, x, scratch),
            4.. => self.panel_x::<T, C, 4>(first, count, x, scratch),
            2.. => self.panel_x::<T, C, 2>(first, count, x, scratch),
            _ => self.panel_x::<T, C, 1>(first, count, x, scratch),
        }
    }

    #[inline(always)]
    fn panel_x<T: TileIsa, C: Codes, const N: usize>(
        &self,
        first: usize,
        count: usize,
        x: usize,
        scratch: &mut Scratch,
    ) -> usize {
        let act: [ActRow<'_>; N] = std::array::from_fn(|n| self.x.row(self.x_first + x + n));
        let pairs: [*const i16; N] = std::array::from_fn(|n| activations::<C>(&act[n]).as_ptr());
        let Scratch { panel, chains, whole, scales } = scratch;
        let (chains, whole) = (&mut chains[x..x + N], &mut whole[x..x + N]);
        let mut dots = [[0i32; ROWS]; N];
        let units = first / self.unit_blocks..;
        let whole_sum = self.sum == Sum::Whole;
        let panel = panel[..count * BLOCK_STEPS].chunks(self.unit_blocks * BLOCK_STEPS);
        for ((unit, steps), scales) in units.zip(panel).zip(scales) {
            let block = unit * self.unit_blocks;
            self.prefetch_x(&pairs, block);
            // SAFETY: the sets that use tiles have their instructions. Blocks of the panel are blocks of
            // the row, and activations are padded to whole blocks and pairs of blocks.
            unsafe { T::unit_dots::<C, N>(steps, block, &pairs, &mut dots) };
            for n in 0..N {
                if whole_sum {
                    add_whole(&mut whole[n], &dots[n]);
                } else {
                    // Multiplying by one is exact: A16 has no scale per block.
                    let block = if self.a8() { act[n].scales[block] } else { 1.0 };
                    add_chain(&mut chains[n][unit % GROUP_CHAINS], &dots[n], scales, block);
                }
            }
        }
        N
    }

    /// Fetches what the next activation rows need of a unit.
    #[inline(always)]
    fn prefetch_x<const N: usize>(&self, pairs: &[*const i16; N], block: usize) {
        let from = N * self.x.stride() + block * BLOCK;
        for line in (from..from + self.unit_blocks * BLOCK).step_by(32) {
            for pairs in pairs {
                // SAFETY: x86-64 has SSE, and prefetching never faults: rows past the last are harmless.
                unsafe { prefetch(pairs.wrapping_add(line)) };
            }
        }
    }

    /// Joins the sums of one activation row and writes its outputs.
    #[inline(always)]
    fn finish(&self, scratch: &Scratch, x: usize, out: &mut OutputWindow<'_>) {
        let act = self.x.row(self.x_first + x);
        let out = &mut out.row_mut(self.x_first + x)[self.row..self.row + ROWS];
        for (lane, out) in out.iter_mut().enumerate() {
            let chains = || join(std::array::from_fn(|chain| scratch.chains[x][chain][lane]));
            let row_scale = || self.weights.row_scales(self.row + lane)[0];
            *out = match self.sum {
                Sum::Whole => (scratch.whole[x][lane] as f32 * row_scale()) * act.scales[0],
                Sum::Groups => chains() * act.scales[0],
                Sum::Blocks => chains() * row_scale(),
                Sum::GroupsAndBlocks => chains(),
            };
        }
    }

    fn a8(&self) -> bool {
        matches!(self.sum, Sum::Blocks | Sum::GroupsAndBlocks)
    }

    /// The group scales of a panel's units, one lane per row; ones where the weights have none.
    #[inline(always)]
    fn pack_scales(&self, first: usize, count: usize, scales: &mut [[f32; ROWS]; PANEL_BLOCKS]) {
        if !matches!(self.sum, Sum::Groups | Sum::GroupsAndBlocks) {
            *scales = [[1.0; ROWS]; PANEL_BLOCKS];
            return;
        }
        let group_blocks = self.weights.format().group_cols(self.weights.cols()) / BLOCK;
        let units = count.div_ceil(self.unit_blocks);
        let group = first / group_blocks;
        for lane in 0..ROWS {
            let row = &self.weights.row_scales(self.row + lane)[group..];
            if group_blocks == self.unit_blocks {
                for (scales, scale) in scales.iter_mut().zip(row).take(units) {
                    scales[lane] = *scale;
                }
                continue;
            }
            // Units are single blocks of larger groups.
            for (block, scales) in (first..).zip(scales.iter_mut()).take(units) {
                scales[lane] = row[block / group_blocks - group];
            }
        }
    }

    /// Unpacks and transposes `count` blocks from block `first` on.
    #[inline(always)]
    fn pack<C: Codes>(&self, first: usize, count: usize, panel: &mut [Step]) {
        let bytes = C::BLOCK_BYTES;
        for (at, steps) in panel.as_chunks_mut::<BLOCK_STEPS>().0[..count].iter_mut().enumerate() {
            let from = (first + at) * bytes;
            self.prefetch_next(first + at, bytes);
            for half in 0..2 {
                let row = |r: usize| self.weights.row_codes(self.row + half * 8 + r);
                let whole = from + bytes <= row(0).len();
                let copies: [[u8; BLOCK]; 8];
                let sources: [*const u8; 8] = if whole {
                    std::array::from_fn(|r| row(r)[from..].as_ptr())
                } else {
                    copies = std::array::from_fn(|r| padded_block(row(r), from));
                    std::array::from_fn(|r| copies[r].as_ptr())
                };
                // SAFETY: the sets that use tiles have AVX2; each source holds a whole block.
                unsafe { pack_block::<C>(&sources, steps, half) };
            }
        }
    }

    /// Fetches the part of the next tile that corresponds to one block of this one, into the second level:
    /// a whole tile would push the panel out of the first.
    #[inline(always)]
    fn prefetch_next(&self, block: usize, bytes: usize) {
        if self.row + 2 * ROWS > self.weights.rows() {
            return;
        }
        let codes = self.weights.row_codes(self.row + ROWS).as_ptr();
        for line in (0..ROWS * bytes).step_by(64) {
            // SAFETY: x86-64 has SSE, and prefetching never faults.
            unsafe { prefetch_far(codes.wrapping_add(block * ROWS * bytes + line)) };
        }
        // One scale per block at most: sixteen rows of them are one line per block.
        let scales = self.weights.row_scales(self.row + ROWS).as_ptr();
        // SAFETY: as above.
        unsafe { prefetch_far(scales.wrapping_add(block * ROWS / self.unit_blocks)) };
    }
}

/// `sums += dots`; all are integers below 2^53.
#[inline(always)]
fn add_whole(sums: &mut [f64; ROWS], dots: &[i32; ROWS]) {
    for lane in 0..ROWS {
        sums[lane] += f64::from(dots[lane]);
    }
}

/// One step of a chain of all rows: `sum = fma(float(dot), group scale * block scale, sum)`.
#[inline(always)]
fn add_chain(sums: &mut [f32; ROWS], dots: &[i32; ROWS], groups: &[f32; ROWS], block: f32) {
    for lane in 0..ROWS {
        sums[lane] = (dots[lane] as f32).mul_add(groups[lane] * block, sums[lane]);
    }
}

/// Asks for the line at `address` in the second-level cache; it need not be valid.
///
/// # Safety
/// SSE.
#[inline(always)]
unsafe fn prefetch_far<T>(address: *const T) {
    // SAFETY: prefetching never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
}

/// Eight rows of one block: dword `d` of plane `k` of a row holds a pair of columns, which becomes step `8 k + d`.
///
/// # Safety
/// AVX2; each source has a block of codes.
#[inline(always)]
unsafe fn pack_block<C: Codes>(rows: &[*const u8; 8], steps: &mut [Step; BLOCK_STEPS], half: usize) {
    // SAFETY: by the caller's promise; stores go to the eight lanes of `half` of a step.
    unsafe {
        let offset = _mm256_set1_epi16(C::OFFSET as i16);
        let mut loaded = [[_mm256_setzero_si256(); 8]; 4];
        for (k, lines) in loaded.iter_mut().enumerate().take(C::LOADED) {
            for (line, row) in lines.iter_mut().zip(rows) {
                *line = C::load::<__m256i>(*row)[k];
            }
            *lines = transpose(*lines);
            if C::LOADED == 4 {
                // Planes already; kept for later they would not fit the registers.
                for (d, words) in lines.iter().enumerate() {
                    let to = steps[8 * k + d].0.as_mut_ptr().add(8 * half);
                    _mm256_store_si256(to.cast(), *words);
                }
            }
        }
        if C::LOADED == 4 {
            return;
        }
        for d in 0..8 {
            let planes = C::planes([loaded[0][d], loaded[1][d], loaded[2][d], loaded[3][d]]);
            for (k, plane) in planes.into_iter().enumerate() {
                let to = steps[8 * k + d].0.as_mut_ptr().add(8 * half);
                _mm256_store_si256(to.cast(), _mm256_sub_epi16(plane, offset));
            }
        }
    }
}

/// Transposes eight rows of eight 32-bit values.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: register operations only.
    unsafe {
        // quads[i][j]: column j (low lane) and j + 4 (high lane) of rows 4 i..4 i + 4.
        let mut quads = [[_mm256_setzero_si256(); 4]; 2];
        for (quad, r) in quads.iter_mut().zip(r.as_chunks::<4>().0) {
            let (a, b) = (_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[0], r[1]));
            let (c, d) = (_mm256_unpacklo_epi32(r[2], r[3]), _mm256_unpackhi_epi32(r[2], r[3]));
            quad[0] = _mm256_unpacklo_epi64(a, c);
            quad[1] = _mm256_unpackhi_epi64(a, c);
            quad[2] = _mm256_unpacklo_epi64(b, d);
            quad[3] = _mm256_unpackhi_epi64(b, d);
        }
        let mut columns = [_mm256_setzero_si256(); 8];
        for c in 0..4 {
            columns[c] = _mm256_permute2x128_si256::<0x20>(quads[0][c], quads[1][c]);
            columns[c + 4] = _mm256_permute2x128_si256::<0x31>(quads[0][c], quads[1][c]);
        }
        columns
    }
}
