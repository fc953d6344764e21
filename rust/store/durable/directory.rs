//! A folder that is built under a temporary name and appears when it is complete, in one run or in several.
//!
//! The temporary folder holds a lock file that its owner keeps locked; the system drops the lock when the owner dies, so
//! that what a killed run left can be told from a run that is still writing. Its journal (whose content is the builder's)
//! says that there is something to take up. A killed run may also have given the folder its name and left the journal in
//! it; then that folder is taken up.
//!
//! Refuses: a destination that holds anything else, a destination that is a file, a temporary folder that another run is
//! writing, and one that holds files and neither lock file nor journal: it is not ours.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{PARTIAL_SUFFIX, fault, not_writable, sync_directory, sync_parent, write_error};
use crate::error::{IN_USE, NOT_EMPTY, StoreError, file_name};

/// The file in a folder being built that its owner keeps locked.
pub const LOCK_NAME: &str = ".lock";

/// What a builder keeps in the folder beside its work.
#[derive(Clone, Copy, Debug)]
pub struct BuildNames {
    /// Files that say how far the work is, the decisive one first; they are gone when the folder is finished.
    pub journals: &'static [&'static str],
    /// A folder of what the work is made from, which may be there before the work begins.
    pub staging: &'static str,
    /// Ends the names of finished files. What they were made from may be gone, so a folder that holds one is never
    /// removed as a whole.
    pub finished: &'static str,
}

/// A folder that appears under its name only when it is complete.
#[derive(Debug)]
pub struct BuildDirectory {
    temporary: PathBuf,
    target: PathBuf,
    names: BuildNames,
    /// Parents made for it, the outermost first.
    parents: Vec<PathBuf>,
    /// Kept locked, where the file system has locks, until the folder has its name or is gone.
    _lock: File,
    kept: bool,
}

impl BuildDirectory {
    /// Starts or takes up a folder that will become `target`, which must not exist, be an empty folder, or be one that an
    /// earlier run gave its name and did not finish. Missing parents are made.
    ///
    /// # Errors
    /// The destination holds something, is a file, or cannot be made.
    pub fn open(target: &Path, names: BuildNames) -> Result<Self, StoreError> {
        if named_and_unfinished(target, names) {
            let target = target.canonicalize().map_err(|error| write_error(target, &error))?;
            let lock = claim(&target, &target, names)?;
            return Ok(Self { temporary: target.clone(), target, names, parents: Vec::new(), _lock: lock, kept: true });
        }
        let target = check_vacant(target)?;
        let temporary = partial_name(&target)?;
        let parents = make_parents(&target)?;
        match claim(&temporary, &target, names) {
            Ok(lock) => {
                // Until its builder knows better, what another run began stays.
                let begun = names.journals.first().into_iter().chain([&names.staging]);
                let kept = begun.into_iter().any(|name| fs::symlink_metadata(temporary.join(name)).is_ok());
                Ok(Self { temporary, target, names, parents, _lock: lock, kept })
            }
            Err(error) => {
                remove_parents(&parents);
                Err(error)
            }
        }
    }

    /// Where the content is to be written.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// The name it will have.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Whether the folder is to stay when the work stops before its end. One with staging or finished files always does.
    pub fn keep(&mut self, wanted: bool) {
        self.kept = wanted || fs::symlink_metadata(self.temporary.join(self.names.staging)).is_ok();
    }

    /// Names of the finished files in it, sorted.
    #[must_use]
    pub fn finished(&self) -> Vec<String> {
        finished_files(&self.temporary, self.names)
    }

    /// Whether the folder stays when the work stops before its end.
    #[must_use]
    pub fn kept(&self) -> bool {
        self.kept
    }

    /// Removes everything in it for which `wanted` says no, lock file, journals and staging apart; returns the names.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn clear(&self, wanted: &dyn Fn(&OsStr) -> bool) -> Result<Vec<String>, StoreError> {
        let failed = |error: io::Error| write_error(&self.temporary, &error);
        let mut removed = Vec::new();
        for entry in fs::read_dir(&self.temporary).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if name == LOCK_NAME || name == self.names.staging || wanted(&name) {
                continue;
            }
            if self.names.journals.iter().any(|journal| name == *journal) {
                continue;
            }
            fault::point().map_err(failed)?;
            let folder = entry.file_type().map_err(failed)?.is_dir();
            if folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) }.map_err(failed)?;
            removed.push(name.to_string_lossy().into_owned());
        }
        Ok(removed)
    }

    /// Gives the folder its name, and removes staging, journals and lock. Its files must have been flushed.
    ///
    /// # Errors
    /// The destination has come into use meanwhile, or cannot be written. The folder can then be taken up again.
    pub fn commit(mut self) -> Result<PathBuf, StoreError> {
        self.kept = true;
        let failed = |error: io::Error| write_error(&self.target, &error);
        let staging = self.temporary.join(self.names.staging);
        if fs::symlink_metadata(&staging).is_ok() {
            fault::point().and_then(|()| fs::remove_dir_all(&staging)).map_err(failed)?;
        }
        sync_directory(&self.temporary)?;
        if self.temporary != self.target {
            fault::point().and_then(|()| fs::rename(&self.temporary, &self.target)).map_err(failed)?;
            sync_parent(&self.target)?;
        }
        // The decisive journal goes last: while it is there, the folder can be taken up.
        for name in self.names.journals.iter().rev() {
            fault::point().and_then(|()| remove_if_there(&self.target.join(name))).map_err(failed)?;
        }
        fault::point().and_then(|()| remove_if_there(&self.target.join(LOCK_NAME))).map_err(failed)?;
        sync_directory(&self.target)?;
        Ok(self.target.clone())
    }
}

impl Drop for BuildDirectory {
    fn drop(&mut self) {
        if !self.kept && self.finished().is_empty() {
            // The error that led here is the one to report.
            let _ = fs::remove_dir_all(&self.temporary);
            remove_parents(&self.parents);
        }
    }
}

/// Whether a run gave `target` its name and was stopped before it had removed its journal.
fn named_and_unfinished(target: &Path, names: BuildNames) -> bool {
    let Some(journal) = names.journals.first() else { return false };
    fs::symlink_metadata(target).is_ok_and(|facts| facts.is_dir())
        && fs::symlink_metadata(target.join(journal)).is_ok_and(|facts| facts.is_file())
}

/// Names of the finished files of a builder in `folder`, sorted; one that is being written is hidden.
#[must_use]
pub fn finished_files(folder: &Path, names: BuildNames) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names_there = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> =
        names_there.filter(|name| name.ends_with(names.finished) && !name.starts_with('.')).collect();
    found.sort_unstable();
    found
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
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

/// Makes the folder `temporary` ours: new, or what another run left. Returns the locked file. Errors name `target` where
/// the folder cannot be made.
fn claim(temporary: &Path, target: &Path, names: BuildNames) -> Result<File, StoreError> {
    let made = match fault::point().and_then(|()| fs::create_dir(temporary)) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(write_error(target, &error)),
    };
    let place = temporary.join(LOCK_NAME);
    let failed = |error: io::Error| write_error(temporary, &error);
    if !made && foreign(temporary, names).map_err(failed)? {
        let reason = "it is in the way, and was not left by a conversion; move it or remove it";
        return Err(not_writable(temporary, reason));
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
            return Err(not_writable(temporary, IN_USE));
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
    Ok(lock)
}

/// Whether a folder that is there is not ours: no folder at all, or with files and none of those that a builder makes
/// first.
fn foreign(folder: &Path, names: BuildNames) -> io::Result<bool> {
    if !fs::symlink_metadata(folder)?.is_dir() {
        return Ok(true);
    }
    let ours = names.journals.iter().chain([&LOCK_NAME]).any(|name| fs::symlink_metadata(folder.join(name)).is_ok());
    if ours {
        return Ok(false);
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() != names.staging || !entry.file_type()?.is_dir() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether `path` still names the open file.
fn same_file(file: &File, path: &Path) -> io::Result<bool> {
    let (open, named) = (file.metadata()?, fs::symlink_metadata(path));
    Ok(named.is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino())))
}

/// The temporary name of a folder.
///
/// # Errors
/// A path without a last part.
pub fn partial_name(target: &Path) -> Result<PathBuf, StoreError> {
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

impl BuildDirectory {
    /// The name of the folder being built, for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        file_name(&self.temporary)
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
