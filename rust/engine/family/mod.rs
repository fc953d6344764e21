//! Model families: `config.json` -> [`ModelSpec`] and tensor names. One file for each family, one line in
//! [`FAMILIES`]. A family trusts nothing in the file: every key it needs is checked for presence, type and range.

mod fields;
mod glm_moe_dsa;

pub use fields::Fields;

use crate::names::WeightNames;
use crate::spec::{ModelSpec, SpecError};

/// One family of models.
pub struct Family {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Reads a configuration.
    pub spec: fn(&Fields<'_>) -> Result<ModelSpec, SpecError>,
    /// Names of its tensors.
    pub names: &'static WeightNames,
}

/// Every family that this engine runs.
pub const FAMILIES: &[Family] =
    &[Family { model_type: glm_moe_dsa::MODEL_TYPE, spec: glm_moe_dsa::spec, names: &glm_moe_dsa::NAMES }];

/// Finds the family of a configuration and reads it.
///
/// # Errors
/// The family is unknown, or a key is missing, of the wrong type or out of range.
pub fn read(config: &serde_json::Map<String, serde_json::Value>) -> Result<(&'static Family, ModelSpec), SpecError> {
    let fields = Fields::new(config);
    let model_type = fields.text("model_type")?;
    let family =
        FAMILIES.iter().find(|family| family.model_type == model_type).ok_or_else(|| SpecError::Unsupported {
            key: "model_type".to_owned(),
            expected: FAMILIES.iter().map(|family| family.model_type).collect::<Vec<_>>().join(", "),
            got: model_type.to_owned(),
        })?;
    Ok((family, (family.spec)(&fields)?))
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
        assert!(error.why().unwrap().contains("glm_moe_dsa"));
    }

    #[test]
    fn a_configuration_without_a_family_is_corrupt() {
        let config = serde_json::json!({"hidden_size": 64});
        let error = read(config.as_object().unwrap()).err().unwrap();
        assert_eq!(error.code(), "model_corrupt");
        assert!(error.to_string().contains("model_type"));
    }
}
