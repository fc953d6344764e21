//! A doubly linked list of slot numbers, linked through an array: every operation is O(1).
//!
//! Must hold: a slot is in the list at most once; adding one that is there moves it to the front.

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    towards_front: u32,
    towards_back: u32,
    linked: bool,
}

const UNLINKED: Link = Link { towards_front: NONE, towards_back: NONE, linked: false };

/// Slot numbers from the newest (front) to the oldest (back).
#[derive(Clone, Debug)]
pub(crate) struct SlotList {
    links: Vec<Link>,
    front: u32,
    back: u32,
    len: usize,
}

impl Default for SlotList {
    fn default() -> Self {
        SlotList { links: Vec::new(), front: NONE, back: NONE, len: 0 }
    }
}

impl SlotList {
    /// How many slots are in the list.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts the slot at the front, from wherever it was.
    pub(crate) fn push_front(&mut self, slot: u32) {
        if self.front == slot {
            return;
        }
        self.remove(slot);
        let index = slot as usize;
        if index >= self.links.len() {
            self.links.resize(index + 1, UNLINKED);
        }
        self.links[index] = Link { towards_front: NONE, towards_back: self.front, linked: true };
        match self.front {
            NONE => self.back = slot,
            front => self.links[front as usize].towards_front = slot,
        }
        self.front = slot;
        self.len += 1;
    }

    /// Takes the slot out; returns whether it was in.
    pub(crate) fn remove(&mut self, slot: u32) -> bool {
        let Some(link) = self.links.get(slot as usize).copied().filter(|link| link.linked) else {
            return false;
        };
        match link.towards_front {
            NONE => self.front = link.towards_back,
            towards_front => self.links[towards_front as usize].towards_back = link.towards_back,
        }
        match link.towards_back {
            NONE => self.back = link.towards_front,
            towards_back => self.links[towards_back as usize].towards_front = link.towards_front,
        }
        self.links[slot as usize] = UNLINKED;
        self.len -= 1;
        true
    }

    /// The slots from the oldest to the newest.
    pub(crate) fn oldest_first(&self) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.back;
        std::iter::from_fn(move || {
            let slot = next;
            let link = self.links.get(slot as usize)?;
            next = link.towards_front;
            Some(slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn behaves_like_a_deque_under_random_operations() {
        let mut list = SlotList::default();
        let mut naive: VecDeque<u32> = VecDeque::new();
        let mut random = 7u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let slot = u32::try_from((random >> 33) % 37).unwrap();
            if (random >> 20) & 3 == 0 {
                let was_in = naive.iter().position(|entry| *entry == slot).map(|at| naive.remove(at)).is_some();
                assert_eq!(list.remove(slot), was_in);
            } else {
                naive.retain(|entry| *entry != slot);
                naive.push_back(slot);
                list.push_front(slot);
            }
            assert_eq!(list.len(), naive.len());
        }
        assert_eq!(list.oldest_first().collect::<Vec<_>>(), Vec::from(naive));
    }
}
