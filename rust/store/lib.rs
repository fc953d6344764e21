//! Where a model's bytes live and how they arrive in memory.
//!
//! This crate owns containers (headers, validation, writing), sources (pread, direct, mapped), resident weights, the
//! expert store, the memory budget and every question put to the machine. It knows nothing of attention or tokens.
//!
//! Every file read here is untrusted: headers are validated once, with checked arithmetic, when a [`Catalog`] opens;
//! behind that door a [`Span`] is a fact and is not checked again except against the length of the opened file.

pub mod budget;
pub mod catalog;
pub mod container;
pub mod digest;
pub mod durable;
pub mod error;
pub mod expert;
pub mod machine;
pub mod memory;
pub mod probe;
pub mod resident;
pub mod scales;
pub mod source;

pub use budget::{BudgetRequest, ContextRequest, IoRequest, ModelSizes, Plan, RamLimit, plan};
pub use catalog::{Catalog, GroupSize, ScaleType, WeightLocation};
pub use container::{Dtype, FileId, FileInfo, TensorInfo};
pub use error::{Fault, FaultKind, StoreError};
pub use machine::{MachineFacts, probe};
pub use resident::{StoredMatrix, load_f32, load_resident};
pub use source::{Bytes, ReadJob, SOURCES, Source, SourceKind, Span, open_source};
