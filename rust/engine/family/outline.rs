//! What a family that is described, but not run, says of a model: enough to inspect, plan and convert it.

use crate::names::TensorSlot;

/// A model that this engine knows the parts of.
#[derive(Clone, Debug)]
pub struct Outline {
    /// `model_type` of the family.
    pub family: &'static str,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Longest sequence that the model was made for.
    pub context_max: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Decoder layers with routed experts.
    pub moe_layers: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Routed experts chosen for a token in a layer.
    pub experts_per_token: usize,
    /// Values that all layers together keep of a token.
    pub cached_values: usize,
    /// Values that one row of a forward pass needs at the same time, from above.
    pub row_values: usize,
    /// Name of the head's tensor, which a tied model does not need.
    pub head: &'static str,
    /// Tokens that end a text, ascending, without duplicates.
    pub eos_token_ids: Vec<u32>,
    /// Every tensor, in the order of use.
    pub slots: Vec<TensorSlot>,
}
