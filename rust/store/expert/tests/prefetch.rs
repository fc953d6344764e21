//! Guesses: they fill free slots, yield to demands, are joined by them, and are counted honestly.

use super::*;

fn key(expert: u32) -> ExpertKey {
    ExpertKey::new(0, expert)
}

#[test]
fn a_prefetched_expert_is_a_hit() {
    let model = Model::new(Arrangement::Records, 1, 8);
    let source = Stub::new(&model);
    let store = model.store(&source, 4);
    store.prefetch(&[key(3), key(4)]);
    eventually("both are read", || store.stats().experts_read == 2);
    visit(&model, &store, &[key(3), key(4)]);
    visit(&model, &store, &[key(3)]);
    let stats = store.stats();
    assert_eq!((stats.prefetch_issued, stats.prefetch_used, stats.prefetch_wasted), (2, 2, 0));
    assert_eq!((stats.hits_prefetch, stats.hits_cache, stats.misses, source.reads()), (2, 1, 0, 2));
}

#[test]
fn a_demand_waits_for_the_guess_that_is_being_read() {
    let model = Model::new(Arrangement::Scattered, 1, 8);
    let source = Stub::new(&model);
    let store = model.store_with(&source, 4, 1);
    source.gate.shut();
    store.prefetch(&[key(3)]);
    source.gate.await_readers(1);
    std::thread::scope(|scope| {
        scope.spawn(|| visit(&model, &store, &[key(3)]));
        eventually("it is asked for", || store.stats().requests() == 1);
        source.gate.open();
    });
    let stats = store.stats();
    assert_eq!((stats.hits_prefetch, stats.prefetch_used, stats.misses, stats.experts_read), (1, 1, 0, 1));
    let log = source.log.lock().unwrap();
    assert!(log.iter().all(|span| log.iter().filter(|other| *other == span).count() == 1), "a part was read twice");
}

#[test]
fn demands_overtake_hints_and_newer_hints_replace_older_ones() {
    let model = Model::new(Arrangement::Records, 1, 8);
    let source = Stub::new(&model);
    let store = model.store_with(&source, 8, 1);
    source.gate.shut();
    store.prefetch(&[key(0), key(1), key(2)]);
    source.gate.await_readers(1);
    store.prefetch(&[key(4)]);
    let acquire = store.acquire(&[key(5), key(6)]);
    source.gate.open();
    assert_eq!(acquire.map(Result::unwrap).count(), 2);
    eventually("the last hint is read", || store.stats().experts_read == 4);
    let order: Vec<u64> = source.log.lock().unwrap().iter().map(|span| span.offset / 4096 - 1).collect();
    assert_eq!(order, [0, 5, 6, 4]);
    assert_eq!(store.stats().prefetch_dropped, 2);
}

#[test]
fn a_demand_that_needs_the_slot_of_a_guess_gets_it() {
    let model = Model::new(Arrangement::Scattered, 1, 8);
    let source = Stub::new(&model);
    // One slot, taken by a guess of which one read is in flight and the others are queued.
    let store = model.store_with(&source, 1, 1);
    source.gate.shut();
    store.prefetch(&[key(3)]);
    source.gate.await_readers(1);
    std::thread::scope(|scope| {
        scope.spawn(|| visit(&model, &store, &[key(5)]));
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(5));
            source.gate.open();
        });
    });
    let stats = store.stats();
    assert_eq!((stats.misses, stats.prefetch_wasted), (1, 1));
}

#[test]
fn guesses_hold_only_their_share_of_a_full_cache() {
    let model = Model::new(Arrangement::Records, 1, 64);
    let source = Stub::new(&model);
    let store = model.store(&source, 32);
    let hot: Vec<ExpertKey> = (0..32).map(key).collect();
    visit(&model, &store, &hot);
    for wrong in 32..64 {
        store.prefetch(&[key(wrong)]);
        eventually("the guess is read", || store.stats().prefetch_issued == u64::from(wrong) - 31);
        eventually("the guess has landed", || store.stats().experts_read == u64::from(wrong) + 1);
    }
    // Two of 32 slots may hold guesses; the oldest two hot experts left for them, and no other.
    visit(&model, &store, &hot[2..]);
    let stats = store.stats();
    assert_eq!((stats.misses, stats.hits_cache), (32, 30), "{stats:?}");
    assert_eq!(stats.prefetch_wasted, 30);
}

#[test]
fn a_failed_guess_is_nobodys_error() {
    let model = Model::new(Arrangement::Records, 1, 8);
    let source = Stub::new(&model);
    let store = model.store(&source, 2);
    source.on_read(|_| Err(StoreError::Internal { what: "unreadable".to_owned() }));
    store.prefetch(&[key(1)]);
    eventually("the guess has failed", || store.stats().failed_reads == 1);
    source.on_read(|_| Ok(()));
    visit(&model, &store, &[key(1), key(2)]);
}
