//! Gated MLPs: `down(silu(gate(x)) * up(x))`. Any number of them run together, so that the experts of a layer, or a
//! shared expert beside them, are two parallel sections and not many.

use colibri_kernels::gemm::{MatmulJob, matmul_all};
use colibri_kernels::matrix::MatrixView;

use super::{Compute, Place};
use crate::error::EngineError;
use crate::scratch::{ActivationSet, GatedScratch, sized};

/// Elements of one task of the activation section.
const CHUNK: usize = 1024;
/// Cost of an activation in multiply-adds.
const COST: usize = 16;

/// One gated MLP over its own rows.
pub struct GatedUnit<'a> {
    /// `[width, hidden]`.
    pub gate: MatrixView<'a>,
    /// `[width, hidden]`.
    pub up: MatrixView<'a>,
    /// `[hidden, width]`.
    pub down: MatrixView<'a>,
    /// Rows, prepared for the precisions of gate and up.
    pub input: &'a ActivationSet,
    /// How many.
    pub rows: usize,
    /// `[rows, hidden]`.
    pub out: &'a mut [f32],
    /// The down matrix, for messages.
    pub place: Place,
}

/// Runs all units.
///
/// # Errors
/// An inner activation is not finite.
pub fn gated(
    compute: &Compute<'_>,
    units: &mut [GatedUnit<'_>],
    scratch: &mut GatedScratch,
) -> Result<(), EngineError> {
    let total = units.iter().map(|unit| unit.rows * unit.gate.rows()).sum();
    let gate = sized(&mut scratch.gate, total);
    let up = sized(&mut scratch.up, total);
    let inner = sized(&mut scratch.inner, total);
    let mut jobs = Vec::with_capacity(2 * units.len());
    let (mut gate_rest, mut up_rest) = (&mut *gate, &mut *up);
    for unit in units.iter() {
        let len = unit.rows * unit.gate.rows();
        let (gate_out, rest) = gate_rest.split_at_mut(len);
        gate_rest = rest;
        let (up_out, rest) = up_rest.split_at_mut(len);
        up_rest = rest;
        jobs.push(compute.job(unit.gate, unit.input, gate_out));
        jobs.push(compute.job(unit.up, unit.input, up_out));
    }
    matmul_all(compute.pool, compute.kernels, &mut jobs);
    drop(jobs);
    activate(compute, gate, up, inner);
    if scratch.sets.len() < units.len() {
        scratch.sets.resize_with(units.len(), ActivationSet::default);
    }
    let mut rest = &*inner;
    for (unit, set) in units.iter().zip(&mut scratch.sets) {
        let width = unit.gate.rows();
        let (own, others) = rest.split_at(unit.rows * width);
        rest = others;
        set.clear();
        compute.prepare(set, unit.down.format(), (unit.rows, width), own, unit.place)?;
    }
    let mut jobs: Vec<MatmulJob<'_>> = Vec::with_capacity(units.len());
    for (unit, set) in units.iter_mut().zip(&scratch.sets) {
        jobs.push(compute.job(unit.down, set, unit.out));
    }
    matmul_all(compute.pool, compute.kernels, &mut jobs);
    Ok(())
}

/// `inner = silu(gate) * up`.
fn activate(compute: &Compute<'_>, gate: &[f32], up: &[f32], inner: &mut [f32]) {
    if compute.worth_sharing(inner.len() * COST) {
        compute.pool.for_each_chunk(inner, CHUNK, |chunk, out| {
            let start = chunk * CHUNK;
            compute.kernels.silu_mul(&gate[start..][..out.len()], &up[start..][..out.len()], out);
        });
    } else {
        compute.kernels.silu_mul(gate, up, inner);
    }
}
