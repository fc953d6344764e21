//! Strings without quotes, as arguments of tool calls have them: the text itself, up to a closing mark.

use crate::builder::{Builder, NodeId};
use crate::error::{Fault, FaultCode};
use crate::limits;
use crate::regex::{Characters, LAST};
use crate::text::until;
use crate::words;

use super::Compiler;
use super::types::Types;

/// Characters of a bare text that is counted or follows a pattern: all but the first of the mark, so that it ends once.
struct Bare(u32);

impl Characters for Bare {
    fn one_of(&self, builder: &mut Builder, ranges: &[(u32, u32)]) -> NodeId {
        let mut kept = Vec::new();
        for (low, high) in ranges {
            kept.extend((*low < self.0).then(|| (*low, (*high).min(self.0.saturating_sub(1)))));
            kept.extend((*high > self.0).then(|| ((*low).max(self.0 + 1), *high)));
        }
        builder.characters(&kept)
    }
}

impl Compiler<'_, '_> {
    /// The strings of the schema at a place, bare, each with the closing `mark` (of ASCII characters) behind it.
    ///
    /// `None` when there are none, or when something is wrong. Texts that are counted or follow a pattern do not hold the
    /// first character of the mark.
    pub fn bare(&mut self, pointer: &str, mark: &str) -> Option<NodeId> {
        let schema = self.located(pointer)?;
        let mut parts = Vec::new();
        for flat in self.expand(&[schema]) {
            let types = self.resolved(&flat).and(Types::STRING);
            if types.is_empty() {
                continue;
            }
            self.check(&flat, types);
            let close = self.builder.literal(mark.as_bytes());
            if self.listed_here(&flat) {
                let mut texts = Vec::new();
                for text in self.listed(&flat).unwrap_or_default().into_iter().filter_map(|value| value.as_str()) {
                    if text.contains(mark) {
                        let what = format!("a text of the list holds `{mark}`, which ends an argument");
                        self.fault(Fault::new(FaultCode::Unsupported, what), &flat.pointer());
                        continue;
                    }
                    texts.push(format!("{text}{mark}"));
                }
                parts.extend(words::one_of(self.builder, texts));
                continue;
            }
            let (least, most) = (self.least(&flat, "minLength"), self.most(&flat, "maxLength"));
            if least > limits::REPETITIONS.most as u64 {
                self.fault(self.uncountable(&flat, "minLength"), &flat.pointer());
                continue;
            }
            if most.is_some_and(|most| most < least) {
                continue;
            }
            let most = most.map(|most| most.min(limits::REPETITIONS.most as u64));
            let first = mark.bytes().next().unwrap_or_default();
            let bare = Bare(u32::from(first));
            let text = match self.patterns(&flat, least, most) {
                None if least == 0 && most.is_none() => {
                    let empty = self.builder.empty();
                    parts.push(until(self.builder, mark.as_bytes(), empty, false));
                    continue;
                }
                None => {
                    let character = bare.one_of(self.builder, &[(0, LAST)]);
                    self.builder.repeat(character, least as u32, most.map(|most| most as u32))
                }
                Some((pattern, _)) => pattern.build(self.builder, &bare),
            };
            parts.push(self.builder.sequence(vec![text, close]));
        }
        let node = if parts.is_empty() { None } else { Some(self.builder.alternatives(parts)) };
        self.settle(node, pointer)
    }
}
