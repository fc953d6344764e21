//! Following work from Python: stop on request, stop by the clock, hand on progress and the interpreter's signals.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use colibri_engine::{Control, EngineError, Phase, Watch};
use pyo3::marker::Ungil;
use pyo3::prelude::*;

use crate::error::{detached, invalid};

/// The interpreter is asked for signals, and told about progress, at most this often.
const INTERVAL: Duration = Duration::from_millis(100);

/// Hands on the interpreter's signals while work that tells nothing runs without its lock.
pub(crate) struct Signals {
    asked: Instant,
}

impl Signals {
    /// For work that begins now.
    pub(crate) fn new() -> Self {
        Self { asked: Instant::now() }
    }

    /// Asks the interpreter if it is time to. Called often, and without the interpreter lock.
    ///
    /// # Errors
    /// What a signal handler raised; only the interpreter's main thread runs handlers.
    pub(crate) fn check(&mut self) -> PyResult<()> {
        if self.asked.elapsed() < INTERVAL {
            return Ok(());
        }
        self.asked = Instant::now();
        Python::attach(|py| py.check_signals())
    }
}

/// Stops running work from any thread or signal handler.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct CancelToken {
    flag: Arc<AtomicBool>,
}

#[pymethods]
impl CancelToken {
    #[new]
    fn new() -> Self {
        Self { flag: Arc::default() }
    }

    /// Asks the work that holds this token to stop at the next layer boundary.
    fn cancel(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Whether `cancel` was called.
    #[getter]
    fn cancelled(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    fn __repr__(&self) -> String {
        format!("CancelToken(cancelled={})", if self.cancelled() { "True" } else { "False" })
    }
}

/// Why work was stopped; the numbers are those of `Watcher::stopped`.
const RUNNING: u8 = 0;
const CANCELLED: u8 = 1;
const TIMEOUT: u8 = 2;

/// Follows work: stops it on request or by the clock, passes on progress and the interpreter's signals.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct Watcher {
    cancel: Vec<Arc<AtomicBool>>,
    deadline: Option<Instant>,
    on_progress: Option<Py<PyAny>>,
    stopped: AtomicU8,
    /// Whether the call in progress came from the interpreter's main thread, the only one that handles signals.
    on_main_thread: AtomicBool,
    polled: Mutex<Instant>,
    /// What a signal handler or the callback raised; the binding raises it in place of "stopped".
    raised: Mutex<Option<PyErr>>,
}

#[pymethods]
impl Watcher {
    #[new]
    fn new(
        cancel: Vec<PyRef<'_, CancelToken>>,
        timeout: Option<f64>,
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let now = Instant::now();
        let deadline = match timeout {
            None => None,
            Some(seconds) => {
                let wrong = || invalid("timeout", &seconds.to_string(), "a number of seconds above 0");
                let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
                Some(now.checked_add(duration).ok_or_else(wrong)?)
            }
        };
        Ok(Self {
            cancel: cancel.iter().map(|token| Arc::clone(&token.flag)).collect(),
            deadline,
            on_progress,
            stopped: AtomicU8::new(RUNNING),
            on_main_thread: AtomicBool::new(false),
            polled: Mutex::new(now),
            raised: Mutex::new(None),
        })
    }

    /// Why it stopped the work: `cancelled`, `timeout`, or None.
    #[getter]
    fn stopped(&self) -> Option<&'static str> {
        match self.stopped.load(Ordering::Relaxed) {
            CANCELLED => Some("cancelled"),
            TIMEOUT => Some("timeout"),
            _ => None,
        }
    }
}

impl Watcher {
    /// Runs `work` without the interpreter lock. What a signal handler or the callback raised while it ran takes
    /// precedence over its own error.
    pub(crate) fn follow<T: Ungil + Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Self) -> Result<T, EngineError> + Ungil + Send,
    ) -> PyResult<T> {
        self.enter(py)?;
        let outcome = detached(py, || work(self));
        self.raised().map_or(outcome, Err)
    }

    /// Called with the interpreter lock before work begins: notes the thread.
    fn enter(&self, py: Python<'_>) -> PyResult<()> {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        let current = threading.call_method0("get_ident")?;
        self.on_main_thread.store(main.eq(current)?, Ordering::Relaxed);
        Ok(())
    }

    /// What was raised while the work ran.
    fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn stop(&self, reason: u8) -> Control {
        self.stopped.store(reason, Ordering::Relaxed);
        Control::Stop
    }

    /// Asks the interpreter, with its lock, whether to go on.
    fn ask(&self, phase: Phase, done: u64, total: u64) -> PyResult<bool> {
        Python::attach(|py| {
            if self.on_main_thread.load(Ordering::Relaxed) {
                py.check_signals()?;
            }
            match &self.on_progress {
                None => Ok(true),
                Some(callback) => {
                    let answer = callback.bind(py).call1((phase.name(), done, total))?;
                    Ok(answer.is_none() || answer.is_truthy()?)
                }
            }
        })
    }

    /// Whether it is time to ask; a finished phase is always reported.
    fn due(&self, now: Instant, phase: Phase, finished: bool) -> bool {
        let last_report = finished && phase != Phase::Decode && self.on_progress.is_some();
        if !last_report && self.on_progress.is_none() && !self.on_main_thread.load(Ordering::Relaxed) {
            return false;
        }
        let mut polled = self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last_report || now.duration_since(*polled) >= INTERVAL;
        if due {
            *polled = now;
        }
        due
    }
}

impl Watch for Watcher {
    fn progress(&self, phase: Phase, done: u64, total: u64) -> Control {
        if self.cancel.iter().any(|flag| flag.load(Ordering::Relaxed)) {
            return self.stop(CANCELLED);
        }
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return self.stop(TIMEOUT);
        }
        if !self.due(now, phase, done == total) {
            return Control::Continue;
        }
        match self.ask(phase, done, total) {
            Ok(true) => Control::Continue,
            Ok(false) => self.stop(CANCELLED),
            Err(error) => {
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                self.stop(CANCELLED)
            }
        }
    }
}
