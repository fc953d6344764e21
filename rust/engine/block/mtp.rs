//! Input of the multi-token-prediction layer (DeepSeek-V3, arXiv 2412.19437, section 2.2; order of the halves and norms
//! as in vLLM `deepseek_mtp` and `transformers` `MtpLayer`): `eh_proj . concat(enorm(embedding of the next token),
//! hnorm(hidden state after the model's final norm))`.

use super::{Compute, Place, norm};
use crate::error::EngineError;
use crate::scratch::{ActivationSet, sized};
use crate::weights::MtpWeights;

/// The layer that is about to run, and its epsilon.
pub struct MtpInput<'a> {
    /// Its weights.
    pub weights: &'a MtpWeights,
    /// Its number.
    pub layer: usize,
    /// Epsilon of its norms.
    pub epsilon: f32,
}

impl MtpInput<'_> {
    /// Projects embeddings of the next tokens and final hidden states (each `[rows, hidden]`) into `out`
    /// (`[rows, hidden]`).
    ///
    /// # Errors
    /// A value is not finite.
    pub fn project(
        &self,
        compute: &Compute<'_>,
        (embedded, hidden): (&[f32], &[f32]),
        joined: &mut Vec<f32>,
        set: &mut ActivationSet,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let cols = self.weights.embedding_norm.len();
        let rows = out.len() / cols.max(1);
        let joined = sized(joined, rows * 2 * cols);
        for ((row, embedded), hidden) in joined.chunks_mut(2 * cols).zip(embedded.chunks(cols)).zip(hidden.chunks(cols))
        {
            let (first, second) = row.split_at_mut(cols);
            norm::rms(compute, embedded, &self.weights.embedding_norm, self.epsilon, first);
            norm::rms(compute, hidden, &self.weights.hidden_norm, self.epsilon, second);
        }
        let view = self.weights.projection.view();
        let place = Place::of_layer(self.layer, compute.names.mtp.projection);
        set.clear();
        compute.prepare(set, view.format(), (rows, 2 * cols), joined, place)?;
        compute.matmul(&view, set, out);
        Ok(())
    }
}
