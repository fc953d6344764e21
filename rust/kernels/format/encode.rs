//! From f32 weights to stored bytes, and how far the stored weights are from the given ones.
//!
//! Owns: [`encode`] and [`encode_measured`], and the one body behind them, which every instruction set instantiates
//! under its own `#[target_feature]`. Must hold: codes, scales and sums are the same on every set.
//! Refuses: sizes that contradict the shape, weights of integer formats that are not finite.

#[cfg(test)]
mod tests;

use super::quantiser::{self, CodeRange, Int2, Int3, Int4, Int8};
use super::{Format, ScaleRule, bf16, decode, f16, f32};
use crate::arch::Isa;
use crate::arch::lanes::{Lanes, SHORT_WIDTH};
use crate::dispatch::KernelSet;
use crate::error::KernelError;
use crate::matrix::MatrixView;

/// Columns of nearly all groups.
const USUAL_GROUP: usize = 64;

/// How far encoded weights are from the given ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Deviation {
    /// Sum of `(stored - w)^2`.
    pub error: f64,
    /// Sum of `w^2`.
    pub weight: f64,
}

impl std::ops::AddAssign for Deviation {
    fn add_assign(&mut self, other: Self) {
        self.error += other.error;
        self.weight += other.weight;
    }
}

/// Rows to be encoded; the sizes fit.
pub(crate) struct EncodeRows<'a> {
    pub(crate) format: Format,
    pub(crate) rule: ScaleRule,
    pub(crate) cols: usize,           // at least 1
    pub(crate) weights: &'a [f32],    // [rows, cols]
    pub(crate) codes: &'a mut [u8],   // [rows, bytes of a row]
    pub(crate) scales: &'a mut [f32], // [rows, scales of a row]
}

/// Encodes `weights` `[rows, cols]`, row-major, into `codes` and `scales` of the lengths that
/// [`Format::code_bytes`] and [`Format::scale_count`] give.
///
/// int4 and int3 scales follow `rule`; int8 and int2 scales are always `max |w| / 127` and `max |w|`; rounding is
/// half-even. Under [`ScaleRule::AbsMax`] codes and scales equal those of the public containers bit for bit.
///
/// # Errors
/// [`KernelError::Size`] or [`KernelError::Shape`] as [`MatrixView::new`],
/// [`KernelError::NonFiniteWeight`] for NaN or infinity in a quantised format.
pub fn encode(
    format: Format,
    rule: ScaleRule,
    rows: usize,
    cols: usize,
    weights: &[f32],
    codes: &mut [u8],
    scales: &mut [f32],
) -> Result<(), KernelError> {
    encode_measured(format, rule, rows, cols, weights, codes, scales).map(|_| ())
}

/// As [`encode`], and measures what the format costs in the same pass: sums in f32 over at most 1024 columns of a group
/// or row, joined in f64 in the order of the rows.
///
/// # Errors
/// As [`encode`].
pub fn encode_measured(
    format: Format,
    rule: ScaleRule,
    rows: usize,
    cols: usize,
    weights: &[f32],
    codes: &mut [u8],
    scales: &mut [f32],
) -> Result<Deviation, KernelError> {
    check_target(format, rows, cols, codes, scales)?;
    if rows.checked_mul(cols) != Some(weights.len()) {
        let (expected, got) = (rows.saturating_mul(cols), weights.len());
        let part = "weights";
        return Err(KernelError::Size { format: format.name(), rows, cols, part, expected, got });
    }
    let job = EncodeRows { format, rule, cols, weights, codes, scales };
    KernelSet::best().encode_rows(job).ok_or_else(|| non_finite(weights, 0, cols))
}

/// Decodes the rows of `source`, refuses weights that are not finite, encodes them as `format` and measures the
/// deviation, one row after the other while it lies in the nearest cache. `row` is memory to be used again.
///
/// # Errors
/// As [`encode`]; [`KernelError::NonFiniteWeight`] for every format.
pub fn transcode(
    source: &MatrixView<'_>,
    format: Format,
    rule: ScaleRule,
    codes: &mut [u8],
    scales: &mut [f32],
    row: &mut Vec<f32>,
) -> Result<Deviation, KernelError> {
    let (rows, cols) = (source.rows(), source.cols());
    check_target(format, rows, cols, codes, scales)?;
    let kernels = KernelSet::best();
    row.clear();
    row.try_reserve(cols).map_err(|_| KernelError::OutOfMemory { bytes: cols.saturating_mul(4) })?;
    row.resize(cols, 0.0);
    let (row_bytes, row_scales) = (codes.len() / rows.max(1), scales.len() / rows.max(1));
    let mut sums = Deviation::default();
    for at in 0..rows {
        kernels.decode_rows(source, at..at + 1, row);
        if !format.quantised() && !kernels.all_finite(row) {
            return Err(non_finite(row, at, cols));
        }
        let job = EncodeRows {
            format,
            rule,
            cols,
            weights: row,
            codes: &mut codes[at * row_bytes..(at + 1) * row_bytes],
            scales: &mut scales[at * row_scales..(at + 1) * row_scales],
        };
        sums += kernels.encode_rows(job).ok_or_else(|| non_finite(row, at, cols))?;
    }
    Ok(sums)
}

/// Refuses formats that are only read, and sizes that do not fit.
fn check_target(format: Format, rows: usize, cols: usize, codes: &[u8], scales: &[f32]) -> Result<(), KernelError> {
    if format == Format::Fp8Block {
        let reason = "weights are read in this format, not written";
        return Err(KernelError::Shape { format: format.name(), rows, cols, reason });
    }
    MatrixView::new(format, rows, cols, codes, scales).map(|_| ())
}

/// The place of the first weight that is not finite.
#[cold]
fn non_finite(weights: &[f32], first_row: usize, cols: usize) -> KernelError {
    let at = weights.iter().position(|weight| !weight.is_finite()).unwrap_or(0);
    KernelError::NonFiniteWeight { row: first_row + at / cols, col: at % cols }
}

/// One arm for each format; `None` if a weight of an integer format is not finite.
#[inline(always)]
pub(crate) fn rows_body<I: Isa>(job: EncodeRows<'_>) -> Option<Deviation> {
    match job.format {
        Format::F32 | Format::Bf16 | Format::F16 => Some(float_rows::<I::Lanes>(job)),
        Format::Int8Row => integer_rows::<I::Lanes, Int8>(job),
        Format::Int4Row | Format::Int4Grouped { .. } => integer_rows::<I::Lanes, Int4>(job),
        Format::Int3G64 => integer_rows::<I::Lanes, Int3>(job),
        Format::Int2Row => integer_rows::<I::Lanes, Int2>(job),
        // Refused at the door.
        Format::Fp8Block => None,
    }
}

#[inline(always)]
fn integer_rows<L: Lanes, R: CodeRange>(job: EncodeRows<'_>) -> Option<Deviation> {
    let mut quantised = vec![0i8; job.cols];
    let group = job.format.group_cols(job.cols);
    let mut shorts = vec![0i16; group.min(job.cols).next_multiple_of(SHORT_WIDTH)];
    let rows = job.weights.len() / job.cols;
    let (row_bytes, row_scales) = (job.codes.len() / rows.max(1), job.scales.len() / rows.max(1));
    let outputs = job.codes.chunks_exact_mut(row_bytes.max(1)).zip(job.scales.chunks_exact_mut(row_scales.max(1)));
    let mut sums = Deviation::default();
    for (weights, (codes, scales)) in job.weights.chunks_exact(job.cols).zip(outputs) {
        let groups = weights.chunks(group).zip(quantised.chunks_mut(group));
        for ((weights, quantised), scale) in groups.zip(scales) {
            let (chosen, deviation) = match (weights.try_into(), (&mut *quantised).try_into()) {
                // The usual length: a body of its own, without loops.
                (Ok(weights), Ok(quantised)) => usual_group::<L, R>(job.rule, weights, quantised),
                _ => quantiser::quantise::<L, R>(job.rule, weights, quantised, &mut shorts),
            }?;
            *scale = chosen;
            sums += deviation;
        }
        R::pack(&quantised, codes);
    }
    Some(sums)
}

#[inline(always)]
fn usual_group<L: Lanes, R: CodeRange>(
    rule: ScaleRule,
    weights: &[f32; USUAL_GROUP],
    codes: &mut [i8; USUAL_GROUP],
) -> Option<(f32, Deviation)> {
    quantiser::quantise::<L, R>(rule, weights, codes, &mut [0; USUAL_GROUP])
}

#[inline(always)]
fn float_rows<L: Lanes>(job: EncodeRows<'_>) -> Deviation {
    let mut stored = vec![0.0f32; job.cols];
    let rows = job.weights.len() / job.cols;
    let row_bytes = job.codes.len() / rows.max(1);
    let mut sums = Deviation::default();
    for (weights, codes) in job.weights.chunks_exact(job.cols).zip(job.codes.chunks_exact_mut(row_bytes.max(1))) {
        match job.format {
            Format::Bf16 => bf16::encode(weights, codes),
            Format::F16 => f16::encode(weights, codes),
            _ => f32::encode(weights, codes),
        }
        let row = decode::Row { codes, scales: &[], group: job.cols };
        decode::codes_body(job.format, row, 0, &mut stored);
        sums += quantiser::deviation::<L>(weights, &stored);
    }
    sums
}
