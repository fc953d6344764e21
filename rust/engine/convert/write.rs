//! The last two stages: one writes and digests shards, the other flushes them, gives them their names, reads them back if
//! that is asked for, and enters them into the journal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use colibri_kernels::buffer::AlignedBuffer;
use colibri_kernels::format::Deviation;
use colibri_store::catalog::SCALE_SUFFIX;
use colibri_store::container::manifest::FileDigest;
use colibri_store::container::writer::{SealedShard, ShardWriter};
use colibri_store::digest::sha256_stored;
use colibri_store::error::{Fault, FaultKind, StoreError};

use super::classes::CLASSES;
use super::journal::{ClassSum, FinishedShard, Journal};
use super::pipeline::{Halt, Work};
use super::read::Block;
use super::report::Stages;
use crate::error::EngineError;

/// What the encoding stage sends.
pub(super) enum Message {
    /// A shard begins.
    Start(usize),
    /// The next codes of a weight.
    Codes(usize, Payload),
    /// The next scales of a weight, as bytes.
    Scales(usize, Vec<u8>),
    /// A shard is complete; with the sums of each class.
    End(usize, Vec<Deviation>),
}

/// Codes on their way.
pub(super) enum Payload {
    /// Encoded here.
    Encoded(Vec<u8>),
    /// Taken over.
    Stored(Block),
}

/// A shard that is to be flushed and entered.
pub(super) struct Sealed {
    shard: SealedShard,
    sums: Vec<Deviation>,
}

/// Writes what comes, in its order.
pub(super) fn run(
    work: &Work<'_>,
    messages: &Receiver<Message>,
    sealed: &Sender<Sealed>,
    spare_block: &Sender<AlignedBuffer>,
    spare_codes: &Sender<Vec<u8>>,
) -> Result<Stages, Halt> {
    let mut stages = Stages::default();
    let mut open: Option<ShardWriter> = None;
    let outside = || StoreError::Internal { what: "data outside of a shard".to_owned() };
    while let Ok(message) = messages.recv() {
        match message {
            Message::Start(shard) => {
                open = Some(ShardWriter::create(work.folder, work.layout.shards[shard].plan.clone())?);
            }
            Message::Codes(weight, payload) => {
                let writer = open.as_mut().ok_or_else(outside)?;
                let name = &work.checkpoint.slots[weight].name;
                // Whoever gets a buffer back may have come to its end.
                match payload {
                    Payload::Encoded(codes) => {
                        writer.write(name, &codes)?;
                        let _ = spare_codes.send(codes);
                    }
                    Payload::Stored(block) => {
                        writer.write(name, block.bytes())?;
                        block.recycle(spare_block);
                    }
                }
            }
            Message::Scales(weight, bytes) => {
                let name = format!("{}{SCALE_SUFFIX}", work.checkpoint.slots[weight].name);
                open.as_mut().ok_or_else(outside)?.write(&name, &bytes)?;
            }
            Message::End(shard, sums) => {
                let shard_writer = open.take().ok_or_else(outside)?;
                let shard_bytes = work.layout.shards[shard].plan.file_bytes()?;
                let shard = shard_writer.seal()?;
                stages.write_seconds += shard.writing().as_secs_f64();
                stages.written_bytes += shard_bytes;
                sealed.send(Sealed { shard, sums }).map_err(|_| Halt::Neighbour)?;
            }
        }
    }
    Ok(stages)
}

/// Makes shards durable and enters them.
pub(super) fn settle(
    work: &Work<'_>,
    journal: &mut Journal,
    sealed: &Receiver<Sealed>,
    stop: &AtomicBool,
) -> Result<Stages, Halt> {
    let mut stages = Stages::default();
    while let Ok(Sealed { shard, sums }) = sealed.recv() {
        let started = Instant::now();
        let digest = shard.commit()?;
        if work.verify {
            read_back(work.folder, &digest, &mut |_| !stop.load(Ordering::Relaxed))?;
        }
        let sum = |(entry, sum): (&super::classes::ClassEntry, &Deviation)| ClassSum {
            class: entry.name.to_owned(),
            error: sum.error,
            weight: sum.weight,
        };
        let sums = CLASSES.iter().zip(&sums).filter(|(_, sum)| sum.weight > 0.0).map(sum).collect();
        journal.enter(FinishedShard { digest, verified: work.verify, sums }, work.folder)?;
        stages.settle_seconds += started.elapsed().as_secs_f64();
    }
    Ok(stages)
}

/// Reads a file back from the disk and compares its digest.
pub(super) fn read_back(
    folder: &std::path::Path,
    written: &FileDigest,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<(), EngineError> {
    let path = folder.join(&written.file);
    let stored = sha256_stored(&path, progress)?;
    if stored == written.sha256 {
        return Ok(());
    }
    let fault =
        Fault::file(FaultKind::Corrupt, &path, format!("{} does not read back as it was written", written.file))
            .why(format!("its SHA-256 is {stored}; {} was written", written.sha256))
            .fix("check the drive (dmesg | tail; smartctl -a) and the memory");
    Err(StoreError::fault(folder, fault).into())
}
