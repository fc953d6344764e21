//! What the standard says of a value, written down once more and without anything of the compiler.

use serde_json::{Map, Value};

type Fits = fn(&str) -> bool;

/// The patterns of the generated schemas, each with what it means.
pub(super) const PATTERNS: &[(&str, Fits)] = &[
    ("^[a-c]+$", |text| !text.is_empty() && text.chars().all(|c| ('a'..='c').contains(&c))),
    ("b", |text| text.contains('b')),
    ("^x\\d?$", |text| matches!(text.as_bytes(), [b'x'] | [b'x', b'0'..=b'9'])),
    ("^.{2}$", |text| text.chars().count() == 2 && !text.contains(['\n', '\r', '\u{2028}', '\u{2029}'])),
];

pub(super) fn valid(value: &Value, schema: &Value, root: &Value) -> bool {
    let Some(map) = schema.as_object() else { return *schema == Value::Bool(true) };
    map.iter().all(|(keyword, argument)| keyword_holds(value, keyword, argument, schema, root))
}

fn keyword_holds(value: &Value, keyword: &str, argument: &Value, schema: &Value, root: &Value) -> bool {
    let bound = || argument.as_f64().unwrap();
    let length = |length: usize| length as f64;
    let branches =
        |fits: &dyn Fn(&Value) -> bool| argument.as_array().unwrap().iter().filter(|branch| fits(branch)).count();
    let holds = |branch: &Value| valid(value, branch, root);
    match (keyword, value) {
        ("type", _) => match argument {
            Value::String(name) => is_type(value, name),
            names => names.as_array().unwrap().iter().any(|name| is_type(value, name.as_str().unwrap())),
        },
        ("const", _) => same(value, argument),
        ("enum", _) => argument.as_array().unwrap().iter().any(|other| same(value, other)),
        ("anyOf", _) => branches(&holds) > 0,
        ("oneOf", _) => branches(&holds) == 1,
        ("allOf", _) => branches(&holds) == argument.as_array().unwrap().len(),
        ("$ref", _) => valid(value, root.pointer(&argument.as_str().unwrap()[1..]).unwrap(), root),
        ("minimum", Value::Number(number)) => number.as_f64().unwrap() >= bound(),
        ("maximum", Value::Number(number)) => number.as_f64().unwrap() <= bound(),
        ("exclusiveMinimum", Value::Number(number)) => number.as_f64().unwrap() > bound(),
        ("exclusiveMaximum", Value::Number(number)) => number.as_f64().unwrap() < bound(),
        ("minLength", Value::String(text)) => length(text.chars().count()) >= bound(),
        ("maxLength", Value::String(text)) => length(text.chars().count()) <= bound(),
        ("pattern", Value::String(text)) => PATTERNS.iter().any(|(pattern, fits)| argument == pattern && fits(text)),
        ("minItems", Value::Array(items)) => length(items.len()) >= bound(),
        ("maxItems", Value::Array(items)) => length(items.len()) <= bound(),
        ("prefixItems", Value::Array(items)) => {
            items.iter().zip(argument.as_array().unwrap()).all(|(item, schema)| valid(item, schema, root))
        }
        ("items", Value::Array(items)) => {
            let first = schema.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            items.iter().skip(first).all(|item| valid(item, argument, root))
        }
        (_, Value::Object(members)) => members_hold(members, keyword, argument, schema, root),
        _ => true,
    }
}

fn members_hold(members: &Map<String, Value>, keyword: &str, argument: &Value, schema: &Value, root: &Value) -> bool {
    match keyword {
        "required" => argument.as_array().unwrap().iter().all(|name| members.contains_key(name.as_str().unwrap())),
        "properties" => {
            let defined = argument.as_object().unwrap();
            defined.iter().all(|(name, schema)| members.get(name).is_none_or(|member| valid(member, schema, root)))
        }
        "additionalProperties" => members.iter().all(|(name, member)| {
            schema.get("properties").is_some_and(|defined| defined.get(name).is_some()) || valid(member, argument, root)
        }),
        _ => true,
    }
}

fn is_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(number) => name == "number" || (name == "integer" && number.as_f64().unwrap().fract() == 0.0),
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
