//! What every target of the grammar crate asks of a fault, and of a language at each place of a text.

use std::sync::Arc;

use colibri_grammar::{ByteSet, Constraint, Fault, FaultCode, GrammarError, Mark, Matcher, Place, Program, limits};

use super::check;
use super::input::Input;

/// The longest text of one part of a fault, in bytes.
const LONGEST: usize = 4096;
/// The names of all limits.
const LIMITS: [limits::Limit; 10] = [
    limits::SOURCE_BYTES,
    limits::DEPTH,
    limits::RULES,
    limits::INSTRUCTIONS,
    limits::REPETITIONS,
    limits::ITEMS,
    limits::MEMORY,
    limits::STEPS,
    limits::BRANCHES,
    limits::SCHEMA_STEPS,
];

/// A refusal of a text: at least one fault and no more than are reported, each of these kinds, inside of the text, short and
/// without characters that can drive a terminal.
pub(crate) fn refusal(error: &GrammarError, codes: &[FaultCode], text: &str) {
    let faults = error.faults();
    assert!((1..=limits::FAULTS).contains(&faults.len()), "{} faults", faults.len());
    assert_eq!(error.code(), faults[0].code.slug());
    for fault in faults {
        assert!(codes.contains(&fault.code), "{fault:?}");
        parts(fault);
        if let Some(place) = &fault.place {
            inside(place, text);
        }
        // The caret of a report stands on a line of its own.
        fault.report().split('\n').for_each(|line| check::shown(&line.replace('\t', " ")));
    }
}

fn parts(fault: &Fault) {
    assert!(!fault.what.is_empty(), "{fault:?}");
    let texts = [Some(&fault.what), fault.why.as_ref(), fault.fix.as_ref(), fault.pointer.as_ref()];
    for text in texts.into_iter().flatten() {
        check::shown(text);
        assert!(text.len() <= LONGEST, "a fault of {} bytes: {text:.200}", text.len());
    }
    if fault.code == FaultCode::TooComplex {
        assert!(LIMITS.iter().any(|limit| fault.what.ends_with(limit.name)), "no limit is named: {fault:?}");
    }
}

fn inside(place: &Place, text: &str) {
    let line = place.line.checked_sub(1).and_then(|before| text.split('\n').nth(before));
    let line = line.unwrap_or_else(|| panic!("no such line: {place:?}"));
    // A byte-order mark is no part of the first line; the end of a line is one column more, and so is that of the text.
    assert!((1..=line.chars().count() + 1).contains(&place.column), "no such column: {place:?}");
    assert!(place.text.chars().count() <= line.chars().count().min(200), "{place:?}");
}

/// A limit that a matcher hit.
pub(crate) fn limit(fault: &Fault) {
    assert_eq!(fault.code, FaultCode::TooComplex, "{fault:?}");
    parts(fault);
}

/// A matcher of the program before any text, unless a limit is hit at once.
pub(crate) fn begin(program: Program) -> Option<Matcher> {
    match Matcher::new(Arc::new(program)) {
        Ok(matcher) => Some(matcher),
        Err(fault) => {
            limit(&fault);
            None
        }
    }
}

/// What the language says here. An alive place can go on or end; after a limit nothing is allowed.
pub(crate) fn here(matcher: &Matcher) -> (ByteSet, bool, usize) {
    let (allowed, can_end, specials) = (matcher.allowed(), matcher.can_end(), matcher.allowed_specials().count());
    match matcher.fault() {
        Some(fault) => {
            limit(fault);
            assert!(allowed.is_empty() && !can_end && specials == 0, "something is allowed after a limit");
        }
        None => assert!(!allowed.is_empty() || can_end || specials > 0, "a place without a way on"),
    }
    assert_eq!(matcher.can_divert(), specials > 0);
    let most = 2 * limits::MEMORY.most + (64 << 20);
    assert!(matcher.memory() <= most, "{} bytes of states", matcher.memory());
    (allowed, can_end, specials)
}

/// Takes a byte that is allowed. False when a limit was hit, after which the matcher is back.
pub(crate) fn take(matcher: &mut Matcher, byte: u8) -> bool {
    let start = matcher.mark();
    if matcher.accept(byte) {
        assert_eq!(matcher.mark(), Mark(start.0 + 1));
        return true;
    }
    let fault = matcher.fault().unwrap_or_else(|| panic!("byte {byte} is allowed and refused"));
    limit(fault);
    matcher.rewind(start);
    false
}

/// Walks on from the present place, one byte for each one of the input, and when that is used up towards an end. The text
/// of a walk that came to an end within `most` bytes.
pub(crate) fn walk(matcher: &mut Matcher, input: &mut Input<'_>, most: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < most {
        let (allowed, can_end, _) = here(matcher);
        let choices: Vec<u8> = allowed.iter().collect();
        if can_end && (input.0.is_empty() || choices.is_empty() || input.seldom(8)) {
            return Some(text);
        }
        // Only a special token leads on.
        if choices.is_empty() {
            return None;
        }
        let byte = if input.0.is_empty() { homeward(&choices) } else { choices[input.below(choices.len())] };
        if !take(matcher, byte) {
            return None;
        }
        text.push(byte);
    }
    None
}

/// A byte that tends to lead to an end.
fn homeward(choices: &[u8]) -> u8 {
    let closing = b"\"}]</>1tfnaxe".iter().copied().find(|byte| choices.contains(byte));
    closing.unwrap_or(choices[0])
}

/// Both programs say the same all along a walk that the input chooses.
pub(crate) fn alike(one: Program, other: Program, input: &mut Input<'_>, most: usize) {
    let (Some(mut one), Some(mut other)) = (begin(one), begin(other)) else { return };
    for _ in 0..most {
        let said = here(&one);
        assert_eq!(said, here(&other), "two readings of one text differ");
        let choices: Vec<u8> = said.0.iter().collect();
        if choices.is_empty() || input.0.is_empty() {
            return;
        }
        let byte = choices[input.below(choices.len())];
        if !take(&mut one, byte) || !take(&mut other, byte) {
            return;
        }
    }
}
