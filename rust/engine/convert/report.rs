//! What a conversion tells: its steps, what it did or would do, and how long that takes.

use std::path::PathBuf;

use colibri_store::container::manifest::FileDigest;
use serde::Serialize;

use crate::model::path_as_text;

/// Version of the fields of the reports.
pub(super) const REPORT_VERSION: u32 = 1;

/// One step of a conversion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepInfo {
    /// Weight files of the source that must be there.
    pub files: Vec<String>,
    /// Weight files of the source that no later step needs.
    pub releases: Vec<String>,
    /// Bytes of the files that the step writes, padding and headers included.
    pub bytes: u64,
    /// Everything of it is safe on the disk.
    pub done: bool,
}

/// What a conversion did, or, after a dry run, would do.
#[derive(Clone, Debug, Serialize)]
pub struct ConvertReport {
    /// Version of these fields: 1.
    pub version: u32,
    /// Where the container lies.
    #[serde(serialize_with = "path_as_text")]
    pub destination: PathBuf,
    /// Nothing was written.
    pub dry_run: bool,
    /// Codes, scales and floats were taken over as they were.
    pub repack: bool,
    /// Bytes of the checkpoint's weight files, as far as they are known.
    pub source_bytes: u64,
    /// Bytes of the container's weight files.
    pub bytes: u64,
    /// The classes of tensors that occur, in the order of the class table; one line for each format of a class.
    pub classes: Vec<ClassReport>,
    /// The weight files; digests are empty after a dry run.
    pub shards: Vec<FileDigest>,
    /// The files that travel along.
    pub files: Vec<FileDigest>,
    /// Tensors of the checkpoint that the model does not need.
    pub unused: Vec<String>,
    /// Whether the multi-token-prediction layer was taken over.
    pub multi_token_prediction: bool,
    /// Number of steps.
    pub steps: u64,
    /// The steps one by one; only after a dry run.
    pub schedule: Vec<StepInfo>,
    /// Shards that an earlier run had finished.
    pub resumed_shards: u64,
    /// Shards that were read back from the disk and compared with their digests, in this run or an earlier one.
    pub verified_shards: u64,
    /// The most weight files of the source that must be there at once.
    pub held: HeldFiles,
    /// Room at the destination; only after a dry run.
    pub space: Option<Space>,
    /// Time that the conversion would take; only after a dry run.
    pub estimate: Option<Estimate>,
    /// What the stages of this run did; `None` after a dry run.
    pub stages: Option<Stages>,
    /// What the user should know: files that were not there to travel along, remains that were cleared away.
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
    /// `sqrt(sum (stored - w)^2 / sum w^2)` over all weights of the class; `None` after a dry run.
    pub relative_error: Option<f64>,
}

impl ClassReport {
    pub(super) fn new(class: &'static str, format: String) -> Self {
        Self { class, format, tensors: 0, parameters: 0, bytes: 0, relative_error: None }
    }
}

/// Weight files of the source that must be there at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldFiles {
    /// The most files.
    pub files: u64,
    /// The most bytes; 0 when sizes are not known.
    pub bytes: u64,
}

/// Room at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// Bytes that the container takes.
    pub needed: u64,
    /// Bytes that are free; `None` where the system does not tell.
    pub free: Option<u64>,
    /// Whether they suffice.
    pub suffices: bool,
}

/// Time that a conversion would take.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// Seconds when everything overlaps.
    pub low: f64,
    /// Seconds when nothing does, on a slow disk.
    pub high: f64,
    /// What the numbers were made from.
    pub basis: String,
}

/// What the stages of a run did; they overlap, so their times do not add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stages {
    /// Bytes read from the source.
    pub read_bytes: u64,
    /// Seconds that reads took.
    pub read_seconds: f64,
    /// Weights encoded or taken over.
    pub weights: u64,
    /// Seconds of encoding.
    pub encode_seconds: f64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Seconds that writes took.
    pub write_seconds: f64,
    /// Seconds of flushing, naming and reading back.
    pub settle_seconds: f64,
}
