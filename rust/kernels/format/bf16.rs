//! bfloat16, little-endian: the upper half of a binary32, rounded half-even when written.

use super::{Format, FormatSpec, Row};

pub(super) static SPEC: FormatSpec =
    FormatSpec { example: Format::Bf16, name: "bf16", stamp: "bf16", row_bytes: |cols| cols.checked_mul(2) };

/// One row.
#[inline(always)]
pub(super) fn encode(weights: &[f32], codes: &mut [u8]) {
    for (bytes, weight) in codes.as_chunks_mut::<2>().0.iter_mut().zip(weights) {
        *bytes = half::bf16::from_f32(*weight).to_le_bytes();
    }
}

/// Part of a row from column `first` on.
#[inline(always)]
pub(super) fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(&row.codes.as_chunks::<2>().0[first..]) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}
