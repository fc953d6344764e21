//! From schemas that hold together to alternatives without combinators.
//!
//! `$ref`, `allOf`, `anyOf` and `oneOf` are dissolved: what is left are [`Flat`] alternatives, each a list of schema objects
//! that must all hold, in the order of the text. Which keywords mean what stays with the readers of the parts. Must hold: a
//! value fits the schemas exactly when it fits one of the alternatives (for `oneOf`: when its branches exclude each other,
//! which is proven in [`super::disjoint`] or refused).

use std::rc::Rc;

use serde_json::{Map, Value};

use super::Compiler;
use super::keywords::{Role, role};
use super::lists::List;
use super::reference::{Located, Miss, below};
use super::types::Types;
use crate::error::{Fault, FaultCode};
use crate::limits;

/// A schema object without its combinators.
#[derive(Clone, Debug)]
pub(super) struct Part<'a> {
    pub(super) map: &'a Map<String, Value>,
    pub(super) pointer: Rc<str>,
}

/// Schema objects that must all hold.
#[derive(Clone, Debug)]
pub(super) struct Flat<'a> {
    pub(super) parts: Vec<Part<'a>>,
    /// What the `type` keywords leave.
    pub(super) types: Types,
    /// Whether there is a `type`.
    pub(super) typed: bool,
    /// Which branch of which `oneOf` this is.
    pub(super) choices: Vec<(Rc<str>, usize)>,
    /// Lists of which the value must be one, beside those of the parts.
    pub(super) lists: Vec<Rc<List<'a>>>,
}

/// The branches of `anyOf` or `oneOf`, each with its number.
#[derive(Clone)]
pub(super) struct Branches<'a> {
    pub(super) schemas: Vec<(usize, Located<'a>)>,
    /// Those that only list values, under the number of the first.
    pub(super) list: Option<(usize, Rc<List<'a>>)>,
}

/// What a rule is kept under: the parts in their order, and the types.
pub(super) type Key = (Vec<Rc<str>>, Types);

impl<'a> Flat<'a> {
    pub(super) fn key(&self) -> Key {
        let parts = self.parts.iter().map(|part| Rc::clone(&part.pointer));
        // No place of a schema begins like this.
        let lists = self.lists.iter().map(|list| format!("list {}", list.place).into());
        (parts.chain(lists).collect(), self.types)
    }

    /// The values of a keyword and who has them.
    pub(super) fn values(&self, keyword: &str) -> impl Iterator<Item = (&Part<'a>, &'a Value)> {
        self.parts.iter().filter_map(move |part| part.map.get(keyword).map(|value| (part, value)))
    }

    /// The place to name in messages.
    pub(super) fn pointer(&self) -> Rc<str> {
        let list = || self.lists.first().map(|list| Rc::clone(&list.place));
        self.parts.first().map(|part| Rc::clone(&part.pointer)).or_else(list).unwrap_or_else(|| "#".into())
    }

    /// The values of the first `enum`, `const` or list.
    pub(super) fn listed(&self) -> Option<Vec<&'a Value>> {
        let own = self.parts.iter().find_map(|part| match (part.map.get("const"), part.map.get("enum")) {
            (Some(value), _) => Some(vec![value]),
            (None, Some(Value::Array(values))) => Some(values.iter().collect()),
            _ => None,
        });
        own.or_else(|| self.lists.first().map(|list| list.values.clone()))
    }
}

/// The places that a schema was reached through without going into a value.
struct Chain {
    pointer: Rc<str>,
    length: usize,
    before: Option<Rc<Chain>>,
}

#[derive(Clone)]
enum Work<'a> {
    Schema(Located<'a>, Option<Rc<Chain>>),
    Own(Part<'a>),
    List(Rc<List<'a>>),
    Choice { place: Rc<str>, branches: Branches<'a>, exclusive: bool, chain: Option<Rc<Chain>> },
}

#[derive(Clone)]
struct Branch<'a> {
    flat: Flat<'a>,
    /// What is still to be merged, the next at the end.
    pending: Vec<Work<'a>>,
}

impl<'a> Compiler<'a, '_> {
    /// The alternatives of schemas that must all hold; none when no value can fit.
    pub(super) fn expand(&mut self, schemas: &[Located<'a>]) -> Vec<Flat<'a>> {
        let flat = Flat { parts: Vec::new(), types: Types::ALL, typed: false, choices: Vec::new(), lists: Vec::new() };
        let pending = schemas.iter().rev().map(|schema| Work::Schema(schema.clone(), None)).collect();
        let mut open = vec![Branch { flat, pending }];
        let mut done = Vec::new();
        while let Some(branch) = open.pop() {
            let limit = limits::BRANCHES;
            if done.len() + open.len() >= limit.most {
                self.fault(
                    Fault::limit(limit, done.len() + open.len()),
                    schemas.first().map_or("#", |first| &first.pointer),
                );
                return Vec::new();
            }
            self.advance(branch, &mut open, &mut done);
        }
        self.check_exclusive(&done);
        done
    }

    fn advance(&mut self, mut branch: Branch<'a>, open: &mut Vec<Branch<'a>>, done: &mut Vec<Flat<'a>>) {
        while let Some(work) = branch.pending.pop() {
            // What copying and comparing costs; names, and with them places, may be long.
            let cost = match &work {
                Work::Schema(schema, _) => schema.pointer.len() / 64,
                Work::Own(_) => branch.flat.parts.len(),
                Work::List(_) => branch.flat.lists.len(),
                Work::Choice { branches, .. } => {
                    branches.schemas.len().saturating_mul(1 + branch.pending.len() + branch.flat.parts.len())
                }
            };
            if !self.spend(1 + cost) {
                return;
            }
            match work {
                Work::Schema(schema, chain) => {
                    let Some(works) = self.unfold(&schema, chain) else { return };
                    branch.pending.extend(works.into_iter().rev());
                }
                Work::Own(part) => {
                    if !self.add(&mut branch.flat, part) {
                        return;
                    }
                }
                Work::List(list) => {
                    if branch.flat.lists.iter().all(|known| known.place != list.place) {
                        branch.flat.lists.push(list);
                    }
                }
                Work::Choice { place, branches, exclusive, chain } => {
                    let schemas = branches.schemas.into_iter();
                    let mut works: Vec<(usize, Work<'a>)> =
                        schemas.map(|(index, schema)| (index, Work::Schema(schema, chain.clone()))).collect();
                    works.extend(branches.list.map(|(index, list)| (index, Work::List(list))));
                    works.sort_by_key(|(index, _)| *index);
                    for (index, work) in works.into_iter().rev() {
                        let mut next = branch.clone();
                        if exclusive {
                            next.flat.choices.push((Rc::clone(&place), index));
                        }
                        next.pending.push(work);
                        open.push(next);
                    }
                    return;
                }
            }
        }
        done.push(branch.flat);
    }

    /// What a schema consists of; `None` when it fits nothing or is faulty.
    fn unfold(&mut self, schema: &Located<'a>, chain: Option<Rc<Chain>>) -> Option<Vec<Work<'a>>> {
        let pointer = &schema.pointer;
        let map = match schema.value {
            Value::Bool(true) => return Some(Vec::new()),
            Value::Bool(false) => return None,
            Value::Object(map) => map,
            _ => {
                self.malformed(pointer, "a schema", "an object, `true` or `false`");
                return None;
            }
        };
        let chain = self.longer(chain, pointer)?;
        let own = Work::Own(Part { map, pointer: Rc::clone(pointer) });
        // Properties keep the place that they have in the text among those of the schemas brought in.
        let own_place = map.contains_key("properties").then_some("properties");
        let mut works = Vec::new();
        for (keyword, value) in map {
            let place = below(pointer, keyword);
            match keyword.as_str() {
                "$ref" => works.push(Work::Schema(self.target(value, pointer)?, chain.clone())),
                "allOf" | "anyOf" | "oneOf" => {
                    let Some(list) = value.as_array().filter(|list| !list.is_empty()) else {
                        self.malformed(&place, keyword, "a list of schemas with at least one");
                        return None;
                    };
                    let located = list.iter().enumerate();
                    let branches: Vec<_> =
                        located.map(|(at, value)| Located { value, pointer: below(&place, &at.to_string()) }).collect();
                    if keyword == "allOf" {
                        works.extend(branches.into_iter().map(|schema| Work::Schema(schema, chain.clone())));
                    } else {
                        let exclusive = keyword == "oneOf" && branches.len() > 1;
                        let branches = self.branches(&place, branches, exclusive);
                        works.push(Work::Choice { place, branches, exclusive, chain: chain.clone() });
                    }
                }
                keyword if own_place == Some(keyword) => works.push(own.clone()),
                _ => {}
            }
        }
        if own_place.is_none() {
            works.push(own);
        }
        Some(works)
    }

    /// The chain with one more place; a place that is in it already leads to itself.
    fn longer(&mut self, chain: Option<Rc<Chain>>, pointer: &Rc<str>) -> Option<Option<Rc<Chain>>> {
        let mut at = chain.as_ref();
        while let Some(link) = at {
            if link.pointer == *pointer {
                let what = "the schema leads to itself without going into a value";
                self.fault(
                    Fault::new(FaultCode::DeadEnd, what).fix("let the reference stand below a property or an item"),
                    pointer,
                );
                return None;
            }
            at = link.before.as_ref();
        }
        let length = chain.as_ref().map_or(0, |link| link.length) + 1;
        if length > limits::DEPTH.most {
            self.fault(Fault::limit(limits::DEPTH, length), pointer);
            return None;
        }
        Some(Some(Rc::new(Chain { pointer: Rc::clone(pointer), length, before: chain })))
    }

    fn target(&mut self, reference: &Value, pointer: &str) -> Option<Located<'a>> {
        let place = below(pointer, "$ref");
        let Some(text) = reference.as_str() else {
            self.malformed(&place, "`$ref`", "a string");
            return None;
        };
        match self.document.resolve(text, pointer) {
            Ok(target) => Some(target),
            Err(Miss::Foreign) => {
                let what = format!("`$ref` to `{text}` is not supported");
                let fault = Fault::new(FaultCode::Unsupported, what)
                    .why("references reach places of the same document only; no file or address is opened")
                    .fix("put the schema under `$defs` and refer to `#/$defs/...`");
                self.fault(fault, &place);
                None
            }
            Err(Miss::Nothing) => {
                let fault = Fault::new(FaultCode::Syntax, format!("`$ref` points at nothing: `{text}`"));
                self.fault(fault.fix("give the pointer of a schema in this document"), &place);
                None
            }
        }
    }

    /// Adds a schema's own keywords; false when no type is left.
    fn add(&mut self, flat: &mut Flat<'a>, part: Part<'a>) -> bool {
        if flat.parts.iter().any(|known| known.pointer == part.pointer) {
            return true;
        }
        let mut asserts = false;
        for keyword in part.map.keys() {
            match role(keyword) {
                None => self.note(&below(&part.pointer, keyword), "an unknown keyword, which restricts nothing"),
                Some(Role::Annotation | Role::Combines) => {}
                Some(Role::Enforced(_) | Role::Refused(..)) => asserts = true,
            }
        }
        if let Some(value) = part.map.get("type") {
            let Some(types) = self.declared(value, &part.pointer) else { return false };
            flat.types = flat.types.and(types);
            flat.typed = true;
        }
        if asserts {
            flat.parts.push(part);
        }
        !flat.types.is_empty()
    }

    fn declared(&mut self, value: &Value, pointer: &str) -> Option<Types> {
        let types = Types::declared(value);
        if types.is_none() {
            let expected = "one or a list of null, boolean, integer, number, string, array, object";
            self.malformed(&below(pointer, "type"), "`type`", expected);
        }
        types
    }
}
