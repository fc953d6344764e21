//! Choices taken one after the other from the bytes of an input; when the bytes are used up, every choice is the first.

/// The rest of an input.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    /// The next byte; 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `limit`, which is at most 256 and not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    /// One of the list, which is not empty.
    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// True for one value in `of`; false when the input is used up.
    pub(crate) fn seldom(&mut self, of: u8) -> bool {
        self.byte() % of == of - 1
    }
}
