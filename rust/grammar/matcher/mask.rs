//! Token masks: one walk of the vocabulary's trie along the transition table, kept by state.

use std::collections::HashMap;
use std::sync::Arc;

use super::Matcher;
use super::arena::{DEAD, StateId};
use crate::error::Fault;
use crate::trie::{TokenMask, TokenTrie};

/// Bytes of masks that are kept.
pub(super) const KEPT_BYTES: usize = 12 << 20;

/// The masks of one vocabulary, kept by state. Another matcher than before empties it.
#[derive(Debug, Default)]
pub struct MaskCache {
    masks: HashMap<StateId, Arc<TokenMask>>,
    epoch: u64,
}

impl MaskCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory of the masks that are kept, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.masks.values().map(|mask| mask.len().div_ceil(8)).sum()
    }
}

impl Matcher {
    /// Every token of the trie whose whole text may follow. `None` when a limit was hit on the way.
    ///
    /// Counts far from their bounds do not change which tokens fit; states that differ in them alone share a mask.
    pub fn mask(&mut self, trie: &TokenTrie, cache: &mut MaskCache) -> Option<Arc<TokenMask>> {
        if self.fault.is_some() {
            return None;
        }
        match self.find_mask(trie, cache) {
            Ok(mask) => Some(mask),
            Err(fault) => {
                self.fault = Some(fault);
                None
            }
        }
    }

    fn find_mask(&mut self, trie: &TokenTrie, cache: &mut MaskCache) -> Result<Arc<TokenMask>, Fault> {
        self.arena.begin();
        self.make_room(&mut [])?;
        // Ranges of one byte more than the longest token, for the round that the first byte may complete.
        let reach = trie.longest() as u32 + 1;
        let mut start = self.arena.clip(&self.program, self.state(), reach)?;
        if cache.epoch == self.epoch
            && let Some(known) = cache.masks.get(&start)
        {
            return Ok(Arc::clone(known));
        }
        let run = self.arena.plain_run(&self.program, start, trie.longest())?;
        let plain = run.map(|(kind, most)| (trie.plain(kind), most));
        let known = plain.as_ref().map(|(tokens, most)| (&**tokens, *most));
        let mask = trie.walk(start, known, &mut |path: &mut [StateId], byte| {
            let Some(state) = path.last() else { return Ok(None) };
            let mut next = [self.arena.step(&self.program, *state, byte)?];
            if next[0] == DEAD {
                return Ok(None);
            }
            if self.arena.bytes() > self.room {
                // The walk's own states stay, whatever else goes.
                self.collect(&mut [&mut next, path])?;
                start = path.first().copied().unwrap_or(start);
            }
            Ok(Some(next[0]))
        })?;
        let mask = Arc::new(mask);
        if cache.epoch != self.epoch || (cache.masks.len() + 1) * trie.vocabulary().div_ceil(8) > KEPT_BYTES {
            cache.masks.clear();
            cache.epoch = self.epoch;
        }
        cache.masks.insert(start, Arc::clone(&mask));
        Ok(mask)
    }
}
