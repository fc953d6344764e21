//! Every policy with every source gives the file's bytes, whatever the number of slots and readers.

use std::io::Write;

use colibri_kernels::format::FORMATS;

use super::*;
use crate::container::FileInfo;
use crate::expert::POLICIES;
use crate::source::{SOURCES, open_source};

fn walk(model: &Model, store: &ExpertStore, seed: u64, steps: usize) {
    let keys = model.keys();
    let mut random = Random(seed);
    for _ in 0..steps {
        let size = 1 + random.below(9);
        let chosen = random.choose(&keys, size);
        if random.below(3) == 0 {
            let hints = random.choose(&keys, 3);
            store.prefetch(&hints);
        }
        let may_hold_all = store.slots() == 0 || chosen.len() <= store.slots();
        let mut held = Vec::new();
        let mut delivered = Vec::new();
        for item in store.acquire(&chosen) {
            let (index, lease) = item.unwrap();
            model.check(chosen[index], &lease);
            delivered.push(index);
            if may_hold_all {
                held.push((index, lease));
            }
        }
        for (index, lease) in &held {
            model.check(chosen[*index], lease);
        }
        delivered.sort_unstable();
        assert!(delivered.iter().copied().eq(0..chosen.len()), "{delivered:?}");
    }
}

#[test]
fn every_policy_and_source_gives_the_same_bytes_with_any_number_of_slots() {
    let folder = tempfile::tempdir().unwrap();
    for arrangement in ARRANGEMENTS {
        let model = Model::new(arrangement, 3, 7);
        let path = folder.path().join(format!("{arrangement:?}.bin"));
        std::fs::File::create(&path).unwrap().write_all(&model.bytes).unwrap();
        let files = [FileInfo { path, bytes: model.bytes.len() as u64 }];
        for source in SOURCES {
            for policy in POLICIES {
                for (slots, workers) in [(1, 1), (1, 3), (2, 2), (3, 4), (8, 2), (20, 2), (21, 2), (500, 3)] {
                    let opened = open_source(source.kind, &files).unwrap();
                    let mut table = model.table();
                    if slots % 2 == 0 {
                        table.hold_scales(opened.as_ref(), &mut |_, _| true).unwrap();
                    }
                    let store = ExpertStore::new(opened, table, slots, (policy.build)(), workers).unwrap();
                    let lends = source.kind == SourceKind::Mmap;
                    assert_eq!(store.slots(), if lends { 0 } else { slots.min(21) }, "{arrangement:?}");
                    walk(&model, &store, slots as u64, 60);
                    let stats = store.stats();
                    assert_eq!(stats.hits_mapped > 0, lends);
                    assert_eq!(stats.bytes_read > 0, !lends);
                }
            }
        }
    }
}

#[test]
fn held_scales_make_a_miss_one_read_and_take_what_was_said() {
    for (arrangement, scales) in [
        (Arrangement::Records, 0..=0),
        // The scales that lie close behind the codes of the last experts come with them.
        (Arrangement::Scattered, 1..=21 * 3 * 64),
        (Arrangement::Float, 0..=0),
        (Arrangement::Published, 21 * 3 * 64..=21 * 3 * 64),
        (Arrangement::PublishedOdd, 21 * 3 * 64..=21 * 3 * 64),
    ] {
        let model = Model::new(arrangement, 3, 7);
        let source = Stub::new(&model);
        let mut table = model.table();
        let far = table.far_scale_bytes();
        assert!(scales.contains(&far), "{arrangement:?}: {far}");
        let (slot, reads) = (table.slot_bytes_codes(), table.reads_per_miss_codes());
        table.hold_scales(source.as_ref(), &mut |_, _| true).unwrap();
        assert_eq!(table.held().len() as u64, far);
        assert_eq!((table.slot_bytes(), table.reads_per_miss()), (slot, reads));
        assert_eq!((table.slot_bytes_codes(), table.reads_per_miss_codes(), table.far_scale_bytes()), (slot, reads, 0));
        let sweeps = source.reads();
        let store = ExpertStore::new(Arc::clone(&source) as Arc<dyn Source>, table, 4, policy_named("lru").unwrap(), 2)
            .unwrap();
        visit(&model, &store, &model.keys());
        assert_eq!(source.reads() - sweeps, 21, "{arrangement:?}");
        // The scales of all experts touch in a published container: one sweep.
        let published = matches!(arrangement, Arrangement::Published | Arrangement::PublishedOdd);
        assert!(sweeps == u64::from(published) || arrangement == Arrangement::Scattered, "{arrangement:?}: {sweeps}");
    }
}

/// Experts of one format as published containers have them: scales first, then codes, at odd offsets where the format
/// allows it.
fn published_in(format: Format, experts: u64) -> Model {
    let shapes = [(8, 128), (8, 128), (16, 64)];
    let sizes = shapes.map(|(rows, cols)| {
        let scales = format.scale_count(rows, cols).unwrap() as u64 * 4;
        (format.code_bytes(rows, cols).unwrap() as u64, scales)
    });
    let sum = |part: fn(&(u64, u64)) -> u64| sizes.iter().map(part).sum::<u64>();
    let (codes, scales) = (sum(|size| size.0), sum(|size| size.1));
    let first_code = 9000 + experts * scales + u64::from(scales > 0);
    let expert = |number: u64| {
        let (mut code, mut scale) = (first_code + number * codes, 1004 + number * scales);
        let [gate, up, down] = [0, 1, 2].map(|matrix| {
            let ((rows, cols), (code_bytes, scale_bytes)) = (shapes[matrix], sizes[matrix]);
            let span = |offset, bytes| Span { file: FileId(0), offset, bytes };
            let place = WeightLocation {
                format,
                rows,
                cols,
                codes: span(code, code_bytes),
                scales: (scale_bytes > 0).then(|| span(scale, scale_bytes)),
                scale_type: ScaleType::F32,
            };
            (code, scale) = (code + code_bytes, scale + scale_bytes);
            place
        });
        ExpertMatrices { gate, up, down }
    };
    let layers = vec![(0..experts).map(expert).collect()];
    let bytes = (0..first_code + experts * codes).map(known_byte).collect();
    Model { bytes: Arc::new(bytes), layers }
}

#[test]
fn every_format_is_delivered_whatever_the_source_and_wherever_its_scales_live() {
    let folder = tempfile::tempdir().unwrap();
    for format in FORMATS.iter().map(|spec| spec.example) {
        let model = published_in(format, 6);
        let path = folder.path().join(format.name());
        std::fs::write(&path, model.bytes.as_slice()).unwrap();
        let files = [FileInfo { path, bytes: model.bytes.len() as u64 }];
        for source in SOURCES {
            for held in [false, true] {
                let opened = open_source(source.kind, &files).unwrap();
                let mut table = model.table();
                assert_eq!(table.far_scale_bytes() > 0, format.has_scales(), "{format:?}");
                if held {
                    table.hold_scales(opened.as_ref(), &mut |_, _| true).unwrap();
                }
                let store = ExpertStore::new(opened, table, 2, policy_named("lru").unwrap(), 2).unwrap();
                walk(&model, &store, 3, 12);
                let reads = if held || !format.has_scales() { 1 } else { 2 };
                assert!(store.table().reads_per_miss() == reads || source.kind == SourceKind::Mmap, "{format:?}");
            }
        }
    }
}

#[test]
fn holding_scales_can_fail_or_be_stopped_and_changes_nothing_then() {
    let model = Model::new(Arrangement::Published, 1, 4);
    let source = Stub::new(&model);
    let mut table = model.table();
    let stopped = table.hold_scales(source.as_ref(), &mut |_, _| false).unwrap_err();
    assert_eq!(stopped.code(), "cancelled");
    source.on_read(|_| Err(StoreError::Internal { what: "a fault".to_owned() }));
    assert!(table.hold_scales(source.as_ref(), &mut |_, _| true).is_err());
    assert!(table.held().is_empty() && table.far_scale_bytes() > 0);
    source.on_read(|_| Ok(()));
    let store =
        ExpertStore::new(Arc::clone(&source) as Arc<dyn Source>, table, 2, policy_named("lru").unwrap(), 1).unwrap();
    visit(&model, &store, &model.keys());
}

#[test]
fn a_mapping_lends_codes_and_copies_only_scales_at_odd_addresses() {
    let folder = tempfile::tempdir().unwrap();
    for arrangement in [Arrangement::Published, Arrangement::PublishedOdd] {
        let model = Model::new(arrangement, 2, 5);
        let path = folder.path().join(format!("{arrangement:?}.bin"));
        std::fs::write(&path, model.bytes.as_slice()).unwrap();
        let files = [FileInfo { path, bytes: model.bytes.len() as u64 }];
        let opened = open_source(SourceKind::Mmap, &files).unwrap();
        let store = ExpertStore::new(opened, model.table(), 1, policy_named("lru").unwrap(), 1).unwrap();
        let copied = if arrangement == Arrangement::Published { 0 } else { 10 * 3 * 64 };
        assert_eq!((store.slots(), store.table().held().len()), (0, copied));
        visit(&model, &store, &model.keys());
    }
}

/// A source that lends bytes at odd addresses.
struct OddLender(Stub, crate::source::Bytes);

impl Source for OddLender {
    fn kind(&self) -> SourceKind {
        SourceKind::Mmap
    }
    fn read(&self, jobs: &mut [ReadJob<'_>]) -> Result<(), StoreError> {
        self.0.read(jobs)
    }
    fn borrow(&self, span: Span) -> Option<crate::source::Bytes> {
        let start = span.offset as usize + 1;
        self.1.slice(start..start + span.bytes as usize)
    }
}

#[test]
fn lent_bytes_that_kernels_cannot_use_in_place_are_copied_into_slots() {
    let model = Model::new(Arrangement::Records, 1, 4);
    let mut memory = colibri_kernels::AlignedBuffer::new(model.bytes.len() + 1).unwrap();
    memory[1..].copy_from_slice(&model.bytes);
    let stub = Arc::into_inner(Stub::new(&model)).unwrap();
    let source = Arc::new(OddLender(stub, crate::source::Bytes::from_buffer(Arc::new(memory))));
    let store = ExpertStore::new(source, model.table(), 2, policy_named("lru").unwrap(), 1).unwrap();
    assert_eq!(store.slots(), 2);
    walk(&model, &store, 5, 30);
}

#[test]
fn a_store_without_a_slot_is_refused() {
    let model = Model::new(Arrangement::Records, 1, 4);
    let source = Stub::new(&model);
    let refused = ExpertStore::new(source, model.table(), 0, policy_named("lru").unwrap(), 1);
    assert!(matches!(refused, Err(StoreError::InvalidValue { .. })));
}
