//! Opening models: what is refused, by which error, and what may be absent.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use colibri::engine::fixture::Fixture;
use colibri::engine::inspect::inspect;
use colibri::engine::{EngineConfig, EngineError, Model, NoWatch};
use colibri::kernels::Numerics;
use colibri::store::{ContextRequest, RamLimit};
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKENS: [u32; 12] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];

fn checkpoint(fixture: &Fixture) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fixture.write(folder.path()).unwrap();
    folder
}

fn refusal(path: &Path) -> EngineError {
    Model::open(path, &EngineConfig::default(), &NoWatch).err().unwrap()
}

/// Rewrites the header of a one-file checkpoint.
fn edit_header(folder: &Path, edit: impl Fn(&mut serde_json::Map<String, Value>)) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let (length, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    edit(header.as_object_mut().unwrap());
    let mut header = header.to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&header);
    file.extend_from_slice(data);
    fs::write(path, file).unwrap();
}

/// Gives tensors another name, so that they are missing and the file stays whole.
fn hide(folder: &Path, hidden: impl Fn(&str) -> bool) {
    edit_header(folder, |header| {
        let names: Vec<_> = header.keys().filter(|name| hidden(name)).cloned().collect();
        assert!(!names.is_empty());
        for name in names {
            let entry = header.remove(&name).unwrap();
            header.insert(format!("hidden.{name}"), entry);
        }
    });
}

fn edit_config(folder: &Path, key: &str, value: Value) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[key] = value;
    fs::write(path, config.to_string()).unwrap();
}

fn logits(path: &Path) -> Vec<f32> {
    let model = Model::open(path, &EngineConfig::default(), &NoWatch).unwrap();
    model.logits(&TOKENS, &NoWatch).unwrap()
}

#[test]
fn a_folder_without_a_model_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_path_buf(), folder.path().join("nowhere")] {
        let error = refusal(&path);
        assert_eq!(error.code(), "model_not_found", "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(error.fix().is_some());
    }
}

#[test]
fn a_damaged_configuration_is_named() {
    let folder = checkpoint(&Fixture::default());
    fs::write(folder.path().join("config.json"), "{\"model_type\": ").unwrap();
    let error = refusal(folder.path());
    assert_eq!(error.code(), "model_corrupt");
    assert!(error.to_string().contains("config.json"), "{error}");
    let folder = checkpoint(&Fixture::default());
    edit_config(folder.path(), "model_type", json!("abacus"));
    let error = refusal(folder.path());
    assert_eq!(error.code(), "model_unsupported");
    assert!(error.why().unwrap().contains("glm_moe_dsa"));
}

#[test]
fn all_missing_and_misshapen_tensors_are_in_one_error() {
    let folder = checkpoint(&Fixture::default());
    hide(folder.path(), |name| name.ends_with("q_a_proj.weight") || name == "lm_head.weight");
    edit_header(folder.path(), |header| header["model.norm.weight"]["shape"] = json!([8, 8]));
    let error = refusal(folder.path());
    assert_eq!(error.code(), "model_incomplete", "{error}");
    let said = format!("{error} {}", error.why().unwrap());
    for name in ["layers.0.self_attn.q_a_proj", "layers.3.self_attn.q_a_proj", "lm_head.weight", "model.norm.weight"] {
        assert!(said.contains(name), "{name} is not in: {said}");
    }
    assert!(said.contains("[8, 8]") && said.contains("[64]"), "{said}");
}

#[test]
fn a_wrong_shape_alone_is_corrupt() {
    let folder = checkpoint(&Fixture::default());
    edit_config(folder.path(), "v_head_dim", json!(24));
    let error = refusal(folder.path());
    assert_eq!(error.code(), "model_corrupt");
    assert!(error.to_string().contains("kv_b_proj") || error.why().unwrap().contains("kv_b_proj"), "{error}");
}

#[test]
fn float_types_that_are_not_read_are_refused_by_name() {
    let folder = checkpoint(&Fixture { bf16: true, ..Fixture::default() });
    edit_header(folder.path(), |header| {
        let tensor = &mut header["model.layers.0.self_attn.q_a_proj.weight"];
        tensor["dtype"] = json!("F8_E5M2");
        tensor["shape"] = json!([80, 64]);
    });
    let error = refusal(folder.path());
    assert_eq!(error.code(), "model_unsupported", "{error}");
    assert!(error.to_string().contains("F8_E5M2") && error.to_string().contains("q_a_proj"), "{error}");
}

#[test]
fn the_prediction_layer_and_its_indexer_may_be_absent() {
    let folder = checkpoint(&Fixture::default());
    let expected = logits(folder.path());
    hide(folder.path(), |name| name.starts_with("model.layers.4.self_attn.indexer."));
    let model = Model::open(folder.path(), &EngineConfig::default(), &NoWatch).unwrap();
    assert!(model.info().has_mtp);
    let trace = model.mtp_trace(&TOKENS).unwrap();
    assert!(trace.layers.last().unwrap().index_keys.is_empty());
    hide(folder.path(), |name| name.starts_with("model.layers.4."));
    let model = Model::open(folder.path(), &EngineConfig::default(), &NoWatch).unwrap();
    assert!(!model.info().has_mtp && model.mtp_trace(&TOKENS).is_err());
    assert_eq!(model.logits(&TOKENS, &NoWatch).unwrap(), expected);
}

#[test]
fn half_a_prediction_layer_is_an_error() {
    let folder = checkpoint(&Fixture::default());
    hide(folder.path(), |name| name == "model.layers.4.eh_proj.weight");
    assert_eq!(refusal(folder.path()).code(), "model_incomplete");
}

#[test]
fn all_indexers_may_be_absent_and_not_some() {
    let folder = checkpoint(&Fixture { index_top_k: 4, ..Fixture::default() });
    let sparse = logits(folder.path());
    let partly = checkpoint(&Fixture { index_top_k: 4, ..Fixture::default() });
    hide(partly.path(), |name| name.starts_with("model.layers.0.self_attn.indexer."));
    let error = refusal(partly.path());
    assert_eq!(error.code(), "model_incomplete");
    hide(folder.path(), |name| name.contains(".indexer."));
    let model = Model::open(folder.path(), &EngineConfig::default(), &NoWatch).unwrap();
    assert!(!model.info().has_indexer);
    let dense = model.logits(&TOKENS, &NoWatch).unwrap();
    assert_eq!(dense[..4 * 256], sparse[..4 * 256], "four keys are all keys");
    assert_ne!(dense, sparse);
}

#[test]
fn a_tied_head_is_the_embedding() {
    let tied = checkpoint(&Fixture { tied: true, ..Fixture::default() });
    let rows = logits(tied.path());
    assert!(rows.iter().all(|logit| logit.is_finite()));
    let untied = checkpoint(&Fixture::default());
    assert_ne!(logits(untied.path()), rows);
}

#[test]
fn a_value_that_is_not_finite_is_an_error_with_layer_and_tensor() {
    let folder = checkpoint(&Fixture::default());
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // The embedding comes first: token 5, first column.
    bytes[header + 5 * 64 * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(path, bytes).unwrap();
    let model = Model::open(folder.path(), &EngineConfig::default(), &NoWatch).unwrap();
    model.logits(&[1, 2, 3], &NoWatch).unwrap();
    let error = model.logits(&[1, 5, 3], &NoWatch).unwrap_err();
    assert_eq!(error.code(), "non_finite");
    let said = error.to_string();
    assert!(said.contains("layer 0") && said.contains("model.layers.0.self_attn"), "{said}");
}

/// Multiplies the f32 values of a tensor of a one-file checkpoint.
fn scale_tensor(folder: &Path, name: &str, factor: f32) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let offset = |index: usize| data + header[name]["data_offsets"][index].as_u64().unwrap() as usize;
    for value in bytes[offset(0)..offset(1)].as_chunks_mut::<4>().0 {
        *value = (f32::from_le_bytes(*value) * factor).to_le_bytes();
    }
    fs::write(path, bytes).unwrap();
}

/// The error of running a model, with its reason.
fn overflow(folder: &Path) -> String {
    let config = EngineConfig { numerics: Numerics::F32, ..EngineConfig::default() };
    let model = Model::open(folder, &config, &NoWatch).unwrap();
    let error = model.logits(&TOKENS, &NoWatch).unwrap_err();
    assert_eq!(error.code(), "non_finite", "{error}");
    format!("{error} | {}", error.why().unwrap())
}

#[test]
fn numbers_that_leave_the_range_are_an_error_and_not_a_row_of_zeros() {
    // Norms: their sum of squares overflows while every value is finite.
    let folder = checkpoint(&Fixture::default());
    scale_tensor(folder.path(), "model.embed_tokens.weight", 1.0e20);
    let said = overflow(folder.path());
    assert!(said.contains("layer 0") && said.contains(&folder.path().display().to_string()), "{said}");
    let folder = checkpoint(&Fixture::default());
    edit_config(folder.path(), "routed_scaling_factor", json!(9.0e37));
    assert!(overflow(folder.path()).contains("layer"));

    // Attention: all scores of a query overflow. The latent norm keeps keys small, so the query has to be large.
    let folder = checkpoint(&Fixture { index_top_k: 0, ..Fixture::default() });
    scale_tensor(folder.path(), "model.layers.1.self_attn.q_b_proj.weight", 1.0e38);
    assert!(overflow(folder.path()).contains("model.layers.1.self_attn"));
    let folder = checkpoint(&Fixture { index_top_k: 0, ..Fixture::default() });
    scale_tensor(folder.path(), "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", 1.0e20);
    assert!(overflow(folder.path()).contains("model.layers.1.self_attn.kv_a_proj"));

    // A lone key whose score is negative infinity would get no weight, and the query zeros.
    let folder = checkpoint(&Fixture { heads: 1, index_top_k: 0, ..Fixture::default() });
    scale_tensor(folder.path(), "model.layers.0.self_attn.q_b_proj.weight", 1.2e38);
    let model = Model::open(folder.path(), &EngineConfig::default(), &NoWatch).unwrap();
    let refused = (0..256).filter(|token| model.logits(&[*token], &NoWatch).is_err()).count();
    // The score of most tokens overflows, to negative infinity as often as to positive.
    assert!(refused > 200, "{refused} of 256");

    // The indexer: neither an index key nor a score may vanish in the choice.
    for (tensor, factor) in [("wk", 1.0e38), ("wq_b", 1.0e38), ("wq_b", f32::INFINITY)] {
        let folder = checkpoint(&Fixture { index_top_k: 4, ..Fixture::default() });
        scale_tensor(folder.path(), &format!("model.layers.0.self_attn.indexer.{tensor}.weight"), factor);
        let said = overflow(folder.path());
        assert!(said.contains("model.layers.0.self_attn.indexer"), "{said}");
    }
}

#[test]
fn an_expert_that_overflows_is_named_by_its_number() {
    let folder = checkpoint(&Fixture::default());
    for expert in 0..8 {
        scale_tensor(folder.path(), &format!("model.layers.2.mlp.experts.{expert}.up_proj.weight"), 3.0e38);
    }
    let said = overflow(folder.path());
    assert!(said.contains("model.layers.2.mlp.experts.") && !said.contains('{'), "{said}");
}

#[test]
fn a_bias_that_is_not_finite_is_refused_when_the_model_is_opened() {
    let folder = checkpoint(&Fixture::default());
    let name = "model.layers.1.mlp.gate.e_score_correction_bias";
    scale_tensor(folder.path(), name, f32::NAN);
    let error = refusal(folder.path());
    assert_eq!(error.code(), "non_finite");
    assert!(error.to_string().contains(name), "{error}");
    assert!(error.why().unwrap().contains(&folder.path().display().to_string()));
}

#[test]
fn configurations_that_are_no_regular_files_or_too_large_are_refused_without_waiting() {
    for name in ["config.json", "generation_config.json"] {
        let folder = checkpoint(&Fixture::default());
        let path = folder.path().join(name);
        let refused = |part: &str| {
            let error = refusal(folder.path());
            assert_eq!(error.code(), "model_corrupt", "{error}");
            let said = format!("{error} {}", error.why().unwrap());
            assert!(said.contains(&path.display().to_string()) && said.contains(part), "{part} is not in: {said}");
            let _ = fs::remove_file(&path);
        };
        let _ = fs::remove_file(&path);
        // Nobody writes into the pipe: opening it would wait for ever.
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        refused("is not a file");
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        refused("is not a file");
        fs::create_dir(&path).unwrap();
        refused("is not a file");
        fs::remove_dir(&path).unwrap();
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        refused("at most 16.8 MB");
    }
}

#[test]
fn a_folder_whose_name_is_no_text_opens_and_reports() {
    use std::os::unix::ffi::OsStrExt;
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(std::ffi::OsStr::from_bytes(b"m\xff\xfe"));
    fs::create_dir(&folder).unwrap();
    Fixture::default().write(&folder).unwrap();
    let (info, _) = Model::plan(&folder, &EngineConfig::default()).unwrap();
    assert!(serde_json::to_string(&info).unwrap().contains("m\u{fffd}\u{fffd}"));
    let report = serde_json::to_string(&inspect(&folder).unwrap()).unwrap();
    assert!(report.contains("m\u{fffd}\u{fffd}"));
    assert_eq!(logits(&folder).len(), TOKENS.len() * 256);
}

#[test]
fn a_budget_that_is_too_small_is_refused_before_anything_is_read() {
    let folder = checkpoint(&Fixture::default());
    let config = EngineConfig { ram: RamLimit::Bytes(50_000), ..EngineConfig::default() };
    let error = Model::open(folder.path(), &config, &NoWatch).err().unwrap();
    assert_eq!(error.code(), "ram_budget_too_small");
    assert!(error.why().is_some() && error.fix().is_some());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let folder = checkpoint(&Fixture::default());
    let kernels = EngineConfig { kernels: "abacus".to_owned(), ..EngineConfig::default() };
    let policy = EngineConfig { policy: "abacus".to_owned(), ..EngineConfig::default() };
    for (config, name) in [(kernels, "kernels"), (policy, "policy")] {
        let error = Model::open(folder.path(), &config, &NoWatch).err().unwrap();
        assert_eq!(error.code(), "invalid_value");
        assert!(error.to_string().contains(name) && error.to_string().contains("abacus"), "{error}");
    }
}

#[test]
fn a_plan_reads_headers_only_and_says_what_opening_does() {
    let folder = checkpoint(&Fixture::default());
    let config = EngineConfig { context: ContextRequest::Tokens(128), ..EngineConfig::default() };
    let (info, plan) = Model::plan(folder.path(), &config).unwrap();
    let model = Model::open(folder.path(), &config, &NoWatch).unwrap();
    assert_eq!(model.info(), &info);
    assert_eq!((plan.context, plan.sizes.active_experts_min), (128, 3));
    assert_eq!((info.layers, info.moe_layers, info.experts, info.experts_per_token), (4, 3, 8, 3));
    let expected = fs::metadata(folder.path().join("model.safetensors")).unwrap().len();
    assert_eq!(info.container_bytes, expected);
    assert!(info.parameters * 4 < expected && info.parameters * 4 + 100_000 > expected);
}
