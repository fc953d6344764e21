//! Eight f32 or sixteen i16 numbers at a time, for loops that compilers do not turn into vector instructions by
//! themselves.
//!
//! Must hold: every f32 operation is that of IEEE 754 on each lane, so all implementations return the same bits for
//! numbers; integer operations are exact.

/// Lanes of a vector.
pub(crate) const WIDTH: usize = 8;

/// Lanes of a vector of short integers.
pub(crate) const SHORT_WIDTH: usize = 2 * WIDTH;

/// A vector of eight f32.
pub(crate) trait Lanes: Copy {
    /// Sixteen i16.
    type Shorts: Shorts;
    /// The same number in every lane.
    fn splat(value: f32) -> Self;
    /// One number for each lane.
    fn load(values: &[f32; WIDTH]) -> Self;
    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self * other`.
    fn mul(self, other: Self) -> Self;
    /// The smaller of two numbers.
    fn min(self, other: Self) -> Self;
    /// The larger of two numbers.
    fn max(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// The number without its sign.
    fn abs(self) -> Self;
    /// The larger of two numbers without sign; infinity is above all numbers, NaN above infinity.
    fn max_bits(self, other: Self) -> Self;
    /// Stores four vectors of whole numbers in the range of i8.
    fn store_codes(vectors: [Self; 4], codes: &mut [i8; 4 * WIDTH]);
    /// The numbers of two vectors rounded half-even, in any order; they must be in the range of i16.
    fn to_shorts(self, other: Self) -> Self::Shorts;
    /// The largest of numbers without sign, as in [`Lanes::max_bits`].
    fn most_bits(self) -> f32;
    /// Whether any lane is at least that of `other`.
    fn any_at_least(self, other: Self) -> bool;
    /// The sums of the lanes of four vectors: the upper half is added to the lower one until one number is left.
    fn sums(vectors: [Self; 4]) -> [f32; 4];
}

/// A vector of sixteen i16.
pub(crate) trait Shorts: Copy {
    /// A sum of products, spread over several i32.
    type Sum: Copy;
    /// The same number in every lane.
    fn splat(value: i16) -> Self;
    /// One number for each lane.
    fn load(values: &[i16; SHORT_WIDTH]) -> Self;
    /// Stores the numbers of the lanes.
    fn store(self, values: &mut [i16; SHORT_WIDTH]);
    /// `self * other / 2^15`, rounded half up; must be in the range of i16.
    fn mul_high(self, other: Self) -> Self;
    /// The nearest numbers from `low` to `high`.
    fn clamp(self, low: Self, high: Self) -> Self;
    /// The low byte of each number as an i8.
    fn low_byte(self) -> Self;
    /// The sum 0.
    fn zero_sum() -> Self::Sum;
    /// Adds `self * other` of all lanes to a sum.
    fn add_products(self, other: Self, sum: Self::Sum) -> Self::Sum;
    /// The values of four sums; none of their parts may have left the range of i32.
    fn totals(sums: [Self::Sum; 4]) -> [i32; 4];
}

/// The scalar reference.
#[derive(Clone, Copy)]
pub(crate) struct Array([f32; WIDTH]);

impl Array {
    #[inline(always)]
    fn with(self, other: Self, operation: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| operation(self.0[lane], other.0[lane])))
    }
}

impl Lanes for Array {
    type Shorts = ShortArray;
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; WIDTH])
    }
    #[inline(always)]
    fn load(values: &[f32; WIDTH]) -> Self {
        Self(*values)
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.with(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.with(other, |a, b| a * b)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.with(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.with(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.with(other, |a, b| a / b)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.map(f32::abs))
    }
    #[inline(always)]
    fn max_bits(self, other: Self) -> Self {
        self.with(other, |a, b| f32::from_bits(a.to_bits().max(b.to_bits())))
    }
    #[inline(always)]
    fn store_codes(vectors: [Self; 4], codes: &mut [i8; 4 * WIDTH]) {
        for (vector, codes) in vectors.iter().zip(codes.as_chunks_mut::<WIDTH>().0) {
            *codes = vector.0.map(|value| value as i8);
        }
    }
    #[inline(always)]
    fn to_shorts(self, other: Self) -> ShortArray {
        let lane = |at: usize| if at < WIDTH { self.0[at] } else { other.0[at - WIDTH] };
        ShortArray(std::array::from_fn(|at| lane(at).round_ties_even() as i16))
    }
    #[inline(always)]
    fn most_bits(self) -> f32 {
        f32::from_bits(self.0.iter().fold(0, |most, lane| lane.to_bits().max(most)))
    }
    #[inline(always)]
    fn any_at_least(self, other: Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a >= b)
    }
    #[inline(always)]
    fn sums(vectors: [Self; 4]) -> [f32; 4] {
        vectors.map(|Self(v)| ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])))
    }
}

/// The scalar reference.
#[derive(Clone, Copy)]
pub(crate) struct ShortArray([i16; SHORT_WIDTH]);

impl Shorts for ShortArray {
    type Sum = i32;
    #[inline(always)]
    fn splat(value: i16) -> Self {
        Self([value; SHORT_WIDTH])
    }
    #[inline(always)]
    fn load(values: &[i16; SHORT_WIDTH]) -> Self {
        Self(*values)
    }
    #[inline(always)]
    fn store(self, values: &mut [i16; SHORT_WIDTH]) {
        *values = self.0;
    }
    #[inline(always)]
    fn mul_high(self, other: Self) -> Self {
        let rounded = |a: i16, b: i16| ((i32::from(a) * i32::from(b) + (1 << 14)) >> 15) as i16;
        Self(std::array::from_fn(|lane| rounded(self.0[lane], other.0[lane])))
    }
    #[inline(always)]
    fn clamp(self, low: Self, high: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane].max(low.0[lane]).min(high.0[lane])))
    }
    #[inline(always)]
    fn low_byte(self) -> Self {
        Self(self.0.map(|value| i16::from(value as i8)))
    }
    #[inline(always)]
    fn zero_sum() -> i32 {
        0
    }
    #[inline(always)]
    fn add_products(self, other: Self, sum: i32) -> i32 {
        let products = self.0.iter().zip(&other.0).map(|(a, b)| i32::from(*a) * i32::from(*b));
        products.fold(sum, i32::wrapping_add)
    }
    #[inline(always)]
    fn totals(sums: [i32; 4]) -> [i32; 4] {
        sums
    }
}
