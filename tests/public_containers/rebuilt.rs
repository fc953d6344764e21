//! The published samples, built again: the same bytes, and the answers of both reference implementations.

use std::fs;
use std::path::{Path, PathBuf};

use colibri::engine::inspect::inspect;
use colibri::engine::{Model, NoWatch, SamplingParams};
use colibri::kernels::{Format, argmax};
use colibri::store::Catalog;
use colibri::store::digest::Digester;
use serde_json::Value;
use tempfile::TempDir;

use crate::files::{PassFormats, copy_configuration, file_of, public_tensors, read};
use crate::{open, oracle};

/// Largest difference of a logit from the reference's forward pass of the same weights.
const DEQUANTISED: f32 = 2e-4;
/// Largest difference of a logit from what the container's own engine prints.
const PRINTED: f32 = 1e-3;

/// A published sample: the checkpoint it was made from and how.
struct Sample {
    name: &'static str,
    model: &'static str,
    formats: PassFormats,
}

const SAMPLES: [Sample; 2] = [
    Sample {
        name: "glm_tiny_int4row_mtp8",
        model: "glm_tiny",
        formats: PassFormats { layers: 4, main: Format::Int4Row, prediction: Format::Int8Row },
    },
    Sample {
        name: "glm_tiny_fp8_int4g64",
        model: "glm_tiny_fp8",
        formats: PassFormats { layers: 2, main: Format::Q4G64, prediction: Format::Q4G64 },
    },
];

impl Sample {
    fn facts(&self, file: &str) -> Value {
        let path = self.folder().join(file);
        serde_json::from_slice(&fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).unwrap()
    }

    fn folder(&self) -> PathBuf {
        oracle("upstream_containers").join(self.name)
    }

    /// An array of the reference, [rows, vocabulary].
    fn array(&self, key: &str) -> Vec<f32> {
        let path = self.folder().join("reference_dequant.safetensors");
        let catalog = Catalog::open(&path).unwrap();
        let tensor = catalog.get(key).unwrap();
        let bytes = fs::read(path).unwrap();
        let bytes = &bytes[tensor.offset as usize..(tensor.offset + tensor.bytes) as usize];
        bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }

    /// Builds the container.
    fn build(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = read(&oracle(self.model));
        let tensors = public_tensors(&checkpoint, self.formats);
        let tensors = tensors.into_iter().map(|(file, tensor)| (file.to_owned(), tensor)).collect();
        crate::files::write_files(folder.path(), tensors);
        copy_configuration(&oracle(self.model), folder.path());
        folder
    }
}

fn sha256(bytes: &[u8]) -> String {
    let mut digest = Digester::new();
    digest.update(bytes);
    digest.finish()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// The likeliest token of each row.
fn likeliest(logits: &[f32], vocab: usize) -> Vec<u32> {
    logits.chunks_exact(vocab).map(|row| u32::try_from(argmax(row)).unwrap()).collect()
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(worst <= bound, "{what}: off by {worst:e}, allowed {bound:e}");
    println!("{what}: at most {worst:e} off");
}

#[test]
fn codes_scales_and_files_are_those_of_the_published_samples() {
    let text = fs::read(oracle("upstream_containers/digests.json")).unwrap();
    let digests: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(digests.as_object().unwrap().len(), SAMPLES.len());
    for sample in &SAMPLES {
        let expected = &digests[sample.name];
        assert_eq!(expected["model"], sample.model);
        let built = sample.build();
        let tensors = public_tensors(&read(&oracle(sample.model)), sample.formats);
        let listed = expected["tensors"].as_object().unwrap();
        assert_eq!(tensors.len(), listed.len(), "{}: tensors", sample.name);
        for (file, tensor) in &tensors {
            let entry = listed.get(&tensor.name).unwrap_or_else(|| panic!("{}: no {}", sample.name, tensor.name));
            assert_eq!(entry["file"], *file, "{}: {}", sample.name, tensor.name);
            assert_eq!(entry["dtype"], tensor.dtype, "{}: {}", sample.name, tensor.name);
            assert_eq!(entry["shape"], serde_json::json!(tensor.shape), "{}: {}", sample.name, tensor.name);
            assert_eq!(entry["sha256"], sha256(&tensor.bytes), "{}: {}", sample.name, tensor.name);
        }
        for (file, entry) in expected["files"].as_object().unwrap() {
            let bytes = fs::read(built.path().join(file)).unwrap();
            assert_eq!(entry["bytes"], bytes.len(), "{}: {file}", sample.name);
            assert_eq!(entry["sha256"], sha256(&bytes), "{}: {file}", sample.name);
        }
    }
}

#[test]
fn inspection_tells_the_group_size_and_formats_that_have_no_stamps() {
    for sample in &SAMPLES {
        let built = sample.build();
        let found = inspect(built.path()).unwrap();
        let group = if sample.formats.main == Format::Q4G64 { Some(64) } else { None };
        assert_eq!((found.container.kind, found.container.group_size), ("public", group), "{}", sample.name);
        let classes = [("experts", sample.formats.main), ("mtp_experts", sample.formats.prediction)];
        for (name, format) in classes {
            let class = found.classes.iter().find(|class| class.class == name).unwrap();
            assert_eq!(class.formats, [format.name()], "{}: {name}", sample.name);
        }
        assert_eq!(found.absent, ["indexer of the multi-token-prediction layer"]);
        let scales: Vec<_> = found.tensors.iter().filter(|tensor| tensor.name.ends_with(".qs")).collect();
        assert!(!scales.is_empty() && scales.iter().all(|tensor| tensor.format.is_none()));
    }
}

/// Greedy tokens of a model.
fn greedy(model: &Model, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut session = model.session();
    session.extend(prompt, &NoWatch).unwrap();
    let mut tokens = Vec::new();
    for _ in 0..count {
        let token = session.sample(&SamplingParams::greedy()).unwrap().token;
        session.extend(&[token], &NoWatch).unwrap();
        tokens.push(token);
    }
    tokens
}

#[test]
fn the_answers_are_those_of_the_reference_with_the_same_weights() {
    for sample in &SAMPLES {
        let built = sample.build();
        let model = open(built.path()).unwrap();
        let vocab = model.info().vocab_size;
        let facts = sample.facts("reference_dequant.json");
        let mut tokens = 0;
        for (number, prompt) in facts["prompts"].as_array().unwrap().iter().enumerate() {
            let prompt_ids = ids(&prompt["ids"]);
            let logits = model.logits(&prompt_ids, &NoWatch).unwrap();
            assert_eq!(likeliest(&logits, vocab), ids(&prompt["argmax"]), "{} p{number}", sample.name);
            let expected = ids(&prompt["greedy"]["ids"]);
            assert_eq!(greedy(&model, &prompt_ids, expected.len()), expected, "{} p{number}", sample.name);
            tokens += expected.len();
        }
        assert_eq!(tokens, 4 * 24);
        let logits = model.logits(&ids(&facts["prompts"][1]["ids"]), &NoWatch).unwrap();
        assert_close(&format!("{} p1.logits", sample.name), &logits, &sample.array("p1.logits"), DEQUANTISED);
    }
}

#[test]
fn the_prediction_layer_attends_to_all_keys_and_answers_as_the_reference() {
    for sample in &SAMPLES {
        let built = sample.build();
        let model = open(built.path()).unwrap();
        assert!(model.info().has_mtp && model.info().has_indexer);
        let vocab = model.info().vocab_size;
        let facts = sample.facts("reference_dequant.json");
        let prompts = facts["prompts"].as_array().unwrap();
        let predictions = facts["mtp"].as_array().unwrap();
        assert_eq!(predictions.len(), prompts.len());
        for (number, (prompt, prediction)) in prompts.iter().zip(predictions).enumerate() {
            let (mut text, answer) = (ids(&prompt["ids"]), ids(&prompt["greedy"]["ids"]));
            let whole = &prediction["over_prompt_plus_greedy"];
            let expected = if whole.is_null() { &prediction["argmax"] } else { &whole["argmax"] };
            let follows = if whole.is_null() { 1 } else { answer.len() };
            text.extend_from_slice(&answer[..follows]);
            let trace = model.mtp_trace(&text).unwrap();
            assert_eq!(likeliest(&trace.logits, vocab), ids(expected), "{} p{number}", sample.name);
            if number == 1 {
                let array = sample.array("p1.mtp.logits");
                assert_close(&format!("{} p1.mtp.logits", sample.name), &trace.logits, &array, DEQUANTISED);
            }
        }
    }
}

#[test]
fn the_answers_are_those_that_the_containers_own_engine_printed() {
    for sample in &SAMPLES {
        let built = sample.build();
        let model = open(built.path()).unwrap();
        let vocab = model.info().vocab_size;
        let (facts, printed) = (sample.facts("reference_dequant.json"), sample.facts("upstream_output.json"));
        let (mut worst, mut compared) = (0f32, 0);
        for entry in printed["prompts"].as_array().unwrap() {
            let number = usize::try_from(entry["prompt"].as_u64().unwrap()).unwrap();
            let prompt = ids(&facts["prompts"][number]["ids"]);
            let logits = model.logits(&prompt, &NoWatch).unwrap();
            assert_eq!(likeliest(&logits, vocab), ids(&entry["argmax_idot0"]), "{} p{number}", sample.name);
            let expected = ids(&entry["greedy_idot0"]);
            assert_eq!(expected.len(), 24);
            assert_eq!(greedy(&model, &prompt, 24), expected, "{} p{number}", sample.name);
            // Rows are printed for the last positions of a prompt.
            let rows: Vec<&[f32]> = logits.chunks_exact(vocab).collect();
            let top = entry["top5_idot0"].as_array().unwrap();
            for (row, best) in rows[rows.len() - top.len()..].iter().zip(top) {
                for pair in best.as_array().unwrap() {
                    let token = usize::try_from(pair[0].as_u64().unwrap()).unwrap();
                    worst = worst.max((row[token] - pair[1].as_f64().unwrap() as f32).abs());
                    compared += 1;
                }
            }
        }
        println!("{}: {compared} printed logits, at most {worst:e} off", sample.name);
        assert!(compared == 50 && worst <= PRINTED, "{}: {compared} logits, {worst:e} off", sample.name);
        let drafts = printed["mtp_drafts_p0"].as_array().unwrap();
        let mut text = ids(&facts["prompts"][0]["ids"]);
        text.extend(drafts.iter().map(|draft| u32::try_from(draft["in_tok"].as_u64().unwrap()).unwrap()));
        let expected: Vec<u32> =
            drafts.iter().map(|draft| u32::try_from(draft["draft"].as_u64().unwrap()).unwrap()).collect();
        assert_eq!(expected.len(), 23);
        assert_eq!(likeliest(&model.mtp_trace(&text).unwrap().logits, vocab), expected, "{}", sample.name);
    }
}

/// Scales in a file of their own, codes after codes: no reader may expect them beside each other.
#[test]
fn scales_that_lie_in_other_files_give_the_same_answers() {
    let sample = &SAMPLES[1];
    let expected = logits_of(sample.build().path());
    let apart = tempfile::tempdir().unwrap();
    let tensors = public_tensors(&read(&oracle(sample.model)), sample.formats);
    let (scales, codes): (Vec<_>, Vec<_>) = tensors.into_iter().partition(|(_, tensor)| tensor.name.ends_with(".qs"));
    for (file, part) in [("a-scales.safetensors", scales), ("b-codes.safetensors", codes)] {
        let part = part.into_iter().map(|(_, tensor)| tensor).collect();
        fs::write(apart.path().join(file), file_of(part, None)).unwrap();
    }
    copy_configuration(&oracle(sample.model), apart.path());
    assert_eq!(logits_of(apart.path()), expected);
}

fn logits_of(folder: &Path) -> Vec<f32> {
    open(folder).unwrap().logits(&[19, 229, 195, 205, 183, 191, 46], &NoWatch).unwrap()
}
