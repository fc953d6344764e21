//! Choosing a token from a row of logits.
//!
//! Order: penalties, the caller's own changes, the mask, temperature, top-k, top-p, min-p, draw. The random number depends on the
//! seed and the position alone, never on how often or in what order tokens were drawn, so that a stream is the same with
//! and without drafts, rewinds or restarts.
//!
//! Must hold: the set that is drawn from is never empty; equal logits are ordered by falling likelihood of the lowest
//! identifier first; neither NaN nor a token outside of the mask is ever chosen; a mask that allows everything changes nothing; the token is the same on every platform (sums run in a fixed order in 64 bits,
//! exponentials are those of the kernel sets). Refuses parameters outside their range and rows without a finite logit.

use std::cmp::Ordering;

use colibri_grammar::TokenMask;
use colibri_kernels::{KernelSet, argmax};

use crate::error::EngineError;

/// Weights below e^-87 are zero: smaller ones are subnormal in 32 bits and can never be drawn.
const SMALLEST_EXPONENT: f32 = -87.0;
/// How many candidates are sorted before top-p is looked at for the first time; the block then grows fourfold.
const FIRST_BLOCK: usize = 64;

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy. From 0 to 100.
    pub temperature: f32,
    /// Keeps the smallest set of likeliest tokens whose probabilities reach this sum; 1 is off. From 0 to 1.
    pub top_p: f32,
    /// Keeps this many tokens; 0 is off, and so is any number from the vocabulary size on.
    pub top_k: u32,
    /// Keeps tokens at least this likely relative to the likeliest; 0 is off. From 0 to 1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens of the context; 1 is off. Above 0, at most 100.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of tokens of the context. From -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted once for each occurrence in the context. From -2 to 2.
    pub frequency_penalty: f32,
    /// Key of the random numbers, together with the position.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 0.95,
            top_k: 0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// The likeliest token, always.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// `invalid_value`, naming the field and its range.
    pub fn validate(&self) -> Result<(), EngineError> {
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repeat_penalty", self.repeat_penalty, f32::MIN_POSITIVE, 100.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                let expected = match name {
                    "repeat_penalty" => format!("a number above 0 and at most {high}"),
                    _ => format!("a number from {low} to {high}"),
                };
                return Err(EngineError::InvalidValue { name, expected, got: value.to_string() });
            }
        }
        Ok(())
    }

    /// Whether any penalty changes a logit.
    #[must_use]
    pub fn penalises(&self) -> bool {
        self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Its identifier.
    pub token: u32,
    /// Natural logarithm of its probability under the row as it was handed to [`choose`], that is after penalties and
    /// before the mask, temperature and truncation.
    pub logprob: f32,
}

/// Penalties and choice for the token that follows `history`.
///
/// # Errors
/// As [`choose`].
pub fn sample(
    kernels: &KernelSet,
    logits: &[f32],
    history: &[u32],
    params: &SamplingParams,
    mask: Option<&TokenMask>,
) -> Result<Sampled, EngineError> {
    let position = history.len() as u64;
    if params.penalises() {
        let mut row = logits.to_vec();
        penalise(&mut row, history, params);
        choose(kernels, &row, params, position, mask)
    } else {
        choose(kernels, logits, params, position, mask)
    }
}

/// Applies the penalties to `logits` [vocab] for every token of `history`, prompt and answer alike.
///
/// The repetition penalty is that of Keskar et al. 2019 (CTRL) with the sign rule of llama.cpp and transformers: a negative
/// logit is multiplied, so that it falls too. Presence and frequency are subtracted after it, as in the OpenAI interface.
pub fn penalise(logits: &mut [f32], history: &[u32], params: &SamplingParams) {
    if !params.penalises() {
        return;
    }
    let mut counts = vec![0_u32; logits.len()]; // [vocab]
    for token in history {
        if let Some(count) = counts.get_mut(*token as usize) {
            *count += 1;
        }
    }
    for (logit, count) in logits.iter_mut().zip(&counts).filter(|(_, count)| **count > 0) {
        *logit = if *logit > 0.0 { *logit / params.repeat_penalty } else { *logit * params.repeat_penalty };
        *logit -= params.presence_penalty + params.frequency_penalty * *count as f32;
    }
}

/// Chooses a token from those of `logits` [vocab], which already hold the penalties, that the mask allows. `position` is the
/// index that the token gets.
///
/// # Errors
/// `invalid_value` for parameters out of range, `non_finite` for a row without a finite logit, `grammar_dead_end` where no
/// token is left that the mask allows.
pub fn choose(
    kernels: &KernelSet,
    logits: &[f32],
    params: &SamplingParams,
    position: u64,
    mask: Option<&TokenMask>,
) -> Result<Sampled, EngineError> {
    params.validate()?;
    let likeliest = |row: &[f32]| {
        let best = argmax(row);
        let largest = row.get(best).copied().unwrap_or(f32::NAN);
        (best as u32, largest, largest.is_finite() || largest == f32::INFINITY)
    };
    let (_, largest_of_all, usable) = likeliest(logits);
    if !usable {
        return Err(EngineError::NonFinite {
            place: format!("the logits of position {position}"),
            tensor: "lm_head".to_owned(),
            model: None,
        });
    }
    let masked = mask.map(|mask| masked(logits, mask));
    let row = masked.as_deref().unwrap_or(logits);
    let (best, largest, left) = likeliest(row);
    if !left {
        return Err(EngineError::DeadEnd { position, allowed: mask.map_or(0, TokenMask::count) });
    }
    let token = if params.temperature == 0.0 || largest == f32::INFINITY {
        best
    } else {
        draw(kernels, row, largest, params, uniform(params.seed, position))
    };
    Ok(Sampled { token, logprob: logprob(kernels, logits, largest_of_all, token) })
}

/// The row with -infinity for every token that is not allowed.
fn masked(logits: &[f32], mask: &TokenMask) -> Vec<f32> {
    let of = |(token, logit): (u32, &f32)| if mask.allows(token) { *logit } else { f32::NEG_INFINITY };
    (0..).zip(logits).map(of).collect()
}

/// Natural logarithm of a token's probability under a row with this largest logit.
fn logprob(kernels: &KernelSet, logits: &[f32], largest: f32, token: u32) -> f32 {
    let own = logits[token as usize];
    if largest == f32::INFINITY {
        return if own == largest { 0.0 } else { f32::NEG_INFINITY };
    }
    let mut weights = Vec::new();
    relative_weights(kernels, logits, largest, 1.0, &mut weights);
    let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    (f64::from(own) - f64::from(largest) - total.ln()) as f32
}

/// The random number in [0, 1) that belongs to a seed and a position, with 53 random bits.
///
/// Two rounds of the SplitMix64 finaliser (Steele, Lea, Flood 2014), a bijection with full avalanche, used as a counter-based
/// generator: the seed is mixed first, so that neighbouring seeds do not give shifted streams.
#[must_use]
pub fn uniform(seed: u64, position: u64) -> f64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let stream = mix(seed.wrapping_add(GOLDEN));
    let bits = mix(stream.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// Draws a token with the random number `u` in [0, 1): temperature, top-k, top-p, min-p, then inversion.
fn draw(kernels: &KernelSet, logits: &[f32], largest: f32, params: &SamplingParams, u: f64) -> u32 {
    let mut weights = Vec::new(); // [vocab], relative to the likeliest
    relative_weights(kernels, logits, largest, params.temperature, &mut weights);
    let kept = keep(logits, &weights, params);
    let weight = |token: &u32| f64::from(weights[*token as usize]);
    let total: f64 = kept.iter().map(weight).sum();
    let target = u * total;
    let mut sum = 0.0;
    for token in &kept {
        sum += weight(token);
        if target < sum {
            return *token;
        }
    }
    // Rounding can leave the sum at the target; the answer is still one of the kept tokens.
    kept.last().copied().unwrap_or_else(|| argmax(logits) as u32)
}

/// The tokens that remain after top-k, top-p and min-p, at least one. Falling logits, ties lowest identifier, wherever
/// top-k or top-p had to look at the order; by identifier otherwise.
fn keep(logits: &[f32], weights: &[f32], params: &SamplingParams) -> Vec<u32> {
    let order = |a: &u32, b: &u32| -> Ordering {
        // Adding zero makes the two zeros equal.
        let (x, y) = (logits[*a as usize] + 0.0, logits[*b as usize] + 0.0);
        y.total_cmp(&x).then(a.cmp(b))
    };
    let mut kept: Vec<u32> = (0..weights.len() as u32).filter(|token| weights[*token as usize] > 0.0).collect();
    let top_k = params.top_k as usize;
    if top_k > 0 && top_k < kept.len() {
        kept.select_nth_unstable_by(top_k - 1, order);
        kept.truncate(top_k);
        kept.sort_unstable_by(order);
    }
    if params.top_p < 1.0 {
        let total: f64 = kept.iter().map(|token| f64::from(weights[*token as usize])).sum();
        keep_nucleus(&mut kept, weights, f64::from(params.top_p) * total, order);
    }
    if params.min_p > 0.0 {
        // The likeliest token has weight 1 and is always kept.
        kept.retain(|token| weights[*token as usize] >= params.min_p);
    }
    kept
}

/// Sorts as long a prefix of `kept` as it takes for the weights to reach `enough`, and cuts the rest off.
///
/// The vocabulary has 155,000 entries and the nucleus often fewer than a hundred, so blocks are selected and sorted as needed.
fn keep_nucleus(kept: &mut Vec<u32>, weights: &[f32], enough: f64, order: impl Fn(&u32, &u32) -> Ordering) {
    let (mut start, mut block, mut sum) = (0, FIRST_BLOCK, 0.0);
    while start < kept.len() {
        let end = kept.len().min(start + block);
        if end < kept.len() {
            kept[start..].select_nth_unstable_by(end - start - 1, &order);
        }
        kept[start..end].sort_unstable_by(&order);
        for index in start..end {
            sum += f64::from(weights[kept[index] as usize]);
            if sum >= enough {
                kept.truncate(index + 1);
                return;
            }
        }
        start = end;
        block *= 4;
    }
}

/// Writes exp((logit - largest) / temperature) to `weights` [vocab]; 0 for NaN and for what is too small to be drawn.
fn relative_weights(kernels: &KernelSet, logits: &[f32], largest: f32, temperature: f32, weights: &mut Vec<f32>) {
    let exponent = |logit: &f32| ((f64::from(*logit) - f64::from(largest)) / f64::from(temperature)) as f32;
    weights.clear();
    weights.extend(logits.iter().map(|logit| exponent(logit).max(SMALLEST_EXPONENT)));
    kernels.exp(weights);
    for (weight, logit) in weights.iter_mut().zip(logits) {
        let exponent = exponent(logit);
        if exponent.is_nan() || exponent <= SMALLEST_EXPONENT {
            *weight = 0.0;
        }
    }
}

#[cfg(test)]
#[path = "sample/tests.rs"]
mod tests;
