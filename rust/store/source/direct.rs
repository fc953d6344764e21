//! Reads past the page cache (`O_DIRECT`): the disk writes into the caller's buffer and no CPU time is spent on copies.
//!
//! Such a read needs file offset, length and buffer on block boundaries. Where span and buffer lie on them, or are off by
//! the same amount, the blocks in between go straight into the buffer; the rest goes through an aligned bounce buffer that
//! holds the surrounding blocks. A file system that refuses direct reads, at open or later, is read buffered instead: one
//! note, the same bytes.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use colibri_kernels::buffer::AlignedBuffer;

use super::retry::{LONGEST_READ, Notes, ReadAt, Reader, open_unchanged};
use super::{ReadJob, Source, SourceKind, check_job};
use crate::container::FileInfo;
use crate::error::{StoreError, file_name};

/// The boundary that is kept: no block device in use asks for a coarser one.
const BLOCK: usize = 4096;

/// Size of a bounce buffer: large enough that a request of it runs at the disk's full rate.
const BOUNCE: usize = 4 << 20;

/// One file, open twice: past the cache where the file system allows it, and through it.
pub struct DirectFile {
    /// The handle for direct reads; `None` when it could not be had.
    pub direct: Option<Box<dyn ReadAt>>,
    /// The handle for buffered reads.
    pub buffered: Box<dyn ReadAt>,
}

/// Files open for direct reads.
pub struct DirectSource {
    files: Vec<FileInfo>,
    handles: Vec<DirectFile>,
    /// Set for a file once it refused a direct read.
    refused: Vec<AtomicBool>,
    /// Bounce buffers that are not in use: first touch of fresh memory is dear.
    spare: Mutex<Vec<AlignedBuffer>>,
    fell_back: AtomicBool,
    notes: Notes,
}

/// Opens `files` for direct reads.
///
/// # Errors
/// A file that cannot be opened at all or has changed its length.
pub fn open(files: &[FileInfo]) -> Result<Arc<dyn Source>, StoreError> {
    Ok(Arc::new(open_files(files)?))
}

/// As [`open`], for callers that ask whether the file system refused.
pub(crate) fn open_files(files: &[FileInfo]) -> Result<DirectSource, StoreError> {
    let mut handles = Vec::with_capacity(files.len());
    for info in files {
        let buffered: Box<dyn ReadAt> = Box::new(open_unchanged(info)?);
        let direct = open_direct(info).ok().map(|file| Box::new(file) as Box<dyn ReadAt>);
        handles.push(DirectFile { direct, buffered });
    }
    Ok(DirectSource::with_handles(files.to_vec(), handles))
}

/// Opens a file past the page cache.
#[cfg(target_os = "linux")]
fn open_direct(info: &FileInfo) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&info.path)
}

/// Other systems have no such flag; their files are read buffered.
#[cfg(not(target_os = "linux"))]
fn open_direct(_info: &FileInfo) -> io::Result<File> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

impl DirectSource {
    /// A source over handles of any kind, one pair for each file, in the same order.
    pub fn with_handles(files: Vec<FileInfo>, handles: Vec<DirectFile>) -> Self {
        let refused = handles.iter().map(|handle| AtomicBool::new(handle.direct.is_none())).collect();
        let source = DirectSource {
            refused,
            spare: Mutex::new(Vec::new()),
            fell_back: AtomicBool::new(false),
            notes: Notes::default(),
            files,
            handles,
        };
        for (index, handle) in source.handles.iter().enumerate() {
            if handle.direct.is_none() {
                source.note_fallback(index);
            }
        }
        source
    }

    /// Whether some file refused a direct read and is read buffered.
    pub(crate) fn fell_back(&self) -> bool {
        self.fell_back.load(Ordering::Relaxed)
    }

    /// One note for the whole source, naming the first file that refused.
    fn note_fallback(&self, index: usize) {
        if let Some(refused) = self.refused.get(index) {
            refused.store(true, Ordering::Relaxed);
        }
        if !self.fell_back.swap(true, Ordering::Relaxed) {
            let name = self.files.get(index).map_or_else(String::new, |info| file_name(&info.path));
            self.notes
                .add(format!("the file system of {name} refuses direct reads; reading buffered, which is slower"));
        }
    }

    fn read_span(&self, index: usize, offset: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let (Some(info), Some(handle)) = (self.files.get(index), self.handles.get(index)) else {
            return Err(StoreError::Internal { what: format!("file {index} has no handle") });
        };
        let wanted = into.len();
        let buffered = Reader { file: handle.buffered.as_ref(), path: &info.path, notes: &self.notes };
        let mut done = 0;
        if let Some(direct) = &handle.direct
            && !self.refused[index].load(Ordering::Relaxed)
        {
            let reader = Reader { file: direct.as_ref(), ..buffered };
            while done < wanted {
                match self.read_piece(&reader, offset.saturating_add(done as u64), &mut into[done..]) {
                    // No progress near the end of a file: the buffered read finishes, or tells that the file is short.
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(Piece::Refused) => {
                        self.note_fallback(index);
                        break;
                    }
                    Err(Piece::Read(error, tries)) => return Err(reader.failed(offset, wanted, &error, tries)),
                    Err(Piece::Memory(error)) => return Err(error),
                }
            }
        }
        if done == wanted {
            return Ok(());
        }
        // An error names the whole read, not the part that was left to the buffered handle.
        buffered.fill(&mut into[done..], offset.saturating_add(done as u64)).map_err(|error| match error {
            StoreError::ShortFile { path, got, .. } => {
                StoreError::ShortFile { path, offset, wanted: wanted as u64, got: got.saturating_add(done as u64) }
            }
            StoreError::ReadFailed { path, error, attempts, .. } => {
                StoreError::ReadFailed { path, offset, bytes: wanted as u64, error, attempts }
            }
            other => other,
        })
    }

    /// Reads some bytes at `offset` into the front of `into`, straight or by the bounce buffer.
    fn read_piece(&self, reader: &Reader<'_>, offset: u64, into: &mut [u8]) -> Result<usize, Piece> {
        let block = BLOCK as u64;
        let skip = (offset % block) as usize;
        let place = into.as_ptr() as usize % BLOCK;
        let whole = into.len().min(LONGEST_READ) / BLOCK * BLOCK;
        if skip == 0 && place == 0 && whole > 0 {
            return reader.some(&mut into[..whole], offset).map_err(Piece::from);
        }
        let mut want = into.len().min(BOUNCE - skip);
        if skip == place && skip > 0 {
            // Off by the same amount: only the first block needs the bounce buffer.
            want = want.min(BLOCK - skip);
        }
        let mut bounce = self.take_bounce().map_err(Piece::Memory)?;
        let length = (skip + want).next_multiple_of(BLOCK);
        let outcome = reader.some(&mut bounce[..length], offset - skip as u64).map_err(Piece::from).map(|count| {
            let got = count.saturating_sub(skip).min(want);
            into[..got].copy_from_slice(&bounce[skip..skip + got]);
            got
        });
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(bounce);
        outcome
    }

    fn take_bounce(&self) -> Result<AlignedBuffer, StoreError> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match spare {
            Some(buffer) => Ok(buffer),
            None => Ok(AlignedBuffer::new(BOUNCE)?),
        }
    }
}

/// Why a piece could not be read.
enum Piece {
    /// The file system refuses direct reads.
    Refused,
    /// The read failed for good.
    Read(io::Error, u32),
    /// No memory for a bounce buffer.
    Memory(StoreError),
}

impl From<(io::Error, u32)> for Piece {
    fn from((error, tries): (io::Error, u32)) -> Self {
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::EOPNOTSUPP) => Piece::Refused,
            _ => Piece::Read(error, tries),
        }
    }
}

impl Source for DirectSource {
    fn kind(&self) -> SourceKind {
        SourceKind::Direct
    }

    fn read(&self, jobs: &mut [ReadJob<'_>]) -> Result<(), StoreError> {
        for job in jobs {
            let index = check_job(&self.files, job.span, job.into.len())?;
            self.read_span(index, job.span.offset, job.into)?;
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.all()
    }
}
