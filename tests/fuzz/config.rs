//! Target `config`: `config.json` up to the first NUL byte, `generation_config.json` after it (if anything follows).
//!
//! Asserts: a refusal names the file; what is accepted has sizes within their bounds, an inventory of unique names whose
//! shapes do not overflow, memory terms that grow with their arguments, and reads the same when it is written again.

use std::collections::BTreeSet;
use std::path::Path;

use colibri_engine::names::{Shape, TensorSlot};
use colibri_engine::{Blueprint, EngineError};

use super::check;

/// Larger inventories are not listed: that they are bounded is asserted, and listing them takes long.
const LISTED: usize = 1 << 12;
/// The most routed experts of all layers together, the prediction layer included.
const MOST_EXPERTS: usize = (1 << 18) + (1 << 12);

/// Runs the target.
pub fn run(data: &[u8]) {
    let folder = check::folder();
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let config = parts.next().unwrap_or_default();
    check::write(folder.path(), "config.json", config);
    if let Some(generation) = parts.next() {
        check::write(folder.path(), "generation_config.json", generation);
    }
    match Blueprint::read(folder.path()) {
        Ok(blueprint) => accepted(blueprint, config, folder.path()),
        Err(error) => {
            check::engine_refusal(&error, &[], &[folder.path()]);
            let file = matches!(error, EngineError::Config { .. } | EngineError::ConfigUnreadable { .. });
            assert!(file && error.to_string().contains("config.json"), "{error}");
        }
    }
}

fn accepted(mut blueprint: Blueprint, config: &[u8], folder: &Path) {
    let facts = blueprint.facts();
    assert!((1..=4096).contains(&facts.layers) && facts.moe_layers <= facts.layers);
    assert!(facts.vocab_size >= 1 && facts.hidden >= 1 && facts.context_max >= 1);
    assert!(facts.experts_per_token <= facts.experts && facts.moe_layers.saturating_mul(facts.experts) <= MOST_EXPERTS);
    let tokens = &facts.eos_token_ids;
    assert!(tokens.is_sorted_by(|left, right| left < right));
    assert!(tokens.iter().all(|token| (*token as usize) < facts.vocab_size));
    for threads in [1, 16] {
        assert!(blueprint.kv_bytes_per_token(threads) > 0);
        let scratch = [1, 256, 4096].map(|rows| blueprint.scratch_bytes(rows, threads));
        assert!(scratch[0] > 0 && scratch.is_sorted(), "{scratch:?}");
    }
    if facts.layers.saturating_mul(facts.experts.max(1)) <= LISTED {
        let slots = blueprint.slots();
        inventory_holds(&slots);
        assert!(slots.iter().all(|slot| slot.mtp <= blueprint.has_prediction()));
        // Nothing is there: what remains is what no model can do without.
        let absent = blueprint.clone().drop_absent(&|_| false);
        assert!(absent.len() <= 3);
        blueprint.drop_prediction();
        blueprint.drop_indexers();
        assert!(blueprint.slots().len() <= slots.len() && !blueprint.has_prediction());
    }
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(config).expect("what was accepted is an object");
    check::write(folder, "config.json", &serde_json::to_vec(&object).expect("it can be written"));
    assert_eq!(Blueprint::read(folder).expect("and is accepted again").facts(), facts);
}

fn inventory_holds(slots: &[TensorSlot]) {
    let names: BTreeSet<&str> = slots.iter().map(|slot| slot.name.as_str()).collect();
    assert_eq!(names.len(), slots.len(), "a tensor is listed twice");
    for slot in slots {
        assert!(!slot.name.contains(['{', '}']), "{}", slot.name);
        match slot.shape {
            Shape::Matrix { rows, cols } => assert!(rows.checked_mul(cols).is_some_and(|elements| elements > 0)),
            Shape::Vector { len } => assert!(len > 0),
        }
    }
}
