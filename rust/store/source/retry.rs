//! The one read loop under every copying source: interrupted and short reads go on, passing errors are tried again.
//!
//! What must hold: a read that returns without an error has filled its buffer; an error carries path, offset, length and
//! the operating system's code; a file that ends early is told apart from a device that fails.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::container::FileInfo;
use crate::error::{StoreError, file_name};

/// The longest single request. Systems cap one read below 2 GiB; a multiple of every block size keeps it aligned.
pub const LONGEST_READ: usize = 1 << 30;

/// How long to wait before each further try of a read that failed for a reason that may pass.
const PAUSES: [Duration; 3] = [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];

/// The most notes a source keeps.
const MOST_NOTES: usize = 16;

/// Reading at an offset: a file, or a stand-in with faults in tests.
pub trait ReadAt: Send + Sync {
    /// Reads up to `into.len()` bytes at `offset`; 0 means the end of the file.
    ///
    /// # Errors
    /// The operating system's error, unchanged.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, into, offset)
    }
}

/// What a source has to tell the user, each thing once.
#[derive(Debug, Default)]
pub struct Notes(Mutex<Vec<String>>);

impl Notes {
    /// Adds a note unless it is there already or there are too many.
    pub fn add(&self, note: String) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MOST_NOTES && !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// All notes so far.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A file being read: the handle, its name for messages, and where notes go.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// The handle.
    pub file: &'a dyn ReadAt,
    /// The path, for messages.
    pub path: &'a Path,
    /// Where a read that needed another try leaves a note.
    pub notes: &'a Notes,
}

impl Reader<'_> {
    /// Reads some bytes at `offset`: at least one, or 0 at the end of the file.
    ///
    /// # Errors
    /// The last error and the number of tries, when the error does not pass.
    pub fn some(&self, into: &mut [u8], offset: u64) -> Result<usize, (io::Error, u32)> {
        let length = into.len().min(LONGEST_READ);
        let mut tries = 1;
        loop {
            match self.file.read_at(&mut into[..length], offset) {
                // A stand-in or a broken file system must not make us trust bytes that are not there.
                Ok(count) => {
                    if tries > 1 {
                        self.notes.add(format!(
                            "a read of {} failed and succeeded on try {tries}: check the drive",
                            file_name(self.path)
                        ));
                    }
                    return Ok(count.min(length));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => match PAUSES.get(tries as usize - 1) {
                    Some(pause) if may_pass(&error) => {
                        std::thread::sleep(*pause);
                        tries += 1;
                    }
                    _ => return Err((error, tries)),
                },
            }
        }
    }

    /// Fills `into` with the bytes at `offset`.
    ///
    /// # Errors
    /// [`StoreError::ReadFailed`] or [`StoreError::ShortFile`].
    pub fn fill(&self, into: &mut [u8], offset: u64) -> Result<(), StoreError> {
        let wanted = into.len();
        let mut done = 0;
        while done < wanted {
            // `done` is below the length of a buffer in memory, and the span was checked against the file.
            match self.some(&mut into[done..], offset.saturating_add(done as u64)) {
                Ok(0) => {
                    let (wanted, got) = (wanted as u64, done as u64);
                    return Err(StoreError::ShortFile { path: self.path.to_path_buf(), offset, wanted, got });
                }
                Ok(count) => done += count,
                Err((error, tries)) => return Err(self.failed(offset, wanted, &error, tries)),
            }
        }
        Ok(())
    }

    /// The error of a read that failed for good.
    pub fn failed(&self, offset: u64, wanted: usize, error: &io::Error, tries: u32) -> StoreError {
        StoreError::read_failed(self.path, offset, wanted as u64, error, tries)
    }
}

/// Errors that a second try may not see again: a media or cable error, a network file system that was slow.
fn may_pass(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EAGAIN | libc::ETIMEDOUT))
}

/// Opens a file whose header was read before; its length must not have changed since.
///
/// # Errors
/// The file cannot be opened, or its length is another.
pub(crate) fn open_unchanged(info: &FileInfo) -> Result<File, StoreError> {
    let failed = |error: io::Error| StoreError::read_failed(&info.path, 0, info.bytes, &error, 1);
    let file = File::open(&info.path).map_err(failed)?;
    check_length(info, &file)?;
    Ok(file)
}

/// The length of an open file must still be what it was when its header was read.
///
/// # Errors
/// [`StoreError::FileChanged`] with both lengths, or the error of asking.
pub(crate) fn check_length(info: &FileInfo, file: &File) -> Result<(), StoreError> {
    let facts = file.metadata().map_err(|error| StoreError::read_failed(&info.path, 0, info.bytes, &error, 1))?;
    let (expected, got) = (info.bytes, facts.len());
    if expected == got { Ok(()) } else { Err(StoreError::FileChanged { path: info.path.clone(), expected, got }) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A reader over `bytes` that fails or falls short on the first calls as `script` says.
    pub(crate) struct Scripted {
        pub(crate) bytes: Vec<u8>,
        pub(crate) script: Vec<Step>,
        pub(crate) calls: AtomicUsize,
    }

    #[derive(Clone, Copy)]
    pub(crate) enum Step {
        Fail(i32),
        AtMost(usize),
    }

    impl Scripted {
        pub(crate) fn new(bytes: Vec<u8>, script: Vec<Step>) -> Self {
            Scripted { bytes, script, calls: AtomicUsize::new(0) }
        }
    }

    impl ReadAt for Scripted {
        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            let limit = match self.script.get(call) {
                Some(Step::Fail(code)) => return Err(io::Error::from_raw_os_error(*code)),
                Some(Step::AtMost(limit)) => *limit,
                None => usize::MAX,
            };
            let rest = self.bytes.get(offset as usize..).unwrap_or_default();
            let count = rest.len().min(into.len()).min(limit);
            into[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }
    }

    fn fill(stub: &Scripted, wanted: usize, notes: &Notes) -> Result<Vec<u8>, StoreError> {
        let mut into = vec![0; wanted];
        Reader { file: stub, path: Path::new("/m/out-00044.safetensors"), notes }.fill(&mut into, 0)?;
        Ok(into)
    }

    #[test]
    fn ex_01_short_reads_go_on_and_an_early_end_is_named() {
        let whole: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
        let notes = Notes::default();
        let stub = Scripted::new(whole.clone(), vec![Step::AtMost(100)]);
        assert_eq!(fill(&stub, 4096, &notes).unwrap(), whole);

        let stub = Scripted::new(whole[..100].to_vec(), vec![]);
        let error = fill(&stub, 4096, &notes).unwrap_err();
        let text = error.to_string();
        for part in ["out-00044.safetensors", "+0", "4.1 kB", "100", "file is shorter than its header says"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("Success"));
        assert_eq!(error.code(), "disk_read_failed");
        assert!(notes.all().is_empty());
    }

    #[test]
    fn ex_02_a_passing_error_is_retried_with_one_note_and_a_lasting_one_is_named() {
        let whole = vec![7u8; 64];
        let notes = Notes::default();
        let stub = Scripted::new(whole.clone(), vec![Step::Fail(libc::EIO)]);
        assert_eq!(fill(&stub, 64, &notes).unwrap(), whole);
        assert_eq!(notes.all().len(), 1);

        let stub = Scripted::new(whole.clone(), vec![Step::Fail(libc::EIO); 1000]);
        let error = fill(&stub, 64, &notes).unwrap_err();
        assert!(error.to_string().contains("EIO") && error.to_string().contains("out-00044"), "{error}");
        assert_eq!(stub.calls.load(Ordering::Relaxed), 1 + PAUSES.len());

        // An error that cannot pass is not tried again.
        let stub = Scripted::new(whole, vec![Step::Fail(libc::EBADF); 4]);
        assert!(fill(&stub, 64, &notes).is_err());
        assert_eq!(stub.calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn interrupted_reads_go_on_without_a_note() {
        let notes = Notes::default();
        let stub = Scripted::new(vec![1; 8], vec![Step::Fail(libc::EINTR); 50]);
        assert_eq!(fill(&stub, 8, &notes).unwrap(), vec![1; 8]);
        assert!(notes.all().is_empty());
    }

    /// Claims to read whatever is asked, but refuses requests that a system would cut.
    struct Endless(AtomicUsize);

    impl ReadAt for Endless {
        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            assert!(into.len() <= LONGEST_READ && offset.is_multiple_of(4096));
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(into.len())
        }
    }

    #[test]
    fn a_read_beyond_two_gibibytes_is_cut_into_aligned_requests() {
        let stub = Endless(AtomicUsize::new(0));
        let notes = Notes::default();
        // Zeroed memory that nobody touches costs no pages.
        let mut into = vec![0u8; (5 << 29) + 4096];
        Reader { file: &stub, path: Path::new("x"), notes: &notes }.fill(&mut into, 0).unwrap();
        assert_eq!(stub.0.load(Ordering::Relaxed), 3);
    }
}
