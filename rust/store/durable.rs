//! Writing files and folders so that nothing half-written ever stands under its final name.
//!
//! A file or folder is built under a temporary name beside its destination, flushed to the disk, and renamed; the rename
//! is made durable by flushing the parent folder. A builder that is dropped before its `commit` removes what it made.
//! System errors become `disk_full` or `output_not_writable` with the path.
//!
//! A temporary folder holds a lock file that its owner keeps locked; the system drops the lock when the owner dies, so
//! that what a killed run left behind can be told from a run that is still writing, and is cleared away.
//!
//! Refuses: a destination folder that holds anything, a destination that is a file, a temporary folder that another run
//! is writing, and one that holds files and no lock file: it is not ours to clear.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::digest::Digester;
use crate::error::{FILE_LIMIT, NOT_EMPTY, StoreError, file_name, os_error_text};

/// What is appended to a destination folder's name while it is being built.
pub const PARTIAL_SUFFIX: &str = ".partial";
/// The file in a temporary folder that its owner keeps locked.
const LOCK_NAME: &str = ".lock";
/// Bytes copied at a time.
const BLOCK: usize = 1 << 20;
/// How many temporary names are tried for a file.
const ATTEMPTS: u32 = 100;

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
        _ => StoreError::NotWritable { path: path.to_path_buf(), reason: os_error_text(error) },
    }
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
        let name = target.file_name().ok_or_else(|| not_writable(target, "it is no file name"))?;
        for attempt in 0..ATTEMPTS {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{attempt}{PARTIAL_SUFFIX}", std::process::id()));
            let temporary = target.with_file_name(hidden);
            match File::options().write(true).create_new(true).open(&temporary) {
                Ok(file) => return Ok(Self { file, temporary, target: target.to_path_buf(), committed: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(write_error(target, &error)),
            }
        }
        Err(not_writable(target, "every temporary name beside it is taken; remove its .partial files"))
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// The disk is full, or the file cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).map_err(|error| write_error(&self.target, &error))
    }

    /// Flushes the file to the disk and gives it its name.
    ///
    /// # Errors
    /// As [`DurableFile::write`]; the destination is then unchanged.
    pub fn commit(mut self) -> Result<(), StoreError> {
        let failed = |error: &io::Error| write_error(&self.target, error);
        self.file.sync_all().map_err(|error| failed(&error))?;
        fs::rename(&self.temporary, &self.target).map_err(|error| failed(&error))?;
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

/// A folder that appears under its name only when it is complete.
#[derive(Debug)]
pub struct DurableDirectory {
    temporary: PathBuf,
    target: PathBuf,
    /// Parents made for it, the outermost first.
    parents: Vec<PathBuf>,
    /// Kept locked, where the file system has locks, until the folder has its name or is gone.
    _lock: File,
    /// A killed run's folder was cleared for this one.
    recovered: bool,
    committed: bool,
}

impl DurableDirectory {
    /// Starts a folder that will become `target`, which must not exist or be an empty folder. Missing parents are made.
    ///
    /// # Errors
    /// The destination holds something, is a file, or cannot be made.
    pub fn create(target: &Path) -> Result<Self, StoreError> {
        let target = check_vacant(target)?;
        let temporary = partial_name(&target)?;
        let parents = make_parents(&target)?;
        match claim(&temporary, &target) {
            Ok((lock, recovered)) => Ok(Self { temporary, target, parents, _lock: lock, recovered, committed: false }),
            Err(error) => {
                remove_parents(&parents);
                Err(error)
            }
        }
    }

    /// What the user should know: that the remains of a killed run were cleared away.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let name = file_name(&self.temporary);
        self.recovered.then(|| format!("{name} was left by a run that was killed; it was removed and work began anew"))
    }

    /// Where the content is to be written.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Gives the folder its name. Its files must have been flushed (as [`DurableFile`] does).
    ///
    /// # Errors
    /// The destination has come into use meanwhile, or cannot be written.
    pub fn commit(mut self) -> Result<PathBuf, StoreError> {
        // From here to the rename the folder counts as somebody else's, and is left alone.
        fs::remove_file(self.temporary.join(LOCK_NAME)).map_err(|error| write_error(&self.target, &error))?;
        sync_directory(&self.temporary)?;
        fs::rename(&self.temporary, &self.target).map_err(|error| write_error(&self.target, &error))?;
        self.committed = true;
        sync_parent(&self.target)?;
        Ok(self.target.clone())
    }
}

impl Drop for DurableDirectory {
    fn drop(&mut self) {
        if !self.committed {
            // The error that led here is the one to report.
            let _ = fs::remove_dir_all(&self.temporary);
            remove_parents(&self.parents);
        }
    }
}

/// Whether `target` is free; returns it with links resolved, so that a link to an empty folder is filled, not replaced.
///
/// # Errors
/// [`StoreError::NotWritable`] naming what is there.
pub fn check_vacant(target: &Path) -> Result<PathBuf, StoreError> {
    let facts = match fs::metadata(target) {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if fs::symlink_metadata(target).is_ok() {
                return Err(not_writable(target, "it is a link to something that does not exist"));
            }
            return Ok(target.to_path_buf());
        }
        Err(error) => return Err(write_error(target, &error)),
    };
    if !facts.is_dir() {
        return Err(not_writable(target, "it is a file; a folder is to be made there"));
    }
    let mut entries = fs::read_dir(target).map_err(|error| write_error(target, &error))?;
    if entries.next().is_some() {
        return Err(not_writable(target, NOT_EMPTY));
    }
    target.canonicalize().map_err(|error| write_error(target, &error))
}

/// Makes the folder `temporary` ours: new, or what a killed run left, emptied. Returns the locked file and whether
/// anything was cleared. Errors name `target` where the folder cannot be made.
fn claim(temporary: &Path, target: &Path) -> Result<(File, bool), StoreError> {
    let made = match fs::create_dir(temporary) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(write_error(target, &error)),
    };
    let place = temporary.join(LOCK_NAME);
    let failed = |error: io::Error| write_error(temporary, &error);
    if !made {
        let facts = fs::symlink_metadata(temporary).map_err(failed)?;
        let foreign = !facts.is_dir()
            || (fs::symlink_metadata(&place).is_err() && fs::read_dir(temporary).map_err(failed)?.next().is_some());
        if foreign {
            let reason = "it is in the way, and was not left by a conversion; move it or remove it";
            return Err(not_writable(temporary, reason));
        }
    }
    let mut options = File::options();
    options.write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
    let lock = options.open(&place).map_err(|error| {
        if made {
            // The error that led here is the one to report.
            let _ = fs::remove_dir(temporary);
        }
        failed(error)
    })?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(not_writable(temporary, "another conversion is writing it; wait for it, or stop it"));
        }
        // A file system without locks: a folder that was there may be in use for all that can be known.
        Err(_) if !made => {
            let reason = "another run is writing it, or was killed while it did; remove it if none is";
            return Err(not_writable(temporary, reason));
        }
        Err(_) | Ok(()) => {}
    }
    // The other run may have finished, and its folder gone to its own name, before the lock was taken.
    if !same_file(&lock, &place).map_err(failed)? {
        return Err(not_writable(temporary, "another conversion has just written it; try again"));
    }
    let recovered = !made && clear(temporary).map_err(failed)?;
    Ok((lock, recovered))
}

/// Whether `path` still names the open file.
fn same_file(file: &File, path: &Path) -> io::Result<bool> {
    let (open, named) = (file.metadata()?, fs::symlink_metadata(path));
    Ok(named.is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino())))
}

/// Removes everything but the lock file; whether there was anything.
fn clear(folder: &Path) -> io::Result<bool> {
    let mut any = false;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == LOCK_NAME {
            continue;
        }
        any = true;
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    Ok(any)
}

/// The temporary name of a folder.
fn partial_name(target: &Path) -> Result<PathBuf, StoreError> {
    let mut name = target.file_name().ok_or_else(|| not_writable(target, "it is no folder name"))?.to_owned();
    name.push(PARTIAL_SUFFIX);
    Ok(target.with_file_name(name))
}

/// Makes the missing parents of `target`; returns those that it made.
fn make_parents(target: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let missing: Vec<&Path> = target
        .ancestors()
        .skip(1)
        .take_while(|parent| !parent.as_os_str().is_empty() && fs::symlink_metadata(parent).is_err())
        .collect();
    let mut made = Vec::new();
    for parent in missing.into_iter().rev() {
        match fs::create_dir(parent) {
            Ok(()) => made.push(parent.to_path_buf()),
            // Somebody else was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                remove_parents(&made);
                return Err(write_error(target, &error));
            }
        }
    }
    Ok(made)
}

/// Removes folders that were made and are empty, the innermost first.
fn remove_parents(made: &[PathBuf]) {
    for parent in made.iter().rev() {
        // A folder that is in use by now stays.
        let _ = fs::remove_dir(parent);
    }
}

fn not_writable(path: &Path, reason: &str) -> StoreError {
    StoreError::NotWritable { path: path.to_path_buf(), reason: reason.to_owned() }
}

fn sync_parent(path: &Path) -> Result<(), StoreError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

/// Flushes a folder's entries. File systems that cannot do it (some network and FUSE ones) are taken as they are.
fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    match File::open(directory).and_then(|folder| folder.sync_all()) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP | libc::ENOSYS)) => Ok(()),
        Err(error) => Err(write_error(directory, &error)),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
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

    #[test]
    fn a_folder_appears_with_its_content_or_not_at_all() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("one/two/model");
        let building = DurableDirectory::create(&target).unwrap();
        write_file(&building.path().join("x"), b"1").unwrap();
        assert!(!target.exists());
        drop(building);
        assert!(names(home.path()).is_empty(), "parents that were made are removed");
        let building = DurableDirectory::create(&target).unwrap();
        write_file(&building.path().join("x"), b"1").unwrap();
        assert_eq!(building.commit().unwrap(), target);
        assert_eq!(names(&home.path().join("one/two")), ["model"]);
        assert_eq!(names(&target), ["x"]);
    }

    #[test]
    fn an_empty_folder_is_filled_and_a_used_one_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("model");
        fs::create_dir(&target).unwrap();
        let building = DurableDirectory::create(&target).unwrap();
        write_file(&building.path().join("x"), b"1").unwrap();
        building.commit().unwrap();
        let error = DurableDirectory::create(&target).unwrap_err();
        assert_eq!(error.code(), "output_not_writable");
        assert!(error.to_string().contains("not empty"), "{error}");
        assert_eq!(names(home.path()), ["model"]);
    }

    #[test]
    fn files_dangling_links_and_foreign_work_are_named() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "").unwrap();
        for target in [file.clone(), file.join("below")] {
            let error = DurableDirectory::create(&target).unwrap_err();
            assert_eq!(error.code(), "output_not_writable");
            assert!(error.to_string().contains("file"), "{error}");
        }
        #[cfg(unix)]
        {
            let link = home.path().join("link");
            std::os::unix::fs::symlink(home.path().join("nowhere"), &link).unwrap();
            assert_eq!(DurableDirectory::create(&link).unwrap_err().code(), "output_not_writable");
        }
        let target = home.path().join("model");
        let running = DurableDirectory::create(&target).unwrap();
        let error = DurableDirectory::create(&target).unwrap_err();
        assert!(error.to_string().contains("model.partial"), "{error}");
        assert!(error.to_string().contains("another conversion is writing"), "{error}");
        assert!(running.path().exists(), "the other run's work is untouched");
    }

    #[test]
    fn what_a_killed_run_left_is_cleared_and_what_is_not_ours_stays() {
        let home = tempfile::tempdir().unwrap();
        let (target, partial) = (home.path().join("model"), home.path().join("model.partial"));
        // A killed run leaves its lock file, which nobody holds, and its work.
        fs::create_dir_all(partial.join("below")).unwrap();
        for name in [LOCK_NAME, "dense-00001.safetensors", ".x.7-0.partial"] {
            fs::write(partial.join(name), "half").unwrap();
        }
        let building = DurableDirectory::create(&target).unwrap();
        assert!(building.note().unwrap().contains("model.partial"), "{:?}", building.note());
        assert_eq!(names(&partial), [LOCK_NAME]);
        assert!(DurableDirectory::create(&target).is_err(), "it is held now");
        write_file(&building.path().join("x"), b"1").unwrap();
        building.commit().unwrap();
        assert_eq!((names(home.path()), names(&target)), (vec!["model".to_owned()], vec!["x".to_owned()]));
        // Killed before anything was written: there is nothing to tell.
        fs::remove_dir_all(&target).unwrap();
        fs::create_dir(&partial).unwrap();
        let building = DurableDirectory::create(&target).unwrap();
        assert_eq!(building.note(), None);
        drop(building);
        assert!(names(home.path()).is_empty());
        // Somebody's folder, file or link of that name is not touched.
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join("mine"), "dear").unwrap();
        let error = DurableDirectory::create(&target).unwrap_err();
        assert!(error.code() == "output_not_writable" && error.to_string().contains("model.partial"), "{error}");
        assert_eq!(names(&partial), ["mine"]);
        let elsewhere = home.path().join("elsewhere");
        fs::rename(&partial, &elsewhere).unwrap();
        fs::write(elsewhere.join(LOCK_NAME), "").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &partial).unwrap();
        assert!(DurableDirectory::create(&target).is_err());
        assert_eq!(names(&elsewhere), [LOCK_NAME, "mine"]);
        fs::remove_file(&partial).unwrap();
        fs::write(&partial, "").unwrap();
        assert!(DurableDirectory::create(&target).is_err());
    }

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
