//! The characters of a grammar's text, and where they lie.

use crate::error::Place;

/// A place in the text, moving on character by character.
pub(super) struct Text<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Text<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        // A byte-order mark is no part of the grammar.
        Self { text: text.strip_prefix('\u{FEFF}').unwrap_or(text), at: 0 }
    }

    /// The next character, which stays the next one.
    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// What is left.
    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Takes the next character.
    pub(super) fn take(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// Takes `expected` if it comes next.
    pub(super) fn take_if(&mut self, expected: &str) -> bool {
        let found = self.rest().starts_with(expected);
        if found {
            self.at += expected.len();
        }
        found
    }

    /// Takes characters while they fit.
    pub(super) fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c: char| !fits(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Skips blanks and comments; line breaks too when `lines`.
    pub(super) fn skip_blanks(&mut self, lines: bool) {
        loop {
            self.take_while(|c| matches!(c, ' ' | '\t' | '\r') || (lines && c == '\n'));
            if self.peek() != Some('#') {
                break;
            }
            self.take_while(|c| c != '\n');
        }
    }

    /// Skips to the next line on which a rule seems to begin.
    pub(super) fn skip_to_rule(&mut self) {
        while self.take().is_some() {
            if self.text[..self.at].ends_with('\n') && starts_rule(self.rest()) {
                break;
            }
        }
    }

    /// Whether a new rule begins here.
    pub(super) fn at_rule(&self) -> bool {
        starts_rule(self.rest())
    }

    /// Position in bytes.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The position behind the last character that is not blank.
    pub(super) fn end(&self) -> usize {
        self.text.trim_end().len()
    }

    /// Goes back to a position.
    pub(super) fn back_to(&mut self, position: usize) {
        self.at = position;
    }

    /// Line, column and line text of a position.
    pub(super) fn place(&self, position: usize) -> Place {
        const SHOWN: usize = 160;
        let before = &self.text[..position.min(self.text.len())];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = self.text[start..].lines().next().unwrap_or_default();
        Place {
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            text: line.chars().take(SHOWN).collect(),
        }
    }
}

/// Whether the text begins with a name and a definition sign.
fn starts_rule(text: &str) -> bool {
    let name = text.trim_start_matches(is_name);
    name.len() < text.len() && name.trim_start_matches([' ', '\t']).starts_with("::=")
}

/// Characters of rule names.
pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}
