//! Typed access to the keys of a configuration; every refusal names the key, what it must be and what it is.

use serde_json::{Map, Value};

use crate::spec::SpecError;

/// An object of a configuration, with the path that leads to it.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    prefix: &'static str,
}

impl<'a> Fields<'a> {
    /// The whole configuration.
    #[must_use]
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: "" }
    }

    /// An inner object; `None` if the key is absent or null.
    ///
    /// # Errors
    /// The key holds something else.
    pub fn object(&self, key: &'static str) -> Result<Option<Fields<'a>>, SpecError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { map, prefix: key })),
            Some(other) => Err(self.corrupt(key, "an object", other)),
        }
    }

    /// The value of a key; null counts as absent.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A refusal of a key's value as damaged.
    #[must_use]
    pub fn corrupt(&self, key: &str, expected: &str, got: &Value) -> SpecError {
        SpecError::Corrupt { key: self.path(key), expected: expected.to_owned(), got: shown(got) }
    }

    /// A refusal of a key's value as asking for something that is not done.
    #[must_use]
    pub fn unsupported(&self, key: &str, expected: &str, got: &Value) -> SpecError {
        SpecError::Unsupported { key: self.path(key), expected: expected.to_owned(), got: shown(got) }
    }

    /// A refusal of a relation between keys.
    #[must_use]
    pub fn relation(&self, key: &str, expected: String, got: usize) -> SpecError {
        SpecError::Corrupt { key: self.path(key), expected, got: got.to_string() }
    }

    /// Refuses more routed experts in all layers together than any model has: each is listed by name, so that a few
    /// digits in a configuration could ask for more memory than there is.
    ///
    /// # Errors
    /// Too many; both keys are named.
    pub fn bounded_experts(&self, layers: usize, key: &str, experts: usize) -> Result<(), SpecError> {
        const MOST: usize = 1 << 18;
        if layers.saturating_mul(experts) <= MOST {
            return Ok(());
        }
        Err(self.relation(key, format!("at most {MOST} in num_hidden_layers = {layers} layers together"), experts))
    }

    /// A text.
    ///
    /// # Errors
    /// Missing or of another type.
    pub fn text(&self, key: &str) -> Result<&'a str, SpecError> {
        match self.get(key) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(self.corrupt(key, "a text", other)),
            None => Err(self.missing(key, "a text")),
        }
    }

    /// A whole number in `low..=high`.
    ///
    /// # Errors
    /// Missing, of another type or out of range.
    pub fn size(&self, key: &str, low: usize, high: usize) -> Result<usize, SpecError> {
        let expected = format!("a whole number in {low}..={high}");
        let value = self.get(key).ok_or_else(|| self.missing(key, &expected))?;
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        number.filter(|number| (low..=high).contains(number)).ok_or_else(|| self.corrupt(key, &expected, value))
    }

    /// A whole number in `low..=high`, or `default` if absent.
    ///
    /// # Errors
    /// Of another type or out of range.
    pub fn size_or(&self, key: &str, default: usize, low: usize, high: usize) -> Result<usize, SpecError> {
        if self.get(key).is_none() { Ok(default) } else { self.size(key, low, high) }
    }

    /// A positive, finite number.
    ///
    /// # Errors
    /// Missing, of another type, not positive or not finite in 32 bits.
    pub fn positive(&self, key: &str) -> Result<f64, SpecError> {
        let expected = "a positive number";
        let value = self.get(key).ok_or_else(|| self.missing(key, expected))?;
        let usable = |number: &f64| *number > 0.0 && *number < f64::from(f32::MAX);
        value.as_f64().filter(usable).ok_or_else(|| self.corrupt(key, expected, value))
    }

    /// A positive, finite number, or `default` if absent.
    ///
    /// # Errors
    /// Of another type, not positive or not finite in 32 bits.
    pub fn positive_or(&self, key: &str, default: f64) -> Result<f64, SpecError> {
        if self.get(key).is_none() { Ok(default) } else { self.positive(key) }
    }

    /// Yes or no, or `default` if absent.
    ///
    /// # Errors
    /// Of another type.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, SpecError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.corrupt(key, "true or false", other)),
        }
    }

    /// Refuses every value of a key but one; absent is that one.
    ///
    /// # Errors
    /// The key holds something else.
    pub fn only(&self, key: &str, expected: &Value) -> Result<(), SpecError> {
        match self.get(key) {
            Some(value) if value != expected => {
                Err(self.unsupported(key, &format!("{key} = {}", shown(expected)), value))
            }
            _ => Ok(()),
        }
    }

    /// A list of `len` words, each one of `words`; the answer holds their indices. `None` if absent.
    ///
    /// # Errors
    /// No list, another length or another word.
    pub fn words(&self, key: &str, len: usize, words: &[&str]) -> Result<Option<Vec<usize>>, SpecError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let expected = format!("a list of {len} words, each {}", words.join(" or "));
        let list = value.as_array().filter(|list| list.len() == len);
        let list = list.ok_or_else(|| self.corrupt(key, &expected, value))?;
        let index = |item: &Value| {
            let word = item.as_str();
            word.and_then(|word| words.iter().position(|known| *known == word))
                .ok_or_else(|| self.corrupt(key, &expected, item))
        };
        list.iter().map(index).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// One token or a list of tokens, each below `vocab`; absent is none. Ascending, without duplicates.
    ///
    /// # Errors
    /// Of another type or out of range.
    pub fn tokens(&self, key: &str, vocab: usize) -> Result<Vec<u32>, SpecError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let expected = format!("a token below {vocab}, or a list of them");
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let mut tokens = Vec::with_capacity(list.len());
        for item in list {
            let token = item.as_u64().filter(|token| usize::try_from(*token).is_ok_and(|token| token < vocab));
            let token = token.and_then(|token| u32::try_from(token).ok());
            tokens.push(token.ok_or_else(|| self.corrupt(key, &expected, item))?);
        }
        tokens.sort_unstable();
        tokens.dedup();
        Ok(tokens)
    }

    /// The error for an absent key.
    #[must_use]
    pub fn missing(&self, key: &str, expected: &str) -> SpecError {
        SpecError::Corrupt { key: self.path(key), expected: expected.to_owned(), got: "nothing".to_owned() }
    }

    fn path(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}.{key}", self.prefix) }
    }
}

/// A value as it is shown in a message: short, and unable to drive a terminal.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let dots = if text.chars().count() > LONGEST { "..." } else { "" };
    let plain = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    text.chars().take(LONGEST).map(plain).chain(dots.chars()).collect()
}
