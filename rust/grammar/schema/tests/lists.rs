//! Lists of values: how they come together, and that very long ones stay cheap.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::{SchemaOptions, compile};
use super::{Random, Texts, judge};
use crate::builder::Builder;
use crate::constraint::Constraint;
use crate::matcher::Matcher;
use crate::words::one_of;

/// Every text of a grammar up to a length.
fn language(matcher: &mut Matcher, text: &mut Vec<u8>, found: &mut BTreeSet<Vec<u8>>) {
    if matcher.can_end() {
        found.insert(text.clone());
    }
    let allowed: Vec<u8> = matcher.allowed().iter().collect();
    for byte in allowed {
        let mark = matcher.mark();
        assert!(matcher.accept(byte));
        text.push(byte);
        language(matcher, text, found);
        text.pop();
        matcher.rewind(mark);
    }
}

#[test]
fn a_tree_has_the_texts_and_no_others() {
    let mut random = Random(0x77_0D5);
    for round in 0..300 {
        let length = 1 + random.below(if round % 3 == 0 { 90 } else { 6 });
        let letters = &['a', 'é', 'è', 'b', '€', '日'][round % 3..][..2 + round % 2];
        let mut texts: Vec<String> = (0..1 + random.below(30))
            .map(|_| (0..random.below(length + 1)).map(|_| *random.one_of(letters)).collect())
            .collect();
        texts.push(texts[0].clone());
        let mut builder = Builder::new();
        let node = one_of(&mut builder, texts.clone()).unwrap();
        let root = builder.declare("root");
        builder.define(root, node);
        let mut matcher = Matcher::new(Arc::new(builder.finish(root).unwrap())).unwrap();
        let mut found = BTreeSet::new();
        language(&mut matcher, &mut Vec::new(), &mut found);
        assert_eq!(found, texts.into_iter().map(String::into_bytes).collect(), "round {round}");
    }
    assert!(one_of(&mut Builder::new(), Vec::new()).is_none());
}

#[test]
fn each_text_may_be_the_beginning_of_the_next() {
    let texts: Vec<String> = (0..1200).map(|length| format!("\"{}\"", "a".repeat(length))).collect();
    let mut grammar = Texts::new(&format!(r#"{{"enum":[{}]}}"#, texts.join(",")));
    assert!(grammar.accepts(&texts[0]) && grammar.accepts(&texts[1199]) && grammar.accepts(&texts[600]));
    assert!(!grammar.accepts(&format!("\"{}\"", "a".repeat(1200))));
}

#[test]
fn many_values_in_every_way_of_listing_them() {
    let mut random = Random(0xBEE5);
    // Stems with about thirty words each, such as lists of places have.
    let letters = |random: &mut Random, count: usize| -> String {
        (0..count).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
    };
    let stems: Vec<String> = (0..600).map(|_| letters(&mut random, 7)).collect();
    let words: BTreeSet<String> =
        (0..20_000).map(|_| format!("{}-{}", random.one_of(&stems), letters(&mut random, 5))).collect();
    assert!(words.len() > 19_000);
    let listed: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let constants = |keyword: &str, more: &str| {
        let branches: Vec<String> = listed.iter().map(|word| format!(r#"{{"const":{word}}}"#)).collect();
        format!(r#"{{"{keyword}":[{}{more}]}}"#, branches.join(","))
    };
    for schema in [
        format!(r#"{{"enum":[{}]}}"#, listed.join(",")),
        constants("anyOf", r#",{"type":"null"}"#),
        constants("oneOf", ""),
    ] {
        let compiled = compile(&schema, &SchemaOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        assert!(compiled.program.rules() < 100, "{}", compiled.program.rules());
        let mut texts = Texts { matcher: Matcher::new(Arc::new(compiled.program)).unwrap() };
        listed.iter().step_by(997).for_each(|word| assert!(texts.accepts(word), "{word}"));
        for word in ["\"\"", "\"a\"", "null and more", "\"aaaaaaa-aaaaa\""] {
            assert_eq!(texts.accepts(word), words.contains(word.trim_matches('"')), "{word}");
        }
        assert_eq!(texts.accepts("null"), schema.ends_with("{\"type\":\"null\"}]}"));
    }
}

#[test]
fn numbers_in_a_row_become_digits() {
    let numbers: Vec<String> = (0..30_000).map(|number| format!("\"item-{number:05}\"")).collect();
    let compiled = compile(&format!(r#"{{"enum":[{}]}}"#, numbers.join(",")), &SchemaOptions::default()).unwrap();
    assert!(compiled.program.instructions() < 100, "{}", compiled.program.instructions());
}

#[test]
fn branches_that_list_values_count_as_one_list() {
    judge(
        r#"{"anyOf":[{"const":"a"},{"enum":["b",3]},{"type":"string","enum":["c",4]},{"type":"array","items":{"const":1}}]}"#,
        &[r#""a""#, r#""b""#, r#""c""#, "3", "[1,1]"],
        &["4", "[2]", r#""d""#],
    );
    // What two branches of `oneOf` list fits neither; within one branch it may stand twice.
    judge(
        r#"{"oneOf":[{"enum":[1,1,2]},{"const":2.0},{"enum":[{"x":1,"y":2},3]},{"const":{"y":2.0,"x":1}}]}"#,
        &["1", "3"],
        &["2", "2.0", r#"{"x":1,"y":2}"#],
    );
    judge(
        r#"{"type":"string","anyOf":[{"const":"a"},{"const":1},{"const":"b"}],"oneOf":[{"const":"b"},{"const":"c"}]}"#,
        &[r#""b""#],
        &[r#""a""#, r#""c""#, "1"],
    );
    judge(
        r#"{"minLength":2,"anyOf":[{"const":"a","title":"one"},{"const":"bc","description":"two"}]}"#,
        &[r#""bc""#],
        &[r#""a""#],
    );
    judge(
        r##"{"properties":{"k":{"oneOf":[{"const":"a"},{"const":"b"}]},"l":{"$ref":"#/properties/k"}},"required":["k","l"]}"##,
        &[r#"{"k":"a","l":"b"}"#],
        &[r#"{"k":"c","l":"a"}"#],
    );
    // The same list reached twice restricts once.
    judge(
        r##"{"$defs":{"k":{"anyOf":[{"const":1},{"const":2}]}},"allOf":[{"$ref":"#/$defs/k"},{"$ref":"#/$defs/k"}]}"##,
        &["1", "2"],
        &["3"],
    );
}
