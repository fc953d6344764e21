//! RMS norm of rows (arXiv 1910.07467).

use super::Compute;

/// Cost of a normalised element in multiply-adds, for the choice between one thread and many.
const COST: usize = 4;

/// Elements of a task.
const CHUNK: usize = 1 << 14;

/// `out = x / rms(x) * weight` for each row of `x` (`[rows, weight.len()]`).
pub fn rms(compute: &Compute<'_>, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let cols = weight.len().max(1);
    let row = |index: usize, out: &mut [f32]| {
        compute.kernels.rmsnorm(&x[index * cols..][..cols], weight, epsilon, out);
    };
    if compute.worth_sharing(x.len() * COST) && x.len() > cols {
        let rows = (CHUNK / cols).max(1);
        compute.pool.for_each_chunk(out, rows * cols, |chunk, part| {
            part.chunks_mut(cols).enumerate().for_each(|(offset, out)| row(chunk * rows + offset, out));
        });
    } else {
        out.chunks_mut(cols).enumerate().for_each(|(index, out)| row(index, out));
    }
}
