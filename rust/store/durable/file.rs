//! A file that is written under a temporary name and appears when it is complete.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{PARTIAL_SUFFIX, fault, not_writable, sync_parent, write_error};
use crate::digest::Digester;
use crate::error::StoreError;

/// Bytes copied at a time.
const BLOCK: usize = 1 << 20;
/// How many temporary names are tried for a file.
const ATTEMPTS: u32 = 100;

/// A file that appears under its name only when it is complete.
#[derive(Debug)]
pub struct DurableFile {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    committed: bool,
}

impl DurableFile {
    /// Starts a file that will replace `target`.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written.
    pub fn create(target: &Path) -> Result<Self, StoreError> {
        let (file, temporary) = open_beside(target)?;
        Ok(Self { file, temporary, target: target.to_path_buf(), committed: false })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// The disk is full, or the file cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        fault::point().and_then(|()| self.file.write_all(bytes)).map_err(|error| write_error(&self.target, &error))
    }

    /// Flushes the file to the disk and gives it its name.
    ///
    /// # Errors
    /// As [`DurableFile::write`]; the destination is then unchanged.
    pub fn commit(mut self) -> Result<(), StoreError> {
        let failed = |error: &io::Error| write_error(&self.target, error);
        fault::point().and_then(|()| self.file.sync_all()).map_err(|error| failed(&error))?;
        fault::point().and_then(|()| fs::rename(&self.temporary, &self.target)).map_err(|error| failed(&error))?;
        self.committed = true;
        sync_parent(&self.target)
    }
}

impl Drop for DurableFile {
    fn drop(&mut self) {
        if !self.committed {
            // The error that led here is the one to report.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Makes a new, hidden file beside `target`.
pub(super) fn open_beside(target: &Path) -> Result<(File, PathBuf), StoreError> {
    let name = target.file_name().ok_or_else(|| not_writable(target, "it is no file name"))?;
    fault::point().map_err(|error| write_error(target, &error))?;
    for attempt in 0..ATTEMPTS {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{attempt}{PARTIAL_SUFFIX}", std::process::id()));
        let temporary = target.with_file_name(hidden);
        match File::options().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((file, temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(write_error(target, &error)),
        }
    }
    Err(not_writable(target, "every temporary name beside it is taken; remove its .partial files"))
}

/// Writes a small file durably.
///
/// # Errors
/// As [`DurableFile`].
pub fn write_file(target: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut file = DurableFile::create(target)?;
    file.write(bytes)?;
    file.commit()
}

/// Copies a file durably; returns its length and SHA-256.
///
/// # Errors
/// The source cannot be read, or the destination not be written.
pub fn copy_file(source: &Path, target: &Path) -> Result<(u64, String), StoreError> {
    let unreadable = |error: &io::Error, offset: u64| StoreError::read_failed(source, offset, BLOCK as u64, error, 1);
    let mut from = File::open(source).map_err(|error| unreadable(&error, 0))?;
    let mut to = DurableFile::create(target)?;
    let (mut digest, mut length, mut block) = (Digester::new(), 0u64, vec![0u8; BLOCK]);
    loop {
        match io::Read::read(&mut from, &mut block) {
            Ok(0) => break,
            Ok(count) => {
                digest.update(&block[..count]);
                to.write(&block[..count])?;
                length += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(&error, length)),
        }
    }
    to.commit()?;
    Ok((length, digest.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_appears_when_it_is_committed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        fs::write(&target, "old").unwrap();
        let mut file = DurableFile::create(&target).unwrap();
        let mut second = DurableFile::create(&target).unwrap();
        file.write(b"new").unwrap();
        second.write(b"dropped").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        file.commit().unwrap();
        drop(second);
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_copy_has_length_and_digest() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let content = vec![3u8; BLOCK + 17];
        fs::write(&from, &content).unwrap();
        let (length, digest) = copy_file(&from, &to).unwrap();
        assert_eq!(length, content.len() as u64);
        assert_eq!(digest, crate::digest::sha256_file(&to, &mut |_| true).unwrap());
        assert_eq!(fs::read(&to).unwrap(), content);
        assert_eq!(copy_file(&folder.path().join("none"), &to).unwrap_err().code(), "disk_read_failed");
    }
}
