//! The bytes that are allocated, counted where they are asked for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Bytes that are allocated.
pub(crate) fn now() -> usize {
    NOW.load(Ordering::Relaxed)
}

/// Begins to watch for the most; the bytes that are allocated.
pub(crate) fn begin() -> usize {
    MOST.store(now(), Ordering::Relaxed);
    now()
}

/// The most bytes that were allocated at once since [`begin`].
pub(crate) fn most() -> usize {
    MOST.load(Ordering::Relaxed)
}
