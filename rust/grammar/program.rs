//! The compiled form of every grammar: rules as small graphs of instructions over bytes.
//!
//! Each rule is a graph in the manner of Thompson's construction; a reference to a rule is a call. A counted repetition is a
//! hidden rule with one counter, so a frame never has more than one, and `x{0,5000}` costs as much as `x*`. Bytes that no
//! set tells apart share a class, the column of the matcher's transition table.
//!
//! Must hold: every rule can end (a rule that cannot is refused when the program is made), so a state that is alive can
//! always be completed.

use std::fmt;

use crate::bytes::ByteSet;

/// Position of an instruction.
pub(crate) type Pc = u32;

/// The end of the first rule; every program begins with it.
pub(crate) const END: Pc = 0;

/// Number of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub(crate) u32);

/// Number of a special token that the grammar names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpecialId(pub(crate) u32);

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Takes one byte of a set.
    Bytes { set: u32, next: Pc },
    /// Takes one special token.
    Special { special: SpecialId, next: Pc },
    /// Runs a rule, then goes on at `next`.
    Call { rule: RuleId, next: Pc },
    /// Goes on at each of `count` targets from `first` on.
    Split { first: u32, count: u32 },
    /// Beginning of a counted repetition: another round while the count is below the most, the end from the least on.
    Head { counter: u32, body: Pc },
    /// End of a round.
    Again { head: Pc },
    /// End of the rule.
    End,
}

/// Bounds of a counted repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) least: u32,
    /// `None`: without end; the count then stops at `least`.
    pub(crate) most: Option<u32>,
}

/// What is known of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) entry: Pc,
    pub(crate) nullable: bool,
    /// Index of its counter, if it is a counted repetition.
    pub(crate) counter: Option<u32>,
}

/// A compiled grammar.
#[derive(Debug)]
pub struct Program {
    pub(crate) ops: Vec<Op>,
    /// The rule that each instruction belongs to.
    pub(crate) owner: Vec<RuleId>,
    /// Whether some text leads from an instruction to the end of its rule; the others are never entered.
    pub(crate) alive: Vec<bool>,
    pub(crate) targets: Vec<Pc>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) counters: Vec<Counter>,
    pub(crate) sets: Vec<ByteSet>,
    pub(crate) start: RuleId,
    pub(crate) specials: Vec<Special>,
    pub(crate) classes: ByteClasses,
}

/// A special token as a grammar names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// `<name>`: the token with this text.
    Text(String),
    /// `<[id]>`: the token with this id.
    Id(u32),
    /// `!<name>` or `!<[id]>`: any one token but that, those that end the text excepted.
    Not(Box<Special>),
}

impl Special {
    /// Whether the token with this id and text is meant. The caller asks for no token that ends the text.
    #[must_use]
    pub fn admits(&self, id: u32, text: &str) -> bool {
        match self {
            Self::Text(name) => name == text,
            Self::Id(number) => *number == id,
            Self::Not(other) => !other.admits(id, text),
        }
    }
}

impl fmt::Display for Special {
    /// The token as GBNF writes it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(name) => formatter.write_str(name),
            Self::Id(number) => write!(formatter, "<[{number}]>"),
            Self::Not(other) => write!(formatter, "!{other}"),
        }
    }
}

impl Program {
    /// The special tokens that the grammar names, by number.
    #[must_use]
    pub fn specials(&self) -> &[Special] {
        &self.specials
    }

    /// The special tokens that the grammar names, with the numbers under which a matcher takes them.
    pub fn special_ids(&self) -> impl Iterator<Item = (SpecialId, &Special)> {
        (0..).map(SpecialId).zip(&self.specials)
    }

    /// Number of rules, hidden ones included.
    #[must_use]
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Number of instructions.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.ops.len()
    }

    /// The counter of the rule that an instruction belongs to.
    pub(crate) fn counter(&self, pc: Pc) -> Option<Counter> {
        let rule = self.owner[pc as usize];
        self.rules[rule.0 as usize].counter.map(|counter| self.counters[counter as usize])
    }

    pub(crate) fn split(&self, first: u32, count: u32) -> &[Pc] {
        &self.targets[first as usize..(first + count) as usize]
    }
}

/// A partition of the byte values: bytes of one class lie in the same sets of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByteClasses {
    class: [u8; 256],
    /// A byte of each class.
    samples: Vec<u8>,
}

impl ByteClasses {
    pub(crate) fn new(sets: &[ByteSet]) -> Self {
        let mut class = [0u8; 256];
        let mut samples: Vec<u8> = vec![0];
        for set in sets {
            if samples.len() == 256 {
                break;
            }
            // Each class falls into the part inside of the set and the part outside; the part that holds its sample
            // keeps its number.
            let mut split: [Option<u8>; 256] = [None; 256];
            for byte in 0..=u8::MAX {
                let old = usize::from(class[usize::from(byte)]);
                if set.contains(byte) != set.contains(samples[old]) {
                    class[usize::from(byte)] = *split[old].get_or_insert_with(|| {
                        samples.push(byte);
                        (samples.len() - 1) as u8
                    });
                }
            }
        }
        Self { class, samples }
    }

    pub(crate) fn of(&self, byte: u8) -> usize {
        usize::from(self.class[usize::from(byte)])
    }

    pub(crate) fn count(&self) -> usize {
        self.samples.len()
    }

    /// A byte of the class.
    pub(crate) fn sample(&self, class: usize) -> u8 {
        self.samples[class]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_share_a_class_exactly_when_no_set_tells_them_apart() {
        let digits: ByteSet = (b'0'..=b'9').collect();
        let hex: ByteSet = (b'0'..=b'9').chain(b'a'..=b'f').collect();
        let sets = [digits, hex, ByteSet::from_iter([0]), ByteSet::FULL, ByteSet::EMPTY];
        let classes = ByteClasses::new(&sets);
        for a in 0..=u8::MAX {
            for b in 0..=u8::MAX {
                let alike = sets.iter().all(|set| set.contains(a) == set.contains(b));
                assert_eq!(classes.of(a) == classes.of(b), alike, "{a} {b}");
            }
            assert_eq!(classes.of(classes.sample(classes.of(a))), classes.of(a));
        }
        assert_eq!(classes.count(), 4);
        let all: Vec<ByteSet> = (0..=u8::MAX).map(|byte| ByteSet::from_iter([byte])).collect();
        assert_eq!(ByteClasses::new(&all).count(), 256);
    }
}
