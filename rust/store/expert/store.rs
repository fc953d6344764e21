//! The expert store: experts in slots or in mapped files, handed out as leases.
//!
//! With a source that lends its bytes (mapped files) there are no slots and no copies: leases borrow from the mapping and
//! the page cache is the cache. Otherwise experts are read into slots by threads of the store; the module `ledger` holds
//! the rules of who gets a slot, `workers` the threads and the one lock.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::acquire::Acquire;
use super::key::ExpertKey;
use super::layout::{ExpertRead, ExpertTable, Region};
use super::ledger::Ledger;
use super::policy::Policy;
use super::slots::{Pin, Slab};
use super::stats::ExpertStats;
use super::ticket::Landed;
use super::workers::{Crew, Shared};
use crate::error::StoreError;
use crate::source::{Bytes, Source, SourceKind, Span};

/// Routed experts, a bounded number of them in memory.
pub struct ExpertStore {
    table: Arc<ExpertTable>,
    source: Arc<dyn Source>,
    backing: Backing,
}

/// Where the experts are.
pub(crate) enum Backing {
    /// In files that are mapped.
    Mapped(MappedExperts),
    /// In slots that are filled as needed.
    Slots(SlotBacking),
}

/// Slots, their books and the threads that fill them.
pub(crate) struct SlotBacking {
    pub(crate) shared: Arc<Shared>,
    pub(crate) crew: Crew,
    slots: usize,
}

impl SlotBacking {
    /// Begins an acquire; returns its ticket and what is there at once.
    pub(crate) fn open(&self, wanted: impl Iterator<Item = (u32, u32)>) -> (u32, VecDeque<Landed>) {
        let mut landed = VecDeque::new();
        let mut ledger = self.shared.lock();
        let ticket = ledger.open(wanted);
        ledger.take_ready(ticket, &mut landed);
        let has_work = ledger.has_work();
        self.shared.publish(&mut ledger);
        drop(ledger);
        if has_work {
            self.crew.ensure(&self.shared);
        }
        (ticket, landed)
    }
}

impl Drop for SlotBacking {
    fn drop(&mut self) {
        self.crew.dismiss(&self.shared);
    }
}

/// Experts in mapped files.
pub(crate) struct MappedExperts {
    /// The bytes of every read of every expert, in the order of the table.
    bytes: Vec<Bytes>,
    /// Where an expert's reads begin in `bytes`; one more entry than experts.
    first: Vec<usize>,
    /// Whether the system has been told that the expert will be needed. Once is enough: afterwards the pages are there,
    /// or their loss is the system's answer to a shortage that more advice would not cure.
    advised: Vec<AtomicBool>,
    hits: AtomicU64,
    prefetched: AtomicU64,
}

impl Region for Pin {
    fn read_bytes(&self, _index: usize, read: &ExpertRead) -> Option<&[u8]> {
        self.bytes()?.get(read.at..read.at + read.bytes)
    }
}

/// The mapped reads of one expert, while a store is being made.
struct Lent<'a>(&'a [Bytes]);

impl Region for Lent<'_> {
    fn read_bytes(&self, index: usize, _read: &ExpertRead) -> Option<&[u8]> {
        self.0.get(index).map(|bytes| &bytes[..])
    }
}

impl MappedExperts {
    /// Borrows every expert; `None` if the source does not lend, or lends bytes that kernels cannot use in place.
    fn new(table: &ExpertTable, source: &dyn Source) -> Option<Self> {
        let mut bytes = Vec::new();
        let mut first = vec![0];
        for layout in table.layouts() {
            let start = bytes.len();
            for read in &layout.reads {
                bytes.push(source.borrow(read.span)?);
            }
            if !layout.fits(&Lent(&bytes[start..]), table.held()) {
                return None;
            }
            first.push(bytes.len());
        }
        let advised = table.layouts().iter().map(|_| AtomicBool::new(false)).collect();
        Some(MappedExperts { bytes, first, advised, hits: AtomicU64::new(0), prefetched: AtomicU64::new(0) })
    }

    /// The reads of one expert.
    pub(crate) fn reads_of(&self, expert: u32) -> &[Bytes] {
        let index = expert as usize;
        &self.bytes[self.first[index]..self.first[index + 1]]
    }

    /// Tells the system which experts will be needed; returns how many of them were news.
    pub(crate) fn advise(&self, table: &ExpertTable, source: &dyn Source, experts: impl Iterator<Item = u32>) -> u64 {
        let mut spans: Vec<Span> = Vec::new();
        let mut news = 0;
        for expert in experts {
            let advised = &self.advised[expert as usize];
            if !advised.load(Ordering::Relaxed) && !advised.swap(true, Ordering::Relaxed) {
                spans.extend(table.layout(expert).reads.iter().map(|read| read.span));
                news += 1;
            }
        }
        if news > 0 {
            source.will_need(&spans);
        }
        news
    }

    /// Counts requests.
    pub(crate) fn count_hits(&self, hits: usize) {
        self.hits.fetch_add(hits as u64, Ordering::Relaxed);
    }
}

impl ExpertStore {
    /// A store over the experts of `table`, with `slots` of them in memory at most, read by up to `io_workers` threads.
    /// The slots are allocated and touched here; with a source that lends its bytes, none are needed, and scales that it
    /// cannot lend are copied once. More slots than experts are not made.
    ///
    /// # Errors
    /// No slot where slots are needed, or memory that cannot be had.
    pub fn new(
        source: Arc<dyn Source>,
        mut table: ExpertTable,
        slots: usize,
        policy: Box<dyn Policy>,
        io_workers: usize,
    ) -> Result<Self, StoreError> {
        if source.kind() == SourceKind::Mmap {
            // Scales that the mapping cannot lend are copied; the rest stays where it is.
            table.hold_scales(source.as_ref(), &mut |_, _| true)?;
        }
        let table = Arc::new(table);
        if let Some(mapped) = MappedExperts::new(&table, source.as_ref()) {
            return Ok(ExpertStore { table, source, backing: Backing::Mapped(mapped) });
        }
        let slots = slots.min(table.expert_count());
        if slots == 0 {
            return Err(StoreError::InvalidValue {
                name: "expert slots".to_owned(),
                value: "0".to_owned(),
                expected: "at least 1".to_owned(),
            });
        }
        let slab = Slab::new(slots, table.slot_bytes())?;
        // All slots are alike: what can be viewed in the first can be viewed in each.
        let first = slab.pin(0);
        if let Some(layout) =
            table.layouts().iter().find(|layout| !first.as_ref().is_some_and(|pin| layout.fits(pin, table.held())))
        {
            return Err(StoreError::Internal { what: format!("{} cannot be used in a slot", layout.key) });
        }
        drop(first);
        let ledger = Ledger::new(Arc::clone(&table), slab, policy);
        let shared = Shared::new(Arc::clone(&source), ledger);
        let backing = Backing::Slots(SlotBacking { shared, crew: Crew::new(io_workers), slots });
        Ok(ExpertStore { table, source, backing })
    }

    /// Asks for experts. Reads of those that are not in memory begin at once, as far as slots allow; the iterator yields
    /// hits first and then the others as they land. A read that fails is the error of its key alone.
    ///
    /// `keys` must not name an expert twice.
    pub fn acquire<'s>(&'s self, keys: &[ExpertKey]) -> Acquire<'s> {
        Acquire::new(self, keys)
    }

    /// Says which experts may be asked for soon, the likeliest first. Replaces hints that have not begun. Demands overtake
    /// hints; a hint takes no slot from an expert that was asked for, but for the small share that guesses have, and is
    /// dropped when it finds no slot. Never waits, never fails.
    pub fn prefetch(&self, keys: &[ExpertKey]) {
        let known = keys.iter().filter_map(|key| self.table.index_of(*key));
        match &self.backing {
            Backing::Mapped(mapping) => {
                let news = mapping.advise(&self.table, self.source.as_ref(), known);
                mapping.prefetched.fetch_add(news, Ordering::Relaxed);
            }
            Backing::Slots(slots) => {
                let mut ledger = slots.shared.lock();
                ledger.hint(known);
                let has_work = ledger.has_work();
                slots.shared.publish(&mut ledger);
                drop(ledger);
                if has_work {
                    slots.crew.ensure(&slots.shared);
                }
            }
        }
    }

    /// The counters so far.
    pub fn stats(&self) -> ExpertStats {
        let mut stats = match &self.backing {
            Backing::Mapped(mapping) => ExpertStats {
                hits_mapped: mapping.hits.load(Ordering::Relaxed),
                prefetch_issued: mapping.prefetched.load(Ordering::Relaxed),
                ..ExpertStats::default()
            },
            Backing::Slots(slots) => slots.shared.lock().stats,
        };
        stats.hits = stats.hits_cache + stats.hits_prefetch + stats.hits_joined + stats.hits_mapped;
        stats
    }

    /// Number of slots; 0 when experts are borrowed from mapped files.
    pub fn slots(&self) -> usize {
        match &self.backing {
            Backing::Mapped(_) => 0,
            Backing::Slots(slots) => slots.slots,
        }
    }

    /// Where the experts lie.
    pub fn table(&self) -> &ExpertTable {
        &self.table
    }

    pub(crate) fn source(&self) -> &dyn Source {
        self.source.as_ref()
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }
}

impl fmt::Debug for ExpertStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ExpertStore")
            .field("experts", &self.table.expert_count())
            .field("slots", &self.slots())
            .finish_non_exhaustive()
    }
}
