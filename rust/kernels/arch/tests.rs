//! Every kernel set against the scalar reference, and the reference against plain integer arithmetic:
//! all formats, precisions, odd sizes, tails and extreme codes, compared as bits.

#[cfg(unix)]
mod bounds;

use crate::act::{Activations, Numerics, Precision};
use crate::dispatch::KernelSet;
use crate::format::{FORMATS, Format, decode_row};
use crate::matrix::MatrixView;
use crate::test_data::{Fill, Matrix, Random};

/// The table's formats and further group sizes: below, above and beside a block of 64 columns.
fn formats() -> Vec<Format> {
    let groups = [2, 7, 16, 32, 48, 96, 128, 192, 256, 4096];
    let grouped = groups.map(|group| Format::Int4Grouped { group });
    FORMATS.iter().map(|spec| spec.example).chain(grouped).collect()
}

fn precisions(format: Format) -> Vec<Precision> {
    let mut all: Vec<_> = Numerics::ALL.map(|numerics| numerics.precision(format)).to_vec();
    all.dedup();
    all
}

/// Activations of mixed size; with `extreme` all are of the largest magnitude, signs alternating in runs.
fn inputs(random: &mut Random, rows: usize, cols: usize, extreme: bool) -> Vec<f32> {
    if extreme {
        return (0..rows * cols).map(|i| if (i / 3) % 7 == 0 { -1.5 } else { 1.5 }).collect();
    }
    (0..rows * cols).map(|i| random.value() * [1.0, 0.01, 30.0][i % 3]).collect()
}

fn assert_same_bits(expected: &[f32], got: &[f32], context: &dyn Fn() -> String) {
    assert_eq!(expected.len(), got.len());
    for (at, (e, g)) in expected.iter().zip(got).enumerate() {
        assert!(e.to_bits() == g.to_bits(), "{}: output {at}: expected {e}, got {g}", context());
    }
}

fn compare_sets(matrix: &Matrix, x: &[f32], s: usize) {
    let scalar = KernelSet::by_name("scalar").unwrap();
    for precision in precisions(matrix.format) {
        let mut activations = Activations::default();
        activations.quantise(&scalar, precision, s, matrix.cols, x).unwrap();
        let mut expected = vec![0f32; s * matrix.rows];
        scalar.matmul(&matrix.view(), &activations, &mut expected);
        for set in KernelSet::available() {
            let mut own = Activations::default();
            own.quantise(&set, precision, s, matrix.cols, x).unwrap();
            let mut got = vec![f32::NAN; s * matrix.rows];
            set.matmul(&matrix.view(), &own, &mut got);
            assert_same_bits(&expected, &got, &|| {
                let (rows, cols) = (matrix.rows, matrix.cols);
                format!("{set:?} {:?} {precision:?} {rows} x {cols}, {s} rows", matrix.format)
            });
        }
    }
}

#[test]
fn every_set_equals_the_reference_on_all_shapes() {
    let mut random = Random::new(11);
    let cols = [1, 2, 3, 31, 63, 64, 65, 127, 128, 130, 192, 255, 256, 257, 320, 500, 511, 512, 513, 1023, 1100];
    for format in formats() {
        for cols in cols {
            for (rows, s) in [(1, 1), (3, 2), (5, 3), (16, 4), (19, 5), (33, 9), (8, 6)] {
                let matrix = Matrix::new(&mut random, format, rows, cols, Fill::Random);
                let x = inputs(&mut random, s, cols, false);
                compare_sets(&matrix, &x, s);
            }
        }
    }
}

#[test]
fn nu_07_every_set_equals_the_reference_on_extremes() {
    let mut random = Random::new(12);
    for format in formats() {
        for fill in [Fill::Low, Fill::High, Fill::Random] {
            for (cols, s) in [(64, 1), (1000, 4), (16_384, 1), (16_384, 5)] {
                let matrix = Matrix::new(&mut random, format, 17, cols, fill);
                let x = inputs(&mut random, s, cols, true);
                compare_sets(&matrix, &x, s);
            }
        }
    }
}

#[test]
fn the_widest_rows_do_not_overflow() {
    let mut random = Random::new(13);
    let cols = crate::matrix::MAX_COLS;
    let grouped = Format::Int4Grouped { group: 4096 };
    for format in [Format::Int8Row, Format::Int4Row, Format::Q4G64, grouped, Format::Int3G64, Format::Int2Row] {
        for fill in [Fill::Low, Fill::High] {
            for s in [1, 4] {
                let matrix = Matrix::new(&mut random, format, 16, cols, fill);
                let x = vec![-1.0f32; s * cols];
                compare_sets(&matrix, &x, s);
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch() {
    let mut random = Random::new(14);
    for format in formats() {
        let (rows, cols, most) = (37, 450, 64);
        let matrix = Matrix::new(&mut random, format, rows, cols, Fill::Random);
        let x = inputs(&mut random, most, cols, false);
        for precision in precisions(format) {
            for set in KernelSet::available() {
                let mut activations = Activations::default();
                let mut alone = vec![0f32; most * rows];
                for s in 0..most {
                    let x = &x[s * cols..(s + 1) * cols];
                    activations.quantise(&set, precision, 1, cols, x).unwrap();
                    let out = &mut alone[s * rows..(s + 1) * rows];
                    set.matmul(&matrix.view(), &activations, out);
                }
                for s in [2, 3, 4, 5, 7, 8, 15, 16, 17, 63, 64] {
                    let x = &x[..s * cols];
                    activations.quantise(&set, precision, s, cols, x).unwrap();
                    let mut got = vec![0f32; s * rows];
                    set.matmul(&matrix.view(), &activations, &mut got);
                    assert_same_bits(&alone[..s * rows], &got, &|| {
                        format!("{set:?} {format:?} {precision:?} batch of {s}")
                    });
                }
            }
        }
    }
}

/// The contract written down once more, from decoded codes and 128-bit integers.
#[test]
fn the_reference_follows_the_contract() {
    let mut random = Random::new(15);
    let (rows, cols) = (3, 200);
    let scalar = KernelSet::by_name("scalar").unwrap();
    for format in formats().into_iter().filter(|format| format.quantised()) {
        let matrix = Matrix::new(&mut random, format, rows, cols, Fill::Random);
        let unit_scales = vec![1.0f32; matrix.scales.len()];
        let codes = MatrixView::new(format, rows, cols, &matrix.codes, &unit_scales).unwrap();
        let x = inputs(&mut random, 1, cols, false);
        for precision in precisions(format).into_iter().filter(|p| *p != Precision::F32) {
            let mut activations = Activations::default();
            activations.quantise(&scalar, precision, 1, cols, &x).unwrap();
            let act = activations.row(0);
            let mut got = vec![0f32; rows];
            scalar.matmul(&matrix.view(), &activations, &mut got);
            let group = format.group_cols(cols);
            let groups = cols.div_ceil(group);
            for (row, got) in got.iter().enumerate() {
                let mut code = vec![0f32; cols];
                decode_row(&codes, row, &mut code);
                let dot = |from: usize, to: usize| -> f32 {
                    let sum: i128 = (from..to.min(cols)).map(|c| code[c] as i128 * i128::from(act.codes[c])).sum();
                    sum as f32
                };
                let scale = |g: usize| matrix.scales[row * groups + g];
                let unit = if precision == Precision::A8 { 64 } else { group };
                let mut chains = [0f32; 4];
                for (u, from) in (0..cols).step_by(unit).enumerate() {
                    let factor = match (precision, groups) {
                        (Precision::A16, _) => scale(u),
                        (_, 1) if group == cols => act.scales[u],
                        _ => scale(from / group) * act.scales[u],
                    };
                    chains[u % 4] = dot(from, from + unit).mul_add(factor, chains[u % 4]);
                }
                let sum = (chains[0] + chains[1]) + (chains[2] + chains[3]);
                let per_row = group == cols && !matches!(format, Format::Int4Grouped { .. });
                let expected = match precision {
                    Precision::A16 if per_row => (dot(0, cols) * scale(0)) * act.scales[0],
                    Precision::A16 => sum * act.scales[0],
                    _ if per_row => sum * scale(0),
                    _ => sum,
                };
                assert_eq!(expected.to_bits(), got.to_bits(), "{format:?} {precision:?} row {row}");
            }
        }
    }
}

/// f32 arithmetic is decoded rows in the order of the dot product, whatever the parts and rows taken at a time.
#[test]
fn f32_products_follow_the_contract() {
    let mut random = Random::new(21);
    let scalar = KernelSet::by_name("scalar").unwrap();
    let s = 3;
    for format in formats() {
        for (rows, cols) in [(1, 16), (6, 511), (5, 512), (7, 1100)] {
            let matrix = Matrix::new(&mut random, format, rows, cols, Fill::Random);
            let view = matrix.view();
            let x = inputs(&mut random, s, cols, false);
            let mut activations = Activations::default();
            activations.quantise(&scalar, Precision::F32, s, cols, &x).unwrap();
            let mut got = vec![0f32; s * rows];
            scalar.matmul(&view, &activations, &mut got);
            let coefficients = random.values(rows);
            let mut sums = random.values(cols);
            let mut accumulated = sums.clone();
            scalar.accumulate_rows(&view, &coefficients, &mut accumulated);
            let mut weights = vec![0f32; cols];
            for row in 0..rows {
                decode_row(&view, row, &mut weights);
                for (at, x) in x.chunks(cols).enumerate() {
                    let expected = scalar.dot(&weights, x);
                    assert_eq!(expected.to_bits(), got[at * rows + row].to_bits(), "{format:?} {rows} x {cols}");
                }
                scalar.axpy(coefficients[row], &weights, &mut sums);
            }
            if !format.quantised() {
                assert_same_bits(&sums, &accumulated, &|| format!("{format:?} {rows} x {cols}"));
            }
        }
    }
}

#[test]
fn f32_precision_is_close_to_the_quantised_result() {
    let mut random = Random::new(16);
    let (rows, cols) = (6, 512);
    let set = KernelSet::best();
    for format in formats().into_iter().filter(|format| format.quantised()) {
        let matrix = Matrix::new(&mut random, format, rows, cols, Fill::Random);
        let x = random.values(cols);
        let mut exact = vec![0f32; rows];
        let mut activations = Activations::default();
        activations.quantise(&set, Precision::F32, 1, cols, &x).unwrap();
        set.matmul(&matrix.view(), &activations, &mut exact);
        let size = exact.iter().map(|v| v.abs()).fold(0.0, f32::max);
        for (precision, tolerance) in [(Precision::A16, 1e-3), (Precision::A8, 3e-2)] {
            if !precisions(format).contains(&precision) {
                continue;
            }
            activations.quantise(&set, precision, 1, cols, &x).unwrap();
            let mut got = vec![0f32; rows];
            set.matmul(&matrix.view(), &activations, &mut got);
            for (e, g) in exact.iter().zip(&got) {
                assert!((e - g).abs() <= tolerance * size, "{format:?} {precision:?}: {e} {g}");
            }
        }
    }
}

#[test]
fn accumulated_rows_equal_the_reference_and_the_formula() {
    let mut random = Random::new(17);
    let scalar = KernelSet::by_name("scalar").unwrap();
    for format in formats() {
        for (rows, cols) in [(1, 1), (3, 7), (9, 64), (6, 130), (33, 515), (4, 1025)] {
            let matrix = Matrix::new(&mut random, format, rows, cols, Fill::Random);
            let coefficients = random.values(rows);
            let start = random.values(cols);
            let mut expected = start.clone();
            scalar.accumulate_rows(&matrix.view(), &coefficients, &mut expected);
            for set in KernelSet::available() {
                let mut got = start.clone();
                set.accumulate_rows(&matrix.view(), &coefficients, &mut got);
                assert_same_bits(&expected, &got, &|| format!("{set:?} {format:?} {rows} x {cols}"));
            }
            let mut row = vec![0f32; cols];
            let mut sums: Vec<f64> = start.iter().map(|v| f64::from(*v)).collect();
            for (at, coefficient) in coefficients.iter().enumerate() {
                decode_row(&matrix.view(), at, &mut row);
                for (sum, weight) in sums.iter_mut().zip(&row) {
                    *sum += f64::from(*coefficient) * f64::from(*weight);
                }
            }
            for (sum, got) in sums.iter().zip(&expected) {
                assert!((sum - f64::from(*got)).abs() < 1e-4 * (1.0 + sum.abs() * 100.0));
            }
        }
    }
}

/// Codes inside a larger allocation at every misalignment of a cache line.
#[test]
fn alignment_of_the_codes_does_not_matter() {
    let mut random = Random::new(18);
    for format in formats() {
        let (rows, cols) = (18, 580);
        let matrix = Matrix::new(&mut random, format, rows, cols, Fill::Random);
        let x = inputs(&mut random, 4, cols, false);
        for set in KernelSet::available() {
            for precision in precisions(format) {
                let mut activations = Activations::default();
                activations.quantise(&set, precision, 4, cols, &x).unwrap();
                let mut expected = vec![0f32; 4 * rows];
                set.matmul(&matrix.view(), &activations, &mut expected);
                for shift in [1, 2, 3, 4, 8, 33] {
                    let mut bytes = vec![0xabu8; shift];
                    bytes.extend_from_slice(&matrix.codes);
                    let view = MatrixView::new(format, rows, cols, &bytes[shift..], &matrix.scales).unwrap();
                    let mut got = vec![0f32; 4 * rows];
                    set.matmul(&view, &activations, &mut got);
                    assert_same_bits(&expected, &got, &|| format!("{set:?} {format:?} shifted by {shift}"));
                }
            }
        }
    }
}

#[test]
fn element_wise_operations_are_the_same_in_every_set() {
    let mut random = Random::new(19);
    let scalar = KernelSet::by_name("scalar").unwrap();
    for count in [1usize, 7, 16, 33, 100, 515] {
        let (a, b, c) = (random.values(count), random.values(count), random.values(count));
        let wide: Vec<f32> = a.iter().map(|v| v * 90.0).collect();
        let run = |set: &KernelSet| -> Vec<u32> {
            let mut all = vec![set.dot(&a, &b), set.max(&a)];
            let mut out = vec![0f32; count];
            set.rmsnorm(&a, &b, 1e-6, &mut out);
            all.extend_from_slice(&out);
            set.layernorm(&a, &b, &c, 1e-6, &mut out);
            all.extend_from_slice(&out);
            set.silu_mul(&wide, &b, &mut out);
            all.extend_from_slice(&out);
            set.axpy(0.37, &a, &mut out);
            all.extend_from_slice(&out);
            for apply in [KernelSet::softmax, KernelSet::sigmoid, KernelSet::exp] {
                let mut values = wide.clone();
                apply(set, &mut values);
                all.extend_from_slice(&values);
            }
            all.iter().map(|value| value.to_bits()).collect()
        };
        let expected = run(&scalar);
        for set in KernelSet::available() {
            assert_eq!(run(&set), expected, "{set:?} {count}");
        }
    }
}

#[test]
fn the_last_available_set_is_scalar_and_names_are_known() {
    let sets = KernelSet::available();
    assert_eq!(sets.last().map(KernelSet::name), Some("scalar"));
    for set in sets {
        assert!(KernelSet::all_names().contains(&set.name()));
        assert_eq!(KernelSet::by_name(set.name()).map(|found| found.name()), Some(set.name()));
    }
    assert_eq!(KernelSet::by_name("auto").map(|s| s.name()), Some(KernelSet::best().name()));
    assert!(KernelSet::by_name("mmx").is_none());
}
