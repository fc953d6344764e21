//! Bytes in, masks and forced spans out. No model, no files, no unsafe code.
//!
//! This crate owns what structured output needs and the engine does not know: the [`Constraint`] that a
//! grammar presents to the token loop, and the [`TokenTrie`] through which a byte-level constraint is turned
//! into a mask over a vocabulary. It depends on nothing of ours, so that it can be tested and fuzzed alone.
#![forbid(unsafe_code)]

mod analysis;
mod builder;
mod bytes;
mod constraint;
mod error;
pub mod gbnf;
pub mod limits;
mod matcher;
mod plain;
mod program;
pub mod regex;
pub mod schema;
mod text;
pub mod tools;
mod trie;
mod utf8;
mod words;

pub use builder::{Builder, NodeId};
pub use bytes::ByteSet;
pub use constraint::{Constraint, Mark};
pub use error::{Fault, FaultCode, GrammarError, Place};
pub use matcher::{MaskCache, Matcher};
pub use program::{Program, RuleId, Special, SpecialId};
pub use trie::{TokenMask, TokenTrie, TrieError};
