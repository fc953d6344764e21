//! float8 e4m3fn, one byte per element, one scale per block of 128 x 128:
//! `w = value * scale[row / 128, col / 128]`, rounded once.
//!
//! One sign bit, four of exponent with a bias of 7, three of fraction; no infinity, `S.1111.111` is NaN
//! (Micikevicius et al., "FP8 Formats for Deep Learning", 2022). Scales are
//! `[ceil(rows / 128), ceil(cols / 128)]`, row-major: those that checkpoints name `weight_scale_inv`.
//! Read only: a conversion writes formats that compute faster.

use super::{Format, FormatSpec, Row};

/// Rows and columns of a block.
pub(super) const SIDE: usize = 128;

pub(super) static SPEC: FormatSpec =
    FormatSpec { example: Format::Fp8Block, name: "fp8", stamp: "fp8-e4m3-b128", row_bytes: Some };

/// The value of an e4m3fn byte, by operations that compilers turn into vector instructions.
#[inline(always)]
pub(crate) fn value(byte: u8) -> f32 {
    // The sign above, the other bits where f32 has its lowest exponent bits and highest fraction bits.
    let bits = (i32::from(byte.cast_signed()) << 20).cast_unsigned();
    let magnitude = bits & 0x07f0_0000;
    // The difference of the biases is 120.
    let normal = f32::from_bits(magnitude + (120 << 23));
    // With exponent 0, the fraction counts in units of 2^-9 and no one stands before it; this is the smaller of the two
    // exactly then. No subnormal f32 comes in between.
    let subnormal = normal + normal - 1.0 / 64.0;
    let value = if subnormal < normal { subnormal } else { normal };
    let nan = if magnitude == 0x07f0_0000 { 0x7fc0_0000 } else { 0 };
    f32::from_bits(value.to_bits() | bits & 0x8000_0000 | nan)
}

/// Decodes part of a row.
#[inline(always)]
pub(super) fn decode(row: Row<'_>, first: usize, out: &mut [f32]) {
    let mut col = first;
    let mut rest = out;
    while !rest.is_empty() {
        let left = row.group - col % row.group;
        let (part, tail) = rest.split_at_mut(left.min(rest.len()));
        let scale = row.scales[col / row.group];
        for (out, byte) in part.iter_mut().zip(&row.codes[col..]) {
            *out = value(*byte) * scale;
        }
        col += part.len();
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::value;
    use crate::{Format, MatrixView, decode_row};

    #[test]
    fn every_byte_is_the_number_that_its_fields_say() {
        for byte in 0..=255u8 {
            let (exponent, fraction) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
            let magnitude = match (exponent, byte & 7) {
                (15, 7) => f64::NAN,
                (0, _) => fraction / 8.0 * 2f64.powi(-6),
                _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
            };
            let expected = magnitude.copysign(if byte < 128 { 1.0 } else { -1.0 });
            let got = value(byte);
            if expected.is_nan() {
                assert!(got.is_nan() && byte & 0x7f == 0x7f, "{byte:#04x}");
            } else {
                assert_eq!(f64::from(got).to_bits(), expected.to_bits(), "{byte:#04x}: {got}");
            }
        }
        assert_eq!([value(0x7e), value(0x08), value(0x01), value(0xb8)], [448.0, 0.015_625, 0.001_953_125, -1.0]);
    }

    #[test]
    fn scales_belong_to_blocks_of_128_rows_and_columns() {
        let (rows, cols) = (129, 257);
        let codes = vec![0x40u8; rows * cols]; // 2.0
        let scales = [0.5f32, 0.25, 3.0, 4.0, 5.0, 6.0];
        let view = MatrixView::new(Format::Fp8Block, rows, cols, &codes, &scales).unwrap();
        let mut out = vec![0f32; cols];
        decode_row(&view, 127, &mut out);
        assert_eq!((out[0], out[127], out[128], out[255], out[256]), (1.0, 1.0, 0.5, 0.5, 6.0));
        decode_row(&view, 128, &mut out);
        assert_eq!((out[127], out[128], out[256]), (8.0, 10.0, 12.0));
        decode_row(&view.row_range(127..129), 1, &mut out);
        assert_eq!((out[127], out[128], out[256]), (8.0, 10.0, 12.0));
    }
}
