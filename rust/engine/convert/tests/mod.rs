//! Conversion of a tiny model made here: what is written, what is refused, what is taken up after a stop, what is taken
//! over as it is.

mod encoding;
mod headers;
mod loss;
mod refusals;
mod resume;
mod stored;

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

use super::classes::{StorageClass, class_of};
use super::*;
use crate::config::{Control, NoWatch, Phase};
use crate::names::{Shape, TensorSlot};

fn config() -> Value {
    json!({
        "model_type": "glm_moe_dsa", "vocab_size": 40, "hidden_size": 64, "intermediate_size": 200,
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
    crate::blueprint::Blueprint::parse(config().as_object().unwrap()).unwrap().slots()
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

/// The stored types of a checkpoint that a test writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    /// One float type.
    Float(Format),
    /// Matrices in FP8 with block scales of this type, everything else in bf16.
    Fp8(Dtype),
    /// The types in turn.
    Mixed,
}

fn float(slot: &TensorSlot, format: Format) -> Tensor {
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

/// A matrix in FP8 and its block scales.
fn fp8(slot: &TensorSlot, scale_type: Dtype) -> Vec<Tensor> {
    let (rows, cols, shape) = extent(slot.shape);
    let grid = [rows.div_ceil(128), cols.div_ceil(128)];
    // Every byte but the two that mean NaN.
    let code = |value: f32| {
        let byte = ((value + 0.5) * 256.0) as u8;
        if byte & 0x7f == 0x7f { byte & 0x80 } else { byte }
    };
    let data = values(&slot.name, rows * cols).into_iter().map(code).collect();
    let scale = |value: f32| -> Vec<u8> {
        let value = (value + 1.0) / 256.0;
        match scale_type {
            Dtype::F8E8m0 => vec![118 + (value * 1000.0) as u8],
            Dtype::Bf16 => ((value.to_bits() >> 16) as u16).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        }
    };
    let name = format!("{}_scale_inv", slot.name);
    let scales = values(&name, grid[0] * grid[1]).into_iter().flat_map(scale).collect();
    let grid = grid.map(|extent| extent as u64).to_vec();
    vec![
        Tensor { name: slot.name.clone(), shape, dtype: Dtype::F8E4m3, data },
        Tensor { name, shape: grid, dtype: scale_type, data: scales },
    ]
}

fn tensors(stored: Stored) -> Vec<Tensor> {
    let kinds = [
        Stored::Float(Format::F32),
        Stored::Fp8(Dtype::F32),
        Stored::Float(Format::Bf16),
        Stored::Float(Format::F16),
        Stored::Fp8(Dtype::F8E8m0),
    ];
    let of_slot = |(index, slot): (usize, &TensorSlot)| {
        let kind = if stored == Stored::Mixed { kinds[index % kinds.len()] } else { stored };
        match kind {
            Stored::Fp8(scale_type) if matches!(slot.shape, Shape::Matrix { .. }) => fp8(slot, scale_type),
            Stored::Float(format) => vec![float(slot, format)],
            _ => vec![float(slot, Format::Bf16)],
        }
    };
    slots().iter().enumerate().flat_map(of_slot).collect()
}

/// The weights of a slot, as its tensors in the checkpoint store them.
fn weights(tensors: &[Tensor], slot: &TensorSlot) -> Vec<f32> {
    let (rows, cols, _) = extent(slot.shape);
    let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let codes = find(&slot.name).unwrap();
    let format = match codes.dtype {
        Dtype::F32 => Format::F32,
        Dtype::Bf16 => Format::Bf16,
        Dtype::F16 => Format::F16,
        _ => Format::Fp8Block,
    };
    let scales = find(&format!("{}_scale_inv", slot.name)).map_or_else(Vec::new, |scales| {
        colibri_store::scales::decode(&scales.data, colibri_store::ScaleType::of(scales.dtype).unwrap()).unwrap()
    });
    decoded(format, rows, cols, &codes.data, &scales)
}

fn decoded(format: Format, rows: usize, cols: usize, codes: &[u8], scales: &[f32]) -> Vec<f32> {
    let view = MatrixView::new(format, rows, cols, codes, scales).unwrap();
    let mut out = vec![0.0; rows * cols];
    for (row, values) in out.chunks_exact_mut(cols).enumerate() {
        decode_row(&view, row, values);
    }
    out
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
    write_shards(&source, tensors, shards);
}

/// The tensors spread over this many files, as evenly as may be; returns the file of each.
fn write_shards(source: &Path, tensors: &[Tensor], shards: usize) -> Vec<String> {
    let mut files = Vec::new();
    for index in 0..shards {
        let part = &tensors[index * tensors.len() / shards..(index + 1) * tensors.len() / shards];
        let mut plan = ShardPlan::new(&format!("model-{:05}-of-{shards:05}", index + 1));
        for tensor in part {
            plan.push(&tensor.name, tensor.dtype, &tensor.shape, 1).unwrap();
        }
        let mut writer = ShardWriter::create(source, plan).unwrap();
        for tensor in part {
            writer.write(&tensor.name, &tensor.data).unwrap();
        }
        let written = writer.finish().unwrap();
        files.extend(part.iter().map(|_| written.file.clone()));
    }
    files
}

/// As [`home`], with an index of the files.
fn indexed_home(tensors: &[Tensor], shards: usize) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("config.json"), config().to_string()).unwrap();
    let files = write_shards(&source, tensors, shards);
    let map: serde_json::Map<String, Value> =
        tensors.iter().zip(files).map(|(tensor, file)| (tensor.name.clone(), Value::from(file))).collect();
    let size: usize = tensors.iter().map(|tensor| tensor.data.len()).sum();
    let index = json!({ "metadata": { "total_size": size }, "weight_map": map });
    fs::write(source.join("model.safetensors.index.json"), index.to_string()).unwrap();
    home
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

fn scales_of(catalog: &Catalog, location: &WeightLocation) -> Vec<f32> {
    location.scales.map_or_else(Vec::new, |span| {
        colibri_store::scales::decode(&bytes_of(catalog, span), location.scale_type).unwrap()
    })
}

fn decode(catalog: &Catalog, location: &WeightLocation) -> Vec<f32> {
    let codes = bytes_of(catalog, location.codes);
    decoded(location.format, location.rows, location.cols, &codes, &scales_of(catalog, location))
}

fn locate(catalog: &Catalog, slot: &TensorSlot) -> WeightLocation {
    locate_all(catalog, std::slice::from_ref(slot)).remove(0)
}

fn locate_all(catalog: &Catalog, slots: &[TensorSlot]) -> Vec<WeightLocation> {
    let group = crate::weights::group_size(catalog, slots).unwrap();
    let locate = |slot: &TensorSlot| match slot.shape {
        Shape::Matrix { rows, cols } => catalog.weight(&slot.name, rows, cols, group).unwrap(),
        Shape::Vector { len } => catalog.vector(&slot.name, len).unwrap(),
    };
    slots.iter().map(locate).collect()
}

/// Codes and scales of weights, encoded as a whole.
fn encoded(weights: &[f32], (rows, cols): (usize, usize), target: Format, rule: ScaleRule) -> (Vec<u8>, Vec<f32>) {
    let mut codes = vec![0; target.code_bytes(rows, cols).unwrap()];
    let mut scales = vec![0.0; target.scale_count(rows, cols).unwrap()];
    encode(target, rule, rows, cols, weights, &mut codes, &mut scales).unwrap();
    (codes, scales)
}

/// Every file of a folder with its content.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    names(folder).into_iter().map(|name| (name.clone(), fs::read(folder.join(&name)).unwrap())).collect()
}

/// Stops at a given call.
struct StopAt {
    calls: AtomicU64,
    at: u64,
}

impl Watch for StopAt {
    fn progress(&self, _phase: Phase, done: u64, total: u64) -> Control {
        assert!(done <= total);
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call == self.at { Control::Stop } else { Control::Continue }
    }
}
