//! The Python binding `colibri._native`: convert, detach, compute, convert. No logic lives here.
//!
//! Must hold: the interpreter lock is released round every call that computes, reads or waits; every error, a panic
//! included, leaves as `NativeError(code, message, why, fix)`; classes are frozen, so that threads share them safely.

use pyo3::prelude::*;

mod convert;
mod error;
mod facts;
mod grammar;
mod model;
mod options;
mod session;
mod watch;

/// The native core. Used by `colibri.engine` only.
// Interpreters without a lock are untested; they keep theirs for this module.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NativeError", module.py().get_type::<error::NativeError>())?;
    module.add_class::<watch::CancelToken>()?;
    module.add_class::<watch::Watcher>()?;
    module.add_class::<options::OpenOptions>()?;
    module.add_class::<options::ConvertOptions>()?;
    module.add_class::<session::Sampling>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<model::Model>()?;
    module.add_class::<grammar::Grammar>()?;
    module.add_class::<grammar::Calls>()?;
    module.add_class::<grammar::Vocabulary>()?;
    module.add_class::<grammar::GrammarState>()?;
    module.add_function(wrap_pyfunction!(facts::plan, module)?)?;
    module.add_function(wrap_pyfunction!(facts::plan_remote, module)?)?;
    module.add_function(wrap_pyfunction!(facts::inspect, module)?)?;
    module.add_function(wrap_pyfunction!(facts::doctor, module)?)?;
    module.add_function(wrap_pyfunction!(facts::machine, module)?)?;
    module.add_function(wrap_pyfunction!(facts::version, module)?)?;
    module.add_class::<convert::Conversion>()?;
    module.add_function(wrap_pyfunction!(convert::convert, module)?)?;
    module.add_function(wrap_pyfunction!(convert::convert_dry_run, module)?)?;
    Ok(())
}
