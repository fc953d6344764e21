//! Sizes of a container that is not here: the inventory, a format for each tensor, and the rules of the layout.

use std::path::Path;

use colibri_kernels::format::Format;
use colibri_store::catalog::WeightLocation;
use colibri_store::container::FileId;
use colibri_store::container::record::{MATRICES, MatrixBytes, RecordLayout};
use colibri_store::error::{Fault, FaultKind, StoreError};
use colibri_store::expert::ExpertTable;
use colibri_store::scales::ScaleType;
use colibri_store::source::Span;

use super::{ClassBytes, touched};
use crate::convert::{ConvertOptions, target_of};
use crate::error::EngineError;
use crate::names::{Shape, TensorClass, TensorSlot};
use crate::weights::{Formats, expert_table};

/// How an expert's parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One record of ours.
    Record,
    /// Codes together, scales elsewhere: the public containers.
    Apart,
}

/// Where scales that lie apart begin: beyond any codes.
const SCALES_START: u64 = 1 << 56;

/// The sizes of a container.
#[derive(Clone, Debug, Default)]
pub(super) struct Projection {
    /// Bytes of all weights and their padding; headers are left out.
    pub(super) bytes: u64,
    /// Bytes of what stays in memory.
    pub(super) resident: u64,
    /// Of those, what a decoded token reads.
    pub(super) resident_touched: u64,
    /// Experts of the decoder layers.
    pub(super) experts: ExpertTable,
    /// Experts of the prediction layer.
    pub(super) prediction: ExpertTable,
    /// Classes with their formats.
    pub(super) classes: Vec<ClassBytes>,
    /// Formats of the classes that are shown.
    pub(super) formats: Formats,
    /// Number of weights.
    pub(super) parameters: u64,
}

/// Bytes of a container with these formats, without padding and headers; `None` when the sum does not fit.
pub(super) fn total_bytes(slots: &[TensorSlot], format: &dyn Fn(&TensorSlot) -> Format) -> Option<u64> {
    slots.iter().try_fold(0u64, |sum, slot| {
        let weight = Weight::new(slot, format).ok()?;
        sum.checked_add(weight.codes)?.checked_add(weight.scales)
    })
}

impl Projection {
    /// The container that conversion would write.
    pub(super) fn of_conversion(slots: &[TensorSlot], options: &ConvertOptions) -> Result<Self, EngineError> {
        Self::new(slots, Layout::Record, &|slot| target_of(slot, options).1)
    }

    /// A container with the formats that `format` gives to matrices; vectors are f32.
    pub(super) fn new(
        slots: &[TensorSlot],
        layout: Layout,
        format: &dyn Fn(&TensorSlot) -> Format,
    ) -> Result<Self, EngineError> {
        let mut projection = Self::default();
        let mut classes: Vec<(&'static str, Format, u64)> = Vec::new();
        let mut noted = Vec::new();
        let (mut experts, mut prediction) = (Vec::new(), Vec::new());
        let mut cursor = Cursor { layout, codes: 0, scales: SCALES_START };
        let mut triple = Vec::with_capacity(MATRICES);
        for slot in slots {
            let weight = Weight::new(slot, format)?;
            projection.count(slot, &weight, &mut classes, &mut noted)?;
            let (Some(layer), Some(_)) = (slot.layer, slot.expert) else { continue };
            // The inventory lists gate, up and down of an expert in a row.
            triple.push(weight);
            if triple.len() == MATRICES {
                let list = if slot.mtp { &mut prediction } else { &mut experts };
                let (locations, padding) = cursor.place(&triple)?;
                list.extend(locations.into_iter().map(|location| (layer, location)));
                projection.bytes = projection.bytes.saturating_add(padding);
                triple.clear();
            }
        }
        projection.experts = expert_table(&experts).map_err(|error| refused(&error.to_string()))?;
        projection.prediction = expert_table(&prediction).map_err(|error| refused(&error.to_string()))?;
        let entry =
            |(class, format, bytes): (&'static str, Format, u64)| ClassBytes { class, format: format.name(), bytes };
        projection.classes = classes.into_iter().map(entry).collect();
        Ok(projection)
    }

    fn count(
        &mut self,
        slot: &TensorSlot,
        weight: &Weight,
        classes: &mut Vec<(&'static str, Format, u64)>,
        noted: &mut Vec<(TensorClass, Format)>,
    ) -> Result<(), EngineError> {
        let bytes = weight.codes.checked_add(weight.scales).ok_or_else(too_large)?;
        self.bytes = self.bytes.checked_add(bytes).ok_or_else(too_large)?;
        self.parameters = self.parameters.saturating_add((weight.rows as u64).saturating_mul(weight.cols as u64));
        if slot.expert.is_none() {
            // Both are parts of the sum above.
            self.resident += bytes;
            self.resident_touched += if touched(slot) { bytes } else { 0 };
        }
        if !noted.contains(&(slot.class, weight.format)) {
            noted.push((slot.class, weight.format));
            self.formats.note(slot.class, weight.format);
        }
        let class = target_of(slot, &ConvertOptions::default()).0;
        match classes.iter_mut().find(|entry| entry.0 == class && entry.1 == weight.format) {
            Some(entry) => entry.2 += bytes,
            None => classes.push((class, weight.format, bytes)),
        }
        Ok(())
    }
}

/// A tensor with its format and the bytes of its parts.
struct Weight {
    format: Format,
    rows: usize,
    cols: usize,
    codes: u64,
    scales: u64,
}

impl Weight {
    fn new(slot: &TensorSlot, format: &dyn Fn(&TensorSlot) -> Format) -> Result<Self, EngineError> {
        let (format, rows, cols) = match slot.shape {
            Shape::Matrix { rows, cols } => (format(slot), rows, cols),
            Shape::Vector { len } => (Format::F32, 1, len),
        };
        let codes = format.code_bytes(rows, cols).ok_or_else(too_large)? as u64;
        let count = format.scale_count(rows, cols).ok_or_else(too_large)? as u64;
        Ok(Self { format, rows, cols, codes, scales: count.checked_mul(4).ok_or_else(too_large)? })
    }
}

fn too_large() -> EngineError {
    refused("the size of a tensor does not fit")
}

/// A configuration whose tensors no container can hold.
fn refused(why: &str) -> EngineError {
    let path = Path::new("config.json");
    let fault = Fault::file(FaultKind::Unsupported, path, "config.json describes tensors that cannot be stored")
        .why(why)
        .fix("fetch config.json again; it must come with the weights");
    StoreError::fault(path, fault).into()
}

/// Where the next expert would be written.
struct Cursor {
    layout: Layout,
    codes: u64,
    scales: u64,
}

impl Cursor {
    /// The places of one expert's matrices, and the bytes of padding among them.
    fn place(&mut self, weights: &[Weight]) -> Result<(Vec<WeightLocation>, u64), EngineError> {
        let span = |offset, bytes| Span { file: FileId(0), offset, bytes };
        let location = |weight: &Weight, codes: u64, scales: u64| WeightLocation {
            format: weight.format,
            rows: weight.rows,
            cols: weight.cols,
            codes: span(codes, weight.codes),
            scales: (weight.scales > 0).then(|| span(scales, weight.scales)),
            scale_type: ScaleType::F32,
        };
        let parts: u64 = weights.iter().map(|weight| weight.codes + weight.scales).sum();
        if self.layout == Layout::Record {
            let sizes: Vec<_> =
                weights.iter().map(|weight| MatrixBytes { codes: weight.codes, scales: weight.scales }).collect();
            let sizes = <[MatrixBytes; MATRICES]>::try_from(sizes).map_err(|_| too_large())?;
            let record = RecordLayout::new(sizes).ok_or_else(too_large)?;
            let starts = record.codes.iter().zip(&record.scales);
            let locations = weights
                .iter()
                .zip(starts)
                .map(|(weight, (codes, scales))| location(weight, self.codes + codes, self.codes + scales))
                .collect();
            self.codes = self.codes.checked_add(record.bytes).ok_or_else(too_large)?;
            return Ok((locations, record.bytes.saturating_sub(parts)));
        }
        let mut locations = Vec::with_capacity(MATRICES);
        for weight in weights {
            locations.push(location(weight, self.codes, self.scales));
            self.codes = self.codes.checked_add(weight.codes).ok_or_else(too_large)?;
            self.scales = self.scales.checked_add(weight.scales).ok_or_else(too_large)?;
        }
        Ok((locations, 0))
    }
}
