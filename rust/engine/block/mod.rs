//! The blocks of a layer, one file each, and what they all compute with.
//!
//! Must hold in every block: a row's result depends on that row and the cache alone, never on which rows share its
//! chunk, on the number of threads or on the order in which experts arrive. Threads share work by disjoint outputs.

use std::path::Path;

use colibri_kernels::act::{NonFinite, Numerics};
use colibri_kernels::dispatch::KernelSet;
use colibri_kernels::format::Format;
use colibri_kernels::gemm;
use colibri_kernels::matrix::MatrixView;
use colibri_kernels::pool::WorkerPool;

use crate::error::EngineError;
use crate::names::{WeightNames, fill};
use crate::scratch::ActivationSet;

pub mod dense;
pub mod dsa;
pub mod embed;
pub mod head;
pub mod mla;
pub mod moe;
pub mod mtp;
pub mod norm;
pub mod rope;
pub mod router;

/// Cost of an f32 multiply-add of attention, norms and activations, in integer multiply-adds.
const FLOAT_COST: usize = 4;

/// What blocks compute with.
#[derive(Clone, Copy)]
pub struct Compute<'a> {
    /// The model's folder, for messages.
    pub model: &'a Path,
    /// Worker threads.
    pub pool: &'a WorkerPool,
    /// Kernels of this machine.
    pub kernels: &'a KernelSet,
    /// Activation precision.
    pub numerics: Numerics,
    /// Tensor names, for messages.
    pub names: &'static WeightNames,
}

/// A tensor of a layer, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The layer; none for tensors outside of layers.
    pub layer: Option<usize>,
    /// The routed expert; none for other tensors.
    pub expert: Option<usize>,
    /// Name template of the tensor.
    pub template: &'static str,
}

impl Place {
    /// A tensor of a layer that is no routed expert's.
    #[must_use]
    pub fn of_layer(layer: usize, template: &'static str) -> Self {
        Self { layer: Some(layer), expert: None, template }
    }
}

impl Compute<'_> {
    /// The error for a value that is not finite at `at`.
    #[must_use]
    pub fn non_finite(&self, at: Place) -> EngineError {
        let tensor = fill(at.template, at.layer.unwrap_or(0), at.expert);
        let place = at.layer.map_or_else(|| "the last step".to_owned(), |layer| format!("layer {layer}"));
        EngineError::NonFinite { place, tensor, model: Some(self.model.to_path_buf()) }
    }

    /// Prepares activations for a matrix of `format`.
    ///
    /// # Errors
    /// A value is not finite; the error names the tensor at `place`.
    pub fn prepare(
        &self,
        set: &mut ActivationSet,
        format: Format,
        shape: (usize, usize),
        x: &[f32],
        place: Place,
    ) -> Result<(), EngineError> {
        let precision = self.numerics.precision(format);
        set.prepare(self.kernels, precision, shape, x).map_err(|NonFinite { .. }| self.non_finite(place))
    }

    /// `out = x * weights^T` for prepared activations; `out` is `[rows, weights.rows]`.
    pub fn matmul(&self, weights: &MatrixView<'_>, set: &ActivationSet, out: &mut [f32]) {
        let activations = set.get(self.numerics.precision(weights.format()));
        gemm::matmul(self.pool, self.kernels, weights, activations, out);
    }

    /// One matrix of a parallel section.
    #[must_use]
    pub fn job<'a>(&self, weights: MatrixView<'a>, set: &'a ActivationSet, out: &'a mut [f32]) -> gemm::MatmulJob<'a> {
        let activations = set.get(self.numerics.precision(weights.format()));
        gemm::MatmulJob { weights, activations, out }
    }

    /// Whether work of this many f32 multiply-adds is worth a parallel section.
    #[must_use]
    pub fn worth_sharing(&self, work: usize) -> bool {
        self.pool.shares(work.saturating_mul(FLOAT_COST))
    }
}
