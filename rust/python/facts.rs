//! Facts: calls that need no open model. Structured answers travel as JSON.

use std::path::PathBuf;

use colibri_engine::doctor::{DoctorOptions, doctor as run_doctor};
use colibri_engine::inspect::inspect as run_inspect;
use colibri_engine::model::ModelInfo;
use colibri_engine::plan::{PlanProbe, PlanReport, RemoteListing, plan as run_plan, plan_remote as run_plan_remote};
use colibri_kernels::KernelSet;
use colibri_store::{Plan, probe};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::error::{detached, native};
use crate::options::OpenOptions;
use crate::watch::Watcher;

/// Where a model that is not loaded would live, and how fast that would be, as JSON; `measure` reads a second's worth of
/// weights and of memory.
#[pyfunction]
#[pyo3(signature = (path, options, measure=false))]
pub(crate) fn plan(py: Python<'_>, path: PathBuf, options: &Bound<'_, OpenOptions>, measure: bool) -> PyResult<String> {
    let config = &options.get().config;
    let report = detached(py, || run_plan(&path, config, PlanProbe { measure }))?;
    plan_report(&report)
}

/// The same for a model that is not here: `config` is its `config.json`, `listing` its files, index and manifest.
#[pyfunction]
pub(crate) fn plan_remote(
    py: Python<'_>,
    config: &str,
    listing: &str,
    options: &Bound<'_, OpenOptions>,
) -> PyResult<String> {
    let engine = &options.get().config;
    let unreadable = |name: &str, error: serde_json::Error| {
        let fix = Some("fetch it again".to_owned());
        native("model_corrupt", format!("{name} is not readable"), Some(error.to_string()), fix)
    };
    let config = serde_json::from_str(config).map_err(|error| unreadable("config.json", error))?;
    let listing: RemoteListing =
        serde_json::from_str(listing).map_err(|error| unreadable("the list of files", error))?;
    let report = detached(py, || run_plan_remote(&config, &listing, engine))?;
    plan_report(&report)
}

/// Checks the machine and, unless `path` is None, a model; the verdicts as JSON. `deep` compares digests.
#[pyfunction]
pub(crate) fn doctor(
    py: Python<'_>,
    path: Option<PathBuf>,
    options: &Bound<'_, OpenOptions>,
    deep: bool,
    watcher: &Bound<'_, Watcher>,
) -> PyResult<String> {
    let options = DoctorOptions { deep, engine: options.get().config.clone() };
    let report = watcher.get().follow(py, |watch| run_doctor(path.as_deref(), &options, watch))?;
    text(serde_json::to_value(report))
}

fn plan_report(report: &PlanReport) -> PyResult<String> {
    text(serde_json::to_value(report).map(|mut value| {
        value["machine"] = with_kernels(value["machine"].take());
        value
    }))
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

/// A structured answer as text.
pub(crate) fn text(value: serde_json::Result<Value>) -> PyResult<String> {
    value.map(|value| value.to_string()).map_err(|error| {
        native("internal", "a result cannot be written as JSON".to_owned(), Some(error.to_string()), None)
    })
}
