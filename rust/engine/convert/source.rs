//! The checkpoint to be converted: opened, checked, and each tensor of it classified by the family's inventory.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use colibri_store::catalog::{Catalog, SCALE_SUFFIX, WeightLocation};
use colibri_store::container::{Dtype, resolve};
use colibri_store::error::{Fault, FaultKind, StoreError, grouped, human_bytes, shown};

use crate::error::EngineError;
use crate::model::read_spec;
use crate::names::{Shape, TensorSlot, WeightNames, fill, inventory};
use crate::spec::ModelSpec;
use crate::weights::drop_absent_parts;

/// The largest checkpoint that is converted, in bytes.
pub(super) const MAX_BYTES: u64 = 8_000_000_000;

/// Files that travel with the weights when the checkpoint has them. The configuration is always there.
const COMPANIONS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "LICENSE",
];

/// Endings of tensors that some checkpoints carry and no family needs: rotation tables, which are computed, and the
/// prediction layer's own copies of embedding and head (the model's serve).
const UNUSED_ENDINGS: &[&str] = &["rotary_emb.inv_freq"];
const UNUSED_MTP_ENDINGS: &[&str] = &["embed_tokens.weight", "shared_head.head.weight"];

/// How many tensor names a message spells out.
const NAMES_SHOWN: usize = 6;

/// One weight of the checkpoint.
#[derive(Clone, Debug)]
pub(super) struct SourceWeight {
    /// What it is.
    pub slot: TensorSlot,
    /// Where it lies.
    pub location: WeightLocation,
}

/// A checkpoint that can be converted.
pub(super) struct Checkpoint {
    directory: PathBuf,
    pub catalog: Catalog,
    /// The model as the checkpoint holds it.
    pub spec: ModelSpec,
    /// Every weight to be converted, in the order of use.
    pub weights: Vec<SourceWeight>,
    /// Names of tensors that are left out because the model does not need them.
    pub unused: Vec<String>,
}

impl Checkpoint {
    /// Opens and classifies the checkpoint in the folder `path`.
    pub(super) fn open(path: &Path, keep_mtp: bool) -> Result<Self, EngineError> {
        if path.is_file() {
            return Err(StoreError::NotFound {
                path: path.to_path_buf(),
                found: "it is a file; a checkpoint is a folder with config.json and the weights".to_owned(),
                fix: "give the folder that the file lies in".to_owned(),
            }
            .into());
        }
        let catalog = Catalog::open(path)?;
        let refused = refusal(&catalog).map_or(Ok(()), |fault| Err(StoreError::fault(path, fault)));
        refused?;
        let (names, mut spec) = read_spec(path)?;
        let known: HashSet<String> = inventory(&spec, names).into_iter().map(|slot| slot.name).collect();
        let unused = unused_tensors(&catalog, &known, &spec, names)?;
        if !keep_mtp {
            spec.mtp = None;
        }
        drop_absent_parts(&mut spec, names, &catalog);
        let weights = locate(&catalog, inventory(&spec, names))?;
        Ok(Self { directory: path.to_path_buf(), catalog, spec, weights, unused })
    }

    /// Bytes of the weight files.
    pub(super) fn bytes(&self) -> u64 {
        self.catalog.total_bytes()
    }

    /// Name of the checkpoint's folder.
    pub(super) fn name(&self) -> String {
        let path = self.directory.canonicalize().unwrap_or_else(|_| self.directory.clone());
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// The files that travel along, each with its place.
    pub(super) fn companions(&self) -> Result<Vec<(&'static str, PathBuf)>, EngineError> {
        let mut found = Vec::new();
        for name in COMPANIONS {
            let path = resolve(&self.directory, name).map_err(|fault| StoreError::fault(&self.directory, fault))?;
            if let Some(path) = path.filter(|path| path.is_file()) {
                found.push((*name, path));
            }
        }
        Ok(found)
    }
}

/// Why the checkpoint is not converted, if it is not.
fn refusal(catalog: &Catalog) -> Option<Fault> {
    let directory = catalog.directory();
    let unsupported = |what: String| Fault::file(FaultKind::Unsupported, directory, what);
    if catalog.manifest().is_some() {
        return Some(
            unsupported(format!("{} is a colibri container already", directory.display()))
                .fix("convert the checkpoint that it was made from"),
        );
    }
    let scaled = |name: &str| name.ends_with(SCALE_SUFFIX) || name.contains("weight_scale");
    let fp8 =
        |dtype| matches!(dtype, Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::F8E8m0 | Dtype::F8E4m3Fnuz | Dtype::F8E5m2Fnuz);
    for tensor in catalog.tensors() {
        let name = shown(&tensor.name);
        if fp8(tensor.dtype) || tensor.name.ends_with("weight_scale_inv") {
            return Some(
                unsupported(format!("{} is an FP8 checkpoint", directory.display()))
                    .why(format!("{name} is {}; FP8 sources come with a later version", tensor.dtype.name()))
                    .fix("convert a bf16 copy of the checkpoint"),
            );
        }
        if scaled(&tensor.name) || matches!(tensor.dtype, Dtype::U8 | Dtype::I8) {
            return Some(
                unsupported(format!("{} is quantised already", directory.display()))
                    .why(format!("{name} is {}; conversion starts from f32, bf16 or f16 weights", tensor.dtype.name()))
                    .fix("load it as it is, or convert the checkpoint that it was made from"),
            );
        }
    }
    refuse_size(directory, catalog.total_bytes())
}

/// Large checkpoints need a conversion that can be resumed.
pub(super) fn refuse_size(directory: &Path, bytes: u64) -> Option<Fault> {
    (bytes > MAX_BYTES).then(|| {
        let what = format!("{} is {}: too large to convert", directory.display(), human_bytes(bytes));
        Fault::file(FaultKind::Unsupported, directory, what)
            .why(format!("sources of more than {} come with a later version", human_bytes(MAX_BYTES)))
            .fix("convert a smaller checkpoint, or load a container that is ready")
    })
}

/// Tensors outside of the inventory: known copies are listed, anything else is an error, since leaving out a tensor
/// that matters would make a model that is silently wrong.
fn unused_tensors(
    catalog: &Catalog,
    known: &HashSet<String>,
    spec: &ModelSpec,
    names: &WeightNames,
) -> Result<Vec<String>, EngineError> {
    let layer_stem = names.input_norm.split_inclusive("{layer}.").next().unwrap_or_default();
    let mtp_prefix = fill(layer_stem, spec.layers.len(), None);
    let expected_extra = |name: &str| {
        let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        ends(UNUSED_ENDINGS)
            || (spec.tied_head && name == names.head)
            || (name.starts_with(&mtp_prefix) && ends(UNUSED_MTP_ENDINGS))
    };
    let (mut unused, mut strange) = (Vec::new(), Vec::new());
    for tensor in catalog.tensors().filter(|tensor| !known.contains(&tensor.name)) {
        let list = if expected_extra(&tensor.name) { &mut unused } else { &mut strange };
        list.push(tensor.name.clone());
    }
    let Some(first) = strange.first() else { return Ok(unused) };
    let shown_names: Vec<String> = strange.iter().take(NAMES_SHOWN).map(|name| shown(name)).collect();
    let more = strange.len().saturating_sub(NAMES_SHOWN);
    let rest = if more > 0 { format!(" and {} more", grouped(more as u64)) } else { String::new() };
    let what = format!("{} is no tensor of a {} model", shown(first), spec.family);
    let mut fault = Fault::file(FaultKind::Unsupported, catalog.directory(), what)
        .why(format!("config.json describes a model without {}{rest}; none of it was guessed", shown_names.join(", ")))
        .fix("check that config.json belongs to these weights");
    fault.tensor = Some(first.clone());
    Err(StoreError::fault(catalog.directory(), fault).into())
}

/// Finds every tensor of the inventory; all that are missing or misshapen make one error.
fn locate(catalog: &Catalog, slots: Vec<TensorSlot>) -> Result<Vec<SourceWeight>, EngineError> {
    let (mut weights, mut errors) = (Vec::with_capacity(slots.len()), Vec::new());
    for slot in slots {
        let found = match slot.shape {
            Shape::Matrix { rows, cols } => catalog.weight(&slot.name, rows, cols),
            Shape::Vector { len } => catalog.vector(&slot.name, len),
        };
        match found {
            Ok(location) => weights.push(SourceWeight { slot, location }),
            Err(error) => errors.push(error),
        }
    }
    StoreError::merge(catalog.directory(), errors)?;
    Ok(weights)
}
