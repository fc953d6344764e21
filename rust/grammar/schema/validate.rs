//! Whether a value of an `enum` or `const` fits its other keywords.
//!
//! Reads the keywords as the standard means them. Must hold: `Fits` and `Fails` are certain; whatever depends on a keyword
//! that is not understood is `Unknown`.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Compiler;
use super::decimal::Decimal;
use super::keywords::{Role, role};
use super::merge::Flat;
use super::types::Types;
use crate::builder::Builder;
use crate::constraint::Constraint;
use crate::limits;
use crate::matcher::Matcher;
use crate::regex::{Pattern, Plain};

/// What is known of a value under a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Fails,
    Unknown,
    Fits,
}

impl From<bool> for Verdict {
    fn from(fits: bool) -> Self {
        if fits { Self::Fits } else { Self::Fails }
    }
}

impl<'a> Compiler<'a, '_> {
    /// Whether a value fits one of the alternatives.
    pub(super) fn verdict(&mut self, value: &Value, flats: &[Flat<'a>], depth: usize) -> Verdict {
        let mut best = Verdict::Fails;
        for flat in flats {
            best = best.max(self.verdict_of_flat(value, flat, depth));
            if best == Verdict::Fits {
                break;
            }
        }
        best
    }

    fn verdict_of_flat(&mut self, value: &Value, flat: &Flat<'a>, depth: usize) -> Verdict {
        if depth > limits::DEPTH.most || !self.spend(1) {
            return Verdict::Unknown;
        }
        let own = Types::of(value);
        let listed: usize =
            flat.values("enum").filter_map(|(_, list)| list.as_array()).map(|list| listing_cost(list, value)).sum();
        let foreign = flat.lists.iter().filter(|list| !list.stems(value));
        let listed = listed + foreign.map(|list| list.values.len() / 16).sum::<usize>();
        if !self.spend(listed) {
            return Verdict::Unknown;
        }
        let lists = flat.parts.iter().all(|part| {
            part.map.get("const").is_none_or(|other| equal(value, other))
                && part.map.get("enum").and_then(Value::as_array).is_none_or(|list| holds(list, value))
        });
        let lists = lists
            && flat.lists.iter().all(|list| list.stems(value) || list.values.iter().any(|other| equal(value, other)));
        if !lists || !flat.types.meets(own) {
            return Verdict::Fails;
        }
        let inner = match value {
            Value::Null | Value::Bool(_) => Verdict::Fits,
            Value::Number(number) => self.verdict_of_number(&number.to_string(), own, flat),
            Value::String(text) => self.verdict_of_string(text, flat),
            Value::Array(items) => self.verdict_of_array(items, flat, depth),
            Value::Object(members) => self.verdict_of_object(members, flat, depth),
        };
        inner.min(if not_understood(flat, own) { Verdict::Unknown } else { Verdict::Fits })
    }

    fn verdict_of_number(&mut self, text: &str, own: Types, flat: &Flat<'a>) -> Verdict {
        let Some(number) = Decimal::parse(text) else { return Verdict::Unknown };
        let range = Verdict::from(self.range(flat).contains(&number));
        let mut factors = flat.values("multipleOf");
        let plain = |factor: &Value| Types::of(factor) == Types::INTEGER && factor.as_f64() == Some(1.0);
        let multiple = match (factors.all(|(_, factor)| plain(factor)), flat.values("multipleOf").next()) {
            (_, None) => Verdict::Fits,
            (true, _) => Verdict::from(own == Types::INTEGER),
            (false, _) => Verdict::Unknown,
        };
        range.min(multiple)
    }

    fn verdict_of_string(&mut self, text: &str, flat: &Flat<'a>) -> Verdict {
        let length = text.chars().count() as u64;
        let (least, most) = (self.least(flat, "minLength"), self.most(flat, "maxLength"));
        if length < least || most.is_some_and(|most| length > most) {
            return Verdict::Fails;
        }
        let mut verdict = Verdict::Fits;
        for (_, pattern) in flat.values("pattern") {
            if !self.spend(pattern.as_str().map_or(0, str::len)) {
                return Verdict::Unknown;
            }
            let parsed = pattern.as_str().and_then(|pattern| crate::regex::parse(pattern, false).ok());
            verdict = verdict
                .min(parsed.and_then(|pattern| self.matches(&pattern, text)).map_or(Verdict::Unknown, Verdict::from));
        }
        for (_, format) in flat.values("format") {
            let Some(pattern) = format.as_str().and_then(super::format::pattern) else { continue };
            // What the table does not know may still be a text of that format.
            if self.matches(&pattern, text) != Some(true) {
                verdict = verdict.min(Verdict::Unknown);
            }
        }
        verdict
    }

    /// Whether the whole text matches.
    fn matches(&mut self, pattern: &Pattern, text: &str) -> Option<bool> {
        if !self.spend(text.len() + 50) {
            return None;
        }
        let mut builder = Builder::new();
        let root = builder.declare("pattern");
        let body = pattern.build(&mut builder, &Plain);
        builder.define(root, body);
        let mut matcher = Matcher::new(Arc::new(builder.finish(root).ok()?)).ok()?;
        let taken = text.bytes().all(|byte| matcher.accept(byte));
        let fits = taken && matcher.can_end();
        matcher.fault().is_none().then_some(fits)
    }

    fn verdict_of_array(&mut self, items: &[Value], flat: &Flat<'a>, depth: usize) -> Verdict {
        let (least, most) = (self.least(flat, "minItems"), self.most(flat, "maxItems"));
        let count = items.len() as u64;
        if count < least || most.is_some_and(|most| count > most) {
            return Verdict::Fails;
        }
        let mut verdict = Verdict::Fits;
        for (at, item) in items.iter().enumerate() {
            let schemas = self.item(flat, at);
            let flats = self.expand(&schemas);
            verdict = verdict.min(self.verdict(item, &flats, depth + 1));
        }
        if flat.values("uniqueItems").any(|(_, value)| *value == Value::Bool(true)) {
            if !self.spend(items.len().saturating_mul(items.len())) {
                return Verdict::Unknown;
            }
            let repeated =
                items.iter().enumerate().any(|(at, one)| items[at + 1..].iter().any(|other| equal(one, other)));
            verdict = verdict.min(Verdict::from(!repeated));
        }
        verdict
    }

    fn verdict_of_object(&mut self, members: &Map<String, Value>, flat: &Flat<'a>, depth: usize) -> Verdict {
        let (least, most) = (self.least(flat, "minProperties"), self.most(flat, "maxProperties"));
        let count = members.len() as u64;
        let complete = self.required(flat).into_iter().all(|name| members.contains_key(name));
        if !complete || count < least || most.is_some_and(|most| count > most) {
            return Verdict::Fails;
        }
        let mut verdict = Verdict::Fits;
        for (name, value) in members {
            let schemas = self.property(flat, name);
            let flats = self.expand(&schemas);
            verdict = verdict.min(self.verdict(value, &flats, depth + 1));
        }
        verdict
    }
}

/// Whether the value is one of the list itself, not only equal to one.
fn stems_from(list: &[Value], value: &Value) -> bool {
    list.as_ptr_range().contains(&std::ptr::from_ref(value))
}

fn holds(list: &[Value], value: &Value) -> bool {
    stems_from(list, value) || list.iter().any(|other| equal(value, other))
}

fn listing_cost(list: &[Value], value: &Value) -> usize {
    if stems_from(list, value) { 0 } else { list.len() / 16 }
}

/// Whether a keyword that is not enforced restricts values of the types.
fn not_understood(flat: &Flat<'_>, types: Types) -> bool {
    flat.parts.iter().any(|part| {
        part.map.iter().any(|(keyword, value)| {
            matches!(role(keyword), Some(Role::Refused(group, asks_nothing)) if group.meets(types) && !asks_nothing(part.map, value))
        })
    })
}

/// Equality of JSON values: numbers by what they are worth, members in any order.
pub(super) fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let decimals = || Decimal::parse(&one.to_string()).zip(Decimal::parse(&other.to_string()));
            // Whole numbers that are written as such differ in their digits.
            let written_whole = !one.is_f64() && !other.is_f64();
            one == other || (!written_whole && decimals().is_some_and(|(one, other)| one == other))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| other.get(name).is_some_and(|other| equal(value, other)))
        }
        _ => one == other,
    }
}
