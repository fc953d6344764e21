//! Where each expert lies on disk, and how it lies in a slot.
//!
//! Owns: for every expert the list of reads (spans of one file that touch, or nearly touch, are one read, whatever their
//! alignment), the place of each part in the slot, and the shapes. Everything is checked here once, so that a lease can
//! be viewed without errors. The module `held` keeps scales that lie apart from their codes in memory.
//! Must hold: a read covers whole blocks of the file, as far as the file is known to have them, and lands on blocks of the
//! slot, so that a direct read needs no detour; codes and scales are used in place, because a part that is aligned for
//! its elements in the file is aligned in the slot. Integer codes need no alignment. Scales at odd offsets of the file are
//! reads of their own, shifted in the slot; they alone pay for it with a copy.
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
use crate::source::{Bytes, Span};

mod held;

/// Alignment of every read in the slot, and of records in the file. A hole smaller than this is read over: it costs
/// less than a second request.
const BLOCK: u64 = 4096;
/// Reads are cut into pieces of about this size, so that several threads work on the expert that is needed first. A
/// disk is at full speed from about 1 MB on.
const PIECE_BYTES: usize = 4 << 20;
/// Alignment of f32 scales.
const SCALE_ALIGN: u64 = 4;
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
    /// Bytes by which its parts miss the alignment of their elements in the file; the slot makes it good.
    shift: u64,
    /// Whether it brings codes; a read of scales alone can be saved by holding them.
    codes: bool,
}

/// What has the bytes of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The read of this number.
    Read(usize),
    /// The scales that the table holds.
    Held,
}

/// A part of an expert: where its bytes are, and where among them it begins.
#[derive(Clone, Copy, Debug)]
struct Part {
    origin: Origin,
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

    /// A matrix of the expert over the bytes of `region` and the scales that the table holds. `None` if they are not
    /// there, too few, or cannot be used in place.
    pub(crate) fn view<'a>(
        &self,
        which: Projection,
        region: &'a impl Region,
        held: &'a [u8],
    ) -> Option<MatrixView<'a>> {
        let place = &self.matrices[which as usize];
        let bytes = |part: &Part| -> Option<&'a [u8]> {
            let whole = match part.origin {
                Origin::Read(index) => region.read_bytes(index, self.reads.get(index)?)?,
                Origin::Held => held,
            };
            whole.get(part.offset..part.offset.checked_add(part.bytes)?)
        };
        let codes = bytes(&place.codes)?;
        if !(codes.as_ptr() as usize).is_multiple_of(code_align(place.format) as usize) {
            return None;
        }
        let scales: &[f32] = match &place.scales {
            Some(part) => bytemuck::try_cast_slice(bytes(part)?).ok()?,
            None => &[],
        };
        MatrixView::new(place.format, place.rows, place.cols, codes, scales).ok()
    }

    /// Whether all three matrices can be viewed over `region`.
    pub(crate) fn fits(&self, region: &impl Region, held: &[u8]) -> bool {
        PROJECTIONS.iter().all(|which| self.view(*which, region, held).is_some())
    }

    /// Bytes of the slot that would be used, and reads that would be needed, without the reads that bring scales alone.
    fn without_far_scales(&self) -> (usize, usize) {
        let (mut at, mut count) = (0, 0);
        for read in self.reads.iter().filter(|read| read.codes) {
            at = next_block(at).unwrap_or(usize::MAX).saturating_add(lead(&read.span, read.shift));
            at = at.saturating_add(read.bytes);
            count += 1;
        }
        (at, count)
    }
}

/// Alignment in memory that the kernels' loads of a code want.
fn code_align(format: Format) -> u64 {
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
    slot_bytes_codes: usize,
    reads: usize,
    reads_codes: usize,
    total_bytes: u64,
    /// Scales that are read once and kept; leases view them beside their slot.
    held: Option<Bytes>,
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
        let stored = experts.iter().flat_map(parts_of).fold(0u64, |sum, span| sum.saturating_add(span.bytes));
        self.total_bytes = self.total_bytes.saturating_add(stored);
        self.experts.extend(planned);
        self.measure(first as usize);
        self.reach = reach;
        if self.layers.len() <= index {
            self.layers.resize(index + 1, None);
        }
        self.layers[index] = Some((first, count));
        Ok(())
    }

    /// Takes the experts from the position `first` on into the sizes of a slot and the numbers of reads.
    fn measure(&mut self, first: usize) {
        for layout in &self.experts[first..] {
            let whole = |bytes: usize| next_block(bytes).unwrap_or(usize::MAX);
            let (codes, reads_codes) = layout.without_far_scales();
            self.slot_bytes = self.slot_bytes.max(whole(layout.slot_bytes()));
            self.slot_bytes_codes = self.slot_bytes_codes.max(whole(codes));
            self.reads = self.reads.max(layout.reads.len());
            self.reads_codes = self.reads_codes.max(reads_codes);
        }
    }

    /// Bytes of a slot that holds any expert of the table, a multiple of 4096; without the scales that the table holds.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes of a slot once the table holds every scale that lies apart from its codes.
    pub fn slot_bytes_codes(&self) -> usize {
        self.slot_bytes_codes
    }

    /// Most reads that an expert takes.
    pub fn reads_per_miss(&self) -> usize {
        self.reads
    }

    /// Most reads that an expert takes once the table holds every scale that lies apart from its codes.
    pub fn reads_per_miss_codes(&self) -> usize {
        self.reads_codes
    }

    /// Number of experts over all layers.
    pub fn expert_count(&self) -> usize {
        self.experts.len()
    }

    /// Bytes of the codes and scales of all experts.
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

/// The parts of an expert: codes of gate, up, down, then their scales.
fn parts_of(expert: &ExpertMatrices) -> impl Iterator<Item = Span> {
    aligned_parts(expert).map(|part| part.span)
}

/// A part with the alignment of its elements.
struct AlignedPart {
    span: Span,
    align: u64,
    codes: bool,
}

fn aligned_parts(expert: &ExpertMatrices) -> impl Iterator<Item = AlignedPart> {
    let matrices = [&expert.gate, &expert.up, &expert.down];
    let codes = matrices.map(|place| AlignedPart { span: place.codes, align: code_align(place.format), codes: true });
    let scales = matrices.map(|place| place.scales.filter(|span| span.bytes > 0));
    let scales = scales.into_iter().flatten().map(|span| AlignedPart { span, align: SCALE_ALIGN, codes: false });
    codes.into_iter().chain(scales)
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

/// Checks and plans one expert. `reach` says how far each file is known to go.
fn plan_expert(
    key: ExpertKey,
    matrices: &ExpertMatrices,
    reach: &HashMap<FileId, u64>,
) -> Result<ExpertLayout, StoreError> {
    let locations = [&matrices.gate, &matrices.up, &matrices.down];
    for (name, location) in ["gate", "up", "down"].iter().zip(locations) {
        check_matrix(key, name, location)?;
    }
    let reads = place_reads(joined_parts(matrices), reach)?;
    let place = |location: &WeightLocation| -> Option<MatrixPlace> {
        let scales = match location.scales {
            Some(span) if span.bytes > 0 => Some(part_in(&reads, span, SCALE_ALIGN)?),
            _ => None,
        };
        let WeightLocation { format, rows, cols, codes, .. } = *location;
        Some(MatrixPlace { format, rows, cols, codes: part_in(&reads, codes, code_align(format))?, scales })
    };
    let lost = || StoreError::Internal { what: format!("{key}: a part lies in none of its reads") };
    let [gate, up, down] = locations.map(place);
    let matrices = [gate.ok_or_else(lost)?, up.ok_or_else(lost)?, down.ok_or_else(lost)?];
    Ok(ExpertLayout { key, reads: reads.into_boxed_slice(), matrices })
}

/// A run of bytes that is read at once.
struct Run {
    span: Span,
    shift: u64,
    codes: bool,
}

/// The parts of an expert as runs, in the order of the files: parts that touch, or nearly, and miss their alignment by
/// the same number of bytes are one run. Most miss it by none; integer codes always do.
fn joined_parts(matrices: &ExpertMatrices) -> Vec<Run> {
    let mut parts: Vec<AlignedPart> = aligned_parts(matrices).filter(|part| part.span.bytes > 0).collect();
    parts.sort_by_key(|part| (part.span.file.0, part.span.offset));
    let mut runs: Vec<Run> = Vec::new();
    for AlignedPart { span, align, codes } in parts {
        let shift = span.offset % align;
        // The last run of the same shift: one of another shift may lie in between.
        let last = runs.iter_mut().rev().find(|run| run.shift == shift);
        match last.filter(|run| nearly_touches(&run.span, span)) {
            Some(run) => {
                run.span.bytes = span.offset - run.span.offset + span.bytes;
                run.codes |= codes;
            }
            None => runs.push(Run { span, shift, codes }),
        }
    }
    runs
}

/// Gives each run its place in the slot.
fn place_reads(runs: Vec<Run>, reach: &HashMap<FileId, u64>) -> Result<Vec<ExpertRead>, StoreError> {
    let mut reads = Vec::with_capacity(runs.len());
    let mut end = 0usize;
    for Run { span, shift, codes } in runs {
        let span = if shift == 0 { whole_blocks(span, reach) } else { span };
        let bytes = usize::try_from(span.bytes).map_err(|_| span_error(span))?;
        let at = next_block(end).and_then(|at| at.checked_add(lead(&span, shift)));
        let at = at.ok_or_else(|| span_error(span))?;
        end = at.checked_add(bytes).filter(|end| next_block(*end).is_some()).ok_or_else(|| span_error(span))?;
        reads.push(ExpertRead { span, at, bytes, shift, codes });
    }
    Ok(reads)
}

/// How far into its block of the slot a read begins: as far as in the file, less what its parts miss their alignment by.
fn lead(span: &Span, shift: u64) -> usize {
    ((span.offset - shift) % BLOCK) as usize
}

fn next_block(offset: usize) -> Option<usize> {
    offset.checked_next_multiple_of(BLOCK as usize)
}

/// Whether so little lies between a run and the part after it that reading it costs less than a second request.
fn nearly_touches(run: &Span, next: Span) -> bool {
    let end = run.offset + run.bytes;
    next.file == run.file && next.offset >= end && next.offset - end < BLOCK
}

/// Extends a run to whole blocks: the first always, the last where the file is known to have it.
fn whole_blocks(span: Span, reach: &HashMap<FileId, u64>) -> Span {
    let known = reach.get(&span.file).copied().unwrap_or(0);
    let offset = span.offset / BLOCK * BLOCK;
    let end = span.offset + span.bytes;
    let end = end.checked_next_multiple_of(BLOCK).filter(|whole| *whole <= known).unwrap_or(end);
    Span { offset, bytes: end - offset, ..span }
}

/// Where a part lies among the reads.
fn part_in(reads: &[ExpertRead], span: Span, align: u64) -> Option<Part> {
    let holds = |read: &ExpertRead| {
        let offset = span.offset.checked_sub(read.span.offset)?;
        let fits = read.span.file == span.file
            && read.shift == span.offset % align
            && offset.checked_add(span.bytes)? <= read.span.bytes;
        fits.then_some(offset)
    };
    let (read, offset) = reads.iter().enumerate().find_map(|(index, read)| Some((index, holds(read)?)))?;
    let (offset, bytes) = (usize::try_from(offset).ok()?, usize::try_from(span.bytes).ok()?);
    Some(Part { origin: Origin::Read(read), offset, bytes })
}

#[cfg(test)]
mod tests;
