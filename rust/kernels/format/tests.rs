//! Every format of the table: names, sizes, round trips, and the rules of the scales.

use super::*;
use crate::error::KernelError;
use crate::matrix::MatrixView;
use crate::test_data::Random;

fn encoded(format: Format, rule: ScaleRule, rows: usize, cols: usize, weights: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut codes = vec![0u8; format.code_bytes(rows, cols).unwrap()];
    let mut scales = vec![0f32; format.scale_count(rows, cols).unwrap()];
    encode(format, rule, rows, cols, weights, &mut codes, &mut scales).unwrap();
    (codes, scales)
}

fn decoded(format: Format, rows: usize, cols: usize, codes: &[u8], scales: &[f32]) -> Vec<f32> {
    let view = MatrixView::new(format, rows, cols, codes, scales).unwrap();
    let mut out = vec![0f32; rows * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        decode_row(&view, row, out);
    }
    out
}

#[test]
fn the_table_is_complete_and_names_are_unique() {
    for (at, spec) in FORMATS.iter().enumerate() {
        assert!(std::ptr::eq(spec.example.spec(), *spec), "{}", spec.name);
        assert_eq!(spec.example.name(), spec.name);
        assert_eq!(Format::parse(spec.name), Some(spec.example));
        assert!(FORMATS[..at].iter().all(|o| o.name != spec.name && o.stamp != spec.stamp));
    }
    assert_eq!(Format::parse("q4g128"), Some(Format::Int4Grouped { group: 128 }));
    for bad in ["q4g", "q4g0", "q4g064", "q4g+64", "q4g5000", "q4g99999999999", "int4", ""] {
        assert_eq!(Format::parse(bad), None, "{bad}");
    }
}

#[test]
fn sizes_follow_the_layout_and_overflow_is_none() {
    assert_eq!(Format::Q4G64.code_bytes(3, 129), Some(3 * 65));
    assert_eq!(Format::Q4G64.scale_count(3, 129), Some(9));
    assert_eq!(Format::Int8Row.scale_count(3, 129), Some(3));
    assert_eq!(Format::Bf16.code_bytes(3, 129), Some(774));
    for spec in FORMATS {
        assert_eq!(spec.example.code_bytes(usize::MAX, 9), None, "{}", spec.name);
    }
    assert_eq!(Format::Q4G64.scale_count(usize::MAX, 65), None);
}

#[test]
fn every_format_decodes_what_it_stored() {
    let mut random = Random::new(1);
    for spec in FORMATS.iter().filter(|spec| spec.example != Format::Fp8Block) {
        for rule in [ScaleRule::Search, ScaleRule::AbsMax] {
            let (rows, cols) = (4, 133);
            let weights = random.values(rows * cols);
            let (codes, scales) = encoded(spec.example, rule, rows, cols, &weights);
            let back = decoded(spec.example, rows, cols, &codes, &scales);
            let bound = match spec.example {
                Format::F32 => 0.0,
                Format::Bf16 => 1.0 / 256.0,
                Format::F16 => 1.0 / 2048.0,
                Format::Int8Row => 0.51 / 127.0,
                // The search may cut the extreme weight off.
                Format::Int4Row | Format::Int4Grouped { .. } => 2.0 / 7.0,
                Format::Int3G64 => 2.0 / 3.0,
                Format::Int2Row => 0.51,
                Format::Fp8Block => unreachable!("not written"),
            };
            for (weight, value) in weights.iter().zip(&back) {
                assert!((weight - value).abs() <= bound, "{} {weight} {value}", spec.name);
            }
            // What was decoded lies on the grid, so a second pass changes nothing.
            let (codes, scales) = encoded(spec.example, ScaleRule::Search, rows, cols, &back);
            assert_eq!(decoded(spec.example, rows, cols, &codes, &scales), back, "{}", spec.name);
        }
    }
}

#[test]
fn parts_of_a_row_decode_like_the_whole() {
    let mut random = Random::new(2);
    let weights = random.values(2 * 150);
    for format in FORMATS.iter().map(|s| s.example).chain([Format::Int4Grouped { group: 48 }]) {
        let (codes, scales) = match format {
            // No NaN, which is not equal to itself.
            Format::Fp8Block => ((0..120).chain(0..120).chain(130..190).collect(), vec![0.5f32, 0.25]),
            _ => encoded(format, ScaleRule::AbsMax, 2, 150, &weights),
        };
        let view = MatrixView::new(format, 2, 150, &codes, &scales).unwrap();
        let mut whole = vec![0f32; 150];
        decode_row(&view, 1, &mut whole);
        for (first, count) in [(0, 1), (1, 70), (63, 2), (95, 55), (149, 1)] {
            let mut part = vec![0f32; count];
            decode::part_body(&view, 1, first, &mut part);
            assert_eq!(part, whole[first..first + count], "{format:?} {first}");
        }
    }
}

#[test]
fn absmax_equals_the_public_rule() {
    // scale 7 / 7 = 1; halves go to even; the odd column sits in the high nibble.
    let weights = [7.0f32, 0.5, 1.5, -2.5, -7.0];
    let (codes, scales) = encoded(Format::Int4Row, ScaleRule::AbsMax, 1, 5, &weights);
    assert_eq!(scales, [1.0]);
    assert_eq!(codes, [15 | 8 << 4, 10 | 6 << 4, 1]);
    let (codes, scales) = encoded(Format::Int4Row, ScaleRule::AbsMax, 1, 3, &[0.0; 3]);
    assert_eq!((codes, scales), (vec![0x88, 0x08], vec![1e-8]));
    let (codes, scales) = encoded(Format::Int8Row, ScaleRule::AbsMax, 1, 3, &[-127.0, 63.5, 1.0]);
    assert_eq!((codes, scales), (vec![129, 64, 1], vec![1.0]));
}

#[test]
fn a_zero_group_has_scale_zero_under_search() {
    let mut weights = vec![0.0f32; 128];
    weights[100] = 1.0;
    let (codes, scales) = encoded(Format::Q4G64, ScaleRule::Search, 1, 128, &weights);
    assert_eq!(scales[0], 0.0);
    assert!(codes[..32].iter().all(|byte| *byte == 0x88));
    assert_eq!(decoded(Format::Q4G64, 1, 128, &codes, &scales), weights);
}

#[test]
fn search_finds_every_int4_grid() {
    let mut random = Random::new(3);
    for round in 0..400 {
        let most = [7, 8, 6, 5, 4, 3, 2, 1][round % 8];
        let scale = random.value() * [1.0, 1e-3, 37.0][round % 3];
        let weights: Vec<f32> = (0..64)
            .map(|_| {
                let code = (random.below(2 * most + 1) as i32 - most as i32).min(7);
                code as f32 * scale
            })
            .collect();
        let (codes, scales) = encoded(Format::Q4G64, ScaleRule::Search, 1, 64, &weights);
        let back = decoded(Format::Q4G64, 1, 64, &codes, &scales);
        assert_eq!(back, weights, "scale {scale} most {most}");
    }
}

#[test]
fn wrong_lengths_and_non_finite_weights_are_refused() {
    let (mut codes, mut scales) = ([0u8; 4], [0f32; 2]);
    let mut run = |weights: &[f32]| encode(Format::Int4Row, ScaleRule::Search, 2, 4, weights, &mut codes, &mut scales);
    assert!(matches!(run(&[0.0; 7]), Err(KernelError::Size { part: "weights", expected: 8, .. })));
    let mut weights = [1.0f32; 8];
    weights[6] = f32::INFINITY;
    assert_eq!(run(&weights), Err(KernelError::NonFiniteWeight { row: 1, col: 2 }));
    assert_eq!(run(&[1.0; 8]), Ok(()));
    let error = encode(Format::F32, ScaleRule::Search, 1, 1, &[1.0], &mut [0; 3], &mut []);
    assert!(matches!(error, Err(KernelError::Size { part: "code bytes", expected: 4, got: 3, .. })));
}
