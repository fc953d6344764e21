//! From stored bytes to f32 weights.
//!
//! Owns: [`decode_rows`] and [`decode_row`], and the one body behind them, which every instruction set instantiates
//! under its own `#[target_feature]`. Must hold: `code * scale` rounded once, so all sets return the same bits;
//! float formats return the stored value.

use std::ops::Range;

use super::{Format, bf16, f16, f32, fp8_block, int2_row, int3_g64, int8_row, nibble};
use crate::dispatch::KernelSet;
use crate::matrix::MatrixView;

/// One row of a matrix as the formats see it.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [f32],
    /// Columns per scale, at least 1.
    pub(crate) group: usize,
}

/// Decodes one row: `code * scale` rounded once for formats with scales, the exact value for float formats.
///
/// # Panics
/// If `row` is not a row of `view` or `out` is longer than a row.
pub fn decode_row(view: &MatrixView<'_>, row: usize, out: &mut [f32]) {
    part_body(view, row, 0, out);
}

/// Decodes whole rows into `out` `[rows, cols]` with the best kernels of this machine; the bits are those of
/// [`decode_row`].
///
/// # Panics
/// If `rows` does not lie within `view` or `out` has another length.
pub fn decode_rows(view: &MatrixView<'_>, rows: Range<usize>, out: &mut [f32]) {
    KernelSet::best().decode_rows(view, rows, out);
}

/// `out.len()` elements of a row from column `first` on.
#[inline(always)]
pub(crate) fn part_body(view: &MatrixView<'_>, row: usize, first: usize, out: &mut [f32]) {
    let group = view.format().group_cols(view.cols());
    let row = Row { codes: view.row_codes(row), scales: view.row_scales(row), group };
    codes_body(view.format(), row, first, out);
}

/// One arm for each format: `out.len()` elements of a row from column `first` on.
#[inline(always)]
pub(super) fn codes_body(format: Format, row: Row<'_>, first: usize, out: &mut [f32]) {
    match format {
        Format::F32 => f32::decode(row, first, out),
        Format::Bf16 => bf16::decode(row, first, out),
        Format::F16 => f16::decode(row, first, out),
        Format::Int8Row => int8_row::decode(row, first, out),
        Format::Int4Row | Format::Int4Grouped { .. } => nibble::decode(row, first, out),
        Format::Fp8Block => fp8_block::decode(row, first, out),
        Format::Int3G64 => int3_g64::decode(row, first, out),
        Format::Int2Row => int2_row::decode(row, first, out),
    }
}

/// `code * scale` for a run of codes, group by group: `unpack` gives up to `N` codes from a column on that is a multiple
/// of `N`.
#[inline(always)]
pub(super) fn scaled<const N: usize>(
    row: Row<'_>,
    first: usize,
    out: &mut [f32],
    unpack: impl Fn(&[u8], usize) -> [i8; N],
) {
    let (mut col, mut rest) = (first, out);
    while !rest.is_empty() {
        let codes = unpack(row.codes, col - col % N);
        let codes = &codes[col % N..];
        let left = row.group - col % row.group;
        let count = left.min(rest.len()).min(codes.len());
        let (part, tail) = rest.split_at_mut(count);
        let scale = row.scales[col / row.group];
        for (value, code) in part.iter_mut().zip(codes) {
            *value = f32::from(*code) * scale;
        }
        col += count;
        rest = tail;
    }
}
