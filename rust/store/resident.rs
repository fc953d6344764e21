//! Weights that stay in memory: all of them in one slab, or borrowed from a mapping.
//!
//! What must hold: every part begins on a multiple of 64 bytes in the slab; a part borrowed from a mapping begins on a
//! multiple of its element size. Each matrix is checked once, when it is loaded; a view of it cannot fail.

use std::ops::Range;
use std::sync::Arc;

use colibri_kernels::buffer::AlignedBuffer;
use colibri_kernels::error::KernelError;
use colibri_kernels::format::{Format, decode_row};
use colibri_kernels::matrix::MatrixView;

use crate::catalog::WeightLocation;
use crate::error::StoreError;
use crate::memory;
use crate::source::{Bytes, ReadJob, Source, Span};

/// Where parts begin in the slab: a cache line, and the widest vector register.
const PART_ALIGN: usize = 64;

/// How much is read between two reports of progress.
const BATCH: u64 = 64 << 20;

/// A weight matrix in memory: owned in a slab or borrowed from a mapped file; cheap to clone.
#[derive(Clone, Debug)]
pub struct StoredMatrix {
    format: Format,
    rows: usize,
    cols: usize,
    codes: Bytes,
    scales: Option<Bytes>,
}

impl StoredMatrix {
    /// A matrix [rows, cols] of these codes and f32 scales.
    ///
    /// # Errors
    /// Codes or scales of another size than format and shape demand, or scales that are not aligned to 4 bytes.
    pub fn new(
        format: Format,
        rows: usize,
        cols: usize,
        codes: Bytes,
        scales: Option<Bytes>,
    ) -> Result<Self, StoreError> {
        let aligned = scales.as_deref().is_none_or(|bytes| bytemuck::try_cast_slice::<u8, f32>(bytes).is_ok());
        if !aligned {
            return Err(StoreError::Internal { what: "scales are not whole, aligned f32 values".to_owned() });
        }
        let matrix = StoredMatrix { format, rows, cols, codes, scales };
        matrix.checked_view().map_err(|error| StoreError::Internal { what: error.to_string() })?;
        Ok(matrix)
    }

    fn checked_view(&self) -> Result<MatrixView<'_>, KernelError> {
        let scales = self.scales.as_deref().unwrap_or_default();
        let scales = bytemuck::try_cast_slice(scales).unwrap_or_default();
        MatrixView::new(self.format, self.rows, self.cols, &self.codes, scales)
    }

    /// The matrix as the kernels take it.
    pub fn view(&self) -> MatrixView<'_> {
        match self.checked_view() {
            Ok(view) => view,
            Err(_) => unreachable!("the same sizes were checked when the matrix was made"),
        }
    }

    /// The storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows (outputs); 1 for a vector.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of codes and scales.
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.as_ref().map_or(0, |scales| scales.len())
    }

    /// Whether the bytes lie in a mapped file.
    pub fn is_mapped(&self) -> bool {
        self.codes.is_mapped()
    }
}

/// Where one part of a matrix comes to lie.
enum Part {
    Lent(Bytes),
    Slab(Range<usize>),
}

/// Lays parts out in a slab, or borrows them.
struct Layout<'a> {
    source: &'a dyn Source,
    end: usize,
    /// The spans that go to the slab, in the order of their places.
    reads: Vec<(Range<usize>, Span)>,
}

impl Layout<'_> {
    /// Finds a place for a span whose values have `element` bytes.
    fn place(&mut self, span: Span, element: usize) -> Result<Part, StoreError> {
        if let Some(bytes) = self.source.borrow(span)
            && (bytes.as_ptr() as usize).is_multiple_of(element)
        {
            return Ok(Part::Lent(bytes));
        }
        let too_large = || StoreError::Internal { what: "the resident weights exceed the address space".to_owned() };
        let start = self.end.checked_next_multiple_of(PART_ALIGN).ok_or_else(too_large)?;
        let length = usize::try_from(span.bytes).map_err(|_| too_large())?;
        self.end = start.checked_add(length).ok_or_else(too_large)?;
        self.reads.push((start..self.end, span));
        Ok(Part::Slab(start..self.end))
    }
}

/// Bytes of one value of a format's codes.
fn element_bytes(format: Format) -> usize {
    match format {
        Format::F32 => 4,
        Format::Bf16 | Format::F16 => 2,
        _ => 1,
    }
}

/// Reads `locations` into one slab, or borrows them from a mapping; the matrices come in the order of the locations.
///
/// `progress` gets the bytes done and the bytes in total and answers whether to go on.
///
/// # Errors
/// A read that fails, memory that cannot be had, or [`StoreError::Cancelled`] when `progress` answered `false`.
pub fn load_resident(
    source: &dyn Source,
    locations: &[WeightLocation],
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Vec<StoredMatrix>, StoreError> {
    let mut layout = Layout { source, end: 0, reads: Vec::new() };
    let mut parts = Vec::with_capacity(locations.len());
    for location in locations {
        let codes = layout.place(location.codes, element_bytes(location.format))?;
        let scales = location.scales.map(|span| layout.place(span, 4)).transpose()?;
        parts.push((codes, scales));
    }
    let mut slab = AlignedBuffer::new(layout.end)?;
    fill_slab(source, &mut slab, layout.reads, progress)?;
    let slab = Bytes::from_buffer(Arc::new(slab));
    let bytes_of = |part: Part| match part {
        Part::Lent(bytes) => Ok(bytes),
        Part::Slab(range) => {
            slab.slice(range).ok_or_else(|| StoreError::Internal { what: "a part lies outside of its slab".to_owned() })
        }
    };
    let mut matrices = Vec::with_capacity(locations.len());
    for (location, (codes, scales)) in locations.iter().zip(parts) {
        let (codes, scales) = (bytes_of(codes)?, scales.map(bytes_of).transpose()?);
        matrices.push(StoredMatrix::new(location.format, location.rows, location.cols, codes, scales)?);
    }
    Ok(matrices)
}

/// Reads all spans into their places, which ascend and do not overlap, in the order of the files so that the disk sees
/// one sweep.
pub(crate) fn fill_slab(
    source: &dyn Source,
    slab: &mut AlignedBuffer,
    reads: Vec<(Range<usize>, Span)>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(), StoreError> {
    let total = reads.iter().fold(0u64, |sum, (_, span)| sum.saturating_add(span.bytes));
    let mut jobs = Vec::with_capacity(reads.len());
    let (mut rest, mut at): (&mut [u8], usize) = (&mut slab[..], 0);
    for (range, span) in reads {
        // Places follow each other with gaps only for alignment, as their makers hand them out.
        let (head, after) = std::mem::take(&mut rest).split_at_mut(range.end - at);
        let into = range.start - at;
        jobs.push(ReadJob { span, into: &mut head[into..] });
        (rest, at) = (after, range.end);
    }
    jobs.sort_by_key(|job| (job.span.file, job.span.offset));
    let mut done = 0u64;
    let mut left = &mut jobs[..];
    while !left.is_empty() {
        if !progress(done, total) {
            return Err(StoreError::Cancelled);
        }
        let (mut count, mut bytes) = (0, 0u64);
        while count < left.len() && (count == 0 || bytes < BATCH) {
            bytes = bytes.saturating_add(left[count].span.bytes);
            count += 1;
        }
        let (batch, after) = left.split_at_mut(count);
        source.read(batch)?;
        done = done.saturating_add(bytes);
        left = after;
    }
    if progress(done, total) { Ok(()) } else { Err(StoreError::Cancelled) }
}

/// Reads a weight of any format as f32 values. // [rows * cols]
///
/// # Errors
/// A read that fails, or memory that cannot be had.
pub fn load_f32(source: &dyn Source, location: &WeightLocation) -> Result<Vec<f32>, StoreError> {
    let matrices = load_resident(source, std::slice::from_ref(location), &mut |_, _| true)?;
    let Some(matrix) = matrices.first() else {
        return Err(StoreError::Internal { what: "a weight was not loaded".to_owned() });
    };
    // Codes of this many elements lie in memory, so the product cannot overflow.
    let mut values = memory::zeroed::<f32>(matrix.rows * matrix.cols)?;
    let view = matrix.view();
    for (row, out) in values.chunks_exact_mut(matrix.cols.max(1)).enumerate() {
        decode_row(&view, row, out);
    }
    Ok(values)
}

#[cfg(test)]
mod tests;
