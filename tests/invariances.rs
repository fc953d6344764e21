//! Placement, threads, chunking and instruction set never change a bit of the logits.
//!
//! Each test walks the engine's tables: kernel sets, thread counts and chunk sizes, sources and numbers of slots. The
//! models are seeded checkpoints in f32 and bf16, their conversions to every format, and the reference fixtures.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use colibri::engine::convert::{ConvertOptions, TARGET_FORMATS, convert};
use colibri::engine::fixture::{Fixture, SplitMix64};
use colibri::engine::{EngineConfig, Model, NoWatch, Sampled, SamplingParams, Session};
use colibri::grammar::TokenMask;
use colibri::kernels::{KernelSet, Numerics, ScaleRule};
use colibri::store::budget::ScaleMode;
use colibri::store::source::SOURCES;
use colibri::store::{ContextRequest, IoRequest, RamLimit, SourceKind};
use tempfile::TempDir;

mod published;

use published::{Layout, publish};

/// A model on disk and a text for it.
struct Case {
    name: String,
    path: PathBuf,
    vocab: usize,
    experts: usize,
    top_k: usize,
}

/// Several tiles, heads and groups wide, so that every kernel path is taken.
fn wide() -> Fixture {
    Fixture {
        layers: 2,
        vocab: 128,
        experts: 6,
        hidden: 512,
        dense_width: 576,
        expert_width: 128,
        query_rank: 128,
        latent_rank: 128,
        nope_dim: 64,
        rope_dim: 32,
        value_dim: 64,
        heads: 8,
        index_heads: 8,
        index_dim: 64,
        index_top_k: 24,
        bf16: true,
        shards: 2,
        ..Fixture::default()
    }
}

/// The checkpoints and their conversions; the folder must outlive the cases.
static CASES: LazyLock<(TempDir, Vec<Case>)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let mut cases = Vec::new();
    for (name, fixture) in [("narrow", Fixture::default()), ("wide", wide())] {
        let case = |name: String, path| Case {
            name,
            path,
            vocab: fixture.vocab,
            experts: fixture.experts * (fixture.layers - fixture.dense_layers + 1),
            top_k: fixture.top_k,
        };
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        fixture.write(&path).unwrap();
        for format in TARGET_FORMATS {
            let converted = folder.path().join(format!("{name}-{}", format.name()));
            let options = ConvertOptions {
                experts: *format,
                dense: *format,
                scale_rule: ScaleRule::AbsMax,
                ..ConvertOptions::default()
            };
            convert(&path, &converted, &options, &NoWatch).unwrap();
            cases.push(case(format!("{name} {}", format.name()), converted));
        }
        cases.push(case(name.to_owned(), path));
    }
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/glm_sparse");
    cases.push(Case { name: "glm_sparse".to_owned(), path: oracle, vocab: 256, experts: 30, top_k: 2 });
    (folder, cases)
});

fn text(case: &Case, len: usize) -> Vec<u32> {
    let mut random = SplitMix64 { state: 11 };
    (0..len).map(|_| random.token(case.vocab)).collect()
}

/// One thread, one row at a time, the scalar kernels, everything in memory: what every other way must equal.
fn plain(numerics: Numerics) -> EngineConfig {
    EngineConfig {
        numerics,
        threads: Some(1),
        kernels: "scalar".to_owned(),
        prefill_chunk: Some(1),
        io: IoRequest::Kind(SourceKind::Buffered),
        ..EngineConfig::default()
    }
}

fn bits(case: &Case, config: &EngineConfig, tokens: &[u32]) -> Vec<u32> {
    let model = Model::open(&case.path, config, &NoWatch).unwrap();
    let logits = model.logits(tokens, &NoWatch).unwrap();
    assert_eq!(logits.len(), tokens.len() * case.vocab);
    logits.into_iter().map(f32::to_bits).collect()
}

#[test]
fn i1_every_kernel_set_gives_the_bits_of_the_scalar_one() {
    for case in &CASES.1 {
        let tokens = text(case, 24);
        for numerics in Numerics::ALL {
            let base = EngineConfig { prefill_chunk: Some(12), ..plain(numerics) };
            let expected = bits(case, &base, &tokens);
            for kernels in KernelSet::available() {
                let name = kernels.name().to_owned();
                let config = EngineConfig { kernels: name, ..base.clone() };
                let equal = bits(case, &config, &tokens) == expected;
                assert!(equal, "{}, {}, {}", case.name, numerics.name(), kernels.name());
            }
        }
    }
}

#[test]
fn i2_chunks_and_threads_do_not_change_a_bit() {
    for case in &CASES.1 {
        let tokens = text(case, 64);
        let base = EngineConfig { kernels: "auto".to_owned(), ..plain(Numerics::Quantized) };
        let expected = bits(case, &base, &tokens);
        for (threads, chunks) in [(1, &[2, 3, 17, 64][..]), (2, &[1, 5, 64]), (3, &[1, 16, 33]), (7, &[1, 7, 64])] {
            for chunk in chunks {
                // Every section is shared, however small.
                let (threads, prefill_chunk) = (Some(threads), Some(*chunk));
                let config = EngineConfig { threads, prefill_chunk, serial_work: 0, ..base.clone() };
                let equal = bits(case, &config, &tokens) == expected;
                assert!(equal, "{}, {threads:?} threads, chunks of {chunk}", case.name);
            }
        }
    }
}

#[test]
fn i2_a_session_gives_the_bits_of_one_pass_however_it_is_fed() {
    for case in &CASES.1 {
        let tokens = text(case, 48);
        let config = EngineConfig { threads: Some(2), prefill_chunk: None, ..plain(Numerics::Quantized) };
        let model = Model::open(&case.path, &config, &NoWatch).unwrap();
        let expected = model.logits(&tokens, &NoWatch).unwrap();
        let mut session = model.session();
        let mut fed = 0;
        for piece in [1, 4, 11, 1, 1, 20, 10] {
            session.extend(&tokens[fed..fed + piece], &NoWatch).unwrap();
            fed += piece;
            let row = &expected[(fed - 1) * case.vocab..fed * case.vocab];
            assert_eq!(session.logits(), Some(row), "{} after {fed} tokens", case.name);
        }
        session.rewind(9);
        assert_eq!((session.len(), session.logits()), (9, None));
        session.extend(&tokens[9..], &NoWatch).unwrap();
        assert_eq!(session.logits(), Some(&expected[47 * case.vocab..]), "{} after a rewind", case.name);
    }
}

#[test]
fn i3_sources_and_slots_do_not_change_a_bit() {
    for case in &CASES.1 {
        let tokens = text(case, 40);
        let base = EngineConfig { kernels: "auto".to_owned(), threads: Some(2), ..plain(Numerics::Quantized) };
        let expected = bits(case, &base, &tokens);
        for source in SOURCES {
            for slots in [1, case.top_k, case.top_k + 2, case.experts] {
                for chunk in [1, 64] {
                    let config = EngineConfig {
                        io: IoRequest::Kind(source.kind),
                        slots: Some(slots),
                        prefill_chunk: Some(chunk),
                        ..base.clone()
                    };
                    let equal = bits(case, &config, &tokens) == expected;
                    assert!(equal, "{}, {}, {slots} slots, chunks of {chunk}", case.name, source.kind.name());
                }
            }
        }
    }
}

#[test]
fn one_slot_per_active_expert_reads_again_and_all_resident_reads_once() {
    let case = &CASES.1[0];
    let tokens = text(case, 40);
    let stats = |slots| {
        let config = EngineConfig { slots: Some(slots), ..plain(Numerics::Quantized) };
        let model = Model::open(&case.path, &config, &NoWatch).unwrap();
        model.logits(&tokens, &NoWatch).unwrap();
        model.stats()
    };
    let (few, all) = (stats(case.top_k), stats(case.experts));
    assert_eq!(few.requests(), all.requests());
    assert!(few.misses > all.misses && all.misses <= case.experts as u64 && all.hits > 0, "{few:?} {all:?}");
}

/// The settings with which the scales of a published container live as `mode` says: by the memory there is.
fn placing_scales(path: &Path, base: &EngineConfig, mode: ScaleMode) -> EngineConfig {
    let config = EngineConfig { ram: RamLimit::Bytes(1 << 30), context: ContextRequest::Tokens(64), ..base.clone() };
    if mode != ScaleMode::WithEachMiss {
        return config;
    }
    // Room for no more than the fewest slots.
    let model = Model::open(path, &config, &NoWatch).unwrap();
    let plan = model.memory_plan();
    let fixed = plan.resident_bytes + plan.kv_bytes + plan.scratch_bytes;
    let ram = RamLimit::Bytes(fixed + plan.sizes.active_experts_min * plan.sizes.slot_bytes);
    EngineConfig { ram, ..config }
}

#[test]
fn i3_the_published_layout_gives_the_bits_of_ours_wherever_its_scales_live() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture { experts: 32, ..wide() };
    let checkpoint = folder.path().join("checkpoint");
    std::fs::create_dir(&checkpoint).unwrap();
    fixture.write(&checkpoint).unwrap();
    for format in TARGET_FORMATS.iter().filter(|format| format.has_scales()) {
        let ours = folder.path().join(format.name());
        let (experts, dense, scale_rule) = (*format, *format, ScaleRule::AbsMax);
        let options = ConvertOptions { experts, dense, scale_rule, ..ConvertOptions::default() };
        convert(&checkpoint, &ours, &options, &NoWatch).unwrap();
        let case = |path| Case { name: format.name(), path, vocab: fixture.vocab, experts: 32, top_k: fixture.top_k };
        let tokens = text(&case(ours.clone()), 24);
        let base = EngineConfig { kernels: "auto".to_owned(), threads: Some(2), ..plain(Numerics::Quantized) };
        let expected = bits(&case(ours), &base, &tokens);
        for (shift, scales_apart) in [(0, false), (3, false), (1, true)] {
            let path = folder.path().join(format!("{}-{shift}-{scales_apart}", format.name()));
            std::fs::create_dir(&path).unwrap();
            publish(&checkpoint.with_file_name(format.name()), &path, Layout { shift, scales_apart });
            let case = case(path);
            for source in SOURCES {
                let base = EngineConfig { io: IoRequest::Kind(source.kind), ..base.clone() };
                let modes = match (source.kind, shift) {
                    (SourceKind::Mmap, 0) => &[ScaleMode::Mapped][..],
                    (SourceKind::Mmap, _) => &[ScaleMode::Resident],
                    _ => &[ScaleMode::Resident, ScaleMode::WithEachMiss],
                };
                for mode in modes {
                    let config = placing_scales(&case.path, &base, *mode);
                    let model = Model::open(&case.path, &config, &NoWatch).unwrap();
                    let scales = &model.memory_plan().scales;
                    assert_eq!(scales.mode, *mode, "{}, {}: {}", case.name, source.kind, scales.reason);
                    assert!(model.memory_plan().projected_peak <= model.memory_plan().ram_budget);
                    for slots in [None, Some(1), Some(case.top_k), Some(case.experts)] {
                        let config = EngineConfig { slots, ..config.clone() };
                        let equal = bits(&case, &config, &tokens) == expected;
                        assert!(equal, "{}, shift {shift}, {}, {mode:?}, {slots:?} slots", case.name, source.kind);
                    }
                }
            }
        }
    }
}

/// The mask of a position of a text, for a vocabulary of this size.
type MaskAt = fn(usize, usize) -> Option<TokenMask>;

/// What each position of a text is chosen with: greedy and drawn, with penalties on what came before, with a mask that
/// changes from position to position.
fn choices(vocab: usize) -> Vec<(SamplingParams, MaskAt)> {
    fn changing(position: usize, vocab: usize) -> Option<TokenMask> {
        let mut mask = TokenMask::none(vocab);
        (0..vocab as u32)
            .filter(|token| !(*token as usize + position).is_multiple_of(3))
            .for_each(|token| mask.allow(token));
        Some(mask)
    }
    let penalties = SamplingParams {
        repeat_penalty: 1.4,
        presence_penalty: 0.5,
        frequency_penalty: 0.3,
        ..SamplingParams::greedy()
    };
    let drawn = SamplingParams { temperature: 0.8, seed: 21, ..SamplingParams::default() };
    let both = SamplingParams { temperature: 1.5, top_k: vocab as u32 / 2, min_p: 0.01, seed: 3, ..penalties };
    let free = |_, _| None;
    vec![
        (SamplingParams::greedy(), free),
        (penalties, free),
        (penalties, changing),
        (drawn, free),
        (drawn, changing),
        (both, free),
        (both, changing),
    ]
}

/// A way of choosing, with the mask of each position.
struct Chooser {
    params: SamplingParams,
    mask: MaskAt,
    vocab: usize,
}

impl Chooser {
    /// What the token at a position is.
    fn at(&self, session: &Session, position: usize) -> Sampled {
        let mask = (self.mask)(position, self.vocab);
        session.sample_at(position, &self.params, mask.as_ref()).unwrap()
    }

    /// Token after token behind a prompt.
    fn plainly(&self, session: &mut Session, count: usize) -> Vec<Sampled> {
        let mut chosen = Vec::new();
        while chosen.len() < count {
            chosen.push(self.at(session, session.len()));
            session.extend(&[chosen[chosen.len() - 1].token], &NoWatch).unwrap();
        }
        chosen
    }

    /// With drafts that are right for a while, and random tokens behind that. `outcomes` takes how many tokens of each
    /// draft there were, and how many were right.
    fn with_drafts(
        &self,
        session: &mut Session,
        expected: &[Sampled],
        outcomes: &mut Vec<(usize, usize)>,
    ) -> Vec<Sampled> {
        let mut random = SplitMix64 { state: outcomes.len() as u64 };
        let mut found: Vec<Sampled> = Vec::new();
        while found.len() < expected.len() {
            found.push(self.at(session, session.len()));
            // Up to 25 rows in one pass.
            let right = [0, 0, 1, 2, 5, 7, 16][random.token(7) as usize];
            let wrong = [0, 0, 1, 2, 3, 8][random.token(6) as usize];
            let known = expected[found.len()..].iter().take(right).map(|sampled| sampled.token);
            let draft: Vec<u32> = std::iter::once(found[found.len() - 1].token).chain(known).collect();
            let draft = [draft, (0..wrong).map(|_| random.token(self.vocab)).collect()].concat();
            let start = session.len();
            session.extend_all(&draft, &NoWatch).unwrap();
            let mut taken = 1;
            while taken < draft.len() && found.len() < expected.len() {
                let sampled = self.at(session, start + taken);
                if sampled.token != draft[taken] {
                    break;
                }
                found.push(sampled);
                taken += 1;
            }
            outcomes.push((draft.len() - 1, taken - 1));
            session.rewind(start + taken);
        }
        found
    }
}

#[test]
fn i4_drafts_right_and_wrong_do_not_change_a_bit() {
    const TOKENS: usize = 24;
    let bits = |of: &[Sampled]| -> Vec<_> { of.iter().map(|s| (s.token, s.logprob.to_bits())).collect() };
    let mut outcomes = Vec::new();
    for case in &CASES.1 {
        // Each way of choosing under one of the settings, with few and with all experts in memory.
        let settings = [(64, 2, case.top_k), (3, 1, case.experts)];
        for (half, (chunk, threads, slots)) in settings.into_iter().enumerate() {
            let config = EngineConfig { threads: Some(threads), slots: Some(slots), ..plain(Numerics::Quantized) };
            let config = EngineConfig { kernels: "auto".to_owned(), prefill_chunk: Some(chunk), ..config };
            let model = Model::open(&case.path, &config, &NoWatch).unwrap();
            let prompt = text(case, 20);
            for (number, (params, mask)) in choices(case.vocab).into_iter().enumerate().skip(half).step_by(2) {
                let chooser = Chooser { params, mask, vocab: case.vocab };
                let mut session = model.session();
                session.extend(&prompt, &NoWatch).unwrap();
                let expected = chooser.plainly(&mut session, TOKENS);
                let last = session.logits().map(<[f32]>::to_vec);
                let mut session = model.session();
                session.extend(&prompt, &NoWatch).unwrap();
                // Twice, so that drafts follow a rewind over drafts too.
                for turn in 0..2 {
                    let found = chooser.with_drafts(&mut session, &expected, &mut outcomes);
                    let place = format!("{}, choice {number}, chunks of {chunk}, turn {turn}", case.name);
                    assert_eq!(bits(&found), bits(&expected), "{place}");
                    assert_eq!(session.len(), prompt.len() + TOKENS, "{place}");
                    assert_eq!(session.logits().map(<[f32]>::to_vec), last, "{place}");
                    session.rewind(prompt.len() - 1);
                    session.extend(&prompt[prompt.len() - 1..], &NoWatch).unwrap();
                }
            }
        }
    }
    // Accepted, refused in part and as a whole.
    assert!(outcomes.iter().any(|(proposed, right)| *right > 8 && right == proposed));
    assert!(outcomes.iter().any(|(proposed, right)| *right > 8 && right < proposed));
    assert!(outcomes.iter().any(|(proposed, right)| *right == 0 && *proposed > 1));
}
