use std::collections::BTreeSet;
use std::sync::Arc;

use super::{MaskCache, Matcher};
use crate::builder::{Builder, NodeId};
use crate::bytes::ByteSet;
use crate::constraint::{Constraint, Mark};
use crate::error::GrammarError;
use crate::program::{Program, RuleId, Special, SpecialId};
use crate::trie::TokenTrie;

/// A grammar as its own oracle reads it.
#[derive(Clone, Debug)]
enum Tree {
    Empty,
    One(Vec<u8>),
    Row(Vec<Tree>),
    Choice(Vec<Tree>),
    Repeat(Box<Tree>, u32, Option<u32>),
    Rule(usize),
}

/// Numbers without a pattern (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    /// An expression that may refer to `rules` rules, with counts below `counts`.
    fn tree(&mut self, depth: usize, rules: usize, counts: u32) -> Tree {
        match self.below(if depth == 0 { 4 } else { 10 }) {
            0 => Tree::Empty,
            1 | 2 => Tree::One((b'a'..=b'c').filter(|_| self.below(3) == 0).collect()),
            3 => Tree::Rule(self.below(rules)),
            4..=6 => Tree::Row((0..1 + self.below(3)).map(|_| self.tree(depth - 1, rules, counts)).collect()),
            7 => Tree::Choice((0..2 + self.below(2)).map(|_| self.tree(depth - 1, rules, counts)).collect()),
            _ => {
                let least = self.below(counts as usize) as u32;
                let most = [None, Some(least + self.below(counts as usize) as u32), Some(1.max(least))][self.below(3)];
                Tree::Repeat(Box::new(self.tree(depth - 1, rules, counts)), least, most)
            }
        }
    }

    fn grammar(&mut self, counts: u32) -> Vec<Tree> {
        let rules = 1 + self.below(4);
        (0..rules).map(|_| self.tree(3, rules, counts)).collect()
    }
}

/// How a tree is built: alternatives in another order, repetitions written out.
#[derive(Clone, Copy, Default)]
struct Style {
    reversed: bool,
    expanded: bool,
}

fn build(builder: &mut Builder, tree: &Tree, rules: &[RuleId], style: Style) -> NodeId {
    match tree {
        Tree::Empty => builder.empty(),
        Tree::One(bytes) => builder.bytes(bytes.iter().copied().collect()),
        Tree::Row(parts) => {
            let parts = parts.iter().map(|part| build(builder, part, rules, style)).collect();
            builder.sequence(parts)
        }
        Tree::Choice(parts) => {
            let mut parts: Vec<_> = parts.iter().map(|part| build(builder, part, rules, style)).collect();
            if style.reversed {
                parts.reverse();
            }
            builder.alternatives(parts)
        }
        Tree::Repeat(body, least, most) if style.expanded => {
            let body = build(builder, body, rules, style);
            let mut parts = vec![body; *least as usize];
            match most {
                None => parts.push(builder.repeat(body, 0, None)),
                Some(most) => {
                    let mut rest = builder.empty();
                    for _ in *least..*most {
                        let round = builder.sequence(vec![body, rest]);
                        rest = builder.optional(round);
                    }
                    parts.push(rest);
                }
            }
            builder.sequence(parts)
        }
        Tree::Repeat(body, least, most) => {
            let body = build(builder, body, rules, style);
            builder.repeat(body, *least, *most)
        }
        Tree::Rule(rule) => builder.rule(rules[*rule]),
    }
}

fn program(grammar: &[Tree], style: Style) -> Result<Arc<Program>, GrammarError> {
    let mut builder = Builder::new();
    let rules: Vec<_> = (0..grammar.len()).map(|rule| builder.declare(&format!("r{rule}"))).collect();
    for (rule, tree) in rules.iter().zip(grammar) {
        let body = build(&mut builder, tree, &rules, style);
        builder.define(*rule, body);
    }
    builder.finish(rules[0]).map(Arc::new)
}

type Words = BTreeSet<Vec<u8>>;

/// Longest text that the oracle knows all about.
const LENGTH: usize = 4;

/// The words of a language up to a length, and the beginnings of all of its words up to that length.
#[derive(Clone, Debug, Default, PartialEq)]
struct Language {
    words: Words,
    beginnings: Words,
    /// Whether it has words at all.
    some: bool,
}

impl Language {
    fn empty() -> Self {
        let only: Words = [Vec::new()].into();
        Self { words: only.clone(), beginnings: only, some: true }
    }

    fn then(&self, next: &Self) -> Self {
        if !self.some || !next.some {
            return Self::default();
        }
        let joined = |right: &Words| -> Words {
            let all = self.words.iter().flat_map(|a| right.iter().map(move |b| [a.as_slice(), b].concat()));
            all.filter(|word| word.len() <= LENGTH).collect()
        };
        let beginnings = joined(&next.beginnings).into_iter().chain(self.beginnings.iter().cloned()).collect();
        Self { words: joined(&next.words), beginnings, some: true }
    }

    fn or(mut self, other: Self) -> Self {
        self.words.extend(other.words);
        self.beginnings.extend(other.beginnings);
        self.some |= other.some;
        self
    }

    fn of(tree: &Tree, rules: &[Self]) -> Self {
        match tree {
            Tree::Empty => Self::empty(),
            Tree::One(bytes) if bytes.is_empty() => Self::default(),
            Tree::One(bytes) => {
                let words: Words = bytes.iter().map(|byte| vec![*byte]).collect();
                let beginnings = words.iter().cloned().chain([Vec::new()]).collect();
                Self { words, beginnings, some: true }
            }
            Tree::Row(parts) => parts.iter().fold(Self::empty(), |row, part| row.then(&Self::of(part, rules))),
            Tree::Choice(parts) => parts.iter().fold(Self::default(), |all, part| all.or(Self::of(part, rules))),
            Tree::Repeat(body, least, most) => {
                let body = Self::of(body, rules);
                let mut rounds = (0..*least).fold(Self::empty(), |row, _| row.then(&body));
                let mut all = rounds.clone();
                // More rounds than letters add nothing new.
                for _ in 0..most.map_or(LENGTH as u32 + 1, |most| most - least) {
                    rounds = rounds.then(&body);
                    all = all.or(rounds.clone());
                }
                all
            }
            Tree::Rule(rule) => rules[*rule].clone(),
        }
    }

    /// The language of each rule: the least fixed point.
    fn all(grammar: &[Tree]) -> Vec<Self> {
        let mut rules = vec![Self::default(); grammar.len()];
        loop {
            let next: Vec<_> = grammar.iter().map(|tree| Self::of(tree, &rules)).collect();
            if next == rules {
                return rules;
            }
            rules = next;
        }
    }
}

/// Compares every text up to the oracle's length.
fn compare(matcher: &mut Matcher, language: &Language, text: &mut Vec<u8>, context: &str) {
    assert!(language.beginnings.contains(text));
    assert_eq!(matcher.can_end(), language.words.contains(text), "end after {text:?} in {context}");
    if text.len() == LENGTH {
        return;
    }
    let mark = matcher.mark();
    let allowed = matcher.allowed();
    for byte in b'a'..=b'd' {
        text.push(byte);
        let fits = language.beginnings.contains(text);
        assert_eq!(allowed.contains(byte), fits, "{text:?} in {context}");
        assert_eq!(matcher.accept(byte), fits, "{text:?} in {context}");
        if fits {
            compare(matcher, language, text, context);
            matcher.rewind(mark);
        }
        assert_eq!((matcher.mark(), matcher.allowed()), (mark, allowed), "{text:?} in {context}");
        text.pop();
    }
}

#[test]
fn random_grammars_are_walked_exactly() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut compiled, mut refused) = (0, 0);
    for round in 0..600 {
        let grammar = random.grammar(4);
        let languages = Language::all(&grammar);
        let context = format!("grammar {round}: {grammar:?}");
        for style in [Style::default(), Style { reversed: true, expanded: false }] {
            match program(&grammar, style) {
                Ok(program) => {
                    assert!(languages[0].some, "{context}");
                    compiled += 1;
                    let mut matcher = Matcher::new(Arc::clone(&program)).unwrap();
                    compare(&mut matcher, &languages[0], &mut Vec::new(), &context);
                    // The same when states are dropped again and again.
                    let mut forgetful = Matcher { kept: 1, room: 1, ..Matcher::new(program).unwrap() };
                    compare(&mut forgetful, &languages[0], &mut Vec::new(), &context);
                }
                Err(error) => {
                    assert!(languages.iter().any(|language| !language.some), "{error} {context}");
                    refused += 1;
                }
            }
        }
    }
    assert!(compiled > 400 && refused > 50, "{compiled} {refused}");
}

/// Whether each token fits, found by trying it.
fn tried(matcher: &mut Matcher, tokens: &[Vec<u8>]) -> Vec<bool> {
    let mark = matcher.mark();
    let fits = |token: &Vec<u8>| {
        let fits = token.iter().all(|byte| matcher.accept(*byte));
        matcher.rewind(mark);
        fits
    };
    tokens.iter().map(fits).collect()
}

/// All texts of up to `length` letters.
fn tokens(length: usize) -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..length {
        let longer: Vec<_> =
            tokens[from..].iter().flat_map(|t| (b'a'..=b'c').map(move |b| [t.as_slice(), &[b]].concat())).collect();
        from = tokens.len();
        tokens.extend(longer);
    }
    tokens.split_off(1)
}

/// Walks at random, with masks of two vocabularies, beside a twin whose repetitions are written out.
#[test]
fn masks_and_counters_agree_with_trying_and_with_repetitions_written_out() {
    let mut random = Random(0xD1B5_4A32_D192_ED03);
    let vocabularies = [tokens(2), tokens(3)];
    let tries = vocabularies.each_ref().map(|tokens| TokenTrie::new(tokens).unwrap());
    let mut steps = 0;
    for round in 0..600 {
        let grammar = random.grammar(7);
        let (Ok(counted), Ok(expanded)) =
            (program(&grammar, Style::default()), program(&grammar, Style { reversed: false, expanded: true }))
        else {
            continue;
        };
        let kept = if round % 2 == 0 { 1 } else { 1 << 20 };
        let mut matcher = Matcher { kept, room: kept, ..Matcher::new(counted).unwrap() };
        let mut twin = Matcher::new(expanded).unwrap();
        let mut caches = [MaskCache::new(), MaskCache::new()];
        for _ in 0..30 {
            let context = format!("after {} bytes of grammar {round}: {grammar:?}", matcher.mark().0);
            assert_eq!((matcher.allowed(), matcher.can_end()), (twin.allowed(), twin.can_end()), "{context}");
            for ((trie, cache), tokens) in tries.iter().zip(&mut caches).zip(&vocabularies) {
                let mask = matcher.mask(trie, cache).unwrap();
                let again = matcher.mask(trie, cache).unwrap();
                let masked: Vec<bool> = (0..tokens.len() as u32).map(|token| mask.allows(token)).collect();
                assert_eq!(masked, tried(&mut twin, tokens), "{context}");
                assert_eq!(mask, again, "{context}");
            }
            let bytes: Vec<u8> = matcher.allowed().iter().collect();
            if bytes.is_empty() {
                break;
            }
            let byte = bytes[random.below(bytes.len())];
            assert!(matcher.accept(byte) && twin.accept(byte), "{context}");
            steps += 1;
        }
    }
    assert!(steps > 1500, "{steps}");
}

fn compile(text: &str) -> Matcher {
    Matcher::new(Arc::new(crate::gbnf::compile(text).unwrap())).unwrap()
}

fn feed(matcher: &mut Matcher, text: &str) -> bool {
    text.bytes().all(|byte| matcher.accept(byte))
}

#[test]
fn ambiguity_and_recursion_keep_few_states() {
    for (text, round) in [
        ("root ::= value*\nvalue ::= [a-z] ws\nws ::= [ \\n] ws | \"\"", "a  "),
        ("root ::= word*\nword ::= [a-z]+", "a"),
        ("root ::= word{0,5000}\nword ::= [a-z]+", "a"),
        ("root ::= (gap gap)* \"!\"\ngap ::= [ ]*", " "),
        ("root ::= ws ws ws \"x\"\nws ::= ([ \\n] ws)?", " "),
        ("root ::= left*\nleft ::= left \"a\" | \"a\"", "a"),
        ("root ::= hidden root \"a\" | \"a\"\nhidden ::= \"b\"?", "a"),
        ("root ::= one | \"a\"\none ::= two \"a\"\ntwo ::= three?\nthree ::= root", "a"),
        ("root ::= \"a\" root | \"a\" other | \"b\"\nother ::= \"a\" root | \"c\"", "a"),
        ("root ::= (\"a\" | \"a\" \"a\"){2,}", "a"),
    ] {
        let mut matcher = compile(text);
        (0..2000).for_each(|at| assert!(feed(&mut matcher, round), "{at} in {text}"));
        assert!(matcher.states() < 40, "{} in {text}", matcher.states());
    }
}

#[test]
fn a_long_counter_has_few_masks() {
    let mut matcher = compile("root ::= \"<\" .{0,5000} \">\"");
    let vocabulary: Vec<&[u8]> = vec![b"a", b"ab", b"abcd", b">", b"a>", "é".as_bytes()];
    let (trie, mut cache) = (TokenTrie::new(&vocabulary).unwrap(), MaskCache::new());
    assert!(matcher.accept(b'<'));
    let mut distinct = Vec::new();
    for at in 0..=5000 {
        let mask = matcher.mask(&trie, &mut cache).unwrap();
        let expected: Vec<u32> = (0..6).filter(|token| [1, 2, 4, 0, 1, 1][*token as usize] + at <= 5000).collect();
        let expected: Vec<u32> = expected.into_iter().chain((at == 5000).then_some(3)).collect();
        let allowed: BTreeSet<u32> = (0..6).filter(|token| mask.allows(*token)).collect();
        assert_eq!(allowed, expected.into_iter().collect(), "after {at} characters");
        if !distinct.iter().any(|known| Arc::ptr_eq(known, &mask)) {
            distinct.push(mask);
        }
        assert_eq!(matcher.accept(b'x'), at < 5000);
    }
    assert!(distinct.len() < 12, "{}", distinct.len());
}

/// Pieces of text of up to fourteen characters, some of them cut in the middle of one.
fn pieces(random: &mut Random) -> Vec<Vec<u8>> {
    let characters =
        ["a", "b", "q", "x", "Z", " ", "7", "\"", "\\", "\n", "é", "я", "中", "한", "😀", "\u{7FF}", "\u{E000}"];
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    for _ in 0..600 {
        let length = 1 + random.below(14);
        let rare = random.below(3) > 0;
        let bound = if rare { characters.len() } else { 6 };
        let mut token: Vec<u8> = (0..length).flat_map(|_| characters[random.below(bound)].bytes()).collect();
        match random.below(6) {
            0 => token.truncate(token.len() - 1),
            1 => drop(token.remove(0)),
            _ => {}
        }
        tokens.push(token);
    }
    tokens
}

#[test]
fn masks_within_plain_text_agree_with_trying() {
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    let tokens = pieces(&mut random);
    let trie = TokenTrie::new(&tokens).unwrap();
    for text in [
        r#"root ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\n])* "\"" root?"#,
        r#"root ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\n]){3,40} "\"""#,
        "root ::= .{0,60}",
        "root ::= .{25,60} \"b\" | .{10,}",
        "root ::= [a-zA-Z ]{0,30} | .{0,40} \"7\"",
        "root ::= (. .){0,25}",
        "root ::= ([a-zA-Z ] | \"ab\"){5,30}",
        "root ::= ([a-zA-Z ]{0,9} [é-я])* .{2,8}",
        "root ::= ([^中] | \"中\" \"x\"){0,50}",
        "root ::= [^\\x80-\\U0010FFFF]{0,9} .{0,9} [a-z \\U0001F600]*",
        "root ::= ([a-z ]{0,40}){0,40} [Z]",
        "root ::= ([a-zA-Z é]{2,20} [\" 7]){1,4}",
        "root ::= (a | b){0,30}\na ::= [ -~]{1,12}\nb ::= [^ ]{3,20} \"q\"",
    ] {
        for round in 0..3 {
            let (kept, steps) = if round == 0 { (1, 6) } else { (1 << 20, 66) };
            let mut matcher = Matcher { kept, room: kept, ..compile(text) };
            let mut cache = MaskCache::new();
            for at in 0..steps {
                let mask = matcher.mask(&trie, &mut cache).unwrap();
                if at % (1 + round) == 0 {
                    assert_eq!(mask.as_ref(), &trie.mask(&mut matcher), "round {round}, {at} bytes into {text}");
                }
                let bytes: Vec<u8> = matcher.allowed().iter().collect();
                if bytes.is_empty() {
                    break;
                }
                let letters = bytes.contains(&b'a') && random.below(8) > 0;
                assert!(matcher.accept(if letters { b'a' } else { bytes[random.below(bytes.len())] }));
            }
        }
    }
}

#[test]
fn kept_masks_take_bounded_memory() {
    let mut vocabulary: Vec<&[u8]> = vec![b"(", b")", b"x"];
    vocabulary.resize(1_000_000, b"");
    let (trie, mut cache) = (TokenTrie::new(&vocabulary).unwrap(), MaskCache::new());
    let mut matcher = compile("root ::= \"(\" root \")\" | \"x\"");
    let mut most = 0;
    for depth in 0..300 {
        // Each depth is a state, and has a mask, of its own.
        assert_eq!(matcher.mask(&trie, &mut cache).unwrap().count(), 2, "{depth}");
        most = most.max(cache.memory());
        assert!(cache.memory() <= super::mask::KEPT_BYTES && matcher.accept(b'('), "{depth}");
    }
    assert!(most > super::mask::KEPT_BYTES / 2, "{most}");
}

#[test]
fn collecting_keeps_the_way_back() {
    let mut matcher =
        Matcher { kept: 1, room: 1, ..compile("root ::= \"[\" (root (\",\" root){0,9})? \"]\" | [0-9]{1,4}") };
    let text = "[1,[22,[],[333,[4444,[]]]],[[[[[5]]]]],6]";
    let mut seen: Vec<(Mark, ByteSet, bool)> = Vec::new();
    for byte in text.bytes() {
        seen.push((matcher.mark(), matcher.allowed(), matcher.can_end()));
        assert!(matcher.accept(byte));
    }
    assert!(matcher.can_end() && matcher.allowed().is_empty());
    for (mark, allowed, can_end) in seen.into_iter().rev() {
        matcher.rewind(mark);
        assert_eq!((matcher.mark(), matcher.allowed(), matcher.can_end()), (mark, allowed, can_end));
        assert!(feed(&mut matcher, &text[mark.0..]) && matcher.can_end());
        matcher.rewind(mark);
    }
}

#[test]
fn a_walk_does_not_grow_without_end() {
    // Every token leads to a state of its own.
    let mut matcher = compile("root ::= (a | b)*\na ::= \"a\" root \"c\"\nb ::= \"b\" root \"d\"");
    let vocabulary =
        (0..20_000u32).map(|token| (0..15).map(|bit| b"ab"[(token >> bit & 1) as usize]).collect::<Vec<u8>>());
    let vocabulary: Vec<_> = vocabulary.collect();
    let (trie, mut cache) = (TokenTrie::new(&vocabulary).unwrap(), MaskCache::new());
    let free = matcher.mask(&trie, &mut cache).unwrap();
    assert_eq!(free.count(), vocabulary.len());
    let unbounded = matcher.memory();
    let mut bounded = Matcher {
        kept: 1 << 16,
        room: 1 << 16,
        ..compile("root ::= (a | b)*\na ::= \"a\" root \"c\"\nb ::= \"b\" root \"d\"")
    };
    assert_eq!(bounded.mask(&trie, &mut cache).unwrap(), free);
    assert!(bounded.memory() < 1 << 17 && unbounded > 1 << 20, "{} {unbounded}", bounded.memory());
}

#[test]
fn too_many_readings_are_an_error_with_a_name_until_rewound() {
    let many: Vec<String> = (0..200).map(|i| format!("(\"a\" | \"a\" \"a\" [a{i}]?){{30000,6{i:04}}}")).collect();
    let mut matcher = compile(&format!("root ::= {}", many.join(" | ")));
    let start = matcher.mark();
    let mut taken = 0;
    while matcher.accept(b'a') {
        taken += 1;
    }
    assert!((10..200).contains(&taken), "{taken}");
    assert_eq!(matcher.fault().map(|fault| fault.code.slug()), Some("grammar_too_complex"));
    assert!(matcher.allowed().is_empty() && !matcher.can_end() && !matcher.accept(b'a'));
    matcher.rewind(start);
    assert!(matcher.fault().is_none() && feed(&mut matcher, "aaa"));
}

#[test]
fn special_tokens_are_read_beside_their_text() {
    let mut builder = Builder::new();
    let root = builder.declare("root");
    let open = builder.special(Special::Text("<think>".into()));
    let other = builder.special(Special::Not(Box::new(Special::Text("</think>".into()))));
    let many = builder.repeat(other, 0, Some(2));
    let text = builder.literal(b"ab");
    let close = builder.special(Special::Text("</think>".into()));
    let whole = builder.sequence(vec![open, many, text, close]);
    builder.define(root, whole);
    let mut matcher = Matcher::new(Arc::new(builder.finish(root).unwrap())).unwrap();
    let (open, other, close) = (SpecialId(0), SpecialId(1), SpecialId(2));
    assert!(matcher.allowed().is_empty() && matcher.can_divert() && !matcher.can_end());
    assert!(!matcher.accept_special(close) && matcher.accept_special(open));
    assert_eq!(matcher.allowed(), ByteSet::from_iter([b'a']));
    assert!(matcher.forced(9).is_empty(), "any token may come too");
    // `ab` is the text, or one of the tokens before it.
    let mark = matcher.mark();
    assert!(matcher.accept_token(b"ab", &[other]));
    let after: Vec<_> = matcher.allowed_specials().collect();
    assert!(after.contains(&other) && after.contains(&close) && matcher.allowed().contains(b'a'));
    assert!(matcher.accept_token(b"</think>", &[close]) && matcher.can_end());
    matcher.rewind(mark);
    assert!(matcher.accept_token(b"zz", &[other]) && matcher.accept_token(b"y", &[other]));
    assert!(!matcher.accept_token(b"zz", &[other]), "two are the most");
    assert_eq!(matcher.forced(9), b"ab");
}
