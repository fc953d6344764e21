//! Target `grammar`: the first byte chooses GBNF or a regular expression, the others are its text.
//!
//! Asserts: a refusal names places inside of the text, is bounded in number and length and cannot drive a terminal. What is
//! accepted is no larger than its text allows, means the same each time it is read, with other line ends, comments and
//! indents, and never comes to a place without a way on. A regular expression means the same when it is written as GBNF,
//! and a text that fits it also fits it as the pattern of a JSON string.

use colibri_grammar::schema::{self, SchemaOptions};
use colibri_grammar::{Constraint, FaultCode, GrammarError, Program, gbnf, regex};

use super::input::Input;
use super::language;

/// Instructions for each byte of text: the class of all code points is the longest single byte, a negated one of scattered
/// code points comes close.
const PER_BYTE: usize = 100;
/// The longest walk, in bytes.
const FARTHEST: usize = 200;

/// Runs the target.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    if kind % 2 == 0 { notation(&text, bytes) } else { expression(&text, bytes) }
}

fn notation(text: &str, guide: &[u8]) {
    let read = |text: &str| gbnf::compile(text);
    let first = judged(read(text), text, &[FaultCode::Syntax, FaultCode::TooComplex, FaultCode::DeadEnd]);
    let restyled = restyled(text);
    let Some(program) = first else {
        assert!(read(&restyled).is_err(), "accepted only with other line ends");
        return;
    };
    language::alike(read(text).expect("accepted before"), program, &mut Input(guide), FARTHEST);
    let program = read(text).expect("accepted before");
    let again = read(&restyled).unwrap_or_else(|error| panic!("refused with other line ends: {error}\n{restyled}"));
    language::alike(again, program, &mut Input(guide), FARTHEST);
}

/// The same grammar with carriage returns, comments and indents.
fn restyled(text: &str) -> String {
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    format!("\u{FEFF}# first\r\n\t{} # last", text.replace('\n', " # more\r\n\t"))
}

fn expression(text: &str, guide: &[u8]) {
    let codes = [FaultCode::Syntax, FaultCode::Unsupported, FaultCode::TooComplex, FaultCode::DeadEnd];
    // A pattern is shown as one line.
    let Some(program) = judged(regex::compile(text), &text.replace('\n', " "), &codes) else { return };
    language::alike(regex::compile(text).expect("accepted before"), program, &mut Input(guide), FARTHEST);
    if let Ok(written) = regex::to_gbnf(text) {
        let again =
            gbnf::compile(&written).unwrap_or_else(|error| panic!("refused when written again: {error}\n{written}"));
        language::alike(again, regex::compile(text).expect("accepted before"), &mut Input(guide), FARTHEST);
    }
    let Some(mut matcher) = regex::compile(text).ok().and_then(language::begin) else { return };
    let Some(found) = language::walk(&mut matcher, &mut Input(guide), FARTHEST) else { return };
    let found = String::from_utf8(found).expect("only whole code points match");
    let schema = serde_json::json!({"type": "string", "pattern": format!("^(?:{text})$")}).to_string();
    // Anchors stand at the edges of the whole pattern only.
    let Ok(compiled) = schema::compile(&schema, &SchemaOptions::default()) else { return };
    let Some(mut quoted) = language::begin(compiled.program) else { return };
    let fits = serde_json::Value::from(found.as_str()).to_string().bytes().all(|byte| quoted.accept(byte));
    assert!(quoted.fault().is_some() || (fits && quoted.can_end()), "{found:?} fits {text:?} but not as a JSON string");
}

/// A program that is as large as its text allows, or a refusal.
fn judged(outcome: Result<Program, GrammarError>, text: &str, codes: &[FaultCode]) -> Option<Program> {
    match outcome {
        Ok(program) => {
            let most = PER_BYTE * (text.len() + 10);
            let size = program.instructions() + program.rules();
            assert!(size <= most, "{size} instructions and rules for {} bytes", text.len());
            Some(program)
        }
        Err(error) => {
            language::refusal(&error, codes, text);
            None
        }
    }
}
