//! Places a model's tensors: every tensor of the inventory is found in the catalog and checked, and all that are missing
//! or misshapen are reported in one error. Then the resident ones are loaded and the experts' places are handed to the
//! expert store.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use colibri_kernels::format::Format;
use colibri_kernels::ops::{RopeSpec, RopeTable};
use colibri_store::catalog::{Catalog, GroupSize, ScaleType, WeightLocation};
use colibri_store::error::{Fault, FaultKind, StoreError};
use colibri_store::expert::{ExpertMatrices, ExpertTable};
use colibri_store::resident::{StoredMatrix, load_f32, load_resident};
use colibri_store::source::Source;
use serde::Serialize;

use crate::config::{Control, Phase, Watch};
use crate::error::EngineError;
use crate::names::{GatedNames, Shape, TensorClass, TensorSlot, WeightNames, fill};
use crate::spec::{Ffn, Indexing, LayerSpec, Mixer, MlaSpec, ModelSpec};

/// The resident weights of a model.
pub struct Weights {
    /// `[vocab, hidden]`.
    pub embedding: StoredMatrix,
    /// `[vocab, hidden]`; the embedding again when the head is tied.
    pub head: StoredMatrix,
    /// `[hidden]`.
    pub final_norm: Vec<f32>,
    /// The decoder layers.
    pub layers: Vec<LayerWeights>,
    /// The multi-token-prediction layer.
    pub mtp: Option<MtpWeights>,
}

/// The resident weights of a decoder layer.
pub struct LayerWeights {
    /// `[hidden]`.
    pub input_norm: Vec<f32>,
    /// `[hidden]`.
    pub post_norm: Vec<f32>,
    /// Of the mixer.
    pub mixer: MixerWeights,
    /// Of the feed-forward part.
    pub ffn: FfnWeights,
}

/// The weights of a mixer.
pub enum MixerWeights {
    /// Of latent attention.
    Mla(Box<MlaWeights>),
}

/// The weights of latent attention.
pub struct MlaWeights {
    /// `[query_rank, hidden]`.
    pub q_a: StoredMatrix,
    /// `[query_rank]`.
    pub q_a_norm: Vec<f32>,
    /// `[heads * (nope + rope), query_rank]`.
    pub q_b: StoredMatrix,
    /// `[latent_rank + rope, hidden]`.
    pub kv_a: StoredMatrix,
    /// `[latent_rank]`.
    pub kv_a_norm: Vec<f32>,
    /// `[heads * (nope + value), latent_rank]`.
    pub kv_b: StoredMatrix,
    /// `[hidden, heads * value]`.
    pub o: StoredMatrix,
    /// Present in layers that choose keys.
    pub indexer: Option<IndexerWeights>,
    /// Angles of the rotated dimensions, shared by all layers that rotate alike.
    pub rope: Arc<RopeTable>,
}

/// The weights of an indexer.
pub struct IndexerWeights {
    /// `[heads * head_dim, query_rank]`.
    pub q: StoredMatrix,
    /// `[head_dim, hidden]`.
    pub k: StoredMatrix,
    /// `[head_dim]`.
    pub k_norm: Vec<f32>,
    /// `[head_dim]`.
    pub k_norm_bias: Vec<f32>,
    /// `[heads, hidden]`.
    pub weights: StoredMatrix,
}

/// The resident weights of a feed-forward part.
pub enum FfnWeights {
    /// One gated MLP.
    Dense(GatedWeights),
    /// A mixture of experts, whose routed experts are in the expert store.
    Moe(MoeWeights),
}

/// A gated MLP.
pub struct GatedWeights {
    /// `[width, hidden]`.
    pub gate: StoredMatrix,
    /// `[width, hidden]`.
    pub up: StoredMatrix,
    /// `[hidden, width]`.
    pub down: StoredMatrix,
}

/// The resident weights of a mixture of experts.
pub struct MoeWeights {
    /// `[experts, hidden]`.
    pub router: StoredMatrix,
    /// `[experts]`.
    pub bias: Vec<f32>,
    /// The shared expert.
    pub shared: Option<GatedWeights>,
}

/// The weights of the multi-token-prediction layer.
pub struct MtpWeights {
    /// `[hidden]`.
    pub embedding_norm: Vec<f32>,
    /// `[hidden]`.
    pub hidden_norm: Vec<f32>,
    /// `[hidden, 2 * hidden]`.
    pub projection: StoredMatrix,
    /// `[hidden]`.
    pub head_norm: Vec<f32>,
    /// Its decoder layer.
    pub layer: LayerWeights,
}

/// Where every tensor of a model lies.
pub struct Binding {
    /// The model as the container holds it: without the optional parts that are absent.
    pub spec: ModelSpec,
    /// Tensor names of the family.
    pub names: &'static WeightNames,
    /// The tensors that stay in memory, each with its place.
    pub resident: Vec<(TensorSlot, WeightLocation)>,
    /// Where the routed experts of the decoder layers lie.
    pub experts: ExpertTable,
    /// Where those of the prediction layer lie.
    pub mtp_experts: ExpertTable,
}

/// Names of the stored formats, each named once, in the order of their first use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Formats {
    /// Of routed experts.
    pub experts: Vec<String>,
    /// Of attention and of dense feed-forward parts.
    pub dense: Vec<String>,
    /// Of the embedding and the head.
    pub embeddings: Vec<String>,
}

/// Tensors with their places, split by where they will live.
pub struct Placement {
    /// The tensors that stay in memory, each with its place.
    pub resident: Vec<(TensorSlot, WeightLocation)>,
    /// Where the routed experts of the decoder layers lie.
    pub experts: ExpertTable,
    /// Where those of the prediction layer lie.
    pub mtp_experts: ExpertTable,
    /// Formats of the classes that are shown.
    pub formats: Formats,
    /// Weights of the model, experts included.
    pub parameters: u64,
}

/// Finds and checks tensors; the errors of those that are missing, misshapen or in a format that is not read stand
/// apart, so that the caller decides whether they end its work. Scales that have no weight are an error too.
#[must_use]
pub fn locate(catalog: &Catalog, slots: Vec<TensorSlot>) -> (Vec<(TensorSlot, WeightLocation)>, Vec<StoreError>) {
    let mut errors: Vec<StoreError> = catalog.check_scales().err().into_iter().collect();
    let group = group_size(catalog, &slots);
    let mut found = Vec::with_capacity(slots.len());
    for slot in slots {
        let location = match slot.shape {
            Shape::Matrix { rows, cols } => catalog.weight(&slot.name, rows, cols, group.clone().unwrap_or_default()),
            Shape::Vector { len } => catalog.vector(&slot.name, len),
        };
        match location {
            Ok(location) => found.push((slot, location)),
            // Without a group size every int4 matrix would be refused for the same reason.
            Err(error) if group.is_err() && error.code() != "model_incomplete" => {}
            Err(error) => errors.push(error),
        }
    }
    errors.extend(group.err());
    (found, errors)
}

/// The group size of the int4 matrices among these tensors.
///
/// # Errors
/// As [`Catalog::group_size`].
pub fn group_size(catalog: &Catalog, slots: &[TensorSlot]) -> Result<GroupSize, StoreError> {
    catalog.group_size(slots.iter().filter_map(|slot| match slot.shape {
        Shape::Matrix { rows, cols } => Some((slot.name.as_str(), rows, cols)),
        Shape::Vector { .. } => None,
    }))
}

/// Kernels take f32 scales: a weight whose scales are of another type must be converted before it is run.
fn check_scale_types(catalog: &Catalog, found: &[(TensorSlot, WeightLocation)], errors: &mut Vec<StoreError>) {
    for (slot, location) in found {
        let Some(scales) = location.scales.filter(|_| location.scale_type != ScaleType::F32) else { continue };
        let Some(file) = catalog.files().get(scales.file.0 as usize) else { continue };
        let expected = format!("{} scales for a weight that is run as it is", ScaleType::F32.name());
        let fault =
            Fault::tensor(FaultKind::Unsupported, &file.path, &slot.name, &expected, location.scale_type.name());
        errors.push(StoreError::fault(catalog.directory(), fault.fix("convert the checkpoint: colibri convert")));
    }
}

/// Finds and checks every tensor of a model. Its scales must be of a type that the kernels take, whether it is to be run
/// or planned: what lies in memory is laid out for them.
///
/// # Errors
/// Every tensor that is missing, misshapen or in a format that is not read, in one error.
pub fn place(catalog: &Catalog, slots: Vec<TensorSlot>) -> Result<Placement, EngineError> {
    let (found, mut errors) = locate(catalog, slots);
    check_scale_types(catalog, &found, &mut errors);
    StoreError::merge(catalog.directory(), errors)?;
    arrange(found)
}

/// Splits located tensors by where they will live.
fn arrange(found: Vec<(TensorSlot, WeightLocation)>) -> Result<Placement, EngineError> {
    let mut resident = Vec::new();
    let (mut experts, mut mtp_experts) = (Vec::new(), Vec::new());
    let mut formats = Formats::default();
    let mut parameters = 0;
    for (slot, location) in found {
        parameters += location.rows as u64 * location.cols as u64;
        formats.note(slot.class, location.format);
        match (slot.layer, slot.expert) {
            (Some(layer), Some(_)) if slot.mtp => mtp_experts.push((layer, location)),
            (Some(layer), Some(_)) => experts.push((layer, location)),
            _ => resident.push((slot, location)),
        }
    }
    let (experts, mtp_experts) = (expert_table(&experts)?, expert_table(&mtp_experts)?);
    Ok(Placement { resident, experts, mtp_experts, formats, parameters })
}

impl Formats {
    /// Adds the format of one weight, if its class is shown.
    pub(crate) fn note(&mut self, class: TensorClass, format: Format) {
        let list = match class {
            TensorClass::Expert => &mut self.experts,
            TensorClass::Attention | TensorClass::Dense | TensorClass::SharedExpert => &mut self.dense,
            TensorClass::Embedding | TensorClass::Head => &mut self.embeddings,
            TensorClass::Norm | TensorClass::Indexer | TensorClass::Router | TensorClass::MtpProjection => return,
        };
        let name = format.name();
        if !list.contains(&name) {
            list.push(name);
        }
    }
}

/// The inventory lists each expert's gate, up and down together, expert after expert, layer after layer.
pub(crate) fn expert_table(experts: &[(usize, WeightLocation)]) -> Result<ExpertTable, EngineError> {
    let mut table = ExpertTable::new();
    for of_layer in experts.chunk_by(|a, b| a.0 == b.0) {
        let (triples, _) = of_layer.as_chunks::<3>();
        let matrices = triples.iter().map(|[(_, gate), (_, up), (_, down)]| ExpertMatrices {
            gate: gate.clone(),
            up: up.clone(),
            down: down.clone(),
        });
        let layer = of_layer.first().map_or(0, |(layer, _)| *layer);
        table.push_layer(layer_number(layer), matrices.collect())?;
    }
    Ok(table)
}

/// A layer's number as the expert store counts it; families bound it far below the limit.
#[must_use]
pub fn layer_number(layer: usize) -> u32 {
    u32::try_from(layer).unwrap_or(u32::MAX)
}

/// Bytes that a tensor takes in memory: a matrix as it is stored, a vector as f32.
#[must_use]
pub fn memory_bytes(slot: &TensorSlot, location: &WeightLocation) -> u64 {
    match slot.shape {
        Shape::Matrix { .. } => location.bytes(),
        Shape::Vector { len } => len as u64 * size_of::<f32>() as u64,
    }
}

/// Bytes that resident weights take.
#[must_use]
pub fn resident_bytes(resident: &[(TensorSlot, WeightLocation)]) -> u64 {
    resident.iter().map(|(slot, location)| memory_bytes(slot, location)).sum()
}

impl Binding {
    /// A model with the places of its tensors, which are those of its inventory.
    #[must_use]
    pub fn new(spec: ModelSpec, names: &'static WeightNames, placement: Placement) -> Self {
        let Placement { resident, experts, mtp_experts, .. } = placement;
        Self { spec, names, resident, experts, mtp_experts }
    }

    /// Loads the resident weights; `model` is the folder that messages name.
    ///
    /// # Errors
    /// A read fails, a norm or a bias is not finite (a router's bias would steer the choice without a trace in any
    /// number), or the watcher says stop.
    pub fn load(&self, source: &dyn Source, model: &Path, watch: &dyn Watch) -> Result<Weights, EngineError> {
        let mut loaded =
            Loaded { names: self.names, matrices: HashMap::new(), vectors: HashMap::new(), ropes: Vec::new() };
        let is_matrix = |slot: &TensorSlot| matches!(slot.shape, Shape::Matrix { .. });
        let matrices: Vec<_> = self.resident.iter().filter(|(slot, _)| is_matrix(slot)).collect();
        let locations: Vec<_> = matrices.iter().map(|(_, location)| location.clone()).collect();
        let mut progress = |done, total| watch.progress(Phase::Load, done, total) == Control::Continue;
        let stored = load_resident(source, &locations, &mut progress)?;
        for ((slot, _), matrix) in matrices.into_iter().zip(stored) {
            loaded.matrices.insert(slot.name.clone(), matrix);
        }
        for (slot, location) in self.resident.iter().filter(|(slot, _)| !is_matrix(slot)) {
            let values = load_f32(source, location)?;
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                let (place, tensor) = (format!("the weights, element {at}"), slot.name.clone());
                return Err(EngineError::NonFinite { place, tensor, model: Some(model.to_path_buf()) });
            }
            loaded.vectors.insert(slot.name.clone(), values);
        }
        loaded.weights(&self.spec)
    }
}

/// Loaded tensors on their way into the tree of weights.
struct Loaded {
    names: &'static WeightNames,
    matrices: HashMap<String, StoredMatrix>,
    vectors: HashMap<String, Vec<f32>>,
    ropes: Vec<(RopeSpec, usize, Arc<RopeTable>)>,
}

impl Loaded {
    fn matrix(&mut self, template: &str, layer: usize) -> Result<StoredMatrix, EngineError> {
        let name = fill(template, layer, None);
        self.matrices.remove(&name).ok_or_else(|| unbound(&name))
    }

    fn vector(&mut self, template: &str, layer: usize) -> Result<Vec<f32>, EngineError> {
        let name = fill(template, layer, None);
        self.vectors.remove(&name).ok_or_else(|| unbound(&name))
    }

    fn gated(&mut self, names: &GatedNames, layer: usize) -> Result<GatedWeights, EngineError> {
        Ok(GatedWeights {
            gate: self.matrix(names.gate, layer)?,
            up: self.matrix(names.up, layer)?,
            down: self.matrix(names.down, layer)?,
        })
    }

    fn weights(mut self, spec: &ModelSpec) -> Result<Weights, EngineError> {
        let names = self.names;
        let embedding = self.matrix(names.embedding, 0)?;
        let head = if spec.tied_head { embedding.clone() } else { self.matrix(names.head, 0)? };
        let layers = spec.layers.iter().enumerate().map(|(index, layer)| self.layer(layer, index));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let mtp = match &spec.mtp {
            None => None,
            Some(mtp) => Some(self.mtp(&mtp.layer, spec.layers.len())?),
        };
        Ok(Weights { embedding, head, final_norm: self.vector(names.final_norm, 0)?, layers, mtp })
    }

    fn mtp(&mut self, layer: &LayerSpec, index: usize) -> Result<MtpWeights, EngineError> {
        let names = self.names.mtp;
        Ok(MtpWeights {
            embedding_norm: self.vector(names.embedding_norm, index)?,
            hidden_norm: self.vector(names.hidden_norm, index)?,
            projection: self.matrix(names.projection, index)?,
            head_norm: self.vector(names.head_norm, index)?,
            layer: self.layer(layer, index)?,
        })
    }

    fn layer(&mut self, layer: &LayerSpec, index: usize) -> Result<LayerWeights, EngineError> {
        let names = self.names;
        let mixer = match &layer.mixer {
            Mixer::Mla(mla) => MixerWeights::Mla(Box::new(self.mla(mla, index)?)),
        };
        let ffn = match &layer.ffn {
            Ffn::Dense { .. } => FfnWeights::Dense(self.gated(&names.dense, index)?),
            Ffn::Moe(moe) => FfnWeights::Moe(MoeWeights {
                router: self.matrix(names.router, index)?,
                bias: self.vector(names.router_bias, index)?,
                shared: match moe.shared_width {
                    None => None,
                    Some(_) => Some(self.gated(&names.shared, index)?),
                },
            }),
        };
        let input_norm = self.vector(names.input_norm, index)?;
        Ok(LayerWeights { input_norm, post_norm: self.vector(names.post_norm, index)?, mixer, ffn })
    }

    fn mla(&mut self, spec: &MlaSpec, index: usize) -> Result<MlaWeights, EngineError> {
        let (names, indexer) = (self.names.mla, self.names.indexer);
        let indexer = match &spec.indexing {
            Indexing::Dense | Indexing::Shared => None,
            Indexing::Full(_) => Some(IndexerWeights {
                q: self.matrix(indexer.q, index)?,
                k: self.matrix(indexer.k, index)?,
                k_norm: self.vector(indexer.k_norm, index)?,
                k_norm_bias: self.vector(indexer.k_norm_bias, index)?,
                weights: self.matrix(indexer.weights, index)?,
            }),
        };
        Ok(MlaWeights {
            q_a: self.matrix(names.q_a, index)?,
            q_a_norm: self.vector(names.q_a_norm, index)?,
            q_b: self.matrix(names.q_b, index)?,
            kv_a: self.matrix(names.kv_a, index)?,
            kv_a_norm: self.vector(names.kv_a_norm, index)?,
            kv_b: self.matrix(names.kv_b, index)?,
            o: self.matrix(names.o, index)?,
            indexer,
            rope: self.rope(&spec.rope, spec.rope_dim),
        })
    }

    fn rope(&mut self, spec: &RopeSpec, dim: usize) -> Arc<RopeTable> {
        if let Some((_, _, table)) = self.ropes.iter().find(|(known, width, _)| known == spec && *width == dim) {
            return Arc::clone(table);
        }
        let table = Arc::new(RopeTable::new(spec, dim));
        self.ropes.push((*spec, dim, Arc::clone(&table)));
        table
    }
}

fn unbound(name: &str) -> EngineError {
    StoreError::Internal { what: format!("{name} was loaded and is not there") }.into()
}
