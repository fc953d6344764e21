//! What a model consists of, whether or not this engine runs it: facts, tensors, and what may be absent.
//!
//! Owns the reading of `config.json` and `generation_config.json`. Loading, inspecting, planning and converting all start
//! here, so that they agree on what belongs to a model. Refuses what the family refuses, naming the key.

use std::path::Path;

use colibri_store::container::json::reason;
use colibri_store::container::read_small;
use colibri_store::error::StoreError;
use serde_json::{Map, Value};

use crate::config::DRAFT_TOKENS;
use crate::error::EngineError;
use crate::family::{self, Description, Fields, Outline};
use crate::names::{self, TensorSlot, WeightNames, fill, inventory};
use crate::spec::{Ffn, Indexing, LayerSpec, Mixer, ModelSpec, SpecError};
use crate::{kv, scratch};

/// Largest configuration file that is read, in bytes.
const CONFIG_LIMIT: u64 = 16 << 20;

/// Endings of tensors that some checkpoints carry and no family needs: rotation tables, which are computed.
const UNUSED_ENDINGS: &[&str] = &["rotary_emb.inv_freq"];
/// The prediction layer's own copies of embedding and head: the model's serve.
const UNUSED_MTP_ENDINGS: &[&str] = &["embed_tokens.weight", "shared_head.head.weight"];

/// What a model consists of.
#[derive(Clone, Debug)]
pub struct Blueprint {
    description: Description,
}

/// The numbers of a model that people and plans want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Decoder layers.
    pub layers: usize,
    /// Decoder layers with routed experts.
    pub moe_layers: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Routed experts chosen for a token in a layer.
    pub experts_per_token: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Longest sequence that the model was made for.
    pub context_max: usize,
    /// Has a multi-token-prediction layer.
    pub has_mtp: bool,
    /// Chooses keys by an indexer.
    pub has_indexer: bool,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
}

impl Blueprint {
    /// Reads `config.json` of a model's folder, and the end tokens of `generation_config.json`.
    ///
    /// # Errors
    /// No such file, not readable, or not a model of a known family.
    pub fn read(folder: &Path) -> Result<Blueprint, EngineError> {
        let file = folder.join("config.json");
        let refuse = |source| EngineError::Config { path: file.clone(), source };
        let mut blueprint = Self::parse(&read_object(&file)?).map_err(refuse)?;
        let generation = folder.join("generation_config.json");
        if generation.exists() {
            let vocab = blueprint.facts().vocab_size;
            let more = Fields::new(&read_object(&generation)?).tokens("eos_token_id", vocab);
            blueprint.add_end_tokens(more.map_err(|source| EngineError::Config { path: generation, source })?);
        }
        Ok(blueprint)
    }

    /// The blueprint of a configuration alone.
    ///
    /// # Errors
    /// The family is unknown, or a key is missing, of the wrong type or out of range.
    pub fn parse(config: &Map<String, Value>) -> Result<Blueprint, SpecError> {
        Ok(Blueprint { description: family::read(config)? })
    }

    fn add_end_tokens(&mut self, more: Vec<u32>) {
        let tokens = match &mut self.description {
            Description::Model { spec, .. } => &mut spec.eos_token_ids,
            Description::Outline(outline) => &mut outline.eos_token_ids,
        };
        tokens.extend(more);
        tokens.sort_unstable();
        tokens.dedup();
    }

    /// `model_type` of the family.
    #[must_use]
    pub fn family(&self) -> &'static str {
        match &self.description {
            Description::Model { spec, .. } => spec.family,
            Description::Outline(outline) => outline.family,
        }
    }

    /// Every tensor, in the order of use.
    #[must_use]
    pub fn slots(&self) -> Vec<TensorSlot> {
        match &self.description {
            Description::Model { spec, names } => inventory(spec, names),
            Description::Outline(outline) => outline.slots.clone(),
        }
    }

    /// Whether the model has a multi-token-prediction layer.
    #[must_use]
    pub fn has_prediction(&self) -> bool {
        matches!(&self.description, Description::Model { spec, .. } if spec.mtp.is_some())
    }

    /// Leaves the multi-token-prediction layer out.
    pub fn drop_prediction(&mut self) {
        if let Description::Model { spec, .. } = &mut self.description {
            spec.mtp = None;
        }
    }

    /// Leaves all indexers out: every layer attends to all keys.
    pub fn drop_indexers(&mut self) {
        if let Description::Model { spec, .. } = &mut self.description {
            names::drop_indexers(spec);
        }
    }

    /// Leaves out the optional parts of which `holds` knows no tensor, and names them.
    pub fn drop_absent(&mut self, holds: &dyn Fn(&str) -> bool) -> Vec<&'static str> {
        match &mut self.description {
            Description::Model { spec, names } => names::drop_absent(spec, names, holds),
            Description::Outline(_) => Vec::new(),
        }
    }

    /// Whether checkpoints carry a tensor of this name that the model does not need.
    #[must_use]
    pub fn expected_extra(&self, name: &str) -> bool {
        let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        if ends(UNUSED_ENDINGS) {
            return true;
        }
        match &self.description {
            Description::Model { spec, names } => {
                let layer_stem = names.input_norm.split_inclusive("{layer}.").next().unwrap_or_default();
                let of_prediction = name.starts_with(&fill(layer_stem, spec.layers.len(), None));
                (spec.tied_head && name == names.head) || (of_prediction && ends(UNUSED_MTP_ENDINGS))
            }
            // An untied head is among the slots, and callers ask only for what is not.
            Description::Outline(outline) => name == outline.head,
        }
    }

    /// The model as the engine runs it; `None` for one that it can only inspect, plan, convert and repack.
    #[must_use]
    pub fn runnable(self) -> Option<(&'static WeightNames, ModelSpec)> {
        match self.description {
            Description::Model { spec, names } => Some((names, spec)),
            Description::Outline(_) => None,
        }
    }

    /// Whether the engine runs models of this family.
    #[must_use]
    pub fn runs(&self) -> bool {
        matches!(self.description, Description::Model { .. })
    }

    /// The refusal to run a model that can only be described.
    #[must_use]
    pub fn not_run(&self, folder: &Path) -> EngineError {
        EngineError::Config { path: folder.join("config.json"), source: family::not_run(self.family()) }
    }

    /// The numbers of the model.
    #[must_use]
    pub fn facts(&self) -> Facts {
        match &self.description {
            Description::Model { spec, .. } => facts_of_spec(spec),
            Description::Outline(outline) => facts_of_outline(outline),
        }
    }

    /// Bytes that the cache holds of one token, all layers together, and what else grows with each position.
    #[must_use]
    pub fn kv_bytes_per_token(&self, threads: usize) -> u64 {
        match &self.description {
            Description::Model { spec, .. } => kv::bytes_per_token(spec) + scratch::bytes_per_position(spec, threads),
            Description::Outline(outline) => (outline.cached_values * size_of::<f32>() + (threads + 1) * 8) as u64,
        }
    }

    /// Bytes of a forward pass over `rows` rows, from above, without what grows with the context.
    #[must_use]
    pub fn scratch_bytes(&self, rows: usize, threads: usize) -> u64 {
        match &self.description {
            Description::Model { spec, .. } => scratch::bytes(spec, rows, threads),
            Description::Outline(outline) => {
                let logits = outline.vocab_size.saturating_mul(DRAFT_TOKENS);
                let values = outline.row_values.saturating_mul(rows).saturating_add(logits);
                values.saturating_mul(size_of::<f32>()) as u64
            }
        }
    }
}

fn facts_of_spec(spec: &ModelSpec) -> Facts {
    let mixture = spec.layers.iter().find_map(|layer| match &layer.ffn {
        Ffn::Dense { .. } => None,
        Ffn::Moe(moe) => Some(moe),
    });
    let indexed = |layer: &LayerSpec| match &layer.mixer {
        Mixer::Mla(mla) => matches!(mla.indexing, Indexing::Full(_)),
    };
    Facts {
        layers: spec.layers.len(),
        moe_layers: spec.layers.iter().filter(|layer| matches!(layer.ffn, Ffn::Moe(_))).count(),
        experts: mixture.map_or(0, |moe| moe.experts),
        experts_per_token: mixture.map_or(0, |moe| moe.router.top_k()),
        vocab_size: spec.vocab_size,
        hidden: spec.hidden_size,
        context_max: spec.context_max,
        has_mtp: spec.mtp.is_some(),
        has_indexer: spec.layers.iter().any(indexed),
        eos_token_ids: spec.eos_token_ids.clone(),
    }
}

fn facts_of_outline(outline: &Outline) -> Facts {
    Facts {
        layers: outline.layers,
        moe_layers: outline.moe_layers,
        experts: outline.experts,
        experts_per_token: outline.experts_per_token,
        vocab_size: outline.vocab_size,
        hidden: outline.hidden_size,
        context_max: outline.context_max,
        has_mtp: false,
        has_indexer: false,
        eos_token_ids: outline.eos_token_ids.clone(),
    }
}

fn read_object(path: &Path) -> Result<Map<String, Value>, EngineError> {
    let unreadable = |reason: String| EngineError::ConfigUnreadable { path: path.to_path_buf(), reason };
    if std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Err(no_configuration(path).into());
    }
    let text = read_small(path, CONFIG_LIMIT).map_err(|fault| unreadable(fault.what))?;
    serde_json::from_slice(&text).map_err(|error| unreadable(reason(&error)))
}

/// A folder without `config.json` holds no model, whatever else lies there.
fn no_configuration(file: &Path) -> StoreError {
    StoreError::NotFound {
        path: file.parent().unwrap_or(file).to_path_buf(),
        found: "the folder exists but holds no config.json".to_owned(),
        fix: "fetch config.json too, or give another folder".to_owned(),
    }
}

#[cfg(test)]
mod tests;
