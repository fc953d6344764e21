//! From text to a document, and from keywords to what they say.

use serde::Deserialize;
use serde_json::Value;

use super::Compiler;
use super::decimal::{Bound, Decimal, Range};
use super::merge::Flat;
use super::reference::below;
use super::types::Types;
use crate::error::{Fault, FaultCode, GrammarError, Place};
use crate::limits;

/// Reads a schema document.
///
/// # Errors
/// Text that is too long, too deep or no JSON, with its place; numbers that would be rounded.
pub fn read(text: &str) -> Result<Value, GrammarError> {
    if text.len() > limits::SOURCE_BYTES.most {
        return Err(Fault::limit(limits::SOURCE_BYTES, text.len()).into());
    }
    if let Some(at) = too_deep(text) {
        return Err(Fault::limit(limits::DEPTH, limits::DEPTH.most + 1).at(place_at(text, at)).into());
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    reader.disable_recursion_limit();
    let document = Value::deserialize(&mut reader).and_then(|document| reader.end().map(|()| document));
    let document = document.map_err(|error| {
        let what = error.to_string();
        // The place is shown with the fault.
        let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
        // Such a number is JSON all the same.
        if let Some(at) = rounded(text).filter(|_| what.starts_with("number out of range")) {
            return inexact(text, at);
        }
        let fault = Fault::new(FaultCode::Syntax, format!("the schema is no JSON that can be read: {what}"));
        fault.at(place(text, error.line(), error.column()))
    })?;
    rounded(text).map_or(Ok(document), |at| Err(inexact(text, at).into()))
}

/// The fault of a number that stands at a place and is not kept exactly.
fn inexact(text: &str, at: std::ops::Range<usize>) -> Fault {
    let place = place_at(text, at.start);
    let fault = Fault::new(FaultCode::Unsupported, format!("the number {} cannot be kept exactly", &text[at]));
    fault.why("it is kept in 64 bits").fix("write one of fewer digits, or nearer to 1").at(place)
}

/// The place of a byte.
fn place_at(text: &str, at: usize) -> Place {
    let before = &text[..at];
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    place(text, before.matches('\n').count() + 1, at - start + 1)
}

/// A place that is given by its line and by its column in bytes, both from 1; the column is 0 at the end of the line before.
fn place(text: &str, line: usize, column: usize) -> Place {
    const SHOWN: usize = 160;
    let (number, content) = (line.max(1), text.split('\n').nth(line.saturating_sub(1)).unwrap_or_default());
    let before = &content[..content.floor_char_boundary(column.saturating_sub(1))];
    Place { line: number, column: before.chars().count() + 1, text: content.chars().take(SHOWN).collect() }
}

/// The first bracket of a JSON text that lies deeper than [`limits::DEPTH`].
fn too_deep(text: &str) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    text.bytes().position(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => depth += 1,
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > limits::DEPTH.most
    })
}

/// The first number of a JSON text that is not kept exactly.
fn rounded(text: &str) -> Option<std::ops::Range<usize>> {
    let bytes = text.as_bytes();
    let (mut at, mut quoted) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b'-' | b'0'..=b'9' if !quoted => {
                let length = bytes[at..].iter().take_while(|byte| b"+-.eE0123456789".contains(byte)).count();
                let number = &text[at..at + length];
                let kept = serde_json::from_str::<Value>(number).map(|value| value.to_string()).ok();
                let kept = kept.as_deref().and_then(Decimal::parse);
                if kept.is_none() || kept != Decimal::parse(number) {
                    return Some(at..at + length);
                }
                at += length;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// How deep lists and objects lie inside each other.
pub(super) fn depth(document: &Value) -> usize {
    let mut deepest = 0;
    let mut open = vec![(document, 1)];
    while let Some((value, depth)) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => open.extend(members.values().map(|member| (member, depth + 1))),
            _ => continue,
        }
        deepest = deepest.max(depth);
    }
    deepest
}

impl<'a> Compiler<'a, '_> {
    /// Counts of a keyword.
    fn counts(&mut self, flat: &Flat<'a>, keyword: &str) -> Vec<u64> {
        let mut counts = Vec::new();
        for (part, value) in flat.values(keyword) {
            let number = value.as_number().and_then(|number| Decimal::parse(&number.to_string()));
            match number.filter(|number| number.is_whole() && !number.negative) {
                // What does not fit into the word is beyond every limit.
                Some(number) => {
                    let digits = std::str::from_utf8(&number.whole).unwrap_or_default();
                    counts.push(digits.parse().unwrap_or(u64::MAX));
                }
                None => {
                    self.malformed(&below(&part.pointer, keyword), &format!("`{keyword}`"), "a whole number from 0 on")
                }
            }
        }
        counts
    }

    /// The largest of lower bounds on a count.
    pub(super) fn least(&mut self, flat: &Flat<'a>, keyword: &str) -> u64 {
        self.counts(flat, keyword).into_iter().max().unwrap_or(0)
    }

    /// The fault of a lower bound that is larger than can be counted, with the number that the schema has.
    pub(super) fn uncountable(&self, flat: &Flat<'a>, keyword: &str) -> Fault {
        let numbers = flat.values(keyword).filter_map(|(_, value)| Decimal::parse(&value.as_number()?.to_string()));
        let digits = numbers.max().map(|number| number.whole).unwrap_or_default();
        Fault::limit(limits::REPETITIONS, String::from_utf8_lossy(&digits))
    }

    /// The smallest of upper bounds on a count.
    pub(super) fn most(&mut self, flat: &Flat<'a>, keyword: &str) -> Option<u64> {
        self.counts(flat, keyword).into_iter().min()
    }

    /// The bounds of numbers.
    pub(super) fn range(&mut self, flat: &Flat<'a>) -> Range {
        let mut range = Range::default();
        for (keyword, upper, inclusive) in [
            ("minimum", false, true),
            ("exclusiveMinimum", false, false),
            ("maximum", true, true),
            ("exclusiveMaximum", true, false),
        ] {
            for (part, value) in flat.values(keyword) {
                let number = value.as_number().and_then(|number| Decimal::parse(&number.to_string()));
                match number.map(|value| Bound { value, inclusive }) {
                    Some(bound) if upper => range.below(bound),
                    Some(bound) => range.above(bound),
                    None => self.malformed(&below(&part.pointer, keyword), &format!("`{keyword}`"), "a number"),
                }
            }
        }
        range
    }

    /// Whether only whole numbers are allowed. A `multipleOf` that says more than that is refused.
    pub(super) fn only_whole(&mut self, flat: &Flat<'a>, types: Types) -> bool {
        let mut whole = !types.meets(Types::FRACTION);
        let factors: Vec<_> = flat.values("multipleOf").map(|(part, value)| (part.pointer.clone(), value)).collect();
        let mut finer = Vec::new();
        for (pointer, value) in factors {
            let factor = value.as_number().and_then(|number| Decimal::parse(&number.to_string()));
            match factor.filter(|factor| !factor.negative && *factor != Decimal::zero()) {
                Some(factor) if factor.is_whole() && factor.whole == b"1" => whole = true,
                Some(factor) => finer.push((pointer, factor)),
                None => self.malformed(&below(&pointer, "multipleOf"), "`multipleOf`", "a number above 0"),
            }
        }
        for (pointer, factor) in finer {
            if !(whole && divides_one(&factor)) {
                self.refuse(&pointer, "multipleOf", "digits do not show what they are divisible by");
            }
        }
        whole
    }
}

/// Whether 1 is a multiple of the number, such as 0.25.
fn divides_one(factor: &Decimal) -> bool {
    let digits = std::str::from_utf8(&factor.fraction).unwrap_or_default();
    let scale = 10u64.checked_pow(digits.len() as u32);
    factor.whole == b"0"
        && scale.zip(digits.parse::<u64>().ok()).is_some_and(|(scale, part)| part > 0 && scale % part == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters() {
        let place_of = |text: &str| {
            let error = read(text).unwrap_err();
            let place = error.faults()[0].place.clone().unwrap();
            (place.line, place.column, place.text)
        };
        assert_eq!(place_of("{\n \"é€\": x}"), (2, 8, " \"é€\": x}".to_owned()), "what is no JSON");
        assert_eq!(place_of("{\"é\":\n\"é\", \"a\": 0.12345678901234567890123}").0, 2);
        assert_eq!(place_of("[\n\"é\", 0.12345678901234567890123]").1, 6, "a number that would be rounded");
        assert_eq!(place_of("[1,\n").0, 2, "the end of the text");
        assert!(!read("[1").unwrap_err().to_string().contains("at line"), "the place is named once");
    }
}
