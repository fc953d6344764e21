//! The rules of writing and reading a slot, in one process and over a fork.

use super::*;

/// One byte.
const BYTE: [Range<usize>; 2] = [0..1, 1..1];

#[test]
fn a_slot_is_written_then_read_and_never_both() {
    let slab = Slab::new(2, 4096).unwrap();
    let mut pieces = slab.begin_fill(1, &[0..100, 100..4096]).unwrap();
    let pin = slab.pin(1).unwrap();
    assert!(pin.bytes().is_none(), "bytes of a slot that is being written");
    assert!(slab.begin_fill(1, &BYTE).is_none());
    assert!(slab.reclaim(1, &BYTE).is_none(), "this process is still writing");
    for (value, piece) in (1u8..).zip(pieces.iter_mut()) {
        piece.bytes_mut().unwrap().fill(value);
    }
    drop(pieces.pop());
    assert!(pin.bytes().is_none(), "one piece is left");
    drop(pieces);
    let bytes = pin.bytes().unwrap();
    assert!(bytes[..100].iter().all(|byte| *byte == 1) && bytes[100..].iter().all(|byte| *byte == 2));
    assert_eq!(bytes.as_ptr() as usize % 4096, 0);
    assert!(slab.begin_fill(1, &BYTE).is_none(), "a pinned slot was written");
    drop(pin);
    assert!(slab.is_idle(1));
    assert!(slab.begin_fill(1, &BYTE).is_some());
    assert!(slab.is_idle(0), "the neighbour was never touched");
}

#[test]
fn ranges_that_overlap_or_leave_the_slot_are_refused() {
    let slab = Slab::new(1, 8192).unwrap();
    for ranges in [&[0..100, 99..200][..], &[100..200, 0..50], &[0..8193, 8193..8193], &[]] {
        assert!(slab.begin_fill(0, ranges).is_none(), "{ranges:?}");
    }
    assert!(slab.begin_fill(1, &BYTE).is_none() && slab.pin(1).is_none(), "a slot that is not there");
    assert!(slab.is_idle(0));
}

#[test]
fn a_size_that_cannot_be_had_is_an_error() {
    assert!(matches!(Slab::new(usize::MAX, 4096), Err(StoreError::Internal { .. })));
    assert!(matches!(Slab::new(1, 4095), Err(StoreError::Internal { .. })));
}

#[test]
fn a_forked_child_reclaims_what_its_parent_was_writing() {
    let slab = Slab::new(1, 4096).unwrap();
    let mut pieces = slab.begin_fill(0, &[0..96, 96..4096]).unwrap();
    pieces[0].bytes_mut().unwrap().fill(7);
    let ended_well = in_forked_child(|| {
        let inert = pieces[0].bytes_mut().is_none();
        let mut own = slab.reclaim(0, &[0..100, 100..101]).unwrap();
        own[0].bytes_mut().unwrap().fill(9);
        let pin = slab.pin(0).unwrap();
        let unfinished = pin.bytes().is_none();
        drop(own);
        inert && unfinished && pin.bytes().is_some_and(|bytes| bytes[0] == 9 && slab.reclaim(0, &BYTE).is_none())
    });
    assert!(ended_well);
    drop(pieces);
    assert_eq!(slab.pin(0).unwrap().bytes().unwrap()[0], 7, "the child wrote into the parent's memory");
}

/// Runs `child` in a forked process; whether it returned true. A child that hangs is ended and counts as false.
#[cfg(unix)]
pub(in crate::expert) fn in_forked_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `child` alone on its only thread and leaves by `_exit`, so nothing of the test harness runs
    // twice; the allocator of the C library is usable after a fork.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let ended_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends this process at once; no destructor is owed to anyone.
        unsafe { libc::_exit(i32::from(!ended_well)) };
    }
    assert!(process > 0, "fork failed");
    let mut status = 0;
    for _ in 0..20_000 {
        // SAFETY: `status` outlives the call, and the process is a child of this one.
        if unsafe { libc::waitpid(process, &raw mut status, libc::WNOHANG) } == process {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // SAFETY: a child of this process that has not been waited for, so the number is still its own.
    unsafe { libc::kill(process, libc::SIGKILL) };
    // SAFETY: as above.
    unsafe { libc::waitpid(process, &raw mut status, 0) };
    false
}
