//! A team of worker threads that runs the sections of a forward pass.
//!
//! Owns: the threads. They are spawned on the first parallel section, spin for about 50 us between
//! sections and then park, so that a hot hand-off costs about a microsecond and an idle process no CPU.
//! The caller is worker 0; tasks are handed out by an atomic counter, so a slow core takes fewer.
//!
//! Must hold:
//! - `run` returns only after every task has finished and no worker can touch the closure any more;
//! - a team belongs to the process that spawned it: a forked child finds a foreign process id and builds
//!   its own (threads do not survive a fork, and locks may have been held by them);
//! - a section started from inside a task of the same pool runs serially on its thread; a section started
//!   by another thread waits its turn;
//! - a panic in a task stops the hand-out, and is raised again in the caller after the section has closed.
//!
//! Refuses: nothing. A thread that cannot be spawned means a smaller team.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker watches for the next section before it parks.
const SPIN: Duration = Duration::from_micros(50);
/// Polls between two looks at the clock or the scheduler.
const POLLS: u32 = 64;

/// `Gate` bits: the low half counts workers inside the section, then one bit says that it is open, the
/// rest numbers the sections.
const INSIDE: u64 = 0xFFFF;
const OPEN: u64 = 1 << 16;
const SECTION: u64 = 1 << 17;

type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

thread_local! {
    /// Address of the team whose task runs on this thread, 0 outside of any.
    static INSIDE_TEAM: Cell<usize> = const { Cell::new(0) };
}

/// Integer multiply-adds below which a section stays on the calling thread: about 40 microseconds of work. A hand-off to
/// a spinning worker costs less than one, to a parked worker about 30, and on a busy machine the slower of two threads
/// decides.
pub const SERIAL_WORK: usize = 1 << 20;

/// A lazily spawned team of worker threads.
pub struct WorkerPool {
    threads: usize,
    serial_work: usize,
    team: AtomicPtr<Team>,
}

impl WorkerPool {
    /// A pool of `threads` workers, the caller included (0 means 1, at most 1024). Spawns nothing yet.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { threads: threads.clamp(1, 1024), serial_work: SERIAL_WORK, team: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The same pool with another bound for [`Self::shares`]; results never depend on it.
    #[must_use]
    pub fn with_serial_work(mut self, multiply_adds: usize) -> Self {
        self.serial_work = multiply_adds;
        self
    }

    /// Whether a section of this many integer multiply-adds is worth a hand-off to other threads.
    #[must_use]
    pub fn shares(&self, multiply_adds: usize) -> bool {
        self.threads > 1 && multiply_adds >= self.serial_work
    }

    /// Number of workers, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `f(task, worker)` once for every `task` in `0..tasks`; `worker < threads()`, and at any time
    /// at most one thread has a given worker number within the section.
    ///
    /// # Panics
    /// Raises again the first panic of a task, after all workers have left the section.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        if self.threads == 1 || tasks <= 1 {
            return run_serially(tasks, f);
        }
        let team = self.team();
        let address = ptr::from_ref(team) as usize;
        if INSIDE_TEAM.get() == address {
            return run_serially(tasks, f);
        }
        team.run(tasks, f);
    }

    /// Splits `out` into chunks of `chunk` elements (the last may be shorter) and calls
    /// `f(chunk index, chunk)` for each.
    ///
    /// # Panics
    /// As [`WorkerPool::run`].
    pub fn for_each_chunk<T: Send>(&self, out: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        let chunks = Chunks::new(out, chunk);
        self.run(chunks.count(), &|task, _worker| {
            // SAFETY: `run` hands out each task once, so no two borrows of a chunk overlap.
            f(task, unsafe { chunks.get(task) });
        });
    }

    /// As [`WorkerPool::for_each_chunk`], with exclusive scratch per worker.
    ///
    /// # Panics
    /// If `scratch` has fewer than `threads()` entries; and as [`WorkerPool::run`].
    pub fn for_each_chunk_with<T: Send, S: Send>(
        &self,
        out: &mut [T],
        chunk: usize,
        scratch: &mut [S],
        f: impl Fn(usize, &mut [T], &mut S) + Sync,
    ) {
        assert!(scratch.len() >= self.threads, "one scratch per worker");
        let chunks = Chunks::new(out, chunk);
        let scratch = Chunks::new(scratch, 1);
        self.run(chunks.count(), &|task, worker| {
            // SAFETY: `run` hands out each task once, so no two borrows of a chunk overlap.
            let part = unsafe { chunks.get(task) };
            // SAFETY: within a section one thread has this worker number, so the borrow is exclusive.
            let own = unsafe { scratch.get(worker) };
            if let Some(own) = own.first_mut() {
                f(task, part, own);
            }
        });
    }

    /// The team of this process, created if there is none or if the one at hand is the parent's.
    fn team(&self) -> &Team {
        let process = std::process::id();
        let current = self.team.load(Ordering::Acquire);
        // SAFETY: a non-null pointer came from `Box::into_raw` and is freed only by `drop`, which needs
        // `&mut self`; a replaced team of a parent process is never freed.
        if let Some(team) = unsafe { current.as_ref() }
            && team.process == process
        {
            return team;
        }
        let fresh = Box::into_raw(Box::new(Team::new(process, self.threads)));
        match self.team.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `fresh` is now owned by `self.team`; see above.
            Ok(_) => unsafe { &*fresh },
            Err(winner) => {
                // SAFETY: `fresh` was never published, so this is its only owner.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: the winner is a live team of this process; see above.
                unsafe { &*winner }
            }
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        let team = *self.team.get_mut();
        // SAFETY: the pointer is null or came from `Box::into_raw`, and `&mut self` makes it the only use.
        // A team of a parent process is left alone: its threads cannot be joined from here.
        unsafe {
            if team.as_ref().is_some_and(|team| team.process == std::process::id()) {
                drop(Box::from_raw(team));
            }
        }
    }
}

impl std::fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerPool").field("threads", &self.threads).finish_non_exhaustive()
    }
}

fn run_serially(tasks: usize, f: &Task<'_>) {
    for task in 0..tasks {
        f(task, 0);
    }
}

/// A slice that workers borrow in disjoint pieces.
struct Chunks<T> {
    start: *mut T,
    length: usize,
    chunk: usize,
}

// SAFETY: pieces are handed to at most one thread each (see `get`), so `T: Send` suffices.
unsafe impl<T: Send> Sync for Chunks<T> {}

impl<T> Chunks<T> {
    fn new(slice: &mut [T], chunk: usize) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), chunk: chunk.max(1) }
    }

    fn count(&self) -> usize {
        self.length.div_ceil(self.chunk)
    }

    /// The piece with this index; empty beyond the end.
    ///
    /// # Safety
    /// The slice given to `new` must still be borrowed, and the same piece not be in use elsewhere.
    #[allow(clippy::mut_from_ref)] // exclusivity is per piece and is the caller's promise
    unsafe fn get(&self, index: usize) -> &mut [T] {
        let start = index.saturating_mul(self.chunk).min(self.length);
        let length = self.chunk.min(self.length - start);
        // SAFETY: start + length <= self.length, the length of the borrowed slice; exclusive as promised.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), length) }
    }
}

/// Threads of one process and the board on which sections are announced.
struct Team {
    process: u32,
    board: Arc<Board>,
    /// Held by the caller during a section; the threads are spawned under it. `None`: not yet.
    crew: Mutex<Option<Vec<JoinHandle<()>>>>,
}

/// What caller and workers share. Each field written in the hand-off has a cache line of its own.
struct Board {
    gate: Line<AtomicU64>,
    next: Line<AtomicUsize>,
    job: Line<UnsafeCell<Option<Job>>>,
    asleep: Vec<Line<AtomicBool>>, // [threads - 1]
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

/// Keeps its content away from other cache lines (and from the adjacent-line prefetcher).
#[repr(align(128))]
struct Line<T>(T);

/// The closure of a section, without its lifetime.
#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
    /// Address of the team, the mark of a nested section.
    team: usize,
}

// SAFETY: `job` is written only by the caller that holds `Team::crew`, while the gate is closed and nobody
// is inside, and is read only by workers that entered an open gate; every other field is an atomic or a
// lock.
unsafe impl Sync for Board {}
// SAFETY: the pointer in `job` is to a `Sync` closure, which may be called from any thread.
unsafe impl Send for Board {}

impl Team {
    fn new(process: u32, threads: usize) -> Self {
        let asleep = (1..threads).map(|_| Line(AtomicBool::new(false))).collect();
        let board = Board {
            gate: Line(AtomicU64::new(0)),
            next: Line(AtomicUsize::new(0)),
            job: Line(UnsafeCell::new(None)),
            asleep,
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        };
        Self { process, board: Arc::new(board), crew: Mutex::new(None) }
    }

    /// Runs one section; the caller works too.
    fn run(&self, tasks: usize, f: &Task<'_>) {
        let board = &*self.board;
        let mut crew = lock(&self.crew);
        let handles = crew.get_or_insert_with(|| spawn(&self.board));
        // SAFETY: only the lifetime changes. The pointer is used by workers inside the gate, and `close`
        // returns when nobody is inside and the gate is shut, which happens before `f` goes out of scope.
        let task = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(f) };
        let job = Job { task, tasks, team: ptr::from_ref(self) as usize };
        // SAFETY: the gate is closed and empty, so no worker reads the job; `crew` excludes other callers.
        unsafe { *board.job.0.get() = Some(job) };
        board.next.0.store(0, Ordering::Relaxed);
        board.open();
        for (handle, asleep) in handles.iter().zip(&board.asleep).take(tasks - 1) {
            if asleep.0.load(Ordering::SeqCst) {
                handle.thread().unpark();
            }
        }
        board.work(job, 0);
        board.close();
        // Taken before the crew is let go, so that it cannot be another section's.
        let panic = lock(&board.panic).take();
        drop(crew);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.board.stop.store(true, Ordering::SeqCst);
        let crew = self.crew.get_mut().unwrap_or_else(PoisonError::into_inner);
        for handle in crew.take().into_iter().flatten() {
            handle.thread().unpark();
            // A worker catches every panic of a task, so there is no result to look at.
            let _ = handle.join();
        }
    }
}

/// Spawns the workers; a thread that the system refuses is left out.
fn spawn(board: &Arc<Board>) -> Vec<JoinHandle<()>> {
    (1..=board.asleep.len())
        .map_while(|worker| {
            let board = Arc::clone(board);
            std::thread::Builder::new().name(format!("colibri-{worker}")).spawn(move || board.serve(worker)).ok()
        })
        .collect()
}

impl Board {
    /// Announces the section whose job has just been written.
    fn open(&self) {
        // Only the caller changes these bits, and nobody is inside: a plain store cannot lose a count.
        let section = self.gate.0.load(Ordering::Relaxed) & !(SECTION - 1);
        // SeqCst: either a worker about to park sees this store, or the caller sees `asleep` (Dekker).
        self.gate.0.store(section.wrapping_add(SECTION) | OPEN, Ordering::SeqCst);
    }

    /// Shuts the gate and waits until the last worker has left.
    fn close(&self) {
        let mut gate = self.gate.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut polls = 0u32;
        while gate & INSIDE != 0 {
            polls += 1;
            if polls.is_multiple_of(POLLS) {
                // With more threads than free cores the worker may be waiting for this very core.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
            gate = self.gate.0.load(Ordering::Acquire);
        }
    }

    /// Takes tasks until none is left; keeps the first panic.
    fn work(&self, job: Job, worker: usize) {
        let outer = INSIDE_TEAM.replace(job.team);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.0.fetch_add(1, Ordering::Relaxed);
                if task >= job.tasks {
                    break;
                }
                // SAFETY: this thread is inside the gate (or is the caller), so the closure is alive.
                unsafe { (*job.task)(task, worker) };
            }
        }));
        INSIDE_TEAM.set(outer);
        if let Err(payload) = outcome {
            // Hands out nothing more; the half range leaves room for further increments.
            self.next.0.store(usize::MAX / 2, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }

    /// Life of a worker: wait for a section, enter it unless it has closed, work, leave.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        while let Some(gate) = self.wait(worker, seen) {
            seen = gate / SECTION;
            if !self.enter(seen) {
                continue;
            }
            // SAFETY: this thread is inside an open gate; the job was written before it opened.
            if let Some(job) = unsafe { *self.job.0.get() } {
                self.work(job, worker);
            }
            // Release: the caller that sees the count fall sees everything the tasks wrote.
            self.gate.0.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Counts this worker in, unless the section is over.
    fn enter(&self, section: u64) -> bool {
        let mut gate = self.gate.0.load(Ordering::Relaxed);
        while gate & OPEN != 0 && gate / SECTION == section {
            match self.gate.0.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// Spins, then parks, until the gate shows a section other than `seen`; `None` when the team stops.
    fn wait(&self, worker: usize, seen: u64) -> Option<u64> {
        let asleep = &self.asleep[worker - 1].0;
        loop {
            let started = Instant::now();
            while started.elapsed() < SPIN {
                for _ in 0..POLLS {
                    let gate = self.gate.0.load(Ordering::Acquire);
                    if gate / SECTION != seen {
                        return Some(gate);
                    }
                    std::hint::spin_loop();
                }
                if self.stop.load(Ordering::Relaxed) {
                    return None;
                }
            }
            asleep.store(true, Ordering::SeqCst);
            while self.gate.0.load(Ordering::SeqCst) / SECTION == seen {
                if self.stop.load(Ordering::SeqCst) {
                    return None;
                }
                std::thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
        }
    }
}

/// Locks; what these locks guard stays whole when a holder panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
