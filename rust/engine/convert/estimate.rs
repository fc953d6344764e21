//! What a conversion would write, the room for it, and how long it would take; writes nothing.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use colibri_kernels::format::{Format, ScaleRule, transcode};
use colibri_kernels::matrix::MatrixView;
use colibri_kernels::pool::WorkerPool;
use colibri_store::catalog::Catalog;
use colibri_store::container::listing::INDEX_NAME;
use colibri_store::container::{FileInfo, read_small, resolve};
use colibri_store::durable::{available_space, check_vacant};
use colibri_store::memory;
use colibri_store::probe::measure_reads;
use serde::Deserialize;

use super::conversion::{describe_steps, planned};
use super::layout::Layout;
use super::report::{ConvertReport, Estimate, Space};
use super::source::Checkpoint;
use super::{ConvertOptions, check_options, companions, workers};
use crate::error::EngineError;

/// Rows and columns of the matrices that are encoded to measure: of the size of a common expert's.
const ROWS: usize = 64;
const COLS: usize = 2048;
/// How long each format is measured.
const BUDGET: Duration = Duration::from_millis(150);
/// How long the disk of the source is measured, and with what reads.
const READ_BUDGET: Duration = Duration::from_millis(800);
const READ_BLOCK: usize = 8 << 20;
/// Bytes per second that disks read and write where nothing was measured: a slow and a fast one.
const SLOW_DISK: f64 = 0.4e9;
const FAST_DISK: f64 = 3e9;
/// Bytes of the unit in which the system counts what a file takes on the disk.
const BLOCK_UNIT: u64 = 512;
/// The longest index that is looked into, in bytes.
const LONGEST_INDEX: u64 = 512 << 20;

/// The report of a conversion that does not take place.
pub(super) fn dry_run(
    source: &Path,
    destination: &Path,
    options: &ConvertOptions,
) -> Result<ConvertReport, EngineError> {
    let started = Instant::now();
    check_options(options)?;
    check_vacant(destination)?;
    memory::trial(0)?;
    let checkpoint = Checkpoint::open(source, options, None)?;
    let layout = Layout::new(&checkpoint, options)?;
    let bytes_of = |file: &str| {
        let files = checkpoint.catalog.as_ref().map(Catalog::files).unwrap_or_default();
        if let Some(known) = files.iter().find(|known| known.path.ends_with(file)) {
            return Some(known.bytes);
        }
        let path = resolve(source, file).ok().flatten()?;
        std::fs::metadata(path).ok().map(|facts| facts.len())
    };
    let mut report = planned(&checkpoint, &layout, options, &bytes_of)?;
    if checkpoint.catalog.is_none() {
        report.source_bytes = total_size(source).unwrap_or(report.source_bytes);
    }
    report.destination = destination.to_path_buf();
    report.dry_run = true;
    let free = destination.ancestors().skip(1).find_map(|folder| {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        available_space(folder)
    });
    let suffices = free.is_none_or(|free| free >= report.bytes);
    report.schedule = describe_steps(&checkpoint, &layout, &|_| false)?;
    report.space = Some(Space { needed: report.bytes, free, suffices });
    report.estimate = Some(estimate(&checkpoint, &layout, options, &report)?);
    let there = |name: &str| resolve(source, name).is_ok_and(|found| found.is_some_and(|path| path.is_file()));
    report.notes = companions::missing(source, &there);
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Bytes of all weights, as the index has them.
fn total_size(source: &Path) -> Option<u64> {
    #[derive(Deserialize)]
    struct Index {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        total_size: u64,
    }
    let text = read_small(&source.join(INDEX_NAME), LONGEST_INDEX).ok()?;
    serde_json::from_slice::<Index>(&text).ok().map(|index| index.metadata.total_size)
}

fn estimate(
    checkpoint: &Checkpoint,
    layout: &Layout,
    options: &ConvertOptions,
    report: &ConvertReport,
) -> Result<Estimate, EngineError> {
    let (encode, encode_basis) = encode_seconds(layout, options)?;
    let measured = match &checkpoint.catalog {
        Some(catalog) if stored(catalog) => measure_reads(catalog.files(), READ_BLOCK, READ_BUDGET).ok(),
        _ => None,
    };
    let (fast, slow, read_basis) = match &measured {
        Some(rate) => {
            let rate = rate.bytes_per_second;
            (rate, rate, format!("the source is read at {:.2} GB/s, as measured", rate / 1e9))
        }
        None => {
            let basis = format!("the source is read at {}; fetching it is not counted", rates(SLOW_DISK, FAST_DISK));
            (FAST_DISK, SLOW_DISK, basis)
        }
    };
    let (source, written) = (report.source_bytes as f64, report.bytes as f64);
    let fastest_write = fast.max(SLOW_DISK);
    let low = (source / fast).max(encode).max(written / fastest_write);
    let high = source / slow + encode + written / SLOW_DISK;
    let basis = format!(
        "{read_basis}; {encode_basis}; the container is written at {}; low: all of it at the same time, high: one after \
         the other",
        rates(SLOW_DISK, fastest_write)
    );
    Ok(Estimate { low, high, basis })
}

/// `0.4 to 3.0 GB/s`, and one number when both look alike.
fn rates(low: f64, high: f64) -> String {
    let [low, high] = [low, high].map(|rate| format!("{:.1}", rate / 1e9));
    if low == high { format!("{low} GB/s") } else { format!("{low} to {high} GB/s") }
}

/// Whether the weight files hold their bytes: of a source that is elsewhere, only headers may be here.
fn stored(catalog: &Catalog) -> bool {
    let blocks = |file: &FileInfo| std::fs::metadata(&file.path).map_or(0, |facts| facts.blocks());
    catalog.files().iter().all(|file| blocks(file).saturating_mul(BLOCK_UNIT) >= file.bytes / 2)
}

/// Seconds of encoding with all workers, from a short measurement of each format.
fn encode_seconds(layout: &Layout, options: &ConvertOptions) -> Result<(f64, String), EngineError> {
    if options.repack {
        return Ok((0.0, "nothing is encoded".to_owned()));
    }
    let pool = WorkerPool::new(workers(options));
    let (mut seconds, mut rates) = (0.0, Vec::new());
    let mut formats: Vec<(Format, u64)> = Vec::new();
    for target in &layout.targets {
        let weights = target.rows as u64 * target.cols as u64;
        match formats.iter_mut().find(|(format, _)| *format == target.format) {
            Some((_, sum)) => *sum += weights,
            None => formats.push((target.format, weights)),
        }
    }
    for (format, weights) in formats {
        let rate = encode_rate(format, options.scale_rule, &pool)?;
        seconds += weights as f64 / rate;
        rates.push(format!("{} at {:.2} G weights/s", format.name(), rate / 1e9));
    }
    let basis = format!("encoded with {} workers, as measured: {}", pool.threads(), rates.join(", "));
    Ok((seconds, basis))
}

/// Weights per second that the workers encode into a format.
fn encode_rate(format: Format, rule: ScaleRule, pool: &WorkerPool) -> Result<f64, EngineError> {
    struct Task {
        codes: Vec<u8>,
        scales: Vec<f32>,
        rounds: u64,
    }
    // Values like weights: many digits, no structure.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut source: Vec<u8> = Vec::with_capacity(ROWS * COLS * 2);
    for _ in 0..ROWS * COLS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = (state >> 40) as f32 / 16_777_216.0 - 0.5;
        source.extend_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
    }
    let view = MatrixView::new(Format::Bf16, ROWS, COLS, &source, &[])?;
    let (codes, scales) = (format.code_bytes(ROWS, COLS).unwrap_or(0), format.scale_count(ROWS, COLS).unwrap_or(0));
    let task = || Task { codes: vec![0; codes], scales: vec![0.0; scales], rounds: 0 };
    let mut tasks: Vec<Task> = (0..pool.threads()).map(|_| task()).collect();
    let mut rows = vec![Vec::new(); pool.threads()];
    let started = Instant::now();
    pool.for_each_chunk_with(&mut tasks, 1, &mut rows, |_, tasks, row| {
        for task in tasks {
            while started.elapsed() < BUDGET {
                // The values are finite and the sizes fit.
                let _ = transcode(&view, format, rule, &mut task.codes, &mut task.scales, row);
                task.rounds += 1;
            }
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    let rounds: u64 = tasks.iter().map(|task| task.rounds).sum();
    Ok((rounds.max(1) as f64) * (ROWS * COLS) as f64 / seconds.max(1e-6))
}
