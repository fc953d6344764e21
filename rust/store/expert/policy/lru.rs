//! Least recently used: the expert that was not asked for the longest leaves. Every operation is O(1), apart from
//! stepping over slots that are in use.

use super::Policy;
use crate::expert::key::ExpertKey;
use crate::expert::list::SlotList;

/// The least-recently-used order of the slots.
#[derive(Debug, Default)]
pub struct Lru {
    order: SlotList,
}

/// An empty policy.
pub fn build() -> Box<dyn Policy> {
    Box::new(Lru::default())
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn on_insert(&mut self, slot: u32, _key: ExpertKey) {
        self.order.push_front(slot);
    }

    fn on_hit(&mut self, slot: u32) {
        self.order.push_front(slot);
    }

    fn on_evict(&mut self, slot: u32) {
        self.order.remove(slot);
    }

    fn victim(&mut self, evictable: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.order.oldest_first().find(|slot| evictable(*slot))
    }
}
