//! Which files make up a model, and which of them are absent.
//!
//! A folder of ours says so in `colibri.json`, a sharded checkpoint in `model.safetensors.index.json`; any other folder is
//! all of its `*.safetensors` files, sorted by name. File names of the form `NAME-00001-of-00005` announce how many there
//! are; plain running numbers do not, so their gaps are a hint that is given when a tensor is missing, not a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::json::{StringMap, reason};
use super::manifest::{MANIFEST_NAME, Manifest};
use super::{cache_repository, plain_file_name, read_small, resolve};
use crate::durable::PARTIAL_SUFFIX;
use crate::error::{Fault, FaultKind, StoreError, shown};

/// The index of a sharded Hugging Face checkpoint.
pub const INDEX_NAME: &str = "model.safetensors.index.json";

/// Ends the name of a file that holds the header of a weight file, which itself comes later: `NAME.safetensors.header` is
/// the first `8 + N` bytes of `NAME.safetensors`.
pub const STUB_SUFFIX: &str = ".header";

/// The file in the folder of a conversion that is not finished: its journal.
pub const JOURNAL_NAME: &str = ".colibri-convert.json";

/// The longest index or manifest that is read, in bytes.
const MAX_INDEX: u64 = 512 << 20;

/// How many names a message spells out.
const NAMES_SHOWN: usize = 6;

/// The most shards a folder may have.
const MAX_SHARDS: usize = 1 << 16;

/// The files of a model and where their list comes from.
#[derive(Debug, Default)]
pub struct Listing {
    /// Names of the shards that should exist, sorted.
    pub names: Vec<String>,
    /// The index, when there is one: tensor -> file name.
    pub index: Option<StringMap>,
    /// The manifest, when the container is ours.
    pub manifest: Option<Manifest>,
    /// What says so: shown in messages.
    pub authority: &'static str,
}

#[derive(Deserialize)]
struct Index {
    weight_map: StringMap,
}

/// Lists the shards of the model in `directory`.
///
/// # Errors
/// [`StoreError::NotFound`] when the folder holds no weights at all; otherwise the faults of the index or manifest.
pub fn list(directory: &Path) -> Result<Listing, StoreError> {
    list_files(directory, false)
}

/// As [`list`]; a weight file of which only the header is there (see [`STUB_SUFFIX`]) counts as well.
///
/// # Errors
/// As [`list`].
pub fn list_planned(directory: &Path) -> Result<Listing, StoreError> {
    list_files(directory, true)
}

fn list_files(directory: &Path, stubs: bool) -> Result<Listing, StoreError> {
    let single = |fault| StoreError::fault(directory, fault);
    if let Some(path) = resolve(directory, MANIFEST_NAME).map_err(single)? {
        let text = read_small(&path, MAX_INDEX).map_err(single)?;
        let manifest = Manifest::parse(&text, &path).map_err(single)?;
        let names = manifest.shards.iter().map(|shard| shard.file.clone()).collect();
        return checked(directory, &path, names, None, Some(manifest), MANIFEST_NAME);
    }
    // The manifest comes last: without it the shards there are not all of them.
    if std::fs::symlink_metadata(directory.join(JOURNAL_NAME)).is_ok() {
        return Err(single(unfinished(directory)));
    }
    if let Some(path) = resolve(directory, INDEX_NAME).map_err(single)? {
        let text = read_small(&path, MAX_INDEX).map_err(single)?;
        let index: Index = serde_json::from_slice(&text).map_err(|error| {
            let fault = Fault::file(FaultKind::Corrupt, &path, format!("{INDEX_NAME} is malformed"));
            single(fault.why(reason(&error)).fix("fetch the index again"))
        })?;
        let names = index.weight_map.pairs().iter().map(|(_, file)| file.clone()).collect();
        return checked(directory, &path, names, Some(index.weight_map), None, "the index");
    }
    let mut names = folder_names(directory, stubs)?;
    if names.is_empty() {
        return Err(nothing_there(directory));
    }
    names.extend(announced(&names));
    checked(directory, directory, names, None, None, "the numbers in the names of the others")
}

/// Sorts the names and checks each; every bad one is a fault.
fn checked(
    directory: &Path,
    path: &Path,
    names: Vec<String>,
    index: Option<StringMap>,
    manifest: Option<Manifest>,
    authority: &'static str,
) -> Result<Listing, StoreError> {
    let names: Vec<String> = names.into_iter().collect::<BTreeSet<String>>().into_iter().collect();
    let mut faults = Vec::new();
    for name in names.iter().filter(|name| !plain_file_name(name)).take(NAMES_SHOWN) {
        let what = format!("{authority} names the file {}, which is not a plain file name", shown(name));
        let fault = Fault::file(FaultKind::Corrupt, path, what);
        faults.push(fault.why("a model's files must lie in its own folder").fix("do not use this model as it is"));
    }
    if names.is_empty() || names.len() > MAX_SHARDS {
        let what = format!("{authority} names {} files; 1 to {MAX_SHARDS} are possible", names.len());
        faults.push(Fault::file(FaultKind::Corrupt, path, what));
    }
    StoreError::from_faults(directory, faults)?;
    Ok(Listing { names, index, manifest, authority })
}

/// The `*.safetensors` files of a folder, those of which only a header is there included if `stubs` are wanted.
fn folder_names(directory: &Path, stubs: bool) -> Result<Vec<String>, StoreError> {
    let unreadable = |error: std::io::Error| StoreError::NotFound {
        path: directory.to_path_buf(),
        found: crate::error::os_error_text(&error),
        fix: "give the folder of a model".to_owned(),
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        // Names that are no text cannot come from an index and are not ours either.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = name.strip_suffix(STUB_SUFFIX).filter(|_| stubs).unwrap_or(&name).to_owned();
        if name.ends_with(".safetensors") && !name.starts_with('.') {
            names.push(name);
        }
    }
    Ok(names)
}

/// Where the header of the weight file `name` lies, if it is there without the file.
///
/// # Errors
/// As [`resolve`].
pub fn stub_of(directory: &Path, name: &str) -> Result<Option<PathBuf>, Fault> {
    resolve(directory, &format!("{name}{STUB_SUFFIX}"))
}

/// The fault of a conversion that was stopped.
fn unfinished(directory: &Path) -> Fault {
    let shards = folder_names(directory, false).map_or(0, |names| names.len());
    let what = format!("{} is an unfinished conversion", directory.display());
    Fault::file(FaultKind::Missing, directory, what)
        .why(format!("it holds {shards} finished shards and no {MANIFEST_NAME}, which is written when all are there"))
        .fix("run the same convert command again: it goes on where it stopped")
}

/// Where an unfinished conversion into `target` lies, if there is one.
#[must_use]
pub fn unfinished_beside(target: &Path) -> Option<PathBuf> {
    let mut name = target.file_name()?.to_owned();
    name.push(PARTIAL_SUFFIX);
    let folder = target.with_file_name(name);
    folder.join(JOURNAL_NAME).is_file().then_some(folder)
}

/// The error for a folder without weights; says what is there instead.
fn nothing_there(directory: &Path) -> StoreError {
    let mut found = "the folder exists but holds no *.safetensors file".to_owned();
    let partial = partial_downloads(directory);
    let mut fix = "give the folder of a converted or downloaded model".to_owned();
    if partial > 0 {
        found.push_str(&format!(" (found: {partial} *.incomplete files)"));
        "the download stopped; resume it".clone_into(&mut fix);
    }
    StoreError::NotFound { path: directory.to_path_buf(), found, fix }
}

/// How many partial downloads lie in the folder and where the Hugging Face tools keep theirs.
pub fn partial_downloads(directory: &Path) -> usize {
    let mut places: Vec<PathBuf> = vec![directory.to_path_buf(), directory.join(".cache/huggingface/download")];
    if let Ok(home) = directory.canonicalize()
        && let Some(cache) = cache_repository(&home)
    {
        places.push(cache.join("blobs"));
    }
    let partial = |place: &PathBuf| {
        let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "incomplete")).count()
    };
    places.iter().map(partial).sum()
}

/// What `PREFIX-00002-of-00005.safetensors` announces: a series of five files.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Series<'a> {
    prefix: &'a str,
    /// Digits of the running number.
    width: usize,
    /// The total as it is written.
    total: &'a str,
}

impl<'a> Series<'a> {
    fn of(name: &'a str) -> Option<Series<'a>> {
        let (head, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
        let prefix = head.trim_end_matches(|c: char| c.is_ascii_digit());
        let width = head.len() - prefix.len();
        (width > 0).then_some(Series { prefix, width, total })
    }
}

/// All names that the `-of-` numbers of these names announce.
fn announced(names: &[String]) -> Vec<String> {
    let series: BTreeSet<Series<'_>> = names.iter().filter_map(|name| Series::of(name)).collect();
    let mut all = Vec::new();
    for Series { prefix, width, total } in series {
        // A count beyond the limit is no count of shards; the files there are still read.
        let Some(count) = total.parse().ok().filter(|count| *count <= MAX_SHARDS) else { continue };
        if all.len() <= MAX_SHARDS {
            all.extend((1..=count).map(|number| format!("{prefix}{number:0width$}-of-{total}.safetensors")));
        }
    }
    all
}

/// What the running numbers of the shards' names say about absent ones: `4 shards were found: out-00000 to out-00004
/// without out-00002`. Where no name says how many there are, the last ones cannot be known to be there, so the range is
/// always named.
pub fn numbering_hint(names: &[String]) -> String {
    let verb = if names.len() == 1 { "was" } else { "were" };
    let mut text = format!("{} {verb} found", counted(names.len(), "shard"));
    let mut joint = ": ";
    let mut open_ended = false;
    for (of, numbers) in numbered(names) {
        let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { continue };
        let name = |number: u64| of.name(number);
        text.push_str(&format!("{joint}{}", name(*first)));
        joint = "; ";
        if first != last {
            text.push_str(&format!(" to {}", name(*last)));
        }
        let announced = of.total.and_then(|total| total.parse::<u64>().ok());
        open_ended |= announced.is_none();
        // A series that says how many it has counts from one.
        let wanted = announced.map_or(0..=*last, |total| 1..=total.min(MAX_SHARDS as u64));
        let missing: Vec<u64> = wanted.filter(|number| !numbers.contains(number)).take(NAMES_SHOWN + 1).collect();
        if missing == [0] {
            // Some writers count from one.
            text.push_str(&format!(" (no {})", name(0)));
        } else if !missing.is_empty() {
            let list: Vec<String> = missing.iter().take(NAMES_SHOWN).map(|number| name(*number)).collect();
            let more = if missing.len() > NAMES_SHOWN { ", ..." } else { "" };
            text.push_str(&format!(" without {}{more}", list.join(", ")));
        }
    }
    if open_ended {
        text.push_str("; shards after the last ones may be missing too");
    }
    text
}

/// A row of files with running numbers: what is before the number, its digits, and how many the names say there are.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Row<'a> {
    prefix: &'a str,
    total: Option<&'a str>,
    width: usize,
}

impl Row<'_> {
    fn name(&self, number: u64) -> String {
        let (prefix, width) = (self.prefix, self.width);
        let of = self.total.map_or_else(String::new, |total| format!("-of-{total}"));
        format!("{prefix}{number:0width$}{of}")
    }
}

/// The rows that the names of files form, with their numbers.
fn numbered(names: &[String]) -> BTreeMap<Row<'_>, BTreeSet<u64>> {
    let mut rows: BTreeMap<Row<'_>, BTreeSet<u64>> = BTreeMap::new();
    for name in names {
        let stem = name.strip_suffix(".safetensors").unwrap_or(name);
        let (head, total) = match Series::of(name) {
            Some(series) => {
                (stem.strip_suffix(series.total).and_then(|head| head.strip_suffix("-of-")), Some(series.total))
            }
            None => (Some(stem), None),
        };
        let Some(head) = head else { continue };
        let prefix = head.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = head.get(prefix.len()..).unwrap_or_default();
        if let Ok(number) = digits.parse() {
            rows.entry(Row { prefix, total, width: digits.len() }).or_default().insert(number);
        }
    }
    rows
}

/// `1 shard`, `3 shards`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The one fault for all shards that are named but not there.
pub fn missing_shards(directory: &Path, listing: &Listing, missing: &[String]) -> Fault {
    let list = |names: &[String]| {
        let mut text = names.iter().take(NAMES_SHOWN).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
        if names.len() > NAMES_SHOWN {
            text.push_str(&format!(" and {} more", names.len() - NAMES_SHOWN));
        }
        text
    };
    let (count, total) = (missing.len(), listing.names.len());
    let verb = if count == 1 { "is" } else { "are" };
    let mut why = format!("{} {verb} named by {} but not on disk", list(missing), listing.authority);
    if let Some(index) = &listing.index {
        let gone: BTreeSet<&str> = missing.iter().map(String::as_str).collect();
        let tensors: Vec<String> = index
            .pairs()
            .iter()
            .filter(|(_, file)| gone.contains(file.as_str()))
            .map(|(tensor, _)| tensor.clone())
            .collect();
        why.push_str(&format!("; {} tensors lie there: {}", tensors.len(), list(&tensors)));
    }
    let partial = partial_downloads(directory);
    if partial > 0 {
        why.push_str(&format!("; found {partial} *.incomplete files of a download that stopped"));
    }
    Fault::file(FaultKind::Missing, directory, format!("{count} of {total} shards {verb} missing"))
        .why(why)
        .fix(format!("fetch only what is missing: {}", list(missing)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn announced_shards_are_all_named() {
        let all = announced(&names(&["model-00002-of-00003.safetensors", "other.safetensors"]));
        let wanted = [
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
        ];
        assert_eq!(all, wanted);
        assert!(announced(&names(&["x-1-of-99999999999.safetensors", "x-of-.safetensors"])).is_empty());
    }

    #[test]
    fn the_hint_names_gaps_and_the_range() {
        let hint = numbering_hint(&names(&["out-00000.safetensors", "out-00001.safetensors", "out-00003.safetensors"]));
        assert!(hint.contains("3 shards were found") && hint.contains("without out-00002"), "{hint}");
        assert!(hint.contains("out-00000 to out-00003") && hint.contains("after the last"), "{hint}");
        let hint = numbering_hint(&names(&["out-00001.safetensors", "out-00002.safetensors"]));
        assert!(hint.contains("no out-00000"), "{hint}");
        let hint = numbering_hint(&names(&["dense-00001.safetensors"]));
        assert!(hint.starts_with("1 shard was found"), "{hint}");
    }

    #[test]
    fn a_series_that_says_how_many_it_has_is_counted_by_its_running_numbers() {
        let of = |number: u32| format!("model-{number:05}-of-00004.safetensors");
        let hint = numbering_hint(&[of(1), of(3), of(4)]);
        assert!(hint.contains("model-00001-of-00004 to model-00004-of-00004 without model-00002-of-00004"), "{hint}");
        assert!(!hint.contains("after the last") && !hint.contains("of-00000"), "{hint}");
        let whole = numbering_hint(&[of(1), of(2), of(3), of(4)]);
        assert!(!whole.contains("without"), "{whole}");
        // The number of a series may be anything.
        let hint =
            numbering_hint(&names(&["m-1-of-99999999999999999999999.safetensors", "m-2-of-4000000000.safetensors"]));
        assert!(hint.len() < 1000 && hint.contains("m-1-of-4000000000"), "{hint}");
    }

    #[test]
    fn an_unfinished_conversion_is_recognised() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("out");
        let folder = home.path().join("out.partial");
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(unfinished_beside(&target), None);
        std::fs::write(folder.join("dense-00001.safetensors"), b"x").unwrap();
        std::fs::write(folder.join(JOURNAL_NAME), b"{}").unwrap();
        assert_eq!(unfinished_beside(&target), Some(folder.clone()));
        let error = list(&folder).unwrap_err();
        assert_eq!(error.code(), "model_incomplete");
        assert!(error.to_string().contains("unfinished conversion"), "{error}");
        assert!(error.fix().unwrap().contains("same convert command again"), "{error}");
    }
}
