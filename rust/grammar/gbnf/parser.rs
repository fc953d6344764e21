//! From text to expressions.

use std::collections::HashMap;

use super::text::{Text, is_name};
use crate::analysis::endless;
use crate::builder::{Builder, NodeId};
use crate::error::{Fault, FaultCode, GrammarError};
use crate::limits;
use crate::program::{RuleId, Special};
use crate::utf8;
use crate::words;

/// A tree of literals that is no deeper than this stands in an open group as it is.
const SHALLOW: u16 = 4;

/// The largest code point.
const LAST: u32 = 0x10_FFFF;

/// A rule's name and where it was first used or defined.
struct Known {
    rule: RuleId,
    used: usize,
    defined: Option<usize>,
}

struct Parser<'a, 'b> {
    text: Text<'a>,
    builder: &'b mut Builder,
    rules: HashMap<&'a str, Known>,
    /// Names in the order of their first use.
    order: Vec<&'a str>,
    faults: Vec<Fault>,
    /// Open groups.
    depth: usize,
}

/// A fault was noted; parsing goes on at the next rule.
struct Stopped;

/// A part of a rule. Literals stay texts as long as they may become one tree with others.
enum Part {
    Text(String),
    Node(NodeId),
}

/// Reads all rules; returns `root`.
pub(super) fn read(text: &str, builder: &mut Builder) -> Result<RuleId, GrammarError> {
    if text.len() > limits::SOURCE_BYTES.most {
        return Err(Fault::limit(limits::SOURCE_BYTES, text.len()).into());
    }
    let text = Text::new(text);
    let mut parser = Parser { text, builder, rules: HashMap::new(), order: Vec::new(), faults: Vec::new(), depth: 0 };
    parser.all_rules();
    parser.check_names()
}

impl<'a> Parser<'a, '_> {
    fn all_rules(&mut self) {
        loop {
            self.text.skip_blanks(true);
            if self.text.peek().is_none() || self.faults.len() >= limits::FAULTS {
                break;
            }
            self.depth = 0;
            if self.rule().is_err() {
                self.text.skip_to_rule();
            }
        }
    }

    fn fail<T>(&mut self, position: usize, what: impl Into<String>, why: impl Into<String>) -> Result<T, Stopped> {
        let place = self.text.place(position);
        self.faults.push(Fault::new(FaultCode::Syntax, what).why(why).at(place));
        Err(Stopped)
    }

    /// `expected` a thing of some kind, found what is there.
    fn unexpected<T>(&mut self, expected: &str) -> Result<T, Stopped> {
        let got = match self.text.peek() {
            None => "the end of the text".to_owned(),
            Some('\n') => "the end of the line".to_owned(),
            Some(c) => format!("{c:?}"),
        };
        // The end of the text is shown behind what stands last in it, not on an empty line.
        let position = if self.text.peek().is_none() { self.text.end() } else { self.text.position() };
        self.fail(position, format!("expected {expected}"), format!("found {got}"))
    }

    fn rule(&mut self) -> Result<(), Stopped> {
        let start = self.text.position();
        let name = self.text.take_while(is_name);
        if name.is_empty() {
            return self.unexpected("the name of a rule");
        }
        self.text.skip_blanks(false);
        if !self.text.take_if("::=") {
            return self.unexpected(&format!("`::=` after the name `{name}`"));
        }
        let rule = self.named(name, start);
        if let Some(known) = self.rules.get_mut(name) {
            if let Some(first) = known.defined {
                let line = self.text.place(first).line;
                return self.fail(
                    start,
                    format!("the rule `{name}` is defined twice"),
                    format!("first on line {line}"),
                );
            }
            known.defined = Some(start);
        }
        // The body may begin on the next line.
        self.text.skip_blanks(true);
        let body = self.alternatives()?;
        if let Some(')') = self.text.peek() {
            let position = self.text.position();
            return self.fail(position, "unexpected `)`", "no group is open");
        }
        self.builder.define(rule, body);
        Ok(())
    }

    /// The rule of this name, declared when it is met first.
    fn named(&mut self, name: &'a str, position: usize) -> RuleId {
        if let Some(known) = self.rules.get(name) {
            return known.rule;
        }
        let rule = self.builder.declare(name);
        self.rules.insert(name, Known { rule, used: position, defined: None });
        self.order.push(name);
        rule
    }

    fn alternatives(&mut self) -> Result<NodeId, Stopped> {
        let mut parts = vec![self.sequence(true)?];
        loop {
            let before = self.text.position();
            self.text.skip_blanks(true);
            if !self.text.take_if("|") {
                if self.depth == 0 {
                    self.text.back_to(before);
                }
                break;
            }
            self.text.skip_blanks(true);
            parts.push(self.sequence(false)?);
        }
        Ok(self.one_of(parts))
    }

    /// One of the parts. All literals among them are one tree, so that a thousand words are not a thousand readings.
    fn one_of(&mut self, parts: Vec<Part>) -> NodeId {
        let (mut texts, mut nodes) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Part::Text(text) => texts.push(text),
                Part::Node(node) => nodes.push(node),
            }
        }
        if let Some(tree) = words::one_of(self.builder, texts) {
            // A tree may not use up the depth that open groups need.
            let node = if self.depth > 0 && self.builder.depth(tree) > SHALLOW {
                let rule = self.builder.declare("words");
                self.builder.define(rule, tree);
                self.builder.rule(rule)
            } else {
                tree
            };
            nodes.push(node);
        }
        self.builder.alternatives(nodes)
    }

    fn node(&mut self, part: Part) -> NodeId {
        match part {
            Part::Text(text) => self.builder.literal(text.as_bytes()),
            Part::Node(node) => node,
        }
    }

    /// Items up to `|`, the end of a group, or the end of the line outside of groups. An alternative may be empty where
    /// another one shows that it is meant: before `|`, and last in a group.
    fn sequence(&mut self, first: bool) -> Result<Part, Stopped> {
        let mut parts = Vec::new();
        loop {
            self.text.skip_blanks(self.depth > 0);
            match self.text.peek() {
                None | Some('|' | ')') => break,
                Some('\n') => {
                    // The rule goes on if the next line does not begin another one.
                    let before = self.text.position();
                    self.text.skip_blanks(true);
                    if self.text.peek().is_none() || self.text.at_rule() || self.text.peek() == Some('|') {
                        self.text.back_to(before);
                        break;
                    }
                }
                Some(_) => {
                    let item = self.item()?;
                    parts.push(self.repeated(item)?);
                }
            }
        }
        let meant = match self.text.peek() {
            Some('|') => true,
            Some(')') => !first && self.depth > 0,
            _ => false,
        };
        if parts.is_empty() && !meant {
            return self.unexpected("a rule name, a literal, a class or \"(\"");
        }
        if parts.iter().all(|part| matches!(part, Part::Text(_))) {
            let texts =
                parts.into_iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
            return Ok(Part::Text(texts.collect()));
        }
        let nodes = parts.into_iter().map(|part| self.node(part)).collect();
        Ok(Part::Node(self.builder.sequence(nodes)))
    }

    fn item(&mut self) -> Result<Part, Stopped> {
        if self.text.peek() == Some('"') { self.literal().map(Part::Text) } else { self.other_item().map(Part::Node) }
    }

    /// An item that is no literal.
    fn other_item(&mut self) -> Result<NodeId, Stopped> {
        let start = self.text.position();
        match self.text.peek() {
            Some('[') => self.class(),
            Some('(') => self.group(),
            Some('.') => {
                self.text.take();
                Ok(self.builder.characters(&[(0, LAST)]))
            }
            Some('<') => {
                let special = self.special()?;
                Ok(self.builder.special(special))
            }
            Some('!') => {
                self.text.take();
                if self.text.peek() != Some('<') {
                    return self.unexpected("a token such as <name> or <[id]> after `!`");
                }
                let special = Special::Not(Box::new(self.special()?));
                Ok(self.builder.special(special))
            }
            Some(c) if is_name(c) => {
                let name = self.text.take_while(is_name);
                let rule = self.named(name, start);
                Ok(self.builder.rule(rule))
            }
            _ => self.unexpected("a rule name, a literal, a class or \"(\""),
        }
    }

    fn group(&mut self) -> Result<NodeId, Stopped> {
        let start = self.text.position();
        self.text.take();
        self.depth += 1;
        if self.depth > limits::DEPTH.most {
            let place = self.text.place(start);
            self.faults.push(Fault::limit(limits::DEPTH, self.depth).at(place));
            return Err(Stopped);
        }
        self.text.skip_blanks(true);
        let body = self.alternatives()?;
        self.text.skip_blanks(true);
        if !self.text.take_if(")") {
            let place = self.text.place(start);
            let (line, column) = (place.line, place.column);
            return self.unexpected(&format!("`)` for the group that begins at {line}:{column}"));
        }
        self.depth -= 1;
        Ok(body)
    }

    /// Signs of repetition behind an item.
    fn repeated(&mut self, item: Part) -> Result<Part, Stopped> {
        let mut item = item;
        loop {
            let position = self.text.position();
            self.text.skip_blanks(self.depth > 0);
            let (least, most) = match self.text.peek() {
                Some('{') => self.counts()?,
                Some(sign @ ('*' | '+' | '?')) => {
                    self.text.take();
                    (u32::from(sign == '+'), (sign == '?').then_some(1))
                }
                _ => {
                    self.text.back_to(position);
                    return Ok(item);
                }
            };
            let body = self.node(item);
            item = Part::Node(self.builder.repeat(body, least, most));
        }
    }

    /// `{m}`, `{m,}`, `{,n}` or `{m,n}`.
    fn counts(&mut self) -> Result<(u32, Option<u32>), Stopped> {
        let start = self.text.position();
        self.text.take();
        self.text.skip_blanks(true);
        let least = self.number()?;
        self.text.skip_blanks(true);
        let counts = if self.text.take_if(",") {
            self.text.skip_blanks(true);
            let most = self.number()?;
            if least.is_none() && most.is_none() {
                return self.unexpected("a number in the braces");
            }
            (least.unwrap_or(0), most)
        } else {
            match least {
                Some(count) => (count, Some(count)),
                None => return self.unexpected("a number in the braces"),
            }
        };
        self.text.skip_blanks(true);
        if !self.text.take_if("}") {
            return self.unexpected("`}`");
        }
        match counts {
            (least, Some(most)) if most < least => self.fail(
                start,
                format!("{{{least},{most}}} has its bounds the wrong way round"),
                "the least comes first",
            ),
            counts => Ok(counts),
        }
    }

    fn number(&mut self) -> Result<Option<u32>, Stopped> {
        let start = self.text.position();
        let digits = self.text.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Ok(None);
        }
        match digits.parse::<u32>() {
            Ok(number) if number as usize <= limits::REPETITIONS.most => Ok(Some(number)),
            _ => {
                let place = self.text.place(start);
                self.faults.push(Fault::limit(limits::REPETITIONS, digits).at(place));
                Err(Stopped)
            }
        }
    }

    fn literal(&mut self) -> Result<String, Stopped> {
        let start = self.text.position();
        self.text.take();
        let mut content = String::new();
        loop {
            match self.text.peek() {
                None | Some('\n') => {
                    let why = "a literal ends with `\"` on the line that it begins on";
                    return self.fail(start, "the literal is not closed", why);
                }
                Some('"') => {
                    self.text.take();
                    return Ok(content);
                }
                Some(_) => {
                    let position = self.text.position();
                    let code = self.character()?;
                    match char::from_u32(code) {
                        Some(c) => content.push(c),
                        None => {
                            return self.fail(position, "a surrogate is no character", "write the code point itself");
                        }
                    }
                }
            }
        }
    }

    /// One character of a literal or a class, escapes resolved.
    fn character(&mut self) -> Result<u32, Stopped> {
        let start = self.text.position();
        let Some(first) = self.text.take() else { return self.unexpected("a character") };
        if first != '\\' {
            return Ok(u32::from(first));
        }
        match self.text.take() {
            Some('n') => Ok(0x0A),
            Some('r') => Ok(0x0D),
            Some('t') => Ok(0x09),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => Ok(u32::from(c)),
            Some('x') => self.hexadecimal(start, 2),
            Some('u') => self.hexadecimal(start, 4),
            Some('U') => self.hexadecimal(start, 8),
            Some('\r' | '\n') | None => {
                self.text.back_to(start + 1);
                self.unexpected("a character after `\\`")
            }
            Some(c) => {
                let why = "known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH; classes such as [0-9] stand \
                           for shorthands";
                self.fail(start, format!("the escape \\{c} is not known"), why)
            }
        }
    }

    fn hexadecimal(&mut self, start: usize, digits: usize) -> Result<u32, Stopped> {
        let text: String = self.text.rest().chars().take(digits).take_while(char::is_ascii_hexdigit).collect();
        if text.len() != digits {
            return self.fail(
                start,
                "the numeric escape is too short",
                format!("{digits} hexadecimal digits are needed"),
            );
        }
        for _ in 0..digits {
            self.text.take();
        }
        match u32::from_str_radix(&text, 16) {
            Ok(code) if code <= LAST => Ok(code),
            _ => self.fail(start, "the numeric escape is beyond the last code point", "U+10FFFF is the last one"),
        }
    }

    fn class(&mut self) -> Result<NodeId, Stopped> {
        let start = self.text.position();
        self.text.take();
        let negated = self.text.take_if("^");
        let mut ranges = Vec::new();
        while !self.text.take_if("]") {
            if self.text.peek().is_none_or(|c| c == '\n') {
                return self.fail(
                    start,
                    "the class is not closed",
                    "a class ends with `]` on the line that it begins on",
                );
            }
            let position = self.text.position();
            let low = self.character()?;
            let mut after = self.text.rest().chars();
            let range = after.next() == Some('-') && after.next().is_some_and(|c| !matches!(c, ']' | '\n' | '\r'));
            if !range {
                ranges.push((low, low));
                continue;
            }
            self.text.take();
            let high = self.character()?;
            if high < low {
                return self.fail(position, "the range runs backwards", "the smaller code point comes first");
            }
            ranges.push((low, high));
        }
        let ranges = if negated { utf8::complement(ranges) } else { ranges };
        Ok(self.builder.characters(&ranges))
    }

    /// `<name>` or `<[id]>`.
    fn special(&mut self) -> Result<Special, Stopped> {
        let start = self.text.position();
        let rest = self.text.rest();
        let end = rest.find(['>', '\n']).filter(|end| rest[*end..].starts_with('>'));
        let Some(end) = end else {
            return self.fail(start, "the token is not closed", "a token is written <name> or <[id]>");
        };
        let whole = &rest[..=end];
        self.text.take_while(|c| c != '>');
        self.text.take();
        match whole.strip_prefix("<[").and_then(|rest| rest.strip_suffix("]>")) {
            Some(digits) => match digits.parse() {
                Ok(id) => Ok(Special::Id(id)),
                Err(_) => self.fail(start, format!("{whole} is no token"), "an id is a number"),
            },
            None => Ok(Special::Text(whole.to_owned())),
        }
    }

    /// Names that are used and not defined; `root`.
    fn check_names(mut self) -> Result<RuleId, GrammarError> {
        for name in &self.order {
            let Some(Known { defined: None, used, .. }) = self.rules.get(name) else { continue };
            if self.faults.len() >= limits::FAULTS {
                break;
            }
            let place = self.text.place(*used);
            let like = self.order.iter().find(|other| **other != *name && other.eq_ignore_ascii_case(name));
            let mut fault = Fault::new(FaultCode::Syntax, format!("the rule `{name}` is not defined")).at(place);
            if let Some(like) = like {
                fault = fault.why("names are case-sensitive").fix(format!("did you mean `{like}`?"));
            }
            self.faults.push(fault);
        }
        let root = self.rules.get("root").filter(|known| known.defined.is_some()).map(|known| known.rule);
        let broken_root = self.rules.contains_key("root");
        if root.is_none() && !broken_root {
            let mut fault = Fault::new(FaultCode::Syntax, "there is no rule `root`").why("a grammar starts with it");
            if let Some(like) = self.order.iter().find(|name| name.eq_ignore_ascii_case("root")) {
                fault = fault.why("names are case-sensitive").fix(format!("rename `{like}` to `root`"));
            }
            self.faults.push(fault);
        }
        self.check_ends();
        self.faults.sort_by_key(|fault| fault.place.as_ref().map_or((0, 0), |place| (place.line, place.column)));
        GrammarError::from_faults(self.faults)?;
        root.ok_or_else(|| Fault::new(FaultCode::Syntax, "there is no rule `root`").into())
    }

    /// Rules that can never end, those that `root` does not lead to included.
    fn check_ends(&mut self) {
        let names: HashMap<RuleId, &str> = self.rules.iter().map(|(name, known)| (known.rule, *name)).collect();
        for rule in self.builder.endless() {
            if self.faults.len() >= limits::FAULTS {
                break;
            }
            let Some(name) = names.get(&rule) else { continue };
            let Some(start) = self.rules.get(name).and_then(|known| known.defined) else { continue };
            let place = self.text.place(start);
            self.faults.push(endless(name).at(place));
        }
    }
}
