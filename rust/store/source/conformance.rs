//! Every source of the table returns the bytes of the file, whatever the alignment, and refuses what lies outside.

use std::sync::atomic::AtomicUsize;

use super::direct::{DirectFile, DirectSource};
use super::retry::tests::{Scripted, Step};
use super::*;

/// A file of `length` bytes that do not repeat with any block size.
fn sample(directory: &std::path::Path, name: &str, length: usize) -> (FileInfo, Vec<u8>) {
    let bytes: Vec<u8> = (0..length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let path = directory.join(name);
    std::fs::write(&path, &bytes).unwrap();
    (FileInfo { path, bytes: length as u64 }, bytes)
}

fn span(file: u32, offset: u64, bytes: u64) -> Span {
    Span { file: FileId(file), offset, bytes }
}

/// Reads one span into a buffer whose start is `shift` bytes off a page boundary.
fn read_at_shift(source: &dyn Source, what: Span, shift: usize) -> Result<Vec<u8>, StoreError> {
    let length = what.bytes as usize;
    let mut buffer = AlignedBuffer::new(shift + length).unwrap();
    source.read(&mut [ReadJob { span: what, into: &mut buffer[shift..] }])?;
    Ok(buffer[shift..].to_vec())
}

#[test]
fn every_source_returns_the_bytes_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (first, first_bytes) = sample(directory.path(), "a", 20_000);
    let (second, second_bytes) = sample(directory.path(), "b", 9_000_001);
    let contents = [&first_bytes, &second_bytes];
    let spans = [
        span(0, 0, 20_000),
        span(0, 4097, 10_001),
        span(0, 8192, 4096),
        span(0, 19_999, 1),
        span(0, 100, 0),
        span(0, 20_000, 0),
        span(1, 0, 9_000_001),
        span(1, 4096, 8_900_000),
        span(1, 12_345, 8_500_000),
        span(1, 8_999_936, 65),
    ];
    for entry in SOURCES {
        let source = (entry.open)(&[first.clone(), second.clone()]).unwrap();
        assert_eq!(source.kind(), entry.kind);
        source.will_need(&spans);
        source.will_need(&[span(7, 0, 1), span(0, u64::MAX, u64::MAX)]);
        for what in spans {
            let wanted = &contents[what.file.0 as usize][what.offset as usize..][..what.bytes as usize];
            for shift in [0, 1, 64, 12_345 % 4096] {
                let got = read_at_shift(source.as_ref(), what, shift).unwrap();
                assert!(got == wanted, "{} {what:?} shift {shift}", entry.kind);
            }
            if let Some(lent) = source.borrow(what) {
                assert!(lent.is_mapped() && lent[..] == *wanted, "{} {what:?}", entry.kind);
            }
        }
        assert_eq!(source.borrow(spans[1]).is_some(), entry.kind == SourceKind::Mmap);
        assert!(source.borrow(span(0, 19_999, 2)).is_none() && source.borrow(span(0, 1, u64::MAX)).is_none());
    }
}

#[test]
fn every_source_takes_many_jobs_at_once_in_any_order() {
    let directory = tempfile::tempdir().unwrap();
    let (info, bytes) = sample(directory.path(), "a", 100_000);
    for entry in SOURCES {
        let source = (entry.open)(std::slice::from_ref(&info)).unwrap();
        let mut buffers: Vec<Vec<u8>> = (0..500).map(|i| vec![0; i % 37]).collect();
        let mut jobs: Vec<ReadJob<'_>> = buffers
            .iter_mut()
            .enumerate()
            .map(|(i, into)| ReadJob { span: span(0, (i as u64 * 7919) % 99_900, into.len() as u64), into })
            .collect();
        source.read(&mut jobs).unwrap();
        source.read(&mut []).unwrap();
        for (i, buffer) in buffers.iter().enumerate() {
            let offset = (i * 7919) % 99_900;
            assert_eq!(buffer[..], bytes[offset..offset + buffer.len()], "{} job {i}", entry.kind);
        }
    }
}

#[test]
fn every_source_refuses_what_lies_outside() {
    let directory = tempfile::tempdir().unwrap();
    let (info, _) = sample(directory.path(), "a", 5000);
    for entry in SOURCES {
        let source = (entry.open)(std::slice::from_ref(&info)).unwrap();
        for what in [span(0, 4999, 2), span(0, 5001, 0), span(0, u64::MAX, 16), span(1, 0, 1)] {
            assert!(read_at_shift(source.as_ref(), what, 0).is_err(), "{} {what:?}", entry.kind);
        }
        let mut short = [0u8; 3];
        assert!(source.read(&mut [ReadJob { span: span(0, 0, 4), into: &mut short }]).is_err());
        let longer = FileInfo { bytes: 5001, ..info.clone() };
        let error = (entry.open)(&[longer]).err().unwrap();
        assert!(error.to_string().contains("5,000") && error.to_string().contains("5,001"), "{error}");
        let absent = FileInfo { path: directory.path().join("absent"), bytes: 1 };
        assert_eq!((entry.open)(&[absent]).err().unwrap().code(), "disk_read_failed");
    }
}

#[test]
fn every_source_tells_that_a_file_was_cut_short_or_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    for entry in SOURCES {
        let (info, _) = sample(directory.path(), "cut", 20_000);
        let source = (entry.open)(std::slice::from_ref(&info)).unwrap();
        source.check_lent().unwrap();
        std::fs::OpenOptions::new().write(true).open(&info.path).unwrap().set_len(6000).unwrap();
        let error = read_at_shift(source.as_ref(), span(0, 4096, 15_000), 0).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.code(), "disk_read_failed");
        if source.borrow(span(0, 0, 1)).is_none() {
            assert!(text.contains("shorter than its header says"), "{}: {text}", entry.kind);
            source.check_lent().unwrap();
        } else {
            // What is lent cannot be checked by a read: the lengths of the files tell.
            for error in [error, source.check_lent().unwrap_err()] {
                let text = format!("{error} {}", error.why().unwrap());
                let path = info.path.display().to_string();
                assert!(["6,000", "20,000", &path].iter().all(|part| text.contains(part)), "{}: {text}", entry.kind);
            }
        }
    }
}

#[test]
fn every_source_is_found_by_its_name() {
    for entry in SOURCES {
        assert_eq!(SourceKind::parse(entry.kind.name()), Some(entry.kind));
    }
    assert_eq!(SourceKind::parse("uring"), None);
}

#[test]
fn ex_07_unaligned_spans_and_a_refusing_file_system_give_exact_bytes_and_one_note() {
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // On disk, and in memory where such a file system is there.
    for place in [std::env::temp_dir(), "/dev/shm".into()] {
        let Ok(directory) = tempfile::tempdir_in(&place) else { continue };
        let path = directory.path().join("x");
        std::fs::write(&path, &bytes).unwrap();
        let source = direct::open(&[FileInfo { path, bytes: 20_000 }]).unwrap();
        assert_eq!(read_at_shift(source.as_ref(), span(0, 4097, 10_001), 64).unwrap(), bytes[4097..14_098]);
        assert!(source.notes().len() <= 1);
    }
    // A file system that refuses: at once, and only after a first piece went well.
    for script in [vec![Step::Fail(libc::EINVAL); 9], vec![Step::AtMost(4096), Step::Fail(libc::EINVAL)]] {
        let pair = || DirectFile {
            direct: Some(Box::new(Scripted {
                bytes: bytes.clone(),
                script: script.clone(),
                calls: AtomicUsize::new(0),
            })),
            buffered: Box::new(Scripted::new(bytes.clone(), Vec::new())),
        };
        let info = FileInfo { path: "/m/x.safetensors".into(), bytes: 20_000 };
        let source = DirectSource::with_handles(vec![info.clone(), info], vec![pair(), pair()]);
        for file in [0, 1, 0] {
            for (offset, length) in [(4097, 10_001), (0, 20_000)] {
                let got = read_at_shift(&source, span(file, offset, length), 64).unwrap();
                assert_eq!(got, bytes[offset as usize..(offset + length) as usize]);
            }
        }
        assert_eq!(source.notes().len(), 1, "{:?}", source.notes());
    }
}

#[test]
fn direct_short_reads_and_passing_errors_are_made_good() {
    let bytes: Vec<u8> = (0..50_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let script = vec![Step::AtMost(100), Step::Fail(libc::EIO), Step::AtMost(4097), Step::Fail(libc::EINTR)];
    let handle = DirectFile {
        direct: Some(Box::new(Scripted::new(bytes.clone(), script))),
        buffered: Box::new(Scripted::new(bytes.clone(), Vec::new())),
    };
    let source = DirectSource::with_handles(vec![FileInfo { path: "x".into(), bytes: 50_000 }], vec![handle]);
    assert_eq!(read_at_shift(&source, span(0, 0, 50_000), 0).unwrap(), bytes);
    assert_eq!(source.notes().len(), 1);
}

/// A file in memory that keeps the offset and length of every read.
struct Logged(Vec<u8>, Arc<std::sync::Mutex<Vec<(u64, usize)>>>);

impl super::retry::ReadAt for Logged {
    fn read_at(&self, into: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.1.lock().unwrap().push((offset, into.len()));
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

#[test]
fn a_direct_read_as_far_off_a_block_as_its_buffer_detours_for_partial_blocks_alone() {
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handle = DirectFile {
        direct: Some(Box::new(Logged(bytes.clone(), Arc::clone(&log)))),
        buffered: Box::new(Scripted::new(bytes.clone(), Vec::new())),
    };
    let source = DirectSource::with_handles(vec![FileInfo { path: "x".into(), bytes: 100_000 }], vec![handle]);
    for (what, calls) in [
        (span(0, 8192, 40_960), vec![(8192, 40_960)]),
        (span(0, 8292, 32_768), vec![(8192, 4096), (12_288, 28_672), (40_960, 4096)]),
        (span(0, 81_920, 18_080), vec![(81_920, 16_384), (98_304, 4096)]),
    ] {
        let got = read_at_shift(&source, what, (what.offset % 4096) as usize).unwrap();
        assert!(got == bytes[what.offset as usize..][..what.bytes as usize]);
        assert_eq!(std::mem::take(&mut *log.lock().unwrap()), calls, "{what:?}");
    }
}
