//! Names of tensors: slot -> checkpoint name template, and the inventory of all tensors of a model, each with its
//! shape and class. Loading, converting and inspecting walk the same inventory, so they cannot disagree.
//!
//! Optional, because published containers lack them: the multi-token-prediction layer as a whole, that layer's indexer,
//! and the indexers of all decoder layers together. Without an indexer a layer attends to all keys.

use crate::spec::{Ffn, Indexing, LayerSpec, Mixer, ModelSpec};

/// Checkpoint name templates; `{layer}` and `{expert}` stand for numbers.
#[derive(Clone, Copy, Debug)]
pub struct WeightNames {
    /// Token embedding, `[vocab, hidden]`.
    pub embedding: &'static str,
    /// Head, `[vocab, hidden]`.
    pub head: &'static str,
    /// Norm after the last layer, `[hidden]`.
    pub final_norm: &'static str,
    /// Norm before the mixer, `[hidden]`.
    pub input_norm: &'static str,
    /// Norm before the feed-forward part, `[hidden]`.
    pub post_norm: &'static str,
    /// Latent attention.
    pub mla: MlaNames,
    /// Indexer of sparse attention.
    pub indexer: IndexerNames,
    /// The dense feed-forward part.
    pub dense: GatedNames,
    /// The shared expert.
    pub shared: GatedNames,
    /// A routed expert.
    pub expert: GatedNames,
    /// Router, `[experts, hidden]`.
    pub router: &'static str,
    /// Correction bias of the router, `[experts]`.
    pub router_bias: &'static str,
    /// Multi-token prediction.
    pub mtp: MtpNames,
}

/// Names of latent attention.
#[derive(Clone, Copy, Debug)]
pub struct MlaNames {
    /// `[query_rank, hidden]`.
    pub q_a: &'static str,
    /// `[query_rank]`.
    pub q_a_norm: &'static str,
    /// `[heads * (nope + rope), query_rank]`.
    pub q_b: &'static str,
    /// `[latent_rank + rope, hidden]`.
    pub kv_a: &'static str,
    /// `[latent_rank]`.
    pub kv_a_norm: &'static str,
    /// `[heads * (nope + value), latent_rank]`; a head's key rows come before its value rows.
    pub kv_b: &'static str,
    /// `[hidden, heads * value]`.
    pub o: &'static str,
}

/// Names of the indexer.
#[derive(Clone, Copy, Debug)]
pub struct IndexerNames {
    /// `[heads * head_dim, query_rank]`.
    pub q: &'static str,
    /// `[head_dim, hidden]`.
    pub k: &'static str,
    /// `[head_dim]`.
    pub k_norm: &'static str,
    /// `[head_dim]`.
    pub k_norm_bias: &'static str,
    /// `[heads, hidden]`.
    pub weights: &'static str,
}

/// Names of a gated MLP.
#[derive(Clone, Copy, Debug)]
pub struct GatedNames {
    /// `[width, hidden]`.
    pub gate: &'static str,
    /// `[width, hidden]`.
    pub up: &'static str,
    /// `[hidden, width]`.
    pub down: &'static str,
}

/// Names of the multi-token-prediction layer beside its decoder layer.
#[derive(Clone, Copy, Debug)]
pub struct MtpNames {
    /// `[hidden]`.
    pub embedding_norm: &'static str,
    /// `[hidden]`.
    pub hidden_norm: &'static str,
    /// `[hidden, 2 * hidden]`; the embedding half comes first.
    pub projection: &'static str,
    /// `[hidden]`.
    pub head_norm: &'static str,
}

/// Fills a template.
#[must_use]
pub fn fill(template: &str, layer: usize, expert: Option<usize>) -> String {
    let name = template.replace("{layer}", &layer.to_string());
    match expert {
        Some(expert) => name.replace("{expert}", &expert.to_string()),
        None => name,
    }
}

/// What a tensor is for; conversion chooses a format by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorClass {
    /// Token embedding.
    Embedding,
    /// Head.
    Head,
    /// Any norm, and the norms' biases.
    Norm,
    /// Matrices of attention.
    Attention,
    /// Matrices of the indexer.
    Indexer,
    /// Router matrix and its correction bias.
    Router,
    /// Dense feed-forward part.
    Dense,
    /// Shared expert.
    SharedExpert,
    /// Routed expert.
    Expert,
    /// Input projection of multi-token prediction.
    MtpProjection,
}

/// Logical shape of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `[rows, cols]`.
    Matrix {
        /// Output dimension.
        rows: usize,
        /// Input dimension.
        cols: usize,
    },
    /// `[len]`.
    Vector {
        /// Elements.
        len: usize,
    },
}

/// One tensor of a model.
#[derive(Clone, Debug)]
pub struct TensorSlot {
    /// Name in the checkpoint.
    pub name: String,
    /// Logical shape.
    pub shape: Shape,
    /// What it is for.
    pub class: TensorClass,
    /// Layer; the multi-token-prediction layer has the number of decoder layers.
    pub layer: Option<usize>,
    /// Routed expert.
    pub expert: Option<usize>,
    /// Belongs to the multi-token-prediction layer.
    pub mtp: bool,
}

/// All tensors of a model, in the order in which they are used.
#[must_use]
pub fn inventory(spec: &ModelSpec, names: &WeightNames) -> Vec<TensorSlot> {
    let mut list = Inventory::default();
    let hidden = spec.hidden_size;
    list.matrix(names.embedding, spec.vocab_size, hidden, TensorClass::Embedding);
    for (index, layer) in spec.layers.iter().enumerate() {
        list.layer = Some(index);
        list.decoder_layer(layer, names, hidden);
    }
    list.layer = None;
    list.vector(names.final_norm, hidden, TensorClass::Norm);
    if !spec.tied_head {
        list.matrix(names.head, spec.vocab_size, hidden, TensorClass::Head);
    }
    if let Some(mtp) = &spec.mtp {
        list.layer = Some(spec.layers.len());
        list.mtp = true;
        list.vector(names.mtp.embedding_norm, hidden, TensorClass::Norm);
        list.vector(names.mtp.hidden_norm, hidden, TensorClass::Norm);
        list.matrix(names.mtp.projection, hidden, 2 * hidden, TensorClass::MtpProjection);
        list.vector(names.mtp.head_norm, hidden, TensorClass::Norm);
        list.decoder_layer(&mtp.layer, names, hidden);
    }
    list.slots
}

/// Takes out of the spec what a container may lack, and names it. `holds` says whether the container has a tensor.
pub fn drop_absent(spec: &mut ModelSpec, names: &WeightNames, holds: &dyn Fn(&str) -> bool) -> Vec<&'static str> {
    let slots = inventory(spec, names);
    let any = |wanted: &dyn Fn(&TensorSlot) -> bool| slots.iter().any(|slot| wanted(slot) && holds(&slot.name));
    let indexer = |slot: &TensorSlot| {
        let layer = slot.layer.unwrap_or(0);
        slot.class == TensorClass::Indexer
            || [names.indexer.k_norm, names.indexer.k_norm_bias]
                .iter()
                .any(|template| slot.expert.is_none() && slot.name == fill(template, layer, None))
    };
    let described = |mtp: bool| slots.iter().any(|slot| slot.mtp == mtp && slot.class == TensorClass::Indexer);
    let mut absent = Vec::new();
    if described(false) && !any(&|slot| !slot.mtp && indexer(slot)) {
        absent.push("indexers of sparse attention");
        spec.layers.iter_mut().for_each(attend_to_all);
    }
    if spec.mtp.is_some() && !any(&|slot| slot.mtp) {
        absent.push("multi-token-prediction layer");
        spec.mtp = None;
    }
    if described(true)
        && !any(&|slot| slot.mtp && indexer(slot))
        && let Some(mtp) = &mut spec.mtp
    {
        absent.push("indexer of the multi-token-prediction layer");
        attend_to_all(&mut mtp.layer);
    }
    absent
}

/// Takes every indexer out of the spec.
pub fn drop_indexers(spec: &mut ModelSpec) {
    spec.layers.iter_mut().chain(spec.mtp.as_mut().map(|mtp| &mut mtp.layer)).for_each(attend_to_all);
}

fn attend_to_all(layer: &mut LayerSpec) {
    let Mixer::Mla(mla) = &mut layer.mixer;
    mla.indexing = Indexing::Dense;
}

/// Tensors as they are listed, each with the layer that the list is at.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    pub(crate) slots: Vec<TensorSlot>,
    pub(crate) layer: Option<usize>,
    pub(crate) mtp: bool,
}

impl Inventory {
    fn push(&mut self, template: &str, shape: Shape, class: TensorClass, expert: Option<usize>) {
        let name = fill(template, self.layer.unwrap_or(0), expert);
        self.slots.push(TensorSlot { name, shape, class, layer: self.layer, expert, mtp: self.mtp });
    }

    pub(crate) fn matrix(&mut self, template: &str, rows: usize, cols: usize, class: TensorClass) {
        self.push(template, Shape::Matrix { rows, cols }, class, None);
    }

    pub(crate) fn vector(&mut self, template: &str, len: usize, class: TensorClass) {
        self.push(template, Shape::Vector { len }, class, None);
    }

    /// Gate, up and down of a gated MLP, in this order: expert tables rely on it.
    pub(crate) fn gated(
        &mut self,
        names: &GatedNames,
        width: usize,
        hidden: usize,
        class: TensorClass,
        expert: Option<usize>,
    ) {
        self.push(names.gate, Shape::Matrix { rows: width, cols: hidden }, class, expert);
        self.push(names.up, Shape::Matrix { rows: width, cols: hidden }, class, expert);
        self.push(names.down, Shape::Matrix { rows: hidden, cols: width }, class, expert);
    }

    fn decoder_layer(&mut self, layer: &LayerSpec, names: &WeightNames, hidden: usize) {
        self.vector(names.input_norm, hidden, TensorClass::Norm);
        self.vector(names.post_norm, hidden, TensorClass::Norm);
        match &layer.mixer {
            Mixer::Mla(mla) => {
                let class = TensorClass::Attention;
                self.matrix(names.mla.q_a, mla.query_rank, hidden, class);
                self.vector(names.mla.q_a_norm, mla.query_rank, TensorClass::Norm);
                self.matrix(names.mla.q_b, mla.heads * (mla.nope_dim + mla.rope_dim), mla.query_rank, class);
                self.matrix(names.mla.kv_a, mla.latent_rank + mla.rope_dim, hidden, class);
                self.vector(names.mla.kv_a_norm, mla.latent_rank, TensorClass::Norm);
                self.matrix(names.mla.kv_b, mla.heads * (mla.nope_dim + mla.value_dim), mla.latent_rank, class);
                self.matrix(names.mla.o, hidden, mla.heads * mla.value_dim, class);
                if let Indexing::Full(indexer) = &mla.indexing {
                    let class = TensorClass::Indexer;
                    self.matrix(names.indexer.q, indexer.heads * indexer.head_dim, mla.query_rank, class);
                    self.matrix(names.indexer.k, indexer.head_dim, hidden, class);
                    self.vector(names.indexer.k_norm, indexer.head_dim, TensorClass::Norm);
                    self.vector(names.indexer.k_norm_bias, indexer.head_dim, TensorClass::Norm);
                    self.matrix(names.indexer.weights, indexer.heads, hidden, class);
                }
            }
        }
        match &layer.ffn {
            Ffn::Dense { width } => self.gated(&names.dense, *width, hidden, TensorClass::Dense, None),
            Ffn::Moe(moe) => {
                self.matrix(names.router, moe.experts, hidden, TensorClass::Router);
                self.vector(names.router_bias, moe.experts, TensorClass::Router);
                if let Some(width) = moe.shared_width {
                    self.gated(&names.shared, width, hidden, TensorClass::SharedExpert, None);
                }
                for expert in 0..moe.experts {
                    self.gated(&names.expert, moe.width, hidden, TensorClass::Expert, Some(expert));
                }
            }
        }
    }
}
