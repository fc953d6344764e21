//! The fuzz targets: one module for each kind of file or text that is not trusted, one line each in [`TARGETS`].
//!
//! A target takes any bytes, builds what they stand for, reads it as the program does and panics when a
//! promise is broken: a crash is a broken promise, a refusal is not. Bodies are shared by `cargo fuzz` and by the replay
//! of the committed corpus in the ordinary tests.

pub mod catalog;
mod check;
pub mod config;
pub mod grammar;
pub mod header;
mod input;
pub mod journal;
mod language;
pub mod manifest_and_index;
pub mod matcher;
pub mod schema;

/// Name and body of a target; the name is also that of its corpus folder and of its program.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("header", header::run),
    ("manifest_and_index", manifest_and_index::run),
    ("catalog", catalog::run),
    ("config", config::run),
    ("journal", journal::run),
    ("grammar", grammar::run),
    ("schema", schema::run),
    ("matcher", matcher::run),
];
