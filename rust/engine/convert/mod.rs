//! Conversion: a Hugging Face checkpoint of any size becomes a colibri container, or a public container becomes one of ours
//! with the same codes and scales.
//!
//! Owns the options and the order of work. [`source`] lists and classifies the checkpoint, [`classes`] gives each tensor a
//! format, [`layout`] cuts the container into shards and the work into steps, [`pipeline`] runs a step ([`read`],
//! [`encode`], [`write`]), [`journal`] remembers what is finished, [`conversion`] leads from the first step to the name of
//! the container, [`verify`] checks one, [`estimate`] says what it would take.
//!
//! Must hold: memory is bounded whatever the size of the model, a tensor or a shard (see [`pipeline`]); the container's
//! bytes depend on checkpoint and options alone, never on workers, timing or interruptions; the destination appears
//! complete or not at all; a run that was stopped at any moment is taken up where the last finished shard ended.
//!
//! Refuses, by name: a tensor that the model's family does not know or that is missing, weights that are quantised already
//! (unless they are taken over), a weight or scale that is not finite, a checkpoint that is a colibri container already, a
//! destination that holds anything, and an unfinished conversion with other parameters or from another source.

mod classes;
mod companions;
mod conversion;
mod encode;
mod estimate;
mod journal;
mod layout;
mod pipeline;
mod read;
mod remains;
mod report;
mod source;
#[cfg(test)]
mod tests;
mod verify;
mod write;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use colibri_kernels::format::{Format, ScaleRule};

use crate::config::Watch;
use crate::error::EngineError;
use crate::names::TensorSlot;

pub(crate) use classes::target_of;
pub use conversion::Conversion;
pub use report::{ClassReport, ConvertReport, Estimate, HeldFiles, Space, Stages, StepInfo};
pub use verify::{VerifyReport, verify};

/// Formats that a converted class can have.
pub const TARGET_FORMATS: &[Format] = &[Format::Q4G64, Format::Int4Row, Format::Int3G64, Format::Int8Row, Format::F32];

/// How a checkpoint is converted.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// Format of routed experts.
    pub experts: Format,
    /// Format of attention, dense feed-forward parts and shared experts.
    pub dense: Format,
    /// Format of the embedding and the head. Matrices of indexers are int8 whatever the options say.
    pub embeddings: Format,
    /// Format of the matrices of the multi-token-prediction layer, its experts included.
    pub mtp: Format,
    /// How int4 and int3 scales are chosen.
    pub scale_rule: ScaleRule,
    /// Whether the multi-token-prediction layer is taken over.
    pub keep_mtp: bool,
    /// Take over codes, scales and floats as they are, whatever the formats above say.
    pub repack: bool,
    /// Read every finished shard back from the disk and compare its digest before it counts.
    pub verify: bool,
    /// Remove a weight file of the source once no later step needs it and what came of it is safe.
    pub delete_source: bool,
    /// Threads that quantise; 0 takes the physical cores that the process may use, as running a model does.
    pub workers: usize,
    /// What the manifest names as the source; `None` takes the name of the source's folder.
    pub source_name: Option<String>,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            experts: Format::Q4G64,
            dense: Format::Q4G64,
            embeddings: Format::Int8Row,
            mtp: Format::Int8Row,
            scale_rule: ScaleRule::Search,
            keep_mtp: true,
            repack: false,
            verify: false,
            delete_source: false,
            workers: 0,
            source_name: None,
        }
    }
}

/// Converts the checkpoint in the folder `source` into a container in the new folder `destination`, or goes on where an
/// earlier run was stopped.
///
/// # Errors
/// See the module; further: a checkpoint that is missing, damaged or incomplete, a full disk, and
/// [`EngineError::Cancelled`] when `watch` says stop. After an error nothing is left of the destination, unless a shard was
/// finished; then the error says how to go on.
pub fn convert(
    source: &Path,
    destination: &Path,
    options: &ConvertOptions,
    watch: &dyn Watch,
) -> Result<ConvertReport, EngineError> {
    let mut conversion = Conversion::open(source, destination, options)?;
    conversion.require_sources()?;
    for index in 0..conversion.steps().len() {
        conversion.run_step(index, watch)?;
    }
    conversion.finish(watch)
}

/// Bytes of the container that conversion with these options writes of weights; `places` are tensors with the names of
/// their files, and without any all lie in one file. Weights are encoded: what a repack takes over depends on the source.
///
/// # Errors
/// Sizes that no container can have.
pub(crate) fn container_bytes(
    slots: &[TensorSlot],
    places: &[(&str, &str)],
    options: &ConvertOptions,
) -> Result<u64, EngineError> {
    let layout = layout::Layout::of(slots, &source::SourceRecord::new(places), options)?;
    Ok(layout.files()?.iter().fold(0, |sum, file| sum.saturating_add(file.bytes)))
}

/// The most bytes of weight files that lie there at a time when each is fetched with its step, those of the next step
/// while one is encoded, and each is removed when no later step needs it; `sizes` are files with their bytes.
///
/// # Errors
/// Sizes that no container can have.
pub(crate) fn held_bytes(
    slots: &[TensorSlot],
    places: &[(&str, &str)],
    sizes: &HashMap<&str, u64>,
    options: &ConvertOptions,
) -> Result<u64, EngineError> {
    let record = source::SourceRecord::new(places);
    let layout = layout::Layout::of(slots, &record, options)?;
    let size = |file: &u32| record.files.get(*file as usize).and_then(|name| sizes.get(name.as_str())).copied();
    let mut here: BTreeSet<u32> = BTreeSet::new();
    let mut most = 0u64;
    for index in 0..layout.steps.len() {
        here.extend(layout.steps.iter().skip(index).take(2).flat_map(|step| step.files.iter().copied()));
        most = most.max(here.iter().filter_map(size).fold(0, u64::saturating_add));
        for file in layout.releases(index) {
            here.remove(&file);
        }
    }
    Ok(most)
}

/// Threads that quantise.
fn workers(options: &ConvertOptions) -> usize {
    match options.workers {
        0 => colibri_store::machine::probe().cores_allowed,
        count => count,
    }
}

/// Every class must have a format that conversion writes.
fn check_options(options: &ConvertOptions) -> Result<(), EngineError> {
    let chosen = [
        ("experts", options.experts),
        ("dense", options.dense),
        ("embeddings", options.embeddings),
        ("mtp", options.mtp),
    ];
    for (name, format) in chosen {
        if !TARGET_FORMATS.contains(&format) {
            let names: Vec<String> = TARGET_FORMATS.iter().map(|format| format.name()).collect();
            let expected = format!("one of {}", names.join(", "));
            return Err(EngineError::InvalidValue { name, expected, got: format.name() });
        }
    }
    Ok(())
}
