//! Proofs that no value fits two schemas: what `oneOf` needs.
//!
//! A proof reads the keywords as the standard means them: without `type` every type fits, without `additionalProperties`
//! every further property does, however narrow the grammar is made. Proven are different types, lists of values that do not
//! fit the other side, ranges of numbers that do not meet, and a property that one side requires and whose schemas exclude
//! each other. Whatever is not proven counts as overlapping.

use std::rc::Rc;

use super::merge::Flat;
use super::reference::below;
use super::types::Types;
use super::validate::Verdict;
use super::{Compiler, Weight};

/// How deep properties are looked into.
const DEEPEST: usize = 8;

impl<'a> Compiler<'a, '_> {
    /// Refuses alternatives that stem from different branches of one `oneOf` and may both fit.
    pub(super) fn check_exclusive(&mut self, flats: &[Flat<'a>]) {
        if self.muted > 0 {
            return;
        }
        for (at, one) in flats.iter().enumerate().filter(|(_, flat)| !flat.choices.is_empty()) {
            for other in &flats[at + 1..] {
                let differs = |(place, index): &&(Rc<str>, usize)| {
                    other.choices.iter().any(|(known, number)| known == place && number != index)
                };
                let places: Vec<_> = one.choices.iter().filter(differs).map(|(place, _)| place).collect();
                let apart = places.is_empty() || self.quietly(|compiler| compiler.disjoint(one, other, 0));
                if !self.spend(1) {
                    return;
                }
                let why = "its branches may fit the same value; they must differ in type, in a `const` or `enum`, or in a \
                           required property";
                for place in places.into_iter().filter(|_| !apart) {
                    self.refuse(place.strip_suffix("/oneOf").unwrap_or(place), "oneOf", why);
                }
            }
        }
    }

    /// Whether it is proven that no value fits both.
    fn disjoint(&mut self, one: &Flat<'a>, other: &Flat<'a>, depth: usize) -> bool {
        if depth > DEEPEST || !self.spend(4) {
            return false;
        }
        let common = one.types.and(other.types);
        if common.is_empty() {
            return true;
        }
        for (listed, rest) in [(one, other), (other, one)] {
            let Some(values) = listed.listed() else { continue };
            let apart = |value: &&'a serde_json::Value| {
                self.verdict(value, std::slice::from_ref(rest), depth) == Verdict::Fails
                    || self.verdict(value, std::slice::from_ref(listed), depth) == Verdict::Fails
            };
            if values.iter().all(apart) {
                return true;
            }
        }
        let numbers = common.and(Types::NUMBER);
        if !numbers.is_empty() {
            let apart = self.spend(16) && self.range(one).and(self.range(other)).is_empty();
            if !apart {
                return false;
            }
        }
        let rest = common.without(Types::NUMBER);
        rest.is_empty() || (rest == Types::OBJECT && self.properties_disjoint(one, other, depth))
    }

    /// Whether a property that one side requires can have no value.
    fn properties_disjoint(&mut self, one: &Flat<'a>, other: &Flat<'a>, depth: usize) -> bool {
        let mut names = self.required(one);
        names.extend(self.required(other));
        names.iter().any(|name| {
            let sides = [one, other].map(|flat| self.property(flat, name));
            // Without a restriction on one side nothing can be proven, unless the other side allows nothing.
            let [left, right] = sides.map(|schemas| self.expand(&schemas));
            left.iter().all(|left| right.iter().all(|right| self.disjoint(left, right, depth + 1)))
        })
    }

    /// Says that a keyword cannot be enforced, or, when lenient, that it is ignored.
    pub(super) fn refuse(&mut self, pointer: &str, keyword: &str, why: &str) {
        let place = below(pointer, keyword);
        if self.options.lenient {
            self.note_of(Weight::Ignored, &place, &format!("`{keyword}` is ignored: {why}"));
        } else {
            self.unsupported(&place, keyword, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SchemaOptions, compile};
    use super::Weight;

    #[test]
    fn notes_weigh_what_they_say() {
        let text =
            r#"{"properties": {"a": {"type": "string", "not": {}, "colour": 1, "format": "x"}}, "minProperties": 1}"#;
        let options = SchemaOptions { lenient: true, ..SchemaOptions::default() };
        let mut notes: Vec<(String, Weight)> =
            compile(text, &options).unwrap().notes.into_iter().map(|note| (note.pointer, note.weight)).collect();
        notes.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [
            ("#", Weight::Usual),
            ("#/minProperties", Weight::Ignored),
            ("#/properties/a/colour", Weight::Remark),
            ("#/properties/a/format", Weight::Remark),
            ("#/properties/a/not", Weight::Ignored),
        ];
        assert_eq!(notes, expected.map(|(pointer, weight)| (pointer.to_owned(), weight)));
    }
}
