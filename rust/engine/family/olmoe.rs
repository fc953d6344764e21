//! OLMoE (`olmoe`, arXiv 2409.02060): grouped-query attention with norms over the whole query and key, softmax router,
//! no shared expert, every layer a mixture. Described after the `transformers` implementation; not run yet.
//!
//! Published containers join the three matrices of an expert in one tensor; the catalog finds them under these names.

use serde_json::json;

use super::{Fields, Outline};
use crate::names::{GatedNames, Inventory, TensorClass};
use crate::spec::SpecError;

/// `model_type` in `config.json`.
pub(super) const MODEL_TYPE: &str = "olmoe";

/// Longest context when the configuration names none, as in `transformers`.
const DEFAULT_CONTEXT: usize = 4096;
/// Epsilon of the norms when the configuration names none, as in `transformers`.
const DEFAULT_EPSILON: f64 = 1e-5;
/// Rotation base when the configuration names none, as in `transformers`.
const DEFAULT_THETA: f64 = 10_000.0;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
const FINAL_NORM: &str = "model.norm.weight";
const INPUT_NORM: &str = "model.layers.{layer}.input_layernorm.weight";
const POST_NORM: &str = "model.layers.{layer}.post_attention_layernorm.weight";
const QUERY: &str = "model.layers.{layer}.self_attn.q_proj.weight";
const KEY: &str = "model.layers.{layer}.self_attn.k_proj.weight";
const VALUE: &str = "model.layers.{layer}.self_attn.v_proj.weight";
const OUTPUT: &str = "model.layers.{layer}.self_attn.o_proj.weight";
const QUERY_NORM: &str = "model.layers.{layer}.self_attn.q_norm.weight";
const KEY_NORM: &str = "model.layers.{layer}.self_attn.k_norm.weight";
const ROUTER: &str = "model.layers.{layer}.mlp.gate.weight";
const EXPERT: GatedNames = GatedNames {
    gate: "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
    up: "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
    down: "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
};

/// Sizes of attention.
struct Attention {
    query: usize,
    key: usize,
}

/// Reads a configuration.
pub(super) fn outline(config: &Fields<'_>) -> Result<Outline, SpecError> {
    refuse_variants(config)?;
    let vocab_size = config.size("vocab_size", 1, 1 << 24)?;
    let hidden = config.size("hidden_size", 1, 1 << 20)?;
    let layers = config.size("num_hidden_layers", 1, 4096)?;
    let experts = config.size("num_experts", 1, 4096)?;
    config.bounded_experts(layers, "num_experts", experts)?;
    let width = config.size("intermediate_size", 1, 1 << 20)?;
    let experts_per_token = config.size("num_experts_per_tok", 1, experts)?;
    let attention = attention(config, hidden)?;
    let tied = config.flag_or("tie_word_embeddings", false)?;
    let mut list = Inventory::default();
    list.matrix(EMBEDDING, vocab_size, hidden, TensorClass::Embedding);
    for layer in 0..layers {
        list.layer = Some(layer);
        list.vector(INPUT_NORM, hidden, TensorClass::Norm);
        list.vector(POST_NORM, hidden, TensorClass::Norm);
        list.matrix(QUERY, attention.query, hidden, TensorClass::Attention);
        list.matrix(KEY, attention.key, hidden, TensorClass::Attention);
        list.matrix(VALUE, attention.key, hidden, TensorClass::Attention);
        list.matrix(OUTPUT, hidden, attention.query, TensorClass::Attention);
        list.vector(QUERY_NORM, attention.query, TensorClass::Norm);
        list.vector(KEY_NORM, attention.key, TensorClass::Norm);
        list.matrix(ROUTER, experts, hidden, TensorClass::Router);
        for expert in 0..experts {
            list.gated(&EXPERT, width, hidden, TensorClass::Expert, Some(expert));
        }
    }
    list.layer = None;
    list.vector(FINAL_NORM, hidden, TensorClass::Norm);
    if !tied {
        list.matrix(HEAD, vocab_size, hidden, TensorClass::Head);
    }
    Ok(Outline {
        family: MODEL_TYPE,
        vocab_size,
        hidden_size: hidden,
        context_max: config.size_or("max_position_embeddings", DEFAULT_CONTEXT, 1, 1 << 30)?,
        layers,
        moe_layers: layers,
        experts,
        experts_per_token,
        cached_values: 2 * attention.key * layers,
        row_values: 6 * hidden + 3 * attention.query + 2 * attention.key + experts_per_token * (3 * width + hidden),
        head: HEAD,
        eos_token_ids: config.tokens("eos_token_id", vocab_size)?,
        slots: list.slots,
    })
}

/// Keys that, with another value, describe a model that this family does not cover; and keys that running needs.
fn refuse_variants(config: &Fields<'_>) -> Result<(), SpecError> {
    config.only("hidden_act", &json!("silu"))?;
    config.only("attention_bias", &json!(false))?;
    config.flag_or("norm_topk_prob", false)?;
    config.positive_or("rms_norm_eps", DEFAULT_EPSILON)?;
    config.positive_or("clip_qkv", f64::from(f32::MAX) / 2.0)?;
    for parameters in [config.object("rope_parameters")?, config.object("rope_scaling")?].into_iter().flatten() {
        parameters.only("rope_type", &json!("default"))?;
        parameters.only("type", &json!("default"))?;
        parameters.positive_or("rope_theta", DEFAULT_THETA)?;
    }
    config.positive_or("rope_theta", DEFAULT_THETA)?;
    Ok(())
}

/// Widths of the query, and of the key and the value.
fn attention(config: &Fields<'_>, hidden: usize) -> Result<Attention, SpecError> {
    let heads = config.size("num_attention_heads", 1, 1024)?;
    let key_heads = config.size_or("num_key_value_heads", heads, 1, 1024)?;
    if heads % key_heads != 0 {
        return Err(config.relation(
            "num_key_value_heads",
            format!("a divisor of num_attention_heads = {heads}"),
            key_heads,
        ));
    }
    if config.get("head_dim").is_none() && !hidden.is_multiple_of(heads) {
        let expected = format!("a divisor of hidden_size = {hidden}, as there is no head_dim");
        return Err(config.relation("num_attention_heads", expected, heads));
    }
    let head_dim = config.size_or("head_dim", hidden / heads, 2, 8192)?;
    if head_dim % 2 != 0 {
        let key = if config.get("head_dim").is_some() { "head_dim" } else { "hidden_size" };
        return Err(config.relation(key, "even for each head: dimensions are rotated in pairs".to_owned(), head_dim));
    }
    Ok(Attention { query: heads * head_dim, key: key_heads * head_dim })
}

#[cfg(test)]
mod tests;
