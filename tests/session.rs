//! Sessions: stops, errors, limits, rewinding, sampling.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use colibri::engine::config::DRAFT_TOKENS;
use colibri::engine::fixture::Fixture;
use colibri::engine::{Control, EngineConfig, Model, NoWatch, Phase, SamplingParams, Watch};
use colibri::store::error::grouped;
use colibri::store::{ContextRequest, IoRequest, RamLimit, SourceKind};
use tempfile::TempDir;

const TOKENS: [u32; 20] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4];

fn checkpoint(fixture: &Fixture) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fixture.write(folder.path()).unwrap();
    folder
}

fn open(path: &Path, chunk: usize) -> Model {
    let io = IoRequest::Kind(SourceKind::Buffered);
    let config = EngineConfig { io, prefill_chunk: Some(chunk), slots: Some(3), ..EngineConfig::default() };
    Model::open(path, &config, &NoWatch).unwrap()
}

/// Says stop at the given call.
struct StopAt {
    call: u64,
    calls: AtomicU64,
}

impl Watch for StopAt {
    fn progress(&self, _phase: Phase, _done: u64, _total: u64) -> Control {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call == self.call { Control::Stop } else { Control::Continue }
    }
}

/// Counts calls for each phase and checks that progress never falls.
#[derive(Default)]
struct Rising {
    prefill: AtomicU64,
    decode: AtomicU64,
    calls: AtomicU64,
}

impl Watch for Rising {
    fn progress(&self, phase: Phase, done: u64, total: u64) -> Control {
        let last = if phase == Phase::Decode { &self.decode } else { &self.prefill };
        assert!(done <= total && done >= last.swap(done, Ordering::Relaxed), "{phase:?} {done} of {total}");
        self.calls.fetch_add(1, Ordering::Relaxed);
        Control::Continue
    }
}

#[test]
fn a_stop_keeps_whole_chunks_and_the_session_goes_on() {
    let folder = checkpoint(&Fixture::default());
    let model = open(folder.path(), 6);
    let expected = model.logits(&TOKENS, &NoWatch).unwrap();
    // A chunk asks once for each of the four layers and once at its end: this stops in the third chunk.
    for (call, kept) in [(0, 0), (3, 0), (4, 0), (5, 6), (12, 12), (19, 18)] {
        let mut session = model.session();
        let error = session.extend(&TOKENS, &StopAt { call, calls: AtomicU64::new(0) }).unwrap_err();
        assert_eq!((error.code(), session.len()), ("cancelled", kept), "stopped at call {call}");
        assert!(session.logits().is_none() && session.tokens() == &TOKENS[..kept]);
        session.extend(&TOKENS[kept..], &NoWatch).unwrap();
        assert_eq!(session.logits(), Some(&expected[expected.len() - 256..]), "stopped at call {call}");
    }
}

#[test]
fn progress_rises_through_prefill_and_decode() {
    let folder = checkpoint(&Fixture::default());
    let model = open(folder.path(), 6);
    let watch = Rising::default();
    let mut session = model.session();
    session.extend(&TOKENS, &watch).unwrap();
    assert_eq!(watch.prefill.load(Ordering::Relaxed), 20);
    session.extend(&[7], &watch).unwrap();
    assert_eq!(watch.decode.load(Ordering::Relaxed), 4);
    assert_eq!(watch.calls.load(Ordering::Relaxed), 5 * 5);
}

#[test]
fn a_failing_read_poisons_the_session_and_not_the_model() {
    let folder = checkpoint(&Fixture { shards: 2, ..Fixture::default() });
    let shards: Vec<PathBuf> =
        (1..=2).map(|shard| folder.path().join(format!("model-{shard:05}-of-00002.safetensors"))).collect();
    let whole: Vec<_> = shards.iter().map(|shard| std::fs::read(shard).unwrap()).collect();
    let model = open(folder.path(), 64);
    let mut session = model.session();
    for shard in &shards {
        std::fs::File::options().write(true).open(shard).unwrap().set_len(4096).unwrap();
    }
    let error = session.extend(&TOKENS, &NoWatch).unwrap_err();
    assert_eq!(error.code(), "disk_read_failed", "{error}");
    for (shard, bytes) in shards.iter().zip(&whole) {
        std::fs::write(shard, bytes).unwrap();
    }
    let poisoned = session.extend(&TOKENS, &NoWatch).unwrap_err();
    assert_eq!(poisoned.code(), "session_poisoned");
    assert!(poisoned.to_string().contains(&error.to_string()), "{poisoned}");
    let mut fresh = model.session();
    fresh.extend(&TOKENS, &NoWatch).unwrap();
    assert!(fresh.logits().is_some());
}

#[test]
fn a_mapped_file_that_was_cut_short_is_an_error_and_does_not_kill_the_process() {
    let folder = checkpoint(&Fixture { shards: 2, ..Fixture::default() });
    let io = IoRequest::Kind(SourceKind::Mmap);
    let model = Model::open(folder.path(), &EngineConfig { io, ..EngineConfig::default() }, &NoWatch).unwrap();
    let expected = model.logits(&TOKENS, &NoWatch).unwrap();
    let mut session = model.session();
    session.extend(&TOKENS[..3], &NoWatch).unwrap();
    let shard = folder.path().join("model-00002-of-00002.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    std::fs::File::options().write(true).open(&shard).unwrap().set_len(4096).unwrap();
    let failures = [
        session.extend(&TOKENS[3..], &NoWatch).unwrap_err(),
        model.logits(&TOKENS, &NoWatch).unwrap_err(),
        model.mtp_trace(&TOKENS).err().unwrap(),
    ];
    for error in failures {
        assert_eq!(error.code(), "disk_read_failed", "{error}");
        let said = format!("{error} {}", error.why().unwrap());
        for part in [&shard.display().to_string(), "4,096", &grouped(whole.len() as u64)] {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
    }
    std::fs::write(&shard, whole).unwrap();
    assert_eq!(model.logits(&TOKENS, &NoWatch).unwrap(), expected, "the model goes on when the file is whole again");
}

#[test]
fn memory_that_the_system_refuses_is_an_error_and_does_not_kill_the_process() {
    // A limit on address space, which only a process of its own can have.
    let script = "ulimit -v 300000; exec \"$0\" --ignored --exact inside_a_memory_limit --nocapture";
    let this = std::env::current_exe().unwrap();
    let run = std::process::Command::new("sh").args(["-c", script]).arg(&this).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("refused: ram_budget_too_small"), "{run:?}");
}

#[test]
#[ignore = "run by the test of refused memory, in a process with a limit on its address space"]
#[allow(clippy::print_stdout, reason = "the outcome goes to the test that started this process")]
fn inside_a_memory_limit() {
    let fixture = Fixture { vocab: 80_000, hidden: 64, layers: 2, mtp: false, tied: true, ..Fixture::default() };
    let folder = checkpoint(&fixture);
    let (io, threads) = (IoRequest::Kind(SourceKind::Mmap), Some(1));
    let config = EngineConfig { io, threads, ram: RamLimit::Bytes(1 << 40), ..EngineConfig::default() };
    let model = Model::open(folder.path(), &config, &NoWatch).unwrap();
    // 512 rows of 80,000 logits are 164 MB, beside 20 MB of weights; two of them are too much.
    let error = model.logits(&[1; 512], &NoWatch).and_then(|first| {
        let second = model.logits(&[1; 512], &NoWatch);
        drop(first);
        second
    });
    println!("refused: {}", error.err().unwrap().code());
}

#[test]
fn texts_beyond_the_context_and_foreign_tokens_change_nothing() {
    let folder = checkpoint(&Fixture::default());
    let config = EngineConfig { context: ContextRequest::Tokens(16), ..EngineConfig::default() };
    let model = Model::open(folder.path(), &config, &NoWatch).unwrap();
    let mut session = model.session();
    assert_eq!(session.capacity(), 16);
    session.extend(&TOKENS[..10], &NoWatch).unwrap();
    let before = session.logits().map(<[f32]>::to_vec);
    let error = session.extend(&TOKENS[..7], &NoWatch).unwrap_err();
    assert_eq!(error.code(), "context_length_exceeded");
    assert!(error.to_string().contains("17") && error.to_string().contains("16"), "{error}");
    let error = session.extend(&[255, 256], &NoWatch).unwrap_err();
    assert_eq!(error.code(), "invalid_value");
    assert!(error.to_string().contains("256"), "{error}");
    session.extend(&[], &NoWatch).unwrap();
    assert_eq!((session.len(), session.logits().map(<[f32]>::to_vec)), (10, before));
    session.extend(&TOKENS[..6], &NoWatch).unwrap();
    assert_eq!(session.extend(&[1], &NoWatch).unwrap_err().code(), "context_length_exceeded");
    assert_eq!(model.logits(&TOKENS, &NoWatch).unwrap_err().code(), "context_length_exceeded");
}

#[test]
fn sampling_needs_logits_and_a_step_takes_the_token_in() {
    let folder = checkpoint(&Fixture::default());
    let model = open(folder.path(), 64);
    let mut session = model.session();
    assert_eq!(session.sample(&SamplingParams::greedy()).unwrap_err().code(), "invalid_value");
    session.extend(&TOKENS, &NoWatch).unwrap();
    let chosen = session.sample(&SamplingParams::greedy()).unwrap();
    let stepped = session.step(&SamplingParams::greedy(), &NoWatch).unwrap();
    assert_eq!((chosen.token, session.len(), session.tokens().last()), (stepped.token, 21, Some(&chosen.token)));
    session.rewind(21);
    assert!(session.logits().is_some(), "rewinding to the present changes nothing");
    session.rewind(20);
    assert!(session.logits().is_none() && session.sample(&SamplingParams::greedy()).is_err());
}

#[test]
fn a_draft_is_one_step_of_decoding_and_keeps_the_row_of_each_token() {
    let folder = checkpoint(&Fixture::default());
    let model = open(folder.path(), 6);
    let expected = model.logits(&TOKENS, &NoWatch).unwrap();
    let row = |position: usize| Some(&expected[(position - 1) * 256..position * 256]);
    let (mut session, watch) = (model.session(), Rising::default());
    session.extend(&TOKENS[..5], &NoWatch).unwrap();
    assert_eq!(
        (session.row_at(5), session.row_at(4), session.row_at(6), session.row_at(0)),
        (row(5), None, None, None)
    );
    session.extend_all(&TOKENS[5..9], &watch).unwrap();
    assert_eq!((watch.prefill.load(Ordering::Relaxed), watch.decode.load(Ordering::Relaxed)), (0, 4));
    session.extend_all(&[], &NoWatch).unwrap();
    assert_eq!(session.row_at(5), None, "the row before the draft gave way");
    (6..=9).for_each(|position| assert_eq!(session.row_at(position), row(position), "position {position}"));
    assert_eq!((session.row_at(10), session.row_at(usize::MAX), session.logits()), (None, None, row(9)));
    session.rewind(7);
    assert_eq!((session.logits(), session.row_at(6), session.row_at(8)), (row(7), row(6), None));
    assert!(session.sample(&SamplingParams::greedy()).is_ok(), "a rewound draft leaves a row to choose from");
    session.rewind(5);
    assert_eq!((session.logits(), session.row_at(6)), (None, None));
    // More than a chunk.
    session.extend_all(&TOKENS[5..], &NoWatch).unwrap();
    (6..=20).for_each(|position| assert_eq!(session.row_at(position), row(position), "position {position}"));
}

#[test]
fn a_draft_that_is_too_long_or_stopped_is_refused() {
    let folder = checkpoint(&Fixture::default());
    let model = open(folder.path(), 6);
    let mut session = model.session();
    session.extend(&TOKENS[..5], &NoWatch).unwrap();
    let before = session.logits().map(<[f32]>::to_vec);
    let error = session.extend_all(&[1; DRAFT_TOKENS + 1], &NoWatch).unwrap_err();
    assert_eq!((error.code(), session.len()), ("invalid_value", 5));
    assert!(error.to_string().contains("64") && error.to_string().contains("65"), "{error}");
    assert_eq!(session.extend_all(&[256], &NoWatch).unwrap_err().code(), "invalid_value");
    assert_eq!(session.logits().map(<[f32]>::to_vec), before);
    // The chunk before the stop is kept, but no row.
    let error = session.extend_all(&TOKENS[5..], &StopAt { call: 7, calls: AtomicU64::new(0) }).unwrap_err();
    assert_eq!((error.code(), session.len()), ("cancelled", 11));
    assert!((0..=11).all(|position| session.row_at(position).is_none()));
    session.extend_all(&TOKENS[11..], &NoWatch).unwrap();
    let expected = model.logits(&TOKENS, &NoWatch).unwrap();
    assert_eq!(session.logits(), Some(&expected[19 * 256..]));
    assert_eq!(session.sample_at(3, &SamplingParams::greedy(), None).unwrap_err().code(), "invalid_value");
}

#[test]
fn sessions_of_one_model_do_not_disturb_each_other() {
    let folder = checkpoint(&Fixture::default());
    let model = open(folder.path(), 5);
    let expected = model.logits(&TOKENS, &NoWatch).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut session = model.session();
                for token in TOKENS {
                    session.extend(&[token], &NoWatch).unwrap();
                }
                assert_eq!(session.logits(), Some(&expected[19 * 256..]));
            });
        }
    });
}
