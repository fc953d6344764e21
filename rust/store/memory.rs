//! Memory whose size comes from a file or from a caller: it is had, or refused by an error; never an abort.
//!
//! Owns: zeroed and growing buffers, and the trial of an amount that others will take in parts. The many small values of
//! a few bytes cannot each be refused; a trial before the work makes sure that there is room for them.

use bytemuck::Zeroable;

use crate::error::StoreError;

/// Room for everything small that a piece of work allocates, in bytes: a trial asks for it on top.
const SMALL_CHANGE: u64 = 8 << 20;

/// The error of a request for `count` values that was refused.
fn refused<T>(count: usize) -> StoreError {
    StoreError::OutOfMemory { bytes: count.saturating_mul(size_of::<T>()) as u64 }
}

/// A vector of `count` zeros.
///
/// # Errors
/// [`StoreError::OutOfMemory`].
pub fn zeroed<T: Zeroable + Clone>(count: usize) -> Result<Vec<T>, StoreError> {
    let mut values = Vec::new();
    resize(&mut values, count)?;
    Ok(values)
}

/// Sets the length of `values` to `count`; values that are new are zero.
///
/// # Errors
/// [`StoreError::OutOfMemory`]; `values` is as it was then.
pub fn resize<T: Zeroable + Clone>(values: &mut Vec<T>, count: usize) -> Result<(), StoreError> {
    let more = count.saturating_sub(values.len());
    values.try_reserve_exact(more).map_err(|_| refused::<T>(count))?;
    values.resize(count, T::zeroed());
    Ok(())
}

/// Makes room for `more` values, so that pushing them moves and asks for nothing.
///
/// # Errors
/// [`StoreError::OutOfMemory`].
pub fn reserve<T>(values: &mut Vec<T>, more: usize) -> Result<(), StoreError> {
    values.try_reserve(more).map_err(|_| refused::<T>(values.len().saturating_add(more)))
}

/// Asks the system for `bytes`, and room for what is small, and gives them back: what will be taken in parts is refused
/// as a whole, before work begins. A promise it is not, since others may take the memory meanwhile.
///
/// # Errors
/// [`StoreError::OutOfMemory`].
pub fn trial(bytes: u64) -> Result<(), StoreError> {
    let all = usize::try_from(bytes.saturating_add(SMALL_CHANGE));
    all.ok()
        .and_then(|all| reserve(&mut Vec::<u8>::new(), all).ok())
        .ok_or(StoreError::OutOfMemory { bytes: bytes.max(SMALL_CHANGE) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_refused_and_leaves_the_buffer_as_it_was() {
        let mut values = vec![1.5f32; 3];
        for error in [
            resize(&mut values, usize::MAX / 8).unwrap_err(),
            reserve(&mut values, usize::MAX / 8).unwrap_err(),
            zeroed::<u64>(usize::MAX).unwrap_err(),
            trial(u64::MAX).unwrap_err(),
        ] {
            assert_eq!(error.code(), "ram_budget_too_small", "{error}");
            assert!(error.to_string().contains("of memory") && error.fix().is_some(), "{error}");
        }
        assert_eq!(values, [1.5; 3]);
        resize(&mut values, 5).unwrap();
        assert_eq!(values, [1.5, 1.5, 1.5, 0.0, 0.0]);
        resize(&mut values, 1).unwrap();
        assert_eq!((values, zeroed::<u8>(2).unwrap()), (vec![1.5], vec![0, 0]));
        trial(1 << 20).unwrap();
    }
}
