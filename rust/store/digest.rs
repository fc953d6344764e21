//! SHA-256 of files: what a manifest records and a verification compares.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use std::sync::mpsc::sync_channel;

use colibri_kernels::buffer::AlignedBuffer;
use sha2::{Digest, Sha256};

use crate::container::{FileId, FileInfo};
use crate::error::StoreError;
use crate::source::{ReadJob, SourceKind, Span, open_source};

/// Bytes read at a time.
const BLOCK: usize = 1 << 20;

/// A running digest.
#[derive(Clone, Debug, Default)]
pub struct Digester(Sha256);

impl Digester {
    /// A digest of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest in lower-case hexadecimal.
    #[must_use]
    pub fn finish(self) -> String {
        self.0.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// SHA-256 of a file's content, lower-case hexadecimal. `progress` receives the bytes of each block and answers whether
/// to go on.
///
/// # Errors
/// A file that cannot be read, or [`StoreError::Cancelled`] when `progress` says stop.
pub fn sha256_file(path: &Path, progress: &mut dyn FnMut(u64) -> bool) -> Result<String, StoreError> {
    let mut done = 0u64;
    let failed = |error: &std::io::Error, offset: u64| StoreError::read_failed(path, offset, BLOCK as u64, error, 1);
    let mut file = File::open(path).map_err(|error| failed(&error, 0))?;
    let mut block = vec![0u8; BLOCK];
    let mut digest = Digester::new();
    loop {
        let count = match file.read(&mut block) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(&error, done)),
        };
        if count == 0 {
            return Ok(digest.finish());
        }
        digest.update(&block[..count]);
        done += count as u64;
        if !progress(count as u64) {
            return Err(StoreError::Cancelled);
        }
    }
}

/// Bytes read at a time past the page cache.
const DIRECT_BLOCK: usize = 4 << 20;

/// As [`sha256_file`], with the bytes taken from the disk itself and not from the page cache, where the file system allows
/// it; a thread reads ahead while the digest is computed.
///
/// # Errors
/// As [`sha256_file`].
pub fn sha256_stored(path: &Path, progress: &mut dyn FnMut(u64) -> bool) -> Result<String, StoreError> {
    let facts = std::fs::metadata(path).map_err(|error| StoreError::read_failed(path, 0, 0, &error, 1))?;
    let file = FileInfo { path: path.to_path_buf(), bytes: facts.len() };
    let source = open_source(SourceKind::Direct, std::slice::from_ref(&file))?;
    let (full, read) = sync_channel::<Result<(AlignedBuffer, usize), StoreError>>(2);
    let (empty, spare) = sync_channel::<AlignedBuffer>(3);
    for _ in 0..3 {
        // The channel has room for all of them.
        let _ = empty.try_send(AlignedBuffer::new(DIRECT_BLOCK)?);
    }
    // The ends of the channels move in, so that the reader is let go however this ends.
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            let mut offset = 0;
            while offset < file.bytes {
                let Ok(mut block) = spare.recv() else { return };
                let count = usize::try_from(file.bytes - offset).unwrap_or(usize::MAX).min(DIRECT_BLOCK);
                let span = Span { file: FileId(0), offset, bytes: count as u64 };
                let outcome = source.read(&mut [ReadJob { span, into: &mut block[..count] }]);
                if full.send(outcome.map(|()| (block, count))).is_err() {
                    return;
                }
                offset += count as u64;
            }
        });
        let mut digest = Digester::new();
        while let Ok(outcome) = read.recv() {
            let (block, count) = outcome?;
            digest.update(&block[..count]);
            if !progress(count as u64) {
                return Err(StoreError::Cancelled);
            }
            // The reader may have come to the end.
            let _ = empty.try_send(block);
        }
        Ok(digest.finish())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_the_published_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        std::fs::write(&path, b"abc").unwrap();
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_file(&path, &mut |_| true).unwrap(), expected);
        let mut pieces = Digester::new();
        pieces.update(b"a");
        pieces.update(b"bc");
        assert_eq!(pieces.finish(), expected);
    }

    #[test]
    fn long_files_missing_files_and_stops() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        let content = vec![7u8; 2 * BLOCK + 3];
        std::fs::write(&path, &content).unwrap();
        let mut whole = Digester::new();
        whole.update(&content);
        let mut seen = 0;
        let digest = sha256_file(&path, &mut |bytes| {
            seen += bytes;
            true
        });
        assert_eq!((digest.unwrap(), seen), (whole.finish(), content.len() as u64));
        assert_eq!(sha256_file(&path, &mut |_| false).unwrap_err().code(), "cancelled");
        for length in [0, 1, 4097, DIRECT_BLOCK, 5 * DIRECT_BLOCK + 3] {
            std::fs::write(&path, &content.repeat(length / content.len() + 1)[..length]).unwrap();
            let mut seen = 0;
            let stored = sha256_stored(&path, &mut |bytes| {
                seen += bytes;
                true
            });
            assert_eq!((stored.unwrap(), seen), (sha256_file(&path, &mut |_| true).unwrap(), length as u64));
        }
        assert_eq!(sha256_stored(&path, &mut |_| false).unwrap_err().code(), "cancelled");
        assert_eq!(sha256_stored(&folder.path().join("none"), &mut |_| true).unwrap_err().code(), "disk_read_failed");
        assert_eq!(sha256_file(&folder.path().join("none"), &mut |_| true).unwrap_err().code(), "disk_read_failed");
    }
}
