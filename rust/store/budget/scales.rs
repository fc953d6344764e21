//! Where the scales of routed experts live, when they lie apart from their codes: a pure rule.
//!
//! Published containers keep the codes of an expert together and its scales elsewhere, so that a miss takes more than one
//! read. Held in memory, the scales cost cache: there is room for fewer experts, and more misses. The rule compares the
//! disk's time for one choice of an expert,
//!
//! ```text
//! (1 - hit share at this many slots) * (bytes of a miss + reads of a miss * bytes that a request costs)
//! ```
//!
//! for both ways, and holds the scales when that is no worse, they take at most a quarter of what the cache would
//! otherwise have, and the fewest slots still fit. The hit share is that of the best fixed choice of experts under the
//! routing that was measured on real models (nearly flat: a tenth of the experts takes 31 % of the choices, half of them
//! 78 %); the quarter bounds what an error of this curve can cost in a small cache, where the choices of the last tokens
//! count for more than long averages.
//! What must hold: the result depends on its arguments alone.

use serde::Serialize;

use super::ModelSizes;
use crate::error::human_bytes;
use crate::source::SourceKind;

/// Scales take at most one in this many bytes of what the expert cache would otherwise have.
const LARGEST_SHARE: u64 = 4;

/// What a request costs the disk beside its bytes, in bytes that it could have streamed: 15 us (4 KB requests, eight at
/// a time) to 50 us (one at a time) at 4 GB/s.
const REQUEST_BYTES: f64 = 128.0 * 1024.0;

/// Share of the experts in memory -> share of the choices that find theirs, for the best fixed choice.
const HIT_CURVE: [(f64, f64); 4] = [(0.0, 0.0), (0.1, 0.31), (0.5, 0.78), (1.0, 1.0)];

/// How a miss gets its scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleMode {
    /// They lie beside their codes and come with them.
    Record,
    /// Those that lie apart are read once, when the model is opened, and stay in memory.
    Resident,
    /// Those that lie apart are read with every miss.
    WithEachMiss,
    /// The files are mapped: scales are used where they lie, and nothing is read by us.
    Mapped,
}

/// Where the scales of routed experts live, and what that costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScalePlacement {
    /// How a miss gets its scales.
    pub mode: ScaleMode,
    /// Memory for scales that are held apart from the slots; a term of the projected peak.
    pub resident_bytes: u64,
    /// Most reads of a miss; 0 where nothing is read because the files are mapped.
    pub reads_per_miss: u64,
    /// One expert slot, which is also what a miss reads, to the block.
    pub slot_bytes: u64,
    /// Why it is so, for people.
    pub reason: String,
}

/// Decides for a model with `room` bytes for experts and scales together, read in the way `io`.
pub(super) fn place(sizes: &ModelSizes, room: u64, io: SourceKind) -> ScalePlacement {
    let far = sizes.far_scale_bytes;
    let size = human_bytes(far);
    let with_scales = |mode, reads_per_miss, reason| ScalePlacement {
        mode,
        resident_bytes: 0,
        reads_per_miss,
        slot_bytes: sizes.slot_bytes,
        reason,
    };
    if io == SourceKind::Mmap {
        return mapped(sizes);
    }
    if far == 0 {
        let reason = "an expert's codes and scales lie together".to_owned();
        return with_scales(ScaleMode::Record, sizes.reads_per_miss, reason);
    }
    let each_miss = |reason| with_scales(ScaleMode::WithEachMiss, sizes.reads_per_miss, reason);
    if far > room / LARGEST_SHARE {
        return each_miss(format!(
            "{size} of scales lie apart from their codes and would take more than a quarter of the {} for experts",
            human_bytes(room)
        ));
    }
    let left = room - far;
    let slots = left.checked_div(sizes.slot_bytes_codes).unwrap_or(0);
    let costs_more = cost(sizes, left, sizes.slot_bytes_codes, sizes.reads_per_miss_codes)
        > cost(sizes, room, sizes.slot_bytes, sizes.reads_per_miss);
    if costs_more || slots < sizes.active_experts_min.min(sizes.experts_total) {
        return each_miss(format!(
            "{size} of scales lie apart from their codes; in memory they would cost more in cached experts than the \
             reads they save"
        ));
    }
    ScalePlacement {
        mode: ScaleMode::Resident,
        resident_bytes: far,
        reads_per_miss: sizes.reads_per_miss_codes,
        slot_bytes: sizes.slot_bytes_codes,
        reason: format!(
            "{size} of scales lie apart from their codes and stay in memory: a miss takes {} instead of {}",
            reads_text(sizes.reads_per_miss_codes),
            reads_text(sizes.reads_per_miss)
        ),
    }
}

/// Mapped files lend their scales, but for those whose address no f32 can have: they are copied once.
fn mapped(sizes: &ModelSizes) -> ScalePlacement {
    let copied = sizes.unaligned_scale_bytes;
    let reason = match copied {
        0 => "the files are mapped: scales are used where they lie".to_owned(),
        _ => format!("{} of scales lie at odd addresses of the mapped files and are copied once", human_bytes(copied)),
    };
    ScalePlacement {
        mode: if copied == 0 { ScaleMode::Mapped } else { ScaleMode::Resident },
        resident_bytes: copied,
        reads_per_miss: 0,
        slot_bytes: sizes.slot_bytes,
        reason,
    }
}

fn reads_text(reads: u64) -> String {
    if reads == 1 { "1 read".to_owned() } else { format!("{reads} reads") }
}

/// The disk's time for one choice of an expert, in bytes.
fn cost(sizes: &ModelSizes, room: u64, slot_bytes: u64, reads: u64) -> f64 {
    let slots = room.checked_div(slot_bytes).unwrap_or(u64::MAX).min(sizes.experts_total);
    let share = if sizes.experts_total == 0 { 1.0 } else { slots as f64 / sizes.experts_total as f64 };
    (1.0 - hit_share(share)) * (slot_bytes as f64 + reads as f64 * REQUEST_BYTES)
}

/// The share of choices that find their expert in memory when this share of all experts is there, for the best fixed
/// choice of experts under the routing that was measured on real models.
#[must_use]
pub fn hit_share(experts: f64) -> f64 {
    let between = HIT_CURVE.windows(2).find(|pair| experts <= pair[1].0);
    between.map_or(1.0, |pair| {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]];
        y0 + (experts - x0) / (x1 - x0) * (y1 - y0)
    })
}
