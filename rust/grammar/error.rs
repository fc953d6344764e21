//! The crate's error: what is wrong with a grammar, where, and what was expected.
//!
//! Faults quote the texts that they are about. Must hold for those of a [`GrammarError`]: every part is short, and without
//! characters that move a cursor or reorder a line, whatever the text holds.

use std::fmt;

use crate::limits::Limit;

/// The longest part of a fault, in characters; one that is cut ends with `…`.
const LONGEST: usize = 500;
/// The longest number in the fault of a limit.
const LONGEST_NUMBER: usize = 40;

/// The kind of a fault; its slug is the same on the command line, in Python and over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultCode {
    /// The text of a grammar, pattern, schema or tool list cannot be read.
    Syntax,
    /// A schema asks for something that cannot be enforced.
    Unsupported,
    /// A limit was hit.
    TooComplex,
    /// No text fits.
    DeadEnd,
}

impl FaultCode {
    /// `grammar_syntax`, `schema_unsupported`, `grammar_too_complex`, `grammar_dead_end`.
    #[must_use]
    pub fn slug(self) -> &'static str {
        match self {
            Self::Syntax => "grammar_syntax",
            Self::Unsupported => "schema_unsupported",
            Self::TooComplex => "grammar_too_complex",
            Self::DeadEnd => "grammar_dead_end",
        }
    }
}

/// Where in a text a fault lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line itself.
    pub text: String,
}

impl Place {
    /// The line, and below it a caret under the column; the caret is left out where the shown line ends before it.
    #[must_use]
    pub fn excerpt(&self) -> String {
        let before: Vec<char> = self.text.chars().take(self.column.saturating_sub(1)).collect();
        if before.len() + 1 < self.column {
            return format!("    {}", self.text);
        }
        // A tab stays one, so that the caret stands where the column does.
        let blank: String = before.iter().map(|c| if *c == '\t' { '\t' } else { ' ' }).collect();
        format!("    {}\n    {blank}^", self.text)
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind.
    pub code: FaultCode,
    /// What happened.
    pub what: String,
    /// Why that is a fault, or what was expected.
    pub why: Option<String>,
    /// What to do about it.
    pub fix: Option<String>,
    /// Where in the text.
    pub place: Option<Box<Place>>,
    /// JSON pointer into a schema, such as `#/properties/tag`.
    pub pointer: Option<String>,
}

impl Fault {
    /// A fault of this kind.
    #[must_use]
    pub fn new(code: FaultCode, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), why: None, fix: None, place: None, pointer: None }
    }

    /// Adds why.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// Adds where in the text.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(Box::new(place));
        self
    }

    /// What happened, and where: with the line and a caret where there is a place.
    #[must_use]
    pub fn report(&self) -> String {
        self.place.as_ref().map_or_else(|| self.to_string(), |place| format!("{self}\n{}", place.excerpt()))
    }

    /// A limit that was hit.
    #[must_use]
    pub fn limit(limit: Limit, got: impl fmt::Display) -> Self {
        let got = plain(&got.to_string(), LONGEST_NUMBER);
        Self::new(FaultCode::TooComplex, format!("too complex: {got} {}", limit.name))
            .why(format!("at most {} are allowed", limit.most))
            .fix("simplify the grammar")
    }
}

impl Fault {
    /// The fault fit to be shown.
    fn shown(self) -> Self {
        let part = |text: String| shown(&text);
        // One character for each, so that the column stays right; a tab moves nothing but what is behind it.
        let visible = |c: char| if c != '\t' && drives(c) { char::REPLACEMENT_CHARACTER } else { c };
        let line = |place: Box<Place>| Box::new(Place { text: place.text.chars().map(visible).collect(), ..*place });
        Self {
            code: self.code,
            what: part(self.what),
            why: self.why.map(part),
            fix: self.fix.map(part),
            place: self.place.map(line),
            pointer: self.pointer.map(part),
        }
    }
}

/// A text that quotes others, fit to be shown.
pub(crate) fn shown(text: &str) -> String {
    plain(text, LONGEST)
}

/// The text with what drives a terminal escaped, cut behind so many characters.
fn plain(text: &str, most: usize) -> String {
    let mut plain = String::new();
    for (at, character) in text.chars().enumerate() {
        if at == most {
            plain.push('…');
            break;
        }
        if drives(character) {
            plain.extend(character.escape_unicode());
        } else {
            plain.push(character);
        }
    }
    plain
}

/// Whether a character moves a cursor or reorders the text around it.
fn drives(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(formatter, "{}:{}: ", place.line, place.column)?;
        }
        if let Some(pointer) = &self.pointer {
            write!(formatter, "{pointer}: ")?;
        }
        formatter.write_str(&self.what)
    }
}

/// Everything that is wrong with one grammar; at least one fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct GrammarError {
    faults: Vec<Fault>,
}

impl GrammarError {
    /// An error of one fault.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self { faults: vec![fault.shown()] }
    }

    /// Ok without faults, else all of them.
    ///
    /// # Errors
    /// When there is a fault.
    pub fn from_faults(faults: Vec<Fault>) -> Result<(), Self> {
        let faults: Vec<Fault> = faults.into_iter().take(crate::limits::FAULTS).map(Fault::shown).collect();
        if faults.is_empty() { Ok(()) } else { Err(Self { faults }) }
    }

    /// The slug of the first fault.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.faults.first().map_or("grammar_syntax", |fault| fault.code.slug())
    }

    /// All faults, in the order of their places.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }
}

impl fmt::Display for GrammarError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.faults.iter().map(ToString::to_string).collect();
        formatter.write_str(&lines.join("\n"))
    }
}

impl From<Fault> for GrammarError {
    fn from(fault: Fault) -> Self {
        Self::new(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_points_at_the_column() {
        let place = |column, text: &str| Place { line: 2, column, text: text.to_owned() };
        let fault = Fault::new(FaultCode::Syntax, "expected a name").at(place(4, "\ta é?"));
        assert_eq!(fault.report(), "2:4: expected a name\n    \ta é?\n    \t  ^");
        assert_eq!(place(3, "ab").excerpt(), "    ab\n      ^", "behind the end of the line");
        assert_eq!(place(200, "cut").excerpt(), "    cut");
    }
    #[test]
    fn what_a_text_holds_cannot_drive_a_terminal() {
        let long = "\u{1b}".repeat(2000);
        let place = Place { line: 1, column: 3, text: "\t\u{1b}[2J\u{202e}x".to_owned() };
        let fault =
            Fault { pointer: Some(long.clone()), ..Fault::new(FaultCode::Syntax, "the escape \\\u{1b} is not known") };
        let fault = fault.why(long.clone()).fix("\u{202e}\n").at(place);
        for error in [GrammarError::new(fault.clone()), GrammarError::from_faults(vec![fault]).unwrap_err()] {
            let fault = &error.faults()[0];
            assert_eq!(fault.what, "the escape \\\\u{1b} is not known");
            assert_eq!(fault.fix.as_deref(), Some("\\u{202e}\\u{a}"));
            assert_eq!(fault.place.as_ref().unwrap().text, "\t\u{fffd}[2J\u{fffd}x");
            for text in [&fault.why, &fault.pointer] {
                assert_eq!(
                    text.as_deref().map(|text| (text.len(), text.ends_with("\\u{1b}…"))),
                    Some((500 * 6 + 3, true))
                );
            }
        }
        let limit = Fault::limit(crate::limits::REPETITIONS, "9".repeat(1000));
        assert_eq!(limit.what, format!("too complex: {}… repetitions", "9".repeat(40)));
    }
}
