//! Keys that are none of the defined ones, over all short keys.

use serde_json::Value;

use super::Texts;

#[test]
fn every_short_key_is_judged_right() {
    let letters = ['a', 'b', '"', '\\', '\u{1}', 'é', '😀'];
    let mut keys = vec![String::new()];
    let mut last = keys.clone();
    for _ in 0..3 {
        last = last.iter().flat_map(|key| letters.iter().map(move |letter| format!("{key}{letter}"))).collect();
        keys.extend(last.clone());
    }
    for names in
        [&["a"][..], &["", "ab", "aé"], &["\"", "\\", "\u{1}b"], &["😀", "é😀", "aaa"], &["a", "ab", "aba", "b\"b"]]
    {
        let properties: serde_json::Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), Value::Bool(false))).collect();
        let schema = serde_json::json!({"properties": properties, "additionalProperties": {"const": 1}});
        let mut texts = Texts::new(&schema.to_string());
        for key in &keys {
            let text = format!("{{{}:1}}", Value::from(key.as_str()));
            assert_eq!(texts.accepts(&text), !names.contains(&key.as_str()), "{names:?} {text}");
        }
        assert!(texts.accepts("{}") && texts.accepts(r#"{"x":1,"y":1}"#));
    }
}

#[test]
fn no_other_spelling_smuggles_in_a_defined_name() {
    let schema = r#"{"properties":{"ab":{"type":"integer"},"\n":{"type":"integer"}},"additionalProperties":true}"#;
    let mut texts = Texts::new(schema);
    for key in [r"\u0061b", r"a\u0062", r"\u000a", r"\u000A", r"\/", r"c\u0064"] {
        assert!(!texts.accepts(&format!(r#"{{"{key}":"x"}}"#)), "{key}");
    }
    assert!(texts.accepts(r#"{"\n":1,"a":"x","abc":"x","\u0001":null}"#));
}

#[test]
fn long_names_stay_shallow() {
    let name = "x".repeat(5000);
    let schema =
        format!(r#"{{"properties":{{"{name}":{{"type":"integer"}}}},"additionalProperties":{{"type":"null"}}}}"#);
    let mut texts = Texts::new(&schema);
    assert!(texts.accepts(&format!(r#"{{"{name}":1,"{name}x":null,"{}":null}}"#, &name[1..])));
    assert!(!texts.accepts(&format!(r#"{{"{name}":null}}"#)));
}
