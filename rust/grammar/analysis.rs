//! What holds for the rules of a program: which can be empty, which can end.

use crate::error::{Fault, FaultCode, GrammarError};
use crate::program::{Op, Pc, Program, RuleId};

/// Which rules can be empty. A repetition whose round can be empty needs no round.
pub(crate) fn mark_nullable(program: &mut Program) {
    let (_, nullable) = lead_to_end(program, true);
    for (rule, nullable) in program.rules.iter_mut().zip(nullable) {
        rule.nullable = nullable;
        if let (true, Some(counter)) = (nullable, rule.counter) {
            program.counters[counter as usize].least = 0;
        }
    }
}

/// Marks the instructions from which some text leads to the end of their rule; says for each rule whether its entry is one.
pub(crate) fn mark_alive(program: &mut Program) -> Vec<bool> {
    let (alive, ends) = lead_to_end(program, false);
    program.alive = alive;
    ends
}

/// The fault of a rule that no text fits.
pub(crate) fn endless(name: &str) -> Fault {
    Fault::new(FaultCode::DeadEnd, format!("no text fits the rule `{name}`"))
        .why("every way through it leads to itself again, or to a choice without members")
        .fix("give the rule an alternative that can end")
}

/// Refuses rules from whose beginning no text leads to the end.
pub(crate) fn refuse_endless(program: &Program, names: &[String], ends: &[bool]) -> Result<(), GrammarError> {
    let mut faults = Vec::new();
    let reachable = reachable_rules(program);
    for (rule, name) in names.iter().enumerate() {
        if reachable[rule] && !ends[rule] {
            let fault = endless(name);
            // The rules of a schema are named by where they come from.
            let pointer = name.starts_with('#').then(|| name.clone());
            faults.push(Fault { pointer, ..fault });
        }
    }
    if faults.is_empty() && !ends[program.start.0 as usize] {
        faults.push(Fault::new(FaultCode::DeadEnd, "no text fits the grammar"));
    }
    GrammarError::from_faults(faults)
}

/// A list of instructions for each of some numbers, all in one piece.
struct Lists {
    /// Where each list begins, `[lists + 1]`.
    starts: Vec<u32>,
    members: Vec<Pc>,
}

impl Lists {
    /// The lists of `count` numbers, from pairs of a number and a member.
    fn new(count: usize, pairs: &[(u32, Pc)]) -> Self {
        let mut starts = vec![0u32; count + 1];
        pairs.iter().for_each(|(number, _)| starts[*number as usize] += 1);
        // Each entry is first the end of its list, and its beginning once all members are in.
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        let mut members = vec![0; pairs.len()];
        for (number, member) in pairs {
            let place = &mut starts[*number as usize];
            *place -= 1;
            members[*place as usize] = *member;
        }
        Self { starts, members }
    }

    fn of(&self, number: usize) -> &[Pc] {
        &self.members[self.starts[number] as usize..self.starts[number + 1] as usize]
    }
}

/// The instructions that lead to the end of their rule, by some text or, when `empty`, by the empty one; and the rules whose
/// entries do. Works backwards from the ends, so that a chain of rules costs no more than its length.
fn lead_to_end(program: &Program, empty: bool) -> (Vec<bool>, Vec<bool>) {
    let count = program.ops.len();
    // Who goes on at an instruction; who calls a rule.
    let (mut before, mut callers) = (Vec::with_capacity(count), Vec::new());
    let mut open: Vec<Pc> = Vec::new();
    for (pc, op) in (0u32..).zip(&program.ops) {
        match *op {
            Op::Bytes { .. } | Op::Special { .. } if empty => {}
            Op::Bytes { set, next } if !program.sets[set as usize].is_empty() => before.push((next, pc)),
            Op::Bytes { .. } => {}
            Op::Special { next, .. } => before.push((next, pc)),
            Op::Call { rule, next } => {
                before.push((next, pc));
                callers.push((rule.0, pc));
            }
            Op::Split { first, count } => {
                before.extend(program.split(first, count).iter().map(|target| (*target, pc)));
            }
            Op::Head { counter, body } => {
                if program.counters[counter as usize].least == 0 {
                    open.push(pc);
                }
                before.push((body, pc));
            }
            // A whole round: so can all others be.
            Op::Again { .. } | Op::End => open.push(pc),
        }
    }
    let (before, callers) = (Lists::new(count, &before), Lists::new(program.rules.len(), &callers));
    let mut alive = vec![false; count];
    let mut ends = vec![false; program.rules.len()];
    let lives = |pc: Pc, alive: &[bool], ends: &[bool]| match program.ops[pc as usize] {
        Op::Call { rule, next } => ends[rule.0 as usize] && alive[next as usize],
        _ => true,
    };
    while let Some(pc) = open.pop() {
        if alive[pc as usize] || !lives(pc, &alive, &ends) {
            continue;
        }
        alive[pc as usize] = true;
        open.extend(before.of(pc as usize));
        let rule = program.owner[pc as usize].0 as usize;
        if !ends[rule] && program.rules[rule].entry == pc {
            ends[rule] = true;
            open.extend(callers.of(rule));
        }
    }
    (alive, ends)
}

fn reachable_rules(program: &Program) -> Vec<bool> {
    let mut calls: Vec<Vec<RuleId>> = vec![Vec::new(); program.rules.len()];
    for (op, owner) in program.ops.iter().zip(&program.owner) {
        if let Op::Call { rule, .. } = op {
            calls[owner.0 as usize].push(*rule);
        }
    }
    let mut reached = vec![false; program.rules.len()];
    let mut open = vec![program.start];
    while let Some(rule) = open.pop() {
        if !std::mem::replace(&mut reached[rule.0 as usize], true) {
            open.extend(&calls[rule.0 as usize]);
        }
    }
    reached
}
