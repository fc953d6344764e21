//! IEEE binary32, little-endian: the weight itself.

use super::{Format, FormatSpec, Row};

pub(super) static SPEC: FormatSpec =
    FormatSpec { example: Format::F32, name: "f32", stamp: "f32", row_bytes: |cols| cols.checked_mul(4) };

/// One row.
#[inline(always)]
pub(super) fn encode(weights: &[f32], codes: &mut [u8]) {
    for (bytes, weight) in codes.as_chunks_mut::<4>().0.iter_mut().zip(weights) {
        *bytes = weight.to_le_bytes();
    }
}

/// Part of a row from column `first` on.
#[inline(always)]
pub(super) fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(&row.codes.as_chunks::<4>().0[first..]) {
        *value = f32::from_le_bytes(*bytes);
    }
}
