//! One step at work: a thread reads, the workers encode, a thread writes and digests, a thread flushes, checks and enters
//! finished shards into the journal. All four run at the same time, a few blocks apart.
//!
//! Must hold: memory is bounded whatever the size of a tensor or shard. In flight are at most [`READ_AHEAD`] blocks of
//! the source and [`ENCODED_AHEAD`] blocks of codes; a block is [`BLOCK_BYTES`] of the source, or one row, or (FP8) 128
//! rows where those are more, so with rows of at most 131,072 columns never more than 16 MiB of the source and 64 MiB of
//! f32. Beside them: the scales of one weight, or of one expert's three (1/16 byte for each weight encoded in groups of
//! 64), the aligned blocks of the shard being written (12 MiB), and what the headers of the step's files take. The order
//! of the data, and so every byte written, is that of the layout; threads only overlap in time. The first error stops
//! all of them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use colibri_kernels::format::ScaleRule;
use colibri_kernels::pool::WorkerPool;
use colibri_store::catalog::{Catalog, WeightLocation};
use colibri_store::error::StoreError;
use colibri_store::memory;
use colibri_store::source::{SourceKind, open_source};

use super::encode::Encoder;
use super::journal::Journal;
use super::layout::Layout;
use super::read;
use super::report::Stages;
use super::source::Checkpoint;
use super::write;
use crate::config::{Control, Phase, Watch};
use crate::error::EngineError;

/// Bytes of the source in a block.
pub(super) const BLOCK_BYTES: usize = 8 << 20;
/// Blocks of the source that may be in memory at once.
pub(super) const READ_AHEAD: usize = 4;
/// Blocks of codes that may wait to be written.
pub(super) const ENCODED_AHEAD: usize = 3;
/// How often the watcher is asked while the last shard is flushed and checked.
const POLL: Duration = Duration::from_millis(20);

/// What a step has to do, and with what.
pub(super) struct Work<'a> {
    pub checkpoint: &'a Checkpoint,
    pub layout: &'a Layout,
    /// Indices of the shards to be written.
    pub shards: Vec<usize>,
    pub catalog: &'a Catalog,
    /// Where the weights of those shards lie.
    pub locations: HashMap<usize, WeightLocation>,
    /// The build folder.
    pub folder: &'a Path,
    pub rule: ScaleRule,
    pub repack: bool,
    pub verify: bool,
    pub pool: &'a WorkerPool,
    pub watch: &'a dyn Watch,
    /// Bytes of the shards that were finished before.
    pub before: u64,
    /// Bytes of codes and scales of the step.
    pub payload: u64,
    /// Bytes of the step's shards, padding and headers included.
    pub bytes: u64,
    /// Bytes of all shards.
    pub total: u64,
}

impl Work<'_> {
    /// Where a weight lies.
    pub(super) fn location(&self, weight: usize) -> Result<&WeightLocation, Halt> {
        let what = || StoreError::Internal { what: format!("weight {weight} was not located") };
        self.locations.get(&weight).ok_or_else(|| Halt::Error(what().into()))
    }

    /// Tells the watcher that `done` bytes of codes and scales of this step are encoded; it is told in bytes of files.
    pub(super) fn report(&self, done: u64) -> Result<(), EngineError> {
        let share = u128::from(done.min(self.payload)) * u128::from(self.bytes) / u128::from(self.payload.max(1));
        let written = u64::try_from(share).unwrap_or(self.bytes);
        match self.watch.progress(Phase::Convert, self.before.saturating_add(written).min(self.total), self.total) {
            Control::Continue => Ok(()),
            Control::Stop => Err(EngineError::Cancelled),
        }
    }
}

/// Why a stage ended early.
#[derive(Debug)]
pub(super) enum Halt {
    /// It failed.
    Error(EngineError),
    /// The stage before or behind it ended, which has the reason.
    Neighbour,
}

impl<E: Into<EngineError>> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// Writes the shards of a step and enters each into the journal.
pub(super) fn run(work: &Work<'_>, journal: &mut Journal) -> Result<Stages, EngineError> {
    let room = read::largest_block(work)?;
    memory::trial((room as u64).saturating_mul(READ_AHEAD as u64))?;
    let source = open_source(SourceKind::Direct, work.catalog.files())?;
    let stop = AtomicBool::new(false);
    let (full, blocks) = sync_channel(READ_AHEAD);
    let (spare_block, spare_blocks) = channel();
    let (message, messages) = sync_channel(ENCODED_AHEAD);
    let (spare_codes, codes) = channel();
    let (sealed, sealed_shards) = channel();
    std::thread::scope(|scope| {
        let reader = {
            let source = source.as_ref();
            scope.spawn(move || read::run(work, source, room, &full, &spare_blocks))
        };
        let writer = {
            let spare_block = spare_block.clone();
            scope.spawn(move || write::run(work, &messages, &sealed, &spare_block, &spare_codes))
        };
        let settler = {
            let stop = &stop;
            scope.spawn(move || write::settle(work, journal, &sealed_shards, stop))
        };
        let encoded = Encoder::new(work, blocks, spare_block, message, codes).run();
        // The encoder's ends of the channels are gone: the others finish what they have, or stop.
        let stopped = wait(work, &settler, encoded.is_err(), &stop);
        // A stage that was stopped by another comes after it.
        let outcomes = [encoded, join(writer), join(reader), join(settler)];
        stopped.and_then(|()| gather(outcomes))
    })
}

/// The figures of all stages, or the first reason to stop.
fn gather(outcomes: [Result<Stages, Halt>; 4]) -> Result<Stages, EngineError> {
    let mut stages = Stages::default();
    let mut ended = false;
    for outcome in outcomes {
        match outcome {
            Ok(part) => add(&mut stages, &part),
            Err(Halt::Error(error)) => return Err(error),
            Err(Halt::Neighbour) => ended = true,
        }
    }
    let what = "a stage of the conversion ended without a reason".to_owned();
    if ended { Err(StoreError::Internal { what }.into()) } else { Ok(stages) }
}

/// Waits for the last shard, and asks the watcher meanwhile.
fn wait(
    work: &Work<'_>,
    settler: &ScopedJoinHandle<'_, Result<Stages, Halt>>,
    failed: bool,
    stop: &AtomicBool,
) -> Result<(), EngineError> {
    stop.store(failed, Ordering::Relaxed);
    let written = work.shards.iter().map(|shard| work.layout.payload(&work.layout.shards[*shard])).sum::<u64>();
    while !failed && !settler.is_finished() {
        if let Err(error) = work.report(written) {
            stop.store(true, Ordering::Relaxed);
            return Err(error);
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

fn join(handle: ScopedJoinHandle<'_, Result<Stages, Halt>>) -> Result<Stages, Halt> {
    handle.join().unwrap_or_else(|_| {
        let what = "a thread of the conversion ended unexpectedly".to_owned();
        Err(Halt::Error(StoreError::Internal { what }.into()))
    })
}

/// Joins the figures of two stages or steps.
pub(super) fn add(sum: &mut Stages, part: &Stages) {
    sum.read_bytes += part.read_bytes;
    sum.read_seconds += part.read_seconds;
    sum.weights += part.weights;
    sum.encode_seconds += part.encode_seconds;
    sum.written_bytes += part.written_bytes;
    sum.write_seconds += part.write_seconds;
    sum.settle_seconds += part.settle_seconds;
}
