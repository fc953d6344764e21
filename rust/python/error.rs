//! Errors on their way to Python.

use std::panic::{AssertUnwindSafe, catch_unwind};

use colibri_engine::EngineError;
use colibri_grammar::Fault;
use colibri_store::StoreError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::marker::Ungil;
use pyo3::prelude::*;

create_exception!(
    colibri._native,
    NativeError,
    PyException,
    "An error of the core: code, message, why, fix; of a grammar also every fault."
);

/// One fault of a grammar as a dictionary.
#[derive(IntoPyObject)]
struct FaultParts {
    code: &'static str,
    message: String,
    why: Option<String>,
    fix: Option<String>,
    line: Option<usize>,
    column: Option<usize>,
    /// The line itself.
    text: Option<String>,
    pointer: Option<String>,
}

impl From<&Fault> for FaultParts {
    fn from(fault: &Fault) -> Self {
        let place = fault.place.as_deref();
        Self {
            code: fault.code.slug(),
            message: fault.what.clone(),
            why: fault.why.clone(),
            fix: fault.fix.clone(),
            line: place.map(|place| place.line),
            column: place.map(|place| place.column),
            text: place.map(|place| place.text.clone()),
            pointer: fault.pointer.clone(),
        }
    }
}

/// An error with its four parts.
pub(crate) fn native(code: &str, message: String, why: Option<String>, fix: Option<String>) -> PyErr {
    NativeError::new_err((code.to_owned(), message, why, fix))
}

/// The Python form of an engine's error.
pub(crate) fn from_engine(error: &EngineError) -> PyErr {
    match error {
        EngineError::Grammar(faulty) => {
            let faults: Vec<FaultParts> = faulty.faults().iter().map(FaultParts::from).collect();
            NativeError::new_err((error.code().to_owned(), error.to_string(), error.why(), error.fix(), faults))
        }
        _ => native(error.code(), error.to_string(), error.why(), error.fix()),
    }
}

/// The Python form of a store's error.
pub(crate) fn from_store(error: &StoreError) -> PyErr {
    native(error.code(), error.to_string(), error.why(), error.fix())
}

/// A value that is not one of those allowed.
pub(crate) fn invalid(name: &str, value: &str, expected: &str) -> PyErr {
    let why = Some(format!("{name} must be {expected}"));
    native("invalid_value", format!("{name} is {value:?}"), why, None)
}

/// Runs `work` without the interpreter lock. A panic inside it is a fault of this program, and an error like others.
pub(crate) fn detached<T: Ungil + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, EngineError> + Ungil + Send,
) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(work))) {
        Ok(result) => result.map_err(|error| from_engine(&error)),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(native(
                "internal",
                "a fault inside colibri".to_owned(),
                Some(text.unwrap_or_else(|| "it left no message".to_owned())),
                Some("please report it with what you did; the model can be opened again".to_owned()),
            ))
        }
    }
}
