//! The JSON kinds that containers use, read strictly: an object whose keys are all different.
//!
//! `serde_json` bounds the depth and never reads beyond the slice it is given; what it lets pass, a repeated key, is
//! refused here, because two readers could then see two different models in one file.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::error::shown;

/// An object of strings, sorted by key, without a repeated key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringMap(Vec<(String, String)>);

impl StringMap {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.binary_search_by(|(name, _)| name.as_str().cmp(key)).ok()?;
        self.0.get(found).map(|(_, value)| value.as_str())
    }

    /// All pairs, sorted by key.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = StringMap;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringMap, A::Error> {
                let mut pairs: Vec<(String, String)> = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                pairs.sort_by(|left, right| left.0.cmp(&right.0));
                match repeated(&pairs) {
                    Some(key) => Err(A::Error::custom(format!("the key {} appears twice", shown(key)))),
                    None => Ok(StringMap(pairs)),
                }
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// What a reader of JSON objects to, short enough to be shown: its message quotes what it found, and that may be the whole
/// file.
pub fn reason(error: &serde_json::Error) -> String {
    const LONGEST: usize = 240;
    let text = error.to_string();
    match text.char_indices().nth(LONGEST) {
        None => text,
        Some((end, _)) => format!("{}… at line {} column {}", &text[..end], error.line(), error.column()),
    }
}

/// The first key that appears twice in pairs sorted by key.
pub fn repeated<T>(sorted: &[(String, T)]) -> Option<&str> {
    sorted.windows(2).find(|pair| pair[0].0 == pair[1].0).map(|pair| pair[0].0.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_keeps_its_place_and_leaves_out_most_of_what_it_quotes() {
        let short = serde_json::from_str::<StringMap>(r#"{"a":1}"#).unwrap_err();
        assert_eq!(reason(&short), short.to_string());
        for letter in ["x", "\\u0000", "é"] {
            let text = format!("[\n\"{}\"]", letter.repeat(100_000));
            let long = serde_json::from_str::<Vec<u64>>(&text).unwrap_err();
            let said = reason(&long);
            assert!(long.to_string().len() > 100_000 && said.chars().count() < 300, "{said}");
            assert!(
                said.contains("invalid type: string") && said.contains(&format!("line 2 column {}", long.column())),
                "{said}"
            );
        }
    }

    #[test]
    fn a_string_map_is_sorted_and_refuses_repeats_and_other_kinds() {
        let map: StringMap = serde_json::from_str(r#"{"b":"2","a":"1"}"#).unwrap();
        assert_eq!((map.get("a"), map.get("b"), map.get("c")), (Some("1"), Some("2"), None));
        assert_eq!(map.pairs().len(), 2);
        for text in [r#"{"a":"1","a":"2"}"#, r#"{"a":1}"#, r#"{"a":null}"#, "[]", "5", r#"{"a":{"b":"c"}}"#] {
            assert!(serde_json::from_str::<StringMap>(text).is_err(), "{text}");
        }
    }
}
