//! No kernel touches memory outside of the slices it is given: codes, scales and outputs lie at the first
//! and at the last byte of pages whose neighbours may not be touched, so that one byte too many ends the
//! test. Prefetching may, as it never faults.

use std::ptr;

use super::{assert_same_bits, formats, inputs, precisions};
use crate::act::Activations;
use crate::dispatch::KernelSet;
use crate::matrix::MatrixView;
use crate::test_data::{Fill, Matrix, Random};

/// Memory between two pages that may not be touched.
struct Guarded {
    base: *mut u8,
    page: usize,
    usable: usize,
}

/// Where a slice lies in it.
#[derive(Clone, Copy, Debug)]
enum Edge {
    First,
    Last,
}

impl Guarded {
    fn new(least: usize) -> Self {
        // SAFETY: a question without arguments in memory.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
        let usable = least.next_multiple_of(page);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, whose middle is then opened; nothing else knows of it.
        unsafe {
            let base = libc::mmap(ptr::null_mut(), usable + 2 * page, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let base = base.cast::<u8>();
            assert_eq!(libc::mprotect(base.add(page).cast(), usable, libc::PROT_READ | libc::PROT_WRITE), 0);
            Self { base, page, usable }
        }
    }

    /// Zeroed values at one edge.
    fn slice<T: bytemuck::Pod>(&mut self, edge: Edge, count: usize) -> &mut [T] {
        // SAFETY: the middle pages are readable, writable and borrowed with `self`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.base.add(self.page), self.usable) };
        let length = count * size_of::<T>();
        let from = match edge {
            Edge::First => 0,
            Edge::Last => self.usable - length,
        };
        bytes[from..from + length].fill(0);
        bytemuck::cast_slice_mut(&mut bytes[from..from + length])
    }

    /// A copy of values at one edge.
    fn copy<T: bytemuck::Pod>(&mut self, edge: Edge, values: &[T]) -> &[T] {
        let copy = self.slice(edge, values.len());
        copy.copy_from_slice(values);
        copy
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; no borrow of it is left.
        unsafe { libc::munmap(self.base.cast(), self.usable + 2 * self.page) };
    }
}

#[test]
fn no_set_touches_memory_beside_its_slices() {
    let mut random = Random::new(20);
    let [mut codes, mut scales, mut out] = [(); 3].map(|()| Guarded::new(1 << 18));
    for format in formats() {
        for (rows, cols) in [(1, 1), (2, 7), (3, 63), (16, 65), (17, 127), (32, 200), (33, 515), (19, 1037)] {
            let matrix = Matrix::new(&mut random, format, rows, cols, Fill::Random);
            let x = inputs(&mut random, 9, cols, false);
            let coefficients = random.values(rows);
            for edge in [Edge::First, Edge::Last] {
                let (codes, scales) = (codes.copy(edge, &matrix.codes), scales.copy(edge, &matrix.scales));
                let guarded = MatrixView::new(format, rows, cols, codes, scales).unwrap();
                for set in KernelSet::available() {
                    let context = || format!("{set:?} {format:?} {rows} x {cols} {edge:?}");
                    for (precision, s) in precisions(format).into_iter().flat_map(|p| [(p, 1), (p, 9)]) {
                        let mut activations = Activations::default();
                        activations.quantise(&set, precision, s, cols, &x[..s * cols]).unwrap();
                        let mut expected = vec![0f32; s * rows];
                        set.matmul(&matrix.view(), &activations, &mut expected);
                        let got = out.slice(edge, s * rows);
                        set.matmul(&guarded, &activations, got);
                        assert_same_bits(&expected, got, &context);
                    }
                    let mut expected = vec![0f32; cols];
                    set.accumulate_rows(&matrix.view(), &coefficients, &mut expected);
                    let got = out.slice(edge, cols);
                    set.accumulate_rows(&guarded, &coefficients, got);
                    assert_same_bits(&expected, got, &context);
                }
            }
        }
    }
}
