//! Which characters lead on alike from a state, and for how long.

use std::sync::Arc;

use super::arena::{Arena, DEAD, StateId};
use super::closure::{Item, Kernel};
use crate::bytes::ByteSet;
use crate::error::Fault;
use crate::plain::{PlainText, PlainTokens};
use crate::program::{ByteClasses, Counter, Program};
use crate::utf8;

/// Fewer characters than these are walked as fast as they are looked up.
const FEWEST: usize = 20;
/// So near to a bound a count may decide what the next round does.
const NEAR: u32 = 4;

/// What stands for all characters: of the bytes that the grammar does not tell apart, one.
#[derive(Debug)]
pub(super) struct Characters {
    /// The bytes of ASCII that each one stands for.
    ascii: Vec<(u8, ByteSet)>,
    /// Every other character, as choices of bytes that follow each other.
    others: Vec<Vec<Vec<u8>>>,
}

impl Characters {
    pub(super) fn new(classes: &ByteClasses) -> Self {
        let mut ascii: Vec<(u8, ByteSet)> = Vec::new();
        for byte in 0..0x80 {
            match ascii.iter_mut().find(|(one, _)| classes.of(*one) == classes.of(byte)) {
                Some((_, bytes)) => bytes.insert(byte),
                None => ascii.push((byte, ByteSet::from_iter([byte]))),
            }
        }
        let distinct = |(low, high): &(u8, u8)| {
            let mut seen = ByteSet::EMPTY;
            let mut is_new = |byte: &u8| {
                let class = classes.of(*byte) as u8;
                let new = !seen.contains(class);
                seen.insert(class);
                new
            };
            (*low..=*high).filter(|byte| is_new(byte)).collect()
        };
        let encodings = utf8::sequences(0x80, utf8::LAST);
        Self { ascii, others: encodings.iter().map(|encoding| encoding.iter().map(distinct).collect()).collect() }
    }
}

impl Arena {
    /// The characters that lead on alike from `start`, and how many of them may follow each other, as far as tokens of
    /// `longest` bytes go: whatever text of so many of them is read, it can go on. `None` when they are few.
    pub(super) fn plain_run(
        &mut self,
        program: &Program,
        start: StateId,
        longest: usize,
    ) -> Result<Option<(PlainText, usize)>, Fault> {
        let Some((kind, mut next)) = self.plain_step(program, start)? else { return Ok(None) };
        let (mut state, mut run) = (start, 1);
        while run < longest.min(PlainTokens::MOST) {
            if next == state {
                return Ok(Some((kind, PlainTokens::MOST)));
            }
            let skipped = self.alike(program, state, next);
            state = if skipped > 0 { self.counted_on(program, next, skipped)? } else { next };
            run += skipped as usize;
            match self.plain_step(program, state)? {
                Some((other, after)) if other == kind => next = after,
                _ => break,
            }
            run += 1;
        }
        Ok(Some((kind, run)))
    }

    /// How many steps lead on from `to` just as the one from `from` to it does: where both differ in that all counts are one
    /// larger, and in nothing else, each further step makes them one larger, until a count comes near to a bound.
    fn alike(&self, program: &Program, from: StateId, to: StateId) -> u32 {
        let (from, to) = (self.kernel(from), self.kernel(to));
        if from.items.len() != to.items.len() || from.can_end != to.can_end {
            return 0;
        }
        let mut steps = u32::MAX;
        for (old, new) in from.items.iter().zip(to.items.iter()) {
            let Some(Counter { least, most }) = program.counter(new.pc) else {
                if old != new {
                    return 0;
                }
                continue;
            };
            if *new != (Item { count: old.count + 1, ..*old }) {
                return 0;
            }
            let bound = if new.count < least { least } else { most.unwrap_or(least) };
            steps = steps.min(bound.saturating_sub(new.count).saturating_sub(NEAR));
        }
        if steps == u32::MAX { 0 } else { steps }
    }

    /// The state whose counts are by so many larger than those of `state`.
    fn counted_on(&mut self, program: &Program, state: StateId, steps: u32) -> Result<StateId, Fault> {
        let Kernel { items, can_end } = self.kernel(state).clone();
        let on = |item: &Item| {
            let count = if program.counter(item.pc).is_some() { item.count + steps } else { item.count };
            Item { count, ..*item }
        };
        let items: Arc<[_]> = items.iter().map(on).collect();
        self.intern(program, Kernel { items, can_end })
    }

    /// The characters that lead to one and the same state, and that state: those to which the most of ASCII lead.
    fn plain_step(&mut self, program: &Program, from: StateId) -> Result<Option<(PlainText, StateId)>, Fault> {
        if let Some(known) = self.plain_of(from) {
            return Ok(known);
        }
        let characters = Arc::clone(self.characters());
        let mut found: Vec<(StateId, ByteSet)> = Vec::new();
        if self.state(from).allowed().len() >= FEWEST {
            for (byte, alike) in &characters.ascii {
                let to = self.step(program, from, *byte)?;
                match found.iter_mut().find(|(known, _)| *known == to) {
                    _ if to == DEAD => {}
                    Some((_, bytes)) => *bytes = bytes.union(*alike),
                    None => found.push((to, *alike)),
                }
            }
        }
        let most = found.into_iter().max_by_key(|(_, bytes)| bytes.len());
        let plain = match most.filter(|(_, bytes)| bytes.len() >= FEWEST) {
            Some((to, ascii)) => {
                Some((PlainText { ascii, others: self.all_lead(program, &characters, from, to)? }, to))
            }
            None => None,
        };
        self.set_plain(from, plain);
        Ok(plain)
    }

    /// Whether each character beyond ASCII leads from one state to the other.
    fn all_lead(
        &mut self,
        program: &Program,
        characters: &Characters,
        from: StateId,
        to: StateId,
    ) -> Result<bool, Fault> {
        for encoding in &characters.others {
            let mut reached = vec![from];
            for choice in encoding {
                let mut next = Vec::new();
                for (state, byte) in reached.iter().flat_map(|state| choice.iter().map(move |byte| (*state, *byte))) {
                    let state = self.step(program, state, byte)?;
                    if state == DEAD {
                        return Ok(false);
                    }
                    if !next.contains(&state) {
                        next.push(state);
                    }
                }
                reached = next;
            }
            if reached != [to] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
