//! Conversion: a whole one in a call, or step by step. Structured answers travel as JSON.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use colibri_engine::convert::{Conversion as EngineConversion, convert as run_convert};
use pyo3::prelude::*;

use crate::error::{detached, native};
use crate::facts::text;
use crate::options::ConvertOptions;
use crate::watch::Watcher;

/// A conversion in progress: a build folder beside the destination, and the steps that are still to do.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct Conversion {
    /// `None` once it is finished.
    inner: Mutex<Option<EngineConversion>>,
}

#[pymethods]
impl Conversion {
    /// Plans a conversion and opens, or takes up again, its build folder.
    #[new]
    fn new(
        py: Python<'_>,
        source: PathBuf,
        destination: PathBuf,
        options: &Bound<'_, ConvertOptions>,
    ) -> PyResult<Self> {
        let options = &options.get().options;
        let opened = detached(py, || EngineConversion::open(&source, &destination, options))?;
        Ok(Self { inner: Mutex::new(Some(opened)) })
    }

    /// The steps, as JSON: `files` that must be there, `releases` of files that no later step needs, `bytes` that the
    /// step writes, `done`.
    fn steps(&self) -> PyResult<String> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        text(serde_json::to_value(inner.as_ref().ok_or_else(finished)?.steps()))
    }

    /// Runs one step; a step that is done already does nothing.
    fn run_step(&self, py: Python<'_>, index: usize, watcher: &Bound<'_, Watcher>) -> PyResult<()> {
        let outcome = watcher.get().follow(py, |watch| {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.as_mut().map(|conversion| conversion.run_step(index, watch)).transpose()
        });
        outcome?.ok_or_else(finished)
    }

    /// Writes what is left, checks it if asked to, and gives the container its name; returns the report as JSON.
    fn finish(&self, py: Python<'_>, watcher: &Bound<'_, Watcher>) -> PyResult<String> {
        let taken = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(finished)?;
        text(serde_json::to_value(watcher.get().follow(py, |watch| taken.finish(watch))?))
    }
}

/// Converts a checkpoint that lies in a folder; returns the report as JSON.
#[pyfunction]
pub(crate) fn convert(
    py: Python<'_>,
    source: PathBuf,
    destination: PathBuf,
    options: &Bound<'_, ConvertOptions>,
    watcher: &Bound<'_, Watcher>,
) -> PyResult<String> {
    let options = &options.get().options;
    let report = watcher.get().follow(py, |watch| run_convert(&source, &destination, options, watch))?;
    text(serde_json::to_value(report))
}

/// What a conversion would write, and how long that would take, as JSON; writes nothing.
#[pyfunction]
pub(crate) fn convert_dry_run(
    py: Python<'_>,
    source: PathBuf,
    destination: PathBuf,
    options: &Bound<'_, ConvertOptions>,
) -> PyResult<String> {
    let options = &options.get().options;
    text(serde_json::to_value(detached(py, || EngineConversion::dry_run(&source, &destination, options))?))
}

fn finished() -> PyErr {
    native("internal", "this conversion has been finished".to_owned(), None, None)
}
