//! Regular expressions: the part of ECMA-262's notation that describes a regular language.
//!
//! Owns the reading of a pattern into a tree of code-point classes ([`Pattern`]) and its building into a grammar, either of
//! plain text or, through [`Characters`], of text as it stands inside of a JSON string.
//!
//! Refuses: look-around, back references and word boundaries, which no grammar of this kind can follow; anchors anywhere
//! but at the edges of an alternative; unknown escapes. What is matched is whole code points.

mod parser;
#[cfg(test)]
mod tests;

use crate::builder::{Builder, NodeId};
use crate::error::{Fault, GrammarError};
use crate::gbnf;
use crate::program::{Program, RuleId};

pub(crate) use crate::utf8::LAST;
pub(crate) use parser::parse;

/// A pattern as a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// One code point of these ranges.
    Class(Vec<(u32, u32)>),
    /// All parts in a row.
    Sequence(Vec<Pattern>),
    /// One of the parts.
    Alternatives(Vec<Pattern>),
    /// Repetition.
    Repeat { body: Box<Pattern>, least: u32, most: Option<u32> },
}

/// How one code point of a class is written.
pub(crate) trait Characters {
    /// An expression for one code point of the ranges.
    fn one_of(&self, builder: &mut Builder, ranges: &[(u32, u32)]) -> NodeId;
}

/// Plain UTF-8.
pub(crate) struct Plain;

impl Characters for Plain {
    fn one_of(&self, builder: &mut Builder, ranges: &[(u32, u32)]) -> NodeId {
        builder.characters(ranges)
    }
}

impl Pattern {
    /// Any text.
    pub(crate) fn anything() -> Self {
        Self::Repeat { body: Box::new(Self::Class(vec![(0, LAST)])), least: 0, most: None }
    }

    /// The pattern as an expression.
    pub(crate) fn build(&self, builder: &mut Builder, characters: &dyn Characters) -> NodeId {
        match self {
            Self::Class(ranges) => characters.one_of(builder, ranges),
            Self::Sequence(parts) => {
                let parts = parts.iter().map(|part| part.build(builder, characters)).collect();
                builder.sequence(parts)
            }
            Self::Alternatives(parts) => {
                let parts = parts.iter().map(|part| part.build(builder, characters)).collect();
                builder.alternatives(parts)
            }
            Self::Repeat { body, least, most } => {
                let body = body.build(builder, characters);
                builder.repeat(body, *least, *most)
            }
        }
    }

    /// The fewest and the most code points of a match; `None`: without end.
    pub(crate) fn lengths(&self) -> (u64, Option<u64>) {
        match self {
            Self::Class(_) => (1, Some(1)),
            Self::Sequence(parts) => parts.iter().fold((0, Some(0)), |(low, high), part| {
                let (least, most) = part.lengths();
                (low.saturating_add(least), high.zip(most).map(|(high, most)| high.saturating_add(most)))
            }),
            Self::Alternatives(parts) => {
                let lengths: Vec<_> = parts.iter().map(Self::lengths).collect();
                let least = lengths.iter().map(|(least, _)| *least).min().unwrap_or(0);
                let most = lengths.iter().try_fold(0, |high, (_, most)| most.map(|most| most.max(high)));
                (least, most)
            }
            Self::Repeat { body, least, most } => {
                let (low, high) = body.lengths();
                let end = match (most, high) {
                    (_, Some(0)) => Some(0),
                    (Some(most), Some(high)) => Some(high.saturating_mul(u64::from(*most))),
                    _ => None,
                };
                (low.saturating_mul(u64::from(*least)), end)
            }
        }
    }
}

/// Compiles a pattern that the whole text must match (as if it stood between `^` and `$`).
///
/// # Errors
/// What the module refuses, with its place in the pattern.
pub fn compile(pattern: &str) -> Result<Program, GrammarError> {
    let (builder, root) = assemble(pattern)?;
    builder.finish(root)
}

/// The same as GBNF text.
///
/// # Errors
/// What the module refuses, or a text that is too long.
pub fn to_gbnf(pattern: &str) -> Result<String, GrammarError> {
    let (builder, root) = assemble(pattern)?;
    gbnf::write(&builder, root)
}

fn assemble(pattern: &str) -> Result<(Builder, RuleId), GrammarError> {
    let pattern = parse(pattern, true)?;
    let mut builder = Builder::new();
    let root = builder.declare("root");
    let body = pattern.build(&mut builder, &Plain);
    builder.define(root, body);
    Ok((builder, root))
}

/// A fault of a pattern.
pub(crate) type PatternResult<T> = Result<T, Fault>;
