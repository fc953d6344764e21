//! The layout of the container: which format each tensor gets, in which shard it lies, and in which step it is written.
//!
//! Step `i` writes everything whose last tensor, scales included, lies in weight file `i` of the source, so that only a few
//! files need to be there at a time. A step has shards of its own. Dense tensors lie in shards of their own, in the order
//! of use, each tensor's scales behind its codes: the two are never apart. A routed expert is one record (see
//! `colibri_store::container::record`). Shards are cut before they exceed [`SHARD_BYTES`]. All of it follows from the
//! configuration, the list of tensors and the options.

use std::collections::BTreeMap;
use std::ops::Range;

use colibri_kernels::format::Format;
use colibri_store::catalog::SCALE_SUFFIX;
use colibri_store::container::Dtype;
use colibri_store::container::manifest::FileDigest;
use colibri_store::container::record::{MATRICES, MatrixBytes, PART_ALIGNMENT, RECORD_ALIGNMENT, RecordLayout};
use colibri_store::container::writer::ShardPlan;
use colibri_store::digest::Digester;
use colibri_store::error::StoreError;

use super::ConvertOptions;
use super::classes::{CLASSES, class_index};
use super::report::ClassReport;
use super::source::{Checkpoint, SourceRecord, recorded_format};
use crate::error::EngineError;
use crate::names::{Shape, TensorSlot};

/// The most data of a shard, in bytes; a single larger tensor has a shard of its own.
const SHARD_BYTES: u64 = 4 << 30;
/// The most weights of a shard: readers of the public containers accept 4096 stamps.
const SHARD_WEIGHTS: usize = 4095;

/// What a weight is turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Index of its class in the class table.
    pub class: usize,
    /// The storage format.
    pub format: Format,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Bytes of codes and scales of the whole weight.
    pub bytes: MatrixBytes,
}

impl Target {
    /// Bytes of codes and scales together.
    pub(super) fn all_bytes(&self) -> u64 {
        self.bytes.codes.saturating_add(self.bytes.scales)
    }
}

/// What is written in one go: indices of weights.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// A tensor with its scales behind it.
    Weight([usize; 1]),
    /// Gate, up and down of a routed expert.
    Record([usize; MATRICES]),
}

impl Part {
    /// The weights, in the order of their codes.
    pub(super) fn weights(&self) -> &[usize] {
        match self {
            Self::Weight(weight) => weight,
            Self::Record(weights) => weights,
        }
    }
}

/// One shard of the container.
pub(super) struct PlannedShard {
    pub plan: ShardPlan,
    pub parts: Vec<Part>,
    weights: usize,
}

impl PlannedShard {
    /// The shard's file name.
    pub(super) fn file(&self) -> String {
        format!("{}.safetensors", self.plan.shard())
    }

    /// Every weight, in the order of the parts.
    pub(super) fn weights(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().flat_map(|part| part.weights().iter().copied())
    }
}

/// What is written when a further weight file of the source is there.
pub(super) struct PlannedStep {
    /// Indices of the weight files that it reads.
    pub files: Vec<u32>,
    /// The shards that it writes.
    pub shards: Range<usize>,
}

/// The layout of a whole container.
pub(super) struct Layout {
    /// One for each weight, in the order of use.
    pub targets: Vec<Target>,
    /// Step by step.
    pub shards: Vec<PlannedShard>,
    /// In the order in which they are meant to run.
    pub steps: Vec<PlannedStep>,
}

/// A part and the weight files that it needs.
struct Unit {
    part: Part,
    files: Vec<u32>,
}

impl Layout {
    /// Lays out all weights of the checkpoint.
    pub(super) fn new(checkpoint: &Checkpoint, options: &ConvertOptions) -> Result<Self, EngineError> {
        Self::of(&checkpoint.slots, &checkpoint.record, options)
    }

    /// Lays out these weights, whose tensors lie where the record says.
    pub(super) fn of(
        slots: &[TensorSlot],
        record: &SourceRecord,
        options: &ConvertOptions,
    ) -> Result<Self, EngineError> {
        let mut targets = Vec::with_capacity(slots.len());
        for (index, slot) in slots.iter().enumerate() {
            let class = class_index(slot);
            let format = match options.repack {
                true => recorded_format(record, index).ok_or_else(|| no_format(slot))?,
                false => (CLASSES[class].format)(options),
            };
            targets.push(target(slot, class, format)?);
        }
        let mut steps: BTreeMap<u32, Vec<Unit>> = BTreeMap::new();
        for unit in units(slots, record) {
            steps.entry(unit.files.last().copied().unwrap_or(0)).or_default().push(unit);
        }
        let mut layout = Self { targets, shards: Vec::new(), steps: Vec::new() };
        let (mut dense, mut experts) = (0, 0);
        for units in steps.into_values() {
            layout.add_step(slots, &units, &mut dense, &mut experts)?;
        }
        Ok(layout)
    }

    fn add_step(
        &mut self,
        slots: &[TensorSlot],
        units: &[Unit],
        dense: &mut usize,
        experts: &mut usize,
    ) -> Result<(), EngineError> {
        let mut dense = Series { kind: "dense", number: dense, shards: Vec::new() };
        let mut experts = Series { kind: "experts", number: experts, shards: Vec::new() };
        let mut files = Vec::new();
        for unit in units {
            files.extend_from_slice(&unit.files);
            match unit.part {
                Part::Weight(_) => dense.add(slots, &self.targets, unit.part)?,
                Part::Record(_) => experts.add(slots, &self.targets, unit.part)?,
            }
        }
        files.sort_unstable();
        files.dedup();
        let first = self.shards.len();
        self.shards.append(&mut dense.shards);
        self.shards.append(&mut experts.shards);
        self.steps.push(PlannedStep { files, shards: first..self.shards.len() });
        Ok(())
    }

    /// The weight files that no step after `step` reads and that it or one before it read.
    pub(super) fn releases(&self, step: usize) -> Vec<u32> {
        let later = |file: &u32| self.steps.iter().skip(step + 1).any(|later| later.files.contains(file));
        let files = self.steps.get(step).map(|step| step.files.as_slice()).unwrap_or_default();
        files.iter().copied().filter(|file| !later(file)).collect()
    }

    /// Bytes of codes and scales of a shard.
    pub(super) fn payload(&self, shard: &PlannedShard) -> u64 {
        shard.weights().map(|weight| self.targets[weight].all_bytes()).sum()
    }

    /// Names and sizes of the shards, by name; digests are not known yet.
    pub(super) fn files(&self) -> Result<Vec<FileDigest>, EngineError> {
        let mut files = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            files.push(FileDigest { file: shard.file(), bytes: shard.plan.file_bytes()?, sha256: String::new() });
        }
        files.sort_by(|left, right| left.file.cmp(&right.file));
        Ok(files)
    }

    /// A digest of all headers: two runs with the same one write the same files from the same weights.
    pub(super) fn digest(&self) -> Result<String, EngineError> {
        let mut digest = Digester::new();
        for shard in &self.shards {
            digest.update(shard.plan.shard().as_bytes());
            digest.update(&shard.plan.header()?);
        }
        Ok(digest.finish())
    }

    /// The classes that occur with the formats of their tensors, and their sizes.
    pub(super) fn classes(&self) -> Vec<ClassReport> {
        let mut classes: Vec<ClassReport> = Vec::new();
        for (index, entry) in CLASSES.iter().enumerate() {
            for target in self.targets.iter().filter(|target| target.class == index) {
                let format = target.format.name();
                let known = classes.iter().position(|class| class.class == entry.name && class.format == format);
                let at = known.unwrap_or_else(|| {
                    classes.push(ClassReport::new(entry.name, format));
                    classes.len() - 1
                });
                if let Some(class) = classes.get_mut(at) {
                    class.tensors += 1;
                    class.parameters += target.rows as u64 * target.cols as u64;
                    class.bytes += target.all_bytes();
                }
            }
        }
        classes
    }
}

/// The weights as they are written, each with the files that it needs.
fn units(slots: &[TensorSlot], source: &SourceRecord) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut record = Vec::with_capacity(MATRICES);
    for (index, slot) in slots.iter().enumerate() {
        let part = if slot.expert.is_none() {
            Part::Weight([index])
        } else {
            // The inventory lists gate, up and down of an expert in a row.
            record.push(index);
            let Ok(now) = <[usize; MATRICES]>::try_from(record.as_slice()) else { continue };
            record.clear();
            Part::Record(now)
        };
        let mut files: Vec<u32> = part.weights().iter().flat_map(|weight| source.files_of(&slots[*weight])).collect();
        files.sort_unstable();
        files.dedup();
        units.push(Unit { part, files });
    }
    units
}

fn target(slot: &TensorSlot, class: usize, format: Format) -> Result<Target, EngineError> {
    let (rows, cols) = match slot.shape {
        Shape::Matrix { rows, cols } => (rows, cols),
        Shape::Vector { len } => (1, len),
    };
    let sizes = format.code_bytes(rows, cols).zip(format.scale_count(rows, cols));
    let (codes, scale_count) = sizes.ok_or_else(|| too_large(slot))?;
    let scales = (scale_count as u64).checked_mul(4).ok_or_else(|| too_large(slot))?;
    Ok(Target { class, format, rows, cols, bytes: MatrixBytes { codes: codes as u64, scales } })
}

fn too_large(slot: &TensorSlot) -> EngineError {
    StoreError::Internal { what: format!("the size of {} does not fit", slot.name) }.into()
}

fn no_format(slot: &TensorSlot) -> EngineError {
    StoreError::Internal { what: format!("the stored format of {} is not known", slot.name) }.into()
}

/// Shards of one kind, the last of them open.
struct Series<'a> {
    kind: &'static str,
    /// Shards of this kind so far, those of earlier steps included.
    number: &'a mut usize,
    shards: Vec<PlannedShard>,
}

impl Series<'_> {
    /// The shard that takes `bytes` more in `weights` more weights.
    fn room(&mut self, bytes: u64, weights: usize) -> Result<&mut PlannedShard, EngineError> {
        let full = self.shards.last().is_none_or(|shard| {
            shard.weights + weights > SHARD_WEIGHTS || shard.plan.data_bytes().saturating_add(bytes) > SHARD_BYTES
        });
        if full {
            *self.number += 1;
            let name = format!("{}-{:05}", self.kind, self.number);
            self.shards.push(PlannedShard { plan: ShardPlan::new(&name), parts: Vec::new(), weights: 0 });
        }
        let what = "a shard was just made".to_owned();
        let shard = self.shards.last_mut().ok_or(StoreError::Internal { what })?;
        shard.weights += weights;
        Ok(shard)
    }

    fn add(&mut self, slots: &[TensorSlot], targets: &[Target], part: Part) -> Result<(), EngineError> {
        match part {
            Part::Weight([index]) => {
                let (slot, target) = (&slots[index], &targets[index]);
                let shard = self.room(target.all_bytes(), 1)?;
                codes(&mut shard.plan, slot, target)?;
                scales(&mut shard.plan, slot, target)?;
                shard.parts.push(part);
            }
            Part::Record(indices) => {
                let layout = RecordLayout::new(indices.map(|index| targets[index].bytes));
                let layout = layout.ok_or_else(|| too_large(&slots[indices[0]]))?;
                let shard = self.room(layout.bytes, MATRICES)?;
                shard.plan.align(RECORD_ALIGNMENT)?;
                let start = shard.plan.data_bytes();
                for index in indices {
                    codes(&mut shard.plan, &slots[index], &targets[index])?;
                }
                for index in indices {
                    scales(&mut shard.plan, &slots[index], &targets[index])?;
                }
                shard.plan.align(RECORD_ALIGNMENT)?;
                if shard.plan.data_bytes() - start != layout.bytes {
                    let what = format!("the record of {} contradicts its layout", slots[indices[0]].name);
                    return Err(StoreError::Internal { what }.into());
                }
                shard.parts.push(part);
            }
        }
        Ok(())
    }
}

/// Plans the codes of a weight, flat, or its values in their shape.
fn codes(plan: &mut ShardPlan, slot: &TensorSlot, target: &Target) -> Result<(), EngineError> {
    if target.format.has_scales() {
        plan.push(&slot.name, Dtype::U8, &[target.bytes.codes], PART_ALIGNMENT)?;
    } else {
        let shape: Vec<u64> = match slot.shape {
            Shape::Matrix { rows, cols } => vec![rows as u64, cols as u64],
            Shape::Vector { len } => vec![len as u64],
        };
        let dtype = match target.format {
            Format::Bf16 => Dtype::Bf16,
            Format::F16 => Dtype::F16,
            _ => Dtype::F32,
        };
        plan.push(&slot.name, dtype, &shape, PART_ALIGNMENT)?;
    }
    plan.stamp(&slot.name, target.format.stamp());
    Ok(())
}

/// Plans the scales of a weight, if its format has any.
fn scales(plan: &mut ShardPlan, slot: &TensorSlot, target: &Target) -> Result<(), EngineError> {
    if target.format.has_scales() {
        let name = format!("{}{SCALE_SUFFIX}", slot.name);
        plan.push(&name, Dtype::F32, &[target.bytes.scales / 4], PART_ALIGNMENT)?;
    }
    Ok(())
}
