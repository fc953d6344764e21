//! Each software instruction against the AVX2 instruction on both halves, or its definition where there is
//! none, and against the hardware where it has AVX-512.

use std::arch::x86_64::*;

use bytemuck::cast;

use crate::test_data::Random;

/// Three registers.
type Inputs = [[i32; 16]; 3];

/// The lanes of every result, in the order of the table.
type Results = Vec<(&'static str, Vec<i32>)>;

/// Applies every instruction of a module to the same inputs: `a` and `b` of any bits, `c` of small lanes.
macro_rules! results_of {
    ($instructions:path, $inputs:expr) => {{
        use $instructions as i;
        let wide = |value: i::__m512i| -> Vec<i32> {
            let mut lanes = vec![0i32; 17];
            // SAFETY: the instructions exist; sixteen lanes follow the first, at an address that is not aligned.
            unsafe { i::_mm512_storeu_si512(lanes.as_mut_ptr().add(1).cast(), value) };
            lanes.split_off(1)
        };
        let half = |value: __m256i| cast::<_, [i32; 8]>(value).to_vec();
        // SAFETY: the instructions exist; each input is a whole register.
        unsafe {
            let [a, b, c] = $inputs.each_ref().map(|lanes| i::_mm512_loadu_si512(lanes.as_ptr().cast()));
            let low = i::_mm512_castsi512_si256(a);
            vec![
                ("load and store", wide(a)),
                ("setzero", wide(i::_mm512_setzero_si512())),
                ("set1 16", wide(i::_mm512_set1_epi16(-2))),
                ("set1 32", wide(i::_mm512_set1_epi32(-70_000))),
                ("set4 32", wide(i::_mm512_set4_epi32(4, -3, 2, 1))),
                ("and", wide(i::_mm512_and_si512(a, b))),
                ("shuffle 8", wide(i::_mm512_shuffle_epi8(a, b))),
                ("or", wide(i::_mm512_or_si512(a, b))),
                ("srl 4", wide(i::_mm512_srl_epi16(a, _mm_cvtsi32_si128(4)))),
                ("srl 15", wide(i::_mm512_srl_epi16(a, _mm_cvtsi32_si128(15)))),
                ("srl 16", wide(i::_mm512_srl_epi16(a, _mm_cvtsi32_si128(16)))),
                ("sll 2", wide(i::_mm512_sll_epi16(a, _mm_cvtsi32_si128(2)))),
                ("sll -1", wide(i::_mm512_sll_epi16(a, _mm_cvtsi32_si128(-1)))),
                ("slli 12", wide(i::_mm512_slli_epi32::<12>(a))),
                ("slli 32", wide(i::_mm512_slli_epi32::<32>(a))),
                ("dpwssds", wide(i::_mm512_dpwssds_epi32(c, a, b))),
                ("add 32", wide(i::_mm512_add_epi32(c, c))),
                ("add 64", wide(i::_mm512_add_epi64(c, c))),
                ("reduce", cast::<_, [i32; 2]>(i::_mm512_reduce_add_epi64(c)).to_vec()),
                ("cvt 8", wide(i::_mm512_cvtepi8_epi16(low))),
                ("cvt u8 16", wide(i::_mm512_cvtepu8_epi16(low))),
                ("cvt u8 32", wide(i::_mm512_cvtepu8_epi32(_mm256_castsi256_si128(low)))),
                ("cvt 32", wide(i::_mm512_cvtepi32_epi64(low))),
                ("cast", half(low)),
                ("extract 0", half(i::_mm512_extracti64x4_epi64::<0>(a))),
                ("extract 1", half(i::_mm512_extracti64x4_epi64::<1>(a))),
                ("unpacklo 32", wide(i::_mm512_unpacklo_epi32(a, b))),
                ("unpackhi 32", wide(i::_mm512_unpackhi_epi32(a, b))),
                ("unpacklo 64", wide(i::_mm512_unpacklo_epi64(a, b))),
                ("unpackhi 64", wide(i::_mm512_unpackhi_epi64(a, b))),
            ]
        }
    }};
}

/// The same table from 256-bit instructions on both halves.
#[target_feature(enable = "avx2")]
fn avx2_results(inputs: &Inputs) -> Results {
    let [a, b, c]: [[__m256i; 2]; 3] = inputs.map(cast);
    let both = |of: &dyn Fn(usize) -> __m256i| [of(0), of(1)].iter().flat_map(|v| cast::<_, [i32; 8]>(*v)).collect();
    let half = |value: __m256i| cast::<_, [i32; 8]>(value).to_vec();
    let parts: [__m128i; 2] = cast(a[0]);
    let bytes = [parts[0], _mm_unpackhi_epi64(parts[0], parts[0])];
    let quads: [i64; 8] = cast(inputs[2]);
    vec![
        ("load and store", inputs[0].to_vec()),
        ("setzero", vec![0; 16]),
        ("set1 16", both(&|_| _mm256_set1_epi16(-2))),
        ("set1 32", vec![-70_000; 16]),
        ("set4 32", [1, 2, -3, 4].repeat(4)),
        ("and", both(&|h| _mm256_and_si256(a[h], b[h]))),
        ("shuffle 8", both(&|h| _mm256_shuffle_epi8(a[h], b[h]))),
        ("or", both(&|h| _mm256_or_si256(a[h], b[h]))),
        ("srl 4", both(&|h| _mm256_srl_epi16(a[h], _mm_cvtsi32_si128(4)))),
        ("srl 15", both(&|h| _mm256_srl_epi16(a[h], _mm_cvtsi32_si128(15)))),
        ("srl 16", both(&|h| _mm256_srl_epi16(a[h], _mm_cvtsi32_si128(16)))),
        ("sll 2", both(&|h| _mm256_sll_epi16(a[h], _mm_cvtsi32_si128(2)))),
        ("sll -1", both(&|h| _mm256_sll_epi16(a[h], _mm_cvtsi32_si128(-1)))),
        ("slli 12", both(&|h| _mm256_slli_epi32::<12>(a[h]))),
        ("slli 32", both(&|h| _mm256_slli_epi32::<32>(a[h]))),
        ("dpwssds", both(&|h| _mm256_add_epi32(c[h], _mm256_madd_epi16(a[h], b[h])))),
        ("add 32", both(&|h| _mm256_add_epi32(c[h], c[h]))),
        ("add 64", both(&|h| _mm256_add_epi64(c[h], c[h]))),
        ("reduce", cast::<_, [i32; 2]>(quads.iter().sum::<i64>()).to_vec()),
        ("cvt 8", both(&|h| _mm256_cvtepi8_epi16(parts[h]))),
        ("cvt u8 16", both(&|h| _mm256_cvtepu8_epi16(parts[h]))),
        ("cvt u8 32", both(&|h| _mm256_cvtepu8_epi32(bytes[h]))),
        ("cvt 32", both(&|h| _mm256_cvtepi32_epi64(parts[h]))),
        ("cast", half(a[0])),
        ("extract 0", half(a[0])),
        ("extract 1", half(a[1])),
        ("unpacklo 32", both(&|h| _mm256_unpacklo_epi32(a[h], b[h]))),
        ("unpackhi 32", both(&|h| _mm256_unpackhi_epi32(a[h], b[h]))),
        ("unpacklo 64", both(&|h| _mm256_unpacklo_epi64(a[h], b[h]))),
        ("unpackhi 64", both(&|h| _mm256_unpackhi_epi64(a[h], b[h]))),
    ]
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn hardware_results(inputs: &Inputs) -> Results {
    results_of!(crate::arch::x86_64::intrinsics512, inputs)
}

fn software_results(inputs: &Inputs) -> Results {
    results_of!(super::intrinsics512, inputs)
}

#[test]
fn every_software_instruction_equals_its_hardware() {
    let mut random = Random::new(21);
    for round in 0..200 {
        let mut lanes = |limit: u32| -> [i32; 16] {
            std::array::from_fn(|_| {
                let word = |random: &mut Random| random.below(limit) as i32 - (limit / 2) as i32;
                word(&mut random) << 16 | word(&mut random) & 0xffff
            })
        };
        // The sums of the first rounds reach far into the lanes, without leaving them.
        let inputs = [lanes(0x1_0000), lanes(0x1_0000), lanes(if round < 100 { 0x1000 } else { 2 })];
        let software = software_results(&inputs);
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            assert_eq!(software, unsafe { avx2_results(&inputs) });
        }
        if (crate::arch::x86_64::AVX512_VNNI.supported)() {
            // SAFETY: the processor has the features of the set.
            assert_eq!(software, unsafe { hardware_results(&inputs) });
        }
    }
}

#[test]
#[should_panic(expected = "a 32-bit lane overflows: 2147483648")]
fn a_product_that_leaves_its_lane_is_caught() {
    use super::intrinsics512::*;
    let lowest = __m512i([i32::from_ne_bytes([0, 0x80, 0, 0x80]); 16]);
    // SAFETY: the function touches no memory.
    let _ = unsafe { _mm512_dpwssds_epi32(__m512i([0; 16]), lowest, lowest) };
}

#[test]
#[should_panic(expected = "a 32-bit lane overflows: -2147483649")]
fn a_sum_that_leaves_its_lane_is_caught() {
    use super::intrinsics512::*;
    // SAFETY: the function touches no memory.
    let _ = unsafe { _mm512_add_epi32(__m512i([i32::MIN; 16]), __m512i([-1; 16])) };
}
