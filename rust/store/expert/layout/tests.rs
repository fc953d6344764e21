//! How parts become reads: records of one read, float checkpoints of three, and everything that is refused.

use super::*;

const Q4: Format = Format::Int4Grouped { group: 64 };

fn span(offset: u64, bytes: u64) -> Span {
    Span { file: FileId(0), offset, bytes }
}

fn grouped(codes: u64, scales: u64) -> WeightLocation {
    // [8, 128]: 512 bytes of codes, 16 scales.
    WeightLocation { format: Q4, rows: 8, cols: 128, codes: span(codes, 512), scales: Some(span(scales, 64)) }
}

fn float(file: u32, offset: u64) -> WeightLocation {
    let codes = Span { file: FileId(file), offset, bytes: 8 * 128 * 2 };
    WeightLocation { format: Format::Bf16, rows: 8, cols: 128, codes, scales: None }
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
    assert_eq!(table.total_bytes(), 4096 + 1728);
}

#[test]
fn small_holes_are_read_over_and_large_ones_are_not() {
    let mut expert = record(4096);
    expert.down = grouped(4096 + 1024 + 128, 4096 + 40_000);
    expert.gate.scales = Some(span(4096 + 1664, 64));
    expert.up.scales = Some(span(4096 + 1728, 64));
    let table = table(vec![expert]);
    let reads: Vec<(u64, u64)> = table.layout(0).reads.iter().map(|read| (read.span.offset, read.span.bytes)).collect();
    assert_eq!(reads, [(4096, 4096), (4096 + 40_000, 64)]);
    assert!(table.layout(0).reads.iter().all(|read| read.at as u64 % 4096 == read.span.offset % 4096));
}

#[test]
fn a_float_checkpoint_takes_three_reads_unless_its_parts_touch() {
    let apart = ExpertMatrices { gate: float(0, 8), up: float(1, 8), down: float(1, 100_000) };
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

#[test]
fn parts_that_would_lose_their_alignment_are_read_apart() {
    let mut expert = record(4096);
    // 8 bytes off: adjacent to the codes, but no multiple of 64 from their start.
    expert.gate = grouped(4096, 4096 + 1544);
    let table = table(vec![expert]);
    assert!(table.layout(0).reads.len() > 1);
    let slot = Slot(colibri_kernels::AlignedBuffer::new(table.slot_bytes()).unwrap());
    assert!(table.layout(0).fits(&slot));
}

#[test]
fn a_large_read_is_cut_into_aligned_pieces_that_cover_it() {
    for start in [4096, 192, 8] {
        cut_into_pieces(start);
    }
}

fn cut_into_pieces(start: u64) {
    let rows = 2048 * 6144 / 128;
    let bytes = (rows as u64) * 128 * 2;
    let at = |index: u64| {
        let codes = span(start + index * bytes, bytes);
        WeightLocation { format: Format::Bf16, rows, cols: 128, codes, scales: None }
    };
    let table = table(vec![ExpertMatrices { gate: at(0), up: at(1), down: at(2) }]);
    let layout = table.layout(0);
    assert_eq!(layout.reads.len(), 1);
    let pieces = layout.pieces();
    assert!(pieces.len() > 10);
    let slot_start = if start == 8 { 0 } else { start as usize % 4096 };
    let mut next = 0;
    for (span, range) in &pieces {
        assert_eq!((range.start, span.offset), (slot_start + next, start + next as u64));
        assert_eq!(span.bytes, range.len() as u64);
        assert!(next == 0 || span.offset.is_multiple_of(4096));
        assert!(range.len() <= PIECE_BYTES);
        next += range.len();
    }
    assert_eq!(next as u64, 3 * bytes);
    assert!(table.slot_bytes() >= slot_start + next);
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
