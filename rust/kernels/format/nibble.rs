//! What the int4 formats share: two codes per byte, low nibble = even column, stored with an offset of 8.
//!
//! Must hold: the row stride is `ceil(cols / 2)` bytes whatever the groups; the unused high nibble of an
//! odd row is written as 0 and ignored when read.

use super::{EncodeRow, Row};

/// What is added to a code before it is stored.
pub(crate) const OFFSET: i32 = 8;

/// Bytes of a row.
pub(super) fn row_bytes(cols: usize) -> Option<usize> {
    Some(cols.div_ceil(2))
}

/// The code at a column, -8..=7.
#[inline(always)]
pub(crate) fn code(codes: &[u8], col: usize) -> i32 {
    i32::from((codes[col / 2] >> (4 * (col % 2))) & 15) - OFFSET
}

/// Encodes a row group by group.
pub(super) fn encode(row: EncodeRow<'_>) {
    let mut quantised = vec![0i8; row.weights.len()];
    let groups = row.weights.chunks(row.group).zip(quantised.chunks_mut(row.group));
    for ((weights, codes), scale) in groups.zip(row.scales.iter_mut()) {
        *scale = row.kernels.quantise_int4(row.rule, weights, codes);
    }
    let (pairs, last) = quantised.as_chunks::<2>();
    for (byte, pair) in row.codes.iter_mut().zip(pairs) {
        *byte = stored(pair[0]) | stored(pair[1]) << 4;
    }
    if let (Some(byte), Some(code)) = (row.codes.last_mut(), last.first()) {
        *byte = stored(*code);
    }
}

/// A code as it is stored, in the low nibble.
#[inline(always)]
fn stored(code: i8) -> u8 {
    (code + OFFSET as i8).cast_unsigned()
}

/// Decodes part of a row.
pub(super) fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    let mut col = first;
    let mut rest = out;
    while !rest.is_empty() {
        let left = row.group - col % row.group;
        let (part, tail) = rest.split_at_mut(left.min(rest.len()));
        let scale = row.scales[col / row.group];
        for value in part.iter_mut() {
            *value = code(row.codes, col) as f32 * scale;
            col += 1;
        }
        rest = tail;
    }
}
