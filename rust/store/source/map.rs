//! The files mapped into memory: nothing is copied, the page cache is the cache, and processes share it.
//!
//! A mapping trusts that its file is not cut short while it is mapped: touching a page beyond the end kills the process.
//! So the length is compared with the header's when a file is opened, before every copy out of it, and whenever a
//! borrower asks ([`Source::check_lent`]: once at the start of every forward pass). A file that is cut short in the
//! middle of a pass still kills the process; copying sources have no such gap. The budget chooses this source only for
//! containers that fit memory.

use std::fs::File;
use std::sync::Arc;

use memmap2::{Advice, Mmap};

use super::retry::{check_length, open_unchanged};
use super::{Bytes, ReadJob, Source, SourceKind, Span, check_job};
use crate::container::FileInfo;
use crate::error::StoreError;

/// Files mapped into memory.
pub struct MappedSource {
    files: Vec<FileInfo>,
    /// The open files, to ask for their lengths.
    handles: Vec<File>,
    mappings: Vec<Arc<Mmap>>,
}

/// Maps `files`.
///
/// # Errors
/// A file that cannot be opened or mapped, or has changed its length.
pub fn open(files: &[FileInfo]) -> Result<Arc<dyn Source>, StoreError> {
    let (mut handles, mut mappings) = (Vec::with_capacity(files.len()), Vec::with_capacity(files.len()));
    for info in files {
        let file = open_unchanged(info)?;
        // SAFETY: the mapping is private to this source and read-only, and its length is that of the open file. Bytes
        // have no invalid values, so a writer elsewhere could change numbers but no invariant; cutting the file short is
        // excluded by the contract of this module.
        let mapping = unsafe { Mmap::map(&file) }
            .map_err(|error| StoreError::read_failed(&info.path, 0, info.bytes, &error, 1))?;
        handles.push(file);
        mappings.push(Arc::new(mapping));
    }
    Ok(Arc::new(MappedSource { files: files.to_vec(), handles, mappings }))
}

impl MappedSource {
    fn lend(&self, span: Span) -> Option<Bytes> {
        let start = usize::try_from(span.offset).ok()?;
        let end = start.checked_add(usize::try_from(span.bytes).ok()?)?;
        let mapping = self.mappings.get(span.file.0 as usize)?;
        Bytes::from_mapping(Arc::clone(mapping)).slice(start..end)
    }
}

impl Source for MappedSource {
    fn kind(&self) -> SourceKind {
        SourceKind::Mmap
    }

    fn read(&self, jobs: &mut [ReadJob<'_>]) -> Result<(), StoreError> {
        for job in jobs {
            let index = check_job(&self.files, job.span, job.into.len())?;
            if let Some(handle) = self.handles.get(index) {
                check_length(&self.files[index], handle)?;
            }
            let Some(bytes) = self.lend(job.span) else {
                return Err(StoreError::Internal { what: "a checked span lies outside its mapping".to_owned() });
            };
            job.into.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn borrow(&self, span: Span) -> Option<Bytes> {
        self.lend(span)
    }

    fn check_lent(&self) -> Result<(), StoreError> {
        self.files.iter().zip(&self.handles).try_for_each(|(info, handle)| check_length(info, handle))
    }

    fn will_need(&self, spans: &[Span]) {
        for span in spans {
            let (Ok(offset), Ok(bytes)) = (usize::try_from(span.offset), usize::try_from(span.bytes)) else { continue };
            let Some(mapping) = self.mappings.get(span.file.0 as usize) else { continue };
            let inside = offset.checked_add(bytes).is_some_and(|end| end <= mapping.len());
            if inside && bytes > 0 {
                // Advice only: a system that cannot take it reads on demand.
                let _ = mapping.advise_range(Advice::WillNeed, offset, bytes);
            }
        }
    }
}
