//! int8 codes, one byte per element, one scale per row: `w = code * scale`, code in -128..=127.

use super::{Format, FormatSpec, Row};

pub(super) static SPEC: FormatSpec =
    FormatSpec { example: Format::Int8Row, name: "q8", stamp: "int8-row", row_bytes: Some };

/// Part of a row from column `first` on.
#[inline(always)]
pub(super) fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    let scale = row.scales[0];
    for (value, byte) in out.iter_mut().zip(&row.codes[first..]) {
        *value = f32::from(byte.cast_signed()) * scale;
    }
}
