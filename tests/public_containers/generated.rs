//! Containers of every format and every group size: a model of them answers as a model of the values they hold.

use std::fs;
use std::path::Path;

use colibri::engine::NoWatch;
use colibri::engine::fixture::Fixture;
use colibri::kernels::{Format, MatrixView};
use colibri::store::catalog::BLOCK_SCALE_SUFFIX;
use serde_json::json;
use tempfile::TempDir;

use crate::files::{Tensor, Values, copy_configuration, decoded, file_of, pair, read};
use crate::{open, refusal};

const TOKENS: [u32; 9] = [3, 1, 4, 1, 5, 9, 2, 6, 5];
/// Rows and columns that share a scale in FP8.
const BLOCK: usize = 128;

/// A checkpoint whose widest rows tell all group sizes apart.
fn checkpoint() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture {
        layers: 2,
        hidden: 768,
        dense_width: 160,
        expert_width: 136,
        latent_rank: 32,
        experts: 4,
        top_k: 2,
        groups: 1,
        mtp: false,
        index_top_k: 0,
        ..Fixture::default()
    };
    fixture.write(folder.path()).unwrap();
    folder
}

fn formats() -> Vec<Format> {
    let grouped = [16, 32, 48, 64, 96, 128, 192, 256].map(|group| Format::Int4Grouped { group });
    let others = [Format::Int8Row, Format::Int4Row, Format::Int3G64, Format::Int2Row, Format::Fp8Block];
    grouped.into_iter().chain(others).collect()
}

/// The value of a byte as e4m3: sign, four bits of exponent with a bias of 7, three of mantissa.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3) & 15, f32::from(byte & 7));
    let size =
        if exponent == 0 { mantissa / 8.0 * 2f32.powi(-6) } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
    if byte >> 7 == 0 { size } else { -size }
}

/// The nearest e4m3 codes with the scale of each block, row-major.
fn fp8(tensor: &Values) -> (Vec<u8>, Vec<f32>) {
    let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
    let across = cols.div_ceil(BLOCK);
    let mut scales = vec![0f32; rows.div_ceil(BLOCK) * across];
    for (index, value) in tensor.values.iter().enumerate() {
        let scale = &mut scales[index / cols / BLOCK * across + index % cols / BLOCK];
        *scale = scale.max(value.abs() / 448.0);
    }
    // Magnitudes rise with the byte; 127 is NaN.
    let magnitudes: Vec<f32> = (0..127).map(e4m3).collect();
    let code = |(index, value): (usize, &f32)| {
        let scaled = value / scales[index / cols / BLOCK * across + index % cols / BLOCK];
        let above = magnitudes.partition_point(|magnitude| *magnitude < scaled.abs()).min(126);
        let below = above.saturating_sub(1);
        let near = if scaled.abs() - magnitudes[below] < magnitudes[above] - scaled.abs() { below } else { above };
        near as u8 | if *value < 0.0 { 128 } else { 0 }
    };
    let codes = tensor.values.iter().enumerate().map(code).collect();
    (codes, scales)
}

/// A quantised matrix as its two tensors.
fn quantised(tensor: &Values, format: Format) -> [Tensor; 2] {
    if format == Format::Fp8Block {
        let (codes, scales) = fp8(tensor);
        return pair(&tensor.name, codes, &scales);
    }
    tensor.encoded(format)
}

/// The values that a quantised matrix holds.
fn held(tensor: &Values, format: Format) -> Tensor {
    let [codes, scales] = quantised(tensor, format);
    let scales: Vec<f32> = scales.bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
    let view = MatrixView::new(format, tensor.shape[0], tensor.shape[1], &codes.bytes, &scales).unwrap();
    Values { name: tensor.name.clone(), shape: tensor.shape.clone(), values: decoded(&view) }.float()
}

fn write(from: &Path, tensors: Vec<Tensor>, metadata: Option<serde_json::Value>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("out-00000.safetensors"), file_of(tensors, metadata)).unwrap();
    copy_configuration(from, folder.path());
    folder
}

fn logits(folder: &Path) -> Vec<f32> {
    open(folder).unwrap().logits(&TOKENS, &NoWatch).unwrap()
}

/// The logits of a container in which the tensors that `chosen` names are quantised, and those of its values.
fn both(source: &Path, tensors: &[Values], format: Format, chosen: impl Fn(&Values) -> bool) -> (Vec<f32>, Vec<f32>) {
    let (mut stored, mut values) = (Vec::new(), Vec::new());
    for tensor in tensors {
        if tensor.is_quantised() && chosen(tensor) {
            stored.extend(quantised(tensor, format));
            values.push(held(tensor, format));
        } else {
            stored.push(tensor.float());
            values.push(tensor.float());
        }
    }
    let (stored, values) = (write(source, stored, None), write(source, values, None));
    let model = open(stored.path()).unwrap();
    // Narrow rows in a single group are read as rows.
    assert_eq!(model.info().formats.experts.first(), Some(&format.name()), "the format is found from the bytes");
    (model.logits(&TOKENS, &NoWatch).unwrap(), logits(values.path()))
}

/// Decoded weights are multiplied in the same order as float ones. The key half of `kv_b` is used transposed, with its
/// scale folded into the query: there the order differs, so it stays in f32, beside the quantised tensors.
#[test]
fn every_format_beside_float_tensors_answers_bit_for_bit_as_its_values() {
    let source = checkpoint();
    let tensors = read(source.path());
    for format in formats() {
        let (stored, values) =
            both(source.path(), &tensors, format, |tensor| !tensor.name.ends_with("kv_b_proj.weight"));
        assert!(stored.iter().all(|logit| logit.is_finite()));
        let same = stored.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{}: the logits differ", format.name());
    }
}

#[test]
fn every_format_for_all_matrices_answers_as_its_values() {
    let source = checkpoint();
    let tensors = read(source.path());
    for format in formats() {
        let (stored, values) = both(source.path(), &tensors, format, |_| true);
        let worst = stored.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(worst <= 2e-4, "{}: off by {worst:e}", format.name());
    }
}

/// An FP8 checkpoint of the same weights, with scales of this type.
fn fp8_checkpoint(dtype: &'static str, edit: impl Fn(&mut Tensor)) -> TempDir {
    let source = checkpoint();
    let mut tensors = Vec::new();
    for tensor in &read(source.path()) {
        let global = tensor.name.ends_with("embed_tokens.weight") || tensor.name.ends_with("lm_head.weight");
        if !tensor.is_quantised() || global {
            tensors.push(tensor.float());
            continue;
        }
        let (codes, scales) = fp8(tensor);
        let [rows, cols] = [tensor.shape[0], tensor.shape[1]];
        let bytes = match dtype {
            "F32" => scales.iter().flat_map(|scale| scale.to_le_bytes()).collect(),
            // Exponents alone.
            _ => scales.iter().map(|scale| (scale.to_bits() >> 23) as u8).collect(),
        };
        let (name, shape) =
            (format!("{}{BLOCK_SCALE_SUFFIX}", tensor.name), vec![rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)]);
        tensors.push(Tensor { name: tensor.name.clone(), dtype: "F8_E4M3", shape: vec![rows, cols], bytes: codes });
        let mut scales = Tensor { name, dtype, shape, bytes };
        edit(&mut scales);
        tensors.push(scales);
    }
    write(source.path(), tensors, Some(json!({"format": "pt"})))
}

#[test]
fn an_fp8_checkpoint_answers_as_the_container_with_the_same_bytes() {
    let (source, fp8) = (checkpoint(), fp8_checkpoint("F32", |_| {}));
    let tensors = read(source.path());
    let (stored, _) = both(source.path(), &tensors, Format::Fp8Block, |tensor| {
        !tensor.name.ends_with("embed_tokens.weight") && !tensor.name.ends_with("lm_head.weight")
    });
    assert_eq!(logits(fp8.path()), stored);
}

/// Exponent-only scales are for conversion to decode; run as they are, they are refused by name. So is a checkpoint in
/// which scales are missing or of another grid.
#[test]
fn scales_that_cannot_be_used_as_they_are_are_refused_by_name() {
    const FIRST: &str = "model.layers.0.self_attn.q_a_proj.weight";
    let (code, text) = refusal(fp8_checkpoint("F8_E8M0", |_| {}).path());
    assert_eq!(code, "model_unsupported");
    for part in [FIRST, "out-00000.safetensors", "expected F32 scales", "F8_E8M0", "convert"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let renamed = fp8_checkpoint("F32", |scales| {
        scales.name = scales.name.replace("q_a_proj.weight_scale_inv", "q_a_proj.scale")
    });
    let (code, text) = refusal(renamed.path());
    assert_eq!(code, "model_incomplete");
    assert!(text.contains(&format!("{FIRST}_scale_inv")), "{text}");
    let flat = fp8_checkpoint("F32", |scales| scales.shape = vec![scales.shape[0] * scales.shape[1]]);
    let (code, text) = refusal(flat.path());
    assert_eq!(code, "model_corrupt");
    assert!(text.contains("[1, 6] block scales for 40 x 768") && text.contains("F32 [6]"), "{text}");
}

/// Converted containers keep the configuration of the checkpoint they were made from.
#[test]
fn a_configuration_never_decides_whether_weights_are_fp8() {
    let source = checkpoint();
    let expected = logits(source.path());
    let path = source.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    fs::write(&path, config.to_string()).unwrap();
    assert_eq!(logits(source.path()), expected);
    // And weights that are FP8 need no configuration.
    let fp8 = fp8_checkpoint("F32", |_| {});
    assert!(!fs::read_to_string(fp8.path().join("config.json")).unwrap().contains("quantization_config"));
    assert!(open(fp8.path()).is_ok());
}

/// One group size for the container: two of them name two tensors, and none that is told apart is refused.
#[test]
fn containers_of_no_single_group_size_are_refused_by_name() {
    let source = checkpoint();
    let checkpoint = read(source.path());
    let mixed = |of: &dyn Fn(&str) -> Option<u32>| {
        let mut tensors = Vec::new();
        for tensor in &checkpoint {
            match of(&tensor.name).filter(|_| tensor.is_quantised()) {
                Some(group) => tensors.extend(quantised(tensor, Format::Int4Grouped { group })),
                None => tensors.push(tensor.float()),
            }
        }
        refusal(write(source.path(), tensors, None).path())
    };
    let (code, text) =
        mixed(&|name| name.contains(".experts.").then_some(if name.contains("experts.2.") { 64 } else { 32 }));
    assert_eq!(code, "model_corrupt", "{text}");
    for part in ["one group size", "groups of 32", "groups of 64", "experts.2.", "out-00000.safetensors"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    // 136 columns in three groups, and nothing else: 48 or 64.
    let (code, text) = mixed(&|name| (name.contains(".experts.") && name.contains("down_proj")).then_some(64));
    assert_eq!(code, "model_unsupported", "{text}");
    for part in ["48, 64", "experts.0.down_proj.weight", "one group size", "convert"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}
