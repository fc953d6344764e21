//! int2 codes, four per byte, one scale per row: `w = (crumb - 2) * scale`, code in -2..=1.
//!
//! Element `i` lies at bits `2 (i mod 4)` of byte `i / 4`. Unused bits of the last byte are written as 0 and
//! ignored when read.

use super::{Format, FormatSpec, Row, crumb, decode, packing};

/// What is added to a code before it is stored.
pub(crate) const OFFSET: i32 = 2;

pub(super) static SPEC: FormatSpec =
    FormatSpec { example: Format::Int2Row, name: "q2row", stamp: "int2-row", row_bytes: |cols| Some(cols.div_ceil(4)) };

/// The code at a column, -2..=1.
#[inline(always)]
pub(crate) fn code(codes: &[u8], col: usize) -> i32 {
    i32::from(crumb::bits(codes, col)) - OFFSET
}

/// Decodes part of a row.
#[inline(always)]
pub(super) fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    decode::scaled(row, first, out, |codes: &[u8], col| packing::unpack_int2(&codes[col / 4..]));
}

#[cfg(test)]
mod tests {
    use crate::{Format, MatrixView, decode_row};

    #[test]
    fn four_codes_share_a_byte_the_first_in_the_lowest_bits() {
        let codes = [0b11_10_01_00u8, 0b1111_1101];
        let view = MatrixView::new(Format::Int2Row, 1, 5, &codes, &[0.5]).unwrap();
        let mut out = [0f32; 5];
        decode_row(&view, 0, &mut out);
        assert_eq!(out, [-1.0, -0.5, 0.0, 0.5, -0.5]);
        assert_eq!(Format::Int2Row.code_bytes(2, 5), Some(4));
        assert_eq!(Format::Int2Row.scale_count(2, 5), Some(2));
    }
}
