//! Read-only checks of the machine and of a model, each with a stable name, a verdict in words and, where something is
//! wrong, a way out.
//!
//! Owns no rule of its own: headers, tensors, memory and rates are judged by the functions that loading and planning use.
//! Must hold: a fault in one check never stops another; every line that is not `ok` has a fix. Only the watcher ends the
//! whole, by saying stop.

mod model;
mod payload;
#[cfg(test)]
mod tests;

use std::path::Path;

use colibri_kernels::dispatch::KernelSet;
use colibri_store::budget::{self, ModelSizes};
use colibri_store::error::{StoreError, human_bytes};
use colibri_store::machine::{self, MachineFacts};
use serde::Serialize;

use crate::config::{EngineConfig, Watch};
use crate::error::EngineError;
use crate::inspect::REPORT_VERSION;
use crate::model::request;

/// Swap in use from which other programs are taken to need more memory than there is: the memory plan says so too.
const SWAP_LIMIT: u64 = 1 << 30;

/// How many faults a check spells out.
const DETAILS: usize = 64;

/// What is checked.
#[derive(Clone, Debug, Default)]
pub struct DoctorOptions {
    /// Read every weight file to its end and compare digests.
    pub deep: bool,
    /// How the model would be opened.
    pub engine: EngineConfig,
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It works, and could be better.
    Warn,
    /// It does not work.
    Fail,
    /// Not checked.
    Skip,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its stable name.
    pub id: &'static str,
    /// The verdict.
    pub status: Status,
    /// What was found, one line.
    pub text: String,
    /// What to do; present unless the verdict is `ok`.
    pub fix: Option<String>,
    /// Every fault that was found, as far as they are spelled out.
    pub details: Vec<String>,
}

impl Check {
    fn ok(id: &'static str, text: String) -> Self {
        Self { id, status: Status::Ok, text, fix: None, details: Vec::new() }
    }

    fn new(id: &'static str, status: Status, text: String, fix: String) -> Self {
        Self { id, status, text, fix: Some(fix), details: Vec::new() }
    }

    /// A failure told by an error; `otherwise` is the fix of an error that has none.
    fn failed(id: &'static str, error: &EngineError, otherwise: &str) -> Self {
        let text = error.why().map_or_else(|| error.to_string(), |why| format!("{error}: {why}"));
        Self::new(id, Status::Fail, text, error.fix().unwrap_or_else(|| otherwise.to_owned()))
    }

    /// A failure told by faults, of which there is at least one.
    fn faulty(id: &'static str, faults: Vec<Line>, otherwise: &str) -> Self {
        let count = faults.len();
        let first = faults.first().map_or_else(String::new, |line| line.what.clone());
        let text = if count > 1 { format!("{first} (and {} more)", count - 1) } else { first };
        let fix = faults.iter().find_map(|line| line.fix.clone()).unwrap_or_else(|| otherwise.to_owned());
        let details = faults.into_iter().take(DETAILS).map(|line| line.what).collect();
        Self { details, ..Self::new(id, Status::Fail, text, fix) }
    }
}

/// One fault in words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    what: String,
    fix: Option<String>,
    missing: bool,
    tensor: Option<String>,
}

impl Line {
    /// The faults of an error, each with its reason.
    fn of(error: &StoreError) -> Vec<Self> {
        let with = |what: &str, why: Option<&str>| why.map_or_else(|| what.to_owned(), |why| format!("{what}: {why}"));
        match error {
            StoreError::Faulty { faults, .. } => faults
                .iter()
                .map(|fault| Self {
                    what: with(&fault.what, fault.why.as_deref()),
                    fix: fault.fix.as_deref().map(str::to_owned),
                    missing: fault.kind == colibri_store::FaultKind::Missing,
                    tensor: fault.tensor.clone(),
                })
                .collect(),
            other => vec![Self {
                what: with(&other.to_string(), other.why().as_deref()),
                fix: other.fix(),
                missing: false,
                tensor: None,
            }],
        }
    }
}

/// The verdicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// Version of these fields: 1.
    pub version: u32,
    /// The model that was checked.
    pub path: Option<String>,
    /// The checks, in their order.
    pub checks: Vec<Check>,
    /// How many failed.
    pub failures: usize,
    /// How many warn.
    pub warnings: usize,
}

/// Checks the machine and, where one is given, the model in the folder `path`.
///
/// # Errors
/// [`EngineError::Cancelled`] when the watcher says stop; everything else is a line of the report.
pub fn doctor(path: Option<&Path>, options: &DoctorOptions, watch: &dyn Watch) -> Result<DoctorReport, EngineError> {
    let machine = machine::probe();
    let found = path.map(|path| model::examine(path, options, &machine, watch)).transpose()?;
    let sizes = found.as_ref().and_then(|found| found.sizes.clone());
    let mut checks = vec![cpu(options, &machine), memory(options, &machine, sizes.as_ref()), swap(&machine)];
    checks.extend(found.into_iter().flat_map(|found| found.checks));
    let count = |status| checks.iter().filter(|check: &&Check| check.status == status).count();
    Ok(DoctorReport {
        version: REPORT_VERSION,
        path: path.map(|path| path.to_string_lossy().into_owned()),
        failures: count(Status::Fail),
        warnings: count(Status::Warn),
        checks,
    })
}

/// The kernel set that a model would get.
fn cpu(options: &DoctorOptions, machine: &MachineFacts) -> Check {
    const ID: &str = "machine.cpu";
    let names: Vec<_> = KernelSet::available().iter().map(KernelSet::name).collect();
    let name = &options.engine.kernels;
    let Some(chosen) = KernelSet::by_name(name) else {
        let text = format!("this processor has no kernel set {name:?}; it has {}", names.join(", "));
        return Check::new(ID, Status::Fail, text, "--kernels auto".to_owned());
    };
    let processor = machine.cpu_name.as_deref().unwrap_or("an unknown processor");
    let text = format!(
        "{processor}, {} cores; kernels {} chosen of {}",
        machine.cores_allowed,
        chosen.name(),
        names.join(", ")
    );
    if names.len() > 1 && chosen.name() == KernelSet::best().name() {
        return Check::ok(ID, text);
    }
    let fix = match names.len() {
        1 => "use a processor with AVX2: the results are the same, many times faster",
        _ => "--kernels auto",
    };
    Check::new(ID, Status::Warn, text, fix.to_owned())
}

/// What memory there is, and whether the model fits: by the plan that loading makes.
fn memory(options: &DoctorOptions, machine: &MachineFacts, sizes: Option<&ModelSizes>) -> Check {
    const ID: &str = "machine.memory";
    let group = match machine.cgroup_limit {
        Some(limit) => format!("a control group limits this process to {}", human_bytes(limit)),
        None => "no control group limit".to_owned(),
    };
    let available = match machine.memory_available {
        Some(bytes) => format!("{} available", human_bytes(bytes)),
        None => "free memory could not be read".to_owned(),
    };
    let none = ModelSizes::default();
    let request = budget::BudgetRequest {
        // Without a model there is no context to be asked for.
        context: if sizes.is_some() { request(&options.engine).context } else { budget::ContextRequest::Auto },
        ..request(&options.engine)
    };
    match budget::plan(machine, sizes.unwrap_or(&none), &request) {
        Err(error) => Check::failed(ID, &error.into(), "free some memory"),
        Ok(plan) => {
            let mut text = format!("{available}, {group}; a model may take {}", human_bytes(plan.ram_budget));
            if sizes.is_some() {
                text.push_str(&format!(", this one takes {}", human_bytes(plan.projected_peak)));
            }
            if machine.memory_available.is_some() {
                return Check::ok(ID, text);
            }
            let fix = "give the memory that may be used: --ram 8GB";
            Check::new(ID, Status::Warn, text, fix.to_owned())
        }
    }
}

/// Memory that other programs had to give up.
fn swap(machine: &MachineFacts) -> Check {
    const ID: &str = "machine.swap";
    match machine.swap_used {
        None => {
            let text = "the use of swap could not be read".to_owned();
            Check::new(ID, Status::Skip, text, "nothing to do where the system has no /proc/meminfo".to_owned())
        }
        Some(0) => Check::ok(ID, "no swap is in use".to_owned()),
        Some(used) if used <= SWAP_LIMIT => Check::ok(ID, format!("{} of swap are in use", human_bytes(used))),
        Some(used) => {
            let text = format!("{} of swap are in use: the expert cache may be paged out", human_bytes(used));
            Check::new(ID, Status::Warn, text, "close other programs, sudo swapoff -a, or a smaller --ram".to_owned())
        }
    }
}
