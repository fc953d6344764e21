//! What a model folder holds, from its headers alone: the model's facts, its classes of tensors and their formats, its
//! files, what is absent and what travels along.
//!
//! Every format is the one that loading would take: the same catalog decides. Refuses what the catalog and the
//! configuration refuse; a family that is described and not run is inspected like any other. Reads no weight, needs no
//! memory budget.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use colibri_kernels::Format;
use colibri_store::catalog::{Catalog, SCALE_SUFFIX, WeightLocation};
use colibri_store::container::FileId;
use colibri_store::error::StoreError;
use colibri_store::source::Span;
use serde::Serialize;

use crate::convert::{ConvertOptions, target_of};
use crate::error::EngineError;
use crate::model::{ModelInfo, blueprint_of};
use crate::names::TensorSlot;
use crate::weights::{Formats, locate};

/// Version of the report's fields.
pub const REPORT_VERSION: u32 = 1;

/// The summary of a model folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// Version of these fields: 1.
    pub version: u32,
    /// The model's facts.
    pub model: ModelInfo,
    /// Whether this engine runs the model's family.
    pub runs: bool,
    /// What kind of container it is.
    pub container: Container,
    /// The classes of tensors that occur, named as conversion names them.
    pub classes: Vec<ClassSummary>,
    /// Optional parts of the model that the container lacks.
    pub absent: Vec<&'static str>,
    /// Tensors that the model does not need.
    pub unused: Vec<String>,
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
    /// `colibri`, `public` (flat codes with `.qs` scales) or `huggingface`.
    pub kind: &'static str,
    /// Version of colibri's format.
    pub format_version: Option<u32>,
    /// The program that wrote it.
    pub writer: Option<String>,
    /// Name of the checkpoint it was made from.
    pub source: Option<String>,
    /// How int4 scales were chosen.
    pub scale_rule: Option<String>,
    /// Columns that share a scale in the container's int4 matrices, where they are grouped.
    pub group_size: Option<u32>,
}

/// The tensors of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassSummary {
    /// Name of the class: `experts`, `dense`, `embedding`, ...
    pub class: &'static str,
    /// Names of the formats that occur, in the order of their first use.
    pub formats: Vec<String>,
    /// Number of tensors, scales not counted.
    pub tensors: u64,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of codes and scales.
    pub bytes: u64,
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
    /// The command-line name of its weight format; scales and tensors that the model does not need have none.
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

/// Inspects a model folder.
///
/// # Errors
/// As [`crate::Model::plan`], the memory budget excepted.
pub fn inspect(path: &Path) -> Result<Inspection, EngineError> {
    let catalog = Catalog::open(path)?;
    let (blueprint, absent) = blueprint_of(path, &catalog)?;
    let (found, errors) = locate(&catalog, blueprint.slots());
    StoreError::merge(catalog.directory(), errors)?;
    let mut formats = Formats::default();
    found.iter().for_each(|(slot, location)| formats.note(slot.class, location.format));
    let parameters = found.iter().map(|(_, location)| location.rows as u64 * location.cols as u64).sum();
    let model = ModelInfo::new(path, &blueprint, formats, parameters, catalog.total_bytes());
    let uses = Uses::of(&found);
    let files: Vec<WeightFile> =
        catalog.files().iter().map(|file| WeightFile { file: file_name(&file.path), bytes: file.bytes }).collect();
    let mut types = BTreeMap::new();
    let (mut tensors, mut unused) = (Vec::new(), Vec::new());
    for tensor in catalog.tensors() {
        let dtype = tensor.dtype.name().to_owned();
        let (count, bytes) = types.entry(dtype.clone()).or_insert((0_u64, 0_u64));
        *count += 1;
        *bytes += tensor.bytes;
        let place = (tensor.file, tensor.offset);
        if !uses.formats.contains_key(&place) && !uses.scales.contains(&place) {
            unused.push(tensor.name.clone());
        }
        tensors.push(Tensor {
            name: tensor.name.clone(),
            dtype,
            shape: tensor.shape.clone(),
            bytes: tensor.bytes,
            file: files.get(tensor.file.0 as usize).map_or_else(String::new, |file| file.file.clone()),
            format: uses.formats.get(&place).map(|format| format.name()),
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
    Ok(Inspection {
        version: REPORT_VERSION,
        model,
        runs: blueprint.runs(),
        container: container(&catalog, &found),
        classes: classes(&found),
        absent,
        unused,
        types,
        files,
        tensors,
        text,
    })
}

/// Where the parts of located weights begin. Keyed by place and not by name, because a stored tensor can hold several
/// weights.
struct Uses {
    formats: HashMap<(FileId, u64), Format>,
    scales: HashSet<(FileId, u64)>,
}

impl Uses {
    fn of(found: &[(TensorSlot, WeightLocation)]) -> Self {
        let place = |span: &Span| (span.file, span.offset);
        Self {
            formats: found.iter().map(|(_, location)| (place(&location.codes), location.format)).collect(),
            scales: found.iter().filter_map(|(_, location)| location.scales.as_ref().map(place)).collect(),
        }
    }
}

/// The classes that occur, in the order of their first use.
fn classes(found: &[(TensorSlot, WeightLocation)]) -> Vec<ClassSummary> {
    let options = ConvertOptions::default();
    let mut classes: Vec<ClassSummary> = Vec::new();
    for (slot, location) in found {
        let (class, _) = target_of(slot, &options);
        let at = classes.iter().position(|summary| summary.class == class).unwrap_or_else(|| {
            classes.push(ClassSummary { class, formats: Vec::new(), tensors: 0, parameters: 0, bytes: 0 });
            classes.len() - 1
        });
        let Some(summary) = classes.get_mut(at) else { continue };
        let format = location.format.name();
        if !summary.formats.contains(&format) {
            summary.formats.push(format);
        }
        summary.tensors += 1;
        summary.parameters += location.rows as u64 * location.cols as u64;
        summary.bytes += location.bytes();
    }
    classes
}

/// The kind of a container. Scales under the suffix of the public containers are found in no checkpoint.
pub(crate) fn kind(catalog: &Catalog) -> &'static str {
    if catalog.manifest().is_some() {
        "colibri"
    } else if catalog.tensors().any(|tensor| tensor.name.ends_with(SCALE_SUFFIX)) {
        "public"
    } else {
        "huggingface"
    }
}

fn container(catalog: &Catalog, found: &[(TensorSlot, WeightLocation)]) -> Container {
    let manifest = catalog.manifest();
    let group_size = found.iter().find_map(|(_, location)| match location.format {
        Format::Int4Grouped { group } => Some(group),
        _ => None,
    });
    Container {
        kind: kind(catalog),
        format_version: manifest.map(|manifest| manifest.format_version),
        writer: manifest.map(|manifest| manifest.writer.clone()),
        source: manifest.map(|manifest| manifest.source.name.clone()),
        scale_rule: manifest.map(|manifest| manifest.scale_rule.clone()),
        group_size,
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
