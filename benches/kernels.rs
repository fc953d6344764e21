//! Matrix products per format, kernel set and batch, against the limits of the machine.
//!
//! Weights rotate through a pool larger than the last cache level, so that a product of few rows is a
//! stream from memory. `limits` measures read bandwidth and integer peak; every group of products measures
//! the read rate of its own pool once more, because the limit of a shared machine drifts within minutes.
//! A full run ends with a table of ratios on standard output. `--test` runs every case once on small
//! matrices.

#![allow(clippy::print_stdout, reason = "the table of ratios is the result of a run")]

mod limits;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use colibri_kernels::{
    Activations, AlignedBuffer, FORMATS, Format, KernelSet, MatrixView, Numerics, Precision, ScaleRule, WorkerPool,
    encode, matmul, transcode,
};
use criterion::{BenchmarkId, Criterion, Throughput};

const SHAPES: [(usize, usize); 3] = [(2048, 6144), (6144, 2048), (6144, 16_384)];
const BATCHES: [usize; 4] = [1, 4, 16, 64];
/// More than any last-level cache this runs on.
const POOL_BYTES: usize = 320 << 20;
const PEAK_ROUNDS: u64 = 100_000;

/// One measured case: median seconds, weight bytes and multiply-adds of one product.
struct Record {
    label: String,
    seconds: f64,
    bytes: f64,
    macs: f64,
    read_limit: f64,
}

/// What a run knows of the machine and of itself.
struct Run {
    test: bool,
    threads: usize,
    records: RefCell<Vec<Record>>,
    limits: RefCell<BTreeMap<&'static str, f64>>,
}

/// Matrices of one format and shape, with different bytes.
struct WeightPool {
    buffer: AlignedBuffer,
    format: Format,
    shape: (usize, usize),
    stride: usize,
    count: usize,
}

impl WeightPool {
    fn new(format: Format, shape: (usize, usize), bytes: usize) -> Self {
        let (codes, scales) = sizes(format, shape);
        let stride = (codes + scales * 4).next_multiple_of(4096);
        let count = bytes.div_ceil(stride).max(1);
        let mut buffer = AlignedBuffer::new(stride * count).expect("memory for the weights");
        // Numbers between 2^-7 and 2^-6: valid as f32, as two bf16 or f16, as four fp8, as codes and as scales.
        let mut state = 1u32;
        for value in buffer.as_f32_mut() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value = f32::from_bits(0x3c00_0000 | (state >> 9) & 0x0077_3f77);
        }
        Self { buffer, format, shape, stride, count }
    }

    fn bytes(&self) -> usize {
        let (codes, scales) = sizes(self.format, self.shape);
        codes + scales * 4
    }

    fn part(&self, index: usize) -> &[u8] {
        let start = index % self.count * self.stride;
        &self.buffer[start..start + self.bytes()]
    }

    fn view(&self, index: usize) -> MatrixView<'_> {
        let (codes, scales) = sizes(self.format, self.shape);
        let start = index % self.count * self.stride;
        let first_scale = (start + codes).div_ceil(4);
        let scales = &self.buffer.as_f32()[first_scale..first_scale + scales];
        let codes = &self.buffer[start..start + codes];
        MatrixView::new(self.format, self.shape.0, self.shape.1, codes, scales).expect("sizes")
    }
}

fn sizes(format: Format, (rows, cols): (usize, usize)) -> (usize, usize) {
    let codes = format.code_bytes(rows, cols).expect("size");
    (codes, format.scale_count(rows, cols).expect("size"))
}

/// Runs `once` under criterion and returns the median seconds per call of the samples, if it ran.
fn measure(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    id: BenchmarkId,
    mut once: impl FnMut(usize),
) -> Option<f64> {
    let mut samples: Vec<f64> = Vec::new();
    let mut index = 0;
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|iterations| {
            let start = Instant::now();
            for _ in 0..iterations {
                once(index);
                index += 1;
            }
            let elapsed = start.elapsed();
            samples.push(elapsed.as_secs_f64() / iterations as f64);
            elapsed
        });
    });
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}

fn configure(group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>) {
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(2));
}

/// Folds all of `bytes`, in parts of a mebibyte over the pool.
fn read_all(pool: &WorkerPool, bytes: &[u8]) {
    let parts: Vec<&[u8]> = bytes.chunks(1 << 20).collect();
    pool.run(parts.len(), &|task, _worker| {
        black_box(limits::read(parts[task]));
    });
}

fn bench_limits(criterion: &mut Criterion, run: &Run) {
    let bytes = if run.test { 1 << 20 } else { POOL_BYTES };
    let buffer = OnceCell::new();
    let buffer = || buffer.get_or_init(|| AlignedBuffer::new(bytes).expect("memory"));
    let mut group = criterion.benchmark_group("limits");
    configure(&mut group);
    group.throughput(Throughput::Bytes(bytes as u64));
    for (name, threads) in [("read 1 thread", 1), ("read all threads", run.threads)] {
        let pool = WorkerPool::new(threads);
        let id = BenchmarkId::new("read", format!("{threads} threads"));
        if let Some(seconds) = measure(&mut group, id, |_| read_all(&pool, buffer())) {
            run.limits.borrow_mut().insert(name, bytes as f64 / seconds / 1e9);
        }
    }
    let macs = limits::peak(1) * PEAK_ROUNDS;
    if macs > 0 {
        group.throughput(Throughput::Elements(macs));
        let id = BenchmarkId::new("peak", limits::peak_name());
        let seconds = measure(&mut group, id, |_| {
            black_box(limits::peak(PEAK_ROUNDS));
        });
        if let Some(seconds) = seconds {
            run.limits.borrow_mut().insert("peak 1 thread", macs as f64 / seconds / 1e9);
        }
    }
    group.finish();
}

/// One kernel set on one number of threads.
#[derive(Clone, Copy)]
struct Executor<'a> {
    kernels: KernelSet,
    pool: &'a WorkerPool,
}

fn bench_products(criterion: &mut Criterion, run: &Run) {
    let (one, all) = (WorkerPool::new(1), WorkerPool::new(run.threads));
    for spec in FORMATS {
        for shape in SHAPES {
            let (rows, cols) = shape;
            // The small stand-in keeps odd edges: tiles of sixteen rows and a rest, a partial block.
            let used = if run.test { (70, 200) } else { shape };
            let bytes = if run.test { 1 } else { POOL_BYTES };
            let weights = OnceCell::new();
            let weights = || weights.get_or_init(|| WeightPool::new(spec.example, used, bytes));
            let mut group = criterion.benchmark_group(format!("{} {rows}x{cols}", spec.name));
            configure(&mut group);
            let (codes, scales) = sizes(spec.example, used);
            group.throughput(Throughput::Bytes((codes + scales * 4) as u64));
            let id = BenchmarkId::new("read", "1 threads");
            let read = measure(&mut group, id, |i| {
                black_box(limits::read(weights().part(i)));
            });
            let mut precisions: Vec<Precision> = Numerics::ALL[..2].iter().map(|n| n.precision(spec.example)).collect();
            precisions.dedup();
            for precision in precisions {
                for s in BATCHES {
                    for kernels in KernelSet::available() {
                        let pools: &[&WorkerPool] = match kernels.name() {
                            // The reference is slow: one row shows it.
                            "scalar" if s > 1 => &[],
                            name if name == KernelSet::best().name() => &[&one, &all],
                            _ => &[&one],
                        };
                        for &pool in pools {
                            let executor = Executor { kernels, pool };
                            let case = Case { run, weights: &weights, used, s, precision, read };
                            case.bench(&mut group, spec.name, executor);
                        }
                    }
                }
            }
            group.finish();
        }
    }
}

/// One product to measure.
struct Case<'a, F: Fn() -> &'a WeightPool> {
    run: &'a Run,
    weights: &'a F,
    used: (usize, usize),
    s: usize,
    precision: Precision,
    read: Option<f64>,
}

impl<'a, F: Fn() -> &'a WeightPool> Case<'a, F> {
    fn bench(
        &self,
        group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
        format: &str,
        executor: Executor<'_>,
    ) {
        let ((rows, cols), s) = (self.used, self.s);
        let threads = executor.pool.threads();
        let name = executor.kernels.name();
        let label = format!("{name} {:?} S={s}", self.precision);
        let mut x = Activations::default();
        let inputs: Vec<f32> = (0..s * cols).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
        x.quantise(&executor.kernels, self.precision, s, cols, &inputs).expect("finite");
        let mut out = vec![0f32; s * rows];
        let seconds = measure(group, BenchmarkId::new(&label, format!("{threads} threads")), |i| {
            matmul(executor.pool, &executor.kernels, &(self.weights)().view(i), &x, &mut out);
        });
        let Some(seconds) = seconds else { return };
        let bytes = (self.weights)().bytes() as f64;
        let limits = self.run.limits.borrow();
        let read_limit = match (threads, self.read) {
            (1, Some(seconds)) => bytes / seconds / 1e9,
            _ => limits.get("read all threads").copied().unwrap_or(f64::NAN),
        };
        self.run.records.borrow_mut().push(Record {
            label: format!("{format} | {rows}x{cols} | {label} | {threads}"),
            seconds,
            bytes,
            macs: (rows * cols * s) as f64,
            read_limit,
        });
    }
}

/// The table of ratios, in Markdown.
fn print_table(run: &Run) {
    let limits = run.limits.borrow();
    for (name, value) in limits.iter() {
        let unit = if name.starts_with("peak") { "GMAC/s" } else { "GB/s" };
        println!("{name}: {value:.1} {unit}");
    }
    let peak = limits.get("peak 1 thread").copied().unwrap_or(f64::NAN);
    println!("peak instruction: {}\n", limits::peak_name());
    println!("| format | shape | kernel | threads | us | GB/s | of read | GMAC/s | of peak |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for record in run.records.borrow().iter() {
        let (bytes, macs) = (record.bytes / record.seconds / 1e9, record.macs / record.seconds / 1e9);
        let threads: f64 = record.label.rsplit(' ').next().and_then(|t| t.parse().ok()).unwrap_or(1.0);
        println!(
            "| {} | {:.0} | {bytes:.1} | {:.2} | {macs:.1} | {:.2} |",
            record.label,
            record.seconds * 1e6,
            bytes / record.read_limit,
            macs / (peak * threads),
        );
    }
}

/// bf16 weights become each format that a conversion writes: decoded, checked, encoded and measured on one thread.
fn bench_encoding(criterion: &mut Criterion, run: &Run) {
    let (rows, cols) = if run.test { (3, 200) } else { (2048, 6144) };
    let mut group = criterion.benchmark_group("encode bf16");
    configure(&mut group);
    group.throughput(Throughput::Elements((rows * cols) as u64));
    // About normally distributed, as weights are: the sum of four bytes.
    let mut state = 1u32;
    let weights: Vec<f32> = (0..rows * cols)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state.to_le_bytes().into_iter().map(f32::from).sum::<f32>() - 510.0) * 1e-4
        })
        .collect();
    let mut source = vec![0; Format::Bf16.code_bytes(rows, cols).expect("size")];
    encode(Format::Bf16, ScaleRule::AbsMax, rows, cols, &weights, &mut source, &mut []).expect("finite");
    let source = MatrixView::new(Format::Bf16, rows, cols, &source, &[]).expect("sizes");
    let mut row = Vec::new();
    for format in [Format::Q4G64, Format::Int4Row, Format::Int3G64, Format::Int8Row, Format::F32] {
        let (codes, scales) = sizes(format, (rows, cols));
        let (mut codes, mut scales) = (vec![0u8; codes], vec![0f32; scales]);
        for rule in [ScaleRule::AbsMax, ScaleRule::Search] {
            measure(&mut group, BenchmarkId::new(format.name(), rule.name()), |_| {
                let done = transcode(&source, format, rule, &mut codes, &mut scales, &mut row);
                black_box(done.expect("finite"));
            });
        }
    }
    group.finish();
}

fn main() {
    let run = Run {
        test: std::env::args().any(|argument| argument == "--test"),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        records: RefCell::default(),
        limits: RefCell::default(),
    };
    let mut criterion = Criterion::default().configure_from_args();
    bench_limits(&mut criterion, &run);
    bench_products(&mut criterion, &run);
    bench_encoding(&mut criterion, &run);
    criterion.final_summary();
    if !run.test {
        print_table(&run);
    }
}
