//! From weights to codes and a scale: the absolute-maximum rule and the search for the least error.
//!
//! Owns: `*_body` functions that an instruction set instantiates under its own `#[target_feature]`; every
//! sum has a fixed order and no step is contracted, so all sets choose the same scales.
//!
//! The search follows the closed form of llama.cpp's quantisers: for given codes `q` the best scale is
//! `sum(w q) / sum(q q)` and it leaves the error `sum(w w) - sum(w q)^2 / sum(q q)`, so candidates are
//! compared by the last term alone. Candidates put the extreme weight on different codes, on the side of
//! -8 too (which may make a scale negative). Before that, scales that reproduce the group exactly are
//! looked for: a group of the form `q * s` is always found, because its extreme code is one of 4..=8 up to
//! a factor of two.
//!
//! Must hold: the squared error of the result, as decoded, is never above that of the absolute-maximum
//! rule; a group on an int4 grid comes back bit for bit.

use super::ScaleRule;

/// Largest codes of the absolute-maximum rule.
const INT4_MAX: f32 = 7.0;
const INT8_MAX: f32 = 127.0;
/// Smallest scale of the public containers.
const SCALE_MIN: f32 = 1e-8;
/// Interleaved lanes of every sum.
const LANES: usize = 16;
/// Adding and subtracting 1.5 * 2^23 rounds half-even as long as the value is below 2^22.
const ROUND: f32 = 12_582_912.0;
/// Codes on which the search puts the weight of largest magnitude.
const TARGETS: [f32; 5] = [-7.1, -7.6, -8.1, -8.6, -9.1];
/// Codes that the extreme weight of an exact grid can have.
const GRID_TARGETS: [f32; 5] = [7.0, -8.0, 6.0, 5.0, 4.0];
/// Largest distance from the grid, in codes, at which exact scales are tried.
const GRID_NEAR: f32 = 1e-4;
/// Outside of these magnitudes the closed form may overflow: the absolute-maximum rule serves.
const SEARCHABLE: std::ops::RangeInclusive<f32> = 1e-15..=1e15;

/// `value` kept within `low..=high` and rounded half-even, plus [`ROUND`].
#[inline(always)]
fn shifted(value: f32, low: f32, high: f32) -> f32 {
    // Bounds before rounding, so that the trick stays in its range.
    let value = if value > high { high } else { value };
    let value = if value < low { low } else { value };
    value + ROUND
}

/// `value` kept within `low..=high` and rounded half-even.
#[inline(always)]
fn to_code(value: f32, low: f32, high: f32) -> f32 {
    shifted(value, low, high) - ROUND
}

/// The weight of largest magnitude, the positive one of equals.
#[inline(always)]
fn extreme(weights: &[f32]) -> f32 {
    let (mut most, mut least) = ([0.0f32; LANES], [0.0f32; LANES]);
    let (blocks, tail) = weights.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            most[lane] = if block[lane] > most[lane] { block[lane] } else { most[lane] };
            least[lane] = if block[lane] < least[lane] { block[lane] } else { least[lane] };
        }
    }
    let most = most.iter().chain(tail).fold(0.0f32, |most, weight| most.max(*weight));
    let least = least.iter().chain(tail).fold(0.0f32, |least, weight| least.min(*weight));
    if most >= -least { most } else { least }
}

/// Codes of the whole slice at one scale; a scale of 0 gives zeros.
#[inline(always)]
fn write_codes(weights: &[f32], scale: f32, low: f32, high: f32, codes: &mut [i8]) {
    if scale == 0.0 {
        codes.fill(0);
        return;
    }
    for (code, weight) in codes.iter_mut().zip(weights) {
        // The integer sits in the low bits of the shifted number.
        *code = shifted(weight / scale, low, high).to_bits() as i8;
    }
}

/// int8 codes with `max |w| / 127`; returns the scale.
#[inline(always)]
pub(crate) fn int8_body(rule: ScaleRule, weights: &[f32], codes: &mut [i8]) -> f32 {
    let largest = extreme(weights).abs();
    let scale = absmax_scale(rule, largest, INT8_MAX);
    write_codes(weights, scale, -128.0, 127.0, codes);
    scale
}

/// int4 codes in -8..=7; returns the scale.
#[inline(always)]
pub(crate) fn int4_body(rule: ScaleRule, weights: &[f32], codes: &mut [i8]) -> f32 {
    let extreme = extreme(weights);
    let absmax = absmax_scale(rule, extreme.abs(), INT4_MAX);
    let scale = match rule {
        ScaleRule::AbsMax => absmax,
        ScaleRule::Search => search(weights, extreme, absmax),
    };
    write_codes(weights, scale, -8.0, 7.0, codes);
    scale
}

#[inline(always)]
fn absmax_scale(rule: ScaleRule, largest: f32, qmax: f32) -> f32 {
    match rule {
        ScaleRule::Search if largest == 0.0 => 0.0,
        _ => (largest / qmax).max(SCALE_MIN),
    }
}

/// The scale of least squared error among the candidates.
#[inline(always)]
fn search(weights: &[f32], extreme: f32, absmax: f32) -> f32 {
    if !SEARCHABLE.contains(&extreme.abs()) {
        return absmax;
    }
    let absmax_error = squared_error(weights, absmax);
    if absmax_error == 0.0 {
        return absmax;
    }
    if let Some(scale) = exact_scale(weights, extreme) {
        return scale;
    }
    let mut best_gain = 0.0f32;
    let mut scale = absmax;
    for target in TARGETS {
        let (gain, candidate) = least_squares(weights, target / extreme);
        if gain > best_gain {
            (best_gain, scale) = (gain, candidate);
        }
    }
    // Codes may move at the new scale; one more step settles nearly all groups.
    let (gain, refined) = least_squares(weights, 1.0 / scale);
    if gain >= best_gain {
        scale = refined;
    }
    if squared_error(weights, scale) < absmax_error { scale } else { absmax }
}

/// For the codes at `1 / scale = inverse`: how much of `sum(w w)` the best scale explains, and that scale.
#[inline(always)]
fn least_squares(weights: &[f32], inverse: f32) -> (f32, f32) {
    let mut products = [0.0f32; LANES]; // sum(w q)
    let mut squares = [0.0f32; LANES]; // sum(q q)
    let (blocks, tail) = weights.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            let code = to_code(block[lane] * inverse, -8.0, 7.0);
            products[lane] += block[lane] * code;
            squares[lane] += code * code;
        }
    }
    for (lane, weight) in tail.iter().enumerate() {
        let code = to_code(weight * inverse, -8.0, 7.0);
        products[lane] += weight * code;
        squares[lane] += code * code;
    }
    let (product, square) = (crate::ops::join_chains(products), crate::ops::join_chains(squares));
    if square == 0.0 { (0.0, 0.0) } else { (product * (product / square), product / square) }
}

/// A scale at which every weight is reproduced bit for bit, if the group lies on an int4 grid.
#[inline(always)]
fn exact_scale(weights: &[f32], extreme: f32) -> Option<f32> {
    for target in GRID_TARGETS {
        if !near_grid(weights, target / extreme) {
            continue;
        }
        let scale = extreme / target;
        // The division may be off by an ulp from the scale whose multiple the extreme weight is.
        for candidate in [scale, scale.next_up(), scale.next_down()] {
            if squared_error(weights, candidate) == 0.0 {
                return Some(candidate);
            }
        }
    }
    None
}

/// Whether every `w * inverse` is close to a code. Nearly all groups fail within the first lanes.
#[inline(always)]
fn near_grid(weights: &[f32], inverse: f32) -> bool {
    weights.chunks(LANES).all(|part| {
        let mut far = 0u32;
        for weight in part {
            let exact = weight * inverse;
            far |= u32::from((exact - to_code(exact, -8.0, 7.0)).abs() > GRID_NEAR);
        }
        far == 0
    })
}

/// Squared error of the group as it will be decoded.
#[inline(always)]
pub(super) fn squared_error(weights: &[f32], scale: f32) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let error = |weight: f32| {
        let code = if scale == 0.0 { 0.0 } else { to_code(weight / scale, -8.0, 7.0) };
        let difference = f64::from(weight) - f64::from(code * scale);
        difference * difference
    };
    let (blocks, tail) = weights.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] += error(block[lane]);
        }
    }
    for (lane, weight) in lanes.iter_mut().zip(tail) {
        *lane += error(*weight);
    }
    lanes.iter().sum()
}
