//! The slab: one aligned allocation cut into equal slots, and who may touch which.
//!
//! Owns: the memory of all slots, and for each slot a count of readers and a flag for being written.
//! Must hold: a slot is written only through [`Piece`]s and read only through [`Pin`]s; the pieces of a slot are
//! disjoint and exist only while no pin reads; a pin that exists keeps new pieces from being made. These facts are kept
//! here, by atomics, and do not rest on the locks or the bookkeeping of the rest of the store.
//! A piece belongs to the process that made it: in a forked child it is inert, and the child may reclaim the slot.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use colibri_kernels::buffer::AlignedBuffer;

use crate::error::StoreError;

/// Set in [`SlotState::users`] while pieces of the slot exist.
const FILLING: u32 = 1 << 31;

#[derive(Default)]
struct SlotState {
    /// [`FILLING`], or-ed with the number of pins.
    users: AtomicU32,
    /// Pieces that exist.
    pieces: AtomicU32,
    /// The process that made the pieces.
    filler: AtomicU32,
}

/// Slots of equal length in one allocation. Each starts at a multiple of 4096 bytes.
pub(crate) struct Slab {
    /// Owns what `base` points to; never dereferenced again.
    _memory: AlignedBuffer,
    base: NonNull<u8>,
    slot_bytes: usize,
    states: Box<[SlotState]>,
}

// SAFETY: the memory behind `base` is owned by the slab and reached only through pieces and pins, whose rules (module
// documentation) are kept by atomics, so the slab may be moved to another thread.
unsafe impl Send for Slab {}
// SAFETY: as above; all methods on a shared slab go through the atomics first.
unsafe impl Sync for Slab {}

impl Slab {
    /// Allocates and touches `slots` slots of `slot_bytes`, a multiple of 4096.
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> Result<Arc<Self>, StoreError> {
        let refused = |reason: &str| StoreError::Internal {
            what: format!("cannot hold {slots} expert slots of {slot_bytes} bytes: {reason}"),
        };
        if !slot_bytes.is_multiple_of(4096) {
            return Err(refused("not a multiple of 4096"));
        }
        let bytes = slots.checked_mul(slot_bytes).ok_or_else(|| refused("too large"))?;
        let mut memory = AlignedBuffer::new(bytes)?;
        let base = NonNull::from(&mut memory[..]).cast::<u8>();
        let states = (0..slots).map(|_| SlotState::default()).collect();
        Ok(Arc::new(Slab { _memory: memory, base, slot_bytes, states }))
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether the slot is neither pinned nor being written.
    pub(crate) fn is_idle(&self, slot: u32) -> bool {
        self.state(slot).is_some_and(|state| state.users.load(Ordering::Acquire) == 0)
    }

    /// Keeps the slot from being written anew until the pin is dropped. A slot that is being written may be pinned: its
    /// bytes can be read when the last piece is gone.
    pub(crate) fn pin(self: &Arc<Self>, slot: u32) -> Option<Pin> {
        self.state(slot)?.users.fetch_add(1, Ordering::Relaxed);
        Some(Pin { slab: Arc::clone(self), slot })
    }

    /// Begins to write an idle slot: one piece per range. `None` if the slot is in use, or the ranges are not ascending,
    /// disjoint and inside the slot.
    pub(crate) fn begin_fill(self: &Arc<Self>, slot: u32, ranges: &[Range<usize>]) -> Option<Vec<Piece>> {
        let state = self.state(slot)?;
        if !self.ranges_fit(ranges) {
            return None;
        }
        // Acquire: the readers whose pins are gone have finished reading before anything is written.
        state.users.compare_exchange(0, FILLING, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let process = std::process::id();
        state.filler.store(process, Ordering::Relaxed);
        Some(self.pieces(slot, process, ranges))
    }

    /// Takes over a slot that was being written when this process was forked off: the threads that wrote do not exist
    /// here, and their pieces are inert. `None` when this process itself is writing, or nobody is.
    pub(crate) fn reclaim(self: &Arc<Self>, slot: u32, ranges: &[Range<usize>]) -> Option<Vec<Piece>> {
        let state = self.state(slot)?;
        let process = std::process::id();
        let filler = state.filler.load(Ordering::Relaxed);
        if !self.ranges_fit(ranges) || filler == process || state.users.load(Ordering::Acquire) & FILLING == 0 {
            return None;
        }
        // One caller wins; from here on the slot is written by this process.
        state.filler.compare_exchange(filler, process, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(self.pieces(slot, process, ranges))
    }

    fn state(&self, slot: u32) -> Option<&SlotState> {
        self.states.get(slot as usize)
    }

    fn ranges_fit(&self, ranges: &[Range<usize>]) -> bool {
        let mut end = 0;
        !ranges.is_empty()
            && ranges.iter().all(|range| {
                let fits = end <= range.start && range.start <= range.end && range.end <= self.slot_bytes;
                end = range.end;
                fits
            })
    }

    /// Makes the pieces; the caller has just become the only writer of the slot.
    fn pieces(self: &Arc<Self>, slot: u32, process: u32, ranges: &[Range<usize>]) -> Vec<Piece> {
        if let (Some(state), Ok(count)) = (self.state(slot), u32::try_from(ranges.len())) {
            state.pieces.store(count, Ordering::Release);
        }
        let piece = |range: &Range<usize>| Piece { slab: Arc::clone(self), slot, process, range: range.clone() };
        ranges.iter().map(piece).collect()
    }

    /// Where the byte `offset` of a slot lies.
    fn address(&self, slot: u32, offset: usize) -> *mut u8 {
        // SAFETY: callers pass a slot of `states` and an offset of at most `slot_bytes`, so the sum is inside the
        // allocation of `states.len() * slot_bytes` bytes (or at its end).
        unsafe { self.base.as_ptr().add(slot as usize * self.slot_bytes + offset) }
    }
}

/// The right to write one range of a slot.
pub(crate) struct Piece {
    slab: Arc<Slab>,
    slot: u32,
    process: u32,
    range: Range<usize>,
}

impl Piece {
    /// The range's bytes; `None` in a process that did not make the piece.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.process != std::process::id() {
            return None;
        }
        // SAFETY: the range lies inside the slot and apart from the slot's other pieces (`ranges_fit`); while the piece
        // exists the slot is FILLING, so no pin yields its bytes; the memory is initialised (the buffer starts zeroed).
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.slab.address(self.slot, self.range.start), self.range.len())
        })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        if let Some(state) = self.slab.state(self.slot) {
            // AcqRel: the last piece to go has seen the writes of all others, and hands them to whoever pins.
            if state.pieces.fetch_sub(1, Ordering::AcqRel) == 1 {
                state.users.fetch_and(!FILLING, Ordering::Release);
            }
        }
    }
}

/// Keeps a slot as it is, and gives its bytes.
pub(crate) struct Pin {
    slab: Arc<Slab>,
    slot: u32,
}

impl Pin {
    /// The slot's bytes; `None` while they are being written.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        let state = self.slab.state(self.slot)?;
        // Acquire: pairs with the release of the last piece.
        if state.users.load(Ordering::Acquire) & FILLING != 0 {
            return None;
        }
        // SAFETY: the slot is inside the slab and initialised; no piece exists, and none can be made while this pin
        // counts in `users`, because `begin_fill` needs the count at zero.
        Some(unsafe { std::slice::from_raw_parts(self.slab.address(self.slot, 0), self.slab.slot_bytes) })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(state) = self.slab.state(self.slot) {
            // Release: the reads through this pin happen before the next write.
            state.users.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
