//! The same work done by llguidance.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use crate::cases::Source;
use crate::vocabulary::SPECIAL;

/// llguidance with a vocabulary, and with the slices it comes with.
pub(crate) struct Peer {
    factory: ParserFactory,
}

impl Peer {
    pub(crate) fn new(tokens: &[Vec<u8>]) -> Self {
        let end = tokens.len() - SPECIAL;
        let mark = TokTrie::SPECIAL_TOKEN_MARKER;
        // Special tokens have names of their own there, which no text produces.
        let named = |(id, token): (usize, &Vec<u8>)| {
            if id >= end { [&[mark], format!("<|{id}|>").as_bytes()].concat() } else { token.clone() }
        };
        let words: Vec<Vec<u8>> = tokens.iter().enumerate().map(named).collect();
        let trie = TokTrie::from(&TokRxInfo::new(tokens.len() as u32, end as u32), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).expect("llguidance takes the vocabulary");
        factory.quiet();
        Self { factory }
    }

    pub(crate) fn compile(&self, source: &Source) -> Matcher {
        let grammar = match source {
            Source::Twins { lark, .. } => TopLevelGrammar::from_lark(lark.clone()),
            Source::Schema { value, .. } => TopLevelGrammar::from_json_schema(compact(value)),
        };
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        assert!(!matcher.is_error(), "llguidance refuses the grammar: {:?}", matcher.get_error());
        matcher
    }
}

/// The schema with llguidance's own words for no white space between the signs.
fn compact(schema: &Value) -> Value {
    let mut schema = schema.clone();
    schema["x-guidance"] = json!({"whitespace_flexible": false, "item_separator": ",", "key_separator": ":"});
    schema
}

pub(crate) fn mask(matcher: &mut Matcher) -> SimpleVob {
    matcher.compute_mask_or_eos().expect("a mask of llguidance")
}
