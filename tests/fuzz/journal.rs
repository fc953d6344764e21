//! Target `journal`: what an unfinished conversion left. Up to the first NUL byte a change of its journal, after it one of
//! its record of the source: a JSON merge patch (RFC 7396) of the true text, or, when it is no JSON object, the whole text.
//!
//! Asserts: taking the conversion up refuses with a slug of files or of another conversion and names a folder, or goes
//! on from shards that are there under plain names; source and neighbours stay as they are.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::path::Path;

use colibri_engine::NoWatch;
use colibri_engine::convert::{Conversion, ConvertOptions};
use colibri_engine::fixture::Fixture;
use colibri_kernels::format::ScaleRule;
use colibri_store::Catalog;
use colibri_store::container::plain_file_name;
use serde_json::Value;
use tempfile::TempDir;

use super::check;

const JOURNAL: &str = ".colibri-convert.json";
const RECORD: &str = ".colibri-convert.source.json";
/// Refusals beside those of files: the conversion is another.
const OTHER_CONVERSION: [&str; 2] = ["convert_parameters_differ", "convert_source_changed"];

/// A conversion that stopped after its first step.
struct Begun {
    source: TempDir,
    /// What its build folder holds.
    left: BTreeMap<String, Vec<u8>>,
    /// The checkpoint's files.
    checkpoint: BTreeMap<String, Vec<u8>>,
    /// Shards and tensors of the finished container.
    shards: usize,
    tensors: usize,
}

thread_local! {
    static BEGUN: LazyCell<Begun> = LazyCell::new(Begun::new);
}

fn options() -> ConvertOptions {
    ConvertOptions { scale_rule: ScaleRule::AbsMax, workers: 1, ..ConvertOptions::default() }
}

impl Begun {
    fn new() -> Self {
        let source = check::folder();
        let fixture =
            Fixture { layers: 2, experts: 2, top_k: 1, groups: 1, vocab: 64, shards: 3, ..Fixture::default() };
        fixture.write(source.path()).expect("a checkpoint");
        let folder = check::folder();
        let destination = folder.path().join("model");
        let mut conversion = Conversion::open(source.path(), &destination, &options()).expect("a conversion");
        conversion.run_step(0, &NoWatch).expect("its first step");
        let left = files(&folder.path().join("model.partial"));
        for index in 1..conversion.steps().len() {
            conversion.run_step(index, &NoWatch).expect("the other steps");
        }
        let report = conversion.finish(&NoWatch).expect("a container");
        let catalog = Catalog::open(&report.destination).expect("a container that opens");
        let (shards, tensors) = (catalog.files().len(), catalog.tensors().len());
        Self { checkpoint: files(source.path()), source, left, shards, tensors }
    }
}

/// Runs the target.
pub fn run(data: &[u8]) {
    BEGUN.with(|begun| take_up(begun, data));
}

fn take_up(begun: &Begun, data: &[u8]) {
    let folder = check::folder();
    let building = folder.path().join("model.partial");
    std::fs::create_dir(&building).expect("the build folder");
    check::write(folder.path(), "neighbour", b"stays");
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let changes = [(JOURNAL, parts.next()), (RECORD, parts.next())];
    for (name, bytes) in &begun.left {
        let change = changes.iter().find(|(changed, _)| changed == name).and_then(|(_, change)| *change);
        let text = change.map(|change| changed(bytes, change));
        check::write(&building, name, text.as_deref().unwrap_or(bytes));
    }
    let destination = folder.path().join("model");
    match Conversion::open(begun.source.path(), &destination, &options()) {
        Ok(conversion) => {
            assert!(!conversion.steps().is_empty());
            let journal: Value = serde_json::from_slice(&std::fs::read(building.join(JOURNAL)).expect("a journal"))
                .expect("a journal that was written again");
            for shard in journal["shards"].as_array().into_iter().flatten() {
                let name = shard["file"].as_str().unwrap_or_default();
                assert!(plain_file_name(name) && building.join(name).is_file(), "{name} counts as finished");
            }
            finish(begun, conversion, &[folder.path(), begun.source.path()]);
        }
        Err(error) => check::engine_refusal(&error, &OTHER_CONVERSION, &[folder.path(), begun.source.path()]),
    }
    assert_eq!(files(begun.source.path()), begun.checkpoint);
    assert_eq!(std::fs::read(folder.path().join("neighbour")).ok().as_deref(), Some(&b"stays"[..]));
}

/// Runs what is left; what comes of it opens, or is refused.
fn finish(begun: &Begun, mut conversion: Conversion, folders: &[&Path]) {
    let mut outcome = Ok(());
    for index in 0..conversion.steps().len() {
        outcome = outcome.and_then(|()| conversion.run_step(index, &NoWatch));
    }
    match outcome.and_then(|()| conversion.finish(&NoWatch)) {
        Ok(report) => {
            let catalog = Catalog::open(&report.destination).expect("what was finished opens");
            assert_eq!(catalog.files().len(), begun.shards);
            assert_eq!(catalog.tensors().len(), begun.tensors);
        }
        Err(error) => check::engine_refusal(&error, &OTHER_CONVERSION, folders),
    }
}

/// The true text after a change.
fn changed(text: &[u8], change: &[u8]) -> Vec<u8> {
    let Ok(patch @ Value::Object(_)) = serde_json::from_slice(change) else { return change.to_vec() };
    let mut value: Value = serde_json::from_slice(text).expect("the true text");
    merge(&mut value, patch);
    value.to_string().into_bytes()
}

fn merge(value: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *value = patch;
        return;
    };
    if !value.is_object() {
        *value = Value::Object(serde_json::Map::new());
    }
    let Some(object) = value.as_object_mut() else { return };
    for (key, change) in patch {
        if change.is_null() {
            object.remove(&key);
        } else {
            merge(object.entry(key).or_insert(Value::Null), change);
        }
    }
}

/// Names and bytes of a folder's files.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let file = |path: std::path::PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, std::fs::read(&path).ok()?))
    };
    entries.filter(|path| path.is_file()).filter_map(file).collect()
}
