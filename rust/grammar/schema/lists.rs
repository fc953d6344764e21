//! Alternatives that list values: `anyOf` and `oneOf` whose branches are `const` or `enum` with at most a `type`.
//!
//! Such branches are taken together as one list, as if an `enum` stood there, so that a hundred thousand of them cost no
//! more than the values. Of `oneOf`, a value that two branches list fits neither, which is exact.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::Compiler;
use super::decimal::Decimal;
use super::keywords::{Role, role};
use super::merge::Branches;
use super::reference::Located;
use super::types::Types;

/// The values that some branches of one keyword list.
#[derive(Debug)]
pub(super) struct List<'a> {
    /// The keyword's place.
    pub(super) place: Rc<str>,
    pub(super) values: Vec<&'a Value>,
    /// Where the values lie, to know one of them again.
    places: HashSet<*const Value>,
}

impl List<'_> {
    /// Whether the value is one of the list itself, not only equal to one.
    pub(super) fn stems(&self, value: &Value) -> bool {
        self.places.contains(&std::ptr::from_ref(value))
    }
}

impl<'a> Compiler<'a, '_> {
    /// The branches of `anyOf` or `oneOf`; those that only list values as one list, when there are several.
    pub(super) fn branches(&mut self, place: &Rc<str>, schemas: Vec<Located<'a>>, exclusive: bool) -> Branches<'a> {
        let lists: Vec<Option<Vec<&'a Value>>> = schemas.iter().map(|schema| listed_only(schema.value)).collect();
        let single =
            |schemas: Vec<Located<'a>>| Branches { schemas: schemas.into_iter().enumerate().collect(), list: None };
        let with_list = lists.iter().flatten().count();
        let count: usize = lists.iter().flatten().map(Vec::len).sum();
        if with_list < 2 || !self.spend(count) {
            return single(schemas);
        }
        let mut first = None;
        let mut values: Vec<(&'a Value, bool)> = Vec::with_capacity(count);
        // By what the values are worth: the branch and the place in `values`.
        let mut known: HashMap<String, (usize, usize)> = HashMap::with_capacity(count);
        let mut rest = Vec::new();
        for ((branch, schema), list) in schemas.iter().enumerate().zip(lists) {
            let Some(list) = list else {
                rest.push((branch, schema.clone()));
                continue;
            };
            first.get_or_insert(branch);
            for value in list {
                match known.get(&identity(value)) {
                    Some((other, at)) if exclusive && *other != branch => values[*at].1 = false,
                    Some(_) => {}
                    None => {
                        known.insert(identity(value), (branch, values.len()));
                        values.push((value, true));
                    }
                }
            }
        }
        // A value that is left out of the list must not come in through another branch.
        if !rest.is_empty() && values.iter().any(|(_, stays)| !stays) {
            return single(schemas);
        }
        let values: Vec<&Value> = values.into_iter().filter(|(_, stays)| *stays).map(|(value, _)| value).collect();
        let places = values.iter().map(|value| std::ptr::from_ref(*value)).collect();
        let list = Rc::new(List { place: Rc::clone(place), values, places });
        Branches { schemas: rest, list: first.map(|branch| (branch, list)) }
    }
}

/// The values of a schema that lists them and says nothing else but their type.
fn listed_only(schema: &Value) -> Option<Vec<&Value>> {
    let map = schema.as_object()?;
    let only = |keyword: &String| {
        matches!(keyword.as_str(), "const" | "enum" | "type") || matches!(role(keyword), Some(Role::Annotation))
    };
    if !map.keys().all(only) {
        return None;
    }
    let values: Vec<&Value> = match (map.get("const"), map.get("enum")) {
        (Some(value), None) => vec![value],
        (None, Some(Value::Array(values))) if !values.is_empty() => values.iter().collect(),
        _ => return None,
    };
    let types = map.get("type").map_or(Some(Types::ALL), Types::declared)?;
    Some(values.into_iter().filter(|value| types.meets(Types::of(value))).collect())
}

/// A text that equal values share: numbers by what they are worth, members in any order.
fn identity(value: &Value) -> String {
    match value {
        Value::Number(number) => {
            let text = number.to_string();
            let Some(decimal) = Decimal::parse(&text) else { return text };
            let digits = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
            let sign = if decimal.negative { "-" } else { "" };
            format!("{sign}{}.{}", digits(&decimal.whole), digits(&decimal.fraction))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(identity).collect::<Vec<_>>().join(",")),
        Value::Object(members) => of_members(members),
        other => other.to_string(),
    }
}

fn of_members(members: &Map<String, Value>) -> String {
    let mut parts: Vec<String> =
        members.iter().map(|(name, value)| format!("{}:{}", Value::String(name.clone()), identity(value))).collect();
    parts.sort_unstable();
    format!("{{{}}}", parts.join(","))
}
