//! How parts become reads: records of one read, float checkpoints of three, and everything that is refused.

use super::*;
use crate::catalog::ScaleType;

const Q4: Format = Format::Int4Grouped { group: 64 };

fn span(offset: u64, bytes: u64) -> Span {
    Span { file: FileId(0), offset, bytes }
}

fn grouped(codes: u64, scales: u64) -> WeightLocation {
    // [8, 128]: 512 bytes of codes, 16 scales.
    WeightLocation {
        format: Q4,
        rows: 8,
        cols: 128,
        codes: span(codes, 512),
        scales: Some(span(scales, 64)),
        scale_type: ScaleType::F32,
    }
}

fn float(file: u32, offset: u64) -> WeightLocation {
    let codes = Span { file: FileId(file), offset, bytes: 8 * 128 * 2 };
    WeightLocation { format: Format::Bf16, rows: 8, cols: 128, codes, scales: None, scale_type: ScaleType::F32 }
}

fn table(experts: Vec<ExpertMatrices>) -> ExpertTable {
    let mut table = ExpertTable::new();
    table.push_layer(0, experts).unwrap();
    table
}

/// A record at `start`: codes of gate, up, down, then their scales.
fn record(start: u64) -> ExpertMatrices {
    ExpertMatrices {
        gate: grouped(start, start + 1536),
        up: grouped(start + 512, start + 1600),
        down: grouped(start + 1024, start + 1664),
    }
}

#[test]
fn an_aligned_record_is_one_read_of_whole_blocks() {
    let table = table(vec![record(4096), record(8192)]);
    assert_eq!((table.expert_count(), table.slot_bytes()), (2, 4096));
    let reads = |index| table.layout(index).reads.iter().map(|read| (read.span, read.at)).collect::<Vec<_>>();
    assert_eq!(reads(0), [(span(4096, 4096), 0)]);
    // Nothing is known to lie behind the last record, so its read ends with its last part.
    assert_eq!(reads(1), [(span(8192, 1728), 0)]);
    assert_eq!(table.total_bytes(), 2 * 1728);
}

#[test]
fn small_holes_are_read_over_and_large_ones_are_not() {
    let mut expert = record(4096);
    expert.down = grouped(4096 + 1024 + 128, 4096 + 40_000);
    expert.gate.scales = Some(span(4096 + 1664, 64));
    expert.up.scales = Some(span(4096 + 1728, 64));
    let table = table(vec![expert]);
    let reads: Vec<(u64, u64)> = table.layout(0).reads.iter().map(|read| (read.span.offset, read.span.bytes)).collect();
    // Whole blocks from the first byte on; the last ends with the file, as far as it is known.
    assert_eq!(reads, [(4096, 4096), (40_960, 3200)]);
    assert!(table.layout(0).reads.iter().all(|read| read.at as u64 % 4096 == read.span.offset % 4096));
}

#[test]
fn a_float_checkpoint_takes_three_reads_unless_its_parts_touch() {
    let apart = ExpertMatrices { gate: float(0, 8), up: float(1, 8), down: float(1, 100_000) };
    assert_eq!(reads_of(&table(vec![apart.clone()])), [(0, 2056, 0), (0, 4096, 4096), (98_304, 3744, 8192)]);
    let touching = ExpertMatrices { gate: float(0, 1008), up: float(0, 1008 + 2048), down: float(0, 1008 + 4096) };
    let table = table(vec![apart, touching]);
    assert_eq!(table.layout(0).reads.len(), 3);
    assert_eq!(table.layout(1).reads.len(), 1);
    assert_eq!(table.slot_bytes(), 3 * 4096);
}

/// A slot by itself.
struct Slot(colibri_kernels::AlignedBuffer);

impl Region for Slot {
    fn read_bytes(&self, _index: usize, read: &ExpertRead) -> Option<&[u8]> {
        self.0.get(read.at..read.at + read.bytes)
    }
}

fn reads_of(table: &ExpertTable) -> Vec<(u64, u64, usize)> {
    table.layout(0).reads.iter().map(|read| (read.span.offset, read.span.bytes, read.at)).collect()
}

fn fits_a_slot(table: &ExpertTable) -> bool {
    let slot = Slot(colibri_kernels::AlignedBuffer::new(table.slot_bytes()).unwrap());
    table.layouts().iter().all(|layout| layout.fits(&slot, table.held()))
}

/// An expert as published containers have it: codes of down, gate, up adjacent from an arbitrary byte on; the scales
/// adjacent elsewhere.
fn published(codes: u64, scales: u64) -> ExpertMatrices {
    ExpertMatrices {
        down: grouped(codes, scales),
        gate: grouped(codes + 512, scales + 64),
        up: grouped(codes + 1024, scales + 128),
    }
}

#[test]
fn codes_that_touch_are_one_read_of_whole_blocks_whatever_their_alignment() {
    for start in [100_001, 100_007, 98_304, 102_399] {
        let table = table(vec![published(start, 8), published(start + 1536, 200), published(start + 70_000, 392)]);
        let first = start / 4096 * 4096;
        let blocks = (start + 1536).next_multiple_of(4096) - first;
        assert_eq!(reads_of(&table), [(0, 4096, 0), (first, blocks, 4096)], "{start}");
        assert_eq!((table.reads_per_miss(), table.reads_per_miss_codes()), (2, 1));
        assert_eq!((table.far_scale_bytes(), table.unaligned_scale_bytes()), (3 * 192, 0));
        assert!(table.slot_bytes() == table.slot_bytes_codes() + 4096 && fits_a_slot(&table));
        assert_eq!(table.total_bytes(), 3 * (1536 + 192));
    }
}

#[test]
fn scales_at_odd_offsets_are_read_apart_and_aligned_in_the_slot() {
    for shift in 1..4 {
        // They touch the codes, and those must not move for them.
        let table = table(vec![published(8192 + 192 + shift, 8192 + shift)]);
        let (codes, scales) = (8192 + 192 + shift, 8192 + shift);
        let reads = [(scales, 192, 0), (8192, codes + 1536 - 8192, 4096)];
        assert_eq!(reads_of(&table), reads, "{shift}");
        assert_eq!((table.far_scale_bytes(), table.unaligned_scale_bytes()), (192, 192));
        assert!(fits_a_slot(&table));
    }
}

#[test]
fn scales_between_the_codes_need_no_read_of_their_own() {
    let mut expert = published(8195, 70_000);
    expert.up.scales = Some(span(8192 + 1600, 64));
    let table = table(vec![expert]);
    assert_eq!((table.reads_per_miss(), table.far_scale_bytes()), (2, 128));
    assert!(fits_a_slot(&table));
}

#[test]
fn a_large_read_is_cut_into_aligned_pieces_that_cover_it() {
    for start in [4096, 192, 8, 4098] {
        cut_into_pieces(start);
    }
}

fn cut_into_pieces(start: u64) {
    let block = start / 4096 * 4096;
    let rows = 2048 * 6144 / 128;
    let bytes = (rows as u64) * 128 * 2;
    let at = |index: u64| {
        let codes = span(start + index * bytes, bytes);
        WeightLocation { format: Format::Bf16, rows, cols: 128, codes, scales: None, scale_type: ScaleType::F32 }
    };
    let table = table(vec![ExpertMatrices { gate: at(0), up: at(1), down: at(2) }]);
    let layout = table.layout(0);
    assert_eq!(layout.reads.len(), 1);
    let pieces = layout.pieces();
    assert!(pieces.len() > 10);
    let mut next = 0;
    for (span, range) in &pieces {
        assert_eq!((range.start, span.offset), (next, block + next as u64));
        assert_eq!(span.bytes, range.len() as u64);
        assert!(span.offset.is_multiple_of(4096) && range.len() <= PIECE_BYTES);
        next += range.len();
    }
    assert_eq!(next as u64, start - block + 3 * bytes);
    assert!(table.slot_bytes() >= next);
}

#[test]
fn contradictions_are_refused_and_change_nothing() {
    let mut table = ExpertTable::new();
    table.push_layer(3, vec![record(0)]).unwrap();
    let mut short = record(8192);
    short.up.codes.bytes -= 1;
    let mut unscaled = record(8192);
    unscaled.down.scales = None;
    let mut shape = record(8192);
    shape.gate.rows = 9;
    let mut beyond = record(8192);
    beyond.gate.codes.offset = u64::MAX - 10;
    let mut huge = record(8192);
    (huge.gate.rows, huge.gate.cols) = (usize::MAX, 128);
    for expert in [short, unscaled, shape, beyond, huge] {
        let error = table.push_layer(4, vec![record(4096), expert]).unwrap_err();
        assert!(matches!(error, StoreError::Internal { .. }), "{error}");
    }
    assert!(table.push_layer(3, vec![record(4096)]).is_err(), "a layer was given twice");
    assert!(table.push_layer(u32::MAX, vec![record(4096)]).is_err());
    assert_eq!(table.expert_count(), 1);
    assert!(table.contains(ExpertKey::new(3, 0)));
    for absent in [ExpertKey::new(3, 1), ExpertKey::new(4, 0), ExpertKey::new(0, 0), ExpertKey::new(u32::MAX, 0)] {
        assert!(!table.contains(absent), "{absent}");
    }
}
