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
use colibri_store::container::read_small;
use colibri_store::error::StoreError;
use colibri_store::expert::{ExpertStats, POLICIES, policy_entry};
use colibri_store::machine;
use colibri_store::memory;
use colibri_store::source::open_source;
use serde::{Serialize, Serializer};

use crate::config::{EngineConfig, NoWatch, Watch};
use crate::error::EngineError;
use crate::experts::{Experts, StoreSettings};
use crate::family::{self, Fields};
use crate::forward::{Network, Progress, Want};
use crate::kv::{self, KvCache, LayerCache};
use crate::names::WeightNames;
use crate::observe::{Observer, Trace, Unobserved};
use crate::scratch::{self, Scratch};
use crate::session::{Session, check};
use crate::spec::{Ffn, Indexing, LayerSpec, Mixer, ModelSpec};
use crate::weights::{Binding, Formats, bind, layer_number};

/// Largest configuration file that is read, in bytes.
const CONFIG_LIMIT: u64 = 16 << 20;

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

/// A model whose headers have been read and checked.
struct Prepared {
    catalog: Catalog,
    binding: Binding,
    info: ModelInfo,
    plan: Plan,
    kernels: KernelSet,
    threads: usize,
}

/// Reads `config.json` of a model's folder, and the end tokens of `generation_config.json`.
///
/// # Errors
/// No such file, not readable, or not a model that this engine runs.
pub fn read_spec(path: &Path) -> Result<(&'static WeightNames, ModelSpec), EngineError> {
    let file = path.join("config.json");
    let config = read_object(&file)?;
    let refuse = |source| EngineError::Config { path: file.clone(), source };
    let (family, mut spec) = family::read(&config).map_err(refuse)?;
    let generation = path.join("generation_config.json");
    if generation.exists() {
        let generation_config = read_object(&generation)?;
        let more = Fields::new(&generation_config).tokens("eos_token_id", spec.vocab_size);
        spec.eos_token_ids.extend(more.map_err(|source| EngineError::Config { path: generation, source })?);
        spec.eos_token_ids.sort_unstable();
        spec.eos_token_ids.dedup();
    }
    Ok((family.names, spec))
}

fn read_object(path: &Path) -> Result<serde_json::Map<String, serde_json::Value>, EngineError> {
    let unreadable = |reason: String| EngineError::ConfigUnreadable { path: path.to_path_buf(), reason };
    if std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Err(no_configuration(path).into());
    }
    let text = read_small(path, CONFIG_LIMIT).map_err(|fault| unreadable(fault.what))?;
    serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))
}

/// A folder without `config.json` holds no model, whatever else lies there.
fn no_configuration(file: &Path) -> StoreError {
    StoreError::NotFound {
        path: file.parent().unwrap_or(file).to_path_buf(),
        found: "the folder exists but holds no config.json".to_owned(),
        fix: "fetch config.json too, or give another folder".to_owned(),
    }
}

fn prepare(path: &Path, config: &EngineConfig) -> Result<Prepared, EngineError> {
    let kernels = KernelSet::by_name(&config.kernels).ok_or_else(|| EngineError::InvalidValue {
        name: "kernels",
        expected: format!("auto or one that this machine has: {}", names(&KernelSet::available())),
        got: config.kernels.clone(),
    })?;
    memory::trial(0)?;
    let catalog = Catalog::open(path)?;
    let (names, spec) = read_spec(path)?;
    let binding = bind(spec, names, &catalog)?;
    let machine = machine::probe();
    let threads = config.threads.unwrap_or(machine.cores_allowed).clamp(1, 1024);
    let sizes = sizes(&binding, &catalog, config, threads);
    let request = BudgetRequest { ram: config.ram, context: config.context, io: config.io };
    let mut plan = budget::plan(&machine, &sizes, &request)?;
    if let Some(slots) = config.slots {
        plan.projected_peak -= plan.cache_bytes.min(plan.projected_peak);
        plan.slots = slots as u64;
        plan.cache_bytes = plan.slots.saturating_mul(sizes.slot_bytes);
        plan.projected_peak = plan.projected_peak.saturating_add(plan.cache_bytes);
    }
    let info = info(path, &binding, &catalog);
    Ok(Prepared { catalog, binding, info, plan, kernels, threads })
}

fn names(sets: &[KernelSet]) -> String {
    sets.iter().map(KernelSet::name).collect::<Vec<_>>().join(", ")
}

/// The facts of a model and its catalog, from headers alone and without a memory plan.
pub(crate) fn describe(path: &Path) -> Result<(ModelInfo, Catalog), EngineError> {
    let catalog = Catalog::open(path)?;
    let (names, spec) = read_spec(path)?;
    let binding = bind(spec, names, &catalog)?;
    Ok((info(path, &binding, &catalog), catalog))
}

/// The sizes that memory is planned with, from headers alone.
fn sizes(binding: &Binding, catalog: &Catalog, config: &EngineConfig, threads: usize) -> ModelSizes {
    let spec = &binding.spec;
    let rows = config.chunk().min(spec.context_max);
    ModelSizes {
        resident_bytes: binding.resident_bytes(),
        kv_bytes_per_token: kv::bytes_per_token(spec) + scratch::bytes_per_position(spec, threads),
        scratch_bytes: scratch::bytes(spec, rows, threads),
        expert_bytes_total: binding.experts.total_bytes(),
        slot_bytes: binding.experts.slot_bytes() as u64,
        experts_total: binding.experts.expert_count() as u64,
        active_experts_min: spec.layers.iter().map(chosen_experts).max().unwrap_or(0) as u64,
        context_max: u32::try_from(spec.context_max).unwrap_or(u32::MAX),
        container_bytes: catalog.total_bytes(),
    }
}

/// Routed experts that a layer chooses for a token.
fn chosen_experts(layer: &LayerSpec) -> usize {
    match &layer.ffn {
        Ffn::Dense { .. } => 0,
        Ffn::Moe(moe) => moe.router.top_k(),
    }
}

fn info(path: &Path, binding: &Binding, catalog: &Catalog) -> ModelInfo {
    let spec = &binding.spec;
    let moe = |layer: &&LayerSpec| matches!(layer.ffn, Ffn::Moe(_));
    let mixture = spec.layers.iter().find_map(|layer| match &layer.ffn {
        Ffn::Dense { .. } => None,
        Ffn::Moe(moe) => Some(moe),
    });
    let indexed = |layer: &LayerSpec| match &layer.mixer {
        Mixer::Mla(mla) => matches!(mla.indexing, Indexing::Full(_)),
    };
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    ModelInfo {
        name: whole.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        path: whole,
        family: spec.family.to_owned(),
        layers: spec.layers.len(),
        moe_layers: spec.layers.iter().filter(moe).count(),
        experts: mixture.map_or(0, |moe| moe.experts),
        experts_per_token: mixture.map_or(0, |moe| moe.router.top_k()),
        vocab_size: spec.vocab_size,
        context_max: spec.context_max,
        hidden: spec.hidden_size,
        parameters: binding.parameters,
        formats: binding.formats.clone(),
        has_mtp: spec.mtp.is_some(),
        has_indexer: spec.layers.iter().any(indexed),
        container_bytes: catalog.total_bytes(),
        eos_token_ids: spec.eos_token_ids.clone(),
    }
}

impl Model {
    /// What the model is and where it would live; reads headers only.
    ///
    /// # Errors
    /// As [`Model::open`], reads excepted.
    pub fn plan(path: &Path, config: &EngineConfig) -> Result<(ModelInfo, Plan), EngineError> {
        let prepared = prepare(path, config)?;
        Ok((prepared.info, prepared.plan))
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
        let Prepared { catalog, binding, info, plan, kernels, threads } = prepare(path, config)?;
        let source = open_source(plan.io, catalog.files())?;
        let weights = binding.load(source.as_ref(), &info.path, watch)?;
        let slots = usize::try_from(plan.slots).unwrap_or(usize::MAX);
        let settings = StoreSettings { source: Arc::clone(&source), policy, io_workers: config.io_workers };
        let prediction = binding
            .spec
            .mtp
            .as_ref()
            .map(|mtp| (layer_number(binding.spec.layers.len()), binding.mtp_experts, chosen_experts(&mtp.layer)));
        let experts = Experts::open(settings, binding.experts, slots, prediction)?;
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
            let progress = Progress { watch, done: cache.len(), total: tokens.len() };
            network.forward(&mut cache, chunk, Want::All(out), &mut scratch, progress, observer)?;
        }
        Ok(logits)
    }
}
