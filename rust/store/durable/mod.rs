//! Writing files and folders so that nothing half-written ever stands under its final name.
//!
//! A file or folder is built under a temporary name beside its destination, flushed to the disk, and renamed; the rename
//! is made durable by flushing the parent folder. A file that is dropped before its `commit` removes what it made; a
//! folder is removed too, unless its builder said that it is to be kept for another run. [`file`] writes small files,
//! [`stream`] large ones past the page cache, [`directory`] builds folders; [`fault`] lets tests end the process, or fail
//! a call, at any place where something reaches the disk. System errors become `disk_full` or `output_not_writable` with
//! the path.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::error::{FILE_LIMIT, NOT_REMOVABLE, StoreError, os_error_text};

pub mod directory;
pub mod fault;
pub mod file;
pub mod stream;

pub use directory::{BuildDirectory, BuildNames, check_vacant, finished_files};
pub use file::{DurableFile, copy_file, write_file};
pub use stream::{SealedFile, StreamFile};

/// What is appended to the name of a file or folder that is being built.
pub const PARTIAL_SUFFIX: &str = ".partial";

/// Bytes of a thread's stack: what the system refuses with a thread.
const THREAD_BYTES: u64 = 2 << 20;

/// The store's error for a failed write to `path`.
#[must_use]
pub fn write_error(path: &Path, error: &io::Error) -> StoreError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => StoreError::DiskFull {
            path: path.to_path_buf(),
            needed: None,
            available: path.parent().and_then(available_space),
        },
        Some(libc::EFBIG) => not_writable(path, FILE_LIMIT),
        // A thread that could not be started, or a buffer of the system: no matter of the place.
        Some(libc::EAGAIN | libc::ENOMEM) => StoreError::OutOfMemory { bytes: THREAD_BYTES },
        _ => StoreError::NotWritable { path: path.to_path_buf(), reason: os_error_text(error) },
    }
}

/// The error of a file of a source that cannot be removed.
#[must_use]
pub fn remove_error(path: &Path, error: &io::Error) -> StoreError {
    not_writable(path, &format!("{NOT_REMOVABLE}: {}", os_error_text(error)))
}

/// Checks that files can be removed from `folder`; removes none.
///
/// # Errors
/// [`StoreError::NotWritable`] with the system's reason.
pub fn require_removable(folder: &Path) -> Result<(), StoreError> {
    let wanted = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(folder, wanted).map_err(|error| remove_error(folder, &error.into()))
}

/// Bytes that an ordinary user may still write to the file system of `directory`, if the system tells.
#[must_use]
pub fn available_space(directory: &Path) -> Option<u64> {
    let facts = rustix::fs::statvfs(directory).ok()?;
    facts.f_bavail.checked_mul(facts.f_frsize)
}

/// Checks that `bytes` fit on the file system of `directory`.
///
/// # Errors
/// [`StoreError::DiskFull`] with both numbers.
pub fn require_space(directory: &Path, bytes: u64) -> Result<(), StoreError> {
    match available_space(directory) {
        Some(available) if available < bytes => {
            Err(StoreError::DiskFull { path: directory.to_path_buf(), needed: Some(bytes), available: Some(available) })
        }
        _ => Ok(()),
    }
}

pub(crate) fn not_writable(path: &Path, reason: &str) -> StoreError {
    StoreError::NotWritable { path: path.to_path_buf(), reason: reason.to_owned() }
}

pub(crate) fn sync_parent(path: &Path) -> Result<(), StoreError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

/// Flushes a folder's entries. File systems that cannot do it (some network and FUSE ones) are taken as they are.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    match fault::point().and_then(|()| File::open(directory)?.sync_all()) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP | libc::ENOSYS)) => Ok(()),
        Err(error) => Err(write_error(directory, &error)),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named() {
        assert_eq!(write_error(Path::new("/x/y"), &io::Error::from_raw_os_error(libc::ENOSPC)).code(), "disk_full");
        let limit = write_error(Path::new("/x/y"), &io::Error::from_raw_os_error(libc::EFBIG));
        assert_eq!(limit.code(), "output_not_writable");
        assert!(limit.to_string().contains("EFBIG") && limit.fix().unwrap().contains("ulimit -f"), "{limit}");
        assert_eq!(
            write_error(Path::new("/x/y"), &io::Error::from_raw_os_error(libc::EROFS)).code(),
            "output_not_writable"
        );
        let folder = tempfile::tempdir().unwrap();
        assert!(require_space(folder.path(), 1).is_ok());
        let error = require_space(folder.path(), u64::MAX).unwrap_err();
        assert_eq!(error.code(), "disk_full");
        assert!(error.why().is_some_and(|why| why.contains("are free")));
    }
}
