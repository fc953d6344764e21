//! One text in progress: its tokens, its cache and the logits of its last tokens.
//!
//! A draft is taken in at once with [`Session::extend_all`], which keeps the row of each of its tokens; whoever checks it
//! chooses the token of each position from the row before it ([`Session::sample_at`]) and rewinds to the first that differs.
//!
//! Must hold: a stop keeps every whole chunk; an error inside a step poisons the session, not the model; rewinding to a
//! length gives exactly the state of a session that never went further, and leaves the rows of earlier tokens; a token is
//! chosen at a position as if nothing had been taken in behind it.

use std::sync::{Arc, PoisonError};

use colibri_grammar::TokenMask;
use colibri_store::memory;

use crate::config::{DRAFT_TOKENS, Phase, Watch};
use crate::error::EngineError;
use crate::forward::{Network, Progress, Want};
use crate::kv::KvCache;
use crate::observe::Unobserved;
use crate::sample::{Sampled, SamplingParams, choose, penalise, sample};

/// One text in progress.
pub struct Session {
    network: Arc<Network>,
    cache: KvCache,
    tokens: Vec<u32>,
    rows: Vec<f32>, // [kept, vocab], of the last tokens; empty if unknown
    poisoned: Option<String>,
}

impl Session {
    /// An empty session with room for `capacity` tokens.
    pub(crate) fn new(network: Arc<Network>, capacity: usize) -> Self {
        let cache = KvCache::new(&network.spec, capacity);
        let tokens = Vec::with_capacity(capacity);
        Self { network, cache, tokens, rows: Vec::new(), poisoned: None }
    }

    /// Takes tokens in, in chunks; afterwards [`Self::logits`] belongs to the last of them. No tokens change nothing.
    ///
    /// # Errors
    /// `ContextLengthExceeded` and `InvalidValue` before anything is done; `Cancelled` when the watcher says stop, and
    /// then whole chunks are kept ([`Self::len`] tells); any other error poisons the session.
    pub fn extend(&mut self, tokens: &[u32], watch: &dyn Watch) -> Result<(), EngineError> {
        let phase = if tokens.len() == 1 { Phase::Decode } else { Phase::Prefill };
        self.take_in(tokens, Keep::Last, phase, watch)
    }

    /// Takes the tokens of a draft in and keeps the row of each of them, [`DRAFT_TOKENS`] at most. To the watcher it is
    /// one step of decoding.
    ///
    /// # Errors
    /// As [`Self::extend`]; too many tokens are `InvalidValue`.
    pub fn extend_all(&mut self, tokens: &[u32], watch: &dyn Watch) -> Result<(), EngineError> {
        if tokens.len() > DRAFT_TOKENS {
            return Err(EngineError::InvalidValue {
                name: "draft",
                expected: format!("at most {DRAFT_TOKENS} tokens"),
                got: tokens.len().to_string(),
            });
        }
        self.take_in(tokens, Keep::All, Phase::Decode, watch)
    }

    fn take_in(&mut self, tokens: &[u32], keep: Keep, phase: Phase, watch: &dyn Watch) -> Result<(), EngineError> {
        self.usable()?;
        check(&self.network, tokens, self.tokens.len(), self.cache.capacity())?;
        if tokens.is_empty() {
            return Ok(());
        }
        let network = Arc::clone(&self.network);
        let mut scratch = network.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let vocab = network.spec.vocab_size;
        let kept = if keep == Keep::All { tokens.len() } else { 1 };
        self.rows.clear();
        memory::resize(&mut self.rows, kept * vocab)?;
        let mut done = 0;
        for chunk in tokens.chunks(network.chunk) {
            let end = done + chunk.len();
            let want = match keep {
                Keep::All => Want::All(&mut self.rows[done * vocab..end * vocab]),
                Keep::Last if end == tokens.len() => Want::Last(&mut self.rows),
                Keep::Last => Want::Nothing,
            };
            let progress = Progress { watch, phase, done, total: tokens.len() };
            // Stands until the step is over, so that a panic inside it leaves a poisoned session as well.
            self.poisoned = Some("a step did not come to its end".to_owned());
            match network.forward(&mut self.cache, chunk, want, &mut scratch, progress, &mut Unobserved) {
                Ok(()) => self.poisoned = None,
                Err(error) => {
                    self.cache.truncate(self.tokens.len());
                    self.rows.clear();
                    let cancelled = error.code() == "cancelled";
                    self.poisoned = if cancelled { None } else { Some(error.to_string()) };
                    return Err(error);
                }
            }
            self.tokens.extend_from_slice(chunk);
            done = end;
        }
        Ok(())
    }

    /// Logits of the last token, `[vocab]`; `None` before the first token, after a stop, an error, or a rewind to a token
    /// whose row is not kept.
    #[must_use]
    pub fn logits(&self) -> Option<&[f32]> {
        self.row_at(self.tokens.len())
    }

    /// The row `[vocab]` that the token with the index `position` is chosen from, which is that of the token before it;
    /// `None` where it is not kept.
    #[must_use]
    pub fn row_at(&self, position: usize) -> Option<&[f32]> {
        let vocab = self.network.spec.vocab_size;
        if position > self.tokens.len() || self.poisoned.is_some() {
            return None;
        }
        // The kept rows belong to the last tokens.
        let kept = self.rows.len() / vocab.max(1);
        let row = (position + kept).checked_sub(self.tokens.len() + 1)?;
        self.rows.get(row * vocab..(row + 1) * vocab)
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// All tokens so far.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that the session can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.cache.capacity()
    }

    /// Forgets all tokens from `len` on. The rows of earlier tokens stay where they are kept: those of the last
    /// [`Self::extend_all`], or that of the last token. To get an older one, take one token more back and extend by it
    /// again.
    pub fn rewind(&mut self, len: usize) {
        let Some(forgotten) = self.tokens.len().checked_sub(len) else { return };
        self.tokens.truncate(len);
        self.cache.truncate(len);
        let rows = forgotten.saturating_mul(self.network.spec.vocab_size);
        self.rows.truncate(self.rows.len().saturating_sub(rows));
    }

    /// Chooses the next token from the last row, and does not take it in.
    ///
    /// # Errors
    /// As [`Self::sample_at`].
    pub fn sample(&self, params: &SamplingParams) -> Result<Sampled, EngineError> {
        self.sample_at(self.tokens.len(), params, None)
    }

    /// Chooses the token with the index `position` from the tokens that the mask allows, as if no token from there on had
    /// been taken in.
    ///
    /// # Errors
    /// A parameter is out of range, the row is not kept, nothing is allowed, or the session is poisoned.
    pub fn sample_at(
        &self,
        position: usize,
        params: &SamplingParams,
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, EngineError> {
        let (row, history) = self.before(position)?;
        sample(&self.network.kernels, row, history, params, mask)
    }

    /// A copy of the row for `position` after the penalties, `[vocab]`, for a caller that changes it before
    /// [`Self::choose`].
    ///
    /// # Errors
    /// As [`Self::sample_at`].
    pub fn penalised(&self, position: usize, params: &SamplingParams) -> Result<Vec<f32>, EngineError> {
        params.validate()?;
        let (row, history) = self.before(position)?;
        let mut row = row.to_vec();
        penalise(&mut row, history, params);
        Ok(row)
    }

    /// Chooses the token with the index `position` from a row `[vocab]` that already holds the penalties.
    ///
    /// # Errors
    /// A parameter is out of range, nothing is allowed, or the row has another length or no finite value.
    pub fn choose(
        &self,
        position: usize,
        row: &[f32],
        params: &SamplingParams,
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, EngineError> {
        let vocab = self.network.spec.vocab_size;
        if row.len() != vocab {
            return Err(EngineError::InvalidValue {
                name: "logits",
                expected: format!("a row of {vocab} numbers"),
                got: row.len().to_string(),
            });
        }
        choose(&self.network.kernels, row, params, position as u64, mask)
    }

    /// Chooses the next token and takes it in.
    ///
    /// # Errors
    /// As [`Self::sample`] and [`Self::extend`].
    pub fn step(&mut self, params: &SamplingParams, watch: &dyn Watch) -> Result<Sampled, EngineError> {
        let sampled = self.sample(params)?;
        self.extend(&[sampled.token], watch)?;
        Ok(sampled)
    }

    /// The row for `position`, `[vocab]`, and the tokens before it.
    fn before(&self, position: usize) -> Result<(&[f32], &[u32]), EngineError> {
        self.usable()?;
        let row = self.row_at(position).ok_or_else(|| EngineError::InvalidValue {
            name: "session",
            expected: "extended by at least one token before sampling".to_owned(),
            got: format!("{} tokens without logits for position {position}", self.tokens.len()),
        })?;
        Ok((row, &self.tokens[..position]))
    }

    fn usable(&self) -> Result<(), EngineError> {
        match &self.poisoned {
            None => Ok(()),
            Some(reason) => Err(EngineError::SessionPoisoned { reason: reason.clone() }),
        }
    }
}

/// Which rows a step keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Last,
    All,
}

/// Refuses tokens outside of the vocabulary and texts longer than the context.
pub(crate) fn check(network: &Network, tokens: &[u32], held: usize, capacity: usize) -> Result<(), EngineError> {
    let vocab = network.spec.vocab_size;
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
        return Err(EngineError::InvalidValue {
            name: "token",
            expected: format!("below the vocabulary size {vocab}"),
            got: token.to_string(),
        });
    }
    let total = held.saturating_add(tokens.len());
    if total > capacity {
        return Err(EngineError::ContextLengthExceeded { tokens: total, context: capacity });
    }
    Ok(())
}
