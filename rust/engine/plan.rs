//! Where the weights of a model would live on this machine, and how fast that would be.
//!
//! The memory plan is the one that loading makes; sizes come from the headers, or, for a model that is not here, from its
//! configuration and the list of its files. Speeds are ranges and carry their basis; a rate that was not measured is
//! absent, never guessed. Refuses what loading refuses, a family that is only described excepted.

mod estimate;
mod project;
mod remote;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use colibri_store::budget::Plan;
use colibri_store::container::{FileInfo, TensorInfo};
use colibri_store::error::{file_name, human_bytes};
use colibri_store::probe::{measure_memory, measure_reads};
use colibri_store::source::SourceKind;
use serde::Serialize;

use crate::config::EngineConfig;
use crate::convert::{ConvertOptions, container_bytes};
use crate::error::EngineError;
use crate::inspect::{REPORT_VERSION, kind};
use crate::model::{ModelInfo, Survey, survey};
use crate::names::{TensorClass, TensorSlot};
use crate::weights::memory_bytes;

use project::Projection;

pub use remote::{RemoteListing, plan_remote};

/// Longest time that the disk is read for, and the memory.
const DISK_TIME: Duration = Duration::from_millis(1200);
const MEMORY_TIME: Duration = Duration::from_millis(250);

/// What a plan may measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanProbe {
    /// Read a second's worth of weights, and memory, to learn their rates.
    pub measure: bool,
}

/// A range of estimates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// The cautious end.
    pub low: f64,
    /// The hopeful end.
    pub high: f64,
}

/// Where the weights of a model would live, and how fast that would be.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// Version of these fields: 1.
    pub version: u32,
    /// Always true: what does not fit is an error with the numbers.
    pub fits: bool,
    /// Whether this engine runs the model's family.
    pub runs: bool,
    /// The model is not here; sizes are projected.
    pub remote: bool,
    /// What the weights are stored as, in words.
    pub container: String,
    /// The model's facts.
    pub model: ModelInfo,
    /// The memory plan.
    #[serde(flatten)]
    pub plan: Plan,
    /// Routed experts that are stored, those of the prediction layer included.
    pub experts_stored: u64,
    /// What lies where.
    pub tiers: Vec<Tier>,
    /// Share of the chosen experts that are found in memory.
    pub hit_rate: Range,
    /// What one decoded token moves.
    pub per_token: PerToken,
    /// How fast bytes move here.
    pub rates: Rates,
    /// Decoded tokens per second; absent where a rate that matters was not measured.
    pub tokens_per_second: Option<Range>,
    /// Work on a prompt.
    pub prefill: Prefill,
    /// What limits decoding.
    pub bottleneck: Bottleneck,
    /// What more memory would do; absent when all experts fit already.
    pub more_ram: Option<MoreRam>,
    /// What conversion would write; only for a checkpoint.
    pub conversion: Option<ConversionNeed>,
    /// What the numbers rest on.
    pub basis: Vec<String>,
}

/// One line of the table of tiers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tier {
    /// `RAM` or `disk`.
    pub tier: &'static str,
    /// What lies there.
    pub what: String,
    /// Its size.
    pub bytes: u64,
    /// How much of it is used when, in words.
    pub share: String,
    /// Experts of a layer that are in memory on average; for the expert cache.
    pub cached_per_layer: Option<f64>,
    /// Experts of a layer; for the expert cache.
    pub experts_per_layer: Option<u64>,
}

/// What one decoded token moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PerToken {
    /// Routed experts that are evaluated.
    pub experts: u64,
    /// Their bytes.
    pub expert_bytes: u64,
    /// Bytes of resident weights that are read in memory.
    pub resident_bytes: u64,
    /// Both together.
    pub touched_bytes: u64,
    /// Bytes that come from the disk under concentrated routing.
    pub read_low: u64,
    /// Bytes that come from the disk when every expert is equally likely.
    pub read_high: u64,
}

/// How fast bytes move here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Random reads of expert size.
    pub disk: DiskRate,
    /// Reads of memory by all threads.
    pub memory: MemoryRate,
}

/// The rate of the disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskRate {
    /// The rate, where it was measured.
    pub bytes_per_second: Option<f64>,
    /// The way of reading that was measured.
    pub kind: Option<SourceKind>,
    /// How it was found, or why it was not.
    pub basis: String,
}

/// The rate of memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryRate {
    /// The rate, where it was measured.
    pub bytes_per_second: Option<f64>,
    /// Threads that read.
    pub threads: Option<usize>,
    /// How it was found, or why it was not.
    pub basis: String,
}

/// Work on a prompt: each expert of a layer is read once for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prefill {
    /// Tokens of a chunk.
    pub chunk_tokens: u64,
    /// Bytes from the disk for each token of a full chunk.
    pub read_bytes_per_token: u64,
    /// What the disk allows at most; absent where it does not matter or was not measured.
    pub tokens_per_second_high: Option<f64>,
}

/// What limits decoding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bottleneck {
    /// `disk`, `memory` or `unknown`.
    pub resource: &'static str,
    /// The same for people.
    pub text: String,
}

/// What more memory would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoreRam {
    /// Bytes more.
    pub bytes: u64,
    /// Expert slots then.
    pub slots: u64,
    /// Hit rate then.
    pub hit_rate: Range,
    /// Bytes from the disk then, under concentrated routing.
    pub read_low: u64,
    /// The same when every expert is equally likely.
    pub read_high: u64,
    /// Decoded tokens per second then.
    pub tokens_per_second: Option<Range>,
    /// The same for people.
    pub text: String,
}

/// What converting a checkpoint takes, with the default formats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConversionNeed {
    /// Bytes of the container.
    pub container_bytes: u64,
    /// Bytes of the checkpoint.
    pub source_bytes: u64,
    /// Bytes of its largest file.
    pub largest_file_bytes: u64,
    /// Free space that it takes when each source file is fetched when its turn comes and removed after use; of a
    /// checkpoint that is here already, that of the container.
    pub disk_bytes_streaming: u64,
    /// Free space that it takes when the checkpoint is kept: with it, where it has still to be fetched.
    pub disk_bytes_keeping_source: u64,
    /// Format and size of each class.
    pub formats: Vec<ClassBytes>,
}

/// Format and size of a class of tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassBytes {
    /// Name of the class.
    pub class: &'static str,
    /// Name of the format.
    pub format: String,
    /// Bytes of codes and scales.
    pub bytes: u64,
}

/// Plans a model that lies in the folder `path`.
///
/// # Errors
/// As [`crate::Model::open`], reads excepted; a family that does not run is planned like one that does.
pub fn plan(path: &Path, config: &EngineConfig, probe: PlanProbe) -> Result<PlanReport, EngineError> {
    let survey = survey(path, config, false)?;
    let slots = survey.blueprint.slots();
    let kind = kind(&survey.catalog);
    let conversion = (kind == "huggingface").then(|| {
        let projection = Projection::of_conversion(&slots, &ConvertOptions::default())?;
        let files = survey.catalog.files();
        let names: Vec<String> = files.iter().map(|file| file_name(&file.path)).collect();
        let name = |tensor: &TensorInfo| names.get(tensor.file.0 as usize).map_or("", String::as_str);
        let places: Vec<_> = survey.catalog.tensors().map(|tensor| (tensor.name.as_str(), name(tensor))).collect();
        let bytes = container_bytes(&slots, &places, &ConvertOptions::default())?;
        Ok::<_, EngineError>(conversion(&projection, bytes, files.iter().map(|file| file.bytes), None))
    });
    let conversion = conversion.transpose()?;
    let rates = rates(&survey, probe);
    let Survey { blueprint, placement, info, plan, .. } = survey;
    let resident_touched =
        placement.resident.iter().filter(|(slot, _)| touched(slot)).map(|(slot, place)| memory_bytes(slot, place));
    let report = Draft {
        runs: blueprint.runs(),
        remote: false,
        container: match kind {
            "colibri" => "a colibri container".to_owned(),
            "public" => "a public container".to_owned(),
            _ => "a Hugging Face checkpoint".to_owned(),
        },
        resident_touched: resident_touched.sum(),
        experts_stored: (placement.experts.expert_count() + placement.mtp_experts.expert_count()) as u64,
        prediction_expert_bytes: placement.mtp_experts.total_bytes(),
        chunk: config.chunk() as u64,
        sizes_basis: "sizes: headers".to_owned(),
        info,
        plan,
        rates,
        conversion,
    };
    Ok(report.finish())
}

/// Everything that a report is computed from.
struct Draft {
    runs: bool,
    remote: bool,
    container: String,
    info: ModelInfo,
    plan: Plan,
    resident_touched: u64,
    experts_stored: u64,
    prediction_expert_bytes: u64,
    chunk: u64,
    rates: Rates,
    conversion: Option<ConversionNeed>,
    sizes_basis: String,
}

impl Draft {
    fn finish(self) -> PlanReport {
        let load = estimate::Load::new(&self.info, &self.plan, self.resident_touched);
        let cached = estimate::cached_share(&self.plan);
        let per_token = load.per_token(cached);
        let hit_rate = estimate::hit_rate(cached);
        let speeds = estimate::Speeds::new(&self.rates);
        let tiers = tiers(&self.info, &self.plan, hit_rate, self.prediction_expert_bytes);
        PlanReport {
            version: REPORT_VERSION,
            fits: true,
            runs: self.runs,
            remote: self.remote,
            container: self.container,
            experts_stored: self.experts_stored,
            tiers,
            hit_rate,
            per_token,
            tokens_per_second: speeds.decode(&per_token),
            prefill: speeds.prefill(&load, cached, self.chunk),
            bottleneck: speeds.bottleneck(&per_token),
            more_ram: load.more_ram(&self.plan, &speeds),
            basis: basis(&self.info, &self.plan, &self.rates, &per_token, self.runs, self.sizes_basis),
            conversion: self.conversion,
            rates: self.rates,
            model: self.info,
            plan: self.plan,
        }
    }
}

/// Whether decoding a token reads this resident tensor: of the embedding it reads one row, and the prediction layer is
/// not part of it.
fn touched(slot: &TensorSlot) -> bool {
    slot.class != TensorClass::Embedding && !slot.mtp
}

/// The table of tiers.
fn tiers(info: &ModelInfo, plan: &Plan, hits: Range, prediction_expert_bytes: u64) -> Vec<Tier> {
    let row = |tier, what: String, bytes, share: &str| Tier {
        tier,
        what,
        bytes,
        share: share.to_owned(),
        cached_per_layer: None,
        experts_per_layer: None,
    };
    let mut rows = vec![
        row("RAM", "dense, attention, embeddings (resident)".to_owned(), plan.resident_bytes, "always"),
        row("RAM", format!("KV cache, ctx {}", plan.context), plan.kv_bytes, "grows as used"),
        row("RAM", "scratch, I/O buffers".to_owned(), plan.scratch_bytes, ""),
    ];
    if plan.scales.resident_bytes > 0 {
        rows.push(row("RAM", "scales of experts".to_owned(), plan.scales.resident_bytes, "always"));
    }
    let cached = estimate::cached_share(plan);
    let whole = cached >= 1.0;
    if plan.sizes.experts_total > 0 {
        let per_layer = cached * info.experts as f64;
        // A whole number where there is one to speak of: `5 of 256`, but `0.4 of 256`.
        let shown = if per_layer < 1.0 { format!("{per_layer:.1}") } else { format!("{per_layer:.0}") };
        let share = if whole {
            "all of them".to_owned()
        } else {
            format!("est. {:.0}-{:.0} % hits", 100.0 * hits.low, 100.0 * hits.high)
        };
        rows.push(Tier {
            cached_per_layer: Some(per_layer),
            experts_per_layer: Some(info.experts as u64),
            ..row("RAM", format!("expert cache: {shown} of {} per layer", info.experts), plan.cache_bytes, &share)
        });
        let share = if whole { "read once" } else { "the rest" };
        rows.push(row("disk", "all experts".to_owned(), plan.sizes.expert_bytes_total, share));
    }
    if prediction_expert_bytes > 0 {
        let what = "experts of the multi-token-prediction layer".to_owned();
        rows.push(row("disk", what, prediction_expert_bytes, "read when it drafts"));
    }
    rows
}

/// What the numbers rest on.
fn basis(
    info: &ModelInfo,
    plan: &Plan,
    rates: &Rates,
    per_token: &PerToken,
    runs: bool,
    sizes_basis: String,
) -> Vec<String> {
    let mut lines = vec![sizes_basis];
    lines.push(format!("disk: {}", rates.disk.basis));
    lines.push(format!("memory: {}", rates.memory.basis));
    if per_token.read_high > 0 {
        lines.push(
            "hit rate: not recorded yet; low when every expert is equally likely, high under the routing measured on \
             public containers (the busiest 10 % of experts take 31 % of choices); both once the cache is full"
                .to_owned(),
        );
    }
    lines.push(
        "speed: low if reading and computing never overlap, high if they always do; reading is the limit that counts: \
         arithmetic and the KV cache are left out"
            .to_owned(),
    );
    if plan.sizes.experts_total > 0 {
        lines.push(format!("scales: {}", plan.scales.reason));
    }
    if !runs {
        lines.push(format!(
            "running: models of the family {} come with a later version; they can be inspected and converted now",
            info.family
        ));
    }
    lines
}

/// The rates of disk and memory; the disk matters only when experts come from it.
fn rates(survey: &Survey, probe: PlanProbe) -> Rates {
    let unmeasured = |basis: &str| DiskRate { bytes_per_second: None, kind: None, basis: basis.to_owned() };
    let memory = if probe.measure {
        let rate = measure_memory(survey.threads, MEMORY_TIME);
        MemoryRate {
            bytes_per_second: (rate > 0.0).then_some(rate),
            threads: Some(survey.threads),
            basis: format!(
                "the best of several passes of {} threads in {:.2} s",
                survey.threads,
                MEMORY_TIME.as_secs_f64()
            ),
        }
    } else {
        MemoryRate { bytes_per_second: None, threads: None, basis: "not measured".to_owned() }
    };
    let disk = if estimate::cached_share(&survey.plan) >= 1.0 {
        unmeasured("not needed: every expert is read once and then stays in memory")
    } else if probe.measure {
        measured_disk(survey.catalog.files(), survey.plan.scales.slot_bytes)
    } else {
        unmeasured("not measured")
    };
    Rates { disk, memory }
}

/// Measures reads of `block` bytes; a disk that cannot be read says so in words.
pub(crate) fn measured_disk(files: &[FileInfo], block: u64) -> DiskRate {
    let block = usize::try_from(block).unwrap_or(usize::MAX).clamp(1 << 20, 64 << 20);
    match measure_reads(files, block, DISK_TIME) {
        Ok(rate) => DiskRate {
            bytes_per_second: Some(rate.bytes_per_second),
            kind: Some(rate.kind),
            basis: format!(
                "{} in {} random reads of at most {}, {}, {:.1} s",
                human_bytes(rate.bytes),
                rate.reads,
                human_bytes(block.min(largest_of(files)) as u64),
                rate.kind,
                rate.seconds
            ),
        },
        Err(error) => DiskRate { bytes_per_second: None, kind: None, basis: format!("could not be measured: {error}") },
    }
}

/// Bytes of the largest file.
fn largest_of(files: &[FileInfo]) -> usize {
    files.iter().map(|file| usize::try_from(file.bytes).unwrap_or(usize::MAX)).max().unwrap_or(0)
}

/// What conversion takes: the container and, of a checkpoint that is not here yet, all of it, or what of it is `held` at
/// a time.
fn conversion(
    projection: &Projection,
    container_bytes: u64,
    files: impl Iterator<Item = u64> + Clone,
    held: Option<u64>,
) -> ConversionNeed {
    let largest = files.clone().max().unwrap_or(0);
    let source: u64 = files.fold(0, u64::saturating_add);
    ConversionNeed {
        container_bytes,
        source_bytes: source,
        largest_file_bytes: largest,
        disk_bytes_streaming: container_bytes.saturating_add(held.map_or(0, |held| held.min(source))),
        disk_bytes_keeping_source: container_bytes.saturating_add(held.map_or(0, |_| source)),
        formats: projection.classes.clone(),
    }
}
