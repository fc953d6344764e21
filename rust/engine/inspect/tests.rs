//! Sums, classes and formats of checkpoints of every kind.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

/// A tensor of a file: name, element type, shape, bytes.
type Raw = (String, &'static str, Vec<usize>, usize);

/// Writes a safetensors file of zeros.
fn write(path: &Path, tensors: &[Raw]) {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, dtype, shape, bytes) in tensors {
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let text = Value::Object(header).to_string();
    let mut content = (text.len() as u64).to_le_bytes().to_vec();
    content.extend_from_slice(text.as_bytes());
    content.resize(content.len() + at, 0);
    std::fs::write(path, content).unwrap();
}

fn olmoe(folder: &Path, merged: bool) {
    let (vocab, hidden, width, experts) = (32, 64, 16, 4);
    let config = json!({
        "model_type": "olmoe", "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": width,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_experts": experts, "num_experts_per_tok": 2
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let float =
        |name: &str, shape: &[usize]| (name.to_owned(), "BF16", shape.to_vec(), 2 * shape.iter().product::<usize>());
    let mut tensors = vec![
        float("model.embed_tokens.weight", &[vocab, hidden]),
        float("lm_head.weight", &[vocab, hidden]),
        float("model.norm.weight", &[hidden]),
        float("model.layers.0.mlp.gate.weight", &[experts, hidden]),
        float("model.layers.0.self_attn.rotary_emb.inv_freq", &[8]),
    ];
    for name in ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"] {
        tensors.push(float(&format!("model.layers.0.{name}.weight"), &[hidden]));
    }
    for name in ["q", "k", "v", "o"] {
        tensors.push(float(&format!("model.layers.0.self_attn.{name}_proj.weight"), &[hidden, hidden]));
    }
    for expert in 0..experts {
        let stem = format!("model.layers.0.mlp.experts.{expert}");
        if merged {
            let (codes, scales) = (3 * width * hidden, 2 * width + hidden);
            tensors.push((format!("{stem}.merged_weight"), "I8", vec![codes], codes));
            tensors.push((format!("{stem}.qs"), "F32", vec![scales], 4 * scales));
        } else {
            tensors.push(float(&format!("{stem}.gate_proj.weight"), &[width, hidden]));
            tensors.push(float(&format!("{stem}.up_proj.weight"), &[width, hidden]));
            tensors.push(float(&format!("{stem}.down_proj.weight"), &[hidden, width]));
        }
    }
    write(&folder.join("model-00000.safetensors"), &tensors);
}

fn class<'a>(found: &'a Inspection, name: &str) -> &'a ClassSummary {
    found.classes.iter().find(|class| class.class == name).unwrap_or_else(|| panic!("no class {name}"))
}

#[test]
fn the_sums_of_a_checkpoint_agree() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle/glm_tiny");
    let found = inspect(&path).expect("the checkpoint is there");
    let tensors: u64 = found.tensors.iter().map(|tensor| tensor.bytes).sum();
    let types: u64 = found.types.iter().map(|stored| stored.bytes).sum();
    let classes: u64 = found.classes.iter().map(|class| class.bytes).sum();
    let files: u64 = found.files.iter().map(|file| file.bytes).sum();
    assert_eq!((tensors, tensors), (types, classes));
    assert!(0 < tensors && tensors < files);
    assert_eq!(found.model.container_bytes, files);
    assert_eq!((found.version, found.container.kind, found.runs), (1, "huggingface", true));
    assert!(found.absent.is_empty() && found.unused.is_empty());
    assert!(found.text.tokenizer && found.text.chat_template);
    assert!(found.tensors.iter().all(|tensor| found.files.iter().any(|file| file.file == tensor.file)));
    assert!(found.tensors.iter().all(|tensor| tensor.format.as_deref() == Some("f32")));
    assert_eq!(class(&found, "experts").formats, ["f32"]);
}

#[test]
fn a_family_that_is_not_run_is_inspected_with_split_and_with_merged_experts() {
    for (merged, kind, format, bytes) in
        [(false, "huggingface", "bf16", 2 * 3 * 1024), (true, "public", "q8", 3 * 1024 + 4 * 96)]
    {
        let folder = tempfile::tempdir().unwrap();
        olmoe(folder.path(), merged);
        let found = inspect(folder.path()).unwrap_or_else(|error| panic!("{error}: {:?}", error.why()));
        assert_eq!((found.container.kind, found.runs, found.model.family.as_str()), (kind, false, "olmoe"));
        let experts = class(&found, "experts");
        assert_eq!((experts.formats.as_slice(), experts.tensors), (&[format.to_owned()][..], 12));
        assert_eq!(experts.bytes, 4 * bytes);
        assert_eq!(found.unused, ["model.layers.0.self_attn.rotary_emb.inv_freq"]);
        let formats: BTreeMap<&str, Option<&str>> =
            found.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.format.as_deref())).collect();
        if merged {
            assert_eq!(formats["model.layers.0.mlp.experts.2.merged_weight"], Some("q8"));
            assert_eq!(formats["model.layers.0.mlp.experts.2.qs"], None);
        }
        let refused =
            crate::Model::open(folder.path(), &crate::EngineConfig::default(), &crate::NoWatch).err().unwrap();
        assert_eq!(refused.code(), "model_unsupported");
        assert!(refused.to_string().contains("olmoe"), "{refused}");
    }
}

#[test]
fn checkpoints_of_every_kind_are_inspected() {
    for (name, experts, runs) in [("glm_tiny_fp8", "fp8", true), ("olmoe", "bf16", false)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle").join(name);
        let found = inspect(&path).unwrap_or_else(|error| panic!("{error}: {:?}", error.why()));
        assert_eq!((found.container.kind, found.container.group_size, found.runs), ("huggingface", None, runs));
        assert_eq!(class(&found, "experts").formats, [experts], "{name}");
        assert!(found.unused.is_empty() && found.absent.is_empty(), "{name}: {:?}", found.unused);
    }
}

#[test]
fn a_folder_without_a_model_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert_eq!(inspect(folder.path()).expect_err("nothing is there").code(), "model_not_found");
}
