//! Where schemas lie, and what `$ref` points at.
//!
//! Only places in the same document are known: JSON pointers (RFC 6901) and anchors. Nothing is ever opened, neither files
//! nor addresses, so that a schema from a request reaches nothing. A schema with an `$id` of its own inside of the document
//! starts another base for the references in it; those are refused rather than guessed.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::Value;

use super::keywords::{SCHEMA_LISTS, SCHEMA_MAPS, SCHEMA_PLACES};

/// A schema and its place in the document, such as `#/properties/tag`.
#[derive(Clone, Debug)]
pub(super) struct Located<'a> {
    pub(super) value: &'a Value,
    pub(super) pointer: Rc<str>,
}

/// `pointer` with one more step.
pub(super) fn below(pointer: &str, token: &str) -> Rc<str> {
    format!("{pointer}/{}", token.replace('~', "~0").replace('/', "~1")).into()
}

/// Why a reference leads nowhere.
pub(super) enum Miss {
    /// It leaves the document, or starts from an `$id` of its own.
    Foreign,
    /// Nothing lies there.
    Nothing,
}

/// The document that references are looked up in.
pub(super) struct Document<'a> {
    pub(super) root: &'a Value,
    /// Schemas by anchor, once one was asked for; `None`: the anchor is there twice.
    anchors: Option<HashMap<&'a str, Option<Located<'a>>>>,
}

impl<'a> Document<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root, anchors: None }
    }

    /// Whether the document names a draft before 2020-12, where `prefixItems` means nothing.
    pub(super) fn is_old(&self) -> bool {
        let dialect = self.root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        dialect.contains("draft-0") || dialect.contains("2019-09")
    }

    /// The schema at a place.
    pub(super) fn at(&self, pointer: &str) -> Option<Located<'a>> {
        let path = pointer.strip_prefix('#').unwrap_or(pointer);
        if path.is_empty() {
            return Some(Located { value: self.root, pointer: "#".into() });
        }
        let value = self.root.pointer(path)?;
        Some(Located { value, pointer: format!("#{path}").into() })
    }

    /// What the `$ref` of the schema at `from` points at.
    pub(super) fn resolve(&mut self, reference: &str, from: &str) -> Result<Located<'a>, Miss> {
        // The empty reference is the document that it stands in (RFC 3986, 4.4).
        let same = if reference.is_empty() { Some("") } else { reference.strip_prefix('#') };
        let fragment = match (same, self.behind_own_address(reference)) {
            (Some(fragment), _) if !self.has_own_base(from) => fragment,
            (None, Some(fragment)) => fragment,
            _ => return Err(Miss::Foreign),
        };
        let fragment = percent_decoded(fragment).ok_or(Miss::Nothing)?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return self.at(&fragment).ok_or(Miss::Nothing);
        }
        let root = self.root;
        let anchors = self.anchors.get_or_insert_with(|| anchors(root));
        anchors.get(fragment.as_str()).cloned().flatten().ok_or(Miss::Nothing)
    }

    /// What stands behind the address that the document gives itself, if the reference begins with it.
    fn behind_own_address<'r>(&self, reference: &'r str) -> Option<&'r str> {
        let own = self.root.get("$id").and_then(Value::as_str)?.trim_end_matches('#');
        let scheme = own.split_once(':').map(|(scheme, _)| scheme)?;
        let is_address = !scheme.contains(['/', '?', '#']) && !own.contains('#');
        let rest = reference.strip_prefix(own).filter(|_| is_address)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('#') }
    }

    /// Whether an `$id` below the root lies on the way to a place.
    fn has_own_base(&self, pointer: &str) -> bool {
        let mut value = self.root;
        for token in pointer.trim_start_matches('#').split('/').skip(1) {
            let token = token.replace("~1", "/").replace("~0", "~");
            let next = match value {
                Value::Array(list) => token.parse::<usize>().ok().and_then(|index| list.get(index)),
                _ => value.get(&token),
            };
            let Some(next) = next else { return false };
            if starts_base(next) {
                return true;
            }
            value = next;
        }
        false
    }
}

/// Whether a schema has an `$id` that is more than an anchor.
fn starts_base(schema: &Value) -> bool {
    schema.get("$id").and_then(Value::as_str).is_some_and(|id| !id.starts_with('#'))
}

/// All anchors of the document, `$id: "#name"` of draft-07 included.
fn anchors(root: &Value) -> HashMap<&str, Option<Located<'_>>> {
    let mut found: HashMap<&str, Option<Located<'_>>> = HashMap::new();
    let mut open = vec![Located { value: root, pointer: "#".into() }];
    while let Some(schema) = open.pop() {
        let Some(map) = schema.value.as_object() else { continue };
        if &*schema.pointer != "#" && starts_base(schema.value) {
            continue;
        }
        let name = |keyword: &str| map.get(keyword).and_then(Value::as_str);
        let id = name("$id").and_then(|id| id.strip_prefix('#')).filter(|id| !id.is_empty());
        for anchor in [name("$anchor"), name("$dynamicAnchor"), id].into_iter().flatten() {
            let entry = found.entry(anchor).or_insert_with(|| Some(schema.clone()));
            if entry.as_ref().is_some_and(|known| known.pointer != schema.pointer) {
                *entry = None;
            }
        }
        for (keyword, value) in map {
            let here = below(&schema.pointer, keyword);
            match value {
                Value::Object(_) if SCHEMA_PLACES.contains(&keyword.as_str()) => {
                    open.push(Located { value, pointer: here });
                }
                Value::Object(schemas) if SCHEMA_MAPS.contains(&keyword.as_str()) => {
                    open.extend(schemas.iter().map(|(name, value)| Located { value, pointer: below(&here, name) }));
                }
                Value::Array(schemas) if SCHEMA_LISTS.contains(&keyword.as_str()) => {
                    let places = schemas.iter().enumerate();
                    open.extend(places.map(|(at, value)| Located { value, pointer: below(&here, &at.to_string()) }));
                }
                _ => {}
            }
        }
    }
    found
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}
