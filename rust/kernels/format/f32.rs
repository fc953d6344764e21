//! IEEE binary32, little-endian: the weight itself.

use super::{EncodeRow, Format, FormatSpec, Row};

pub(super) static SPEC: FormatSpec = FormatSpec {
    example: Format::F32,
    name: "f32",
    stamp: "f32",
    row_bytes: |cols| cols.checked_mul(4),
    encode,
    decode,
};

fn encode(row: EncodeRow<'_>) {
    for (bytes, weight) in row.codes.as_chunks_mut::<4>().0.iter_mut().zip(row.weights) {
        *bytes = weight.to_le_bytes();
    }
}

fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(&row.codes.as_chunks::<4>().0[first..]) {
        *value = f32::from_le_bytes(*bytes);
    }
}
