//! Reads through the page cache with `pread`: works on every file system, costs a copy and CPU time.

use std::path::Path;
use std::sync::Arc;

use super::retry::{Notes, ReadAt, Reader, open_unchanged};
use super::{ReadJob, Source, SourceKind, check_job};
use crate::container::FileInfo;
use crate::error::StoreError;

/// Files open for buffered reads.
pub struct BufferedSource {
    files: Vec<FileInfo>,
    handles: Vec<Box<dyn ReadAt>>,
    notes: Notes,
}

/// Opens `files` for buffered reads.
///
/// # Errors
/// A file that cannot be opened or has changed its length.
pub fn open(files: &[FileInfo]) -> Result<Arc<dyn Source>, StoreError> {
    let mut handles: Vec<Box<dyn ReadAt>> = Vec::with_capacity(files.len());
    for info in files {
        handles.push(Box::new(open_unchanged(info)?));
    }
    Ok(Arc::new(BufferedSource::with_handles(files.to_vec(), handles)))
}

impl BufferedSource {
    /// A source over handles of any kind, one for each file, in the same order.
    pub fn with_handles(files: Vec<FileInfo>, handles: Vec<Box<dyn ReadAt>>) -> Self {
        BufferedSource { files, handles, notes: Notes::default() }
    }

    fn reader(&self, index: usize) -> Option<Reader<'_>> {
        let path: &Path = &self.files.get(index)?.path;
        Some(Reader { file: self.handles.get(index)?.as_ref(), path, notes: &self.notes })
    }
}

impl Source for BufferedSource {
    fn kind(&self) -> SourceKind {
        SourceKind::Buffered
    }

    fn read(&self, jobs: &mut [ReadJob<'_>]) -> Result<(), StoreError> {
        for job in jobs {
            let index = check_job(&self.files, job.span, job.into.len())?;
            let Some(reader) = self.reader(index) else {
                return Err(StoreError::Internal { what: format!("file {index} has no handle") });
            };
            reader.fill(job.into, job.span.offset)?;
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.all()
    }
}
