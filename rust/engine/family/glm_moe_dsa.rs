//! GLM-5.x (`glm_moe_dsa`): latent attention, sparse-attention indexer with full and shared layers, sigmoid router
//! with correction bias, one shared expert, leading dense layers, one multi-token-prediction layer. Follows the
//! `transformers` implementation, also where it departs from the configuration: the two latent norms use an epsilon
//! of 1e-6 whatever `rms_norm_eps` says, and `head_dim` plays no part.

use colibri_kernels::ops::{RopeScaling, RopeSpec};
use serde_json::{Value, json};

use super::Fields;
use crate::names::{GatedNames, IndexerNames, MlaNames, MtpNames, WeightNames};
use crate::spec::{
    Ffn, IndexerSpec, Indexing, LayerSpec, Mixer, MlaSpec, ModelSpec, MoeSpec, MtpSpec, RopeLayout, RouterSpec,
    SpecError,
};

/// `model_type` in `config.json`.
pub(super) const MODEL_TYPE: &str = "glm_moe_dsa";

/// Epsilon of the norms on the query and the key-value latent, fixed in `transformers`.
const LATENT_NORM_EPSILON: f32 = 1e-6;
/// Epsilon of the layer norm on index keys, fixed in `transformers`.
const INDEX_NORM_EPSILON: f32 = 1e-6;
/// Rotation base when the configuration names none.
const DEFAULT_THETA: f64 = 10_000.0;

/// Tensor names of the published checkpoints.
pub(super) const NAMES: WeightNames = WeightNames {
    embedding: "model.embed_tokens.weight",
    head: "lm_head.weight",
    final_norm: "model.norm.weight",
    input_norm: "model.layers.{layer}.input_layernorm.weight",
    post_norm: "model.layers.{layer}.post_attention_layernorm.weight",
    mla: MlaNames {
        q_a: "model.layers.{layer}.self_attn.q_a_proj.weight",
        q_a_norm: "model.layers.{layer}.self_attn.q_a_layernorm.weight",
        q_b: "model.layers.{layer}.self_attn.q_b_proj.weight",
        kv_a: "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight",
        kv_a_norm: "model.layers.{layer}.self_attn.kv_a_layernorm.weight",
        kv_b: "model.layers.{layer}.self_attn.kv_b_proj.weight",
        o: "model.layers.{layer}.self_attn.o_proj.weight",
    },
    indexer: IndexerNames {
        q: "model.layers.{layer}.self_attn.indexer.wq_b.weight",
        k: "model.layers.{layer}.self_attn.indexer.wk.weight",
        k_norm: "model.layers.{layer}.self_attn.indexer.k_norm.weight",
        k_norm_bias: "model.layers.{layer}.self_attn.indexer.k_norm.bias",
        weights: "model.layers.{layer}.self_attn.indexer.weights_proj.weight",
    },
    dense: GatedNames {
        gate: "model.layers.{layer}.mlp.gate_proj.weight",
        up: "model.layers.{layer}.mlp.up_proj.weight",
        down: "model.layers.{layer}.mlp.down_proj.weight",
    },
    shared: GatedNames {
        gate: "model.layers.{layer}.mlp.shared_experts.gate_proj.weight",
        up: "model.layers.{layer}.mlp.shared_experts.up_proj.weight",
        down: "model.layers.{layer}.mlp.shared_experts.down_proj.weight",
    },
    expert: GatedNames {
        gate: "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
        up: "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        down: "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
    },
    router: "model.layers.{layer}.mlp.gate.weight",
    router_bias: "model.layers.{layer}.mlp.gate.e_score_correction_bias",
    mtp: MtpNames {
        embedding_norm: "model.layers.{layer}.enorm.weight",
        hidden_norm: "model.layers.{layer}.hnorm.weight",
        projection: "model.layers.{layer}.eh_proj.weight",
        head_norm: "model.layers.{layer}.shared_head.norm.weight",
    },
};

/// Reads a configuration.
pub(super) fn spec(config: &Fields<'_>) -> Result<ModelSpec, SpecError> {
    refuse_variants(config)?;
    let count = config.size("num_hidden_layers", 1, 4096)?;
    let vocab_size = config.size("vocab_size", 1, 1 << 24)?;
    let mla = attention(config)?;
    let schedule = indexing(config, count, mla.rope_dim)?;
    let moe_layers = moe_layers(config, count)?;
    let dense = if moe_layers.contains(&false) { Some(config.size("intermediate_size", 1, 1 << 20)?) } else { None };
    let mtp_layers = config.size_or("num_nextn_predict_layers", 0, 0, 1)?;
    let moe = if mtp_layers > 0 || moe_layers.contains(&true) { Some(mixture(config, count)?) } else { None };
    let ffn = |is_moe: bool| match (is_moe, dense, &moe) {
        (false, Some(width), _) => Ok(Ffn::Dense { width }),
        (true, _, Some(moe)) => Ok(Ffn::Moe(moe.clone())),
        _ => Err(config.missing("n_routed_experts", "present in a model with expert layers")),
    };
    let layers = schedule.iter().zip(&moe_layers).map(|(indexing, is_moe)| {
        let mixer = Mixer::Mla(MlaSpec { indexing: indexing.clone(), ..mla.clone() });
        Ok(LayerSpec { mixer, ffn: ffn(*is_moe)? })
    });
    let layers = layers.collect::<Result<Vec<_>, SpecError>>()?;
    // The prediction layer always has its own indexer.
    let own = indexer(config, mla.rope_dim)?.map_or(Indexing::Dense, Indexing::Full);
    let mtp = match mtp_layers {
        0 => None,
        _ => {
            Some(MtpSpec { layer: LayerSpec { mixer: Mixer::Mla(MlaSpec { indexing: own, ..mla }), ffn: ffn(true)? } })
        }
    };
    #[expect(clippy::cast_possible_truncation, reason = "norms are computed in 32 bits")]
    let norm_epsilon = config.positive("rms_norm_eps")? as f32;
    Ok(ModelSpec {
        family: MODEL_TYPE,
        vocab_size,
        hidden_size: config.size("hidden_size", 1, 1 << 20)?,
        context_max: config.size("max_position_embeddings", 1, 1 << 30)?,
        norm_epsilon,
        tied_head: config.flag_or("tie_word_embeddings", false)?,
        layers,
        mtp,
        eos_token_ids: config.tokens("eos_token_id", vocab_size)?,
    })
}

/// Keys that, with another value, describe a model that this family does not cover.
fn refuse_variants(config: &Fields<'_>) -> Result<(), SpecError> {
    config.only("hidden_act", &json!("silu"))?;
    config.only("attention_bias", &json!(false))?;
    config.only("scoring_func", &json!("sigmoid"))?;
    config.only("topk_method", &json!("noaux_tc"))?;
    config.only("moe_layer_freq", &json!(1))?;
    config.only("rope_interleave", &json!(true))?;
    if let Some(quantisation) = config.object("quantization_config")? {
        // Containers of an FP8 checkpoint keep its configuration; whether weights are FP8 is told by the tensors.
        quantisation.only("quant_method", &json!("fp8"))?;
    }
    Ok(())
}

fn attention(config: &Fields<'_>) -> Result<MlaSpec, SpecError> {
    let heads = config.size("num_attention_heads", 1, 1024)?;
    let nope_dim = config.size("qk_nope_head_dim", 1, 4096)?;
    let rope_dim = config.size("qk_rope_head_dim", 2, 4096)?;
    if rope_dim % 2 != 0 {
        return Err(config.relation("qk_rope_head_dim", "even: dimensions are rotated in pairs".to_owned(), rope_dim));
    }
    let head_dim = config.size_or("qk_head_dim", nope_dim + rope_dim, 1, 8192)?;
    if head_dim != nope_dim + rope_dim {
        let sum = format!("qk_nope_head_dim + qk_rope_head_dim = {}", nope_dim + rope_dim);
        return Err(config.relation("qk_head_dim", sum, head_dim));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "scores are computed in 32 bits")]
    let softmax_scale = (1.0 / (head_dim as f64).sqrt()) as f32;
    Ok(MlaSpec {
        heads,
        query_rank: config.size("q_lora_rank", 1, 1 << 16)?,
        latent_rank: config.size("kv_lora_rank", 1, 1 << 16)?,
        nope_dim,
        rope_dim,
        value_dim: config.size("v_head_dim", 1, 4096)?,
        latent_norm_epsilon: LATENT_NORM_EPSILON,
        softmax_scale,
        rope: rope(config)?,
        rope_layout: RopeLayout::Interleaved,
        indexing: Indexing::Dense,
    })
}

/// Rotation from `rope_parameters`, or from the older `rope_theta` and `rope_scaling`.
fn rope(config: &Fields<'_>) -> Result<RopeSpec, SpecError> {
    let parameters = config.object("rope_parameters")?;
    let theta = match &parameters {
        Some(parameters) if parameters.get("rope_theta").is_some() => parameters.positive("rope_theta")?,
        _ => config.positive_or("rope_theta", DEFAULT_THETA)?,
    };
    let scaling = match (&parameters, config.object("rope_scaling")?) {
        (Some(parameters), _) => scaling(parameters)?,
        (None, Some(parameters)) => scaling(&parameters)?,
        (None, None) => RopeScaling::None,
    };
    Ok(RopeSpec { theta, scaling })
}

fn scaling(parameters: &Fields<'_>) -> Result<RopeScaling, SpecError> {
    let key = if parameters.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = if parameters.get(key).is_some() { parameters.text(key)? } else { "default" };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: parameters.positive("factor")? }),
        _ => Err(parameters.unsupported(key, "default and linear rotation for this family", &json!(kind))),
    }
}

/// The indexer's shapes; `None` if the configuration has no sparse attention.
fn indexer(config: &Fields<'_>, rope_dim: usize) -> Result<Option<IndexerSpec>, SpecError> {
    if config.get("index_topk").is_none() {
        return Ok(None);
    }
    let head_dim = config.size("index_head_dim", 1, 4096)?;
    if head_dim < rope_dim {
        return Err(config.relation("index_head_dim", format!("at least qk_rope_head_dim = {rope_dim}"), head_dim));
    }
    let interleaved = config.flag_or("indexer_rope_interleave", true)?;
    Ok(Some(IndexerSpec {
        heads: config.size("index_n_heads", 1, 1024)?,
        head_dim,
        rope_dim,
        top_k: config.size("index_topk", 1, 1 << 30)?,
        rope_layout: if interleaved { RopeLayout::Interleaved } else { RopeLayout::HalfSplit },
        norm_epsilon: INDEX_NORM_EPSILON,
    }))
}

/// Which layers have their own indexer: an explicit list or pattern wins over frequency and offset.
fn indexing(config: &Fields<'_>, count: usize, rope_dim: usize) -> Result<Vec<Indexing>, SpecError> {
    let Some(indexer) = indexer(config, rope_dim)? else { return Ok(vec![Indexing::Dense; count]) };
    let (key, full) = if let Some(words) = config.words("indexer_types", count, &["full", "shared"])? {
        ("indexer_types", words.iter().map(|word| *word == 0).collect())
    } else if config.get("index_topk_pattern").is_some() {
        ("index_topk_pattern", pattern(config, count)?)
    } else {
        let frequency = config.size_or("index_topk_freq", 1, 1, 4096)?;
        let offset = config.size_or("index_skip_topk_offset", 2, 0, 4096)?;
        let full = |layer: usize| (layer + 1).saturating_sub(offset) % frequency == 0;
        ("index_skip_topk_offset", (0..count).map(full).collect::<Vec<_>>())
    };
    if full.first() == Some(&false) {
        let expected = "a full indexer in layer 0: a shared layer needs an earlier full one";
        return Err(config.corrupt(key, expected, config.get(key).unwrap_or(&Value::Null)));
    }
    let indexing = |full| if full { Indexing::Full(indexer.clone()) } else { Indexing::Shared };
    Ok(full.into_iter().map(indexing).collect())
}

/// `index_topk_pattern`: one letter for each layer, F for full and S for shared.
fn pattern(config: &Fields<'_>, count: usize) -> Result<Vec<bool>, SpecError> {
    let key = "index_topk_pattern";
    let text = config.text(key)?;
    let letters = text.chars().map(|letter| match letter {
        'F' => Some(true),
        'S' => Some(false),
        _ => None,
    });
    let letters = letters.collect::<Option<Vec<_>>>().filter(|letters| letters.len() == count);
    letters.ok_or_else(|| config.corrupt(key, &format!("{count} letters, each F or S"), &json!(text)))
}

/// Which layers have experts: an explicit list wins over the number of leading dense layers.
fn moe_layers(config: &Fields<'_>, count: usize) -> Result<Vec<bool>, SpecError> {
    if let Some(words) = config.words("mlp_layer_types", count, &["dense", "sparse"])? {
        return Ok(words.into_iter().map(|word| word == 1).collect());
    }
    let dense = config.size("first_k_dense_replace", 0, count)?;
    Ok((0..count).map(|layer| layer >= dense).collect())
}

fn mixture(config: &Fields<'_>, layers: usize) -> Result<MoeSpec, SpecError> {
    let experts = config.size("n_routed_experts", 1, 4096)?;
    config.bounded_experts(layers, "n_routed_experts", experts)?;
    let width = config.size("moe_intermediate_size", 1, 1 << 20)?;
    let shared = config.size_or("n_shared_experts", 0, 0, 64)?;
    let groups = config.size_or("n_group", 1, 1, 4096)?;
    if experts % groups != 0 || (groups > 1 && experts / groups < 2) {
        let expected = format!("a divisor of n_routed_experts = {experts} that leaves two experts or more in a group");
        return Err(config.relation("n_group", expected, groups));
    }
    let groups_kept = config.size_or("topk_group", groups, 1, groups)?;
    let top_k = config.size("num_experts_per_tok", 1, groups_kept * (experts / groups))?;
    #[expect(clippy::cast_possible_truncation, reason = "expert weights are computed in 32 bits")]
    let scale = config.positive_or("routed_scaling_factor", 1.0)? as f32;
    let normalise = config.flag_or("norm_topk_prob", true)?;
    let router = RouterSpec::SigmoidBias { top_k, groups, groups_kept, normalise, scale };
    Ok(MoeSpec { experts, width, shared_width: (shared > 0).then_some(shared * width), router })
}

#[cfg(test)]
mod tests;
