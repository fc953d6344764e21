//! The model as data: sum types only, each variant with its own fields. A family turns `config.json` into a
//! [`ModelSpec`]; everything behind it (names, weights, cache, blocks) reads the spec and nothing else.
//! All sizes are checked by the family, so that products of two of them fit `usize`.

use colibri_kernels::ops::RopeSpec;
use thiserror::Error;

/// A whole model.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// `model_type` of the family that read it.
    pub family: &'static str,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Longest sequence that the model was made for.
    pub context_max: usize,
    /// Epsilon of the norms on the residual stream.
    pub norm_epsilon: f32,
    /// The head is the embedding.
    pub tied_head: bool,
    /// The decoder layers, in order.
    pub layers: Vec<LayerSpec>,
    /// The multi-token-prediction layer, if the model has one.
    pub mtp: Option<MtpSpec>,
    /// Tokens that end a text, ascending, without duplicates.
    pub eos_token_ids: Vec<u32>,
}

/// One decoder layer: mixer, then feed-forward, each behind its own RMS norm.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// How positions exchange information.
    pub mixer: Mixer,
    /// What happens at each position.
    pub ffn: Ffn,
}

/// How positions exchange information.
#[derive(Clone, Debug)]
pub enum Mixer {
    /// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).
    Mla(MlaSpec),
}

/// Shapes of multi-head latent attention.
#[derive(Clone, Debug)]
pub struct MlaSpec {
    /// Attention heads.
    pub heads: usize,
    /// Width of the query latent.
    pub query_rank: usize,
    /// Width of the key-value latent, which is what the cache holds.
    pub latent_rank: usize,
    /// Dimensions of a head's query and key without position.
    pub nope_dim: usize,
    /// Dimensions of a head's query, and of the one shared key, that are rotated.
    pub rope_dim: usize,
    /// Dimensions of a head's value.
    pub value_dim: usize,
    /// Epsilon of the norms on the two latents; the reference implementation does not take the model's.
    pub latent_norm_epsilon: f32,
    /// Factor on attention scores.
    pub softmax_scale: f32,
    /// Rotation frequencies.
    pub rope: RopeSpec,
    /// Order of the rotated pairs.
    pub rope_layout: RopeLayout,
    /// Which keys a query sees.
    pub indexing: Indexing,
}

/// Order of rotated pairs in a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Pairs `(2j, 2j + 1)`.
    Interleaved,
    /// Pairs `(j, j + n / 2)`.
    HalfSplit,
}

/// Which causal keys a query attends to.
#[derive(Clone, Debug)]
pub enum Indexing {
    /// All of them.
    Dense,
    /// Those that this layer's own indexer scores best.
    Full(IndexerSpec),
    /// Those that the nearest earlier layer with an indexer chose.
    Shared,
}

/// The indexer of DeepSeek sparse attention.
#[derive(Clone, Debug)]
pub struct IndexerSpec {
    /// Index heads.
    pub heads: usize,
    /// Dimensions of an index head and of the index key.
    pub head_dim: usize,
    /// Leading dimensions that are rotated.
    pub rope_dim: usize,
    /// Keys kept for a query.
    pub top_k: usize,
    /// Order of the rotated pairs.
    pub rope_layout: RopeLayout,
    /// Epsilon of the layer norm on the key.
    pub norm_epsilon: f32,
}

/// What happens at each position.
#[derive(Clone, Debug)]
pub enum Ffn {
    /// One gated MLP.
    Dense {
        /// Its inner width.
        width: usize,
    },
    /// Routed experts and a shared one.
    Moe(MoeSpec),
}

/// A mixture of experts.
#[derive(Clone, Debug)]
pub struct MoeSpec {
    /// Routed experts.
    pub experts: usize,
    /// Inner width of a routed expert.
    pub width: usize,
    /// Inner width of the shared expert, if there is one.
    pub shared_width: Option<usize>,
    /// How experts are chosen.
    pub router: RouterSpec,
}

/// How experts are chosen.
#[derive(Clone, Debug)]
pub enum RouterSpec {
    /// Sigmoid scores; a bias that acts on the choice alone; choice limited to the best groups (DeepSeek-V3, arXiv
    /// 2412.19437, section 2.1.2).
    SigmoidBias {
        /// Experts chosen for a position.
        top_k: usize,
        /// Groups of equal size.
        groups: usize,
        /// Groups that stay in the choice.
        groups_kept: usize,
        /// Weights are divided by their sum.
        normalise: bool,
        /// Factor on the weights.
        scale: f32,
    },
}

impl RouterSpec {
    /// Experts chosen for a position.
    #[must_use]
    pub fn top_k(&self) -> usize {
        match self {
            Self::SigmoidBias { top_k, .. } => *top_k,
        }
    }
}

/// The multi-token-prediction layer; it stands after the decoder layers and borrows embedding and head.
#[derive(Clone, Debug)]
pub struct MtpSpec {
    /// Its decoder layer.
    pub layer: LayerSpec,
}

impl ModelSpec {
    /// The decoder layers and, after them, the multi-token-prediction layer.
    pub fn all_layers(&self) -> impl Iterator<Item = &LayerSpec> {
        self.layers.iter().chain(self.mtp.as_ref().map(|mtp| &mtp.layer))
    }
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// A key is missing, has the wrong type or lies out of range.
    #[error("{key} must be {expected}; got {got}")]
    Corrupt {
        /// The key.
        key: String,
        /// What it must be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A key asks for something that this engine does not do.
    #[error("{key} = {got} is not supported")]
    Unsupported {
        /// The key.
        key: String,
        /// What is supported.
        expected: String,
        /// What it is.
        got: String,
    },
}

impl SpecError {
    /// The stable slug of the error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Corrupt { .. } => "model_corrupt",
            Self::Unsupported { .. } => "model_unsupported",
        }
    }

    /// The reason, when the "what" line does not hold it already.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        match self {
            Self::Corrupt { .. } => None,
            Self::Unsupported { expected, .. } => Some(format!("this version runs {expected}")),
        }
    }

    /// What the reader can do.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        Some(
            match self {
                Self::Corrupt { .. } => "fetch config.json again; it must come with the weights",
                Self::Unsupported { .. } => "choose a model that this version runs",
            }
            .to_owned(),
        )
    }
}
