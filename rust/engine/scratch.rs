//! Every buffer of a forward pass. Buffers grow to the largest chunk seen and are reused, so that a decoded token
//! allocates nothing that grows with the model.
//!
//! Must hold: nothing in here outlives a forward pass in meaning; a pass overwrites whatever it reads.

use colibri_kernels::act::{Activations, NonFinite, Precision};
use colibri_kernels::dispatch::KernelSet;
use colibri_store::error::StoreError;
use colibri_store::memory;

use crate::config::DRAFT_TOKENS;
use crate::spec::{Ffn, Indexing, Mixer, MlaSpec, ModelSpec};

/// Rows that one attention task takes of one head; their value projections are one matrix product.
pub const ATTENTION_BLOCK: usize = 16;
/// Expert rows that are gathered into one parallel section, unless a single expert has more.
pub const BATCH_ROWS: usize = 64;

/// Positions that are asked for at first.
const FIRST_POSITIONS: usize = 1024;

/// Lends the first `len` elements of a buffer, which grows if it must.
pub fn sized<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

/// The same rows of activations, prepared for every precision that a matrix has asked for.
#[derive(Clone, Default)]
pub struct ActivationSet {
    prepared: [Activations; 3],
    ready: [bool; 3],
}

fn index(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 0,
        Precision::A16 => 1,
        Precision::A8 => 2,
    }
}

impl ActivationSet {
    /// Declares everything prepared so far stale.
    pub fn clear(&mut self) {
        self.ready = [false; 3];
    }

    /// Prepares `x` (`[rows, cols]`) for `precision`, unless that is done already since the last [`Self::clear`].
    ///
    /// # Errors
    /// A value is not finite.
    pub fn prepare(
        &mut self,
        kernels: &KernelSet,
        precision: Precision,
        (rows, cols): (usize, usize),
        x: &[f32],
    ) -> Result<(), NonFinite> {
        let index = index(precision);
        if !self.ready[index] {
            self.prepared[index].quantise(kernels, precision, rows, cols, x)?;
            self.ready[index] = true;
        }
        Ok(())
    }

    /// The rows as prepared for `precision`.
    #[must_use]
    pub fn get(&self, precision: Precision) -> &Activations {
        debug_assert!(self.ready[index(precision)], "activations were not prepared for {precision:?}");
        &self.prepared[index(precision)]
    }

    /// Takes over the chosen rows of another set, for every precision prepared there.
    pub fn gather(&mut self, from: &ActivationSet, rows: &[usize]) {
        self.ready = from.ready;
        for ((own, other), ready) in self.prepared.iter_mut().zip(&from.prepared).zip(from.ready) {
            if ready {
                own.gather(other, rows);
            }
        }
    }
}

/// The keys that one query sees.
#[derive(Clone, Debug, Default)]
pub struct RowKeys {
    /// All causal ones; then `keys` means nothing.
    pub all: bool,
    /// The chosen ones, ascending.
    pub keys: Vec<u32>,
}

/// The keys that each query of a chunk sees; written by layers with an indexer, read by the layers that share it.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// One entry for each row.
    pub rows: Vec<RowKeys>,
}

impl Selection {
    /// Lets each of `rows` queries see all causal keys.
    pub fn all(&mut self, rows: usize) {
        for row in self.sized(rows) {
            row.all = true;
        }
    }

    /// Lends one entry for each of `rows` queries.
    pub fn sized(&mut self, rows: usize) -> &mut [RowKeys] {
        if self.rows.len() < rows {
            self.rows.resize_with(rows, RowKeys::default);
        }
        &mut self.rows[..rows]
    }
}

/// What one worker needs inside an attention section.
#[derive(Clone, Default)]
pub struct WorkerScratch {
    /// Query of one head after the key half of `kv_b`, `[latent_rank]`.
    pub query: Vec<f32>,
    /// Scores, then weights, of the keys that a query sees.
    pub scores: Vec<f32>,
    /// Positions in the order of their scores.
    pub order: Vec<u32>,
    /// Mixed latents, `[ATTENTION_BLOCK, latent_rank]`.
    pub context: Vec<f32>,
    /// The same, prepared for the value half of `kv_b`.
    pub activations: ActivationSet,
    /// A score or a context was not finite.
    pub fault: bool,
}

/// Whether any worker met a value that is not finite; forgets it.
pub fn take_fault(workers: &mut [WorkerScratch]) -> bool {
    workers.iter_mut().fold(false, |fault, worker| fault | std::mem::take(&mut worker.fault))
}

/// Buffers of latent attention.
#[derive(Clone, Default)]
pub struct AttentionScratch {
    /// `[rows, query_rank]`.
    pub query_latent: Vec<f32>,
    /// `[rows, query_rank]`, after its norm.
    pub query_normed: Vec<f32>,
    /// `[rows, heads * (nope + rope)]`.
    pub query: Vec<f32>,
    /// `[rows, latent_rank + rope]`.
    pub key: Vec<f32>,
    /// `[rows, index head_dim]`.
    pub index_key: Vec<f32>,
    /// `[rows, index heads * index head_dim]`.
    pub index_query: Vec<f32>,
    /// `[rows, index heads]`.
    pub index_weights: Vec<f32>,
    /// `[positions]`, index scores of one query.
    pub index_scores: Vec<f32>,
    /// Positions in the order of their scores.
    pub order: Vec<u32>,
    /// `[heads, rows rounded up to whole blocks, value]`.
    pub values: Vec<f32>,
    /// `[rows, heads * value]`.
    pub joined: Vec<f32>,
    /// Activations of the query latent.
    pub latent_set: ActivationSet,
    /// Activations of the joined heads.
    pub joined_set: ActivationSet,
    /// Chosen keys.
    pub selection: Selection,
}

/// Buffers of gated MLPs that run together.
#[derive(Clone, Default)]
pub struct GatedScratch {
    /// Gate outputs of all units, one after the other.
    pub gate: Vec<f32>,
    /// Up outputs of all units, in the same places.
    pub up: Vec<f32>,
    /// Inner activations of all units, in the same places.
    pub inner: Vec<f32>,
    /// Inner activations, prepared for the down matrices.
    pub sets: Vec<ActivationSet>,
}

/// Buffers of a mixture of experts.
#[derive(Clone, Default)]
pub struct MoeScratch {
    /// `[rows, experts]`, router logits, then scores.
    pub scores: Vec<f32>,
    /// Buffers of the choice.
    pub choice: ChoiceScratch,
    /// `[rows, top_k]`, chosen experts in router order.
    pub experts: Vec<u32>,
    /// `[rows, top_k]`, their weights.
    pub weights: Vec<f32>,
    /// `[rows, top_k]`, where the output of each choice lies in `outputs`.
    pub places: Vec<usize>,
    /// The row of each line of `outputs`.
    pub sources: Vec<usize>,
    /// `[experts + 1]`, first line of each expert in `outputs`.
    pub starts: Vec<usize>,
    /// `[rows * top_k, hidden]`, outputs of experts, grouped by expert.
    pub outputs: Vec<f32>,
    /// `[rows, hidden]`, output of the shared expert.
    pub shared: Vec<f32>,
    /// Activations gathered for each expert of a batch.
    pub gathered: Vec<ActivationSet>,
}

/// Buffers of one choice of experts.
#[derive(Clone, Debug, Default)]
pub struct ChoiceScratch {
    /// `[experts]`, scores with their correction.
    pub biased: Vec<f32>,
    /// `[groups]`.
    pub group_scores: Vec<f32>,
    /// Chosen indices.
    pub chosen: Vec<u32>,
}

/// Every buffer of a forward pass.
#[derive(Clone, Default)]
pub struct Scratch {
    /// `[rows, hidden]`, the residual stream.
    pub hidden: Vec<f32>,
    /// `[rows, hidden]`, after a norm.
    pub normed: Vec<f32>,
    /// `[rows, hidden]`, output of a mixer or a feed-forward part.
    pub output: Vec<f32>,
    /// `[rows, 2 * hidden]`, input of the multi-token-prediction projection.
    pub joined: Vec<f32>,
    /// Activations of `normed`.
    pub input: ActivationSet,
    /// Of attention.
    pub attention: AttentionScratch,
    /// Of gated MLPs.
    pub gated: GatedScratch,
    /// Of mixtures of experts.
    pub moe: MoeScratch,
    /// One for each worker.
    pub workers: Vec<WorkerScratch>,
    /// Rows that there is known to be memory for.
    rows: usize,
    /// Positions that there is known to be memory for.
    positions: usize,
}

impl Scratch {
    /// Empty buffers for `threads` workers.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { workers: vec![WorkerScratch::default(); threads], ..Self::default() }
    }

    /// Makes sure, before a pass over `rows` rows up to position `positions` begins, that its buffers can grow: they
    /// grow in many places, where a refusal would end the process. Free unless a pass is larger than all before it.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn reserve(&mut self, spec: &ModelSpec, rows: usize, positions: usize) -> Result<(), StoreError> {
        let threads = self.workers.len();
        if rows > self.rows {
            memory::trial(bytes(spec, rows, threads))?;
            self.rows = rows;
        }
        if positions > self.positions {
            // In steps, so that a decoded token seldom asks.
            let step = positions.saturating_add(positions / 2).max(FIRST_POSITIONS);
            memory::trial(bytes_per_position(spec, threads).saturating_mul(step as u64))?;
            self.positions = step;
        }
        Ok(())
    }
}

/// Bytes of one row of activations of `cols` columns in all precisions together.
const fn set_bytes(cols: usize) -> usize {
    Activations::row_bytes(Precision::F32, cols)
        + Activations::row_bytes(Precision::A16, cols)
        + Activations::row_bytes(Precision::A8, cols)
}

/// Bytes that a forward pass over `rows` rows takes, from above, without what grows with the context.
#[must_use]
pub fn bytes(spec: &ModelSpec, rows: usize, threads: usize) -> u64 {
    let hidden = spec.hidden_size;
    let (mut attention, mut ffn, mut worker) = (0, 0, 0);
    for layer in spec.all_layers() {
        let Mixer::Mla(mla) = &layer.mixer;
        attention = attention.max(attention_bytes(mla, rows));
        worker = worker.max(4 * mla.latent_rank * (ATTENTION_BLOCK + 1) + ATTENTION_BLOCK * set_bytes(mla.latent_rank));
        ffn = ffn.max(ffn_bytes(&layer.ffn, hidden, rows));
    }
    let stream = rows * (4 * 5 * hidden + set_bytes(hidden)) + 4 * spec.vocab_size * DRAFT_TOKENS;
    (stream + attention + ffn + worker * threads) as u64
}

/// Bytes of a forward pass that grow with each position of the context: scores and their order for each worker, and
/// the table of rotations.
#[must_use]
pub fn bytes_per_position(spec: &ModelSpec, threads: usize) -> u64 {
    let rope = spec.layers.first().map_or(0, |layer| match &layer.mixer {
        Mixer::Mla(mla) => 4 * mla.rope_dim,
    });
    ((threads + 1) * 8 + rope) as u64
}

fn attention_bytes(mla: &MlaSpec, rows: usize) -> usize {
    let (heads_in, heads_out) = (mla.heads * (mla.nope_dim + mla.rope_dim), mla.heads * mla.value_dim);
    let mut row = 4 * (2 * mla.query_rank + heads_in + mla.latent_rank + mla.rope_dim + 2 * heads_out);
    row += set_bytes(mla.query_rank) + set_bytes(heads_out);
    if let Indexing::Full(indexer) = &mla.indexing {
        row += 4 * (indexer.head_dim * (indexer.heads + 1) + indexer.heads + indexer.top_k);
    }
    row * rows + 4 * heads_out * ATTENTION_BLOCK
}

fn ffn_bytes(ffn: &Ffn, hidden: usize, rows: usize) -> usize {
    let gated = |rows: usize, width: usize| rows * (3 * 4 * width + set_bytes(width));
    match ffn {
        Ffn::Dense { width } => gated(rows, *width),
        Ffn::Moe(moe) => {
            let choices = rows * moe.router.top_k();
            let shared = moe.shared_width.map_or(0, |width| gated(rows, width) + 4 * rows * hidden);
            let batch = rows + BATCH_ROWS;
            let outputs = choices * (4 * hidden + 32) + rows * 4 * moe.experts;
            shared + gated(batch, moe.width) + batch * set_bytes(hidden) + outputs
        }
    }
}
