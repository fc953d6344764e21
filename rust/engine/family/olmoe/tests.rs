//! Every key that the family needs, missing and out of range; variants; the inventory.

use serde_json::{Map, Value, json};

use crate::family::{self, Description, Outline};
use crate::names::{Shape, TensorClass};
use crate::spec::SpecError;

fn config() -> Map<String, Value> {
    let value = json!({
        "model_type": "olmoe", "vocab_size": 128, "hidden_size": 48, "intermediate_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2,
        "norm_topk_prob": false, "clip_qkv": null, "rope_theta": 10000.0, "rope_scaling": null,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": false,
        "tie_word_embeddings": false, "eos_token_id": 103
    });
    value.as_object().unwrap().clone()
}

fn read(changes: &[(&str, Value)]) -> Result<Outline, SpecError> {
    let mut config = config();
    for (key, value) in changes {
        config.insert((*key).to_owned(), value.clone());
    }
    match family::read(&config)? {
        Description::Outline(outline) => Ok(outline),
        Description::Model { .. } => panic!("olmoe is not run"),
    }
}

#[test]
fn the_inventory_has_every_tensor_with_its_shape() {
    let outline = read(&[]).unwrap();
    // Embedding, final norm, head; eight tensors, a router and eight experts of three matrices in each of three layers.
    assert_eq!(outline.slots.len(), 3 + 3 * (8 + 1 + 8 * 3));
    let shape = |name: &str| outline.slots.iter().find(|slot| slot.name == name).map(|slot| slot.shape);
    let matrix = |rows, cols| Some(Shape::Matrix { rows, cols });
    assert_eq!(shape("model.layers.1.self_attn.q_proj.weight"), matrix(48, 48));
    assert_eq!(shape("model.layers.1.self_attn.k_proj.weight"), matrix(24, 48));
    assert_eq!(shape("model.layers.2.self_attn.k_norm.weight"), Some(Shape::Vector { len: 24 }));
    assert_eq!(shape("model.layers.2.mlp.experts.7.down_proj.weight"), matrix(48, 16));
    assert_eq!(shape("lm_head.weight"), matrix(128, 48));
    assert_eq!((outline.cached_values, outline.eos_token_ids.as_slice()), (2 * 24 * 3, &[103][..]));
    let tied = read(&[("tie_word_embeddings", json!(true))]).unwrap();
    assert!(tied.slots.iter().all(|slot| slot.class != TensorClass::Head));
    let wide = read(&[("head_dim", json!(16))]).unwrap();
    let query = wide.slots.iter().find(|slot| slot.name.ends_with("q_proj.weight")).unwrap();
    assert_eq!(query.shape, Shape::Matrix { rows: 64, cols: 48 });
}

#[test]
fn the_keys_of_the_public_container_are_enough() {
    let mut short = config();
    for key in ["max_position_embeddings", "clip_qkv", "rope_scaling", "hidden_act", "eos_token_id", "head_dim"] {
        short.remove(key);
    }
    let Ok(Description::Outline(outline)) = family::read(&short) else { panic!("not read") };
    assert_eq!(outline.context_max, 4096);
}

#[test]
fn lo_07_every_needed_key_is_missed_by_name() {
    for key in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
    ] {
        let error = read(&[(key, Value::Null)]).err().unwrap_or_else(|| panic!("{key} is not needed"));
        assert_eq!(error.code(), "model_corrupt", "{key}");
        assert!(error.to_string().starts_with(key) && error.to_string().contains("nothing"), "{error}");
    }
}

#[test]
fn a_configuration_cannot_ask_for_more_experts_than_can_be_listed() {
    let error = read(&[("num_hidden_layers", json!(4096)), ("num_experts", json!(4096))]).unwrap_err();
    assert_eq!(error.code(), "model_corrupt");
    assert!(error.to_string().contains("num_experts") && error.to_string().contains("num_hidden_layers"), "{error}");
}

#[test]
fn se_06_values_out_of_range_and_variants_are_refused_by_name() {
    for (key, value, code) in [
        ("hidden_size", json!(0), "model_corrupt"),
        ("hidden_size", json!(1u64 << 40), "model_corrupt"),
        ("vocab_size", json!(-4), "model_corrupt"),
        ("num_hidden_layers", json!("three"), "model_corrupt"),
        ("num_experts", json!(1 << 20), "model_corrupt"),
        ("num_experts_per_tok", json!(9), "model_corrupt"),
        ("num_key_value_heads", json!(3), "model_corrupt"),
        ("num_attention_heads", json!(5), "model_corrupt"),
        ("head_dim", json!(7), "model_corrupt"),
        ("clip_qkv", json!(-1.0), "model_corrupt"),
        ("rms_norm_eps", json!(0), "model_corrupt"),
        ("rope_theta", json!("big"), "model_corrupt"),
        ("tie_word_embeddings", json!(1), "model_corrupt"),
        ("eos_token_id", json!(128), "model_corrupt"),
        ("hidden_act", json!("gelu"), "model_unsupported"),
        ("attention_bias", json!(true), "model_unsupported"),
        ("rope_scaling", json!({"rope_type": "yarn"}), "model_unsupported"),
    ] {
        // A single key and value head divides any number of heads.
        let keys = if key == "num_attention_heads" { 1 } else { 2 };
        let changes = [("num_key_value_heads", json!(keys)), (key, value.clone())];
        let error = read(&changes).err().unwrap_or_else(|| panic!("{key} = {value} is taken"));
        assert_eq!(error.code(), code, "{key} = {value}");
        assert!(error.to_string().contains(key) || key == "rope_scaling", "{error}");
    }
}
