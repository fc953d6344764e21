//! What one acquire holds and waits for. Plain data; the rules are in [`super::ledger`].

use std::collections::VecDeque;
use std::thread::ThreadId;

use super::slots::Pin;
use crate::error::StoreError;

/// One key of an acquire, decided: the expert's bytes, or why they could not be had.
pub(crate) struct Landed {
    /// Position in the caller's list of keys.
    pub(crate) index: u32,
    /// Position in the table; meaningless in an error.
    pub(crate) expert: u32,
    /// The slot; `None` where no slot is needed because the file is mapped.
    pub(crate) pin: Result<Option<Pin>, Box<StoreError>>,
}

/// The state of one acquire.
pub(crate) struct Ticket {
    /// The thread that asks; leases and acquires never leave it.
    pub(crate) thread: ThreadId,
    /// Slots that this acquire may hold at once and that no other acquire counts on. Before admission: what it asks for.
    pub(crate) reserved: usize,
    /// Slots held: delivered, ready, or being read for this acquire. At most `reserved`.
    pub(crate) used: usize,
    /// Of `used`, those being read.
    pub(crate) outstanding: usize,
    /// Keys for which nothing has been begun: position in the caller's list, position in the table.
    pub(crate) wanted: VecDeque<(u32, u32)>,
    /// Keys that are decided and not yet taken by the consumer.
    pub(crate) ready: VecDeque<Landed>,
    /// Whether `reserved` has been granted.
    pub(crate) admitted: bool,
    /// Whether the consumer has gone.
    pub(crate) closed: bool,
    /// Whether the ticket waits in the queue of those that found no slot.
    pub(crate) starved: bool,
}

impl Ticket {
    /// A ticket of the calling thread that asks for nothing yet.
    pub(crate) fn new() -> Self {
        Ticket {
            thread: std::thread::current().id(),
            reserved: 0,
            used: 0,
            outstanding: 0,
            wanted: VecDeque::new(),
            ready: VecDeque::new(),
            admitted: false,
            closed: false,
            starved: false,
        }
    }

    /// Makes a retired ticket new again; its queues keep their memory.
    pub(crate) fn renew(&mut self) {
        self.wanted.clear();
        self.ready.clear();
        let (wanted, ready) = (std::mem::take(&mut self.wanted), std::mem::take(&mut self.ready));
        *self = Ticket { wanted, ready, ..Ticket::new() };
    }

    /// Slots reserved beyond what the ticket can still use.
    pub(crate) fn spare(&self) -> usize {
        if self.admitted { self.reserved.saturating_sub(self.used + self.wanted.len()) } else { 0 }
    }
}
