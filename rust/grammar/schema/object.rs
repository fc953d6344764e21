//! Objects: defined properties in their order, then further ones.
//!
//! The properties follow each other in the order of the text; optional ones may be left out. So that the commas are right
//! without writing out every combination there are, up to the first required property, two expressions for each position:
//! one for "nothing written so far" and one for "something written", which makes the whole linear in the properties.
//! Further properties come last, if at all: without `additionalProperties` there are none when `properties` are given.

use std::collections::HashSet;

use serde_json::Value;

use super::keys;
use super::merge::Flat;
use super::reference::{Located, below};
use super::{Compiler, Weight};
use crate::builder::NodeId;
use crate::error::{Fault, FaultCode};

struct Member {
    /// Key, colon and value.
    pair: NodeId,
    required: bool,
}

impl<'a> Compiler<'a, '_> {
    /// Names of properties that are required, in order.
    pub(super) fn required(&mut self, flat: &Flat<'a>) -> Vec<&'a str> {
        let mut names = Vec::new();
        for (part, value) in flat.values("required") {
            match value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>()) {
                Some(Some(list)) => names.extend(list),
                _ => self.malformed(&below(&part.pointer, "required"), "`required`", "a list of strings"),
            }
        }
        names
    }

    /// The schemas for the value of a property, as the standard means them; without any, every value fits.
    pub(super) fn property(&mut self, flat: &Flat<'a>, name: &str) -> Vec<Located<'a>> {
        let mut schemas = Vec::new();
        for part in &flat.parts {
            let defined = part.map.get("properties").and_then(|properties| properties.get(name));
            if let Some(value) = defined {
                let pointer = below(&below(&part.pointer, "properties"), name);
                schemas.push(Located { value, pointer });
            } else if let Some(value) = part.map.get("additionalProperties") {
                schemas.push(Located { value, pointer: below(&part.pointer, "additionalProperties") });
            }
        }
        schemas
    }

    /// An object; `None` when a required property can have no value.
    pub(super) fn object(&mut self, flat: &Flat<'a>) -> Option<NodeId> {
        let names = self.property_names(flat);
        let required = self.required(flat);
        let required_set: HashSet<&str> = required.iter().copied().collect();
        let mut defined: HashSet<&str> = names.iter().copied().collect();
        let further: Vec<&str> = required.into_iter().filter(|name| defined.insert(name)).collect();
        let mut members = Vec::new();
        for name in names.iter().chain(&further).copied() {
            if !self.spend(8 + flat.parts.len()) {
                return None;
            }
            let schemas = self.property(flat, name);
            let required = required_set.contains(name);
            let Some(value) = self.child(&schemas) else {
                let never = schemas.iter().any(|schema| *schema.value == Value::Bool(false));
                let pointer = schemas.first().map_or_else(|| flat.pointer(), |schema| schema.pointer.clone());
                if required {
                    let what = format!("no value fits the required property `{name}`");
                    let fault =
                        Fault::new(FaultCode::DeadEnd, what).fix("allow a value, or do not require the property");
                    self.reasons.push(Fault { pointer: Some(pointer.to_string()), ..fault });
                    return None;
                }
                if !never {
                    self.note(&pointer, "no value fits; the property is left out");
                }
                continue;
            };
            let key = self.literal(&Value::String(name.to_owned()));
            let pair = self.builder.sequence(vec![key, self.signs.colon, value]);
            members.push(Member { pair, required });
        }
        let all: Vec<&str> = names.into_iter().chain(further).collect();
        let extra = self.extra(flat, &all);
        self.check_counts(flat, &members, extra.is_none());
        let rows = self.rows(&members, extra);
        let [open, close] = self.signs.object;
        Some(self.builder.sequence(vec![open, rows, close]))
    }

    fn property_names(&mut self, flat: &Flat<'a>) -> Vec<&'a str> {
        let mut names = Vec::new();
        let mut seen = HashSet::new();
        for (part, value) in flat.values("properties") {
            match value.as_object() {
                Some(properties) => {
                    names.extend(properties.keys().map(String::as_str).filter(|name| seen.insert(*name)))
                }
                None => self.malformed(&below(&part.pointer, "properties"), "`properties`", "an object of schemas"),
            }
        }
        names
    }

    /// Key, colon and value of a further property; `None` when there may be none.
    fn extra(&mut self, flat: &Flat<'a>, names: &[&str]) -> Option<NodeId> {
        let schemas: Vec<Located<'a>> = flat
            .values("additionalProperties")
            .map(|(part, value)| Located { value, pointer: below(&part.pointer, "additionalProperties") })
            .collect();
        if schemas.is_empty() && flat.values("properties").next().is_some() {
            if !std::mem::replace(&mut self.told_closed, true) {
                let text = "objects with `properties` have no further ones unless `additionalProperties` says so";
                self.note_of(Weight::Usual, &flat.pointer(), text);
            }
            return None;
        }
        let value = self.child(&schemas)?;
        if !self.spend(names.iter().map(|name| name.len()).sum()) {
            return None;
        }
        let key = keys::other_than(self.builder, &self.quoted, names);
        Some(self.builder.sequence(vec![key, self.signs.colon, value]))
    }

    /// Refuses bounds on the number of properties that do not hold anyway.
    fn check_counts(&mut self, flat: &Flat<'a>, members: &[Member], closed: bool) {
        let certain = members.iter().filter(|member| member.required).count() as u64;
        let least = self.least(flat, "minProperties");
        let most = self.most(flat, "maxProperties");
        if least > certain {
            self.refuse(&flat.pointer(), "minProperties", "only as many properties as are required can be counted on");
        }
        if most.is_some_and(|most| !closed || members.len() as u64 > most) {
            self.refuse(&flat.pointer(), "maxProperties", "the properties of a grammar are not counted");
        }
    }

    /// The members with their commas.
    fn rows(&mut self, members: &[Member], extra: Option<NodeId>) -> NodeId {
        let comma = self.signs.comma;
        // What comes last when something is written, and when nothing is.
        let mut behind = Vec::new();
        let mut alone = self.builder.empty();
        if let Some(extra) = extra {
            let next = self.builder.sequence(vec![comma, extra]);
            let more = self.builder.repeat(next, 0, None);
            let some = self.builder.sequence(vec![extra, more]);
            alone = self.builder.optional(some);
            behind.push(more);
        }
        let first_required = members.iter().position(|member| member.required);
        let split = first_required.unwrap_or(members.len());
        let mut tail: Vec<NodeId> = Vec::new();
        for member in members.iter().skip(split + 1) {
            let next = self.builder.sequence(vec![comma, member.pair]);
            tail.push(if member.required { next } else { self.builder.optional(next) });
        }
        tail.extend(behind);
        let rest = self.builder.sequence(tail);
        let (mut first, mut after) = (alone, rest);
        if let Some(member) = members.get(split) {
            let rest = if split > 0 { self.hidden("members", rest) } else { rest };
            first = self.builder.sequence(vec![member.pair, rest]);
            after = self.builder.sequence(vec![comma, member.pair, rest]);
        }
        for (at, member) in members.iter().take(split).enumerate().rev() {
            after = self.hidden("members", after);
            let begun = self.builder.sequence(vec![member.pair, after]);
            first = self.builder.alternatives(vec![begun, first]);
            if at > 0 {
                first = self.hidden("members", first);
                let next = self.builder.sequence(vec![comma, member.pair]);
                let next = self.builder.optional(next);
                after = self.builder.sequence(vec![next, after]);
            }
        }
        first
    }

    /// The expression as a rule of its own.
    pub(super) fn hidden(&mut self, name: &str, body: NodeId) -> NodeId {
        let rule = self.builder.declare(name);
        self.builder.define(rule, body);
        self.builder.rule(rule)
    }
}
