//! A set of bytes as four machine words: what a grammar allows next.

/// A set over the 256 byte values; copying it is as cheap as copying four words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ByteSet {
    words: [u64; 4],
}

impl ByteSet {
    /// The set without any byte.
    pub const EMPTY: ByteSet = ByteSet { words: [0; 4] };
    /// The set of all 256 bytes.
    pub const FULL: ByteSet = ByteSet { words: [u64::MAX; 4] };

    /// Adds one byte.
    pub fn insert(&mut self, byte: u8) {
        self.words[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    /// Whether `byte` is in the set.
    #[must_use]
    pub fn contains(&self, byte: u8) -> bool {
        self.words[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }

    /// The bytes of either set.
    #[must_use]
    pub fn union(self, other: ByteSet) -> ByteSet {
        ByteSet { words: std::array::from_fn(|i| self.words[i] | other.words[i]) }
    }

    /// The bytes outside of the set.
    #[must_use]
    pub fn complement(self) -> ByteSet {
        ByteSet { words: self.words.map(|word| !word) }
    }

    /// The number of bytes in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no byte is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words == [0; 4]
    }

    /// The only member, when there is exactly one: the byte that is forced.
    #[must_use]
    pub fn single(&self) -> Option<u8> {
        if self.len() == 1 { self.iter().next() } else { None }
    }

    /// The members in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|byte| self.contains(*byte))
    }
}

impl FromIterator<u8> for ByteSet {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Self {
        let mut set = ByteSet::EMPTY;
        for byte in bytes {
            set.insert(byte);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_exactly_what_was_inserted() {
        let set: ByteSet = [0, 63, 64, 127, 128, 255].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 127, 128, 255]);
        assert_eq!(set.len(), 6);
        assert!(!set.contains(1));
        assert_eq!(ByteSet::FULL.len(), 256);
    }

    #[test]
    fn only_a_set_of_one_is_forced() {
        assert_eq!(ByteSet::EMPTY.single(), None);
        assert_eq!(ByteSet::from_iter([200]).single(), Some(200));
        assert_eq!(ByteSet::from_iter([1, 200]).single(), None);
    }
}
