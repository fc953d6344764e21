//! What every target asks of an error, and the folder that a target writes its files into.

use std::path::{Path, PathBuf};

use colibri_engine::EngineError;
use colibri_store::{Fault, StoreError};
use tempfile::TempDir;

/// The slugs that the files of a model can lead to. None of them is `internal`, and none asks for another disk.
const OF_FILES: [&str; 4] = ["model_not_found", "model_incomplete", "model_unsupported", "model_corrupt"];

/// The longest message, in bytes: what a file says is cut before it is shown.
const LONGEST: usize = 32 << 10;

/// A new folder.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for the files of a target")
}

/// Writes a file of a target.
pub(crate) fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("a file of a target");
    path
}

/// A refusal of a model in `folder`: a known slug, a message of bounded length that names the place and cannot drive a
/// terminal.
pub(crate) fn store_refusal(error: &StoreError, folder: &Path) {
    message(error.code(), &OF_FILES, [Some(error.to_string()), error.why(), error.fix()], &[folder]);
    error.faults().iter().for_each(|found| fault(found, folder));
    let named = matches!(error, StoreError::Faulty { faults, .. } if !faults.is_empty())
        || matches!(error, StoreError::NotFound { .. });
    assert!(named, "a file led to another error: {error:?}");
}

/// As [`store_refusal`], for errors of the engine, of one of `folders`; `more` are slugs that are possible beside those of
/// files.
pub(crate) fn engine_refusal(error: &EngineError, more: &[&str], folders: &[&Path]) {
    let slugs: Vec<&str> = OF_FILES.iter().chain(more).copied().collect();
    message(error.code(), &slugs, [Some(error.to_string()), error.why(), error.fix()], folders);
}

/// One fault: it names its file, says something, and stays short.
pub(crate) fn fault(found: &Fault, folder: &Path) {
    assert!(found.file.starts_with(folder), "{found:?} names a file outside of {}", folder.display());
    assert!(!found.what.is_empty(), "{found:?}");
    for text in [Some(found.what.as_str()), found.why.as_deref(), found.fix.as_deref()].into_iter().flatten() {
        shown(text);
    }
}

fn message(code: &str, slugs: &[&str], lines: [Option<String>; 3], folders: &[&Path]) {
    assert!(slugs.contains(&code), "{code} is not among {slugs:?}: {lines:?}");
    let text = lines.into_iter().flatten().collect::<Vec<_>>().join(" | ");
    let named = folders.iter().any(|folder| text.contains(&folder.display().to_string()));
    assert!(named, "the place is not in: {text}");
    shown(&text);
}

/// A text that is shown: bounded, and without characters that move a cursor or reorder a line.
pub(crate) fn shown(text: &str) {
    assert!(text.len() <= LONGEST, "a message of {} bytes: {text:.200}", text.len());
    let drives = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(drives), "the message can drive a terminal: {text:?}");
}
