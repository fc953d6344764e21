//! Where readings return to: each list of those who wait for a rule, kept once.
//!
//! A continuation is named by what it holds, not by where it was made, so readings that began at different places and go
//! on alike are one reading. Left recursion makes continuations that lead to each other; such a *group* is kept as a whole,
//! its inner references written relative to it, so that it too is found again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::closure::Item;
use crate::program::{Counter, Program};

/// Number of a continuation.
pub(super) type ContinuationId = u32;

/// The continuation of the whole text.
pub(super) const TOP: ContinuationId = 0;
/// Marks a reference as an index into the reading's own group.
pub(super) const LOCAL: u32 = 1 << 31;
/// Not computed yet.
const UNKNOWN: ContinuationId = u32::MAX;
/// Rough cost of a continuation beside its items, in bytes.
const OVERHEAD: usize = 96;

#[derive(Debug)]
struct Continuation {
    items: Box<[Item]>,
    /// The first member of its group.
    first: ContinuationId,
    /// Members of its group.
    members: u32,
    /// The one that stands for it in masks.
    clipped: ContinuationId,
}

/// All continuations, by number. References lead to older ones or into the same group.
#[derive(Debug)]
pub(super) struct Continuations {
    list: Vec<Continuation>,
    groups: HashMap<Box<[u32]>, ContinuationId>,
    bytes: usize,
}

impl Continuations {
    /// Only the end of the text.
    pub(super) fn new() -> Self {
        let top = Continuation { items: Box::default(), first: TOP, members: 1, clipped: TOP };
        Self { list: vec![top], groups: HashMap::new(), bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Who waits.
    pub(super) fn waiters(&self, id: ContinuationId) -> &[Item] {
        &self.list[id as usize].items
    }

    /// The group with these members, each a list of readings whose references are numbers, or indices of members marked
    /// [`LOCAL`]; the number of the first member, which the others follow.
    pub(super) fn group(&mut self, mut members: Vec<Vec<Item>>) -> ContinuationId {
        let mut key = Vec::new();
        for items in &mut members {
            items.sort_unstable();
            items.dedup();
            key.push(items.len() as u32);
            items.iter().for_each(|item| key.extend([item.pc, item.back, item.count]));
        }
        let first = self.list.len() as ContinuationId;
        self.bytes += 8 * key.len() + OVERHEAD * members.len();
        match self.groups.entry(key.into_boxed_slice()) {
            Entry::Occupied(known) => {
                self.bytes -= 8 * known.key().len() + OVERHEAD * members.len();
                return *known.get();
            }
            Entry::Vacant(place) => place.insert(first),
        };
        let count = members.len() as u32;
        let absolute = |item: Item| {
            if item.back & LOCAL == 0 { item } else { Item { back: first + (item.back & !LOCAL), ..item } }
        };
        for items in members {
            let items = items.into_iter().map(absolute).collect();
            self.list.push(Continuation { items, first, members: count, clipped: UNKNOWN });
        }
        first
    }

    /// The members of a group, with references renamed: `rename` is asked for those that lead out of it.
    fn renamed(&self, first: ContinuationId, rename: impl Fn(ContinuationId) -> ContinuationId) -> Vec<Vec<Item>> {
        let inside = self.inside(first);
        let moved = |item: &Item| {
            let back = if inside.contains(&item.back) { LOCAL | (item.back - first) } else { rename(item.back) };
            Item { back, ..*item }
        };
        inside.clone().map(|id| self.waiters(id).iter().map(moved).collect()).collect()
    }

    fn inside(&self, first: ContinuationId) -> std::ops::Range<ContinuationId> {
        first..first + self.list[first as usize].members
    }

    /// References that lead out of a group.
    fn outside(&self, first: ContinuationId) -> impl Iterator<Item = ContinuationId> + '_ {
        let inside = self.inside(first);
        let all = inside.clone().flat_map(|id| self.waiters(id).iter().map(|item| item.back));
        all.filter(move |back| !inside.contains(back))
    }

    /// The continuation that stands for `id` in masks of tokens of at most `reach` bytes.
    pub(super) fn clip(&mut self, program: &Program, id: ContinuationId, reach: u32) -> ContinuationId {
        let mut open = vec![self.list[id as usize].first];
        while let Some(first) = open.pop() {
            if self.list[first as usize].clipped != UNKNOWN {
                continue;
            }
            let unknown = |back: &ContinuationId| self.list[*back as usize].clipped == UNKNOWN;
            let missing: Vec<_> =
                self.outside(first).filter(unknown).map(|back| self.list[back as usize].first).collect();
            if !missing.is_empty() {
                open.push(first);
                open.extend(missing);
                continue;
            }
            let mut members = self.renamed(first, |back| self.list[back as usize].clipped);
            members.iter_mut().flatten().for_each(|item| *item = clip_count(program, *item, reach));
            let inside = self.inside(first);
            let to = self.group(members);
            for id in inside {
                self.list[id as usize].clipped = to + (id - first);
            }
        }
        self.list[id as usize].clipped
    }

    /// Forgets which continuation stands for which.
    pub(super) fn unclip(&mut self) {
        self.list.iter_mut().skip(1).for_each(|continuation| continuation.clipped = UNKNOWN);
    }

    /// Keeps what the references in `needed` lead to and forgets the rest; the new numbers by the old ones.
    pub(super) fn keep(&mut self, needed: impl Iterator<Item = ContinuationId>) -> Vec<ContinuationId> {
        let mut open: Vec<_> = needed.collect();
        let mut marked = vec![false; self.list.len()];
        while let Some(id) = open.pop() {
            let first = self.list[id as usize].first;
            if !std::mem::replace(&mut marked[first as usize], true) {
                open.extend(self.outside(first));
            }
        }
        let old = std::mem::replace(self, Self::new());
        let mut moved = vec![TOP; old.list.len()];
        // References lead to older groups, which have their new numbers already.
        for first in (1..old.list.len() as ContinuationId).filter(|id| marked[*id as usize]) {
            let to = self.group(old.renamed(first, |back| moved[back as usize]));
            for id in old.inside(first) {
                moved[id as usize] = to + (id - first);
            }
        }
        moved
    }
}

/// A reading whose count, if further than `reach` from both bounds, is moved to the last such count: what fits in so few
/// bytes is the same.
pub(super) fn clip_count(program: &Program, item: Item, reach: u32) -> Item {
    let Some(Counter { least, most }) = program.counter(item.pc) else { return item };
    let count = item.count;
    let clipped = match most {
        _ if count.saturating_add(reach) < least => least - reach - 1,
        Some(most) if count >= least && count.saturating_add(reach) < most => most - reach - 1,
        _ => count,
    };
    Item { count: clipped, ..item }
}
