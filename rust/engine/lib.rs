//! The model as data, and its execution: families, blocks, cache, sessions, sampling, conversion.
//!
//! A family turns `config.json` into a [`spec::ModelSpec`]; [`weights`] binds every tensor of it to a place in the
//! container; [`forward`] runs positions through layers made of [`block`]s; a [`Model`] is shared and immutable, a
//! [`Session`] is one text in progress. The arithmetic belongs to `colibri_kernels`, the bytes to `colibri_store`.
//!
//! What must hold: placement of experts, number of threads, chunking and instruction set decide speed and never a bit
//! of the result.
#![forbid(unsafe_code)]

pub mod block;
pub mod blueprint;
pub mod config;
pub mod convert;
pub mod doctor;
pub mod error;
pub mod experts;
pub mod family;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod forward;
pub mod inspect;
pub mod kv;
pub mod model;
pub mod names;
pub mod observe;
pub mod plan;
pub mod sample;
pub mod scratch;
pub mod session;
pub mod spec;
pub mod token_grammar;
pub mod weights;

pub use blueprint::Blueprint;
pub use config::{Control, EngineConfig, NoWatch, Phase, Watch};
pub use error::EngineError;
pub use model::{Model, ModelInfo};
pub use sample::{Sampled, SamplingParams};
pub use session::Session;
pub use token_grammar::{TokenGrammar, Vocabulary};
