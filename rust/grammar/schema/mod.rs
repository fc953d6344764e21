//! JSON Schema: which JSON texts a schema allows, as a grammar.
//!
//! Reads draft 2020-12 and the spellings of draft-07. Enforced are `type`, `enum`, `const`, properties with `required` and
//! `additionalProperties`, `items`/`prefixItems` with bounds on their number, lengths, `pattern` and the formats of a
//! table, bounds of numbers, and `allOf`, `anyOf`, `oneOf` and local `$ref` around them. What a grammar fixes beyond the
//! schema: properties come in their order of definition; objects with `properties` have no further ones unless
//! `additionalProperties` allows them; without `type` the keywords that are there imply it.
//!
//! Refuses every other standard keyword, by name and place, unless its value asks for nothing; with
//! [`SchemaOptions::lenient`] it is left out and noted. Must hold: a text of the grammar is a value of the schema. Where that
//! cannot be made sure, the schema is refused.
//!
//! Schemas are worked off from a queue, one rule for each object and array, so that neither nesting nor recursion in a schema
//! is recursion here.

mod array;
mod bare;
mod decimal;
mod disjoint;
mod format;
mod keys;
mod keywords;
mod lists;
mod merge;
mod number;
mod object;
mod read;
mod reference;
mod string;
#[cfg(test)]
mod tests;
mod types;
mod validate;
mod value;

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use crate::builder::{Builder, NodeId};
use crate::bytes::ByteSet;
use crate::error::{Fault, FaultCode, GrammarError, shown};
use crate::gbnf;
use crate::limits;
use crate::program::{Program, RuleId};
use crate::words;

use keywords::{Role, role};
use merge::{Flat, Key};
pub use read::read;
use reference::{Document, Located};
use string::{Quoted, StringKey};
pub use types::Types;
use validate::Verdict;
use value::Signs;

/// White space between the signs of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whitespace {
    /// None.
    #[default]
    Compact,
    /// A space behind `:` and `,`; a line break with an indent behind `,` and inside of brackets.
    Flexible,
}

/// How a schema is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchemaOptions {
    /// Whether what cannot be enforced is ignored and noted.
    pub lenient: bool,
    /// White space between the signs.
    pub whitespace: Whitespace,
}

/// How much a note matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// So it is with most schemas.
    Usual,
    /// The author may have meant something else.
    Remark,
    /// What was asked for is not enforced.
    Ignored,
}

impl Weight {
    /// `usual`, `remark`, `ignored`.
    #[must_use]
    pub fn slug(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Remark => "remark",
            Self::Ignored => "ignored",
        }
    }
}

/// Something about a schema that its author should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// JSON pointer to the place, such as `#/properties/tag`.
    pub pointer: String,
    /// What is the case there.
    pub text: String,
    /// How much it matters.
    pub weight: Weight,
}

/// A schema as a program.
#[derive(Debug)]
pub struct CompiledSchema {
    /// What the texts are matched with.
    pub program: Program,
    /// What the author should know.
    pub notes: Vec<Note>,
}

/// What kind of value a schema allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// The types.
    pub types: Types,
    /// The strings, when only listed ones are allowed.
    pub strings: Option<Vec<String>>,
}

/// Compiles a schema that is the whole document.
///
/// # Errors
/// Everything that is wrong with it or not supported, in one run.
pub fn compile(text: &str, options: &SchemaOptions) -> Result<CompiledSchema, GrammarError> {
    let mut notes = Vec::new();
    let (builder, start) = assemble(text, options, &mut notes)?;
    Ok(CompiledSchema { program: builder.finish(start)?, notes })
}

/// A schema that is the whole document, as GBNF text.
///
/// # Errors
/// What is wrong with it or not supported, or a text that is too long.
pub fn to_gbnf(text: &str, options: &SchemaOptions) -> Result<String, GrammarError> {
    let (builder, start) = assemble(text, options, &mut Vec::new())?;
    gbnf::write(&builder, start)
}

fn assemble(text: &str, options: &SchemaOptions, notes: &mut Vec<Note>) -> Result<(Builder, RuleId), GrammarError> {
    let document = read(text)?;
    let mut builder = Builder::new();
    let body = build(&document, "#", &mut builder, options, notes)?;
    let start = builder.declare("#");
    builder.define(start, body);
    Ok((builder, start))
}

/// Builds the schema at a place of a document.
///
/// # Errors
/// Everything that is wrong with it or not supported. The builder is then of no more use.
pub fn build(
    document: &Value,
    pointer: &str,
    builder: &mut Builder,
    options: &SchemaOptions,
    notes: &mut Vec<Note>,
) -> Result<NodeId, GrammarError> {
    check_depth(document)?;
    let mut compiler = Compiler::new(document, builder, options);
    let node = compiler.build(pointer);
    notes.extend(compiler.finish()?);
    node.ok_or_else(|| dead_end(pointer).into())
}

/// What kind of value the schema at a place of a document allows.
///
/// # Errors
/// Everything that is wrong with it.
pub fn kinds(document: &Value, pointer: &str, options: &SchemaOptions) -> Result<Kinds, GrammarError> {
    check_depth(document)?;
    let mut builder = Builder::new();
    let mut compiler = Compiler::new(document, &mut builder, options);
    let kinds = compiler.kinds(pointer);
    compiler.finish()?;
    kinds.ok_or_else(|| dead_end(pointer).into())
}

/// Refuses what lies deeper than a text that [`read`] takes.
fn check_depth(document: &Value) -> Result<(), GrammarError> {
    let depth = read::depth(document);
    if depth > limits::DEPTH.most { Err(Fault::limit(limits::DEPTH, depth).into()) } else { Ok(()) }
}

/// The JSON pointer of a part of a document.
pub(crate) fn below(pointer: &str, part: &str) -> String {
    reference::below(pointer, part).to_string()
}

fn dead_end(pointer: &str) -> Fault {
    Fault { pointer: Some(pointer.to_owned()), ..Fault::new(FaultCode::DeadEnd, "no value fits the schema") }
}

/// Of places that can have no value only the innermost ones, which are the reason for the others.
fn innermost<'t>(names: &[&'t str]) -> Vec<&'t str> {
    let places: Vec<&str> = names.iter().copied().filter(|name| name.starts_with('#')).collect();
    let is_outer =
        |place: &str| places.iter().any(|other| other.strip_prefix(place).is_some_and(|rest| rest.starts_with('/')));
    let mut kept: Vec<&str> = places.iter().copied().filter(|place| !is_outer(place)).collect();
    kept.dedup();
    kept
}

/// Builds schemas of one document into one builder; rules for the same place are shared.
pub struct Compiler<'a, 'b> {
    document: Document<'a>,
    old: bool,
    builder: &'b mut Builder,
    options: SchemaOptions,
    notes: Vec<Note>,
    faults: Vec<Fault>,
    /// Why objects have no value; no fault where another alternative has one.
    reasons: Vec<Fault>,
    /// What was said already.
    told: HashSet<(String, String)>,
    told_closed: bool,
    /// Above zero while something is only tried: nothing is said then.
    muted: usize,
    /// Whether something would have been said.
    doubt: bool,
    steps: usize,
    known: HashMap<Key, Option<NodeId>>,
    strings: HashMap<StringKey, NodeId>,
    queue: VecDeque<(RuleId, Flat<'a>, Types)>,
    signs: Signs,
    quoted: Quoted,
    any_value: Option<RuleId>,
}

impl<'a, 'b> Compiler<'a, 'b> {
    /// A compiler for the schemas of a document, which is no deeper than [`read`] allows.
    pub fn new(document: &'a Value, builder: &'b mut Builder, options: &SchemaOptions) -> Self {
        builder.prune();
        let signs = Signs::new(builder, options.whitespace);
        let document = Document::new(document);
        Self {
            old: document.is_old(),
            document,
            builder,
            options: *options,
            notes: Vec::new(),
            faults: Vec::new(),
            reasons: Vec::new(),
            told: HashSet::new(),
            told_closed: false,
            muted: 0,
            doubt: false,
            steps: 0,
            known: HashMap::new(),
            strings: HashMap::new(),
            queue: VecDeque::new(),
            signs,
            quoted: Quoted::default(),
            any_value: None,
        }
    }

    /// Keeps a text of ASCII characters out of the strings and keys that are built from now on: they can hold it escaped.
    pub fn avoid(&mut self, text: &'static str) {
        self.quoted = Quoted::avoiding(text);
    }

    /// The values of the schema at a place; `None` when there are none, or when something is wrong with it.
    pub fn build(&mut self, pointer: &str) -> Option<NodeId> {
        self.build_only(pointer, Types::ALL)
    }

    /// The values of these types of the schema at a place.
    pub fn build_only(&mut self, pointer: &str, types: Types) -> Option<NodeId> {
        let schema = self.located(pointer)?;
        let node = self.child_of(&[schema], types);
        while let Some((rule, flat, types)) = self.queue.pop_front() {
            if self.builder.fault().is_some() {
                break;
            }
            let parts = self.parts(&flat, types);
            let body =
                if parts.is_empty() { self.builder.bytes(ByteSet::EMPTY) } else { self.builder.alternatives(parts) };
            self.builder.define(rule, body);
        }
        self.settle(node, pointer)
    }

    /// Says what fits nothing: all of it is a fault, parts of it are left out.
    fn settle(&mut self, node: Option<NodeId>, pointer: &str) -> Option<NodeId> {
        // Behind a limit nothing is as it was meant: `finish` names it.
        if self.builder.fault().is_some() {
            return None;
        }
        let reasons = std::mem::take(&mut self.reasons);
        let (names, dead) = node.map_or((Vec::new(), true), |node| self.builder.dead_rules(node));
        let places: Vec<String> = innermost(&names).into_iter().map(str::to_owned).collect();
        if !dead {
            places.iter().for_each(|place| self.note(place, "no value fits; it is left out"));
            return node;
        }
        for reason in &reasons {
            let place = reason.pointer.clone().unwrap_or_default();
            self.fault(reason.clone(), &place);
        }
        if self.faults.is_empty() {
            let own = vec![pointer.to_owned()];
            for place in if places.is_empty() { &own } else { &places } {
                self.fault(dead_end(place), place);
            }
        }
        None
    }

    /// What kind of value the schema at a place allows; `None` when none.
    pub fn kinds(&mut self, pointer: &str) -> Option<Kinds> {
        let schema = self.located(pointer)?;
        let mut kinds = Kinds { types: Types::NONE, strings: Some(Vec::new()) };
        for flat in self.expand(&[schema]) {
            let listed = self.listed(&flat);
            match (&listed, &mut kinds.strings) {
                (Some(values), Some(strings)) => {
                    strings.extend(values.iter().filter_map(|value| value.as_str()).map(str::to_owned));
                }
                (None, _) if self.resolved(&flat).meets(Types::STRING) => kinds.strings = None,
                _ => {}
            }
            let types = match listed {
                Some(values) => values.into_iter().fold(Types::NONE, |types, value| types.or(Types::of(value))),
                None => self.resolved(&flat),
            };
            kinds.types = kinds.types.or(types);
        }
        kinds.strings = kinds.strings.filter(|_| kinds.types.meets(Types::STRING));
        (!kinds.types.is_empty()).then_some(kinds)
    }

    /// Ends the work on the document.
    ///
    /// # Errors
    /// Everything that was wrong.
    pub fn finish(self) -> Result<Vec<Note>, GrammarError> {
        if let Some(fault) = self.builder.fault() {
            return Err(fault.clone().into());
        }
        GrammarError::from_faults(self.faults).map(|()| self.notes)
    }

    fn located(&mut self, pointer: &str) -> Option<Located<'a>> {
        if !self.faults.is_empty() {
            return None;
        }
        let found = self.document.at(pointer);
        if found.is_none() {
            self.fault(Fault::new(FaultCode::Syntax, "there is no schema"), pointer);
        }
        found
    }

    /// The values of schemas that must all hold; `None` when there are none.
    fn child(&mut self, schemas: &[Located<'a>]) -> Option<NodeId> {
        self.child_of(schemas, Types::ALL)
    }

    fn child_of(&mut self, schemas: &[Located<'a>], types: Types) -> Option<NodeId> {
        let mut nodes = Vec::new();
        for mut flat in self.expand(schemas) {
            flat.types = flat.types.and(types);
            nodes.extend(self.flat(flat));
        }
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() { None } else { Some(self.builder.alternatives(nodes)) }
    }

    /// The values of one alternative.
    fn flat(&mut self, flat: Flat<'a>) -> Option<NodeId> {
        if flat.parts.is_empty() && flat.lists.is_empty() && flat.types == Types::ALL {
            return Some(self.any_value());
        }
        let key = flat.key();
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        if !self.spend(10) {
            return None;
        }
        let types = self.resolved(&flat);
        self.check(&flat, types);
        let node = if self.listed_here(&flat) {
            let values = self.listed(&flat).unwrap_or_default();
            words::one_of(self.builder, values.into_iter().map(|value| self.quoted.written(value)).collect())
        } else if types.meets(Types::OBJECT.or(Types::ARRAY)) {
            let rule = self.builder.declare(&flat.pointer());
            let node = self.builder.rule(rule);
            self.known.insert(key, Some(node));
            self.queue.push_back((rule, flat, types));
            return Some(node);
        } else {
            let parts = self.parts(&flat, types);
            if parts.is_empty() { None } else { Some(self.builder.alternatives(parts)) }
        };
        // A plain type is short; everything else is written once.
        let plain =
            flat.lists.is_empty() && flat.parts.iter().all(|part| part.map.keys().all(|keyword| !restricts(keyword)));
        let node = node.map(|node| if plain { node } else { self.hidden(&flat.pointer(), node) });
        self.known.insert(key, node);
        node
    }

    /// One expression for each type.
    fn parts(&mut self, flat: &Flat<'a>, types: Types) -> Vec<NodeId> {
        let mut parts = Vec::new();
        if types.meets(Types::OBJECT) {
            parts.extend(self.object(flat));
        }
        if types.meets(Types::ARRAY) {
            parts.extend(self.array(flat));
        }
        if types.meets(Types::STRING) {
            parts.extend(self.string(flat));
        }
        if types.meets(Types::NUMBER) {
            let range = self.range(flat);
            let whole = self.only_whole(flat, types);
            parts.extend(number::build(self.builder, &range, whole));
        }
        for (own, words) in [(Types::BOOLEAN, &["true", "false"][..]), (Types::NULL, &["null"])] {
            if types.meets(own) {
                parts.extend(words.iter().map(|word| self.builder.literal(word.as_bytes())));
            }
        }
        parts
    }

    /// The types that are built: those of `type`, or those that the keywords imply.
    fn resolved(&self, flat: &Flat<'a>) -> Types {
        if flat.typed || self.listed_here(flat) {
            return flat.types;
        }
        let mut implied = Types::NONE;
        for part in &flat.parts {
            for (keyword, value) in part.map {
                implied = implied.or(match role(keyword) {
                    Some(Role::Enforced(_)) if keyword == "format" && value.as_str().is_some_and(format::is_known) => {
                        Types::STRING
                    }
                    Some(Role::Enforced(types)) => types,
                    Some(Role::Refused(types, asks_nothing))
                        if types != Types::ALL && !asks_nothing(part.map, value) =>
                    {
                        types
                    }
                    _ => Types::NONE,
                });
            }
        }
        if implied.is_empty() { flat.types } else { flat.types.and(implied) }
    }

    /// Refuses what cannot be enforced for values of these types.
    fn check(&mut self, flat: &Flat<'a>, types: Types) {
        for part in &flat.parts {
            for (keyword, value) in part.map {
                if let Some(Role::Refused(own, asks_nothing)) = role(keyword)
                    && own.meets(types)
                    && !asks_nothing(part.map, value)
                {
                    self.refuse(&part.pointer, keyword, "a grammar cannot follow it");
                }
            }
        }
    }

    fn listed_here(&self, flat: &Flat<'a>) -> bool {
        !flat.lists.is_empty()
            || flat.parts.iter().any(|part| part.map.contains_key("enum") || part.map.contains_key("const"))
    }

    /// The values of `enum` or `const` that the other keywords leave; `None` without these.
    fn listed(&mut self, flat: &Flat<'a>) -> Option<Vec<&'a Value>> {
        for (part, value) in flat.values("enum") {
            let place = below(&part.pointer, "enum");
            match value.as_array() {
                Some(list) if list.is_empty() => {
                    let fault = Fault::new(FaultCode::DeadEnd, "the `enum` is empty: no value fits");
                    self.fault(fault.fix("list at least one value"), &place);
                }
                Some(_) => {}
                None => self.malformed(&place, "`enum`", "a list of values"),
            }
        }
        let mut kept: Vec<&'a Value> = Vec::new();
        for value in flat.listed()? {
            match self.verdict(value, std::slice::from_ref(flat), 0) {
                Verdict::Fails => {}
                Verdict::Fits => kept.push(value),
                Verdict::Unknown => {
                    let keyword = if flat.values("enum").next().is_some() { "enum" } else { "const" };
                    self.refuse(&flat.pointer(), keyword, "whether its values fit the other keywords is not decided");
                    kept.extend(self.options.lenient.then_some(value));
                }
            }
        }
        let mut seen = HashSet::new();
        kept.retain(|value| seen.insert(value.to_string()));
        Some(kept)
    }

    /// Counts work; false when there was too much.
    fn spend(&mut self, steps: usize) -> bool {
        self.steps = self.steps.saturating_add(steps);
        let limit = limits::SCHEMA_STEPS;
        if self.steps > limit.most {
            // Not a word of what was only tried: the whole ends here.
            let muted = std::mem::take(&mut self.muted);
            self.fault(Fault::limit(limit, "more"), "#");
            (self.muted, self.doubt) = (muted, true);
        }
        self.steps <= limit.most
    }

    /// Tries to prove something without a word; false when something would have had to be said.
    fn quietly(&mut self, prove: impl FnOnce(&mut Self) -> bool) -> bool {
        let before = std::mem::replace(&mut self.doubt, false);
        self.muted += 1;
        let proven = prove(self);
        self.muted -= 1;
        let doubt = std::mem::replace(&mut self.doubt, before);
        proven && !doubt
    }

    fn fault(&mut self, fault: Fault, pointer: &str) {
        if self.muted > 0 {
            self.doubt = true;
        } else if self.told.insert((pointer.to_owned(), fault.what.clone())) {
            self.faults.push(Fault { pointer: Some(pointer.to_owned()), ..fault });
        }
    }

    fn malformed(&mut self, pointer: &str, what: &str, expected: &str) {
        let fault = Fault::new(FaultCode::Syntax, format!("{what} must be {expected}"));
        self.fault(fault, pointer);
    }

    fn unsupported(&mut self, pointer: &str, keyword: &str, why: &str) {
        let fault =
            Fault::new(FaultCode::Unsupported, format!("`{keyword}` is not supported here")).why(why).fix(IGNORE);
        self.fault(fault, pointer);
    }

    fn note(&mut self, pointer: &str, text: &str) {
        self.note_of(Weight::Remark, pointer, text);
    }

    fn note_of(&mut self, weight: Weight, pointer: &str, text: &str) {
        if self.muted == 0
            && self.notes.len() < limits::FAULTS
            && self.told.insert((pointer.to_owned(), text.to_owned()))
        {
            self.notes.push(Note { pointer: shown(pointer), text: shown(text), weight });
        }
    }
}

/// What can be done about a keyword that cannot be enforced.
pub(crate) const IGNORE: &str = "change the schema, or ignore the keyword with --schema-lenient";

/// Whether a keyword makes more of a schema than its type.
fn restricts(keyword: &str) -> bool {
    keyword != "type" && matches!(role(keyword), Some(Role::Enforced(_)))
}
