//! The indexer of DeepSeek sparse attention (DeepSeek-V3.2; `transformers` `GlmMoeDsaIndexer`): a light scorer that
//! picks the keys a query attends to. `score(t) = sum over heads of w[h] * max(q[h] . k[t] / sqrt(d), 0)`.
//!
//! Must hold: with no more causal keys than `top_k` every key is kept, so attention is exactly dense; ties go to the
//! lowest position; the kept keys are in ascending order. The clipping comes before the weighting, as weights may be
//! negative.

use colibri_kernels::dispatch::KernelSet;
use colibri_kernels::ops::top_k;

use super::{Compute, Place};
use crate::error::EngineError;
use crate::kv::MlaCache;
use crate::observe::Observer;
use crate::scratch::{RowKeys, Selection, WorkerScratch, sized, take_fault};
use crate::spec::IndexerSpec;

/// Keys that one task scores when a single query is shared between threads.
const KEY_BLOCK: usize = 256;

/// The index queries of a chunk, rotated, and the weights of their heads, scaled.
pub struct IndexQueries<'a> {
    /// Shapes.
    pub spec: &'a IndexerSpec,
    /// Layer, for the observer.
    pub layer: usize,
    /// Position of the first row.
    pub start: usize,
    /// How many rows.
    pub rows: usize,
    /// `[rows, heads * head_dim]`.
    pub queries: &'a [f32],
    /// `[rows, heads]`.
    pub weights: &'a [f32],
}

/// Buffers of a selection by one thread.
pub struct SelectScratch<'a> {
    /// `[positions]`.
    pub scores: &'a mut Vec<f32>,
    /// Positions in the order of their scores.
    pub order: &'a mut Vec<u32>,
}

impl IndexQueries<'_> {
    /// Chooses keys for every row; the cache already holds the rows' own index keys.
    ///
    /// # Errors
    /// A score is not finite.
    pub fn select(
        &self,
        compute: &Compute<'_>,
        cache: &MlaCache,
        selection: &mut Selection,
        own: SelectScratch<'_>,
        workers: &mut [WorkerScratch],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        if observer.wants_index_scores() {
            self.show_scores(compute, cache, own.scores, observer);
        }
        let keys = self.start + self.rows;
        let work = keys * self.spec.heads * self.spec.head_dim;
        let rows = selection.sized(self.rows);
        let mut finite = true;
        if keys > self.spec.top_k && self.rows > 1 && compute.worth_sharing(work * self.rows) {
            compute.pool.for_each_chunk_with(rows, 1, workers, |row, keys, worker| {
                if let Some(keys) = keys.first_mut() {
                    let scratch = (&mut worker.scores, &mut worker.order);
                    worker.fault |= !self.select_row(compute.kernels, cache, row, keys, scratch);
                }
            });
            finite = !take_fault(workers);
        } else {
            for (row, keys) in rows.iter_mut().enumerate() {
                finite &= self.select_shared(compute, cache, row, keys, (own.scores, own.order));
            }
        }
        if !finite {
            return Err(compute.non_finite(Place::of_layer(self.layer, compute.names.indexer.k)));
        }
        for (row, keys) in rows.iter().enumerate() {
            let chosen = if keys.all { None } else { Some(keys.keys.as_slice()) };
            observer.index_keys(self.layer, self.start + row, chosen);
        }
        Ok(())
    }

    /// Chooses for one row on this thread; `false` if a score is not finite.
    fn select_row(
        &self,
        kernels: &KernelSet,
        cache: &MlaCache,
        row: usize,
        keys: &mut RowKeys,
        (scores, order): (&mut Vec<f32>, &mut Vec<u32>),
    ) -> bool {
        let causal = self.start + row + 1;
        keys.all = causal <= self.spec.top_k;
        if keys.all {
            return true;
        }
        let scores = sized(scores, causal);
        self.score(kernels, cache, row, 0, scores);
        keep_best(scores, self.spec.top_k, order, keys);
        kernels.all_finite(scores)
    }

    /// As [`Self::select_row`], with the keys shared between threads.
    fn select_shared(
        &self,
        compute: &Compute<'_>,
        cache: &MlaCache,
        row: usize,
        keys: &mut RowKeys,
        (scores, order): (&mut Vec<f32>, &mut Vec<u32>),
    ) -> bool {
        let causal = self.start + row + 1;
        if causal <= self.spec.top_k || !compute.worth_sharing(causal * self.spec.heads * self.spec.head_dim) {
            return self.select_row(compute.kernels, cache, row, keys, (scores, order));
        }
        keys.all = false;
        let scores = sized(scores, causal);
        compute.pool.for_each_chunk(scores, KEY_BLOCK, |block, scores| {
            self.score(compute.kernels, cache, row, block * KEY_BLOCK, scores);
        });
        keep_best(scores, self.spec.top_k, order, keys);
        compute.kernels.all_finite(scores)
    }

    /// Scores of one row over the keys from `first` on.
    fn score(&self, kernels: &KernelSet, cache: &MlaCache, row: usize, first: usize, scores: &mut [f32]) {
        let (heads, dim) = (self.spec.heads, self.spec.head_dim);
        let scale = scale(self.spec);
        let queries = &self.queries[row * heads * dim..][..heads * dim];
        let weights = &self.weights[row * heads..][..heads];
        for (offset, score) in scores.iter_mut().enumerate() {
            let key = cache.index_key(first + offset);
            *score = 0.0;
            for (query, weight) in queries.chunks(dim).zip(weights) {
                *score += weight * clipped(kernels.dot(query, key) * scale);
            }
        }
    }

    fn show_scores(&self, compute: &Compute<'_>, cache: &MlaCache, scores: &mut Vec<f32>, observer: &mut dyn Observer) {
        for row in 0..self.rows {
            let scores = sized(scores, self.start + row + 1);
            self.score(compute.kernels, cache, row, 0, scores);
            observer.index_scores(self.layer, self.start + row, scores);
        }
    }
}

/// The positive part; NaN stays NaN, which `f32::max` would turn into zero.
fn clipped(value: f32) -> f32 {
    if value < 0.0 { 0.0 } else { value }
}

/// `head_dim^-0.5`.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a small whole number, in 32 bits")]
fn scale(spec: &IndexerSpec) -> f32 {
    (1.0 / (spec.head_dim as f64).sqrt()) as f32
}

/// `heads^-0.5`, which the weights of the heads are multiplied by.
#[must_use]
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a small whole number, in 32 bits")]
pub fn weight_scale(spec: &IndexerSpec) -> f32 {
    (1.0 / (spec.heads as f64).sqrt()) as f32
}

/// The `count` best positions, ascending.
fn keep_best(scores: &[f32], count: usize, order: &mut Vec<u32>, keys: &mut RowKeys) {
    top_k(scores, count, order);
    keys.keys.clear();
    keys.keys.extend_from_slice(order);
    keys.keys.sort_unstable();
}
