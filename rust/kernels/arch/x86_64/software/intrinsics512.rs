//! The 512-bit instructions that [`super::avx512`] uses, lane by lane, under the names and signatures of
//! `std::arch`, after the operations in the Intel Intrinsics Guide.
//!
//! Must hold: each function returns what the instruction returns, except that a sum which leaves its lane
//! panics: the kernels promise that none does, and hardware would wrap without a word.
//! Functions are calls: inlined wherever the set has an instruction, they would take minutes to compile.

use std::arch::x86_64::{__m128i, __m256i};

use bytemuck::cast;

/// Sixteen 32-bit lanes, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct __m512i(pub(super) [i32; 16]);

impl __m512i {
    fn words(self) -> [i16; 32] {
        cast(self.0)
    }

    fn quads(self) -> [i64; 8] {
        cast(self.0)
    }

    fn from_words(words: [i16; 32]) -> Self {
        Self(cast(words))
    }

    fn from_quads(quads: [i64; 8]) -> Self {
        Self(cast(quads))
    }

    fn halves(self) -> [__m256i; 2] {
        cast(self.0)
    }
}

/// The value of a 32-bit lane.
#[inline(always)]
fn lane(exact: i64) -> i32 {
    assert!(i64::from(exact as i32) == exact, "a 32-bit lane overflows: {exact}");
    exact as i32
}

#[inline(never)]
pub(super) unsafe fn _mm512_setzero_si512() -> __m512i {
    __m512i([0; 16])
}

#[inline(never)]
pub(super) unsafe fn _mm512_set1_epi16(a: i16) -> __m512i {
    __m512i::from_words([a; 32])
}

#[inline(never)]
pub(super) unsafe fn _mm512_set1_epi32(a: i32) -> __m512i {
    __m512i([a; 16])
}

/// Four 32-bit values, the last argument first, over and over.
#[inline(never)]
pub(super) unsafe fn _mm512_set4_epi32(d: i32, c: i32, b: i32, a: i32) -> __m512i {
    __m512i(std::array::from_fn(|i| [a, b, c, d][i % 4]))
}

/// In each 128 bits: the byte of `a` that the low four bits of a byte of `b` name, or 0 if its highest bit is set.
#[inline(never)]
pub(super) unsafe fn _mm512_shuffle_epi8(a: __m512i, b: __m512i) -> __m512i {
    let (a, b) = (cast::<_, [u8; 64]>(a.0), cast::<_, [u8; 64]>(b.0));
    let pick = |i: usize| if b[i] & 0x80 == 0 { a[i / 16 * 16 + usize::from(b[i] & 15)] } else { 0 };
    __m512i(cast(std::array::from_fn::<u8, 64, _>(pick)))
}

#[inline(never)]
pub(super) unsafe fn _mm512_loadu_si512(from: *const __m512i) -> __m512i {
    // SAFETY: the caller promises 64 readable bytes at any alignment, as for the instruction.
    __m512i(unsafe { from.cast::<[i32; 16]>().read_unaligned() })
}

#[inline(never)]
pub(super) unsafe fn _mm512_storeu_si512(to: *mut __m512i, a: __m512i) {
    // SAFETY: the caller promises 64 writable bytes at any alignment, as for the instruction.
    unsafe { to.cast::<[i32; 16]>().write_unaligned(a.0) }
}

#[inline(never)]
pub(super) unsafe fn _mm512_and_si512(a: __m512i, b: __m512i) -> __m512i {
    __m512i(std::array::from_fn(|i| a.0[i] & b.0[i]))
}

#[inline(never)]
pub(super) unsafe fn _mm512_or_si512(a: __m512i, b: __m512i) -> __m512i {
    __m512i(std::array::from_fn(|i| a.0[i] | b.0[i]))
}

/// The count of a shift: the lower half of a register.
fn count(register: __m128i) -> u32 {
    u32::try_from(cast::<_, [u64; 2]>(register)[0]).unwrap_or(u32::MAX)
}

/// Logical shift of every 16-bit lane; a count above 15 clears it.
#[inline(never)]
pub(super) unsafe fn _mm512_srl_epi16(a: __m512i, bits: __m128i) -> __m512i {
    let shift = |word: i16| word.cast_unsigned().checked_shr(count(bits)).unwrap_or(0).cast_signed();
    __m512i::from_words(a.words().map(shift))
}

/// Left shift of every 16-bit lane; a count above 15 clears it.
#[inline(never)]
pub(super) unsafe fn _mm512_sll_epi16(a: __m512i, bits: __m128i) -> __m512i {
    let shift = |word: i16| word.checked_shl(count(bits)).unwrap_or(0);
    __m512i::from_words(a.words().map(shift))
}

/// Left shift of every 32-bit lane; a count above 31 clears it.
#[inline(never)]
pub(super) unsafe fn _mm512_slli_epi32<const COUNT: u32>(a: __m512i) -> __m512i {
    __m512i(a.0.map(|lane| lane.checked_shl(COUNT).unwrap_or(0)))
}

/// `src[i] + a[2 i] * b[2 i] + a[2 i + 1] * b[2 i + 1]` of signed words; the instruction saturates.
#[inline(never)]
pub(super) unsafe fn _mm512_dpwssds_epi32(src: __m512i, a: __m512i, b: __m512i) -> __m512i {
    let (a, b) = (a.words(), b.words());
    let product = |i: usize| i64::from(a[i]) * i64::from(b[i]);
    __m512i(std::array::from_fn(|i| lane(i64::from(src.0[i]) + product(2 * i) + product(2 * i + 1))))
}

#[inline(never)]
pub(super) unsafe fn _mm512_add_epi32(a: __m512i, b: __m512i) -> __m512i {
    __m512i(std::array::from_fn(|i| lane(i64::from(a.0[i]) + i64::from(b.0[i]))))
}

#[inline(never)]
pub(super) unsafe fn _mm512_add_epi64(a: __m512i, b: __m512i) -> __m512i {
    let (a, b) = (a.quads(), b.quads());
    __m512i::from_quads(std::array::from_fn(|i| a[i].checked_add(b[i]).expect("a 64-bit lane overflows")))
}

#[inline(never)]
pub(super) unsafe fn _mm512_reduce_add_epi64(a: __m512i) -> i64 {
    a.quads().iter().fold(0, |sum: i64, quad| sum.checked_add(*quad).expect("a 64-bit sum overflows"))
}

/// Sign-extends thirty-two bytes.
#[inline(never)]
pub(super) unsafe fn _mm512_cvtepi8_epi16(a: __m256i) -> __m512i {
    __m512i::from_words(cast::<_, [i8; 32]>(a).map(i16::from))
}

/// Zero-extends thirty-two bytes.
#[inline(never)]
pub(super) unsafe fn _mm512_cvtepu8_epi16(a: __m256i) -> __m512i {
    __m512i::from_words(cast::<_, [u8; 32]>(a).map(i16::from))
}

/// Zero-extends sixteen bytes.
#[inline(never)]
pub(super) unsafe fn _mm512_cvtepu8_epi32(a: __m128i) -> __m512i {
    __m512i(cast::<_, [u8; 16]>(a).map(i32::from))
}

/// Sign-extends eight 32-bit lanes.
#[inline(never)]
pub(super) unsafe fn _mm512_cvtepi32_epi64(a: __m256i) -> __m512i {
    __m512i::from_quads(cast::<_, [i32; 8]>(a).map(i64::from))
}

/// The lower half.
#[inline(never)]
pub(super) unsafe fn _mm512_castsi512_si256(a: __m512i) -> __m256i {
    a.halves()[0]
}

/// Half number `HALF`, 0 or 1.
#[inline(never)]
pub(super) unsafe fn _mm512_extracti64x4_epi64<const HALF: i32>(a: __m512i) -> __m256i {
    a.halves()[usize::from(HALF & 1 == 1)]
}

/// In each 128 bits: elements `FIRST` and `FIRST + 1` of `a` and `b`, alternating.
#[inline(always)]
fn interleave_32<const FIRST: usize>(a: __m512i, b: __m512i) -> __m512i {
    __m512i(std::array::from_fn(|i| {
        let from = i / 4 * 4 + FIRST + i % 4 / 2;
        if i.is_multiple_of(2) { a.0[from] } else { b.0[from] }
    }))
}

/// In each 128 bits: 64-bit element `WHICH` of `a`, then of `b`.
#[inline(always)]
fn interleave_64<const WHICH: usize>(a: __m512i, b: __m512i) -> __m512i {
    let (a, b) = (a.quads(), b.quads());
    let pick = |i: usize| if i.is_multiple_of(2) { a[i + WHICH] } else { b[i - 1 + WHICH] };
    __m512i::from_quads(std::array::from_fn(pick))
}

#[inline(never)]
pub(super) unsafe fn _mm512_unpacklo_epi32(a: __m512i, b: __m512i) -> __m512i {
    interleave_32::<0>(a, b)
}

#[inline(never)]
pub(super) unsafe fn _mm512_unpackhi_epi32(a: __m512i, b: __m512i) -> __m512i {
    interleave_32::<2>(a, b)
}

#[inline(never)]
pub(super) unsafe fn _mm512_unpacklo_epi64(a: __m512i, b: __m512i) -> __m512i {
    interleave_64::<0>(a, b)
}

#[inline(never)]
pub(super) unsafe fn _mm512_unpackhi_epi64(a: __m512i, b: __m512i) -> __m512i {
    interleave_64::<1>(a, b)
}
