//! Bounds of numbers, over all short numbers.

use super::{Texts, judge};

/// All numbers with up to two digits before and behind the point, and their values in hundredths.
fn numbers() -> Vec<(String, i64)> {
    let mut all = Vec::new();
    for hundredths in (0..=420i64).chain(980..=1120) {
        let (whole, rest) = (hundredths / 100, hundredths % 100);
        let mut texts = vec![format!("{whole}.{rest:02}")];
        if rest % 10 == 0 {
            texts.push(format!("{whole}.{}", rest / 10));
        }
        if rest == 0 {
            texts.push(format!("{whole}"));
        }
        for text in texts {
            if hundredths > 0 {
                all.push((format!("-{text}"), -hundredths));
            }
            all.push((text, hundredths));
        }
    }
    all
}

#[test]
fn every_short_number_is_judged_right() {
    let bounds = [
        -1050i64, -1001, -1000, -999, -400, -101, -100, -99, -50, -5, -1, 0, 1, 5, 10, 49, 50, 99, 100, 101, 340, 999,
        1000, 1005, 1100,
    ];
    let numbers = numbers();
    let decimal = |hundredths: i64| {
        format!("{}{}.{:02}", if hundredths < 0 { "-" } else { "" }, hundredths.abs() / 100, hundredths.abs() % 100)
    };
    for kind in ["number", "integer"] {
        for (at, low) in bounds.iter().enumerate() {
            for high in bounds[at..].iter().step_by(5).map(Some).chain([None]) {
                for exclusive in 0..4 {
                    let (low_name, high_name) = (
                        ["minimum", "exclusiveMinimum"][exclusive & 1],
                        ["maximum", "exclusiveMaximum"][exclusive >> 1],
                    );
                    let upper = high.map(|high| format!(r#","{high_name}":{}"#, decimal(*high))).unwrap_or_default();
                    let schema = format!(r#"{{"type":"{kind}","{low_name}":{}{upper}}}"#, decimal(*low));
                    let fits = |text: &str, value: i64| {
                        let above = if exclusive & 1 == 1 { value > *low } else { value >= *low };
                        let below =
                            high.is_none_or(|high| if exclusive >> 1 == 1 { value < *high } else { value <= *high });
                        above && below && (kind == "number" || !text.contains('.'))
                    };
                    let any = numbers.iter().any(|(text, value)| fits(text, *value));
                    match Texts::with(&schema, &super::SchemaOptions::default()) {
                        Ok(mut texts) => {
                            for (text, value) in &numbers {
                                assert_eq!(texts.accepts(text), fits(text, *value), "{schema} {text}");
                            }
                        }
                        Err(error) => {
                            assert_eq!(error.code(), "grammar_dead_end", "{schema}");
                            assert!(!any, "{schema}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn numbers_without_bounds() {
    judge(
        r#"{"type":"number"}"#,
        &["0", "-0", "12.50", "1e9", "-1.5E-10", "123456789012345678901234567890", "0.000"],
        &["01", "1.", ".5", "+1", "1e", "1e999", "--1", "0x1", "NaN", "-", "1.e5"],
    );
    judge(
        r#"{"type":"integer"}"#,
        &["0", "-7", "123456789012345678901234567890"],
        &["-0", "01", "1.0", "1e3", "-", ""],
    );
}

#[test]
fn bounds_of_many_digits() {
    judge(
        r#"{"type":"integer","minimum":-9223372036854775808,"maximum":18446744073709551615}"#,
        &["18446744073709551615", "-9223372036854775808", "0", "9999999999999999999"],
        &["18446744073709551616", "-9223372036854775809", "99999999999999999999"],
    );
    judge(
        r#"{"type":"number","minimum":-1.7976931348623157e308,"maximum":1.7976931348623157e308}"#,
        &[
            "0",
            "-12.5",
            "100000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000.25",
        ],
        &["1e400", "1e5", "-"],
    );
    judge(
        r#"{"type":"number","exclusiveMinimum":1e-7,"maximum":0.000001}"#,
        &["0.00000011", "0.000001"],
        &["0.0000001", "0.0000011", "0"],
    );
    judge(r#"{"type":"integer","multipleOf":0.25,"minimum":1.5}"#, &["2", "30"], &["1", "2.5"]);
    judge(r#"{"type":"number","multipleOf":1}"#, &["2", "-30"], &["1.5", "2.0"]);
}
