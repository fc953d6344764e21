//! From sizes and rates to bytes and tokens per second: pure functions.
//!
//! The bound is the speed of light of a streamed mixture of experts:
//!
//! ```text
//! tokens/s <= min(disk rate / missed bytes per token, memory rate / touched bytes per token)
//! ```

use colibri_store::budget::{Plan, hit_share};
use colibri_store::error::human_bytes;
use colibri_store::source::SourceKind;

use super::{Bottleneck, MoreRam, PerToken, Prefill, Range, Rates};
use crate::model::ModelInfo;

/// The most memory more that is considered: what people add to a PC.
const MORE_RAM: u64 = 16_000_000_000;

/// Share of the decoder layers' experts that the plan keeps in memory, in `0..=1`; 1 for a model without experts.
pub(super) fn cached_share(plan: &Plan) -> f64 {
    let (part, whole) = match plan.io {
        // Mapped experts have no slots: the page cache holds what the budget leaves.
        SourceKind::Mmap => (plan.cache_bytes, plan.sizes.expert_bytes_total),
        SourceKind::Buffered | SourceKind::Direct => (plan.slots, plan.sizes.experts_total),
    };
    share(part, whole)
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { (part as f64 / whole as f64).min(1.0) }
}

/// Hit rate of a cache that holds this share of the experts: even routing, and the routing measured on public models.
pub(super) fn hit_rate(cached: f64) -> Range {
    Range { low: cached, high: hit_share(cached).max(cached) }
}

/// What a token asks for, whatever is cached.
pub(super) struct Load {
    experts: u64,
    expert_bytes: u64,
    /// Bytes that all misses would read: without the scales that stay in memory.
    miss_bytes: u64,
    resident_bytes: u64,
    /// Bytes that a layer's experts together would read, all layers.
    all_miss_bytes: u64,
    /// Share of the experts of a layer that a token chooses.
    chosen: f64,
}

impl Load {
    pub(super) fn new(info: &ModelInfo, plan: &Plan, resident_bytes: u64) -> Self {
        let sizes = &plan.sizes;
        let experts = (info.moe_layers as u64).saturating_mul(info.experts_per_token as u64);
        let of = |bytes: u64| {
            let product = u128::from(bytes) * u128::from(experts);
            u64::try_from(product.checked_div(u128::from(sizes.experts_total)).unwrap_or(0)).unwrap_or(u64::MAX)
        };
        let held = if plan.scales.resident_bytes > 0 { sizes.far_scale_bytes } else { 0 };
        let all_miss_bytes = sizes.expert_bytes_total.saturating_sub(held);
        Self {
            experts,
            expert_bytes: of(sizes.expert_bytes_total),
            miss_bytes: of(all_miss_bytes),
            resident_bytes,
            all_miss_bytes,
            chosen: share(info.experts_per_token as u64, info.experts as u64),
        }
    }

    /// The bytes of one decoded token with this share of the experts cached.
    pub(super) fn per_token(&self, cached: f64) -> PerToken {
        let hits = hit_rate(cached);
        let missed = |hits: f64| (self.miss_bytes as f64 * (1.0 - hits).max(0.0)) as u64;
        PerToken {
            experts: self.experts,
            expert_bytes: self.expert_bytes,
            resident_bytes: self.resident_bytes,
            touched_bytes: self.expert_bytes.saturating_add(self.resident_bytes),
            read_low: missed(hits.high),
            read_high: missed(hits.low),
        }
    }

    /// What 16 GB more would do, or as much as the model still lacks; none where that makes nothing faster.
    pub(super) fn more_ram(&self, plan: &Plan, speeds: &Speeds) -> Option<MoreRam> {
        let cached = cached_share(plan);
        if cached >= 1.0 {
            return None;
        }
        let sizes = &plan.sizes;
        let all = sizes.experts_total.saturating_mul(plan.scales.slot_bytes);
        let bytes = all.saturating_sub(plan.cache_bytes).min(MORE_RAM);
        let cache_bytes = plan.cache_bytes.saturating_add(bytes);
        let slots = cache_bytes.checked_div(plan.scales.slot_bytes).unwrap_or(0).min(sizes.experts_total);
        let hits = hit_rate(share(slots, sizes.experts_total));
        let (now, per_token) = (self.per_token(cached), self.per_token(hits.low));
        let tokens_per_second = speeds.decode(&per_token);
        let gain = match (speeds.decode(&now), tokens_per_second) {
            (Some(now), Some(then)) => then.low > now.low || then.high > now.high,
            _ => per_token.read_high < now.read_high,
        };
        if bytes == 0 || !gain {
            return None;
        }
        let percent = range_in_words(Range { low: 100.0 * hits.low, high: 100.0 * hits.high });
        let mut text = format!("+{} RAM: est. {percent} % hits", human_bytes(bytes));
        if let Some(range) = tokens_per_second {
            text.push_str(&format!(", {} tokens/s", range_in_words(range)));
        }
        Some(MoreRam {
            bytes,
            slots,
            hit_rate: hits,
            read_low: per_token.read_low,
            read_high: per_token.read_high,
            tokens_per_second,
            text,
        })
    }
}

/// The rates that were measured.
pub(super) struct Speeds {
    disk: Option<f64>,
    memory: Option<f64>,
}

impl Speeds {
    pub(super) fn new(rates: &Rates) -> Self {
        Self { disk: rates.disk.bytes_per_second, memory: rates.memory.bytes_per_second }
    }

    /// Seconds that a read of so many bytes takes; none for no bytes.
    fn disk_seconds(&self, bytes: u64) -> Option<f64> {
        if bytes == 0 { Some(0.0) } else { self.disk.map(|rate| bytes as f64 / rate) }
    }

    /// Decoded tokens per second: from no overlap and even routing to full overlap and concentrated routing.
    pub(super) fn decode(&self, load: &PerToken) -> Option<Range> {
        let memory = load.touched_bytes as f64 / self.memory?;
        let low = self.disk_seconds(load.read_high)? + memory;
        let high = self.disk_seconds(load.read_low)?.max(memory);
        (high > 0.0).then(|| Range { low: rounded(1.0 / low), high: rounded(1.0 / high) })
    }

    /// A full chunk reads each expert that any of its tokens chooses once.
    pub(super) fn prefill(&self, load: &Load, cached: f64, chunk_tokens: u64) -> Prefill {
        let chunk = chunk_tokens.max(1);
        let distinct = 1.0 - (1.0 - load.chosen).powf(chunk as f64);
        let bytes = load.all_miss_bytes as f64 * distinct * (1.0 - cached) / chunk as f64;
        let read_bytes_per_token = bytes as u64;
        Prefill {
            chunk_tokens: chunk,
            read_bytes_per_token,
            tokens_per_second_high: self.disk.filter(|_| read_bytes_per_token > 0).map(|rate| rounded(rate / bytes)),
        }
    }

    /// What limits decoding.
    pub(super) fn bottleneck(&self, load: &PerToken) -> Bottleneck {
        let of = |resource, text: &str| Bottleneck { resource, text: text.to_owned() };
        if load.read_high == 0 {
            return of("memory", "reading weights in memory: all experts fit");
        }
        match (self.disk_seconds(load.read_high), self.memory) {
            (Some(disk), Some(memory)) if disk >= load.touched_bytes as f64 / memory => of("disk", "disk reads"),
            (Some(_), Some(_)) => of("memory", "reading weights in memory"),
            _ => {
                let rate = |bytes: u64| rounded(1e9 / bytes.max(1) as f64);
                let range = Range { low: rate(load.read_high), high: rate(load.read_low) };
                let text = format!("unknown; each GB/s of disk gives at most {} tokens/s", range_in_words(range));
                Bottleneck { resource: "unknown", text }
            }
        }
    }
}

/// An estimate with the two significant digits that it may claim.
fn rounded(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return value;
    }
    // Whole powers of ten on both sides, so that a rounded value prints as one.
    let digits = 1 - value.log10().floor() as i32;
    if digits >= 0 {
        let scale = 10f64.powi(digits);
        (value * scale).round() / scale
    } else {
        let scale = 10f64.powi(-digits);
        (value / scale).round() * scale
    }
}

/// Two significant digits, and one number when both ends look alike.
fn range_in_words(range: Range) -> String {
    let shown = |value: f64| match value {
        value if value >= 10.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    };
    let (low, high) = (shown(range.low), shown(range.high));
    if low == high { low } else { format!("{low}-{high}") }
}
