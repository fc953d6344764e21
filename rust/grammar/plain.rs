//! Tokens of plain text: those that a state such as the inside of a string takes whole, found once for a vocabulary.
//!
//! Inside of a string most bytes lead back to where they came from, or one count further. Walking the whole trie to find
//! that nearly every token fits is what makes such masks slow; llguidance avoids it by preparing masks of fixed patterns
//! (its slices). Here the patterns follow from the grammar: a [`PlainText`] are the characters that lead on alike, and
//! for each of them the tokens that hold nothing else are listed once, by their number of characters. A walk then
//! visits only the others.

use std::sync::{Arc, Mutex, PoisonError};

use crate::bytes::ByteSet;
use crate::trie::{Node, TokenMask};
use crate::utf8::{self, Sequence};

/// Characters that lead on alike: some of ASCII, and either all others or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainText {
    pub(crate) ascii: ByteSet,
    pub(crate) others: bool,
}

/// The tokens of one vocabulary that are plain text of one kind.
#[derive(Debug)]
pub(crate) struct PlainTokens {
    kind: PlainText,
    /// For each node of the trie the most characters of a token at or below it, a character begun at the end of a token
    /// included; [`PlainTokens::MIXED`] where one of the tokens is not plain, `[nodes]`.
    characters: Box<[u8]>,
    /// All plain tokens by their number of characters, `[plain tokens]`.
    tokens: Box<[u32]>,
    /// How many plain tokens have at most so many characters.
    ends: Box<[u32]>,
    mask: TokenMask,
}

impl PlainTokens {
    const MIXED: u8 = u8::MAX;
    /// The most characters of a token that counts as plain.
    pub(crate) const MOST: usize = 254;

    fn new(kind: PlainText, nodes: &[Node], tokens: &[u32], vocabulary: usize) -> Self {
        let encodings = utf8::sequences(0x80, utf8::LAST);
        let mut characters = vec![Self::MIXED; nodes.len()].into_boxed_slice();
        let mut by_length: Vec<Vec<u32>> = Vec::new();
        let mut path = vec![Place { characters: 0, begun: None }];
        let mut index = 0;
        while let Some(node) = nodes.get(index) {
            path.truncate(usize::from(node.depth));
            let next = path.last().and_then(|place| kind.next(&encodings, *place, node.byte));
            let Some(next) = next.filter(|next| next.characters <= Self::MOST) else {
                index += node.subtree as usize;
                continue;
            };
            characters[index] = next.characters as u8;
            by_length.resize_with(by_length.len().max(next.characters + 1), Vec::new);
            let end = nodes.get(index + 1).map_or(tokens.len(), |next| next.tokens as usize);
            by_length[next.characters].extend(&tokens[node.tokens as usize..end]);
            path.push(next);
            index += 1;
        }
        Self::gather(nodes, &mut characters);
        let mut mask = TokenMask::none(vocabulary);
        by_length.iter().flatten().for_each(|token| mask.allow(*token));
        let lengths = by_length.iter().map(|list| list.len() as u32);
        let ends = lengths.scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        Self { kind, characters, ends: ends.collect(), tokens: by_length.concat().into(), mask }
    }

    /// Turns what each node has into the most of its subtree: from the last node on, each is told to its parent.
    fn gather(nodes: &[Node], characters: &mut [u8]) {
        // The most below the nodes whose parents are still to come, by depth.
        let mut below: Vec<u8> = Vec::new();
        for (node, own) in nodes.iter().zip(characters.iter_mut()).rev() {
            let depth = usize::from(node.depth);
            below.resize(below.len().max(depth + 2), 0);
            *own = (*own).max(std::mem::take(&mut below[depth + 1]));
            below[depth] = below[depth].max(*own);
        }
    }

    /// The plain tokens of at most so many characters.
    pub(crate) fn mask(&self, most: usize) -> TokenMask {
        let end = self.ends.get(most).map_or(self.tokens.len(), |end| *end as usize);
        let (short, long) = self.tokens.split_at(end);
        if long.len() < short.len() {
            let mut mask = self.mask.clone();
            long.iter().for_each(|token| mask.forbid(*token));
            return mask;
        }
        let mut mask = TokenMask::none(self.mask.len());
        short.iter().for_each(|token| mask.allow(*token));
        mask
    }

    /// Whether the node and all below it are plain and have at most so many characters.
    #[inline]
    pub(crate) fn covers(&self, node: usize, most: usize) -> bool {
        usize::from(self.characters[node]) <= most.min(Self::MOST)
    }
}

/// A place within plain text.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Characters before it, a begun one included.
    characters: usize,
    /// What must follow to finish the begun one.
    begun: Option<&'a [(u8, u8)]>,
}

impl PlainText {
    /// The place behind a byte, if the byte is plain there.
    fn next<'a>(&self, encodings: &'a [Sequence], from: Place<'a>, byte: u8) -> Option<Place<'a>> {
        let fits = |range: &(u8, u8)| (range.0..=range.1).contains(&byte);
        if let Some((first, rest)) = from.begun.and_then(<[_]>::split_first) {
            return fits(first).then_some(Place { begun: Some(rest), ..from });
        }
        let characters = from.characters + 1;
        if byte.is_ascii() {
            return self.ascii.contains(byte).then_some(Place { characters, begun: None });
        }
        // First bytes tell the encodings apart.
        let encoding = encodings.iter().find(|encoding| fits(&encoding[0])).filter(|_| self.others)?;
        Some(Place { characters, begun: Some(&encoding[1..]) })
    }
}

/// The kinds of plain text that a vocabulary was asked for, the last used at the end.
#[derive(Debug, Default)]
pub(crate) struct PlainKinds(Mutex<Vec<Arc<PlainTokens>>>);

impl PlainKinds {
    /// Kinds that are kept: each takes about nine bytes for every token.
    const MOST: usize = 6;

    /// The plain tokens of a kind, made when they are first asked for.
    pub(crate) fn of(&self, kind: PlainText, nodes: &[Node], tokens: &[u32], vocabulary: usize) -> Arc<PlainTokens> {
        // Whoever panicked while holding the list left it whole.
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match kinds.iter().position(|known| known.kind == kind) {
            Some(place) => kinds.remove(place),
            None => Arc::new(PlainTokens::new(kind, nodes, tokens, vocabulary)),
        };
        if kinds.len() >= Self::MOST {
            kinds.remove(0);
        }
        kinds.push(Arc::clone(&found));
        found
    }
}

impl Clone for PlainKinds {
    fn clone(&self) -> Self {
        Self::default()
    }
}
