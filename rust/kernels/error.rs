//! The one error type of the kernels crate.
//!
//! Owns: what can be wrong at the doors ([`crate::matrix::MatrixView::new`], [`crate::format::encode`],
//! [`crate::buffer::AlignedBuffer::new`]). Behind those doors nothing fails.

use thiserror::Error;

/// A refused matrix, weight or allocation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KernelError {
    /// The codes or the scales do not have the number of elements that format and shape demand.
    #[error("a {format} matrix of {rows} x {cols} needs {expected} {part}, got {got}")]
    Size {
        /// Command-line name of the format.
        format: String,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// What was counted, with its unit: "code bytes", "scales" or "weights".
        part: &'static str,
        /// The number that format and shape demand.
        expected: usize,
        /// The number that was given.
        got: usize,
    },
    /// Format or shape lie outside of what the kernels compute exactly.
    #[error("a {format} matrix of {rows} x {cols} is not supported: {reason}")]
    Shape {
        /// Command-line name of the format.
        format: String,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// The limit that was passed.
        reason: &'static str,
    },
    /// A weight to be encoded is NaN or infinite.
    #[error("the weight at row {row}, column {col} is not a finite number")]
    NonFiniteWeight {
        /// Row of the first such weight.
        row: usize,
        /// Its column.
        col: usize,
    },
    /// The system refused an allocation.
    #[error("the system refused {bytes} bytes of memory")]
    OutOfMemory {
        /// Size of the refused allocation.
        bytes: usize,
    },
}
