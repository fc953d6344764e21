//! A KV cache, and the choice of tokens from its last rows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use colibri_engine::sample::SamplingParams;
use colibri_engine::session::Session as EngineSession;
use colibri_engine::{EngineError, Sampled};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::error::{detached, from_engine, invalid};
use crate::grammar::GrammarState;
use crate::watch::Watcher;

/// Checked sampling parameters.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct Sampling {
    params: SamplingParams,
}

#[pymethods]
impl Sampling {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "one argument for each field")]
    fn new(
        temperature: f32,
        top_p: f32,
        top_k: u32,
        min_p: f32,
        repeat_penalty: f32,
        presence_penalty: f32,
        frequency_penalty: f32,
        seed: u64,
    ) -> PyResult<Self> {
        let params = SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            repeat_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
        };
        params.validate().map_err(|error| from_engine(&error))?;
        Ok(Self { params })
    }
}

/// A KV cache with the logits of its last tokens.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct Session {
    pub(crate) session: Arc<Mutex<EngineSession>>,
}

impl Session {
    /// The session. Never called with the interpreter lock while another thread may compute on it for long.
    fn lock(&self) -> MutexGuard<'_, EngineSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the session without the interpreter lock.
    fn with<T: Send + pyo3::marker::Ungil>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut EngineSession) -> Result<T, EngineError> + Send + pyo3::marker::Ungil,
    ) -> PyResult<T> {
        detached(py, || work(&mut self.lock()))
    }
}

#[pymethods]
impl Session {
    /// The most tokens it can hold.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().capacity())
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().len())
    }

    /// The tokens it holds.
    fn tokens(&self, py: Python<'_>) -> Vec<u32> {
        py.detach(|| self.lock().tokens().to_vec())
    }

    /// Appends tokens; stopped by the watcher it keeps the chunks done and raises with the code `cancelled`.
    fn extend(&self, py: Python<'_>, tokens: Vec<u32>, watcher: &Bound<'_, Watcher>) -> PyResult<()> {
        watcher.get().follow(py, |watch| self.lock().extend(&tokens, watch))
    }

    /// Appends the tokens of a draft and keeps the row of each, for `sample`; counts as decoding.
    fn extend_all(&self, py: Python<'_>, tokens: Vec<u32>, watcher: &Bound<'_, Watcher>) -> PyResult<()> {
        watcher.get().follow(py, |watch| self.lock().extend_all(&tokens, watch))
    }

    /// Forgets everything after the first `length` tokens; the kept rows of earlier tokens stay.
    fn rewind(&self, py: Python<'_>, length: usize) {
        py.detach(|| self.lock().rewind(length));
    }

    /// Chooses the token with the index `position` from its row; returns it with its log probability before the mask.
    #[pyo3(signature = (position, sampling, state=None))]
    fn sample(
        &self,
        py: Python<'_>,
        position: usize,
        sampling: &Bound<'_, Sampling>,
        state: Option<&Bound<'_, GrammarState>>,
    ) -> PyResult<(u32, f32)> {
        let (params, state) = (&sampling.get().params, state.map(Bound::get));
        let sampled = self.with(py, |session| {
            let mask = state.map(GrammarState::allowed).transpose()?;
            session.sample_at(position, params, mask.as_deref())
        });
        sampled.map(pair)
    }

    /// A copy of the row [vocab] that the token with the index `position` is chosen from, after the penalties.
    fn penalised<'py>(
        &self,
        py: Python<'py>,
        position: usize,
        sampling: &Bound<'py, Sampling>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let params = &sampling.get().params;
        let row = self.with(py, |session| session.penalised(position, params))?;
        Ok(PyArray1::from_vec(py, row))
    }

    /// The same as `sample`, from a row that already holds the penalties.
    #[pyo3(signature = (position, logits, sampling, state=None))]
    fn choose(
        &self,
        py: Python<'_>,
        position: usize,
        logits: PyReadonlyArray1<'_, f32>,
        sampling: &Bound<'_, Sampling>,
        state: Option<&Bound<'_, GrammarState>>,
    ) -> PyResult<(u32, f32)> {
        let row = logits.as_slice().map_err(|_| invalid("logits", "an array with strides", "contiguous"))?.to_vec();
        let (params, state) = (&sampling.get().params, state.map(Bound::get));
        let sampled = self.with(py, |session| {
            let mask = state.map(GrammarState::allowed).transpose()?;
            session.choose(position, &row, params, mask.as_deref())
        });
        sampled.map(pair)
    }
}

fn pair(sampled: Sampled) -> (u32, f32) {
    (sampled.token, sampled.logprob)
}
