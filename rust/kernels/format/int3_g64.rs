//! int3 codes in groups of 64 columns, one scale per group: `w = (stored - 4) * scale[row, col / 64]`, code in
//! -4..=3.
//!
//! A group is 24 bytes: a plane of the two low bits (16 bytes, four elements to a byte), then a plane of the
//! third bit (8 bytes, element `i` at bit `i mod 8` of byte `i / 8`). The last group of a row is stored whole;
//! elements past the end are written as 4, which is code 0.

use super::{Format, FormatSpec, Row, crumb, decode, packing};

/// Columns of a group.
pub(super) const GROUP: usize = 64;
/// Bytes of a group.
pub(crate) const GROUP_BYTES: usize = 24;
/// Where the plane of third bits begins in a group.
pub(crate) const HIGH: usize = 16;
/// What is added to a code before it is stored.
pub(crate) const OFFSET: i32 = 4;

pub(super) static SPEC: FormatSpec = FormatSpec {
    example: Format::Int3G64,
    name: "q3g64",
    stamp: "int3-g64",
    row_bytes: |cols| cols.div_ceil(GROUP).checked_mul(GROUP_BYTES),
};

/// The code at a column, -4..=3.
#[inline(always)]
pub(crate) fn code(codes: &[u8], col: usize) -> i32 {
    let (group, index) = (&codes[col / GROUP * GROUP_BYTES..][..GROUP_BYTES], col % GROUP);
    let high = (group[HIGH + index / 8] >> (index % 8)) & 1;
    i32::from(crumb::bits(group, index) | high << 2) - OFFSET
}

/// Decodes part of a row.
#[inline(always)]
pub(super) fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    decode::scaled(row, first, out, |codes: &[u8], col| packing::unpack_int3(&codes[col / GROUP * GROUP_BYTES..]));
}

#[cfg(test)]
mod tests {
    use super::code;
    use crate::{Format, MatrixView, decode_row};

    #[test]
    fn the_planes_of_a_group_lie_as_in_the_public_containers() {
        // Stored values 1, 6, 3, 4, then zeros; the third bits of 6 and 4 are bits 1 and 3 of byte 16.
        let mut codes = [0u8; 48];
        codes[0] = 0b00_11_10_01;
        codes[16] = 0b0000_1010;
        // Column 63 of the first group: low bits in the last two of byte 15, third bit in the last of byte 23.
        codes[15] = 0b11_00_00_00;
        codes[23] = 0b1000_0000;
        // Column 64 is the first of the second group.
        codes[24] = 0b00_00_00_10;
        codes[40] = 0b0000_0001;
        assert_eq!([0, 1, 2, 3, 4].map(|col| code(&codes, col)), [-3, 2, -1, 0, -4]);
        assert_eq!([62, 63, 64, 65].map(|col| code(&codes, col)), [-4, 3, 2, -4]);
        let view = MatrixView::new(Format::Int3G64, 1, 66, &codes, &[0.5, 8.0]).unwrap();
        let mut out = [0f32; 66];
        decode_row(&view, 0, &mut out);
        assert_eq!((out[0], out[1], out[63], out[64], out[65]), (-1.5, 1.0, 1.5, 16.0, -32.0));
    }

    #[test]
    fn a_row_is_whole_groups() {
        for (cols, bytes, scales) in [(1, 24, 1), (64, 24, 1), (65, 48, 2), (6144, 2304, 96)] {
            assert_eq!(Format::Int3G64.code_bytes(3, cols), Some(3 * bytes));
            assert_eq!(Format::Int3G64.scale_count(3, cols), Some(3 * scales));
        }
        assert_eq!(Format::Int3G64.code_bytes(usize::MAX, 64), None);
    }
}
