//! Places where something reaches the disk, numbered as they are passed, so that tests can end the process at each of
//! them, or let the call there fail. Without the feature `faults`, which only tests ask for, a place is nothing.

use std::io;

/// A place: creating, writing, flushing, renaming or removing something on the disk comes next.
///
/// # Errors
/// The error that a test asked for.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub fn point() -> io::Result<()> {
    Ok(())
}

#[cfg(feature = "faults")]
pub use injected::{end_at, fail_at, passed, point};

#[cfg(feature = "faults")]
mod injected {
    use super::io;
    use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);
    static AT: AtomicU64 = AtomicU64::new(u64::MAX);
    static ERROR: AtomicI32 = AtomicI32::new(0);

    /// A place: creating, writing, flushing, renaming or removing something on the disk comes next.
    ///
    /// # Errors
    /// The error that [`fail_at`] asked for.
    pub fn point() -> io::Result<()> {
        let number = PASSED.fetch_add(1, Ordering::SeqCst);
        if number != AT.load(Ordering::SeqCst) {
            return Ok(());
        }
        match ERROR.load(Ordering::SeqCst) {
            // No destructor runs, and the other threads go with this one.
            0 => std::process::exit(137),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// How many places were passed.
    #[must_use]
    pub fn passed() -> u64 {
        PASSED.load(Ordering::SeqCst)
    }

    /// Ends the process, as a crash does, at the place of this number, counted from now.
    pub fn end_at(number: u64) {
        fail_at(number, 0);
    }

    /// Lets the call at the place of this number, counted from now, fail with the system's error `error`.
    pub fn fail_at(number: u64, error: i32) {
        ERROR.store(error, Ordering::SeqCst);
        PASSED.store(0, Ordering::SeqCst);
        AT.store(number, Ordering::SeqCst);
    }
}
