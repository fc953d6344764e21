//! The reading half of the books: what is read next, and what happens when it is back.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Job, Ledger, Load, NONE, Waiter};
use crate::error::StoreError;
use crate::expert::ticket::Landed;

impl Ledger {
    /// Replaces the hints that have not begun.
    pub(crate) fn hint(&mut self, experts: impl Iterator<Item = u32>) {
        self.stats.prefetch_dropped += self.hints.len() as u64;
        self.hints.clear();
        let places = &self.places;
        self.hints.extend(experts.filter(|expert| places[*expert as usize] == NONE));
        self.events.work |= !self.hints.is_empty();
    }

    /// Moves the rest of a guess, which is now asked for, before all other reads: it is nearest to its end.
    pub(super) fn promote(&mut self, slot: u32) {
        let (mine, others): (VecDeque<Job>, VecDeque<Job>) =
            std::mem::take(&mut self.guess_jobs).into_iter().partition(|job| job.slot == slot);
        self.guess_jobs = others;
        for job in mine.into_iter().rev() {
            self.demand_jobs.push_front(job);
        }
        self.events.work = true;
    }

    /// The next piece to read: demands in order, then the guess in progress, then a new guess.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        loop {
            if let Some(job) = self.demand_jobs.pop_front() {
                if self.is_wanted(job.slot) {
                    return Some(job);
                }
                self.skip(job);
                self.settle();
                continue;
            }
            if let Some(job) = self.guess_jobs.pop_front() {
                return Some(job);
            }
            // A demand that waits for a slot comes before any new guess.
            if !self.starved.is_empty() {
                return None;
            }
            let expert = self.hints.pop_front()?;
            if self.places[expert as usize] != NONE {
                continue;
            }
            match self.slot_for_guess() {
                Some(slot) if self.start_load(slot, expert, true) => self.stats.prefetch_issued += 1,
                _ => self.stats.prefetch_dropped += 1,
            }
        }
    }

    /// Whether a demand read is still worth a piece: not after an error, nor when everyone left before it began.
    fn is_wanted(&mut self, slot: u32) -> bool {
        let Some(load) = &mut self.slots[slot as usize].load else { return false };
        if !load.started && load.waiters.iter().all(|waiter| self.tickets[waiter.ticket as usize].closed) {
            load.abandoned = true;
        }
        load.started = true;
        !load.abandoned && load.error.is_none()
    }

    /// Drops a piece without reading it.
    pub(super) fn skip(&mut self, job: Job) {
        let slot = job.slot;
        drop(job);
        self.piece_back(slot);
    }

    /// A piece has been read, `bytes` of it, or not; its [`Piece`] is dropped.
    pub(crate) fn piece_done(&mut self, slot: u32, result: Result<u64, StoreError>) {
        match (result, &mut self.slots[slot as usize].load) {
            (Ok(bytes), _) => self.stats.bytes_read += bytes,
            (Err(error), Some(load)) => drop(load.error.get_or_insert(error)),
            (Err(_), None) => {}
        }
        self.piece_back(slot);
        self.settle();
    }

    fn piece_back(&mut self, slot: u32) {
        let record = &mut self.slots[slot as usize];
        let Some(load) = &mut record.load else { return };
        load.pieces -= 1;
        if load.pieces > 0 {
            return;
        }
        if let (Some(load), Some(expert)) = (record.load.take(), record.expert) {
            self.finish(slot, expert, load);
        }
    }

    /// The last piece of a read is back: everyone who waits gets the slot, or the error.
    fn finish(&mut self, slot: u32, expert: u32, load: Load) {
        let kept = !load.abandoned && load.error.is_none();
        if kept {
            self.stats.experts_read += 1;
            if load.guess {
                self.guesses.push_front(slot);
            }
        } else {
            self.policy.on_evict(slot);
            self.places[expert as usize] = NONE;
            self.slots[slot as usize].expert = None;
            self.stats.failed_reads += u64::from(load.error.is_some());
            self.stats.prefetch_wasted += u64::from(load.guess);
        }
        let mut concerned = Vec::with_capacity(load.waiters.len());
        for Waiter { ticket: id, index, pin } in load.waiters {
            let ticket = &mut self.tickets[id as usize];
            ticket.outstanding -= 1;
            let pin = match &load.error {
                None if kept && !ticket.closed => Ok(Some(pin)),
                Some(error) => Err(Box::new(error.clone())),
                None => Ok(None),
            };
            // Whoever does not get the slot gives up its claim to it.
            ticket.used -= usize::from(!matches!(pin, Ok(Some(_))));
            if !ticket.closed {
                ticket.ready.push_back(Landed { index, expert, pin });
            }
            if !concerned.contains(&id) {
                concerned.push(id);
            }
        }
        if !kept {
            self.free.push(slot);
        }
        for id in concerned {
            self.issue(id);
            self.retire_if_done(id);
        }
        self.events.landed = true;
    }

    /// In a forked child: the readers of the parent do not exist here, so every read in progress begins anew.
    pub(crate) fn restart_reads(&mut self) {
        // The pieces made by the parent are inert here; dropping them changes nothing.
        self.demand_jobs.clear();
        self.guess_jobs.clear();
        for slot in 0..self.slots.len() as u32 {
            let record = &mut self.slots[slot as usize];
            let (Some(load), Some(expert)) = (&mut record.load, record.expert) else { continue };
            let pieces = self.table.layout(expert).pieces();
            let ranges: Vec<Range<usize>> = pieces.iter().map(|(_, range)| range.clone()).collect();
            // A reader may have finished its last piece and not told: then the slot is filled as if it were empty, which
            // needs the pins of those who wait out of the way.
            let waiting: Vec<(u32, u32)> = load.waiters.drain(..).map(|waiter| (waiter.ticket, waiter.index)).collect();
            let rights = self.slab.reclaim(slot, &ranges).or_else(|| self.slab.begin_fill(slot, &ranges));
            let pin = |(ticket, index)| Some(Waiter { ticket, index, pin: self.slab.pin(slot)? });
            load.waiters.extend(waiting.into_iter().filter_map(pin));
            let Some(rights) = rights else { continue };
            (load.pieces, load.started, load.abandoned, load.error) = (pieces.len(), true, false, None);
            self.demand_jobs.extend(pieces.into_iter().zip(rights).map(|((span, _), piece)| Job { slot, span, piece }));
        }
        self.events.work = true;
    }

    /// Forgets everything that has not begun; readers end.
    pub(crate) fn shut_down(&mut self) {
        self.shutdown = true;
        self.hints.clear();
        self.demand_jobs.clear();
        self.guess_jobs.clear();
        self.events.work = true;
    }
}
