//! Asking for experts and holding them.
//!
//! Must hold: every key of an acquire is delivered exactly once, as a lease or as an error; hits come first, then the
//! others as they land; a lease's bytes do not change while it lives.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::MutexGuard;
use std::time::Instant;

use colibri_kernels::matrix::MatrixView;

use super::key::ExpertKey;
use super::layout::{ExpertLayout, ExpertRead, Projection, Region};
use super::slots::Pin;
use super::store::{Backing, ExpertStore, SlotBacking};
use super::ticket::Landed;
use crate::error::StoreError;
use crate::source::Bytes;

/// Keeps a type on its thread: the rules against waiting for oneself are per thread. Sharing by reference is fine.
type OnOneThread = PhantomData<MutexGuard<'static, ()>>;

/// The leases of one [`ExpertStore::acquire`], as they arrive: `(index into the keys, lease)`.
///
/// The consumer may hold as many leases as the store has slots, and all of them when it asked for no more experts than
/// there are slots. To go on beyond that it drops a lease before it takes the next; else the item is an error.
/// A thread drops the leases of one acquire before it begins another, unless all experts fit into the slots.
pub struct Acquire<'s> {
    store: &'s ExpertStore,
    /// The slots and this acquire's ticket; `None` when the files are mapped.
    ticket: Option<(&'s SlotBacking, u32)>,
    landed: VecDeque<Landed>,
    /// Keys that are not delivered yet.
    remaining: usize,
    _thread: OnOneThread,
}

impl<'s> Acquire<'s> {
    pub(crate) fn new(store: &'s ExpertStore, keys: &[ExpertKey]) -> Self {
        debug_assert!(
            keys.iter().collect::<std::collections::HashSet<_>>().len() == keys.len(),
            "a key is asked twice"
        );
        let table = store.table();
        let mut unknown = false;
        let known = (0u32..).zip(keys).filter_map(|(index, key)| {
            let expert = table.index_of(*key);
            unknown |= expert.is_none();
            Some((index, expert?))
        });
        let (ticket, mut landed) = match store.backing() {
            Backing::Mapped(mapping) => {
                let landed: VecDeque<Landed> =
                    known.map(|(index, expert)| Landed { index, expert, pin: Ok(None) }).collect();
                mapping.advise(table, store.source(), landed.iter().map(|entry| entry.expert));
                mapping.count_hits(landed.len());
                (None, landed)
            }
            Backing::Slots(slots) => {
                let (ticket, landed) = slots.open(known);
                (Some((slots, ticket)), landed)
            }
        };
        let absent = |key: &ExpertKey| unknown && !table.contains(*key);
        for (index, key) in (0u32..).zip(keys).filter(|(_, key)| absent(key)) {
            let what = format!("the model has no {key}");
            landed.push_back(Landed { index, expert: 0, pin: Err(Box::new(StoreError::Internal { what })) });
        }
        Acquire { store, ticket, landed, remaining: keys.len(), _thread: PhantomData }
    }

    /// Waits until something has landed. An error: nothing ever will.
    fn wait(&mut self, slots: &'s SlotBacking, ticket: u32) -> Result<(), StoreError> {
        slots.crew.ensure(&slots.shared);
        let mut waited_since = None;
        let mut ledger = slots.shared.lock();
        loop {
            ledger.take_ready(ticket, &mut self.landed);
            let stuck = if self.landed.is_empty() { ledger.stuck(ticket) } else { None };
            if !self.landed.is_empty() || stuck.is_some() {
                if let Some(since) = waited_since {
                    ledger.stats.wait += Instant::elapsed(&since);
                }
                let Some((error, for_good)) = stuck else { return Ok(()) };
                self.remaining -= if for_good { self.remaining } else { 1 };
                return Err(error);
            }
            waited_since.get_or_insert_with(Instant::now);
            let mut read = false;
            if slots.crew.is_empty() {
                (ledger, read) = slots.shared.read_one(ledger);
            }
            if !read {
                ledger = slots.shared.wait_landed(ledger);
            }
        }
    }

    /// The next lease that is there already; `None` when the next one would have to be waited for, or none is left.
    pub fn next_ready(&mut self) -> Option<Result<(usize, Lease<'s>), StoreError>> {
        if self.remaining == 0 {
            return None;
        }
        if self.landed.is_empty()
            && let Some((slots, ticket)) = self.ticket
        {
            slots.shared.lock().take_ready(ticket, &mut self.landed);
        }
        let landed = self.landed.pop_front()?;
        self.remaining -= 1;
        Some(self.deliver(landed))
    }

    fn deliver(&self, landed: Landed) -> Result<(usize, Lease<'s>), StoreError> {
        let Landed { index, expert, pin } = landed;
        let pin = pin.map_err(|error| *error)?;
        let table = self.store.table();
        let (layout, held) = (table.layout(expert), table.held());
        match (pin, self.ticket, self.store.backing()) {
            (Some(pin), Some((slots, ticket)), _) => {
                let release = Release { slots, ticket, _thread: PhantomData };
                let lease = Lease { layout, held, region: LeaseRegion::Slot(pin), _release: Some(release) };
                Ok((index as usize, lease))
            }
            (None, None, Backing::Mapped(mapping)) => {
                let region = LeaseRegion::Mapped(mapping.reads_of(expert));
                Ok((index as usize, Lease { layout, held, region, _release: None }))
            }
            _ => Err(StoreError::Internal { what: format!("{} landed nowhere", layout.key) }),
        }
    }
}

impl<'s> Iterator for Acquire<'s> {
    type Item = Result<(usize, Lease<'s>), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining == 0 {
            return None;
        }
        if self.landed.is_empty() {
            // Mapped experts have all landed at the start.
            let (slots, ticket) = self.ticket?;
            if let Err(error) = self.wait(slots, ticket) {
                return Some(Err(error));
            }
        }
        let landed = self.landed.pop_front()?;
        self.remaining -= 1;
        Some(self.deliver(landed))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An acquire that cannot go on ends early.
        (0, Some(self.remaining))
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some((slots, ticket)) = self.ticket {
            let mut ledger = slots.shared.lock();
            ledger.close(ticket, std::mem::take(&mut self.landed));
            slots.shared.publish(&mut ledger);
        }
    }
}

impl fmt::Debug for Acquire<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Acquire").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}

/// Where a lease's bytes are.
enum LeaseRegion<'s> {
    Slot(Pin),
    Mapped(&'s [Bytes]),
}

impl Region for LeaseRegion<'_> {
    fn read_bytes(&self, index: usize, read: &ExpertRead) -> Option<&[u8]> {
        match self {
            LeaseRegion::Slot(pin) => pin.read_bytes(index, read),
            LeaseRegion::Mapped(reads) => reads.get(index).map(|bytes| &bytes[..]),
        }
    }
}

/// One expert, held: it stays in memory, unchanged, until the lease is dropped.
pub struct Lease<'s> {
    layout: &'s ExpertLayout,
    /// The scales that the table holds.
    held: &'s [u8],
    // Fields are dropped in this order: the slot is let go before its release is told to the books.
    region: LeaseRegion<'s>,
    _release: Option<Release<'s>>,
}

impl Lease<'_> {
    /// Which expert this is.
    pub fn key(&self) -> ExpertKey {
        self.layout.key
    }

    /// Gate projection `[intermediate, hidden]`.
    pub fn gate(&self) -> MatrixView<'_> {
        self.view(Projection::Gate)
    }

    /// Up projection `[intermediate, hidden]`.
    pub fn up(&self) -> MatrixView<'_> {
        self.view(Projection::Up)
    }

    /// Down projection `[hidden, intermediate]`.
    pub fn down(&self) -> MatrixView<'_> {
        self.view(Projection::Down)
    }

    fn view(&self, which: Projection) -> MatrixView<'_> {
        // Every view of every expert was made once over a slot, or over its mapped bytes, when the store was made.
        let view = self.layout.view(which, &self.region, self.held);
        view.expect("the views of all experts were checked when the store was made")
    }
}

impl fmt::Debug for Lease<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lease").field("key", &self.layout.key).finish_non_exhaustive()
    }
}

/// Tells the books that a lease is gone.
struct Release<'s> {
    slots: &'s SlotBacking,
    ticket: u32,
    _thread: OnOneThread,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let mut ledger = self.slots.shared.lock();
        ledger.release(self.ticket);
        self.slots.shared.publish(&mut ledger);
    }
}
