//! Quantisation of one weight, a block of rows at a time, straight into the shard.
//!
//! A block is read, its rows are decoded, encoded and decoded again by the workers, and the codes are written; the scales
//! of the whole weight are kept, because they lie behind all codes. Pieces of work are cut by the number of columns, not
//! by the number of workers, so that the sums behind the relative error do not depend on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use colibri_kernels::error::KernelError;
use colibri_kernels::format::{Format, ScaleRule, decode_row, encode};
use colibri_kernels::matrix::MatrixView;
use colibri_kernels::pool::WorkerPool;
use colibri_store::container::record::MatrixBytes;
use colibri_store::container::writer::ShardWriter;
use colibri_store::error::StoreError;
use colibri_store::memory;
use colibri_store::source::{ReadJob, Source, SourceKind, Span, open_source};

use super::plan::CLASSES;
use super::source::{Checkpoint, SourceWeight};
use crate::config::{Control, Phase, Watch};
use crate::error::EngineError;

/// Weights of a block, which bounds memory: 64 MB of f32 source values.
const BLOCK_WEIGHTS: usize = 16 << 20;
/// Weights of a piece of work.
const PIECE_WEIGHTS: usize = 1 << 16;

/// What a weight is turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The storage format.
    pub format: Format,
    /// Bytes of codes and scales of the whole weight.
    pub bytes: MatrixBytes,
}

/// Sums behind a relative error.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    error: f64,
    weight: f64,
}

/// Rows that one worker encodes at a time.
struct Piece<'a> {
    source: &'a [u8],
    rows: usize,
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    outcome: Result<Sums, KernelError>,
}

/// Formats and shape that the pieces of a weight share.
#[derive(Clone, Copy)]
struct Job {
    from: Format,
    to: Format,
    rule: ScaleRule,
    cols: usize,
}

/// Encodes weights of one checkpoint; keeps the buffers and the sums.
pub(super) struct Encoder<'a> {
    checkpoint: PathBuf,
    source: Arc<dyn Source>,
    pool: &'a WorkerPool,
    rule: ScaleRule,
    watch: &'a dyn Watch,
    done: u64,
    total: u64,
    sums: Vec<Sums>,        // one for each line of CLASSES
    block: Vec<u8>,         // source bytes of a block
    codes: Vec<u8>,         // codes of a block
    scratch: Vec<Vec<f32>>, // one for each worker: a piece's weights, then one decoded row
}

impl<'a> Encoder<'a> {
    /// An encoder that reads through the page cache.
    pub(super) fn new(
        checkpoint: &Checkpoint,
        pool: &'a WorkerPool,
        rule: ScaleRule,
        watch: &'a dyn Watch,
    ) -> Result<Self, EngineError> {
        memory::trial(buffer_bytes(checkpoint, pool.threads()))?;
        Ok(Self {
            checkpoint: checkpoint.catalog.directory().to_path_buf(),
            source: open_source(SourceKind::Buffered, checkpoint.catalog.files())?,
            pool,
            rule,
            watch,
            done: 0,
            total: checkpoint.weights.iter().map(|weight| weight.location.codes.bytes).sum(),
            sums: vec![Sums::default(); CLASSES.len()],
            block: Vec::new(),
            codes: Vec::new(),
            scratch: vec![Vec::new(); pool.threads()],
        })
    }

    /// `sqrt(sum (stored - w)^2 / sum w^2)` of a class so far; 0 when it holds zeros only.
    pub(super) fn relative_error(&self, class: &str) -> f64 {
        let sums = CLASSES.iter().zip(&self.sums).find(|(entry, _)| entry.name == class);
        sums.map_or(0.0, |(_, sums)| if sums.weight > 0.0 { (sums.error / sums.weight).sqrt() } else { 0.0 })
    }

    /// Encodes a weight, writes its codes, returns its scales.
    pub(super) fn encode(
        &mut self,
        weight: &SourceWeight,
        class: &str,
        target: &Target,
        writer: &mut ShardWriter,
    ) -> Result<Vec<f32>, EngineError> {
        let location = &weight.location;
        let (rows, cols) = (location.rows, location.cols);
        let job = Job { from: location.format, to: target.format, rule: self.rule, cols };
        let scale_bytes = usize::try_from(target.bytes.scales).unwrap_or(usize::MAX);
        let mut scales = memory::zeroed::<f32>(scale_bytes / 4)?;
        let block_rows = (BLOCK_WEIGHTS / cols.max(1)).clamp(1, rows.max(1));
        let mut sums = Sums::default();
        let mut rest = scales.as_mut_slice();
        for first in (0..rows).step_by(block_rows) {
            self.report()?;
            let count = block_rows.min(rows - first);
            let (now, later) = rest.split_at_mut(rest.len().min(scale_count(job.to, count, cols)));
            rest = later;
            let read = self.read_block(weight, first, count)?;
            let pieces = encode_block(self.pool, &mut self.scratch, job, &self.block, &mut self.codes, now)?;
            for (index, outcome) in pieces.into_iter().enumerate() {
                let part = outcome
                    .map_err(|error| named(error, weight, first + index * piece_rows(cols), &self.checkpoint))?;
                sums.error += part.error;
                sums.weight += part.weight;
            }
            writer.write(&weight.slot.name, &self.codes)?;
            self.done += read;
        }
        self.report()?;
        if let Some(index) = CLASSES.iter().position(|entry| entry.name == class) {
            self.sums[index].error += sums.error;
            self.sums[index].weight += sums.weight;
        }
        Ok(scales)
    }

    /// Reads `count` rows from row `first` on into the block; returns their bytes. Sizes the codes as well.
    fn read_block(&mut self, weight: &SourceWeight, first: usize, count: usize) -> Result<u64, EngineError> {
        let location = &weight.location;
        // Both products lie within the tensor, whose size the catalog has checked.
        let row = location.codes.bytes / location.rows.max(1) as u64;
        let bytes = row * count as u64;
        let span = Span { offset: location.codes.offset + row * first as u64, bytes, ..location.codes };
        memory::resize(&mut self.block, usize::try_from(bytes).unwrap_or(usize::MAX))?;
        self.source.read(&mut [ReadJob { span, into: &mut self.block }])?;
        Ok(bytes)
    }

    fn report(&self) -> Result<(), EngineError> {
        match self.watch.progress(Phase::Convert, self.done, self.total) {
            Control::Continue => Ok(()),
            Control::Stop => Err(EngineError::Cancelled),
        }
    }
}

/// Bytes that the buffers take, from above: a block and its codes, the scales of a weight twice, and each worker's
/// piece.
fn buffer_bytes(checkpoint: &Checkpoint, workers: usize) -> u64 {
    let of_weight = |weight: &SourceWeight| {
        let (rows, cols) = (weight.location.rows, weight.location.cols);
        let block = rows.saturating_mul(cols).min(BLOCK_WEIGHTS.max(cols));
        let piece = PIECE_WEIGHTS.max(cols).saturating_add(cols).saturating_mul(workers);
        let scales = rows.saturating_mul(cols.div_ceil(16));
        block.saturating_add(piece).saturating_add(scales).saturating_mul(8) as u64
    };
    checkpoint.weights.iter().map(of_weight).max().unwrap_or(0)
}

fn piece_rows(cols: usize) -> usize {
    (PIECE_WEIGHTS / cols.max(1)).max(1)
}

/// Scales of `rows` rows; the sizes of the whole weight were checked when it was planned.
fn scale_count(format: Format, rows: usize, cols: usize) -> usize {
    format.scale_count(rows, cols).unwrap_or(0)
}

/// Encodes the rows of a block in parallel; one outcome for each piece, in order. Fails as a whole when there is no
/// memory for the codes.
fn encode_block(
    pool: &WorkerPool,
    scratch: &mut [Vec<f32>],
    job: Job,
    block: &[u8],
    codes: &mut Vec<u8>,
    scales: &mut [f32],
) -> Result<Vec<Result<Sums, KernelError>>, StoreError> {
    let source_row = job.from.code_bytes(1, job.cols).unwrap_or(0).max(1);
    let code_row = job.to.code_bytes(1, job.cols).unwrap_or(0).max(1);
    let scale_row = scale_count(job.to, 1, job.cols);
    let rows = piece_rows(job.cols);
    codes.clear();
    memory::resize(codes, block.len() / source_row * code_row)?;
    let mut scales = scales;
    let mut pieces = Vec::new();
    for (source, codes) in block.chunks(rows * source_row).zip(codes.chunks_mut(rows * code_row)) {
        let count = source.len() / source_row;
        let (now, later) = scales.split_at_mut(scales.len().min(count * scale_row));
        scales = later;
        pieces.push(Piece { source, rows: count, codes, scales: now, outcome: Ok(Sums::default()) });
    }
    pool.for_each_chunk_with(&mut pieces, 1, scratch, |_, pieces, buffer| {
        for piece in pieces {
            piece.outcome = encode_piece(job, piece, buffer);
        }
    });
    Ok(pieces.into_iter().map(|piece| piece.outcome).collect())
}

/// Decodes, encodes and compares the rows of a piece.
fn encode_piece(job: Job, piece: &mut Piece<'_>, buffer: &mut Vec<f32>) -> Result<Sums, KernelError> {
    let (rows, cols) = (piece.rows, job.cols);
    let count = (rows + 1) * cols;
    memory::resize(buffer, count).map_err(|_| KernelError::OutOfMemory { bytes: count.saturating_mul(4) })?;
    let (weights, decoded) = buffer.split_at_mut(rows * cols);
    let source = MatrixView::new(job.from, rows, cols, piece.source, &[])?;
    for (row, values) in weights.chunks_exact_mut(cols.max(1)).enumerate() {
        decode_row(&source, row, values);
        if let Some(col) = values.iter().position(|value| !value.is_finite()) {
            return Err(KernelError::NonFiniteWeight { row, col });
        }
    }
    encode(job.to, job.rule, rows, cols, weights, piece.codes, piece.scales)?;
    let stored = MatrixView::new(job.to, rows, cols, piece.codes, piece.scales)?;
    let mut sums = Sums::default();
    for (row, values) in weights.chunks_exact(cols.max(1)).enumerate() {
        decode_row(&stored, row, decoded);
        for (value, stored) in values.iter().zip(decoded.iter()) {
            sums.error += (f64::from(*stored) - f64::from(*value)).powi(2);
            sums.weight += f64::from(*value).powi(2);
        }
    }
    Ok(sums)
}

/// A weight that is not finite is reported with its place in the tensor.
fn named(error: KernelError, weight: &SourceWeight, first_row: usize, checkpoint: &Path) -> EngineError {
    match error {
        KernelError::NonFiniteWeight { row, col } => EngineError::NonFinite {
            place: format!("the checkpoint, row {}, column {col}", first_row + row),
            tensor: weight.slot.name.clone(),
            model: Some(checkpoint.to_path_buf()),
        },
        other => other.into(),
    }
}
