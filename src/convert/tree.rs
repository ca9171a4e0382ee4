//! A call tree that numbers stacks: equal stacks have equal node numbers.

/// Nodes as columns, as they stand in a `raw` message.
///
/// A tree lives for one message and is looked up for every frame that comes onto a stack, so its table is
/// its own: it is cleared by a new number, and a look-up is a multiplication and mostly one comparison.
#[derive(Debug)]
pub(crate) struct CallTree {
    pub frame: Vec<u32>,
    pub parent: Vec<u32>,
    /// Nodes by parent and frame, at the first free place from where these lead. A power of two, and
    /// never more than half full.
    slots: Vec<Slot>,
    shift: u32,
    message: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    node: u32,
    /// The message that it is for; others see a free place.
    message: u32,
}

impl Default for CallTree {
    fn default() -> Self {
        let mut tree =
            CallTree { frame: Vec::new(), parent: Vec::new(), slots: Vec::new(), shift: 0, message: 1 };
        tree.make_room(1 << 10);
        tree
    }
}

impl CallTree {
    pub fn clear(&mut self) {
        self.frame.clear();
        self.parent.clear();
        self.message = match self.message.checked_add(1) {
            Some(next) => next,
            None => {
                self.slots.fill(Slot::default());
                1
            }
        };
    }

    /// The node for `frame` called from `parent`.
    #[inline(always)]
    pub fn child(&mut self, parent: u32, frame: u32) -> u32 {
        let mut at = self.place(parent, frame);
        loop {
            let slot = self.slots[at];
            if slot.message != self.message {
                return self.add(at, parent, frame);
            }
            let node = slot.node as usize;
            if self.frame[node] == frame && self.parent[node] == parent {
                return slot.node;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    #[inline(always)]
    fn place(&self, parent: u32, frame: u32) -> usize {
        let key = u64::from(parent) << 32 | u64::from(frame);
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline(always)]
    fn add(&mut self, at: usize, parent: u32, frame: u32) -> u32 {
        let node = self.frame.len() as u32;
        self.slots[at] = Slot { node, message: self.message };
        self.frame.push(frame);
        self.parent.push(parent);
        if self.frame.len() > self.slots.len() / 2 {
            self.make_room(2 * self.slots.len());
        }
        node
    }

    #[cold]
    fn make_room(&mut self, size: usize) {
        self.slots = vec![Slot::default(); size];
        self.shift = u64::BITS - size.trailing_zeros();
        for node in 0..self.frame.len() {
            let (parent, frame) = (self.parent[node], self.frame[node]);
            let mut at = self.place(parent, frame);
            while self.slots[at].message == self.message {
                at = (at + 1) & (size - 1);
            }
            self.slots[at] = Slot { node: node as u32, message: self.message };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NONE;

    #[test]
    fn a_tree_that_grows_and_one_that_was_cleared_number_as_a_map_does() {
        let mut tree = CallTree::default();
        for message in 0..3u32 {
            tree.clear();
            let mut known = std::collections::HashMap::new();
            let mut parent = NONE;
            for step in 0..40_000u32 {
                let frame = step.wrapping_mul(2_654_435_761) >> 20;
                let next = known.len() as u32;
                let expected = *known.entry((parent, frame)).or_insert(next);
                assert_eq!(tree.child(parent, frame), expected, "message {message}, step {step}");
                parent = if step % 7 == 0 { NONE } else { expected };
            }
            assert_eq!(tree.frame.len(), known.len());
        }
    }
}
