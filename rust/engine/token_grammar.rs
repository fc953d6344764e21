//! A grammar over the tokens of a vocabulary: which may come next, and what becomes of one that came.
//!
//! Owns what lies between bytes and tokens: special tokens, which no text produces and a grammar names; stop tokens, which
//! end the text and are allowed exactly where it can end; the way back to an earlier token. Masks and bytes belong to
//! `colibri_grammar`. Refuses grammars that name a token that the vocabulary does not have, or one that ends the text.
//!
//! Must hold: [`TokenGrammar::accept`] takes exactly the tokens of [`TokenGrammar::mask`]; a refused token, however much of
//! it would fit, changes nothing; nothing follows a stop token.

use std::collections::BTreeMap;
use std::sync::Arc;

use colibri_grammar::{
    ByteSet, Constraint, Fault, FaultCode, GrammarError, Mark, MaskCache, Matcher, Program, Special, SpecialId,
    TokenMask, TokenTrie,
};

use crate::error::EngineError;

/// The bytes of every token, and the special tokens.
#[derive(Debug)]
pub struct Vocabulary {
    trie: TokenTrie,
    bytes: Vec<u8>,
    /// Where the bytes of each token end, `[tokens]`.
    ends: Vec<usize>,
    special: BTreeMap<u32, String>,
}

impl Vocabulary {
    /// Reads a vocabulary. `token_bytes[id]` are the bytes of token `id`, none for an id without a token. Those of
    /// `special`, text and id, are never produced by text; what `token_bytes` says of them is left aside.
    ///
    /// # Errors
    /// `invalid_value` for a special token beyond the vocabulary, and for a token or a vocabulary that is too long.
    pub fn new<B: AsRef<[u8]>>(
        token_bytes: &[B],
        special: impl IntoIterator<Item = (String, u32)>,
    ) -> Result<Self, EngineError> {
        let special: BTreeMap<u32, String> = special.into_iter().map(|(text, id)| (id, text)).collect();
        if let Some((id, text)) = special.iter().find(|(id, _)| **id as usize >= token_bytes.len()) {
            return Err(EngineError::InvalidValue {
                name: "special",
                expected: format!("ids below the vocabulary size {}", token_bytes.len()),
                got: format!("{text:?} with the id {id}"),
            });
        }
        let of = |(id, bytes)| if special.contains_key(&id) { &[][..] } else { AsRef::as_ref(bytes) };
        let texts: Vec<&[u8]> = (0..).zip(token_bytes).map(of).collect();
        let trie = TokenTrie::new(&texts).map_err(|error| EngineError::InvalidValue {
            name: "token_bytes",
            expected: "the tokens of a tokenizer".to_owned(),
            got: format!("others: {error}"),
        })?;
        let mut ends = Vec::with_capacity(texts.len());
        ends.extend(texts.iter().scan(0, |end, text| {
            *end += text.len();
            Some(*end)
        }));
        Ok(Self { trie, bytes: texts.concat(), ends, special })
    }

    /// Number of ids.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no id.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// What a token reads as; nothing for special tokens and unused ids.
    #[must_use]
    pub fn text(&self, token: u32) -> &[u8] {
        let index = token as usize;
        let start = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        let range = start.zip(self.ends.get(index)).map(|(start, end)| start..*end);
        range.and_then(|range| self.bytes.get(range)).unwrap_or_default()
    }

    /// The tokens that a grammar means by a name, those that end the text among them.
    fn named(&self, special: &Special) -> TokenMask {
        let mut tokens = TokenMask::none(self.len());
        for token in 0..self.len() as u32 {
            let text = self.text(token);
            let name = match self.special.get(&token) {
                Some(name) => name,
                None if text.is_empty() => continue,
                None => std::str::from_utf8(text).unwrap_or_default(),
            };
            if special.admits(token, name) {
                tokens.allow(token);
            }
        }
        tokens
    }
}

/// A position in a grammar, moved token by token.
#[derive(Debug)]
pub struct TokenGrammar {
    vocabulary: Arc<Vocabulary>,
    matcher: Matcher,
    masks: MaskCache,
    stop: Vec<u32>,
    /// The tokens that each name of the grammar means.
    specials: Vec<(SpecialId, TokenMask)>,
    /// The place before any token and behind each.
    marks: Vec<Mark>,
    finished: bool,
    /// The only token that may follow, until the position moves.
    narrowed: Option<u32>,
}

impl TokenGrammar {
    /// The position before any token.
    ///
    /// # Errors
    /// A limit that is hit at once, a stop token beyond the vocabulary, or a name in the grammar that means no token that
    /// may stand there.
    pub fn new(program: Arc<Program>, vocabulary: Arc<Vocabulary>, stop: &[u32]) -> Result<Self, EngineError> {
        if let Some(token) = stop.iter().find(|token| **token as usize >= vocabulary.len()) {
            return Err(EngineError::InvalidValue {
                name: "stop_ids",
                expected: format!("below the vocabulary size {}", vocabulary.len()),
                got: token.to_string(),
            });
        }
        let mut faults = Vec::new();
        let mut specials = Vec::new();
        for (id, special) in program.special_ids() {
            let mut tokens = vocabulary.named(special);
            let known = tokens.count() > 0;
            stop.iter().for_each(|token| tokens.forbid(*token));
            if tokens.count() == 0 {
                faults.push(nameless(special, known));
            }
            specials.push((id, tokens));
        }
        GrammarError::from_faults(faults)?;
        let matcher = Matcher::new(program).map_err(GrammarError::new)?;
        let (masks, marks, stop) = (MaskCache::new(), vec![matcher.mark()], stop.to_vec());
        Ok(Self { vocabulary, matcher, masks, stop, specials, marks, finished: false, narrowed: None })
    }

    /// Lets only this token follow until the position moves; false, and nothing changed, when it may not follow.
    ///
    /// # Errors
    /// A limit that was hit; the position is as it was.
    pub fn narrow(&mut self, token: u32) -> Result<bool, EngineError> {
        let len = self.len();
        let accepted = self.accept(token)?;
        if accepted {
            self.rewind(len);
            self.narrowed = Some(token);
        }
        Ok(accepted)
    }

    /// The tokens that may follow; only the one to which this place was narrowed, where it was.
    ///
    /// # Errors
    /// A limit that was hit; the position is as it was.
    pub fn mask(&mut self) -> Result<Arc<TokenMask>, EngineError> {
        if self.finished {
            return Ok(Arc::new(TokenMask::none(self.vocabulary.len())));
        }
        if let Some(token) = self.narrowed {
            let mut only = TokenMask::none(self.vocabulary.len());
            only.allow(token);
            return Ok(Arc::new(only));
        }
        let mut mask = match self.matcher.mask(&self.vocabulary.trie, &mut self.masks) {
            Some(mask) => mask,
            None => return Err(self.fault()),
        };
        let can_end = self.matcher.can_end();
        for allowed in self.matcher.allowed_specials() {
            let named = self.specials.iter().filter(|(id, _)| *id == allowed);
            named.for_each(|(_, tokens)| Arc::make_mut(&mut mask).allow_all(tokens));
        }
        for token in &self.stop {
            if can_end && !mask.allows(*token) {
                Arc::make_mut(&mut mask).allow(*token);
            } else if !can_end && mask.allows(*token) {
                Arc::make_mut(&mut mask).forbid(*token);
            }
        }
        Ok(mask)
    }

    /// Takes a token; false, and nothing changed, when it may not follow.
    ///
    /// # Errors
    /// A limit that was hit; the position is as it was.
    pub fn accept(&mut self, token: u32) -> Result<bool, EngineError> {
        if self.finished || self.narrowed.is_some_and(|only| only != token) {
            return Ok(false);
        }
        if self.stop.contains(&token) {
            self.finished = self.matcher.can_end();
            if self.finished {
                self.moved();
            }
            return Ok(self.finished);
        }
        let named = self.specials.iter().filter(|(_, tokens)| tokens.allows(token));
        let named: Vec<SpecialId> = named.map(|(id, _)| *id).collect();
        if self.matcher.accept_token(self.vocabulary.text(token), &named) {
            self.moved();
            return Ok(true);
        }
        if self.matcher.fault().is_some() { Err(self.fault()) } else { Ok(false) }
    }

    /// Takes one byte as text, as if it were a token; false, and nothing changed, when it may not follow.
    ///
    /// # Errors
    /// A limit that was hit; the position is as it was.
    pub fn accept_byte(&mut self, byte: u8) -> Result<bool, EngineError> {
        if self.finished || self.narrowed.is_some() {
            return Ok(false);
        }
        if self.matcher.accept(byte) {
            self.moved();
            return Ok(true);
        }
        if self.matcher.fault().is_some() { Err(self.fault()) } else { Ok(false) }
    }

    /// Notes that a token was taken.
    fn moved(&mut self) {
        self.narrowed = None;
        self.marks.push(self.matcher.mark());
    }

    /// The bytes that must follow, at most `limit`: while one byte, and nothing else, may come and the text cannot end.
    pub fn forced(&mut self, limit: usize) -> Vec<u8> {
        if self.finished { Vec::new() } else { self.matcher.forced(limit) }
    }

    /// The bytes that may follow.
    #[must_use]
    pub fn allowed_bytes(&self) -> ByteSet {
        if self.finished { ByteSet::EMPTY } else { self.matcher.allowed() }
    }

    /// Whether the text can end here, or has.
    #[must_use]
    pub fn can_end(&self) -> bool {
        self.matcher.can_end()
    }

    /// Whether a stop token was taken.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// How many tokens were taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.marks.len() - 1
    }

    /// Whether no token was taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Goes back to where `len` tokens were taken; the present and what lies ahead change nothing.
    pub fn rewind(&mut self, len: usize) {
        if let Some(mark) = self.marks.get(len).copied()
            && len < self.len()
        {
            self.marks.truncate(len + 1);
            self.matcher.rewind(mark);
            self.finished = false;
            self.narrowed = None;
        }
    }

    /// The limit that was hit; the position is what it was before.
    fn fault(&mut self) -> EngineError {
        let fault = self.matcher.fault().cloned();
        if let Some(mark) = self.marks.last() {
            self.matcher.rewind(*mark);
        }
        let unknown = || Fault::new(FaultCode::TooComplex, "the grammar cannot be followed any further");
        GrammarError::new(fault.unwrap_or_else(unknown)).into()
    }
}

/// The fault of a name that no token may stand for.
fn nameless(special: &Special, known: bool) -> Fault {
    let shown = shown(special);
    if known {
        Fault::new(FaultCode::DeadEnd, format!("the grammar names {shown}, which ends the text"))
            .why("such a token is allowed where the grammar ends, and nowhere else")
            .fix(format!("leave {shown} out of the grammar"))
    } else {
        Fault::new(FaultCode::Syntax, format!("the grammar names {shown}, which is no token of this model"))
            .why("a name in angle brackets is one token, by its text or, as in <[7]>, by its id")
            .fix("put the text in quotes, or name a token that the tokenizer has")
    }
}

/// The name as a grammar writes it.
fn shown(special: &Special) -> String {
    match special {
        Special::Text(text) => text.clone(),
        Special::Id(id) => format!("<[{id}]>"),
        Special::Not(other) => format!("!{}", shown(other)),
    }
}

#[cfg(test)]
#[path = "token_grammar/tests.rs"]
mod tests;
