//! The kernels of each instruction set.
//!
//! Owns: the table of functions that a kernel set consists of, the arithmetic that all sets share, and the
//! seam an instruction set fills in ([`Isa`]). What a set does not override it inherits from the scalar
//! reference, compiled once more under the set's own `#[target_feature]`.
//!
//! Must hold: whatever a set overrides returns the same bits as the default. Integer sums are exact, so
//! their order is free; every floating-point step is fixed by [`Isa::chains`], [`quantised_row`] and
//! [`crate::ops`].

#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

use std::marker::PhantomData;

use crate::act::{ActRow, Activations, BLOCK, Precision};
use crate::dispatch::OutputWindow;
use crate::format::{Format, Grouping, decode_part, nibble};
use crate::matrix::MatrixView;
use crate::ops;

/// Interleaved chains of the sum over groups: group `g` belongs to chain `g mod 4`.
pub(crate) const GROUP_CHAINS: usize = 4;

/// Columns whose products add up exactly in 32 bits, whatever the codes: `1024 * 128 * 16256 < 2^31`.
const EXACT_COLS: usize = 1024;

/// Rows that the transposed product takes at a time.
const ACCUMULATED_ROWS: usize = 4;

/// Integer codes as they lie in a row.
pub(crate) trait Codes {
    /// Whether a byte holds two codes with an offset of 8 (else one signed code).
    const NIBBLE: bool;
    /// The code at a column.
    fn code(codes: &[u8], col: usize) -> i32;
    /// Sum of `code * v` over the columns from `first` on; exact for up to 1024 columns, of int4 for 8192.
    fn dot(codes: &[u8], first: usize, v: &[i16]) -> i32;
}

/// int4 codes, two per byte.
pub(crate) struct Nibble;
/// int8 codes.
pub(crate) struct Byte;

impl Codes for Nibble {
    const NIBBLE: bool = true;
    #[inline(always)]
    fn code(codes: &[u8], col: usize) -> i32 {
        nibble::code(codes, col)
    }
    #[inline(always)]
    fn dot(codes: &[u8], first: usize, v: &[i16]) -> i32 {
        let (odd, even) = v.split_at((first % 2).min(v.len()));
        let mut sum: i32 = odd.iter().map(|v| nibble::code(codes, first) * i32::from(*v)).sum();
        let start = first + odd.len();
        let (pairs, last) = even.as_chunks::<2>();
        for (byte, v) in codes[start / 2..].iter().zip(pairs) {
            let (low, high) = (i32::from(byte & 15), i32::from(byte >> 4));
            sum += (low - nibble::OFFSET) * i32::from(v[0]) + (high - nibble::OFFSET) * i32::from(v[1]);
        }
        for v in last {
            sum += nibble::code(codes, start + 2 * pairs.len()) * i32::from(*v);
        }
        sum
    }
}

impl Codes for Byte {
    const NIBBLE: bool = false;
    #[inline(always)]
    fn code(codes: &[u8], col: usize) -> i32 {
        i32::from(codes[col].cast_signed())
    }
    #[inline(always)]
    fn dot(codes: &[u8], first: usize, v: &[i16]) -> i32 {
        codes[first..].iter().zip(v).map(|(code, v)| i32::from(code.cast_signed()) * i32::from(*v)).sum()
    }
}

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
impl Isa for Scalar {}

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

/// Scales in groups, 15-bit activations.
struct GroupedA16;
impl Product for GroupedA16 {
    #[inline(always)]
    fn of<I: Isa>(weights: &MatrixView<'_>, row: usize, x: &ActRow<'_>) -> f32 {
        let (cols, factors) = (weights.cols(), Plain(weights.row_scales(row)));
        I::chains::<Nibble>(weights.row_codes(row), x, cols, weights.format().group_cols(cols), &factors) * x.scales[0]
    }
}

/// Groups of one block, 8-bit activations.
struct PairedA8;
impl Product for PairedA8 {
    #[inline(always)]
    fn of<I: Isa>(weights: &MatrixView<'_>, row: usize, x: &ActRow<'_>) -> f32 {
        let factors = Paired { group_scales: weights.row_scales(row), block_scales: x.scales };
        I::chains::<Nibble>(weights.row_codes(row), x, weights.cols(), BLOCK, &factors)
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
    if x.rows() == 1 {
        let (x, out) = (x.row(0), out.row_mut(0));
        for (row, out) in out.iter_mut().enumerate().skip(from) {
            *out = P::of::<I>(weights, row, &x);
        }
        return;
    }
    for row in from..weights.rows() {
        for s in 0..x.rows() {
            out.row_mut(s)[row] = P::of::<I>(weights, row, &x.row(s));
        }
    }
}

/// `out[s, r] = weights[r] . x[s]` for all rows of both.
#[inline(always)]
pub(crate) fn matmul_body<I: Isa>(weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>) {
    if x.precision() == Precision::F32 {
        return float_matmul(weights, x, out);
    }
    let from = I::tiles(weights, x, out);
    let a8 = x.precision() == Precision::A8;
    match (weights.format(), a8) {
        (Format::Int8Row, false) => each_row::<I, RowA16<Byte>>(weights, x, out, from),
        (Format::Int8Row, true) => each_row::<I, RowA8<Byte>>(weights, x, out, from),
        (Format::Int4Row, false) => each_row::<I, RowA16<Nibble>>(weights, x, out, from),
        (Format::Int4Row, true) => each_row::<I, RowA8<Nibble>>(weights, x, out, from),
        (_, false) => each_row::<I, GroupedA16>(weights, x, out, from),
        (format, true) if format.group_cols(weights.cols()) == BLOCK => each_row::<I, PairedA8>(weights, x, out, from),
        (_, true) => each_row::<I, SpreadA8>(weights, x, out, from),
    }
}

/// f32 arithmetic: each weight row is decoded once and meets every activation row.
#[inline(always)]
fn float_matmul(weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>) {
    let mut decoded = vec![0.0f32; weights.cols()];
    for row in 0..weights.rows() {
        let in_place = match weights.format() {
            Format::F32 if cfg!(target_endian = "little") => bytemuck::try_cast_slice(weights.row_codes(row)).ok(),
            _ => None,
        };
        let values: &[f32] = if let Some(values) = in_place {
            values
        } else {
            decode_part(weights, row, 0, &mut decoded);
            &decoded
        };
        for s in 0..x.rows() {
            out.row_mut(s)[row] = ops::dot_body(values, x.values(s));
        }
    }
}

/// `acc[c] = fma(coefficients[d] * scale[d, c / G], code[d, c], acc[c])`, d ascending.
#[inline(always)]
pub(crate) fn accumulate_rows_body<I: Isa>(weights: &MatrixView<'_>, coefficients: &[f32], acc: &mut [f32]) {
    let (format, cols) = (weights.format(), weights.cols());
    if format.grouping() == Grouping::None {
        let mut decoded = vec![0.0f32; cols];
        for (row, coefficient) in coefficients.iter().enumerate() {
            decode_part(weights, row, 0, &mut decoded);
            ops::axpy_body(*coefficient, &decoded, acc);
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
        if format == Format::Int8Row {
            I::accumulate::<Byte, N>(&codes, at * group, &factors, acc);
        } else {
            I::accumulate::<Nibble, N>(&codes, at * group, &factors, acc);
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
            use $crate::act::{self, Activations, QuantiseRow};
            use $crate::dispatch::OutputWindow;
            use $crate::format::{ScaleRule, quantiser};
            use $crate::matrix::MatrixView;
            use $crate::{arch, ops};

            $(#[$feature])*
            fn matmul(weights: &MatrixView<'_>, x: &Activations, out: &mut OutputWindow<'_>) {
                arch::matmul_body::<$isa>(weights, x, out);
            }
            $(#[$feature])*
            fn accumulate_rows(weights: &MatrixView<'_>, coefficients: &[f32], acc: &mut [f32]) {
                arch::accumulate_rows_body::<$isa>(weights, coefficients, acc);
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
            fn quantise_int4(rule: ScaleRule, weights: &[f32], codes: &mut [i8]) -> f32 {
                quantiser::int4_body(rule, weights, codes)
            }
            $(#[$feature])*
            fn quantise_int8(rule: ScaleRule, weights: &[f32], codes: &mut [i8]) -> f32 {
                quantiser::int8_body(rule, weights, codes)
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
                quantise_int4,
                quantise_int8,
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
