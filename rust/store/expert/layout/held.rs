//! Scales that lie apart from their codes, held in memory: read once, in one sweep over the files, instead of with every
//! miss.
//!
//! Must hold: the bytes that holding takes are known from the table alone, before anything is read; a part is held at a
//! multiple of 4 bytes, whatever its offset in the file; a table whose scales could not be read is as it was.

use std::ops::Range;
use std::sync::Arc;

use colibri_kernels::buffer::AlignedBuffer;

use super::{ExpertLayout, ExpertRead, ExpertTable, MatrixPlace, Origin, SCALE_ALIGN, lead, next_block, span_error};
use crate::error::StoreError;
use crate::resident::fill_slab;
use crate::source::{Bytes, Source, Span};

/// Where a run of scales begins in memory.
const RUN_ALIGN: usize = 64;

/// The scales of one matrix, to be held.
struct Scales {
    expert: usize,
    matrix: usize,
    span: Span,
    /// Where they come to lie.
    at: usize,
}

/// All scales to be held, and the runs in which they are read.
struct HeldPlan {
    scales: Vec<Scales>,
    runs: Vec<(Range<usize>, Span)>,
    bytes: usize,
}

/// Reads that bring scales alone.
fn is_far(read: &ExpertRead) -> bool {
    !read.codes
}

/// Reads that bring scales alone, from an offset where a mapping cannot lend them.
fn is_unaligned(read: &ExpertRead) -> bool {
    !read.codes && read.shift != 0
}

impl ExpertTable {
    /// Bytes that holding every scale that lies apart from its codes takes.
    pub fn far_scale_bytes(&self) -> u64 {
        self.plan_held(is_far).map_or(u64::MAX, |plan| plan.bytes as u64)
    }

    /// Of [`ExpertTable::far_scale_bytes`], those that a mapping cannot lend, because their offset in the file is no
    /// multiple of 4.
    pub fn unaligned_scale_bytes(&self) -> u64 {
        self.plan_held(is_unaligned).map_or(u64::MAX, |plan| plan.bytes as u64)
    }

    /// Reads the scales that lie apart from their codes and keeps them: a miss reads codes alone from then on, and slots
    /// are smaller. Of a source that lends its bytes, only what it cannot lend is copied. `progress` gets the bytes done
    /// and in total and answers whether to go on.
    ///
    /// # Errors
    /// A read that fails, memory that cannot be had, or [`StoreError::Cancelled`] when `progress` answered `false`.
    pub fn hold_scales(
        &mut self,
        source: &dyn Source,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(), StoreError> {
        let lends = self.experts.iter().find_map(|layout| layout.reads.first());
        let lends = lends.is_some_and(|read| source.borrow(read.span).is_some());
        let wanted = if lends { is_unaligned } else { is_far };
        let plan = self.plan_held(wanted)?;
        if self.held.is_some() || plan.scales.is_empty() {
            return Ok(());
        }
        let mut slab = AlignedBuffer::new(plan.bytes)?;
        fill_slab(source, &mut slab, plan.runs, progress)?;
        self.held = Some(Bytes::from_buffer(Arc::new(slab)));
        for Scales { expert, matrix, at, .. } in plan.scales {
            if let Some(part) = self.experts[expert].matrices.get_mut(matrix).and_then(|place| place.scales.as_mut()) {
                (part.origin, part.offset) = (Origin::Held, at);
            }
        }
        for layout in &mut self.experts {
            layout.drop_reads(wanted)?;
        }
        (self.slot_bytes, self.slot_bytes_codes, self.reads, self.reads_codes) = (0, 0, 0, 0);
        self.measure(0);
        Ok(())
    }

    /// The scales that the table holds; none before [`ExpertTable::hold_scales`].
    pub(crate) fn held(&self) -> &[u8] {
        self.held.as_deref().unwrap_or_default()
    }

    /// Lays out the scales whose reads are `wanted`: in the order of the files, each run of touching ones in one piece.
    fn plan_held(&self, wanted: fn(&ExpertRead) -> bool) -> Result<HeldPlan, StoreError> {
        let mut scales: Vec<Scales> = Vec::new();
        for (expert, layout) in self.experts.iter().enumerate() {
            let spans = layout.matrices.iter().map(|place| layout.far_scales(place, wanted));
            let found = spans.enumerate().filter_map(|(matrix, span)| Some((matrix, span?)));
            scales.extend(found.map(|(matrix, span)| Scales { expert, matrix, span, at: 0 }));
        }
        scales.sort_unstable_by_key(|part| (part.span.file.0, part.span.offset));
        let mut runs: Vec<(Range<usize>, Span)> = Vec::new();
        let mut end = 0usize;
        for part in &mut scales {
            let too_large = || span_error(part.span);
            let bytes = usize::try_from(part.span.bytes).map_err(|_| too_large())?;
            let last = runs.last_mut().filter(|(_, run)| touches(run, part.span));
            let start = if last.is_some() { Some(end) } else { end.checked_next_multiple_of(RUN_ALIGN) };
            let start = start.ok_or_else(too_large)?;
            end = start.checked_add(bytes).ok_or_else(too_large)?;
            part.at = start;
            match last {
                Some((range, run)) => {
                    range.end = end;
                    run.bytes += part.span.bytes;
                }
                None => runs.push((start..end, part.span)),
            }
        }
        Ok(HeldPlan { scales, runs, bytes: end })
    }
}

/// Whether scales follow a run directly, and stay aligned behind it.
fn touches(run: &Span, next: Span) -> bool {
    next.file == run.file && run.offset + run.bytes == next.offset && run.bytes.is_multiple_of(SCALE_ALIGN)
}

impl ExpertLayout {
    /// Where the scales of a matrix lie in their file, if a read that is `wanted` brings them.
    fn far_scales(&self, place: &MatrixPlace, wanted: fn(&ExpertRead) -> bool) -> Option<Span> {
        let part = place.scales?;
        let Origin::Read(index) = part.origin else { return None };
        let read = self.reads.get(index).filter(|read| wanted(read))?;
        let (file, offset) = (read.span.file, read.span.offset + part.offset as u64);
        Some(Span { file, offset, bytes: part.bytes as u64 })
    }

    /// Takes out the reads that are `dropped`, whose parts are held, and moves the others together in the slot.
    fn drop_reads(&mut self, dropped: fn(&ExpertRead) -> bool) -> Result<(), StoreError> {
        let mut kept = Vec::with_capacity(self.reads.len());
        let mut numbers = Vec::with_capacity(self.reads.len());
        let mut end = 0usize;
        for read in &self.reads {
            numbers.push(kept.len());
            if dropped(read) {
                continue;
            }
            let at = next_block(end).and_then(|at| at.checked_add(lead(&read.span, read.shift)));
            let at = at.ok_or_else(|| span_error(read.span))?;
            end = at + read.bytes;
            kept.push(ExpertRead { at, ..*read });
        }
        for place in &mut self.matrices {
            for part in std::iter::once(&mut place.codes).chain(&mut place.scales) {
                if let Origin::Read(index) = part.origin {
                    part.origin = Origin::Read(numbers.get(index).copied().unwrap_or(usize::MAX));
                }
            }
        }
        self.reads = kept.into_boxed_slice();
        Ok(())
    }
}
