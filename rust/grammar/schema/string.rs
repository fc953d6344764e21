//! Strings: how characters are written inside of quotes, lengths, patterns.
//!
//! A code point counts as one however it is written: raw, by a short escape, as `\uXXXX` or as a pair of surrogates; half of
//! a pair is never allowed. Must hold: whatever the bytes, the string that they mean has the length and fits the pattern.

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::Value;

use super::format;
use super::merge::Flat;
use super::reference::below;
use super::{Compiler, IGNORE};
use crate::builder::{Builder, NodeId};
use crate::bytes::ByteSet;
use crate::error::FaultCode;
use crate::limits;
use crate::regex::{Characters, LAST, Pattern, parse};
use crate::text::without;
use crate::utf8;

/// Ranges of code points.
type Ranges = [(u32, u32)];

/// What strings are shared by: patterns and formats, the least and the largest length.
pub(super) type StringKey = ([Vec<String>; 2], u64, Option<u64>);

/// What may stand between quotes as it is.
const RAW: &Ranges = &[(0x20, 0x21), (0x23, 0x5B), (0x5D, LAST)];
/// Short escapes: the letter and what it stands for.
const SHORT: &[(u8, u32)] =
    &[(b'"', 0x22), (b'\\', 0x5C), (b'/', 0x2F), (b'b', 8), (b'f', 0xC), (b'n', 0xA), (b'r', 0xD), (b't', 9)];
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);
const FIRST_PAIR: u32 = 0x1_0000;

/// Characters inside of a JSON string.
#[derive(Default)]
pub(super) struct Quoted {
    /// Whether only the shortest way of writing a character is allowed.
    canonical: bool,
    /// A text of ASCII characters that does not stand in strings as it is: one of its characters is then escaped.
    avoids: Option<&'static str>,
    known: RefCell<HashMap<Vec<(u32, u32)>, NodeId>>,
}

impl Quoted {
    /// Characters of strings that do not hold a text as it is.
    pub(super) fn avoiding(text: &'static str) -> Self {
        Self { avoids: Some(text), ..Self::default() }
    }

    /// One way of writing for each character.
    pub(super) fn canonical(&self) -> Self {
        Self { canonical: true, avoids: self.avoids, known: RefCell::default() }
    }

    /// Any text, without quotes.
    pub(super) fn any_text(&self, builder: &mut Builder) -> NodeId {
        match self.avoids {
            None => {
                let character = self.one_of(builder, &[(0, LAST)]);
                builder.repeat(character, 0, None)
            }
            // Built once for all schemas.
            Some(avoided) => without(builder, avoided.as_bytes(), &is_raw, &|builder| {
                let body = escape(builder, &[(0, LAST)]);
                let rule = builder.declare("escape");
                builder.define(rule, body);
                builder.rule(rule)
            }),
        }
    }

    /// A value as its JSON text.
    pub(super) fn written(&self, value: &Value) -> String {
        let text = value.to_string();
        match self.avoids.zip(self.avoided()) {
            // Only a string can hold it.
            Some((avoided, first)) => {
                let escaped = String::from_utf8(canonical_escape(first)).unwrap_or_default();
                text.replace(avoided, &format!("{escaped}{}", avoided.get(1..).unwrap_or_default()))
            }
            None => text,
        }
    }

    /// The character of the avoided text that is escaped where texts are counted or follow a pattern: its first.
    fn avoided(&self) -> Option<u8> {
        self.avoids.and_then(|text| text.bytes().next())
    }

    fn built(&self, builder: &mut Builder, ranges: &Ranges) -> NodeId {
        let mut plain = common(ranges, RAW);
        if let Some(byte) = self.avoided() {
            plain = common(&plain, &utf8::complement(vec![(u32::from(byte), u32::from(byte))]));
        }
        let raw = builder.characters(&plain);
        let holds = |code: u32| ranges.iter().any(|(low, high)| (*low..=*high).contains(&code));
        // A single character, such as the hyphens of a pattern, is fixed byte by byte.
        let single = matches!(ranges, [(low, high)] if low == high);
        if self.canonical || single {
            let mut parts = vec![raw];
            let escaped = (0..0x20u8).chain([b'"', b'\\']).chain(self.avoided());
            let escaped = escaped.filter(|byte| holds(u32::from(*byte)));
            for byte in escaped {
                parts.push(builder.literal(&canonical_escape(byte)));
            }
            return builder.alternatives(parts);
        }
        let escape = escape(builder, ranges);
        builder.alternatives(vec![raw, escape])
    }
}

impl Characters for Quoted {
    fn one_of(&self, builder: &mut Builder, ranges: &Ranges) -> NodeId {
        if let Some(known) = self.known.borrow().get(ranges) {
            return *known;
        }
        let body = self.built(builder, ranges);
        let single = matches!(ranges, [(low, high)] if low == high);
        let node = if single {
            body
        } else {
            let rule = builder.declare("character");
            builder.define(rule, body);
            builder.rule(rule)
        };
        self.known.borrow_mut().insert(ranges.to_vec(), node);
        node
    }
}

fn is_raw(byte: u8) -> bool {
    RAW.iter().any(|(low, high)| (*low..=*high).contains(&u32::from(byte)))
}

/// A character of these ranges as an escape.
fn escape(builder: &mut Builder, ranges: &Ranges) -> NodeId {
    let holds = |code: u32| ranges.iter().any(|(low, high)| (*low..=*high).contains(&code));
    let letters: ByteSet = SHORT.iter().filter(|(_, code)| holds(*code)).map(|(letter, _)| *letter).collect();
    let mut escapes = Vec::new();
    if !letters.is_empty() {
        escapes.push(builder.bytes(letters));
    }
    let numeric = numeric(builder, ranges);
    let u = builder.literal(b"u");
    escapes.push(builder.sequence(vec![u, numeric]));
    let escape = builder.alternatives(escapes);
    let backslash = builder.literal(b"\\");
    builder.sequence(vec![backslash, escape])
}

/// A character below 0x80 that does not stand in quotes as it is, in the way that serialisers write it.
fn canonical_escape(byte: u8) -> Vec<u8> {
    match SHORT.iter().find(|(_, code)| *code == u32::from(byte)) {
        Some((letter, _)) => vec![b'\\', *letter],
        None => format!("\\u{byte:04x}").into_bytes(),
    }
}

fn common(one: &Ranges, other: &Ranges) -> Vec<(u32, u32)> {
    let overlaps =
        one.iter().flat_map(|(low, high)| other.iter().map(move |(from, to)| (*low.max(from), *high.min(to))));
    utf8::normalised(overlaps.filter(|(low, high)| low <= high).collect())
}

/// What stands behind `\u`: four digits, or those of a pair of surrogates.
fn numeric(builder: &mut Builder, ranges: &Ranges) -> NodeId {
    let simple = common(ranges, &[(0, SURROGATES.0 - 1), (SURROGATES.1 + 1, FIRST_PAIR - 1)]);
    let mut parts = vec![hexadecimal(builder, &simple, 4)];
    for (low, high) in common(ranges, &[(FIRST_PAIR, LAST)]) {
        let (low, high) = (low - FIRST_PAIR, high - FIRST_PAIR);
        // Whole blocks of one high surrogate, and what is left before and behind them.
        let (first, last) = (low >> 10, high >> 10);
        let mut blocks = Vec::new();
        if first == last {
            blocks.push((first, last, low & 0x3FF, high & 0x3FF));
        } else {
            let full_first = low & 0x3FF == 0;
            let full_last = high & 0x3FF == 0x3FF;
            let (from, to) = (first + u32::from(!full_first), last + u32::from(full_last));
            blocks.extend((!full_first).then_some((first, first, low & 0x3FF, 0x3FF)));
            blocks.extend((from < to).then(|| (from, to - 1, 0, 0x3FF)));
            blocks.extend((!full_last).then_some((last, last, 0, high & 0x3FF)));
        }
        for (from, to, low, high) in blocks {
            let high_half = hexadecimal(builder, &[(SURROGATES.0 + from, SURROGATES.0 + to)], 4);
            let escape = builder.literal(b"\\u");
            let low_half = hexadecimal(builder, &[(0xDC00 + low, 0xDC00 + high)], 4);
            parts.push(builder.sequence(vec![high_half, escape, low_half]));
        }
    }
    builder.alternatives(parts)
}

/// So many hexadecimal digits whose value lies in the ranges.
fn hexadecimal(builder: &mut Builder, ranges: &Ranges, digits: u32) -> NodeId {
    let unit = 16u32.pow(digits.saturating_sub(1));
    if digits == 0 {
        return if ranges.is_empty() { builder.bytes(ByteSet::EMPTY) } else { builder.empty() };
    }
    // First digits with the same ranges behind them go together.
    let mut groups: Vec<(Vec<(u32, u32)>, ByteSet)> = Vec::new();
    for digit in 0..16u32 {
        let rest: Vec<_> = common(ranges, &[(digit * unit, (digit + 1) * unit - 1)])
            .into_iter()
            .map(|(low, high)| (low - digit * unit, high - digit * unit))
            .collect();
        if rest.is_empty() {
            continue;
        }
        let text = format!("{digit:x}{digit:X}");
        match groups.iter_mut().find(|(known, _)| *known == rest) {
            Some((_, set)) => text.bytes().for_each(|byte| set.insert(byte)),
            None => groups.push((rest, text.bytes().collect())),
        }
    }
    let mut parts = Vec::new();
    for (rest, set) in groups {
        let digit = builder.bytes(set);
        let more = hexadecimal(builder, &rest, digits - 1);
        parts.push(builder.sequence(vec![digit, more]));
    }
    builder.alternatives(parts)
}

/// A part of the pattern whose matches have a length within the bounds; `None` when none is found.
///
/// `exact`: it must hold all such matches, which is decided for patterns with one part of varying length, a repeated single
/// character. Otherwise it may hold fewer.
pub(super) fn clamped(pattern: &Pattern, least: u64, most: Option<u64>, exact: bool) -> Option<Pattern> {
    let within =
        |(low, high): (u64, Option<u64>)| low >= least && most.is_none_or(|most| high.is_some_and(|high| high <= most));
    if within(pattern.lengths()) {
        return Some(pattern.clone());
    }
    let parts = match pattern {
        Pattern::Sequence(parts) => parts.clone(),
        other => vec![other.clone()],
    };
    for (at, part) in parts.iter().enumerate() {
        let Pattern::Repeat { body, least: low, most: high } = part else { continue };
        let others: Vec<Pattern> =
            parts.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, part)| part.clone()).collect();
        let (fewest, largest) = Pattern::Sequence(others).lengths();
        let Some(largest) = largest else { continue };
        if body.lengths() != (1, Some(1)) || (exact && fewest != largest) {
            continue;
        }
        let low = u64::from(*low).max(least.saturating_sub(fewest));
        let high = [high.map(u64::from), most.map(|most| most.saturating_sub(largest))].into_iter().flatten().min();
        let impossible = most.is_some_and(|most| most < largest) || high.is_some_and(|high| high < low);
        if impossible && !exact {
            continue;
        }
        let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let repeat = if impossible {
            Pattern::Class(Vec::new())
        } else {
            Pattern::Repeat { body: body.clone(), least: count(low), most: high.map(count) }
        };
        let mut parts = parts;
        parts[at] = repeat;
        return Some(Pattern::Sequence(parts));
    }
    None
}

impl<'a> Compiler<'a, '_> {
    /// A string; `None` when no length is left.
    pub(super) fn string(&mut self, flat: &Flat<'a>) -> Option<NodeId> {
        let (least, most) = (self.least(flat, "minLength"), self.most(flat, "maxLength"));
        if most.is_some_and(|most| most < least) {
            return None;
        }
        if least > limits::REPETITIONS.most as u64 {
            self.fault(self.uncountable(flat, "minLength"), &flat.pointer());
            return None;
        }
        // A larger bound than can be counted is kept as the largest that can.
        let most = most.map(|most| most.min(limits::REPETITIONS.most as u64));
        let restrictions =
            ["pattern", "format"].map(|keyword| flat.values(keyword).map(|(_, value)| value.to_string()).collect());
        let key: StringKey = (restrictions, least, most);
        if let Some(known) = self.strings.get(&key) {
            return Some(*known);
        }
        let said = (self.faults.len(), self.notes.len());
        let patterns = self.patterns(flat, least, most);
        let plain = patterns.is_none();
        let quoted = std::mem::take(&mut self.quoted);
        let text = match patterns {
            None if least == 0 && most.is_none() => quoted.any_text(self.builder),
            None => {
                let character = quoted.one_of(self.builder, &[(0, LAST)]);
                self.builder.repeat(character, least as u32, most.map(|most| most as u32))
            }
            Some((pattern, true)) => pattern.build(self.builder, &quoted),
            Some((pattern, false)) => pattern.build(self.builder, &quoted.canonical()),
        };
        self.quoted = quoted;
        let quote = self.builder.literal(b"\"");
        let mut node = self.builder.sequence(vec![quote, text, quote]);
        if !plain {
            node = self.hidden(&flat.pointer(), node);
        }
        // What was said belongs to this place; elsewhere it must be said again.
        if said == (self.faults.len(), self.notes.len()) {
            self.strings.insert(key, node);
        }
        Some(node)
    }

    /// The pattern to follow, with the lengths in it, and whether it is one of the schema's own.
    pub(super) fn patterns(&mut self, flat: &Flat<'a>, least: u64, most: Option<u64>) -> Option<(Pattern, bool)> {
        let mut texts: Vec<(&str, std::rc::Rc<str>)> = Vec::new();
        for (part, value) in flat.values("pattern") {
            match value.as_str() {
                Some(text) if texts.iter().any(|(known, _)| *known == text) => {}
                Some(text) => texts.push((text, std::rc::Rc::clone(&part.pointer))),
                None => self.malformed(&below(&part.pointer, "pattern"), "`pattern`", "a string"),
            }
        }
        let mut formats: Vec<(&str, std::rc::Rc<str>)> = Vec::new();
        for (part, value) in flat.values("format") {
            match value.as_str() {
                Some(name) if !format::is_known(name) => {
                    let text = format!("the format `{name}` is not known and restricts nothing");
                    self.note(&below(&part.pointer, "format"), &text);
                }
                Some(name) if formats.iter().any(|(known, _)| *known == name) => {}
                Some(name) => formats.push((name, std::rc::Rc::clone(&part.pointer))),
                None => self.malformed(&below(&part.pointer, "format"), "`format`", "a string"),
            }
        }
        let rows = texts.len() + formats.len();
        if rows > 1 {
            let (keyword, (_, pointer)) = match (texts.last(), formats.last()) {
                (Some(text), _) => ("pattern", text.clone()),
                (None, Some(name)) => ("format", name.clone()),
                (None, None) => return None,
            };
            self.refuse(&pointer, keyword, "a string can follow one pattern or format only");
        }
        if let Some((name, pointer)) = formats.into_iter().next() {
            let fitting = format::patterns(name).find_map(|pattern| clamped(&pattern, least, most, false));
            return self.with_lengths(fitting, format::pattern(name), &pointer, flat).map(|pattern| (pattern, false));
        }
        let (text, pointer) = texts.into_iter().next()?;
        match parse(text, false) {
            Ok(pattern) => {
                let fitting = clamped(&pattern, least, most, true);
                self.with_lengths(fitting, Some(pattern), &pointer, flat).map(|pattern| (pattern, true))
            }
            Err(fault) if fault.code == FaultCode::Unsupported && self.options.lenient => {
                self.refuse(&pointer, "pattern", &fault.what);
                None
            }
            Err(fault) => {
                let unsupported = fault.code == FaultCode::Unsupported;
                let fault = if unsupported && fault.fix.is_none() { fault.fix(IGNORE) } else { fault };
                self.fault(fault, &below(&pointer, "pattern"));
                None
            }
        }
    }

    /// The pattern that keeps the lengths, or else, when lenient, the one that does not.
    fn with_lengths(
        &mut self,
        fitting: Option<Pattern>,
        pattern: Option<Pattern>,
        pointer: &str,
        flat: &Flat<'a>,
    ) -> Option<Pattern> {
        if fitting.is_none() {
            let keyword = if flat.values("maxLength").next().is_some() { "maxLength" } else { "minLength" };
            let own = flat
                .values(keyword)
                .next()
                .map_or_else(|| pointer.into(), |(part, _)| std::rc::Rc::clone(&part.pointer));
            self.refuse(&own, keyword, "together with this pattern or format the length cannot be counted");
        }
        fitting.or(pattern)
    }

    /// The value as its JSON text.
    pub(super) fn literal(&mut self, value: &Value) -> NodeId {
        let text = self.quoted.written(value);
        self.builder.literal(text.as_bytes())
    }
}
