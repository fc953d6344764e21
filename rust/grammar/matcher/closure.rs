//! What a state is, and how the next one follows from it.
//!
//! A state is an Earley set made canonical (Earley 1970; nullable rules after Aycock and Horspool 2002). Its *kernel* are
//! the readings that wait before a byte, a special token or a call, without those that the calls themselves bring in: they
//! follow from the kernel. A reading returns to a *continuation*: those who wait for its rule. A call whose only waiter has
//! nothing left to do returns to that waiter's own continuation, so that right recursion comes back to the same state (the
//! part of Leo's items, 1991).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::component::components;
use super::continuation::{ContinuationId, Continuations, LOCAL, TOP};
use crate::bytes::ByteSet;
use crate::error::Fault;
use crate::limits;
use crate::program::{Counter, END, Op, Pc, Program, RuleId, SpecialId};

/// One reading of the text: an instruction, where its rule returns to, and the count of its repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Item {
    pub(super) pc: Pc,
    pub(super) back: ContinuationId,
    pub(super) count: u32,
}

/// A reading that takes a byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan {
    pub(super) set: u32,
    pub(super) then: Item,
}

/// Everything that follows from a kernel.
#[derive(Debug)]
pub(super) struct Expansion {
    pub(super) scans: Box<[Scan]>,
    pub(super) specials: Box<[(SpecialId, Item)]>,
    pub(super) allowed: ByteSet,
    /// How many readings were looked at.
    pub(super) steps: usize,
}

/// A kernel: sorted readings, and whether the text may end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kernel {
    pub(super) items: Arc<[Item]>,
    pub(super) can_end: bool,
}

/// The readings with which each rule begins, made when it is first called; they return to nowhere yet.
#[derive(Debug)]
pub(super) struct Beginnings(Vec<Option<Box<[Item]>>>);

impl Beginnings {
    pub(super) fn new(program: &Program) -> Self {
        Self(vec![None; program.rules.len()])
    }

    fn of(&mut self, program: &Program, rule: RuleId) -> Result<&[Item], Fault> {
        let known = &mut self.0[rule.0 as usize];
        if known.is_none() {
            let entry = program.rules[rule.0 as usize].entry;
            let mut reached = Reached::new(program, [Item { pc: entry, back: TOP, count: 0 }]);
            let mut items = Vec::new();
            while let Some(stop) = reached.next() {
                // An empty reading of the rule needs no return: its callers have gone on already.
                if let Stop::Waits(item) = stop {
                    items.push(item);
                }
                reached.check()?;
            }
            *known = Some(items.into_boxed_slice());
        }
        Ok(known.as_deref().unwrap_or_default())
    }
}

/// The readings that are reached from some seeds without taking anything.
struct Reached<'a> {
    program: &'a Program,
    open: Vec<Item>,
    seen: HashSet<Item>,
    /// The smallest satisfied count at the head of a repetition: larger ones allow nothing more.
    heads: HashMap<(Pc, ContinuationId), u32>,
}

/// What stopped a reading.
enum Stop {
    Waits(Item),
    Returns(Item),
}

impl<'a> Reached<'a> {
    fn new(program: &'a Program, seeds: impl IntoIterator<Item = Item>) -> Self {
        let mut reached = Self { program, open: Vec::new(), seen: HashSet::new(), heads: HashMap::new() };
        seeds.into_iter().for_each(|seed| reached.visit(seed));
        reached
    }

    fn visit(&mut self, item: Item) {
        if self.program.alive[item.pc as usize] && self.seen.insert(item) {
            self.open.push(item);
        }
    }

    /// The next reading that waits or returns.
    fn next(&mut self) -> Option<Stop> {
        while let Some(item) = self.open.pop() {
            match self.program.ops[item.pc as usize] {
                Op::Bytes { .. } | Op::Special { .. } => return Some(Stop::Waits(item)),
                Op::Call { rule, next } => {
                    if self.program.rules[rule.0 as usize].nullable {
                        self.visit(Item { pc: next, ..item });
                    }
                    return Some(Stop::Waits(item));
                }
                Op::Split { first, count } => {
                    let program = self.program;
                    program.split(first, count).iter().for_each(|pc| self.visit(Item { pc: *pc, ..item }));
                }
                Op::Again { head } => {
                    if let Op::Head { counter, .. } = self.program.ops[head as usize] {
                        let count = next_count(self.program.counters[counter as usize], item.count);
                        self.visit(Item { pc: head, count, ..item });
                    }
                }
                Op::Head { counter, body } => {
                    let Counter { least, most } = self.program.counters[counter as usize];
                    if item.count >= least {
                        let known = self.heads.entry((item.pc, item.back)).or_insert(u32::MAX);
                        if *known <= item.count {
                            continue;
                        }
                        *known = item.count;
                    }
                    if most.is_none_or(|most| item.count < most) {
                        self.visit(Item { pc: body, ..item });
                    }
                    if item.count >= least {
                        return Some(Stop::Returns(item));
                    }
                }
                Op::End => return Some(Stop::Returns(item)),
            }
        }
        None
    }

    fn check(&self) -> Result<(), Fault> {
        check(self.seen.len())
    }
}

fn check(readings: usize) -> Result<(), Fault> {
    let limit = limits::ITEMS;
    if readings > limit.most { Err(Fault::limit(limit, readings)) } else { Ok(()) }
}

/// A round more; without an upper bound only the least matters.
fn next_count(counter: Counter, count: u32) -> u32 {
    match counter.most {
        None => (count + 1).min(counter.least),
        Some(_) => count + 1,
    }
}

/// The kernel that the seeds lead to, and how many readings were looked at: returns are followed to those who wait.
pub(super) fn kernel(
    program: &Program,
    continuations: &Continuations,
    seeds: Vec<Item>,
) -> Result<(Kernel, usize), Fault> {
    let mut reached = Reached::new(program, seeds);
    let (mut items, mut can_end, mut returned) = (Vec::new(), false, HashSet::new());
    while let Some(stop) = reached.next() {
        match stop {
            Stop::Waits(item) => items.push(item),
            Stop::Returns(item) if item.back == TOP => can_end = true,
            Stop::Returns(item) if returned.insert(item.back) => {
                continuations.waiters(item.back).iter().for_each(|waiter| reached.visit(*waiter));
            }
            Stop::Returns(_) => {}
        }
        reached.check()?;
    }
    items.sort_unstable();
    drop_dominated(program, &mut items);
    Ok((Kernel { items: items.into(), can_end }, reached.seen.len()))
}

/// Of readings that differ in their count alone, and need no more rounds, the one with the most rounds left stands for
/// all: whatever follows the others follows it.
fn drop_dominated(program: &Program, items: &mut Vec<Item>) {
    items.dedup_by(|later, kept| {
        let alike = later.pc == kept.pc && later.back == kept.back;
        alike && program.counter(kept.pc).is_some_and(|counter| kept.count.saturating_add(1) >= counter.least)
    });
}

/// What follows from a kernel.
pub(super) fn expand(
    program: &Program,
    continuations: &mut Continuations,
    beginnings: &mut Beginnings,
    kernel: &Kernel,
) -> Result<Expansion, Fault> {
    let mut calls = Calls::default();
    let (mut local, mut waiting) = (Vec::new(), kernel.items.to_vec());
    let (mut done, mut steps) = (0, 0);
    loop {
        steps += waiting.len();
        check(steps)?;
        for item in waiting.drain(..) {
            match program.ops[item.pc as usize] {
                Op::Call { rule, next } => calls.add(rule, Item { pc: next, ..item }),
                _ => local.push(item),
            }
        }
        let Some(rule) = calls.rules.get(done) else { break };
        let back = LOCAL | done as u32;
        waiting.extend(beginnings.of(program, *rule)?.iter().map(|item| Item { back, ..*item }));
        done += 1;
    }
    let resolved = calls.resolve(program, continuations);
    let (mut scans, mut specials, mut allowed) = (Vec::new(), Vec::new(), ByteSet::EMPTY);
    for item in local {
        let back = if item.back & LOCAL == 0 { item.back } else { resolved[(item.back & !LOCAL) as usize] };
        match program.ops[item.pc as usize] {
            Op::Bytes { set, next } => {
                allowed = allowed.union(program.sets[set as usize]);
                scans.push(Scan { set, then: Item { pc: next, back, ..item } });
            }
            Op::Special { special, next } => specials.push((special, Item { pc: next, back, ..item })),
            _ => {}
        }
    }
    Ok(Expansion { scans: scans.into(), specials: specials.into(), allowed, steps })
}

/// Puts those who wait further out in the place of a waiter that only returns to them, where that makes the list no longer:
/// several recursive calls in a row then come back to the same continuation.
fn absorb(list: &mut Vec<Item>, ends: &impl Fn(&Item) -> bool, continuations: &Continuations) {
    const TRIED: usize = 8;
    let returning = |item: &&Item| ends(item) && item.back != TOP && item.back & LOCAL == 0;
    let candidates: Vec<Item> = list.iter().filter(returning).take(TRIED).copied().collect();
    for candidate in candidates {
        let outer = continuations.waiters(candidate.back);
        let mut merged: Vec<Item> = list.iter().filter(|item| **item != candidate).chain(outer).copied().collect();
        merged.sort_unstable();
        merged.dedup();
        if merged.len() <= list.len().max(outer.len()) {
            *list = merged;
        }
    }
}

/// Who waits for which rule. References to a rule's own waiters are indices marked [`LOCAL`] until they are resolved.
#[derive(Default)]
struct Calls {
    indices: HashMap<RuleId, usize>,
    rules: Vec<RuleId>,
    waiters: Vec<Vec<Item>>,
}

impl Calls {
    fn add(&mut self, rule: RuleId, waiter: Item) {
        let index = *self.indices.entry(rule).or_insert_with(|| {
            self.rules.push(rule);
            self.waiters.push(Vec::new());
            self.rules.len() - 1
        });
        self.waiters[index].push(waiter);
    }

    /// The continuation of each called rule: what it leads to is known before it.
    fn resolve(&self, program: &Program, continuations: &mut Continuations) -> Vec<ContinuationId> {
        // The ends of all rules are alike.
        let ends = |item: &Item| program.ops[item.pc as usize] == Op::End;
        let index = |item: &Item| (item.back & LOCAL != 0).then_some((item.back & !LOCAL) as usize);
        let successors: Vec<Vec<usize>> =
            self.waiters.iter().map(|list| list.iter().filter_map(index).collect()).collect();
        let mut resolved = vec![TOP; self.rules.len()];
        for mut component in components(&successors) {
            component.sort_unstable_by_key(|member| self.rules[*member]);
            let member = |item: &Item| {
                let back = match index(item) {
                    None => item.back,
                    Some(to) => match component.binary_search_by_key(&self.rules[to], |member| self.rules[*member]) {
                        Ok(place) => LOCAL | place as u32,
                        Err(_) => resolved[to],
                    },
                };
                if ends(item) { Item { pc: END, back, count: 0 } } else { Item { back, ..*item } }
            };
            let mut members: Vec<Vec<Item>> =
                component.iter().map(|one| self.waiters[*one].iter().map(member).collect()).collect();
            if let [list] = members.as_mut_slice() {
                // Who returns to itself and does nothing else adds nothing.
                list.retain(|item| !(ends(item) && item.back == LOCAL));
                list.sort_unstable();
                list.dedup();
                absorb(list, &ends, continuations);
                if let [only] = list.as_slice()
                    && ends(only)
                {
                    resolved[component[0]] = only.back;
                    continue;
                }
            }
            let first = continuations.group(members);
            component.iter().zip(first..).for_each(|(one, id)| resolved[*one] = id);
        }
        resolved
    }
}
