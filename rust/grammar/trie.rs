//! The byte trie of a vocabulary: one walk finds every token whose bytes a constraint allows.
//!
//! The nodes lie in one array in depth-first order, each with the length of its subtree, so that a refused
//! byte skips the whole subtree by one addition and the walk never allocates. The layout follows the idea of
//! the `toktrie` of llguidance; tokens with the same bytes share a node.

use std::sync::Arc;

use crate::constraint::Constraint;
use crate::plain::{PlainKinds, PlainText, PlainTokens};

/// One bit per token id: whether the token may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    tokens: usize,
}

impl TokenMask {
    /// A mask over `tokens` ids that allows none of them.
    #[must_use]
    pub fn none(tokens: usize) -> TokenMask {
        TokenMask { words: vec![0; tokens.div_ceil(64)], tokens }
    }

    /// Allows `token`; ids beyond the vocabulary are ignored.
    pub fn allow(&mut self, token: u32) {
        if (token as usize) < self.tokens {
            self.words[token as usize / 64] |= 1 << (token % 64);
        }
    }

    /// Number of ids, allowed or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens
    }

    /// Whether there is no id.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Allows `token` no longer.
    pub fn forbid(&mut self, token: u32) {
        if (token as usize) < self.tokens {
            self.words[token as usize / 64] &= !(1 << (token % 64));
        }
    }

    /// Allows what `other` allows too; ids beyond the vocabulary are ignored.
    pub fn allow_all(&mut self, other: &TokenMask) {
        for token in other.iter() {
            self.allow(token);
        }
    }

    /// The allowed tokens in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).step_by(64).zip(&self.words).flat_map(|(first, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(first + bit)
            })
        })
    }

    /// Whether `token` is allowed.
    #[must_use]
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.tokens && self.words[token as usize / 64] >> (token % 64) & 1 == 1
    }

    /// The number of allowed tokens.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// A vocabulary that cannot be made into a trie.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TrieError {
    /// A token is longer than any tokenizer produces.
    #[error("token {token} has {length} bytes; at most {limit} are supported")]
    TokenTooLong {
        /// The token's id.
        token: u32,
        /// Its length in bytes.
        length: usize,
        /// [`TokenTrie::MAX_TOKEN_BYTES`].
        limit: usize,
    },
    /// More ids than fit a token id.
    #[error("the vocabulary has {0} tokens; ids are 32 bits wide")]
    TooManyTokens(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) byte: u8,
    pub(crate) depth: u16,
    /// Nodes in this subtree, itself included: the distance to the next sibling.
    pub(crate) subtree: u32,
    /// The first of the tokens that end at this node; those of the next node follow them.
    pub(crate) tokens: u32,
}

/// The vocabulary's token bytes as a depth-first array of nodes.
#[derive(Clone, Debug)]
pub struct TokenTrie {
    nodes: Vec<Node>,
    tokens: Vec<u32>,
    vocabulary: usize,
    longest: usize,
    plain: PlainKinds,
}

impl TokenTrie {
    /// The longest token in bytes; bounds the depth of every walk.
    pub const MAX_TOKEN_BYTES: usize = 4096;

    /// Builds the trie. `token_bytes[id]` are the bytes of token `id`; tokens without bytes (special tokens,
    /// unused ids) are not in the trie and therefore never produced by byte text.
    ///
    /// # Errors
    /// [`TrieError`] when a token or the vocabulary is beyond what the node layout holds.
    pub fn new<B: AsRef<[u8]>>(token_bytes: &[B]) -> Result<TokenTrie, TrieError> {
        let vocabulary = token_bytes.len();
        if u32::try_from(vocabulary).is_err() {
            return Err(TrieError::TooManyTokens(vocabulary));
        }
        let mut order: Vec<(&[u8], u32)> = Vec::with_capacity(vocabulary);
        for (bytes, token) in token_bytes.iter().map(AsRef::as_ref).zip(0u32..) {
            if bytes.len() > Self::MAX_TOKEN_BYTES {
                return Err(TrieError::TokenTooLong { token, length: bytes.len(), limit: Self::MAX_TOKEN_BYTES });
            }
            if !bytes.is_empty() {
                order.push((bytes, token));
            }
        }
        order.sort_unstable();
        let longest = order.iter().map(|(bytes, _)| bytes.len()).max().unwrap_or(0);
        let (nodes, tokens) = (Vec::new(), Vec::with_capacity(order.len()));
        let mut trie = TokenTrie { nodes, tokens, vocabulary, longest, plain: PlainKinds::default() };
        let mut path: Vec<usize> = Vec::new();
        let mut previous: &[u8] = &[];
        for (bytes, token) in order {
            let shared = previous.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            trie.close(&mut path, shared);
            for &byte in &bytes[shared..] {
                path.push(trie.nodes.len());
                let tokens = trie.tokens.len() as u32;
                trie.nodes.push(Node { byte, depth: path.len() as u16, subtree: 0, tokens });
            }
            trie.tokens.push(token);
            previous = bytes;
        }
        trie.close(&mut path, 0);
        trie.nodes.shrink_to_fit();
        Ok(trie)
    }

    /// The tokens that end at a node.
    #[inline]
    fn ending(&self, node: usize) -> &[u32] {
        let start = self.nodes[node].tokens as usize;
        let end = self.nodes.get(node + 1).map_or(self.tokens.len(), |next| next.tokens as usize);
        &self.tokens[start..end]
    }

    /// The tokens that are plain text of a kind.
    pub(crate) fn plain(&self, kind: PlainText) -> Arc<PlainTokens> {
        self.plain.of(kind, &self.nodes, &self.tokens, self.vocabulary)
    }

    /// Ends the subtrees below depth `keep`.
    fn close(&mut self, path: &mut Vec<usize>, keep: usize) {
        while path.len() > keep {
            if let Some(node) = path.pop() {
                self.nodes[node].subtree = (self.nodes.len() - node) as u32;
            }
        }
    }

    /// The number of token ids, those without bytes included.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Length of the longest token in bytes.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The tokens whose whole byte string leads from `start` through `step`, which gives the state after a byte, if any.
    ///
    /// `step` sees the states from `start` to the present one and may rename them. Plain tokens of at most so many
    /// characters, if any are given, are known to fit and not walked.
    pub(crate) fn walk<S: Copy, E>(
        &self,
        start: S,
        plain: Option<(&PlainTokens, usize)>,
        step: &mut impl FnMut(&mut [S], u8) -> Result<Option<S>, E>,
    ) -> Result<TokenMask, E> {
        let mut mask = plain.map_or_else(|| TokenMask::none(self.vocabulary), |(tokens, most)| tokens.mask(most));
        let mut path: Vec<S> = vec![start];
        let mut index = 0;
        while let Some(node) = self.nodes.get(index) {
            if plain.is_some_and(|(tokens, most)| tokens.covers(index, most)) {
                index += node.subtree as usize;
                continue;
            }
            path.truncate(usize::from(node.depth));
            // The path now holds the start and one state for each byte above this node.
            let Some(next) = step(&mut path, node.byte)? else {
                index += node.subtree as usize;
                continue;
            };
            path.push(next);
            for &token in self.ending(index) {
                mask.allow(token);
            }
            index += 1;
        }
        Ok(mask)
    }

    /// Every token whose whole byte string `constraint` accepts from its present state, which is left as it was.
    pub fn mask(&self, constraint: &mut dyn Constraint) -> TokenMask {
        let mut mask = TokenMask::none(self.vocabulary);
        let mut marks = vec![constraint.mark()];
        let mut index = 0;
        while let Some(node) = self.nodes.get(index) {
            let depth = usize::from(node.depth);
            if depth < marks.len() {
                marks.truncate(depth);
                constraint.rewind(marks[depth - 1]);
            }
            if !constraint.accept(node.byte) {
                index += node.subtree as usize;
                continue;
            }
            marks.push(constraint.mark());
            for &token in self.ending(index) {
                mask.allow(token);
            }
            index += 1;
        }
        constraint.rewind(marks[0]);
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::ByteSet;
    use crate::constraint::Mark;

    /// Accepts the prefixes of a fixed list of words.
    struct Words {
        words: Vec<&'static [u8]>,
        read: Vec<u8>,
    }

    impl Constraint for Words {
        fn allowed(&self) -> ByteSet {
            self.words
                .iter()
                .filter(|word| word.starts_with(&self.read))
                .filter_map(|word| word.get(self.read.len()).copied())
                .collect()
        }
        fn accept(&mut self, byte: u8) -> bool {
            let allowed = self.allowed().contains(byte);
            if allowed {
                self.read.push(byte);
            }
            allowed
        }
        fn can_end(&self) -> bool {
            self.words.contains(&self.read.as_slice())
        }
        fn mark(&self) -> Mark {
            Mark(self.read.len())
        }
        fn rewind(&mut self, mark: Mark) {
            self.read.truncate(mark.0);
        }
    }

    fn words(words: &[&'static [u8]]) -> Words {
        Words { words: words.to_vec(), read: Vec::new() }
    }

    #[test]
    fn mask_equals_trying_every_token() {
        let vocabulary: Vec<&[u8]> =
            vec![b"a", b"ab", b"", b"b", b"abc", b"ab", b"\xff", b"c", b"bc", b"abd", b"bcx", b"x"];
        let trie = TokenTrie::new(&vocabulary).unwrap();
        let mut language = words(&[b"abcx", b"bc", b"c"]);
        for prefix in [&b""[..], b"a", b"ab", b"b", b"abcx"] {
            language.read = prefix.to_vec();
            let mask = trie.mask(&mut language);
            assert_eq!(language.read, prefix, "the walk must leave the state as it was");
            for (token, bytes) in vocabulary.iter().enumerate() {
                let mark = language.mark();
                let accepted = !bytes.is_empty() && bytes.iter().all(|byte| language.accept(*byte));
                language.rewind(mark);
                assert_eq!(mask.allows(token as u32), accepted, "token {token} after {prefix:?}");
            }
        }
    }

    #[test]
    fn forced_bytes_stop_at_a_choice_and_at_an_end() {
        assert_eq!(words(&[b"true", b"trial"]).forced(16), b"tr");
        assert_eq!(words(&[b"one", b"one more"]).forced(16), b"one");
        assert_eq!(words(&[b"longer"]).forced(3), b"lon");
    }

    #[test]
    fn empty_vocabulary_and_long_tokens() {
        let empty: [&[u8]; 0] = [];
        assert_eq!(TokenTrie::new(&empty).unwrap().mask(&mut words(&[b"a"])).count(), 0);
        let long = vec![b'a'; TokenTrie::MAX_TOKEN_BYTES + 1];
        assert!(matches!(TokenTrie::new(&[long]), Err(TrieError::TokenTooLong { token: 0, .. })));
    }

    #[test]
    fn mask_ignores_ids_beyond_the_vocabulary() {
        let mut mask = TokenMask::none(65);
        mask.allow(64);
        mask.allow(65);
        assert!(mask.allows(64) && !mask.allows(65));
        assert_eq!(mask.count(), 1);
        let mut other = TokenMask::none(128);
        [0, 63, 64, 70].into_iter().for_each(|token| other.allow(token));
        mask.allow_all(&other);
        assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 63, 64]);
        [63, 65, 1000].into_iter().for_each(|token| mask.forbid(token));
        assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 64]);
    }
}
