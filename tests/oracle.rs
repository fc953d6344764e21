//! The engine against the reference implementation, array by array, in f32.
//!
//! Walks the families of `tests/oracle`: checkpoints with reference arrays made by `tests/oracle/make`. Logits and
//! losses agree within 2e-4, hidden states and block outputs within 5e-5 of the largest magnitude, chosen experts and
//! keys exactly, greedy tokens exactly but for near ties, which are counted and shown.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and shows what it counted")]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use colibri::engine::observe::{LayerTrace, Trace};
use colibri::engine::{EngineConfig, Model, NoWatch, SamplingParams};
use colibri::kernels::{Numerics, argmax};
use colibri::store::Catalog;
use serde_json::Value;

const FIXTURES: [&str; 4] = ["glm_tiny", "glm_sparse", "glm_groups", "glm_tiny_fp8"];
/// Largest difference of a logit or a loss.
const LOGITS: f32 = 2e-4;
/// Largest difference of a hidden state, relative to the largest magnitude of its array.
const HIDDEN: f32 = 5e-5;
/// Chunks whose bounds lie inside of every prompt but the first.
const CHUNK: usize = 5;

/// The arrays and facts of one fixture.
struct Reference {
    name: &'static str,
    folder: PathBuf,
    catalog: Catalog,
    facts: Value,
}

impl Reference {
    fn open(name: &'static str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(name);
        let catalog = Catalog::open(&folder.join("ref/reference.safetensors")).unwrap();
        let facts = std::fs::read(folder.join("ref/reference.json")).unwrap();
        Self { name, folder, catalog, facts: serde_json::from_slice(&facts).unwrap() }
    }

    fn model(&self) -> Model {
        let config = EngineConfig { numerics: Numerics::F32, prefill_chunk: Some(CHUNK), ..EngineConfig::default() };
        Model::open(&self.folder, &config, &NoWatch).unwrap()
    }

    fn words(&self, key: &str) -> Option<Vec<[u8; 4]>> {
        let tensor = self.catalog.get(key)?;
        let mut file = File::open(&self.catalog.files()[tensor.file.0 as usize].path).unwrap();
        file.seek(SeekFrom::Start(tensor.offset)).unwrap();
        let mut bytes = vec![0; usize::try_from(tensor.bytes).unwrap()];
        file.read_exact(&mut bytes).unwrap();
        Some(bytes.as_chunks::<4>().0.to_vec())
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        Some(self.words(key)?.into_iter().map(f32::from_le_bytes).collect())
    }

    fn integers(&self, key: &str) -> Option<Vec<i32>> {
        Some(self.words(key)?.into_iter().map(i32::from_le_bytes).collect())
    }

    fn ids(&self, prompt: usize) -> Vec<u32> {
        let ids = self.integers(&format!("p{prompt}.ids")).unwrap();
        ids.into_iter().map(|id| u32::try_from(id).unwrap()).collect()
    }

    /// Compares with an array, if the fixture has it; returns how many were compared.
    fn close(&self, key: &str, got: &[f32], absolute: f32, relative: f32) -> usize {
        let Some(expected) = self.floats(key) else { return 0 };
        assert_eq!(got.len(), expected.len(), "{} {key}: length", self.name);
        let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let bound = absolute + relative * largest;
        let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(worst <= bound, "{} {key}: off by {worst:e}, allowed {bound:e}", self.name);
        1
    }

    /// Compares a layer's choice of experts and keys; `prefix` leads to `router.` and `indexer.`, `infix` is `L.` or
    /// nothing.
    fn choices(&self, router: &str, indexer: &str, layer: &LayerTrace) -> usize {
        let mut compared = 0;
        if let Some(expected) = self.integers(&format!("{router}.experts")) {
            let weights = self.floats(&format!("{router}.weights")).unwrap();
            assert_eq!(layer.experts.len(), expected.len(), "{} {router}", self.name);
            let top_k = layer.experts.len() / (expected.len() / self.columns(&format!("{router}.experts")));
            for row in 0..expected.len() / top_k {
                let span = row * top_k..(row + 1) * top_k;
                let got = layer.experts[span.clone()].iter().zip(&layer.weights[span.clone()]);
                let mut got: Vec<_> = got.map(|(expert, weight)| (i32::try_from(*expert).unwrap(), *weight)).collect();
                got.sort_by_key(|(expert, _)| *expert);
                for ((expert, weight), place) in got.into_iter().zip(span) {
                    assert_eq!(expert, expected[place], "{} {router}: row {row}", self.name);
                    let off = (weight - weights[place]).abs();
                    assert!(off <= 5e-5, "{} {router}: weight off by {off:e} in row {row}", self.name);
                }
            }
            compared += 1;
        }
        if let Some(expected) = self.integers(&format!("{indexer}.keys")) {
            let columns = self.columns(&format!("{indexer}.keys"));
            assert_eq!(layer.index_keys.len(), expected.len() / columns, "{} {indexer}", self.name);
            for (row, (got, expected)) in layer.index_keys.iter().zip(expected.chunks(columns)).enumerate() {
                let expected: Vec<_> = expected.iter().filter_map(|key| u32::try_from(*key).ok()).collect();
                assert_eq!(got, &expected, "{} {indexer}: query {row}", self.name);
            }
            compared += 1;
        }
        if let Some(expected) = self.floats(&format!("{indexer}.scores")) {
            let columns = self.columns(&format!("{indexer}.scores"));
            let largest = expected.iter().filter(|score| **score > -1e29).fold(0f32, |a, b| a.max(b.abs()));
            for (row, (got, expected)) in layer.index_scores.iter().zip(expected.chunks(columns)).enumerate() {
                assert_eq!(got.len(), row + 1);
                for (got, expected) in got.iter().zip(expected) {
                    let off = (got - expected).abs();
                    assert!(off <= HIDDEN * largest, "{} {indexer}: score off by {off:e} in row {row}", self.name);
                }
            }
            compared += 1;
        }
        compared
    }

    /// Last dimension of an array.
    fn columns(&self, key: &str) -> usize {
        let tensor = self.catalog.get(key).unwrap();
        usize::try_from(*tensor.shape.last().unwrap()).unwrap()
    }

    /// Arrays that a test must have compared: all but prompts, margins, expert weights (compared with the experts) and
    /// the logits of another convention.
    fn arrays(&self, wanted: impl Fn(&str) -> bool) -> usize {
        let apart = [".ids", ".margin", ".weights", ".logits_config_eps"];
        let keys = self.catalog.tensors().map(|tensor| tensor.name.as_str());
        keys.filter(|key| wanted(key) && !apart.iter().any(|end| key.ends_with(end))).count()
    }

    fn greedy(&self, prompt: usize) -> (Vec<u32>, Vec<f64>) {
        let greedy = &self.facts["prompts"][prompt]["greedy"];
        let ids = greedy["ids"].as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap());
        let margins = greedy["top2_margin"].as_array().unwrap().iter().map(|margin| margin.as_f64().unwrap());
        (ids.collect(), margins.collect())
    }

    fn prompts(&self) -> usize {
        self.facts["prompts"].as_array().unwrap().len()
    }
}

/// `-log p(next token)` of each position but the last.
fn losses(logits: &[f32], ids: &[u32], vocab: usize) -> Vec<f32> {
    let rows = logits.chunks(vocab).zip(ids.iter().skip(1));
    let loss = |(row, next): (&[f32], &u32)| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        (sum.ln() - f64::from(row[*next as usize] - largest)) as f32
    };
    rows.map(loss).collect()
}

fn for_each_fixture(check: impl Fn(&Reference, &Model)) {
    for name in FIXTURES {
        let reference = Reference::open(name);
        let model = reference.model();
        check(&reference, &model);
    }
}

#[test]
fn logits_losses_and_everything_on_the_way_agree() {
    for_each_fixture(|reference, model| {
        let mut compared = 0;
        for prompt in 0..reference.prompts() {
            let ids = reference.ids(prompt);
            let trace = model.trace(&ids).unwrap();
            let key = |rest: &str| format!("p{prompt}.{rest}");
            compared += reference.close(&key("logits"), &trace.logits, LOGITS, 0.0);
            let losses = losses(&trace.logits, &ids, model.info().vocab_size);
            compared += reference.close(&key("nll"), &losses, LOGITS, 0.0);
            compared += reference.close(&key("hidden.embed"), &trace.embedding, 0.0, HIDDEN);
            compared += reference.close(&key("hidden.final"), &trace.final_hidden, 0.0, HIDDEN);
            for (index, layer) in trace.layers.iter().enumerate() {
                compared += reference.close(&key(&format!("hidden.{index}")), &layer.hidden, 0.0, HIDDEN);
                compared += reference.close(&key(&format!("attn_out.{index}")), &layer.attention_output, 0.0, HIDDEN);
                compared += reference.close(&key(&format!("mlp_out.{index}")), &layer.ffn_output, 0.0, HIDDEN);
                let (router, indexer) = (key(&format!("router.{index}")), key(&format!("indexer.{index}")));
                compared += reference.choices(&router, &indexer, layer);
            }
        }
        println!("{}: {compared} arrays agree", reference.name);
        assert_eq!(compared, reference.arrays(|key| !key.contains(".mtp.")), "{}: arrays compared", reference.name);
    });
}

#[test]
fn the_prediction_layer_agrees() {
    let with_layer = std::cell::RefCell::new(0);
    for_each_fixture(|reference, model| {
        let (mut ties, mut compared) = (0, 0);
        let Some(prompts) = reference.facts["mtp"]["prompts"].as_array() else {
            assert!(!model.info().has_mtp && model.mtp_trace(&[1, 2]).is_err());
            return;
        };
        for facts in prompts {
            let prompt = usize::try_from(facts["prompt"].as_u64().unwrap()).unwrap();
            let (ids, greedy) = (reference.ids(prompt), reference.greedy(prompt).0);
            let whole: Vec<u32> = ids.iter().chain(&greedy).copied().collect();
            compared += compare_prediction(reference, prompt, ids.len(), &whole, model);
            let trace = model.mtp_trace(&whole).unwrap();
            ties += compare_predicted_tokens(reference, facts, &trace, model.info().vocab_size);
        }
        println!("{}: {ties} predicted tokens differ after an exact tie of index scores", reference.name);
        assert!(ties <= 2, "{}: {ties} ties", reference.name);
        assert_eq!(compared, reference.arrays(|key| key.contains(".mtp.")), "{}: arrays compared", reference.name);
        *with_layer.borrow_mut() += 1;
    });
    assert_eq!(with_layer.into_inner(), 3);
}

/// Compares the likeliest predictions over prompt and answer. Clipping makes exact ties of index scores; where one falls
/// on the cut any choice of keys is right, so that a row may differ. Returns how many do.
fn compare_predicted_tokens(reference: &Reference, facts: &Value, trace: &Trace, vocab: usize) -> usize {
    let facts = &facts["over_prompt_plus_greedy"];
    let expected = facts["argmax"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
    let rows = trace.logits.chunks(vocab);
    assert_eq!(rows.len(), expected.len(), "{}", reference.name);
    let Some(layer) = trace.layers.last() else { panic!("the trace has no layers") };
    let mut ties = 0;
    for (row, (logits, expected)) in rows.zip(expected).enumerate() {
        if argmax(logits) as u64 != expected {
            let mut scores = layer.index_scores[row].clone();
            scores.sort_by(|a, b| b.total_cmp(a));
            let cut = layer.index_keys[row].len();
            let tied = cut < scores.len() && scores[cut - 1] == scores[cut];
            assert!(tied, "{}: row {row} predicts another token and no keys tie", reference.name);
            ties += 1;
        }
    }
    ties
}

/// Compares the prediction arrays of a prompt, whose last pair takes the first greedy token; returns how many.
fn compare_prediction(reference: &Reference, prompt: usize, len: usize, whole: &[u32], model: &Model) -> usize {
    let trace = model.mtp_trace(&whole[..=len]).unwrap();
    let Some(layer) = trace.layers.last() else { panic!("the trace has no layers") };
    let key = |rest: &str| format!("p{prompt}.mtp.{rest}");
    reference.close(&key("logits"), &trace.logits, LOGITS, 0.0)
        + reference.close(&key("hidden"), &layer.hidden, 0.0, HIDDEN)
        + reference.choices(&key("router"), &key("indexer"), layer)
}

#[test]
fn greedy_tokens_agree() {
    for_each_fixture(|reference, model| {
        let (mut near_ties, mut tokens) = (0, 0);
        for prompt in 0..reference.prompts() {
            let (expected, margins) = reference.greedy(prompt);
            let mut session = model.session();
            session.extend(&reference.ids(prompt), &NoWatch).unwrap();
            for (step, (expected, margin)) in expected.iter().zip(&margins).enumerate() {
                tokens += 1;
                near_ties += usize::from(*margin < f64::from(LOGITS));
                let got = session.sample(&SamplingParams::greedy()).unwrap().token;
                let excused = *margin < f64::from(LOGITS);
                assert!(got == *expected || excused, "{} p{prompt} step {step}: {got}, not {expected}", reference.name);
                session.extend(&[*expected], &NoWatch).unwrap();
            }
        }
        println!("{}: {tokens} greedy tokens, {near_ties} near ties", reference.name);
        assert!(tokens >= 96, "{}: only {tokens} tokens", reference.name);
        assert_eq!(near_ties, 0, "{}: the fixtures are free of near ties", reference.name);
    });
}
