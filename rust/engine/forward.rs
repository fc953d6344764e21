//! The forward pass: positions through layers. Reads like the paper: embed; for each layer norm, mix, add, norm,
//! feed forward, add; norm, head.
//!
//! Must hold: a pass either commits all its rows to the cache or leaves the caller to truncate it; the watcher is asked
//! between layers; rows of a chunk do not influence each other except through attention.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use colibri_kernels::act::Numerics;
use colibri_kernels::dispatch::KernelSet;
use colibri_kernels::pool::WorkerPool;
use colibri_store::source::Source;

use crate::block::dense::{GatedUnit, gated};
use crate::block::mla::Mla;
use crate::block::moe::{Input, Moe};
use crate::block::mtp::MtpInput;
use crate::block::{Compute, Place, embed, head, norm};
use crate::config::{Control, Phase, Watch};
use crate::error::EngineError;
use crate::experts::Experts;
use crate::kv::{KvCache, LayerCache};
use crate::names::WeightNames;
use crate::observe::Observer;
use crate::scratch::{Scratch, sized};
use crate::spec::{Ffn, LayerSpec, Mixer, ModelSpec};
use crate::weights::{FfnWeights, LayerWeights, MixerWeights, Weights, layer_number};

/// A loaded model and what it is computed with. Shared by all sessions; one forward pass runs at a time.
pub struct Network {
    /// The model's folder, for messages.
    pub path: PathBuf,
    /// Where weights come from; asked before each pass whether lent bytes are still there.
    pub source: Arc<dyn Source>,
    /// The model as data.
    pub spec: ModelSpec,
    /// Tensor names, for messages.
    pub names: &'static WeightNames,
    /// Resident weights.
    pub weights: Weights,
    /// Routed experts.
    pub experts: Experts,
    /// Worker threads.
    pub pool: WorkerPool,
    /// Kernels of this machine.
    pub kernels: KernelSet,
    /// Activation precision.
    pub numerics: Numerics,
    /// Rows of a prefill chunk.
    pub chunk: usize,
    /// Buffers; whoever holds them runs.
    pub scratch: Mutex<Scratch>,
}

/// Which rows get logits, and where they go.
pub enum Want<'a> {
    /// None: more of the prompt follows.
    Nothing,
    /// The last row, `[vocab]`.
    Last(&'a mut [f32]),
    /// Every row, `[rows, vocab]`.
    All(&'a mut [f32]),
}

/// Where a pass stands in a longer piece of work.
#[derive(Clone, Copy)]
pub struct Progress<'a> {
    /// Who is told.
    pub watch: &'a dyn Watch,
    /// What is told: the layer while decoding, the rows otherwise.
    pub phase: Phase,
    /// Rows done before this pass.
    pub done: usize,
    /// Rows of the whole work.
    pub total: usize,
}

impl Progress<'_> {
    /// Reports `layer` of `layers` for a pass of `rows` rows.
    fn layer(&self, rows: usize, layer: usize, layers: usize) -> Result<(), EngineError> {
        let control = if self.phase == Phase::Decode {
            self.watch.progress(self.phase, layer as u64, layers as u64)
        } else {
            let within = rows * layer / layers.max(1);
            self.watch.progress(self.phase, (self.done + within) as u64, self.total as u64)
        };
        if control == Control::Stop { Err(EngineError::Cancelled) } else { Ok(()) }
    }
}

impl Network {
    /// What blocks compute with.
    #[must_use]
    pub fn compute(&self) -> Compute<'_> {
        Compute {
            model: &self.path,
            pool: &self.pool,
            kernels: &self.kernels,
            numerics: self.numerics,
            names: self.names,
        }
    }

    /// Runs `tokens` after what the cache holds. The tokens must be below the vocabulary size and fit the cache.
    ///
    /// # Errors
    /// A weight file was cut short, an expert cannot be read, memory cannot be had, a value is not finite, or the
    /// watcher says stop; the cache then holds rows that are not committed.
    pub fn forward(
        &self,
        cache: &mut KvCache,
        tokens: &[u32],
        want: Want<'_>,
        scratch: &mut Scratch,
        progress: Progress<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let (rows, start, layers) = (tokens.len(), cache.len(), self.spec.layers.len());
        let size = rows * self.spec.hidden_size;
        self.source.check_lent()?;
        cache.reserve(rows)?;
        scratch.reserve(&self.spec, rows, start + rows)?;
        embed::embed(&self.weights.embedding.view(), tokens, sized(&mut scratch.hidden, size));
        observer.embedding(&scratch.hidden[..size]);
        for (index, (spec, weights)) in self.spec.layers.iter().zip(&self.weights.layers).enumerate() {
            progress.layer(rows, index, layers)?;
            let at = At { index, start, rows };
            self.layer(spec, weights, at, cache.layer(index), scratch, observer)?;
        }
        progress.layer(rows, layers, layers)?;
        cache.commit(rows);
        self.finish(rows, want, scratch, observer)
    }

    /// One decoder layer, on `scratch.hidden`.
    fn layer(
        &self,
        spec: &LayerSpec,
        weights: &LayerWeights,
        at: At,
        cache: &mut LayerCache,
        scratch: &mut Scratch,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let compute = self.compute();
        let size = at.rows * self.spec.hidden_size;
        let hidden = &mut scratch.hidden[..size];
        let normed = sized(&mut scratch.normed, size);
        let output = sized(&mut scratch.output, size);
        norm::rms(&compute, hidden, &weights.input_norm, self.spec.norm_epsilon, normed);
        scratch.input.clear();
        match (&spec.mixer, &weights.mixer, cache) {
            (Mixer::Mla(spec), MixerWeights::Mla(weights), LayerCache::Mla(cache)) => {
                let mla = Mla { spec, weights, layer: at.index, start: at.start, rows: at.rows };
                let buffers = (&mut scratch.attention, scratch.workers.as_mut_slice());
                mla.run(&compute, (normed, &mut scratch.input), cache, buffers, output, observer)?;
            }
        }
        observer.attention_output(at.index, output);
        self.kernels.axpy(1.0, output, hidden);
        norm::rms(&compute, hidden, &weights.post_norm, self.spec.norm_epsilon, normed);
        scratch.input.clear();
        self.feed_forward(&spec.ffn, &weights.ffn, at, scratch, observer)?;
        let (hidden, output) = (&mut scratch.hidden[..size], &scratch.output[..size]);
        observer.ffn_output(at.index, output);
        self.kernels.axpy(1.0, output, hidden);
        observer.hidden(at.index, hidden);
        Ok(())
    }

    /// The feed-forward part of a layer, from `scratch.normed` to `scratch.output`.
    fn feed_forward(
        &self,
        spec: &Ffn,
        weights: &FfnWeights,
        at: At,
        scratch: &mut Scratch,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let compute = self.compute();
        let (rows, hidden) = (at.rows, self.spec.hidden_size);
        let (x, out) = (&scratch.normed[..rows * hidden], &mut scratch.output[..rows * hidden]);
        match (spec, weights) {
            (Ffn::Moe(spec), FfnWeights::Moe(weights)) => {
                let experts = self.experts.of_layer(layer_number(at.index))?;
                let moe = Moe { spec, weights, experts, layer: at.index };
                let input = Input { rows, x, set: &mut scratch.input };
                moe.run(&compute, input, &mut scratch.moe, &mut scratch.gated, out, observer)
            }
            (_, FfnWeights::Dense(weights)) => {
                let (gate, up, down) = (weights.gate.view(), weights.up.view(), weights.down.view());
                let place = |template| Place::of_layer(at.index, template);
                for (view, template) in [(&gate, self.names.dense.gate), (&up, self.names.dense.up)] {
                    compute.prepare(&mut scratch.input, view.format(), (rows, hidden), x, place(template))?;
                }
                let place = place(self.names.dense.down);
                let mut unit = [GatedUnit { gate, up, down, input: &scratch.input, rows, out, place }];
                gated(&compute, &mut unit, &mut scratch.gated)
            }
            (Ffn::Dense { .. }, FfnWeights::Moe(_)) => {
                Err(colibri_store::error::StoreError::Internal { what: "a dense layer is bound to experts".to_owned() }
                    .into())
            }
        }
    }

    /// Final norm and head of the wanted rows.
    fn finish(
        &self,
        rows: usize,
        want: Want<'_>,
        scratch: &mut Scratch,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let hidden = self.spec.hidden_size;
        let (first, out) = match want {
            Want::Nothing => return Ok(()),
            Want::Last(out) => (rows - 1, out),
            Want::All(out) => (0, out),
        };
        let (compute, rows) = (self.compute(), rows - first);
        let normed = sized(&mut scratch.normed, rows * hidden);
        let residual = &scratch.hidden[first * hidden..][..rows * hidden];
        norm::rms(&compute, residual, &self.weights.final_norm, self.spec.norm_epsilon, normed);
        observer.final_hidden(normed);
        head::logits(&compute, &self.weights.head.view(), rows, normed, &mut scratch.input, out)
    }

    /// Runs the multi-token-prediction layer over pairs of a final hidden state (`[rows, hidden]`, after the final norm)
    /// and the token that follows it, into logits `[rows, vocab]`; the layer's output is left in `scratch.hidden`. The row
    /// of a pair takes the position of its hidden state.
    ///
    /// # Errors
    /// The model has no such layer; or as [`Self::forward`].
    pub fn predict(
        &self,
        cache: &mut LayerCache,
        start: usize,
        (hidden, next): (&[f32], &[u32]),
        logits: &mut [f32],
        scratch: &mut Scratch,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let (Some(spec), Some(weights)) = (&self.spec.mtp, &self.weights.mtp) else {
            return Err(EngineError::InvalidValue {
                name: "model",
                expected: "one with a multi-token-prediction layer".to_owned(),
                got: self.spec.family.to_owned(),
            });
        };
        let compute = self.compute();
        let (rows, index) = (next.len(), self.spec.layers.len());
        let size = rows * self.spec.hidden_size;
        self.source.check_lent()?;
        cache.reserve(rows)?;
        scratch.reserve(&self.spec, rows, start + rows)?;
        let embedded = sized(&mut scratch.normed, size);
        embed::embed(&self.weights.embedding.view(), next, embedded);
        let input = MtpInput { weights, layer: index, epsilon: self.spec.norm_epsilon };
        let out = sized(&mut scratch.hidden, size);
        input.project(&compute, (embedded, hidden), &mut scratch.joined, &mut scratch.input, out)?;
        let at = At { index, start, rows };
        self.layer(&spec.layer, &weights.layer, at, cache, scratch, observer)?;
        let normed = sized(&mut scratch.normed, size);
        norm::rms(&compute, &scratch.hidden[..size], &weights.head_norm, self.spec.norm_epsilon, normed);
        head::logits(&compute, &self.weights.head.view(), rows, normed, &mut scratch.input, logits)
    }
}

/// Where a chunk stands.
#[derive(Clone, Copy)]
struct At {
    /// The layer.
    index: usize,
    /// Position of the first row.
    start: usize,
    /// How many rows.
    rows: usize,
}
