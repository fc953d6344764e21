//! The record of a routed expert: its codes and scales as one run of bytes in a shard.
//!
//! Order: codes of gate, up, down, then scales of gate, up, down; a format without scales leaves them out. Every part
//! starts on a multiple of [`PART_ALIGNMENT`] and the record on a multiple of [`RECORD_ALIGNMENT`] from the start of the
//! FILE, and its length is a multiple of that too: one direct read fetches it, and the scales are used in place as f32.

/// Alignment of a part within a record, in bytes: a cache line, and more than any element needs.
pub const PART_ALIGNMENT: u64 = 64;
/// Alignment of a record's start and length, in bytes: the page, and a multiple of every direct-read granule.
pub const RECORD_ALIGNMENT: u64 = 4096;
/// Matrices of an expert, in record order: gate, up, down.
pub const MATRICES: usize = 3;

/// Bytes of one matrix: its codes and its scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixBytes {
    /// Bytes of the codes.
    pub codes: u64,
    /// Bytes of the scales; 0 for a format without.
    pub scales: u64,
}

/// Where the parts of a record lie, relative to its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// Start of the codes of gate, up, down.
    pub codes: [u64; MATRICES],
    /// Start of the scales of gate, up, down.
    pub scales: [u64; MATRICES],
    /// Length of the record, padding included.
    pub bytes: u64,
}

impl RecordLayout {
    /// The layout for matrices of these sizes; `None` when the sum does not fit.
    #[must_use]
    pub fn new(matrices: [MatrixBytes; MATRICES]) -> Option<Self> {
        let mut end = 0u64;
        let mut place = |bytes: u64| {
            let start = end.checked_next_multiple_of(PART_ALIGNMENT)?;
            end = start.checked_add(bytes)?;
            Some(start)
        };
        let mut layout = RecordLayout { codes: [0; MATRICES], scales: [0; MATRICES], bytes: 0 };
        for (start, matrix) in layout.codes.iter_mut().zip(&matrices) {
            *start = place(matrix.codes)?;
        }
        for (start, matrix) in layout.scales.iter_mut().zip(&matrices) {
            *start = place(matrix.scales)?;
        }
        layout.bytes = end.checked_next_multiple_of(RECORD_ALIGNMENT)?;
        Some(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_on_their_alignment() {
        for (codes, scales) in [(8192, 1024), (63, 4), (64, 0), (1, 1), (12_582_912, 8192)] {
            let matrix = MatrixBytes { codes, scales };
            let layout = RecordLayout::new([matrix; MATRICES]).unwrap();
            let starts: Vec<u64> = layout.codes.iter().chain(&layout.scales).copied().collect();
            let lengths = [codes, codes, codes, scales, scales, scales];
            for (index, start) in starts.iter().enumerate() {
                assert_eq!(start % PART_ALIGNMENT, 0);
                let next = starts.get(index + 1).copied().unwrap_or(layout.bytes);
                assert!(start + lengths[index] <= next);
                assert!(index == 5 || next - (start + lengths[index]) < PART_ALIGNMENT);
            }
            assert_eq!(layout.bytes % RECORD_ALIGNMENT, 0);
            assert!(layout.bytes - (starts[5] + scales) < RECORD_ALIGNMENT);
        }
    }

    #[test]
    fn the_published_expert_loses_nothing_to_padding() {
        // 2048 x 6144 in groups of 64: 21,233,664 bytes (6,291,456 codes and 786,432 scales, three times).
        let matrix = MatrixBytes { codes: 6_291_456, scales: 786_432 };
        assert_eq!(RecordLayout::new([matrix; MATRICES]).unwrap().bytes, 21_233_664);
    }

    #[test]
    fn impossible_sizes_have_no_layout() {
        let matrix = MatrixBytes { codes: u64::MAX / 2, scales: 0 };
        assert_eq!(RecordLayout::new([matrix; MATRICES]), None);
    }
}
