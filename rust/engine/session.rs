//! One text in progress: its tokens, its cache and the logits of its last token.
//!
//! Must hold: a stop keeps every whole chunk; an error inside a step poisons the session, not the model; rewinding to a
//! length gives exactly the state of a session that never went further.

use std::sync::{Arc, PoisonError};

use crate::config::Watch;
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
    logits: Vec<f32>, // [vocab], of the last token; empty if unknown
    poisoned: Option<String>,
}

impl Session {
    /// An empty session with room for `capacity` tokens.
    pub(crate) fn new(network: Arc<Network>, capacity: usize) -> Self {
        let cache = KvCache::new(&network.spec, capacity);
        let tokens = Vec::with_capacity(capacity);
        Self { network, cache, tokens, logits: Vec::new(), poisoned: None }
    }

    /// Takes tokens in, in chunks; afterwards [`Self::logits`] belongs to the last of them. No tokens change nothing.
    ///
    /// # Errors
    /// `ContextLengthExceeded` and `InvalidValue` before anything is done; `Cancelled` when the watcher says stop, and
    /// then whole chunks are kept ([`Self::len`] tells); any other error poisons the session.
    pub fn extend(&mut self, tokens: &[u32], watch: &dyn Watch) -> Result<(), EngineError> {
        self.usable()?;
        check(&self.network, tokens, self.tokens.len(), self.cache.capacity())?;
        if tokens.is_empty() {
            return Ok(());
        }
        let network = Arc::clone(&self.network);
        let mut scratch = network.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        self.logits.clear();
        let mut done = 0;
        for chunk in tokens.chunks(network.chunk) {
            let want = if done + chunk.len() == tokens.len() {
                self.logits.resize(network.spec.vocab_size, 0.0);
                Want::Last(&mut self.logits)
            } else {
                Want::Nothing
            };
            let progress = Progress { watch, done, total: tokens.len() };
            // Stands until the step is over, so that a panic inside it leaves a poisoned session as well.
            self.poisoned = Some("a step did not come to its end".to_owned());
            match network.forward(&mut self.cache, chunk, want, &mut scratch, progress, &mut Unobserved) {
                Ok(()) => self.poisoned = None,
                Err(error) => {
                    self.cache.truncate(self.tokens.len());
                    self.logits.clear();
                    let cancelled = error.code() == "cancelled";
                    self.poisoned = if cancelled { None } else { Some(error.to_string()) };
                    return Err(error);
                }
            }
            self.tokens.extend_from_slice(chunk);
            done += chunk.len();
        }
        Ok(())
    }

    /// Logits of the last token, `[vocab]`; `None` before the first token, after a stop, an error or a rewind.
    #[must_use]
    pub fn logits(&self) -> Option<&[f32]> {
        (!self.logits.is_empty() && self.poisoned.is_none()).then_some(&self.logits)
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

    /// Forgets all tokens from `len` on. The logits of an earlier token are not kept: take one token more back and
    /// extend by it again to get them.
    pub fn rewind(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.cache.truncate(len);
            self.logits.clear();
        }
    }

    /// Chooses the next token from the last row, and does not take it in.
    ///
    /// # Errors
    /// A parameter is out of range, there are no logits, or the session is poisoned.
    pub fn sample(&self, params: &SamplingParams) -> Result<Sampled, EngineError> {
        sample(&self.network.kernels, self.row()?, &self.tokens, params)
    }

    /// A copy of the last row after the penalties, `[vocab]`, for a caller that changes it before [`Self::choose`].
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub fn penalised(&self, params: &SamplingParams) -> Result<Vec<f32>, EngineError> {
        params.validate()?;
        let mut row = self.row()?.to_vec();
        penalise(&mut row, &self.tokens, params);
        Ok(row)
    }

    /// Chooses the next token from a row `[vocab]` that already holds the penalties.
    ///
    /// # Errors
    /// A parameter is out of range, or the row has another length or no finite value.
    pub fn choose(&self, row: &[f32], params: &SamplingParams) -> Result<Sampled, EngineError> {
        let vocab = self.network.spec.vocab_size;
        if row.len() != vocab {
            return Err(EngineError::InvalidValue {
                name: "logits",
                expected: format!("a row of {vocab} numbers"),
                got: row.len().to_string(),
            });
        }
        choose(&self.network.kernels, row, params, self.tokens.len() as u64)
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

    /// The last row, `[vocab]`.
    fn row(&self) -> Result<&[f32], EngineError> {
        self.usable()?;
        self.logits().ok_or_else(|| EngineError::InvalidValue {
            name: "session",
            expected: "extended by at least one token before sampling".to_owned(),
            got: format!("{} tokens without logits", self.tokens.len()),
        })
    }

    fn usable(&self) -> Result<(), EngineError> {
        match &self.poisoned {
            None => Ok(()),
            Some(reason) => Err(EngineError::SessionPoisoned { reason: reason.clone() }),
        }
    }
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
