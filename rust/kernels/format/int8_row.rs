//! int8 codes, one byte per element, one scale per row: `w = code * scale`, code in -128..=127.
//!
//! Written with `scale = max |w| / 127` whatever the scale rule: the error of int8 is small enough that a
//! search does not pay.

use super::{EncodeRow, Format, FormatSpec, Row};

pub(super) static SPEC: FormatSpec =
    FormatSpec { example: Format::Int8Row, name: "q8", stamp: "int8-row", row_bytes: Some, encode, decode };

fn encode(row: EncodeRow<'_>) {
    let scale = row.kernels.quantise_int8(row.rule, row.weights, bytemuck::cast_slice_mut(row.codes));
    row.scales.fill(scale);
}

fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    let scale = row.scales[0];
    for (value, byte) in out.iter_mut().zip(&row.codes[first..]) {
        *value = f32::from(byte.cast_signed()) * scale;
    }
}
