//! The search for the scale of least squared error.
//!
//! Follows the closed form of llama.cpp's quantisers: for given codes `q` the best scale is `sum(w q) / sum(q q)` and it
//! leaves the error `sum(w w) - sum(w q)^2 / sum(q q)`, so candidates are compared by the last term alone, their gain.
//! Candidates put the extreme weight on or beyond the most negative code (which may make a scale negative), where it is
//! cut off. Before that, scales that reproduce the group exactly are looked for: a group of the form `q * s` is always
//! found, because up to a factor of two its extreme code is one of the upper half.
//!
//! Candidates are compared on weights rounded to small parts of a code step, as integers of 16 bits: the sums are exact
//! in every order. The caller computes the codes that are stored from the weights themselves.
//!
//! Must hold: what is told about the error of the absolute-maximum rule is never above that error.

use super::{CODE_ROUND, CodeRange, SUM_COLS, error_f64, for_each_vector, to_codes};
use crate::arch::lanes::{Lanes, SHORT_WIDTH, Shorts, WIDTH};

/// Parts of the step of the absolute-maximum rule to which weights are rounded when candidates are compared: with more,
/// [`MULTIPLIER`] would be too coarse to tell candidates from another.
const PARTS: f32 = 256.0;
/// What turns parts into codes of the absolute-maximum rule by [`Shorts::mul_high`].
const MULTIPLIER: f32 = 32768.0 / PARTS;
/// Largest distance of a weight from its whole number of parts: a half, and more than f32 rounding adds.
const PART_ERROR: f64 = 0.51;
/// Candidates that one pass over a group compares.
const BATCH: usize = 6;
/// Batches at most: one whose last candidate is the best is followed by another. Long groups need more of them, because
/// their extreme weight is farther from the rest.
const BATCHES: usize = 4;
/// Bits of a gain that give way to the number of the candidate.
const INDEX_BITS: u32 = 31;
/// Largest distance from the grid, in codes, at which exact scales are tried.
const GRID_NEAR: f32 = 1e-4;
/// Weights that are compared with all grids at once.
const GRID_SAMPLE: usize = 4;

/// What the search tries.
#[derive(Clone, Copy)]
pub(crate) struct Targets {
    /// Codes that the extreme weight of a group on a grid can have, up to powers of two; some twice.
    grid: [f32; WIDTH],
    /// What turns parts into the codes of a candidate by [`Shorts::mul_high`].
    multipliers: [[i16; BATCH]; BATCHES],
}

impl Targets {
    /// Candidates put the extreme weight on the codes `-first`, `-first * ratio`, `-first * ratio^2` and so on.
    pub(super) const fn new(high: f32, grid: [f32; WIDTH], first: f32, ratio: f32) -> Self {
        let mut multipliers = [[0; BATCH]; BATCHES];
        let (mut at, mut target) = (0, first);
        while at < BATCH * BATCHES {
            multipliers[at / BATCH][at % BATCH] = (target * (MULTIPLIER / high) + 0.5) as i16;
            target *= ratio;
            at += 1;
        }
        Self { grid, multipliers }
    }
}

/// What the search found.
pub(super) enum Found {
    /// A scale at which every weight is reproduced bit for bit.
    Exact(f32),
    /// The best scale for the codes of the best candidate, and a lower bound of the squared error of the
    /// absolute-maximum rule.
    Near { scale: f32, absmax_error: f64 },
}

/// Looks for the scale of `weights`, among which `extreme` has the largest magnitude. `shorts` is memory for as many
/// numbers, rounded up to whole vectors.
#[inline(always)]
pub(super) fn search<L: Lanes, R: CodeRange>(
    weights: &[f32],
    extreme: f32,
    targets: &Targets,
    shorts: &mut [i16],
) -> Found {
    let inverse = 1.0 / extreme;
    if let Some(scale) = exact_scale::<L, R>(weights, extreme, inverse, &targets.grid) {
        return Found::Exact(scale);
    }
    // The extreme weight has a negative code.
    let part = -extreme / (PARTS * R::HIGH);
    let distance = to_parts::<L>(weights, -PARTS * R::HIGH * inverse, shorts).sqrt();
    let least = (distance - PART_ERROR * (weights.len() as f64).sqrt()).max(0.0) * f64::from(part);
    let shorts = &shorts[..weights.len().next_multiple_of(SHORT_WIDTH)];
    let scale = part * best_scale::<L::Shorts, R>(shorts, targets);
    Found::Near { scale, absmax_error: least * least }
}

/// The weights in parts of the step of the absolute-maximum rule, and the sum of the squared errors that the rule leaves
/// of them, in parts.
#[inline(always)]
fn to_parts<L: Lanes>(weights: &[f32], inverse: f32, shorts: &mut [i16]) -> f64 {
    let inverse = L::splat(inverse);
    let mut sum = 0.0;
    for (weights, shorts) in weights.chunks(SUM_COLS).zip(shorts.chunks_mut(SUM_COLS)) {
        let mut errors = L::Shorts::zero_sum();
        let (blocks, tail) = weights.as_chunks::<SHORT_WIDTH>();
        let mut shorts = shorts.as_chunks_mut::<SHORT_WIDTH>().0.iter_mut();
        let mut last = [0.0; SHORT_WIDTH];
        last[..tail.len()].copy_from_slice(tail);
        let last = if tail.is_empty() { None } else { Some(&last) };
        for (block, shorts) in blocks.iter().chain(last).zip(&mut shorts) {
            let [low, high] = block.as_chunks::<WIDTH>().0 else { continue };
            let parts = L::load(low).mul(inverse).to_shorts(L::load(high).mul(inverse));
            parts.store(shorts);
            // Whole steps are multiples of 2^8 parts; no weight is out of the range of the rule.
            let rest = parts.low_byte();
            errors = rest.add_products(rest, errors);
        }
        sum += f64::from(L::Shorts::totals([errors; 4])[0]);
    }
    sum
}

/// The best scale for the codes of the best candidate, in parts.
#[inline(always)]
fn best_scale<S: Shorts, R: CodeRange>(parts: &[i16], targets: &Targets) -> f32 {
    let mut scales = [0.0f32; BATCH * BATCHES];
    let mut best = 0;
    let batches = targets.multipliers.iter().zip(scales.as_chunks_mut::<BATCH>().0);
    for (batch, (multipliers, scales)) in batches.enumerate() {
        let (products, squares) = batch_sums::<S, R>(parts, multipliers);
        let mut keys = [0; BATCH];
        for at in 0..BATCH {
            // The extreme weight has a code that is not 0, so that the sum of squares is above 0.
            scales[at] = products[at] / squares[at];
            let gain = products[at] * scales[at];
            // Numbers above 0 are in the order of their bits.
            keys[at] = (gain.to_bits() & !INDEX_BITS) | (batch * BATCH + at) as u32;
        }
        let [a, b, c, d, e, last] = keys;
        best = a.max(b).max(c.max(d)).max(e.max(best));
        if best > last {
            break;
        }
        best = last;
    }
    scales.get((best & INDEX_BITS) as usize).copied().unwrap_or(PARTS)
}

/// `sum(w q)` and `sum(q q)` of the codes `q` of each candidate.
#[inline(always)]
fn batch_sums<S: Shorts, R: CodeRange>(parts: &[i16], multipliers: &[i16; BATCH]) -> ([f32; BATCH], [f32; BATCH]) {
    let (low, high) = (S::splat(R::LOW as i16), S::splat(R::HIGH as i16));
    let [a, b, c, d, e, f] = *multipliers;
    let multipliers = [S::splat(a), S::splat(b), S::splat(c), S::splat(d), S::splat(e), S::splat(f)];
    let mut sums = ([0.0; BATCH], [0.0; BATCH]);
    for parts in parts.chunks(SUM_COLS) {
        let mut products = [S::zero_sum(); BATCH];
        let mut squares = [S::zero_sum(); BATCH];
        for parts in parts.as_chunks::<SHORT_WIDTH>().0 {
            let parts = S::load(parts);
            for at in 0..BATCH {
                let code = parts.mul_high(multipliers[at]).clamp(low, high);
                products[at] = parts.add_products(code, products[at]);
                squares[at] = code.add_products(code, squares[at]);
            }
        }
        let [a, b, c, d, e, f] = products;
        let [g, h, i, j, k, l] = squares;
        let [a, b, c, d] = S::totals([a, b, c, d]);
        let [e, f, g, h] = S::totals([e, f, g, h]);
        let [i, j, k, l] = S::totals([i, j, k, l]);
        let (products, squares) = ([a, b, c, d, e, f], [g, h, i, j, k, l]);
        for at in 0..BATCH {
            sums.0[at] += products[at] as f32;
            sums.1[at] += squares[at] as f32;
        }
    }
    sums
}

/// A scale at which every weight is reproduced bit for bit, if the group lies on a grid of the format.
#[inline(always)]
fn exact_scale<L: Lanes, R: CodeRange>(
    weights: &[f32],
    extreme: f32,
    inverse: f32,
    grid: &[f32; WIDTH],
) -> Option<f32> {
    // Nearly all groups are far from every grid with one of the first weights: a grid in each lane.
    let (zero, inverses) = (L::splat(0.0), L::load(grid).mul(L::splat(inverse)));
    let mut farthest = zero;
    for weight in weights.iter().take(GRID_SAMPLE) {
        let exact = L::splat(*weight).mul(inverses);
        let distance = exact.sub(exact.add(L::splat(CODE_ROUND)).sub(L::splat(CODE_ROUND)));
        farthest = farthest.max(distance.abs());
    }
    if !L::splat(GRID_NEAR).any_at_least(farthest) {
        return None;
    }
    for target in grid {
        if !near_grid::<L, R>(weights, target * inverse) {
            continue;
        }
        // Where the sign is free the scale is positive. The division may be off by an ulp from the scale whose multiple
        // the extreme weight is.
        let scale = if *target > 0.0 { extreme.abs() } else { extreme } / target;
        let candidates = [scale, scale.next_up(), scale.next_down()];
        if let Some(scale) = candidates.into_iter().find(|scale| error_f64::<R>(weights, *scale) == 0.0) {
            return Some(scale);
        }
    }
    None
}

/// Whether every `w * inverse` is close to a code.
#[inline(always)]
fn near_grid<L: Lanes, R: CodeRange>(weights: &[f32], inverse: f32) -> bool {
    let (inverse, far) = (L::splat(inverse), L::splat(GRID_NEAR));
    for_each_vector!(L, weight in weights, {
        let exact = weight.mul(inverse);
        if exact.sub(to_codes::<L, R>(exact)).abs().any_at_least(far) {
            return false;
        }
    });
    true
}
