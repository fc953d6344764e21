//! How much memory a model gets and what it is spent on: a pure function of machine, model and request.
//!
//! What must hold: the projected peak (resident weights + KV cache at the full context + scratch + scales that are held
//! apart + expert slots) is known before a byte is read and fits the budget, and the budget fits the memory that is free,
//! so that the system never swaps.
//! Refuses, with the numbers and ways out, what cannot fit. Sizes are bytes throughout.

use std::fmt;

use serde::Serialize;

use crate::error::{StoreError, grouped, human_bytes};
use crate::expert::ExpertTable;
use crate::machine::MachineFacts;
use crate::source::SourceKind;

pub mod scales;

pub use scales::{ScaleMode, ScalePlacement, hit_share};

/// The context that the automatic choice gives at least, unless the model's own maximum is less.
const LEAST_AUTO_CONTEXT: u32 = 8192;

/// The memory that is always left to the rest of the system, unless a fifth of the machine is less.
const RESERVE: u64 = 2 << 30;

/// The budget when neither free nor total memory can be read.
const BLIND_BUDGET: u64 = 4 << 30;

/// What a model needs, from its header alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelSizes {
    /// Weights that stay in memory.
    pub resident_bytes: u64,
    /// KV cache per token of context, all layers together.
    pub kv_bytes_per_token: u64,
    /// Activations, read buffers and everything else a run allocates.
    pub scratch_bytes: u64,
    /// All routed experts together.
    pub expert_bytes_total: u64,
    /// One expert slot that holds codes and scales.
    pub slot_bytes: u64,
    /// One expert slot when scales that lie apart from their codes are held elsewhere; `slot_bytes` if none do.
    pub slot_bytes_codes: u64,
    /// Scales of all routed experts that lie apart from their codes, so that a miss needs reads of its own for them.
    pub far_scale_bytes: u64,
    /// Of `far_scale_bytes`, those at file offsets that are no multiple of 4: a mapping cannot lend them.
    pub unaligned_scale_bytes: u64,
    /// Most reads that an expert takes, scales included.
    pub reads_per_miss: u64,
    /// Most reads that an expert takes when scales that lie apart are held elsewhere.
    pub reads_per_miss_codes: u64,
    /// Number of routed experts, all layers together.
    pub experts_total: u64,
    /// The fewest slots the model can run with.
    pub active_experts_min: u64,
    /// The longest context of the model, in tokens.
    pub context_max: u32,
    /// All files of the container together.
    pub container_bytes: u64,
}

impl ModelSizes {
    /// What the routed experts of `table` need; every other size is 0.
    pub fn of_experts(table: &ExpertTable) -> Self {
        ModelSizes {
            expert_bytes_total: table.total_bytes(),
            slot_bytes: table.slot_bytes() as u64,
            slot_bytes_codes: table.slot_bytes_codes() as u64,
            experts_total: table.expert_count() as u64,
            far_scale_bytes: table.far_scale_bytes(),
            unaligned_scale_bytes: table.unaligned_scale_bytes(),
            reads_per_miss: table.reads_per_miss() as u64,
            reads_per_miss_codes: table.reads_per_miss_codes() as u64,
            ..ModelSizes::default()
        }
    }
}

/// How much memory may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RamLimit {
    /// A safe share of what is free.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
    /// This share of the machine's memory, in percent.
    Percent(f64),
}

/// The context to plan for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextRequest {
    /// As long as a tenth of the budget holds.
    #[default]
    Auto,
    /// This many tokens.
    Tokens(u32),
}

/// The way of reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoRequest {
    /// Mapped when the container fits the budget, else direct.
    #[default]
    Auto,
    /// This one.
    Kind(SourceKind),
}

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetRequest {
    /// Memory.
    pub ram: RamLimit,
    /// Context.
    pub context: ContextRequest,
    /// Way of reading.
    pub io: IoRequest,
}

/// Where the weights will live and what the run will take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The memory this run may use.
    pub ram_budget: u64,
    /// The context, in tokens.
    pub context: u32,
    /// The way of reading.
    pub io: SourceKind,
    /// Why this way.
    pub io_reason: String,
    /// Weights that stay in memory.
    pub resident_bytes: u64,
    /// KV cache at the full context.
    pub kv_bytes: u64,
    /// Activations and buffers.
    pub scratch_bytes: u64,
    /// Where the scales of routed experts live, and how large a slot is then.
    pub scales: ScalePlacement,
    /// Expert slots; never more than there are experts.
    pub slots: u64,
    /// Memory for expert slots.
    pub cache_bytes: u64,
    /// The sum: what the run takes at most.
    pub projected_peak: u64,
    /// What the user should know: an estimate in place of a fact, a limit that was lowered.
    pub notes: Vec<String>,
    /// The machine's facts the plan was made with.
    pub machine: MachineFacts,
    /// The model's sizes the plan was made with.
    pub sizes: ModelSizes,
}

impl Plan {
    /// The terms of the projected peak, named.
    pub fn terms(&self) -> [(&'static str, u64); 5] {
        [
            ("resident weights", self.resident_bytes),
            ("KV cache", self.kv_bytes),
            ("scratch", self.scratch_bytes),
            ("expert scales", self.scales.resident_bytes),
            ("expert cache", self.cache_bytes),
        ]
    }
}

impl RamLimit {
    /// Reads `auto`, `20GB`, `20G`, `20GiB`, `1.5TB`, `800MB` or `75%`; upper and lower case are the same.
    ///
    /// # Errors
    /// [`StoreError::InvalidValue`] for anything else, also for zero and for a number without a unit.
    pub fn parse(text: &str) -> Result<RamLimit, StoreError> {
        let invalid = || StoreError::InvalidValue {
            name: "--ram".to_owned(),
            value: text.to_owned(),
            expected: "auto, a size such as 20GB or 20GiB, or a share such as 75%".to_owned(),
        };
        let lower = text.trim().to_ascii_lowercase();
        if lower == "auto" {
            return Ok(RamLimit::Auto);
        }
        let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (digits, unit) = lower.split_at(end);
        let number: f64 = digits.parse().map_err(|_| invalid())?;
        if unit.trim() == "%" {
            return if number > 0.0 && number <= 100.0 { Ok(RamLimit::Percent(number)) } else { Err(invalid()) };
        }
        const UNITS: [(&str, f64); 9] = [
            ("m", 1e6),
            ("g", 1e9),
            ("t", 1e12),
            ("mb", 1e6),
            ("gb", 1e9),
            ("tb", 1e12),
            ("mib", 1_048_576.0),
            ("gib", 1_073_741_824.0),
            ("tib", 1_099_511_627_776.0),
        ];
        let scale = UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, scale)| *scale).ok_or_else(invalid)?;
        let bytes = number * scale;
        // Beyond 2^62 bytes the number is a slip of the keyboard, and later sums would saturate.
        if (1.0..4.6e18).contains(&bytes) { Ok(RamLimit::Bytes(bytes as u64)) } else { Err(invalid()) }
    }
}

impl fmt::Display for RamLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RamLimit::Auto => formatter.write_str("auto"),
            RamLimit::Bytes(bytes) => write!(formatter, "{}", human_bytes(*bytes)),
            RamLimit::Percent(share) => write!(formatter, "{share}%"),
        }
    }
}

/// Plans a run.
///
/// # Errors
/// [`StoreError::RamBudgetTooSmall`] when even the fewest slots do not fit; [`StoreError::InvalidValue`] for a context
/// the model does not have, or a share of memory on a machine whose memory cannot be read.
pub fn plan(machine: &MachineFacts, sizes: &ModelSizes, request: &BudgetRequest) -> Result<Plan, StoreError> {
    let mut notes = Vec::new();
    let budget = budget(machine, request.ram, &mut notes)?;
    let context = match request.context {
        ContextRequest::Auto => auto_context(budget.bytes, sizes),
        ContextRequest::Tokens(tokens) if (1..=sizes.context_max).contains(&tokens) => tokens,
        ContextRequest::Tokens(tokens) => {
            return Err(StoreError::InvalidValue {
                name: "--ctx".to_owned(),
                value: tokens.to_string(),
                expected: format!("1 to {} tokens, the longest context of this model", sizes.context_max),
            });
        }
    };
    let need = Need::of(sizes, context);
    if need.total() > budget.bytes {
        return Err(too_small(machine, sizes, &budget, &need));
    }
    let rest = budget.bytes - need.fixed();
    let (io, io_reason) = choose_io(sizes, request.io, budget.bytes, &need);
    let scales = scales::place(sizes, rest, io);
    // Neither a mapping nor held scales are chosen unless the scales fit.
    let room = rest.saturating_sub(scales.resident_bytes);
    let slots = room.checked_div(scales.slot_bytes).unwrap_or(sizes.experts_total).min(sizes.experts_total);
    let cache_bytes = match io {
        // Mapped experts have no slots of their own: the page cache holds them, as far as the budget goes.
        SourceKind::Mmap => sizes.expert_bytes_total.min(room),
        _ => slots.saturating_mul(scales.slot_bytes),
    };
    let projected_peak = need.fixed().saturating_add(scales.resident_bytes).saturating_add(cache_bytes);
    if machine.swap_used.is_some_and(|used| used > 1 << 30) {
        let used = human_bytes(machine.swap_used.unwrap_or(0));
        notes.push(format!("{used} of swap are in use: other programs need more memory than there is"));
    }
    Ok(Plan {
        ram_budget: budget.bytes,
        context,
        io,
        io_reason,
        resident_bytes: need.resident,
        kv_bytes: need.kv,
        scratch_bytes: need.scratch,
        scales,
        slots,
        cache_bytes,
        projected_peak,
        notes,
        machine: machine.clone(),
        sizes: sizes.clone(),
    })
}

/// A budget and how it is called in messages.
struct Budget {
    bytes: u64,
    name: &'static str,
}

/// The memory this run may use.
fn budget(machine: &MachineFacts, limit: RamLimit, notes: &mut Vec<String>) -> Result<Budget, StoreError> {
    let asked = match limit {
        RamLimit::Auto => return Ok(Budget { bytes: auto_budget(machine, notes), name: "the automatic budget" }),
        RamLimit::Bytes(bytes) => bytes,
        RamLimit::Percent(share) => match machine.capacity().or(machine.room()) {
            Some(capacity) => (capacity as f64 * share / 100.0) as u64,
            None => {
                return Err(StoreError::InvalidValue {
                    name: "--ram".to_owned(),
                    value: format!("{share}%"),
                    expected: "a size such as 20GB, because this machine's memory could not be read".to_owned(),
                });
            }
        },
    };
    match machine.room() {
        Some(room) if asked > room => {
            let (asked, free) = (human_bytes(asked), human_bytes(room));
            notes.push(format!("--ram asks for {asked} and {free} are free: using {free}"));
            Ok(Budget { bytes: room, name: "the free memory" })
        }
        _ => Ok(Budget { bytes: asked, name: "--ram" }),
    }
}

/// Four fifths of what is free, leaving the reserve untouched.
fn auto_budget(machine: &MachineFacts, notes: &mut Vec<String>) -> u64 {
    let Some(room) = machine.room() else {
        let bytes = machine.capacity().map_or(BLIND_BUDGET, |capacity| capacity / 2);
        notes.push(format!("could not read free memory, using {}; --ram overrides it", human_bytes(bytes)));
        return bytes;
    };
    if machine.memory_available.is_none() {
        notes.push(format!("could not read free memory, using the control group's {}", human_bytes(room)));
    }
    let reserve = machine.capacity().map_or(RESERVE, |capacity| (capacity / 5).min(RESERVE));
    (room / 5 * 4).min(room.saturating_sub(reserve))
}

/// The largest power of two whose KV cache takes at most a tenth of the budget, within the model's limits.
fn auto_context(budget: u64, sizes: &ModelSizes) -> u32 {
    let least = LEAST_AUTO_CONTEXT.min(sizes.context_max);
    let affordable = (budget / 10).checked_div(sizes.kv_bytes_per_token).unwrap_or(u64::MAX);
    let most = u32::try_from(affordable).unwrap_or(u32::MAX).min(sizes.context_max);
    most.checked_ilog2().map_or(0, |power| 1 << power).max(least)
}

/// The least memory a run takes at some context.
struct Need {
    resident: u64,
    kv: u64,
    scratch: u64,
    slots: u64,
    slot_bytes: u64,
    context: u32,
}

impl Need {
    fn of(sizes: &ModelSizes, context: u32) -> Need {
        Need {
            resident: sizes.resident_bytes,
            kv: sizes.kv_bytes_per_token.saturating_mul(u64::from(context)),
            scratch: sizes.scratch_bytes,
            slots: sizes.active_experts_min.min(sizes.experts_total),
            slot_bytes: sizes.slot_bytes,
            context,
        }
    }

    /// Everything but experts.
    fn fixed(&self) -> u64 {
        self.resident.saturating_add(self.kv).saturating_add(self.scratch)
    }

    fn total(&self) -> u64 {
        self.fixed().saturating_add(self.slots.saturating_mul(self.slot_bytes))
    }
}

/// The way of reading and why.
fn choose_io(sizes: &ModelSizes, request: IoRequest, budget: u64, need: &Need) -> (SourceKind, String) {
    // Scales that a mapping cannot lend lie in memory twice.
    let copied = sizes.unaligned_scale_bytes;
    let whole = sizes.container_bytes.saturating_add(need.kv).saturating_add(need.scratch).saturating_add(copied);
    let fits = whole <= budget;
    let sum = format!("container + KV + scratch = {} of {}", human_bytes(whole), human_bytes(budget));
    match request {
        IoRequest::Kind(SourceKind::Mmap) if copied > budget.saturating_sub(need.fixed()) => {
            let copied = human_bytes(copied);
            let why = "and do not fit: not mapped, although asked for";
            (SourceKind::Direct, format!("{copied} of scales at odd addresses would have to be copied {why}"))
        }
        IoRequest::Kind(SourceKind::Mmap) if !fits => {
            (SourceKind::Mmap, format!("asked for; the model does not fit ({sum}), so the system will drop pages"))
        }
        IoRequest::Kind(kind) => (kind, "asked for".to_owned()),
        IoRequest::Auto if fits => (SourceKind::Mmap, format!("the whole model fits the budget ({sum})")),
        IoRequest::Auto => (SourceKind::Direct, format!("the whole model does not fit the budget ({sum})")),
    }
}

/// The error of a model that does not fit, with its parts and the ways out that would work.
fn too_small(machine: &MachineFacts, sizes: &ModelSizes, budget: &Budget, need: &Need) -> StoreError {
    let parts = format!(
        "resident weights {} + KV for ctx {} {} + scratch {} + {} expert slots {}",
        human_bytes(need.resident),
        need.context,
        human_bytes(need.kv),
        human_bytes(need.scratch),
        grouped(need.slots),
        human_bytes(need.slots.saturating_mul(need.slot_bytes)),
    );
    let needed = need.total();
    let mut fixes = Vec::new();
    if machine.room().is_none_or(|room| needed <= room) {
        fixes.push(format!("--ram {}", ram_argument(needed)));
    }
    let shorter = (0..need.context.checked_ilog2().unwrap_or(0) + 1)
        .rev()
        .map(|power| 1u32 << power)
        .filter(|context| *context < need.context)
        .map(|context| Need::of(sizes, context))
        .find(|shorter| shorter.total() <= budget.bytes);
    if let Some(shorter) = shorter {
        fixes.push(format!("--ctx {} (needs {})", shorter.context, human_bytes(shorter.total())));
    }
    if let Some(room) = machine.room() {
        fixes.push(format!("free memory: {} is available now", human_bytes(room)));
    }
    fixes.push("convert with smaller resident weights (--dense q4row)".to_owned());
    fixes.truncate(3);
    StoreError::RamBudgetTooSmall {
        needed,
        budget: budget.bytes,
        budget_name: budget.name.to_owned(),
        parts,
        fixes: fixes.join(", or "),
    }
}

/// A size for `--ram` that is at least `bytes`, in whole units.
fn ram_argument(bytes: u64) -> String {
    if bytes >= 10_000_000_000 {
        format!("{}GB", bytes.div_ceil(1_000_000_000))
    } else {
        format!("{}MB", bytes.div_ceil(1_000_000))
    }
}

#[cfg(test)]
mod tests;
