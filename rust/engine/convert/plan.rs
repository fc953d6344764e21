//! The layout of the container: which format each tensor gets, and in which shard it lies.
//!
//! Dense tensors have shards of their own, in the order of use, each tensor's scales behind its codes. A routed expert is
//! one record (see `colibri_store::container::record`). Shards are cut before they exceed [`SHARD_BYTES`].

use std::path::Path;

use colibri_kernels::format::Format;
use colibri_store::catalog::SCALE_SUFFIX;
use colibri_store::container::Dtype;
use colibri_store::container::manifest::FileDigest;
use colibri_store::container::record::{MATRICES, MatrixBytes, PART_ALIGNMENT, RECORD_ALIGNMENT, RecordLayout};
use colibri_store::container::writer::{ShardPlan, ShardWriter};
use colibri_store::error::StoreError;
use colibri_store::memory;

use super::encode::{Encoder, Target};
use super::source::{Checkpoint, SourceWeight};
use super::{ClassReport, ConvertOptions};
use crate::error::EngineError;
use crate::names::{Shape, TensorClass, TensorSlot};

/// The most data of a shard, in bytes; a single larger tensor has a shard of its own.
const SHARD_BYTES: u64 = 4 << 30;
/// The most weights of a shard: readers of the public containers accept 4096 stamps.
const SHARD_WEIGHTS: usize = 4095;

/// A class of tensors that share a storage format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StorageClass {
    /// Routed experts.
    Experts,
    /// Attention, dense feed-forward parts, shared experts.
    Dense,
    /// The token embedding.
    Embedding,
    /// The head.
    Head,
    /// Indexers of sparse attention.
    Indexer,
    /// Routed experts of the multi-token-prediction layer.
    MtpExperts,
    /// Other matrices of the multi-token-prediction layer.
    Mtp,
    /// Routers, norms and biases: small, and their errors would reach everything.
    Kept,
}

/// A class, its name in report and manifest, and its format.
pub(super) struct ClassEntry {
    pub class: StorageClass,
    pub name: &'static str,
    pub format: fn(&ConvertOptions) -> Format,
}

/// Every class, in the order of the report.
pub(super) const CLASSES: &[ClassEntry] = &[
    ClassEntry { class: StorageClass::Experts, name: "experts", format: |options| options.experts },
    ClassEntry { class: StorageClass::Dense, name: "dense", format: |options| options.dense },
    ClassEntry { class: StorageClass::Embedding, name: "embedding", format: |options| options.embeddings },
    ClassEntry { class: StorageClass::Head, name: "head", format: |options| options.embeddings },
    ClassEntry { class: StorageClass::Indexer, name: "indexer", format: |_| Format::Int8Row },
    ClassEntry { class: StorageClass::MtpExperts, name: "mtp_experts", format: |options| options.mtp },
    ClassEntry { class: StorageClass::Mtp, name: "mtp", format: |options| options.mtp },
    ClassEntry { class: StorageClass::Kept, name: "kept", format: |_| Format::F32 },
];

/// The class of a tensor. Vectors are always kept.
pub(super) fn class_of(slot: &TensorSlot) -> StorageClass {
    if matches!(slot.shape, Shape::Vector { .. }) {
        return StorageClass::Kept;
    }
    match slot.class {
        TensorClass::Norm | TensorClass::Router => StorageClass::Kept,
        TensorClass::Indexer => StorageClass::Indexer,
        TensorClass::Embedding => StorageClass::Embedding,
        TensorClass::Head => StorageClass::Head,
        TensorClass::Expert if slot.mtp => StorageClass::MtpExperts,
        TensorClass::Expert => StorageClass::Experts,
        TensorClass::MtpProjection => StorageClass::Mtp,
        TensorClass::Attention | TensorClass::Dense | TensorClass::SharedExpert if slot.mtp => StorageClass::Mtp,
        TensorClass::Attention | TensorClass::Dense | TensorClass::SharedExpert => StorageClass::Dense,
    }
}

/// The line of the class table for a class.
fn entry(class: StorageClass) -> &'static ClassEntry {
    // The table has a line for every variant (tested).
    CLASSES.iter().find(|entry| entry.class == class).unwrap_or(&CLASSES[CLASSES.len() - 1])
}

/// One step of writing a shard: indices into the checkpoint's weights.
enum Step {
    /// A tensor with its scales behind it.
    Weight(usize),
    /// Gate, up and down of a routed expert.
    Record([usize; MATRICES]),
}

struct PlannedShard {
    plan: ShardPlan,
    steps: Vec<Step>,
    weights: usize,
}

/// The layout of a whole container.
pub(super) struct ContainerPlan {
    shards: Vec<PlannedShard>,
    /// For each weight of the checkpoint: class name, format, and the bytes of its codes and scales.
    targets: Vec<(&'static str, Target)>,
    parameters: Vec<u64>,
}

impl ContainerPlan {
    /// Lays out all weights of the checkpoint.
    pub(super) fn new(checkpoint: &Checkpoint, options: &ConvertOptions) -> Result<Self, EngineError> {
        let targets = checkpoint.weights.iter().map(|weight| target(weight, options)).collect::<Result<Vec<_>, _>>()?;
        let parameters =
            checkpoint.weights.iter().map(|weight| weight.location.rows as u64 * weight.location.cols as u64).collect();
        let mut dense = Series { kind: "dense", shards: Vec::new() };
        let mut experts = Series { kind: "experts", shards: Vec::new() };
        let mut record = Vec::with_capacity(MATRICES);
        for (index, weight) in checkpoint.weights.iter().enumerate() {
            if weight.slot.expert.is_none() {
                dense.weight(weight, index, &targets[index].1)?;
                continue;
            }
            // The inventory lists gate, up and down of an expert in a row.
            record.push(index);
            if let Ok(record_now) = <[usize; MATRICES]>::try_from(record.as_slice()) {
                experts.record(&checkpoint.weights, record_now, &targets)?;
                record.clear();
            }
        }
        let mut shards = dense.shards;
        shards.append(&mut experts.shards);
        Ok(Self { shards, targets, parameters })
    }

    /// Names and sizes of the shards; digests are not known yet.
    pub(super) fn files(&self) -> Result<Vec<FileDigest>, EngineError> {
        let mut files = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            let file = format!("{}.safetensors", shard.plan.shard());
            files.push(FileDigest { file, bytes: shard.plan.file_bytes()?, sha256: String::new() });
        }
        Ok(files)
    }

    /// The classes that occur, with their sizes.
    pub(super) fn classes(&self, options: &ConvertOptions) -> Vec<ClassReport> {
        let report = |entry: &ClassEntry| {
            let mut class = ClassReport {
                class: entry.name,
                format: (entry.format)(options).name(),
                tensors: 0,
                parameters: 0,
                bytes: 0,
                relative_error: None,
            };
            for ((name, target), parameters) in self.targets.iter().zip(&self.parameters) {
                if *name == entry.name {
                    class.tensors += 1;
                    class.parameters += parameters;
                    class.bytes += target.bytes.codes + target.bytes.scales;
                }
            }
            class
        };
        CLASSES.iter().map(report).filter(|class| class.tensors > 0).collect()
    }

    /// Quantises and writes every shard into `directory`.
    pub(super) fn write(
        self,
        checkpoint: &Checkpoint,
        directory: &Path,
        encoder: &mut Encoder<'_>,
    ) -> Result<Vec<FileDigest>, EngineError> {
        let mut written = Vec::with_capacity(self.shards.len());
        for shard in self.shards {
            let mut writer = ShardWriter::create(directory, shard.plan)?;
            for step in &shard.steps {
                let indices: &[usize] = match step {
                    Step::Weight(index) => std::slice::from_ref(index),
                    Step::Record(indices) => indices,
                };
                let mut scales = Vec::with_capacity(indices.len());
                for index in indices {
                    let weight = &checkpoint.weights[*index];
                    let (class, target) = &self.targets[*index];
                    scales.push(encoder.encode(weight, class, target, &mut writer)?);
                }
                for (index, scales) in indices.iter().zip(&scales).filter(|(_, scales)| !scales.is_empty()) {
                    let name = format!("{}{SCALE_SUFFIX}", checkpoint.weights[*index].slot.name);
                    writer.write(&name, &little_endian(scales)?)?;
                }
            }
            written.push(writer.finish()?);
        }
        Ok(written)
    }
}

fn little_endian(values: &[f32]) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    memory::reserve(&mut bytes, values.len().saturating_mul(4))?;
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    Ok(bytes)
}

/// Class and target format of a weight.
fn target(weight: &SourceWeight, options: &ConvertOptions) -> Result<(&'static str, Target), EngineError> {
    let entry = entry(class_of(&weight.slot));
    let format = (entry.format)(options);
    let (rows, cols) = (weight.location.rows, weight.location.cols);
    let sizes = format.code_bytes(rows, cols).zip(format.scale_count(rows, cols));
    let (codes, scale_count) = sizes.ok_or_else(|| too_large(weight))?;
    let bytes = MatrixBytes { codes: codes as u64, scales: scale_count as u64 * 4 };
    Ok((entry.name, Target { format, bytes }))
}

fn too_large(weight: &SourceWeight) -> EngineError {
    StoreError::Internal { what: format!("the size of {} does not fit", weight.slot.name) }.into()
}

/// Shards of one kind, the last of them open.
struct Series {
    kind: &'static str,
    shards: Vec<PlannedShard>,
}

impl Series {
    /// The shard that takes `bytes` more in `weights` more weights.
    fn room(&mut self, bytes: u64, weights: usize) -> Result<&mut PlannedShard, EngineError> {
        let full = self.shards.last().is_none_or(|shard| {
            shard.weights + weights > SHARD_WEIGHTS || shard.plan.data_bytes().saturating_add(bytes) > SHARD_BYTES
        });
        if full {
            let name = format!("{}-{:05}", self.kind, self.shards.len() + 1);
            self.shards.push(PlannedShard { plan: ShardPlan::new(&name), steps: Vec::new(), weights: 0 });
        }
        let what = "a shard was just made".to_owned();
        let shard = self.shards.last_mut().ok_or(StoreError::Internal { what })?;
        shard.weights += weights;
        Ok(shard)
    }

    fn weight(&mut self, weight: &SourceWeight, index: usize, target: &Target) -> Result<(), EngineError> {
        let shard = self.room(target.bytes.codes.saturating_add(target.bytes.scales), 1)?;
        codes(&mut shard.plan, weight, target)?;
        scales(&mut shard.plan, weight, target)?;
        shard.steps.push(Step::Weight(index));
        Ok(())
    }

    fn record(
        &mut self,
        weights: &[SourceWeight],
        indices: [usize; MATRICES],
        targets: &[(&'static str, Target)],
    ) -> Result<(), EngineError> {
        let layout = RecordLayout::new(indices.map(|index| targets[index].1.bytes));
        let layout = layout.ok_or_else(|| too_large(&weights[indices[0]]))?;
        let shard = self.room(layout.bytes, MATRICES)?;
        shard.plan.align(RECORD_ALIGNMENT)?;
        let start = shard.plan.data_bytes();
        for index in indices {
            codes(&mut shard.plan, &weights[index], &targets[index].1)?;
        }
        for index in indices {
            scales(&mut shard.plan, &weights[index], &targets[index].1)?;
        }
        shard.plan.align(RECORD_ALIGNMENT)?;
        if shard.plan.data_bytes() - start != layout.bytes {
            let what = format!("the record of {} contradicts its layout", weights[indices[0]].slot.name);
            return Err(StoreError::Internal { what }.into());
        }
        shard.steps.push(Step::Record(indices));
        Ok(())
    }
}

/// Plans the codes of a weight, flat, or its values in their shape.
fn codes(plan: &mut ShardPlan, weight: &SourceWeight, target: &Target) -> Result<(), EngineError> {
    let name = &weight.slot.name;
    if target.format.quantised() {
        plan.push(name, Dtype::U8, &[target.bytes.codes], PART_ALIGNMENT)?;
    } else {
        let shape: Vec<u64> = match weight.slot.shape {
            Shape::Matrix { rows, cols } => vec![rows as u64, cols as u64],
            Shape::Vector { len } => vec![len as u64],
        };
        plan.push(name, Dtype::F32, &shape, PART_ALIGNMENT)?;
    }
    plan.stamp(name, target.format.stamp());
    Ok(())
}

/// Plans the scales of a weight, if its format has any.
fn scales(plan: &mut ShardPlan, weight: &SourceWeight, target: &Target) -> Result<(), EngineError> {
    if target.bytes.scales > 0 {
        let name = format!("{}{SCALE_SUFFIX}", weight.slot.name);
        plan.push(&name, Dtype::F32, &[target.bytes.scales / 4], PART_ALIGNMENT)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_one_line_and_a_format_that_is_written() {
        let options = ConvertOptions::default();
        for class in [
            StorageClass::Experts,
            StorageClass::Dense,
            StorageClass::Embedding,
            StorageClass::Head,
            StorageClass::Indexer,
            StorageClass::MtpExperts,
            StorageClass::Mtp,
            StorageClass::Kept,
        ] {
            assert_eq!(CLASSES.iter().filter(|entry| entry.class == class).count(), 1);
            let format = (entry(class).format)(&options);
            assert!(crate::convert::TARGET_FORMATS.contains(&format), "{}", entry(class).name);
        }
    }
}
