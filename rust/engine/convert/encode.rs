//! The encoding stage: blocks of source values become codes and scales, on all workers.
//!
//! Pieces of work are cut by the number of columns, not by the number of workers, so that the sums behind the relative
//! errors do not depend on it. The scales of a whole part are kept, because they lie behind all of its codes. Weights that
//! are taken over pass through as they are; only their scales are brought to f32, which holds every stored scale exactly.

use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::Instant;

use colibri_kernels::buffer::AlignedBuffer;
use colibri_kernels::error::KernelError;
use colibri_kernels::format::{Deviation, Format, transcode};
use colibri_kernels::matrix::MatrixView;
use colibri_store::catalog::WeightLocation;
use colibri_store::error::StoreError;
use colibri_store::memory;

use super::classes::CLASSES;
use super::layout::{Part, Target};
use super::pipeline::{Halt, Work};
use super::read::{Block, decode_scales};
use super::report::Stages;
use super::write::{Message, Payload};
use crate::error::EngineError;

/// Weights of a piece of work.
const PIECE_WEIGHTS: usize = 1 << 16;
/// Rows and columns of an FP8 scale block.
const SCALE_BLOCK: usize = 128;

/// Rows that one worker encodes at a time.
struct Piece<'a> {
    source: MatrixView<'a>,
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    outcome: Result<Deviation, KernelError>,
}

/// The stage and what it keeps between blocks.
pub(super) struct Encoder<'a> {
    work: &'a Work<'a>,
    blocks: Receiver<Block>,
    spare_block: Sender<AlignedBuffer>,
    message: SyncSender<Message>,
    spare_codes: Receiver<Vec<u8>>,
    /// One for each worker: a decoded row.
    scratch: Vec<Vec<f32>>,
    /// One for each class: of the shard at hand.
    sums: Vec<Deviation>,
    done: u64,
    stages: Stages,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(
        work: &'a Work<'a>,
        blocks: Receiver<Block>,
        spare_block: Sender<AlignedBuffer>,
        message: SyncSender<Message>,
        spare_codes: Receiver<Vec<u8>>,
    ) -> Self {
        let scratch = vec![Vec::new(); work.pool.threads()];
        let sums = vec![Deviation::default(); CLASSES.len()];
        Self { work, blocks, spare_block, message, spare_codes, scratch, sums, done: 0, stages: Stages::default() }
    }

    /// Encodes all shards of the work.
    pub(super) fn run(mut self) -> Result<Stages, Halt> {
        for shard in &self.work.shards {
            self.sums.fill(Deviation::default());
            self.send(Message::Start(*shard))?;
            for part in &self.work.layout.shards[*shard].parts {
                if self.work.repack { self.take_over(part)? } else { self.encode(part)? }
            }
            let sums = self.sums.clone();
            self.send(Message::End(*shard, sums))?;
        }
        Ok(self.stages)
    }

    fn send(&self, message: Message) -> Result<(), Halt> {
        self.message.send(message).map_err(|_| Halt::Neighbour)
    }

    /// Counts bytes that are on their way to the writer.
    fn count(&mut self, bytes: usize) -> Result<(), Halt> {
        self.done += bytes as u64;
        Ok(self.work.report(self.done)?)
    }

    fn block(&self) -> Result<Block, Halt> {
        self.blocks.recv().map_err(|_| Halt::Neighbour)
    }

    /// Codes and scales as they are stored.
    fn take_over(&mut self, part: &Part) -> Result<(), Halt> {
        for weight in part.weights() {
            let location = self.work.location(*weight)?;
            let mut rows = 0;
            while rows < location.rows {
                let block = self.block()?;
                rows += block.rows.max(1);
                self.stages.weights += (block.rows as u64).saturating_mul(location.cols as u64);
                self.count(block.bytes().len())?;
                self.send(Message::Codes(*weight, Payload::Stored(block)))?;
            }
        }
        for weight in part.weights() {
            let stored = self.work.location(*weight)?.scales.map_or(0, |span| span.bytes);
            let mut done = 0;
            while done < stored {
                let block = self.block()?;
                done += block.bytes().len() as u64;
                let scales = decode_scales(self.work, *weight, block.bytes())?;
                block.recycle(&self.spare_block);
                self.send_scales(*weight, &scales)?;
            }
        }
        Ok(())
    }

    fn send_scales(&mut self, weight: usize, scales: &[f32]) -> Result<(), Halt> {
        let mut bytes = Vec::new();
        memory::reserve(&mut bytes, scales.len().saturating_mul(4))?;
        bytes.extend(scales.iter().flat_map(|value| value.to_le_bytes()));
        self.count(bytes.len())?;
        self.send(Message::Scales(weight, bytes))
    }

    /// Encodes the weights of a part.
    fn encode(&mut self, part: &Part) -> Result<(), Halt> {
        let mut scales = Vec::with_capacity(part.weights().len());
        for weight in part.weights() {
            scales.push(self.encode_weight(*weight)?);
        }
        for (weight, scales) in part.weights().iter().zip(&scales).filter(|(_, scales)| !scales.is_empty()) {
            self.send_scales(*weight, scales)?;
        }
        Ok(())
    }

    /// Encodes a weight, hands on its codes, returns its scales.
    fn encode_weight(&mut self, weight: usize) -> Result<Vec<f32>, Halt> {
        let location = self.work.location(weight)?;
        let target = self.work.layout.targets[weight];
        let mut scales = memory::zeroed::<f32>(usize::try_from(target.bytes.scales / 4).unwrap_or(usize::MAX))?;
        let mut rest = scales.as_mut_slice();
        let mut first = 0;
        while first < location.rows {
            let block = self.block()?;
            let rows = block.rows.max(1);
            let count = target.format.scale_count(rows, location.cols).unwrap_or(0);
            let (now, later) = rest.split_at_mut(rest.len().min(count));
            rest = later;
            let mut codes = self.spare_codes.try_recv().unwrap_or_default();
            let started = Instant::now();
            let outcome = self.encode_block(location, &target, first, &block, &mut codes, now);
            self.stages.encode_seconds += started.elapsed().as_secs_f64();
            let deviation = outcome.map_err(|error| named(error, self.work, weight, first))?;
            self.sums[target.class] += deviation;
            self.stages.weights += (rows as u64).saturating_mul(location.cols as u64);
            block.recycle(&self.spare_block);
            self.count(codes.len())?;
            self.send(Message::Codes(weight, Payload::Encoded(codes)))?;
            first += rows;
        }
        Ok(scales)
    }

    /// Encodes the rows of a block in parallel; rows in errors count from its start.
    fn encode_block(
        &mut self,
        location: &WeightLocation,
        target: &Target,
        first: usize,
        block: &Block,
        codes: &mut Vec<u8>,
        scales: &mut [f32],
    ) -> Result<Deviation, Failed> {
        let (rows, cols, rule) = (block.rows, location.cols, self.work.rule);
        let source = view(location, first, rows, block)?;
        let code_row = target.format.code_bytes(1, cols).unwrap_or(0);
        let scale_row = target.format.scale_count(1, cols).unwrap_or(0);
        memory::resize(codes, rows.saturating_mul(code_row))?;
        let piece_rows = (PIECE_WEIGHTS / cols.max(1)).max(1);
        let mut pieces = Vec::with_capacity(rows.div_ceil(piece_rows));
        let mut rest = scales;
        for (index, codes) in codes.chunks_mut((piece_rows * code_row).max(1)).enumerate() {
            let start = index * piece_rows;
            let end = rows.min(start + piece_rows);
            let (now, later) = rest.split_at_mut(rest.len().min((end - start) * scale_row));
            rest = later;
            let outcome = Ok(Deviation::default());
            pieces.push(Piece { source: source.row_range(start..end), codes, scales: now, outcome });
        }
        let format = target.format;
        self.work.pool.for_each_chunk_with(&mut pieces, 1, &mut self.scratch, |_, pieces, row| {
            for piece in pieces {
                piece.outcome = transcode(&piece.source, format, rule, piece.codes, piece.scales, row);
            }
        });
        let mut sum = Deviation::default();
        for (index, piece) in pieces.into_iter().enumerate() {
            sum += piece.outcome.map_err(|error| Failed::Kernel(error, index * piece_rows))?;
        }
        Ok(sum)
    }
}

/// Why a block was not encoded.
enum Failed {
    /// A kernel refused it; with the first row of the piece.
    Kernel(KernelError, usize),
    /// Anything else.
    Store(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<KernelError> for Failed {
    fn from(error: KernelError) -> Self {
        Self::Kernel(error, 0)
    }
}

/// The rows of a block as a matrix; `first` is a multiple of 128 where scales are by blocks.
fn view<'a>(
    location: &WeightLocation,
    first: usize,
    rows: usize,
    block: &'a Block,
) -> Result<MatrixView<'a>, KernelError> {
    let all = block.scales.as_deref().map(Vec::as_slice).unwrap_or_default();
    let scales = if location.format == Format::Fp8Block {
        let grid = location.cols.div_ceil(SCALE_BLOCK);
        let start = (first / SCALE_BLOCK).saturating_mul(grid).min(all.len());
        let end = start.saturating_add(rows.div_ceil(SCALE_BLOCK).saturating_mul(grid)).min(all.len());
        &all[start..end]
    } else {
        all
    };
    MatrixView::new(location.format, rows, location.cols, block.bytes(), scales)
}

/// A weight that is not finite is reported with its place in the tensor.
fn named(failed: Failed, work: &Work<'_>, weight: usize, first_row: usize) -> EngineError {
    match failed {
        Failed::Kernel(KernelError::NonFiniteWeight { row, col }, start) => EngineError::NonFinite {
            place: format!("the checkpoint, row {}, column {col}", first_row + start + row),
            tensor: work.checkpoint.slots[weight].name.clone(),
            model: Some(work.checkpoint.directory().to_path_buf()),
        },
        Failed::Kernel(other, _) => other.into(),
        Failed::Store(other) => other.into(),
    }
}
