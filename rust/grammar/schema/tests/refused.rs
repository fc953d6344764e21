//! What is refused, and how it is said.

use super::super::keywords::names;
use super::super::{Kinds, SchemaOptions, Types, compile, kinds, read};
use super::{Texts, judge};
use crate::error::FaultCode;

fn faults(schema: &str) -> Vec<(&'static str, String)> {
    let error = compile(schema, &SchemaOptions::default()).expect_err(schema);
    error.faults().iter().map(|fault| (fault.code.slug(), fault.pointer.clone().unwrap_or_default())).collect()
}

#[test]
fn keywords_that_cannot_be_enforced() {
    for (schema, pointer) in [
        (r#"{"not":{"type":"string"}}"#, "#/not"),
        (r#"{"type":"object","patternProperties":{"^a":{}}}"#, "#/patternProperties"),
        (r#"{"properties":{"a":{"type":"array","contains":{}}}}"#, "#/properties/a/contains"),
        (r#"{"items":{"if":{},"then":{"type":"string"}}}"#, "#/items/if"),
        (r#"{"propertyNames":{"maxLength":3}}"#, "#/propertyNames"),
        (r#"{"dependentRequired":{"a":["b"]}}"#, "#/dependentRequired"),
        (r#"{"dependentSchemas":{"a":{}}}"#, "#/dependentSchemas"),
        (r#"{"dependencies":{"a":["b"]}}"#, "#/dependencies"),
        (r#"{"unevaluatedProperties":false}"#, "#/unevaluatedProperties"),
        (r#"{"unevaluatedItems":false}"#, "#/unevaluatedItems"),
        (r##"{"$dynamicRef":"#x"}"##, "#/$dynamicRef"),
        (r##"{"$recursiveRef":"#"}"##, "#/$recursiveRef"),
        (r#"{"type":"array","uniqueItems":true}"#, "#/uniqueItems"),
        (r#"{"type":"object","minProperties":1}"#, "#/minProperties"),
        (r#"{"type":"object","maxProperties":1}"#, "#/maxProperties"),
        (r#"{"type":"integer","multipleOf":3}"#, "#/multipleOf"),
        (r#"{"type":"string","pattern":"^(?=a)b$"}"#, "#/pattern"),
        (r#"{"type":"string","pattern":"^a*b*$","maxLength":3}"#, "#/maxLength"),
        (r#"{"type":"string","pattern":"a","format":"date"}"#, "#/pattern"),
        (r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#, "#/oneOf"),
        (r#"{"oneOf":[{"minLength":2},{"minimum":3}]}"#, "#/oneOf"),
        (r#"{"oneOf":[{"const":1},{"enum":[1.0,2]},{"type":"integer"}]}"#, "#/oneOf"),
        (r#"{"oneOf":[{"const":1},{"const":2},{"type":"integer"}]}"#, "#/oneOf"),
        (r#"{"oneOf":[{"properties":{"a":{"const":1}}},{"properties":{"a":{"const":2}}}]}"#, "#/oneOf"),
        (r#"{"enum":[{"a":1}],"properties":{"a":{"oneOf":[{},{"type":"integer"}]}}}"#, "#/properties/a/oneOf"),
        (r#"{"enum":[3],"multipleOf":2}"#, "#/enum"),
        (r#"{"type":"string","contentEncoding":"base64"}"#, "#/contentEncoding"),
        (r#"{"properties":{"a":{"contentMediaType":"application/json"}}}"#, "#/properties/a/contentMediaType"),
        (r#"{"items":{"type":"string","contentMediaType":"a/b"}}"#, "#/items/contentMediaType"),
    ] {
        assert_eq!(faults(schema), [("schema_unsupported", pointer.to_owned())], "{schema}");
        let lenient = SchemaOptions { lenient: true, ..SchemaOptions::default() };
        let compiled = compile(schema, &lenient).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert!(compiled.notes.iter().any(|note| note.pointer == pointer), "{schema} {:?}", compiled.notes);
    }
}

#[test]
fn keywords_that_ask_for_nothing_are_no_fault() {
    for schema in [
        r#"{"not":false,"type":"integer"}"#,
        r#"{"if":{"type":"string"},"then":true,"type":"integer"}"#,
        r#"{"then":{"type":"string"},"else":false,"type":"integer"}"#,
        r#"{"type":["integer","object"],"patternProperties":{},"dependentRequired":{},"dependencies":{},"minProperties":0}"#,
        r#"{"type":["integer","array"],"uniqueItems":false,"minContains":0,"contains":{"type":"string"}}"#,
        r#"{"type":"integer","uniqueItems":true,"contains":{},"patternProperties":{"a":{}},"minProperties":3,"propertyNames":{"maxLength":3}}"#,
        r#"{"type":["integer","object"],"unevaluatedProperties":{},"propertyNames":{"type":"string"}}"#,
        r#"{"type":["integer","object"],"properties":{"a":{}},"maxProperties":1}"#,
        r#"{"type":["integer","object"],"properties":{"a":{}},"required":["a"],"minProperties":1}"#,
        r#"{"type":"integer","title":"t","description":"d","default":"x","examples":[1],"$comment":"c","deprecated":true,"readOnly":true}"#,
    ] {
        judge(schema, &["7"], &["\"a\"", "7.5"]);
    }
}

#[test]
fn se_18_nothing_is_opened() {
    for schema in [
        r#"{"$ref":"http://127.0.0.1:9/x"}"#,
        r#"{"$ref":"file:///etc/passwd"}"#,
        r#"{"$id":"http://x/","$ref":"y"}"#,
        r##"{"$defs":{"a":{"$id":"http://x/","$ref":"#/$defs/b"},"b":{}},"$ref":"#/$defs/a"}"##,
    ] {
        for lenient in [false, true] {
            let error = compile(schema, &SchemaOptions { lenient, ..SchemaOptions::default() }).expect_err(schema);
            assert_eq!(error.code(), "schema_unsupported", "{schema}");
            assert!(error.faults()[0].pointer.as_deref().unwrap().ends_with("/$ref"), "{schema}");
        }
    }
}

#[test]
fn malformed_schemas() {
    for (schema, pointer) in [
        ("5", "#"),
        (r#"{"type":"text"}"#, "#/type"),
        (r#"{"type":[]}"#, "#/type"),
        (r#"{"properties":[1]}"#, "#/properties"),
        (r#"{"properties":{"a":3},"required":["a"]}"#, "#/properties/a"),
        (r#"{"required":"a"}"#, "#/required"),
        (r#"{"minLength":-1}"#, "#/minLength"),
        (r#"{"minLength":1.5}"#, "#/minLength"),
        (r#"{"minimum":"3"}"#, "#/minimum"),
        (r#"{"exclusiveMinimum":true}"#, "#/exclusiveMinimum"),
        (r#"{"anyOf":[]}"#, "#/anyOf"),
        (r#"{"allOf":{}}"#, "#/allOf"),
        (r#"{"enum":3}"#, "#/enum"),
        (r#"{"pattern":3}"#, "#/pattern"),
        (r#"{"pattern":"("}"#, "#/pattern"),
        (r#"{"format":3,"type":"string"}"#, "#/format"),
        (r#"{"prefixItems":{}}"#, "#/prefixItems"),
        (r#"{"multipleOf":0}"#, "#/multipleOf"),
        (r##"{"$ref":"#/nowhere"}"##, "#/$ref"),
        (r##"{"$ref":"#anchor"}"##, "#/$ref"),
        (r##"{"$ref":3}"##, "#/$ref"),
    ] {
        let found = faults(schema);
        assert!(found.contains(&("grammar_syntax", pointer.to_owned())), "{schema} {found:?}");
    }
    let error = compile("{\n  \"type\": oops\n}", &SchemaOptions::default()).unwrap_err();
    assert_eq!(
        error.faults()[0].place.as_ref().map(|place| (place.line, place.text.as_str())),
        Some((2, "  \"type\": oops"))
    );
}

#[test]
fn all_faults_in_one_run() {
    let schema = r##"{"type":"object","properties":{"a":{"not":{}},"b":{"items":{"type":"nothing"}},"c":{"$ref":"x.json"},"d":{"enum":[]}}}"##;
    let mut found = faults(schema);
    found.sort();
    let pointers: Vec<&str> = found.iter().map(|(_, pointer)| pointer.as_str()).collect();
    assert_eq!(
        pointers,
        ["#/properties/d/enum", "#/properties/b/items/type", "#/properties/a/not", "#/properties/c/$ref"]
    );
}

#[test]
fn what_leniency_would_ignore_says_so() {
    for schema in [r#"{"not":{}}"#, r#"{"type":"string","pattern":"^(?=a)b$"}"#, r#"{"pattern":"\\bword"}"#] {
        let error = compile(schema, &SchemaOptions::default()).unwrap_err();
        let fix = error.faults()[0].fix.clone().unwrap_or_default();
        assert!(fix.contains("--schema-lenient"), "{schema} {fix}");
        assert!(compile(schema, &SchemaOptions { lenient: true, ..SchemaOptions::default() }).is_ok(), "{schema}");
    }
    // What has a remedy of its own names that.
    let faulty = r#"{"pattern":"(?P<x>a)"}"#;
    let error = compile(faulty, &SchemaOptions::default()).unwrap_err();
    assert_eq!(error.faults()[0].fix.as_deref(), Some("write (?<name>...)"));
}

#[test]
fn schemas_without_values() {
    for (schema, pointer) in [
        ("false", "#"),
        (r#"{"type":"integer","minimum":3,"maximum":2}"#, "#"),
        (r#"{"type":"integer","minimum":2.1,"maximum":2.9}"#, "#"),
        (r#"{"properties":{"a":false},"required":["a"]}"#, "#/properties/a"),
        (r#"{"properties":{"a":{"type":"string","enum":[1]}},"required":["a"]}"#, "#/properties/a"),
        (r#"{"properties":{},"additionalProperties":false,"required":["a"]}"#, "#/additionalProperties"),
        (
            r##"{"properties":{"b":{"properties":{"a":{"$ref":"#"}},"required":["a"]}},"required":["b"]}"##,
            "#/properties/b",
        ),
        (r#"{"type":"array","minItems":2,"maxItems":1}"#, "#"),
        (r#"{"type":"array","minItems":1,"items":false}"#, "#"),
        (r##"{"$ref":"#"}"##, "#"),
        (r#"{"$ref":""}"#, "#"),
        (r##"{"anyOf":[{"$ref":"#"},{"type":"string"}]}"##, "#"),
        (r#"{"allOf":[{"type":"string"},{"type":"integer"}]}"#, "#"),
    ] {
        let found = faults(schema);
        assert!(found.contains(&("grammar_dead_end", pointer.to_owned())), "{schema} {found:?}");
    }
}

#[test]
fn numbers_are_named_as_they_are_written() {
    for (schema, code, what) in [
        (r#"{"type":"string","minLength":1e20}"#, "grammar_too_complex", "100000000000000000000 repetitions"),
        (
            r#"{"allOf":[{"minItems":3e19},{"minItems":1e20}]}"#,
            "grammar_too_complex",
            "100000000000000000000 repetitions",
        ),
        (r#"{"maximum":1e400}"#, "schema_unsupported", "the number 1e400 cannot be kept exactly"),
        (r#"{"minimum":-1E+400}"#, "schema_unsupported", "the number -1E+400 cannot be kept exactly"),
        (r#"{"minimum":1e-400}"#, "schema_unsupported", "the number 1e-400 cannot be kept exactly"),
        (r#"{"minimum":1ee400}"#, "grammar_syntax", "no JSON"),
    ] {
        let error = compile(schema, &SchemaOptions::default()).unwrap_err();
        assert_eq!(error.code(), code, "{schema}");
        assert!(error.faults()[0].what.contains(what), "{schema} {error}");
    }
}

#[test]
fn limits_hold() {
    let deep = |levels: usize| format!("{}true{}", r#"{"items":"#.repeat(levels), "}".repeat(levels));
    assert!(compile(&deep(256), &SchemaOptions::default()).is_ok(), "as deep as the limit says");
    let error = compile(&deep(257), &SchemaOptions::default()).unwrap_err();
    let fault = &error.faults()[0];
    assert_eq!((error.code(), fault.what.as_str()), ("grammar_too_complex", "too complex: 257 levels of nesting"));
    assert_eq!(fault.place.as_ref().map(|place| place.column), Some(256 * r#"{"items":"#.len() + 1));
    assert!(compile(&format!(r#"{{"const":{:?}}}"#, "[".repeat(300)), &SchemaOptions::default()).is_ok(), "a text");
    let choices: Vec<String> = (0..14)
        .map(|at| format!(r#"{{"anyOf":[{{"title":"{at}"}},{{"minLength":{at}}},{{"maxLength":{}}}]}}"#, at + 50))
        .collect();
    let product = format!(r#"{{"allOf":[{}]}}"#, choices.join(","));
    assert_eq!(compile(&product, &SchemaOptions::default()).unwrap_err().code(), "grammar_too_complex");
    for schema in [r#"{"type":"string","minLength":9000000}"#, r#"{"type":"array","minItems":9000000}"#] {
        assert_eq!(compile(schema, &SchemaOptions::default()).unwrap_err().code(), "grammar_too_complex");
    }
    judge(r#"{"type":"string","maxLength":1e30}"#, &[r#""a""#], &[]);
    let error = compile(r#"{"const":18446744073709551617}"#, &SchemaOptions::default()).unwrap_err();
    assert_eq!(error.faults()[0].code, FaultCode::Unsupported);
    assert!(
        compile(r#"{"const":0.30000000000000004,"title":"18446744073709551617"}"#, &SchemaOptions::default()).is_ok()
    );
}

#[test]
fn notes_say_what_is_narrowed() {
    let schema =
        r#"{"type":"object","properties":{"a":{"type":"string","format":"colour"},"b":{"x-order":1,"properties":{}}}}"#;
    let notes = compile(schema, &SchemaOptions::default()).unwrap().notes;
    let pointers: Vec<&str> = notes.iter().map(|note| note.pointer.as_str()).collect();
    assert_eq!(pointers.len(), 3, "{notes:?}");
    for pointer in ["#", "#/properties/a/format", "#/properties/b/x-order"] {
        assert!(pointers.contains(&pointer), "{notes:?}");
    }
}

#[test]
fn kinds_of_values() {
    let document = read(r##"{"properties":{"a":{"type":["string","null"]},"b":{"enum":["x","y",3]},"c":{"$ref":"#/$defs/n"},"d":{"minimum":1},"e":{},"f":{"type":"string","enum":["p"]}},"$defs":{"n":{"anyOf":[{"const":"u"},{"type":"string","enum":["v"]}]}}}"##).unwrap();
    let of = |name: &str| kinds(&document, &format!("#/properties/{name}"), &SchemaOptions::default()).unwrap();
    let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    assert_eq!(of("a"), Kinds { types: Types::STRING.or(Types::NULL), strings: None });
    assert_eq!(of("b"), Kinds { types: Types::STRING.or(Types::INTEGER), strings: words(&["x", "y"]) });
    assert_eq!(of("c"), Kinds { types: Types::STRING, strings: words(&["u", "v"]) });
    assert_eq!(of("d"), Kinds { types: Types::NUMBER, strings: None });
    assert_eq!(of("e"), Kinds { types: Types::ALL, strings: None });
    assert_eq!(of("f"), Kinds { types: Types::STRING, strings: words(&["p"]) });
    assert!(kinds(&document, "#/properties/zzz", &SchemaOptions::default()).is_err());
}

#[test]
fn a_wide_schema_stays_small() {
    let properties: Vec<String> = (0..2000).map(|at| format!(r#""field{at}":{{"type":"string"}}"#)).collect();
    let schema =
        format!(r#"{{"type":"object","properties":{{{}}},"additionalProperties":true}}"#, properties.join(","));
    let compiled = compile(&schema, &SchemaOptions::default()).unwrap();
    assert!(compiled.program.instructions() < 150_000, "{}", compiled.program.instructions());
    assert!(Texts::new(&schema).accepts(r#"{"field3":"x","field1999":"","z":0}"#));
}

#[test]
fn any_argument_of_any_keyword_is_answered() {
    let arguments =
        r##"null true false -1 0 2.5 1e300 "" "#" "x" [] [[]] ["a"] [1,1] {} {"a":1} {"type":"null"} [{},false]"##;
    let (mut fine, mut refused) = (0, 0);
    for keyword in names().chain(["x-other"]) {
        for argument in arguments.split(' ') {
            for frame in [
                r#"{"K":A}"#,
                r#"{"type":["object","array","string","number"],"K":A}"#,
                r#"{"properties":{"a":{"K":A}},"enum":[{"a":2}]}"#,
            ] {
                let schema = frame.replace('A', argument).replace('K', keyword);
                for lenient in [false, true] {
                    match compile(&schema, &SchemaOptions { lenient, ..SchemaOptions::default() }) {
                        Ok(_) => fine += 1,
                        Err(error) => {
                            assert!(error.faults().iter().all(|fault| fault.pointer.is_some()), "{schema}");
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(fine > 500 && refused > 500, "{fine} {refused}");
}

#[test]
fn hostile_sizes_end() {
    let list = |count: usize, entry: &dyn Fn(usize) -> String| (0..count).map(entry).collect::<Vec<_>>().join(",");
    let long = "n".repeat(500_000);
    for schema in [
        format!(r#"{{"allOf":[{}]}}"#, list(100_000, &|_| r#"{"minLength":1}"#.to_owned())),
        format!(r#"{{"anyOf":[{}]}}"#, list(100_000, &|at| format!(r#"{{"minimum":{at}}}"#))),
        format!(
            r#"{{"properties":{{"{long}":{{"properties":{{{}}}}}}}}}"#,
            list(100_000, &|at| format!(r#""{at}":{{}}"#))
        ),
        format!(
            r#"{{"properties":{{{}}},"additionalProperties":true}}"#,
            list(200_000, &|at| format!(r#""{}":{{}}"#, char::from_u32(0x1_0000 + at as u32).unwrap()))
        ),
        format!(
            r#"{{"oneOf":[{}]}}"#,
            list(4000, &|at| format!(r#"{{"type":"integer","maximum":{at},"minimum":{at}}}"#))
        ),
        format!(r#"{{"enum":[{}],"pattern":"{long}"}}"#, list(50_000, &|at| format!(r#""{at}""#))),
    ] {
        assert_eq!(
            compile(&schema, &SchemaOptions::default()).unwrap_err().code(),
            "grammar_too_complex",
            "{}",
            &schema[..60]
        );
    }
    let schema = format!(r#"{{"enum":[{}]}}"#, list(5000, &|at| at.to_string()));
    judge(&schema, &["0", "4999"], &["5000"]);
}
