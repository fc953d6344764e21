//! Model families: `config.json` -> [`ModelSpec`] and tensor names, or the [`Outline`] of a model that is described and
//! not run yet. One file for each family, one line in [`FAMILIES`]. A family trusts nothing in the file: every key it
//! needs is checked for presence, type and range.

mod fields;
mod glm_moe_dsa;
mod olmoe;
mod outline;

pub use fields::Fields;
pub use outline::Outline;

use crate::names::WeightNames;
use crate::spec::{ModelSpec, SpecError};

/// One family of models.
pub struct Family {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// How its configurations are read.
    pub reader: Reader,
}

/// How the configurations of a family are read.
pub enum Reader {
    /// The engine runs these models.
    Runs {
        /// Reads a configuration.
        spec: fn(&Fields<'_>) -> Result<ModelSpec, SpecError>,
        /// Names of its tensors.
        names: &'static WeightNames,
    },
    /// The engine knows what these models consist of and does not run them yet.
    Describes(fn(&Fields<'_>) -> Result<Outline, SpecError>),
}

/// A configuration, read.
#[derive(Clone, Debug)]
pub enum Description {
    /// A model that the engine runs.
    Model {
        /// The model.
        spec: ModelSpec,
        /// Names of its tensors.
        names: &'static WeightNames,
    },
    /// A model that it only knows the parts of.
    Outline(Outline),
}

/// Every family that is known.
pub const FAMILIES: &[Family] = &[
    Family {
        model_type: glm_moe_dsa::MODEL_TYPE,
        reader: Reader::Runs { spec: glm_moe_dsa::spec, names: &glm_moe_dsa::NAMES },
    },
    Family { model_type: olmoe::MODEL_TYPE, reader: Reader::Describes(olmoe::outline) },
];

/// Finds the family of a configuration and reads it.
///
/// # Errors
/// The family is unknown, or a key is missing, of the wrong type or out of range.
pub fn read(config: &serde_json::Map<String, serde_json::Value>) -> Result<Description, SpecError> {
    let fields = Fields::new(config);
    let model_type = fields.text("model_type")?;
    let family = FAMILIES.iter().find(|family| family.model_type == model_type);
    let family = family.ok_or_else(|| not_run(model_type))?;
    match &family.reader {
        Reader::Runs { spec, names } => Ok(Description::Model { spec: spec(&fields)?, names }),
        Reader::Describes(outline) => Ok(Description::Outline(outline(&fields)?)),
    }
}

/// The refusal to run a family.
#[must_use]
pub fn not_run(model_type: &str) -> SpecError {
    let known = |runs: bool| {
        let kind = |family: &&Family| matches!(family.reader, Reader::Runs { .. }) == runs;
        FAMILIES.iter().filter(kind).map(|family| family.model_type).collect::<Vec<_>>().join(", ")
    };
    SpecError::Unsupported {
        key: "model_type".to_owned(),
        expected: format!("{}; it can inspect, plan, convert and repack {} too", known(true), known(false)),
        got: model_type.chars().filter(|letter| !letter.is_control()).take(60).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_family_is_refused_and_the_known_ones_are_named() {
        let config = serde_json::json!({"model_type": "abacus"});
        let error = read(config.as_object().unwrap()).err().unwrap();
        assert_eq!(error.code(), "model_unsupported");
        assert!(error.to_string().contains("abacus"));
        assert!(error.why().unwrap().contains("glm_moe_dsa; it can inspect, plan, convert and repack olmoe"));
    }

    #[test]
    fn a_configuration_without_a_family_is_corrupt() {
        let config = serde_json::json!({"hidden_size": 64});
        let error = read(config.as_object().unwrap()).err().unwrap();
        assert_eq!(error.code(), "model_corrupt");
        assert!(error.to_string().contains("model_type"));
    }
}
