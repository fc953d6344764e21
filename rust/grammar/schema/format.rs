//! The names of `format` that are enforced, each as a pattern that every text of the grammar fits.
//!
//! Each pattern is a subset of what the format allows, written so that a model's text is a valid one for every checker:
//! days exist in their month, labels of host names are short, there are no leap seconds. Texts are written without escapes,
//! so that what is fixed in a format (the hyphens of a date) is fixed byte by byte.

use crate::regex::{Pattern, parse};

macro_rules! date {
    () => {
        concat!(
            "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)",
            "|02-(?:0[1-9]|1\\d|2[0-8]))|(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
        )
    };
}
macro_rules! time {
    () => {
        "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
    };
}
macro_rules! days {
    () => {
        "\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D"
    };
}
macro_rules! hours {
    () => {
        "T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S)"
    };
}
macro_rules! label {
    () => {
        "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"
    };
}
macro_rules! octet {
    () => {
        "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
    };
}
macro_rules! pchar {
    () => {
        "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
    };
}
macro_rules! segments {
    () => {
        concat!("(?:/", pchar!(), "*)*")
    };
}
macro_rules! uri {
    () => {
        concat!(
            "[A-Za-z][A-Za-z0-9+.-]*:(?://(?:",
            label!(),
            "(?:\\.",
            label!(),
            ")*)(?::\\d{1,4})?",
            segments!(),
            "|/(?:",
            pchar!(),
            "+",
            segments!(),
            ")?|",
            pchar!(),
            "+",
            segments!(),
            ")(?:\\?(?:",
            pchar!(),
            "|[/?])*)?(?:#(?:",
            pchar!(),
            "|[/?])*)?"
        )
    };
}
/// `count` groups before the two colons, and up to `rest` behind them.
macro_rules! groups {
    ($count:literal, $rest:literal) => {
        concat!("(?:[0-9a-fA-F]{1,4}:){1,", $count, "}(?::[0-9a-fA-F]{1,4}){1,", $rest, "}|")
    };
}
macro_rules! ipv6 {
    () => {
        concat!(
            "(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|(?:[0-9a-fA-F]{1,4}:){1,7}:|",
            groups!(6, 1),
            groups!(5, 2),
            groups!(4, 3),
            groups!(3, 4),
            groups!(2, 5),
            groups!(1, 6),
            ":(?::[0-9a-fA-F]{1,4}){1,7}|::"
        )
    };
}

/// Name and patterns; each later pattern is a part of the first, for tighter bounds on the length.
const FORMATS: &[(&str, &[&str])] = &[
    ("date-time", &[concat!(date!(), "T", time!()), concat!(date!(), "T(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\dZ")]),
    ("date", &[date!()]),
    ("time", &[time!(), "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\dZ"]),
    ("duration", &[concat!("P(?:\\d{1,9}W|(?:", days!(), ")(?:", hours!(), ")?|", hours!(), ")")]),
    (
        "email",
        &[
            concat!("[A-Za-z0-9_+-]{1,30}(?:\\.[A-Za-z0-9_+-]{1,30})?@(?:", label!(), "\\.){1,2}[A-Za-z]{2,18}"),
            "[A-Za-z0-9_+-]{1,20}@[A-Za-z0-9]{1,20}\\.[A-Za-z]{2,8}",
        ],
    ),
    ("hostname", &[concat!(label!(), "(?:\\.", label!(), "){0,3}"), "[A-Za-z0-9]{1,30}(?:\\.[A-Za-z]{2,18})?"]),
    ("ipv4", &[concat!("(?:", octet!(), "\\.){3}", octet!())]),
    ("ipv6", &[ipv6!()]),
    ("uuid", &["[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"]),
    (
        "uri",
        &[
            uri!(),
            concat!("https?://(?:", label!(), "\\.){1,3}[A-Za-z]{2,18}/[A-Za-z0-9._~/-]*"),
            "https?://[A-Za-z0-9]{1,20}\\.[A-Za-z]{2,8}/[A-Za-z0-9._~/-]*",
        ],
    ),
    (
        "uri-reference",
        &[concat!(uri!(), "|(?:/", pchar!(), "+)+|[A-Za-z0-9._~-]+(?:/", pchar!(), "+)*|#", pchar!(), "*")],
    ),
    ("uri-template", &[uri!()]),
    ("iri", &[uri!()]),
    ("iri-reference", &[uri!()]),
    ("idn-email", &["[A-Za-z0-9_+-]{1,30}@[A-Za-z0-9]{1,20}\\.[A-Za-z]{2,8}"]),
    ("idn-hostname", &[concat!(label!(), "(?:\\.", label!(), "){0,3}")]),
    ("json-pointer", &["(?:/(?:[^/~]|~[01])*)*"]),
    ("relative-json-pointer", &["(?:0|[1-9]\\d{0,8})(?:#|(?:/(?:[^/~]|~[01])*)*)"]),
    ("regex", &["\\^?(?:(?:[A-Za-z0-9_ ]|\\\\[dswDSW]|\\[\\^?[A-Za-z0-9_]+\\])[*+?]?)*\\$?"]),
];

/// Whether the format is enforced.
pub(super) fn is_known(name: &str) -> bool {
    FORMATS.iter().any(|(known, _)| *known == name)
}

/// The pattern of a format.
pub(super) fn pattern(name: &str) -> Option<Pattern> {
    patterns(name).next()
}

/// The patterns of a format, the widest first; none for a format that is not enforced.
pub(super) fn patterns(name: &str) -> impl Iterator<Item = Pattern> {
    let row = FORMATS.iter().find(|(known, _)| *known == name);
    let texts = row.map_or(&[][..], |(_, texts)| texts);
    // Patterns of the table are sound: a test walks it.
    texts.iter().filter_map(|text| parse(text, true).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_can_be_read_and_later_ones_are_shorter() {
        for (name, texts) in FORMATS {
            assert_eq!(patterns(name).count(), texts.len(), "{name}");
            let longest: Vec<u64> = patterns(name).map(|pattern| pattern.lengths().1.unwrap_or(u64::MAX)).collect();
            assert!(longest.is_sorted_by(|one, other| one >= other), "{name} {longest:?}");
        }
        assert!(is_known("date") && !is_known("colour") && pattern("colour").is_none());
    }
}
