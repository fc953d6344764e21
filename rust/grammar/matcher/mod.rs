//! Walks a program over bytes: allowed bytes, end, forced bytes, masks, and the way back.
//!
//! Every state is kept under a number and its transitions are filled in as they are met, so that most bytes cost one look
//! into a table; masks are kept by state. What must hold: a refused byte leaves everything as it was; `rewind` and the same
//! bytes reach the same state; memory and the steps of one operation are bounded. When a limit is hit the matcher refuses
//! everything and says why in [`Matcher::fault`], until it is rewound.

mod arena;
mod closure;
mod component;
mod continuation;
mod mask;
mod plain;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bytes::ByteSet;
use crate::constraint::{Constraint, Mark};
use crate::error::Fault;
use crate::limits;
use crate::program::{Program, SpecialId};

use arena::{Arena, DEAD, StateId};
pub use mask::MaskCache;

/// Bytes of states that are kept before those that nothing needs any more are dropped.
const KEPT_BYTES: usize = 16 << 20;

/// A position in the language of a program.
#[derive(Debug)]
pub struct Matcher {
    program: Arc<Program>,
    arena: Arena,
    /// The state before any text and the state after each byte or special token.
    history: Vec<StateId>,
    /// Bytes that are always kept.
    kept: usize,
    /// How many bytes of states there may be before the next collection.
    room: usize,
    /// Changes with every collection and differs between matchers: what was kept by state number under another is void.
    epoch: u64,
    fault: Option<Fault>,
}

/// Whether a program can be walked at all.
///
/// # Errors
/// A limit that it hits before any text.
pub(crate) fn can_begin(program: &Program) -> Result<(), Fault> {
    Arena::new(program).map(|_| ())
}

fn new_epoch() -> u64 {
    static EPOCHS: AtomicU64 = AtomicU64::new(1);
    EPOCHS.fetch_add(1, Ordering::Relaxed)
}

impl Matcher {
    /// The position before any text.
    ///
    /// # Errors
    /// A limit that the grammar hits at once.
    pub fn new(program: Arc<Program>) -> Result<Self, Fault> {
        let (arena, start) = Arena::new(&program)?;
        let history = vec![start];
        Ok(Self { program, arena, history, kept: KEPT_BYTES, room: KEPT_BYTES, epoch: new_epoch(), fault: None })
    }

    /// The program that is walked.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The limit that was hit, if one was: nothing is allowed any more.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Distinct states that are kept, with the places that they return to.
    #[must_use]
    pub fn states(&self) -> usize {
        self.arena.len()
    }

    /// Memory of the states, in bytes, about.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.arena.bytes()
    }

    /// Takes one special token; false, and nothing changed, when it may not follow.
    pub fn accept_special(&mut self, token: SpecialId) -> bool {
        self.accept_token(&[], &[token])
    }

    /// Takes one token that is read both as its text and as each of these special tokens of the grammar; false, and nothing
    /// changed, when none of the readings may follow. A token without text has no bytes.
    pub fn accept_token(&mut self, text: &[u8], specials: &[SpecialId]) -> bool {
        if self.fault.is_some() {
            return false;
        }
        let start = self.mark();
        let as_special = !specials.is_empty() && self.allowed_specials().any(|allowed| specials.contains(&allowed));
        if !as_special {
            let fits = !text.is_empty() && text.iter().all(|byte| self.accept(*byte));
            if !fits {
                self.history.truncate(start.0 + 1);
            }
            return fits;
        }
        let from = self.state();
        let mut others = Vec::new();
        if let Some((last, before)) = text.split_last()
            && before.iter().all(|byte| self.accept(*byte))
        {
            others = self.arena.after_byte(&self.program, self.state(), *last);
        }
        // A collection on the way may have renumbered the state.
        let from = self.history.get(start.0).copied().unwrap_or(from);
        self.history.truncate(start.0 + 1);
        if self.fault.is_some() {
            return false;
        }
        self.arena.begin();
        let next = self.arena.step_special(&self.program, from, specials, others);
        self.advance(next)
    }

    /// The special tokens that may follow.
    pub fn allowed_specials(&self) -> impl Iterator<Item = SpecialId> + '_ {
        let state = if self.fault.is_some() { None } else { Some(self.arena.state(self.state())) };
        state.into_iter().flat_map(|state| state.specials())
    }

    fn state(&self) -> StateId {
        // The first entry is never removed.
        self.history.last().copied().unwrap_or(0)
    }

    fn advance(&mut self, next: Result<StateId, Fault>) -> bool {
        match next {
            Ok(DEAD) => return false,
            Ok(state) => self.history.push(state),
            Err(fault) => {
                self.fault = Some(fault);
                return false;
            }
        }
        match self.make_room(&mut []) {
            Ok(()) => true,
            Err(fault) => {
                self.history.pop();
                self.fault = Some(fault);
                false
            }
        }
    }

    /// Collects when there is no room for more states.
    fn make_room(&mut self, holders: &mut [&mut [StateId]]) -> Result<(), Fault> {
        if self.arena.bytes() > self.room { self.collect(holders) } else { Ok(()) }
    }

    /// Drops all states but those that the history and the `holders` hold.
    fn collect(&mut self, holders: &mut [&mut [StateId]]) -> Result<(), Fault> {
        let mut all: Vec<&mut [StateId]> = vec![&mut self.history];
        all.extend(holders.iter_mut().map(|holder| &mut **holder));
        self.arena.collect(&mut all);
        self.epoch = new_epoch();
        let live = self.arena.bytes();
        self.room = (2 * live).max(self.kept);
        let limit = limits::MEMORY;
        if live > limit.most { Err(Fault::limit(limit, live)) } else { Ok(()) }
    }
}

impl Constraint for Matcher {
    fn allowed(&self) -> ByteSet {
        if self.fault.is_some() { ByteSet::EMPTY } else { self.arena.state(self.state()).allowed() }
    }

    fn accept(&mut self, byte: u8) -> bool {
        if self.fault.is_some() {
            return false;
        }
        self.arena.begin();
        let next = self.arena.step(&self.program, self.state(), byte);
        self.advance(next)
    }

    fn can_end(&self) -> bool {
        self.fault.is_none() && self.arena.state(self.state()).can_end()
    }

    fn mark(&self) -> Mark {
        Mark(self.history.len() - 1)
    }

    fn rewind(&mut self, mark: Mark) {
        self.history.truncate(mark.0 + 1);
        // A limit belongs to the text that hit it.
        self.fault = None;
    }

    fn can_divert(&self) -> bool {
        self.allowed_specials().next().is_some()
    }
}
