//! Every key that the family needs, missing and out of range; schedules; variants.

use serde_json::{Map, Value, json};

use crate::family::{self, Description};
use crate::spec::{Ffn, Indexing, Mixer, ModelSpec, RopeLayout, SpecError};

fn config() -> Map<String, Value> {
    let value = json!({
        "model_type": "glm_moe_dsa", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96,
        "moe_intermediate_size": 16, "num_hidden_layers": 6, "first_k_dense_replace": 1, "num_attention_heads": 4,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "q_lora_rank": 40, "kv_lora_rank": 24,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "qk_head_dim": 24, "v_head_dim": 20, "head_dim": 16,
        "index_topk": 8, "index_head_dim": 16, "index_n_heads": 4, "n_group": 2, "topk_group": 1,
        "norm_topk_prob": true, "routed_scaling_factor": 2.5, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "num_nextn_predict_layers": 1, "eos_token_id": [481, 7, 481],
        "rope_parameters": {"rope_theta": 8e6, "rope_type": "default"}
    });
    value.as_object().unwrap().clone()
}

fn read(config: &Map<String, Value>) -> Result<ModelSpec, SpecError> {
    match family::read(config)? {
        Description::Model { spec, .. } => Ok(spec),
        Description::Outline(_) => panic!("this family is run"),
    }
}

fn read_with(changes: &[(&str, Value)]) -> Result<ModelSpec, SpecError> {
    let mut config = config();
    for (key, value) in changes {
        config.insert((*key).to_owned(), value.clone());
    }
    read(&config)
}

fn schedule(spec: &ModelSpec) -> String {
    let letter = |layer: &crate::spec::LayerSpec| match &layer.mixer {
        Mixer::Mla(mla) => match mla.indexing {
            Indexing::Dense => 'D',
            Indexing::Full(_) => 'F',
            Indexing::Shared => 'S',
        },
    };
    spec.layers.iter().map(letter).collect()
}

#[test]
fn a_whole_configuration_is_read() {
    let spec = read(&config()).unwrap();
    assert_eq!((spec.layers.len(), spec.hidden_size, spec.vocab_size, spec.context_max), (6, 64, 512, 4096));
    assert_eq!(spec.eos_token_ids, [7, 481]);
    assert!(matches!(spec.layers[0].ffn, Ffn::Dense { width: 96 }));
    assert!(matches!(&spec.layers[1].ffn, Ffn::Moe(moe) if moe.experts == 8 && moe.shared_width == Some(16)));
    let Mixer::Mla(mla) = &spec.layers[3].mixer;
    assert!((mla.rope.theta - 8e6).abs() < 1e-3 && (mla.latent_norm_epsilon - 1e-6).abs() < 1e-12);
    assert!((mla.softmax_scale - 24f32.sqrt().recip()).abs() < 1e-7);
    assert!(spec.mtp.is_some() && !spec.tied_head);
}

#[test]
fn lo_07_every_needed_key_is_missed_by_name() {
    for key in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "first_k_dense_replace",
        "num_attention_heads",
        "n_routed_experts",
        "num_experts_per_tok",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "index_head_dim",
        "index_n_heads",
        "max_position_embeddings",
        "rms_norm_eps",
    ] {
        let mut config = config();
        config.remove(key);
        let error = read(&config).err().unwrap_or_else(|| panic!("{key} is not needed"));
        assert_eq!(error.code(), "model_corrupt", "{key}");
        assert!(error.to_string().starts_with(key) && error.to_string().contains("nothing"), "{error}");
    }
}

#[test]
fn se_06_values_out_of_range_are_refused_with_expected_and_got() {
    for (key, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-1)),
        ("hidden_size", json!("2048")),
        ("hidden_size", json!(2048.5)),
        ("hidden_size", json!(null)),
        ("kv_lora_rank", json!(0)),
        ("first_k_dense_replace", json!(99)),
        ("qk_rope_head_dim", json!(128)),
        ("hidden_size", json!(1u64 << 40)),
        ("num_hidden_layers", json!("six")),
        ("num_experts_per_tok", json!(9)),
        ("num_experts_per_tok", json!(5)),
        ("n_group", json!(3)),
        ("n_group", json!(8)),
        ("topk_group", json!(3)),
        ("qk_rope_head_dim", json!(7)),
        ("qk_head_dim", json!(25)),
        ("index_head_dim", json!(4)),
        ("rms_norm_eps", json!(0)),
        ("rms_norm_eps", json!(1e300)),
        ("eos_token_id", json!(512)),
        ("eos_token_id", json!([1, -1])),
        ("num_nextn_predict_layers", json!(2)),
        ("tie_word_embeddings", json!(1)),
        ("mlp_layer_types", json!(["dense"])),
        ("indexer_types", json!(["full", "full", "full", "full", "full", "half"])),
        ("rope_parameters", json!(3)),
        ("index_topk_pattern", json!("FFSSF")),
        ("index_topk", json!(0)),
    ] {
        let error = read_with(&[(key, value.clone())]).err().unwrap_or_else(|| panic!("{key} = {value} is taken"));
        assert_eq!(error.code(), "model_corrupt", "{key} = {value}");
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn variants_that_are_not_covered_are_unsupported_by_name() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("scoring_func", json!("softmax")),
        ("topk_method", json!("greedy")),
        ("moe_layer_freq", json!(2)),
        ("rope_interleave", json!(false)),
        ("rope_parameters", json!({"rope_theta": 1e4, "rope_type": "yarn"})),
        ("quantization_config", json!({"quant_method": "awq"})),
    ] {
        let error = read_with(&[(key, value.clone())]).err().unwrap_or_else(|| panic!("{key} = {value} is taken"));
        assert_eq!(error.code(), "model_unsupported", "{key} = {value}");
    }
}

#[test]
fn the_indexer_schedule_comes_from_list_then_pattern_then_frequency() {
    let types = json!(["full", "full", "shared", "shared", "full", "shared"]);
    let frequency = [("index_topk_freq", json!(2)), ("index_skip_topk_offset", json!(1))];
    let pattern = ("index_topk_pattern", json!("FSSSFS"));
    assert_eq!(schedule(&read(&config()).unwrap()), "FFFFFF");
    assert_eq!(schedule(&read_with(&frequency).unwrap()), "FSFSFS");
    assert_eq!(schedule(&read_with(&[pattern.clone(), frequency[0].clone()]).unwrap()), "FSSSFS");
    assert_eq!(schedule(&read_with(&[("indexer_types", types), pattern, frequency[0].clone()]).unwrap()), "FFSSFS");
    let deep = [("num_hidden_layers", json!(12)), ("index_topk_freq", json!(4)), ("index_skip_topk_offset", json!(3))];
    assert_eq!(schedule(&read_with(&deep).unwrap()), "FFFSSSFSSSFS");
    let mut dense = config();
    dense.remove("index_topk");
    assert_eq!(schedule(&read(&dense).unwrap()), "DDDDDD");
    let orphan = read_with(&[("index_topk_pattern", json!("SFFFFF"))]).unwrap_err();
    assert!(orphan.to_string().contains("index_topk_pattern"), "{orphan}");
}

#[test]
fn nu_10_the_index_rotation_is_interleaved_unless_the_configuration_says_otherwise() {
    let layout = |spec: &ModelSpec| match &spec.layers[0].mixer {
        Mixer::Mla(mla) => match &mla.indexing {
            Indexing::Full(indexer) => indexer.rope_layout,
            other => panic!("{other:?}"),
        },
    };
    assert_eq!(layout(&read(&config()).unwrap()), RopeLayout::Interleaved);
    assert_eq!(layout(&read_with(&[("indexer_rope_interleave", json!(false))]).unwrap()), RopeLayout::HalfSplit);
}

#[test]
fn older_rotation_keys_and_explicit_expert_layers_are_read() {
    let mut old = config();
    old.remove("rope_parameters");
    old.insert("rope_theta".to_owned(), json!(5e5));
    old.insert("rope_scaling".to_owned(), json!({"type": "linear", "factor": 2.0}));
    let Mixer::Mla(mla) = &read(&old).unwrap().layers[0].mixer;
    assert!((mla.rope.theta - 5e5).abs() < 1e-6);
    let types = json!(["dense", "dense", "sparse", "dense", "sparse", "sparse"]);
    let spec = read_with(&[("mlp_layer_types", types)]).unwrap();
    let dense = spec.layers.iter().map(|layer| matches!(layer.ffn, Ffn::Dense { .. })).collect::<Vec<_>>();
    assert_eq!(dense, [true, true, false, true, false, false]);
}
