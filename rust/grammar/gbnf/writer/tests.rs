use std::sync::Arc;

use crate::builder::Builder;
use crate::gbnf;
use crate::program::Program;
use crate::regex;
use crate::schema::{self, SchemaOptions, Whitespace};
use crate::tools::{self, ToolOptions};
use crate::{Constraint, Matcher};

/// Walks both programs along bytes that the first allows, and asks at each place whether they agree.
fn agree(left: Program, right: Program, what: &str) {
    let (left, right) = (Arc::new(left), Arc::new(right));
    let mut random = 1u64;
    for _ in 0..60 {
        let mut pair = [&left, &right].map(|program| Matcher::new(Arc::clone(program)).unwrap());
        for _ in 0..120 {
            let [allowed, other] = pair.each_mut().map(|matcher| (matcher.allowed(), matcher.can_end()));
            assert_eq!(allowed, other, "{what}");
            let bytes: Vec<u8> = allowed.0.iter().collect();
            if bytes.is_empty() {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let byte = bytes[(random >> 33) as usize % bytes.len()];
            assert!(pair.iter_mut().all(|matcher| matcher.accept(byte)), "{what}");
        }
    }
}

fn rewritten(text: &str) -> String {
    let mut builder = Builder::new();
    let root = gbnf::parser::read(text, &mut builder).unwrap();
    gbnf::write(&builder, root).unwrap()
}

#[test]
fn a_schema_is_written_as_a_person_would() {
    let text = r#"{"type": "object", "properties": {"on": {"type": "boolean"}, "to": {"enum": ["é", "a\"b"]}}, "required": ["on"]}"#;
    let expected = concat!(
        "root ::= value\n",
        "value ::= \"{\\\"on\\\":\" (\"true\" | \"false\") (\",\\\"to\\\":\" (\"\\\"é\\\"\" | \"\\\"a\\\\\\\"b\\\"\"))? \"}\"\n"
    );
    let written = schema::to_gbnf(text, &SchemaOptions::default()).unwrap();
    assert!(written.contains("(\"true\" | \"false\")"), "{written}\nwanted something like\n{expected}");
    assert!(written.contains("\"a\\\\\\\"b\\\"\"") && written.contains("é"), "{written}");
}

#[test]
fn what_is_written_is_the_same_language() {
    for text in [
        r##"{"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"$ref": "#"}, "c": {"type": "integer",
            "minimum": -3, "maximum": 250}}, "required": ["a"]}"##,
        r#"{"type": "array", "items": {"type": ["string", "number", "null"]}, "minItems": 1, "maxItems": 4}"#,
        r#"{"type": "string", "pattern": "^[a-fα-ω]{2,4}-\\d+$"}"#,
        r#"{"enum": ["rot", "rosa", "grün", "größe", 3, null, {"a": [true]}]}"#,
        r#"{"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "ipv6"}]}"#,
        "true",
    ] {
        for whitespace in [Whitespace::Compact, Whitespace::Flexible] {
            let options = SchemaOptions { whitespace, ..SchemaOptions::default() };
            let written = schema::to_gbnf(text, &options).unwrap();
            agree(schema::compile(text, &options).unwrap().program, gbnf::compile(&written).unwrap(), &written);
        }
    }
    for text in [
        "root ::= \"a\"* (\"b\" | [^\\x00-\\x1f\\\"\\\\é]{2,5} | \"\")+ more?\nmore ::= <think> . | \"]\" root",
        "root ::= ([-^] | \"\\U0001F600\")+ x{,3}\nx ::= \"q\" | x [0-9]",
    ] {
        let written = rewritten(text);
        agree(gbnf::compile(text).unwrap(), gbnf::compile(&written).unwrap(), &written);
        assert_eq!(rewritten(&written), written);
    }
}

#[test]
fn what_is_empty_is_written() {
    for pattern in ["", "a{0}b{0}", "(?:)(?:)", "x|a{0}b{0}", "(?:a{0}b{0}){2}c"] {
        let written = regex::to_gbnf(pattern).unwrap();
        agree(regex::compile(pattern).unwrap(), gbnf::compile(&written).unwrap(), &written);
    }
}

#[test]
fn tools_are_written_with_their_free_text() {
    let tools = r#"[{"name": "now", "parameters": {}}, {"name": "find", "parameters": {"properties": {
        "what": {"type": "string"}, "most": {"type": ["integer", "null"]}, "in": {"type": "string", "maxLength": 9}}, "required": ["what"]}}]"#;
    for (free, parallel) in [(true, true), (false, false)] {
        let options = ToolOptions { free, parallel, ..ToolOptions::default() };
        let written = tools::to_gbnf(tools, &options).unwrap();
        agree(tools::compile(tools, &options).unwrap().program, gbnf::compile(&written).unwrap(), &written);
    }
}

#[test]
fn what_fits_nothing_is_left_out_and_what_is_no_text_is_refused() {
    let mut builder = Builder::new();
    let (root, never) = (builder.declare("root"), builder.declare("never"));
    let endless = builder.rule(never);
    builder.define(never, endless);
    let letter = builder.literal(b"x");
    let some = builder.repeat(endless, 0, None);
    let body = builder.alternatives(vec![endless, letter, some]);
    builder.define(root, body);
    assert_eq!(gbnf::write(&builder, root).unwrap(), "root ::= \"x\" | \"\"\n");
    assert!(gbnf::write(&builder, never).is_err());
    let half = builder.literal(&[0xC3]);
    builder.define(root, half);
    assert!(gbnf::write(&builder, root).unwrap_err().to_string().contains("no characters"));
}

#[test]
fn rules_of_one_name_are_told_apart_and_their_number_costs_nothing() {
    let mut builder = Builder::new();
    let rules: Vec<_> = (0..20_000).map(|_| builder.declare("#/a b/")).collect();
    for (index, rule) in rules.iter().enumerate() {
        let letter = builder.literal(b"x");
        let next = rules.get(index + 1).map(|next| builder.rule(*next));
        let body = builder.sequence(std::iter::once(letter).chain(next).collect());
        builder.define(*rule, body);
    }
    let written = gbnf::write(&builder, rules[0]).unwrap();
    assert!(written.starts_with("root ::= \"x\" a-b\na-b ::= \"x\" a-b-2\n"), "{}", &written[..80]);
    assert_eq!(written.lines().count(), 20_000);
}
