//! A large file, written past the page cache by a thread of its own.
//!
//! The caller's bytes are collected in aligned blocks; full blocks go to the thread, which writes them while the next one
//! is filled. Written through the page cache, a file of several gigabytes leaves the flush to the end and pays for a copy;
//! written past it, the disk is busy from the first block on and the last flush has nothing left to do. A file system that
//! refuses such writes gets ordinary ones, with a flush after each [`FLUSH`] bytes. The room for the whole file is asked
//! for at the start, so that a full disk is known before the work.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use colibri_kernels::buffer::{AlignedBuffer, PAGE};
use rustix::fs::{FallocateFlags, fallocate};

use super::file::open_beside;
use super::{fault, sync_parent, write_error};
use crate::error::StoreError;

/// Bytes of a block: large enough that a request of it runs at the disk's full rate.
const BLOCK: usize = 4 << 20;
/// Blocks of a file: one is filled, one is written, one waits.
const BLOCKS: usize = 3;
/// Bytes between two flushes of a file that is written through the page cache.
const FLUSH: u64 = 64 << 20;

/// A block on its way to the disk.
struct Filled {
    block: AlignedBuffer,
    bytes: usize,
}

/// A file being written. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct StreamFile {
    /// To the thread; `None` once there is nothing more.
    filled: Option<SyncSender<Filled>>,
    /// Blocks that were written, to be filled again.
    spare: Receiver<AlignedBuffer>,
    writer: Option<JoinHandle<io::Result<Duration>>>,
    block: AlignedBuffer,
    length: usize,
    blocks: usize,
    total: u64,
    place: Place,
}

/// The names of a file; removes what was not given its own.
#[derive(Debug)]
struct Place {
    temporary: PathBuf,
    target: PathBuf,
    committed: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.committed {
            // The error that led here is the one to report.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

impl StreamFile {
    /// Starts a file of `bytes` bytes that will become `target`.
    ///
    /// # Errors
    /// The folder cannot be written, or the disk has no room for the file.
    pub fn create(target: &Path, bytes: u64) -> Result<Self, StoreError> {
        let (file, temporary) = open_beside(target)?;
        let place = Place { temporary, target: target.to_path_buf(), committed: false };
        let failed = |error: io::Error| write_error(target, &error);
        if bytes > 0 {
            reserve(&file, bytes).map_err(failed)?;
        }
        let direct = open_direct(&place.temporary).ok();
        let (filled, blocks_to_write) = sync_channel::<Filled>(BLOCKS);
        let (written, spare) = sync_channel(BLOCKS);
        let writer = std::thread::Builder::new()
            .name("colibri-write".to_owned())
            .spawn(move || write_blocks(&file, direct, &blocks_to_write, &written))
            .map_err(failed)?;
        let block = AlignedBuffer::new(BLOCK)?;
        Ok(Self { filled: Some(filled), spare, writer: Some(writer), block, length: 0, blocks: 1, total: 0, place })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// The disk is full, or the file cannot be written; the failed block may be an earlier one.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let count = bytes.len().min(BLOCK - self.length);
            let (now, later) = bytes.split_at(count);
            self.block[self.length..self.length + count].copy_from_slice(now);
            self.length += count;
            self.total += count as u64;
            bytes = later;
            if self.length == BLOCK {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    /// Gives the block to the thread and takes another.
    fn hand_over(&mut self) -> Result<(), StoreError> {
        let next = if self.blocks < BLOCKS {
            self.blocks += 1;
            Some(AlignedBuffer::new(BLOCK)?)
        } else {
            self.spare.recv().ok()
        };
        let Some(next) = next else { return Err(self.failure()) };
        let full = Filled { block: std::mem::replace(&mut self.block, next), bytes: self.length };
        self.length = 0;
        match self.filled.as_ref().map(|filled| filled.send(full)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Why the thread stopped.
    fn failure(&mut self) -> StoreError {
        match self.join() {
            Err(error) => write_error(&self.place.target, &error),
            Ok(_) => StoreError::Internal { what: "a file was written after its end".to_owned() },
        }
    }

    /// Waits for the thread; returns how long it was writing.
    fn join(&mut self) -> io::Result<Duration> {
        self.filled = None;
        match self.writer.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(io::Error::other("the writing thread ended unexpectedly")),
            None => Ok(Duration::ZERO),
        }
    }

    /// Writes what is left; the file is complete, but neither flushed nor named.
    ///
    /// # Errors
    /// As [`StreamFile::write`].
    pub fn seal(mut self) -> Result<SealedFile, StoreError> {
        if self.length > 0 {
            self.hand_over()?;
        }
        let writing = match self.join() {
            Ok(writing) => writing,
            Err(error) => return Err(write_error(&self.place.target, &error)),
        };
        Ok(SealedFile { place: self.place, total: self.total, writing })
    }
}

/// A complete file that has neither been flushed nor named. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct SealedFile {
    place: Place,
    total: u64,
    writing: Duration,
}

impl SealedFile {
    /// How long the disk was busy with it.
    #[must_use]
    pub fn writing(&self) -> Duration {
        self.writing
    }

    /// Flushes the file to the disk and gives it its name.
    ///
    /// # Errors
    /// As [`StreamFile::write`]; the destination is then unchanged.
    pub fn commit(mut self) -> Result<(), StoreError> {
        let failed = |error: io::Error| write_error(&self.place.target, &error);
        let file = File::options().write(true).open(&self.place.temporary).map_err(failed)?;
        // The last block was written whole.
        fault::point().and_then(|()| file.set_len(self.total)).map_err(failed)?;
        fault::point().and_then(|()| file.sync_all()).map_err(failed)?;
        fault::point().and_then(|()| fs::rename(&self.place.temporary, &self.place.target)).map_err(failed)?;
        self.place.committed = true;
        sync_parent(&self.place.target)
    }
}

/// The thread: writes blocks in their order and gives them back.
fn write_blocks(
    file: &File,
    mut direct: Option<File>,
    filled: &Receiver<Filled>,
    written: &SyncSender<AlignedBuffer>,
) -> io::Result<Duration> {
    let (mut offset, mut unflushed, mut writing) = (0u64, 0u64, Duration::ZERO);
    while let Ok(mut full) = filled.recv() {
        let started = Instant::now();
        fault::point()?;
        // Whole pages: the end of the file is cut when it is complete.
        let length = full.bytes.next_multiple_of(PAGE).min(full.block.len());
        full.block[full.bytes..length].fill(0);
        if let Some(past_the_cache) = &direct {
            match past_the_cache.write_all_at(&full.block[..length], offset) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => direct = None,
                outcome => outcome?,
            }
        }
        if direct.is_none() {
            file.write_all_at(&full.block[..length], offset)?;
            unflushed += length as u64;
            if unflushed >= FLUSH {
                file.sync_data()?;
                unflushed = 0;
            }
        }
        offset += length as u64;
        writing += started.elapsed();
        // Nobody waits for the last blocks.
        let _ = written.try_send(full.block);
    }
    Ok(writing)
}

/// Opens a file for writes past the page cache.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().write(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Other systems have no such flag.
#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Path) -> io::Result<File> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Room for the whole file, where the file system can promise it.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    fault::point()?;
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(error) if [libc::ENOSPC, libc::EDQUOT, libc::EFBIG].contains(&error.raw_os_error()) => Err(error.into()),
        // What the file system cannot promise, it may still have.
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn every_length_and_piece_arrives_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        for length in [0, 1, PAGE - 1, PAGE, PAGE + 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 4097] {
            for piece in [997, BLOCK + 3] {
                let bytes = content(length);
                // The room that was asked for need not be the length.
                let mut file = StreamFile::create(&target, length as u64 / 2).unwrap();
                bytes.chunks(piece).for_each(|part| file.write(part).unwrap());
                assert!(!target.exists());
                file.seal().unwrap().commit().unwrap();
                assert!(fs::read(&target).unwrap() == bytes, "{length} bytes in pieces of {piece}");
                fs::remove_file(&target).unwrap();
            }
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_dropped_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let mut file = StreamFile::create(&target, 10).unwrap();
        file.write(&content(3 * BLOCK)).unwrap();
        drop(file);
        drop(StreamFile::create(&target, 10).unwrap().seal().unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_for_which_there_is_no_room_is_refused_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let error = StreamFile::create(&folder.path().join("file"), 1 << 60).unwrap_err();
        assert!(["disk_full", "output_not_writable"].contains(&error.code()), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
