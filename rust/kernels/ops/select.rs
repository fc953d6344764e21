//! Selection by score: the `k` largest, and the largest.
//!
//! Must hold: the order is total (falling score, ties by lowest index, NaN below everything), so that
//! the result never depends on the algorithm or on the machine.

/// Writes the indices of the `k` largest scores to `out`, falling score, ties lowest index first.
///
/// NaN ranks below negative infinity, so it is taken only when nothing else is left. `k` larger than
/// the number of scores means all of them. `out` is reused as scratch: its capacity grows to
/// `scores.len()`.
pub fn top_k(scores: &[f32], k: usize, out: &mut Vec<u32>) {
    out.clear();
    let k = k.min(scores.len());
    if k == 0 {
        return;
    }
    out.extend(0..scores.len() as u32);
    let key = |index: &u32| (std::cmp::Reverse(rank(scores[*index as usize])), *index);
    if k < scores.len() {
        out.select_nth_unstable_by_key(k - 1, key);
        out.truncate(k);
    }
    out.sort_unstable_by_key(key);
}

/// Index of the largest value: ties lowest index, NaN skipped; 0 if there is no number at all.
#[must_use]
pub fn argmax(x: &[f32]) -> usize {
    let mut best = (0, 0);
    for (index, value) in x.iter().enumerate() {
        let rank = rank(*value);
        if rank > best.1 {
            best = (index, rank);
        }
    }
    best.0
}

/// Maps a float to an integer of the same order; both zeros are equal and NaN is the least, 0.
fn rank(value: f32) -> u32 {
    if value.is_nan() {
        return 0;
    }
    let bits = (value + 0.0).to_bits(); // -0 + 0 is +0
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(scores: &[f32], k: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|a, b| {
            let (x, y) = (scores[*a as usize], scores[*b as usize]);
            match (x.is_nan(), y.is_nan()) {
                (true, true) => std::cmp::Ordering::Equal,
                (true, false) => std::cmp::Ordering::Greater,
                (false, true) => std::cmp::Ordering::Less,
                (false, false) => y.partial_cmp(&x).unwrap(),
            }
        });
        order.truncate(k);
        order
    }

    #[test]
    fn top_k_equals_a_stable_sort() {
        let mut state = 1u32;
        for length in [0usize, 1, 2, 7, 64, 300] {
            let scores: Vec<f32> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    match state >> 28 {
                        0 => f32::NAN,
                        1 => f32::NEG_INFINITY,
                        2 => -0.0,
                        3 => 0.0,
                        _ => ((state >> 20) % 16) as f32 - 8.0, // many ties
                    }
                })
                .collect();
            let mut chosen = vec![9; 3];
            for k in [0, 1, 2, length / 2, length, length + 5] {
                top_k(&scores, k, &mut chosen);
                assert_eq!(chosen, naive(&scores, k.min(length)), "length {length} k {k}");
            }
        }
    }

    #[test]
    fn argmax_prefers_the_first_and_skips_nan() {
        assert_eq!(argmax(&[]), 0);
        assert_eq!(argmax(&[f32::NAN, f32::NAN]), 0);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
        assert_eq!(argmax(&[1.0, 3.0, f32::NAN, 3.0]), 1);
        assert_eq!(argmax(&[-0.0, 0.0]), 0);
        assert_eq!(argmax(&[-2.0, -1.0, f32::INFINITY]), 2);
    }
}
