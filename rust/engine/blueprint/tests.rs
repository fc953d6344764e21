//! Both kinds of family through one door: facts, parts that may be absent, extras, and the refusal to run.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::*;

fn oracle(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle").join(name)
}

fn outline() -> Map<String, Value> {
    let value = json!({
        "model_type": "olmoe", "vocab_size": 128, "hidden_size": 48, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "eos_token_id": 7
    });
    value.as_object().unwrap().clone()
}

#[test]
fn a_family_that_runs_gives_its_spec_and_one_that_does_not_gives_none() {
    let glm = Blueprint::read(&oracle("glm_tiny")).unwrap();
    assert!(glm.runs() && glm.has_prediction() && glm.family() == "glm_moe_dsa");
    let (slots, facts) = (glm.slots().len(), glm.facts());
    let (names, spec) = glm.runnable().unwrap();
    assert_eq!((inventory(&spec, names).len(), spec.layers.len()), (slots, facts.layers));

    let olmoe = Blueprint::parse(&outline()).unwrap();
    let facts = olmoe.facts();
    assert_eq!((facts.layers, facts.moe_layers, facts.experts, facts.experts_per_token), (2, 2, 4, 2));
    assert!(!olmoe.runs() && !olmoe.has_prediction());
    let refusal = olmoe.not_run(Path::new("/m"));
    assert_eq!(refusal.code(), "model_unsupported");
    assert!(refusal.to_string().contains("olmoe") && refusal.why().unwrap().contains("inspect"), "{refusal}");
    assert!(olmoe.runnable().is_none());
}

#[test]
fn parts_that_no_tensor_is_there_of_are_dropped_and_named() {
    let dropped = |lacks: &dyn Fn(&str) -> bool| {
        let mut blueprint = Blueprint::read(&oracle("glm_tiny")).unwrap();
        let before = blueprint.slots().len();
        let named = blueprint.drop_absent(&|name| !lacks(name));
        (named, before - blueprint.slots().len(), blueprint.facts())
    };
    let (named, fewer, _) = dropped(&|_| false);
    assert!(named.is_empty() && fewer == 0);
    let (named, fewer, facts) = dropped(&|name| name.contains(".layers.4."));
    assert_eq!(named, ["multi-token-prediction layer"]);
    assert!(fewer > 20 && !facts.has_mtp && facts.has_indexer);
    let (named, _, facts) = dropped(&|name| name.contains(".indexer."));
    assert_eq!(named, ["indexers of sparse attention", "indexer of the multi-token-prediction layer"]);
    assert!(facts.has_mtp && !facts.has_indexer);
    let (named, fewer, _) = dropped(&|name| name.contains(".layers.4.") && name.contains(".indexer."));
    assert_eq!((named.as_slice(), fewer), (&["indexer of the multi-token-prediction layer"][..], 5));
    let mut without = Blueprint::read(&oracle("glm_tiny")).unwrap();
    without.drop_prediction();
    assert!(!without.has_prediction() && without.slots().iter().all(|slot| !slot.mtp));
}

#[test]
fn extras_are_known_by_their_place() {
    let glm = Blueprint::read(&oracle("glm_tiny")).unwrap();
    assert!(glm.expected_extra("model.layers.4.shared_head.head.weight"));
    assert!(glm.expected_extra("model.layers.0.self_attn.rotary_emb.inv_freq"));
    for strange in ["model.layers.3.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.gate.extra"] {
        assert!(!glm.expected_extra(strange), "{strange}");
    }
    assert!(!Blueprint::parse(&outline()).unwrap().expected_extra("model.layers.0.self_attn.q_proj.bias"));
}

#[test]
fn end_tokens_of_both_files_are_joined_and_a_hostile_one_is_refused_by_file_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    write("config.json", &Value::Object(outline()));
    write("generation_config.json", &json!({"eos_token_id": [3, 7]}));
    assert_eq!(Blueprint::read(folder.path()).unwrap().facts().eos_token_ids, [3, 7]);
    write("generation_config.json", &json!({"eos_token_id": 128}));
    let error = Blueprint::read(folder.path()).unwrap_err();
    assert_eq!(error.code(), "model_corrupt");
    assert!(error.to_string().contains("generation_config.json") && error.to_string().contains("eos_token_id"));
    std::fs::write(folder.path().join("config.json"), "[1, 2]").unwrap();
    assert_eq!(Blueprint::read(folder.path()).unwrap_err().code(), "model_corrupt");
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    assert_eq!(Blueprint::read(folder.path()).unwrap_err().code(), "model_not_found");
}
