//! The numbers of colibri: weight formats, integer and floating-point kernels, worker threads.
//!
//! Owns: the quantised formats ([`format`]), the checked view of a weight matrix ([`matrix`]), quantised
//! activations ([`act`]), the kernel sets of each instruction set ([`dispatch`]), matrix products over a
//! pool ([`gemm`]), the element-wise operations ([`ops`]), aligned memory ([`buffer`]) and threads
//! ([`pool`]). It knows neither files nor models.
//!
//! Must hold: every kernel set returns the same bits as the scalar reference, whatever the batch shape or
//! the number of threads.
//!
//! Refuses: matrices whose byte counts contradict their shape, and non-finite numbers, by an error.

pub mod act;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "accelerated sets use more of the seam"))]
mod arch;
pub mod buffer;
pub mod dispatch;
pub mod error;
pub mod format;
pub mod gemm;
pub mod matrix;
pub mod ops;
pub mod pool;
#[cfg(test)]
mod test_data;

pub use act::{Activations, NonFinite, Numerics, Precision};
pub use buffer::AlignedBuffer;
pub use dispatch::KernelSet;
pub use error::KernelError;
pub use format::{
    Deviation, FORMATS, Format, FormatSpec, ScaleRule, decode_row, decode_rows, encode, encode_measured, transcode,
};
pub use gemm::{MatmulJob, matmul, matmul_all};
pub use matrix::MatrixView;
pub use ops::{RopeScaling, RopeSpec, RopeTable, argmax, top_k};
pub use pool::WorkerPool;
