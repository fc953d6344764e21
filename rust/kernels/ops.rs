//! The element-wise and reducing operations of a forward pass: the exact scalar definitions.
//!
//! Owns: dot product, axpy, RMS norm, layer norm, softmax, SiLU, sigmoid, exp and maximum as
//! `*_body` functions. Each body is `#[inline(always)]` so that an instruction set can instantiate it
//! again under its own `#[target_feature]`; the compiler then vectorises the very same sequence of
//! IEEE operations, so every set returns the same bits. Rotary embedding and selection (top-k, argmax)
//! live in submodules and need no second instantiation.
//!
//! Must hold:
//! - every sum runs in sixteen interleaved chains (element `i` in chain `i mod 16`) that a fixed tree
//!   joins: 16 -> 8 -> 4 -> 2 -> 1, upper half added to the lower half;
//! - nothing calls the platform's `exp`, `sin` or `cos`: their last bit differs between systems;
//! - no operation is reordered or contracted: a fused multiply-add appears only as `mul_add`;
//! - a norm whose sums leave the range of f32 returns NaN, so that the next check reports it: the inverse of an
//!   infinite sum is zero, and a row of zeros would pass for a result.
//!
//! Refuses: nothing. Lengths that differ are cut to the shortest; callers check shapes at their door.

mod rope;
mod select;
#[cfg(test)]
mod tests;

pub use rope::{RopeScaling, RopeSpec, RopeTable};
pub use select::{argmax, top_k};

/// Number of interleaved accumulation chains of every floating-point sum.
pub(crate) const CHAINS: usize = 16;

/// Joins the sixteen chains: halves are added until one value is left.
#[inline(always)]
pub(crate) fn join_chains(mut chains: [f32; CHAINS]) -> f32 {
    let mut width = CHAINS / 2;
    while width > 0 {
        for lane in 0..width {
            chains[lane] += chains[lane + width];
        }
        width /= 2;
    }
    chains[0]
}

/// `sum_i a[i] * b[i]`, each step one fused multiply-add.
#[inline(always)]
pub(crate) fn dot_body(a: &[f32], b: &[f32]) -> f32 {
    let length = a.len().min(b.len());
    let (a, b) = (&a[..length], &b[..length]);
    let mut chains = [0.0f32; CHAINS];
    let (a_blocks, a_tail) = a.as_chunks::<CHAINS>();
    let (b_blocks, b_tail) = b.as_chunks::<CHAINS>();
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..CHAINS {
            chains[lane] = x[lane].mul_add(y[lane], chains[lane]);
        }
    }
    for ((chain, x), y) in chains.iter_mut().zip(a_tail).zip(b_tail) {
        *chain = x.mul_add(*y, *chain);
    }
    join_chains(chains)
}

/// Continues the sums `sum_i a[n][i] * b[i]` of several rows, in the chains of [`dot_body`]. What went before was a
/// multiple of [`CHAINS`] elements.
#[inline(always)]
pub(crate) fn add_dots<const N: usize>(a: &[&[f32]; N], b: &[f32], chains: &mut [[f32; CHAINS]; N]) {
    let mut sums = *chains;
    let a = a.map(|a| &a[..b.len()]);
    let (blocks, tail) = b.as_chunks::<CHAINS>();
    for (at, y) in blocks.iter().enumerate() {
        for n in 0..N {
            let x = &a[n].as_chunks::<CHAINS>().0[at];
            for lane in 0..CHAINS {
                sums[n][lane] = x[lane].mul_add(y[lane], sums[n][lane]);
            }
        }
    }
    for (sums, a) in sums.iter_mut().zip(a) {
        for ((sum, x), y) in sums.iter_mut().zip(&a[blocks.len() * CHAINS..]).zip(tail) {
            *sum = x.mul_add(*y, *sum);
        }
    }
    *chains = sums;
}

/// `sum_i f(x[i])`, plain additions.
#[inline(always)]
fn sum_by(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut chains = [0.0f32; CHAINS];
    let (blocks, tail) = x.as_chunks::<CHAINS>();
    for block in blocks {
        for lane in 0..CHAINS {
            chains[lane] += f(block[lane]);
        }
    }
    for (chain, value) in chains.iter_mut().zip(tail) {
        *chain += f(*value);
    }
    join_chains(chains)
}

/// `acc[i] = fma(a, x[i], acc[i])`.
#[inline(always)]
pub(crate) fn axpy_body(a: f32, x: &[f32], acc: &mut [f32]) {
    for (sum, value) in acc.iter_mut().zip(x) {
        *sum = a.mul_add(*value, *sum);
    }
}

/// `1 / sqrt(mean + eps)`; NaN for a mean that is not finite.
#[inline(always)]
fn inverse_root(mean: f32, eps: f32) -> f32 {
    if mean.is_finite() { 1.0 / (mean + eps).sqrt() } else { f32::NAN }
}

/// Root-mean-square norm of one row: `out[i] = (x[i] * r) * weight[i]` with
/// `r = 1 / sqrt(mean(x^2) + eps)` (Zhang and Sennrich 2019, in the order of `transformers`). NaN throughout when the
/// sum of squares is not finite.
#[inline(always)]
pub(crate) fn rmsnorm_body(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    if x.is_empty() {
        return;
    }
    let inverse = inverse_root(dot_body(x, x) / x.len() as f32, eps);
    for ((o, value), w) in out.iter_mut().zip(x).zip(weight) {
        *o = (value * inverse) * w;
    }
}

/// Layer norm of one row with the biased variance:
/// `out[i] = fma((x[i] - mean) / sqrt(var + eps), weight[i], bias[i])` (Ba et al. 2016). NaN throughout when a sum is
/// not finite.
#[inline(always)]
pub(crate) fn layernorm_body(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    if x.is_empty() {
        return;
    }
    let count = x.len() as f32;
    let mean = sum_by(x, |value| value) / count;
    let variance = sum_by(x, |value| (value - mean) * (value - mean)) / count;
    let inverse = inverse_root(variance, eps);
    for (((o, value), w), b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
        *o = ((value - mean) * inverse).mul_add(*w, *b);
    }
}

/// The largest value; NaN is skipped, an empty or all-NaN row gives negative infinity.
#[inline(always)]
pub(crate) fn max_body(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; CHAINS];
    let (blocks, tail) = x.as_chunks::<CHAINS>();
    for block in blocks {
        for lane in 0..CHAINS {
            lanes[lane] = larger(block[lane], lanes[lane]);
        }
    }
    for (best, value) in lanes.iter_mut().zip(tail) {
        *best = larger(*value, *best);
    }
    let mut best = f32::NEG_INFINITY;
    for lane in lanes {
        best = larger(lane, best);
    }
    best
}

/// `candidate` if it is larger than `best`, else `best`: exactly the x86 `maxps` operand order.
#[inline(always)]
fn larger(candidate: f32, best: f32) -> f32 {
    if candidate > best { candidate } else { best }
}

/// Softmax in place: maximum subtracted, exponentials summed in sixteen chains, divided by the sum, which cannot
/// overflow: no term exceeds one.
///
/// A row that is negative infinity throughout (nothing to attend to) becomes zeros; a NaN or positive
/// infinity makes the row NaN, which the caller's non-finite check reports.
#[inline(always)]
pub(crate) fn softmax_body(x: &mut [f32]) {
    let largest = max_body(x);
    if largest == f32::NEG_INFINITY && x.iter().all(|value| !value.is_nan()) {
        x.fill(0.0);
        return;
    }
    for value in x.iter_mut() {
        *value = exp_one(*value - largest);
    }
    let sum = sum_by(x, |value| value);
    for value in x.iter_mut() {
        *value /= sum;
    }
}

/// `out[i] = silu(gate[i]) * up[i]` with `silu(g) = g / (1 + exp(-g))`.
#[inline(always)]
pub(crate) fn silu_mul_body(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
        *o = (g / (1.0 + exp_one(-g))) * u;
    }
}

/// `x[i] = 1 / (1 + exp(-x[i]))`.
#[inline(always)]
pub(crate) fn sigmoid_body(x: &mut [f32]) {
    for value in x.iter_mut() {
        *value = 1.0 / (1.0 + exp_one(-*value));
    }
}

/// `x[i] = exp(x[i])`.
#[inline(always)]
pub(crate) fn exp_body(x: &mut [f32]) {
    for value in x.iter_mut() {
        *value = exp_one(*value);
    }
}

/// The natural exponential, within 1 ulp for normal results.
///
/// Cody-Waite reduction `x = n ln 2 + r`, `|r| <= ln 2 / 2`, the Taylor polynomial of degree seven
/// (remainder below 2^-27), then two exact-or-last multiplications by powers of two so that subnormal
/// results round once. Above 88.72 the result is infinity, below -103.97 it is zero, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp_one(x: f32) -> f32 {
    /// Adding 1.5 * 2^23 leaves the nearest integer in the low mantissa bits (half-even).
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 to fifteen bits, so that `n * LN2_HIGH` is exact for |n| < 512.
    const LN2_HIGH: f32 = 0.693_145_75;
    /// ln 2 - LN2_HIGH.
    const LN2_LOW: f32 = 1.428_606_8e-6;
    // Comparisons in this direction let NaN pass.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let mut p = 1.0f32 / 5040.0;
    p = p.mul_add(r, 1.0 / 720.0);
    p = p.mul_add(r, 1.0 / 120.0);
    p = p.mul_add(r, 1.0 / 24.0);
    p = p.mul_add(r, 1.0 / 6.0);
    p = p.mul_add(r, 0.5);
    p = p.mul_add(r, 1.0);
    p = p.mul_add(r, 1.0);
    // n lies in -150..=128; each half is the exponent of a normal number. For NaN the value of the
    // integer does not matter, but the arithmetic must be defined: hence the wrapping operations.
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = exponent >> 1;
    p * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

/// `2^exponent` for exponents of normal numbers, built from bits.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}
