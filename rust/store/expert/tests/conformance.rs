//! Every policy with every source gives the file's bytes, whatever the number of slots and readers.

use std::io::Write;

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
                    let store = ExpertStore::new(opened, model.table(), slots, (policy.build)(), workers).unwrap();
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
