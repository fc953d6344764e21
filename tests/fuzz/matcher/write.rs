//! Small grammars that the bytes of an input choose, as text and as a tree that can be asked slowly.

use std::fmt::Write as _;

use super::super::input::Input;

/// Rules of one grammar, and how deep expressions lie inside each other.
const RULES: usize = 5;
const DEPTH: usize = 3;
/// Expressions of one grammar.
const MOST: usize = 60;
/// The characters of all texts: of one, two, three and four bytes, the middle two with a common first byte.
pub(super) const LETTERS: &[char] = &['a', 'b', 'é', 'è', '€', '😀'];
/// Special tokens that a grammar may name.
pub(super) const SPECIALS: &[&str] = &["<s>", "<t>"];

/// An expression.
pub(super) enum Tree {
    Literal(String),
    /// One of the letters of the list, or not.
    Class(Vec<char>, bool),
    Any,
    Rule(usize),
    Special(String),
    Sequence(Vec<Tree>),
    Alternatives(Vec<Tree>),
    Repeat(Box<Tree>, u32, Option<u32>),
}

/// The rules; the first is `root`.
pub(super) struct Grammar {
    pub(super) rules: Vec<Tree>,
}

pub(super) fn grammar(input: &mut Input<'_>) -> Grammar {
    let count = 1 + input.below(RULES);
    let mut left = MOST;
    let rules = (0..count).map(|_| expression(input, count, DEPTH, &mut left)).collect();
    Grammar { rules }
}

fn expression(input: &mut Input<'_>, rules: usize, depth: usize, left: &mut usize) -> Tree {
    *left = left.saturating_sub(1);
    let kind = if depth == 0 || *left == 0 { input.below(7) } else { input.below(15) };
    let list = |input: &mut Input<'_>, left: &mut usize| {
        (0..input.below(4)).map(|_| expression(input, rules, depth - 1, left)).collect::<Vec<_>>()
    };
    match kind {
        0 | 1 => Tree::Literal((0..input.below(4)).map(|_| input.pick(LETTERS)).collect()),
        2 => Tree::Class((0..1 + input.below(3)).map(|_| input.pick(LETTERS)).collect(), input.seldom(3)),
        3 => Tree::Any,
        4 | 5 => Tree::Rule(input.below(rules)),
        6 => Tree::Special(format!("{}{}", if input.seldom(4) { "!" } else { "" }, input.pick(SPECIALS))),
        7..=9 => Tree::Sequence(list(input, left)),
        10 | 11 => {
            let mut parts = list(input, left);
            if parts.is_empty() {
                parts.push(Tree::Literal(String::new()));
            }
            Tree::Alternatives(parts)
        }
        _ => {
            let body = Box::new(expression(input, rules, depth - 1, left));
            let least = input.pick(&[0, 0, 1, 2, 3, 7, 13, 30]);
            let most = input.pick(&[None, Some(0), Some(1), Some(2), Some(9), Some(30)]);
            Tree::Repeat(body, least, most.map(|more| least + more))
        }
    }
}

impl Grammar {
    /// The grammar in GBNF.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (number, body) in self.rules.iter().enumerate() {
            let _ = writeln!(text, "{} ::= {}", name(number), written(body));
        }
        text
    }

    /// Which rules have a text that ends, special tokens counted as texts.
    pub(super) fn productive(&self) -> Vec<bool> {
        let mut known = vec![false; self.rules.len()];
        loop {
            let next: Vec<bool> = self.rules.iter().map(|body| can_end(body, &known)).collect();
            if next == known {
                return known;
            }
            known = next;
        }
    }

    /// Whether the whole text is one of the language without any special token, found by trying everything.
    pub(super) fn holds(&self, text: &[u8]) -> bool {
        assert!(text.len() < 63, "one bit for each place of the text");
        let mut table = vec![vec![0u64; text.len() + 1]; self.rules.len()];
        loop {
            let mut changed = false;
            for rule in 0..self.rules.len() {
                for from in 0..=text.len() {
                    let ends = ends(&self.rules[rule], text, 1 << from, &table);
                    changed |= ends != table[rule][from];
                    table[rule][from] = ends;
                }
            }
            if !changed {
                return table[0][0] >> text.len() & 1 == 1;
            }
        }
    }
}

fn name(rule: usize) -> String {
    if rule == 0 { "root".to_owned() } else { format!("r{rule}") }
}

fn written(tree: &Tree) -> String {
    let listed = |parts: &[Tree], between: &str| parts.iter().map(written).collect::<Vec<_>>().join(between);
    match tree {
        Tree::Literal(text) => format!("\"{text}\""),
        Tree::Class(letters, negated) => {
            let sign = if *negated { "^" } else { "" };
            format!("[{sign}{}]", letters.iter().collect::<String>())
        }
        Tree::Any => ".".to_owned(),
        Tree::Rule(rule) => name(*rule),
        Tree::Special(special) => special.clone(),
        Tree::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
        Tree::Sequence(parts) => format!("({})", listed(parts, " ")),
        Tree::Alternatives(parts) => format!("({})", listed(parts, " | ")),
        Tree::Repeat(body, 0, None) => format!("({})*", written(body)),
        Tree::Repeat(body, 1, None) => format!("({})+", written(body)),
        Tree::Repeat(body, least, None) => format!("({}){{{least},}}", written(body)),
        Tree::Repeat(body, least, Some(most)) => format!("({}){{{least},{most}}}", written(body)),
    }
}

fn can_end(tree: &Tree, known: &[bool]) -> bool {
    match tree {
        Tree::Literal(_) | Tree::Class(..) | Tree::Any | Tree::Special(_) => true,
        Tree::Rule(rule) => known[*rule],
        Tree::Sequence(parts) => parts.iter().all(|part| can_end(part, known)),
        Tree::Alternatives(parts) => parts.iter().any(|part| can_end(part, known)),
        Tree::Repeat(body, least, _) => *least == 0 || can_end(body, known),
    }
}

/// The places where an expression may end that begins at one of the places `from`.
fn ends(tree: &Tree, text: &[u8], from: u64, table: &[Vec<u64>]) -> u64 {
    let each = |end: &dyn Fn(usize) -> u64| {
        let (mut all, mut left) = (0, from);
        while left != 0 {
            all |= end(left.trailing_zeros() as usize);
            left &= left - 1;
        }
        all
    };
    match tree {
        Tree::Literal(word) => {
            each(&|at| u64::from(text[at..].starts_with(word.as_bytes())) << (at + word.len()).min(63))
        }
        Tree::Class(letters, negated) => each(&|at| {
            letter(&text[at..])
                .filter(|found| letters.contains(found) != *negated)
                .map_or(0, |c| 1 << (at + c.len_utf8()))
        }),
        Tree::Any => each(&|at| letter(&text[at..]).map_or(0, |c| 1 << (at + c.len_utf8()))),
        Tree::Rule(rule) => each(&|at| table[*rule][at]),
        Tree::Special(_) => 0,
        Tree::Sequence(parts) => parts.iter().fold(from, |from, part| ends(part, text, from, table)),
        Tree::Alternatives(parts) => parts.iter().fold(0, |all, part| all | ends(part, text, from, table)),
        Tree::Repeat(body, least, most) => {
            let (mut all, mut now, mut round) = (0, from, 0);
            while most.is_none_or(|most| round <= most) {
                if round >= *least {
                    all |= now;
                }
                let next = ends(body, text, now, table);
                // Every further round leads to the same places.
                if next == now || (round >= *least && next | all == all) {
                    return if next == now || round >= *least { all | now } else { all };
                }
                (now, round) = (next, round + 1);
            }
            all
        }
    }
}

/// The code point with which the text begins.
fn letter(text: &[u8]) -> Option<char> {
    let length = text.len().min(4);
    (1..=length).find_map(|length| std::str::from_utf8(&text[..length]).ok())?.chars().next()
}
