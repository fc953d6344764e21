//! Mixture of experts. Each distinct expert of a chunk is taken from the store once and computes all rows that chose
//! it, in the order in which experts arrive. Outputs wait in a buffer and are summed for each row in ROUTER order, the
//! shared expert last, so that arrival order, cache size and chunking cannot change a bit.

use colibri_kernels::dispatch::KernelSet;
use colibri_kernels::matrix::MatrixView;
use colibri_store::error::StoreError;
use colibri_store::expert::{Acquire, ExpertKey, ExpertStore, Lease};

use super::dense::{GatedUnit, gated};
use super::{Compute, Place, router};
use crate::error::EngineError;
use crate::observe::Observer;
use crate::scratch::{ActivationSet, BATCH_ROWS, GatedScratch, MoeScratch, sized};
use crate::spec::MoeSpec;
use crate::weights::{GatedWeights, MoeWeights, layer_number};

/// Cost of a summed element in multiply-adds.
const COST: usize = 2;

/// A mixture of experts of one layer.
pub struct Moe<'a> {
    /// Its shapes.
    pub spec: &'a MoeSpec,
    /// Its resident weights.
    pub weights: &'a MoeWeights,
    /// Where routed experts come from.
    pub experts: &'a ExpertStore,
    /// Its layer.
    pub layer: usize,
}

/// The rows of a chunk: `[rows, hidden]` and the activations made of them so far.
pub struct Input<'a> {
    /// How many.
    pub rows: usize,
    /// The rows.
    pub x: &'a [f32],
    /// Their activations.
    pub set: &'a mut ActivationSet,
}

impl Moe<'_> {
    /// Computes the mixture into `out` (`[rows, hidden]`).
    ///
    /// # Errors
    /// An expert cannot be read, or a value is not finite.
    pub fn run(
        &self,
        compute: &Compute<'_>,
        mut input: Input<'_>,
        scratch: &mut MoeScratch,
        gated_scratch: &mut GatedScratch,
        out: &mut [f32],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let (rows, top_k) = (input.rows, self.spec.router.top_k());
        self.route(compute, &mut input, scratch)?;
        observer.router(self.layer, top_k, &scratch.experts[..rows * top_k], &scratch.weights[..rows * top_k]);
        group(self.spec.experts, rows, top_k, scratch);
        let layer = layer_number(self.layer);
        let used = |expert: &u32| scratch.starts[*expert as usize] < scratch.starts[*expert as usize + 1];
        let experts = 0..u32::try_from(self.spec.experts).unwrap_or(u32::MAX);
        let keys: Vec<_> = experts.filter(used).map(|expert| ExpertKey { layer, expert }).collect();
        let mut arriving = self.experts.acquire(&keys);
        // The first batch takes the shared expert along, so that it is computed while the disk works.
        let mut shared = self.weights.shared.as_ref();
        let mut batch = Vec::with_capacity(keys.len().min(BATCH_ROWS));
        loop {
            next_batch(&mut arriving, &keys, scratch, &mut batch)?;
            if batch.is_empty() && shared.is_none() {
                break;
            }
            self.compute_batch(compute, &mut input, &batch, shared.take(), scratch, gated_scratch)?;
            batch.clear();
        }
        self.sum(compute, rows, scratch, out);
        Ok(())
    }

    /// Scores, choice and weights of all rows.
    fn route(&self, compute: &Compute<'_>, input: &mut Input<'_>, scratch: &mut MoeScratch) -> Result<(), EngineError> {
        let (rows, experts, top_k) = (input.rows, self.spec.experts, self.spec.router.top_k());
        let place = Place::of_layer(self.layer, compute.names.router);
        let view = self.weights.router.view();
        compute.prepare(input.set, view.format(), (rows, view.cols()), input.x, place)?;
        let logits = sized(&mut scratch.scores, rows * experts);
        compute.matmul(&view, input.set, logits);
        if !compute.kernels.all_finite(logits) {
            return Err(compute.non_finite(place));
        }
        let chosen = sized(&mut scratch.experts, rows * top_k).chunks_mut(top_k);
        let weights = sized(&mut scratch.weights, rows * top_k).chunks_mut(top_k);
        for ((logits, chosen), weights) in logits.chunks_mut(experts).zip(chosen).zip(weights) {
            let (spec, bias) = (&self.spec.router, &self.weights.bias);
            router::choose(compute.kernels, spec, logits, bias, &mut scratch.choice, chosen, weights);
        }
        Ok(())
    }

    /// Runs the experts of a batch, and the shared expert if it is given.
    fn compute_batch(
        &self,
        compute: &Compute<'_>,
        input: &mut Input<'_>,
        batch: &[(usize, Lease<'_>)],
        shared: Option<&GatedWeights>,
        scratch: &mut MoeScratch,
        gated_scratch: &mut GatedScratch,
    ) -> Result<(), EngineError> {
        let (rows, hidden) = (input.rows, input.x.len() / input.rows.max(1));
        let names = compute.names;
        let of_expert = |expert: usize, template| Place { layer: Some(self.layer), expert: Some(expert), template };
        let leases = batch.iter().flat_map(|(expert, lease)| {
            [(lease.gate(), of_expert(*expert, names.expert.gate)), (lease.up(), of_expert(*expert, names.expert.up))]
        });
        let of_shared = shared.iter().flat_map(|shared| {
            let place = |template| Place::of_layer(self.layer, template);
            [(shared.gate.view(), place(names.shared.gate)), (shared.up.view(), place(names.shared.up))]
        });
        for (view, place) in leases.chain(of_shared) {
            compute.prepare(input.set, view.format(), (rows, hidden), input.x, place)?;
        }
        let outputs = sized(&mut scratch.outputs, rows * self.spec.router.top_k() * hidden);
        let shared_out = sized(&mut scratch.shared, rows * hidden);
        if scratch.gathered.len() < batch.len() {
            scratch.gathered.resize_with(batch.len(), ActivationSet::default);
        }
        let span = |expert: usize| scratch.starts[expert]..scratch.starts[expert + 1];
        if rows > 1 {
            for ((expert, _), set) in batch.iter().zip(&mut scratch.gathered) {
                set.gather(input.set, &scratch.sources[span(*expert)]);
            }
        }
        let mut units = Vec::with_capacity(batch.len() + 1);
        if let Some(shared) = shared {
            let views = (shared.gate.view(), shared.up.view(), shared.down.view());
            units.push(unit(views, input.set, rows, shared_out, Place::of_layer(self.layer, names.shared.down)));
        }
        let mut parts = Parts { rest: outputs, start: 0 };
        // Ascending by expert, so that each one's lines can be split off the front of the buffer.
        for ((expert, lease), set) in batch.iter().zip(&scratch.gathered) {
            let lines = span(*expert);
            let out = parts.take(lines.start * hidden, lines.len() * hidden);
            let set = if rows > 1 { set } else { &*input.set };
            let place = of_expert(*expert, names.expert.down);
            units.push(unit((lease.gate(), lease.up(), lease.down()), set, lines.len(), out, place));
        }
        gated(compute, &mut units, gated_scratch)
    }

    /// Sums the outputs of each row in router order, then adds the shared expert.
    fn sum(&self, compute: &Compute<'_>, rows: usize, scratch: &MoeScratch, out: &mut [f32]) {
        let (top_k, hidden) = (self.spec.router.top_k(), out.len() / rows.max(1));
        let row = |row: usize, out: &mut [f32]| {
            let choices = row * top_k..(row + 1) * top_k;
            let (weights, places) = (&scratch.weights[choices.clone()], &scratch.places[choices]);
            sum_choices(compute.kernels, &scratch.outputs, places, weights, out);
            if self.weights.shared.is_some() {
                compute.kernels.axpy(1.0, &scratch.shared[row * hidden..][..hidden], out);
            }
        };
        if rows > 1 && compute.worth_sharing(out.len() * top_k * COST) {
            compute.pool.for_each_chunk(out, hidden, row);
        } else {
            out.chunks_mut(hidden).enumerate().for_each(|(index, out)| row(index, out));
        }
    }
}

/// `out = sum of weights[rank] * outputs[places[rank]]`, ranks ascending; an output is as long as `out`.
fn sum_choices(kernels: &KernelSet, outputs: &[f32], places: &[usize], weights: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (place, weight) in places.iter().zip(weights) {
        kernels.axpy(*weight, &outputs[place * out.len()..][..out.len()], out);
    }
}

/// Splits a buffer into parts taken from front to back.
struct Parts<'a> {
    rest: &'a mut [f32],
    start: usize,
}

impl<'a> Parts<'a> {
    fn take(&mut self, start: usize, len: usize) -> &'a mut [f32] {
        let rest = std::mem::take(&mut self.rest);
        let (_, rest) = rest.split_at_mut(start - self.start);
        let (part, rest) = rest.split_at_mut(len);
        self.rest = rest;
        self.start = start + len;
        part
    }
}

fn unit<'a>(
    (gate, up, down): (MatrixView<'a>, MatrixView<'a>, MatrixView<'a>),
    input: &'a ActivationSet,
    rows: usize,
    out: &'a mut [f32],
    place: Place,
) -> GatedUnit<'a> {
    GatedUnit { gate, up, down, input, rows, out, place }
}

/// Groups the choices of all rows by expert: `starts`, `sources` and `places`, rows ascending within an expert.
fn group(experts: usize, rows: usize, top_k: usize, scratch: &mut MoeScratch) {
    let starts = sized(&mut scratch.starts, experts + 1);
    starts.fill(0);
    let chosen = &scratch.experts[..rows * top_k];
    for expert in chosen {
        starts[*expert as usize + 1] += 1;
    }
    for expert in 0..experts {
        starts[expert + 1] += starts[expert];
    }
    let places = sized(&mut scratch.places, rows * top_k);
    let sources = sized(&mut scratch.sources, rows * top_k);
    for (choice, expert) in chosen.iter().enumerate() {
        let line = starts[*expert as usize];
        starts[*expert as usize] += 1;
        places[choice] = line;
        sources[line] = choice / top_k;
    }
    // Each start has moved to the next expert's; shift them back.
    for expert in (0..experts).rev() {
        starts[expert + 1] = starts[expert];
    }
    starts[0] = 0;
}

/// Fills `batch` with one expert, waiting for it, and with those that have arrived already, until it holds
/// [`BATCH_ROWS`] rows. Ascending by expert.
fn next_batch<'s>(
    arriving: &mut Acquire<'s>,
    keys: &[ExpertKey],
    scratch: &MoeScratch,
    batch: &mut Vec<(usize, Lease<'s>)>,
) -> Result<(), StoreError> {
    let mut rows = 0;
    while let Some(arrived) = if batch.is_empty() { arriving.next() } else { arriving.next_ready() } {
        let (index, lease) = arrived?;
        let expert = keys[index].expert as usize;
        rows += scratch.starts[expert + 1] - scratch.starts[expert];
        batch.push((expert, lease));
        if rows >= BATCH_ROWS {
            break;
        }
    }
    batch.sort_unstable_by_key(|(expert, _)| *expert);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_grouped_by_expert_and_keep_their_row() {
        let mut scratch = MoeScratch { experts: vec![3, 1, 0, 3, 1, 3], ..MoeScratch::default() };
        group(5, 3, 2, &mut scratch);
        assert_eq!(scratch.starts, [0, 1, 3, 3, 6, 6]);
        assert_eq!(scratch.sources, [1, 0, 2, 0, 1, 2]);
        for (choice, expert) in [3, 1, 0, 3, 1, 3].into_iter().enumerate() {
            let place = scratch.places[choice];
            assert!((scratch.starts[expert]..scratch.starts[expert + 1]).contains(&place));
            assert_eq!(scratch.sources[place], choice / 2);
        }
    }

    #[test]
    fn nu_06_outputs_are_weighted_by_rank_and_not_by_expert() {
        let mut scratch = MoeScratch { experts: vec![3, 1, 0, 2], ..MoeScratch::default() };
        group(4, 2, 2, &mut scratch);
        // Expert i gives the constant i + 1; lines are grouped by expert, which here are 0, 1, 2, 3.
        let outputs = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0];
        for kernels in KernelSet::available() {
            let mut out = [0.0; 2];
            sum_choices(&kernels, &outputs, &scratch.places[..2], &[0.7, 0.3], &mut out);
            assert!(out.iter().all(|value| (value - 3.4f32).abs() < 1e-6), "{out:?}");
        }
    }
}
