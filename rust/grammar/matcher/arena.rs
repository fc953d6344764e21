//! The states that were met, each once, with what is known of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::closure::{Beginnings, Item, Kernel, Scan, expand, kernel};
use super::continuation::{Continuations, TOP, clip_count};
use super::plain::Characters;
use crate::bytes::ByteSet;
use crate::error::Fault;
use crate::limits;
use crate::plain::PlainText;
use crate::program::{Program, SpecialId};

/// Number of a state.
pub(super) type StateId = u32;

/// The transition that leads nowhere.
pub(super) const DEAD: StateId = u32::MAX;
/// A transition that was not computed yet.
const UNKNOWN: StateId = u32::MAX - 1;
/// Rough cost of a state beside its lists, in bytes.
const OVERHEAD: usize = 296;

/// A state and what follows from it.
#[derive(Debug)]
pub(super) struct State {
    kernel: Kernel,
    scans: Box<[Scan]>,
    specials: Box<[(SpecialId, Item)]>,
    allowed: ByteSet,
    /// The next state for each class of bytes, made when it is first asked for.
    row: Box<[StateId]>,
    /// The state that stands for this one in masks.
    clipped: StateId,
    /// The characters that lead on alike and where they lead, once it was asked for.
    plain: Option<Option<(PlainText, StateId)>>,
}

impl State {
    pub(super) fn can_end(&self) -> bool {
        self.kernel.can_end
    }

    pub(super) fn allowed(&self) -> ByteSet {
        self.allowed
    }

    /// The special tokens that may follow.
    pub(super) fn specials(&self) -> impl Iterator<Item = SpecialId> + '_ {
        self.specials.iter().map(|(special, _)| *special)
    }

    fn bytes(&self) -> usize {
        let items = self.kernel.items.len() + 2 * self.scans.len() + 2 * self.specials.len();
        OVERHEAD + 12 * items + 4 * self.row.len()
    }

    /// All readings, to be renumbered.
    fn readings(&mut self) -> impl Iterator<Item = &mut Item> {
        self.scans.iter_mut().map(|scan| &mut scan.then).chain(self.specials.iter_mut().map(|(_, then)| then))
    }
}

/// All states, by number.
#[derive(Debug)]
pub(super) struct Arena {
    states: Vec<State>,
    numbers: HashMap<Kernel, StateId>,
    continuations: Continuations,
    beginnings: Beginnings,
    characters: Arc<Characters>,
    /// Memory of the states, about.
    bytes: usize,
    /// Readings looked at since [`Arena::begin`].
    steps: usize,
    /// The reach for which states and continuations were clipped.
    reach: u32,
}

impl Arena {
    /// An arena with the state before any text; its number.
    pub(super) fn new(program: &Program) -> Result<(Self, StateId), Fault> {
        let mut arena = Self {
            states: Vec::new(),
            numbers: HashMap::new(),
            continuations: Continuations::new(),
            beginnings: Beginnings::new(program),
            characters: Arc::new(Characters::new(&program.classes)),
            bytes: 0,
            steps: 0,
            reach: 0,
        };
        let entry = program.rules[program.start.0 as usize].entry;
        let start = arena.follow(program, vec![Item { pc: entry, back: TOP, count: 0 }])?;
        Ok((arena, start))
    }

    /// States and continuations.
    pub(super) fn len(&self) -> usize {
        self.states.len() + self.continuations.len()
    }

    /// Memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.continuations.bytes()
    }

    pub(super) fn state(&self, id: StateId) -> &State {
        &self.states[id as usize]
    }

    /// Begins an operation, whose steps are counted.
    pub(super) fn begin(&mut self) {
        self.steps = 0;
    }

    fn spend(&mut self, steps: usize) -> Result<(), Fault> {
        self.steps += steps;
        let limit = limits::STEPS;
        if self.steps > limit.most { Err(Fault::limit(limit, self.steps)) } else { Ok(()) }
    }

    /// The state that the seeds lead to, or `DEAD`.
    fn follow(&mut self, program: &Program, seeds: Vec<Item>) -> Result<StateId, Fault> {
        if seeds.is_empty() {
            return Ok(DEAD);
        }
        let (kernel, steps) = kernel(program, &self.continuations, seeds)?;
        self.spend(steps)?;
        self.intern(program, kernel)
    }

    /// The state of a kernel.
    pub(super) fn intern(&mut self, program: &Program, kernel: Kernel) -> Result<StateId, Fault> {
        if let Some(known) = self.numbers.get(&kernel) {
            return Ok(*known);
        }
        let expansion = expand(program, &mut self.continuations, &mut self.beginnings, &kernel)?;
        self.spend(expansion.steps)?;
        let id = self.states.len() as StateId;
        let state = State {
            kernel: kernel.clone(),
            scans: expansion.scans,
            specials: expansion.specials,
            allowed: expansion.allowed,
            row: vec![UNKNOWN; program.classes.count()].into_boxed_slice(),
            clipped: UNKNOWN,
            plain: None,
        };
        self.bytes += state.bytes();
        self.states.push(state);
        self.numbers.insert(kernel, id);
        Ok(id)
    }

    /// The state after a byte, or `DEAD`.
    #[inline]
    pub(super) fn step(&mut self, program: &Program, from: StateId, byte: u8) -> Result<StateId, Fault> {
        let class = program.classes.of(byte);
        match self.states[from as usize].row[class] {
            UNKNOWN => self.first_step(program, from, class),
            known => Ok(known),
        }
    }

    #[cold]
    fn first_step(&mut self, program: &Program, from: StateId, class: usize) -> Result<StateId, Fault> {
        let next = self.follow(program, self.after_byte(program, from, program.classes.sample(class)))?;
        self.states[from as usize].row[class] = next;
        Ok(next)
    }

    pub(super) fn kernel(&self, state: StateId) -> &Kernel {
        &self.states[state as usize].kernel
    }

    /// What stands for all characters.
    pub(super) fn characters(&self) -> &Arc<Characters> {
        &self.characters
    }

    /// What is known of the characters that lead on alike from a state.
    pub(super) fn plain_of(&self, state: StateId) -> Option<Option<(PlainText, StateId)>> {
        self.states[state as usize].plain
    }

    /// Remembers the characters that lead on alike from a state.
    pub(super) fn set_plain(&mut self, state: StateId, plain: Option<(PlainText, StateId)>) {
        self.states[state as usize].plain = Some(plain);
    }

    /// The readings that a byte leads to.
    pub(super) fn after_byte(&self, program: &Program, from: StateId, byte: u8) -> Vec<Item> {
        let scans = self.states[from as usize].scans.iter();
        scans.filter(|scan| program.sets[scan.set as usize].contains(byte)).map(|scan| scan.then).collect()
    }

    /// The state after one of these special tokens, or after other readings; `DEAD` without any.
    pub(super) fn step_special(
        &mut self,
        program: &Program,
        from: StateId,
        tokens: &[SpecialId],
        others: Vec<Item>,
    ) -> Result<StateId, Fault> {
        let mut seeds = others;
        let specials = self.states[from as usize].specials.iter();
        seeds.extend(specials.filter(|(special, _)| tokens.contains(special)).map(|(_, then)| *then));
        self.follow(program, seeds)
    }

    /// The state that stands for `state` in masks of tokens of at most `reach` bytes: counts that are further than that from
    /// their bounds are moved to one place, in the continuations as well.
    pub(super) fn clip(&mut self, program: &Program, state: StateId, reach: u32) -> Result<StateId, Fault> {
        if program.counters.is_empty() {
            return Ok(state);
        }
        if self.reach != reach {
            self.reach = reach;
            self.states.iter_mut().for_each(|state| state.clipped = UNKNOWN);
            self.continuations.unclip();
        }
        let known = self.states[state as usize].clipped;
        if known != UNKNOWN {
            return Ok(known);
        }
        let Kernel { items, can_end } = self.states[state as usize].kernel.clone();
        let mut clipped = Vec::with_capacity(items.len());
        for item in items.iter() {
            let back = self.continuations.clip(program, item.back, reach);
            clipped.push(Item { back, ..clip_count(program, *item, reach) });
        }
        clipped.sort_unstable();
        clipped.dedup();
        let to = self.intern(program, Kernel { items: clipped.into(), can_end })?;
        self.states[state as usize].clipped = to;
        Ok(to)
    }

    /// Keeps the states that the `holders` hold and what these need, and forgets all others; the holders are renumbered.
    pub(super) fn collect(&mut self, holders: &mut [&mut [StateId]]) {
        let mut moved = vec![DEAD; self.states.len()];
        holders.iter().flat_map(|holder| holder.iter()).for_each(|id| moved[*id as usize] = UNKNOWN);
        moved.iter_mut().filter(|to| **to == UNKNOWN).zip(0..).for_each(|(to, next)| *to = next);
        let mut old = moved.iter();
        self.states.retain(|_| old.next().is_some_and(|to| *to != DEAD));
        let mut needed = Vec::new();
        for state in &mut self.states {
            needed.extend(state.kernel.items.iter().map(|item| item.back));
            needed.extend(state.readings().map(|item| item.back));
        }
        let continued = self.continuations.keep(needed.into_iter());
        self.numbers.clear();
        self.bytes = 0;
        for (id, state) in (0..).zip(&mut self.states) {
            let mut items = state.kernel.items.to_vec();
            items.iter_mut().chain(state.readings()).for_each(|item| item.back = continued[item.back as usize]);
            items.sort_unstable();
            state.kernel.items = items.into();
            state.clipped = UNKNOWN;
            state.plain = None;
            for to in state.row.iter_mut().filter(|to| !matches!(**to, DEAD | UNKNOWN)) {
                *to = match moved[*to as usize] {
                    DEAD => UNKNOWN,
                    kept => kept,
                };
            }
            self.bytes += state.bytes();
            self.numbers.insert(state.kernel.clone(), id);
        }
        self.numbers.shrink_to_fit();
        self.states.shrink_to_fit();
        holders.iter_mut().flat_map(|holder| holder.iter_mut()).for_each(|id| *id = moved[*id as usize]);
    }
}
