//! bfloat16, little-endian: the upper half of a binary32, rounded half-even when written.

use super::{EncodeRow, Format, FormatSpec, Row};

pub(super) static SPEC: FormatSpec = FormatSpec {
    example: Format::Bf16,
    name: "bf16",
    stamp: "bf16",
    row_bytes: |cols| cols.checked_mul(2),
    encode,
    decode,
};

fn encode(row: EncodeRow<'_>) {
    for (bytes, weight) in row.codes.as_chunks_mut::<2>().0.iter_mut().zip(row.weights) {
        *bytes = half::bf16::from_f32(*weight).to_le_bytes();
    }
}

fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(&row.codes.as_chunks::<2>().0[first..]) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}
