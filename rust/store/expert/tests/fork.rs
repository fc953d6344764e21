//! A forked child has none of its parent's reading threads: it makes its own and begins their reads anew.

use super::*;
use crate::expert::slots::tests::in_forked_child;

fn key(expert: u32) -> ExpertKey {
    ExpertKey::new(0, expert)
}

#[test]
fn a_forked_child_reads_with_threads_of_its_own() {
    let model = Model::new(Arrangement::Scattered, 1, 8);
    let source = Stub::new(&model);
    let store = model.store(&source, 3);
    visit(&model, &store, &[key(0), key(1)]);
    let ended_well = in_forked_child(|| {
        visit(&model, &store, &[key(1), key(2), key(3)]);
        visit(&model, &store, &[key(4), key(0)]);
        true
    });
    assert!(ended_well);
    visit(&model, &store, &[key(2), key(3), key(4)]);
}

#[test]
fn reads_in_progress_at_the_fork_begin_anew_in_the_child() {
    let model = Model::new(Arrangement::Scattered, 1, 8);
    let source = Stub::new(&model);
    let store = model.store_with(&source, 2, 2);
    source.gate.shut();
    store.prefetch(&[key(5), key(6)]);
    source.gate.await_readers(2);
    let ended_well = in_forked_child(|| {
        source.gate.open();
        visit(&model, &store, &[key(5)]);
        visit(&model, &store, &[key(6), key(1), key(5)]);
        true
    });
    source.gate.open();
    assert!(ended_well);
    visit(&model, &store, &[key(5), key(6)]);
}

#[test]
fn a_store_can_be_dropped_in_a_forked_child() {
    let model = Model::new(Arrangement::Records, 1, 8);
    let source = Stub::new(&model);
    let store = model.store(&source, 2);
    visit(&model, &store, &[key(0), key(1)]);
    assert!(in_forked_child(move || {
        drop(store);
        true
    }));
    // Both the child's copy and, when the call returned, the parent's store are gone.
    assert_eq!(Arc::strong_count(&source), 1);
}
