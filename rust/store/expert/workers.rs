//! The threads that read, and the lock they share with everyone.
//!
//! Must hold: threads are made when there is first something to read, belong to one process (a forked child makes its
//! own and restarts the reads that were in progress), and are joined when the store is dropped. A panic in a source is
//! an error of that read. If no thread can be made, whoever waits reads.
//!
//! A process may be forked whenever no thread of it is inside a call of the store. Leases held by threads that do not
//! exist in the child stay held there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::ledger::{Job, Ledger};
use crate::error::StoreError;
use crate::source::{ReadJob, Source};

/// What readers and consumers share.
pub(crate) struct Shared {
    source: Arc<dyn Source>,
    ledger: Mutex<Ledger>,
    /// Readers wait here for work.
    work: Condvar,
    /// Consumers wait here for what they asked for.
    landed: Condvar,
}

impl Shared {
    pub(crate) fn new(source: Arc<dyn Source>, ledger: Ledger) -> Arc<Self> {
        Arc::new(Shared { source, ledger: Mutex::new(ledger), work: Condvar::new(), landed: Condvar::new() })
    }

    /// The books. No code that holds them panics on data, and every step leaves them whole, so poison is ignored.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whom the last steps concern.
    pub(crate) fn publish(&self, ledger: &mut MutexGuard<'_, Ledger>) {
        let events = std::mem::take(&mut ledger.events);
        if events.work {
            self.work.notify_all();
        }
        if events.landed {
            self.landed.notify_all();
        }
    }

    /// Waits until something may have landed.
    pub(crate) fn wait_landed<'a>(&'a self, ledger: MutexGuard<'a, Ledger>) -> MutexGuard<'a, Ledger> {
        self.landed.wait(ledger).unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one piece, if there is one to read. The lock is free meanwhile.
    pub(crate) fn read_one<'a>(&'a self, mut ledger: MutexGuard<'a, Ledger>) -> (MutexGuard<'a, Ledger>, bool) {
        let job = ledger.next_job();
        self.publish(&mut ledger);
        let Some(job) = job else { return (ledger, false) };
        drop(ledger);
        let slot = job.slot;
        let result = self.read(job);
        let mut ledger = self.lock();
        ledger.piece_done(slot, result);
        self.publish(&mut ledger);
        (ledger, true)
    }

    fn read(&self, mut job: Job) -> Result<u64, StoreError> {
        let span = job.span;
        let inert = || StoreError::Internal { what: "a read of another process was continued".to_owned() };
        let into = job.piece.bytes_mut().ok_or_else(inert)?;
        let read = AssertUnwindSafe(|| self.source.read(&mut [ReadJob { span, into }]));
        let panicked = |_| Err(StoreError::Internal { what: format!("the {} source panicked", self.source.kind()) });
        catch_unwind(read).unwrap_or_else(panicked).map(|()| span.bytes)
    }

    fn run(&self) {
        let mut ledger = self.lock();
        while !ledger.shutdown {
            let did;
            (ledger, did) = self.read_one(ledger);
            if !did && !ledger.shutdown {
                ledger = self.work.wait(ledger).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// The reading threads of one store.
pub(crate) struct Crew {
    size: usize,
    /// The process the threads belong to; 0 before there are any.
    process: AtomicU32,
    alive: AtomicUsize,
    members: Mutex<Vec<JoinHandle<()>>>,
}

impl Crew {
    /// A crew of up to `size` threads, none of them made yet.
    pub(crate) fn new(size: usize) -> Self {
        Crew {
            size: size.max(1),
            process: AtomicU32::new(0),
            alive: AtomicUsize::new(0),
            members: Mutex::new(Vec::new()),
        }
    }

    /// Makes sure that threads of this process are reading. Must be called without the lock of the books.
    pub(crate) fn ensure(&self, shared: &Arc<Shared>) {
        let process = std::process::id();
        if self.process.load(Ordering::Acquire) == process {
            return;
        }
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.process.load(Ordering::Acquire);
        if before == process {
            return;
        }
        if before != 0 {
            // Threads of the parent: there is nothing here to join or to detach.
            members.drain(..).for_each(std::mem::forget);
            shared.lock().restart_reads();
        }
        for number in 0..self.size {
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new().name(format!("colibri-io-{number}"));
            // Fewer threads than asked for are slower, not wrong.
            if let Ok(handle) = thread.spawn(move || shared.run()) {
                members.push(handle);
            }
        }
        self.alive.store(members.len(), Ordering::Release);
        self.process.store(process, Ordering::Release);
    }

    /// Whether no thread could be made.
    pub(crate) fn is_empty(&self) -> bool {
        self.alive.load(Ordering::Acquire) == 0
    }

    /// Ends and joins the threads; reads that have begun are finished.
    pub(crate) fn dismiss(&self, shared: &Shared) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if self.process.load(Ordering::Acquire) != std::process::id() {
            members.drain(..).for_each(std::mem::forget);
            return;
        }
        let mut ledger = shared.lock();
        ledger.shut_down();
        shared.publish(&mut ledger);
        drop(ledger);
        for member in members.drain(..) {
            // A reader cannot panic outside the source, which is guarded; its result is of no use.
            let _ = member.join();
        }
    }
}
