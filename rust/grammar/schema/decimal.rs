//! Numbers as decimal digits, and ranges of them: what bounds are compared by, exactly.

use std::cmp::Ordering;

/// The largest exponent that is written out; beyond every double.
const LARGEST_EXPONENT: usize = 400;

/// A number as its digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    /// Never true for zero.
    pub(super) negative: bool,
    /// ASCII digits before the point, without leading zeros; `0` alone for none.
    pub(super) whole: Vec<u8>,
    /// ASCII digits behind the point, without zeros at their end.
    pub(super) fraction: Vec<u8>,
}

impl Decimal {
    /// Zero.
    pub(super) fn zero() -> Self {
        Self { negative: false, whole: vec![b'0'], fraction: Vec::new() }
    }

    /// Reads a number of JSON; `None` when it is none, or too large to write out.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
        let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i64 = exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?;
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let mut all: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        if whole.is_empty() || !all.iter().all(u8::is_ascii_digit) {
            return None;
        }
        if all.iter().all(|digit| *digit == b'0') {
            return Some(Self::zero());
        }
        // Where the point stands among the digits.
        let point = i64::try_from(whole.len()).ok()?.checked_add(exponent)?;
        if point.unsigned_abs() as usize > LARGEST_EXPONENT + digits.len() {
            return None;
        }
        if point < 0 {
            all.splice(0..0, std::iter::repeat_n(b'0', point.unsigned_abs() as usize));
        }
        let point = point.max(0) as usize;
        if all.len() < point {
            all.resize(point, b'0');
        }
        let mut fraction = all.split_off(point);
        let kept = fraction.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
        fraction.truncate(kept);
        Some(Self { negative, whole: trimmed(all), fraction })
    }

    /// The number without its sign.
    pub(super) fn magnitude(&self) -> Self {
        Self { negative: false, ..self.clone() }
    }

    /// Whether nothing is behind the point.
    pub(super) fn is_whole(&self) -> bool {
        self.fraction.is_empty()
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let magnitudes = || {
            let length = self.whole.len().cmp(&other.whole.len());
            length.then_with(|| self.whole.cmp(&other.whole)).then_with(|| self.fraction.cmp(&other.fraction))
        };
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => magnitudes(),
            (true, true) => magnitudes().reverse(),
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn trimmed(digits: Vec<u8>) -> Vec<u8> {
    match digits.iter().position(|digit| *digit != b'0') {
        Some(first) => digits[first..].to_vec(),
        None => vec![b'0'],
    }
}

/// The digits of the next whole number.
pub(super) fn next(digits: &[u8]) -> Vec<u8> {
    let mut digits = digits.to_vec();
    for digit in digits.iter_mut().rev() {
        if *digit != b'9' {
            *digit += 1;
            return digits;
        }
        *digit = b'0';
    }
    digits.insert(0, b'1');
    digits
}

/// The digits of the whole number before; `None` before zero.
pub(super) fn previous(digits: &[u8]) -> Option<Vec<u8>> {
    let mut digits = digits.to_vec();
    for digit in digits.iter_mut().rev() {
        if *digit != b'0' {
            *digit -= 1;
            return Some(trimmed(digits));
        }
        *digit = b'9';
    }
    None
}

/// One end of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) value: Decimal,
    pub(super) inclusive: bool,
}

/// The numbers between two bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) low: Option<Bound>,
    pub(super) high: Option<Bound>,
}

impl Range {
    /// Keeps what is above a bound.
    pub(super) fn above(&mut self, bound: Bound) {
        let tighter = |old: &Bound| bound.value > old.value || (bound.value == old.value && !bound.inclusive);
        if self.low.as_ref().is_none_or(tighter) {
            self.low = Some(bound);
        }
    }

    /// Keeps what is below a bound.
    pub(super) fn below(&mut self, bound: Bound) {
        let tighter = |old: &Bound| bound.value < old.value || (bound.value == old.value && !bound.inclusive);
        if self.high.as_ref().is_none_or(tighter) {
            self.high = Some(bound);
        }
    }

    /// The numbers in both ranges.
    pub(super) fn and(mut self, other: Self) -> Self {
        other.low.into_iter().for_each(|bound| self.above(bound));
        other.high.into_iter().for_each(|bound| self.below(bound));
        self
    }

    /// Whether no number lies between the bounds.
    pub(super) fn is_empty(&self) -> bool {
        let (Some(low), Some(high)) = (&self.low, &self.high) else { return false };
        low.value > high.value || (low.value == high.value && !(low.inclusive && high.inclusive))
    }

    /// Whether a number lies between the bounds.
    pub(super) fn contains(&self, number: &Decimal) -> bool {
        let above = self.low.as_ref().is_none_or(|low| *number > low.value || (low.inclusive && *number == low.value));
        let below =
            self.high.as_ref().is_none_or(|high| *number < high.value || (high.inclusive && *number == high.value));
        above && below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notations_of_one_number_are_equal() {
        for (one, other) in [
            ("1", "1.0"),
            ("100", "1e2"),
            ("0.015", "1.5E-2"),
            ("-0", "0.000e9"),
            ("12300", "0.0123e+6"),
            ("0.00001", "1e-5"),
            ("-7", "-70e-1"),
        ] {
            assert_eq!(Decimal::parse(one).unwrap(), Decimal::parse(other).unwrap(), "{one} {other}");
        }
        for text in ["", "-", "x", "1.x", "e5", "1e", "1e99999", ".5"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn order_is_that_of_the_numbers() {
        let texts = ["-10.5", "-10", "-9.99", "-0.1", "0", "0.05", "0.1", "0.11", "9", "10", "10.01", "1e3"];
        let numbers: Vec<_> = texts.iter().map(|text| Decimal::parse(text).unwrap()).collect();
        assert!(numbers.is_sorted_by(|one, other| one < other));
        assert_eq!(next(b"199"), b"200");
        assert_eq!(next(b"99"), b"100");
        assert_eq!(previous(b"100").unwrap(), b"99");
        assert_eq!(previous(b"1").unwrap(), b"0");
        assert_eq!(previous(b"0"), None);
    }
}
