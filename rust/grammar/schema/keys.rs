//! Keys that are none of the defined ones.
//!
//! A tree of the defined names is followed character by character; a key of another name leaves it at some character or ends
//! inside of it. Each character has one way of being written here, so that no escape writes a defined name differently.

use std::collections::HashMap;

use crate::builder::{Builder, NodeId};
use crate::regex::{Characters, LAST};
use crate::utf8;

use super::string::Quoted;

/// Every so many levels of the tree the expression goes on in a rule of its own.
const LEVELS_PER_RULE: usize = 32;

struct Branch {
    level: usize,
    /// Whether a name ends here.
    is_name: bool,
    /// Character and branch.
    children: Vec<(char, usize)>,
}

/// A key in quotes that is not one of the names.
pub(super) fn other_than(builder: &mut Builder, quoted: &Quoted, names: &[&str]) -> NodeId {
    let tree = tree(names);
    let quoted = quoted.canonical();
    let any = quoted.one_of(builder, &[(0, LAST)]);
    let anything = builder.repeat(any, 0, None);
    let quote = builder.literal(b"\"");
    let anything = builder.sequence(vec![anything, quote]);
    let mut nodes: Vec<NodeId> = vec![anything; tree.len()];
    // Children come behind their parents.
    for (at, branch) in tree.iter().enumerate().rev() {
        let own = branch.children.iter().map(|(character, _)| (u32::from(*character), u32::from(*character))).collect();
        let other = quoted.one_of(builder, &utf8::complement(own));
        let mut parts = vec![builder.sequence(vec![other, anything])];
        if !branch.is_name {
            parts.push(quote);
        }
        for (character, child) in &branch.children {
            let character = quoted.one_of(builder, &[(u32::from(*character), u32::from(*character))]);
            parts.push(builder.sequence(vec![character, nodes[*child]]));
        }
        let node = builder.alternatives(parts);
        nodes[at] = if branch.level % LEVELS_PER_RULE == LEVELS_PER_RULE - 1 {
            let rule = builder.declare("key");
            builder.define(rule, node);
            builder.rule(rule)
        } else {
            node
        };
    }
    let body = nodes.first().copied().unwrap_or(anything);
    builder.sequence(vec![quote, body])
}

fn tree(names: &[&str]) -> Vec<Branch> {
    let mut tree = vec![Branch { level: 0, is_name: false, children: Vec::new() }];
    let mut known: HashMap<(usize, char), usize> = HashMap::new();
    for name in names {
        let mut at = 0;
        for character in name.chars() {
            at = *known.entry((at, character)).or_insert_with(|| {
                let level = tree[at].level + 1;
                let child = tree.len();
                tree.push(Branch { level, is_name: false, children: Vec::new() });
                tree[at].children.push((character, child));
                child
            });
        }
        tree[at].is_name = true;
    }
    tree
}
