//! What every structured-output source (a grammar, a schema, a tool list) offers to the token loop.

use crate::bytes::ByteSet;

/// A point in a constraint's input to which it can return: the number of bytes accepted so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub usize);

/// A language over bytes, walked one byte at a time.
///
/// An implementation holds the state reached by the bytes accepted so far. `allowed` and `can_end` describe
/// that state and do not change it; `accept` moves on; `rewind` returns to an earlier mark exactly, so that
/// `rewind` followed by the same bytes reaches the same state.
pub trait Constraint {
    /// The bytes that may follow. Empty when the input can only end here, or only go on with something else than a byte.
    fn allowed(&self) -> ByteSet;

    /// Takes one byte. Returns false, and leaves the state as it was, when the byte is not allowed.
    fn accept(&mut self, byte: u8) -> bool;

    /// Whether the bytes accepted so far are a complete member of the language.
    fn can_end(&self) -> bool;

    /// The present position.
    fn mark(&self) -> Mark;

    /// Returns to `mark`, which must not lie ahead of the present position.
    fn rewind(&mut self, mark: Mark);

    /// Whether something other than a byte, such as a special token, may follow.
    fn can_divert(&self) -> bool {
        false
    }

    /// The bytes that must follow: while exactly one byte, and nothing else, is allowed and the input cannot end.
    ///
    /// At most `limit` bytes are returned; the state is left as it was.
    fn forced(&mut self, limit: usize) -> Vec<u8> {
        let start = self.mark();
        let mut bytes = Vec::new();
        while bytes.len() < limit && !self.can_end() && !self.can_divert() {
            let Some(byte) = self.allowed().single() else { break };
            if !self.accept(byte) {
                break;
            }
            bytes.push(byte);
        }
        self.rewind(start);
        bytes
    }
}
