//! Conversion of a tiny model made here: round trip, alignment, determinism, refusals, and that nothing half-written
//! is left.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use colibri_kernels::format::{decode_row, encode};
use colibri_kernels::matrix::MatrixView;
use colibri_store::catalog::{Catalog, WeightLocation};
use colibri_store::container::Dtype;
use colibri_store::container::writer::{ShardPlan, ShardWriter};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::plan::StorageClass;
use super::*;
use crate::config::{Control, NoWatch, Phase};
use crate::names::{Shape, TensorSlot, inventory};

fn config() -> Value {
    json!({
        "model_type": "glm_moe_dsa", "vocab_size": 40, "hidden_size": 64, "intermediate_size": 96,
        "moe_intermediate_size": 33, "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_attention_heads": 2,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "routed_scaling_factor": 2.5,
        "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
        "index_n_heads": 2, "index_head_dim": 32, "index_topk": 8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "num_nextn_predict_layers": 1, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": true, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "eos_token_id": [1], "indexer_types": ["full", "shared"]
    })
}

fn slots() -> Vec<TensorSlot> {
    let (family, spec) = crate::family::read(config().as_object().unwrap()).unwrap();
    inventory(&spec, family.names)
}

fn extent(shape: Shape) -> (usize, usize, Vec<u64>) {
    match shape {
        Shape::Matrix { rows, cols } => (rows, cols, vec![rows as u64, cols as u64]),
        Shape::Vector { len } => (1, len, vec![len as u64]),
    }
}

/// Values of a tensor, the same at every call, with many digits.
fn values(name: &str, count: usize) -> Vec<f32> {
    let mut state = name
        .bytes()
        .fold(0x9E37_79B9_7F4A_7C15u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / 16_777_216.0 - 0.5
        })
        .collect()
}

/// A tensor of a checkpoint that a test writes.
struct Tensor {
    name: String,
    shape: Vec<u64>,
    dtype: Dtype,
    data: Vec<u8>,
}

fn tensor(slot: &TensorSlot, format: Format) -> Tensor {
    let (rows, cols, shape) = extent(slot.shape);
    let dtype = match format {
        Format::Bf16 => Dtype::Bf16,
        Format::F16 => Dtype::F16,
        _ => Dtype::F32,
    };
    let mut data = vec![0; format.code_bytes(rows, cols).unwrap()];
    encode(format, ScaleRule::AbsMax, rows, cols, &values(&slot.name, rows * cols), &mut data, &mut []).unwrap();
    Tensor { name: slot.name.clone(), shape, dtype, data }
}

fn tensors(format: Format) -> Vec<Tensor> {
    slots().iter().map(|slot| tensor(slot, format)).collect()
}

/// A folder with `source` in it, made of these tensors spread over `shards` files.
fn home(tensors: &[Tensor], shards: usize) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    write_checkpoint(home.path(), tensors, shards);
    home
}

fn write_checkpoint(home: &Path, tensors: &[Tensor], shards: usize) {
    let source = home.join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("config.json"), config().to_string()).unwrap();
    fs::write(source.join("tokenizer.json"), "{}").unwrap();
    fs::write(source.join("notes.txt"), "stays behind").unwrap();
    for (index, part) in tensors.chunks(tensors.len().div_ceil(shards)).enumerate() {
        let mut plan = ShardPlan::new(&format!("model-{:05}-of-{shards:05}", index + 1));
        for tensor in part {
            plan.push(&tensor.name, tensor.dtype, &tensor.shape, 1).unwrap();
        }
        let mut writer = ShardWriter::create(&source, plan).unwrap();
        for tensor in part {
            writer.write(&tensor.name, &tensor.data).unwrap();
        }
        writer.finish().unwrap();
    }
}

fn run(home: &Path, options: &ConvertOptions) -> Result<ConvertReport, EngineError> {
    convert(&home.join("source"), &home.join("out"), options, &NoWatch)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn bytes_of(catalog: &Catalog, span: colibri_store::source::Span) -> Vec<u8> {
    let content = fs::read(&catalog.files()[span.file.0 as usize].path).unwrap();
    content[span.offset as usize..(span.offset + span.bytes) as usize].to_vec()
}

fn decode(catalog: &Catalog, location: &WeightLocation) -> Vec<f32> {
    let codes = bytes_of(catalog, location.codes);
    let scales: Vec<f32> = location.scales.map_or_else(Vec::new, |span| {
        let bytes = bytes_of(catalog, span);
        bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
    });
    let view = MatrixView::new(location.format, location.rows, location.cols, &codes, &scales).unwrap();
    let mut out = vec![0.0; location.rows * location.cols];
    for (row, values) in out.chunks_exact_mut(location.cols).enumerate() {
        decode_row(&view, row, values);
    }
    out
}

fn locate(catalog: &Catalog, slot: &TensorSlot) -> WeightLocation {
    match slot.shape {
        Shape::Matrix { rows, cols } => catalog.weight(&slot.name, rows, cols).unwrap(),
        Shape::Vector { len } => catalog.vector(&slot.name, len).unwrap(),
    }
}

/// What the container should hold for a slot: the source value, encoded as a whole and decoded again.
fn expected(slot: &TensorSlot, source: Format, target: Format, rule: ScaleRule) -> Vec<f32> {
    let (rows, cols, _) = extent(slot.shape);
    let through = |format: Format, weights: &[f32]| {
        let mut codes = vec![0; format.code_bytes(rows, cols).unwrap()];
        let mut scales = vec![0.0; format.scale_count(rows, cols).unwrap()];
        encode(format, rule, rows, cols, weights, &mut codes, &mut scales).unwrap();
        let view = MatrixView::new(format, rows, cols, &codes, &scales).unwrap();
        let mut out = vec![0.0; rows * cols];
        for (row, values) in out.chunks_exact_mut(cols).enumerate() {
            decode_row(&view, row, values);
        }
        out
    };
    through(target, &through(source, &values(&slot.name, rows * cols)))
}

#[test]
fn what_is_read_back_is_what_was_encoded() {
    let cases = [
        (Format::F32, 1, ConvertOptions::default()),
        (Format::Bf16, 3, ConvertOptions { scale_rule: ScaleRule::AbsMax, ..ConvertOptions::default() }),
        (Format::F16, 2, ConvertOptions { experts: Format::Int4Row, dense: Format::F32, ..ConvertOptions::default() }),
        (Format::F32, 1, ConvertOptions { experts: Format::F32, dense: Format::Int8Row, ..ConvertOptions::default() }),
    ];
    for (source, shards, options) in cases {
        let home = home(&tensors(source), shards);
        let report = run(home.path(), &options).unwrap();
        assert_eq!(names(home.path()), ["out", "source"]);
        let catalog = Catalog::open(&home.path().join("out")).unwrap();
        for slot in slots() {
            let format = match plan::class_of(&slot) {
                StorageClass::Experts => options.experts,
                StorageClass::Dense => options.dense,
                StorageClass::Kept => Format::F32,
                _ => Format::Int8Row,
            };
            let location = locate(&catalog, &slot);
            assert_eq!(location.format, format, "{}", slot.name);
            assert_eq!(catalog.stamp(&slot.name), Some(format.stamp()));
            let wanted = expected(&slot, source, format, options.scale_rule);
            assert!(decode(&catalog, &location) == wanted, "{} differs", slot.name);
        }
        assert_eq!(catalog.tensors().filter(|tensor| !tensor.name.ends_with(".qs")).count(), slots().len());
        assert_eq!(report.bytes, catalog.total_bytes());
        assert_eq!(report.classes.iter().map(|class| class.tensors).sum::<u64>(), slots().len() as u64);
        for class in &report.classes {
            let error = class.relative_error.unwrap();
            let bound = if class.format.starts_with("q4") { 0.1 } else { 0.01 };
            assert!(error < bound && (error == 0.0) == (class.format == "f32"), "{class:?}");
        }
    }
}

#[test]
fn records_are_contiguous_and_aligned_and_pads_have_their_own_names() {
    let home = home(&tensors(Format::F32), 1);
    run(home.path(), &ConvertOptions::default()).unwrap();
    let catalog = Catalog::open(&home.path().join("out")).unwrap();
    let mut ends = Vec::new();
    let experts: Vec<TensorSlot> = slots().into_iter().filter(|slot| slot.expert.is_some()).collect();
    for record in experts.chunks(3) {
        let places: Vec<WeightLocation> = record.iter().map(|slot| locate(&catalog, slot)).collect();
        assert!(record[0].name.contains("gate") && record[1].name.contains("up") && record[2].name.contains("down"));
        let spans: Vec<_> =
            places.iter().map(|place| place.codes).chain(places.iter().filter_map(|place| place.scales)).collect();
        assert_eq!(spans.len(), 6);
        assert_eq!(spans[0].offset % 4096, 0, "{}", record[0].name);
        for pair in spans.windows(2) {
            assert_eq!(pair[1].offset % 64, 0);
            assert_eq!(pair[1].offset, (pair[0].offset + pair[0].bytes).next_multiple_of(64));
            assert_eq!(pair[1].file, pair[0].file);
        }
        ends.push(((spans[5].offset + spans[5].bytes).next_multiple_of(4096), spans[5].file));
    }
    for (file, info) in catalog.files().iter().enumerate() {
        let dense = info.path.to_string_lossy().contains("dense");
        let last = ends.iter().filter(|(_, id)| id.0 as usize == file).map(|(end, _)| *end).max();
        assert_eq!(last, (!dense).then_some(info.bytes), "a record fills its last page and nothing follows");
    }
    let mut pads = Vec::new();
    for info in catalog.files() {
        let content = fs::read(&info.path).unwrap();
        let length = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
        assert_eq!((8 + length) % 4096, 0);
        let header: Value = serde_json::from_slice(&content[8..8 + length]).unwrap();
        pads.extend(header.as_object().unwrap().keys().filter(|name| name.starts_with("__pad__.")).cloned());
    }
    let count = pads.len();
    pads.sort();
    pads.dedup();
    assert!(count > 0 && pads.len() == count, "pad names repeat");
}

#[test]
fn the_number_of_workers_and_a_second_run_change_no_byte() {
    let home = home(&tensors(Format::Bf16), 1);
    let mut first: Option<Vec<(String, Vec<u8>)>> = None;
    for (index, workers) in [1, 3, 7, 1].into_iter().enumerate() {
        let out = home.path().join(format!("out{index}"));
        let options = ConvertOptions { workers, ..ConvertOptions::default() };
        convert(&home.path().join("source"), &out, &options, &NoWatch).unwrap();
        let files = names(&out).into_iter().map(|name| (name.clone(), fs::read(out.join(&name)).unwrap())).collect();
        match &first {
            None => first = Some(files),
            Some(first) => assert!(*first == files, "{workers} workers"),
        }
    }
}

#[test]
fn weights_on_the_int4_grid_lose_nothing() {
    // Codes -7..7 with a scale for each group of 64, 5 significant bits: what quantisation-aware training leaves.
    let grid: Vec<Tensor> = slots()
        .iter()
        .map(|slot| {
            let (_, cols, shape) = extent(slot.shape);
            let mut weights = values(&slot.name, shape.iter().product::<u64>() as usize);
            for row in weights.chunks_mut(cols) {
                for (index, group) in row.chunks_mut(64).enumerate() {
                    let scale = (17 + index as i32 % 15) as f32 / 1024.0;
                    group.iter_mut().for_each(|value| *value = (*value * 14.0).round() * scale);
                    group[0] = 7.0 * scale;
                }
            }
            let data = weights.iter().flat_map(|value| value.to_le_bytes()).collect();
            Tensor { name: slot.name.clone(), shape, dtype: Dtype::F32, data }
        })
        .collect();
    let home = home(&grid, 1);
    let report = run(home.path(), &ConvertOptions::default()).unwrap();
    for class in report.classes.iter().filter(|class| class.format == "q4g64") {
        assert_eq!(class.relative_error, Some(0.0), "{}", class.class);
    }
}

#[test]
fn companions_and_manifest_tell_what_was_done() {
    let home = home(&tensors(Format::F32), 1);
    let report = run(home.path(), &ConvertOptions::default()).unwrap();
    let out = home.path().join("out");
    assert_eq!(
        names(&out),
        ["colibri.json", "config.json", "dense-00001.safetensors", "experts-00001.safetensors", "tokenizer.json"]
    );
    let catalog = Catalog::open(&out).unwrap();
    let manifest = catalog.manifest().unwrap();
    assert_eq!((manifest.source.name.as_str(), manifest.source.model_type.as_str()), ("source", "glm_moe_dsa"));
    assert_eq!((manifest.scale_rule.as_str(), manifest.multi_token_prediction), ("search", true));
    assert_eq!(manifest.quantisation[0].format, "q4g64");
    for file in manifest.shards.iter().chain(&manifest.files) {
        let path = out.join(&file.file);
        assert_eq!(file.bytes, fs::metadata(&path).unwrap().len());
        assert_eq!(file.sha256, colibri_store::digest::sha256_file(&path, &mut |_| true).unwrap());
    }
    assert_eq!(report.shards, manifest.shards);
}

#[test]
fn a_dry_run_predicts_every_size_and_writes_nothing() {
    let home = home(&tensors(Format::F32), 1);
    let options = ConvertOptions { dry_run: true, ..ConvertOptions::default() };
    let dry = run(home.path(), &options).unwrap();
    assert_eq!(names(home.path()), ["source"]);
    let real = run(home.path(), &ConvertOptions::default()).unwrap();
    assert_eq!((dry.bytes, dry.shards.len()), (real.bytes, real.shards.len()));
    for (dry, real) in dry.classes.iter().zip(&real.classes) {
        assert_eq!((dry.class, dry.bytes, dry.parameters), (real.class, real.bytes, real.parameters));
        assert_eq!(dry.relative_error, None);
    }
}

#[test]
fn the_prediction_layer_can_be_left_out_and_may_be_absent() {
    let options = ConvertOptions { keep_mtp: false, ..ConvertOptions::default() };
    let with = home(&tensors(Format::F32), 1);
    let report = run(with.path(), &options).unwrap();
    assert!(!report.multi_token_prediction);
    let catalog = Catalog::open(&with.path().join("out")).unwrap();
    assert!(catalog.tensors().all(|tensor| !tensor.name.starts_with("model.layers.2.")));
    let mut rest = tensors(Format::F32);
    rest.retain(|tensor| !tensor.name.starts_with("model.layers.2."));
    let without = home(&rest, 1);
    assert!(!run(without.path(), &ConvertOptions::default()).unwrap().multi_token_prediction);
}

/// Stops at a given call.
struct StopAt {
    calls: AtomicU64,
    at: u64,
}

impl Watch for StopAt {
    fn progress(&self, phase: Phase, done: u64, total: u64) -> Control {
        assert_eq!(phase, Phase::Convert);
        assert!(done <= total);
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call == self.at { Control::Stop } else { Control::Continue }
    }
}

#[test]
fn a_stop_leaves_nothing_wherever_it_falls() {
    let home = home(&tensors(Format::F32), 1);
    let source = home.path().join("source");
    let counter = StopAt { calls: AtomicU64::new(0), at: u64::MAX };
    convert(&source, &home.path().join("whole"), &ConvertOptions::default(), &counter).unwrap();
    let calls = counter.calls.into_inner();
    assert!(calls > 20);
    for at in [0, 1, calls / 2, calls - 1] {
        let watch = StopAt { calls: AtomicU64::new(0), at };
        let error = convert(&source, &home.path().join("a/b/out"), &ConvertOptions::default(), &watch).unwrap_err();
        assert_eq!(error.code(), "cancelled");
        assert_eq!(names(home.path()), ["source", "whole"]);
    }
}

#[test]
fn destinations_that_cannot_be_written_are_named() {
    let home = home(&tensors(Format::F32), 1);
    let source = home.path().join("source");
    let file = home.path().join("file");
    fs::write(&file, "mine").unwrap();
    for destination in [file.clone(), file.join("below"), source.clone()] {
        for dry_run in [false, true] {
            let options = ConvertOptions { dry_run, ..ConvertOptions::default() };
            let result = convert(&source, &destination, &options, &NoWatch);
            if dry_run && destination == file.join("below") && result.is_ok() {
                continue;
            }
            let error = result.unwrap_err();
            assert_eq!(error.code(), "output_not_writable", "{error}");
            assert!(error.to_string().contains(&*destination.to_string_lossy()), "{error}");
        }
    }
    assert_eq!(names(home.path()), ["file", "source"]);
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_write_that_fails_part_of_the_way_is_named_and_leaves_nothing() {
    // A limit on file sizes, which only a process of its own can have.
    let home = home(&tensors(Format::F32), 1);
    let this = std::env::current_exe().unwrap();
    let script = "trap '' XFSZ; ulimit -f 32; exec \"$0\" --ignored --exact convert::tests::inside_a_file_limit";
    let status = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(&this)
        .current_dir(home.path())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(home.path().join("outcome")).unwrap(), "output_not_writable");
    assert_eq!(names(home.path()), ["outcome", "source"]);
}

#[test]
#[ignore = "run by the test of a failing write, in a process with a limit on file sizes"]
fn inside_a_file_limit() {
    let here = std::env::current_dir().unwrap();
    if here.join("source").is_dir() {
        let outcome = run(&here, &ConvertOptions::default()).map_or_else(|error| error.code(), |_| "converted");
        fs::write(here.join("outcome"), outcome).unwrap();
    }
}

#[test]
fn what_a_killed_run_left_is_cleared_with_a_note_and_a_live_run_is_not_disturbed() {
    let home = home(&tensors(Format::F32), 1);
    let partial = home.path().join("out.partial");
    let other = DurableDirectory::create(&home.path().join("out")).unwrap();
    let error = run(home.path(), &ConvertOptions::default()).unwrap_err();
    assert_eq!(error.code(), "output_not_writable");
    assert!(error.to_string().contains("another conversion is writing"), "{error}");
    // A process that is killed drops its lock and leaves the folder.
    fs::write(partial.join("dense-00001.safetensors"), "half").unwrap();
    let left = home.path().join("left");
    fs::rename(&partial, &left).unwrap();
    drop(other);
    fs::rename(&left, &partial).unwrap();
    let report = run(home.path(), &ConvertOptions::default()).unwrap();
    assert!(report.notes.len() == 1 && report.notes[0].contains("out.partial"), "{:?}", report.notes);
    assert_eq!(names(home.path()), ["out", "source"]);
    assert!(Catalog::open(&report.destination).is_ok());
}

#[test]
fn a_destination_whose_name_is_no_text_is_written_and_reported() {
    use std::os::unix::ffi::OsStrExt;
    let home = home(&tensors(Format::F32), 1);
    let out = home.path().join(std::ffi::OsStr::from_bytes(b"out\xff"));
    let report = convert(&home.path().join("source"), &out, &ConvertOptions::default(), &NoWatch).unwrap();
    assert!(serde_json::to_string(&report).unwrap().contains("out\u{fffd}"));
    assert!(report.notes.is_empty() && Catalog::open(&out).is_ok());
}

/// Converts a checkpoint that must be refused; nothing may be left.
fn refused(tensors: &[Tensor]) -> EngineError {
    let home = home(tensors, 1);
    let error = run(home.path(), &ConvertOptions::default()).unwrap_err();
    assert_eq!(names(home.path()), ["source"]);
    error
}

#[test]
fn tensors_that_are_strange_missing_or_misshapen_are_named() {
    let mut strange = tensors(Format::F32);
    strange[3].name = "model.layers.0.self_attn.surprise.weight".to_owned();
    let error = refused(&strange);
    assert_eq!(error.code(), "model_unsupported");
    assert!(error.to_string().contains("surprise"), "{error}");

    let mut missing = tensors(Format::F32);
    let removed = missing.remove(5).name;
    let error = refused(&missing);
    assert_eq!(error.code(), "model_incomplete");
    assert!(error.to_string().contains(&removed), "{error}");

    let mut misshapen = tensors(Format::F32);
    misshapen[0].shape.reverse();
    let error = refused(&misshapen);
    assert_eq!(error.code(), "model_corrupt");
    assert!(error.to_string().contains(&misshapen[0].name), "{error}");
}

#[test]
fn copies_that_the_model_does_not_need_are_left_out_and_listed() {
    let mut extra = tensors(Format::F32);
    let copy = "model.layers.2.shared_head.head.weight";
    let embedding = &extra[0];
    let (shape, data) = (embedding.shape.clone(), embedding.data.clone());
    extra.push(Tensor { name: copy.to_owned(), shape, dtype: Dtype::F32, data });
    let home = home(&extra, 1);
    assert_eq!(run(home.path(), &ConvertOptions::default()).unwrap().unused, [copy]);
    assert!(Catalog::open(&home.path().join("out")).unwrap().get(copy).is_none());
}

#[test]
fn the_stored_head_of_a_tied_model_is_left_out() {
    let home = home(&tensors(Format::F32), 1);
    let mut tied = config();
    tied["tie_word_embeddings"] = json!(true);
    fs::write(home.path().join("source/config.json"), tied.to_string()).unwrap();
    let report = run(home.path(), &ConvertOptions::default()).unwrap();
    assert_eq!(report.unused, ["lm_head.weight"]);
    assert!(report.classes.iter().all(|class| class.class != "head"));
}

#[test]
fn fp8_quantised_converted_and_large_sources_are_refused_by_name() {
    let mut fp8 = tensors(Format::F32);
    let count = fp8[0].data.len() / 4;
    (fp8[0].dtype, fp8[0].data) = (Dtype::F8E4m3, vec![0; count]);
    let error = refused(&fp8);
    assert_eq!(error.code(), "model_unsupported");
    assert!(error.to_string().contains("FP8") && error.why().unwrap().contains(&fp8[0].name), "{error}");

    let mut scaled = tensors(Format::F32);
    let name = format!("{}_scale_inv", scaled[4].name);
    scaled.push(Tensor { name, shape: vec![1], dtype: Dtype::F32, data: vec![0; 4] });
    assert!(refused(&scaled).to_string().contains("FP8"));

    let home = home(&tensors(Format::F32), 1);
    run(home.path(), &ConvertOptions::default()).unwrap();
    let again = home.path().join("again");
    let error = convert(&home.path().join("out"), &again, &ConvertOptions::default(), &NoWatch).unwrap_err();
    assert!(error.code() == "model_unsupported" && error.to_string().contains("container already"), "{error}");
    fs::remove_file(home.path().join("out/colibri.json")).unwrap();
    let error = convert(&home.path().join("out"), &again, &ConvertOptions::default(), &NoWatch).unwrap_err();
    assert!(error.code() == "model_unsupported" && error.to_string().contains("quantised already"), "{error}");
    assert!(!again.exists());

    assert!(source::refuse_size(Path::new("x"), source::MAX_BYTES).is_none());
    let fault = source::refuse_size(Path::new("x"), source::MAX_BYTES + 1).unwrap();
    assert!(fault.why.unwrap().contains("later version"));
}

#[test]
fn a_weight_that_is_not_finite_is_named_with_its_place() {
    for (index, bad) in [(0, f32::NAN), (1, f32::INFINITY), (30, f32::NEG_INFINITY)] {
        let mut broken = tensors(Format::F32);
        let cols = *broken[index].shape.last().unwrap() as usize;
        let place = broken[index].data.len() / 4 - 1;
        broken[index].data[4 * place..].copy_from_slice(&bad.to_le_bytes());
        let error = refused(&broken);
        assert_eq!(error.code(), "non_finite");
        let text = error.to_string();
        assert!(text.contains(&broken[index].name), "{text}");
        assert!(error.why().unwrap().contains("source"), "the folder is named");
        assert!(text.contains(&format!("row {}, column {}", place / cols, place % cols)), "{text}");
    }
}

#[test]
fn folders_without_a_model_and_formats_that_are_not_written_are_refused() {
    let home = home(&tensors(Format::F32), 1);
    let options = ConvertOptions::default();
    let out = home.path().join("out");
    let error = convert(&home.path().join("nowhere"), &out, &options, &NoWatch).unwrap_err();
    assert_eq!(error.code(), "model_not_found");
    let error = convert(&home.path().join("source/config.json"), &out, &options, &NoWatch).unwrap_err();
    assert_eq!(error.code(), "model_not_found");
    for experts in [Format::Bf16, Format::Int4Grouped { group: 32 }] {
        let error = run(home.path(), &ConvertOptions { experts, ..ConvertOptions::default() }).unwrap_err();
        assert!(error.code() == "invalid_value" && error.to_string().contains("q4row"), "{error}");
    }
    fs::remove_file(home.path().join("source/config.json")).unwrap();
    let error = run(home.path(), &options).unwrap_err();
    assert_eq!(error.code(), "model_not_found");
    assert!(error.why().unwrap().contains("config.json"), "{error}");
    assert_eq!(names(home.path()), ["source"]);
}
