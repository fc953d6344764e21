//! Compiling grammars and masking a vocabulary of 154,880 tokens, beside llguidance.
//!
//! Both engines compile the same grammars and give a mask before every token of the same texts, cut into the same tokens
//! (the longest that fits, from left to right). Two ways to meet a mask are timed. *In a generation*: one matcher, new at the
//! beginning of each text, walks through it; what it keeps on the way, it may use. *Cold*: before every mask the matcher
//! and everything kept is new, and only the text before the mask has been read. Preparing the vocabulary is shared by
//! all requests and timed on its own. Times are processor times of the thread, of which a mask that is only looked up spends
//! most on asking for the time. The masks of both are compared at every place.
//!
//! A full run ends with the table of `docs/performance.md`, whose percentiles are over single masks. `--test` runs
//! everything once over a small vocabulary.

#![allow(clippy::print_stdout, reason = "the table is the result of a run")]

#[path = "grammar/cases.rs"]
mod cases;
#[path = "grammar/memory.rs"]
mod memory;
#[path = "grammar/peer.rs"]
mod peer;
#[path = "grammar/vocabulary.rs"]
mod vocabulary;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use colibri::engine::{TokenGrammar, Vocabulary};
use colibri::grammar::TokenMask;
use criterion::{BenchmarkId, Criterion};
use rustix::time::{ClockId, clock_gettime};

use cases::Case;
use peer::Peer;

/// Tokens of the vocabulary, those of GLM-5.2.
const TOKENS: usize = 154_880;
/// Tokens in `--test`.
const FEW_TOKENS: usize = 6_000;
/// How often each grammar is compiled for the table.
const COMPILATIONS: usize = 200;
/// At most so many places of a case are masked cold.
const COLD: usize = 300;

/// What both engines work with.
struct Setting {
    vocabulary: Arc<Vocabulary>,
    /// The first special token ends the text.
    stop: u32,
    peer: Peer,
    splitter: TokenSplitter,
    test: bool,
}

/// Cuts text into tokens.
struct TokenSplitter {
    numbers: std::collections::HashMap<Vec<u8>, u32>,
    longest: usize,
}

impl TokenSplitter {
    fn new(tokens: &[Vec<u8>]) -> Self {
        let numbers = tokens.iter().cloned().zip(0..).filter(|(token, _)| !token.is_empty()).collect();
        Self { numbers, longest: tokens.iter().map(Vec::len).max().unwrap_or(0) }
    }

    fn split(&self, text: &str) -> Vec<u32> {
        let mut left = text.as_bytes();
        let mut tokens = Vec::new();
        while !left.is_empty() {
            let lengths = (1..=self.longest.min(left.len())).rev();
            let fits = |length: usize| self.numbers.get(&left[..length]).map(|token| (*token, length));
            let (token, length) = lengths.clone().find_map(fits).expect("every byte is a token");
            tokens.push(token);
            left = &left[length..];
        }
        tokens
    }
}

/// Times of one kind, sorted.
struct Times(Vec<Duration>);

impl Times {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The median, the 99th of a hundred and the largest, in microseconds.
    fn shown(&self) -> String {
        let at = |percent: usize| self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)];
        let shown = |time: Duration| {
            let microseconds = time.as_secs_f64() * 1e6;
            if microseconds < 10.0 { format!("{microseconds:.1}") } else { format!("{microseconds:.0}") }
        };
        format!("{} / {} / {}", shown(at(50)), shown(at(99)), shown(at(100)))
    }
}

/// Processor time of this thread: what else the machine does meanwhile takes none of it.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> T) -> T {
    let start = processor_time();
    let result = work();
    times.push(processor_time() - start);
    result
}

fn ours(setting: &Setting, case: &Case) -> TokenGrammar {
    let program = Arc::new(case.source.program());
    TokenGrammar::new(program, Arc::clone(&setting.vocabulary), &[setting.stop]).expect("a grammar")
}

fn our_mask(grammar: &mut TokenGrammar) -> Arc<TokenMask> {
    grammar.mask().expect("a mask")
}

/// What one case costs one engine.
struct Row {
    compile: Times,
    generation: Times,
    cold: Times,
    memory: usize,
}

impl Row {
    fn print(&self, case: &str, engine: &str) {
        let (compile, generation, cold) = (self.compile.shown(), self.generation.shown(), self.cold.shown());
        let megabytes = self.memory as f64 / 1e6;
        println!("| {case} | {engine} | {compile} | {generation} | {cold} | {megabytes:.1} |");
    }
}

/// An engine at work, so that both are driven by the same code.
struct Engine<'a, M, R> {
    compile: &'a dyn Fn() -> M,
    mask: &'a dyn Fn(&mut M) -> R,
    accept: &'a dyn Fn(&mut M, u32),
}

impl<M, R> Engine<'_, M, R> {
    fn measure(&self, texts: &[Vec<u32>], compilations: usize) -> Row {
        let mut compile = Vec::new();
        (0..compilations).for_each(|_| drop(black_box(timed(&mut compile, || (self.compile)()))));
        let (mut generation, mut most) = (Vec::new(), 0);
        for text in texts {
            let before = memory::begin();
            let mut matcher = (self.compile)();
            for token in text {
                drop(black_box(timed(&mut generation, || (self.mask)(&mut matcher))));
                (self.accept)(&mut matcher, *token);
            }
            drop(black_box(timed(&mut generation, || (self.mask)(&mut matcher))));
            most = most.max(memory::most().saturating_sub(before));
        }
        let places: usize = texts.iter().map(Vec::len).sum();
        let stride = places.div_ceil(COLD.min(compilations * 2));
        let mut cold = Vec::new();
        for text in texts {
            for at in (0..text.len()).step_by(stride) {
                let mut matcher = (self.compile)();
                text[..at].iter().for_each(|token| (self.accept)(&mut matcher, *token));
                drop(black_box(timed(&mut cold, || (self.mask)(&mut matcher))));
            }
        }
        Row { compile: Times::new(compile), generation: Times::new(generation), cold: Times::new(cold), memory: most }
    }
}

/// Compares the masks of both engines at every place: at how many they differ, and by how many tokens at most.
fn compare(setting: &Setting, case: &Case, texts: &[Vec<u32>]) -> (usize, usize, usize) {
    let (mut places, mut differing, mut most) = (0, 0, 0);
    for text in texts {
        let (mut own, mut peer) = (ours(setting, case), setting.peer.compile(&case.source));
        for at in 0..=text.len() {
            let (mask, other) = (our_mask(&mut own), peer::mask(&mut peer));
            let ids = 0..setting.vocabulary.len() as u32;
            let differ = ids.filter(|token| mask.allows(*token) != other.is_allowed(*token)).count();
            places += 1;
            differing += usize::from(differ > 0);
            most = most.max(differ);
            if let Some(token) = text.get(at) {
                assert!(own.accept(*token).expect("no limit"), "{}: token {at} of the text fits", case.name);
                peer.consume_token(*token).expect("the text fits llguidance's grammar");
            }
        }
    }
    (places, differing, most)
}

fn table(setting: &Setting, cases: &[Case]) {
    println!("microseconds: p50 / p99 / max; memory of one request at its peak in MB\n");
    println!("| grammar | engine | compile | mask, in a generation | mask, cold | MB |");
    println!("|---|---|---|---|---|---|");
    let mut notes = Vec::new();
    for case in cases {
        let texts: Vec<Vec<u32>> = case.texts.iter().map(|text| setting.splitter.split(text)).collect();
        let compilations = if setting.test { 2 } else { COMPILATIONS };
        let colibri = Engine {
            compile: &|| ours(setting, case),
            mask: &our_mask,
            accept: &|grammar: &mut TokenGrammar, token| assert!(grammar.accept(token).expect("no limit")),
        };
        colibri.measure(&texts, compilations).print(case.name, "colibri");
        let llguidance = Engine {
            compile: &|| setting.peer.compile(&case.source),
            mask: &peer::mask,
            accept: &|matcher: &mut llguidance::Matcher, token| {
                matcher.consume_token(token).expect("a token that fits")
            },
        };
        llguidance.measure(&texts, compilations).print(case.name, "llguidance");
        let (places, differing, most) = compare(setting, case, &texts);
        notes.push(format!("{}: {places} masks, {differing} differ, by at most {most} tokens", case.name));
    }
    println!("\n{}", notes.join("\n"));
}

/// A compilation, and a whole text with its masks, for criterion's own record.
fn record(setting: &Setting, cases: &[Case], criterion: &mut Criterion) {
    for case in cases {
        let text = setting.splitter.split(&case.texts[0]);
        let mut group = criterion.benchmark_group(case.name);
        group.measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300)).sample_size(10);
        group.bench_function(BenchmarkId::new("compile", "colibri"), |bencher| bencher.iter(|| ours(setting, case)));
        group.bench_function(BenchmarkId::new("compile", "llguidance"), |bencher| {
            bencher.iter(|| setting.peer.compile(&case.source));
        });
        group.bench_function(BenchmarkId::new("generation", "colibri"), |bencher| {
            bencher.iter(|| {
                let mut grammar = ours(setting, case);
                for token in &text {
                    black_box(our_mask(&mut grammar));
                    assert!(grammar.accept(*token).expect("no limit"));
                }
            });
        });
        group.bench_function(BenchmarkId::new("generation", "llguidance"), |bencher| {
            bencher.iter(|| {
                let mut matcher = setting.peer.compile(&case.source);
                for token in &text {
                    black_box(peer::mask(&mut matcher));
                    matcher.consume_token(*token).expect("a token that fits");
                }
            });
        });
        group.finish();
    }
}

fn main() {
    let test = std::env::args().any(|argument| argument == "--test");
    let tokens = vocabulary::tokens(if test { FEW_TOKENS } else { TOKENS });
    println!("{}", vocabulary::describe(&tokens));
    let stop = (tokens.len() - vocabulary::SPECIAL) as u32;
    let special = (stop..tokens.len() as u32).map(|id| (format!("<|{id}|>"), id));
    let (before, start) = (memory::begin(), processor_time());
    let vocabulary = Arc::new(Vocabulary::new(&tokens, special).expect("a vocabulary"));
    println!("vocabulary, colibri: {:.0?}, {:.1} MB", processor_time() - start, (memory::now() - before) as f64 / 1e6);
    let (before, start) = (memory::begin(), processor_time());
    let peer = Peer::new(&tokens);
    println!(
        "vocabulary, llguidance: {:.0?}, {:.1} MB",
        processor_time() - start,
        (memory::now() - before) as f64 / 1e6
    );
    let splitter = TokenSplitter::new(&tokens);
    let setting = Setting { vocabulary, stop, peer, splitter, test };
    let cases = cases::all();
    let mut criterion = Criterion::default().configure_from_args();
    record(&setting, &cases, &mut criterion);
    criterion.final_summary();
    table(&setting, &cases);
}
