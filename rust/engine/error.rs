//! The engine's one error type. Every variant carries what a person needs to act: path, name, expected, got.
//! `Display` is the "what" line of a message, `why` and `fix` are its other two lines, `code` is the stable
//! slug shared by the command line, the Python exceptions and the documentation.

use std::path::PathBuf;

use colibri_grammar::{Fault, GrammarError};
use colibri_kernels::error::KernelError;
use colibri_store::error::StoreError;
use thiserror::Error;

use crate::spec::SpecError;

/// Everything that can go wrong between opening a model and choosing a token.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A container, a source, the expert store or the memory budget refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A kernel refused a shape.
    #[error(transparent)]
    Kernel(KernelError),
    /// `config.json` does not describe a model that this engine runs.
    #[error("{path}: {source}", path = .path.display())]
    Config {
        /// The file that was read.
        path: PathBuf,
        /// What is wrong in it.
        source: SpecError,
    },
    /// `config.json` cannot be read as JSON, or is no object.
    #[error("{path} is not a readable configuration", path = .path.display())]
    ConfigUnreadable {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        reason: String,
    },
    /// An argument is out of range.
    #[error("{name} must be {expected}, not {got}")]
    InvalidValue {
        /// The argument.
        name: &'static str,
        /// What it may be.
        expected: String,
        /// What it was.
        got: String,
    },
    /// The tokens do not fit the context.
    #[error("{tokens} tokens are asked for; the context is {context}")]
    ContextLengthExceeded {
        /// Tokens that the session would hold.
        tokens: usize,
        /// Tokens that it can hold.
        context: usize,
    },
    /// A number that is not finite appeared.
    #[error("a value is not finite in {place}, on the way into or out of {tensor}")]
    NonFinite {
        /// The layer, in words.
        place: String,
        /// The tensor whose input or output it is.
        tensor: String,
        /// The model's folder, where one is concerned.
        model: Option<PathBuf>,
    },
    /// An unfinished conversion was begun with other parameters.
    #[error("{folder} was begun with other parameters", folder = .folder.display())]
    ConvertParametersDiffer {
        /// The folder of the unfinished conversion.
        folder: PathBuf,
        /// What differs, each with both values.
        differences: Vec<String>,
        /// What can be done instead of going on, as the end of a sentence.
        otherwise: String,
    },
    /// The source of an unfinished conversion is not what it was.
    #[error("{path} has changed since the conversion into {folder} began",
        path = .path.display(), folder = .folder.display())]
    ConvertSourceChanged {
        /// The file that changed.
        path: PathBuf,
        /// What it was and what it is.
        change: String,
        /// The folder of the unfinished conversion.
        folder: PathBuf,
        /// What can be done instead of going on, as the end of a sentence.
        otherwise: String,
    },
    /// A conversion stopped; what is finished stays for another run.
    #[error("{error}")]
    ConvertInterrupted {
        /// What stopped it.
        error: Box<EngineError>,
        /// The folder of the unfinished conversion.
        folder: PathBuf,
    },
    /// A grammar, a schema or a pattern cannot be used.
    #[error("{}", reports(.0))]
    Grammar(#[from] GrammarError),
    /// No token may follow.
    #[error("no token may follow at position {position}")]
    DeadEnd {
        /// The index that the token would get.
        position: u64,
        /// Tokens that the grammar allows there.
        allowed: usize,
    },
    /// The watcher said stop.
    #[error("stopped")]
    Cancelled,
    /// An earlier error left the session without a defined state.
    #[error("this session stopped at an earlier error: {reason}")]
    SessionPoisoned {
        /// The earlier error.
        reason: String,
    },
}

/// Memory that was refused is the same error wherever it was asked for.
impl From<KernelError> for EngineError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::OutOfMemory { .. } => Self::Store(error.into()),
            other => Self::Kernel(other),
        }
    }
}

impl EngineError {
    /// The stable slug of the error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Store(error) => error.code(),
            Self::Kernel(_) => "internal",
            Self::Config { source, .. } => source.code(),
            Self::ConfigUnreadable { .. } => "model_corrupt",
            Self::InvalidValue { .. } => "invalid_value",
            Self::ContextLengthExceeded { .. } => "context_length_exceeded",
            Self::NonFinite { .. } => "non_finite",
            Self::ConvertParametersDiffer { .. } => "convert_parameters_differ",
            Self::ConvertSourceChanged { .. } => "convert_source_changed",
            Self::ConvertInterrupted { error, .. } => error.code(),
            Self::Grammar(error) => error.code(),
            Self::DeadEnd { .. } => "grammar_dead_end",
            Self::Cancelled => "cancelled",
            Self::SessionPoisoned { .. } => "session_poisoned",
        }
    }

    /// The reason, with numbers, when the "what" line does not hold it already.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        match self {
            Self::Store(error) => error.why(),
            Self::Config { source, .. } => source.why(),
            Self::ConfigUnreadable { reason, .. } => Some(reason.clone()),
            Self::ContextLengthExceeded { tokens, context } => Some(format!(
                "{over} tokens too many. Nothing was cut: a shortened prompt gives wrong answers",
                over = tokens.saturating_sub(*context)
            )),
            Self::NonFinite { model, .. } => {
                let place = model.as_ref().map_or_else(String::new, |model| format!(" of {}", model.display()));
                Some(format!("the weights{place} are damaged, or their values leave the range of 32-bit floats"))
            }
            Self::ConvertParametersDiffer { differences, .. } => {
                Some(format!("{}; shards of two kinds are never mixed", differences.join("; ")))
            }
            Self::ConvertSourceChanged { change, .. } => Some(change.clone()),
            Self::ConvertInterrupted { error, .. } => error.why(),
            Self::Grammar(error) => only(error).and_then(|fault| fault.why.clone()),
            Self::DeadEnd { allowed: 0, .. } => {
                Some("the grammar allows no token of this vocabulary here, nor the end of the text".to_owned())
            }
            Self::DeadEnd { allowed, .. } => {
                Some(format!("each of the {allowed} tokens that the grammar allows has a logit of -infinity or NaN"))
            }
            Self::SessionPoisoned { .. } => Some("its cache may hold half a step".to_owned()),
            _ => None,
        }
    }

    /// What the reader can do.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::Store(error) => error.fix(),
            Self::Config { source, .. } => source.fix(),
            Self::ConfigUnreadable { .. } => Some("fetch config.json again".to_owned()),
            Self::ContextLengthExceeded { tokens, .. } => {
                Some(format!("--ctx {tokens} if the model and the memory allow it, or send less"))
            }
            Self::NonFinite { .. } => Some("compare the files with their source; convert again".to_owned()),
            Self::ConvertParametersDiffer { otherwise, .. } => {
                Some(format!("give the parameters that it was begun with to go on{otherwise}"))
            }
            Self::ConvertSourceChanged { otherwise, .. } => Some(format!("restore the file to go on{otherwise}")),
            Self::ConvertInterrupted { error, folder } => {
                let folder = folder.display();
                // What stopped it for a reason in the source stops it again.
                let go_on = match error.code() {
                    "cancelled" | "disk_full" | "ram_budget_too_small" | "disk_read_failed" => {
                        format!("what is finished is kept in {folder}: give the same command again to go on")
                    }
                    _ => format!("what is finished is kept in {folder}; once this is mended, the same command goes on"),
                };
                Some(error.fix().map_or_else(|| go_on.clone(), |fix| format!("{fix}; {go_on}")))
            }
            Self::Grammar(error) => only(error).and_then(|fault| fault.fix.clone()),
            Self::DeadEnd { allowed: 0, .. } => {
                Some("let the grammar end here, or go on with text that the tokenizer can write".to_owned())
            }
            Self::DeadEnd { .. } => {
                Some("let the logits processors leave tokens that the grammar allows, or change the grammar".to_owned())
            }
            Self::SessionPoisoned { .. } => Some("open a new session; the model itself is unharmed".to_owned()),
            _ => None,
        }
    }
}

/// The fault of an error that has one.
fn only(error: &GrammarError) -> Option<&Fault> {
    match error.faults() {
        [fault] => Some(fault),
        _ => None,
    }
}

/// Every fault with its place; where there are several, each with its reason and its remedy, which the error has no other
/// room for.
fn reports(error: &GrammarError) -> String {
    if let Some(fault) = only(error) {
        return fault.report();
    }
    let full = |fault: &Fault| {
        let more = [("why", &fault.why), ("fix", &fault.fix)];
        let more = more.iter().filter_map(|(name, text)| text.as_ref().map(|text| format!("\n    {name}: {text}")));
        fault.report() + &more.collect::<String>()
    };
    let faults: Vec<String> = error.faults().iter().map(full).collect();
    format!("{} faults\n{}", faults.len(), faults.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_error_names_both_numbers_and_a_way_out() {
        let error = EngineError::ContextLengthExceeded { tokens: 15_240, context: 8192 };
        assert!(error.to_string().contains("15240") && error.to_string().contains("8192"));
        assert!(error.fix().is_some_and(|fix| fix.contains("--ctx 15240")));
    }
}
