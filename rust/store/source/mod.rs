//! How bytes come off the disk: one trait, one table of ways.
//!
//! A source reads spans of the files it was opened with. `read` copies into the caller's buffers, in any order, all jobs
//! or an error; interrupted and short reads go on, a passing I/O error is retried a few times and leaves a note. Nothing
//! here interprets a byte.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use colibri_kernels::buffer::AlignedBuffer;
use memmap2::Mmap;
use serde::Serialize;

use crate::container::{FileId, FileInfo};
use crate::error::{StoreError, file_name, grouped};

pub mod direct;
pub mod map;
pub mod pread;
pub mod retry;

#[cfg(test)]
mod conformance;

/// A run of bytes in a file of the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The file.
    pub file: FileId,
    /// Offset from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// One read: a span and the buffer it goes to, which must be exactly as long.
#[derive(Debug)]
pub struct ReadJob<'a> {
    /// What to read.
    pub span: Span,
    /// Where it goes.
    pub into: &'a mut [u8],
}

/// The ways of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// `pread` through the page cache.
    Buffered,
    /// `pread` past the page cache (`O_DIRECT`).
    Direct,
    /// The files mapped into memory; the page cache is the cache.
    Mmap,
}

impl SourceKind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::Buffered => "buffered",
            SourceKind::Direct => "direct",
            SourceKind::Mmap => "mmap",
        }
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<SourceKind> {
        SOURCES.iter().map(|entry| entry.kind).find(|kind| kind.name() == name)
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A way of reading spans of a fixed set of files.
pub trait Source: Send + Sync {
    /// Which way this is.
    fn kind(&self) -> SourceKind;

    /// Fills every job's buffer, or fails; after an error the buffers hold no promise.
    ///
    /// # Errors
    /// A span beyond its file, a file shorter than it was, or a read that keeps failing; the error names the path, the
    /// offset and the length.
    fn read(&self, jobs: &mut [ReadJob<'_>]) -> Result<(), StoreError>;

    /// The span's bytes without a copy, if this source can lend them.
    fn borrow(&self, _span: Span) -> Option<Bytes> {
        None
    }

    /// Checks that the lent bytes are still there: every file whose bytes this source lends has the length that it had
    /// when it was opened. Touching lent bytes beyond the end of a file kills the process, so whoever holds any asks
    /// before each piece of work. Sources that copy have nothing to check: their reads tell.
    ///
    /// # Errors
    /// [`StoreError::FileChanged`].
    fn check_lent(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Advice that these spans will be read soon.
    fn will_need(&self, _spans: &[Span]) {}

    /// What the user should know about this source, each thing once: a fallback, a read that needed a retry.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Opens files whose lengths must still be those of [`FileInfo`].
pub type OpenFiles = fn(&[FileInfo]) -> Result<Arc<dyn Source>, StoreError>;

/// One line of [`SOURCES`].
#[derive(Clone, Copy)]
pub struct SourceEntry {
    /// Which way this is.
    pub kind: SourceKind,
    /// Opens the files.
    pub open: OpenFiles,
}

/// Every source. The conformance test walks this table.
pub const SOURCES: &[SourceEntry] = &[
    SourceEntry { kind: SourceKind::Buffered, open: pread::open },
    SourceEntry { kind: SourceKind::Direct, open: direct::open },
    SourceEntry { kind: SourceKind::Mmap, open: map::open },
];

/// Opens `files` for reading in the given way.
///
/// # Errors
/// A file that cannot be opened, or whose length is not what its header was checked against.
pub fn open_source(kind: SourceKind, files: &[FileInfo]) -> Result<Arc<dyn Source>, StoreError> {
    match SOURCES.iter().find(|entry| entry.kind == kind) {
        Some(entry) => (entry.open)(files),
        None => Err(StoreError::Internal { what: format!("no source is named {kind}") }),
    }
}

/// Who keeps a byte region alive.
#[derive(Clone)]
enum Owner {
    Heap(Arc<AlignedBuffer>),
    Mapping(Arc<Mmap>),
}

/// A reference-counted region of bytes: part of an aligned buffer or of a mapped file.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
}

impl Bytes {
    /// The whole of a buffer.
    pub fn from_buffer(buffer: Arc<AlignedBuffer>) -> Self {
        let range = 0..buffer.len();
        Bytes { owner: Owner::Heap(buffer), range }
    }

    /// The whole of a mapped file.
    pub(crate) fn from_mapping(mapping: Arc<Mmap>) -> Self {
        let range = 0..mapping.len();
        Bytes { owner: Owner::Mapping(mapping), range }
    }

    /// The part `range` of this region; `None` when it does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        let inside = start <= end && end <= self.range.end;
        inside.then(|| Bytes { owner: self.owner.clone(), range: start..end })
    }

    /// Whether the bytes lie in a mapped file rather than in memory of their own.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Mapping(_))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let whole: &[u8] = match &self.owner {
            Owner::Heap(buffer) => buffer,
            Owner::Mapping(mapping) => mapping,
        };
        // The range was inside the owner when the region was made, and an owner's length never changes.
        &whole[self.range.clone()]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Bytes").field("len", &self.len()).field("mapped", &self.is_mapped()).finish()
    }
}

/// Checks a job against the file it reads from; returns the file's index.
pub(crate) fn check_job(files: &[FileInfo], span: Span, room: usize) -> Result<usize, StoreError> {
    let index = span.file.0 as usize;
    let Some(file) = files.get(index) else {
        return Err(StoreError::Internal { what: format!("file {index} of {} was asked for", files.len()) });
    };
    if usize::try_from(span.bytes) != Ok(room) {
        let what = format!("a read of {} bytes has a buffer of {room}", span.bytes);
        return Err(StoreError::Internal { what });
    }
    match span.offset.checked_add(span.bytes) {
        Some(end) if end <= file.bytes => Ok(index),
        _ => Err(StoreError::Internal {
            what: format!(
                "a read of {} bytes at {}+{} ends beyond the file of {} bytes",
                grouped(span.bytes),
                file_name(&file.path),
                grouped(span.offset),
                grouped(file.bytes)
            ),
        }),
    }
}
