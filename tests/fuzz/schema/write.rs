//! Schemas and lists of tools that the bytes of an input choose.

use serde_json::{Map, Value, json};

use super::super::input::Input;

/// How deep schemas lie inside each other.
const DEPTH: usize = 5;
/// Schemas of one document.
const MOST: usize = 60;
const NAMES: &[&str] = &["a", "b", "ab", "é\"\\", "", "/~", "a\u{1b}[2J", "city", "</arg_value>"];
const TYPES: &[&str] = &["object", "array", "string", "integer", "number", "boolean", "null"];
const PATTERNS: &[&str] = &[
    "^[a-c]+$",
    "b",
    "^x\\d?$",
    "^.{2,4}$",
    "^(?:a|bc)*d$",
    "\\u00e9[^a]",
    "^a",
    "z$",
    "(?=a)",
    "[",
    "^\\S+\\s?\"$",
    "^[\\u{1f600}-\\u{1f64f}]{1,3}$",
    "<",
];
const FORMATS: &[&str] =
    &["date", "date-time", "ipv4", "ipv6", "uuid", "email", "uri", "hostname", "duration", "colour"];
/// Keywords that are refused, left alone, or have no sense, with any value.
const OTHERS: &[&str] = &[
    "not",
    "if",
    "then",
    "contains",
    "patternProperties",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$id",
    "$anchor",
    "$dynamicRef",
    "title",
    "x-\u{202e}unknown",
    "minContains",
    "default",
    "$comment",
];

/// Chooses the parts of a document.
pub(super) struct Writer<'i, 'b> {
    pub(super) input: &'i mut Input<'b>,
    left: usize,
}

impl<'i, 'b> Writer<'i, 'b> {
    pub(super) fn new(input: &'i mut Input<'b>) -> Self {
        Self { input, left: MOST }
    }

    /// A schema with definitions.
    pub(super) fn document(&mut self) -> Value {
        let dialect = self.input.pick(&["", "", "", "http://json-schema.org/draft-07/schema#"]);
        let mut root = self.schema(DEPTH);
        if let Value::Object(map) = &mut root {
            if !dialect.is_empty() {
                map.insert("$schema".to_owned(), json!(dialect));
            }
            let count = self.input.below(4);
            let named: Map<String, Value> = (0..count).map(|at| (at.to_string(), self.schema(DEPTH - 1))).collect();
            map.insert("$defs".to_owned(), Value::Object(named));
        }
        root
    }

    /// A list of tools.
    pub(super) fn tools(&mut self) -> Value {
        let tools = (0..1 + self.input.below(3)).map(|_| {
            let name = self.input.pick(&["look", "now", "look_up", "é", "", "a<b", "now\u{1b}"]);
            let mut parameters = json!({"type": "object", "properties": self.named(3), "required": self.names()});
            if self.input.seldom(6) {
                parameters[self.input.pick(OTHERS)] = self.value();
            }
            if self.input.seldom(8) { json!({"name": name}) } else { json!({"name": name, "parameters": parameters}) }
        });
        Value::Array(tools.collect())
    }

    fn schema(&mut self, depth: usize) -> Value {
        self.left = self.left.saturating_sub(1);
        if depth == 0 || self.left == 0 || self.input.seldom(10) {
            let simple =
                [json!(true), json!({}), json!({"type": "integer"}), json!({"type": "string"}), json!(false), json!(7)];
            return simple[self.input.below(simple.len())].clone();
        }
        let mut map = Map::new();
        match self.input.below(8) {
            0 => {}
            1 => {
                map.insert("type".to_owned(), json!([self.input.pick(TYPES), self.input.pick(TYPES)]));
            }
            _ => {
                map.insert("type".to_owned(), json!(self.input.pick(TYPES)));
            }
        }
        for _ in 0..self.input.below(5) {
            let (keyword, value) = self.keyword(depth);
            map.insert(keyword.to_owned(), value);
        }
        Value::Object(map)
    }

    fn keyword(&mut self, depth: usize) -> (&'static str, Value) {
        let below = depth - 1;
        match self.input.below(24) {
            0..=3 => ("properties", self.named(below)),
            4 => ("required", self.names()),
            5 => ("additionalProperties", self.schema(below)),
            6 => ("items", if self.input.seldom(5) { self.list(below) } else { self.schema(below) }),
            7 => ("prefixItems", self.list(below)),
            8 => (self.input.pick(&["minItems", "maxItems", "minProperties", "maxProperties"]), self.count()),
            9 => (self.input.pick(&["minLength", "maxLength"]), self.count()),
            10 => ("pattern", json!(self.input.pick(PATTERNS))),
            11 => ("format", json!(self.input.pick(FORMATS))),
            12..=14 => {
                let keyword = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
                (self.input.pick(&keyword), self.number())
            }
            15 => ("enum", (0..self.input.below(5)).map(|_| self.value()).collect()),
            16 => ("const", self.value()),
            17 => ("anyOf", self.list(below)),
            18 => ("oneOf", self.list(below)),
            19 => ("allOf", self.list(below)),
            20 | 21 => ("$ref", self.reference()),
            22 => (self.input.pick(&["uniqueItems", "additionalItems"]), self.schema(0)),
            _ => (self.input.pick(OTHERS), if self.input.seldom(2) { self.schema(0) } else { self.value() }),
        }
    }

    fn list(&mut self, depth: usize) -> Value {
        (0..1 + self.input.below(3)).map(|_| self.schema(depth)).collect()
    }

    fn named(&mut self, depth: usize) -> Value {
        let count = self.input.below(4);
        Value::Object((0..count).map(|_| (self.input.pick(NAMES).to_owned(), self.schema(depth))).collect())
    }

    fn names(&mut self) -> Value {
        (0..self.input.below(3)).map(|_| json!(self.input.pick(NAMES))).collect()
    }

    fn reference(&mut self) -> Value {
        let known =
            ["#/$defs/0", "#/$defs/1", "#/$defs/2", "#", "#/properties/a", "#a", "other.json", "#/%zz", "#/items"];
        json!(self.input.pick(&known))
    }

    fn count(&mut self) -> Value {
        match self.input.byte() {
            byte @ 0..=199 => json!(byte % 6),
            200..=220 => json!(1e300),
            221..=230 => json!(2.0),
            231..=240 => json!(1_000_001),
            241..=248 => json!(-1),
            _ => json!("1"),
        }
    }

    fn number(&mut self) -> Value {
        let (low, high) = (i64::from(self.input.byte()), i64::from(self.input.byte()));
        match self.input.below(6) {
            0 => json!(low - 128),
            1 => json!((low * 256 + high) as f64 / 64.0 - 300.0),
            2 => json!((low - 100) * 1_000_003 * (high + 1)),
            3 => json!(low as f64 * 1e-7),
            4 => json!(low as f64 * 1e25),
            _ => json!("7"),
        }
    }

    fn value(&mut self) -> Value {
        match self.input.below(9) {
            0 => json!(1),
            1 => json!(self.input.pick(NAMES)),
            2 => Value::Null,
            3 => json!([1, self.input.pick(NAMES)]),
            4 => json!({self.input.pick(NAMES): self.input.below(3)}),
            5 => self.number(),
            6 => json!(true),
            7 => json!({}),
            _ => json!([]),
        }
    }
}
