//! Which expert leaves when a slot is needed.
//!
//! A policy is pure: it sees slots being filled, used and emptied, and names a victim when asked. It does no I/O, reads
//! no clock, takes no lock, and so is tested on traces alone. A new policy is one file and one line of [`POLICIES`].

use super::key::ExpertKey;

pub mod lru;

/// The choice of what to evict, over slot numbers `0..slots`.
pub trait Policy: Send {
    /// The name in [`POLICIES`].
    fn name(&self) -> &'static str;

    /// The empty slot is given to `key`, which is about to be read. Called in the order of the requests.
    fn on_insert(&mut self, slot: u32, key: ExpertKey);

    /// The expert in the slot was asked for and found.
    fn on_hit(&mut self, slot: u32);

    /// The expert in the slot leaves, or could not be read.
    fn on_evict(&mut self, slot: u32);

    /// The slot whose expert should leave, among those that `evictable` allows; `None` when it allows none.
    /// The policy forgets the slot only when [`Policy::on_evict`] follows.
    fn victim(&mut self, evictable: &dyn Fn(u32) -> bool) -> Option<u32>;
}

/// One line of [`POLICIES`].
#[derive(Clone, Copy)]
pub struct PolicyEntry {
    /// The name in settings.
    pub name: &'static str,
    /// Makes an empty policy.
    pub build: fn() -> Box<dyn Policy>,
}

/// Every policy. The conformance tests walk this table.
pub const POLICIES: &[PolicyEntry] = &[PolicyEntry { name: "lru", build: lru::build }];

/// The line of this name, if there is one.
pub fn policy_entry(name: &str) -> Option<&'static PolicyEntry> {
    POLICIES.iter().find(|entry| entry.name == name)
}

/// An empty policy of this name, if there is one.
pub fn policy_named(name: &str) -> Option<Box<dyn Policy>> {
    policy_entry(name).map(|entry| (entry.build)())
}

#[cfg(test)]
mod tests;
