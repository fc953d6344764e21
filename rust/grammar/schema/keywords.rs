//! Every standard keyword and what becomes of it: one line each.

use serde_json::{Map, Value};

use super::types::Types;

/// What is done with a keyword.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// Says nothing about the value.
    Annotation,
    /// Brings other schemas in for the same value.
    Combines,
    /// Enforced; restricts values of these types, and without `type` implies them.
    Enforced(Types),
    /// Restricts values of these types, and cannot be enforced unless the test says that it asks for nothing.
    Refused(Types, fn(&Map<String, Value>, &Value) -> bool),
}

/// The role of a keyword; `None` for one that no standard knows.
pub(super) fn role(keyword: &str) -> Option<Role> {
    KEYWORDS.iter().find(|(name, _)| *name == keyword).map(|(_, role)| *role)
}

/// All keywords of the table.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KEYWORDS.iter().map(|(name, _)| *name)
}

use Role::{Annotation, Combines, Enforced, Refused};

const KEYWORDS: &[(&str, Role)] = &[
    ("type", Enforced(Types::NONE)),
    ("enum", Enforced(Types::NONE)),
    ("const", Enforced(Types::NONE)),
    ("properties", Enforced(Types::OBJECT)),
    ("required", Enforced(Types::OBJECT)),
    ("additionalProperties", Enforced(Types::OBJECT)),
    ("minProperties", Enforced(Types::OBJECT)),
    ("maxProperties", Enforced(Types::OBJECT)),
    ("items", Enforced(Types::ARRAY)),
    ("prefixItems", Enforced(Types::ARRAY)),
    ("additionalItems", Enforced(Types::ARRAY)),
    ("minItems", Enforced(Types::ARRAY)),
    ("maxItems", Enforced(Types::ARRAY)),
    ("uniqueItems", Enforced(Types::ARRAY)),
    ("minLength", Enforced(Types::STRING)),
    ("maxLength", Enforced(Types::STRING)),
    ("pattern", Enforced(Types::STRING)),
    ("format", Enforced(Types::NONE)),
    ("minimum", Enforced(Types::NUMBER)),
    ("maximum", Enforced(Types::NUMBER)),
    ("exclusiveMinimum", Enforced(Types::NUMBER)),
    ("exclusiveMaximum", Enforced(Types::NUMBER)),
    ("multipleOf", Enforced(Types::NUMBER)),
    ("$ref", Combines),
    ("allOf", Combines),
    ("anyOf", Combines),
    ("oneOf", Combines),
    ("not", Refused(Types::ALL, |_, value| *value == Value::Bool(false))),
    ("if", Refused(Types::ALL, |map, _| ["then", "else"].iter().all(|branch| map.get(*branch).is_none_or(allows_all)))),
    ("patternProperties", Refused(Types::OBJECT, |_, value| is_empty(value))),
    (
        "propertyNames",
        Refused(Types::OBJECT, |_, value| allows_all(value) || *value == serde_json::json!({"type": "string"})),
    ),
    ("dependencies", Refused(Types::OBJECT, |_, value| is_empty(value))),
    ("dependentRequired", Refused(Types::OBJECT, |_, value| is_empty(value))),
    ("dependentSchemas", Refused(Types::OBJECT, |_, value| is_empty(value))),
    ("unevaluatedProperties", Refused(Types::OBJECT, |_, value| allows_all(value))),
    ("unevaluatedItems", Refused(Types::ARRAY, |_, value| allows_all(value))),
    ("contains", Refused(Types::ARRAY, |map, _| asks_for_none(map))),
    ("contentEncoding", Refused(Types::STRING, |_, _| false)),
    ("contentMediaType", Refused(Types::STRING, |_, _| false)),
    ("contentSchema", Refused(Types::STRING, |map, _| !map.contains_key("contentMediaType"))),
    ("$dynamicRef", Refused(Types::ALL, |_, _| false)),
    ("$recursiveRef", Refused(Types::ALL, |_, _| false)),
    // Without `contains`, `if` or a dynamic reference these say nothing; with them, those are refused.
    ("minContains", Annotation),
    ("maxContains", Annotation),
    ("then", Annotation),
    ("else", Annotation),
    ("$dynamicAnchor", Annotation),
    ("$recursiveAnchor", Annotation),
    ("$schema", Annotation),
    ("$id", Annotation),
    ("$anchor", Annotation),
    ("$comment", Annotation),
    ("$defs", Annotation),
    ("$vocabulary", Annotation),
    ("definitions", Annotation),
    ("title", Annotation),
    ("description", Annotation),
    ("default", Annotation),
    ("example", Annotation),
    ("examples", Annotation),
    ("deprecated", Annotation),
    ("readOnly", Annotation),
    ("writeOnly", Annotation),
];

/// Whether a schema is `true` or `{}`.
pub(super) fn allows_all(schema: &Value) -> bool {
    *schema == Value::Bool(true) || is_empty(schema)
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// `contains` with `minContains: 0` and no upper bound.
fn asks_for_none(map: &Map<String, Value>) -> bool {
    map.get("minContains").and_then(Value::as_f64) == Some(0.0) && !map.contains_key("maxContains")
}

/// Keywords whose value is a schema, a list of schemas, or schemas by name: where other schemas lie.
pub(super) const SCHEMA_PLACES: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Lists of schemas.
pub(super) const SCHEMA_LISTS: &[&str] = &["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Schemas by name.
pub(super) const SCHEMA_MAPS: &[&str] =
    &["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
