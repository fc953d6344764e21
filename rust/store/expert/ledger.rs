//! The books of the store: which expert is in which slot, who waits for what, what is to be read next. No thread, no
//! I/O, no clock: every method is one step under the store's lock, and takes time that does not depend on the number of
//! experts, slots, files or past requests.
//!
//! # Why nobody waits for ever
//!
//! An acquire of `k` keys reserves `min(k, slots)` slots, all at once, in order of arrival, before it holds any; the sum
//! of all reservations is at most the number of slots. So an admitted acquire below its reservation always finds a slot
//! that is free, evictable or being filled by a guess (which ends by itself, and is given up if it has not begun), and an
//! acquire that waits for admission holds nothing. Waiting for another's read is waiting for a disk, never for a
//! consumer. Two cases remain in which a thread would wait for itself; both are errors ([`Ledger::stuck`]): asking for
//! one more lease while holding the whole reservation, and waiting for admission while holding leases of another acquire.
//!
//! When every expert has a slot of its own there is nothing to wait for, and reservations are without limit.
//!
//! # Guesses
//!
//! A prefetched expert that nobody has asked for is a guess. Guesses take free slots and one sixteenth of the slots
//! beyond that, replace each other first, and leave first when a demand needs a slot and they hold more than that share:
//! a guess that is always wrong costs at most that share of the cache, and in a small cache nothing.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::layout::ExpertTable;
use super::list::SlotList;
use super::policy::Policy;
use super::slots::{Piece, Pin, Slab};
use super::stats::ExpertStats;
use super::ticket::{Landed, Ticket};
use crate::error::StoreError;
use crate::source::Span;

mod reads;

/// No slot, no expert.
const NONE: u32 = u32::MAX;
/// Guesses keep at most one in this many slots against demands.
const GUESS_SHARE: usize = 16;

/// A piece of an expert to be read.
pub(crate) struct Job {
    pub(crate) slot: u32,
    pub(crate) span: Span,
    pub(crate) piece: Piece,
}

/// An acquire that waits for a read.
struct Waiter {
    ticket: u32,
    index: u32,
    pin: Pin,
}

/// A read in progress.
struct Load {
    waiters: Vec<Waiter>,
    /// Pieces that are queued or being read.
    pieces: usize,
    /// A piece has been handed to a reader.
    started: bool,
    /// The bytes are not wanted any more; the slot becomes free when the last piece is back.
    abandoned: bool,
    /// Nobody has asked for the expert.
    guess: bool,
    error: Option<StoreError>,
}

#[derive(Default)]
struct SlotRecord {
    expert: Option<u32>,
    load: Option<Load>,
}

/// What has changed since the last look, and whom it concerns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Events {
    /// There may be work for readers.
    pub(crate) work: bool,
    /// Consumers may find something ready.
    pub(crate) landed: bool,
}

/// The books.
pub(crate) struct Ledger {
    table: Arc<ExpertTable>,
    slab: Arc<Slab>,
    policy: Box<dyn Policy>,
    /// expert -> slot.
    places: Vec<u32>,
    slots: Vec<SlotRecord>,
    free: Vec<u32>,
    /// Slots with a guess, read to the end.
    guesses: SlotList,
    guess_limit: usize,
    /// Slots that no acquire has reserved.
    unreserved: usize,
    tickets: Vec<Ticket>,
    retired: Vec<u32>,
    /// Tickets whose reservation is not granted yet, in order of arrival.
    admission: VecDeque<u32>,
    /// Admitted tickets that found no slot, because guesses were being read.
    starved: VecDeque<u32>,
    demand_jobs: VecDeque<Job>,
    guess_jobs: VecDeque<Job>,
    hints: VecDeque<u32>,
    /// Counters, without the sum `hits`.
    pub(crate) stats: ExpertStats,
    pub(crate) events: Events,
    pub(crate) shutdown: bool,
}

impl Ledger {
    /// Empty books over the slots of `slab`.
    pub(crate) fn new(table: Arc<ExpertTable>, slab: Arc<Slab>, policy: Box<dyn Policy>) -> Self {
        let (experts, slots) = (table.expert_count(), slab.len());
        Ledger {
            places: vec![NONE; experts],
            slots: (0..slots).map(|_| SlotRecord::default()).collect(),
            // The lowest slot is taken first.
            free: (0..slots).rev().filter_map(|slot| u32::try_from(slot).ok()).collect(),
            guesses: SlotList::default(),
            guess_limit: slots / GUESS_SHARE,
            unreserved: if slots >= experts { usize::MAX / 2 } else { slots },
            tickets: Vec::new(),
            retired: Vec::new(),
            admission: VecDeque::new(),
            starved: VecDeque::new(),
            demand_jobs: VecDeque::new(),
            guess_jobs: VecDeque::new(),
            hints: VecDeque::new(),
            stats: ExpertStats::default(),
            events: Events::default(),
            shutdown: false,
            table,
            slab,
            policy,
        }
    }

    /// Whether a reader would find something to do.
    pub(crate) fn has_work(&self) -> bool {
        !(self.demand_jobs.is_empty() && self.guess_jobs.is_empty() && self.hints.is_empty())
    }

    // ---- acquires ----

    /// Begins an acquire; `wanted` holds positions in the caller's list and in the table.
    pub(crate) fn open(&mut self, wanted: impl Iterator<Item = (u32, u32)>) -> u32 {
        let id = self.retired.pop().unwrap_or_else(|| {
            self.tickets.push(Ticket::new());
            // As many tickets as live acquires: far below 2^32.
            self.tickets.len() as u32 - 1
        });
        let slots = self.slots.len();
        let ticket = &mut self.tickets[id as usize];
        ticket.renew();
        ticket.wanted.extend(wanted);
        ticket.reserved = ticket.wanted.len().min(slots);
        self.admission.push_back(id);
        self.settle();
        id
    }

    /// Moves what is decided into `into`.
    pub(crate) fn take_ready(&mut self, id: u32, into: &mut VecDeque<Landed>) {
        let ready = &mut self.tickets[id as usize].ready;
        if into.is_empty() {
            std::mem::swap(into, ready);
        } else {
            into.append(ready);
        }
    }

    /// When waiting would be waiting for the caller itself: the error to give instead, for one key (`false`) or for the
    /// whole acquire (`true`).
    pub(crate) fn stuck(&mut self, id: u32) -> Option<(StoreError, bool)> {
        let slots = self.slots.len();
        let ticket = &self.tickets[id as usize];
        if !ticket.admitted {
            // A closed acquire whose last reads are under way holds slots, but not for long.
            let holds = |other: &Ticket| {
                let consumer_holds = !other.closed || other.used > other.outstanding;
                other.admitted && other.reserved > 0 && consumer_holds && other.thread == ticket.thread
            };
            let what = format!(
                "an acquire of {} experts waits for slots that its own thread holds: \
                 drop the leases of one acquire before beginning the next ({slots} slots)",
                ticket.wanted.len()
            );
            return self.tickets.iter().any(holds).then_some((StoreError::Internal { what }, true));
        }
        let held = ticket.ready.is_empty() && ticket.outstanding == 0 && ticket.used >= ticket.reserved;
        if !held || ticket.wanted.is_empty() {
            return None;
        }
        let what = format!(
            "an acquire holds {} leases of {slots} slots and asks for one more: drop a lease before taking the next",
            ticket.used
        );
        self.tickets[id as usize].wanted.pop_front();
        Some((StoreError::Internal { what }, false))
    }

    /// A lease is gone, and its pin with it.
    pub(crate) fn release(&mut self, id: u32) {
        self.tickets[id as usize].used -= 1;
        self.issue(id);
        self.retire_if_done(id);
        self.settle();
    }

    /// The consumer is gone; `landed` is what it had taken and not used.
    pub(crate) fn close(&mut self, id: u32, mut landed: VecDeque<Landed>) {
        let ticket = &mut self.tickets[id as usize];
        landed.append(&mut ticket.ready);
        let pins = landed.iter().filter(|entry| matches!(entry.pin, Ok(Some(_)))).count();
        landed.clear();
        ticket.ready = landed;
        ticket.used -= pins;
        ticket.wanted.clear();
        ticket.closed = true;
        if ticket.starved {
            self.starved.retain(|other| *other != id);
        }
        if !ticket.admitted {
            self.admission.retain(|other| *other != id);
        }
        self.return_spare(id);
        self.retire_if_done(id);
        self.settle();
    }

    /// Gives a ticket's surplus reservation back.
    fn return_spare(&mut self, id: u32) {
        let ticket = &mut self.tickets[id as usize];
        let spare = ticket.spare();
        ticket.reserved -= spare;
        self.unreserved += spare;
    }

    fn retire_if_done(&mut self, id: u32) {
        let ticket = &self.tickets[id as usize];
        if ticket.closed && ticket.used == 0 {
            self.retired.push(id);
        }
    }

    /// Admits whom it can and feeds the starved, until nothing changes.
    fn settle(&mut self) {
        loop {
            let mut progress = false;
            for _ in 0..self.starved.len() {
                let Some(id) = self.starved.pop_front() else { break };
                let ticket = &mut self.tickets[id as usize];
                ticket.starved = false;
                let before = ticket.wanted.len();
                self.issue(id);
                progress |= self.tickets[id as usize].wanted.len() < before;
            }
            while let Some(id) = self.admission.front().copied() {
                if self.tickets[id as usize].reserved > self.unreserved {
                    break;
                }
                self.admission.pop_front();
                self.admit(id);
                progress = true;
            }
            if !progress {
                return;
            }
        }
    }

    /// Grants a reservation: hits are pinned first, so that the acquire's own misses cannot push them out.
    fn admit(&mut self, id: u32) {
        let ticket = &mut self.tickets[id as usize];
        ticket.admitted = true;
        self.unreserved -= ticket.reserved;
        let mut wanted = std::mem::take(&mut ticket.wanted);
        wanted.retain(|(index, expert)| !self.hit(id, *index, *expert));
        self.tickets[id as usize].wanted = wanted;
        self.events.landed = true;
        self.issue(id);
    }

    /// Begins what the ticket's reservation allows.
    fn issue(&mut self, id: u32) {
        loop {
            let ticket = &self.tickets[id as usize];
            if ticket.used >= ticket.reserved {
                break;
            }
            let Some((index, expert)) = ticket.wanted.front().copied() else { break };
            if !self.claim(id, index, expert) {
                self.starve(id);
                break;
            }
            self.tickets[id as usize].wanted.pop_front();
        }
        self.return_spare(id);
    }

    /// Serves a key from a slot that holds it.
    fn hit(&mut self, id: u32, index: u32, expert: u32) -> bool {
        let slot = self.places[expert as usize];
        let ticket = &mut self.tickets[id as usize];
        if slot == NONE || self.slots[slot as usize].load.is_some() || ticket.used >= ticket.reserved {
            return false;
        }
        let Some(pin) = self.slab.pin(slot) else { return false };
        self.policy.on_hit(slot);
        if self.guesses.remove(slot) {
            self.stats.hits_prefetch += 1;
            self.stats.prefetch_used += 1;
        } else {
            self.stats.hits_cache += 1;
        }
        ticket.used += 1;
        ticket.ready.push_back(Landed { index, expert, pin: Ok(Some(pin)) });
        self.events.landed = true;
        true
    }

    /// Serves a key, joins a read of it, or begins one; `false` when no slot can be had now.
    fn claim(&mut self, id: u32, index: u32, expert: u32) -> bool {
        let mut slot = self.places[expert as usize];
        if slot == NONE {
            let Some(taken) = self.slot_for_demand() else { return false };
            if !self.start_load(taken, expert, false) {
                return false;
            }
            slot = taken;
            self.stats.misses += 1;
        } else {
            let Some(load) = &mut self.slots[slot as usize].load else { return self.hit(id, index, expert) };
            if load.abandoned {
                return false;
            }
            if std::mem::take(&mut load.guess) {
                self.stats.hits_prefetch += 1;
                self.stats.prefetch_used += 1;
                self.promote(slot);
            } else {
                self.stats.hits_joined += 1;
            }
        }
        let Some(pin) = self.slab.pin(slot) else { return false };
        let Some(load) = &mut self.slots[slot as usize].load else { return false };
        load.waiters.push(Waiter { ticket: id, index, pin });
        let ticket = &mut self.tickets[id as usize];
        ticket.used += 1;
        ticket.outstanding += 1;
        true
    }

    /// Notes that a ticket found no slot, and gives up guesses whose reads are still queued.
    fn starve(&mut self, id: u32) {
        let ticket = &mut self.tickets[id as usize];
        if !ticket.starved {
            ticket.starved = true;
            self.starved.push_back(id);
        }
        for job in std::mem::take(&mut self.guess_jobs) {
            if let Some(load) = &mut self.slots[job.slot as usize].load {
                load.abandoned = true;
            }
            self.skip(job);
        }
    }

    // ---- slots ----

    /// A slot for an expert that is asked for.
    fn slot_for_demand(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let crowded = self.guesses.len() > self.guess_limit;
        let guess = if crowded { self.guesses.oldest_first().find(|slot| self.is_idle(*slot)) } else { None };
        let slot = match guess {
            Some(slot) => slot,
            None => self.policy_victim()?,
        };
        self.evict(slot);
        Some(slot)
    }

    /// A slot for a guess: never one that a demand has filled, beyond the share of guesses.
    fn slot_for_guess(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = if self.guesses.len() < self.guess_limit {
            self.policy_victim()?
        } else {
            self.guesses.oldest_first().find(|slot| self.is_idle(*slot))?
        };
        self.evict(slot);
        Some(slot)
    }

    /// Whether the slot may be given to another expert: read to the end, and in nobody's hands.
    fn is_idle(&self, slot: u32) -> bool {
        self.slots[slot as usize].load.is_none() && self.slab.is_idle(slot)
    }

    fn policy_victim(&mut self) -> Option<u32> {
        let (slots, slab) = (&self.slots, &self.slab);
        self.policy.victim(&|slot| slots[slot as usize].load.is_none() && slab.is_idle(slot))
    }

    fn evict(&mut self, slot: u32) {
        if let Some(expert) = self.slots[slot as usize].expert.take() {
            self.places[expert as usize] = NONE;
        }
        self.policy.on_evict(slot);
        self.stats.evictions += 1;
        if self.guesses.remove(slot) {
            self.stats.prefetch_wasted += 1;
        }
    }

    /// Begins to read an expert into an empty slot.
    fn start_load(&mut self, slot: u32, expert: u32, guess: bool) -> bool {
        let pieces = self.table.layout(expert).pieces();
        let ranges: Vec<Range<usize>> = pieces.iter().map(|(_, range)| range.clone()).collect();
        let Some(rights) = self.slab.begin_fill(slot, &ranges) else {
            self.free.push(slot);
            return false;
        };
        self.places[expert as usize] = slot;
        // The order of requests, not that of arrival, is what the policy sees: the same trace evicts the same experts.
        self.policy.on_insert(slot, self.table.layout(expert).key);
        let load =
            Load { waiters: Vec::new(), pieces: pieces.len(), started: false, abandoned: false, guess, error: None };
        self.slots[slot as usize] = SlotRecord { expert: Some(expert), load: Some(load) };
        let jobs = pieces.into_iter().zip(rights).map(|((span, _), piece)| Job { slot, span, piece });
        if guess {
            self.guess_jobs.extend(jobs)
        } else {
            self.demand_jobs.extend(jobs)
        }
        self.events.work = true;
        true
    }
}
