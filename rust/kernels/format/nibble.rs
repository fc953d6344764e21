//! What the int4 formats share: two codes per byte, low nibble = even column, stored with an offset of 8.
//!
//! Must hold: the row stride is `ceil(cols / 2)` bytes whatever the groups; the unused high nibble of an
//! odd row is written as 0 and ignored when read.

use super::{Row, decode, packing};

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

/// Decodes part of a row.
#[inline(always)]
pub(super) fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    decode::scaled(row, first, out, |codes: &[u8], col| packing::unpack_int4(&codes[col / 2..]));
}
