//! Policies on traces: the rules every policy keeps, LRU against a naive LRU, and the cost of a miss.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};

use super::{POLICIES, Policy, policy_named};
use crate::expert::key::ExpertKey;

/// A fixed sequence of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(bound)).unwrap()
    }
}

/// A cache that holds nothing but names.
struct Cache {
    policy: Box<dyn Policy>,
    slot_of: HashMap<ExpertKey, u32>,
    held: Vec<Option<ExpertKey>>,
    probes: Cell<u64>,
}

impl Cache {
    fn new(policy: Box<dyn Policy>, slots: usize) -> Self {
        Cache { policy, slot_of: HashMap::new(), held: vec![None; slots], probes: Cell::new(0) }
    }

    /// Asks for an expert while `leased` are in use; returns whether it was a hit and who left.
    fn ask(&mut self, key: ExpertKey, leased: &[u32]) -> (bool, Option<ExpertKey>) {
        if let Some(slot) = self.slot_of.get(&key) {
            self.policy.on_hit(*slot);
            return (true, None);
        }
        let free = (self.slot_of.len() < self.held.len()).then(|| u32::try_from(self.slot_of.len()).unwrap());
        let probes = &self.probes;
        let slot = free.or_else(|| {
            self.policy.victim(&|slot| {
                probes.set(probes.get() + 1);
                !leased.contains(&slot)
            })
        });
        let slot = slot.expect("a slot that is not leased");
        assert!(!leased.contains(&slot), "a leased slot was chosen");
        let left = self.held[slot as usize].replace(key);
        if let Some(left) = left {
            self.policy.on_evict(slot);
            self.slot_of.remove(&left);
        }
        self.policy.on_insert(slot, key);
        self.slot_of.insert(key, slot);
        (false, left)
    }
}

#[test]
fn names_are_unique_and_build_what_they_say() {
    for entry in POLICIES {
        assert_eq!((entry.build)().name(), entry.name);
        assert_eq!(POLICIES.iter().filter(|other| other.name == entry.name).count(), 1);
        assert_eq!(policy_named(entry.name).map(|policy| policy.name()), Some(entry.name));
    }
    assert!(policy_named("no such policy").is_none());
}

#[test]
fn every_policy_spares_leased_slots_and_says_so_when_all_are_leased() {
    for entry in POLICIES {
        let mut random = Random(3);
        let mut cache = Cache::new((entry.build)(), 5);
        for step in 0..5_000u32 {
            let leased: Vec<u32> = (0..5).filter(|slot| (step >> slot) & 1 == 1).take(4).collect();
            cache.ask(ExpertKey::new(0, random.below(23)), &leased);
        }
        assert_eq!(cache.policy.victim(&|_| false), None, "{}", entry.name);
        assert_eq!(cache.policy.victim(&|slot| slot == 3), Some(3), "{}", entry.name);
    }
}

#[test]
fn every_policy_names_no_victim_when_empty() {
    for entry in POLICIES {
        let mut policy = (entry.build)();
        assert_eq!(policy.victim(&|_| true), None);
        policy.on_insert(0, ExpertKey::new(0, 0));
        policy.on_evict(0);
        assert_eq!(policy.victim(&|_| true), None);
    }
}

#[test]
fn lru_equals_a_naive_lru_on_a_skewed_trace() {
    for slots in [1usize, 2, 7, 64] {
        let mut random = Random(slots as u64);
        let mut cache = Cache::new(super::lru::build(), slots);
        let mut naive: VecDeque<ExpertKey> = VecDeque::new();
        let mut hits = 0u32;
        for _ in 0..20_000 {
            let wide = random.below(100);
            let expert = random.below(wide + 1);
            let key = ExpertKey::new(expert % 3, expert);
            let (hit, left) = cache.ask(key, &[]);
            let at = naive.iter().position(|entry| *entry == key);
            assert_eq!(hit, at.is_some());
            hits += u32::from(hit);
            match at {
                Some(at) => drop(naive.remove(at)),
                None if naive.len() == slots => assert_eq!(left, naive.pop_front()),
                None => assert_eq!(left, None),
            }
            naive.push_back(key);
        }
        assert!(hits > 0 && hits < 20_000);
    }
}

/// EX-05: the work of a miss does not grow with the cache: one victim is looked at per miss, whatever the size.
#[test]
fn ex_05_a_miss_costs_the_same_in_a_large_cache() {
    for entry in POLICIES {
        for slots in [4usize, 64, 4096] {
            let mut cache = Cache::new((entry.build)(), slots);
            let misses = 100_000u32;
            for step in 0..misses {
                let (hit, _) = cache.ask(ExpertKey::new(step / 8192, step % 8192), &[]);
                assert!(!hit);
            }
            assert_eq!(cache.probes.get(), u64::from(misses) - slots as u64, "{} with {slots} slots", entry.name);
        }
    }
}
