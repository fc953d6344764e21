//! Containers with shards missing, and what names the files that must be fetched.

use std::fs;
use std::path::Path;

use colibri::kernels::Format;
use tempfile::TempDir;

use crate::files::{PassFormats, copy_configuration, public_tensors, read, write_files};
use crate::{open, oracle, refusal};

/// The container of a checkpoint of four layers and a prediction layer in many shards: five of main layers, three of the
/// prediction layer, one of indexers.
fn container() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let formats = PassFormats { layers: 4, main: Format::Int4Row, prediction: Format::Int8Row };
    let tensors = public_tensors(&read(&oracle("glm_tiny")), formats).into_iter().map(|(file, tensor)| {
        let layer: Option<usize> =
            tensor.name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let file = match (file, layer) {
            ("out-00000.safetensors", layer) => format!("out-{:05}.safetensors", layer.map_or(0, |layer| layer + 1)),
            ("out-mtp-00000.safetensors", _) => {
                let part =
                    if tensor.name.contains(".experts.") { 1 } else { usize::from(tensor.name.contains(".self")) * 2 };
                format!("out-mtp-{part:05}.safetensors")
            }
            (file, _) => file.to_owned(),
        };
        (file, tensor)
    });
    write_files(folder.path(), tensors.collect());
    copy_configuration(&oracle("glm_tiny"), folder.path());
    folder
}

fn remove(folder: &Path, file: &str) {
    fs::remove_file(folder.join(format!("{file}.safetensors"))).unwrap();
}

#[test]
fn lo_01_a_missing_shard_of_a_public_container_is_named_with_its_tensors() {
    assert!(open(container().path()).is_ok());
    let cases = [
        ("out-00000", "no out-00000", "model.embed_tokens.weight"),
        ("out-00002", "without out-00002", "model.layers.1.input_layernorm.weight"),
        ("out-00004", "out-00000 to out-00003", "model.layers.3.input_layernorm.weight"),
        ("out-mtp-00000", "no out-mtp-00000", "model.layers.4.eh_proj.weight"),
        ("out-mtp-00001", "without out-mtp-00001", "model.layers.4.mlp.experts.0.gate_proj.weight"),
        ("out-mtp-00002", "out-mtp-00000 to out-mtp-00001", "model.layers.4.self_attn.q_a_proj.weight"),
    ];
    for (gone, numbers, tensor) in cases {
        let folder = container();
        remove(folder.path(), gone);
        let (code, text) = refusal(folder.path());
        assert_eq!(code, "model_incomplete", "{gone}: {text}");
        for part in
            ["8 shards", numbers, tensor, "shards after the last ones may be missing", "fetch the missing shards"]
        {
            assert!(text.contains(part), "{gone}: {part:?} is not in: {text}");
        }
    }
}

#[test]
fn cv_13_a_container_without_middle_layers_is_refused_with_what_is_missing() {
    let folder = container();
    for gone in ["out-00002", "out-00003"] {
        remove(folder.path(), gone);
    }
    let (code, text) = refusal(folder.path());
    assert_eq!(code, "model_incomplete");
    for part in ["without out-00002, out-00003", "model.layers.1.", "more faults"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let error = open(folder.path()).err().unwrap();
    let colibri::engine::EngineError::Store(error) = error else { panic!("{error}") };
    let named = |layer: &str| error.faults().iter().filter(|fault| fault.what.contains(layer)).count();
    // Every tensor of the two layers: eight experts and a shared one of three matrices, attention, norms and router.
    assert_eq!((named("model.layers.1."), named("model.layers.2.")), (38, 38));
    assert_eq!(named("model.layers.3."), 0);
}

#[test]
fn whole_families_of_shards_may_be_absent() {
    let folder = container();
    for gone in ["out-mtp-00000", "out-mtp-00001", "out-mtp-00002", "out-idx-00000"] {
        remove(folder.path(), gone);
    }
    let model = open(folder.path()).unwrap();
    assert!(!model.info().has_mtp && !model.info().has_indexer);
    // Half a family is none of that: scales of the prediction layer alone.
    let folder = container();
    let whole = fs::read(folder.path().join("out-mtp-00001.safetensors")).unwrap();
    for gone in ["out-mtp-00000", "out-mtp-00001", "out-mtp-00002"] {
        remove(folder.path(), gone);
    }
    let start = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&whole[8..start]).unwrap();
    let scales = header.into_iter().filter(|(name, _)| name.ends_with(".qs"));
    let tensors = scales.map(|(name, entry)| {
        let [first, end] = [0, 1].map(|index| entry["data_offsets"][index].as_u64().unwrap() as usize);
        let bytes = whole[start + first..start + end].to_vec();
        let tensor = crate::files::Tensor { name, dtype: "F32", shape: vec![bytes.len() / 4], bytes };
        ("out-mtp-00001.safetensors".to_owned(), tensor)
    });
    write_files(folder.path(), tensors.collect());
    let (code, text) = refusal(folder.path());
    assert_eq!(code, "model_incomplete");
    assert!(text.contains("model.layers.4.mlp.experts.0.gate_proj.weight`"), "{text}");
}
