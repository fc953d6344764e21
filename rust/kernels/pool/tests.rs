//! Every task once, exclusive worker numbers, nesting, panics, forks, sleep.

use super::*;
use std::sync::Barrier;

/// Runs `tasks` tasks and returns how often each was called.
fn counts(pool: &WorkerPool, tasks: usize) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    pool.run(tasks, &|task, worker| {
        assert!(worker < pool.threads());
        counts[task].fetch_add(1, Ordering::Relaxed);
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_task_runs_once_for_every_size() {
    for threads in [0, 1, 2, 3, 7] {
        let pool = WorkerPool::new(threads);
        for tasks in [0, 1, 2, 3, 64, 1000] {
            assert!(counts(&pool, tasks).iter().all(|count| *count == 1));
        }
    }
}

#[test]
fn many_short_sections_lose_nothing() {
    let pool = WorkerPool::new(3);
    let sum = AtomicUsize::new(0);
    for _ in 0..5000 {
        pool.run(4, &|task, _| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
    }
    assert_eq!(sum.into_inner(), 5000 * 6);
}

#[test]
fn workers_take_part_and_are_numbered_apart() {
    let pool = WorkerPool::new(3);
    let barrier = Barrier::new(3);
    let seen: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
    // Three tasks that wait for each other need three threads.
    pool.run(3, &|_, worker| {
        barrier.wait();
        seen[worker].fetch_add(1, Ordering::Relaxed);
    });
    assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
}

#[test]
fn chunks_cover_the_slice_once() {
    for threads in [1, 2, 5] {
        let pool = WorkerPool::new(threads);
        for (length, chunk) in [(0, 3), (1, 3), (10, 3), (12, 3), (5, 100), (7, 0)] {
            let mut out = vec![0u32; length];
            pool.for_each_chunk(&mut out, chunk, |index, part| {
                for value in part {
                    *value += 1 + index as u32;
                }
            });
            let expected: Vec<u32> = (0..length).map(|i| 1 + (i / chunk.max(1)) as u32).collect();
            assert_eq!(out, expected);
        }
    }
}

#[test]
fn scratch_is_exclusive_to_a_worker() {
    let pool = WorkerPool::new(4);
    let mut scratch = vec![0usize; 4];
    let mut out = vec![0u8; 999];
    pool.for_each_chunk_with(&mut out, 10, &mut scratch, |_, part, own| {
        let before = *own;
        std::thread::yield_now();
        *own = before + part.len(); // a shared scratch would lose updates
    });
    assert_eq!(scratch.iter().sum::<usize>(), 999);
}

#[test]
#[should_panic(expected = "one scratch per worker")]
fn too_little_scratch_is_refused() {
    let pool = WorkerPool::new(2);
    pool.for_each_chunk_with(&mut [0u8; 4], 1, &mut [0u8; 1], |_, _, _| {});
}

#[test]
fn a_nested_section_runs_serially() {
    let pool = WorkerPool::new(3);
    let total = AtomicUsize::new(0);
    pool.run(6, &|_, _| {
        let here = std::thread::current().id();
        pool.run(5, &|_, worker| {
            assert_eq!((worker, std::thread::current().id()), (0, here));
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.into_inner(), 30);
}

#[test]
fn two_pools_nest_in_parallel() {
    let (outer, inner) = (WorkerPool::new(2), WorkerPool::new(2));
    let total = AtomicUsize::new(0);
    outer.run(4, &|_, _| {
        inner.run(4, &|_, _| {
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.into_inner(), 16);
}

#[test]
fn sections_of_several_callers_take_turns() {
    let pool = WorkerPool::new(3);
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(5, &|task, _| {
                        total.fetch_add(task, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * 200 * 10);
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = WorkerPool::new(3);
    for bad in [0usize, 1, 17] {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(40, &|task, _| assert!(task != bad, "task {task} failed"));
        }));
        let payload = outcome.unwrap_err();
        let message = payload.downcast_ref::<String>().unwrap();
        assert_eq!(message, &format!("task {bad} failed"));
        assert!(counts(&pool, 100).iter().all(|count| *count == 1));
    }
}

#[test]
fn threads_appear_with_the_first_section_and_end_with_the_pool() {
    let pool = WorkerPool::new(3);
    assert!(pool.team.load(Ordering::Acquire).is_null());
    counts(&pool, 8);
    // SAFETY: the team was created by the section above and lives as long as the pool.
    let board = Arc::clone(unsafe { &(*pool.team.load(Ordering::Acquire)).board });
    assert_eq!(Arc::strong_count(&board), 4); // the team's, two workers', ours
    drop(pool);
    assert_eq!(Arc::strong_count(&board), 1);
}

#[test]
fn idle_workers_park_and_wake_again() {
    let pool = WorkerPool::new(3);
    counts(&pool, 8);
    // SAFETY: the team was created by the section above and lives as long as the pool.
    let board = Arc::clone(unsafe { &(*pool.team.load(Ordering::Acquire)).board });
    let all_asleep = || board.asleep.iter().all(|line| line.0.load(Ordering::SeqCst));
    for _ in 0..3 {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !all_asleep() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(all_asleep(), "workers still spin");
        let barrier = Barrier::new(3);
        pool.run(3, &|_, _| {
            barrier.wait(); // passes only if both workers woke
        });
    }
}

#[cfg(unix)]
#[test]
fn a_forked_child_builds_its_own_team() {
    let pool = WorkerPool::new(3);
    counts(&pool, 8);
    // SAFETY: the child runs the pool and leaves by `_exit`, without unwinding into the test harness.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let sum = AtomicUsize::new(0);
        let barrier = Barrier::new(3);
        pool.run(3, &|task, _| {
            barrier.wait(); // needs live workers, not the parent's
            sum.fetch_add(task, Ordering::Relaxed);
        });
        drop(pool);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if sum.into_inner() == 3 { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
    assert!(counts(&pool, 100).iter().all(|count| *count == 1));
}
