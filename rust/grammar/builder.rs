//! From expressions to a program: what every source (GBNF, schemas, patterns, tool lists) builds with.
//!
//! Owns the expression nodes, lowering, and the checks that hold for every grammar: each rule is defined, can end, and every
//! count lies within the limits. Lowering recurses over one expression only, whose depth is bounded when its nodes are
//! made; rules may form chains and cycles of any length.

use std::collections::{HashMap, HashSet};

use crate::analysis::{mark_alive, mark_nullable, refuse_endless};
use crate::bytes::ByteSet;
use crate::error::{Fault, FaultCode, GrammarError};
use crate::limits;
use crate::matcher;
use crate::program::{ByteClasses, Counter, Op, Pc, Program, Rule, RuleId, Special, SpecialId};
use crate::utf8;

/// An expression of the builder that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

/// What an expression is made of.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Empty,
    Bytes(ByteSet),
    Sequence(Vec<NodeId>),
    Alternatives(Vec<NodeId>),
    Repeat { body: NodeId, least: u32, most: Option<u32> },
    Rule(RuleId),
    Special(SpecialId),
}

/// Any text up to a mark: the mark, what stands behind it, whether the text may end before it.
pub(crate) type FreeText = (Vec<u8>, NodeId, bool);

struct RuleEntry {
    name: String,
    body: Option<NodeId>,
}

/// Collects expressions and rules.
#[derive(Default)]
pub struct Builder {
    nodes: Vec<Node>,
    depths: Vec<u16>,
    /// Whether a node and all parts of it fit something, as is plain without a look at rules.
    sound: Vec<bool>,
    rules: Vec<RuleEntry>,
    special_numbers: HashMap<Special, SpecialId>,
    classes: HashMap<Vec<(u32, u32)>, NodeId>,
    /// Sets of one byte that were built already.
    sets: HashMap<ByteSet, NodeId>,
    /// The empty text, once it was built.
    nothing: Option<NodeId>,
    /// Free texts that were built already.
    texts: HashMap<FreeText, NodeId>,
    /// The first limit that was hit; what is built afterwards does not matter.
    fault: Option<Fault>,
    /// Whether rules that fit nothing are left out instead of refused.
    prunes: bool,
}

impl Builder {
    /// An empty builder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, node: Node, depth: u16) -> NodeId {
        if self.nodes.len() >= limits::INSTRUCTIONS.most {
            self.fail(Fault::limit(limits::INSTRUCTIONS, self.nodes.len() + 1));
            return NodeId(0);
        }
        if usize::from(depth) > limits::DEPTH.most {
            self.fail(Fault::limit(limits::DEPTH, depth));
            return NodeId(0);
        }
        self.sound.push(self.is_sound(&node));
        self.nodes.push(node);
        self.depths.push(depth);
        NodeId((self.nodes.len() - 1) as u32)
    }

    fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
        if self.nodes.is_empty() {
            self.nodes.push(Node::Empty);
            self.depths.push(0);
            self.sound.push(true);
        }
    }

    fn is_sound(&self, node: &Node) -> bool {
        match node {
            Node::Empty | Node::Special(_) => true,
            Node::Bytes(set) => !set.is_empty(),
            Node::Sequence(parts) | Node::Alternatives(parts) => parts.iter().all(|part| self.sound[part.0 as usize]),
            Node::Repeat { body, .. } => self.sound[body.0 as usize],
            Node::Rule(_) => false,
        }
    }

    /// The limit that was hit, if one was: what is built afterwards does not matter.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// How many expressions an expression lies above.
    pub(crate) fn depth(&self, node: NodeId) -> u16 {
        self.depths[node.0 as usize]
    }

    fn deepest(&self, parts: &[NodeId]) -> u16 {
        parts.iter().map(|part| self.depth(*part)).max().unwrap_or(0).saturating_add(1)
    }

    /// The empty text.
    pub fn empty(&mut self) -> NodeId {
        if let Some(known) = self.nothing {
            return known;
        }
        let node = self.push(Node::Empty, 0);
        self.nothing = Some(node);
        node
    }

    /// One byte of a set; the empty set fits nothing.
    pub fn bytes(&mut self, set: ByteSet) -> NodeId {
        if let Some(known) = self.sets.get(&set) {
            return *known;
        }
        let node = self.push(Node::Bytes(set), 0);
        self.sets.insert(set, node);
        node
    }

    /// These bytes.
    pub fn literal(&mut self, bytes: &[u8]) -> NodeId {
        let parts: Vec<NodeId> = bytes.iter().map(|byte| self.bytes(ByteSet::from_iter([*byte]))).collect();
        self.sequence(parts)
    }

    /// One code point of these ranges, in UTF-8.
    pub fn characters(&mut self, ranges: &[(u32, u32)]) -> NodeId {
        let ranges = utf8::normalised(ranges.to_vec());
        if let Some(known) = self.classes.get(&ranges) {
            return *known;
        }
        let mut single = ByteSet::EMPTY;
        let mut alternatives = Vec::new();
        for sequence in ranges.iter().flat_map(|(low, high)| utf8::sequences(*low, *high)) {
            if let [(low, high)] = *sequence {
                (low..=high).for_each(|byte| single.insert(byte));
                continue;
            }
            let parts = sequence.iter().map(|(low, high)| self.bytes((*low..=*high).collect())).collect();
            alternatives.push(self.sequence(parts));
        }
        if !single.is_empty() || alternatives.is_empty() {
            alternatives.insert(0, self.bytes(single));
        }
        let node = self.alternatives(alternatives);
        self.classes.insert(ranges, node);
        node
    }

    /// All parts, one after the other.
    pub fn sequence(&mut self, parts: Vec<NodeId>) -> NodeId {
        match *parts {
            [] => self.empty(),
            [only] => only,
            _ => {
                let depth = self.deepest(&parts);
                self.push(Node::Sequence(parts), depth)
            }
        }
    }

    /// One of the parts; none of no parts.
    pub fn alternatives(&mut self, parts: Vec<NodeId>) -> NodeId {
        match *parts {
            [] => self.bytes(ByteSet::EMPTY),
            [only] => only,
            _ => {
                let depth = self.deepest(&parts);
                self.push(Node::Alternatives(parts), depth)
            }
        }
    }

    /// `body` at least `least` and at most `most` times.
    pub fn repeat(&mut self, body: NodeId, least: u32, most: Option<u32>) -> NodeId {
        let largest = most.unwrap_or(0).max(least) as usize;
        if largest > limits::REPETITIONS.most {
            self.fail(Fault::limit(limits::REPETITIONS, largest));
        }
        if most.is_some_and(|most| most < least) {
            return self.bytes(ByteSet::EMPTY);
        }
        let star_like = |least: u32, most: Option<u32>| least <= 1 && most.is_none_or(|most| most == 1);
        match (&self.nodes[body.0 as usize], least, most) {
            (_, 1, Some(1)) => return body,
            (_, _, Some(0)) => return self.empty(),
            // Signs behind each other, such as `x*?`, are one sign: this keeps a row of them flat.
            (Node::Repeat { body, least: inner, most: end }, _, _)
                if star_like(*inner, *end) && star_like(least, most) =>
            {
                let (body, least) = (*body, least.min(*inner));
                let most = if most.is_some() && end.is_some() { Some(1) } else { None };
                return self.repeat(body, least, most);
            }
            _ => {}
        }
        let depth = self.deepest(&[body]);
        self.push(Node::Repeat { body, least, most }, depth)
    }

    /// `body` or nothing.
    pub fn optional(&mut self, body: NodeId) -> NodeId {
        self.repeat(body, 0, Some(1))
    }

    /// A rule that is defined later.
    pub fn declare(&mut self, name: &str) -> RuleId {
        if self.rules.len() >= limits::RULES.most {
            self.fail(Fault::limit(limits::RULES, self.rules.len() + 1));
            return RuleId(0);
        }
        self.rules.push(RuleEntry { name: name.to_owned(), body: None });
        RuleId((self.rules.len() - 1) as u32)
    }

    /// Gives a declared rule its body.
    pub fn define(&mut self, rule: RuleId, body: NodeId) {
        if let Some(entry) = self.rules.get_mut(rule.0 as usize) {
            entry.body = Some(body);
        }
    }

    /// A reference to a rule.
    pub fn rule(&mut self, rule: RuleId) -> NodeId {
        self.push(Node::Rule(rule), 0)
    }

    /// A free text that was built already.
    pub(crate) fn known_text(&self, text: &FreeText) -> Option<NodeId> {
        self.texts.get(text).copied()
    }

    /// Keeps a free text, which is built once.
    pub(crate) fn keep_text(&mut self, text: FreeText, node: NodeId) {
        self.texts.insert(text, node);
    }

    /// One special token.
    pub fn special(&mut self, special: Special) -> NodeId {
        let number = SpecialId(self.special_numbers.len() as u32);
        let number = *self.special_numbers.entry(special).or_insert(number);
        self.push(Node::Special(number), 0)
    }

    /// Leaves out rules that fit nothing, as long as something fits the whole, instead of refusing them.
    pub(crate) fn prune(&mut self) {
        self.prunes = true;
    }

    /// The names of rules below `node` that no text fits, and whether none fits `node` itself.
    pub(crate) fn dead_rules(&self, node: NodeId) -> (Vec<&str>, bool) {
        let unfit = self.unfit(node);
        let mut dead: Vec<NodeId> = unfit.iter().copied().collect();
        dead.sort_unstable();
        let rules = dead.iter().filter_map(|node| match self.node(*node) {
            Node::Rule(rule) => Some(self.name(*rule)),
            _ => None,
        });
        (rules.collect(), unfit.contains(&node))
    }

    /// The expressions below `node`, itself included, that no text fits.
    pub(crate) fn unfit(&self, node: NodeId) -> HashSet<NodeId> {
        self.unfit_below(vec![node], false)
    }

    /// The rules that no text fits, in the order of their declaration. Rules without a body are thought to fit something:
    /// what is wrong with them is another fault.
    pub(crate) fn endless(&self) -> Vec<RuleId> {
        if self.fault.is_some() {
            // What was built is not what was meant.
            return Vec::new();
        }
        let mut bodies: Vec<NodeId> = self.rules.iter().filter_map(|rule| rule.body).collect();
        bodies.sort_unstable();
        bodies.dedup();
        let unfit = self.unfit_below(bodies, true);
        let endless = |rule: &RuleId| self.body(*rule).is_some_and(|body| unfit.contains(&body));
        (0..self.rules.len() as u32).map(RuleId).filter(endless).collect()
    }

    /// The expressions below `order`, themselves included, that no text fits. Rules without a body fit something if
    /// `open_rules`.
    ///
    /// Works backwards from what fits at once: a sequence fits when all of its parts do, alternatives when one does.
    fn unfit_below(&self, mut order: Vec<NodeId>, open_rules: bool) -> HashSet<NodeId> {
        // Where an expression stands in the order. It costs what lies below, however much else was built.
        let mut places: HashMap<NodeId, usize> = order.iter().enumerate().map(|(at, node)| (*node, at)).collect();
        let mut parents: Vec<Vec<usize>> = vec![Vec::new(); order.len()];
        // How many parts must still be found to fit.
        let mut missing: Vec<usize> = Vec::new();
        let mut open = Vec::new();
        while missing.len() < order.len() {
            let at = missing.len();
            let sound = self.sound[order[at].0 as usize];
            let (parts, needed) = if sound { (&[][..], 0) } else { self.needs(order[at]) };
            let needed = if open_rules && parts.is_empty() && self.is_open(order[at]) { 0 } else { needed };
            missing.push(needed);
            if needed == 0 {
                open.push(at);
            }
            for part in parts.iter().copied() {
                let place = *places.entry(part).or_insert_with(|| {
                    order.push(part);
                    parents.push(Vec::new());
                    order.len() - 1
                });
                parents[place].push(at);
            }
        }
        while let Some(at) = open.pop() {
            for parent in &parents[at] {
                if missing[*parent] > 0 {
                    missing[*parent] -= 1;
                    open.extend((missing[*parent] == 0).then_some(*parent));
                }
            }
        }
        order.into_iter().zip(missing).filter_map(|(node, missing)| (missing > 0).then_some(node)).collect()
    }

    pub(crate) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }

    /// The body of a rule that has one.
    pub(crate) fn body(&self, rule: RuleId) -> Option<NodeId> {
        self.rules.get(rule.0 as usize).and_then(|entry| entry.body)
    }

    /// The name with which a rule was declared.
    pub(crate) fn name(&self, rule: RuleId) -> &str {
        self.rules.get(rule.0 as usize).map_or("", |entry| entry.name.as_str())
    }

    /// The expressions that are one code point, and which.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (NodeId, &[(u32, u32)])> {
        self.classes.iter().map(|(ranges, node)| (*node, ranges.as_slice()))
    }

    /// The special tokens that are named, by their numbers.
    pub(crate) fn specials(&self) -> impl Iterator<Item = (SpecialId, &Special)> {
        self.special_numbers.iter().map(|(special, number)| (*number, special))
    }

    /// The parts of an expression, and how many of them must fit something so that it does.
    fn needs(&self, node: NodeId) -> (&[NodeId], usize) {
        match &self.nodes[node.0 as usize] {
            Node::Empty | Node::Special(_) => (&[], 0),
            Node::Bytes(set) => (&[], usize::from(set.is_empty())),
            Node::Sequence(parts) => (parts, parts.len()),
            Node::Alternatives(parts) => (parts, 1),
            Node::Repeat { body, least, .. } => (std::slice::from_ref(body), usize::from(*least > 0)),
            Node::Rule(rule) => (self.rules.get(rule.0 as usize).map_or(&[], |entry| entry.body.as_slice()), 1),
        }
    }

    /// Whether an expression is a rule without a body.
    fn is_open(&self, node: NodeId) -> bool {
        matches!(&self.nodes[node.0 as usize], Node::Rule(rule) if self.body(*rule).is_none())
    }

    /// The program that starts with `start`.
    ///
    /// # Errors
    /// A limit that was hit, rules without a body, rules that can never end, a beginning with more readings than can be
    /// followed.
    pub fn finish(self, start: RuleId) -> Result<Program, GrammarError> {
        if let Some(fault) = self.fault {
            return Err(fault.into());
        }
        let missing = self.rules.iter().filter(|rule| rule.body.is_none());
        let faults =
            missing.map(|rule| Fault::new(FaultCode::Syntax, format!("the rule `{}` is not defined", rule.name)));
        GrammarError::from_faults(faults.collect())?;
        let names: Vec<String> = self.rules.iter().map(|rule| rule.name.clone()).collect();
        let mut lowering = Lowering::new(&self);
        lowering.all_rules()?;
        let Lowering { ops, owner, targets, rules, counters, sets, .. } = lowering;
        let classes = ByteClasses::new(&sets);
        let alive = vec![false; ops.len()];
        let mut specials: Vec<(Special, SpecialId)> = self.special_numbers.into_iter().collect();
        specials.sort_unstable_by_key(|(_, number)| *number);
        let specials = specials.into_iter().map(|(special, _)| special).collect();
        let mut program = Program { ops, owner, alive, targets, rules, counters, sets, start, specials, classes };
        mark_nullable(&mut program);
        let ends = mark_alive(&mut program);
        if !(self.prunes && ends[start.0 as usize]) {
            refuse_endless(&program, &names, &ends)?;
        }
        matcher::can_begin(&program)?;
        Ok(program)
    }
}

/// Instructions on their way.
struct Lowering<'a> {
    builder: &'a Builder,
    ops: Vec<Op>,
    owner: Vec<RuleId>,
    targets: Vec<Pc>,
    rules: Vec<Rule>,
    counters: Vec<Counter>,
    sets: Vec<ByteSet>,
    set_numbers: HashMap<ByteSet, u32>,
    /// The number of a set by its node, which is looked up faster than the set.
    node_sets: Vec<Option<u32>>,
    /// Hidden rules by what they repeat: the same repetition is lowered once.
    repeats: HashMap<(NodeId, u32, Option<u32>), RuleId>,
    /// Hidden rules whose bodies are still to be lowered.
    open: Vec<(RuleId, NodeId)>,
    current: RuleId,
}

impl<'a> Lowering<'a> {
    fn new(builder: &'a Builder) -> Self {
        let unset = Rule { entry: 0, nullable: false, counter: None };
        Self {
            builder,
            ops: Vec::new(),
            owner: Vec::new(),
            targets: Vec::new(),
            rules: vec![unset; builder.rules.len()],
            counters: Vec::new(),
            sets: Vec::new(),
            set_numbers: HashMap::new(),
            node_sets: vec![None; builder.nodes.len()],
            repeats: HashMap::new(),
            open: Vec::new(),
            current: RuleId(0),
        }
    }

    fn all_rules(&mut self) -> Result<(), GrammarError> {
        for (index, rule) in self.builder.rules.iter().enumerate() {
            self.current = RuleId(index as u32);
            let end = self.op(Op::End);
            // Rules without a body were refused before.
            let Some(body) = rule.body else { continue };
            self.rules[index].entry = self.lower(body, end);
            self.check_size()?;
        }
        while let Some((rule, body)) = self.open.pop() {
            self.current = rule;
            let Some(counter) = self.rules[rule.0 as usize].counter else { continue };
            let head = self.op(Op::Head { counter, body: 0 });
            let again = self.op(Op::Again { head });
            let body = self.lower(body, again);
            self.ops[head as usize] = Op::Head { counter, body };
            self.rules[rule.0 as usize].entry = head;
            self.check_size()?;
        }
        Ok(())
    }

    fn check_size(&self) -> Result<(), GrammarError> {
        for (limit, got) in
            [(limits::INSTRUCTIONS, self.ops.len() + self.targets.len()), (limits::RULES, self.rules.len())]
        {
            if got > limit.most {
                return Err(Fault::limit(limit, got).into());
            }
        }
        Ok(())
    }

    fn op(&mut self, op: Op) -> Pc {
        self.ops.push(op);
        self.owner.push(self.current);
        (self.ops.len() - 1) as Pc
    }

    fn split(&mut self, targets: Vec<Pc>) -> Op {
        let first = self.targets.len() as u32;
        let count = targets.len() as u32;
        self.targets.extend(targets);
        Op::Split { first, count }
    }

    /// Instructions for a node that goes on at `next`; returns their entry.
    fn lower(&mut self, node: NodeId, next: Pc) -> Pc {
        if self.ops.len() > limits::INSTRUCTIONS.most {
            // Refused when the rule is done.
            return next;
        }
        match &self.builder.nodes[node.0 as usize] {
            Node::Empty => next,
            Node::Bytes(bytes) => {
                let known = self.node_sets[node.0 as usize];
                let set = known.unwrap_or_else(|| self.set(*bytes));
                self.node_sets[node.0 as usize] = Some(set);
                self.op(Op::Bytes { set, next })
            }
            Node::Sequence(parts) => parts.iter().rev().fold(next, |next, part| self.lower(*part, next)),
            Node::Alternatives(parts) => {
                let targets = parts.iter().map(|part| self.lower(*part, next)).collect();
                let split = self.split(targets);
                self.op(split)
            }
            Node::Rule(rule) => self.op(Op::Call { rule: *rule, next }),
            Node::Special(special) => self.op(Op::Special { special: *special, next }),
            Node::Repeat { body, least, most } => self.repeat(*body, *least, *most, next),
        }
    }

    fn set(&mut self, bytes: ByteSet) -> u32 {
        *self.set_numbers.entry(bytes).or_insert_with(|| {
            self.sets.push(bytes);
            (self.sets.len() - 1) as u32
        })
    }

    fn repeat(&mut self, body: NodeId, least: u32, most: Option<u32>, next: Pc) -> Pc {
        match (least, most) {
            (0, Some(1)) => {
                let targets = vec![self.lower(body, next), next];
                let split = self.split(targets);
                self.op(split)
            }
            (0 | 1, None) => {
                let round = self.op(Op::End);
                let body = self.lower(body, round);
                self.ops[round as usize] = self.split(vec![body, next]);
                if least == 0 { round } else { body }
            }
            _ => {
                let rule = self.counted(body, least, most);
                self.op(Op::Call { rule, next })
            }
        }
    }

    fn counted(&mut self, body: NodeId, least: u32, most: Option<u32>) -> RuleId {
        if let Some(known) = self.repeats.get(&(body, least, most)) {
            return *known;
        }
        let rule = RuleId(self.rules.len() as u32);
        let counter = Some(self.counters.len() as u32);
        self.counters.push(Counter { least, most });
        self.rules.push(Rule { entry: 0, nullable: false, counter });
        self.repeats.insert((body, least, most), rule);
        self.open.push((rule, body));
        rule
    }
}
