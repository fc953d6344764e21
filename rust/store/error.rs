//! The one error type of the store, and the faults it is made of.
//!
//! A message has three parts: what happened (`Display`), why (with numbers) and what to do. Names that come from a file
//! are escaped before they are shown, so that a hostile container cannot drive a terminal.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use colibri_kernels::error::KernelError;
use thiserror::Error;

/// How many faults a message spells out before it only counts the rest.
const FAULTS_SHOWN: usize = 12;

/// What sort of fault a container has; decides the slug of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A file or tensor that should be there is not.
    Missing,
    /// Something is there and contradicts itself or the model.
    Corrupt,
    /// Something is well-formed and not supported.
    Unsupported,
}

/// One fault of a container: the file, the tensor if one is concerned, what was found and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What sort of fault it is.
    pub kind: FaultKind,
    /// The file concerned.
    pub file: PathBuf,
    /// The tensor concerned, as named in the file.
    pub tensor: Option<String>,
    /// What happened, one line.
    pub what: String,
    /// Why, with numbers.
    pub why: Option<Box<str>>,
    /// What to do about it.
    pub fix: Option<Box<str>>,
}

impl Fault {
    /// A fault of `file` that concerns no single tensor.
    pub fn file(kind: FaultKind, file: &Path, what: impl Into<String>) -> Self {
        Fault { kind, file: file.to_path_buf(), tensor: None, what: what.into(), why: None, fix: None }
    }

    /// A fault of one tensor; the line names file, tensor, what was expected and what was found.
    pub fn tensor(kind: FaultKind, file: &Path, tensor: &str, expected: &str, got: &str) -> Self {
        let what = format!("{}: tensor {}: expected {expected}, got {got}", file_name(file), shown(tensor));
        Fault { kind, file: file.to_path_buf(), tensor: Some(tensor.to_owned()), what, why: None, fix: None }
    }

    /// The same fault with a reason.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into().into_boxed_str());
        self
    }

    /// The same fault with a remedy.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into().into_boxed_str());
        self
    }
}

/// Everything that can go wrong between a model's files and memory.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// No model lies at the path.
    #[error("no model at {}", path.display())]
    NotFound {
        /// The path that was asked for.
        path: PathBuf,
        /// What was found there instead.
        found: String,
        /// What to do.
        fix: String,
    },
    /// The container has faults; all of them are listed.
    #[error("{}", faults_line(faults))]
    Faulty {
        /// The model's folder.
        path: PathBuf,
        /// Every fault found, in the order of the files.
        faults: Vec<Fault>,
    },
    /// A read failed for good.
    #[error("read of {} at {}+{} returned {error}", human_bytes(*bytes), file_name(path), grouped(*offset))]
    ReadFailed {
        /// The file.
        path: PathBuf,
        /// Offset of the read from the start of the file.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// The operating system's name and text of the error.
        error: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// The file ended before the bytes its header promises.
    #[error(
        "read of {} at {}+{} got {} bytes: the file is shorter than its header says",
        human_bytes(*wanted), file_name(path), grouped(*offset), grouped(*got)
    )]
    ShortFile {
        /// The file.
        path: PathBuf,
        /// Offset of the read from the start of the file.
        offset: u64,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes there were.
        got: u64,
    },
    /// A file that is mapped, or whose header was read, has another length now.
    #[error("{} is {} bytes; it was {} when it was opened", file_name(path), grouped(*got), grouped(*expected))]
    FileChanged {
        /// The file.
        path: PathBuf,
        /// Its length when its header was read, in bytes.
        expected: u64,
        /// Its length now.
        got: u64,
    },
    /// The system refused memory.
    #[error("the system refused {} of memory", human_bytes(*bytes))]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The destination cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    NotWritable {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's text.
        reason: String,
    },
    /// The destination's file system is full.
    #[error("no space left for {}", path.display())]
    DiskFull {
        /// The file or folder.
        path: PathBuf,
        /// Bytes that were to be written, if known.
        needed: Option<u64>,
        /// Bytes that are free, if known.
        available: Option<u64>,
    },
    /// The projected peak does not fit the budget.
    #[error("this model needs {} and {budget_name} is {}", human_bytes(*needed), human_bytes(*budget))]
    RamBudgetTooSmall {
        /// The least that this model needs, in bytes.
        needed: u64,
        /// The budget, in bytes.
        budget: u64,
        /// How the budget is called: `--ram` or `the automatic budget`.
        budget_name: String,
        /// The terms of `needed` with their sizes.
        parts: String,
        /// Ways out.
        fixes: String,
    },
    /// A setting has a value that cannot be used.
    #[error("{name}: {} is not valid", shown(value))]
    InvalidValue {
        /// The setting.
        name: String,
        /// The value as given.
        value: String,
        /// What is accepted.
        expected: String,
    },
    /// The caller's progress callback asked to stop.
    #[error("stopped")]
    Cancelled,
    /// Something that should hold inside the store does not: a caller's mistake.
    #[error("{what}")]
    Internal {
        /// What does not hold.
        what: String,
    },
}

impl StoreError {
    /// The error of a read of `bytes` at `offset` that failed for good after `attempts` tries; memory that the system
    /// refused on the way is told apart from a drive that fails.
    pub fn read_failed(path: &Path, offset: u64, bytes: u64, error: &io::Error, attempts: u32) -> Self {
        if error.kind() == io::ErrorKind::OutOfMemory {
            return StoreError::OutOfMemory { bytes };
        }
        StoreError::ReadFailed { path: path.to_path_buf(), offset, bytes, error: os_error_text(error), attempts }
    }

    /// An error of one fault.
    pub fn fault(path: &Path, fault: Fault) -> Self {
        StoreError::Faulty { path: path.to_path_buf(), faults: vec![fault] }
    }

    /// `Ok` when there are no faults, else one error that holds them all.
    pub fn from_faults(path: &Path, faults: Vec<Fault>) -> Result<(), Self> {
        if faults.is_empty() { Ok(()) } else { Err(StoreError::Faulty { path: path.to_path_buf(), faults }) }
    }

    /// Joins the faults of several errors into one; an error that is no list of faults wins over all of them.
    pub fn merge(path: &Path, errors: Vec<StoreError>) -> Result<(), Self> {
        let mut all = Vec::new();
        for error in errors {
            match error {
                StoreError::Faulty { faults, .. } => all.extend(faults),
                other => return Err(other),
            }
        }
        Self::from_faults(path, all)
    }

    /// The faults, when the error is a list of them.
    pub fn faults(&self) -> &[Fault] {
        if let StoreError::Faulty { faults, .. } = self { faults } else { &[] }
    }

    /// The stable slug of the error.
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::NotFound { .. } => "model_not_found",
            StoreError::Faulty { faults, .. } => match faults.iter().map(|fault| fault.kind).min() {
                Some(FaultKind::Missing) => "model_incomplete",
                Some(FaultKind::Unsupported) => "model_unsupported",
                Some(FaultKind::Corrupt) | None => "model_corrupt",
            },
            StoreError::ReadFailed { .. } | StoreError::ShortFile { .. } | StoreError::FileChanged { .. } => {
                "disk_read_failed"
            }
            StoreError::NotWritable { .. } => "output_not_writable",
            StoreError::DiskFull { .. } => "disk_full",
            StoreError::RamBudgetTooSmall { .. } | StoreError::OutOfMemory { .. } => "ram_budget_too_small",
            StoreError::InvalidValue { .. } => "invalid_value",
            StoreError::Cancelled => "cancelled",
            StoreError::Internal { .. } => "internal",
        }
    }

    /// Why it happened, with numbers.
    pub fn why(&self) -> Option<String> {
        match self {
            StoreError::NotFound { found, .. } => Some(found.clone()),
            StoreError::Faulty { path, faults } => faults_why(path, faults),
            StoreError::ReadFailed { path, attempts: 1, .. } => {
                Some(format!("{}: another try would not help; no byte of the read was used", path.display()))
            }
            StoreError::ReadFailed { path, attempts, .. } => {
                Some(format!("{} failed {attempts} times in a row; no byte of it was used", path.display()))
            }
            StoreError::FileChanged { path, expected, got } => {
                let change = human_bytes(expected.abs_diff(*got));
                Some(format!("something changed {} by {change} while the model was in use", path.display()))
            }
            StoreError::OutOfMemory { .. } => Some(
                "a limit of this process (ulimit -v) or of its control group, or other programs leave too little"
                    .to_owned(),
            ),
            StoreError::ShortFile { path, .. } => Some(format!("{} was cut short after it was opened", path.display())),
            StoreError::NotWritable { .. } | StoreError::Cancelled | StoreError::Internal { .. } => None,
            StoreError::DiskFull { needed, available, .. } => match (needed, available) {
                (Some(needed), Some(available)) => {
                    Some(format!("{} are needed and {} are free", human_bytes(*needed), human_bytes(*available)))
                }
                (Some(needed), None) => Some(format!("{} are needed", human_bytes(*needed))),
                (None, Some(available)) => Some(format!("{} are free there", human_bytes(*available))),
                (None, None) => None,
            },
            StoreError::RamBudgetTooSmall { parts, .. } => Some(parts.clone()),
            StoreError::InvalidValue { expected, .. } => Some(format!("expected {expected}")),
        }
    }

    /// What to do about it.
    pub fn fix(&self) -> Option<String> {
        match self {
            StoreError::NotFound { fix, .. } => Some(fix.clone()),
            StoreError::Faulty { faults, .. } => {
                let named = faults.iter().find_map(|fault| fault.fix.as_deref());
                Some(named.unwrap_or_else(|| remedy(self.code())).to_owned())
            }
            StoreError::ReadFailed { error, .. } => Some(read_remedy(error).to_owned()),
            StoreError::ShortFile { .. } => Some("fetch or convert that file again".to_owned()),
            StoreError::FileChanged { .. } => {
                Some("open the model again when the file is whole and nothing writes to it".to_owned())
            }
            StoreError::OutOfMemory { .. } => {
                Some("raise the limit, close other programs, or give a smaller --ram or --ctx".to_owned())
            }
            StoreError::NotWritable { reason, .. } => Some(write_remedy(reason).to_owned()),
            StoreError::DiskFull { .. } => Some("free some space, or choose another destination".to_owned()),
            StoreError::RamBudgetTooSmall { fixes, .. } => Some(fixes.clone()),
            StoreError::InvalidValue { name, .. } => Some(format!("correct {name}, or leave it out")),
            StoreError::Cancelled | StoreError::Internal { .. } => None,
        }
    }
}

/// Why a used folder is no destination.
pub const NOT_EMPTY: &str = "the folder exists and is not empty";

/// Why a file that may not grow cannot be written.
pub const FILE_LIMIT: &str = "EFBIG (a file would exceed the size that this process or the file system allows)";

/// Begins the reason why a source cannot be removed once it is not needed.
pub const NOT_REMOVABLE: &str = "its files cannot be removed";

/// Why a folder that another run has locked is no destination.
pub const IN_USE: &str = "another conversion is writing it";

/// What to do about a place that cannot be written, by the reason.
fn write_remedy(reason: &str) -> &'static str {
    if reason.starts_with(NOT_REMOVABLE) {
        return "leave out --delete-source, or make that folder writable";
    }
    match reason {
        FILE_LIMIT => "raise the limit (ulimit -f), or choose a file system that takes larger files",
        NOT_EMPTY => "choose another destination, or empty this one",
        IN_USE => "wait for it or stop it, or choose another destination",
        _ if reason.starts_with("EMFILE") || reason.starts_with("ENFILE") => {
            "raise the limit on open files (ulimit -n)"
        }
        _ => "choose another destination",
    }
}

/// What to do about faults none of which says it.
fn remedy(code: &str) -> &'static str {
    match code {
        "model_incomplete" => "fetch what is missing",
        "model_unsupported" => "fetch the model in another format, or a version of this program that reads it",
        _ => "fetch or convert those files again, and compare their digests with those of the source",
    }
}

/// What to do about a failed read, by the system's name of the error.
fn read_remedy(error: &str) -> &'static str {
    match error.split(' ').next() {
        Some("EMFILE" | "ENFILE") => "raise the limit on open files (ulimit -n)",
        Some("EACCES" | "EPERM") => "make the file readable for this user",
        Some("ENOENT") => "fetch or convert that file again",
        _ => "check the drive (dmesg | tail; smartctl -a)",
    }
}

/// A kernel that refuses what the store checked before is a mistake; memory is not.
impl From<KernelError> for StoreError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::OutOfMemory { bytes } => StoreError::OutOfMemory { bytes: bytes as u64 },
            other => StoreError::Internal { what: other.to_string() },
        }
    }
}

/// One line for a list of faults: the fault itself when there is one, else the gravest with the count of the others.
fn faults_line(faults: &[Fault]) -> String {
    let Some(first) = faults.iter().min_by_key(|fault| fault.kind) else {
        return "the container has a fault".to_owned();
    };
    match faults.len() {
        1 => first.what.clone(),
        2 => format!("{} (and 1 more fault)", first.what),
        count => format!("{} (and {} more faults)", first.what, count - 1),
    }
}

/// The reasons of all faults, the gravest first, at most [`FAULTS_SHOWN`] of them spelled out, and the model's path: the
/// faults name files only.
fn faults_why(path: &Path, faults: &[Fault]) -> Option<String> {
    let mut order: Vec<&Fault> = faults.iter().collect();
    order.sort_by_key(|fault| fault.kind);
    let mut lines = Vec::new();
    let mut last: Option<&str> = None;
    for (index, fault) in order.iter().take(FAULTS_SHOWN).enumerate() {
        // Many faults have one reason: it is said once.
        let why = fault.why.as_deref().filter(|why| last != Some(*why));
        last = fault.why.as_deref();
        // The first fault's `what` is the headline already.
        match (index, why) {
            (0, Some(why)) => lines.push(why.to_string()),
            (0, None) => {}
            (_, Some(why)) => lines.push(format!("{} ({why})", fault.what)),
            (_, None) => lines.push(fault.what.clone()),
        }
    }
    if faults.len() > FAULTS_SHOWN {
        lines.push(format!("and {} more faults", faults.len() - FAULTS_SHOWN));
    }
    let place = path.display().to_string();
    if !lines.iter().any(|line| line.contains(&place)) {
        lines.push(format!("in {place}"));
    }
    Some(lines.join("; "))
}

/// A name from a file, fit to be shown: quoted, control characters escaped, cut at 120 characters.
pub fn shown(name: &str) -> String {
    const LONGEST: usize = 120;
    let mut text = String::from("`");
    for (index, character) in name.chars().enumerate() {
        if index == LONGEST {
            text.push('…');
            break;
        }
        if character.is_control() || is_bidirectional_control(character) {
            text.extend(character.escape_unicode());
        } else {
            text.push(character);
        }
    }
    text.push('`');
    text
}

/// Characters that reorder the text around them on a screen.
fn is_bidirectional_control(character: char) -> bool {
    matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The last component of a path, or the whole path if it has none; escaped as [`shown`] does, without the quotes.
pub fn file_name(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy());
    shown(&name).trim_matches('`').to_owned()
}

/// A count with thousands separators: 3207118848 -> `3,207,118,848`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size for people, decimal units: `16.4 GB`, `18.9 MB`, `4.1 kB`, `12 bytes`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    for (unit, name) in UNITS {
        if bytes >= unit {
            let value = bytes as f64 / unit as f64;
            return format!("{value:.1} {name}");
        }
    }
    format!("{bytes} bytes")
}

/// The operating system's error as `EIO (Input/output error)`; never the text of success.
pub fn os_error_text(error: &std::io::Error) -> String {
    const NAMES: [(i32, &str); 13] = [
        (libc::EIO, "EIO"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::EACCES, "EACCES"),
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::EROFS, "EROFS"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EMFILE, "EMFILE"),
        (libc::ENFILE, "ENFILE"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::ESTALE, "ESTALE"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
    ];
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    match error.raw_os_error() {
        Some(code) if code != 0 => match NAMES.iter().find(|(known, _)| *known == code) {
            Some((_, name)) => format!("{name} ({text})"),
            None => format!("error {code} ({text})"),
        },
        Some(_) => "an error without a code".to_owned(),
        None => text.to_owned(),
    }
}

/// Faults are shown as their line.
impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_read_well() {
        assert_eq!(human_bytes(16_400_000_000), "16.4 GB");
        assert_eq!(human_bytes(18_915_328), "18.9 MB");
        assert_eq!(human_bytes(999), "999 bytes");
        assert_eq!(grouped(3_207_118_848), "3,207,118,848");
        assert_eq!(grouped(12), "12");
        assert_eq!(grouped(123), "123");
    }

    #[test]
    fn names_from_files_cannot_drive_a_terminal() {
        let text = shown("a\u{1b}[2J\n\u{202e}b");
        assert!(!text.contains('\u{1b}') && !text.contains('\n') && !text.contains('\u{202e}'), "{text}");
        assert!(shown(&"x".repeat(100_000)).chars().count() < 130);
    }

    #[test]
    fn an_operating_system_error_is_never_success() {
        assert_eq!(os_error_text(&std::io::Error::from_raw_os_error(libc::EIO)), "EIO (Input/output error)");
        assert!(!os_error_text(&std::io::Error::from_raw_os_error(0)).to_lowercase().contains("success"));
        assert!(os_error_text(&std::io::Error::from_raw_os_error(libc::EXDEV)).contains("18"));
    }

    #[test]
    fn refused_memory_is_no_fault_of_the_drive_and_limits_are_named() {
        let failed =
            |code| StoreError::read_failed(Path::new("/m/x"), 0, 66_000_000, &io::Error::from_raw_os_error(code), 1);
        let memory = failed(libc::ENOMEM);
        assert_eq!(memory.code(), "ram_budget_too_small");
        assert!(memory.to_string().contains("66.0 MB") && !memory.fix().unwrap().contains("drive"), "{memory}");
        let kernel = StoreError::from(KernelError::OutOfMemory { bytes: 66_000_000 });
        assert_eq!(kernel.to_string(), memory.to_string());
        for (code, part) in [(libc::EMFILE, "ulimit -n"), (libc::EACCES, "readable"), (libc::EIO, "drive")] {
            let error = failed(code);
            assert_eq!(error.code(), "disk_read_failed");
            assert!(error.fix().unwrap().contains(part), "{error}");
        }
    }

    #[test]
    fn the_gravest_fault_gives_the_slug_and_all_are_listed() {
        let path = Path::new("/models/m");
        let corrupt = Fault::file(FaultKind::Corrupt, path, "b is corrupt");
        let twins = ["c", "d"].map(|what| Fault::file(FaultKind::Corrupt, path, what).why("one reason"));
        let why = StoreError::from_faults(path, twins.to_vec()).unwrap_err().why().unwrap();
        assert_eq!(why, "one reason; d; in /models/m");
        let missing = Fault::file(FaultKind::Missing, path, "a is missing").fix("fetch a");
        let error = StoreError::from_faults(path, vec![corrupt, missing]).unwrap_err();
        assert_eq!(error.code(), "model_incomplete");
        assert!(error.to_string().contains("a is missing"));
        let why = error.why().unwrap();
        assert!(why.contains("b is corrupt") && why.contains("/models/m"), "{why}");
        assert_eq!(error.fix().as_deref(), Some("fetch a"));
        assert!(StoreError::from_faults(path, Vec::new()).is_ok());
    }
}
