//! Facts and conversion: calls that need no open model. Structured answers travel as JSON.

use std::path::PathBuf;

use colibri_engine::convert::convert as run_convert;
use colibri_engine::inspect::inspect as run_inspect;
use colibri_engine::model::{Model, ModelInfo};
use colibri_kernels::KernelSet;
use colibri_store::{Plan, probe};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::error::{detached, native};
use crate::options::{ConvertOptions, OpenOptions};
use crate::watch::Watcher;

/// The memory plan for a model that is not loaded, from its headers, as JSON.
#[pyfunction]
pub(crate) fn plan(py: Python<'_>, path: PathBuf, options: &Bound<'_, OpenOptions>) -> PyResult<String> {
    let config = &options.get().config;
    let (info, plan) = detached(py, || Model::plan(&path, config))?;
    plan_json(&info, &plan)
}

/// A summary of a model folder from its headers, as JSON.
#[pyfunction]
pub(crate) fn inspect(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    text(serde_json::to_value(detached(py, || run_inspect(&path))?))
}

/// Facts about this machine, as JSON.
#[pyfunction]
pub(crate) fn machine(py: Python<'_>) -> PyResult<String> {
    let facts = py.detach(probe);
    text(serde_json::to_value(facts).map(with_kernels))
}

/// Version, build and kernel set, as JSON.
#[pyfunction]
pub(crate) fn version() -> PyResult<String> {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    text(Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "build": format!("{}-{} {profile}", std::env::consts::ARCH, std::env::consts::OS),
        "kernels": KernelSet::best().name(),
    })))
}

/// Converts a checkpoint; returns the report as JSON.
#[pyfunction]
pub(crate) fn convert(
    py: Python<'_>,
    source: PathBuf,
    destination: PathBuf,
    options: &Bound<'_, ConvertOptions>,
    watcher: &Bound<'_, Watcher>,
) -> PyResult<String> {
    let (options, watch) = (&options.get().options, watcher.get());
    watch.enter(py)?;
    let report = detached(py, || run_convert(&source, &destination, options, watch));
    match watch.raised() {
        Some(error) => Err(error),
        None => text(serde_json::to_value(report?)),
    }
}

/// Plan and model facts as JSON.
pub(crate) fn plan_json(info: &ModelInfo, plan: &Plan) -> PyResult<String> {
    let value = serde_json::to_value(plan).and_then(|mut value| {
        value["machine"] = with_kernels(value["machine"].take());
        value["model"] = serde_json::to_value(info)?;
        Ok(value)
    });
    text(value)
}

/// The machine's facts with the kernel sets that it can run, best first.
fn with_kernels(mut machine: Value) -> Value {
    let best = KernelSet::best().name();
    let mut names: Vec<&str> = KernelSet::available().iter().map(KernelSet::name).collect();
    names.sort_by_key(|name| *name != best);
    machine["kernels"] = json!(names);
    machine
}

fn text(value: serde_json::Result<Value>) -> PyResult<String> {
    value.map(|value| value.to_string()).map_err(|error| {
        native("internal", "a result cannot be written as JSON".to_owned(), Some(error.to_string()), None)
    })
}
