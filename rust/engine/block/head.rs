//! The head: one score for each token of the vocabulary.

use colibri_kernels::matrix::MatrixView;

use super::{Compute, Place};
use crate::error::EngineError;
use crate::scratch::ActivationSet;

/// Logits `[rows, vocab]` of rows (`[rows, hidden]`) after the final norm.
///
/// # Errors
/// A value is not finite.
pub fn logits(
    compute: &Compute<'_>,
    head: &MatrixView<'_>,
    rows: usize,
    normed: &[f32],
    set: &mut ActivationSet,
    out: &mut [f32],
) -> Result<(), EngineError> {
    let place = Place { layer: None, expert: None, template: compute.names.head };
    set.clear();
    compute.prepare(set, head.format(), (rows, head.cols()), normed, place)?;
    compute.matmul(head, set, out);
    if compute.kernels.all_finite(out) { Ok(()) } else { Err(compute.non_finite(place)) }
}
