//! The kernels of each instruction set.
//!
//! Owns: the table of functions that a kernel set consists of, the arithmetic that all sets share, and the
//! seam an instruction set fills in ([`Isa`]). What a set does not override it inherits from the scalar
//! reference, compiled once more under the set's own `#[target_feature]`.
//!
//! Must hold: whatever a set overrides returns the same bits as the default. Integer sums are exact, so
//! their order is free; every floating-point step is fixed by [`Isa::chains`], [`quantised_row`] and
//! [`crate::ops`].

pub(crate) mod codes;
pub(crate) mod lanes;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

use std::marker::PhantomData;

use codes::{Byte, Codes, Crumb, Nibble, Triple};

use crate::act::{ActRow, Activations, BLOCK, Precision};
use crate::dispatch::OutputWindow;
use crate::format::Format;
use crate::matrix::MatrixView;
use crate::ops;

/// Interleaved chains of the sum over groups: group `g` belongs to chain `g mod 4`.
pub(crate) const GROUP_CHAINS: usize = 4;

/// Columns whose products add up exactly in 32 bits, whatever the codes: `1024 * 128 * 16256 < 2^31`.
const EXACT_COLS: usize = 1024;

/// Weight rows that f32 arithmetic takes at a time, and the columns of them that are decoded at a time: 8 KiB. A
/// multiple of sixteen, so that the chains of a sum go on from part to part.
const FLOAT_ROWS: usize = 4;
const FLOAT_COLS: usize = 512;

/// Rows that the transposed product takes at a time.
const ACCUMULATED_ROWS: usize = 4;

/// The f32 factors of the units (groups or blocks) of a row's sum.
pub(crate) trait Factors {
    /// The factor of one unit.
    fn at(&self, unit: usize) -> f32;
    /// The factors of four units from `unit` on.
    #[inline(always)]
    fn four(&self, unit: usize) -> [f32; 4] {
        [self.at(unit), self.at(unit + 1), self.at(unit + 2), self.at(unit + 3)]
    }
    /// Where the factors of `unit` lie, for prefetching.
    fn address(&self, unit: usize) -> *const f32;
}

/// One stored factor per unit.
pub(crate) struct Plain<'a>(pub(crate) &'a [f32]);

impl Factors for Plain<'_> {
    #[inline(always)]
    fn at(&self, unit: usize) -> f32 {
        self.0[unit]
    }
    #[inline(always)]
    fn four(&self, unit: usize) -> [f32; 4] {
        four_of(self.0, unit)
    }
    #[inline(always)]
    fn address(&self, unit: usize) -> *const f32 {
        self.0.as_ptr().wrapping_add(unit)
    }
}

/// Group scale times block scale: A8 activations on groups of one block.
pub(crate) struct Paired<'a> {
    pub(crate) group_scales: &'a [f32],
    pub(crate) block_scales: &'a [f32],
}

impl Factors for Paired<'_> {
    #[inline(always)]
    fn at(&self, unit: usize) -> f32 {
        self.group_scales[unit] * self.block_scales[unit]
    }
    #[inline(always)]
    fn four(&self, unit: usize) -> [f32; 4] {
        let (groups, blocks) = (four_of(self.group_scales, unit), four_of(self.block_scales, unit));
        std::array::from_fn(|i| groups[i] * blocks[i])
    }
    #[inline(always)]
    fn address(&self, unit: usize) -> *const f32 {
        self.group_scales.as_ptr().wrapping_add(unit)
    }
}

/// Group scale times block scale: A8 activations on groups of several blocks.
pub(crate) struct Spread<'a> {
    pub(crate) group_scales: &'a [f32],
    pub(crate) block_scales: &'a [f32],
    pub(crate) blocks_per_group: usize,
}

impl Factors for Spread<'_> {
    #[inline(always)]
    fn at(&self, unit: usize) -> f32 {
        self.group_scales[unit / self.blocks_per_group] * self.block_scales[unit]
    }
    #[inline(always)]
    fn address(&self, unit: usize) -> *const f32 {
        self.group_scales.as_ptr().wrapping_add(unit / self.blocks_per_group)
    }
}

#[inline(always)]
fn four_of(values: &[f32], from: usize) -> [f32; 4] {
    let four = &values[from..from + 4];
    [four[0], four[1], four[2], four[3]]
}

/// What an instruction set can override; the defaults are the scalar reference.
pub(crate) trait Isa {
    /// Eight f32 numbers at a time.
    type Lanes: lanes::Lanes;

    /// Exact sum of `code * v` over a whole row.
    #[inline(always)]
    fn row_dot<C: Codes>(codes: &[u8], x: &ActRow<'_>, cols: usize) -> i64 {
        let parts = x.codes[..cols].chunks(EXACT_COLS).enumerate();
        parts.map(|(at, v)| i64::from(C::dot(codes, at * EXACT_COLS, v))).sum()
    }

    /// `((c0 + c1) + (c2 + c3))` where chain `u mod 4` runs over the units `u` of `unit` columns:
    /// `c = fma(float(dot of the unit), factor of the unit, c)`.
    #[inline(always)]
    fn chains<C: Codes>(codes: &[u8], x: &ActRow<'_>, cols: usize, unit: usize, factors: &impl Factors) -> f32 {
        let mut chains = [0.0f32; GROUP_CHAINS];
        for (at, v) in x.codes[..cols].chunks(unit).enumerate() {
            let dot = C::dot(codes, at * unit, v);
            let chain = &mut chains[at % GROUP_CHAINS];
            *chain = (dot as f32).mul_add(factors.at(at), *chain);
        }
        join(chains)
    }

    /// Computes the products of whole tiles of rows; returns how many rows were done (0: none).
    #[inline(always)]
    fn tiles(_weights: &MatrixView<'_>, _x: &Activations, _out: &mut OutputWindow<'_>) -> usize {
        0
    }

    /// `acc[c] = fma(factors[n], float(codes[n][c]), acc[c])` for the columns `first..first + acc.len()`, `n`
    /// rising.
    #[inline(always)]
    fn accumulate<C: Codes, const N: usize>(codes: &[&[u8]; N], first: usize, factors: &[f32; N], acc: &mut [f32]) {
        for (col, sum) in acc.iter_mut().enumerate() {
            for (codes, factor) in codes.iter().zip(factors) {
                *sum = factor.mul_add(C::code(codes, first + col) as f32, *sum);
            }
        }
    }
}

/// The scalar reference: nothing overridden.
pub(crate) struct Scalar;
impl Isa for Scalar {
    type Lanes = lanes::Array;
}

#[inline(always)]
pub(crate) fn join(chains: [f32; GROUP_CHAINS]) -> f32 {
    (chains[0] + chains[1]) + (chains[2] + chains[3])
}

/// One output of a quantised matrix: a line of the table in the arithmetic contract. A type and not a closure, because
/// closures do not inherit the target features that intrinsics need to be inlined.
trait Product {
    fn of<I: Isa>(weights: &MatrixView<'_>, row: usize, x: &ActRow<'_>) -> f32;
}

/// One scale a row, 15-bit activations.
struct RowA16<C>(PhantomData<C>);
impl<C: Codes> Product for RowA16<C> {
    #[inline(always)]
    fn of<I: Isa>(weights: &MatrixView<'_>, row: usize, x: &ActRow<'_>) -> f32 {
        let dot = I::row_dot::<C>(weights.row_codes(row), x, weights.cols());
        (dot as f32 * weights.row_scales(row)[0]) * x.scales[0]
    }
}

/// One scale a row, 8-bit activations.
struct RowA8<C>(PhantomData<C>);
impl<C: Codes> Product for RowA8<C> {
    #[inline(always)]
    fn of<I: Isa>(weights: &MatrixView<'_>, row: usize, x: &ActRow<'_>) -> f32 {
        let sum = I::chains::<C>(weights.row_codes(row), x, weights.cols(), BLOCK, &Plain(x.scales));
        sum * weights.row_scales(row)[0]
    }
}

/// Scales in groups of `GROUP` columns (0: any number), 15-bit activations.
struct GroupedA16<C, const GROUP: usize>(PhantomData<C>);
impl<C: Codes, const GROUP: usize> Product for GroupedA16<C, GROUP> {
    #[inline(always)]
    fn of<I: Isa>(weights: &MatrixView<'_>, row: usize, x: &ActRow<'_>) -> f32 {
        let (cols, factors) = (weights.cols(), Plain(weights.row_scales(row)));
        let group = if GROUP == 0 { weights.format().group_cols(cols) } else { GROUP };
        I::chains::<C>(weights.row_codes(row), x, cols, group, &factors) * x.scales[0]
    }
}

/// Groups of one block, 8-bit activations.
struct PairedA8<C>(PhantomData<C>);
impl<C: Codes> Product for PairedA8<C> {
    #[inline(always)]
    fn of<I: Isa>(weights: &MatrixView<'_>, row: usize, x: &ActRow<'_>) -> f32 {
        let factors = Paired { group_scales: weights.row_scales(row), block_scales: x.scales };
        I::chains::<C>(weights.row_codes(row), x, weights.cols(), BLOCK, &factors)
    }
}

/// Groups of several blocks, 8-bit activations.
struct SpreadA8;
impl Product for SpreadA8 {
    #[inline(always)]
    fn of<I: Isa>(weights: &MatrixView<'_>, row: usize, x: &ActRow<'_>) -> f32 {
        let blocks_per_group = weights.format().group_cols(weights.cols()) / BLOCK;
        let factors = Spread { group_scales: weights.row_scales(row), block_scales: x.scales, blocks_per_group };
        I::chains::<Nibble>(weights.row_codes(row), x, weights.cols(), BLOCK, &factors)
    }
}

/// The rows from `from` on. What a product is, is decided once, outside of the loops.
#[inline(always)]
fn each_row<I: Isa, P: Product>(weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>, from: usize) {
    let Some(last) = x.rows().checked_sub(1) else { return };
    // One place where the product is inlined. Most have a single activation row, which is looked up once.
    let last_row = x.row(last);
    for row in from..weights.rows() {
        for s in 0..=last {
            let x = if s == last { last_row } else { x.row(s) };
            out.row_mut(s)[row] = P::of::<I>(weights, row, &x);
        }
    }
}

/// Decodes part of a row, as [`crate::format::decode::part_body`]: compiled once for each set, not once for each
/// product that decodes.
type DecodePart = unsafe fn(&MatrixView<'_>, usize, usize, &mut [f32]);

/// `out[s, r] = weights[r] . x[s]` for all rows of both.
///
/// # Safety
/// `decode` is the function of the set that this body is compiled for.
#[inline(always)]
pub(crate) unsafe fn matmul_body<I: Isa>(
    weights: &MatrixView<'_>,
    x: &Activations,
    out: &mut OutputWindow<'_>,
    decode: DecodePart,
) {
    if x.precision() == Precision::F32 {
        // SAFETY: by the caller's promise.
        return unsafe { float_matmul(weights, x, out, decode) };
    }
    let from = I::tiles(weights, x, out);
    let a8 = x.precision() == Precision::A8;
    match (weights.format(), a8) {
        (Format::Int8Row, false) => each_row::<I, RowA16<Byte>>(weights, x, out, from),
        (Format::Int8Row, true) => each_row::<I, RowA8<Byte>>(weights, x, out, from),
        (Format::Int4Row, false) => each_row::<I, RowA16<Nibble>>(weights, x, out, from),
        (Format::Int4Row, true) => each_row::<I, RowA8<Nibble>>(weights, x, out, from),
        (Format::Int2Row, false) => each_row::<I, RowA16<Crumb>>(weights, x, out, from),
        (Format::Int2Row, true) => each_row::<I, RowA8<Crumb>>(weights, x, out, from),
        (Format::Int3G64, false) => each_row::<I, GroupedA16<Triple, BLOCK>>(weights, x, out, from),
        (Format::Int3G64, true) => each_row::<I, PairedA8<Triple>>(weights, x, out, from),
        (_, false) => each_row::<I, GroupedA16<Nibble, 0>>(weights, x, out, from),
        (Format::Int4Grouped { group: 64 }, true) => each_row::<I, PairedA8<Nibble>>(weights, x, out, from),
        (_, true) => each_row::<I, SpreadA8>(weights, x, out, from),
    }
}

/// f32 arithmetic: parts of a few weight rows are decoded once and meet every activation row, while they are in the
/// first-level cache; several rows at a time, so that sums do not wait for one another.
///
/// # Safety
/// As [`matmul_body`].
#[inline(always)]
unsafe fn float_matmul(weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>, decode: DecodePart) {
    let whole = weights.rows() / FLOAT_ROWS * FLOAT_ROWS;
    let mut chains = vec![[[0.0f32; ops::CHAINS]; FLOAT_ROWS]; x.rows()];
    for row in (0..whole).step_by(FLOAT_ROWS) {
        // SAFETY: by the caller's promise.
        unsafe { float_rows::<FLOAT_ROWS>(weights, row, x, &mut chains, out, decode) };
    }
    let mut chains = vec![[[0.0f32; ops::CHAINS]; 1]; x.rows()];
    for row in whole..weights.rows() {
        // SAFETY: as above.
        unsafe { float_rows::<1>(weights, row, x, &mut chains, out, decode) };
    }
}

/// A row that is stored as f32, where memory allows it to be read as such.
#[inline(always)]
fn stored_values<'a>(weights: &MatrixView<'a>, row: usize) -> Option<&'a [f32]> {
    match weights.format() {
        Format::F32 if cfg!(target_endian = "little") => bytemuck::try_cast_slice(weights.row_codes(row)).ok(),
        _ => None,
    }
}

/// The weight rows from `row` on; `chains` holds the sums of each activation row.
///
/// # Safety
/// As [`matmul_body`].
#[inline(always)]
unsafe fn float_rows<const N: usize>(
    weights: &MatrixView<'_>,
    row: usize,
    x: &Activations,
    chains: &mut [[[f32; ops::CHAINS]; N]],
    out: &mut OutputWindow<'_>,
    decode: DecodePart,
) {
    chains.fill([[0.0; ops::CHAINS]; N]);
    let mut decoded = [[0.0f32; FLOAT_COLS]; N];
    for first in (0..weights.cols()).step_by(FLOAT_COLS) {
        let count = FLOAT_COLS.min(weights.cols() - first);
        let mut parts: [&[f32]; N] = [&[]; N];
        for (n, (part, decoded)) in parts.iter_mut().zip(&mut decoded).enumerate() {
            *part = if let Some(values) = stored_values(weights, row + n) {
                &values[first..first + count]
            } else {
                // SAFETY: by the caller's promise.
                unsafe { decode(weights, row + n, first, &mut decoded[..count]) };
                &decoded[..count]
            };
        }
        for (s, chains) in chains.iter_mut().enumerate() {
            ops::add_dots(&parts, &x.values(s)[first..first + count], chains);
        }
    }
    for (s, chains) in chains.iter().enumerate() {
        for (out, chains) in out.row_mut(s)[row..row + N].iter_mut().zip(chains) {
            *out = ops::join_chains(*chains);
        }
    }
}

/// `acc[c] = fma(coefficients[d] * scale[d, c / G], code[d, c], acc[c])`, d ascending.
///
/// # Safety
/// As [`matmul_body`].
#[inline(always)]
pub(crate) unsafe fn accumulate_rows_body<I: Isa>(
    weights: &MatrixView<'_>,
    coefficients: &[f32],
    acc: &mut [f32],
    decode: DecodePart,
) {
    if !weights.format().quantised() {
        let mut decoded = [0.0f32; FLOAT_COLS];
        for (row, coefficient) in coefficients.iter().enumerate() {
            for (at, acc) in acc.chunks_mut(FLOAT_COLS).enumerate() {
                let decoded = &mut decoded[..acc.len()];
                // SAFETY: by the caller's promise.
                unsafe { decode(weights, row, at * FLOAT_COLS, decoded) };
                ops::axpy_body(*coefficient, decoded, acc);
            }
        }
        return;
    }
    // Several rows per pass spare most of the reading and writing of sums.
    let (blocks, rest) = coefficients.as_chunks::<ACCUMULATED_ROWS>();
    for (at, coefficients) in blocks.iter().enumerate() {
        accumulate_block::<I, ACCUMULATED_ROWS>(weights, at * ACCUMULATED_ROWS, coefficients, acc);
    }
    for (at, coefficient) in rest.iter().enumerate() {
        accumulate_block::<I, 1>(weights, blocks.len() * ACCUMULATED_ROWS + at, &[*coefficient], acc);
    }
}

/// The rows from `row` on, one per coefficient, of the transposed product.
#[inline(always)]
fn accumulate_block<I: Isa, const N: usize>(
    weights: &MatrixView<'_>,
    row: usize,
    coefficients: &[f32; N],
    acc: &mut [f32],
) {
    let format = weights.format();
    let group = format.group_cols(weights.cols());
    let codes: [&[u8]; N] = std::array::from_fn(|n| weights.row_codes(row + n));
    let scales: [&[f32]; N] = std::array::from_fn(|n| weights.row_scales(row + n));
    for (at, acc) in acc.chunks_mut(group).enumerate() {
        let factors = std::array::from_fn(|n| coefficients[n] * scales[n][at]);
        match format {
            Format::Int8Row => I::accumulate::<Byte, N>(&codes, at * group, &factors, acc),
            Format::Int2Row => I::accumulate::<Crumb, N>(&codes, at * group, &factors, acc),
            Format::Int3G64 => I::accumulate::<Triple, N>(&codes, at * group, &factors, acc),
            _ => I::accumulate::<Nibble, N>(&codes, at * group, &factors, acc),
        }
    }
}

/// Instantiates every kernel for one instruction set and collects them in a table.
///
/// The attributes (`#[target_feature]`) are put on every function, so that the shared bodies are compiled
/// for the set; with them the functions coerce to `unsafe fn` only, which [`crate::dispatch`] answers for.
macro_rules! kernel_table {
    ($(#[$feature:meta])* $table:ident, $name:literal, $isa:ty, $supported:expr) => {
        /// The functions of this kernel set.
        pub(crate) static $table: $crate::dispatch::KernelTable = {
            use std::ops::Range;

            use $crate::act::{self, Activations, QuantiseRow};
            use $crate::dispatch::OutputWindow;
            use $crate::format::{decode, encode};
            use $crate::matrix::MatrixView;
            use $crate::{arch, ops};

            $(#[$feature])*
            #[inline(never)]
            fn decode_part(weights: &MatrixView<'_>, row: usize, first: usize, out: &mut [f32]) {
                decode::part_body(weights, row, first, out);
            }
            $(#[$feature])*
            fn matmul(weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>) {
                // SAFETY: the decoder is that of this set.
                unsafe { arch::matmul_body::<$isa>(weights, x, out, decode_part) };
            }
            $(#[$feature])*
            fn accumulate_rows(weights: &MatrixView<'_>, coefficients: &[f32], acc: &mut [f32]) {
                // SAFETY: as above.
                unsafe { arch::accumulate_rows_body::<$isa>(weights, coefficients, acc, decode_part) };
            }
            $(#[$feature])*
            fn quantise_a16(row: QuantiseRow<'_>) {
                act::quantise_a16_body(row);
            }
            $(#[$feature])*
            fn quantise_a8(row: QuantiseRow<'_>) {
                act::quantise_a8_body(row);
            }
            $(#[$feature])*
            fn all_finite(x: &[f32]) -> bool {
                act::all_finite_body(x)
            }
            $(#[$feature])*
            fn encode_rows(job: encode::EncodeRows<'_>) -> Option<encode::Deviation> {
                encode::rows_body::<$isa>(job)
            }
            $(#[$feature])*
            fn decode_rows(weights: &MatrixView<'_>, rows: Range<usize>, out: &mut [f32]) {
                for (row, out) in rows.zip(out.chunks_exact_mut(weights.cols())) {
                    decode_part(weights, row, 0, out);
                }
            }
            $(#[$feature])*
            fn dot(a: &[f32], b: &[f32]) -> f32 {
                ops::dot_body(a, b)
            }
            $(#[$feature])*
            fn axpy(a: f32, x: &[f32], acc: &mut [f32]) {
                ops::axpy_body(a, x, acc);
            }
            $(#[$feature])*
            fn rmsnorm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
                ops::rmsnorm_body(x, weight, eps, out);
            }
            $(#[$feature])*
            fn layernorm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
                ops::layernorm_body(x, weight, bias, eps, out);
            }
            $(#[$feature])*
            fn softmax(x: &mut [f32]) {
                ops::softmax_body(x);
            }
            $(#[$feature])*
            fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
                ops::silu_mul_body(gate, up, out);
            }
            $(#[$feature])*
            fn sigmoid(x: &mut [f32]) {
                ops::sigmoid_body(x);
            }
            $(#[$feature])*
            fn exp(x: &mut [f32]) {
                ops::exp_body(x);
            }
            $(#[$feature])*
            fn max(x: &[f32]) -> f32 {
                ops::max_body(x)
            }

            $crate::dispatch::KernelTable {
                name: $name,
                supported: $supported,
                matmul,
                accumulate_rows,
                quantise_a16,
                quantise_a8,
                all_finite,
                encode_rows,
                decode_rows,
                dot,
                axpy,
                rmsnorm,
                layernorm,
                softmax,
                silu_mul,
                sigmoid,
                exp,
                max,
            }
        };
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use kernel_table;

kernel_table!(SCALAR, "scalar", arch::Scalar, || true);
