//! Tiny seeded checkpoints of the family `glm_moe_dsa` in Hugging Face form, written to disk for tests and benches.
//!
//! Must hold: the same settings give the same bytes everywhere; the checkpoint is one that the family reads, because its
//! tensors come from the same inventory.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::blueprint::Blueprint;
use crate::error::EngineError;
use crate::names::{Shape, TensorClass, TensorSlot};

/// Settings of a checkpoint; the default has every feature of the family and makes sparse attention drop keys early.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// Decoder layers.
    pub layers: usize,
    /// Leading dense layers.
    pub dense_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Inner width of dense layers.
    pub dense_width: usize,
    /// Inner width of an expert.
    pub expert_width: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Experts chosen for a token.
    pub top_k: usize,
    /// Expert groups, of which one half, rounded up, stays in the choice.
    pub groups: usize,
    /// Shared experts.
    pub shared: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the query latent.
    pub query_rank: usize,
    /// Width of the key-value latent.
    pub latent_rank: usize,
    /// Dimensions of a head without position.
    pub nope_dim: usize,
    /// Rotated dimensions.
    pub rope_dim: usize,
    /// Dimensions of a value.
    pub value_dim: usize,
    /// Keys that sparse attention keeps; 0 leaves the indexer out.
    pub index_top_k: usize,
    /// Index heads.
    pub index_heads: usize,
    /// Dimensions of an index head.
    pub index_dim: usize,
    /// Every how many layers there is an indexer of its own.
    pub index_frequency: usize,
    /// With the multi-token-prediction layer.
    pub mtp: bool,
    /// With a tied head.
    pub tied: bool,
    /// bf16 weights instead of f32 ones.
    pub bf16: bool,
    /// Weight files.
    pub shards: usize,
    /// Longest context.
    pub context: usize,
    /// Seed of the weights.
    pub seed: u64,
}

impl Default for Fixture {
    fn default() -> Self {
        Self {
            layers: 4,
            dense_layers: 1,
            hidden: 64,
            vocab: 256,
            dense_width: 96,
            expert_width: 64,
            experts: 8,
            top_k: 3,
            groups: 2,
            shared: 1,
            heads: 4,
            query_rank: 40,
            latent_rank: 24,
            nope_dim: 16,
            rope_dim: 8,
            value_dim: 20,
            index_top_k: 8,
            index_heads: 3,
            index_dim: 16,
            index_frequency: 2,
            mtp: true,
            tied: false,
            bf16: false,
            shards: 1,
            context: 512,
            seed: 1,
        }
    }
}

/// One tensor of a shard, as its bytes.
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Fixture {
    /// The checkpoint's configuration.
    #[must_use]
    pub fn config(&self) -> Map<String, Value> {
        let mut config = json!({
            "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_act": "silu",
            "vocab_size": self.vocab, "hidden_size": self.hidden, "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width, "num_hidden_layers": self.layers,
            "first_k_dense_replace": self.dense_layers, "num_attention_heads": self.heads,
            "n_routed_experts": self.experts, "num_experts_per_tok": self.top_k, "n_shared_experts": self.shared,
            "n_group": self.groups, "topk_group": self.groups.div_ceil(2), "norm_topk_prob": true,
            "routed_scaling_factor": 2.5, "q_lora_rank": self.query_rank, "kv_lora_rank": self.latent_rank,
            "qk_nope_head_dim": self.nope_dim, "qk_rope_head_dim": self.rope_dim, "v_head_dim": self.value_dim,
            "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"}, "rms_norm_eps": 1e-5,
            "max_position_embeddings": self.context, "tie_word_embeddings": self.tied,
            "num_nextn_predict_layers": usize::from(self.mtp), "eos_token_id": [self.vocab - 1],
        });
        let mut config = config.as_object_mut().map(std::mem::take).unwrap_or_default();
        if self.index_top_k > 0 {
            for (key, value) in [
                ("index_topk", self.index_top_k),
                ("index_n_heads", self.index_heads),
                ("index_head_dim", self.index_dim),
                ("index_topk_freq", self.index_frequency),
                ("index_skip_topk_offset", 1),
            ] {
                config.insert(key.to_owned(), json!(value));
            }
        }
        config
    }

    /// Writes the checkpoint into an existing folder.
    ///
    /// # Errors
    /// Settings that the family refuses, or a file that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), EngineError> {
        let file = folder.join("config.json");
        let config = self.config();
        let refuse = |source| EngineError::Config { path: file.clone(), source };
        let slots = Blueprint::parse(&config).map_err(refuse)?.slots();
        write_file(&file, Value::Object(config).to_string().as_bytes())?;
        let mut random = SplitMix64 { state: self.seed };
        let tensors: Vec<_> = slots.iter().map(|slot| self.tensor(slot, &mut random)).collect();
        if self.shards <= 1 {
            return write_file(&folder.join("model.safetensors"), &shard(&tensors));
        }
        let mut index = Map::new();
        for (number, part) in tensors.chunks(tensors.len().div_ceil(self.shards)).enumerate() {
            let name = format!("model-{:05}-of-{:05}.safetensors", number + 1, self.shards);
            index.extend(part.iter().map(|tensor| (tensor.name.clone(), json!(name))));
            write_file(&folder.join(&name), &shard(part))?;
        }
        let index = json!({"metadata": {}, "weight_map": index});
        write_file(&folder.join("model.safetensors.index.json"), index.to_string().as_bytes())
    }

    fn tensor(&self, slot: &TensorSlot, random: &mut SplitMix64) -> Tensor {
        let (shape, fan_in) = match slot.shape {
            Shape::Matrix { rows, cols } => (vec![rows, cols], cols),
            Shape::Vector { len } => (vec![len], 1),
        };
        let bias = slot.name.ends_with("bias");
        #[expect(clippy::cast_precision_loss, reason = "a small whole number")]
        let (centre, spread) = match slot.class {
            TensorClass::Norm if !bias => (1.0, 0.2),
            TensorClass::Norm | TensorClass::Router if bias => (0.0, 0.1),
            TensorClass::Embedding => (0.0, 1.0),
            // A wide head keeps the likeliest tokens apart.
            TensorClass::Head => (0.0, 4.0 / (fan_in as f32).sqrt()),
            _ => (0.0, 1.7 / (fan_in as f32).sqrt()),
        };
        // The correction bias stays f32, as in published checkpoints.
        let narrow = self.bf16 && !(bias && slot.class == TensorClass::Router);
        let mut bytes = Vec::new();
        for _ in 0..shape.iter().product() {
            let value = centre + spread * random.symmetric();
            if narrow {
                // Cut to bf16: the upper half of the f32.
                bytes.extend_from_slice(&value.to_le_bytes()[2..]);
            } else {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
        Tensor { name: slot.name.clone(), dtype: if narrow { "BF16" } else { "F32" }, shape, bytes }
    }
}

/// A safetensors file of these tensors.
fn shard(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = BTreeMap::new();
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.bytes.len();
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = json!(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&header);
    tensors.iter().for_each(|tensor| file.extend_from_slice(&tensor.bytes));
    file
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), EngineError> {
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| {
        let (path, reason) = (path.to_path_buf(), error.to_string());
        colibri_store::error::StoreError::NotWritable { path, reason }.into()
    })
}

/// `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    /// Its state; any value is a seed.
    pub state: u64,
}

impl SplitMix64 {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The next number in -1..1, uniform.
    #[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
    pub fn symmetric(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// The next token below `vocab`.
    pub fn token(&mut self, vocab: usize) -> u32 {
        u32::try_from(self.bits() % vocab.max(1) as u64).unwrap_or(0)
    }
}
