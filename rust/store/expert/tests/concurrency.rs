//! Acquires that meet: overlapping sets, few slots, leases held while waiting. A test that hangs has failed.

use std::sync::mpsc;

use super::*;

fn key(expert: u32) -> ExpertKey {
    ExpertKey::new(0, expert)
}

#[test]
fn threads_with_overlapping_sets_never_wait_for_each_other_for_ever() {
    let model = Model::new(Arrangement::Records, 2, 6);
    let keys = model.keys();
    for slots in [1usize, 2, 3, 5, 12] {
        let source = Stub::new(&model);
        let store = model.store_with(&source, slots, 2);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (model, store, keys) = (&model, &store, &keys);
                scope.spawn(move || {
                    let mut random = Random(thread * 31 + slots as u64);
                    for _ in 0..150 {
                        let chosen = random.choose(keys, 1 + thread as usize);
                        let mut held = Vec::new();
                        for item in store.acquire(&chosen) {
                            let (index, lease) = item.unwrap();
                            model.check(chosen[index], &lease);
                            // As many as there are slots may be held, and here they are.
                            if chosen.len() <= slots {
                                held.push((index, lease));
                            }
                        }
                        for (index, lease) in &held {
                            model.check(chosen[*index], lease);
                        }
                        if random.below(5) == 0 {
                            store.prefetch(&random.choose(keys, 2));
                        }
                    }
                });
            }
        });
        let stats = store.stats();
        assert_eq!(stats.requests(), (1 + 2 + 3 + 4) * 150);
        assert_eq!(stats.failed_reads, 0);
    }
}

#[test]
fn an_acquire_that_holds_the_only_slot_lets_others_wait_and_then_go_on() {
    let model = Model::new(Arrangement::Records, 1, 4);
    let source = Stub::new(&model);
    let store = model.store(&source, 1);
    let (holding, held) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (model, store) = (&model, &store);
        scope.spawn(move || {
            let keys = [key(0), key(1)];
            let mut acquire = store.acquire(&keys);
            let (index, lease) = acquire.next().unwrap().unwrap();
            holding.send(()).unwrap();
            finished.recv().unwrap();
            model.check(keys[index], &lease);
            drop(lease);
            let (index, lease) = acquire.next().unwrap().unwrap();
            model.check(keys[index], &lease);
        });
        scope.spawn(move || {
            held.recv().unwrap();
            // Let go on only after this acquire has queued behind the other.
            let acquire = store.acquire(&[key(2), key(3)]);
            finish.send(()).unwrap();
            for item in acquire {
                let (index, lease) = item.unwrap();
                model.check([key(2), key(3)][index], &lease);
            }
        });
    });
    assert_eq!(store.stats().misses, 4);
}

#[test]
fn asking_for_more_leases_than_slots_is_an_error_and_dropping_one_goes_on() {
    let model = Model::new(Arrangement::Records, 1, 6);
    for slots in [1usize, 3] {
        let source = Stub::new(&model);
        let store = model.store(&source, slots);
        let keys = model.keys();
        let mut acquire = store.acquire(&keys);
        let mut held: Vec<_> = (0..slots).map(|_| acquire.next().unwrap().unwrap()).collect();
        let error = acquire.next().unwrap().unwrap_err();
        assert!(error.to_string().contains("drop a lease"), "{error}");
        held.pop();
        let (index, lease) = acquire.next().unwrap().unwrap();
        model.check(keys[index], &lease);
        drop(lease);
        drop(held);
        assert_eq!(acquire.map(Result::unwrap).count(), keys.len() - slots - 2);
    }
}

#[test]
fn a_thread_that_would_wait_for_its_own_other_acquire_gets_an_error() {
    let model = Model::new(Arrangement::Records, 1, 6);
    let source = Stub::new(&model);
    let store = model.store(&source, 2);
    let first: Vec<_> = store.acquire(&[key(0), key(1)]).map(Result::unwrap).collect();
    let items: Vec<_> = store.acquire(&[key(2), key(3)]).collect();
    assert_eq!(items.len(), 1);
    assert!(items[0].as_ref().unwrap_err().to_string().contains("its own thread"));
    drop(items);
    drop(first);
    visit(&model, &store, &[key(2), key(3)]);
    // With room for both there is nothing to wait for.
    let source = Stub::new(&model);
    let store = model.store(&source, 4);
    let first: Vec<_> = store.acquire(&[key(0), key(1)]).map(Result::unwrap).collect();
    visit(&model, &store, &[key(2), key(3)]);
    drop(first);
}

#[test]
fn hits_come_first_and_are_not_pushed_out_by_the_same_acquire() {
    let model = Model::new(Arrangement::Records, 1, 8);
    let source = Stub::new(&model);
    let store = model.store(&source, 3);
    visit(&model, &store, &[key(0)]);
    visit(&model, &store, &[key(1)]);
    let keys = [key(5), key(6), key(0), key(7), key(1)];
    let mut order = Vec::new();
    for item in store.acquire(&keys) {
        let (index, lease) = item.unwrap();
        model.check(keys[index], &lease);
        order.push(index);
    }
    order[..2].sort_unstable();
    assert_eq!(order[..2], [2, 4], "{order:?}");
    assert_eq!((store.stats().hits_cache, store.stats().misses), (2, 5));
}

#[test]
fn an_acquire_of_all_experts_works_with_any_number_of_slots() {
    let model = Model::new(Arrangement::Float, 2, 20);
    for slots in [1, 2, 7, 39, 40] {
        let source = Stub::new(&model);
        let store = model.store_with(&source, slots, 3);
        visit(&model, &store, &model.keys());
        visit(&model, &store, &model.keys());
        let stats = store.stats();
        assert_eq!(stats.requests(), 80);
        assert!(stats.hits_cache >= if slots == 40 { 40 } else { slots as u64 }, "{stats:?} with {slots} slots");
    }
}

#[test]
fn what_is_ready_can_be_taken_without_waiting() {
    let model = Model::new(Arrangement::Records, 1, 6);
    let source = Stub::new(&model);
    let store = model.store_with(&source, 4, 1);
    visit(&model, &store, &[key(0), key(1)]);
    source.gate.shut();
    let keys = [key(4), key(1), key(0)];
    let mut acquire = store.acquire(&keys);
    let ready: Vec<usize> = std::iter::from_fn(|| acquire.next_ready()).map(|item| item.unwrap().0).collect();
    assert_eq!(ready, [1, 2]);
    source.gate.open();
    let (index, lease) = acquire.next().unwrap().unwrap();
    model.check(keys[index], &lease);
    assert!(acquire.next_ready().is_none() && acquire.next().is_none());
}
