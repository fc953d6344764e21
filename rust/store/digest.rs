//! SHA-256 of files: what a manifest records and a verification compares.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::StoreError;

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
        assert_eq!(sha256_file(&folder.path().join("none"), &mut |_| true).unwrap_err().code(), "disk_read_failed");
    }
}
