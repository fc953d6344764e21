//! Checks of a container: the digests of its files, and its tensors against the configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use colibri_store::catalog::Catalog;
use colibri_store::container::listing::{self, Listing, missing_shards};
use colibri_store::container::manifest::FileDigest;
use colibri_store::container::resolve;
use colibri_store::digest::sha256_stored;
use colibri_store::error::{Fault, FaultKind, StoreError, grouped, shown};
use serde::Serialize;

use super::report::REPORT_VERSION;
use super::source::holds;
use crate::blueprint::Blueprint;
use crate::config::{Control, Phase, Watch};
use crate::error::EngineError;
use crate::model::path_as_text;

/// How many tensor names a line spells out.
const NAMES_SHOWN: usize = 6;

/// What a check of a container found.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// Version of these fields: 1.
    pub version: u32,
    /// Where the container lies.
    #[serde(serialize_with = "path_as_text")]
    pub path: PathBuf,
    /// Files that were read from the disk and compared with their digests; 0 for a container without digests.
    pub files: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// What is wrong, a line each.
    pub faults: Vec<String>,
    /// Layers that lack tensors; the multi-token-prediction layer has the number of decoder layers.
    pub missing_layers: Vec<usize>,
    /// Tensors of the configuration that no weight file holds.
    pub missing_tensors: Vec<String>,
    /// Time taken, in seconds.
    pub seconds: f64,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Reads every file of the container in the folder `container` from the disk and compares it with its digest, and compares
/// its tensors with the configuration. Everything that is wrong is listed, not only the first.
///
/// # Errors
/// There is no container, its list of files or its configuration cannot be read, or [`EngineError::Cancelled`].
pub fn verify(container: &Path, watch: &dyn Watch) -> Result<VerifyReport, EngineError> {
    let started = Instant::now();
    let listing = listing::list(container)?;
    let mut report = structure(container, &listing)?;
    let manifest = listing.manifest.as_ref();
    let listed: Vec<&FileDigest> =
        manifest.map(|manifest| manifest.shards.iter().chain(&manifest.files).collect()).unwrap_or_default();
    let total = listed.iter().map(|file| file.bytes).sum();
    for file in listed {
        let path = match resolve(container, &file.file) {
            Ok(Some(path)) if path.is_file() => path,
            // A weight file that is missing was named already.
            Ok(_) if listing.names.contains(&file.file) => continue,
            Ok(_) => {
                report.faults.push(format!("{} is missing", shown(&file.file)));
                continue;
            }
            Err(fault) => {
                report.faults.push(fault.what);
                continue;
            }
        };
        let digest = sha256_stored(&path, &mut |bytes| {
            report.bytes += bytes;
            watch.progress(Phase::Verify, report.bytes.min(total), total) == Control::Continue
        });
        match digest {
            Ok(digest) if digest == file.sha256 => report.files += 1,
            Ok(digest) => report.faults.push(format!(
                "{} is not what was written: its SHA-256 is {digest}, colibri.json has {}",
                shown(&file.file),
                file.sha256
            )),
            Err(StoreError::Cancelled) => return Err(EngineError::Cancelled),
            Err(error) => report.faults.push(error.to_string()),
        }
    }
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// What the headers say: weight files that are missing, damaged or of another length, and tensors that are in none.
fn structure(container: &Path, listing: &Listing) -> Result<VerifyReport, EngineError> {
    let mut report = VerifyReport {
        version: REPORT_VERSION,
        path: container.to_path_buf(),
        files: 0,
        bytes: 0,
        faults: Vec::new(),
        missing_layers: Vec::new(),
        missing_tensors: Vec::new(),
        seconds: 0.0,
    };
    let mut blueprint = Blueprint::read(container)?;
    let there = |name: &&String| resolve(container, name).is_ok_and(|found| found.is_some_and(|path| path.is_file()));
    let (present, missing): (Vec<&String>, Vec<&String>) = listing.names.iter().partition(there);
    if !missing.is_empty() {
        let missing: Vec<String> = missing.into_iter().cloned().collect();
        let fault = missing_shards(container, listing, &missing);
        report.faults.push(fault.why.map_or(fault.what.clone(), |why| format!("{}: {why}", fault.what)));
    }
    // Each on its own: a damaged one hides no other.
    let mut catalogs = Vec::new();
    for name in &present {
        let part = Listing { names: vec![(*name).clone()], index: None, manifest: None, authority: "the list" };
        match Catalog::assemble(container, part) {
            Ok(catalog) => catalogs.push(catalog),
            Err(StoreError::Faulty { faults, .. }) => report.faults.extend(faults.into_iter().map(|fault| fault.what)),
            Err(other) => return Err(other.into()),
        }
    }
    for shard in listing.manifest.iter().flat_map(|manifest| &manifest.shards) {
        let found = catalogs.iter().flat_map(Catalog::files).find(|file| file.path.ends_with(&shard.file));
        if let Some(found) = found.filter(|found| found.bytes != shard.bytes) {
            let (got, listed) = (grouped(found.bytes), grouped(shard.bytes));
            report.faults.push(format!("{} is {got} bytes; colibri.json says {listed}", shown(&shard.file)));
        }
    }
    let in_one = |name: &str| catalogs.iter().any(|catalog| catalog.get(name).is_some());
    let held = |name: &str| holds(name, &in_one);
    match &listing.manifest {
        Some(manifest) if !manifest.multi_token_prediction => blueprint.drop_prediction(),
        _ => {}
    }
    if catalogs.len() == listing.names.len() {
        blueprint.drop_absent(&held);
    }
    name_missing(&blueprint, &held, &mut report);
    Ok(report)
}

fn name_missing(blueprint: &Blueprint, held: &dyn Fn(&str) -> bool, report: &mut VerifyReport) {
    let mut layers = BTreeSet::new();
    for slot in blueprint.slots().into_iter().filter(|slot| !held(&slot.name)) {
        layers.extend(slot.layer);
        report.missing_tensors.push(slot.name);
    }
    report.missing_layers = layers.into_iter().collect();
    if report.missing_tensors.is_empty() {
        return;
    }
    let names: Vec<String> = report.missing_tensors.iter().take(NAMES_SHOWN).map(|name| shown(name)).collect();
    let more = report.missing_tensors.len().saturating_sub(NAMES_SHOWN);
    let rest = if more > 0 { format!(" and {} more", grouped(more as u64)) } else { String::new() };
    let layers: Vec<String> = report.missing_layers.iter().map(usize::to_string).collect();
    let of_layers = if layers.is_empty() { String::new() } else { format!(", of layers {}", layers.join(", ")) };
    let count = grouped(report.missing_tensors.len() as u64);
    report.faults.push(format!("{count} tensors are missing{of_layers}: {}{rest}", names.join(", ")));
}

/// Refuses a container that lacks anything, by its headers.
pub(super) fn check_complete(container: &Path) -> Result<(), EngineError> {
    let report = structure(container, &listing::list(container)?)?;
    let Some(first) = report.faults.first() else { return Ok(()) };
    let fault = Fault::file(FaultKind::Missing, container, first.clone()).fix("remove the folder and convert again");
    Err(StoreError::fault(container, fault).into())
}
