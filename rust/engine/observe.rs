//! What a forward pass shows of itself: an observer is called at the points that the reference implementation also
//! records. Observers see and never change; without one the calls cost nothing that can be measured.

/// Receives intermediate results, in the order of rows and layers; a chunked pass calls once for each chunk.
#[allow(unused_variables)]
pub trait Observer {
    /// Whether index scores are wanted also where the choice does not need them.
    fn wants_index_scores(&self) -> bool {
        false
    }
    /// Residual stream after the embedding, `[rows, hidden]`.
    fn embedding(&mut self, hidden: &[f32]) {}
    /// Output of a layer's mixer before it is added, `[rows, hidden]`.
    fn attention_output(&mut self, layer: usize, output: &[f32]) {}
    /// Output of a layer's feed-forward part before it is added, `[rows, hidden]`.
    fn ffn_output(&mut self, layer: usize, output: &[f32]) {}
    /// Residual stream after a layer, `[rows, hidden]`.
    fn hidden(&mut self, layer: usize, hidden: &[f32]) {}
    /// Residual stream after the final norm, `[rows, hidden]`.
    fn final_hidden(&mut self, hidden: &[f32]) {}
    /// A layer's chosen experts and their weights, `[rows, top_k]` in router order.
    fn router(&mut self, layer: usize, top_k: usize, experts: &[u32], weights: &[f32]) {}
    /// The keys that an indexer chose for one query; `None` means all causal ones.
    fn index_keys(&mut self, layer: usize, position: usize, keys: Option<&[u32]>) {}
    /// The index scores of one query over all causal keys.
    fn index_scores(&mut self, layer: usize, position: usize, scores: &[f32]) {}
}

/// Sees nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// Everything that an observer can see of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerTrace {
    /// `[rows, hidden]`.
    pub attention_output: Vec<f32>,
    /// `[rows, hidden]`.
    pub ffn_output: Vec<f32>,
    /// `[rows, hidden]`, after the layer.
    pub hidden: Vec<f32>,
    /// `[rows, top_k]` in router order; empty in a dense layer.
    pub experts: Vec<u32>,
    /// `[rows, top_k]`.
    pub weights: Vec<f32>,
    /// For each query the chosen keys, ascending; empty without an indexer.
    pub index_keys: Vec<Vec<u32>>,
    /// For each query its scores over all causal keys; empty without an indexer.
    pub index_scores: Vec<Vec<f32>>,
}

/// Everything that an observer can see of a pass over a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// `[rows, hidden]`.
    pub embedding: Vec<f32>,
    /// The layers; the multi-token-prediction layer, if it ran, comes last.
    pub layers: Vec<LayerTrace>,
    /// `[rows, hidden]`, after the final norm.
    pub final_hidden: Vec<f32>,
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
}

impl Trace {
    /// An empty trace of `layers` layers.
    #[must_use]
    pub fn new(layers: usize) -> Self {
        Self { layers: vec![LayerTrace::default(); layers], ..Self::default() }
    }
}

impl Observer for Trace {
    fn wants_index_scores(&self) -> bool {
        true
    }

    fn embedding(&mut self, hidden: &[f32]) {
        self.embedding.extend_from_slice(hidden);
    }

    fn attention_output(&mut self, layer: usize, output: &[f32]) {
        self.layers[layer].attention_output.extend_from_slice(output);
    }

    fn ffn_output(&mut self, layer: usize, output: &[f32]) {
        self.layers[layer].ffn_output.extend_from_slice(output);
    }

    fn hidden(&mut self, layer: usize, hidden: &[f32]) {
        self.layers[layer].hidden.extend_from_slice(hidden);
    }

    fn final_hidden(&mut self, hidden: &[f32]) {
        self.final_hidden.extend_from_slice(hidden);
    }

    fn router(&mut self, layer: usize, _top_k: usize, experts: &[u32], weights: &[f32]) {
        self.layers[layer].experts.extend_from_slice(experts);
        self.layers[layer].weights.extend_from_slice(weights);
    }

    fn index_keys(&mut self, layer: usize, position: usize, keys: Option<&[u32]>) {
        let causal = 0..u32::try_from(position).map_or(u32::MAX, |position| position + 1);
        self.layers[layer].index_keys.push(keys.map_or_else(|| causal.collect(), <[u32]>::to_vec));
    }

    fn index_scores(&mut self, layer: usize, _position: usize, scores: &[f32]) {
        self.layers[layer].index_scores.push(scores.to_vec());
    }
}
