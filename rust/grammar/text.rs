//! Free text up to a mark or without it, as rules.
//!
//! The automaton of Knuth, Morris and Pratt (1977): one rule for each number of characters of the mark that the text so far
//! ends with. What must hold: the text before the mark does not hold it, so that a reader who looks for its first occurrence
//! finds the same end.

use crate::builder::{Builder, NodeId};
use crate::bytes::ByteSet;
use crate::utf8::LAST;

/// Any text, the `mark` (of ASCII characters) and what stands `behind` it; the text may also end before a mark where it `ends`.
/// Built once for all places that ask for the same.
pub(crate) fn until(builder: &mut Builder, mark: &[u8], behind: NodeId, ends: bool) -> NodeId {
    let text = (mark.to_vec(), behind, ends);
    if let Some(known) = builder.known_text(&text) {
        return known;
    }
    let node = automaton(builder, mark, &|_| true, None, Some(behind), ends);
    builder.keep_text(text, node);
    node
}

/// A text of JSON that does not hold the `mark` (of ASCII characters). Of ASCII, `raw` characters stand for themselves;
/// `others` builds another way of writing a character, which is none of the mark. Built once for each mark.
pub(crate) fn without(
    builder: &mut Builder,
    mark: &[u8],
    raw: &dyn Fn(u8) -> bool,
    others: &dyn Fn(&mut Builder) -> NodeId,
) -> NodeId {
    // No text up to a mark is kept under this, which is not ASCII.
    let text = ([mark, &[0xFF]].concat(), builder.empty(), true);
    if let Some(known) = builder.known_text(&text) {
        return known;
    }
    let others = others(builder);
    let node = automaton(builder, mark, raw, Some(others), None, true);
    builder.keep_text(text, node);
    node
}

fn automaton(
    builder: &mut Builder,
    mark: &[u8],
    raw: &dyn Fn(u8) -> bool,
    others: Option<NodeId>,
    behind: Option<NodeId>,
    ends: bool,
) -> NodeId {
    let rules: Vec<_> = mark.iter().map(|_| builder.declare("text")).collect();
    for (held, rule) in rules.iter().enumerate() {
        let mut parts = Vec::new();
        if ends {
            parts.push(builder.empty());
        }
        // The characters that lead to each number of held ones.
        let mut leads = vec![ByteSet::EMPTY; mark.len() + 1];
        for byte in (0..0x80u8).filter(|byte| raw(*byte)) {
            leads[next(mark, held, byte)].insert(byte);
        }
        for (target, set) in leads.iter().enumerate().filter(|(_, set)| !set.is_empty()) {
            let Some(rest) = rules.get(target).map(|rule| builder.rule(*rule)).or(behind) else { continue };
            let byte = builder.bytes(*set);
            parts.push(builder.sequence(vec![byte, rest]));
        }
        if let Some(first) = rules.first() {
            let beyond = builder.characters(&[(0x80, LAST)]);
            for other in others.into_iter().chain([beyond]) {
                let rest = builder.rule(*first);
                parts.push(builder.sequence(vec![other, rest]));
            }
        }
        let body = builder.alternatives(parts);
        builder.define(*rule, body);
    }
    match (rules.first(), behind) {
        (Some(first), _) => builder.rule(*first),
        (None, Some(behind)) => behind,
        (None, None) => builder.empty(),
    }
}

/// How many characters of the mark a text ends with that ended with `held` of them and goes on with `byte`.
fn next(mark: &[u8], held: usize, byte: u8) -> usize {
    let ending: Vec<u8> = mark[..held].iter().copied().chain([byte]).collect();
    (0..=ending.len().min(mark.len())).rev().find(|length| ending.ends_with(&mark[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Constraint, Matcher};

    fn accepts(ends: bool, text: &str) -> bool {
        let mut builder = Builder::new();
        let behind = builder.literal(b"!");
        let root = builder.declare("root");
        let body = until(&mut builder, b"<a<ab>", behind, ends);
        builder.define(root, body);
        let mut matcher = Matcher::new(Arc::new(builder.finish(root).unwrap())).unwrap();
        text.bytes().all(|byte| matcher.accept(byte)) && matcher.can_end()
    }

    #[test]
    fn a_text_without_the_mark_holds_all_others() {
        let mut builder = Builder::new();
        let escape = |builder: &mut Builder| builder.literal(b"\\<");
        let raw = |byte: u8| byte != b'\\';
        let node = without(&mut builder, b"<a<ab>", &raw, &escape);
        assert_eq!(node, without(&mut builder, b"<a<ab>", &raw, &escape), "it is built once");
        let root = builder.declare("root");
        builder.define(root, node);
        let program = Arc::new(builder.finish(root).unwrap());
        for (text, right) in [
            ("", true),
            ("<a<ab", true),
            ("<a<a<ac>é<ab>", true),
            ("\\<a<ab>", true),
            ("<a\\<ab>", true),
            ("<a<ab>", false),
            ("<a<a<ab>", false),
            ("\\<<a<ab>", false),
            ("\\", false),
        ] {
            let mut matcher = Matcher::new(Arc::clone(&program)).unwrap();
            assert_eq!(text.bytes().all(|byte| matcher.accept(byte)) && matcher.can_end(), right, "{text}");
        }
    }

    #[test]
    fn the_first_mark_ends_the_text() {
        for text in ["<a<ab>!", "x<a<ab>!", "<a<a<ab>!", "<<a<ab>!", "é<a<a<a<ab>!"] {
            assert!(accepts(false, text), "{text}");
        }
        for text in ["", "x", "<a<ab>", "<a<ab>!!", "<a<ab>x<a<ab>!"] {
            assert!(!accepts(false, text), "{text}");
        }
        assert!(accepts(true, "") && accepts(true, "<a<a€") && !accepts(true, "<a<ab>"));
    }
}
