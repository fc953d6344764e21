//! What a model folder holds, from its headers alone: the model's facts, its files and tensors, what travels along.
//!
//! Refuses what the catalog and the configuration refuse. Reads no weight, needs no memory budget.

use std::collections::BTreeMap;
use std::path::Path;

use colibri_kernels::{FORMATS, Format};
use colibri_store::TensorInfo;
use colibri_store::catalog::Catalog;
use serde::Serialize;

use crate::error::EngineError;
use crate::model::{ModelInfo, describe};

/// The summary of a model folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// The model's facts.
    pub model: ModelInfo,
    /// What kind of container it is.
    pub container: Container,
    /// Bytes and tensors by stored type.
    pub types: Vec<StoredType>,
    /// The weight files, in the order of their names.
    pub files: Vec<WeightFile>,
    /// Every tensor, by name.
    pub tensors: Vec<Tensor>,
    /// What travels with the weights.
    pub text: TextFiles,
}

/// The kind of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Container {
    /// `colibri` or `safetensors`.
    pub kind: &'static str,
    /// Version of colibri's format.
    pub format_version: Option<u32>,
    /// The program that wrote it.
    pub writer: Option<String>,
    /// Name of the checkpoint it was made from.
    pub source: Option<String>,
    /// How int4 scales were chosen.
    pub scale_rule: Option<String>,
}

/// The tensors of one stored type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredType {
    /// Name of the type, as safetensors has it.
    pub dtype: String,
    /// Number of tensors.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A weight file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WeightFile {
    /// Its name inside the folder.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its stored type.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: u64,
    /// The file that holds it.
    pub file: String,
    /// The command-line name of its weight format, where the container says so.
    pub format: Option<String>,
}

/// Files beside the weights; each is named if it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextFiles {
    /// `tokenizer.json`.
    pub tokenizer: bool,
    /// `tokenizer_config.json`.
    pub tokenizer_config: bool,
    /// `chat_template.jinja`.
    pub chat_template: bool,
    /// `generation_config.json`.
    pub generation_config: bool,
}

/// The command-line name of the format of a stamped matrix.
fn format_name(catalog: &Catalog, tensor: &TensorInfo) -> Option<String> {
    let stamp = catalog.stamp(&tensor.name)?;
    let format = FORMATS.iter().find(|spec| spec.stamp == stamp)?.example;
    let scales = catalog.get(&format!("{}.qs", tensor.name)).map_or(0, |scales| scales.bytes / 4);
    match format {
        // Two codes share a byte, and the last group of a row may be short.
        Format::Int4Grouped { .. } if scales > 0 => {
            let codes = tensor.bytes.saturating_mul(2).div_ceil(scales);
            let group = u32::try_from(codes.checked_next_power_of_two()?).ok()?;
            Some(Format::Int4Grouped { group }.name())
        }
        _ => Some(format.name()),
    }
}

/// Inspects a model folder.
///
/// # Errors
/// As [`crate::Model::plan`], the memory budget excepted.
pub fn inspect(path: &Path) -> Result<Inspection, EngineError> {
    let (model, catalog) = describe(path)?;
    let name = |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let files: Vec<WeightFile> =
        catalog.files().iter().map(|file| WeightFile { file: name(&file.path), bytes: file.bytes }).collect();
    let mut types = BTreeMap::new();
    let mut tensors = Vec::new();
    for tensor in catalog.tensors() {
        let dtype = tensor.dtype.name().to_owned();
        let (count, bytes) = types.entry(dtype.clone()).or_insert((0_u64, 0_u64));
        *count += 1;
        *bytes += tensor.bytes;
        tensors.push(Tensor {
            name: tensor.name.clone(),
            dtype,
            shape: tensor.shape.clone(),
            bytes: tensor.bytes,
            file: files.get(tensor.file.0 as usize).map_or_else(String::new, |file| file.file.clone()),
            format: format_name(&catalog, tensor),
        });
    }
    let types = types.into_iter().map(|(dtype, (tensors, bytes))| StoredType { dtype, tensors, bytes }).collect();
    let there = |name: &str| catalog.directory().join(name).is_file();
    let text = TextFiles {
        tokenizer: there("tokenizer.json"),
        tokenizer_config: there("tokenizer_config.json"),
        chat_template: there("chat_template.jinja"),
        generation_config: there("generation_config.json"),
    };
    Ok(Inspection { model, container: container(&catalog), types, files, tensors, text })
}

fn container(catalog: &Catalog) -> Container {
    let manifest = catalog.manifest();
    Container {
        kind: if manifest.is_some() { "colibri" } else { "safetensors" },
        format_version: manifest.map(|manifest| manifest.format_version),
        writer: manifest.map(|manifest| manifest.writer.clone()),
        source: manifest.map(|manifest| manifest.source.name.clone()),
        scale_rule: manifest.map(|manifest| manifest.scale_rule.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_a_checkpoint_agree() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle/glm_tiny");
        let found = inspect(&path).expect("the checkpoint is there");
        let tensors: u64 = found.tensors.iter().map(|tensor| tensor.bytes).sum();
        let types: u64 = found.types.iter().map(|stored| stored.bytes).sum();
        let files: u64 = found.files.iter().map(|file| file.bytes).sum();
        assert_eq!(tensors, types);
        assert!(0 < tensors && tensors < files);
        assert_eq!(found.model.container_bytes, files);
        assert_eq!(found.container.kind, "safetensors");
        assert!(found.text.tokenizer && found.text.chat_template);
        assert!(found.tensors.iter().all(|tensor| found.files.iter().any(|file| file.file == tensor.file)));
    }

    #[test]
    fn a_folder_without_a_model_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(inspect(folder.path()).expect_err("nothing is there").code(), "model_not_found");
    }
}
