//! Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv 2405.04434, section 2.1): the query takes the
//! key half of `kv_b` into itself, scores and mixes run over the cached latents, and the value half of `kv_b` is applied
//! to the mixed latent. One formula serves prefill, verification and decoding.
//!
//! `score(t) = (q_nope K . latent[t] + q_rope . key[t]) * scale`; `out = V (sum over t of softmax(score)[t] latent[t])`.
//!
//! Must hold: keys are visited in ascending position; a head of a row is computed by one thread.

use colibri_kernels::gemm::matmul_all;

use super::dsa::{IndexQueries, SelectScratch, weight_scale};
use super::rope::rotate;
use super::{Compute, Place, norm};
use crate::error::EngineError;
use crate::kv::MlaCache;
use crate::observe::Observer;
use crate::scratch::{ATTENTION_BLOCK, ActivationSet, AttentionScratch, RowKeys, WorkerScratch, sized, take_fault};
use crate::spec::{IndexerSpec, Indexing, MlaSpec};
use crate::weights::{IndexerWeights, MlaWeights};

/// Latent attention of one layer over one chunk.
pub struct Mla<'a> {
    /// Its shapes.
    pub spec: &'a MlaSpec,
    /// Its weights.
    pub weights: &'a MlaWeights,
    /// Its layer.
    pub layer: usize,
    /// Position of the first row.
    pub start: usize,
    /// How many rows.
    pub rows: usize,
}

impl Mla<'_> {
    /// Appends the rows to the cache and computes their attention into `out` (`[rows, hidden]`); `x` is
    /// `[rows, hidden]`, after the layer's norm.
    ///
    /// # Errors
    /// A value is not finite.
    pub fn run(
        &self,
        compute: &Compute<'_>,
        (x, input): (&[f32], &mut ActivationSet),
        cache: &mut MlaCache,
        (scratch, workers): (&mut AttentionScratch, &mut [WorkerScratch]),
        out: &mut [f32],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let indexer = match (&self.spec.indexing, &self.weights.indexer) {
            (Indexing::Full(spec), Some(weights)) => Some((spec, weights)),
            _ => None,
        };
        self.project(compute, indexer, x, input, scratch)?;
        self.append(compute, indexer, cache, scratch)?;
        self.queries(compute, indexer, scratch)?;
        match (&self.spec.indexing, indexer) {
            (Indexing::Shared, _) => {}
            (_, None) => scratch.selection.all(self.rows),
            (_, Some((spec, _))) => {
                let queries = IndexQueries {
                    spec,
                    layer: self.layer,
                    start: self.start,
                    rows: self.rows,
                    queries: &scratch.index_query,
                    weights: &scratch.index_weights,
                };
                let own = SelectScratch { scores: &mut scratch.index_scores, order: &mut scratch.order };
                queries.select(compute, cache, &mut scratch.selection, own, workers, observer)?;
            }
        }
        self.attend(compute, cache, scratch, workers)?;
        self.join(compute, scratch, out)
    }

    fn place(&self, template: &'static str) -> Place {
        Place::of_layer(self.layer, template)
    }

    /// Everything that is computed from the layer's input, in one section: query latent, key-value latent and rotated
    /// key, index key, weights of the index heads.
    fn project(
        &self,
        compute: &Compute<'_>,
        indexer: Option<(&IndexerSpec, &IndexerWeights)>,
        x: &[f32],
        input: &mut ActivationSet,
        scratch: &mut AttentionScratch,
    ) -> Result<(), EngineError> {
        let (spec, weights, rows) = (self.spec, self.weights, self.rows);
        let (q_a, kv_a) = (weights.q_a.view(), weights.kv_a.view());
        let shape = (rows, q_a.cols());
        compute.prepare(input, q_a.format(), shape, x, self.place(compute.names.mla.q_a))?;
        compute.prepare(input, kv_a.format(), shape, x, self.place(compute.names.mla.kv_a))?;
        if let Some((_, indexer)) = indexer {
            compute.prepare(input, indexer.k.format(), shape, x, self.place(compute.names.indexer.k))?;
            compute.prepare(input, indexer.weights.format(), shape, x, self.place(compute.names.indexer.weights))?;
        }
        let query = sized(&mut scratch.query_latent, rows * spec.query_rank);
        let key = sized(&mut scratch.key, rows * (spec.latent_rank + spec.rope_dim));
        let first = [compute.job(q_a, input, query), compute.job(kv_a, input, key)];
        match indexer {
            None => matmul_all(compute.pool, compute.kernels, &mut { first }),
            Some((index_spec, index)) => {
                let index_key = sized(&mut scratch.index_key, rows * index_spec.head_dim);
                let index_weights = sized(&mut scratch.index_weights, rows * index_spec.heads);
                let [query, key] = first;
                let more = compute.job(index.weights.view(), input, index_weights);
                let mut jobs = [query, key, compute.job(index.k.view(), input, index_key), more];
                matmul_all(compute.pool, compute.kernels, &mut jobs);
            }
        }
        Ok(())
    }

    /// Norms and rotates keys into the cache, which takes finite ones only: a key that some later query does not choose
    /// would otherwise hide there.
    fn append(
        &self,
        compute: &Compute<'_>,
        indexer: Option<(&IndexerSpec, &IndexerWeights)>,
        cache: &mut MlaCache,
        scratch: &mut AttentionScratch,
    ) -> Result<(), EngineError> {
        let (spec, weights) = (self.spec, self.weights);
        let width = spec.latent_rank + spec.rope_dim;
        for (row, key) in scratch.key.chunks(width).take(self.rows).enumerate() {
            let (latent, rotated) = key.split_at(spec.latent_rank);
            let cached = cache.push();
            let (cached_latent, cached_key) = cached.split_at_mut(spec.latent_rank);
            compute.kernels.rmsnorm(latent, &weights.kv_a_norm, spec.latent_norm_epsilon, cached_latent);
            cached_key.copy_from_slice(rotated);
            rotate(&weights.rope, spec.rope_layout, self.start + row, cached_key);
            if !compute.kernels.all_finite(cached) {
                return Err(compute.non_finite(self.place(compute.names.mla.kv_a)));
            }
        }
        let Some((spec, indexer)) = indexer else { return Ok(()) };
        for (row, key) in scratch.index_key.chunks(spec.head_dim).take(self.rows).enumerate() {
            let cached = cache.push_index();
            compute.kernels.layernorm(key, &indexer.k_norm, &indexer.k_norm_bias, spec.norm_epsilon, cached);
            rotate(&weights.rope, spec.rope_layout, self.start + row, &mut cached[..spec.rope_dim]);
            if !compute.kernels.all_finite(cached) {
                return Err(compute.non_finite(self.place(compute.names.indexer.k)));
            }
        }
        Ok(())
    }

    /// Queries of attention and of the indexer, from the same normed latent, in one section; rotated.
    fn queries(
        &self,
        compute: &Compute<'_>,
        indexer: Option<(&IndexerSpec, &IndexerWeights)>,
        scratch: &mut AttentionScratch,
    ) -> Result<(), EngineError> {
        let (spec, weights, rows) = (self.spec, self.weights, self.rows);
        let latent = &scratch.query_latent[..rows * spec.query_rank];
        let normed = sized(&mut scratch.query_normed, rows * spec.query_rank);
        norm::rms(compute, latent, &weights.q_a_norm, spec.latent_norm_epsilon, normed);
        let (set, shape) = (&mut scratch.latent_set, (rows, spec.query_rank));
        let q_b = weights.q_b.view();
        set.clear();
        compute.prepare(set, q_b.format(), shape, normed, self.place(compute.names.mla.q_b))?;
        let width = spec.nope_dim + spec.rope_dim;
        let query = sized(&mut scratch.query, rows * spec.heads * width);
        match indexer {
            None => compute.matmul(&q_b, set, query),
            Some((index_spec, index)) => {
                let q = index.q.view();
                compute.prepare(set, q.format(), shape, normed, self.place(compute.names.indexer.q))?;
                let index_query = sized(&mut scratch.index_query, rows * index_spec.heads * index_spec.head_dim);
                let mut jobs = [compute.job(q_b, set, query), compute.job(q, set, index_query)];
                matmul_all(compute.pool, compute.kernels, &mut jobs);
                for (head, query) in index_query.chunks_mut(index_spec.head_dim).enumerate() {
                    let position = self.start + head / index_spec.heads;
                    rotate(&weights.rope, index_spec.rope_layout, position, &mut query[..index_spec.rope_dim]);
                }
                let scale = weight_scale(index_spec);
                let index_weights = &mut scratch.index_weights[..rows * index_spec.heads];
                index_weights.iter_mut().for_each(|weight| *weight *= scale);
            }
        }
        for (head, query) in query.chunks_mut(width).enumerate() {
            let position = self.start + head / spec.heads;
            rotate(&weights.rope, spec.rope_layout, position, &mut query[spec.nope_dim..]);
        }
        Ok(())
    }

    /// Attention of all heads and rows, into `scratch.values`.
    fn attend(
        &self,
        compute: &Compute<'_>,
        cache: &MlaCache,
        scratch: &mut AttentionScratch,
        workers: &mut [WorkerScratch],
    ) -> Result<(), EngineError> {
        let spec = self.spec;
        let block = self.rows.min(ATTENTION_BLOCK);
        let blocks = self.rows.div_ceil(block);
        let part = block * spec.value_dim;
        let values = sized(&mut scratch.values, spec.heads * blocks * part);
        let (query, selection) = (&scratch.query, &scratch.selection.rows);
        let task = |index: usize, out: &mut [f32], worker: &mut WorkerScratch| {
            let (head, first) = (index / blocks, index % blocks * block);
            let rows = first..(first + block).min(self.rows);
            self.attend_head(compute, head, rows, query, selection, cache, worker, out);
        };
        let seen = (self.start + self.rows).min(self.most_keys());
        let work = self.rows * spec.heads * (seen + spec.nope_dim + spec.value_dim) * 2 * spec.latent_rank;
        if compute.worth_sharing(work) {
            compute.pool.for_each_chunk_with(values, part, workers, task);
        } else if let Some(worker) = workers.first_mut() {
            values.chunks_mut(part).enumerate().for_each(|(index, out)| task(index, out, worker));
        }
        if take_fault(workers) { Err(compute.non_finite(self.place(compute.names.mla.kv_b))) } else { Ok(()) }
    }

    /// Keys that a query sees at most.
    fn most_keys(&self) -> usize {
        match &self.spec.indexing {
            Indexing::Full(indexer) => indexer.top_k,
            Indexing::Dense | Indexing::Shared => usize::MAX,
        }
    }

    /// One head of a block of rows: `out` is `[block, value]`.
    #[expect(clippy::too_many_arguments, reason = "the parts of one task, borrowed from three owners")]
    fn attend_head(
        &self,
        compute: &Compute<'_>,
        head: usize,
        rows: std::ops::Range<usize>,
        query: &[f32],
        selection: &[RowKeys],
        cache: &MlaCache,
        worker: &mut WorkerScratch,
        out: &mut [f32],
    ) {
        let (spec, kernels) = (self.spec, compute.kernels);
        let (rank, width) = (spec.latent_rank, spec.nope_dim + spec.rope_dim);
        let first = head * (spec.nope_dim + spec.value_dim);
        let kv_b = self.weights.kv_b.view();
        let keys = kv_b.row_range(first..first + spec.nope_dim);
        let values = kv_b.row_range(first + spec.nope_dim..first + spec.nope_dim + spec.value_dim);
        let count = rows.len();
        let context = sized(&mut worker.context, count * rank);
        for (row, context) in rows.zip(context.chunks_mut(rank)) {
            let query = &query[(row * spec.heads + head) * width..][..width];
            let (nope, rotated) = query.split_at(spec.nope_dim);
            let absorbed = sized(&mut worker.query, rank);
            absorbed.fill(0.0);
            kernels.accumulate_rows(&keys, nope, absorbed);
            context.fill(0.0);
            let score = |position: usize| {
                let (latent, key) = cache.key(position).split_at(rank);
                (kernels.dot(absorbed, latent) + kernels.dot(rotated, key)) * spec.softmax_scale
            };
            let scores = &mut worker.scores;
            // Scores that all overflow to negative infinity would pass for a query that attends to nothing.
            if selection[row].all {
                let causal = self.start + row + 1;
                let scores = sized(scores, causal);
                scores.iter_mut().enumerate().for_each(|(position, value)| *value = score(position));
                worker.fault |= !kernels.all_finite(scores);
                kernels.softmax(scores);
                for (position, weight) in scores.iter().enumerate() {
                    kernels.axpy(*weight, &cache.key(position)[..rank], context);
                }
            } else {
                let chosen = &selection[row].keys;
                let scores = sized(scores, chosen.len());
                scores.iter_mut().zip(chosen).for_each(|(value, position)| *value = score(*position as usize));
                worker.fault |= !kernels.all_finite(scores);
                kernels.softmax(scores);
                for (position, weight) in chosen.iter().zip(scores.iter()) {
                    kernels.axpy(*weight, &cache.key(*position as usize)[..rank], context);
                }
            }
        }
        let precision = compute.numerics.precision(values.format());
        worker.activations.clear();
        match worker.activations.prepare(kernels, precision, (count, rank), context) {
            Ok(()) => kernels.matmul(&values, worker.activations.get(precision), &mut out[..count * spec.value_dim]),
            Err(_) => worker.fault = true,
        }
    }

    /// Puts the heads of each row side by side and applies the output projection.
    fn join(&self, compute: &Compute<'_>, scratch: &mut AttentionScratch, out: &mut [f32]) -> Result<(), EngineError> {
        let (spec, rows) = (self.spec, self.rows);
        let width = spec.heads * spec.value_dim;
        let joined = if rows == 1 {
            &scratch.values[..width]
        } else {
            let block = rows.min(ATTENTION_BLOCK);
            let of_head = rows.div_ceil(block) * block * spec.value_dim;
            let joined = sized(&mut scratch.joined, rows * width);
            for (row, joined) in joined.chunks_mut(width).enumerate() {
                for (head, joined) in joined.chunks_mut(spec.value_dim).enumerate() {
                    let value = &scratch.values[head * of_head + row * spec.value_dim..][..spec.value_dim];
                    joined.copy_from_slice(value);
                }
            }
            joined
        };
        let o = self.weights.o.view();
        scratch.joined_set.clear();
        let place = self.place(compute.names.mla.o);
        compute.prepare(&mut scratch.joined_set, o.format(), (rows, width), joined, place)?;
        compute.matmul(&o, &scratch.joined_set, out);
        Ok(())
    }
}
