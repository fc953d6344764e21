//! The checkpoint to be converted: which weight file holds which tensor, and what each tensor is.
//!
//! Everything is known from `config.json` and the index, or, without an index and for weights that are taken over, from the
//! headers of the weight files; the files themselves may come later, a few at a time. The header of a file that is not there
//! yet may lie in its place as `NAME.safetensors.header` (see `colibri_store::container::listing::STUB_SUFFIX`). What is
//! there is opened and checked; a step checks what it needs.
//! Refuses, by name: a tensor that the model's family does not know, one that is missing, weights that are quantised
//! already (unless they are to be taken over), a container of ours.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use colibri_kernels::format::Format;
use colibri_store::catalog::{BLOCK_SCALE_SUFFIX, Catalog, GroupSize, MERGED, SCALE_SUFFIX, WeightLocation};
use colibri_store::container::listing::{self, Listing, missing_shards, stub_of};
use colibri_store::container::{PAD_PREFIX, resolve};
use colibri_store::error::{Fault, FaultKind, StoreError, file_name, grouped, shown};
use serde::{Deserialize, Serialize};

use super::ConvertOptions;
use crate::blueprint::Blueprint;
use crate::error::EngineError;
use crate::names::{Shape, TensorSlot};

/// How many tensor names a message spells out.
const NAMES_SHOWN: usize = 6;

/// Where the tensors of a checkpoint lie: what a conversion is laid out from. It is written down when the conversion
/// begins, because weight files may be gone when it is taken up again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceRecord {
    /// Names of the weight files, in natural order.
    pub files: Vec<String>,
    /// Tensor and index of its file, sorted by name.
    pub tensors: Vec<(String, u32)>,
    /// Stored format of each weight, in the order of use; empty when weights are encoded anew.
    pub formats: Vec<String>,
    /// Columns of an int4 group, where weights are taken over.
    pub group: Option<u32>,
}

impl SourceRecord {
    /// Index of the file that holds a tensor.
    pub(super) fn file_of(&self, tensor: &str) -> Option<u32> {
        let found = self.tensors.binary_search_by(|(name, _)| name.as_str().cmp(tensor)).ok()?;
        self.tensors.get(found).map(|(_, file)| *file)
    }

    /// Indices of the files that hold a weight and its scales.
    pub(super) fn files_of(&self, slot: &TensorSlot) -> Vec<u32> {
        let mut files: Vec<u32> = source_names(&slot.name).iter().filter_map(|name| self.file_of(name)).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The record of tensors whose files have these names.
    pub(super) fn new(places: &[(&str, &str)]) -> Self {
        let mut files: Vec<String> = places.iter().map(|(_, file)| (*file).to_owned()).collect();
        files.sort_by(|left, right| natural_order(left, right));
        files.dedup();
        let numbers: HashMap<&str, u32> = (0u32..).zip(&files).map(|(number, file)| (file.as_str(), number)).collect();
        let number = |file: &str| numbers.get(file).copied().unwrap_or(0);
        let mut tensors: Vec<(String, u32)> =
            places.iter().map(|(tensor, file)| ((*tensor).to_owned(), number(file))).collect();
        tensors.sort_unstable();
        Self { files, tensors, ..Self::default() }
    }
}

/// A checkpoint that can be converted.
pub(super) struct Checkpoint {
    directory: PathBuf,
    /// `model_type` of the family.
    pub family: &'static str,
    /// Whether the multi-token-prediction layer is taken over.
    pub multi_token_prediction: bool,
    /// Every weight to be written, in the order of use.
    pub slots: Vec<TensorSlot>,
    /// Where its tensors lie.
    pub record: SourceRecord,
    /// Names of tensors that are left out because the model does not need them.
    pub unused: Vec<String>,
    /// All weight files, when all are there, or their headers.
    pub catalog: Option<Catalog>,
    blueprint: Blueprint,
    repack: bool,
}

impl Checkpoint {
    /// Opens and classifies the checkpoint in the folder `path`; `recorded` is what an earlier run wrote down of it. When
    /// all weight files are there, all of them are checked.
    pub(super) fn open(
        path: &Path,
        options: &ConvertOptions,
        recorded: Option<SourceRecord>,
    ) -> Result<Self, EngineError> {
        if path.is_file() {
            return Err(StoreError::NotFound {
                path: path.to_path_buf(),
                found: "it is a file; a checkpoint is a folder with config.json and the weights".to_owned(),
                fix: "give the folder that the file lies in".to_owned(),
            }
            .into());
        }
        let taken_up = recorded.is_some();
        let (mut record, catalog) = match recorded {
            Some(record) => {
                let catalog = open_if_whole(path, &record.files, None)?;
                (record, catalog)
            }
            None => survey(path)?,
        };
        let mut blueprint = Blueprint::read(path)?;
        let unused = classify(path, &record, &blueprint)?;
        refuse_quantised(path, &record, options)?;
        if !options.keep_mtp {
            blueprint.drop_prediction();
        }
        let held = |name: &str| holds(name, &|tensor| record.file_of(tensor).is_some());
        blueprint.drop_absent(&held);
        let slots = blueprint.slots();
        refuse_missing(path, &slots, &held, catalog.as_ref())?;
        if let Some(catalog) = &catalog {
            let group = match (taken_up, options.repack) {
                (true, _) => GroupSize::known(record.group),
                (false, true) => crate::weights::group_size(catalog, &slots)?,
                (false, false) => GroupSize::NONE,
            };
            let found = locate(catalog, &slots, group, options.repack)?;
            if options.repack && !taken_up {
                record.group = group.columns();
                record.formats = found.iter().map(|location| location.format.name()).collect();
            }
        } else if options.repack && !taken_up {
            // Without all headers the formats are not known; the index alone does not say them.
            return Err(missing_files(path, &record.files, &record.files));
        }
        let checkpoint = Self {
            directory: path.to_path_buf(),
            family: blueprint.family(),
            multi_token_prediction: blueprint.has_prediction(),
            slots,
            record,
            unused,
            catalog,
            blueprint,
            repack: options.repack,
        };
        checkpoint.catalog.as_ref().map_or(Ok(()), |catalog| checkpoint.check_unlisted(catalog))?;
        Ok(checkpoint)
    }

    /// The checkpoint that a finished container is: what is left of a conversion needs no other.
    pub(super) fn of_container(path: &Path) -> Result<Self, EngineError> {
        let listing = listing::list(path)?;
        let catalog = Catalog::open(path)?;
        let mut record = record_of(listing.names, &catalog);
        let mut blueprint = Blueprint::read(path)?;
        blueprint.drop_absent(&|name| catalog.get(name).is_some());
        let slots = blueprint.slots();
        let found = locate(&catalog, &slots, crate::weights::group_size(&catalog, &slots)?, true)?;
        record.formats = found.iter().map(|location| location.format.name()).collect();
        Ok(Self {
            directory: path.to_path_buf(),
            family: blueprint.family(),
            multi_token_prediction: blueprint.has_prediction(),
            slots,
            record,
            unused: Vec::new(),
            catalog: Some(catalog),
            blueprint,
            repack: true,
        })
    }

    /// Where it lies.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Name of the checkpoint's folder.
    pub(super) fn name(&self) -> String {
        let path = self.directory.canonicalize().unwrap_or_else(|_| self.directory.clone());
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// The weight files of these names, opened; the others need not be there.
    pub(super) fn open_part(&self, names: &[String]) -> Result<Catalog, EngineError> {
        open_part(&self.directory, names)
    }

    /// Where these weights lie in `catalog`; checks that their tensors are in the files that the record names.
    pub(super) fn locate(&self, catalog: &Catalog, slots: &[TensorSlot]) -> Result<Vec<WeightLocation>, EngineError> {
        for slot in slots {
            for name in source_names(&slot.name) {
                let Some(tensor) = catalog.get(&name) else { continue };
                let recorded = self.record.file_of(&name).and_then(|file| self.record.files.get(file as usize));
                let path = catalog.files().get(tensor.file.0 as usize).map(|file| &file.path);
                if let (Some(recorded), Some(path)) = (recorded, path)
                    && !path.ends_with(recorded)
                {
                    let expected = format!("it in {}, as the index says", shown(recorded));
                    let fault = Fault::tensor(FaultKind::Corrupt, path, &name, &expected, "it here");
                    let fault = fault.fix("fetch that file and the index again: they are of different versions");
                    return Err(StoreError::fault(&self.directory, fault).into());
                }
            }
        }
        locate(catalog, slots, GroupSize::known(self.record.group), self.repack)
    }

    /// Refuses tensors in `catalog` that neither the record nor the family knows: an index need not list all that a file
    /// holds.
    pub(super) fn check_unlisted(&self, catalog: &Catalog) -> Result<(), EngineError> {
        let unlisted: Vec<&str> = catalog
            .tensors()
            .map(|tensor| tensor.name.as_str())
            .filter(|name| self.record.file_of(name).is_none() && !self.blueprint.expected_extra(name))
            .collect();
        match unlisted.first() {
            None => Ok(()),
            Some(_) => Err(strange(&self.directory, self.family, &unlisted)),
        }
    }
}

/// The tensors from which a weight may come: itself, its scales, and the merged expert that it is a part of.
fn source_names(name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned(), format!("{name}{SCALE_SUFFIX}"), format!("{name}{BLOCK_SCALE_SUFFIX}")];
    if let Some(merged) = merged_name(name) {
        names.push(merged.replace(MERGED, SCALE_SUFFIX));
        names.push(merged);
    }
    names
}

/// Whether a weight is there, on its own or as a part of a merged expert, when `there` answers for tensors.
pub(super) fn holds(name: &str, there: &dyn Fn(&str) -> bool) -> bool {
    there(name) || merged_name(name).is_some_and(|merged| there(&merged))
}

/// The merged expert that a weight may be a part of.
fn merged_name(name: &str) -> Option<String> {
    let expert = name.rsplitn(3, '.').nth(2)?;
    expert.contains(".experts.").then(|| format!("{expert}{MERGED}"))
}

/// Lists the checkpoint for the first time.
fn survey(path: &Path) -> Result<(SourceRecord, Option<Catalog>), EngineError> {
    if !path.is_dir() {
        // Says what is wrong with the path.
        Catalog::open(path)?;
    }
    let listing = listing::list_planned(path)?;
    if listing.manifest.is_some() {
        let what = format!("{} is a colibri container already", path.display());
        let fault = Fault::file(FaultKind::Unsupported, path, what).fix("convert the checkpoint that it was made from");
        return Err(StoreError::fault(path, fault).into());
    }
    let mut files = listing.names.clone();
    files.sort_by(|left, right| natural_order(left, right));
    let Some(index) = listing.index else {
        let catalog = Catalog::assemble_planned(path, listing)?;
        catalog.check_scales()?;
        return Ok((record_of(files, &catalog), Some(catalog)));
    };
    let mut record = SourceRecord { files, ..SourceRecord::default() };
    let numbers: HashMap<&str, u32> =
        (0u32..).zip(&record.files).map(|(number, file)| (file.as_str(), number)).collect();
    for (tensor, file) in index.pairs().iter().filter(|(tensor, _)| !tensor.starts_with(PAD_PREFIX)) {
        record.tensors.push((tensor.clone(), numbers.get(file.as_str()).copied().unwrap_or(0)));
    }
    let catalog = open_if_whole(path, &record.files, Some(index))?;
    if let Some(catalog) = &catalog {
        catalog.check_scales()?;
    }
    Ok((record, catalog))
}

fn record_of(files: Vec<String>, catalog: &Catalog) -> SourceRecord {
    let number = |file: usize| {
        let path = catalog.files().get(file).map(|file| file.path.as_path());
        let found = files.iter().position(|name| path.is_some_and(|path| path.ends_with(name)));
        found.and_then(|found| u32::try_from(found).ok()).unwrap_or(0)
    };
    let numbers: Vec<u32> = (0..catalog.files().len()).map(number).collect();
    let place = |file: u32| numbers.get(file as usize).copied().unwrap_or(0);
    let tensors = catalog.tensors().map(|tensor| (tensor.name.clone(), place(tensor.file.0))).collect();
    SourceRecord { files, tensors, ..SourceRecord::default() }
}

/// Opens the weight files if all of them are there, or their headers.
fn open_if_whole(
    path: &Path,
    files: &[String],
    index: Option<colibri_store::container::json::StringMap>,
) -> Result<Option<Catalog>, EngineError> {
    let exists = |found: Result<Option<PathBuf>, _>| found.is_ok_and(|found| found.is_some_and(|path| path.exists()));
    let there = |name: &String| exists(resolve(path, name)) || exists(stub_of(path, name));
    if !files.iter().all(there) {
        return Ok(None);
    }
    let listing = Listing { names: files.to_vec(), index, manifest: None, authority: "the index" };
    Ok(Some(Catalog::assemble_planned(path, listing)?))
}

fn open_part(path: &Path, files: &[String]) -> Result<Catalog, EngineError> {
    let listing = Listing { names: files.to_vec(), index: None, manifest: None, authority: "the plan" };
    Ok(Catalog::assemble(path, listing)?)
}

/// The error for weight files that are not there.
pub(super) fn missing_files(path: &Path, all: &[String], missing: &[String]) -> EngineError {
    let listing = Listing { names: all.to_vec(), index: None, manifest: None, authority: "the plan" };
    StoreError::fault(path, missing_shards(path, &listing, missing)).into()
}

/// Numbers in names count as numbers: `part-2` comes before `part-10`.
fn natural_order(left: &str, right: &str) -> std::cmp::Ordering {
    /// Runs of digits without their leading zeros, and of other characters.
    fn runs(name: &str) -> impl Iterator<Item = (bool, usize, &str)> {
        let mut rest = name;
        std::iter::from_fn(move || {
            let digits = rest.chars().next()?.is_ascii_digit();
            let end = rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len());
            let (run, later) = rest.split_at(end);
            rest = later;
            let run = if digits { run.trim_start_matches('0') } else { run };
            Some((!digits, if digits { run.len() } else { 0 }, run))
        })
    }
    runs(left).cmp(runs(right)).then_with(|| left.cmp(right))
}

/// Tensors outside of the inventory: known copies are returned, anything else is an error, since leaving out a tensor that
/// matters would make a model that is silently wrong.
fn classify(path: &Path, record: &SourceRecord, blueprint: &Blueprint) -> Result<Vec<String>, EngineError> {
    let known: HashSet<String> = blueprint.slots().iter().flat_map(|slot| source_names(&slot.name)).collect();
    let (mut unused, mut unknown) = (Vec::new(), Vec::new());
    for (tensor, _) in record.tensors.iter().filter(|(tensor, _)| !known.contains(tensor)) {
        let weight = [SCALE_SUFFIX, BLOCK_SCALE_SUFFIX].iter().find_map(|suffix| tensor.strip_suffix(suffix));
        if blueprint.expected_extra(tensor) || weight.is_some_and(|weight| blueprint.expected_extra(weight)) {
            unused.push(tensor.clone());
        } else {
            unknown.push(tensor.as_str());
        }
    }
    if unknown.is_empty() { Ok(unused) } else { Err(strange(path, blueprint.family(), &unknown)) }
}

fn strange(path: &Path, family: &str, unknown: &[&str]) -> EngineError {
    let first = unknown.first().copied().unwrap_or_default();
    let names: Vec<String> = unknown.iter().take(NAMES_SHOWN).map(|name| shown(name)).collect();
    let more = unknown.len().saturating_sub(NAMES_SHOWN);
    let rest = if more > 0 { format!(" and {} more", grouped(more as u64)) } else { String::new() };
    let what = format!("{} is no tensor of a {family} model", shown(first));
    let mut fault = Fault::file(FaultKind::Unsupported, path, what)
        .why(format!("config.json describes a model without {}{rest}; none of it was guessed", names.join(", ")))
        .fix("check that config.json belongs to these weights");
    fault.tensor = Some(first.to_owned());
    StoreError::fault(path, fault).into()
}

/// Quantised weights are taken over or left alone, never quantised a second time.
fn refuse_quantised(path: &Path, record: &SourceRecord, options: &ConvertOptions) -> Result<(), EngineError> {
    let quantised = |name: &&(String, u32)| name.0.ends_with(SCALE_SUFFIX) || name.0.ends_with(MERGED);
    match record.tensors.iter().find(quantised).filter(|_| !options.repack) {
        None => Ok(()),
        Some((name, _)) => Err(quantised_already(path, name)),
    }
}

fn quantised_already(path: &Path, tensor: &str) -> EngineError {
    let what = format!("{} is quantised already", path.display());
    let mut fault = Fault::file(FaultKind::Unsupported, path, what)
        .why(format!("{} shows it; conversion starts from f32, bf16, f16 or FP8 weights", shown(tensor)))
        .fix("load it as it is, take its codes over with --repack, or convert the checkpoint that it was made from");
    fault.tensor = Some(tensor.to_owned());
    StoreError::fault(path, fault).into()
}

/// Every tensor of the inventory must be somewhere.
fn refuse_missing(
    path: &Path,
    slots: &[TensorSlot],
    holds: &dyn Fn(&str) -> bool,
    catalog: Option<&Catalog>,
) -> Result<(), EngineError> {
    let missing: Vec<&str> = slots.iter().map(|slot| slot.name.as_str()).filter(|name| !holds(name)).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let names: Vec<String> = missing.iter().take(NAMES_SHOWN).map(|name| shown(name)).collect();
    let more = missing.len().saturating_sub(NAMES_SHOWN);
    let rest = if more > 0 { format!(" and {} more", grouped(more as u64)) } else { String::new() };
    // All files may be here, and hold what their index leaves out.
    let file = catalog.and_then(|catalog| catalog.files().get(catalog.get(first)?.file.0 as usize));
    let mut fault = match file {
        Some(file) => {
            let file = file_name(&file.path);
            let what = format!("the index does not name the tensor {}, which lies in {file}", shown(first));
            Fault::file(FaultKind::Corrupt, &path.join(listing::INDEX_NAME), what)
                .why(format!("{} of {} tensors are not in it: {}{rest}", missing.len(), slots.len(), names.join(", ")))
                .fix("fetch the index again: it is not the one of these files")
        }
        None => {
            Fault::file(FaultKind::Missing, path, format!("tensor {} is in none of the weight files", shown(first)))
                .why(format!("{} of {} tensors are missing: {}{rest}", missing.len(), slots.len(), names.join(", ")))
                .fix("fetch the missing weight files, or check that this is the model it says it is")
        }
    };
    fault.tensor = Some((*first).to_owned());
    Err(StoreError::fault(path, fault).into())
}

/// Finds these weights; all that are missing or misshapen make one error.
fn locate(
    catalog: &Catalog,
    slots: &[TensorSlot],
    group: GroupSize,
    repack: bool,
) -> Result<Vec<WeightLocation>, EngineError> {
    let (mut found, mut errors) = (Vec::with_capacity(slots.len()), Vec::new());
    for slot in slots {
        let location = match slot.shape {
            Shape::Matrix { rows, cols } => catalog.weight(&slot.name, rows, cols, group),
            Shape::Vector { len } => catalog.vector(&slot.name, len),
        };
        match location {
            Ok(location) if location.format.quantised() && !repack => {
                return Err(quantised_already(catalog.directory(), &slot.name));
            }
            Ok(location) => found.push(location),
            Err(error) => errors.push(error),
        }
    }
    StoreError::merge(catalog.directory(), errors)?;
    Ok(found)
}

/// The stored format that was written down for a weight.
pub(super) fn recorded_format(record: &SourceRecord, index: usize) -> Option<Format> {
    record.formats.get(index).and_then(|name| Format::parse(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let mut names = ["b-1", "a-10", "a-9", "a-09", "a-2-of-10", "a", "a-2-of-9", "m-00010", "m-00009"];
        names.sort_by(|left, right| natural_order(left, right));
        assert_eq!(names, ["a", "a-2-of-9", "a-2-of-10", "a-09", "a-9", "a-10", "b-1", "m-00009", "m-00010"]);
    }

    #[test]
    fn a_weight_may_come_from_its_own_tensor_or_from_a_merged_expert() {
        let names = source_names("model.layers.3.mlp.experts.11.gate_proj.weight");
        assert!(names.contains(&"model.layers.3.mlp.experts.11.merged_weight".to_owned()));
        assert!(names.contains(&"model.layers.3.mlp.experts.11.gate_proj.weight_scale_inv".to_owned()));
        assert_eq!(source_names("model.norm.weight").len(), 3);
    }
}
