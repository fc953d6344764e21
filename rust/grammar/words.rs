//! Many texts as one expression.
//!
//! The texts of an `enum`, or the literals of a rule, share their beginnings: what is built is a tree that branches only where two texts differ, so
//! that at each character as few readings are alive as there are different next ones, however many texts there are. Branches
//! that go on alike become one branch over a class, which turns a list of numbers into a row of digits. It branches between
//! characters, never within one, so that it can be written down as GBNF.
//!
//! The texts are sorted; the tree is built from the leaves on while walking over neighbours, whose common beginnings say
//! where it branches. Nothing here recurses.

use std::collections::{BTreeMap, HashMap};

use crate::builder::{Builder, NodeId};
use crate::bytes::ByteSet;
use crate::utf8;

/// Every so many branchings above each other the expression goes on in a rule of its own.
const HEIGHT_PER_RULE: usize = 32;

/// An expression and how many branchings it has above each other since the last rule.
type Tree = (NodeId, usize);

/// Ranges of code points, and what follows them.
type Branch = (Vec<(u32, u32)>, NodeId);

/// A place where texts part, as long as more of them may come.
struct Fork {
    /// Bytes before it.
    depth: usize,
    /// Whether a text ends here.
    ends: bool,
    /// First character and what follows it.
    branches: Vec<(char, Tree)>,
}

impl Fork {
    fn new(depth: usize) -> Self {
        Self { depth, ends: false, branches: Vec::new() }
    }
}

/// What was built already; equal parts are one node, so that equal branches can be found.
struct Forest<'b> {
    builder: &'b mut Builder,
    bytes: [Option<NodeId>; 256],
    /// By text and what follows it.
    rows: HashMap<(String, NodeId), NodeId>,
    /// By whether a text ends there, and the branches.
    forks: HashMap<(bool, Vec<Branch>), Tree>,
    empty: NodeId,
}

/// One of the texts; `None` without any.
pub(crate) fn one_of(builder: &mut Builder, mut texts: Vec<String>) -> Option<NodeId> {
    texts.sort_unstable();
    texts.dedup();
    if texts.is_empty() {
        return None;
    }
    let empty = builder.empty();
    let mut forest = Forest { builder, bytes: [None; 256], rows: HashMap::new(), forks: HashMap::new(), empty };
    // Forks that are still open, the innermost last; all lie on the way to the text at hand.
    let mut open = vec![Fork::new(0)];
    for (at, text) in texts.iter().enumerate() {
        let shared = texts.get(at + 1).map_or(0, |next| common(text, next));
        let mut tail = ((empty, 0), text.len());
        loop {
            if open.last().is_none_or(|fork| fork.depth < shared) {
                open.push(Fork::new(shared));
            }
            let Some(fork) = open.last_mut() else { break };
            let mut rest = text.get(fork.depth..tail.1).unwrap_or_default().chars();
            match rest.next() {
                Some(first) => {
                    let branch = (first, forest.row(rest.as_str(), tail.0));
                    fork.branches.push(branch);
                }
                None => fork.ends = true,
            }
            if fork.depth == shared {
                break;
            }
            let depth = fork.depth;
            let Some(closed) = open.pop() else { break };
            tail = (forest.fork(closed), depth);
        }
    }
    let root = open.pop()?;
    Some(forest.fork(root).0)
}

/// The bytes of the characters with which both texts begin.
fn common(one: &str, other: &str) -> usize {
    let same = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
    (0..=same).rev().find(|at| one.is_char_boundary(*at)).unwrap_or(0)
}

impl Forest<'_> {
    fn byte(&mut self, byte: u8) -> NodeId {
        let builder = &mut *self.builder;
        *self.bytes[usize::from(byte)].get_or_insert_with(|| builder.bytes(ByteSet::from_iter([byte])))
    }

    /// A text, and behind it a tree.
    fn row(&mut self, text: &str, (next, height): Tree) -> Tree {
        if text.is_empty() {
            return (next, height);
        }
        let key = (text.to_owned(), next);
        if let Some(known) = self.rows.get(&key) {
            return (*known, height);
        }
        let mut parts: Vec<NodeId> = text.bytes().map(|byte| self.byte(byte)).collect();
        parts.extend((next != self.empty).then_some(next));
        let node = self.builder.sequence(parts);
        self.rows.insert(key, node);
        (node, height)
    }

    /// The branches of a fork; those that go on alike as one.
    fn fork(&mut self, fork: Fork) -> Tree {
        let mut classes: BTreeMap<NodeId, Vec<(u32, u32)>> = BTreeMap::new();
        let mut height = 0;
        for (first, (node, below)) in fork.branches {
            classes.entry(node).or_default().push((u32::from(first), u32::from(first)));
            height = height.max(below + 1);
        }
        let branches: Vec<Branch> = classes.into_iter().map(|(node, class)| (utf8::normalised(class), node)).collect();
        let key = (fork.ends, branches);
        if let Some(known) = self.forks.get(&key) {
            return *known;
        }
        let mut parts = Vec::new();
        for (class, next) in &key.1 {
            let first = self.builder.characters(class);
            parts.push(if *next == self.empty { first } else { self.builder.sequence(vec![first, *next]) });
        }
        parts.extend(fork.ends.then_some(self.empty));
        let mut tree = (self.builder.alternatives(parts), height);
        if height >= HEIGHT_PER_RULE {
            let rule = self.builder.declare("words");
            self.builder.define(rule, tree.0);
            tree = (self.builder.rule(rule), 0);
        }
        self.forks.insert(key, tree);
        tree
    }
}
