//! Every setting of the engine, typed, defaulted and documented, and the watcher through which a caller follows
//! long work. Nothing here reads the environment or a file.

use colibri_kernels::act::Numerics;
use colibri_kernels::pool::SERIAL_WORK;
use colibri_store::budget::{ContextRequest, IoRequest, RamLimit};

/// Rows of a prefill chunk when none is asked for. Each distinct expert of a layer is read once for each chunk.
pub const DEFAULT_PREFILL_CHUNK: usize = 256;

/// Tokens that a draft may have: so many rows of logits a session keeps at most.
pub const DRAFT_TOKENS: usize = 64;

/// How a model is opened.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Memory that the whole process may use.
    pub ram: RamLimit,
    /// Tokens that a session can hold.
    pub context: ContextRequest,
    /// Compute threads; `None` takes the physical cores that the process may use.
    pub threads: Option<usize>,
    /// How weights are read.
    pub io: IoRequest,
    /// Activation precision.
    pub numerics: Numerics,
    /// Name of the kernel set, or `auto`.
    pub kernels: String,
    /// Exact number of expert slots instead of the budget's; a test hook.
    pub slots: Option<usize>,
    /// Multiply-adds from which work is shared between threads; a test hook, results never depend on it.
    pub serial_work: usize,
    /// Rows of a prefill chunk; `None` takes [`DEFAULT_PREFILL_CHUNK`].
    pub prefill_chunk: Option<usize>,
    /// Threads that read experts.
    pub io_workers: usize,
    /// Name of the expert cache policy.
    pub policy: String,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            ram: RamLimit::Auto,
            context: ContextRequest::Auto,
            threads: None,
            io: IoRequest::Auto,
            numerics: Numerics::Quantized,
            kernels: "auto".to_owned(),
            slots: None,
            serial_work: SERIAL_WORK,
            prefill_chunk: None,
            io_workers: 4,
            policy: "lru".to_owned(),
        }
    }
}

impl EngineConfig {
    /// Rows of a prefill chunk.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.prefill_chunk.unwrap_or(DEFAULT_PREFILL_CHUNK).max(1)
    }
}

/// What the engine is doing when it reports progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Resident weights are read; the unit is bytes.
    Load,
    /// A prompt is processed; the unit is tokens.
    Prefill,
    /// One token is processed; the unit is layers.
    Decode,
    /// A checkpoint is converted; the unit is bytes.
    Convert,
    /// A container is checked; the unit is bytes.
    Verify,
}

impl Phase {
    /// The name used in progress events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Convert => "convert",
            Self::Verify => "verify",
        }
    }
}

/// The watcher's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Continue,
    /// Stop at the next safe point, which is here.
    Stop,
}

/// Receives progress and says whether to go on. Called between layers, so it must be cheap.
pub trait Watch: Sync {
    /// `done` of `total` units of `phase` are finished.
    fn progress(&self, phase: Phase, done: u64, total: u64) -> Control;
}

/// A watcher that never stops anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWatch;

impl Watch for NoWatch {
    fn progress(&self, _phase: Phase, _done: u64, _total: u64) -> Control {
        Control::Continue
    }
}
