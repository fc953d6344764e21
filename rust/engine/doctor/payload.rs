//! The bytes of the weight files against their digests.
//!
//! Digests come from `colibri.json`; for a download in the Hugging Face cache from the names of its blobs; in a local folder
//! from `.colibri-pull.json`, where `colibri pull` puts a digest for each file name under `files`, or, as `huggingface_hub`
//! leaves it, from the second line of `.cache/huggingface/download/NAME.metadata`: the entity tag, which is the SHA-256
//! of a large file. A file without a digest is read to its end all the same: a sector that cannot be read shows.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use colibri_store::catalog::Catalog;
use colibri_store::container::read_small;
use colibri_store::digest::sha256_stored;
use colibri_store::error::{StoreError, human_bytes};
use serde::Deserialize;

use super::{Check, Line, Status};
use crate::config::{Control, Phase, Watch};
use crate::error::EngineError;

pub(super) const ID: &str = "model.payload";

/// Longest metadata file that is read, in bytes.
const METADATA_LIMIT: u64 = 1 << 16;
/// The record of a pull in the folder of its files, and the longest that is read, in bytes.
const PULL_RECORD: &str = ".colibri-pull.json";
const PULL_RECORD_LIMIT: u64 = 16 << 20;

/// A file and the digest that it should have.
struct Expected {
    path: PathBuf,
    bytes: u64,
    sha256: Option<String>,
    /// People may edit it: a difference is worth a word, not a failure.
    companion: bool,
}

/// Compares digests, if that is asked for; `rate` tells how long it would take.
pub(super) fn check(catalog: &Catalog, deep: bool, rate: Option<f64>, watch: &dyn Watch) -> Result<Check, EngineError> {
    let files = expected(catalog);
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    if !deep {
        let time = rate.map_or_else(String::new, |rate| format!(", about {} here", minutes(total as f64 / rate)));
        let text = format!("not hashed: {} to read{time}", human_bytes(total));
        return Ok(Check::new(ID, Status::Skip, text, "--deep compares every digest".to_owned()));
    }
    let (mut wrong, mut edited, mut compared) = (Vec::new(), Vec::new(), 0usize);
    let mut done = 0u64;
    for file in &files {
        let start = done;
        let mut progress = |bytes: u64| {
            done = done.saturating_add(bytes).min(total);
            watch.progress(Phase::Verify, done, total) == Control::Continue
        };
        let digest = match sha256_stored(&file.path, &mut progress) {
            Ok(digest) => digest,
            Err(StoreError::Cancelled) => return Err(EngineError::Cancelled),
            Err(error) => {
                wrong.extend(Line::of(&error));
                done = start.saturating_add(file.bytes).min(total);
                continue;
            }
        };
        let Some(sha256) = &file.sha256 else { continue };
        compared += 1;
        if *sha256 != digest {
            let name = colibri_store::error::file_name(&file.path);
            let line = Line {
                what: format!("{name} has changed: its digest is {digest}, not {sha256}"),
                fix: Some("fetch or convert that file again".to_owned()),
                missing: false,
                tensor: None,
            };
            if file.companion { edited.push(line) } else { wrong.push(line) }
        }
    }
    Ok(verdict(&files, total, compared, wrong, edited))
}

fn verdict(files: &[Expected], total: u64, compared: usize, wrong: Vec<Line>, edited: Vec<Line>) -> Check {
    if !wrong.is_empty() {
        return Check::faulty(ID, wrong, "fetch or convert those files again");
    }
    if !edited.is_empty() {
        let check = Check::faulty(ID, edited, "fetch those files again, unless they were changed on purpose");
        return Check { status: Status::Warn, ..check };
    }
    let read = format!("{} in {} files", human_bytes(total), files.len());
    if compared == 0 {
        let text = format!("{read} were read without an error; there is no digest to compare with");
        let fix = "convert --repack writes digests; a download by colibri pull has them too";
        return Check::new(ID, Status::Skip, text, fix.to_owned());
    }
    let without = files.len() - compared;
    let rest = if without > 0 { format!("; {without} have none") } else { String::new() };
    Check::ok(ID, format!("{read}: {compared} equal their digests{rest}"))
}

/// The files to read, each with its digest where one is known.
fn expected(catalog: &Catalog) -> Vec<Expected> {
    let Some(manifest) = catalog.manifest() else {
        let pulled = PullRecord::of(catalog.directory());
        let weights = catalog.files().iter().map(|file| Expected {
            path: file.path.clone(),
            bytes: file.bytes,
            sha256: blob_digest(&file.path)
                .or_else(|| pulled.digest(&file.path))
                .or_else(|| hub_digest(catalog.directory(), &file.path)),
            companion: false,
        });
        return weights.collect();
    };
    let listed = manifest.shards.iter().map(|file| (file, false)).chain(manifest.files.iter().map(|file| (file, true)));
    // What is missing is the matter of another check.
    let there = listed.filter_map(|(file, companion)| {
        let path = colibri_store::container::resolve(catalog.directory(), &file.file).ok().flatten()?;
        let bytes = std::fs::metadata(&path).map_or(file.bytes, |facts| facts.len());
        Some(Expected { path, bytes, sha256: Some(file.sha256.to_ascii_lowercase()), companion })
    });
    there.collect()
}

/// What `colibri pull` knows of the files of a folder; a record that cannot be read knows nothing.
#[derive(Default, Deserialize)]
struct PullRecord {
    /// File name -> entity tag.
    files: HashMap<String, String>,
}

impl PullRecord {
    fn of(folder: &Path) -> Self {
        let text = read_small(&folder.join(PULL_RECORD), PULL_RECORD_LIMIT).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn digest(&self, file: &Path) -> Option<String> {
        sha256(self.files.get(file.file_name()?.to_str()?)?)
    }
}

/// The digest in the name of the blob that a file of the Hugging Face cache is a link to.
fn blob_digest(file: &Path) -> Option<String> {
    std::fs::symlink_metadata(file).ok().filter(|facts| facts.file_type().is_symlink())?;
    sha256(file.canonicalize().ok()?.file_name()?.to_str()?)
}

/// The digest that `huggingface_hub` left of a file in a local folder.
fn hub_digest(folder: &Path, file: &Path) -> Option<String> {
    let mut metadata = file.file_name()?.to_os_string();
    metadata.push(".metadata");
    let text = read_small(&folder.join(".cache/huggingface/download").join(metadata), METADATA_LIMIT).ok()?;
    sha256(std::str::from_utf8(&text).ok()?.lines().nth(1)?.trim())
}

/// The text if it is a SHA-256 in hexadecimal; small files are named by a shorter digest of another kind.
fn sha256(text: &str) -> Option<String> {
    let plain = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| text.to_ascii_lowercase())
}

/// A time in words.
fn minutes(seconds: f64) -> String {
    if seconds < 90.0 { format!("{:.0} s", seconds.max(1.0)) } else { format!("{:.0} min", seconds / 60.0) }
}
