//! Sparse attention against a plain reference in 64 bits: scores in both rotation layouts, the choice of keys with its
//! tie rule, and exact agreement with dense attention while all keys fit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use colibri::engine::fixture::{Fixture, SplitMix64};
use colibri::engine::observe::Trace;
use colibri::engine::{EngineConfig, Model, NoWatch};
use serde_json::{Value, json};
use tempfile::TempDir;

const TOP_K: usize = 8;

fn checkpoint(fixture: &Fixture, changes: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fixture.write(folder.path()).unwrap();
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    fs::write(path, config.to_string()).unwrap();
    folder
}

fn open(path: &Path, chunk: usize) -> Model {
    let config = EngineConfig { prefill_chunk: Some(chunk), ..EngineConfig::default() };
    Model::open(path, &config, &NoWatch).unwrap()
}

fn text(count: usize) -> Vec<u32> {
    let mut random = SplitMix64 { state: 5 };
    (0..count).map(|_| random.token(256)).collect()
}

/// The tensors of a one-file f32 checkpoint.
struct Tensors {
    data: HashMap<String, Vec<f64>>,
}

impl Tensors {
    fn read(folder: &Path) -> Self {
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: HashMap<String, Value> = serde_json::from_slice(&bytes[8..start]).unwrap();
        let read = |entry: &Value| {
            let bound = |index: usize| start + entry["data_offsets"][index].as_u64().unwrap() as usize;
            let words = bytes[bound(0)..bound(1)].as_chunks::<4>().0;
            words.iter().map(|word| f64::from(f32::from_le_bytes(*word))).collect()
        };
        Self { data: header.iter().map(|(name, entry)| (name.clone(), read(entry))).collect() }
    }

    fn get(&self, name: &str) -> &[f64] {
        self.data.get(name).or_else(|| self.data.get(&format!("model.layers.0.{name}.weight"))).unwrap()
    }

    fn apply(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.get(name).chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    }
}

fn rms(x: &[f64], weight: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = x.iter().map(|value| value * value).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(value, weight)| value / (mean + epsilon).sqrt() * weight).collect()
}

fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scaled = x.iter().map(|value| (value - mean) / (variance + 1e-6).sqrt());
    scaled.zip(weight).zip(bias).map(|((value, weight), bias)| value * weight + bias).collect()
}

/// Rotates the first `dim` dimensions.
fn rotate(x: &mut [f64], dim: usize, position: usize, interleaved: bool) {
    for pair in 0..dim / 2 {
        let angle = position as f64 * 10_000f64.powf(-2.0 * pair as f64 / dim as f64);
        let (i, j) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + dim / 2) };
        let (a, b) = (x[i], x[j]);
        (x[i], x[j]) = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin());
    }
}

/// Index scores of the first layer, `[query][key]`.
fn plain_scores(folder: &Path, fixture: &Fixture, tokens: &[u32], interleaved: bool) -> Vec<Vec<f64>> {
    let tensors = Tensors::read(folder);
    let embedding = tensors.get("model.embed_tokens.weight");
    let (mut keys, mut scores) = (Vec::new(), Vec::new());
    for (position, token) in tokens.iter().enumerate() {
        let x = &embedding[*token as usize * fixture.hidden..][..fixture.hidden];
        let x = rms(x, tensors.get("input_layernorm"), 1e-5);
        let latent = tensors.apply("self_attn.q_a_proj", &x);
        let latent = rms(&latent, tensors.get("self_attn.q_a_layernorm"), 1e-6);
        let key = tensors.apply("self_attn.indexer.wk", &x);
        let bias = tensors.get("model.layers.0.self_attn.indexer.k_norm.bias");
        let mut key = layer_norm(&key, tensors.get("self_attn.indexer.k_norm"), bias);
        rotate(&mut key, fixture.rope_dim, position, interleaved);
        keys.push(key);
        let mut query = tensors.apply("self_attn.indexer.wq_b", &latent);
        query.chunks_mut(fixture.index_dim).for_each(|head| rotate(head, fixture.rope_dim, position, interleaved));
        let weights = tensors.apply("self_attn.indexer.weights_proj", &x);
        let score = |key: &Vec<f64>| {
            let of_head = |(query, weight): (&[f64], &f64)| {
                let dot: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                weight
                    * (fixture.index_heads as f64).powf(-0.5)
                    * (dot * (fixture.index_dim as f64).powf(-0.5)).max(0.0)
            };
            query.chunks(fixture.index_dim).zip(&weights).map(of_head).sum()
        };
        scores.push(keys.iter().map(score).collect());
    }
    scores
}

/// The best positions by falling score, ties lowest first, in ascending order.
fn plain_choice(scores: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b)));
    order.truncate(TOP_K);
    order.sort_unstable();
    order
}

fn choices_follow_scores(trace: &Trace) -> usize {
    let mut ties = 0;
    for layer in &trace.layers {
        for (scores, keys) in layer.index_scores.iter().zip(&layer.index_keys) {
            // Equal zeros count as equal whatever their sign.
            let scores: Vec<f32> = scores.iter().map(|score| score + 0.0).collect();
            assert_eq!(keys, &plain_choice(&scores));
            let lowest = keys.iter().map(|key| scores[*key as usize]).fold(f32::INFINITY, f32::min);
            ties += usize::from(scores.iter().filter(|score| **score == lowest).count() > 1);
        }
    }
    ties
}

#[test]
fn nu_09_few_keys_are_dense_and_many_are_the_best_eight_for_every_chunk() {
    let fixture = Fixture { index_top_k: TOP_K, layers: 6, ..Fixture::default() };
    let folder = checkpoint(&fixture, &[]);
    let dense = checkpoint(&fixture, &[("index_topk", json!(4096))]);
    let dense = open(dense.path(), 64);
    for count in [7, 8, 9, 40] {
        let tokens = text(count);
        let all = dense.logits(&tokens, &NoWatch).unwrap();
        let mut first: Option<Trace> = None;
        for chunk in [1, 5, 40] {
            let trace = open(folder.path(), chunk).trace(&tokens).unwrap();
            let shared = TOP_K.min(count) * fixture.vocab;
            assert_eq!(trace.logits[..shared], all[..shared], "{count} tokens, chunks of {chunk}");
            assert!(count <= TOP_K || trace.logits[shared..] != all[shared..]);
            choices_follow_scores(&trace);
            assert!(first.as_ref().is_none_or(|first| *first == trace), "{count} tokens, chunks of {chunk}");
            first.get_or_insert(trace);
        }
    }
}

#[test]
fn nu_09_ties_go_to_the_lowest_position() {
    // One head whose every second query is clipped: many scores are zero.
    let fixture = Fixture { index_top_k: TOP_K, index_heads: 1, layers: 6, ..Fixture::default() };
    let folder = checkpoint(&fixture, &[]);
    let trace = open(folder.path(), 5).trace(&text(40)).unwrap();
    assert!(choices_follow_scores(&trace) > 10, "the text was to have ties at the cut");
}

#[test]
fn nu_10_scores_equal_a_plain_reference_in_both_rotation_layouts() {
    let fixture = Fixture { layers: 2, ..Fixture::default() };
    let tokens = text(24);
    let mut of_layouts = Vec::new();
    for interleaved in [true, false] {
        let folder = checkpoint(&fixture, &[("indexer_rope_interleave", json!(interleaved))]);
        let trace = open(folder.path(), 7).trace(&tokens).unwrap();
        let expected = plain_scores(folder.path(), &fixture, &tokens, interleaved);
        let scores = &trace.layers[0].index_scores;
        assert_eq!(scores.len(), expected.len());
        for (got, expected) in scores.iter().zip(&expected) {
            assert_eq!(got.len(), expected.len());
            let close = got.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 2e-5);
            assert!(close, "{got:?} is not {expected:?}");
        }
        of_layouts.push(scores.clone());
    }
    assert_ne!(of_layouts[0], of_layouts[1]);
}
