//! An open model.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use colibri_engine::model::Model as EngineModel;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;

use crate::error::native;
use crate::facts::plan_json;
use crate::options::OpenOptions;
use crate::session::Session;
use crate::watch::Watcher;

/// An open model.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct Model {
    model: EngineModel,
}

#[pymethods]
impl Model {
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        options: &Bound<'_, OpenOptions>,
        watcher: &Bound<'_, Watcher>,
    ) -> PyResult<Self> {
        let config = &options.get().config;
        let model = watcher.get().follow(py, |watch| EngineModel::open(&path, config, watch))?;
        Ok(Self { model })
    }

    /// Name of the kernel set in use.
    #[getter]
    fn kernels(&self) -> &'static str {
        self.model.kernels_name()
    }

    /// The memory plan with the model's facts, as JSON.
    fn plan(&self) -> PyResult<String> {
        plan_json(self.model.info(), self.model.memory_plan())
    }

    /// Expert hits, expert misses, bytes of experts read.
    fn counters(&self) -> (u64, u64, u64) {
        let stats = self.model.stats();
        (stats.hits, stats.misses, stats.bytes_read)
    }

    /// A new, empty session.
    fn session(&self, py: Python<'_>) -> Session {
        let session = py.detach(|| self.model.session());
        Session { session: Arc::new(Mutex::new(session)) }
    }

    /// Logits [n, vocab] of every position.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        watcher: &Bound<'py, Watcher>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let rows = tokens.len();
        let logits = watcher.get().follow(py, |watch| self.model.logits(&tokens, watch))?;
        let flat = PyArray1::from_vec(py, logits);
        let columns = self.model.info().vocab_size;
        flat.reshape([rows, columns]).map_err(|error| {
            native("internal", "the logits have another shape than expected".to_owned(), Some(error.to_string()), None)
        })
    }
}
