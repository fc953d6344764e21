//! Random walks over the grammars of random schemas: every text must be a value that the standard allows.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::super::{SchemaOptions, Whitespace, compile};
use super::Random;
use super::oracle::{PATTERNS, valid};
use crate::constraint::Constraint;
use crate::matcher::Matcher;

const NAMES: &[&str] = &["a", "b", "ab", "é\"", "c"];
const TYPES: &[&str] = &["null", "boolean", "integer", "number", "string", "array", "object"];

fn values() -> [Value; 7] {
    [json!(1), json!("ab"), json!(null), json!([1, "x"]), json!({"a": 1}), json!(2.5), json!(true)]
}

/// A random schema; references go to `#/$defs/0` to `#/$defs/2`.
fn schema(random: &mut Random, depth: usize) -> Value {
    if depth == 0 || random.below(12) == 0 {
        return random
            .one_of(&[json!(true), json!({}), json!({"type": "integer"}), json!({"type": "string"}), json!(false)])
            .clone();
    }
    let mut map = Map::new();
    let mut put = |keyword: &str, value: Value| {
        map.insert(keyword.to_owned(), value);
    };
    if random.below(3) > 0 {
        let one = *random.one_of(TYPES);
        let other = *random.one_of(TYPES);
        put("type", if random.below(4) == 0 && one != other { json!([one, other]) } else { json!(one) });
    }
    for _ in 0..=random.below(4) {
        let count = random.below(4);
        let number = [json!(0), json!(-3), json!(2.5), json!(10), json!(-0.75), json!(7)][random.below(6)].clone();
        match random.below(18) {
            0 => put("enum", values()[..=random.below(7)].into()),
            1 => put("const", [json!("b"), json!(3), json!([]), json!({"b": "x"})][random.below(4)].clone()),
            2 => put(["minimum", "exclusiveMinimum"][random.below(2)], number),
            3 => put(["maximum", "exclusiveMaximum"][random.below(2)], number),
            4 => put(["minLength", "maxLength"][random.below(2)], json!(count)),
            5 => put("pattern", json!(random.one_of(PATTERNS).0)),
            6 => put(["minItems", "maxItems"][random.below(2)], json!(count)),
            7 | 8 => put("items", schema(random, depth - 1)),
            9 => put("prefixItems", json!([schema(random, depth - 1), schema(random, depth - 1)])),
            10..=12 => {
                let names: Vec<&str> = (0..=count).map(|_| *random.one_of(NAMES)).collect();
                put("properties", names.iter().map(|name| ((*name).to_owned(), schema(random, depth - 1))).collect());
            }
            13 => put("required", json!([random.one_of(NAMES)])),
            14 => put("additionalProperties", schema(random, depth - 1)),
            15 => put(
                ["allOf", "anyOf", "oneOf"][random.below(3)],
                json!([schema(random, depth - 1), schema(random, depth - 1)]),
            ),
            16 => put(
                "oneOf",
                json!([{"type": "null"}, schema(random, depth - 1), {"type": "array", "items": schema(random, depth - 1)}]),
            ),
            _ => put("$ref", json!(format!("#/$defs/{}", random.below(3)))),
        }
    }
    Value::Object(map)
}

/// A text of the grammar, or nothing when the walk got too long.
fn walk(matcher: &mut Matcher, random: &mut Random) -> Option<String> {
    let start = matcher.mark();
    let mut text = Vec::new();
    while text.len() < 400 {
        let allowed: Vec<u8> = matcher.allowed().iter().collect();
        if matcher.can_end() && (allowed.is_empty() || random.below(3) == 0) {
            matcher.rewind(start);
            return String::from_utf8(text).ok();
        }
        // Signs that close something come often, so that walks end; so do letters of names and backslashes.
        let liked: Vec<u8> = allowed.iter().copied().filter(|byte| b"\"}]abcx5\\u0".contains(byte)).collect();
        let byte =
            if liked.is_empty() || random.below(4) == 0 { *random.one_of(&allowed) } else { *random.one_of(&liked) };
        assert!(matcher.accept(byte));
        text.push(byte);
    }
    matcher.rewind(start);
    None
}

#[test]
fn every_walk_is_a_value_of_its_schema() {
    let mut random = Random(0x5EED);
    let (mut compiled_count, mut walks, mut refused) = (0, 0, 0);
    for _ in 0..1200 {
        let mut root = schema(&mut random, 3);
        if let Value::Object(map) = &mut root {
            let definitions: Vec<Value> = (0..3).map(|_| schema(&mut random, 2)).collect();
            map.insert("$defs".to_owned(), json!({"0": definitions[0], "1": definitions[1], "2": definitions[2]}));
        }
        let whitespace = *random.one_of(&[Whitespace::Compact, Whitespace::Flexible]);
        let compiled = match compile(&root.to_string(), &SchemaOptions { lenient: false, whitespace }) {
            Ok(compiled) => compiled,
            Err(error) => {
                assert!(matches!(error.code(), "schema_unsupported" | "grammar_dead_end"), "{root}: {error}");
                refused += 1;
                continue;
            }
        };
        compiled_count += 1;
        let mut matcher = Matcher::new(Arc::new(compiled.program)).unwrap();
        for _ in 0..12 {
            let Some(text) = walk(&mut matcher, &mut random) else { continue };
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{root} {text}: {error}"));
            assert!(valid(&value, &root, &root), "{root}\n{text}");
            walks += 1;
        }
    }
    assert!(compiled_count > 500 && walks > 4000 && refused > 50, "{compiled_count} {walks} {refused}");
}
