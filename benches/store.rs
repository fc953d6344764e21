//! What the disk gives to the expert store, and what the store adds.
//!
//! Cold reads of records of real size by every source, the raw direct read rate, streaming of misses through the store from
//! our records and from the published layout (codes of an expert adjacent at odd offsets, its scales elsewhere: held in
//! memory, or read with each miss), and the cost of its books: an acquire of eight experts that are all there, and a miss with any number of slots.
//! `cargo bench --bench store` makes a file of 1.5 GB in `target/tmp`, removes it at the end and prints each rate with
//! its ratio to the raw direct rate of the same process. With `--test` every case runs once on a few kilobytes.
#![allow(clippy::print_stdout, reason = "a benchmark reports on the terminal")]

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use colibri::kernels::{AlignedBuffer, Format};
use colibri::store::expert::{ExpertKey, ExpertMatrices, ExpertStore, ExpertTable, policy_named};
use colibri::store::source::{ReadJob, SOURCES, Source, SourceKind, Span, open_source};
use colibri::store::{FileId, FileInfo, ScaleType, StoreError, WeightLocation};
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput, measurement::WallTime};
use rustix::fs::{Advice, OFlags};

/// Blocks of a raw direct read, as large as the pieces in which the store reads.
const RAW_BLOCK: u64 = 4 << 20;

/// How large everything is.
struct Scale {
    file_bytes: u64,
    /// Rows of gate and up, which are the columns of down.
    intermediate: usize,
    /// Columns of gate and up.
    hidden: usize,
}

/// A record of one expert as the converter writes it: codes, then scales, each record on a block.
#[derive(Clone, Copy)]
struct RecordShape {
    name: &'static str,
    format: Format,
    /// Only the gate matrix: a piece of about 6 MB.
    single: bool,
}

const RECORDS: [RecordShape; 3] = [
    RecordShape { name: "21.2MB_q4g64", format: Format::Q4G64, single: false },
    RecordShape { name: "18.9MB_q4row", format: Format::Int4Row, single: false },
    RecordShape { name: "6.3MB_matrix", format: Format::Q4G64, single: true },
];

impl RecordShape {
    fn part_bytes(self, scale: &Scale) -> (u64, u64) {
        let (rows, cols) = (scale.intermediate, scale.hidden);
        let codes = self.format.code_bytes(rows, cols).expect("a size") as u64;
        let scales = self.format.scale_count(rows, cols).expect("a size") as u64 * 4;
        (codes, scales)
    }

    fn bytes(self, scale: &Scale) -> u64 {
        if self.single {
            return self.part_bytes(scale).0.next_multiple_of(4096);
        }
        let down = self.format.scale_count(scale.hidden, scale.intermediate).expect("a size") as u64 * 4;
        let (codes, scales) = self.part_bytes(scale);
        (3 * codes + 2 * scales + down).next_multiple_of(4096)
    }

    fn matrices(self, scale: &Scale, start: u64) -> ExpertMatrices {
        let (codes, scales) = self.part_bytes(scale);
        let place = |matrix: u64| {
            let (rows, cols) =
                if matrix == 2 { (scale.hidden, scale.intermediate) } else { (scale.intermediate, scale.hidden) };
            let scale_bytes = self.format.scale_count(rows, cols).expect("a size") as u64 * 4;
            let span = |offset, bytes| Span { file: FileId(0), offset, bytes };
            let scales = Some(span(start + 3 * codes + matrix * scales, scale_bytes));
            WeightLocation {
                format: self.format,
                rows,
                cols,
                codes: span(start + matrix * codes, codes),
                scales,
                scale_type: ScaleType::F32,
            }
        };
        ExpertMatrices { gate: place(0), up: place(1), down: place(2) }
    }
}

/// How the experts lie in the file.
#[derive(Clone, Copy)]
enum Layout {
    /// Records as the converter writes them.
    Ours,
    /// As published containers have them: first all scales, then all codes from an odd offset on.
    Published {
        /// The scales are read once and stay in memory.
        held: bool,
    },
}

impl Layout {
    fn name(self) -> &'static str {
        match self {
            Layout::Ours => "",
            Layout::Published { held: true } => "/published_scales_held",
            Layout::Published { held: false } => "/published_scales_with_each_miss",
        }
    }

    /// The experts that fit into the file, and the bytes of a miss.
    fn experts(self, bench: &Bench, shape: RecordShape) -> (Vec<ExpertMatrices>, u64) {
        let scale = &bench.scale;
        let Layout::Published { held } = self else {
            let spans = bench.spans(shape.bytes(scale)).into_iter();
            return (spans.map(|span| shape.matrices(scale, span.offset)).collect(), shape.bytes(scale));
        };
        // Scales begin on a multiple of 4 as in every published file; codes anywhere.
        const FIRST_SCALE: u64 = 1004;
        let ours = shape.matrices(scale, 0);
        let codes = 3 * ours.gate.codes.bytes;
        let parts = [&ours.down, &ours.gate, &ours.up];
        let scales: u64 = parts.iter().filter_map(|place| place.scales).map(|span| span.bytes).sum();
        let count = (scale.file_bytes - 2 * FIRST_SCALE) / (codes + scales);
        let first_code = FIRST_SCALE + count * scales + 3;
        let place = |number: u64| {
            let (mut code, mut scale) = (first_code + number * codes, FIRST_SCALE + number * scales);
            let [down, gate, up] = parts.map(|place| {
                let mut place = place.clone();
                place.codes.offset = code;
                code += place.codes.bytes;
                if let Some(span) = &mut place.scales {
                    span.offset = scale;
                    scale += span.bytes;
                }
                place
            });
            ExpertMatrices { gate, up, down }
        };
        (shuffled(count).map(place).collect(), if held { codes } else { codes + scales })
    }
}

/// The numbers below `count` in an order that read-ahead cannot guess.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    let stride = (count * 5 / 8) | 1;
    let coprime = (stride..)
        .step_by(2)
        .find(|stride| (2..=*stride).all(|d| !count.is_multiple_of(d) || !stride.is_multiple_of(d)));
    let stride = coprime.unwrap_or(1);
    (0..count).map(move |index| index * stride % count)
}

/// The file that is read, and the rates measured on it.
struct Bench {
    scale: Scale,
    files: Vec<FileInfo>,
    rates: Vec<Rates>,
}

/// What was measured of one case.
struct Rates {
    name: String,
    /// GB/s of every sample.
    samples: Vec<f64>,
    /// GB/s of the disk itself, measured between the rounds of each sample, where that was done.
    raw: Vec<f64>,
}

impl Bench {
    fn new(scale: Scale) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("store-bench-{}.bin", scale.file_bytes));
        let mut file = File::create(&path).expect("a file in target/tmp");
        let mut random = 1u64;
        let mut block = vec![0u8; 1 << 20];
        block.iter_mut().for_each(|byte| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (random >> 56) as u8;
        });
        let mut written = 0;
        while written < scale.file_bytes {
            let part = block.len().min((scale.file_bytes - written) as usize);
            file.write_all(&block[..part]).expect("space for the file");
            written += part as u64;
        }
        file.sync_all().expect("the file on disk");
        let files = vec![FileInfo { path, bytes: scale.file_bytes }];
        Bench { scale, files, rates: Vec::new() }
    }

    /// Drops the file's pages from the page cache; pages that are mapped stay.
    fn make_cold(&self) {
        let file = File::open(&self.files[0].path).expect("the file");
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("the page cache was not dropped");
    }

    /// The spans of all records of this many bytes, in an order that read-ahead cannot guess.
    fn spans(&self, bytes: u64) -> Vec<Span> {
        let span = |index| Span { file: FileId(0), offset: index * bytes, bytes };
        shuffled(self.scale.file_bytes / bytes).map(span).collect()
    }

    /// Measures `read`, which reads a number of records and returns the time it took, and the time that the disk itself
    /// took for as many if it was measured beside. One iteration is one record.
    fn measure(
        &mut self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        name: &str,
        record_bytes: u64,
        mut read: impl FnMut(&Bench, u64) -> (Duration, Option<Duration>),
    ) {
        let mut rates = Rates { name: name.to_owned(), samples: Vec::new(), raw: Vec::new() };
        group.throughput(Throughput::Bytes(record_bytes));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|records| {
                let (time, raw) = read(self, records);
                let rate = |time: Duration| (records * record_bytes) as f64 / time.as_secs_f64() / 1e9;
                rates.samples.push(rate(time));
                rates.raw.extend(raw.map(rate));
                time
            });
        });
        self.rates.push(rates);
    }

    /// Prints every rate with its ratio to the disk's: measured beside it, else the fastest raw direct rate.
    fn report(&self) {
        let median = |samples: &[f64]| {
            let mut sorted = samples.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
        };
        let raw = self.rates.iter().filter(|rates| rates.name.starts_with("raw_direct"));
        let fastest = raw.map(|rates| median(&rates.samples)).fold(0.0, f64::max);
        println!("\n{:<82} {:>6} {:>6} {:>6}", "case (medians of samples)", "GB/s", "raw", "ratio");
        for Rates { name, samples, raw } in self.rates.iter().filter(|rates| !rates.samples.is_empty()) {
            let rate = median(samples);
            let raw = if raw.is_empty() { fastest } else { median(raw) };
            println!("{name:<82} {rate:>6.2} {raw:>6.2} {:>6.2}", rate / raw);
        }
    }
}

/// Runs `read` for record numbers `0..records` on `threads` threads; the time from the first to the last.
fn on_threads(threads: usize, records: u64, read: impl Fn(u64, &mut AlignedBuffer) + Sync, room: u64) -> Duration {
    let mut buffers: Vec<AlignedBuffer> =
        (0..threads).map(|_| AlignedBuffer::new(room as usize).expect("memory")).collect();
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for buffer in &mut buffers {
            scope.spawn(|| {
                let buffer = buffer;
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed) as u64;
                    if number >= records {
                        return;
                    }
                    read(number, buffer);
                }
            });
        }
    });
    start.elapsed()
}

/// The disk itself: direct reads in blocks, without any of our code in between.
struct RawDisk {
    file: File,
    spans: Vec<Span>,
    record: u64,
    position: u64,
}

impl RawDisk {
    /// Reads of `record` bytes, a multiple of 4096.
    fn open(bench: &Bench, record: u64) -> Self {
        let path = &bench.files[0].path;
        let direct = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path);
        let file = direct.or_else(|_| File::open(path)).expect("the file");
        RawDisk { file, spans: bench.spans(record), record, position: 0 }
    }

    /// Reads the next `records` records by `threads` threads.
    fn read(&mut self, records: u64, threads: usize) -> Duration {
        let first = self.position;
        self.position += records;
        let blocks = self.record.div_ceil(RAW_BLOCK);
        let read = |number: u64, buffer: &mut AlignedBuffer| {
            let span = self.spans[((first + number / blocks) % self.spans.len() as u64) as usize];
            let start = number % blocks * RAW_BLOCK;
            let bytes = RAW_BLOCK.min(self.record - start) as usize;
            self.file.read_exact_at(&mut buffer[..bytes], span.offset + start).expect("a block");
        };
        on_threads(threads, records * blocks, read, RAW_BLOCK)
    }
}

fn raw_direct(bench: &mut Bench, group: &mut BenchmarkGroup<'_, WallTime>, threads: usize) {
    let record = RECORDS[0].bytes(&bench.scale);
    let mut disk = RawDisk::open(bench, record);
    bench.measure(group, &format!("raw_direct/{threads}_threads"), record, |bench, records| {
        bench.make_cold();
        (disk.read(records, threads), None)
    });
}

/// One source, cold: whole records by `threads` threads. A mapping is advised and touched page by page.
fn cold_source(
    bench: &mut Bench,
    group: &mut BenchmarkGroup<'_, WallTime>,
    kind: SourceKind,
    shape: RecordShape,
    threads: usize,
) {
    let record_bytes = shape.bytes(&bench.scale);
    let spans = bench.spans(record_bytes);
    let name = format!("{}/{}/{threads}_threads", kind.name(), shape.name);
    let mut position = 0;
    bench.measure(group, &name, record_bytes, |bench, records| {
        let mut time = Duration::ZERO;
        let mut left = records;
        while left > 0 {
            // Once round the file at most, then everything is cold again.
            let batch = left.min(spans.len() as u64 - position);
            bench.make_cold();
            let source = open_source(kind, &bench.files).expect("a source");
            let first = position;
            let read = |number: u64, buffer: &mut AlignedBuffer| {
                let span = spans[(first + number) as usize];
                match source.borrow(span) {
                    Some(bytes) => {
                        source.will_need(&[span]);
                        black_box(bytes.iter().step_by(4096).fold(0u8, |sum, byte| sum ^ byte));
                    }
                    None => source.read(&mut [ReadJob { span, into: buffer }]).expect("a read"),
                }
            };
            time += on_threads(threads, batch, read, record_bytes);
            left -= batch;
            position = (position + batch) % spans.len() as u64;
        }
        (time, None)
    });
}

/// Misses through the store: eight experts asked for at a time, none of them in memory. Between the rounds the disk itself is
/// measured, so that the ratio is one of the same moment.
fn stream_misses(
    bench: &mut Bench,
    group: &mut BenchmarkGroup<'_, WallTime>,
    (kind, workers): (SourceKind, usize),
    shape: RecordShape,
    layout: Layout,
) {
    const TOGETHER: u64 = 8;
    let (experts, miss_bytes) = layout.experts(bench, shape);
    let count = experts.len() as u64;
    let mut table = ExpertTable::new();
    table.push_layer(0, experts).expect("a layer");
    bench.make_cold();
    let source = open_source(kind, &bench.files).expect("a source");
    if matches!(layout, Layout::Published { held: true }) {
        table.hold_scales(source.as_ref(), &mut |_, _| true).expect("the scales");
    }
    let policy = policy_named("lru").expect("a policy");
    let store = ExpertStore::new(source, table, 2 * TOGETHER as usize, policy, workers).expect("a store");
    let mut disk = RawDisk::open(bench, miss_bytes / 4096 * 4096);
    let mut position = 0;
    let name = format!("store_misses/{}/{workers}_workers/{}{}", kind.name(), shape.name, layout.name());
    bench.measure(group, &name, miss_bytes, |bench, records| {
        bench.make_cold();
        let (mut time, mut raw) = (Duration::ZERO, Duration::ZERO);
        for start in (0..records).step_by(TOGETHER as usize) {
            let batch = TOGETHER.min(records - start);
            let key = |number| ExpertKey::new(0, u32::try_from((position + number) % count).expect("small"));
            let keys: Vec<ExpertKey> = (0..batch).map(key).collect();
            position += batch;
            let begun = Instant::now();
            for item in store.acquire(&keys) {
                let (_, lease) = item.expect("an expert");
                black_box(lease.gate().codes()[0]);
            }
            time += begun.elapsed();
            raw += disk.read(batch, workers);
        }
        (time, Some(raw))
    });
}

/// A source that reads nothing.
struct NoDisk;

impl Source for NoDisk {
    fn kind(&self) -> SourceKind {
        SourceKind::Buffered
    }
    fn read(&self, _jobs: &mut [ReadJob<'_>]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A store of small experts in memory, none of them read from anywhere.
fn small_store(experts: u32, slots: usize) -> ExpertStore {
    let scale = Scale { file_bytes: 0, intermediate: 8, hidden: 64 };
    let mut table = ExpertTable::new();
    let matrices = (0..experts).map(|index| RECORDS[0].matrices(&scale, 4096 * u64::from(index))).collect();
    table.push_layer(0, matrices).expect("a layer");
    ExpertStore::new(Arc::new(NoDisk), table, slots, policy_named("lru").expect("a policy"), 1).expect("a store")
}

fn visit(store: &ExpertStore, keys: &[ExpertKey]) {
    for item in store.acquire(keys) {
        let (index, lease) = item.expect("an expert");
        black_box((index, lease.gate().codes().len()));
    }
}

/// The store's books alone.
fn books(criterion: &mut Criterion, test: bool) {
    let mut group = criterion.benchmark_group("expert_store");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    let eight: Vec<ExpertKey> = (0..8).map(|expert| ExpertKey::new(0, expert * 7)).collect();
    for (name, slots) in [("all_fit", 256), ("64_of_256_fit", 64)] {
        let store = small_store(256, slots);
        visit(&store, &eight);
        group.bench_function(format!("hit_8/{name}"), |bencher| bencher.iter(|| visit(&store, &eight)));
        assert_eq!(store.stats().misses, 8, "the hit path missed");
    }
    // Eight misses one after another, in a cache that is full.
    for slots in if test { [4, 8, 64] } else { [4, 64, 4096] } {
        let experts = 2 * slots.max(16);
        let store = small_store(experts, slots as usize);
        visit(&store, &(0..slots).map(|expert| ExpertKey::new(0, expert)).collect::<Vec<_>>());
        let mut next = slots;
        group.throughput(Throughput::Elements(8));
        group.bench_function(format!("miss_8/{slots}_slots"), |bencher| {
            bencher.iter(|| {
                for _ in 0..8 {
                    visit(&store, &[ExpertKey::new(0, next % experts)]);
                    next += 1;
                }
            });
        });
    }
    group.finish();
}

fn main() {
    let test = std::env::args().any(|argument| argument == "--test");
    let scale = if test {
        Scale { file_bytes: 1 << 20, intermediate: 64, hidden: 192 }
    } else {
        Scale { file_bytes: 1_500_000_000 / 4096 * 4096, intermediate: 2048, hidden: 6144 }
    };
    let mut criterion = Criterion::default().configure_from_args();
    books(&mut criterion, test);

    let mut bench = Bench::new(scale);
    let mut group = criterion.benchmark_group("cold");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500)).sample_size(10);
    // Every sample holds the same number of records: several rounds of eight.
    group.sampling_mode(SamplingMode::Flat);
    for threads in [1, 4, 8] {
        raw_direct(&mut bench, &mut group, threads);
    }
    for workers in [1, 2, 4, 8] {
        stream_misses(&mut bench, &mut group, (SourceKind::Direct, workers), RECORDS[0], Layout::Ours);
    }
    for shape in [RECORDS[0], RECORDS[1]] {
        for layout in [Layout::Ours, Layout::Published { held: true }, Layout::Published { held: false }] {
            if !matches!((shape.format, layout), (Format::Q4G64, Layout::Ours)) {
                stream_misses(&mut bench, &mut group, (SourceKind::Direct, 4), shape, layout);
            }
        }
    }
    stream_misses(&mut bench, &mut group, (SourceKind::Buffered, 4), RECORDS[0], Layout::Ours);
    for entry in SOURCES {
        for shape in RECORDS {
            for threads in [1, 4] {
                cold_source(&mut bench, &mut group, entry.kind, shape, threads);
            }
        }
    }
    group.finish();
    if !test {
        bench.report();
    }
    criterion.final_summary();
    std::fs::remove_file(&bench.files[0].path).expect("the file, still there");
}
