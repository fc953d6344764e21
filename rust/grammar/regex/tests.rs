use std::sync::Arc;

use super::{compile, parse};
use crate::constraint::Constraint;
use crate::matcher::Matcher;

fn accepts(pattern: &str, input: &str) -> bool {
    let mut matcher =
        Matcher::new(Arc::new(compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}")))).unwrap();
    input.bytes().all(|byte| matcher.accept(byte)) && matcher.can_end()
}

#[test]
fn notation() {
    for (pattern, good, bad) in [
        (r"^\d{4}-[^\D]{2}$", &["2024-05"][..], &["20a4-05", "2024-5", "2024-0x", "2024-055"][..]),
        (r"a|bc*?|(?:de){2,3}", &["a", "b", "bccc", "dede", "dedede"], &["", "de", "dededede", "abc"]),
        (r"[a\-z\]\\]+", &["a-z", "]\\"], &["b", ""]),
        (r"\u00e9\x41\u{1F600}\uD83D\uDE00\t", &["éA😀😀\t"], &["éA😀\t"]),
        (r"x{,3}", &["x{,3}"], &["x", "xxx"]),
        (r"^x{2}{,3}{$", &["xx{,3}{"], &["xx", "x{2}{,3}{"]),
        (r".", &["é", "😀", "\t"], &["", "\n", "ab"]),
        (r"(?<year>\d\d)\s", &["19 ", "19\u{00A0}"], &["19", "1 "]),
        (r"", &[""], &["a"]),
    ] {
        good.iter().for_each(|text| assert!(accepts(pattern, text), "{pattern} must match {text:?}"));
        bad.iter().for_each(|text| assert!(!accepts(pattern, text), "{pattern} must not match {text:?}"));
    }
}

#[test]
fn what_is_not_regular_or_not_understood_is_refused() {
    for (pattern, code) in [
        (r"(?=a)b", "schema_unsupported"),
        (r"(a)\1", "schema_unsupported"),
        (r"\bword", "schema_unsupported"),
        (r"\p{L}", "schema_unsupported"),
        (r"a^b", "schema_unsupported"),
        (r"(a$)b", "schema_unsupported"),
        (r"a**", "grammar_syntax"),
        (r"*a", "grammar_syntax"),
        (r"a{2}{3}", "grammar_syntax"),
        (r"a+?{3,}", "grammar_syntax"),
        (r"^{2}", "grammar_syntax"),
        (r"^x{0}{2}", "grammar_syntax"),
        (r"a|({1,2})", "grammar_syntax"),
        (r"(a", "grammar_syntax"),
        (r"a)", "grammar_syntax"),
        (r"[a", "grammar_syntax"),
        (r"[z-a]", "grammar_syntax"),
        (r"a{3,2}", "grammar_syntax"),
        (r"\y", "grammar_syntax"),
        (r"\", "grammar_syntax"),
        (r"a{1,9999999999}", "grammar_too_complex"),
    ] {
        assert_eq!(compile(pattern).expect_err(pattern).code(), code, "{pattern}");
    }
    assert!(accepts(&"{1,".repeat(50_000), &"{1,".repeat(50_000)), "braces that begin no count");
    let deep = format!("{}a{}", "(".repeat(60_000), ")".repeat(60_000));
    assert_eq!(compile(&deep).unwrap_err().code(), "grammar_too_complex");
}

#[test]
fn a_group_named_as_in_python_is_told_from_a_look_around() {
    let error = compile("a(?P<x>b)").unwrap_err();
    let fault = &error.faults()[0];
    assert_eq!((error.code(), fault.fix.as_deref()), ("schema_unsupported", Some("write (?<name>...)")));
    assert_eq!(fault.place.as_ref().map(|place| place.column), Some(2));
    assert!(compile("a(?<x>b)").is_ok());
    assert!(compile("(?=a)").unwrap_err().to_string().contains("look-around"));
}

#[test]
fn lengths_of_matches() {
    for (pattern, least, most) in
        [("ab?c*", 1, None), ("(a|bcd){2,4}", 2, Some(12)), ("", 0, Some(0)), ("a{3}", 3, Some(3))]
    {
        assert_eq!(parse(pattern, true).unwrap().lengths(), (least, most), "{pattern}");
    }
}
