//! Aligned memory that is allocated once, touched once and then reused.
//!
//! Owns: [`AlignedBuffer`], the memory behind expert slots, resident weights and direct reads.
//! Must hold: the start is a multiple of 4096 (of 2 MiB for large buffers, with huge pages advised, so
//! that a first touch costs one fault per 2 MiB); every byte is zero and backed by memory when `new`
//! returns, so that no page fault lands inside a read or a kernel.
//! Refuses: lengths that no address space holds, by an error instead of an abort.

use std::alloc::Layout;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::error::KernelError;

/// Alignment of every buffer in bytes: the page, and enough for every direct read.
pub const PAGE: usize = 4096;
/// Alignment of buffers of at least this many bytes: the huge page of x86-64 and aarch64.
pub const HUGE_PAGE: usize = 2 << 20;

/// Zeroed, pre-touched bytes at a page boundary.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    length: usize,
    layout: Layout,
}

// SAFETY: the buffer owns its memory exclusively, as a `Box<[u8]>` does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access is read-only (`Deref`), as in a `Box<[u8]>`.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Allocates and touches `length` zero bytes.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`] when the system refuses the allocation.
    pub fn new(length: usize) -> Result<Self, KernelError> {
        let refused = || KernelError::OutOfMemory { bytes: length };
        let align = if length >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        // Whole pages, so that a direct read of the last, rounded-up block stays inside.
        let size = length.max(1).checked_next_multiple_of(PAGE).ok_or_else(refused)?;
        let layout = Layout::from_size_align(size, align).map_err(|_| refused())?;
        // SAFETY: the layout has a size of at least one page.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(refused)?;
        if align == HUGE_PAGE {
            advise_huge_pages(start, size);
        }
        // SAFETY: `start` points to `size` bytes that were just allocated and are owned here.
        unsafe { start.as_ptr().write_bytes(0, size) };
        Ok(Self { start, length, layout })
    }

    /// The bytes as f32 values; a tail of fewer than four bytes is left out.
    #[must_use]
    pub fn as_f32(&self) -> &[f32] {
        bytemuck::cast_slice(&self[..self.length & !3])
    }

    /// The bytes as writable f32 values; a tail of fewer than four bytes is left out.
    #[must_use]
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        let whole = self.length & !3;
        bytemuck::cast_slice_mut(&mut self[..whole])
    }
}

/// Asks for huge pages. A refusal costs speed only, so the answer is not needed.
#[cfg(target_os = "linux")]
fn advise_huge_pages(start: NonNull<u8>, size: usize) {
    // SAFETY: the range was just allocated; MADV_HUGEPAGE changes how it is backed, not its contents.
    unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE) };
}

/// Asks for huge pages where the system has such a call.
#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_start: NonNull<u8>, _size: usize) {}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to at least `length` initialised bytes owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc` with this very layout and is freed once.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlignedBuffer").field("length", &self.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_aligned_and_zero() {
        for length in [0usize, 1, 4095, 4096, 4097, 100_001, HUGE_PAGE - 1, HUGE_PAGE, 5 << 20] {
            let buffer = AlignedBuffer::new(length).unwrap();
            assert_eq!(buffer.len(), length);
            let align = if length >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
            assert_eq!(buffer.as_ptr() as usize % align, 0, "length {length}");
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_reused_allocation_is_zero_again() {
        for _ in 0..8 {
            let mut buffer = AlignedBuffer::new(12_288).unwrap();
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(0xAB);
        }
    }

    #[test]
    fn f32_view_covers_whole_values() {
        let mut buffer = AlignedBuffer::new(11).unwrap();
        buffer.as_f32_mut().copy_from_slice(&[1.5, -2.0]);
        assert_eq!(buffer.as_f32(), [1.5, -2.0]);
        assert_eq!(buffer[..4], 1.5f32.to_le_bytes());
        assert_eq!(buffer[8..], [0, 0, 0]);
    }

    #[test]
    fn an_impossible_length_is_an_error() {
        for length in [usize::MAX, usize::MAX - 4096, isize::MAX as usize] {
            let error = AlignedBuffer::new(length).unwrap_err();
            assert!(matches!(error, KernelError::OutOfMemory { bytes } if bytes == length));
        }
    }
}
