//! Failures that streaming engines have had, each kept from coming back. The names begin with the case's id.

use super::*;
use crate::expert::ExpertStats;

fn key(expert: u32) -> ExpertKey {
    ExpertKey::new(0, expert)
}

/// EX-04: a guess that is wrong at every step pushes out nothing that is asked for.
#[test]
fn ex_04_wrong_guesses_do_not_push_out_hot_experts() {
    let model = Model::new(Arrangement::Records, 1, 8);
    let run = |guess_before_first: bool, guess: bool| {
        let source = Stub::new(&model);
        let store = model.store(&source, 2);
        for step in 0..50u32 {
            if guess && (step > 0 || guess_before_first) {
                store.prefetch(&[key(2 + step % 6)]);
                eventually("the guess is read or dropped", || {
                    let stats = store.stats();
                    stats.prefetch_issued + stats.prefetch_dropped > 0 && stats.experts_read >= stats.prefetch_issued
                });
            }
            visit(&model, &store, &[key(0)]);
            visit(&model, &store, &[key(1)]);
        }
        store.stats()
    };
    let plain = run(false, false);
    assert_eq!((plain.misses, plain.hits), (2, 98));
    let guessed = run(false, true);
    assert_eq!((guessed.misses, guessed.hits_cache), (2, 98), "hot experts were pushed out");
    assert_eq!(guessed.bytes_read, plain.bytes_read);
    let early = run(true, true);
    assert_eq!((early.misses, early.hits_cache), (2, 98));
    assert_eq!(early.experts_read, plain.experts_read + early.prefetch_issued);
    assert!(early.prefetch_issued <= 1 && early.prefetch_used == 0);
}

/// EX-10: rows of a batch, and threads, that choose the same experts read each of them once.
#[test]
fn ex_10_equal_choices_read_each_expert_once() {
    let model = Model::new(Arrangement::Records, 2, 8);
    let source = Stub::new(&model);
    let store = model.store(&source, 16);
    source.gate.shut();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| visit(&model, &store, &[key(1), key(5), key(6), key(7)]));
        }
        eventually("four rows ask for four experts each", || store.stats().requests() == 16);
        source.gate.open();
    });
    let stats = store.stats();
    assert_eq!((stats.misses, stats.experts_read, source.reads()), (4, 4, 4));
    assert_eq!(stats.hits_joined + stats.hits_cache, 12);
}

/// EX-11: the counters add up, and the same trace gives the same counters.
#[test]
fn ex_11_counters_add_up_and_repeat() {
    let model = Model::new(Arrangement::Float, 2, 16);
    let keys = model.keys();
    let run = || -> ExpertStats {
        let source = Stub::new(&model);
        let store = model.store(&source, 12);
        let mut random = Random(11);
        let mut asked = 0;
        for _ in 0..300 {
            let chosen = random.choose(&keys, 4);
            visit(&model, &store, &chosen);
            asked += chosen.len() as u64;
            if random.below(4) == 0 {
                store.prefetch(&random.choose(&keys, 1));
                eventually("the hint has ended", || {
                    let stats = store.stats();
                    stats.experts_read == stats.misses + stats.prefetch_issued
                });
            }
        }
        let stats = store.stats();
        assert_eq!(stats.requests(), asked);
        assert_eq!(stats.hits, stats.hits_cache + stats.hits_prefetch + stats.hits_joined + stats.hits_mapped);
        let read: u64 = source.log.lock().unwrap().iter().map(|span| span.bytes).sum();
        assert_eq!(stats.bytes_read, read);
        assert!(stats.hits_cache > 0 && stats.misses > 0 && stats.evictions > 0);
        ExpertStats { wait: Duration::ZERO, prefetch_dropped: 0, ..stats }
    };
    let first = run();
    // Whether a hint is begun depends on when a reader looks; everything asked for does not.
    let again = run();
    assert_eq!((first.requests(), first.failed_reads), (again.requests(), again.failed_reads));

    let without_hints = || {
        let source = Stub::new(&model);
        let store = model.store(&source, 12);
        let mut random = Random(12);
        for _ in 0..300 {
            visit(&model, &store, &random.choose(&keys, 4));
        }
        ExpertStats { wait: Duration::ZERO, ..store.stats() }
    };
    assert_eq!(without_hints(), without_hints());
}
