//! Numbers between bounds as digits.
//!
//! Bounds are followed digit by digit from the left, so that nothing is rounded: at a digit equal to the bound's the next
//! digits are still bound, at a smaller or larger one they are free. Whole numbers are written without a point; an exponent
//! is written only where there is no bound, and then with at most two digits. There is no negative zero beside bounds.

use super::decimal::{Decimal, Range, next, previous};
use crate::builder::{Builder, NodeId};
use crate::bytes::ByteSet;

/// Every so many digits the expression goes on in a rule of its own, so that long bounds stay shallow.
const DIGITS_PER_RULE: usize = 32;

/// The numbers of a range; `None` when there is none. `whole`: only those without a fraction.
pub(super) fn build(builder: &mut Builder, range: &Range, whole: bool) -> Option<NodeId> {
    let mut digits = Digits::new(builder);
    if range.is_empty() {
        return None;
    }
    if range.low.is_none() && range.high.is_none() {
        return Some(if whole { digits.any_integer() } else { digits.any_number() });
    }
    let zero = || Edge { number: Decimal::zero(), inclusive: true };
    let edge = |bound: &super::decimal::Bound| Edge { number: bound.value.magnitude(), inclusive: bound.inclusive };
    let low = range.low.as_ref();
    let high = range.high.as_ref();
    let positive = match high {
        Some(bound) if bound.value.negative => None,
        _ => {
            let from = low.filter(|bound| !bound.value.negative).map_or_else(zero, edge);
            digits.magnitudes(&from, high.map(edge).as_ref(), whole)
        }
    };
    let negative = match low {
        Some(bound) if !bound.value.negative => None,
        _ => {
            let above_zero = || Edge { inclusive: false, ..zero() };
            let from = high.filter(|bound| bound.value.negative).map_or_else(above_zero, edge);
            digits.magnitudes(&from, low.map(edge).as_ref(), whole)
        }
    };
    let negative = negative.map(|magnitude| {
        let sign = builder.literal(b"-");
        builder.sequence(vec![sign, magnitude])
    });
    let parts: Vec<NodeId> = positive.into_iter().chain(negative).collect();
    if parts.is_empty() { None } else { Some(builder.alternatives(parts)) }
}

/// One end of a range of magnitudes.
struct Edge {
    number: Decimal,
    inclusive: bool,
}

/// What is left of a bound among the digits behind the point.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tail<'a> {
    digits: &'a [u8],
    inclusive: bool,
}

/// A bound after one more digit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step<'a> {
    /// No digit can make up for it.
    Broken,
    Bound(Tail<'a>),
    Free,
}

struct Digits<'b> {
    builder: &'b mut Builder,
    any: NodeId,
}

impl<'b> Digits<'b> {
    fn new(builder: &'b mut Builder) -> Self {
        let any = builder.bytes((b'0'..=b'9').collect());
        Self { builder, any }
    }

    fn class(&mut self, low: u8, high: u8) -> NodeId {
        self.builder.bytes((low..=high).collect())
    }

    fn any_integer(&mut self) -> NodeId {
        let zero = self.builder.literal(b"0");
        let sign = self.builder.literal(b"-");
        let sign = self.builder.optional(sign);
        let first = self.class(b'1', b'9');
        let more = self.builder.repeat(self.any, 0, None);
        let other = self.builder.sequence(vec![sign, first, more]);
        self.builder.alternatives(vec![zero, other])
    }

    fn any_number(&mut self) -> NodeId {
        let sign = self.builder.literal(b"-");
        let sign = self.builder.optional(sign);
        let zero = self.builder.literal(b"0");
        let first = self.class(b'1', b'9');
        let more = self.builder.repeat(self.any, 0, None);
        let other = self.builder.sequence(vec![first, more]);
        let whole = self.builder.alternatives(vec![zero, other]);
        let fraction = self.any_fraction();
        let mark = self.builder.bytes(ByteSet::from_iter(*b"eE"));
        let exponent_sign = self.builder.bytes(ByteSet::from_iter(*b"+-"));
        let exponent_sign = self.builder.optional(exponent_sign);
        let exponent = self.builder.repeat(self.any, 1, Some(2));
        let exponent = self.builder.sequence(vec![mark, exponent_sign, exponent]);
        let exponent = self.builder.optional(exponent);
        self.builder.sequence(vec![sign, whole, fraction, exponent])
    }

    /// Nothing, or a point and digits.
    fn any_fraction(&mut self) -> NodeId {
        let point = self.builder.literal(b".");
        let digits = self.builder.repeat(self.any, 1, None);
        let fraction = self.builder.sequence(vec![point, digits]);
        self.builder.optional(fraction)
    }

    fn magnitudes(&mut self, low: &Edge, high: Option<&Edge>, whole: bool) -> Option<NodeId> {
        if whole {
            // Inclusive whole bounds.
            let exact = low.number.is_whole() && low.inclusive;
            let from = if exact { low.number.whole.clone() } else { next(&low.number.whole) };
            let to = match high {
                Some(edge) if edge.number.is_whole() && !edge.inclusive => Some(previous(&edge.number.whole)?),
                Some(edge) => Some(edge.number.whole.clone()),
                None => None,
            };
            return self.integers(&from, to.as_deref());
        }
        let low_tail = Tail { digits: &low.number.fraction, inclusive: low.inclusive };
        let Some(high) = high else {
            let after = next(&low.number.whole);
            let more = self.integers(&after, None).map(|whole| self.with_any_fraction(whole));
            let edge = self.with_fraction(&low.number.whole, Some(low_tail), None);
            return self.either([edge, more]);
        };
        let high_tail = Tail { digits: &high.number.fraction, inclusive: high.inclusive };
        if low.number.whole == high.number.whole {
            return self.with_fraction(&low.number.whole, Some(low_tail), Some(high_tail));
        }
        if low.number > high.number {
            return None;
        }
        let first = self.with_fraction(&low.number.whole, Some(low_tail), None);
        let between =
            previous(&high.number.whole).and_then(|before| self.integers(&next(&low.number.whole), Some(&before)));
        let between = between.map(|whole| self.with_any_fraction(whole));
        let last = self.with_fraction(&high.number.whole, None, Some(high_tail));
        self.either([first, between, last])
    }

    fn either<const N: usize>(&mut self, parts: [Option<NodeId>; N]) -> Option<NodeId> {
        let parts: Vec<NodeId> = parts.into_iter().flatten().collect();
        if parts.is_empty() { None } else { Some(self.builder.alternatives(parts)) }
    }

    fn with_any_fraction(&mut self, whole: NodeId) -> NodeId {
        let fraction = self.any_fraction();
        self.builder.sequence(vec![whole, fraction])
    }

    /// These digits before the point, and behind it what the bounds leave.
    fn with_fraction(&mut self, whole: &[u8], low: Option<Tail<'_>>, high: Option<Tail<'_>>) -> Option<NodeId> {
        let digits = self.some_digits(low, high, 1);
        let fraction = digits.map(|digits| {
            let point = self.builder.literal(b".");
            self.builder.sequence(vec![point, digits])
        });
        let none = zero_fits(low, high).then(|| self.builder.empty());
        let fraction = self.either([none, fraction])?;
        let whole = self.builder.literal(whole);
        Some(self.builder.sequence(vec![whole, fraction]))
    }

    /// Whole numbers without leading zeros from `low` to `high`.
    fn integers(&mut self, low: &[u8], high: Option<&[u8]>) -> Option<NodeId> {
        let Some(high) = high else {
            let same = self.fixed(Some(low), None);
            let first = self.class(b'1', b'9');
            let more = self.builder.repeat(self.any, low.len() as u32, None);
            let longer = self.builder.sequence(vec![first, more]);
            return Some(self.builder.alternatives(vec![same, longer]));
        };
        if (low.len(), low) > (high.len(), high) {
            return None;
        }
        if low.len() == high.len() {
            return Some(self.fixed(Some(low), Some(high)));
        }
        let mut parts = vec![self.fixed(Some(low), None)];
        if high.len() - low.len() > 1 {
            let first = self.class(b'1', b'9');
            let more = self.builder.repeat(self.any, low.len() as u32, Some(high.len() as u32 - 2));
            parts.push(self.builder.sequence(vec![first, more]));
        }
        let mut smallest = vec![b'0'; high.len()];
        smallest[0] = b'1';
        parts.push(self.fixed(Some(&smallest), Some(high)));
        Some(self.builder.alternatives(parts))
    }

    /// As many digits as the bounds have, between them.
    fn fixed(&mut self, low: Option<&[u8]>, high: Option<&[u8]>) -> NodeId {
        let count = low.or(high).map_or(0, <[u8]>::len);
        // Bounds that every continuation keeps.
        let low = low.filter(|digits| digits.iter().any(|digit| *digit != b'0'));
        let high = high.filter(|digits| digits.iter().any(|digit| *digit != b'9'));
        let (Some(first), last) =
            (low.or(high).map(|_| low.map_or(b'0', |low| low[0])), high.map_or(b'9', |high| high[0]))
        else {
            return self.builder.repeat(self.any, count as u32, Some(count as u32));
        };
        let rest = |digits: Option<&[u8]>| digits.map(|digits| digits[1..].to_vec());
        let free = vec![b'0'; count - 1];
        let mut parts = Vec::new();
        let mut row = |digits: &mut Self, from: u8, to: u8, low: Option<Vec<u8>>, high: Option<Vec<u8>>| {
            let class = digits.class(from, to);
            let more = digits.fixed(low.as_deref(), high.as_deref());
            parts.push(digits.builder.sequence(vec![class, more]));
        };
        if low.is_some() && high.is_some() && first == last {
            row(self, first, last, rest(low), rest(high));
        } else {
            let (mut from, mut to) = (first, last);
            if low.is_some() {
                row(self, first, first, rest(low), None);
                from += 1;
            }
            if high.is_some() {
                to = last.wrapping_sub(1);
            }
            if from <= to && to <= b'9' {
                row(self, from, to, Some(free), None);
            }
            if high.is_some() {
                row(self, last, last, None, rest(high));
            }
        }
        let node = self.builder.alternatives(parts);
        self.cut(node, count)
    }

    /// At least one digit behind the point, between the bounds; `None` when there are none.
    fn some_digits(&mut self, low: Option<Tail<'_>>, high: Option<Tail<'_>>, level: usize) -> Option<NodeId> {
        // Nothing is below zero.
        let low = low.filter(|low| !(low.digits.is_empty() && low.inclusive));
        match (low, high) {
            (None, None) => return Some(self.builder.repeat(self.any, 1, None)),
            (Some(low), None) if low.digits.is_empty() => {
                let zero = self.builder.literal(b"0");
                let zeros = self.builder.repeat(zero, 0, None);
                let first = self.class(b'1', b'9');
                let more = self.builder.repeat(self.any, 0, None);
                return Some(self.builder.sequence(vec![zeros, first, more]));
            }
            (None, Some(high)) if high.digits.is_empty() && high.inclusive => {
                let zero = self.builder.literal(b"0");
                return Some(self.builder.repeat(zero, 1, None));
            }
            (_, Some(high)) if high.digits.is_empty() => return None,
            _ => {}
        }
        let mut parts = Vec::new();
        let steps = |digit: u8| (after_low(low, digit), after_high(high, digit));
        let mut digit = b'0';
        while digit <= b'9' {
            let from = digit;
            let (low, high) = steps(from);
            while digit <= b'9' && steps(digit) == (low, high) {
                digit += 1;
            }
            if low == Step::Broken || high == Step::Broken {
                continue;
            }
            let (low, high) = (bound(low), bound(high));
            let more = self.some_digits(low, high, level + 1);
            let none = zero_fits(low, high).then(|| self.builder.empty());
            let class = self.class(from, digit - 1);
            if let Some(more) = self.either([none, more]) {
                parts.push(self.builder.sequence(vec![class, more]));
            }
        }
        if parts.is_empty() {
            return None;
        }
        let node = self.builder.alternatives(parts);
        Some(self.cut(node, level))
    }

    fn cut(&mut self, node: NodeId, level: usize) -> NodeId {
        if !level.is_multiple_of(DIGITS_PER_RULE) {
            return node;
        }
        let rule = self.builder.declare("digits");
        self.builder.define(rule, node);
        self.builder.rule(rule)
    }
}

/// Whether the digits may end here.
fn zero_fits(low: Option<Tail<'_>>, high: Option<Tail<'_>>) -> bool {
    low.is_none_or(|low| low.digits.is_empty() && low.inclusive)
        && high.is_none_or(|high| !high.digits.is_empty() || high.inclusive)
}

fn after_low(low: Option<Tail<'_>>, digit: u8) -> Step<'_> {
    let Some(low) = low else { return Step::Free };
    match low.digits {
        [] if digit > b'0' => Step::Free,
        [] => Step::Bound(low),
        [first, ..] if digit > *first => Step::Free,
        [first, ..] if digit < *first => Step::Broken,
        [_, rest @ ..] => Step::Bound(Tail { digits: rest, ..low }),
    }
}

fn after_high(high: Option<Tail<'_>>, digit: u8) -> Step<'_> {
    let Some(high) = high else { return Step::Free };
    match high.digits {
        [] if digit == b'0' && high.inclusive => Step::Bound(high),
        [] => Step::Broken,
        [first, ..] if digit < *first => Step::Free,
        [first, ..] if digit > *first => Step::Broken,
        [_, rest @ ..] => Step::Bound(Tail { digits: rest, ..high }),
    }
}

fn bound(step: Step<'_>) -> Option<Tail<'_>> {
    match step {
        Step::Bound(tail) => Some(tail),
        Step::Free | Step::Broken => None,
    }
}
