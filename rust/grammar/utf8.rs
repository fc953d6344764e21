//! Ranges of code points as sequences of byte ranges.
//!
//! The classical splitting by encoded length and then by common prefixes (as in RE2 and the `utf8-ranges` of Rust's regex
//! engine): every code point of the range is matched by exactly one sequence. Surrogates are no code points and are left
//! out.

/// The largest code point.
pub(crate) const LAST: u32 = 0x10_FFFF;

/// One range of bytes for each byte of the encoding.
pub(crate) type Sequence = Vec<(u8, u8)>;

/// The largest code points of one, two and three bytes.
const LAST_OF_LENGTH: [u32; 3] = [0x7F, 0x7FF, 0xFFFF];

/// The byte sequences of all code points in `low..=high`.
pub(crate) fn sequences(low: u32, high: u32) -> Vec<Sequence> {
    let mut result = Vec::new();
    let high = high.min(LAST);
    for (low, high) in [(low, high.min(0xD7FF)), (low.max(0xE000), high)] {
        let mut start = low;
        while start <= high {
            let end = LAST_OF_LENGTH.iter().copied().find(|last| start <= *last).unwrap_or(high).min(high);
            split(start, end, &mut result);
            start = end + 1;
        }
    }
    result
}

/// Splits a range of one encoded length until each byte position is a range of its own.
fn split(low: u32, high: u32, result: &mut Vec<Sequence>) {
    let (first, last) = (encode(low), encode(high));
    let length = first.len();
    // From the last byte on: below a byte that varies, all bytes must run over everything.
    for position in 1..length {
        let mask = (1u32 << (6 * position)) - 1;
        if low & !mask != high & !mask {
            if low & mask != 0 {
                split(low, low | mask, result);
                split((low | mask) + 1, high, result);
                return;
            }
            if high & mask != mask {
                split(low, (high & !mask) - 1, result);
                split(high & !mask, high, result);
                return;
            }
        }
    }
    result.push(first.into_iter().zip(last).collect());
}

fn encode(code: u32) -> Vec<u8> {
    let mut buffer = [0u8; 4];
    // Surrogates were cut out, and the largest code point is a character.
    let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    character.encode_utf8(&mut buffer).as_bytes().to_vec()
}

/// Sorted, disjoint ranges that cover the same code points.
pub(crate) fn normalised(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for (low, high) in ranges {
        match merged.last_mut() {
            Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
            _ => merged.push((low, high)),
        }
    }
    merged
}

/// All code points outside of the ranges.
pub(crate) fn complement(ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    let mut outside = Vec::new();
    let mut next = 0u32;
    for (low, high) in normalised(ranges) {
        if low > next {
            outside.push((next, low - 1));
        }
        next = high.saturating_add(1);
    }
    if next <= LAST {
        outside.push((next, LAST));
    }
    outside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(sequences: &[Sequence], text: &[u8]) -> usize {
        let fits = |sequence: &&Sequence| {
            sequence.len() == text.len()
                && sequence.iter().zip(text).all(|((low, high), byte)| (low..=high).contains(&byte))
        };
        sequences.iter().filter(fits).count()
    }

    #[test]
    fn every_code_point_is_matched_once_and_no_other() {
        let ranges =
            [(0, 0x10FFFF), (0x80, 0x10FFFF), (0x41, 0x5A), (0x1F603, 0x1F647), (0x7F0, 0x805), (0xD7F0, 0xE010)];
        for (low, high) in ranges {
            let sequences = sequences(low, high);
            for code in (0..=0x10FFFFu32).filter(|code| code % 97 == 0 || (low..=high).contains(code) && code % 31 == 0)
            {
                let Some(character) = char::from_u32(code) else { continue };
                let mut buffer = [0; 4];
                let found = matches(&sequences, character.encode_utf8(&mut buffer).as_bytes());
                assert_eq!(found, usize::from((low..=high).contains(&code)), "{code:x} in {low:x}..={high:x}");
            }
            assert_eq!(matches(&sequences, &[0xED, 0xA0, 0x80]), 0, "a surrogate");
            assert_eq!(matches(&sequences, &[0xC0, 0x80]), 0, "an overlong form");
        }
    }

    #[test]
    fn complement_and_union() {
        assert_eq!(normalised(vec![(5, 9), (0, 2), (3, 4), (20, 30), (8, 12)]), [(0, 12), (20, 30)]);
        assert_eq!(complement(vec![(0, 9), (11, 0x10FFFF)]), [(10, 10)]);
        assert!(complement(vec![(0, 0x10FFFF)]).is_empty());
        assert_eq!(complement(Vec::new()), [(0, 0x10FFFF)]);
    }
}
