use std::sync::Arc;

use super::compile;
use crate::constraint::Constraint;
use crate::error::Place;
use crate::matcher::Matcher;
use crate::program::Special;

/// Texts that a grammar takes and refuses, and what is forced after some of them.
struct Case {
    id: &'static str,
    grammar: &'static str,
    accept: &'static [&'static str],
    reject: &'static [&'static str],
    forced: &'static [(&'static str, &'static str)],
}

/// Known faults of other engines, by their number in the case list.
const CASES: &[Case] = &[
    Case {
        id: "GR-01",
        grammar: "root ::= root \"x\" | \"y\"",
        accept: &["y", "yx", "yxxx"],
        reject: &["", "x", "xy"],
        forced: &[],
    },
    Case {
        id: "GR-03",
        grammar: "root ::= \"a\" ( \"\" | \"b\" )* \"c\"",
        accept: &["ac", "abc", "abbbc"],
        reject: &["a", "bc", "abcc", "acb"],
        forced: &[],
    },
    Case {
        id: "GR-04",
        grammar: "root ::= gap \"x\" gap\ngap ::= (blank | eol)*\nblank ::= [ \\t]*\neol ::= \"\\r\"? \"\\n\"",
        accept: &["x", "  x\n", "\t\nx \r\n\t"],
        reject: &["", "xx", "\rx", "x y"],
        forced: &[],
    },
    Case {
        id: "GR-09",
        grammar: "root ::= [a\\-z]+",
        accept: &["a-z", "zz-", "a"],
        reject: &["b", "", "a b"],
        forced: &[],
    },
    Case {
        id: "GR-10",
        grammar: "root ::= [-+*/0-9]+ \":\" [0-9+-]+",
        accept: &["-1+2*3/4:5-6", "/:+"],
        reject: &[",:1", "1.5:1", "1:2,3", "1:."],
        forced: &[],
    },
    Case {
        id: "GR-12",
        grammar: "root ::= [\\[\\]\\\\x^\"]+",
        accept: &["[]", "\\^\"x"],
        reject: &["a", "", "[a]"],
        forced: &[],
    },
    Case {
        id: "GR-13",
        grammar: "root ::= [😃-🙇]+",
        accept: &["😃", "😃🙇", "😄"],
        reject: &["😂", "🙈", "🚀", "a", ""],
        forced: &[],
    },
    Case {
        id: "GR-16",
        grammar: "root ::= \"\\u00e9\" \"\\x41\" \"\\U0001F600\" \"\\t\" \"\\xe9\"",
        accept: &["éA😀\té"],
        reject: &["éA😀\t", "\\u00e9A😀\té", "éA😀té"],
        forced: &[],
    },
    Case {
        id: "GR-21",
        grammar: "root ::= a [#z] # tail \"x\"\n# whole line\na ::= \"#\" # end",
        accept: &["##", "#z"],
        reject: &["#", "z#", "##x"],
        forced: &[],
    },
    Case {
        id: "GR-22",
        grammar: "root ::= \"a\" |\n  \"b\" |\n  ( \"c\"\n    \"d\" )\n",
        accept: &["a", "b", "cd"],
        reject: &["c", "ab", ""],
        forced: &[],
    },
    Case {
        id: "GR-24",
        grammar: "root ::= \"<think>\" [^<]* \"</think>\" \"ok\"",
        accept: &["<think></think>ok", "<think>hm</think>ok"],
        reject: &["ok", "<think>a<b</think>ok"],
        forced: &[],
    },
    Case {
        id: "GR-25",
        grammar: "root ::= ws \"{\" \"\\\"k\\\"\" \"}\" ws\nws ::= [ \\n]*",
        accept: &[" {\"k\"}\n", "{\"k\"}"],
        reject: &["{\"}", "{\" k\"}"],
        forced: &[],
    },
    Case {
        id: "GR-27",
        grammar: "root ::= \"ok\" \"!\"? ",
        accept: &["ok", "ok!"],
        reject: &["o", "ok!!"],
        forced: &[("", "ok"), ("ok", ""), ("ok!", "")],
    },
    Case {
        id: "GR-28",
        grammar: "root ::= \"{\\\"id\\\":\" [0-9]+ \",\\\"fit\\\":\" (\"\\\"yes\\\"\" | \"\\\"no\\\"\") \"}\"",
        accept: &["{\"id\":7,\"fit\":\"yes\"}", "{\"id\":123,\"fit\":\"no\"}"],
        reject: &["{\"id\":,\"fit\":\"no\"}", "{\"id\":7,\"fit\":\"maybe\"}"],
        forced: &[
            ("", "{\"id\":"),
            ("{\"id\":", ""),
            ("{\"id\":7", ""),
            ("{\"id\":7,", "\"fit\":\""),
            ("{\"id\":7,\"fit\":\"y", "es\"}"),
            ("{\"id\":7,\"fit\":\"n", "o\"}"),
            ("{\"id\":7,\"fit\":\"no\"}", ""),
        ],
    },
    Case { id: "GR-30", grammar: "root ::= \"é\" | \"è\"", accept: &["é", "è"], reject: &["e", "ê"], forced: &[] },
    Case { id: "GR-37", grammar: "root ::= \"ok\"", accept: &["ok"], reject: &["o", "okk"], forced: &[] },
    Case {
        id: "GR-39",
        grammar: "root ::= \"{}\" ws\nws ::= [ \\n]*",
        accept: &["{}", "{}\n\n"],
        reject: &["{", "{}x"],
        forced: &[("", "{}"), ("{}", "")],
    },
];

/// Texts that are no grammars.
const REFUSED: &[(&str, &str)] = &[
    ("GR-15", "root ::= \"\\d\\d\""),
    ("GR-15", "root ::= [\\w]+"),
    ("GR-15", "root ::= [\\S\\s]*"),
    ("GR-18", "Root ::= [a-z]+"),
    ("GR-19", "root :== \"yes\""),
    ("GR-19", "root = \"yes\""),
    ("GR-19", "root ::= \"yes"),
    ("GR-19", "root ::= (\"yes\""),
    ("GR-19", "root ::= \"a\" |)"),
    ("GR-19", ""),
];

fn matcher(text: &str) -> Matcher {
    Matcher::new(Arc::new(compile(text).unwrap_or_else(|error| panic!("{text}\n{error}")))).unwrap()
}

fn feed(matcher: &mut Matcher, input: &str) -> bool {
    input.bytes().all(|byte| matcher.accept(byte))
}

fn accepts(text: &str, input: &str) -> bool {
    let mut matcher = matcher(text);
    let fits = feed(&mut matcher, input) && matcher.can_end();
    assert_eq!(matcher.fault(), None);
    fits
}

fn judge(text: &str, good: &[&str], bad: &[&str]) {
    good.iter().for_each(|input| assert!(accepts(text, input), "{text} must accept {input:?}"));
    bad.iter().for_each(|input| assert!(!accepts(text, input), "{text} must refuse {input:?}"));
}

#[test]
fn gr_cases_are_judged_right() {
    for Case { id, grammar, accept, reject, forced } in CASES {
        // The layout of lines changes nothing (GR-22).
        for text in
            [(*grammar).to_owned(), grammar.replace('\n', "\r\n"), format!("\u{FEFF}{}\n\n", grammar.trim_end())]
        {
            accept.iter().for_each(|input| assert!(accepts(&text, input), "{id}: {text} must accept {input:?}"));
            reject.iter().for_each(|input| assert!(!accepts(&text, input), "{id}: {text} must refuse {input:?}"));
            for (prefix, span) in *forced {
                let mut matcher = matcher(&text);
                assert!(feed(&mut matcher, prefix), "{id}: {prefix:?}");
                assert_eq!(String::from_utf8_lossy(&matcher.forced(100)), *span, "{id} after {prefix:?}");
            }
        }
    }
}

#[test]
fn gr_texts_that_are_no_grammars_are_refused_with_their_place() {
    for (id, text) in REFUSED {
        let error = compile(text).expect_err(text);
        assert_eq!(error.code(), "grammar_syntax", "{id}: {text}");
        let without_place = error.faults().iter().filter(|fault| fault.place.is_none());
        without_place.for_each(|fault| assert!(fault.what.contains("no rule `root`"), "{id}: {fault}"));
    }
}

#[test]
fn gr_06_optional_items_in_a_row() {
    let text = format!("root ::= {}\"b\"", "\"a\"? ".repeat(30));
    let letters = |count: usize| format!("{}b", "a".repeat(count));
    judge(&text, &["b", &letters(3), &letters(30)], &[&letters(31), &"a".repeat(30), "ba"]);
    let mut matcher = matcher(&text);
    // All that were ever live together: one more with every letter, none doubled.
    for (taken, byte) in letters(30).bytes().enumerate() {
        assert!(matcher.accept(byte) && matcher.states() <= taken + 3, "{}", matcher.states());
    }
}

#[test]
fn gr_07_large_counts() {
    for count in [1999, 2000, 2001] {
        let text = format!("root ::= \"\\\"\" [a-z]{{0,{count}}} \"\\\"\"");
        let quoted = |letters: usize| format!("\"{}\"", "a".repeat(letters));
        judge(&text, &[&quoted(0), &quoted(count)], &[&quoted(count + 1)]);
        let mut matcher = matcher(&text);
        assert!(feed(&mut matcher, &quoted(count)) && matcher.memory() < 20 << 20);
    }
    let text = "root ::= ([ab] \",\"){2,3} \"x\"{,2} \"y\"{2,}";
    judge(text, &["a,b,yy", "a,a,a,xxyyyy"], &["a,yy", "a,b,y", "a,a,a,a,yy", "a,b,xxxyy"]);
}

#[test]
fn gr_13_characters_byte_by_byte() {
    let mut matcher = matcher("root ::= [😃-🙇]+");
    let start = matcher.mark();
    for (at, byte) in [0xF0, 0x9F, 0x98, 0x83].into_iter().enumerate() {
        assert!(!matcher.can_end() && matcher.accept(byte), "{at}");
    }
    assert!(matcher.can_end());
    matcher.rewind(start);
    assert!([0xF0, 0x9F].into_iter().all(|byte| matcher.accept(byte)));
    assert_eq!(matcher.allowed().iter().collect::<Vec<_>>(), [0x98, 0x99]);
    assert!(!matcher.accept(0x9A) && matcher.accept(0x99));
    assert_eq!(matcher.allowed().iter().collect::<Vec<_>>(), (0x80..=0x87).collect::<Vec<u8>>());
    matcher.rewind(start);
    assert!([0xF0, 0x9F, 0x98].into_iter().all(|byte| matcher.accept(byte)) && !matcher.accept(0x82));
}

#[test]
fn gr_18_the_name_of_the_first_rule() {
    let error = compile("Root ::= [a-z]+").unwrap_err();
    let fault = &error.faults()[0];
    assert!(fault.what.contains("`root`") && fault.fix.as_deref().unwrap().contains("`Root`"), "{fault:?}");
}

#[test]
fn gr_24_tokens_by_name_and_tokens_as_text() {
    let program = compile("root ::= <think> (!</think>)* </think> !<[7]> \"<think>\"").unwrap();
    let named = |text: &str| Special::Text(text.to_owned());
    let not = |special| Special::Not(Box::new(special));
    assert_eq!(program.specials(), [named("<think>"), not(named("</think>")), named("</think>"), not(Special::Id(7))]);
    assert!(not(Special::Id(7)).admits(8, "x") && !not(named("x")).admits(8, "x") && named("x").admits(8, "x"));
    for text in ["root ::= !\"a\"", "root ::= <think", "root ::= <[x]>", "root ::= !<a", "root ::= \"a\" !"] {
        assert_eq!(compile(text).unwrap_err().code(), "grammar_syntax", "{text}");
    }
}

#[test]
fn gr_25_a_token_is_taken_as_a_whole_or_not_at_all() {
    let mut matcher = matcher("root ::= ws \"{\" \"\\\"k\\\"\" \"}\" ws\nws ::= [ \\n]*");
    let (start, allowed) = (matcher.mark(), matcher.allowed());
    for token in ["{\" x", "{\"}"] {
        assert!(!matcher.accept_token(token.as_bytes(), &[]));
        assert_eq!((matcher.mark(), matcher.allowed()), (start, allowed));
    }
    assert!(matcher.accept_token(b" {\"", &[]));
    assert_eq!(matcher.forced(9), b"k\"}");
}

#[test]
fn gr_30_a_shared_first_byte_is_forced() {
    assert_eq!(matcher("root ::= \"é\" | \"è\"").forced(9), [0xC3]);
}

#[test]
fn gr_36_the_way_back_leads_to_what_was_taken() {
    let text = "root ::= \"[\" [0-9]+ (\",\" [0-9]+){1,4} \"]\"";
    let (mut drafted, mut plain) = (matcher(text), matcher(text));
    assert!(feed(&mut drafted, "[1"));
    let taken = drafted.mark();
    assert!(feed(&mut drafted, ",22,3"));
    drafted.rewind(taken);
    assert!(feed(&mut drafted, "0,4") && feed(&mut plain, "[10,4"));
    assert_eq!(
        (drafted.allowed(), drafted.can_end(), drafted.mark()),
        (plain.allowed(), plain.can_end(), plain.mark())
    );
    assert_eq!(drafted.forced(9), plain.forced(9));
}

#[test]
fn empty_alternatives_are_read_where_they_are_meant() {
    judge(
        "root ::= \"a\" space \"b\"\nspace ::= | \" \" | \"\\n\"{1,2} [ \\t]{0,20}",
        &["ab", "a b", "a\n\n  b"],
        &["a  b"],
    );
    judge("root ::= (\"a\" | ) \"b\" (| \"c\" |\n)", &["ab", "b", "bc"], &["a", "bcc"]);
    for text in ["root ::=", "root ::= \"a\" |", "root ::= () \"a\"", "root ::= \"a\" |\nb ::= \"c\"", "root ::= |)"] {
        assert_eq!(compile(text).unwrap_err().code(), "grammar_syntax", "{text}");
    }
}

#[test]
fn every_fault_is_reported_with_its_place() {
    let error = compile("root ::= lost \"a\nb ::= [z-a]\nb = \"x\"\nc ::= \"\\q\" [a\nroot2 ::= (\"a\"\n").unwrap_err();
    let places: Vec<(usize, usize)> = error
        .faults()
        .iter()
        .filter_map(|fault| fault.place.as_ref())
        .map(|place| (place.line, place.column))
        .collect();
    assert!(places.is_sorted() && places.contains(&(1, 10)) && places.contains(&(1, 15)), "{error}");
    assert!(places.iter().map(|place| place.0).collect::<Vec<_>>().starts_with(&[1, 1, 2]), "{error}");
    let error = compile("root ::= \"a\" )").unwrap_err();
    assert_eq!(error.faults()[0].place, Some(Box::new(Place { line: 1, column: 14, text: "root ::= \"a\" )".into() })));
    for (text, said) in [
        ("root ::= \"a\"\nroot ::= \"b\"", "defined twice"),
        ("root ::= other", "`other` is not defined"),
        ("root ::= \"a\" loop\nloop ::= \"b\" loop", "no text fits the rule `loop`"),
        ("root ::= [a-]{3,2}", "wrong way round"),
        ("root ::= \"\\uD83D\"", "surrogate"),
        ("root ::= \"\\U00110000\"", "last code point"),
        ("root ::= \"\\x4\"", "too short"),
        ("root ::= \"a\"{}", "number in the braces"),
        ("root ::= \"a\"{1000001}", "repetitions"),
    ] {
        let error = compile(text).expect_err(text).to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn right_recursion_keeps_few_states() {
    let mut matcher = matcher("root ::= \"a\" root | \"b\"");
    (0..10_000).for_each(|_| assert!(matcher.accept(b'a')));
    assert!(matcher.states() < 5, "{}", matcher.states());
    assert!(matcher.accept(b'b') && matcher.can_end());
}

#[test]
fn nesting_is_counted_and_collected() {
    let mut matcher = matcher("root ::= \"(\" root \")\" | \"x\"");
    (0..40_000).for_each(|_| assert!(matcher.accept(b'(')));
    assert!(matcher.accept(b'x'));
    (0..39_999).for_each(|_| assert!(matcher.accept(b')')));
    assert!(!matcher.can_end());
    assert!(matcher.accept(b')') && matcher.can_end() && !matcher.accept(b')'));
}

#[test]
fn se_16_deep_groups_and_long_chains() {
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    assert_eq!(compile(&deep).unwrap_err().code(), "grammar_too_complex");
    let mut chain = String::from("root ::= r0\n");
    (0..4999).for_each(|i| chain.push_str(&format!("r{i} ::= r{}\n", i + 1)));
    chain.push_str("r4999 ::= \"a\"\n");
    judge(&chain, &["a"], &["", "aa"]);
    judge(&format!("root ::= \"a\"{}", "?".repeat(100_000)), &["a", ""], &["aa"]);
}

#[test]
fn hostile_texts_end_soon() {
    let rules = 50_000;
    let calls: String = (0..rules).rev().map(|i| format!(" r{i}")).collect();
    let empty: String = (0..rules).map(|i| format!("r{i} ::= \"\"\n")).collect();
    for (text, code) in [
        // More readings at once than can be followed, which is said before the grammar is used.
        (format!("root ::={calls}\n{empty}"), "grammar_too_complex"),
        (format!("root ::={calls}"), "grammar_syntax"),
        (format!("root ::= {}", ".".repeat(1_000_000)), "grammar_too_complex"),
        (format!("root ::= {}", "\"aaaaaaaaa\" ".repeat(300_000)), "grammar_too_complex"),
        (format!("root ::= \"a\"{}", "{2}".repeat(1000)), "grammar_too_complex"),
        ("a".repeat(5_000_000), "grammar_too_complex"),
    ] {
        assert_eq!(compile(&text).expect_err(&text[..20]).code(), code, "{}", &text[..20]);
    }
    let tokens: String = (0..100_000).map(|i| format!("<{i}>")).collect();
    assert_eq!(compile(&format!("root ::= {tokens}")).unwrap().specials().len(), 100_000);
}

#[test]
fn literals_of_a_rule_are_one_tree() {
    let words: Vec<String> = (0..30_000).map(|number| format!("\"{number}\"")).collect();
    let words = words.join(" | ");
    judge(&format!("root ::= {words}"), &["0", "77", "29999"], &["", "30000", "077"]);
    let grammar = format!("root ::= ([a-c]+ | {words} | x) \"!\"\nx ::= \"7\"* | \"\"");
    judge(&grammar, &["abc!", "29999!", "777777!", "!"], &["29999", "30000!", "7a!"]);
    // Beginnings of each other, the empty text, the same twice, characters with bytes in common, several in a row.
    let text =
        "root ::= \"é\" | \"è\" | \"\" | \"ab\" | \"a\" | \"ab\" | \"a\" \"b\" \"c\" | \"x\"{2} | \"d\" y\ny ::= \"e\"";
    judge(text, &["é", "è", "", "a", "ab", "abc", "xx", "de"], &["aa", "b", "x", "d", "abcabc", "abe"]);
    // Groups may lie as deep as before, whatever tree is in them.
    let longer: Vec<String> = (1..200).map(|length| format!("\"{}\"", "a".repeat(length))).collect();
    let deep = format!("root ::= {}({}){}", "(\"b\" ".repeat(120), longer.join(" | "), ")".repeat(120));
    let most = format!("{}{}", "b".repeat(120), "a".repeat(199));
    judge(&deep, &[&most], &[&most[1..], &format!("{most}a")]);
}

#[test]
fn a_rule_that_never_ends_is_named_beside_trees() {
    // The tree has rules of its own.
    let words: Vec<String> = (1..300).map(|length| format!("\"{}\"", "a".repeat(length))).collect();
    let error = compile(&format!("root ::= {} | x\nx ::= \"b\" y\ny ::= x", words.join(" | "))).unwrap_err();
    let named: Vec<&str> = error.faults().iter().map(|fault| fault.what.as_str()).collect();
    assert_eq!(named, ["no text fits the rule `x`", "no text fits the rule `y`"]);
}

#[test]
fn what_cannot_be_walked_is_refused_at_once() {
    let many: Vec<String> = (0..30_000).map(|number| format!("[ab] \"{number}\"")).collect();
    let error = compile(&format!("root ::= {}", many.join(" | "))).unwrap_err();
    assert_eq!(error.faults()[0].what, "too complex: 30001 parallel readings of the text");
}

/// Line and column of every fault, with its kind and what happened.
fn faults(grammar: &str) -> Vec<(usize, usize, &'static str, String)> {
    let error = compile(grammar).expect_err(grammar);
    let one = |fault: &crate::Fault| {
        let place = fault.place.as_ref().expect("every fault of a grammar's text has a place");
        (place.line, place.column, fault.code.slug(), fault.what.clone())
    };
    error.faults().iter().map(one).collect()
}

#[test]
fn rules_that_never_end_are_listed_with_all_other_faults() {
    let endless = |line, name: &str| (line, 1, "grammar_dead_end", format!("no text fits the rule `{name}`"));
    assert_eq!(faults("root ::= \"a\" | x\n\nx ::= \"b\" x\n"), [endless(3, "x")]);
    // Whatever `root` leads to.
    assert_eq!(
        faults("root ::= \"a\"\n  x ::= \"b\" y\ny ::= x\n"),
        [(2, 3, "grammar_dead_end", endless(2, "x").3), endless(3, "y")]
    );
    assert_eq!(faults("root ::= \"a\"\nx ::= [^\\U00000000-\\U0010ffff]"), [endless(2, "x")]);
    // Beside faults of other kinds; a rule that cannot be read, or is missing, may be one that ends.
    let found = faults("root ::= x | y | z | gone\nx ::= \"a\" x\ny ::= \"b\nz ::= y\nlast ::= gone last\n");
    assert_eq!(
        found,
        [
            (1, 22, "grammar_syntax", "the rule `gone` is not defined".to_owned()),
            endless(2, "x"),
            (3, 7, "grammar_syntax", "the literal is not closed".to_owned()),
            endless(5, "last"),
        ]
    );
}

#[test]
fn what_ends_too_early_is_named_where_it_stands() {
    let case = |grammar, line, column, what: &str| {
        assert_eq!(faults(grammar), [(line, column, "grammar_syntax", what.to_owned())], "{grammar}");
    };
    case("root ::= [a-\n", 1, 10, "the class is not closed");
    case("root ::= [a-\r\n", 1, 10, "the class is not closed");
    case("root ::= [a\\\n", 1, 13, "expected a character after `\\`");
    case("root ::= \"a\\\n", 1, 13, "expected a character after `\\`");
    let item = "expected a rule name, a literal, a class or \"(\"";
    case("root ::= \"a\" |\n\n\n", 1, 15, item);
    case("root ::=\n\n", 1, 9, item);
    let error = compile("root ::= (\"a\"\n  \"b\"\n\n").unwrap_err();
    let report = error.faults()[0].report();
    assert!(report.starts_with("2:6: expected `)`") && report.ends_with("\n      \"b\"\n         ^"), "{report}");
}
