//! The expert store over stub sources and real files. What the tests share: a small model whose bytes are known, and a
//! source that counts, blocks and fails on demand.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use colibri_kernels::format::Format;
use colibri_kernels::matrix::MatrixView;

use super::{ExpertKey, ExpertMatrices, ExpertStore, ExpertTable, Lease, policy_named};
use crate::catalog::{ScaleType, WeightLocation};
use crate::container::FileId;
use crate::error::StoreError;
use crate::source::{ReadJob, Source, SourceKind, Span};

mod cases;
mod concurrency;
mod conformance;
mod faults;
#[cfg(unix)]
mod fork;
mod prefetch;

/// How the experts of a test model lie in their file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrangement {
    /// Records: codes then scales, aligned to blocks.
    Records,
    /// Codes of an expert together, all scales at the end, nothing aligned beyond 8 bytes.
    Scattered,
    /// bf16 matrices, aligned to 8 bytes.
    Float,
    /// As published containers have it: scales first, those of an expert together; then codes, those of an expert
    /// together, at odd offsets.
    Published,
    /// The same, and the scales lie at odd offsets too.
    PublishedOdd,
}

const ARRANGEMENTS: [Arrangement; 5] = [
    Arrangement::Records,
    Arrangement::Scattered,
    Arrangement::Float,
    Arrangement::Published,
    Arrangement::PublishedOdd,
];

/// A model of one file with known bytes.
struct Model {
    bytes: Arc<Vec<u8>>,
    layers: Vec<Vec<ExpertMatrices>>,
}

impl Model {
    /// `layers` layers of `experts` experts with matrices of [8, 128] and [16, 64].
    fn new(arrangement: Arrangement, layers: u32, experts: u32) -> Self {
        let (codes, scales) = if arrangement == Arrangement::Float { (2048, 0) } else { (512, 64) };
        let count = u64::from(layers * experts);
        let at = |number: u64, matrix: u64| -> (u64, u64) {
            match arrangement {
                Arrangement::Records => {
                    let start = 4096 * (number + 1);
                    (start + matrix * codes, start + 3 * codes + matrix * scales)
                }
                Arrangement::Scattered => {
                    let start = 8 + number * 3 * codes;
                    (
                        start + matrix * codes,
                        24 + count * 3 * codes + matrix * count * (scales + 8) + number * (scales + 8),
                    )
                }
                Arrangement::Float => (1016 + number * 3 * codes + matrix * codes, 0),
                Arrangement::Published | Arrangement::PublishedOdd => {
                    let scale = if arrangement == Arrangement::Published { 1004 } else { 1007 };
                    let code = 1007 + count * 3 * scales + 10_000;
                    let place = 3 * number + matrix;
                    (code + place * codes, scale + place * scales)
                }
            }
        };
        let place = |number: u64, matrix: u64| {
            let (rows, cols) = if matrix == 2 { (16, 64) } else { (8, 128) };
            let (code, scale) = at(number, matrix);
            let span = |offset, bytes| Span { file: FileId(0), offset, bytes };
            match arrangement {
                Arrangement::Float => WeightLocation {
                    format: Format::Bf16,
                    rows,
                    cols,
                    codes: span(code, codes),
                    scales: None,
                    scale_type: ScaleType::F32,
                },
                _ => WeightLocation {
                    format: Format::Int4Grouped { group: 64 },
                    rows,
                    cols,
                    codes: span(code, codes),
                    scales: Some(span(scale, scales)),
                    scale_type: ScaleType::F32,
                },
            }
        };
        let expert = |number| ExpertMatrices { gate: place(number, 0), up: place(number, 1), down: place(number, 2) };
        let layer = |layer| (0..experts).map(|index| expert(u64::from(layer * experts + index))).collect();
        let layers: Vec<Vec<ExpertMatrices>> = (0..layers).map(layer).collect();
        let ends = layers.iter().flatten().flat_map(|expert| [&expert.gate, &expert.up, &expert.down]);
        let end =
            ends.flat_map(|place| [Some(place.codes), place.scales]).flatten().map(|span| span.offset + span.bytes);
        let bytes = (0..end.max().unwrap_or(0)).map(known_byte).collect();
        Model { bytes: Arc::new(bytes), layers }
    }

    fn table(&self) -> ExpertTable {
        let mut table = ExpertTable::new();
        for (layer, experts) in (0u32..).zip(&self.layers) {
            table.push_layer(layer, experts.clone()).unwrap();
        }
        table
    }

    fn keys(&self) -> Vec<ExpertKey> {
        let layers = (0u32..).zip(&self.layers);
        layers
            .flat_map(|(layer, experts)| (0u32..).zip(experts).map(move |(index, _)| ExpertKey::new(layer, index)))
            .collect()
    }

    fn store(&self, source: &Arc<Stub>, slots: usize) -> ExpertStore {
        self.store_with(source, slots, 2)
    }

    fn store_with(&self, source: &Arc<Stub>, slots: usize, workers: usize) -> ExpertStore {
        let source: Arc<dyn Source> = Arc::clone(source) as Arc<dyn Source>;
        ExpertStore::new(source, self.table(), slots, policy_named("lru").unwrap(), workers).unwrap()
    }

    /// Asserts that the lease holds the file's bytes of this expert.
    fn check(&self, key: ExpertKey, lease: &Lease<'_>) {
        assert_eq!(lease.key(), key);
        let expert = &self.layers[key.layer as usize][key.expert as usize];
        let pairs = [(&expert.gate, lease.gate()), (&expert.up, lease.up()), (&expert.down, lease.down())];
        for (place, view) in pairs {
            self.check_matrix(key, place, &view);
        }
    }

    fn check_matrix(&self, key: ExpertKey, place: &WeightLocation, view: &MatrixView<'_>) {
        let part = |span: Span| &self.bytes[span.offset as usize..(span.offset + span.bytes) as usize];
        assert_eq!((view.format(), view.rows(), view.cols()), (place.format, place.rows, place.cols));
        assert!(view.codes() == part(place.codes), "codes of {key}");
        let scales: &[u8] = bytemuck::cast_slice(view.scales());
        assert!(scales == place.scales.map_or(&[][..], part), "scales of {key}");
    }
}

/// The byte at an offset of every test file.
fn known_byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// What a stub does with a read, before it copies.
type OnRead = dyn Fn(Span) -> Result<(), StoreError> + Send + Sync;

/// A source over memory that counts, and does what a test asks.
struct Stub {
    bytes: Arc<Vec<u8>>,
    reads: AtomicU64,
    log: Mutex<Vec<Span>>,
    on_read: Mutex<Option<Arc<OnRead>>>,
    gate: Gate,
}

impl Stub {
    fn new(model: &Model) -> Arc<Self> {
        Arc::new(Stub {
            bytes: Arc::clone(&model.bytes),
            reads: AtomicU64::new(0),
            log: Mutex::new(Vec::new()),
            on_read: Mutex::new(None),
            gate: Gate::default(),
        })
    }

    fn on_read(&self, act: impl Fn(Span) -> Result<(), StoreError> + Send + Sync + 'static) {
        *self.on_read.lock().unwrap() = Some(Arc::new(act));
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }
}

impl Source for Stub {
    fn kind(&self) -> SourceKind {
        SourceKind::Buffered
    }

    fn read(&self, jobs: &mut [ReadJob<'_>]) -> Result<(), StoreError> {
        for job in jobs {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.log.lock().unwrap().push(job.span);
            let act = self.on_read.lock().unwrap().clone();
            if let Some(act) = act {
                act(job.span)?;
            }
            self.gate.pass();
            job.into.copy_from_slice(&self.bytes[job.span.offset as usize..][..job.span.bytes as usize]);
        }
        Ok(())
    }
}

/// Holds readers back while it is shut.
#[derive(Default)]
struct Gate {
    /// Whether it is shut, and how many stand before it.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn shut(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |(shut, _)| *shut).unwrap();
        state.1 -= 1;
    }

    /// Waits until `count` readers stand before the gate.
    fn await_readers(&self, count: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |(_, waiting)| *waiting < count).unwrap());
    }
}

/// Waits until a condition holds; a test that waits in vain fails.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("in vain: {what}");
}

/// Acquires and checks one expert after another, dropping each lease at once.
fn visit(model: &Model, store: &ExpertStore, keys: &[ExpertKey]) {
    let mut seen = VecDeque::new();
    for item in store.acquire(keys) {
        let (index, lease) = item.unwrap();
        model.check(keys[index], &lease);
        seen.push_back(index);
    }
    seen.make_contiguous().sort_unstable();
    assert!(seen.iter().copied().eq(0..keys.len()), "delivered {seen:?} of {}", keys.len());
}

/// A fixed sequence of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// `count` different elements.
    fn choose(&mut self, from: &[ExpertKey], count: usize) -> Vec<ExpertKey> {
        let mut rest = from.to_vec();
        (0..count.min(from.len())).map(|_| rest.swap_remove(self.below(rest.len()))).collect()
    }
}
