//! From a pattern's text to its tree.

use super::{LAST, Pattern, PatternResult};
use crate::error::{Fault, FaultCode, Place};
use crate::limits;
use crate::utf8;

const DIGITS: &[(u32, u32)] = &[(0x30, 0x39)];
const WORD: &[(u32, u32)] = &[(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)];
/// White space and line ends of ECMA-262.
const SPACE: &[(u32, u32)] = &[
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
];
/// What `.` does not match.
const LINE_ENDS: &[(u32, u32)] = &[(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)];

/// Reads a pattern. Unless `whole`, text may lie before and behind what is matched, where no anchor stands.
pub(crate) fn parse(pattern: &str, whole: bool) -> PatternResult<Pattern> {
    if pattern.len() > limits::SOURCE_BYTES.most {
        return Err(Fault::limit(limits::SOURCE_BYTES, pattern.len()));
    }
    let characters: Vec<char> = pattern.chars().collect();
    let mut parser = Parser { pattern, characters, at: 0, depth: 0 };
    let result = parser.top(whole)?;
    if parser.at < parser.characters.len() {
        return Err(parser.fault("unexpected `)`", "no group is open"));
    }
    Ok(result)
}

struct Parser<'a> {
    pattern: &'a str,
    characters: Vec<char>,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn fault(&self, what: impl Into<String>, why: impl Into<String>) -> Fault {
        const SHOWN: usize = 160;
        let place = Place { line: 1, column: self.at + 1, text: self.pattern.chars().take(SHOWN).collect() };
        Fault::new(FaultCode::Syntax, what).why(why).at(place)
    }

    fn unsupported(&self, what: &str) -> Fault {
        Fault {
            code: FaultCode::Unsupported,
            ..self.fault(format!("{what} cannot be enforced"), "only regular patterns can")
        }
    }

    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn take_if(&mut self, text: &str) -> bool {
        let found = self.characters[self.at..].iter().copied().take(text.chars().count()).eq(text.chars());
        if found {
            self.at += text.chars().count();
        }
        found
    }

    /// The alternatives of the whole pattern, each with its anchors.
    fn top(&mut self, whole: bool) -> PatternResult<Pattern> {
        let mut parts = Vec::new();
        loop {
            let mut open_start = !whole;
            while self.take_if("^") {
                open_start = false;
            }
            let body = self.sequence()?;
            let mut open_end = !whole;
            while self.take_if("$") {
                open_end = false;
            }
            let mut row = Vec::new();
            row.extend(open_start.then(Pattern::anything));
            row.push(body);
            row.extend(open_end.then(Pattern::anything));
            parts.push(joined(row));
            if !self.take_if("|") {
                break;
            }
        }
        Ok(either(parts))
    }

    /// The alternatives inside of a group.
    fn alternatives(&mut self) -> PatternResult<Pattern> {
        let mut parts = vec![self.sequence()?];
        while self.take_if("|") {
            parts.push(self.sequence()?);
        }
        Ok(either(parts))
    }

    fn sequence(&mut self) -> PatternResult<Pattern> {
        let mut parts = Vec::new();
        loop {
            match self.peek() {
                None | Some('|' | ')') => break,
                Some('$') if self.edge_follows() => break,
                Some('^' | '$') => return Err(self.unsupported("an anchor inside of a pattern")),
                Some('*' | '+' | '?') => {
                    return Err(self.fault("nothing to repeat", "a sign of repetition stands alone"));
                }
                Some('{') if self.count_stands_alone()? => {
                    return Err(self.fault("nothing to repeat", "a count stands alone"));
                }
                Some(_) => {
                    let item = self.item()?;
                    parts.push(self.repeated(item)?);
                }
            }
        }
        Ok(joined(parts))
    }

    /// Whether, at `$`, only anchors come before the end of a top-level alternative.
    fn edge_follows(&self) -> bool {
        let rest = self.characters[self.at..].iter().find(|c| **c != '$');
        self.depth == 0 && rest.is_none_or(|c| *c == '|')
    }

    fn item(&mut self) -> PatternResult<Pattern> {
        match self.peek() {
            Some('(') => self.group(),
            Some('[') => self.class(),
            Some('.') => {
                self.at += 1;
                Ok(Pattern::Class(utf8::complement(LINE_ENDS.to_vec())))
            }
            Some('\\') => Ok(Pattern::Class(self.escape(false)?)),
            Some(c) => {
                self.at += 1;
                Ok(Pattern::Class(vec![(u32::from(c), u32::from(c))]))
            }
            None => Err(self.fault("the pattern ends too early", "an item was expected")),
        }
    }

    fn group(&mut self) -> PatternResult<Pattern> {
        let start = self.at;
        self.at += 1;
        if self.take_if("?") {
            if self.take_if("P<") {
                self.at = start;
                let fault =
                    self.fault("a group named by `(?P<` cannot be enforced", "the notation is that of ECMA-262");
                return Err(Fault { code: FaultCode::Unsupported, ..fault }.fix("write (?<name>...)"));
            }
            let named = self.take_if("<") && !matches!(self.peek(), Some('=' | '!'));
            if named {
                while self.peek().is_some_and(|c| c != '>' && c != ')') {
                    self.at += 1;
                }
            }
            if !(if named { self.take_if(">") } else { self.take_if(":") }) {
                self.at = start;
                return Err(self.unsupported("a look-around or a flag"));
            }
        }
        self.depth += 1;
        if self.depth > limits::DEPTH.most {
            return Err(Fault::limit(limits::DEPTH, self.depth));
        }
        let body = self.alternatives()?;
        if !self.take_if(")") {
            self.at = start;
            return Err(self.fault("the group is not closed", "`)` was expected"));
        }
        self.depth -= 1;
        Ok(body)
    }

    fn repeated(&mut self, item: Pattern) -> PatternResult<Pattern> {
        let counts = match self.peek() {
            Some(sign @ ('*' | '+' | '?')) => {
                self.at += 1;
                Some((u32::from(sign == '+'), (sign == '?').then_some(1)))
            }
            // As in the common grammar of ECMA-262 a brace that begins no count is a brace.
            Some('{') => self.counts()?,
            _ => None,
        };
        let Some((least, most)) = counts else { return Ok(item) };
        // How eagerly it matches does not change what is matched.
        self.take_if("?");
        if matches!(self.peek(), Some('*' | '+' | '?')) {
            return Err(self.fault("nothing to repeat", "two signs of repetition follow each other"));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.fault("the bounds are the wrong way round", "the least comes first"));
        }
        Ok(Pattern::Repeat { body: Box::new(item), least, most })
    }

    /// Whether a count begins here, where an item was expected.
    fn count_stands_alone(&mut self) -> PatternResult<bool> {
        let start = self.at;
        let stands = self.counts()?.is_some();
        self.at = start;
        Ok(stands)
    }

    /// `{m}`, `{m,}` or `{m,n}`; nothing is taken when it is none of these.
    fn counts(&mut self) -> PatternResult<Option<(u32, Option<u32>)>> {
        let digits = self.characters[self.at + 1..].iter().take_while(|c| c.is_ascii_digit() || **c == ',');
        let rest: String = digits.collect();
        let length = rest.len();
        let closed = self.characters.get(self.at + 1 + length) == Some(&'}');
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (low, high) = rest.split_once(',').map_or((rest.as_str(), None), |(low, high)| (low, Some(high)));
        if !closed || !number(low) || high.is_some_and(|high| !high.is_empty() && !number(high)) {
            return Ok(None);
        }
        let value = |text: &str| -> PatternResult<u32> {
            let parsed = text.parse::<u32>().ok().filter(|count| *count as usize <= limits::REPETITIONS.most);
            parsed.ok_or_else(|| Fault::limit(limits::REPETITIONS, text))
        };
        let least = value(low)?;
        let most = match high {
            None => Some(least),
            Some("") => None,
            Some(high) => Some(value(high)?),
        };
        self.at += length + 2;
        Ok(Some((least, most)))
    }

    /// A bracketed class.
    fn class(&mut self) -> PatternResult<Pattern> {
        let start = self.at;
        self.at += 1;
        let negated = self.take_if("^");
        let mut ranges = Vec::new();
        while !self.take_if("]") {
            if self.peek().is_none() {
                self.at = start;
                return Err(self.fault("the class is not closed", "`]` was expected"));
            }
            let position = self.at;
            let low = self.member()?;
            let range = self.peek() == Some('-') && self.characters.get(self.at + 1).is_some_and(|c| *c != ']');
            if !range {
                ranges.extend(low);
                continue;
            }
            self.at += 1;
            let high = self.member()?;
            let (&[(low, low_end)], &[(high, high_end)]) = (low.as_slice(), high.as_slice()) else {
                self.at = position;
                return Err(self.fault("a range has no shorthand as its bound", "single characters bound a range"));
            };
            if low != low_end || high != high_end || high < low {
                self.at = position;
                return Err(self.fault("the range runs backwards", "the smaller code point comes first"));
            }
            ranges.push((low, high));
        }
        let ranges = if negated { utf8::complement(ranges) } else { utf8::normalised(ranges) };
        Ok(Pattern::Class(ranges))
    }

    fn member(&mut self) -> PatternResult<Vec<(u32, u32)>> {
        match self.peek() {
            Some('\\') => self.escape(true),
            Some(c) => {
                self.at += 1;
                Ok(vec![(u32::from(c), u32::from(c))])
            }
            None => Err(self.fault("the class is not closed", "`]` was expected")),
        }
    }

    /// An escape: a shorthand or one code point.
    fn escape(&mut self, in_class: bool) -> PatternResult<Vec<(u32, u32)>> {
        let start = self.at;
        self.at += 1;
        let Some(letter) = self.peek() else {
            return Err(self.fault("the pattern ends in a backslash", "an escape was expected"));
        };
        self.at += 1;
        let single = |code: u32| Ok(vec![(code, code)]);
        match letter {
            'd' => Ok(DIGITS.to_vec()),
            'D' => Ok(utf8::complement(DIGITS.to_vec())),
            'w' => Ok(WORD.to_vec()),
            'W' => Ok(utf8::complement(WORD.to_vec())),
            's' => Ok(SPACE.to_vec()),
            'S' => Ok(utf8::complement(SPACE.to_vec())),
            't' => single(0x09),
            'n' => single(0x0A),
            'v' => single(0x0B),
            'f' => single(0x0C),
            'r' => single(0x0D),
            'b' if in_class => single(0x08),
            '0' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => single(0),
            'c' if self.peek().is_some_and(|c| c.is_ascii_alphabetic()) => {
                let control = self.peek().map_or(0, |c| u32::from(c) % 32);
                self.at += 1;
                single(control)
            }
            'x' => self.hexadecimal(start, 2).and_then(single),
            'u' if self.take_if("{") => self.braced(start).and_then(single),
            'u' => self.utf16(start).and_then(single),
            _ if !letter.is_alphanumeric() => single(u32::from(letter)),
            _ => {
                self.at = start;
                match letter {
                    'b' | 'B' => Err(self.unsupported("a word boundary")),
                    'k' | '1'..='9' => Err(self.unsupported("a back reference")),
                    'p' | 'P' => Err(self.unsupported("a Unicode property")),
                    _ => Err(self.fault(format!("the escape \\{letter} is not known"), "it means nothing in ECMA-262")),
                }
            }
        }
    }

    fn hexadecimal(&mut self, start: usize, digits: usize) -> PatternResult<u32> {
        let text: String =
            self.characters[self.at..].iter().take(digits).take_while(|c| c.is_ascii_hexdigit()).collect();
        if text.len() != digits {
            self.at = start;
            return Err(
                self.fault("the numeric escape is too short", format!("{digits} hexadecimal digits are needed"))
            );
        }
        self.at += digits;
        u32::from_str_radix(&text, 16)
            .map_err(|_| self.fault("the numeric escape is no number", "hexadecimal digits are needed"))
    }

    /// `\uHHHH`, or two of them that make one code point.
    fn utf16(&mut self, start: usize) -> PatternResult<u32> {
        let high = self.hexadecimal(start, 4)?;
        if (0xD800..0xDC00).contains(&high) && self.take_if("\\u") {
            let low = self.hexadecimal(start, 4)?;
            if (0xDC00..0xE000).contains(&low) {
                return Ok(0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00));
            }
        }
        if (0xD800..0xE000).contains(&high) {
            self.at = start;
            return Err(self.unsupported("half of a surrogate pair"));
        }
        Ok(high)
    }

    fn braced(&mut self, start: usize) -> PatternResult<u32> {
        let text: String = self.characters[self.at..].iter().take_while(|c| **c != '}').collect();
        self.at += text.chars().count();
        let code = u32::from_str_radix(&text, 16).ok().filter(|code| *code <= LAST && !text.starts_with('+'));
        match code {
            Some(code) if self.take_if("}") => Ok(code),
            _ => {
                self.at = start;
                Err(self.fault("the numeric escape is no code point", "\\u{...} takes one up to 10FFFF"))
            }
        }
    }
}

fn joined(mut parts: Vec<Pattern>) -> Pattern {
    match parts.len() {
        1 => parts.remove(0),
        _ => Pattern::Sequence(parts),
    }
}

fn either(mut parts: Vec<Pattern>) -> Pattern {
    match parts.len() {
        1 => parts.remove(0),
        _ => Pattern::Alternatives(parts),
    }
}
