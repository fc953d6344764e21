//! The trained demo checkpoint: its reference answers in f32, and what quantised weights and activations change.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and shows what it counted")]

use std::path::{Path, PathBuf};

use colibri::engine::convert::{ConvertOptions, convert};
use colibri::engine::{EngineConfig, Model, NoWatch};
use colibri::kernels::{Numerics, argmax};
use serde_json::Value;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn open(path: &Path, numerics: Numerics) -> Model {
    let config = EngineConfig { numerics, ..EngineConfig::default() };
    Model::open(path, &config, &NoWatch).unwrap()
}

/// The last prompt of each conversation and the reference's greedy answer.
fn answers() -> Vec<(Vec<u32>, Vec<u32>)> {
    let text = std::fs::read(data("prompts.json")).unwrap();
    let conversations: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
    };
    let last = |conversation: &Value| {
        let turn = conversation["turns"].as_array().unwrap().last().unwrap().clone();
        (ids(&turn["prompt_ids"]), ids(&turn["greedy_ids"]))
    };
    conversations.iter().map(last).collect()
}

/// The rows of logits that choose the answer, given the reference's tokens.
fn answer_rows(model: &Model, (prompt, answer): &(Vec<u32>, Vec<u32>)) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = prompt.iter().chain(answer).copied().collect();
    let logits = model.logits(&tokens[..tokens.len() - 1], &NoWatch).unwrap();
    let rows = logits.chunks(model.info().vocab_size).skip(prompt.len() - 1);
    rows.map(<[f32]>::to_vec).collect()
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    row.iter().map(|logit| f64::from(*logit) - largest - sum.ln()).collect()
}

/// Mean of the divergence of `b` from `a`.
fn divergence(a: &[f32], b: &[f32]) -> f64 {
    let (a, b) = (log_softmax(a), log_softmax(b));
    a.iter().zip(&b).map(|(a, b)| a.exp() * (a - b)).sum()
}

#[test]
fn answers_of_the_checkpoint_in_f32_are_those_of_the_reference() {
    let model = open(&data("demo_hf"), Numerics::F32);
    let mut tokens = 0;
    for (index, answer) in answers().iter().enumerate() {
        for (step, (row, expected)) in answer_rows(&model, answer).iter().zip(&answer.1).enumerate() {
            assert_eq!(argmax(row), *expected as usize, "conversation {index}, token {step}");
            tokens += 1;
        }
    }
    assert!(tokens > 800, "only {tokens} tokens were compared");
}

#[test]
fn a_converted_checkpoint_answers_nearly_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demo");
    convert(&data("demo_hf"), &path, &ConvertOptions::default(), &NoWatch).unwrap();
    let exact = open(&data("demo_hf"), Numerics::F32);
    let answers = answers();
    let expected: Vec<_> = answers.iter().map(|answer| answer_rows(&exact, answer)).collect();
    for numerics in Numerics::ALL {
        let model = open(&path, numerics);
        let (mut tokens, mut agree, mut divergences) = (0, 0, 0.0);
        for (answer, expected) in answers.iter().zip(&expected) {
            for (row, expected) in answer_rows(&model, answer).iter().zip(expected) {
                tokens += 1;
                agree += usize::from(argmax(row) == argmax(expected));
                divergences += divergence(expected, row);
            }
        }
        let (share, mean) = (f64::from(agree as u32) / f64::from(tokens), divergences / f64::from(tokens));
        println!("{}: {share:.4} of {tokens} tokens agree, mean divergence {mean:.6}", numerics.name());
        assert!(share >= 0.99 && mean < 2e-3, "{}: {share:.4}, {mean:.6}", numerics.name());
    }
}
