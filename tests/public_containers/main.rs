//! Public containers as they are downloaded: read by the format that their bytes mean, with the values of the weights
//! they hold, and refused with the names of what is missing.
//!
//! The published samples are not part of the project. Their digests and what the reference implementations answer with
//! them are (`tests/oracle/upstream_containers`), so the tests build the same files again from the checkpoints they were
//! made from, and the digests show that they are the same, byte for byte.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and shows what it counted")]

mod files;
mod generated;
mod incomplete;
mod rebuilt;

use std::path::{Path, PathBuf};

use colibri::engine::{EngineConfig, EngineError, Model, NoWatch};
use colibri::kernels::Numerics;

/// A folder of the oracle's fixtures.
pub(crate) fn oracle(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(name)
}

/// Opens a model in f32 arithmetic.
pub(crate) fn open(folder: &Path) -> Result<Model, EngineError> {
    let config = EngineConfig { numerics: Numerics::F32, ..EngineConfig::default() };
    Model::open(folder, &config, &NoWatch)
}

/// The slug of the error of opening, and all its text.
pub(crate) fn refusal(folder: &Path) -> (&'static str, String) {
    let error = open(folder).err().unwrap();
    (error.code(), format!("{error} | {} | {}", error.why().unwrap_or_default(), error.fix().unwrap_or_default()))
}
