//! [`Lanes`] and [`Shorts`] in 256-bit registers.

use std::arch::x86_64::*;

use crate::arch::lanes::{Lanes, SHORT_WIDTH, Shorts, WIDTH};

/// Eight f32. For kernel sets that need AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Ymm(__m256);

/// Sixteen i16. For kernel sets that need AVX2.
#[derive(Clone, Copy)]
pub(crate) struct YmmShorts(__m256i);

// Every intrinsic below needs AVX2 at most; the types are named only by kernel sets whose `supported` checks AVX2.
impl Lanes for Ymm {
    type Shorts = YmmShorts;
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_set1_ps(value) })
    }
    #[inline(always)]
    fn load(values: &[f32; WIDTH]) -> Self {
        // SAFETY: as above; the array has eight numbers, and the load asks for no alignment.
        Self(unsafe { _mm256_loadu_ps(values.as_ptr()) })
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_div_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0) })
    }
    #[inline(always)]
    fn max_bits(self, other: Self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe {
            let larger = _mm256_max_epu32(_mm256_castps_si256(self.0), _mm256_castps_si256(other.0));
            _mm256_castsi256_ps(larger)
        })
    }
    #[inline(always)]
    fn store_codes(vectors: [Self; 4], codes: &mut [i8; 4 * WIDTH]) {
        // SAFETY: the processor has AVX2, see above; the array takes the 32 bytes of the store.
        unsafe {
            let [a, b, c, d] = vectors;
            let ab = _mm256_packs_epi32(_mm256_cvtps_epi32(a.0), _mm256_cvtps_epi32(b.0));
            let cd = _mm256_packs_epi32(_mm256_cvtps_epi32(c.0), _mm256_cvtps_epi32(d.0));
            // Packing works in halves of 128 bits: fours of a, b, c, d, then the other four of each.
            let bytes = _mm256_packs_epi16(ab, cd);
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(codes.as_mut_ptr().cast(), bytes);
        }
    }
    #[inline(always)]
    fn to_shorts(self, other: Self) -> YmmShorts {
        // SAFETY: the processor has AVX2, see above.
        YmmShorts(unsafe { _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(other.0)) })
    }
    #[inline(always)]
    fn most_bits(self) -> f32 {
        // SAFETY: the processor has AVX2, see above.
        unsafe {
            let all = _mm256_castps_si256(self.0);
            let four = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
            let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            let one = _mm_max_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
            _mm_cvtss_f32(_mm_castsi128_ps(one))
        }
    }
    #[inline(always)]
    fn any_at_least(self, other: Self) -> bool {
        // SAFETY: the processor has AVX2, see above.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(self.0, other.0)) != 0 }
    }
    #[inline(always)]
    fn sums(vectors: [Self; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: the processor has AVX2, see above; the array takes the four numbers of the store.
        unsafe {
            let [a, b, c, d] = vectors;
            let a = _mm_add_ps(_mm256_castps256_ps128(a.0), _mm256_extractf128_ps::<1>(a.0));
            let b = _mm_add_ps(_mm256_castps256_ps128(b.0), _mm256_extractf128_ps::<1>(b.0));
            let c = _mm_add_ps(_mm256_castps256_ps128(c.0), _mm256_extractf128_ps::<1>(c.0));
            let d = _mm_add_ps(_mm256_castps256_ps128(d.0), _mm256_extractf128_ps::<1>(d.0));
            // a0 b0 a1 b1, a2 b2 a3 b3: their sum pairs numbers that are two apart.
            let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
            let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
            let sum = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
            _mm_storeu_ps(sums.as_mut_ptr(), sum);
        }
        sums
    }
}

impl Shorts for YmmShorts {
    type Sum = __m256i;
    #[inline(always)]
    fn splat(value: i16) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_set1_epi16(value) })
    }
    #[inline(always)]
    fn load(values: &[i16; SHORT_WIDTH]) -> Self {
        // SAFETY: as above; the array has sixteen numbers, and the load asks for no alignment.
        Self(unsafe { _mm256_loadu_si256(values.as_ptr().cast()) })
    }
    #[inline(always)]
    fn store(self, values: &mut [i16; SHORT_WIDTH]) {
        // SAFETY: as above; the array takes sixteen numbers, and the store asks for no alignment.
        unsafe { _mm256_storeu_si256(values.as_mut_ptr().cast(), self.0) }
    }
    #[inline(always)]
    fn mul_high(self, other: Self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_mulhrs_epi16(self.0, other.0) })
    }
    #[inline(always)]
    fn clamp(self, low: Self, high: Self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_min_epi16(_mm256_max_epi16(self.0, low.0), high.0) })
    }
    #[inline(always)]
    fn low_byte(self) -> Self {
        // SAFETY: the processor has AVX2, see above.
        Self(unsafe { _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(self.0)) })
    }
    #[inline(always)]
    fn zero_sum() -> __m256i {
        // SAFETY: the processor has AVX2, see above.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    fn add_products(self, other: Self, sum: __m256i) -> __m256i {
        // SAFETY: the processor has AVX2, see above.
        unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(self.0, other.0)) }
    }
    #[inline(always)]
    fn totals(sums: [__m256i; 4]) -> [i32; 4] {
        let mut totals = [0; 4];
        // SAFETY: the processor has AVX2, see above; the array takes the four numbers of the store.
        unsafe {
            let [a, b, c, d] = sums;
            // a0 b0 a1 b1, and with c and d: a0 b0 c0 d0 and a1 b1 c1 d1.
            let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            let all = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
            let all = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
            _mm_storeu_si128(totals.as_mut_ptr().cast(), all);
        }
        totals
    }
}
