//! Arrays: a schema for each of the first items, one for the rest, and how many there are.

use serde_json::Value;

use super::Compiler;
use super::merge::{Flat, Part};
use super::reference::{Located, below};
use crate::builder::NodeId;
use crate::limits;

/// Every so many items the expression goes on in a rule of its own.
const ITEMS_PER_RULE: usize = 32;

impl<'a> Compiler<'a, '_> {
    /// The schemas of the first items of one schema: `prefixItems`, or `items` when it is a list (draft-07).
    fn prefix(&self, part: &Part<'a>) -> Option<(&'a [Value], &'static str)> {
        let list = |keyword: &'static str| {
            part.map.get(keyword).and_then(Value::as_array).map(|list| (list.as_slice(), keyword))
        };
        let prefix = if self.old { None } else { list("prefixItems") };
        prefix.or_else(|| list("items"))
    }

    /// The schema of the items behind them, if there is one.
    fn rest(&self, part: &Part<'a>) -> Option<Located<'a>> {
        let keyword = if part.map.get("items").is_some_and(Value::is_array) { "additionalItems" } else { "items" };
        part.map.get(keyword).map(|value| Located { value, pointer: below(&part.pointer, keyword) })
    }

    /// The schemas of the item at a position.
    pub(super) fn item(&mut self, flat: &Flat<'a>, at: usize) -> Vec<Located<'a>> {
        let mut schemas = Vec::new();
        for part in &flat.parts {
            let own = self.prefix(part).and_then(|(list, keyword)| list.get(at).map(|value| (value, keyword)));
            if let Some((value, keyword)) = own {
                let pointer = below(&below(&part.pointer, keyword), &at.to_string());
                schemas.push(Located { value, pointer });
            } else {
                schemas.extend(self.rest(part));
            }
        }
        schemas
    }

    /// An array; `None` when too few items can be had.
    pub(super) fn array(&mut self, flat: &Flat<'a>) -> Option<NodeId> {
        for (part, value) in flat.values("prefixItems") {
            if !value.is_array() {
                self.malformed(&below(&part.pointer, "prefixItems"), "`prefixItems`", "a list of schemas");
            }
        }
        let least = self.least(flat, "minItems");
        let mut most = self.most(flat, "maxItems").unwrap_or(u64::MAX);
        if least > limits::REPETITIONS.most as u64 {
            self.fault(self.uncountable(flat, "minItems"), &flat.pointer());
            return None;
        }
        let length =
            flat.parts.iter().filter_map(|part| self.prefix(part)).map(|(list, _)| list.len()).max().unwrap_or(0);
        let mut items = Vec::new();
        for at in 0..length.min(usize::try_from(most).unwrap_or(usize::MAX)) {
            let schemas = self.item(flat, at);
            match self.child(&schemas) {
                Some(item) if self.spend(flat.parts.len()) => items.push(item),
                _ => {
                    most = at as u64;
                    break;
                }
            }
        }
        let mut rest = None;
        if most > items.len() as u64 {
            let schemas = self.item(flat, length);
            rest = self.child(&schemas);
            if rest.is_none() {
                most = items.len() as u64;
            }
        }
        if most < least {
            return None;
        }
        self.check_unique(flat, most);
        let entries = self.entries(&items, rest, least, most);
        let [open, close] = self.signs.array;
        Some(self.builder.sequence(vec![open, entries, close]))
    }

    fn check_unique(&mut self, flat: &Flat<'a>, most: u64) {
        let wanted: Vec<_> = flat.values("uniqueItems").map(|(part, value)| (part.pointer.clone(), value)).collect();
        for (pointer, value) in wanted {
            match value {
                Value::Bool(false) => {}
                Value::Bool(true) if most < 2 => {}
                Value::Bool(true) => self.refuse(&pointer, "uniqueItems", "items are not compared with each other"),
                _ => self.malformed(&below(&pointer, "uniqueItems"), "`uniqueItems`", "`true` or `false`"),
            }
        }
    }

    /// The items with their commas.
    fn entries(&mut self, items: &[NodeId], rest: Option<NodeId>, least: u64, most: u64) -> NodeId {
        let comma = self.signs.comma;
        // Larger bounds than can be counted are kept as the largest that can.
        let counted = |count: u64| u32::try_from(count.min(limits::REPETITIONS.most as u64)).unwrap_or(u32::MAX);
        let bound = |taken: u64| (most != u64::MAX).then(|| counted(most.saturating_sub(taken)));
        let mut tail = match rest {
            None => self.builder.empty(),
            Some(rest) => {
                let next = self.builder.sequence(vec![comma, rest]);
                let taken = items.len().max(1) as u64;
                let more = self.builder.repeat(next, counted(least.saturating_sub(taken)), bound(taken));
                if items.is_empty() {
                    let some = self.builder.sequence(vec![rest, more]);
                    if least == 0 { self.builder.optional(some) } else { some }
                } else {
                    more
                }
            }
        };
        for (at, item) in items.iter().enumerate().rev() {
            let mut row = vec![*item, tail];
            if at > 0 {
                row.insert(0, comma);
            }
            tail = self.builder.sequence(row);
            if at as u64 >= least {
                tail = self.builder.optional(tail);
            }
            if at % ITEMS_PER_RULE == ITEMS_PER_RULE - 1 {
                tail = self.hidden("items", tail);
            }
        }
        tail
    }
}
