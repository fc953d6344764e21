//! The one door into the kernels: a weight matrix whose sizes were checked once and are then trusted.
//!
//! Owns: [`MatrixView`]. Must hold: the codes and scales have exactly the counts that format and shape
//! demand, and the shape lies within the limits under which integer sums cannot overflow.
//! Refuses: everything else, by [`KernelError`].

use std::ops::Range;

use crate::error::KernelError;
use crate::format::{Format, Grouping};

/// Most columns of a matrix: `128 * 127 * 131072 < 2^31`, so the sum of one activation plane over a row
/// of int8 codes fits 32 bits, and so does the sum of a whole row of activation codes.
pub const MAX_COLS: usize = 131_072;
/// Most columns of a scale group: a block sum of offset codes stays below 2^31.
pub const MAX_GROUP: usize = 4096;

/// A borrowed weight matrix `[rows, cols]`, row-major, in the layout of its format.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    row_scales: usize,
    block_rows: usize, // rows that share their scales
    first_row: usize,  // place of the first row in the block that it belongs to
    codes: &'a [u8],   // [rows, row_bytes]
    scales: &'a [f32], // [ceil((first_row + rows) / block_rows), row_scales]
}

impl<'a> MatrixView<'a> {
    /// Checks the counts and the shape.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for a shape or group that the kernels do not compute exactly,
    /// [`KernelError::Size`] when `codes` (bytes) or `scales` (values) have another length.
    pub fn new(
        format: Format,
        rows: usize,
        cols: usize,
        codes: &'a [u8],
        scales: &'a [f32],
    ) -> Result<Self, KernelError> {
        check_shape(format, rows, cols)?;
        let overflow = || shape_error(format, rows, cols, "its size overflows");
        let code_bytes = format.code_bytes(rows, cols).ok_or_else(overflow)?;
        let scale_count = format.scale_count(rows, cols).ok_or_else(overflow)?;
        for (part, expected, got) in [("code bytes", code_bytes, codes.len()), ("scales", scale_count, scales.len())] {
            if expected != got {
                return Err(KernelError::Size { format: format.name(), rows, cols, part, expected, got });
            }
        }
        let row_bytes = format.code_bytes(1, cols).ok_or_else(overflow)?;
        let row_scales = format.scale_count(1, cols).ok_or_else(overflow)?;
        let block_rows = match format.grouping() {
            Grouping::Blocks { rows, .. } => rows.max(1),
            _ => 1,
        };
        Ok(Self { format, rows, cols, row_bytes, row_scales, block_rows, first_row: 0, codes, scales })
    }

    /// The storage format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of rows (outputs of a product).
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns (inputs of a product).
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes, `rows` times the bytes of a row.
    #[must_use]
    pub fn codes(&self) -> &'a [u8] {
        self.codes
    }

    /// The scales: none for float formats, one per row, one per group of each row, or one per block of the
    /// blocks that these rows touch.
    #[must_use]
    pub fn scales(&self) -> &'a [f32] {
        self.scales
    }

    /// The sub-matrix of whole rows `rows`.
    ///
    /// # Panics
    /// If the range does not lie within `0..rows()`.
    #[must_use]
    pub fn row_range(&self, rows: Range<usize>) -> MatrixView<'a> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "row range outside of the matrix");
        let (first, end) = (self.first_row + rows.start, self.first_row + rows.end);
        let blocks = first / self.block_rows..end.div_ceil(self.block_rows);
        MatrixView {
            rows: rows.len(),
            first_row: first % self.block_rows,
            codes: &self.codes[rows.start * self.row_bytes..rows.end * self.row_bytes],
            scales: &self.scales[blocks.start * self.row_scales..blocks.end * self.row_scales],
            ..*self
        }
    }

    /// The code bytes of one row.
    #[inline(always)]
    pub(crate) fn row_codes(&self, row: usize) -> &'a [u8] {
        &self.codes[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// The scales of one row.
    #[inline(always)]
    pub(crate) fn row_scales(&self, row: usize) -> &'a [f32] {
        // Nearly every format has scales of its own for each row: no division then.
        let block = if self.block_rows == 1 { row } else { (self.first_row + row) / self.block_rows };
        &self.scales[block * self.row_scales..(block + 1) * self.row_scales]
    }
}

/// Refuses shapes outside of the limits.
pub(crate) fn check_shape(format: Format, rows: usize, cols: usize) -> Result<(), KernelError> {
    let refuse = |reason| Err(shape_error(format, rows, cols, reason));
    if cols == 0 {
        return refuse("it has no columns");
    }
    if format.quantised() && cols > MAX_COLS {
        return refuse("a quantised row has at most 131072 columns");
    }
    match format.grouping() {
        Grouping::Columns(0) => refuse("a group has at least one column"),
        Grouping::Columns(group) if group > MAX_GROUP => refuse("a group has at most 4096 columns"),
        _ => Ok(()),
    }
}

fn shape_error(format: Format, rows: usize, cols: usize, reason: &'static str) -> KernelError {
    KernelError::Shape { format: format.name(), rows, cols, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_counts_are_accepted_and_all_others_named() {
        let codes = [0u8; 15];
        let scales = [1.0f32; 3];
        assert!(MatrixView::new(Format::Int4Row, 3, 9, &codes, &scales).is_ok());
        let error = MatrixView::new(Format::Int4Row, 3, 9, &codes[..14], &scales).unwrap_err();
        assert_eq!(error.to_string(), "a q4row matrix of 3 x 9 needs 15 code bytes, got 14");
        let error = MatrixView::new(Format::Int4Row, 3, 9, &codes, &scales[..2]).unwrap_err();
        assert!(matches!(error, KernelError::Size { part: "scales", expected: 3, got: 2, .. }));
        assert!(MatrixView::new(Format::Int4Row, usize::MAX, 9, &codes, &scales).is_err());
    }

    #[test]
    fn shapes_beyond_exact_arithmetic_are_refused() {
        for (format, cols) in [
            (Format::Int8Row, MAX_COLS + 1),
            (Format::Int4Grouped { group: 0 }, 64),
            (Format::Int4Grouped { group: 4097 }, 64),
            (Format::F32, 0),
        ] {
            let error = MatrixView::new(format, 1, cols, &[], &[]).unwrap_err();
            assert!(matches!(error, KernelError::Shape { .. }), "{format:?} {cols}");
        }
    }

    #[test]
    fn a_row_range_keeps_codes_and_scales_together() {
        let codes: Vec<u8> = (0..12).collect();
        let scales = [0.5f32, 1.5, 2.5];
        let view = MatrixView::new(Format::Int8Row, 3, 4, &codes, &scales).unwrap();
        let part = view.row_range(1..3);
        assert_eq!((part.rows(), part.cols()), (2, 4));
        assert_eq!(part.codes(), &codes[4..]);
        assert_eq!(part.scales(), &[1.5, 2.5]);
        assert_eq!(view.row_range(3..3).rows(), 0);
    }

    #[test]
    fn a_row_range_of_blocks_keeps_the_scales_that_its_rows_touch() {
        let (rows, cols) = (300, 130);
        let codes = vec![0x38u8; rows * cols]; // 1.0
        let scales = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let view = MatrixView::new(Format::Fp8Block, rows, cols, &codes, &scales).unwrap();
        let touched = |range: Range<usize>| view.row_range(range).scales().to_vec();
        assert_eq!(touched(0..128), [1.0, 2.0]);
        assert_eq!(touched(127..129), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(touched(200..300), [3.0, 4.0, 5.0, 6.0]);
        assert_eq!(view.row_range(5..5).rows(), 0);
        assert_eq!(view.row_range(300..300).rows(), 0);
        // Ranges of ranges, which begin and end inside of blocks.
        let part = view.row_range(100..290).row_range(27..160);
        for row in 0..part.rows() {
            let whole = 127 + row;
            let block = whole / 128;
            assert_eq!(part.row_scales(row), &scales[2 * block..2 * block + 2], "row {row}");
            assert_eq!(part.row_codes(row), view.row_codes(whole));
        }
        assert_eq!(part.row_range(0..1).scales(), &[1.0, 2.0]);
        assert_eq!(part.row_range(1..133).scales(), &scales[2..]);
    }

    #[test]
    fn every_format_refuses_one_byte_and_one_scale_too_few_or_many() {
        for format in crate::format::FORMATS.iter().map(|spec| spec.example) {
            let (rows, cols) = (130, 129);
            let (codes, scales) = (format.code_bytes(rows, cols).unwrap(), format.scale_count(rows, cols).unwrap());
            let (bytes, values) = (vec![0u8; codes + 1], vec![0f32; scales + 1]);
            let accepted = |codes: usize, scales: usize| {
                MatrixView::new(format, rows, cols, &bytes[..codes], &values[..scales]).is_ok()
            };
            assert!(accepted(codes, scales), "{format:?}");
            assert!(!accepted(codes - 1, scales) && !accepted(codes + 1, scales), "{format:?}");
            assert!(!accepted(codes, scales + 1) && (scales == 0 || !accepted(codes, scales - 1)), "{format:?}");
            assert_eq!(format.has_scales(), scales > 0, "{format:?}");
        }
    }
}
