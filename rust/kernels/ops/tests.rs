//! Accuracy against f64 and behaviour at the extremes.

use super::*;

/// Deterministic values in -1..1 with a few larger ones.
fn samples(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let value = (state >> 40) as f32 / 8_388_608.0 - 1.0;
            if i % 97 == 5 { value * 30.0 } else { value }
        })
        .collect()
}

/// Distance in units of the last place of the f32 nearest to `expected`.
fn ulps(got: f32, expected: f64) -> f64 {
    let nearest = expected as f32;
    let spacing = f64::from(f32::from_bits(nearest.abs().to_bits() + 1)) - f64::from(nearest.abs());
    (f64::from(got) - expected).abs() / spacing
}

#[test]
fn exp_is_within_two_ulps_over_its_range() {
    let mut worst = 0.0f64;
    let mut x = -87.3f32;
    while x < 88.7 {
        worst = worst.max(ulps(exp_one(x), f64::from(x).exp()));
        x += 0.000_917;
    }
    assert!(worst <= 1.0, "worst {worst} ulp");
    // Subnormal results round once.
    let mut x = -103.9f32;
    while x < -87.3 {
        let error = ulps(exp_one(x), f64::from(x).exp());
        assert!(error <= 1.0, "exp({x}): {error} ulp");
        x += 0.013;
    }
}

#[test]
fn exp_is_defined_at_the_extremes() {
    for (x, expected) in [
        (0.0, 1.0),
        (-0.0, 1.0),
        (f32::INFINITY, f32::INFINITY),
        (f32::MAX, f32::INFINITY),
        (88.8, f32::INFINITY),
        (f32::NEG_INFINITY, 0.0),
        (f32::MIN, 0.0),
        (-104.5, 0.0),
        (1.0e-30, 1.0),
    ] {
        assert_eq!(exp_one(x), expected, "exp({x})");
    }
    assert!(exp_one(f32::NAN).is_nan());
    assert!(exp_one(88.72).is_finite());
    assert!(exp_one(-103.9) > 0.0);
    let mut previous = 0.0;
    for step in 0..4000 {
        let value = exp_one(-105.0 + step as f32 * 0.05);
        assert!(value >= previous, "exp falls at step {step}");
        previous = value;
    }
}

#[test]
fn dot_runs_in_sixteen_chains_and_a_tree() {
    for length in [0usize, 1, 15, 16, 17, 63, 64, 100, 1000] {
        let (a, b) = (samples(length, 1), samples(length, 2));
        let mut chains = vec![0.0f32; 16];
        for i in 0..length {
            chains[i % 16] = a[i].mul_add(b[i], chains[i % 16]);
        }
        while chains.len() > 1 {
            let high = chains.split_off(chains.len() / 2);
            for (low, high) in chains.iter_mut().zip(high) {
                *low += high;
            }
        }
        assert_eq!(dot_body(&a, &b).to_bits(), chains[0].to_bits(), "length {length}");
        let exact: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
        let scale: f64 = a.iter().zip(&b).map(|(x, y)| (f64::from(*x) * f64::from(*y)).abs()).sum();
        assert!((f64::from(dot_body(&a, &b)) - exact).abs() <= scale * 1e-6);
    }
}

#[test]
fn axpy_is_one_fused_step() {
    let x = samples(37, 3);
    let start = samples(37, 4);
    let mut acc = start.clone();
    axpy_body(0.37, &x, &mut acc);
    for i in 0..37 {
        assert_eq!(acc[i].to_bits(), 0.37f32.mul_add(x[i], start[i]).to_bits());
    }
}

#[test]
fn norms_agree_with_f64() {
    for length in [1usize, 5, 64, 130] {
        let (x, w, b) = (samples(length, 5), samples(length, 6), samples(length, 7));
        let n = length as f64;
        let mut out = vec![0.0; length];
        rmsnorm_body(&x, &w, 1e-5, &mut out);
        let square: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n;
        for i in 0..length {
            let expected = f64::from(x[i]) / (square + 1e-5).sqrt() * f64::from(w[i]);
            assert!((f64::from(out[i]) - expected).abs() <= 1e-6 * expected.abs() + 1e-12);
        }
        layernorm_body(&x, &w, &b, 1e-6, &mut out);
        let mean: f64 = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance: f64 = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
        for i in 0..length {
            let normed = (f64::from(x[i]) - mean) / (variance + 1e-6).sqrt();
            let expected = normed * f64::from(w[i]) + f64::from(b[i]);
            assert!((f64::from(out[i]) - expected).abs() <= 1e-5, "{} {expected}", out[i]);
        }
    }
}

#[test]
fn a_norm_whose_sum_leaves_the_range_is_nan_and_not_zero() {
    let (weight, bias) = ([1.0f32; 40], [0.5f32; 40]);
    // The squares overflow; the sum overflows; a value is infinite already.
    let rows = [[1.0e20f32; 40], [3.0e38; 40], std::array::from_fn(|i| if i == 17 { f32::INFINITY } else { 1.0 })];
    for kernels in crate::dispatch::KernelSet::available() {
        for row in &rows {
            let mut out = [0.0f32; 40];
            kernels.rmsnorm(row, &weight, 1e-5, &mut out);
            assert!(out.iter().all(|value| value.is_nan()), "{kernels:?} {out:?}");
        }
        // A constant row of 1e20 has no variance, one that alternates has.
        let alternating: [f32; 40] = std::array::from_fn(|i| if i % 2 == 0 { 1.0e20 } else { -1.0e20 });
        for row in [&alternating, &rows[1], &rows[2]] {
            let mut out = [0.0f32; 40];
            kernels.layernorm(row, &weight, &bias, 1e-5, &mut out);
            assert!(out.iter().all(|value| value.is_nan()), "{kernels:?} {out:?}");
        }
        // The largest sums that fit give numbers.
        let mut out = [0.0f32; 40];
        kernels.rmsnorm(&[2.0e18; 40], &weight, 1e-5, &mut out);
        assert!(out.iter().all(|value| (value - 1.0).abs() < 1e-5), "{kernels:?} {out:?}");
    }
}

#[test]
fn softmax_agrees_with_f64_and_survives_masks() {
    for length in [1usize, 3, 16, 77] {
        let x = samples(length, 8);
        let mut got = x.clone();
        softmax_body(&mut got);
        let largest = x.iter().fold(f64::MIN, |m, v| m.max(f64::from(*v)));
        let sum: f64 = x.iter().map(|v| (f64::from(*v) - largest).exp()).sum();
        for (g, v) in got.iter().zip(&x) {
            let expected = (f64::from(*v) - largest).exp() / sum;
            assert!((f64::from(*g) - expected).abs() <= 1e-6 * expected + 1e-12);
        }
    }
    let mut masked = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0];
    softmax_body(&mut masked);
    assert_eq!(masked, [0.0, 0.5, 0.0, 0.5]);
    let mut nothing = [f32::NEG_INFINITY; 3];
    softmax_body(&mut nothing);
    assert_eq!(nothing, [0.0; 3]);
    let mut large = [1.0e30, 3.0e38];
    softmax_body(&mut large);
    assert_eq!(large, [0.0, 1.0]);
    let mut broken = [f32::NAN, 1.0];
    softmax_body(&mut broken);
    assert!(broken.iter().all(|v| v.is_nan()));
    softmax_body(&mut []);
}

#[test]
fn silu_and_sigmoid_agree_with_f64() {
    let gate: Vec<f32> = (-200..200).map(|i| i as f32 * 0.5).collect();
    let up = samples(gate.len(), 9);
    let mut out = vec![0.0; gate.len()];
    silu_mul_body(&gate, &up, &mut out);
    let mut sigmoid = gate.clone();
    sigmoid_body(&mut sigmoid);
    for i in 0..gate.len() {
        let g = f64::from(gate[i]);
        let s = 1.0 / (1.0 + (-g).exp());
        let expected = g * s * f64::from(up[i]);
        assert!((f64::from(sigmoid[i]) - s).abs() <= 3e-7 * s + 1e-38);
        assert!((f64::from(out[i]) - expected).abs() <= 5e-7 * expected.abs() + 1e-37);
    }
}

#[test]
fn max_skips_nan() {
    assert_eq!(max_body(&[]), f32::NEG_INFINITY);
    assert_eq!(max_body(&[f32::NAN]), f32::NEG_INFINITY);
    let mut x = samples(50, 10);
    x[7] = f32::NAN;
    x[33] = 99.0;
    assert_eq!(max_body(&x), 99.0);
    x[49] = 100.0;
    assert_eq!(max_body(&x), 100.0);
}
