//! Decoding and prefill of a small model, end to end in the engine: overheads that every model pays.
//!
//! The model is the embedded one when the package holds it, else a seeded checkpoint of its shape. Each decoded token is
//! taken back again, so that the context stays as long as it is said to be.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use colibri::engine::fixture::{Fixture, SplitMix64};
use colibri::engine::{EngineConfig, Model, NoWatch, Session};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tempfile::TempDir;

/// Tokens in the context while one more is decoded.
const CONTEXTS: [usize; 2] = [64, 1024];
/// Tokens of a prompt.
const PROMPT: usize = 512;

/// A checkpoint of the embedded model's shape.
fn fixture() -> Fixture {
    Fixture {
        layers: 6,
        hidden: 256,
        vocab: 2560,
        dense_width: 768,
        expert_width: 64,
        experts: 32,
        top_k: 4,
        groups: 1,
        query_rank: 128,
        latent_rank: 64,
        nope_dim: 32,
        rope_dim: 32,
        value_dim: 64,
        index_top_k: 256,
        index_heads: 2,
        index_dim: 64,
        bf16: true,
        context: 2048,
        ..Fixture::default()
    }
}

fn model() -> (Option<TempDir>, Model) {
    let embedded = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/colibri/data/demo");
    let (folder, path): (Option<TempDir>, PathBuf) = if embedded.join("config.json").exists() {
        (None, embedded)
    } else {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fixture().write(folder.path()).expect("a seeded checkpoint");
        let path = folder.path().to_path_buf();
        (Some(folder), path)
    };
    let model = Model::open(&path, &EngineConfig::default(), &NoWatch).expect("the model opens");
    (folder, model)
}

fn tokens(model: &Model, count: usize) -> Vec<u32> {
    let mut random = SplitMix64 { state: 3 };
    (0..count).map(|_| random.token(model.info().vocab_size)).collect()
}

fn extend(session: &mut Session, tokens: &[u32]) {
    session.extend(tokens, &NoWatch).expect("the tokens fit");
}

fn decode(criterion: &mut Criterion) {
    let (_folder, model) = model();
    let mut group = criterion.benchmark_group("decode");
    group.measurement_time(Duration::from_secs(2)).throughput(Throughput::Elements(1));
    for context in CONTEXTS {
        let tokens = tokens(&model, context + 64);
        let mut session = model.session();
        extend(&mut session, &tokens[..context]);
        let mut next = context;
        group.bench_function(BenchmarkId::from_parameter(context), |bencher| {
            bencher.iter(|| {
                extend(&mut session, &tokens[next..=next]);
                black_box(session.logits());
                next += 1;
                if next == tokens.len() {
                    next = context;
                    session.rewind(context);
                }
            });
        });
    }
    group.finish();
}

fn prefill(criterion: &mut Criterion) {
    let (_folder, model) = model();
    let tokens = tokens(&model, PROMPT);
    let mut session = model.session();
    let mut group = criterion.benchmark_group("prefill");
    group.measurement_time(Duration::from_secs(2)).throughput(Throughput::Elements(PROMPT as u64)).sample_size(20);
    group.bench_function(BenchmarkId::from_parameter(PROMPT), |bencher| {
        bencher.iter(|| {
            session.rewind(0);
            extend(&mut session, &tokens);
            black_box(session.logits());
        });
    });
    group.finish();
}

criterion_group!(benches, decode, prefill);
criterion_main!(benches);
