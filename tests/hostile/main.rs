//! Containers made to break a reader: each is refused by one error that names the file, the tensor, what was expected and
//! what was found; nothing panics, nothing reads outside of the file, nothing is allocated from an unchecked number.
//!
//! Tests are named by the case of the published collection they come from.

// What a test sets up must succeed; a panic is the right end of a test that cannot.
#![allow(clippy::unwrap_used)]

mod files;
mod header;
mod public;
mod shards;
mod weights;

use std::path::{Path, PathBuf};

use colibri_store::{Catalog, StoreError};

/// The bytes of a safetensors file with this header text and data.
pub(crate) fn file_bytes(header: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(data);
    bytes
}

/// A folder of a model that lives as long as the value.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    /// A folder with one file of this header and data.
    pub(crate) fn single(header: &str, data: &[u8]) -> Self {
        let folder = Folder::new();
        folder.write("model.safetensors", &file_bytes(header.as_bytes(), data));
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes a shard with U8 tensors of four bytes each.
    pub(crate) fn shard(&self, name: &str, tensors: &[&str]) {
        let entries: Vec<String> = tensors
            .iter()
            .enumerate()
            .map(|(i, tensor)| {
                let (start, end) = (4 * i, 4 * i + 4);
                format!(r#""{tensor}":{{"dtype":"F32","shape":[1],"data_offsets":[{start},{end}]}}"#)
            })
            .collect();
        let header = format!("{{{}}}", entries.join(","));
        self.write(name, &file_bytes(header.as_bytes(), &vec![0; 4 * tensors.len()]));
    }

    pub(crate) fn open(&self) -> Result<Catalog, StoreError> {
        Catalog::open(self.path())
    }

    /// The error of opening, as the slug and all its text.
    pub(crate) fn refusal(&self) -> (&'static str, String) {
        refusal(&self.open().expect_err("the folder must be refused"))
    }
}

/// The slug of an error and all its text.
pub(crate) fn refusal(error: &StoreError) -> (&'static str, String) {
    let text = format!("{error} | {} | {}", error.why().unwrap_or_default(), error.fix().unwrap_or_default());
    (error.code(), text)
}

/// Every part must be in the text.
#[track_caller]
pub(crate) fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}
