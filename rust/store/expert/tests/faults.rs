//! Reads that fail: whom the error reaches, what stays usable, and stores that are dropped in the middle.

use std::io;

use super::*;
use crate::container::FileInfo;
use crate::source::pread::BufferedSource;
use crate::source::retry::ReadAt;
use crate::source::{SOURCES, open_source};

fn key(expert: u32) -> ExpertKey {
    ExpertKey::new(0, expert)
}

fn failure(span: Span) -> StoreError {
    StoreError::ReadFailed {
        path: "model.safetensors".into(),
        offset: span.offset,
        bytes: span.bytes,
        error: "EIO (Input/output error)".to_owned(),
        attempts: 3,
    }
}

/// Fails reads of the expert at block `number` of a file of records.
fn fail_record(source: &Stub, number: u64) {
    let bad = 4096 * (number + 1);
    source.on_read(move |span| if span.offset == bad { Err(failure(span)) } else { Ok(()) });
}

/// EX-01: a file that is shorter than its header says is an error with path, offset, wanted and got.
#[test]
fn ex_01_a_file_cut_short_is_named_with_its_numbers() {
    let model = Model::new(Arrangement::Records, 1, 4);
    let folder = tempfile::tempdir().unwrap();
    for source in SOURCES {
        let path = folder.path().join(format!("{}.bin", source.kind.name()));
        std::fs::write(&path, model.bytes.as_slice()).unwrap();
        let files = [FileInfo { path: path.clone(), bytes: model.bytes.len() as u64 }];
        if source.kind == SourceKind::Mmap {
            // Mapped files are measured when they are opened; nothing is read later.
            continue;
        }
        let opened = open_source(source.kind, &files).unwrap();
        let store = ExpertStore::new(opened, model.table(), 2, policy_named("lru").unwrap(), 1).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096 * 3 + 100).unwrap();
        visit(&model, &store, &[key(0), key(1)]);
        let error = store.acquire(&[key(2)]).next().unwrap().unwrap_err();
        assert_eq!(error.code(), "disk_read_failed");
        let text = error.to_string();
        assert!(text.contains("shorter than its header says") && text.contains("12,288"), "{text}");
        assert!(!text.to_lowercase().contains("success"));
        visit(&model, &store, &[key(1), key(0)]);
    }
}

/// A file in memory with an opinion on every read: how many bytes at most, or an error.
struct Moody<F>(Arc<Vec<u8>>, F);

impl<F: Fn(u64) -> io::Result<usize> + Send + Sync> ReadAt for Moody<F> {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = &self.0[self.0.len().min(offset as usize)..];
        let count = (self.1)(offset)?.min(into.len()).min(left.len());
        into[..count].copy_from_slice(&left[..count]);
        Ok(count)
    }
}

fn store_over(
    model: &Model,
    mood: impl Fn(u64) -> io::Result<usize> + Send + Sync + 'static,
) -> (Arc<dyn Source>, ExpertStore) {
    let files = vec![FileInfo { path: "model.safetensors".into(), bytes: model.bytes.len() as u64 }];
    let file: Box<dyn ReadAt> = Box::new(Moody(Arc::clone(&model.bytes), mood));
    let source: Arc<dyn Source> = Arc::new(BufferedSource::with_handles(files, vec![file]));
    let store = ExpertStore::new(Arc::clone(&source), model.table(), 2, policy_named("lru").unwrap(), 2).unwrap();
    (source, store)
}

/// EX-01: a short read is gone on with; an end of the file is an error with wanted and got.
#[test]
fn ex_01_a_short_read_goes_on_and_an_early_end_is_named() {
    let model = Model::new(Arrangement::Records, 1, 4);
    let (_, store) = store_over(&model, |offset| Ok(if offset.is_multiple_of(4096) { 100 } else { 10_000 }));
    visit(&model, &store, &model.keys());
    let (_, store) = store_over(&model, |offset| Ok(if offset.is_multiple_of(4096) { 100 } else { 0 }));
    let error = store.acquire(&[key(0)]).next().unwrap().unwrap_err();
    let text = error.to_string();
    for part in ["model.safetensors", "4,096", "got 100 bytes", "the file is shorter than its header says"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// EX-02: a passing error changes nothing but leaves one note; a lasting one fails its expert with code and path, and
/// the others go on.
#[test]
fn ex_02_a_passing_error_is_tried_again_and_a_lasting_one_is_named() {
    let model = Model::new(Arrangement::Records, 4, 8);
    let wanted = [ExpertKey::new(3, 5), ExpertKey::new(3, 6)];
    let bad = model.layers[3][5].gate.codes.offset;
    let eio = || Err(io::Error::from_raw_os_error(libc::EIO));
    let count = AtomicU64::new(0);
    let (source, store) =
        store_over(
            &model,
            move |offset| {
                if offset == bad && count.fetch_add(1, Ordering::SeqCst) == 0 { eio() } else { Ok(10_000) }
            },
        );
    visit(&model, &store, &wanted);
    assert_eq!((source.notes().len(), store.stats().failed_reads), (1, 0));

    let (_, store) = store_over(&model, move |offset| if offset == bad { eio() } else { Ok(10_000) });
    let (good, failed): (Vec<_>, Vec<_>) = store.acquire(&wanted).partition(Result::is_ok);
    assert_eq!((good.len(), failed.len()), (1, 1));
    let text = failed[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("EIO") && text.contains("model.safetensors"), "{text}");
    drop(good);
    visit(&model, &store, &[ExpertKey::new(0, 0), ExpertKey::new(3, 6)]);
}

/// EX-02: the slot of an expert that could not be read is usable at once, with any number of slots.
#[test]
fn ex_02_a_failing_expert_fails_alone() {
    let model = Model::new(Arrangement::Records, 1, 8);
    for slots in [1, 2, 8] {
        let source = Stub::new(&model);
        let store = model.store(&source, slots);
        fail_record(&source, 5);
        let keys = [key(4), key(5), key(6)];
        let mut good = Vec::new();
        let mut bad = Vec::new();
        for item in store.acquire(&keys) {
            match item {
                Ok((index, lease)) => {
                    model.check(keys[index], &lease);
                    good.push(index);
                }
                Err(error) => bad.push(error),
            }
        }
        good.sort_unstable();
        assert_eq!(good, [0, 2]);
        assert_eq!(bad.len(), 1);
        assert!(bad[0].to_string().contains("EIO") && bad[0].to_string().contains("model.safetensors"));
        // Others go on, and so does this one when the disk is well again.
        visit(&model, &store, &[key(0), key(1), key(2), key(3)]);
        source.on_read(|_| Ok(()));
        visit(&model, &store, &[key(5)]);
        assert_eq!(store.stats().failed_reads, 1);
    }
}

#[test]
fn an_error_reaches_everyone_who_waits() {
    let model = Model::new(Arrangement::Records, 1, 4);
    let source = Stub::new(&model);
    let store = model.store(&source, 4);
    let gate = Arc::new(Gate::default());
    gate.shut();
    let hold = Arc::clone(&gate);
    source.on_read(move |span| {
        hold.pass();
        Err(failure(span))
    });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let items: Vec<_> = store.acquire(&[key(2)]).collect();
                assert_eq!(items.len(), 1);
                assert_eq!(items[0].as_ref().unwrap_err().code(), "disk_read_failed");
            });
        }
        eventually("three ask", || store.stats().requests() == 3);
        gate.open();
    });
    assert_eq!(store.stats().failed_reads, 1);
    source.on_read(|_| Ok(()));
    visit(&model, &store, &model.keys());
}

#[test]
fn random_failures_never_give_wrong_bytes_or_lose_a_slot() {
    let model = Model::new(Arrangement::Scattered, 2, 6);
    let keys = model.keys();
    for slots in [1usize, 3, 12] {
        let source = Stub::new(&model);
        let store = model.store_with(&source, slots, 3);
        let count = AtomicU64::new(0);
        source.on_read(move |span| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            if number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61 == 0 { Err(failure(span)) } else { Ok(()) }
        });
        let mut random = Random(slots as u64);
        let mut failed = 0;
        for _ in 0..200 {
            let chosen = random.choose(&keys, 4);
            let mut delivered = 0;
            for item in store.acquire(&chosen) {
                delivered += 1;
                match item {
                    Ok((index, lease)) => model.check(chosen[index], &lease),
                    Err(error) => {
                        assert_eq!(error.code(), "disk_read_failed");
                        failed += 1;
                    }
                }
            }
            assert_eq!(delivered, chosen.len());
        }
        assert!(failed > 0);
        source.on_read(|_| Ok(()));
        visit(&model, &store, &keys);
    }
}

#[test]
fn a_panic_in_a_source_is_an_error_of_that_read() {
    let model = Model::new(Arrangement::Records, 1, 4);
    let source = Stub::new(&model);
    let store = model.store(&source, 1);
    source.on_read(|span| if span.offset == 4096 { panic!("a source that panics") } else { Ok(()) });
    let error = store.acquire(&[key(0)]).next().unwrap().unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    visit(&model, &store, &[key(1), key(2), key(3)]);
}

#[test]
fn an_expert_that_the_model_does_not_have_is_an_error_of_its_key() {
    let model = Model::new(Arrangement::Records, 1, 4);
    let source = Stub::new(&model);
    let store = model.store(&source, 2);
    let keys = [key(1), ExpertKey::new(0, 4), ExpertKey::new(9, 0)];
    let items: Vec<_> = store.acquire(&keys).collect();
    assert_eq!(items.iter().filter(|item| item.is_ok()).count(), 1);
    assert!(items.iter().any(|item| item.as_ref().is_err_and(|error| error.to_string().contains("layer 9"))));
    store.prefetch(&[ExpertKey::new(9, 9)]);
}

#[test]
fn a_store_can_be_dropped_while_reads_are_in_flight() {
    let model = Model::new(Arrangement::Records, 1, 8);
    for _ in 0..20 {
        let source = Stub::new(&model);
        let store = model.store(&source, 4);
        source.gate.shut();
        drop(store.acquire(&[key(0), key(1), key(2)]));
        store.prefetch(&[key(6), key(7)]);
        source.gate.await_readers(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                source.gate.open();
            });
            drop(store);
        });
        // The threads are joined: nobody but the test holds the source.
        assert_eq!(Arc::strong_count(&source), 1);
    }
}

#[test]
fn an_acquire_dropped_before_its_reads_leaves_every_slot_usable() {
    let model = Model::new(Arrangement::Records, 1, 8);
    let source = Stub::new(&model);
    let store = model.store(&source, 3);
    let keys = model.keys();
    let mut random = Random(1);
    for step in 0..300 {
        let chosen = random.choose(&keys, 5);
        let mut acquire = store.acquire(&chosen);
        let mut held = Vec::new();
        for _ in 0..step % 4 {
            held.push(acquire.next().unwrap().unwrap());
        }
        drop(acquire);
        for (index, lease) in &held {
            model.check(chosen[*index], lease);
        }
    }
    // Three at once: no slot was lost.
    let held: Vec<_> = store.acquire(&keys[..3]).map(Result::unwrap).collect();
    assert_eq!(held.len(), 3);
}

#[test]
fn reads_that_nobody_waits_for_any_more_are_not_begun() {
    let model = Model::new(Arrangement::Records, 1, 8);
    let source = Stub::new(&model);
    let store = model.store_with(&source, 8, 1);
    source.gate.shut();
    let acquire = store.acquire(&[key(0), key(1), key(2), key(3)]);
    source.gate.await_readers(1);
    drop(acquire);
    source.gate.open();
    visit(&model, &store, &[key(7)]);
    assert_eq!(source.reads(), 2, "the read in flight, and the one that is wanted");
}
