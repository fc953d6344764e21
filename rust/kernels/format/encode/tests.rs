//! Encoding: the rules of the scales, the bits of every kernel set, the measured deviation, the packing.

use super::*;
use crate::format::{FORMATS, decode_row};
use crate::test_data::Random;

/// Codes, scales and deviation.
type Encoded = (Vec<u8>, Vec<f32>, Deviation);

fn targets() -> impl Iterator<Item = Format> {
    let more = [16, 48, 63, 256].map(|group| Format::Int4Grouped { group });
    FORMATS.iter().map(|spec| spec.example).filter(|format| *format != Format::Fp8Block).chain(more)
}

fn encoded_by(set: KernelSet, format: Format, rule: ScaleRule, cols: usize, weights: &[f32]) -> Encoded {
    let rows = weights.len() / cols;
    let mut codes = vec![0xa5; format.code_bytes(rows, cols).unwrap()];
    let mut scales = vec![f32::NAN; format.scale_count(rows, cols).unwrap()];
    let job = EncodeRows { format, rule, cols, weights, codes: &mut codes, scales: &mut scales };
    let deviation = set.encode_rows(job).unwrap();
    (codes, scales, deviation)
}

fn decoded(format: Format, cols: usize, (codes, scales, _): &Encoded) -> Vec<f32> {
    let rows = codes.len() / format.code_bytes(1, cols).unwrap();
    let view = MatrixView::new(format, rows, cols, codes, scales).unwrap();
    let mut out = vec![0f32; rows * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        decode_row(&view, row, out);
    }
    out
}

fn squares(weights: &[f32], stored: &[f32]) -> Deviation {
    let mut sums = Deviation::default();
    for (weight, stored) in weights.iter().zip(stored) {
        sums.error += (f64::from(*stored) - f64::from(*weight)).powi(2);
        sums.weight += f64::from(*weight).powi(2);
    }
    sums
}

/// Rows of several kinds: ordinary, uniform, tiny, huge, zero, with one outlier, on a grid.
fn sample(random: &mut Random, cols: usize) -> Vec<f32> {
    let mut weights = Vec::new();
    for row in 0..8 {
        weights.extend((0..cols).map(|col| match row {
            0 | 7 => random.gaussian() * 0.02,
            1 => random.value(),
            2 => random.gaussian() * 1e-20,
            3 => random.gaussian() * 1e17,
            4 => 0.0,
            5 if col == cols / 2 => -40.0,
            6 => (random.below(8) as f32 - 4.0) * 0.37,
            _ => random.gaussian(),
        }));
    }
    weights
}

#[test]
fn every_kernel_set_encodes_and_decodes_the_same_bits() {
    let mut random = Random::new(5);
    let scalar = KernelSet::by_name("scalar").unwrap();
    for cols in [1, 15, 32, 64, 100, 515, 2100] {
        let weights = sample(&mut random, cols);
        for format in targets() {
            for rule in [ScaleRule::Search, ScaleRule::AbsMax] {
                let expected = encoded_by(scalar, format, rule, cols, &weights);
                let values = decoded(format, cols, &expected);
                for set in KernelSet::available() {
                    let got = encoded_by(set, format, rule, cols, &weights);
                    assert_eq!(got.0, expected.0, "{set:?} {format:?} {rule:?} {cols}");
                    let bits = |scales: &[f32]| scales.iter().map(|scale| scale.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&got.1), bits(&expected.1), "{set:?} {format:?} {rule:?} {cols}");
                    assert_eq!(got.2, expected.2, "{set:?} {format:?} {rule:?} {cols}");
                    let view = MatrixView::new(format, 8, cols, &got.0, &got.1).unwrap();
                    let mut rows = vec![0f32; 6 * cols];
                    set.decode_rows(&view, 1..7, &mut rows);
                    assert_eq!(rows, values[cols..7 * cols], "{set:?} {format:?} {cols}");
                }
            }
        }
    }
}

#[test]
fn every_bit_pattern_of_a_short_float_decodes_the_same() {
    let codes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (format, cols, scales) in [
        (Format::F16, 1 << 16, vec![]),
        (Format::Bf16, 1 << 16, vec![]),
        (Format::Fp8Block, 1 << 17, vec![0.37; 1 << 10]),
    ] {
        let view = MatrixView::new(format, 1, cols, &codes, &scales).unwrap();
        let mut expected = vec![0f32; cols];
        decode_row(&view, 0, &mut expected);
        for set in KernelSet::available() {
            let mut out = vec![0f32; cols];
            set.decode_rows(&view, 0..1, &mut out);
            let differ = out.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(differ, None, "{set:?} {format:?}");
        }
        if format == Format::F16 {
            let reference = codes.as_chunks::<2>().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32());
            for (value, reference) in expected.iter().zip(reference) {
                assert!(value.to_bits() == reference.to_bits() || value.is_nan() && reference.is_nan());
            }
        }
    }
}

#[test]
fn the_deviation_is_that_of_the_decoded_weights() {
    let mut random = Random::new(6);
    for cols in [1, 64, 100, 2100] {
        let weights = sample(&mut random, cols);
        for format in targets() {
            for rule in [ScaleRule::Search, ScaleRule::AbsMax] {
                // Row by row, so that a row of large numbers hides no other.
                for (row, weights) in weights.chunks_exact(cols).enumerate() {
                    // Beyond the range of f16.
                    if format == Format::F16 && row == 3 {
                        continue;
                    }
                    let got = encoded_by(KernelSet::best(), format, rule, cols, weights);
                    let expected = squares(weights, &decoded(format, cols, &got));
                    let near = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs();
                    assert!(
                        near(got.2.error, expected.error),
                        "{format:?} {rule:?} {cols} {row}: {expected:?} {got:?}"
                    );
                    assert!(near(got.2.weight, expected.weight), "{format:?} {rule:?} {cols} {row}: {expected:?}");
                }
            }
        }
    }
}

/// The rule of the public containers, number by number.
fn absmax(weights: &[f32], high: f32) -> (f32, Vec<i8>) {
    let largest = weights.iter().fold(0f32, |most, weight| most.max(weight.abs()));
    let scale = (largest / high).max(1e-8);
    let code = |weight: &f32| (weight / scale).round_ties_even().clamp(-high - 1.0, high) as i8;
    (scale, weights.iter().map(code).collect())
}

/// The code at a column, straight from the description of the layout.
fn stored_code(format: Format, row: &[u8], col: usize) -> i8 {
    let code = match format {
        Format::Int8Row => i32::from(row[col].cast_signed()),
        Format::Int2Row => i32::from((row[col / 4] >> (2 * (col % 4))) & 3) - 2,
        Format::Int3G64 => {
            let (group, at) = (&row[col / 64 * 24..], col % 64);
            let (low, high) = ((group[at / 4] >> (2 * (at % 4))) & 3, (group[16 + at / 8] >> (at % 8)) & 1);
            i32::from(low | (high << 2)) - 4
        }
        _ => i32::from((row[col / 2] >> (4 * (col % 2))) & 15) - 8,
    };
    code as i8
}

#[test]
fn absmax_is_the_public_rule_in_every_format() {
    let mut random = Random::new(7);
    for cols in [1, 63, 64, 65, 200] {
        let mut weights = sample(&mut random, cols);
        // Ties: multiples of a half step of the largest weight.
        weights.extend((0..cols).map(|col| [7.0f32, 0.5, 1.5, -2.5, -6.5, 3.5][col % 6]));
        for (format, high) in [
            (Format::Int8Row, 127.0),
            (Format::Int4Row, 7.0),
            (Format::Q4G64, 7.0),
            (Format::Int4Grouped { group: 48 }, 7.0),
            (Format::Int3G64, 3.0),
            (Format::Int2Row, 1.0),
        ] {
            let group = format.group_cols(cols);
            for weights in weights.chunks_exact(cols) {
                let (codes, scales, _) = encoded_by(KernelSet::best(), format, ScaleRule::AbsMax, cols, weights);
                for (at, part) in weights.chunks(group).enumerate() {
                    let (scale, expected) = absmax(part, high);
                    assert_eq!(scales[at].to_bits(), scale.to_bits(), "{format:?} {cols}");
                    let got: Vec<i8> =
                        (0..part.len()).map(|col| stored_code(format, &codes, at * group + col)).collect();
                    assert_eq!(got, expected, "{format:?} {cols} group {at}");
                }
                // What lies past the end of the row.
                match format {
                    Format::Int3G64 => {
                        for col in cols..cols.next_multiple_of(64) {
                            assert_eq!(stored_code(format, &codes, col), 0, "{cols}");
                        }
                    }
                    Format::Int2Row if cols % 4 > 0 => assert_eq!(codes[cols / 4] >> (2 * (cols % 4)), 0),
                    Format::Int4Row if cols % 2 > 0 => assert_eq!(codes[cols / 2] >> 4, 0),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn search_is_never_worse_than_absmax_and_usually_better() {
    let mut random = Random::new(4);
    for (format, bound) in [(Format::Q4G64, 0.75), (Format::Int3G64, 0.6), (Format::Int4Row, 0.75)] {
        let (mut searched, mut absmax) = (0.0f64, 0.0f64);
        for round in 0..600 {
            let cols = [64, 64, 64, 17, 1, 200][round % 6];
            let weights: Vec<f32> = match round % 4 {
                0 => random.values(cols),
                1 => (0..cols).map(|_| random.gaussian() * 1e-20).collect(),
                _ => (0..cols).map(|_| random.gaussian()).collect(),
            };
            let errors = [ScaleRule::Search, ScaleRule::AbsMax].map(|rule| {
                let got = encoded_by(KernelSet::best(), format, rule, cols, &weights);
                squares(&weights, &decoded(format, cols, &got)).error
            });
            assert!(errors[0] <= errors[1], "{format:?} {cols} columns: {errors:?}");
            if round % 4 > 1 && cols == 64 {
                searched += errors[0];
                absmax += errors[1];
            }
        }
        assert!(searched < bound * absmax, "{format:?}: {searched} against {absmax}");
    }
}

#[test]
fn search_is_never_worse_than_absmax_near_a_grid() {
    let mut random = Random::new(10);
    for (format, high) in [(Format::Q4G64, 7), (Format::Int3G64, 3), (Format::Int4Row, 7)] {
        for round in 0..600 {
            let (cols, noise) = ([64, 33, 1100][round % 3], [1e-2, 1e-3, 1e-4, 1e-5, 1e-7][round % 5]);
            let scale = random.value() * [1.0, 1e-9, 1e9][round % 3];
            let grid = [high, high + 1, 1][round % 3];
            let mut weights: Vec<f32> = (0..cols)
                .map(|_| (random.below(2 * grid + 1) as f32 - grid as f32 + noise * random.gaussian()) * scale)
                .collect();
            if round % 7 == 0 {
                weights[cols / 2] *= 30.0;
            }
            let [searched, absmax] = [ScaleRule::Search, ScaleRule::AbsMax].map(|rule| {
                let got = encoded_by(KernelSet::best(), format, rule, cols, &weights);
                let expected = squares(&weights, &decoded(format, cols, &got));
                let near = (got.2.error - expected.error).abs() <= 1e-5 * expected.error;
                assert!(near, "{format:?} {rule:?} {round}: {expected:?} {:?}", got.2);
                expected.error
            });
            assert!(searched <= absmax, "{format:?} {round}: {searched} against {absmax}");
        }
    }
}

#[test]
fn search_reproduces_every_int3_grid() {
    let mut random = Random::new(8);
    for round in 0..300 {
        let most = [3, 4, 2, 1][round % 4];
        let scale = random.value() * [1.0, 1e-3, 37.0][round % 3];
        let codes: Vec<i32> = (0..64).map(|_| (random.below(2 * most + 1) as i32 - most as i32).min(3)).collect();
        let weights: Vec<f32> = codes.iter().map(|code| *code as f32 * scale).collect();
        let got = encoded_by(KernelSet::best(), Format::Int3G64, ScaleRule::Search, 64, &weights);
        assert_eq!(decoded(Format::Int3G64, 64, &got), weights, "scale {scale} most {most}");
    }
}

#[test]
fn transcoding_is_decoding_and_encoding() {
    let mut random = Random::new(9);
    let (rows, cols) = (130, 200);
    let weights: Vec<f32> = (0..rows * cols).map(|_| random.gaussian()).collect();
    let mut memory = Vec::new();
    for source in FORMATS.iter().map(|spec| spec.example) {
        let mut codes = vec![0x35; source.code_bytes(rows, cols).unwrap()];
        let mut scales = vec![0.25; source.scale_count(rows, cols).unwrap()];
        if source != Format::Fp8Block {
            encode(source, ScaleRule::AbsMax, rows, cols, &weights, &mut codes, &mut scales).unwrap();
        }
        let view = MatrixView::new(source, rows, cols, &codes, &scales).unwrap();
        let mut values = vec![0f32; rows * cols];
        crate::format::decode_rows(&view, 0..rows, &mut values);
        for format in targets() {
            let mut target = (vec![0; format.code_bytes(rows, cols).unwrap()], vec![]);
            target.1 = vec![0f32; format.scale_count(rows, cols).unwrap()];
            let rule = ScaleRule::Search;
            let sums = transcode(&view, format, rule, &mut target.0, &mut target.1, &mut memory).unwrap();
            let expected = encoded_by(KernelSet::best(), format, rule, cols, &values);
            assert_eq!((&target.0, &target.1), (&expected.0, &expected.1), "{source:?} {format:?}");
            assert!((sums.error - expected.2.error).abs() <= 1e-12 * expected.2.error, "{source:?} {format:?}");
        }
    }
}

#[test]
fn what_cannot_be_written_is_refused() {
    let mut memory = Vec::new();
    let codes = [0x38, 0x38, 0x7f, 0x38];
    let source = MatrixView::new(Format::Fp8Block, 2, 2, &codes, &[1.0]).unwrap();
    for format in [Format::F32, Format::Int4Row] {
        let mut target = vec![0; format.code_bytes(2, 2).unwrap()];
        let mut scales = vec![0f32; format.scale_count(2, 2).unwrap()];
        let refused = transcode(&source, format, ScaleRule::AbsMax, &mut target, &mut scales, &mut memory);
        assert_eq!(refused, Err(KernelError::NonFiniteWeight { row: 1, col: 0 }), "{format:?}");
    }
    let refused = encode(Format::Fp8Block, ScaleRule::AbsMax, 1, 1, &[1.0], &mut [0], &mut [0.0]);
    assert!(matches!(refused, Err(KernelError::Shape { .. })), "{refused:?}");
    let (mut target, mut scales) = ([0; 2], [0f32; 2]);
    let refused = transcode(&source, Format::Int4Row, ScaleRule::AbsMax, &mut target[..1], &mut scales, &mut memory);
    assert!(matches!(refused, Err(KernelError::Size { .. })), "{refused:?}");
}
