//! How fast this machine reads: blocks of the model's files past the page cache, and memory.
//!
//! Owns the two rates that plans are made from when they are measured. Must hold: nothing is written; neither
//! measurement goes on beyond its time budget, but for what a single read under way takes; a file system that refuses
//! direct reads is measured through the page cache, with the pages dropped before each read, and the result says so.
//! Refuses files in which there is nothing to read.

use std::fs::File;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use colibri_kernels::buffer::AlignedBuffer;
use serde::Serialize;

use crate::container::{FileId, FileInfo};
use crate::error::StoreError;
use crate::source::direct::{self, DirectSource};
use crate::source::retry::{Notes, Reader, open_unchanged};
use crate::source::{ReadJob, Source, SourceKind, Span};

/// Reads in flight: as many as the expert store has by default, and enough for a drive that wants several.
const READERS: usize = 4;
/// Blocks begin on multiples of this, and so do direct reads.
const ALIGN: u64 = 4096;
/// The longest block: beyond it a disk gets no faster, and a read that is under way at the end takes longer.
const LONGEST_BLOCK: usize = 32 << 20;
/// Memory that is read in a measurement of memory: more than the caches of common processors.
const MEMORY_BYTES: usize = 256 << 20;
/// Passes that go once through it: each reads what the caches have not seen since the round before.
const WINDOWS: usize = 4;

/// A rate of reading, as measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReadRate {
    /// Bytes per second, all readers together.
    pub bytes_per_second: f64,
    /// Blocks that were read.
    pub reads: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Time from the first read to the last, in seconds.
    pub seconds: f64,
    /// `direct` past the page cache; `buffered` where the file system refuses that.
    pub kind: SourceKind,
}

/// Measures random reads of `block_bytes` (32 MiB at most) from `files`, a few at a time, for up to `budget`.
///
/// No read begins that would end after the budget if it took as long as the longest so far.
///
/// # Errors
/// No file with anything in it, files that cannot be opened or have changed, or a read that fails.
pub fn measure_reads(files: &[FileInfo], block_bytes: usize, budget: Duration) -> Result<ReadRate, StoreError> {
    let begun = Instant::now();
    let disk = Disk::open(files, block_bytes)?;
    let room = usize::try_from(disk.block).unwrap_or(LONGEST_BLOCK);
    // Fresh memory costs its first touch, which is not the disk's time.
    let mut buffers = (0..READERS).map(|_| AlignedBuffer::new(room)).collect::<Result<Vec<_>, _>>()?;
    let (reads, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let failure: Mutex<Option<StoreError>> = Mutex::new(None);
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (number, buffer) in buffers.iter_mut().enumerate() {
            let (disk, reads, bytes, failure) = (&disk, &reads, &bytes, &failure);
            let mut random = Random(seed.wrapping_add(number as u64));
            scope.spawn(move || {
                let mut longest = Duration::ZERO;
                while begun.elapsed() + longest < budget || (number == 0 && longest.is_zero()) {
                    let read_begun = Instant::now();
                    match disk.read(random.below(disk.blocks), buffer) {
                        Ok(count) => {
                            reads.fetch_add(1, Ordering::Relaxed);
                            bytes.fetch_add(count, Ordering::Relaxed);
                        }
                        Err(error) => {
                            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                            return;
                        }
                    }
                    // A clock that stands still must not make the loop endless for a budget of zero.
                    longest = longest.max(read_begun.elapsed()).max(Duration::from_nanos(1));
                }
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64().max(1e-9);
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let (reads, bytes) = (reads.into_inner(), bytes.into_inner());
    Ok(ReadRate { bytes_per_second: bytes as f64 / seconds, reads, bytes, seconds, kind: disk.kind() })
}

/// The files as one row of blocks.
struct Disk<'a> {
    files: &'a [FileInfo],
    direct: DirectSource,
    /// For each file, in their order, the number of the block after its last.
    ends: Vec<u64>,
    blocks: u64,
    block: u64,
}

impl<'a> Disk<'a> {
    fn open(files: &'a [FileInfo], block_bytes: usize) -> Result<Self, StoreError> {
        let longest = files.iter().map(|file| file.bytes).max().unwrap_or(0);
        if longest == 0 {
            return Err(StoreError::InvalidValue {
                name: "files to measure reads of".to_owned(),
                value: files.len().to_string(),
                expected: "at least one file that is not empty".to_owned(),
            });
        }
        let block = (block_bytes.clamp(1, LONGEST_BLOCK) as u64).min(longest).next_multiple_of(ALIGN);
        let mut blocks = 0u64;
        let ends = files.iter().map(|file| {
            blocks = blocks.saturating_add(file.bytes.div_ceil(block));
            blocks
        });
        let ends = ends.collect();
        Ok(Disk { files, direct: direct::open_files(files)?, ends, blocks, block })
    }

    /// Reads the block of this number; returns its bytes.
    fn read(&self, number: u64, buffer: &mut AlignedBuffer) -> Result<u64, StoreError> {
        let index = self.ends.partition_point(|end| *end <= number);
        let Some(file) = self.files.get(index) else { return Ok(0) };
        let before = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let offset = (number - before) * self.block;
        let bytes = self.block.min(file.bytes.saturating_sub(offset));
        let into = &mut buffer[..usize::try_from(bytes).unwrap_or(0)];
        // A file has fewer blocks than u32 numbers files, because the catalog numbers them so.
        let id = FileId(u32::try_from(index).unwrap_or(u32::MAX));
        if !self.direct.fell_back() {
            self.direct.read(&mut [ReadJob { span: Span { file: id, offset, bytes }, into }])?;
            return Ok(bytes);
        }
        let handle = open_unchanged(file)?;
        drop_pages(&handle, offset, bytes);
        let notes = Notes::default();
        Reader { file: &handle, path: &file.path, notes: &notes }.fill(into, offset)?;
        Ok(bytes)
    }

    fn kind(&self) -> SourceKind {
        if self.direct.fell_back() { SourceKind::Buffered } else { SourceKind::Direct }
    }
}

/// Asks the system to forget the pages of a span. A refusal makes the result too good, which `buffered` already says.
#[cfg(target_os = "linux")]
fn drop_pages(file: &File, offset: u64, bytes: u64) {
    let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(bytes), rustix::fs::Advice::DontNeed);
}

/// Other systems have no such call.
#[cfg(not(target_os = "linux"))]
fn drop_pages(_file: &File, _offset: u64, _bytes: u64) {}

/// Measures how fast `threads` threads together read memory, in bytes per second, for about `budget`; 0 when there is
/// no memory to read.
///
/// The best of several short passes: whatever else the machine does makes a pass slower, never faster. A pass adds up a
/// quarter of 256 MB, more than the caches of common processors hold, and the next one the next quarter. The memory is
/// written before the first pass; that takes its own time. In an unoptimised build the loop itself is the limit.
pub fn measure_memory(threads: usize, budget: Duration) -> f64 {
    let threads = threads.clamp(1, 1024);
    let window = (MEMORY_BYTES / WINDOWS / threads / size_of::<u64>()).max(1);
    let mut parts: Vec<Vec<u64>> = Vec::new();
    for number in 0..threads {
        // Pages that were never written are one page of zeros, which the first cache holds.
        match crate::memory::zeroed::<u64>(window * WINDOWS) {
            Ok(mut part) => {
                part.fill(number as u64 | 1);
                parts.push(part);
            }
            Err(_) => return 0.0,
        }
    }
    let bytes = (window * size_of::<u64>() * threads) as f64;
    let begun = Instant::now();
    let (mut best, mut longest) = (0.0_f64, Duration::ZERO);
    for pass in (0..WINDOWS).cycle() {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in &parts {
                let words = part.chunks(window).nth(pass).unwrap_or_default();
                scope.spawn(move || black_box(sum(words)));
            }
        });
        let took = start.elapsed().max(Duration::from_nanos(1));
        best = best.max(bytes / took.as_secs_f64());
        longest = longest.max(took);
        if begun.elapsed() + longest >= budget {
            break;
        }
    }
    best
}

/// The sum of all words; several at a time, so that additions do not wait for each other.
fn sum(words: &[u64]) -> u64 {
    let (blocks, rest) = words.as_chunks::<16>();
    let mut lanes = [0u64; 16];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().chain(rest).fold(0, |all, word| all.wrapping_add(*word))
}

/// `SplitMix64` (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &std::path::Path, name: &str, length: usize) -> FileInfo {
        let path = folder.join(name);
        let bytes: Vec<u8> = (0..length).map(|index| (index * 31 % 251) as u8).collect();
        std::fs::write(&path, bytes).unwrap();
        FileInfo { path, bytes: length as u64 }
    }

    #[test]
    fn reads_of_tiny_files_are_counted_whatever_the_file_system() {
        for place in [std::env::temp_dir(), "/dev/shm".into()] {
            let Ok(folder) = tempfile::tempdir_in(&place) else { continue };
            let files = [
                file(folder.path(), "empty", 0),
                file(folder.path(), "a", 10_000),
                file(folder.path(), "b", 1),
                file(folder.path(), "c", 300_000),
            ];
            for block in [0, 1, 5000, 65_536, usize::MAX] {
                let rate = measure_reads(&files, block, Duration::from_millis(20)).unwrap();
                assert!(rate.reads > 0 && rate.bytes >= rate.reads, "{rate:?}");
                assert!(rate.bytes <= rate.reads * block.clamp(4096, 300_000).next_multiple_of(4096) as u64);
                assert!(matches!(rate.kind, SourceKind::Direct | SourceKind::Buffered));
                let quotient = rate.bytes as f64 / rate.seconds;
                assert!((rate.bytes_per_second - quotient).abs() <= quotient * 1e-9);
            }
            for info in &files {
                assert_eq!(std::fs::read(&info.path).unwrap().len() as u64, info.bytes);
            }
        }
    }

    #[test]
    fn every_block_is_inside_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let files = [file(folder.path(), "a", 4097), file(folder.path(), "none", 0), file(folder.path(), "b", 12_288)];
        let disk = Disk::open(&files, 4096).unwrap();
        assert_eq!((disk.blocks, disk.block), (5, 4096));
        let mut buffer = AlignedBuffer::new(4096).unwrap();
        let sizes: Vec<u64> = (0..6).map(|number| disk.read(number, &mut buffer).unwrap()).collect();
        assert_eq!(sizes, [4096, 1, 4096, 4096, 4096, 0]);
    }

    #[test]
    fn one_read_is_made_without_any_time() {
        let folder = tempfile::tempdir().unwrap();
        let files = [file(folder.path(), "a", 100_000)];
        let rate = measure_reads(&files, 4096, Duration::ZERO).unwrap();
        assert_eq!((rate.reads, rate.bytes.min(4096)), (1, rate.bytes));
    }

    #[test]
    fn what_cannot_be_measured_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let empty = file(folder.path(), "empty", 0);
        for files in [&[][..], std::slice::from_ref(&empty)] {
            assert_eq!(measure_reads(files, 4096, Duration::ZERO).unwrap_err().code(), "invalid_value");
        }
        let longer = FileInfo { bytes: 99_999, ..file(folder.path(), "a", 10) };
        assert_eq!(measure_reads(&[longer], 4096, Duration::ZERO).unwrap_err().code(), "disk_read_failed");
    }

    #[test]
    fn memory_is_read_by_any_number_of_threads() {
        for threads in [0, 1, 3] {
            assert!(measure_memory(threads, Duration::from_millis(5)) > 0.0);
        }
        assert_eq!(sum(&(0..1000).collect::<Vec<u64>>()), 499_500);
    }
}
