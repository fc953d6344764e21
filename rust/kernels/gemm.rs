//! Matrix products over a worker pool.
//!
//! Owns: the cut into chunks of whole weight rows, which the pool hands out one by one, and the decision
//! when a section is too small to be worth a hand-off.
//! Must hold: a chunk is a contiguous range of rows (one linear stream of weights per thread) and every
//! output is computed by one call on one thread, so results do not depend on the number of threads.
//! Refuses: shapes that do not agree, by a panic that names them.

use crate::act::Activations;
use crate::dispatch::{KernelSet, SharedOutput, check_product};
use crate::matrix::MatrixView;
use crate::pool::WorkerPool;

/// Rows of a chunk: several tiles, and short enough that a slow core cannot hold up a section for long.
const CHUNK_ROWS: usize = 64;
/// Rows of a chunk of a large matrix.
const LARGE_CHUNK_ROWS: usize = 128;
/// Matrices from this many rows on are cut into large chunks.
const LARGE_ROWS: usize = 4096;

/// One product of a section: `out[s, r] = weights[r] . activations[s]`.
pub struct MatmulJob<'a> {
    /// The weights `[rows, cols]`.
    pub weights: MatrixView<'a>,
    /// The activations `[s, cols]`.
    pub activations: &'a Activations,
    /// The output `[s, rows]`.
    pub out: &'a mut [f32],
}

/// `out[s, r] = sum_c weights[r, c] * x[s, c]`; `out` is `[x.rows(), weights.rows()]`.
///
/// # Panics
/// As [`KernelSet::matmul`].
pub fn matmul(pool: &WorkerPool, kernels: &KernelSet, weights: &MatrixView<'_>, x: &Activations, out: &mut [f32]) {
    matmul_all(pool, kernels, &mut [MatmulJob { weights: *weights, activations: x, out }]);
}

/// Several products in one section of the pool.
///
/// # Panics
/// As [`KernelSet::matmul`], for any of the jobs.
pub fn matmul_all(pool: &WorkerPool, kernels: &KernelSet, jobs: &mut [MatmulJob<'_>]) {
    let work = jobs.iter().fold(0usize, |sum, job| {
        let macs = job.weights.rows() * job.weights.cols() * job.activations.rows();
        sum.saturating_add(macs)
    });
    if !pool.shares(work) {
        for job in jobs {
            kernels.matmul(&job.weights, job.activations, job.out);
        }
        return;
    }
    let mut parts = Vec::with_capacity(jobs.len());
    let mut chunks = 0;
    for job in jobs {
        let (rows, s) = (job.weights.rows(), job.activations.rows());
        check_product(&job.weights, job.activations, job.out.len());
        let chunk = if rows < LARGE_ROWS { CHUNK_ROWS } else { LARGE_CHUNK_ROWS };
        let out = SharedOutput::new(job.out, s, rows, chunk);
        let first = chunks;
        chunks += out.windows();
        parts.push((first, &job.weights, job.activations, out));
    }
    pool.run(chunks, &|task, _worker| {
        // The last part that starts at or before this chunk.
        let at = parts.partition_point(|(first, ..)| *first <= task) - 1;
        let (first, weights, x, out) = &parts[at];
        if let Some((rows, mut window)) = out.take(task - first) {
            kernels.matmul_into(&weights.row_range(rows), x, &mut window);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::Numerics;
    use crate::format::FORMATS;
    use crate::test_data::{Fill, Matrix, Random};

    #[test]
    fn threads_and_sections_do_not_change_a_bit() {
        let mut random = Random::new(7);
        let (rows, cols) = (333, 450);
        for spec in FORMATS {
            let format = spec.example;
            let matrix = Matrix::new(&mut random, format, rows, cols, Fill::Random);
            let view = matrix.view();
            for numerics in Numerics::ALL {
                let kernels = KernelSet::best();
                let mut x = Activations::default();
                let inputs = random.values(5 * cols);
                x.quantise(&kernels, numerics.precision(format), 5, cols, &inputs).unwrap();
                let mut expected = vec![0f32; 5 * rows];
                kernels.matmul(&view, &x, &mut expected);
                for threads in [1, 2, 3, 7] {
                    let pool = WorkerPool::new(threads).with_serial_work(0);
                    let (mut a, mut b) = (vec![0f32; 5 * rows], vec![0f32; 5 * 100]);
                    let mut jobs = [
                        MatmulJob { weights: view, activations: &x, out: &mut a },
                        MatmulJob { weights: view.row_range(200..300), activations: &x, out: &mut b },
                    ];
                    matmul_all(&pool, &kernels, &mut jobs);
                    assert!(a.iter().zip(&expected).all(|(a, e)| a.to_bits() == e.to_bits()));
                    for s in 0..5 {
                        let part = &expected[s * rows + 200..s * rows + 300];
                        assert_eq!(&b[s * 100..(s + 1) * 100], part, "{format:?} {threads}");
                    }
                }
            }
        }
    }
}
