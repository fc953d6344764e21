//! The choice of instruction set at run time.
//!
//! Owns: [`KernelSet`], a value that exists only if the processor and the operating system have what its
//! functions need, and the windows through which kernels write their outputs.
//! Must hold: a [`KernelTable`] is called only after its `supported` said yes on this machine; two windows
//! of one output never overlap.
//! Refuses: unknown or unsupported names, by `None`.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::act::{Activations, Precision, QuantiseRow};
use crate::arch;
use crate::format::encode::{Deviation, EncodeRows};
use crate::matrix::MatrixView;

/// `(x, weight, bias, eps, out)`.
type LayerNorm = unsafe fn(&[f32], &[f32], &[f32], f32, &mut [f32]);
/// `(weights, x, out)`.
type Matmul = unsafe fn(&MatrixView<'_>, &Activations, &mut OutputWindow<'_>);

/// The functions of one instruction set. They may be called only where `supported` returned true.
pub(crate) struct KernelTable {
    pub(crate) name: &'static str,
    pub(crate) supported: fn() -> bool,
    pub(crate) matmul: Matmul,
    pub(crate) accumulate_rows: unsafe fn(&MatrixView<'_>, &[f32], &mut [f32]),
    pub(crate) quantise_a16: unsafe fn(QuantiseRow<'_>),
    pub(crate) quantise_a8: unsafe fn(QuantiseRow<'_>),
    pub(crate) all_finite: unsafe fn(&[f32]) -> bool,
    pub(crate) encode_rows: unsafe fn(EncodeRows<'_>) -> Option<Deviation>,
    pub(crate) decode_rows: unsafe fn(&MatrixView<'_>, Range<usize>, &mut [f32]),
    pub(crate) dot: unsafe fn(&[f32], &[f32]) -> f32,
    pub(crate) axpy: unsafe fn(f32, &[f32], &mut [f32]),
    pub(crate) rmsnorm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub(crate) layernorm: LayerNorm,
    pub(crate) softmax: unsafe fn(&mut [f32]),
    pub(crate) silu_mul: unsafe fn(&[f32], &[f32], &mut [f32]),
    pub(crate) sigmoid: unsafe fn(&mut [f32]),
    pub(crate) exp: unsafe fn(&mut [f32]),
    pub(crate) max: unsafe fn(&[f32]) -> f32,
}

/// Every set this build knows, the preferred one first.
#[cfg(target_arch = "x86_64")]
static SETS: &[&KernelTable] = &[
    &arch::x86_64::AVX512_VNNI,
    &arch::x86_64::AVX2,
    #[cfg(test)]
    &arch::x86_64::AVX512_SOFTWARE,
    &arch::SCALAR,
];
#[cfg(target_arch = "x86_64")]
static NAMES: &[&str] = &[
    "avx512vnni",
    "avx2",
    #[cfg(test)]
    "avx512vnni-software",
    "scalar",
];

/// Every set this build knows, the preferred one first.
#[cfg(not(target_arch = "x86_64"))]
static SETS: &[&KernelTable] = &[&arch::SCALAR];
#[cfg(not(target_arch = "x86_64"))]
static NAMES: &[&str] = &["scalar"];

/// The kernels of one instruction set; every set returns the same bits.
#[derive(Clone, Copy)]
pub struct KernelSet {
    /// Supported on this machine: no other table is ever put here.
    table: &'static KernelTable,
}

impl fmt::Debug for KernelSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelSet").field(&self.name()).finish()
    }
}

impl KernelSet {
    /// The sets that this machine can run, the preferred one first; the last is the scalar reference.
    #[must_use]
    pub fn available() -> Vec<KernelSet> {
        Self::supported().collect()
    }

    /// The preferred set of this machine.
    #[must_use]
    pub fn best() -> KernelSet {
        Self::supported().next().unwrap_or(KernelSet { table: &arch::SCALAR })
    }

    /// The set of this name if this machine can run it; `auto` is [`KernelSet::best`].
    #[must_use]
    pub fn by_name(name: &str) -> Option<KernelSet> {
        if name == "auto" {
            return Some(Self::best());
        }
        Self::supported().find(|set| set.name() == name)
    }

    /// The names of all sets of this build, whether or not this machine can run them.
    #[must_use]
    pub fn all_names() -> &'static [&'static str] {
        NAMES
    }

    /// The name of this set.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.table.name
    }

    fn supported() -> impl Iterator<Item = KernelSet> {
        SETS.iter().filter(|table| (table.supported)()).map(|table| KernelSet { table })
    }

    /// `out[s, r] = sum_c weights[r, c] * x[s, c]` on the calling thread, in the arithmetic of the
    /// precision of `x`; `out` is `[x.rows(), weights.rows()]`.
    ///
    /// # Panics
    /// If the shapes do not agree, or integer activations meet float weights, or A8 activations meet
    /// groups that are no multiple of 64 columns.
    pub fn matmul(&self, weights: &MatrixView<'_>, x: &Activations, out: &mut [f32]) {
        check_product(weights, x, out.len());
        let mut window = OutputWindow::whole(out, x.rows(), weights.rows());
        self.matmul_into(weights, x, &mut window);
    }

    /// As [`KernelSet::matmul`], into a window; shapes were checked by [`check_product`].
    pub(crate) fn matmul_into(&self, weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>) {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.matmul)(weights, x, out) }
    }

    /// `acc[c] = fma(coefficients[d] * scale[d, c / G], code[d, c], acc[c])` for d ascending (float
    /// formats: `fma(coefficients[d], w[d, c], acc[c])`): the transposed product of absorbed attention.
    ///
    /// # Panics
    /// If `coefficients` is not `[rows]` or `acc` not `[cols]`.
    pub fn accumulate_rows(&self, weights: &MatrixView<'_>, coefficients: &[f32], acc: &mut [f32]) {
        assert_eq!(coefficients.len(), weights.rows(), "one coefficient per row");
        assert_eq!(acc.len(), weights.cols(), "one sum per column");
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.accumulate_rows)(weights, coefficients, acc) }
    }

    /// Whether no value is NaN or infinite.
    #[must_use]
    pub fn all_finite(&self, x: &[f32]) -> bool {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.all_finite)(x) }
    }

    /// Quantises one row of activations at A16 or A8.
    pub(crate) fn quantise_row(&self, row: QuantiseRow<'_>, precision: Precision) {
        let quantise = match precision {
            Precision::A8 => self.table.quantise_a8,
            Precision::A16 | Precision::F32 => self.table.quantise_a16,
        };
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { quantise(row) }
    }

    /// Encodes rows and measures the deviation; `None` if a weight of an integer format is not finite. See
    /// [`crate::format::encode`].
    pub(crate) fn encode_rows(&self, job: EncodeRows<'_>) -> Option<Deviation> {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.encode_rows)(job) }
    }

    /// Decodes whole rows into `out` `[rows, cols]`; the same bits on every set.
    ///
    /// # Panics
    /// If `rows` does not lie within `weights` or `out` has another length.
    pub fn decode_rows(&self, weights: &MatrixView<'_>, rows: Range<usize>, out: &mut [f32]) {
        assert!(rows.start <= rows.end && rows.end <= weights.rows(), "row range outside of the matrix");
        assert_eq!(out.len(), rows.len() * weights.cols(), "the output is [rows, cols]");
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.decode_rows)(weights, rows, out) }
    }

    /// `sum_i a[i] * b[i]` in sixteen interleaved fused chains and a fixed tree.
    #[must_use]
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.dot)(a, b) }
    }

    /// `acc[i] = fma(a, x[i], acc[i])`.
    pub fn axpy(&self, a: f32, x: &[f32], acc: &mut [f32]) {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.axpy)(a, x, acc) }
    }

    /// Root-mean-square norm of one row.
    pub fn rmsnorm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.rmsnorm)(x, weight, eps, out) }
    }

    /// Layer norm of one row, with bias.
    pub fn layernorm(&self, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.layernorm)(x, weight, bias, eps, out) }
    }

    /// Softmax in place.
    pub fn softmax(&self, x: &mut [f32]) {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.softmax)(x) }
    }

    /// `out[i] = silu(gate[i]) * up[i]`.
    pub fn silu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.silu_mul)(gate, up, out) }
    }

    /// `x[i] = 1 / (1 + exp(-x[i]))`.
    pub fn sigmoid(&self, x: &mut [f32]) {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.sigmoid)(x) }
    }

    /// `x[i] = exp(x[i])`.
    pub fn exp(&self, x: &mut [f32]) {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.exp)(x) }
    }

    /// The largest value; NaN is skipped.
    #[must_use]
    pub fn max(&self, x: &[f32]) -> f32 {
        // SAFETY: the table is supported on this machine (invariant of the type).
        unsafe { (self.table.max)(x) }
    }
}

/// The shape rules of a product.
pub(crate) fn check_product(weights: &MatrixView<'_>, x: &Activations, out: usize) {
    assert_eq!(x.cols(), weights.cols(), "activations and weights differ in columns");
    assert_eq!(out, x.rows() * weights.rows(), "the output is [activation rows, weight rows]");
    let format = weights.format();
    match x.precision() {
        Precision::F32 => {}
        Precision::A16 => assert!(format.quantised(), "integer activations need quantised weights"),
        Precision::A8 => assert!(
            crate::act::Numerics::A8.precision(format) == Precision::A8,
            "A8 activations need scales per row or per multiple of 64 columns"
        ),
    }
}

/// The part of an output `[x rows, weight rows]` that one kernel call writes: some columns of every row.
pub(crate) struct OutputWindow<'a> {
    base: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

impl<'a> OutputWindow<'a> {
    /// All of an output.
    pub(crate) fn whole(out: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert!(out.len() >= rows * cols, "output shorter than its shape");
        Self { base: out.as_mut_ptr(), stride: cols, rows, cols, borrow: PhantomData }
    }

    /// The window's part of output row `row`.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "output row out of range");
        // SAFETY: `base` starts a window of `rows` rows of `cols` values, `stride` apart, inside an
        // exclusively borrowed slice (checked by the constructors); no other window overlaps it, and
        // `&mut self` keeps a second borrow through this one away.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.stride), self.cols) }
    }
}

/// An output that several threads fill, each window at most once.
pub(crate) struct SharedOutput<'a> {
    base: *mut f32,
    rows: usize,
    cols: usize,
    chunk: usize,
    taken: Vec<AtomicBool>,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is used only through windows, which are disjoint (`taken`).
unsafe impl Sync for SharedOutput<'_> {}

impl<'a> SharedOutput<'a> {
    /// An output `[rows, cols]` cut into windows of `chunk` columns.
    pub(crate) fn new(out: &'a mut [f32], rows: usize, cols: usize, chunk: usize) -> Self {
        assert!(out.len() >= rows * cols, "output shorter than its shape");
        let taken = (0..cols.div_ceil(chunk)).map(|_| AtomicBool::new(false)).collect();
        Self { base: out.as_mut_ptr(), rows, cols, chunk, taken, borrow: PhantomData }
    }

    /// Number of windows.
    pub(crate) fn windows(&self) -> usize {
        self.taken.len()
    }

    /// The columns and the window of number `index`; `None` if it was taken before.
    pub(crate) fn take(&self, index: usize) -> Option<(Range<usize>, OutputWindow<'_>)> {
        if self.taken[index].swap(true, Ordering::Relaxed) {
            return None;
        }
        let cols = index * self.chunk..self.cols.min((index + 1) * self.chunk);
        let window = OutputWindow {
            base: self.base.wrapping_add(cols.start),
            stride: self.cols,
            rows: self.rows,
            cols: cols.len(),
            borrow: PhantomData,
        };
        Some((cols, window))
    }
}
