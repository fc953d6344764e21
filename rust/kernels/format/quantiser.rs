//! From weights to codes and a scale: the absolute-maximum rule and the search for the least error.
//!
//! Owns: [`quantise`], inlined into the encoder of every instruction set; every sum has a fixed order and no step is
//! contracted, so all sets choose the same scales.
//!
//! [`search`] looks for a better scale than that of the absolute-maximum rule; the codes at that scale and the best
//! scale for those codes are what is stored.
//!
//! Must hold: the squared error of the result, as decoded, is never above that of the absolute-maximum rule; a group
//! on a grid of the format comes back bit for bit.

mod search;

use self::search::{Found, Targets, search};
use super::ScaleRule;
use super::encode::Deviation;
use super::packing;
use crate::arch::lanes::{Lanes, WIDTH};

/// The codes of an integer format: `-HIGH - 1 ..= HIGH`.
pub(crate) trait CodeRange {
    /// Largest code, on which the absolute-maximum rule puts the weight of largest magnitude.
    const HIGH: f32;
    /// Smallest code.
    const LOW: f32 = -Self::HIGH - 1.0;
    /// What the search tries; `None`: the absolute-maximum rule always serves.
    const TARGETS: Option<Targets>;
    /// Stores the codes of a row.
    fn pack(codes: &[i8], bytes: &mut [u8]);
}

/// Codes -128..=127. Their error is small enough that a search does not pay.
pub(crate) struct Int8;
/// Codes -8..=7.
pub(crate) struct Int4;
/// Codes -4..=3.
pub(crate) struct Int3;
/// Codes -2..=1.
pub(crate) struct Int2;

impl CodeRange for Int8 {
    const HIGH: f32 = 127.0;
    const TARGETS: Option<Targets> = None;
    #[inline(always)]
    fn pack(codes: &[i8], bytes: &mut [u8]) {
        bytes.copy_from_slice(bytemuck::cast_slice(codes));
    }
}

impl CodeRange for Int4 {
    const HIGH: f32 = 7.0;
    const TARGETS: Option<Targets> = Some(Targets::new(7.0, [7.0, 6.0, 5.0, 4.0, -8.0, 7.0, 7.0, 7.0], 7.25, 1.06));
    #[inline(always)]
    fn pack(codes: &[i8], bytes: &mut [u8]) {
        packing::pack_int4(codes, bytes);
    }
}

impl CodeRange for Int3 {
    const HIGH: f32 = 3.0;
    const TARGETS: Option<Targets> = Some(Targets::new(3.0, [3.0, 2.0, -4.0, 3.0, 3.0, 3.0, 3.0, 3.0], 3.3, 1.11));
    #[inline(always)]
    fn pack(codes: &[i8], bytes: &mut [u8]) {
        packing::pack_int3(codes, bytes);
    }
}

impl CodeRange for Int2 {
    const HIGH: f32 = 1.0;
    const TARGETS: Option<Targets> = None;
    #[inline(always)]
    fn pack(codes: &[i8], bytes: &mut [u8]) {
        packing::pack_int2(codes, bytes);
    }
}

/// Smallest scale of the public containers.
const SCALE_MIN: f32 = 1e-8;
/// Weights whose codes are stored at a time.
const CODE_BLOCK: usize = 4 * WIDTH;
/// Columns whose squares are added up in f32; the sums of longer groups are joined in f64.
const SUM_COLS: usize = 1024;
/// Adding and subtracting 1.5 * 2^23 rounds half-even as long as the value is below 2^22.
const CODE_ROUND: f32 = 12_582_912.0;
/// Outside of these magnitudes f32 sums of squares may overflow or vanish: the absolute-maximum rule serves, and the
/// error is measured in f64.
const SUMMABLE: std::ops::RangeInclusive<f32> = 1e-15..=1e15;
/// Part of an error that must be left for the closed form to tell what a better scale leaves of it.
const LEAST_LEFT: f64 = 0.5;
/// Part of the squared weights that must be left for the rounding of the stored weights not to count.
const LEAST_PART: f64 = 1.0 / 4096.0;
/// Sums of up to [`SUM_COLS`] squares are off by less than 2^-16 of their value in f32; errors that differ by more than
/// this part are in the order that their sums are in.
const CERTAIN: f64 = 1.0 - 1.0 / 4096.0;

/// Runs a block for each vector of `weights`, the last one filled up with zeros, which every code and every sum leaves
/// out. A macro and not a function with a closure, because closures do not inherit the target features that intrinsics
/// need to be inlined.
macro_rules! for_each_vector {
    ($L:ident, $weight:ident in $weights:expr, $body:block) => {
        let (blocks, tail) = $weights.as_chunks::<WIDTH>();
        for block in blocks {
            let $weight = $L::load(block);
            $body
        }
        if !tail.is_empty() {
            let mut block = [0.0; WIDTH];
            block[..tail.len()].copy_from_slice(tail);
            let $weight = $L::load(&block);
            $body
        }
    };
}
use for_each_vector;

/// The codes of weights divided by a scale: bounds first, so that rounding stays in its range.
#[inline(always)]
fn to_codes<L: Lanes, R: CodeRange>(values: L) -> L {
    values.min(L::splat(R::HIGH)).max(L::splat(R::LOW)).add(L::splat(CODE_ROUND)).sub(L::splat(CODE_ROUND))
}

/// The weight of largest magnitude, of equal ones the positive one; `None` if a weight is NaN or infinite.
#[inline(always)]
fn extreme<L: Lanes>(weights: &[f32]) -> Option<f32> {
    let (mut most, mut highest) = (L::splat(0.0), L::splat(0.0));
    for_each_vector!(L, weight in weights, {
        most = most.max_bits(weight.abs());
        highest = highest.max(weight);
    });
    // The highest of negative zeros may be one.
    let (largest, highest) = (most.most_bits(), highest.abs().most_bits());
    // The difference is 0 or negative. No comparison: half of its branches would be predicted wrongly.
    largest.is_finite().then_some(largest.copysign(highest - largest))
}

/// Codes of one group or row and its scale, and what the codes cost; `None` if a weight is NaN or infinite. `shorts` is
/// memory for as many numbers, rounded up to whole vectors of [`crate::arch::lanes::Shorts`].
#[inline(always)]
pub(crate) fn quantise<L: Lanes, R: CodeRange>(
    rule: ScaleRule,
    weights: &[f32],
    codes: &mut [i8],
    shorts: &mut [i16],
) -> Option<(f32, Deviation)> {
    let extreme = extreme::<L>(weights)?;
    let largest = extreme.abs();
    if largest == 0.0 {
        codes.fill(0);
        let scale = if rule == ScaleRule::Search { 0.0 } else { SCALE_MIN };
        return Some((scale, Deviation::default()));
    }
    let absmax = (largest / R::HIGH).max(SCALE_MIN);
    if !SUMMABLE.contains(&largest) {
        write_codes::<L, R, false>(weights, absmax, codes);
        return Some((absmax, deviation_f64(weights, codes, absmax)));
    }
    let targets = match (rule, R::TARGETS) {
        (ScaleRule::Search, Some(targets)) => targets,
        _ => return Some((absmax, write_codes::<L, R, false>(weights, absmax, codes).deviation)),
    };
    let (scale, absmax_error) = match search::<L, R>(weights, extreme, &targets, shorts) {
        Found::Exact(scale) => return Some((scale, write_codes::<L, R, false>(weights, scale, codes).deviation)),
        Found::Near { scale, absmax_error } => (scale, absmax_error),
    };
    let (scale, deviation) = write_refined::<L, R>(weights, scale, codes);
    if deviation.error <= absmax_error * CERTAIN
        || deviation_f64(weights, codes, scale).error < error_f64::<R>(weights, absmax)
    {
        return Some((scale, deviation));
    }
    Some((absmax, write_codes::<L, R, false>(weights, absmax, codes).deviation))
}

/// Codes near a scale, the best scale for them, and the deviation there.
#[inline(always)]
fn write_refined<L: Lanes, R: CodeRange>(weights: &[f32], scale: f32, codes: &mut [i8]) -> (f32, Deviation) {
    let Written { deviation: Deviation { error, weight }, slope, squares } =
        write_codes::<L, R, true>(weights, scale, codes);
    let step = slope / squares;
    let best = (f64::from(scale) + step) as f32;
    let least = error - slope * step;
    // Where little is left of the error, rounding is too much of it.
    if least < error * LEAST_LEFT || least < weight * LEAST_PART {
        return (best, write_codes::<L, R, false>(weights, best, codes).deviation);
    }
    (best, Deviation { error: least, weight })
}

/// What [`write_codes`] adds up.
#[derive(Default)]
struct Written {
    deviation: Deviation,
    slope: f64,   // sum(q (w - q scale)), half the derivative of the error; only when searching
    squares: f64, // sum(q q); only when searching
}

/// Codes of the whole slice at one scale, and the sums of squares. The codes of the absolute-maximum rule come from a
/// division; when searching, a product with the inverse is near enough.
#[inline(always)]
fn write_codes<L: Lanes, R: CodeRange, const SEARCHING: bool>(
    weights: &[f32],
    scale: f32,
    codes: &mut [i8],
) -> Written {
    let divisor = L::splat(if SEARCHING { 1.0 / scale } else { scale });
    let scale = L::splat(scale);
    let mut written = Written::default();
    for (weights, codes) in weights.chunks(SUM_COLS).zip(codes.chunks_mut(SUM_COLS)) {
        let mut sums = [L::splat(0.0); 4];
        let (blocks, tail) = weights.as_chunks::<CODE_BLOCK>();
        let (code_blocks, code_tail) = codes.as_chunks_mut::<CODE_BLOCK>();
        for (block, codes) in blocks.iter().zip(code_blocks) {
            sums = block_codes::<L, R, SEARCHING>(block, (scale, divisor), codes, sums);
        }
        if !tail.is_empty() {
            // Zeros have the code 0 and leave the sums as they are.
            let (mut block, mut codes) = ([0.0; CODE_BLOCK], [0; CODE_BLOCK]);
            block[..tail.len()].copy_from_slice(tail);
            sums = block_codes::<L, R, SEARCHING>(&block, (scale, divisor), &mut codes, sums);
            code_tail.copy_from_slice(&codes[..tail.len()]);
        }
        let [error, weight, slope, squares] = L::sums(sums);
        written.deviation += Deviation { error: error.into(), weight: weight.into() };
        written.slope += f64::from(slope);
        written.squares += f64::from(squares);
    }
    written
}

/// The codes of four vectors; adds to the sums of [`Written`].
#[inline(always)]
fn block_codes<L: Lanes, R: CodeRange, const SEARCHING: bool>(
    weights: &[f32; CODE_BLOCK],
    (scale, divisor): (L, L),
    codes: &mut [i8; CODE_BLOCK],
    [mut errors, mut squares, mut slopes, mut code_squares]: [L; 4],
) -> [L; 4] {
    let mut vectors = [scale; 4];
    for (at, weights) in weights.as_chunks::<WIDTH>().0.iter().enumerate() {
        let weight = L::load(weights);
        let code = to_codes::<L, R>(if SEARCHING { weight.mul(divisor) } else { weight.div(divisor) });
        let difference = weight.sub(code.mul(scale));
        errors = errors.add(difference.mul(difference));
        squares = squares.add(weight.mul(weight));
        if SEARCHING {
            slopes = slopes.add(difference.mul(code));
            code_squares = code_squares.add(code.mul(code));
        }
        vectors[at] = code;
    }
    L::store_codes(vectors, codes);
    [errors, squares, slopes, code_squares]
}

/// The sums of squares of weights that are stored as they are or as shorter floats.
#[inline(always)]
pub(crate) fn deviation<L: Lanes>(weights: &[f32], stored: &[f32]) -> Deviation {
    if !extreme::<L>(weights).is_some_and(|most| most == 0.0 || SUMMABLE.contains(&most.abs())) {
        return sum_f64(weights.iter().copied().zip(stored.iter().copied()));
    }
    let mut sums = Deviation::default();
    for (weights, stored) in weights.chunks(SUM_COLS).zip(stored.chunks(SUM_COLS)) {
        let (mut errors, mut squares) = (L::splat(0.0), L::splat(0.0));
        let (blocks, tail) = weights.as_chunks::<WIDTH>();
        let (stored_blocks, stored_tail) = stored.as_chunks::<WIDTH>();
        for (block, stored) in blocks.iter().zip(stored_blocks) {
            let weight = L::load(block);
            let difference = L::load(stored).sub(weight);
            errors = errors.add(difference.mul(difference));
            squares = squares.add(weight.mul(weight));
        }
        let [error, weight, ..] = L::sums([errors, squares, errors, squares]);
        sums.error += f64::from(error);
        sums.weight += f64::from(weight);
        sums += sum_f64(tail.iter().copied().zip(stored_tail.iter().copied()));
    }
    sums
}

/// Squared error of the group as it will be decoded, in f64.
#[inline(always)]
fn error_f64<R: CodeRange>(weights: &[f32], scale: f32) -> f64 {
    let stored = |weight: f32| (weight / scale).clamp(R::LOW, R::HIGH).round_ties_even() * scale;
    sum_f64(weights.iter().map(|weight| (*weight, stored(*weight)))).error
}

/// The sums of squares in f64.
#[inline(always)]
fn deviation_f64(weights: &[f32], codes: &[i8], scale: f32) -> Deviation {
    sum_f64(weights.iter().zip(codes).map(|(weight, code)| (*weight, f32::from(*code) * scale)))
}

#[inline(always)]
fn sum_f64(pairs: impl Iterator<Item = (f32, f32)>) -> Deviation {
    let mut sums = Deviation::default();
    for (weight, stored) in pairs {
        let difference = f64::from(stored) - f64::from(weight);
        sums.error += difference * difference;
        sums.weight += f64::from(weight) * f64::from(weight);
    }
    sums
}
