//! Opening a model: configuration, tensors, memory plan, weights. And the model itself, which sessions share.
//!
//! Must hold: nothing but headers is read before the projected peak is known to fit; a model is immutable and can be
//! used from any thread, one forward pass at a time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use colibri_kernels::dispatch::KernelSet;
use colibri_kernels::pool::WorkerPool;
use colibri_store::budget::{self, BudgetRequest, ModelSizes, Plan};
use colibri_store::catalog::Catalog;
use colibri_store::expert::{ExpertStats, ExpertTable, POLICIES, policy_entry};
use colibri_store::machine::{self, MachineFacts};
use colibri_store::memory;
use colibri_store::source::open_source;
use serde::{Serialize, Serializer};

use crate::blueprint::Blueprint;
use crate::config::{EngineConfig, NoWatch, Phase, Watch};
use crate::error::EngineError;
use crate::experts::{Experts, StoreSettings};
use crate::forward::{Network, Progress, Want};
use crate::kv::{KvCache, LayerCache};
use crate::observe::{Observer, Trace, Unobserved};
use crate::scratch::Scratch;
use crate::session::{Session, check};
use crate::spec::{Ffn, LayerSpec};
use crate::weights::{Binding, Formats, Placement, layer_number, place, resident_bytes};

/// What a model is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelInfo {
    /// Name of its folder.
    pub name: String,
    /// Its folder.
    #[serde(serialize_with = "path_as_text")]
    pub path: PathBuf,
    /// `model_type`.
    pub family: String,
    /// Decoder layers.
    pub layers: usize,
    /// Decoder layers with routed experts.
    pub moe_layers: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Routed experts chosen for a token in a layer.
    pub experts_per_token: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Longest sequence that the model was made for.
    pub context_max: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Weights, multi-token prediction included.
    pub parameters: u64,
    /// Stored formats.
    pub formats: Formats,
    /// Has a multi-token-prediction layer.
    pub has_mtp: bool,
    /// Chooses keys by an indexer.
    pub has_indexer: bool,
    /// Bytes of all weight files.
    pub container_bytes: u64,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
}

/// Writes a path as text. A name need not be text: what is none becomes the replacement character, because a report
/// that cannot be written helps nobody.
pub(crate) fn path_as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// A model in memory. Cloning shares it.
#[derive(Clone)]
pub struct Model {
    network: Arc<Network>,
    info: Arc<ModelInfo>,
    plan: Arc<Plan>,
    notes: Arc<Vec<String>>,
}

/// A model whose headers have been read and checked, whether or not it can be run.
pub(crate) struct Survey {
    pub(crate) catalog: Catalog,
    pub(crate) blueprint: Blueprint,
    pub(crate) placement: Placement,
    pub(crate) info: ModelInfo,
    pub(crate) plan: Plan,
    pub(crate) kernels: KernelSet,
    pub(crate) threads: usize,
}

/// Reads and checks headers, and plans memory. A model that is only to be looked at need not be one that runs.
pub(crate) fn survey(path: &Path, config: &EngineConfig, to_run: bool) -> Result<Survey, EngineError> {
    let kernels = KernelSet::by_name(&config.kernels).ok_or_else(|| EngineError::InvalidValue {
        name: "kernels",
        expected: format!("auto or one that this machine has: {}", names(&KernelSet::available())),
        got: config.kernels.clone(),
    })?;
    memory::trial(0)?;
    let catalog = Catalog::open(path)?;
    let (blueprint, _) = blueprint_of(path, &catalog)?;
    if to_run && !blueprint.runs() {
        return Err(blueprint.not_run(path));
    }
    let placement = place(&catalog, blueprint.slots())?;
    let machine = machine::probe();
    let threads = threads(config, &machine);
    let resident = resident_bytes(&placement.resident);
    let sizes = sizes(&blueprint, resident, &placement.experts, catalog.total_bytes(), config, threads);
    let mut plan = budget::plan(&machine, &sizes, &request(config))?;
    if let Some(slots) = config.slots {
        plan.projected_peak -= plan.cache_bytes.min(plan.projected_peak);
        plan.slots = slots as u64;
        plan.cache_bytes = plan.slots.saturating_mul(plan.scales.slot_bytes);
        plan.projected_peak = plan.projected_peak.saturating_add(plan.cache_bytes);
    }
    let (formats, bytes) = (placement.formats.clone(), catalog.total_bytes());
    let info = ModelInfo::new(path, &blueprint, formats, placement.parameters, bytes);
    Ok(Survey { catalog, blueprint, placement, info, plan, kernels, threads })
}

/// What the settings ask of the memory plan.
pub(crate) fn request(config: &EngineConfig) -> BudgetRequest {
    BudgetRequest { ram: config.ram, context: config.context, io: config.io }
}

/// Compute threads: what is asked for, else the cores that the process may use.
pub(crate) fn threads(config: &EngineConfig, machine: &MachineFacts) -> usize {
    config.threads.unwrap_or(machine.cores_allowed).clamp(1, 1024)
}

fn names(sets: &[KernelSet]) -> String {
    sets.iter().map(KernelSet::name).collect::<Vec<_>>().join(", ")
}

/// What the folder's configuration describes, without the optional parts that the container lacks, and their names.
pub(crate) fn blueprint_of(path: &Path, catalog: &Catalog) -> Result<(Blueprint, Vec<&'static str>), EngineError> {
    let mut blueprint = Blueprint::read(path)?;
    let absent = blueprint.drop_absent(&|name| catalog.get(name).is_some());
    Ok((blueprint, absent))
}

/// The sizes that memory is planned with, from headers alone; `resident` and `container` are bytes.
pub(crate) fn sizes(
    blueprint: &Blueprint,
    resident: u64,
    experts: &ExpertTable,
    container: u64,
    config: &EngineConfig,
    threads: usize,
) -> ModelSizes {
    let facts = blueprint.facts();
    let rows = config.chunk().min(facts.context_max);
    ModelSizes {
        resident_bytes: resident,
        kv_bytes_per_token: blueprint.kv_bytes_per_token(threads),
        scratch_bytes: blueprint.scratch_bytes(rows, threads),
        active_experts_min: facts.experts_per_token as u64,
        context_max: u32::try_from(facts.context_max).unwrap_or(u32::MAX),
        container_bytes: container,
        ..ModelSizes::of_experts(experts)
    }
}

/// Routed experts that a layer chooses for a token.
fn chosen_experts(layer: &LayerSpec) -> usize {
    match &layer.ffn {
        Ffn::Dense { .. } => 0,
        Ffn::Moe(moe) => moe.router.top_k(),
    }
}

impl ModelInfo {
    /// The facts of the model in the folder `path`, with the formats and the number of its weights.
    pub(crate) fn new(
        path: &Path,
        blueprint: &Blueprint,
        formats: Formats,
        parameters: u64,
        container_bytes: u64,
    ) -> Self {
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let facts = blueprint.facts();
        Self {
            name: whole.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            path: whole,
            family: blueprint.family().to_owned(),
            layers: facts.layers,
            moe_layers: facts.moe_layers,
            experts: facts.experts,
            experts_per_token: facts.experts_per_token,
            vocab_size: facts.vocab_size,
            context_max: facts.context_max,
            hidden: facts.hidden,
            parameters,
            formats,
            has_mtp: facts.has_mtp,
            has_indexer: facts.has_indexer,
            container_bytes,
            eos_token_ids: facts.eos_token_ids,
        }
    }
}

impl Model {
    /// What the model is and where it would live; reads headers only.
    ///
    /// # Errors
    /// As [`Model::open`], reads excepted.
    pub fn plan(path: &Path, config: &EngineConfig) -> Result<(ModelInfo, Plan), EngineError> {
        let survey = survey(path, config, false)?;
        Ok((survey.info, survey.plan))
    }

    /// Opens a model.
    ///
    /// # Errors
    /// No model at the path, a damaged or unsupported one, a memory budget that is too small, a read that fails, a
    /// setting out of range, or the watcher says stop.
    pub fn open(path: &Path, config: &EngineConfig, watch: &dyn Watch) -> Result<Model, EngineError> {
        let policy = policy_entry(&config.policy).ok_or_else(|| EngineError::InvalidValue {
            name: "policy",
            expected: POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>().join(" or "),
            got: config.policy.clone(),
        })?;
        let Survey { catalog, blueprint, placement, info, plan, kernels, threads } = survey(path, config, true)?;
        let refusal = blueprint.not_run(path);
        let (names, spec) = blueprint.runnable().ok_or(refusal)?;
        let binding = Binding::new(spec, names, placement);
        let source = open_source(plan.io, catalog.files())?;
        let weights = binding.load(source.as_ref(), &info.path, watch)?;
        let slots = usize::try_from(plan.slots).unwrap_or(usize::MAX);
        let settings = StoreSettings { source: Arc::clone(&source), policy, io_workers: config.io_workers };
        let prediction = binding
            .spec
            .mtp
            .as_ref()
            .map(|mtp| (layer_number(binding.spec.layers.len()), binding.mtp_experts, chosen_experts(&mtp.layer)));
        let experts = Experts::open(settings, binding.experts, slots, prediction, plan.scales.mode, watch)?;
        let network = Network {
            path: info.path.clone(),
            source: Arc::clone(&source),
            spec: binding.spec,
            names: binding.names,
            weights,
            experts,
            pool: WorkerPool::new(threads).with_serial_work(config.serial_work),
            kernels,
            numerics: config.numerics,
            chunk: config.chunk(),
            scratch: Mutex::new(Scratch::new(threads)),
        };
        let (info, plan, notes) = (Arc::new(info), Arc::new(plan), Arc::new(source.notes()));
        Ok(Model { network: Arc::new(network), info, plan, notes })
    }

    /// What the model is.
    #[must_use]
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Where its weights live.
    #[must_use]
    pub fn memory_plan(&self) -> &Plan {
        &self.plan
    }

    /// What the reader of this model should know about how it is read.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Name of the kernel set in use.
    #[must_use]
    pub fn kernels_name(&self) -> &'static str {
        self.network.kernels.name()
    }

    /// Compute threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.network.pool.threads()
    }

    /// Hits, misses and bytes of the experts of the decoder layers.
    #[must_use]
    pub fn stats(&self) -> ExpertStats {
        self.network.experts.stats()
    }

    /// A new, empty session with room for the planned context.
    #[must_use]
    pub fn session(&self) -> Session {
        Session::new(Arc::clone(&self.network), self.context())
    }

    fn context(&self) -> usize {
        usize::try_from(self.plan.context).unwrap_or(usize::MAX)
    }

    /// Logits of every position, `[tokens.len(), vocab]`.
    ///
    /// # Errors
    /// As [`Session::extend`].
    pub fn logits(&self, tokens: &[u32], watch: &dyn Watch) -> Result<Vec<f32>, EngineError> {
        self.pass(tokens, watch, &mut Unobserved)
    }

    /// Logits and everything on the way to them; a test hook.
    ///
    /// # Errors
    /// As [`Session::extend`].
    pub fn trace(&self, tokens: &[u32]) -> Result<Trace, EngineError> {
        let mut trace = Trace::new(self.network.spec.layers.len());
        trace.logits = self.pass(tokens, &NoWatch, &mut trace)?;
        Ok(trace)
    }

    /// Runs the multi-token-prediction layer over the pairs (position, next token) of a text, so that it yields one row
    /// less than there are tokens; a test hook. The last layer of the trace is that layer, the logits are its own, and
    /// `final_hidden` is what it was given.
    ///
    /// # Errors
    /// As [`Session::extend`], and for a model without such a layer.
    pub fn mtp_trace(&self, tokens: &[u32]) -> Result<Trace, EngineError> {
        let network = &self.network;
        let layers = network.spec.layers.len();
        let (Some(mtp), [first @ .., _]) = (&network.spec.mtp, tokens) else {
            return Err(EngineError::InvalidValue {
                name: "model and tokens",
                expected: "a multi-token-prediction layer and at least one token".to_owned(),
                got: format!("{} tokens", tokens.len()),
            });
        };
        check(network, tokens, 0, self.context())?;
        let mut trace = Trace::new(layers + 1);
        self.pass(first, &NoWatch, &mut trace)?;
        let mut cache = LayerCache::new(&mtp.layer, first.len());
        let hidden = std::mem::take(&mut trace.final_hidden);
        let width = network.spec.hidden_size * network.chunk;
        let mut scratch = network.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut logits = memory::zeroed::<f32>(first.len().saturating_mul(network.spec.vocab_size))?;
        let of_chunks = logits.chunks_mut(network.chunk * network.spec.vocab_size);
        let pairs = hidden.chunks(width).zip(tokens[1..].chunks(network.chunk));
        for (chunk, (pairs, out)) in pairs.zip(of_chunks).enumerate() {
            let start = chunk * network.chunk;
            network.predict(&mut cache, start, pairs, out, &mut scratch, &mut trace)?;
        }
        trace.logits = logits;
        drop(scratch);
        trace.final_hidden = hidden;
        Ok(trace)
    }

    /// One pass over a whole text with its own cache.
    fn pass(&self, tokens: &[u32], watch: &dyn Watch, observer: &mut dyn Observer) -> Result<Vec<f32>, EngineError> {
        let network = &self.network;
        check(network, tokens, 0, self.context())?;
        let mut cache = KvCache::new(&network.spec, tokens.len());
        let mut scratch = network.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut logits = memory::zeroed::<f32>(tokens.len().saturating_mul(network.spec.vocab_size))?;
        let of_chunks = logits.chunks_mut(network.chunk * network.spec.vocab_size);
        for (chunk, out) in tokens.chunks(network.chunk).zip(of_chunks) {
            let progress = Progress { watch, phase: Phase::Prefill, done: cache.len(), total: tokens.len() };
            network.forward(&mut cache, chunk, Want::All(out), &mut scratch, progress, observer)?;
        }
        Ok(logits)
    }
}
