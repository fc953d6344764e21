//! What the store has done since it was made, in counts that a user can check against each other.

use std::time::Duration;

/// Counters of an expert store. `hits + misses` is the number of experts that were asked for, and
/// `hits = hits_cache + hits_prefetch + hits_joined + hits_mapped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertStats {
    /// Requests that began no read.
    pub hits: u64,
    /// Requests served from a slot that an earlier request had filled.
    pub hits_cache: u64,
    /// Requests served from a slot that a prefetch had filled or was filling.
    pub hits_prefetch: u64,
    /// Requests that waited for a read which another request had begun.
    pub hits_joined: u64,
    /// Requests served from mapped files: the page cache decides whether the disk is touched.
    pub hits_mapped: u64,
    /// Requests that began a read.
    pub misses: u64,
    /// Experts read to the end, prefetched ones included.
    pub experts_read: u64,
    /// Bytes read into slots.
    pub bytes_read: u64,
    /// Reads that failed for good.
    pub failed_reads: u64,
    /// Experts that left a slot for another.
    pub evictions: u64,
    /// Prefetches begun (with mapped files: advised).
    pub prefetch_issued: u64,
    /// Prefetched experts that were asked for before they left.
    pub prefetch_used: u64,
    /// Prefetched experts that left, or were given up, before anyone asked for them.
    pub prefetch_wasted: u64,
    /// Prefetches never begun: replaced by newer ones, or no slot was free for them.
    pub prefetch_dropped: u64,
    /// Time that acquires stood waiting for reads, summed over threads.
    pub wait: Duration,
}

impl ExpertStats {
    /// Experts that were asked for.
    pub fn requests(&self) -> u64 {
        self.hits + self.misses
    }

    /// The share of requests that began no read, 0 to 1; `None` before the first request.
    pub fn hit_rate(&self) -> Option<f64> {
        // Counters stay far below 2^53.
        #[allow(clippy::cast_precision_loss)]
        let share = self.hits as f64 / self.requests() as f64;
        (self.requests() > 0).then_some(share)
    }
}
