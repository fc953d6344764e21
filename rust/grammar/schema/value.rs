//! Any JSON value, and what stands between values.

use super::number;
use super::{Compiler, Whitespace};
use crate::builder::{Builder, NodeId};

/// Spaces of the deepest indent.
const INDENT: u32 = 64;

/// The signs of JSON with the white space that may stand with them.
#[derive(Clone, Copy)]
pub(super) struct Signs {
    pub(super) object: [NodeId; 2],
    pub(super) array: [NodeId; 2],
    pub(super) comma: NodeId,
    pub(super) colon: NodeId,
}

impl Signs {
    pub(super) fn new(builder: &mut Builder, whitespace: Whitespace) -> Self {
        let [open_object, close_object, open_array, close_array, comma, colon] =
            [b"{", b"}", b"[", b"]", b",", b":"].map(|sign| builder.literal(sign));
        if whitespace == Whitespace::Compact {
            return Self { object: [open_object, close_object], array: [open_array, close_array], comma, colon };
        }
        let space = builder.literal(b" ");
        let line_end = builder.literal(b"\n");
        let indent = builder.repeat(space, 0, Some(INDENT));
        let line = builder.sequence(vec![line_end, indent]);
        let new_line = builder.optional(line);
        let behind_comma = builder.alternatives(vec![space, line]);
        let behind_comma = builder.optional(behind_comma);
        let behind_colon = builder.optional(space);
        let mut pair = |one, other| builder.sequence(vec![one, other]);
        Self {
            object: [pair(open_object, new_line), pair(new_line, close_object)],
            array: [pair(open_array, new_line), pair(new_line, close_array)],
            comma: pair(comma, behind_comma),
            colon: pair(colon, behind_colon),
        }
    }
}

impl Compiler<'_, '_> {
    /// Any JSON value.
    pub(super) fn any_value(&mut self) -> NodeId {
        if let Some(rule) = self.any_value {
            return self.builder.rule(rule);
        }
        let rule = self.builder.declare("value");
        self.any_value = Some(rule);
        let value = self.builder.rule(rule);
        let string = self.any_string();
        let number = number::build(self.builder, &super::decimal::Range::default(), false);
        let words = ["true", "false", "null"].map(|word| self.builder.literal(word.as_bytes()));
        let Signs { object, array, comma, colon } = self.signs;
        let member = self.builder.sequence(vec![string, colon, value]);
        let object = self.list(object, comma, member);
        let array = self.list(array, comma, value);
        let parts = [object, array, string].into_iter().chain(number).chain(words).collect();
        let body = self.builder.alternatives(parts);
        self.builder.define(rule, body);
        value
    }

    fn list(&mut self, signs: [NodeId; 2], comma: NodeId, entry: NodeId) -> NodeId {
        let next = self.builder.sequence(vec![comma, entry]);
        let more = self.builder.repeat(next, 0, None);
        let entries = self.builder.sequence(vec![entry, more]);
        let entries = self.builder.optional(entries);
        self.builder.sequence(vec![signs[0], entries, signs[1]])
    }

    /// Any string.
    fn any_string(&mut self) -> NodeId {
        let text = self.quoted.any_text(self.builder);
        let quote = self.builder.literal(b"\"");
        let body = self.builder.sequence(vec![quote, text, quote]);
        let rule = self.builder.declare("string");
        self.builder.define(rule, body);
        self.builder.rule(rule)
    }
}
