//! The plan of a model that is not here, from its configuration and the list of its files.
//!
//! Our own container says its formats in its manifest. An index names tensors and so tells checkpoints from public
//! containers, and what they lack. Everything else is told by size alone: of the layouts that are known, the one whose
//! projected bytes come nearest to the listed ones, within a few percent. Refuses to guess beyond that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use colibri_kernels::format::Format;
use colibri_store::budget;
use colibri_store::catalog::SCALE_SUFFIX;
use colibri_store::container::manifest::{MANIFEST_NAME, Manifest};
use colibri_store::error::{Fault, FaultKind, StoreError, human_bytes};
use colibri_store::machine::{self, MachineFacts};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::project::{Layout, Projection, total_bytes};
use super::{DiskRate, Draft, MemoryRate, PlanReport, Rates, conversion};
use crate::blueprint::Blueprint;
use crate::config::EngineConfig;
use crate::convert::{ConvertOptions, container_bytes, held_bytes, target_of};
use crate::error::EngineError;
use crate::model::{ModelInfo, request, sizes, threads};
use crate::names::{TensorClass, TensorSlot};

/// How far the bytes of a known layout may lie from the listed ones.
const TOLERANCE: f64 = 0.03;

/// What is known of a model's files.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct RemoteListing {
    /// Names and sizes of all files.
    pub files: Vec<(String, u64)>,
    /// The index: tensor -> file.
    #[serde(default)]
    pub weight_map: Option<BTreeMap<String, String>>,
    /// Bytes of all tensors, as the index has it.
    #[serde(default)]
    pub total_size: Option<u64>,
    /// `colibri.json`.
    #[serde(default)]
    pub manifest: Option<Value>,
    /// Name of the repository, for messages.
    #[serde(default)]
    pub repository: Option<String>,
}

/// A layout that occurs in the wild.
struct Known {
    name: &'static str,
    /// A public container; else a checkpoint.
    public: bool,
    format: fn(&TensorSlot) -> Format,
}

/// Every layout that sizes are compared with.
const KNOWN: &[Known] = &[
    Known {
        name: "int4 with a scale per row",
        public: true,
        format: |slot| of_public(slot, Format::Int4Row, Format::Int4Row),
    },
    Known {
        name: "int4 with a scale per row, the prediction layer too",
        public: true,
        format: |slot| of_class(slot.class, Format::Int4Row, Format::Int4Row),
    },
    Known { name: "int4 in groups of 64", public: true, format: |slot| of_public(slot, Format::Q4G64, Format::Q4G64) },
    Known {
        name: "int3 experts, the rest int4 in groups of 64",
        public: true,
        format: |slot| of_public(slot, Format::Int3G64, Format::Q4G64),
    },
    Known { name: "int8", public: true, format: |slot| of_public(slot, Format::Int8Row, Format::Int8Row) },
    Known {
        name: "int8 experts, the rest bf16",
        public: true,
        format: |slot| if slot.class == TensorClass::Expert { Format::Int8Row } else { Format::Bf16 },
    },
    Known { name: "bf16", public: false, format: |_| Format::Bf16 },
    Known { name: "f32", public: false, format: |_| Format::F32 },
    Known { name: "FP8 with 128 x 128 scales", public: false, format: of_fp8 },
];

/// Public containers keep the prediction layer in int8.
fn of_public(slot: &TensorSlot, experts: Format, dense: Format) -> Format {
    if slot.mtp {
        return of_class(slot.class, Format::Int8Row, Format::Int8Row);
    }
    of_class(slot.class, experts, dense)
}

/// Indexer, embedding, head and the prediction layer's projection are int8, norms and router f32.
fn of_class(class: TensorClass, experts: Format, dense: Format) -> Format {
    match class {
        TensorClass::Norm | TensorClass::Router => Format::F32,
        TensorClass::Embedding | TensorClass::Head | TensorClass::Indexer | TensorClass::MtpProjection => {
            Format::Int8Row
        }
        TensorClass::Expert => experts,
        TensorClass::Attention | TensorClass::Dense | TensorClass::SharedExpert => dense,
    }
}

/// FP8 checkpoints keep embedding, head, router and the prediction layer's projection in bf16.
fn of_fp8(slot: &TensorSlot) -> Format {
    match slot.class {
        TensorClass::Attention
        | TensorClass::Dense
        | TensorClass::SharedExpert
        | TensorClass::Expert
        | TensorClass::Indexer => Format::Fp8Block,
        TensorClass::Norm
        | TensorClass::Router
        | TensorClass::Embedding
        | TensorClass::Head
        | TensorClass::MtpProjection => Format::Bf16,
    }
}

/// Plans a model from `config.json` and a list of its files.
///
/// # Errors
/// A configuration or a manifest that cannot be read, weights whose layout cannot be told, and a memory budget that is
/// too small.
pub fn plan_remote(
    config: &Map<String, Value>,
    listing: &RemoteListing,
    engine: &EngineConfig,
) -> Result<PlanReport, EngineError> {
    plan_on(&machine::probe(), config, listing, engine)
}

/// The plan for a machine with these facts.
pub(super) fn plan_on(
    machine: &MachineFacts,
    config: &Map<String, Value>,
    listing: &RemoteListing,
    engine: &EngineConfig,
) -> Result<PlanReport, EngineError> {
    let refuse = |source| EngineError::Config { path: "config.json".into(), source };
    let blueprint = Blueprint::parse(config).map_err(refuse)?;
    let found = match &listing.manifest {
        Some(manifest) => of_manifest(blueprint, manifest, listing)?,
        None => of_files(blueprint, listing)?,
    };
    let Found { blueprint, projection, container, container_bytes, checkpoint, held, basis } = found;
    let threads = threads(engine, machine);
    let sizes = sizes(&blueprint, projection.resident, &projection.experts, container_bytes, engine, threads);
    let plan = budget::plan(machine, &sizes, &request(engine))?;
    let info =
        ModelInfo::new(Path::new(""), &blueprint, projection.formats.clone(), projection.parameters, container_bytes);
    let weights = weight_files(listing).map(|(_, bytes)| *bytes);
    let rates = Rates {
        disk: DiskRate {
            bytes_per_second: None,
            kind: None,
            basis: "not measured: the model is not on this machine".to_owned(),
        },
        memory: MemoryRate { bytes_per_second: None, threads: None, basis: "not measured".to_owned() },
    };
    let draft = Draft {
        runs: blueprint.runs(),
        remote: true,
        container,
        resident_touched: projection.resident_touched,
        experts_stored: (projection.experts.expert_count() + projection.prediction.expert_count()) as u64,
        prediction_expert_bytes: projection.prediction.total_bytes(),
        chunk: engine.chunk() as u64,
        conversion: checkpoint.then(|| conversion(&projection, container_bytes, weights, Some(held))),
        sizes_basis: basis,
        info,
        plan,
        rates,
    };
    Ok(draft.finish())
}

/// A model, and the container that is planned for it.
struct Found {
    blueprint: Blueprint,
    projection: Projection,
    container: String,
    container_bytes: u64,
    /// The files are a checkpoint; the container is what conversion would write.
    checkpoint: bool,
    /// Bytes of a checkpoint that lie here at a time while it is fetched and converted.
    held: u64,
    basis: String,
}

fn weight_files(listing: &RemoteListing) -> impl Iterator<Item = &(String, u64)> + Clone {
    // A model's files lie in its own folder; a fetch leaves what lies deeper where it is.
    listing.files.iter().filter(|(name, _)| name.ends_with(".safetensors") && !name.contains('/'))
}

/// Our own container: its manifest names the format of each class.
fn of_manifest(mut blueprint: Blueprint, manifest: &Value, listing: &RemoteListing) -> Result<Found, EngineError> {
    let path = Path::new(MANIFEST_NAME);
    let text = serde_json::to_vec(manifest).unwrap_or_default();
    let manifest = Manifest::parse(&text, path).map_err(|fault| StoreError::fault(path, fault))?;
    let format = |class: &str| {
        let entry = manifest.quantisation.iter().find(|entry| entry.class == class);
        entry.and_then(|entry| Format::parse(&entry.format))
    };
    if !manifest.multi_token_prediction {
        blueprint.drop_prediction();
    }
    if format("indexer").is_none() {
        blueprint.drop_indexers();
    }
    let options = ConvertOptions::default();
    let projection = Projection::new(&blueprint.slots(), Layout::Record, &|slot| {
        let (class, default) = target_of(slot, &options);
        format(class).unwrap_or(default)
    })?;
    let listed = manifest.shards.iter().fold(0u64, |sum, shard| sum.saturating_add(shard.bytes));
    let here = weight_files(listing).fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    Ok(Found {
        blueprint,
        projection,
        container: "a colibri container".to_owned(),
        container_bytes: listed.max(here),
        checkpoint: false,
        held: 0,
        basis: "sizes: config.json and the formats of colibri.json".to_owned(),
    })
}

/// What the names in the index tell: whether the files are a public container, where that is certain.
fn kind_by_names(listing: &RemoteListing) -> Option<bool> {
    if let Some(index) = &listing.weight_map {
        return Some(index.keys().any(|name| name.ends_with(SCALE_SUFFIX)));
    }
    // The public converters number their files like this and write no index.
    weight_files(listing).any(|(name, _)| name.starts_with("out-")).then_some(true)
}

/// The blueprints that the files may hold: what an index lacks is absent; without one, names of files may tell, and
/// otherwise every choice is possible.
fn variants(blueprint: &Blueprint, listing: &RemoteListing) -> Vec<Blueprint> {
    if let Some(index) = &listing.weight_map {
        let mut blueprint = blueprint.clone();
        blueprint.drop_absent(&|name| index.contains_key(name));
        return vec![blueprint];
    }
    let has = |stem: &str| weight_files(listing).any(|(name, _)| name.starts_with(stem));
    let choices = |part: &str| if has("out-") { vec![has(part)] } else { vec![true, false] };
    let mut all = Vec::new();
    for prediction in choices("out-mtp-") {
        for indexer in choices("out-idx-") {
            let mut blueprint = blueprint.clone();
            if !prediction {
                blueprint.drop_prediction();
            }
            if !indexer {
                blueprint.drop_indexers();
            }
            all.push(blueprint);
        }
    }
    all
}

/// A checkpoint or a public container, by the names in its index and by its size.
fn of_files(blueprint: Blueprint, listing: &RemoteListing) -> Result<Found, EngineError> {
    let files = weight_files(listing).fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let total = listing.total_size.filter(|total| *total > 0).unwrap_or(files);
    let public = kind_by_names(listing);
    let mut within: Vec<(f64, &Known, Blueprint)> = Vec::new();
    for variant in variants(&blueprint, listing) {
        let slots = variant.slots();
        for known in KNOWN.iter().filter(|known| public.is_none_or(|public| public == known.public)) {
            let Some(bytes) = total_bytes(&slots, &known.format) else { continue };
            let distance = (bytes as f64 - total as f64).abs() / total.max(1) as f64;
            if distance <= TOLERANCE {
                within.push((distance, known, variant.clone()));
            }
        }
    }
    within.sort_by(|left, right| left.0.total_cmp(&right.0));
    let others = runners_up(&within);
    let nearest = within.into_iter().next();
    match nearest {
        Some((distance, known, blueprint)) if known.public => {
            let projection = Projection::new(&blueprint.slots(), Layout::Apart, &known.format)?;
            Ok(Found {
                container: format!("a public container, {}", known.name),
                basis: format!(
                    "sizes: a guess by size alone, projected from config.json as {}, the known layout nearest to the listed \
                     {} ({:.1} % off){others}; the headers decide once the model is here",
                    known.name,
                    human_bytes(total),
                    100.0 * distance
                ),
                container_bytes: files.max(projection.bytes),
                checkpoint: false,
                held: 0,
                blueprint,
                projection,
            })
        }
        Some((_, known, blueprint)) => converted(blueprint, listing, known.name),
        // An index without scales is a checkpoint whatever the sizes of its tensors are.
        None if public == Some(false) => {
            let blueprint = variants(&blueprint, listing).pop().unwrap_or(blueprint);
            converted(blueprint, listing, "unknown precision")
        }
        None => Err(unknown_layout(total, listing)),
    }
}

/// The other layouts whose sizes lie as near as is told apart.
fn runners_up(within: &[(f64, &Known, Blueprint)]) -> String {
    let mut names: Vec<&str> = within.iter().map(|(_, known, _)| known.name).collect();
    let first = names.first().copied();
    let mut seen = BTreeSet::new();
    names.retain(|name| Some(*name) != first && seen.insert(*name));
    if names.is_empty() {
        return String::new();
    }
    format!("; within {:.0} % lies also: {}", 100.0 * TOLERANCE, names.join("; "))
}

/// A checkpoint is planned as what conversion makes of it.
fn converted(blueprint: Blueprint, listing: &RemoteListing, stored: &str) -> Result<Found, EngineError> {
    let (slots, options) = (blueprint.slots(), ConvertOptions::default());
    let projection = Projection::of_conversion(&slots, &options)?;
    let places = listing.weight_map.iter().flatten().map(|(tensor, file)| (tensor.as_str(), file.as_str()));
    let places: Vec<_> = places.collect();
    let sizes: HashMap<&str, u64> = weight_files(listing).map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    let held = if places.is_empty() {
        // Which tensor is where is not known: those of two steps, and one that an expert straddles into.
        sizes.values().max().map_or(0, |largest| largest.saturating_mul(3))
    } else {
        held_bytes(&slots, &places, &sizes, &options)?
    };
    Ok(Found {
        container: format!("a Hugging Face checkpoint ({stored}), planned as converted"),
        container_bytes: container_bytes(&slots, &places, &options)?,
        basis: "sizes: projected from config.json for the container that convert writes with its default formats"
            .to_owned(),
        checkpoint: true,
        held,
        blueprint,
        projection,
    })
}

fn unknown_layout(total: u64, listing: &RemoteListing) -> EngineError {
    let path = Path::new("config.json");
    let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
    let fault = Fault::file(FaultKind::Unsupported, path, "how these weights are stored is unknown")
        .why(format!(
            "the files are {}; no known layout of this model ({}) comes within {:.0} %",
            human_bytes(total),
            names.join("; "),
            100.0 * TOLERANCE
        ))
        .fix(match &listing.repository {
            Some(name) => {
                format!("fetch the model and plan it from its headers:  colibri pull {name} && colibri plan {name}")
            }
            None => "fetch the model and plan it from its headers".to_owned(),
        });
    StoreError::fault(path, fault).into()
}
