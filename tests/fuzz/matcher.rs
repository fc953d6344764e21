//! Target `matcher`: the bytes choose a grammar (a small tree, or its text up to a NUL), then what is done with its
//! matcher, one operation after the other.
//!
//! Asserts: a grammar is dead exactly when no text ends one of its rules; a text is accepted exactly when trying everything
//! finds it. At each place `allowed` and `accept` agree, `forced` gives the only bytes, a mask holds exactly the tokens that
//! are accepted byte by byte, special tokens are taken exactly when they are allowed, and what is refused changes nothing;
//! `rewind` returns to the same place. States are bounded, and a limit is a fault with its name.

use std::sync::Arc;

use colibri_grammar::{ByteSet, Constraint, FaultCode, Mark, MaskCache, Matcher, SpecialId, TokenTrie, gbnf};

use super::input::Input;
use super::language;

mod write;

use write::{Grammar, LETTERS};

/// Operations on one matcher.
const OPERATIONS: usize = 80;
/// How much the memory of the states may change in all, in bytes: new states are where the time goes.
const MOST_WORK: usize = 2 << 20;
/// Bytes and special tokens of the longest text.
const MOST_TAKEN: usize = 120;
/// The longest text that everything is tried for, in bytes.
const LONGEST_TRIED: usize = 24;
/// Texts of tokens beside those that an input chooses: whole letters, parts of letters, several letters, doubles, none.
const TOKENS: &[&[u8]] = &[
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"aa",
    b"aaaaaa",
    b"bbb",
    b"",
    b"a",
    "é".as_bytes(),
    "è".as_bytes(),
    "€".as_bytes(),
    "😀".as_bytes(),
    b"\xc3",
    b"\xa9",
    b"\xe2\x82",
    b"\xac",
    b"\xf0\x9f",
    b"\x98\x80a",
    b"a\xc3",
    b"\xff",
    b"abababababab",
    "é€".as_bytes(),
    b" ",
    b"\n",
    b"\"",
    b"0",
    b"{",
    b"<s>",
];

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    if input.seldom(4) {
        let (text, rest) = input.0.split_at(input.0.iter().position(|byte| *byte == 0).unwrap_or(input.0.len()));
        let text = String::from_utf8_lossy(text);
        let Ok(program) = gbnf::compile(&text) else { return };
        let Some(matcher) = language::begin(program) else { return };
        Walk::new(matcher, None, Input(rest.get(1..).unwrap_or_default())).run();
        return;
    }
    let grammar = write::grammar(&mut input);
    let text = grammar.text();
    let productive = grammar.productive();
    match gbnf::compile(&text) {
        Ok(program) => {
            assert!(productive[0], "accepted, and no text ends: {text}");
            let Some(matcher) = language::begin(program) else { return };
            Walk::new(matcher, Some(grammar), input).run();
        }
        Err(error) => {
            language::refusal(&error, &[FaultCode::DeadEnd], &text);
            assert!(productive.contains(&false), "{error}\n{text}");
        }
    }
}

/// What a place is like, to be found again.
type Seen = (Mark, (ByteSet, bool, usize), Vec<SpecialId>);

struct Walk<'a> {
    matcher: Matcher,
    grammar: Option<Grammar>,
    input: Input<'a>,
    vocabulary: Vec<Vec<u8>>,
    trie: TokenTrie,
    masks: MaskCache,
    /// What was taken so far: a byte, or a special token.
    taken: Vec<Option<u8>>,
    marks: Vec<Seen>,
}

impl<'a> Walk<'a> {
    fn new(matcher: Matcher, grammar: Option<Grammar>, mut input: Input<'a>) -> Self {
        let mut vocabulary: Vec<Vec<u8>> = TOKENS.iter().map(|token| token.to_vec()).collect();
        for _ in 0..input.below(6) {
            let count = 1 + input.below(12);
            vocabulary.push(word(&mut input, count).into_bytes());
        }
        let trie = TokenTrie::new(&vocabulary).expect("tokens are short");
        Self {
            matcher,
            grammar,
            input,
            vocabulary,
            trie,
            masks: MaskCache::new(),
            taken: Vec::new(),
            marks: Vec::new(),
        }
    }

    fn run(mut self) {
        self.see();
        let mut work = 0;
        for _ in 0..OPERATIONS {
            if self.input.0.is_empty() || self.taken.len() > MOST_TAKEN || work > MOST_WORK {
                break;
            }
            let before = self.matcher.memory();
            match self.input.below(16) {
                0..=6 => self.step(),
                7 => self.every_byte(),
                8 => self.forced(),
                9 => self.mask(),
                10 => self.see(),
                11 => self.back(),
                12 => self.special(),
                13 => self.token(),
                14 => self.tried(),
                _ => self.run_of_bytes(),
            }
            self.judge();
            work += self.matcher.memory().abs_diff(before);
        }
        if work <= MOST_WORK {
            self.mask();
            self.every_byte();
        }
        while !self.marks.is_empty() {
            self.back();
        }
    }

    fn specials(&self) -> Vec<SpecialId> {
        self.matcher.allowed_specials().collect()
    }

    fn seen(&self) -> Seen {
        (self.matcher.mark(), language::here(&self.matcher), self.specials())
    }

    /// What was taken, when it was bytes only.
    fn text(&self) -> Option<Vec<u8>> {
        self.taken.iter().copied().collect()
    }

    /// Whether the text may end here is what trying everything finds.
    fn judge(&self) {
        assert_eq!(self.matcher.mark(), Mark(self.taken.len()));
        let (_, can_end, _) = language::here(&self.matcher);
        let (Some(grammar), Some(text)) = (&self.grammar, self.text()) else { return };
        if text.len() <= LONGEST_TRIED {
            let holds = grammar.holds(&text);
            assert_eq!(can_end, holds, "{:?} of {}", String::from_utf8_lossy(&text), grammar.text());
        }
    }

    fn step(&mut self) {
        let choices: Vec<u8> = self.matcher.allowed().iter().collect();
        if choices.is_empty() {
            return;
        }
        // Bytes of the letters of the grammar come more often than all others.
        let liked: Vec<u8> = choices.iter().copied().filter(|byte| "abéè€😀".bytes().any(|own| own == *byte)).collect();
        let list = if liked.is_empty() || self.input.seldom(8) { &choices } else { &liked };
        let byte = list[self.input.below(list.len())];
        if language::take(&mut self.matcher, byte) {
            self.taken.push(Some(byte));
        }
    }

    /// The same byte many times, so that counts come to their bounds.
    fn run_of_bytes(&mut self) {
        let byte = self.input.pick(b"ab\xc3\xa9");
        for _ in 0..self.input.byte() / 4 {
            if !self.matcher.allowed().contains(byte) || !language::take(&mut self.matcher, byte) {
                break;
            }
            self.taken.push(Some(byte));
        }
    }

    fn every_byte(&mut self) {
        let before = self.seen();
        for byte in 0..=u8::MAX {
            let allowed = before.1.0.contains(byte);
            let accepted = self.matcher.accept(byte);
            if self.matcher.fault().is_some() {
                assert!(!accepted);
                self.matcher.rewind(before.0);
                return;
            }
            assert_eq!(accepted, allowed, "byte {byte}");
            if accepted {
                language::here(&self.matcher);
                self.matcher.rewind(before.0);
            }
            assert_eq!(self.matcher.mark(), before.0);
        }
        assert_eq!(self.seen(), before);
    }

    fn forced(&mut self) {
        let before = self.seen();
        let most = self.input.below(20);
        let bytes = self.matcher.forced(most);
        assert!(bytes.len() <= most);
        // A limit on the way ends the span.
        assert_eq!(self.seen(), before);
        for byte in &bytes {
            let (allowed, can_end, specials) = language::here(&self.matcher);
            assert_eq!((allowed.single(), can_end, specials), (Some(*byte), false, 0));
            if !language::take(&mut self.matcher, *byte) {
                break;
            }
            self.taken.push(Some(*byte));
        }
    }

    /// Whether a token is accepted byte by byte; `None` when a limit was hit on the way.
    fn accepts(&mut self, token: &[u8]) -> Option<bool> {
        let start = self.matcher.mark();
        let fits = !token.is_empty() && token.iter().all(|byte| self.matcher.accept(*byte));
        let limited = self.matcher.fault().map(language::limit).is_some();
        self.matcher.rewind(start);
        (!limited).then_some(fits)
    }

    fn mask(&mut self) {
        let before = self.seen();
        let Some(mask) = self.matcher.mask(&self.trie, &mut self.masks) else {
            language::limit(self.matcher.fault().expect("no mask is the fault of a limit"));
            self.matcher.rewind(before.0);
            return;
        };
        assert_eq!(self.seen(), before);
        // A mask counts in fewer steps, so that it may be had where a limit is hit byte by byte.
        let mut limited = false;
        for token in 0..self.vocabulary.len() {
            let text = self.vocabulary[token].clone();
            match self.accepts(&text) {
                Some(fits) => {
                    assert_eq!(mask.allows(token as u32), fits, "token {:?}", String::from_utf8_lossy(&text));
                }
                None => limited = true,
            }
        }
        assert!(limited || *mask == self.trie.mask(&mut self.matcher));
        let again = self.matcher.mask(&self.trie, &mut self.masks).expect("no limit before");
        assert_eq!(*mask, *again);
        assert_eq!(self.seen(), before);
    }

    fn see(&mut self) {
        let seen = self.seen();
        self.marks.push(seen);
    }

    fn back(&mut self) {
        if self.marks.is_empty() {
            return;
        }
        let which = self.input.below(self.marks.len());
        let before = self.marks[which].clone();
        self.matcher.rewind(before.0);
        // The same bytes lead to the same place.
        let rest: Vec<Option<u8>> = self.taken.drain(before.0.0..).collect();
        assert_eq!(self.seen(), before);
        let bytes: Vec<u8> = rest.into_iter().map_while(|taken| taken).collect();
        let places: Vec<(usize, Seen)> = self.marks.iter().enumerate().map(|(at, seen)| (at, seen.clone())).collect();
        for byte in bytes {
            if !language::take(&mut self.matcher, byte) {
                break;
            }
            let mark = self.matcher.mark();
            let known = places.iter().find(|(_, seen)| seen.0 == mark);
            known.iter().for_each(|(_, seen)| assert_eq!(self.seen(), *seen));
        }
        self.matcher.rewind(before.0);
        self.marks.retain(|seen| seen.0 < before.0);
    }

    fn special(&mut self) {
        let program = Arc::clone(self.matcher.program());
        let all: Vec<SpecialId> = program.special_ids().map(|(id, _)| id).collect();
        let before = self.seen();
        for id in &all {
            let accepted = self.matcher.accept_special(*id);
            if self.matcher.fault().is_none() {
                assert_eq!(accepted, before.2.contains(id));
            }
            self.matcher.rewind(before.0);
        }
        assert_eq!(self.seen(), before);
        if let Some(id) = before.2.first()
            && self.matcher.accept_special(*id)
        {
            self.taken.push(None);
        }
        self.recover();
    }

    /// A token that is read as its text and as a special token.
    fn token(&mut self) {
        let program = Arc::clone(self.matcher.program());
        let all: Vec<SpecialId> = program.special_ids().map(|(id, _)| id).filter(|_| self.input.seldom(2)).collect();
        let which = self.input.below(self.vocabulary.len());
        let text = self.vocabulary[which].clone();
        let before = self.seen();
        let special = all.iter().any(|id| before.2.contains(id));
        let fits = text.iter().all(|byte| self.matcher.accept(*byte)) && !text.is_empty();
        let limited = self.matcher.fault().is_some();
        self.matcher.rewind(before.0);
        let accepted = self.matcher.accept_token(&text, &all);
        if !limited && self.matcher.fault().is_none() {
            assert_eq!(accepted, special || fits, "{text:?} {all:?}");
        }
        if accepted && special {
            assert_eq!(self.matcher.mark(), Mark(before.0.0 + 1));
            self.taken.push(None);
        } else if accepted {
            self.taken.extend(text.iter().copied().map(Some));
        } else {
            self.recover();
            assert_eq!(self.seen(), before);
        }
    }

    /// After a limit the matcher is where it was.
    fn recover(&mut self) {
        self.matcher.rewind(Mark(self.taken.len()));
    }

    /// Any word from the start: accepted exactly when trying everything finds it.
    fn tried(&mut self) {
        let count = self.input.below(9);
        let word = word(&mut self.input, count);
        let before = self.seen();
        self.matcher.rewind(Mark(0));
        let fits = word.bytes().all(|byte| self.matcher.accept(byte)) && self.matcher.can_end();
        let limited = self.matcher.fault().is_some();
        self.matcher.rewind(Mark(0));
        if let Some(grammar) = &self.grammar
            && !limited
        {
            assert_eq!(fits, grammar.holds(word.as_bytes()), "{word} of {}", grammar.text());
        }
        // The way back to where it was.
        let taken = std::mem::take(&mut self.taken);
        for one in taken {
            let Some(byte) = one else { break };
            if !language::take(&mut self.matcher, byte) {
                break;
            }
            self.taken.push(Some(byte));
        }
        self.marks.retain(|seen| seen.0.0 <= self.taken.len());
        if self.matcher.mark() == before.0 {
            assert_eq!(self.seen(), before);
        }
    }
}

/// A text of so many letters.
fn word(input: &mut Input<'_>, count: usize) -> String {
    (0..count).map(|_| input.pick(LETTERS)).collect()
}
