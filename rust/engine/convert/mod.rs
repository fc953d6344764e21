//! Conversion: a Hugging Face checkpoint becomes a colibri container.
//!
//! Owns the options, the order of work and the report. [`source`] reads and classifies the checkpoint, [`plan`] lays out
//! the shards, [`encode`] quantises one block of rows at a time. Must hold: memory stays bounded by a few blocks whatever
//! the model's size; the container's bytes depend on checkpoint and options alone, not on the number of workers; the
//! destination appears complete or not at all.
//!
//! Refuses, by name: a checkpoint with FP8 weights or of more than 8 GB, a checkpoint that is a colibri container
//! already, a tensor that the model's family does not know, and a destination that holds anything.

mod encode;
mod plan;
mod source;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Instant;

use colibri_kernels::format::{Format, ScaleRule};
use colibri_kernels::pool::WorkerPool;
use colibri_store::container::manifest::{
    ClassFormat, FORMAT, FORMAT_VERSION, FileDigest, MANIFEST_NAME, Manifest, SourceModel,
};
use colibri_store::durable::{DurableDirectory, check_vacant, copy_file, require_space, write_file};
use colibri_store::memory;
use serde::Serialize;

use crate::config::Watch;
use crate::error::EngineError;
use crate::model::path_as_text;

use encode::Encoder;
use plan::ContainerPlan;
use source::Checkpoint;

/// Formats that a converted class can have.
pub const TARGET_FORMATS: &[Format] = &[Format::Q4G64, Format::Int4Row, Format::Int8Row, Format::F32];

/// How a checkpoint is converted.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// Format of routed experts.
    pub experts: Format,
    /// Format of attention, dense feed-forward parts and shared experts.
    pub dense: Format,
    /// Format of the embedding and the head.
    pub embeddings: Format,
    /// Format of the matrices of the multi-token-prediction layer, its experts included.
    pub mtp: Format,
    /// How int4 scales are chosen.
    pub scale_rule: ScaleRule,
    /// Whether the multi-token-prediction layer is taken over.
    pub keep_mtp: bool,
    /// Read and lay out only; write nothing.
    pub dry_run: bool,
    /// Threads that quantise; 0 takes all that the process may use.
    pub workers: usize,
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
            dry_run: false,
            workers: 0,
        }
    }
}

/// What a conversion did, or, after a dry run, would do.
#[derive(Clone, Debug, Serialize)]
pub struct ConvertReport {
    /// Where the container lies.
    #[serde(serialize_with = "path_as_text")]
    pub destination: PathBuf,
    /// Nothing was written.
    pub dry_run: bool,
    /// Bytes of the checkpoint's weight files.
    pub source_bytes: u64,
    /// Bytes of the container's weight files.
    pub bytes: u64,
    /// The classes of tensors that occur, in the order of the class table.
    pub classes: Vec<ClassReport>,
    /// The weight files; digests are empty after a dry run.
    pub shards: Vec<FileDigest>,
    /// The files that travel along.
    pub files: Vec<FileDigest>,
    /// Tensors of the checkpoint that the model does not need.
    pub unused: Vec<String>,
    /// Whether the multi-token-prediction layer was taken over.
    pub multi_token_prediction: bool,
    /// What the user should know, such as that the remains of a killed run were cleared away.
    pub notes: Vec<String>,
    /// Time taken, in seconds.
    pub seconds: f64,
}

/// What became of one class of tensors.
#[derive(Clone, Debug, Serialize)]
pub struct ClassReport {
    /// Name of the class.
    pub class: &'static str,
    /// Name of the storage format.
    pub format: String,
    /// Number of tensors.
    pub tensors: u64,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of codes and scales, without padding.
    pub bytes: u64,
    /// `sqrt(sum (stored - w)^2 / sum w^2)` over all weights; `None` after a dry run.
    pub relative_error: Option<f64>,
}

/// Converts the checkpoint in the folder `source` into a container in the new folder `destination`.
///
/// # Errors
/// See the module; further: a checkpoint that is missing, damaged or incomplete, a weight that is not finite, a full
/// disk, and [`EngineError::Cancelled`] when `watch` says stop. After an error nothing is left of the destination.
pub fn convert(
    source: &Path,
    destination: &Path,
    options: &ConvertOptions,
    watch: &dyn Watch,
) -> Result<ConvertReport, EngineError> {
    let started = Instant::now();
    check_options(options)?;
    check_vacant(destination)?;
    memory::trial(0)?;
    let checkpoint = Checkpoint::open(source, options.keep_mtp)?;
    let plan = ContainerPlan::new(&checkpoint, options)?;
    let mut report = ConvertReport {
        destination: destination.to_path_buf(),
        dry_run: options.dry_run,
        source_bytes: checkpoint.bytes(),
        bytes: 0,
        classes: plan.classes(options),
        shards: plan.files()?,
        files: Vec::new(),
        unused: checkpoint.unused.clone(),
        multi_token_prediction: checkpoint.spec.mtp.is_some(),
        notes: Vec::new(),
        seconds: 0.0,
    };
    report.bytes = report.shards.iter().map(|shard| shard.bytes).sum();
    if !options.dry_run {
        report.destination = write(&checkpoint, plan, destination, options, watch, &mut report)?;
    }
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
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

/// Writes shards, companions and, last, the manifest; fills in the report.
fn write(
    checkpoint: &Checkpoint,
    plan: ContainerPlan,
    destination: &Path,
    options: &ConvertOptions,
    watch: &dyn Watch,
    report: &mut ConvertReport,
) -> Result<PathBuf, EngineError> {
    let building = DurableDirectory::create(destination)?;
    report.notes.extend(building.note());
    require_space(building.path(), report.bytes)?;
    let workers = match options.workers {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        count => count,
    };
    let pool = WorkerPool::new(workers);
    let mut encoder = Encoder::new(checkpoint, &pool, options.scale_rule, watch)?;
    report.shards = plan.write(checkpoint, building.path(), &mut encoder)?;
    for class in &mut report.classes {
        class.relative_error = Some(encoder.relative_error(class.class));
    }
    for (name, path) in checkpoint.companions()? {
        let (bytes, sha256) = copy_file(&path, &building.path().join(name))?;
        report.files.push(FileDigest { file: name.to_owned(), bytes, sha256 });
    }
    let manifest = Manifest {
        format: FORMAT.to_owned(),
        format_version: FORMAT_VERSION,
        writer: concat!("colibri ", env!("CARGO_PKG_VERSION")).to_owned(),
        source: SourceModel {
            name: checkpoint.name(),
            model_type: checkpoint.spec.family.to_owned(),
            bytes: checkpoint.bytes(),
        },
        quantisation: report
            .classes
            .iter()
            .map(|class| ClassFormat { class: class.class.to_owned(), format: class.format.clone() })
            .collect(),
        scale_rule: options.scale_rule.name().to_owned(),
        multi_token_prediction: report.multi_token_prediction,
        shards: report.shards.clone(),
        files: report.files.clone(),
    };
    write_file(&building.path().join(MANIFEST_NAME), &manifest.to_json()?)?;
    Ok(building.commit()?)
}
