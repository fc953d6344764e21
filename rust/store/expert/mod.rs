//! The bounded cache of routed experts: where each expert lies, which are in memory, who is using them.
//!
//! Owns: the layout of an expert in a slot ([`ExpertTable`]), the slab of slots, the choice of what to evict
//! ([`policy`]), the threads that read, and the one lock over all of it ([`ExpertStore`]).
//! Refuses: to interpret a weight; to evict what is leased; to let a guess push out what was asked for.
//! Must hold: the bytes behind a [`Lease`] are those of the file and do not change while it lives, whatever the number of
//! slots, the policy, the source, the number of reading threads or of concurrent acquires.

pub mod acquire;
pub mod key;
pub mod layout;
pub mod policy;
pub mod stats;
pub mod store;

mod ledger;
mod list;
mod slots;
mod ticket;
mod workers;

pub use acquire::{Acquire, Lease};
pub use key::ExpertKey;
pub use layout::{ExpertMatrices, ExpertTable};
pub use policy::{POLICIES, Policy, PolicyEntry, policy_entry, policy_named};
pub use stats::ExpertStats;
pub use store::ExpertStore;

#[cfg(test)]
mod tests;
