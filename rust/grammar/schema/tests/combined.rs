//! Schemas that hold together: `$ref`, `allOf`, `anyOf`, `oneOf`, lists of values.

use super::super::{SchemaOptions, compile};
use super::judge;

#[test]
fn merging() {
    judge(
        r##"{"$defs":{"base":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}},
            "allOf":[{"$ref":"#/$defs/base"},{"properties":{"name":{"type":"string"}}}],"required":["name"]}"##,
        &[r#"{"id":1,"name":"x"}"#],
        &[r#"{"id":1}"#, r#"{"name":"x","id":1}"#, r#"{"id":1,"name":"x","y":1}"#],
    );
    // A property of two schemas fits both; each `additionalProperties` speaks of its own schema's properties.
    judge(
        r#"{"allOf":[{"properties":{"a":{"minimum":3},"b":{}}},{"properties":{"a":{"maximum":5}},"additionalProperties":{"type":"string"}}]}"#,
        &[r#"{"a":4}"#, r#"{"b":"x"}"#, r#"{"a":3,"b":"x","c":"y"}"#],
        &[r#"{"a":2}"#, r#"{"a":6}"#, r#"{"b":1}"#, r#"{"c":1}"#],
    );
    judge(
        r#"{"type":"object","properties":{"k":{"enum":["a","b"]}},"required":["k"],
            "anyOf":[{"properties":{"k":{"const":"a"},"n":{"type":"integer"}},"required":["n"]},{"properties":{"k":{"const":"b"}}}]}"#,
        &[r#"{"k":"a","n":1}"#, r#"{"k":"b"}"#],
        &[r#"{"k":"a"}"#, r#"{"k":"b","n":1}"#, r#"{"k":"c"}"#],
    );
    judge(
        r#"{"type":["string","integer"],"allOf":[{"type":"number"},{"minimum":0,"minLength":4}]}"#,
        &["0", "7"],
        &["-1", "1.5", r#""abcd""#],
    );
    judge(
        r#"{"maxLength":3,"anyOf":[{"minLength":2},{"type":"null"}]}"#,
        &[r#""ab""#, "null"],
        &[r#""a""#, r#""abcd""#, "1"],
    );
    judge(
        r#"{"items":{"minimum":2},"allOf":[{"prefixItems":[{"maximum":5}],"maxItems":2}]}"#,
        &["[]", "[3]", "[2,9]"],
        &["[1]", "[6]", "[3,1]", "[3,4,5]"],
    );
    judge(
        r#"{"required":["q"],"properties":{"a":{"const":1}}}"#,
        &[r#"{"a":1,"q":[]}"#, r#"{"q":1}"#],
        &["{}", r#"{"q":1,"a":1}"#, r#"{"q":1,"z":1}"#],
    );
}

#[test]
fn a_document_may_refer_to_itself_by_its_address() {
    judge(
        r#"{"$id":"https://example.com/tree","type":"object","properties":{"v":{"$ref":"https://example.com/tree#/$defs/v"},
            "t":{"$ref":"https://example.com/tree"}},"$defs":{"v":{"type":"integer"}}}"#,
        &[r#"{"v":1}"#, r#"{"t":{"t":{"v":2}}}"#],
        &[r#"{"v":"x"}"#, r#"{"t":{"t":3}}"#],
    );
    for reference in
        ["https://example.com/tree/", "https://example.com/tre", "https://example.com/trees#/$defs/v", "tree"]
    {
        let schema = format!(r#"{{"$id":"https://example.com/tree","$ref":"{reference}","$defs":{{"v":{{}}}}}}"#);
        assert_eq!(
            compile(&schema, &SchemaOptions::default()).unwrap_err().code(),
            "schema_unsupported",
            "{reference}"
        );
    }
}

#[test]
fn lists_of_values_are_filtered() {
    judge(r#"{"type":"integer","enum":[1,"1",2.5,30,null],"maximum":9}"#, &["1"], &["\"1\"", "2.5", "30", "null"]);
    judge(r#"{"enum":["abc","xyz"],"pattern":"b"}"#, &[r#""abc""#], &[r#""xyz""#]);
    judge(
        r#"{"enum":[[1],[2,3],{"a":1},{"a":"x"}],"items":{"minimum":2},"properties":{"a":{"type":"string"}}}"#,
        &["[2,3]", r#"{"a":"x"}"#],
        &["[1]", r#"{"a":1}"#],
    );
    judge(r#"{"enum":[1,2,3],"allOf":[{"enum":[2,3,4]},{"enum":[3,2.0]}]}"#, &["2", "3"], &["1", "4"]);
    judge(r#"{"enum":[[1,1],[1,2]],"uniqueItems":true}"#, &["[1,2]"], &["[1,1]"]);
    judge(
        r#"{"const":{"b":[1,{"c":null}],"a":"\u0001é/"}}"#,
        &[r#"{"b":[1,{"c":null}],"a":"\u0001é/"}"#],
        &[r#"{"a":"\u0001é/","b":[1,{"c":null}]}"#],
    );
}

#[test]
fn one_of_with_proof() {
    judge(
        r#"{"oneOf":[{"type":"string"},{"type":"null"},{"type":"array"}]}"#,
        &[r#""a""#, "null", "[1]"],
        &["1", "{}"],
    );
    judge(r#"{"oneOf":[{"const":1},{"enum":[2,"x"]},{"type":"boolean"}]}"#, &["1", "2", r#""x""#, "true"], &["3"]);
    judge(r#"{"type":"integer","oneOf":[{"maximum":3},{"minimum":4}]}"#, &["3", "4"], &["3.5"]);
    judge(
        r##"{"$defs":{"cat":{"type":"object","properties":{"kind":{"const":"cat"},"lives":{"type":"integer"}},"required":["kind"]},
            "dog":{"type":"object","properties":{"kind":{"enum":["dog","wolf"]}},"required":["kind"]}},
            "oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}]}"##,
        &[r#"{"kind":"cat","lives":9}"#, r#"{"kind":"wolf"}"#],
        &[r#"{"kind":"dog","lives":9}"#, "{}"],
    );
    // One side requires what the other side forbids.
    judge(
        r#"{"type":"object","oneOf":[{"properties":{"a":{}},"required":["a"]},{"properties":{"b":{}},"additionalProperties":false}]}"#,
        &[r#"{"a":1}"#, r#"{"b":1}"#, "{}"],
        &[r#"{"a":1,"b":1}"#],
    );
    judge(r#"{"oneOf":[{"type":"integer","minimum":1}]}"#, &["1"], &["0"]);
}

#[test]
fn references() {
    judge(
        r##"{"$ref":"#node","$defs":{"x":{"$anchor":"node","type":"array","items":{"$ref":"#node"}}}}"##,
        &["[]", "[[],[[]]]"],
        &["1", "[1]"],
    );
    judge(r##"{"$defs":{"a/b~c d":{"type":"integer"}},"$ref":"#/$defs/a~1b~0c%20d"}"##, &["1"], &["\"x\""]);
    judge(
        r##"{"items":[{"type":"integer"},{"$ref":"#/items/0"}],"additionalItems":false}"##,
        &["[1,2]"],
        &["[1,\"x\"]", "[1,2,3]"],
    );
    judge(
        r##"{"enum":[{"$anchor":"t"}],"$defs":{"t":{"$anchor":"t","const":1}},"properties":{"a":{"$ref":"#t"}}}"##,
        &[r#"{"$anchor":"t"}"#],
        &["{}"],
    );
    judge(
        r##"{"type":"object","properties":{"value":{},"children":{"type":"array","items":{"$ref":"#"}}},"required":["value"]}"##,
        &[r#"{"value":1,"children":[{"value":{"x":[]},"children":[]}]}"#],
        &[r#"{"children":[]}"#, r#"{"value":1,"children":[{}]}"#],
    );
    // The empty reference is the whole document, but for one within a base of its own.
    judge(
        r#"{"$id":"http://x/y","type":"object","properties":{"a":{"$ref":""}}}"#,
        &["{}", r#"{"a":{"a":{}}}"#],
        &[r#"{"a":1}"#],
    );
    let own = r#"{"properties":{"a":{"$id":"http://x/","items":{"$ref":""}}}}"#;
    assert_eq!(compile(own, &SchemaOptions::default()).unwrap_err().code(), "schema_unsupported");
    // Siblings of a reference hold too.
    judge(r##"{"$defs":{"s":{"type":"string"}},"$ref":"#/$defs/s","maxLength":2}"##, &[r#""ab""#], &[r#""abc""#, "1"]);
    judge(
        r#"{"$schema":"http://json-schema.org/draft-07/schema#","prefixItems":[{"type":"string"}],"items":{"type":"integer"}}"#,
        &["[1]"],
        &[r#"["a",1]"#],
    );
}

#[test]
fn any_value() {
    judge(
        "true",
        &["null", "true", "-1.5e9", r#""a\u0000""#, "[]", r#"{"a":[{"b":{}}],"":1}"#],
        &["", "nul", "[1,]", r#"{"a"}"#, r#"{a:1}"#, "[1 ]", "\"\u{1}\""],
    );
    judge(r#"{"type":"object"}"#, &["{}", r#"{"x":[1]}"#], &["[]", "1"]);
    judge(r#"{"type":"object","properties":{}}"#, &["{}"], &[r#"{"x":1}"#]);
}

#[test]
fn alternatives_without_values_are_left_out() {
    let union = r##""$defs":{"u":{"anyOf":[
        {"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k"]},
        {"type":"object","properties":{"k":{"const":"b"}},"required":["k"]},
        {"type":"object","properties":{"k":{"const":"c"},"next":{"$ref":"#/$defs/endless"}},"required":["k","next"]}]},
        "endless":{"type":"object","properties":{"next":{"$ref":"#/$defs/endless"}},"required":["next"]}}"##;
    judge(
        &format!(r##"{{{union},"allOf":[{{"$ref":"#/$defs/u"}},{{"properties":{{"k":{{"enum":["a","c"]}}}}}}]}}"##),
        &[r#"{"k":"a","v":1}"#],
        &[r#"{"k":"b"}"#, r#"{"k":"c"}"#],
    );
    let schema = format!(r##"{{{union},"$ref":"#/$defs/u"}}"##);
    let notes = super::compile(&schema, &super::SchemaOptions::default()).unwrap().notes;
    assert!(notes.iter().any(|note| note.pointer == "#/$defs/endless"), "{notes:?}");
}
