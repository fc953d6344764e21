//! IEEE binary16, little-endian, rounded half-even when written.

use super::{Format, FormatSpec, Row};

pub(super) static SPEC: FormatSpec =
    FormatSpec { example: Format::F16, name: "f16", stamp: "f16", row_bytes: |cols| cols.checked_mul(2) };

/// One row.
#[inline(always)]
pub(super) fn encode(weights: &[f32], codes: &mut [u8]) {
    for (bytes, weight) in codes.as_chunks_mut::<2>().0.iter_mut().zip(weights) {
        *bytes = half::f16::from_f32(*weight).to_le_bytes();
    }
}

/// Part of a row from column `first` on.
#[inline(always)]
pub(super) fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(&row.codes.as_chunks::<2>().0[first..]) {
        let bits = u32::from(u16::from_le_bytes(*bytes));
        // Exponent and fraction move to their places in binary32; the exponents' biases are 112 apart. The product is
        // exact and holds for subnormal numbers too.
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        // The exponent of infinity and NaN is all ones.
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        *value = f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16);
    }
}
