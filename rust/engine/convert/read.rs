//! The reading stage: the weights' bytes in the order in which they are needed, in blocks, past the page cache.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::Instant;

use colibri_kernels::buffer::{AlignedBuffer, PAGE};
use colibri_kernels::format::Format;
use colibri_store::catalog::WeightLocation;
use colibri_store::container::FileInfo;
use colibri_store::error::{Fault, FaultKind, StoreError};
use colibri_store::scales;
use colibri_store::source::{ReadJob, Source, Span};

use super::pipeline::{BLOCK_BYTES, Halt, READ_AHEAD, Work};
use super::report::Stages;
use crate::error::EngineError;

/// Rows of an FP8 scale block: blocks of rows start on a multiple of it.
const SCALE_ROWS: usize = 128;

/// A block of a weight's codes, or of its scales, as stored.
pub(super) struct Block {
    buffer: AlignedBuffer,
    range: Range<usize>,
    /// Rows of the weight; 0 for scales.
    pub rows: usize,
    /// The f32 scales that the codes are decoded with. // [ceil(rows / 128), ceil(cols / 128)] of the whole weight
    pub scales: Option<Arc<Vec<f32>>>,
}

impl Block {
    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }

    /// Gives the buffer back to the reader.
    pub(super) fn recycle(self, spare: &Sender<AlignedBuffer>) {
        // The reader may have come to its end.
        let _ = spare.send(self.buffer);
    }
}

/// Rows that are read at a time.
fn block_rows(location: &WeightLocation) -> (usize, u64) {
    let row = location.codes.bytes / (location.rows.max(1) as u64);
    let fit = usize::try_from(BLOCK_BYTES as u64 / row.max(1)).unwrap_or(usize::MAX).max(1);
    let rows = if location.format == Format::Fp8Block { (fit / SCALE_ROWS).max(1) * SCALE_ROWS } else { fit };
    (rows.min(location.rows.max(1)), row)
}

/// Bytes of a buffer that holds any block of this work, with room to place it as it lies on the disk.
pub(super) fn largest_block(work: &Work<'_>) -> Result<usize, EngineError> {
    let largest = work.locations.values().map(|location| {
        let (rows, row) = block_rows(location);
        let scales = location.scales.map_or(0, |span| span.bytes.min(BLOCK_BYTES as u64));
        (rows as u64).saturating_mul(row).max(scales)
    });
    let bytes = largest.max().unwrap_or(0).saturating_add(2 * PAGE as u64);
    let what = || StoreError::Internal { what: format!("a block of {bytes} bytes does not fit the address space") };
    usize::try_from(bytes).map_err(|_| what().into())
}

/// Reads the blocks of all shards in turn.
pub(super) fn run(
    work: &Work<'_>,
    source: &dyn Source,
    room: usize,
    full: &SyncSender<Block>,
    spare: &Receiver<AlignedBuffer>,
) -> Result<Stages, Halt> {
    let files = work.catalog.files();
    let mut reader = BlockReader { source, files, room, full, spare, made: 0, stages: Stages::default() };
    for shard in &work.shards {
        for part in &work.layout.shards[*shard].parts {
            for weight in part.weights() {
                reader.codes(work, *weight)?;
            }
            for weight in part.weights().iter().filter(|_| work.repack) {
                reader.stored_scales(work, *weight)?;
            }
        }
    }
    Ok(reader.stages)
}

struct BlockReader<'a> {
    source: &'a dyn Source,
    files: &'a [FileInfo],
    room: usize,
    full: &'a SyncSender<Block>,
    spare: &'a Receiver<AlignedBuffer>,
    made: usize,
    stages: Stages,
}

impl BlockReader<'_> {
    fn codes(&mut self, work: &Work<'_>, weight: usize) -> Result<(), Halt> {
        let location = work.location(weight)?;
        let scales = match location.scales {
            Some(span) if !work.repack => Some(Arc::new(self.decoded_scales(work, weight, span)?)),
            _ => None,
        };
        let (rows, row) = block_rows(location);
        for first in (0..location.rows).step_by(rows) {
            let count = rows.min(location.rows - first);
            // Both products lie within the tensor, whose size the catalog has checked.
            let span = Span {
                offset: location.codes.offset + row * first as u64,
                bytes: row * count as u64,
                ..location.codes
            };
            self.send(span, count, scales.clone())?;
        }
        Ok(())
    }

    fn stored_scales(&mut self, work: &Work<'_>, weight: usize) -> Result<(), Halt> {
        let Some(whole) = work.location(weight)?.scales else { return Ok(()) };
        let mut done = 0;
        while done < whole.bytes {
            let bytes = (whole.bytes - done).min(BLOCK_BYTES as u64);
            self.send(Span { offset: whole.offset + done, bytes, ..whole }, 0, None)?;
            done += bytes;
        }
        Ok(())
    }

    /// All scales of an FP8 weight, as f32.
    fn decoded_scales(&mut self, work: &Work<'_>, weight: usize, span: Span) -> Result<Vec<f32>, Halt> {
        let mut bytes = colibri_store::memory::zeroed::<u8>(usize::try_from(span.bytes).unwrap_or(usize::MAX))?;
        self.read(span, &mut bytes)?;
        Ok(decode_scales(work, weight, &bytes)?)
    }

    fn read(&mut self, span: Span, into: &mut [u8]) -> Result<(), Halt> {
        let started = Instant::now();
        self.source.read(&mut [ReadJob { span, into }])?;
        self.stages.read_seconds += started.elapsed().as_secs_f64();
        self.stages.read_bytes += span.bytes;
        Ok(())
    }

    fn send(&mut self, span: Span, rows: usize, scales: Option<Arc<Vec<f32>>>) -> Result<(), Halt> {
        let mut buffer = match self.spare.try_recv() {
            Ok(buffer) => buffer,
            Err(_) if self.made < READ_AHEAD => {
                self.made += 1;
                AlignedBuffer::new(self.room).map_err(StoreError::from)?
            }
            Err(_) => self.spare.recv().map_err(|_| Halt::Neighbour)?,
        };
        // Whole pages round the span, so that one direct read fetches it without a copy.
        let skip = span.offset % PAGE as u64;
        let end = (skip + span.bytes).next_multiple_of(PAGE as u64);
        let offset = span.offset - skip;
        let file = self.files.get(span.file.0 as usize).map_or(0, |file| file.bytes);
        let pages = Span { offset, bytes: end.min(file.saturating_sub(offset)), ..span };
        let (start, length) = (usize::try_from(skip).unwrap_or(0), usize::try_from(span.bytes).unwrap_or(usize::MAX));
        let range = start..start.saturating_add(length);
        let what = || StoreError::Internal { what: format!("a block of {length} bytes is larger than its buffer") };
        let whole = usize::try_from(pages.bytes).ok().filter(|whole| *whole >= range.end);
        let into = whole.and_then(|whole| buffer.get_mut(..whole)).ok_or_else(what)?;
        self.read(pages, into)?;
        self.full.send(Block { buffer, range, rows, scales }).map_err(|_| Halt::Neighbour)
    }
}

/// Stored scales of a weight as f32; one that is not finite is named with its tensor.
pub(super) fn decode_scales(work: &Work<'_>, weight: usize, bytes: &[u8]) -> Result<Vec<f32>, EngineError> {
    let bad = |got: String| {
        let directory = work.checkpoint.directory();
        let name = &work.checkpoint.slots[weight].name;
        let location = work.locations.get(&weight).and_then(|location| location.scales);
        let file = location.and_then(|span| work.catalog.files().get(span.file.0 as usize));
        let path = file.map_or(directory, |file| file.path.as_path());
        let fault = Fault::tensor(FaultKind::Corrupt, path, name, "scales that are finite numbers", &got);
        StoreError::fault(directory, fault.fix("compare the files with their source"))
    };
    let kind = work.locations.get(&weight).map_or_else(Default::default, |location| location.scale_type);
    scales::decode(bytes, kind).map_err(|error| bad(format!("{} at scale {}", error.got, error.at)).into())
}
