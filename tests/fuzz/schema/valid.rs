//! What the standard says of a value, written down once more and without anything of the compiler.
//!
//! Three answers: fits, does not fit, and unknown for what is not written down here.

use std::collections::HashMap;

use colibri_grammar::{Constraint, Matcher, regex};
use serde_json::{Map, Value};

/// Schemas that are looked at for one value, and how deep; beyond that the answer is unknown.
const STEPS: usize = 20_000;
const DEPTH: usize = 60;

/// A schema document.
pub(crate) struct Document<'a> {
    root: &'a Value,
    /// Whether it is of a draft before 2020-12, where `prefixItems` means nothing.
    old: bool,
    /// Whether numbers of the texts have more digits than a float tells apart.
    rounded: bool,
    steps: usize,
    patterns: HashMap<String, Option<Matcher>>,
}

type Verdict = Option<bool>;

fn all(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    let mut unknown = false;
    for verdict in verdicts {
        match verdict {
            Some(false) => return Some(false),
            Some(true) => {}
            None => unknown = true,
        }
    }
    if unknown { None } else { Some(true) }
}

impl<'a> Document<'a> {
    pub(crate) fn new(root: &'a Value) -> Self {
        let dialect = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let old = dialect.contains("draft-0") || dialect.contains("2019-09");
        Self { root, old, rounded: false, steps: 0, patterns: HashMap::new() }
    }

    /// Whether the value, read from this text, fits the whole document.
    pub(crate) fn judge(&mut self, value: &Value, text: &str, schema: &Value) -> Verdict {
        self.rounded = text.split(|c: char| !c.is_ascii_digit() && c != '.').any(|digits| digits.len() > 15);
        self.steps = 0;
        self.fits(value, schema, 0)
    }

    fn fits(&mut self, value: &Value, schema: &Value, depth: usize) -> Verdict {
        self.steps += 1;
        if self.steps > STEPS || depth > DEPTH {
            return None;
        }
        let map = match schema {
            Value::Bool(fits) => return Some(*fits),
            Value::Object(map) => map,
            _ => return None,
        };
        let verdicts: Vec<Verdict> =
            map.iter().map(|(keyword, argument)| self.keyword(value, keyword, argument, map, depth + 1)).collect();
        all(verdicts)
    }

    fn keyword(
        &mut self,
        value: &Value,
        keyword: &str,
        argument: &Value,
        map: &Map<String, Value>,
        depth: usize,
    ) -> Verdict {
        match (keyword, value) {
            ("type", _) => is_declared(value, argument),
            ("const", _) => Some(same(value, argument)),
            ("enum", _) => Some(argument.as_array()?.iter().any(|other| same(value, other))),
            ("allOf" | "anyOf" | "oneOf", _) => self.branches(value, keyword, argument, depth),
            ("$ref", _) => {
                let target = argument.as_str()?.strip_prefix('#').filter(|path| !path.contains('%'))?;
                let root = self.root;
                self.fits(value, root.pointer(target)?, depth)
            }
            ("not" | "if" | "$dynamicRef" | "$recursiveRef" | "format", _) => None,
            (_, Value::Number(number)) => self.number(number.as_f64()?, keyword, argument),
            (_, Value::String(text)) => self.string(text, keyword, argument),
            (_, Value::Array(items)) => self.array(items, keyword, argument, map, depth),
            (_, Value::Object(members)) => self.object(members, keyword, argument, map, depth),
            _ => Some(true),
        }
    }

    fn branches(&mut self, value: &Value, keyword: &str, argument: &Value, depth: usize) -> Verdict {
        let verdicts: Vec<Verdict> =
            argument.as_array()?.iter().map(|branch| self.fits(value, branch, depth)).collect();
        let count = |wanted: Verdict| verdicts.iter().filter(|verdict| **verdict == wanted).count();
        let (fitting, unknown) = (count(Some(true)), count(None));
        match keyword {
            "allOf" => all(verdicts),
            "anyOf" if fitting > 0 => Some(true),
            "oneOf" if fitting > 1 => Some(false),
            _ if unknown > 0 => None,
            _ => Some(fitting > 0),
        }
    }

    fn number(&self, number: f64, keyword: &str, argument: &Value) -> Verdict {
        // Rounding keeps the order, but may make two numbers equal.
        let equal = self.rounded;
        Some(match keyword {
            "minimum" => number >= argument.as_f64()?,
            "maximum" => number <= argument.as_f64()?,
            "exclusiveMinimum" => number > argument.as_f64()? || (equal && number >= argument.as_f64()?),
            "exclusiveMaximum" => number < argument.as_f64()? || (equal && number <= argument.as_f64()?),
            "multipleOf" if argument.as_f64()? == 1.0 => equal || number.fract() == 0.0,
            "multipleOf" => return None,
            _ => true,
        })
    }

    fn string(&mut self, text: &str, keyword: &str, argument: &Value) -> Verdict {
        let length = text.chars().count() as f64;
        match keyword {
            "minLength" => Some(length >= argument.as_f64()?),
            "maxLength" => Some(length <= argument.as_f64()?),
            "pattern" => self.matches(argument.as_str()?, text),
            _ => Some(true),
        }
    }

    /// Whether a pattern of one alternative is found in the text.
    fn matches(&mut self, pattern: &str, text: &str) -> Verdict {
        if pattern.contains('|') || pattern.ends_with("\\$") {
            return None;
        }
        let matcher = self.patterns.entry(pattern.to_owned()).or_insert_with(|| {
            let before = if pattern.starts_with('^') { "" } else { "[^]*" };
            let behind = if pattern.ends_with('$') { "" } else { "[^]*" };
            let program = regex::compile(&format!("{before}{pattern}{behind}")).ok()?;
            Matcher::new(program.into()).ok()
        });
        let matcher = matcher.as_mut()?;
        let start = matcher.mark();
        let fits = text.bytes().all(|byte| matcher.accept(byte)) && matcher.can_end();
        let known = matcher.fault().is_none();
        matcher.rewind(start);
        known.then_some(fits)
    }

    fn array(
        &mut self,
        items: &[Value],
        keyword: &str,
        argument: &Value,
        map: &Map<String, Value>,
        depth: usize,
    ) -> Verdict {
        let count = items.len() as f64;
        let list = |keyword: &str| map.get(keyword).and_then(Value::as_array);
        let prefix = if self.old { None } else { list("prefixItems") };
        let first = prefix.or_else(|| list("items")).map_or(0, Vec::len);
        match (keyword, argument) {
            ("minItems", _) => Some(count >= argument.as_f64()?),
            ("maxItems", _) => Some(count <= argument.as_f64()?),
            // A list of `items` beside `prefixItems` is of no draft.
            ("items", Value::Array(_)) if prefix.is_some() => None,
            ("additionalItems", _) if prefix.is_some() => None,
            ("prefixItems", _) if self.old => Some(true),
            ("prefixItems" | "items", Value::Array(schemas)) => {
                let verdicts: Vec<Verdict> =
                    items.iter().zip(schemas).map(|(item, schema)| self.fits(item, schema, depth)).collect();
                all(verdicts)
            }
            ("additionalItems", _) if list("items").is_none() => Some(true),
            ("items" | "additionalItems", _) => {
                let verdicts: Vec<Verdict> =
                    items.iter().skip(first).map(|item| self.fits(item, argument, depth)).collect();
                all(verdicts)
            }
            ("uniqueItems", Value::Bool(true)) => {
                let repeated =
                    items.iter().enumerate().any(|(at, one)| items[at + 1..].iter().any(|other| same(one, other)));
                if repeated && self.rounded { None } else { Some(!repeated) }
            }
            ("contains" | "unevaluatedItems", _) => None,
            _ => Some(true),
        }
    }

    fn object(
        &mut self,
        members: &Map<String, Value>,
        keyword: &str,
        argument: &Value,
        map: &Map<String, Value>,
        depth: usize,
    ) -> Verdict {
        let count = members.len() as f64;
        match keyword {
            "required" => {
                let mut names = argument.as_array()?.iter();
                Some(names.all(|name| name.as_str().is_some_and(|name| members.contains_key(name))))
            }
            "minProperties" => Some(count >= argument.as_f64()?),
            "maxProperties" => Some(count <= argument.as_f64()?),
            "properties" => {
                let defined = argument.as_object()?;
                let verdicts: Vec<Verdict> = defined
                    .iter()
                    .filter_map(|(name, schema)| Some(self.fits(members.get(name)?, schema, depth)))
                    .collect();
                all(verdicts)
            }
            "additionalProperties" => {
                let defined = map.get("properties").and_then(Value::as_object);
                let further = members.iter().filter(|(name, _)| !defined.is_some_and(|map| map.contains_key(*name)));
                let verdicts: Vec<Verdict> = further.map(|(_, member)| self.fits(member, argument, depth)).collect();
                all(verdicts)
            }
            "patternProperties"
            | "propertyNames"
            | "dependencies"
            | "dependentRequired"
            | "dependentSchemas"
            | "unevaluatedProperties" => None,
            _ => Some(true),
        }
    }
}

fn is_declared(value: &Value, argument: &Value) -> Verdict {
    match argument {
        Value::String(name) => Some(is_type(value, name)),
        names => Some(names.as_array()?.iter().any(|name| name.as_str().is_some_and(|name| is_type(value, name)))),
    }
}

fn is_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(number) => {
            name == "number" || (name == "integer" && number.as_f64().is_some_and(|number| number.fract() == 0.0))
        }
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| same(a, b))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len() && one.iter().all(|(name, a)| other.get(name).is_some_and(|b| same(a, b)))
        }
        _ => one == other,
    }
}
