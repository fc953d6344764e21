//! Where each expert lies on disk, and how it lies in a slot.
//!
//! Owns: for every expert the list of reads (spans of one file that touch, or nearly touch, are one read), the place of
//! each part in the slot, and the shapes. Everything is checked here once, so that a lease can be viewed without errors.
//! Must hold: every part starts at a multiple of 64 bytes in the slot, so codes and scales are used in place; a record that
//! starts on a block of 4096 in the file is one direct read onto a block of the slot.
//! Refuses: parts whose byte counts contradict format and shape, and a layer given twice.

use std::collections::HashMap;
use std::ops::Range;

use colibri_kernels::error::KernelError;
use colibri_kernels::format::Format;
use colibri_kernels::matrix::MatrixView;

use super::key::ExpertKey;
use crate::catalog::WeightLocation;
use crate::container::FileId;
use crate::error::StoreError;
use crate::source::Span;

/// Alignment of every part in the slot.
const PART_ALIGN: u64 = 64;
/// Alignment of every read in the slot, and of records in the file. A hole smaller than this is read over: it costs
/// less than a second request.
const BLOCK: u64 = 4096;
/// Reads are cut into pieces of about this size, so that several threads work on the expert that is needed first. A
/// disk is at full speed from about 1 MB on.
const PIECE_BYTES: usize = 4 << 20;
/// Layers are indexed densely; more than this is no model.
const MAX_LAYERS: u32 = 1 << 16;

/// Where the three matrices of one routed expert lie.
#[derive(Clone, Debug)]
pub struct ExpertMatrices {
    /// Gate projection `[intermediate, hidden]`.
    pub gate: WeightLocation,
    /// Up projection `[intermediate, hidden]`.
    pub up: WeightLocation,
    /// Down projection `[hidden, intermediate]`.
    pub down: WeightLocation,
}

/// One read of an expert, and where it goes in the slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertRead {
    /// What is read.
    pub(crate) span: Span,
    /// Offset in the slot.
    pub(crate) at: usize,
    /// Length in bytes.
    pub(crate) bytes: usize,
}

/// A part of an expert: which read brings it, and where in that read it lies.
#[derive(Clone, Copy, Debug)]
struct Part {
    read: usize,
    offset: usize,
    bytes: usize,
}

/// One matrix of an expert.
#[derive(Clone, Copy, Debug)]
struct MatrixPlace {
    format: Format,
    rows: usize,
    cols: usize,
    codes: Part,
    scales: Option<Part>,
}

/// One of the three matrices, in the order of [`ExpertLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Projection {
    Gate = 0,
    Up = 1,
    Down = 2,
}

/// All projections.
pub(crate) const PROJECTIONS: [Projection; 3] = [Projection::Gate, Projection::Up, Projection::Down];

/// Something that has the bytes of an expert: a slot, or mapped files.
pub(crate) trait Region {
    /// The bytes that the read `index` brings; at least as many as the read is long.
    fn read_bytes(&self, index: usize, read: &ExpertRead) -> Option<&[u8]>;
}

/// How one expert lies on disk and in a slot.
#[derive(Clone, Debug)]
pub(crate) struct ExpertLayout {
    pub(crate) key: ExpertKey,
    pub(crate) reads: Box<[ExpertRead]>,
    matrices: [MatrixPlace; 3],
}

impl ExpertLayout {
    /// Bytes of the slot that are used.
    fn slot_bytes(&self) -> usize {
        self.reads.last().map_or(0, |read| read.at + read.bytes)
    }

    /// The pieces in which the expert is read: what, and where in the slot; ascending and disjoint.
    pub(crate) fn pieces(&self) -> Vec<(Span, Range<usize>)> {
        let mut pieces = Vec::new();
        for read in &self.reads {
            let count = read.bytes.div_ceil(PIECE_BYTES).max(1);
            let step = read.bytes.div_ceil(count).next_multiple_of(BLOCK as usize);
            let mut start = 0;
            while start < read.bytes {
                let offset = read.span.offset + start as u64;
                // Cuts lie on blocks of the file, whatever the start.
                let end = (start + step - (offset % BLOCK) as usize).min(read.bytes);
                let span = Span { file: read.span.file, offset, bytes: (end - start) as u64 };
                pieces.push((span, read.at + start..read.at + end));
                start = end;
            }
        }
        pieces
    }

    /// A matrix of the expert over the bytes of `region`. `None` if they are not there, too few, or scales that cannot be
    /// used in place.
    pub(crate) fn view<'a>(&self, which: Projection, region: &'a impl Region) -> Option<MatrixView<'a>> {
        let place = &self.matrices[which as usize];
        let bytes = |part: &Part| -> Option<&'a [u8]> {
            let read = self.reads.get(part.read)?;
            region.read_bytes(part.read, read)?.get(part.offset..part.offset + part.bytes)
        };
        let codes = bytes(&place.codes)?;
        if !(codes.as_ptr() as usize).is_multiple_of(code_align(place.format)) {
            return None;
        }
        let scales: &[f32] = match &place.scales {
            Some(part) => bytemuck::try_cast_slice(bytes(part)?).ok()?,
            None => &[],
        };
        MatrixView::new(place.format, place.rows, place.cols, codes, scales).ok()
    }

    /// Whether all three matrices can be viewed over `region`.
    pub(crate) fn fits(&self, region: &impl Region) -> bool {
        PROJECTIONS.iter().all(|which| self.view(*which, region).is_some())
    }
}

/// Alignment in memory that the kernels' loads of a code want.
fn code_align(format: Format) -> usize {
    match format {
        Format::F32 => 4,
        Format::Bf16 | Format::F16 => 2,
        _ => 1,
    }
}

/// Every routed expert of a model: layer -> experts.
#[derive(Clone, Debug, Default)]
pub struct ExpertTable {
    /// Where a layer's experts begin in `experts`, and how many they are.
    layers: Vec<Option<(u32, u32)>>,
    experts: Vec<ExpertLayout>,
    /// The largest offset that some part is known to reach in each file.
    reach: HashMap<FileId, u64>,
    slot_bytes: usize,
    total_bytes: u64,
}

impl ExpertTable {
    /// A table of no expert.
    pub fn new() -> Self {
        ExpertTable::default()
    }

    /// Adds the experts of one layer, in the order of their index.
    ///
    /// # Errors
    /// A layer that is there already, and a matrix whose byte counts contradict its format and shape.
    pub fn push_layer(&mut self, layer: u32, experts: Vec<ExpertMatrices>) -> Result<(), StoreError> {
        let index = layer as usize;
        if layer >= MAX_LAYERS || self.layers.get(index).is_some_and(Option::is_some) {
            return Err(StoreError::Internal { what: format!("layer {layer} cannot be added to the expert table") });
        }
        let too_many = |_| StoreError::Internal { what: format!("layer {layer} has more experts than can be named") };
        let first = u32::try_from(self.experts.len()).map_err(too_many)?;
        let count = u32::try_from(experts.len()).map_err(too_many)?;
        // Slots and experts are named by u32; the last value means "none".
        first.checked_add(count).filter(|end| *end < u32::MAX).ok_or_else(|| StoreError::Internal {
            what: format!("with layer {layer} there are more experts than can be named"),
        })?;
        let mut reach = self.reach.clone();
        for expert in &experts {
            for span in parts_of(expert) {
                let end = span.offset.checked_add(span.bytes).ok_or_else(|| span_error(span))?;
                let known = reach.entry(span.file).or_default();
                *known = end.max(*known);
            }
        }
        let plan = |(expert, matrices)| plan_expert(ExpertKey::new(layer, expert), matrices, &reach);
        let planned = (0..count).zip(&experts).map(plan).collect::<Result<Vec<_>, _>>()?;
        for layout in &planned {
            let bytes = layout.slot_bytes().next_multiple_of(BLOCK as usize);
            self.slot_bytes = self.slot_bytes.max(bytes);
            let read: u64 = layout.reads.iter().map(|read| read.span.bytes).sum();
            self.total_bytes = self.total_bytes.saturating_add(read);
        }
        self.experts.extend(planned);
        self.reach = reach;
        if self.layers.len() <= index {
            self.layers.resize(index + 1, None);
        }
        self.layers[index] = Some((first, count));
        Ok(())
    }

    /// Bytes of a slot that holds any expert of the table, a multiple of 4096.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Number of experts over all layers.
    pub fn expert_count(&self) -> usize {
        self.experts.len()
    }

    /// Bytes that reading every expert once takes.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Whether the table has this expert.
    pub fn contains(&self, key: ExpertKey) -> bool {
        self.index_of(key).is_some()
    }

    /// Position of an expert in the table.
    pub(crate) fn index_of(&self, key: ExpertKey) -> Option<u32> {
        let (first, count) = (*self.layers.get(key.layer as usize)?)?;
        (key.expert < count).then(|| first + key.expert)
    }

    /// The layout at a position that [`ExpertTable::index_of`] gave.
    pub(crate) fn layout(&self, index: u32) -> &ExpertLayout {
        &self.experts[index as usize]
    }

    /// All layouts, by position.
    pub(crate) fn layouts(&self) -> &[ExpertLayout] {
        &self.experts
    }
}

/// The spans of an expert: codes of gate, up, down, then their scales.
fn parts_of(expert: &ExpertMatrices) -> impl Iterator<Item = Span> {
    let [gate, up, down] = [&expert.gate, &expert.up, &expert.down];
    let codes = [gate.codes, up.codes, down.codes];
    codes.into_iter().chain([gate.scales, up.scales, down.scales].into_iter().flatten())
}

fn span_error(span: Span) -> StoreError {
    let what = format!("a part of an expert has {} bytes at offset {}", span.bytes, span.offset);
    StoreError::Internal { what }
}

/// Checks the counts of one matrix against its format and shape.
fn check_matrix(key: ExpertKey, name: &str, location: &WeightLocation) -> Result<(), StoreError> {
    let WeightLocation { format, rows, cols, codes, scales, .. } = *location;
    let refused = |why: String| StoreError::Internal {
        what: format!("{key}: {name} [{rows}, {cols}] in {}: {why}", format.name()),
    };
    // Nothing is behind the view yet: only its sizes can be missing.
    if let Err(error) = MatrixView::new(format, rows, cols, &[], &[])
        && !matches!(error, KernelError::Size { .. })
    {
        return Err(refused(error.to_string()));
    }
    let overflow = || refused("its size overflows".to_owned());
    let code_bytes = format.code_bytes(rows, cols).ok_or_else(overflow)? as u64;
    let scale_bytes = (format.scale_count(rows, cols).ok_or_else(overflow)? as u64).checked_mul(4);
    let scale_bytes = scale_bytes.ok_or_else(overflow)?;
    let got = (codes.bytes, scales.map_or(0, |span| span.bytes));
    if got != (code_bytes, scale_bytes) || code_bytes == 0 {
        let why = format!("expected {code_bytes} + {scale_bytes} bytes, got {} + {}", got.0, got.1);
        return Err(refused(why));
    }
    Ok(())
}

/// Plans the reads of one expert. `reach` says how far each file is known to go.
fn plan_expert(
    key: ExpertKey,
    matrices: &ExpertMatrices,
    reach: &HashMap<FileId, u64>,
) -> Result<ExpertLayout, StoreError> {
    let locations = [&matrices.gate, &matrices.up, &matrices.down];
    for (name, location) in ["gate", "up", "down"].iter().zip(locations) {
        check_matrix(key, name, location)?;
    }
    let mut spans: Vec<Span> = parts_of(matrices).filter(|span| span.bytes > 0).collect();
    spans.sort_by_key(|span| (span.file.0, span.offset));
    let mut merged: Vec<Span> = Vec::new();
    for span in spans {
        let last = merged.last_mut().filter(|last| joins(last, span));
        match last {
            Some(last) => last.bytes = span.offset - last.offset + span.bytes,
            None => merged.push(span),
        }
    }
    let mut reads = Vec::with_capacity(merged.len());
    let mut at = 0usize;
    for span in merged {
        let span = whole_blocks(span, reach);
        let bytes = usize::try_from(span.bytes).map_err(|_| span_error(span))?;
        // Off its block by as much in the slot as in the file, where parts stay aligned: then a direct read of the blocks in
        // between needs no detour.
        let lead = if span.offset.is_multiple_of(PART_ALIGN) { (span.offset % BLOCK) as usize } else { 0 };
        at += lead;
        reads.push(ExpertRead { span, at, bytes });
        let end = at.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(BLOCK as usize));
        at = end.ok_or_else(|| span_error(span))?;
    }
    let place = |location: &WeightLocation| -> Option<MatrixPlace> {
        let scales = match location.scales {
            Some(span) if span.bytes > 0 => Some(part_in(&reads, span)?),
            _ => None,
        };
        let WeightLocation { format, rows, cols, codes, .. } = *location;
        Some(MatrixPlace { format, rows, cols, codes: part_in(&reads, codes)?, scales })
    };
    let lost = || StoreError::Internal { what: format!("{key}: a part lies in none of its reads") };
    let [gate, up, down] = locations.map(place);
    let matrices = [gate.ok_or_else(lost)?, up.ok_or_else(lost)?, down.ok_or_else(lost)?];
    Ok(ExpertLayout { key, reads: reads.into_boxed_slice(), matrices })
}

/// Whether `next` can be part of the read `last`: nearly adjacent, and still aligned in the slot.
fn joins(last: &Span, next: Span) -> bool {
    let end = last.offset + last.bytes;
    next.file == last.file
        && next.offset >= end
        && next.offset - end < BLOCK
        && (next.offset - last.offset).is_multiple_of(PART_ALIGN)
}

/// Extends a read that begins on a block to whole blocks, where the file is known to have them: then a direct read needs
/// no detour for its tail.
fn whole_blocks(span: Span, reach: &HashMap<FileId, u64>) -> Span {
    let known = reach.get(&span.file).copied().unwrap_or(0);
    let whole = span.bytes.checked_next_multiple_of(BLOCK);
    let fits = |bytes: &u64| span.offset.checked_add(*bytes).is_some_and(|end| end <= known);
    match whole.filter(fits) {
        Some(bytes) if span.offset.is_multiple_of(BLOCK) => Span { bytes, ..span },
        _ => span,
    }
}

/// Where a part lies among the reads.
fn part_in(reads: &[ExpertRead], span: Span) -> Option<Part> {
    let holds = |read: &ExpertRead| {
        let offset = span.offset.checked_sub(read.span.offset)?;
        let fits = read.span.file == span.file
            && offset.is_multiple_of(PART_ALIGN)
            && offset.checked_add(span.bytes)? <= read.span.bytes;
        fits.then_some(offset)
    };
    let (read, offset) = reads.iter().enumerate().find_map(|(index, read)| Some((index, holds(read)?)))?;
    Some(Part { read, offset: usize::try_from(offset).ok()?, bytes: usize::try_from(span.bytes).ok()? })
}

#[cfg(test)]
mod tests;
