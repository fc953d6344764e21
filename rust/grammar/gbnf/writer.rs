//! A grammar as GBNF text, whatever it was built from.
//!
//! Walks the expressions of a builder before they are lowered. Only what can be reached from the start and fits some text
//! is written, because GBNF has no sign for what fits nothing. Must hold: the text compiles to the same language.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use crate::builder::{Builder, Node, NodeId};
use crate::bytes::ByteSet;
use crate::error::{Fault, FaultCode, GrammarError};
use crate::limits;
use crate::program::{RuleId, Special, SpecialId};
use crate::utf8;

/// Longest part of a rule's name that is kept.
const NAME_CHARACTERS: usize = 48;

/// How tightly the parts of an expression must hold together where it stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Alternatives,
    Sequence,
    Item,
}

/// Part of a flattened sequence.
enum Piece {
    Text(Vec<u8>),
    Node(NodeId),
}

/// The rules that `start` needs, each on a line of its own; `start` is called `root`.
///
/// # Errors
/// Bytes that are no characters, a text beyond [`limits::SOURCE_BYTES`], or a start that fits no text.
pub(crate) fn write(builder: &Builder, start: RuleId) -> Result<String, GrammarError> {
    let mut writer = Writer::new(builder, start);
    while let Some(rule) = writer.open.pop() {
        let Some(body) = builder.body(rule) else { continue };
        if writer.dead.contains(&body) {
            return Err(Fault::new(FaultCode::DeadEnd, "no text fits the grammar").into());
        }
        let _ = write!(writer.text, "{} ::= ", writer.names[&rule]);
        writer.expression(body, Binding::Alternatives);
        writer.text.push('\n');
        if let Some(fault) = writer.fault.take() {
            return Err(fault.into());
        }
    }
    Ok(writer.text)
}

struct Writer<'a> {
    builder: &'a Builder,
    /// Expressions that fit nothing.
    dead: HashSet<NodeId>,
    classes: HashMap<NodeId, &'a [(u32, u32)]>,
    specials: HashMap<SpecialId, &'a Special>,
    names: HashMap<RuleId, String>,
    /// Names in use, each with the number of the next one that is made from it.
    taken: HashMap<String, u32>,
    /// Rules that are named and not yet written.
    open: Vec<RuleId>,
    text: String,
    fault: Option<Fault>,
}

impl<'a> Writer<'a> {
    fn new(builder: &'a Builder, start: RuleId) -> Self {
        let root = "root".to_owned();
        Self {
            builder,
            dead: builder.body(start).map(|body| builder.unfit(body)).unwrap_or_default(),
            classes: builder.classes().collect(),
            specials: builder.specials().collect(),
            names: HashMap::from([(start, root.clone())]),
            taken: HashMap::from([(root, 2)]),
            open: vec![start],
            text: String::new(),
            fault: None,
        }
    }

    fn expression(&mut self, node: NodeId, binding: Binding) {
        if self.text.len() > limits::SOURCE_BYTES.most {
            self.fault.get_or_insert_with(|| Fault::limit(limits::SOURCE_BYTES, self.text.len()));
            return;
        }
        if let Some(ranges) = self.classes.get(&node) {
            return class(&mut self.text, ranges);
        }
        let builder = self.builder;
        match builder.node(node) {
            Node::Empty => self.text.push_str("\"\""),
            Node::Bytes(_) | Node::Sequence(_) => self.sequence(node, binding),
            Node::Alternatives(parts) => {
                let mut parts: Vec<NodeId> = parts.clone();
                parts.retain(|part| !self.dead.contains(part));
                self.list(&parts, " | ", binding, Binding::Alternatives);
            }
            Node::Repeat { body, .. } if self.dead.contains(body) => self.text.push_str("\"\""),
            Node::Repeat { body, least, most } => {
                self.expression(*body, Binding::Item);
                self.text.push_str(&times(*least, *most));
            }
            Node::Rule(rule) => {
                let name = self.name(*rule);
                self.text.push_str(&name);
            }
            Node::Special(number) => {
                let shown = self.specials.get(number).map(ToString::to_string);
                self.text.push_str(&shown.unwrap_or_default());
            }
        }
    }

    /// Parts with a sign between them, in parentheses where what stands around would tear them apart.
    fn list(&mut self, parts: &[NodeId], between: &str, around: Binding, own: Binding) {
        if let [only] = parts {
            return self.expression(*only, around);
        }
        let enclosed = around > own;
        self.text.push_str(if enclosed { "(" } else { "" });
        for (index, part) in parts.iter().enumerate() {
            self.text.push_str(if index > 0 { between } else { "" });
            self.expression(*part, Binding::Sequence);
        }
        self.text.push_str(if enclosed { ")" } else { "" });
    }

    /// A sequence, the bytes that follow each other in it as one text.
    fn sequence(&mut self, node: NodeId, around: Binding) {
        let mut pieces = Vec::new();
        self.flatten(node, &mut pieces);
        if pieces.is_empty() {
            return self.text.push_str("\"\"");
        }
        let enclosed = around > Binding::Sequence && pieces.len() > 1;
        self.text.push_str(if enclosed { "(" } else { "" });
        for (index, piece) in pieces.iter().enumerate() {
            self.text.push_str(if index > 0 { " " } else { "" });
            match piece {
                Piece::Text(bytes) => self.literal(bytes),
                Piece::Node(node) => match self.builder.node(*node) {
                    Node::Bytes(set) if !self.classes.contains_key(node) => self.byte_class(*set),
                    _ => self.expression(*node, Binding::Item),
                },
            }
        }
        self.text.push_str(if enclosed { ")" } else { "" });
    }

    /// The pieces of a sequence and of those inside of it; empty ones are left out if others are there.
    fn flatten(&self, node: NodeId, pieces: &mut Vec<Piece>) {
        let mut text = |bytes: &[u8]| match pieces.last_mut() {
            Some(Piece::Text(before)) => before.extend_from_slice(bytes),
            _ => pieces.push(Piece::Text(bytes.to_vec())),
        };
        match (self.classes.get(&node), self.builder.node(node)) {
            (Some([(low, high)]), _) if low == high => {
                let character = char::from_u32(*low).unwrap_or_default();
                text(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            (None, Node::Bytes(set)) if set.single().is_some() => text(&Vec::from_iter(set.single())),
            (None, Node::Empty) => {}
            (None, Node::Sequence(parts)) => parts.iter().for_each(|part| self.flatten(*part, pieces)),
            _ => pieces.push(Piece::Node(node)),
        }
    }

    fn literal(&mut self, bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return self.no_characters() };
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' | '\\' => self.text.extend(['\\', character]),
                _ => escaped(&mut self.text, u32::from(character), "\"\\"),
            }
        }
        self.text.push('"');
    }

    fn byte_class(&mut self, set: ByteSet) {
        if set.iter().any(|byte| byte >= 0x80) {
            return self.no_characters();
        }
        class(&mut self.text, &utf8::normalised(set.iter().map(|byte| (u32::from(byte), u32::from(byte))).collect()));
    }

    fn no_characters(&mut self) {
        let fault = Fault::new(FaultCode::Unsupported, "the grammar holds bytes that are no characters");
        self.fault.get_or_insert(fault.why("GBNF is written in characters"));
    }

    /// The name of a rule, given when it is first needed.
    fn name(&mut self, rule: RuleId) -> String {
        if let Some(known) = self.names.get(&rule) {
            return known.clone();
        }
        let raw = self.builder.name(rule).chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
        let words: String = raw.take(NAME_CHARACTERS).collect();
        let words: Vec<&str> = words.split('-').filter(|word| !word.is_empty()).collect();
        let base = if words.is_empty() { "value".to_owned() } else { words.join("-") };
        let mut name = base.clone();
        while self.taken.contains_key(&name) {
            let number = self.taken.entry(base.clone()).or_insert(2);
            name = format!("{base}-{number}");
            *number += 1;
        }
        self.taken.insert(name.clone(), 2);
        self.names.insert(rule, name.clone());
        self.open.push(rule);
        name
    }
}

fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) if least == most => format!("{{{least}}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// A class of code points, or the shorter class of those that are left out.
fn class(text: &mut String, ranges: &[(u32, u32)]) {
    let complement = utf8::complement(ranges.to_vec());
    if complement.is_empty() {
        return text.push('.');
    }
    let negated = complement.len() < ranges.len()
        || (complement.len() == ranges.len() && ranges.last().is_some_and(|(_, high)| *high == utf8::LAST));
    text.push_str(if negated { "[^" } else { "[" });
    for (low, high) in if negated { &complement } else { ranges } {
        escaped(text, *low, "[]\\^-");
        if high > low {
            text.push_str(if *high > low + 1 { "-" } else { "" });
            escaped(text, *high, "[]\\^-");
        }
    }
    text.push(']');
}

/// A code point as it is when it is a letter, a digit or a visible ASCII sign outside of `signs`, else as an escape.
fn escaped(text: &mut String, code: u32, signs: &str) {
    match char::from_u32(code) {
        Some('\n') => text.push_str("\\n"),
        Some('\r') => text.push_str("\\r"),
        Some('\t') => text.push_str("\\t"),
        Some(character)
            if (character.is_alphanumeric() || character == ' ' || character.is_ascii_graphic())
                && !signs.contains(character) =>
        {
            text.push(character);
        }
        _ => {
            let _ = match code {
                0..=0xFF => write!(text, "\\x{code:02X}"),
                0x100..=0xFFFF => write!(text, "\\u{code:04X}"),
                _ => write!(text, "\\U{code:08X}"),
            };
        }
    }
}

#[cfg(test)]
mod tests;
