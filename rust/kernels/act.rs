//! Activations prepared for the kernels: integer codes with scales, or f32 as they are.
//!
//! Owns: the choice of precision ([`Numerics`], [`Precision`]), the codes and the memory they are kept in
//! ([`Activations`], reused from call to call).
//!
//! A16: `v = round_half_even(x * (16256 / max |x|))`, one scale `max |x| / 16256` per row; |v| <= 16256 is
//! what two int8 planes `v = 128 * hi + lo` can hold, so kernels may use one 16-bit or two 8-bit
//! multiplications and get the same integer. A8: `round_half_even(x * (127 / max |x|))` with
//! `max |x| / 127` per block of 64 columns.
//!
//! Must hold: a row's codes depend on that row alone; columns past the end are zero up to a multiple of
//! [`PAD`]; a zero row or block has scale 0 and codes 0, and so has one so small (below about 5e-35) that
//! the inverse of its scale overflows.
//! Refuses: NaN and infinity, by [`NonFinite`] with the place of the first.

use thiserror::Error;

use crate::dispatch::KernelSet;
use crate::format::{Format, Grouping};

/// Columns of a block: the unit of A8 scales, of code sums and of the kernels' inner loops.
pub(crate) const BLOCK: usize = 64;
/// Rows of codes are padded to a multiple of this many columns: four blocks.
pub(crate) const PAD: usize = 4 * BLOCK;
/// Largest A16 code.
const A16_MAX: f32 = 16_256.0;
/// Largest A8 code.
const A8_MAX: f32 = 127.0;

/// The arithmetic a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// Integer arithmetic with 15-bit activations for quantised weights, f32 for float weights.
    #[default]
    Quantized,
    /// As `Quantized`, with 8-bit activations where the format allows.
    A8,
    /// Weights decoded to f32, f32 arithmetic.
    F32,
}

impl Numerics {
    /// Every value, in the order of the documentation.
    pub const ALL: [Numerics; 3] = [Numerics::Quantized, Numerics::A8, Numerics::F32];

    /// The command-line name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quantized => "quantized",
            Self::A8 => "a8",
            Self::F32 => "f32",
        }
    }

    /// The value with this command-line name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|numerics| numerics.name() == name)
    }

    /// The activation precision for weights of a format: f32 for float weights and in `F32`; A8 for
    /// per-row formats and groups of a multiple of 64 columns in `A8`; else A16.
    #[must_use]
    pub fn precision(self, weights: Format) -> Precision {
        match (self, weights.grouping()) {
            (Self::F32, _) | (_, Grouping::None | Grouping::Blocks { .. }) => Precision::F32,
            (Self::A8, Grouping::Row) => Precision::A8,
            (Self::A8, Grouping::Columns(group)) if group.is_multiple_of(BLOCK) => Precision::A8,
            _ => Precision::A16,
        }
    }
}

/// The precision of a set of activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32, unchanged.
    #[default]
    F32,
    /// 15-bit codes, one scale per row.
    A16,
    /// 8-bit codes, one scale per 64 columns.
    A8,
}

/// An activation is NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the activation at row {row}, column {col} is not a finite number")]
pub struct NonFinite {
    /// Row of the first such activation.
    pub row: usize,
    /// Its column.
    pub col: usize,
}

/// Rows of activations `[rows, cols]` at one precision.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    precision: Precision,
    rows: usize,
    cols: usize,
    padded: usize,
    stride: usize,
    values: Vec<f32>,   // F32: [rows, cols]
    codes: CacheLines,  // A16, A8: [rows, stride], of which `padded` used, in column order
    planes: CacheLines, // the same codes in plane order, see `arrange`
    sums: Vec<i32>,     // [rows, padded / BLOCK], sums of codes
    scales: Vec<f32>,   // A16: [rows]; A8: [rows, padded / BLOCK]
}

/// One row of integer activations as kernels read it.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only accelerated sets read planes and sums"))]
#[derive(Clone, Copy)]
pub(crate) struct ActRow<'a> {
    /// Codes in column order, `[padded]`.
    pub(crate) codes: &'a [i16],
    /// Codes in plane order (see `arrange`), `[padded]`.
    pub(crate) planes: &'a [i16],
    /// Sum of the codes of each block, `[padded / BLOCK]`.
    pub(crate) sums: &'a [i32],
    /// A16: one scale; A8: one per block, `[padded / BLOCK]`.
    pub(crate) scales: &'a [f32],
}

/// One row to be quantised: the arguments of a kernel set's quantiser.
pub(crate) struct QuantiseRow<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) codes: &'a mut [i16],
    pub(crate) planes: &'a mut [i16],
    pub(crate) sums: &'a mut [i32],
    pub(crate) scales: &'a mut [f32],
}

impl Activations {
    /// Quantises (or copies) `x` `[rows, cols]`, replacing what was held.
    ///
    /// # Errors
    /// [`NonFinite`] at the first NaN or infinity in reading order; the contents are then empty.
    ///
    /// # Panics
    /// If `x` has another length than `rows * cols`.
    pub fn quantise(
        &mut self,
        kernels: &KernelSet,
        precision: Precision,
        rows: usize,
        cols: usize,
        x: &[f32],
    ) -> Result<(), NonFinite> {
        assert!(x.len() == rows * cols, "activations of {rows} x {cols}, got {}", x.len());
        self.resize(precision, 0, cols);
        if !kernels.all_finite(x)
            && let Some(at) = x.iter().position(|value| !value.is_finite())
        {
            return Err(NonFinite { row: at / cols, col: at % cols });
        }
        self.resize(precision, rows, cols);
        if precision == Precision::F32 {
            self.values.copy_from_slice(x);
            return Ok(());
        }
        let (padded, stride, blocks) = (self.padded, self.stride, self.padded / BLOCK);
        let row_scales = self.row_scales();
        let (codes, planes) = (self.codes.slice_mut(), self.planes.slice_mut());
        for row in 0..rows {
            let row = QuantiseRow {
                x: &x[row * cols..(row + 1) * cols],
                codes: &mut codes[row * stride..][..padded],
                planes: &mut planes[row * stride..][..padded],
                sums: &mut self.sums[row * blocks..(row + 1) * blocks],
                scales: &mut self.scales[row * row_scales..(row + 1) * row_scales],
            };
            kernels.quantise_row(row, precision);
        }
        Ok(())
    }

    /// Replaces the contents by the chosen rows of `from`, in the order given.
    ///
    /// # Panics
    /// If an index is not a row of `from`.
    pub fn gather(&mut self, from: &Activations, rows: &[usize]) {
        self.resize(from.precision, rows.len(), from.cols);
        copy_rows(&mut self.values, &from.values, rows, from.rows);
        copy_rows(self.codes.slice_mut(), from.codes.slice(), rows, from.rows);
        copy_rows(self.planes.slice_mut(), from.planes.slice(), rows, from.rows);
        copy_rows(&mut self.sums, &from.sums, rows, from.rows);
        copy_rows(&mut self.scales, &from.scales, rows, from.rows);
    }

    /// Bytes that a row of `cols` activations takes at a precision.
    #[must_use]
    pub const fn row_bytes(precision: Precision, cols: usize) -> usize {
        let padded = cols.next_multiple_of(PAD);
        let (blocks, planes) = (padded / BLOCK, 2 * size_of::<i16>() * row_stride(padded));
        match precision {
            Precision::F32 => size_of::<f32>() * cols,
            Precision::A16 => planes + size_of::<i32>() * blocks + size_of::<f32>(),
            Precision::A8 => planes + (size_of::<i32>() + size_of::<f32>()) * blocks,
        }
    }

    /// Number of rows held.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The precision of the rows held.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// One f32 row; only at [`Precision::F32`].
    #[inline(always)]
    pub(crate) fn values(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..(row + 1) * self.cols]
    }

    /// One integer row; only at [`Precision::A16`] and [`Precision::A8`].
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> ActRow<'_> {
        let (padded, blocks, scales) = (self.padded, self.padded / BLOCK, self.row_scales());
        let codes = row * self.stride..row * self.stride + padded;
        ActRow {
            codes: &self.codes.slice()[codes.clone()],
            planes: &self.planes.slice()[codes],
            sums: &self.sums[row * blocks..(row + 1) * blocks],
            scales: &self.scales[row * scales..(row + 1) * scales],
        }
    }

    /// Distance of two integer rows in codes.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only tiles need it"))]
    #[inline(always)]
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    fn row_scales(&self) -> usize {
        match self.precision {
            Precision::F32 => 0,
            Precision::A16 => 1,
            Precision::A8 => self.padded / BLOCK,
        }
    }

    /// Sets shape and lengths; contents are unspecified until written.
    fn resize(&mut self, precision: Precision, rows: usize, cols: usize) {
        (self.precision, self.rows, self.cols) = (precision, rows, cols);
        let float = precision == Precision::F32;
        self.padded = if float { 0 } else { cols.next_multiple_of(PAD) };
        self.values.resize(if float { rows * cols } else { 0 }, 0.0);
        self.stride = row_stride(self.padded);
        self.codes.resize(rows * self.stride);
        self.planes.resize(rows * self.stride);
        self.sums.resize(rows * self.padded / BLOCK, 0);
        self.scales.resize(rows * self.row_scales(), 0.0);
    }
}

/// Distance of two rows of codes. Long rows start 1 KiB apart modulo the 4 KiB that the sets of a first-level
/// cache span: at a multiple of 4 KiB the rows of a batch would push one another out.
const fn row_stride(padded: usize) -> usize {
    /// 4 KiB and 1 KiB of 16-bit codes.
    const SPAN: usize = 2048;
    const SHIFT: usize = 512;
    if padded < SPAN { padded } else { padded.next_multiple_of(SPAN) + SHIFT }
}

fn copy_rows<T: Copy>(to: &mut [T], from: &[T], rows: &[usize], from_rows: usize) {
    let width = from.len().checked_div(from_rows).unwrap_or(0);
    if width == 0 {
        assert!(rows.iter().all(|row| *row < from_rows), "row outside of the activations");
        return;
    }
    for (target, row) in to.chunks_exact_mut(width).zip(rows) {
        target.copy_from_slice(&from[row * width..(row + 1) * width]);
    }
}

/// Quantises one row at A16: the body that instruction sets instantiate.
#[inline(always)]
pub(crate) fn quantise_a16_body(row: QuantiseRow<'_>) {
    let inverse = inverse_scale(magnitude(row.x), A16_MAX);
    row.scales[0] = if inverse == 0.0 { 0.0 } else { magnitude(row.x) / A16_MAX };
    to_codes(row.x, inverse, row.codes);
    row.codes[row.x.len()..].fill(0);
    arrange(row.codes, row.planes, row.sums);
}

/// Quantises one row at A8: the body that instruction sets instantiate.
#[inline(always)]
pub(crate) fn quantise_a8_body(row: QuantiseRow<'_>) {
    row.scales.fill(0.0);
    let blocks = row.x.chunks(BLOCK).zip(row.codes.chunks_mut(BLOCK));
    for ((x, codes), scale) in blocks.zip(row.scales.iter_mut()) {
        let most = magnitude(x);
        let inverse = inverse_scale(most, A8_MAX);
        *scale = if inverse == 0.0 { 0.0 } else { most / A8_MAX };
        to_codes(x, inverse, codes);
    }
    row.codes[row.x.len()..].fill(0);
    arrange(row.codes, row.planes, row.sums);
}

/// Whether no value is NaN or infinite: the body that instruction sets instantiate.
#[inline(always)]
pub(crate) fn all_finite_body(x: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let mut any = [0u32; 16];
    let (blocks, tail) = x.as_chunks::<16>();
    for block in blocks {
        for lane in 0..16 {
            any[lane] |= u32::from(block[lane].to_bits() & EXPONENT == EXPONENT);
        }
    }
    any.iter().all(|lane| *lane == 0) && tail.iter().all(|value| value.is_finite())
}

/// `max |x|`, exact in any order.
#[inline(always)]
fn magnitude(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (blocks, tail) = x.as_chunks::<16>();
    for block in blocks {
        for lane in 0..16 {
            let value = block[lane].abs();
            lanes[lane] = if value > lanes[lane] { value } else { lanes[lane] };
        }
    }
    lanes.iter().chain(tail).fold(0.0f32, |most, value| most.max(value.abs()))
}

/// `largest / most`, or 0 when there is nothing to scale.
#[inline(always)]
fn inverse_scale(most: f32, largest: f32) -> f32 {
    let inverse = largest / most;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[inline(always)]
fn to_codes(x: &[f32], inverse: f32, codes: &mut [i16]) {
    /// Adding and subtracting 1.5 * 2^23 rounds half-even; |x * inverse| stays below 2^15.
    const ROUND: f32 = 12_582_912.0;
    for (code, value) in codes.iter_mut().zip(x) {
        // The integer sits in the low bits of the shifted number.
        *code = (value * inverse + ROUND).to_bits() as i16;
    }
}

/// Fills the planes and the block sums from the codes.
///
/// Plane order: within 128 columns there are four planes of 32 codes; plane `k` holds the columns `4 j + k`, those
/// of the first 64 columns before those of the second. Read as 16-bit words, 64 bytes of nibbles hold plane `k` at
/// bits `4 k`, so one shift and one mask line a plane up; bytes of four 2-bit codes, each widened to a word, hold it
/// at bits `2 k`.
#[inline(always)]
fn arrange(codes: &[i16], planes: &mut [i16], sums: &mut [i32]) {
    for (pair, (codes, planes)) in codes.chunks_exact(2 * BLOCK).zip(planes.chunks_exact_mut(2 * BLOCK)).enumerate() {
        for (half, block) in codes.chunks_exact(BLOCK).enumerate() {
            for (j, four) in block.as_chunks::<4>().0.iter().enumerate() {
                for (k, code) in four.iter().enumerate() {
                    planes[k * 32 + half * 16 + j] = *code;
                }
            }
            sums[2 * pair + half] = block.iter().map(|code| i32::from(*code)).sum();
        }
    }
}

/// A growing array of codes that starts at a cache line, so that no vector load straddles two.
#[derive(Clone, Debug, Default)]
struct CacheLines {
    data: Vec<i16>,
    start: usize,
    length: usize,
}

impl CacheLines {
    const LINE: usize = 64;

    fn resize(&mut self, length: usize) {
        let needed = length + Self::LINE / 2;
        if self.data.len() < needed {
            self.data.resize(needed, 0);
        }
        self.start = self.data.as_ptr().align_offset(Self::LINE).min(Self::LINE / 2);
        self.length = length;
    }

    fn slice(&self) -> &[i16] {
        &self.data[self.start..self.start + self.length]
    }

    fn slice_mut(&mut self) -> &mut [i16] {
        &mut self.data[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(precision: Precision, x: &[f32]) -> Activations {
        let mut activations = Activations::default();
        let kernels = KernelSet::by_name("scalar").unwrap();
        activations.quantise(&kernels, precision, 1, x.len(), x).unwrap();
        activations
    }

    #[test]
    fn a16_follows_its_formula() {
        let x = [1.0f32, -0.5, 0.25, 1.0 / 3.0, -1.0, 0.0];
        let held = row_of(Precision::A16, &x);
        let row = held.row(0);
        assert_eq!(row.codes[..6], [16256, -8128, 4064, 5419, -16256, 0]);
        assert!(row.codes[6..].iter().all(|code| *code == 0));
        assert_eq!(row.scales, [1.0 / 16256.0]);
        assert_eq!(row.sums, [16256 - 8128 + 4064 + 5419 - 16256, 0, 0, 0]);
    }

    #[test]
    fn a_half_rounds_to_even() {
        // max 16256 makes the inverse 1.
        let held = row_of(Precision::A16, &[16256.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]);
        assert_eq!(held.row(0).codes[..7], [16256, 0, 2, 2, 0, -2, -2]);
    }

    #[test]
    fn a8_has_a_scale_per_block_and_zero_blocks_have_none() {
        let mut x = vec![0.0f32; 130];
        x[0] = 2.0;
        x[129] = -4.0;
        let held = row_of(Precision::A8, &x);
        let row = held.row(0);
        assert_eq!((row.codes[0], row.codes[129]), (127, -127));
        assert_eq!(row.scales, [2.0 / 127.0, 0.0, 4.0 / 127.0, 0.0]);
    }

    #[test]
    fn the_planes_are_a_permutation_of_the_codes() {
        let x: Vec<f32> = (0..300).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
        let held = row_of(Precision::A16, &x);
        let row = held.row(0);
        let mut seen = vec![false; row.codes.len()];
        for (col, code) in row.codes.iter().enumerate() {
            let (block, within) = (col / BLOCK, col % BLOCK);
            let place = block / 2 * 128 + within % 4 * 32 + block % 2 * 16 + within / 4;
            assert!(!std::mem::replace(&mut seen[place], true));
            assert_eq!(row.planes[place], *code, "column {col}");
        }
    }

    #[test]
    fn tiny_rows_become_zero_and_zero_rows_stay_zero() {
        for x in [[0.0f32, 0.0], [1e-38, -1e-39]] {
            let held = row_of(Precision::A16, &x);
            assert_eq!(held.row(0).scales, [0.0]);
            assert!(held.row(0).codes.iter().all(|code| *code == 0));
        }
    }

    #[test]
    fn the_first_non_finite_value_is_named() {
        let kernels = KernelSet::best();
        let mut x = vec![1.0f32; 3 * 40];
        x[2 * 40 + 5] = f32::NAN;
        x[40 + 39] = f32::NEG_INFINITY;
        for precision in [Precision::F32, Precision::A16, Precision::A8] {
            let error = Activations::default().quantise(&kernels, precision, 3, 40, &x).unwrap_err();
            assert_eq!(error, NonFinite { row: 1, col: 39 });
        }
    }

    #[test]
    fn gathered_rows_equal_rows_quantised_alone() {
        let kernels = KernelSet::best();
        let x: Vec<f32> = (0..5 * 70).map(|i| ((i * 31) % 97) as f32 / 7.0 - 5.0).collect();
        for precision in [Precision::F32, Precision::A16, Precision::A8] {
            let mut all = Activations::default();
            all.quantise(&kernels, precision, 5, 70, &x).unwrap();
            let mut chosen = Activations::default();
            chosen.gather(&all, &[3, 0, 3]);
            assert_eq!((chosen.rows(), chosen.cols(), chosen.precision()), (3, 70, precision));
            for (at, row) in [3usize, 0, 3].into_iter().enumerate() {
                let mut alone = Activations::default();
                alone.quantise(&kernels, precision, 1, 70, &x[row * 70..(row + 1) * 70]).unwrap();
                if precision == Precision::F32 {
                    assert_eq!(chosen.values(at), alone.values(0));
                } else {
                    assert_eq!(chosen.row(at).codes, alone.row(0).codes);
                    assert_eq!(chosen.row(at).planes, alone.row(0).planes);
                    assert_eq!(chosen.row(at).sums, alone.row(0).sums);
                    assert_eq!(chosen.row(at).scales, alone.row(0).scales);
                }
            }
        }
    }

    #[test]
    fn precision_follows_numerics_and_format() {
        let odd = Format::Int4Grouped { group: 96 };
        assert_eq!(Numerics::Quantized.precision(Format::Q4G64), Precision::A16);
        assert_eq!(Numerics::Quantized.precision(Format::Bf16), Precision::F32);
        assert_eq!(Numerics::A8.precision(Format::Int8Row), Precision::A8);
        assert_eq!(Numerics::A8.precision(odd), Precision::A16);
        assert_eq!(Numerics::F32.precision(Format::Q4G64), Precision::F32);
        for numerics in Numerics::ALL {
            assert_eq!(Numerics::parse(numerics.name()), Some(numerics));
        }
    }
}
