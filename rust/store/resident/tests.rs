//! Every format through every source: the matrices in memory are the bytes of the file.

use colibri_kernels::format::{ScaleRule, encode};

use super::*;
use crate::catalog::ScaleType;
use crate::container::{FileId, FileInfo};
use crate::source::{SOURCES, SourceKind};

const ROWS: usize = 5;
const COLS: usize = 70;

const FORMATS: [Format; 8] = [
    Format::F32,
    Format::Bf16,
    Format::F16,
    Format::Int8Row,
    Format::Int4Row,
    Format::Int4Grouped { group: 32 },
    Format::Int3G64,
    Format::Int2Row,
];

/// A weight as it was encoded.
struct Encoded {
    location: WeightLocation,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

/// A file that holds one matrix of each format, each beginning `shift` bytes off a multiple of 64.
fn written(directory: &std::path::Path, shift: usize) -> (FileInfo, Vec<Encoded>) {
    let weights: Vec<f32> = (0..ROWS * COLS).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    let mut bytes = Vec::new();
    let mut append = |part: &[u8]| {
        bytes.resize(bytes.len().next_multiple_of(64) + shift, 0xee);
        let offset = bytes.len() as u64;
        bytes.extend_from_slice(part);
        Span { file: FileId(0), offset, bytes: part.len() as u64 }
    };
    let mut all = Vec::new();
    for format in FORMATS {
        let mut codes = vec![0; format.code_bytes(ROWS, COLS).unwrap()];
        let mut scales = vec![0f32; format.scale_count(ROWS, COLS).unwrap()];
        encode(format, ScaleRule::AbsMax, ROWS, COLS, &weights, &mut codes, &mut scales).unwrap();
        let code_span = append(&codes);
        let scale_span = (!scales.is_empty()).then(|| append(bytemuck::cast_slice(&scales)));
        let location = WeightLocation {
            format,
            rows: ROWS,
            cols: COLS,
            codes: code_span,
            scales: scale_span,
            scale_type: ScaleType::F32,
        };
        all.push(Encoded { location, codes, scales });
    }
    let path = directory.join(format!("weights{shift}"));
    std::fs::write(&path, &bytes).unwrap();
    (FileInfo { path, bytes: bytes.len() as u64 }, all)
}

#[test]
fn every_source_loads_every_format_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    for shift in [0, 1, 2, 4] {
        let (info, all) = written(directory.path(), shift);
        let locations: Vec<WeightLocation> = all.iter().map(|encoded| encoded.location.clone()).collect();
        for entry in SOURCES {
            let source = (entry.open)(std::slice::from_ref(&info)).unwrap();
            let matrices = load_resident(source.as_ref(), &locations, &mut |_, _| true).unwrap();
            assert_eq!(matrices.len(), all.len());
            for (matrix, encoded) in matrices.iter().zip(&all) {
                let view = matrix.view();
                assert_eq!((view.rows(), view.cols(), view.format()), (ROWS, COLS, encoded.location.format));
                assert_eq!(view.codes(), encoded.codes, "{} {shift}", entry.kind);
                assert_eq!(view.scales(), encoded.scales);
                assert_eq!(matrix.bytes() as u64, encoded.location.bytes());
                let element = element_bytes(matrix.format());
                assert!((view.codes().as_ptr() as usize).is_multiple_of(element));
                let lent = entry.kind == SourceKind::Mmap && shift.is_multiple_of(element);
                assert_eq!(matrix.is_mapped(), lent, "{} {:?} {shift}", entry.kind, matrix.format());
                if !lent {
                    assert!((view.codes().as_ptr() as usize).is_multiple_of(PART_ALIGN));
                }
            }
        }
    }
}

#[test]
fn every_format_is_read_as_f32() {
    let directory = tempfile::tempdir().unwrap();
    let (info, all) = written(directory.path(), 1);
    let source = (SOURCES[0].open)(&[info]).unwrap();
    for encoded in &all {
        let values = load_f32(source.as_ref(), &encoded.location).unwrap();
        let view = MatrixView::new(encoded.location.format, ROWS, COLS, &encoded.codes, &encoded.scales).unwrap();
        let mut row = vec![0f32; COLS];
        for (index, found) in values.chunks(COLS).enumerate() {
            decode_row(&view, index, &mut row);
            assert_eq!(found, row, "{:?}", encoded.location.format);
        }
        assert_eq!(values.len(), ROWS * COLS);
    }
}

#[test]
fn progress_reaches_the_total_and_can_stop() {
    let directory = tempfile::tempdir().unwrap();
    let (info, all) = written(directory.path(), 0);
    let locations: Vec<WeightLocation> = all.iter().map(|encoded| encoded.location.clone()).collect();
    let total: u64 = locations.iter().map(WeightLocation::bytes).sum();
    let source = (SOURCES[0].open)(&[info]).unwrap();
    let mut reports = Vec::new();
    load_resident(source.as_ref(), &locations, &mut |done, of| {
        reports.push((done, of));
        true
    })
    .unwrap();
    assert_eq!(reports.first(), Some(&(0, total)));
    assert_eq!(reports.last(), Some(&(total, total)));
    let error = load_resident(source.as_ref(), &locations, &mut |_, _| false).unwrap_err();
    assert_eq!(error.code(), "cancelled");
    assert!(load_resident(source.as_ref(), &[], &mut |_, _| true).unwrap().is_empty());
}

#[test]
fn a_matrix_of_the_wrong_size_is_not_made() {
    let bytes = |length: usize| Bytes::from_buffer(Arc::new(AlignedBuffer::new(length).unwrap()));
    assert!(StoredMatrix::new(Format::Int8Row, 2, 8, bytes(16), Some(bytes(8))).is_ok());
    let wrong = [
        (bytes(15), Some(bytes(8))),
        (bytes(16), Some(bytes(4))),
        (bytes(16), None),
        (bytes(16), Some(bytes(9))),
        (bytes(16), bytes(12).slice(1..9)),
    ];
    for (codes, scales) in wrong {
        assert!(StoredMatrix::new(Format::Int8Row, 2, 8, codes, scales).is_err());
    }
    let whole = bytes(16);
    assert_eq!(whole.slice(4..8).and_then(|part| part.slice(1..3)).map(|part| part.len()), Some(2));
    assert!(whole.slice(4..17).is_none() && whole.slice(0..usize::MAX).is_none());
    assert!(whole.slice(4..8).and_then(|part| part.slice(0..5)).is_none());
}
