//! Strings: every way of writing a character, lengths, patterns, formats.

use serde_json::Value;

use super::{Random, Texts, judge};
use crate::builder::Builder;
use crate::constraint::Constraint;
use crate::matcher::Matcher;
use crate::regex::Characters;
use crate::schema::string::Quoted;

/// Every spelling of a code point between quotes.
fn spellings(code: u32) -> Vec<String> {
    let character = char::from_u32(code).unwrap();
    let mut units = [0u16; 2];
    let units = character.encode_utf16(&mut units);
    let lower: String = units.iter().map(|unit| format!("\\u{unit:04x}")).collect();
    let upper: String = units.iter().map(|unit| format!("\\u{unit:04X}")).collect();
    let mut all = vec![lower, upper];
    if let Some(at) = "\"\\/\u{8}\u{c}\n\r\t".chars().position(|other| other == character) {
        all.push(format!("\\{}", ["\"", "\\", "/", "b", "f", "n", "r", "t"][at]));
    }
    if code >= 0x20 && character != '"' && character != '\\' {
        all.push(character.to_string());
    }
    all
}

#[test]
fn a_class_holds_every_spelling_of_its_members_and_nothing_else() {
    let mut random = Random(7);
    let edges = [
        0, 8, 0x1F, 0x20, 0x22, 0x23, 0x2F, 0x41, 0x5C, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x1_0000,
        0x1_03FF, 0x1_0400, 0x1_F600, 0x10_FBFF, 0x10_FC00, 0x10_FFFF,
    ];
    for _ in 0..60 {
        let mut ranges = Vec::new();
        for _ in 0..=random.below(3) {
            let (one, other) = (*random.one_of(&edges), *random.one_of(&edges));
            ranges.push((one.min(other), one.max(other)));
        }
        let ranges = crate::utf8::normalised(ranges);
        let mut builder = Builder::new();
        let root = builder.declare("root");
        let body = Quoted::default().one_of(&mut builder, &ranges);
        builder.define(root, body);
        let mut matcher = Matcher::new(std::sync::Arc::new(builder.finish(root).unwrap())).unwrap();
        let single = matches!(*ranges, [(low, high)] if low == high);
        let mut codes: Vec<u32> = edges.iter().flat_map(|edge| [edge.saturating_sub(1), *edge, edge + 1]).collect();
        codes.extend((0..50).map(|_| random.below(0x11_0000) as u32));
        for code in codes.into_iter().filter(|code| char::from_u32(*code).is_some()) {
            let member = ranges.iter().any(|(low, high)| (*low..=*high).contains(&code));
            for text in spellings(code) {
                let start = matcher.mark();
                let fits = text.bytes().all(|byte| matcher.accept(byte)) && matcher.can_end();
                matcher.rewind(start);
                assert!(fits == member || (single && !fits), "{ranges:x?} {code:x} {text}");
            }
        }
        for half in ["\\ud800", "\\udc00", "\\ud800\\ud800", "\\udc00\\ud800", "\\ud800x", "\\uD83D\\u0041"] {
            let start = matcher.mark();
            assert!(!(half.bytes().all(|byte| matcher.accept(byte)) && matcher.can_end()), "{half}");
            matcher.rewind(start);
        }
    }
}

#[test]
fn lengths_count_code_points() {
    judge(
        r#"{"type":"string","minLength":2,"maxLength":3}"#,
        &[r#""ab""#, r#""é\u00e9""#, r#""😀\ud83d\ude00\n""#, r#""\\\"\/""#, r#""abc""#],
        &[
            r#""a""#,
            r#""abcd""#,
            r#""\u00e9""#,
            r#""\ud83d\ude00""#,
            "\"a\nb\"",
            r#""ab"#,
            r#""a\x""#,
            r#""\ud83d\u0041""#,
            r#""\ude00\ude00""#,
        ],
    );
    judge(r#"{"type":"string","maxLength":0}"#, &[r#""""#], &[r#""a""#]);
}

#[test]
fn patterns() {
    judge(
        r#"{"type":"string","pattern":"^[a-zé]+-\\d$"}"#,
        &[r#""ab-1""#, r#""é-0""#, r#""\u00e9\u0061-1""#],
        &[r#""-1""#, r#""AB-1""#, r#""ab-12""#, r#""ab-1\n""#],
    );
    judge(r#"{"pattern":"b"}"#, &[r#""abc""#, r#""b""#, r#""\n\"b😀""#], &[r#""ac""#, r#""""#]);
    judge(
        r#"{"pattern":"^[^\"\\\\]$"}"#,
        &[r#""a""#, r#""\n""#, r#""😀""#],
        &[r#""\"""#, r#""\\""#, r#""\u0022""#, r#""\u005C""#, r#""""#],
    );
    // The lengths go into the pattern where that can be done exactly.
    judge(r#"{"pattern":"^[a-z]+$","maxLength":3}"#, &[r#""a""#, r#""abc""#], &[r#""""#, r#""abcd""#]);
    judge(
        r#"{"pattern":"^x[a-z]*y$","minLength":3,"maxLength":4}"#,
        &[r#""xay""#, r#""xaay""#],
        &[r#""xy""#, r#""xaaay""#],
    );
    judge(r#"{"pattern":"^(ab|cd)$","minLength":2,"maxLength":9}"#, &[r#""ab""#], &[r#""abab""#]);
    // What is fixed in a pattern is fixed byte by byte.
    assert_eq!(Texts::new(r#"{"pattern":"^ID-\\d$"}"#).forced_at_start(), "\"ID-");
}

#[test]
fn formats() {
    for (format, good, bad) in [
        (
            "date",
            &["2024-02-29", "2000-02-29", "1999-12-31"][..],
            &["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "24-01-01", "2024-1-1"][..],
        ),
        ("time", &["00:00:00Z", "23:59:59.123+05:30"], &["24:00:00Z", "12:00:00", "12:60:00Z", "12:00Z"]),
        (
            "date-time",
            &["2024-02-29T12:00:00Z", "2024-01-31T23:59:59.5-08:00"],
            &["2024-02-30T12:00:00Z", "2024-02-29 12:00:00Z"],
        ),
        ("duration", &["P1Y2M3DT4H5M6S", "PT1S", "P3W", "P1D"], &["P", "PT", "P1S", "1D", "P1Y3D", "P1W1D"]),
        (
            "email",
            &["a.b@example.com", "x_y+z@mail.example.org"],
            &["a@b", "@b.com", "a.@b.com", "a b@c.com", "a@-b.com"],
        ),
        ("hostname", &["localhost", "a-b.example.com"], &["", "-a", "a-", "a..b", "a_b", "xn--a"]),
        ("ipv4", &["0.0.0.0", "255.249.199.99"], &["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"]),
        (
            "ipv6",
            &["::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1::3:4:5:6:7:8"],
            &["1:2:3:4:5:6:7", "1::2::3", ":::", "12345::", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::8:9"],
        ),
        (
            "uuid",
            &["123e4567-e89b-12d3-a456-426614174000"],
            &["123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000"],
        ),
        (
            "uri",
            &["https://example.com/a%20b?q=1#x", "mailto:a@b.com", "urn:isbn:123", "http://localhost:80/"],
            &["//example.com", "/a", "a b", "http://a b", "http://a/%zz", "http://a.com:x/"],
        ),
        ("json-pointer", &["", "/a/~0~1/b"], &["a", "/~2"]),
    ] {
        let mut texts = Texts::new(&format!(r#"{{"type":"string","format":"{format}"}}"#));
        good.iter().for_each(|text| assert!(texts.accepts(&Value::from(*text).to_string()), "{format} {text}"));
        bad.iter().for_each(|text| assert!(!texts.accepts(&Value::from(*text).to_string()), "{format} {text}"));
    }
    assert_eq!(Texts::new(r#"{"enum":["2024-01-01"],"format":"date"}"#).forced_at_start(), "\"2024-01-01\"");
    judge(
        r#"{"format":"uri","minLength":1,"maxLength":80}"#,
        &[r#""https://example.com/a""#],
        &[r#""mailto:a@b.com""#],
    );
    judge(r#"{"format":"email","maxLength":254}"#, &[r#""a@b.com""#], &[]);
}
