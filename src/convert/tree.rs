//! A call tree: each stack is a node, equal stacks are equal numbers.

use rustc_hash::FxHashMap;

/// No node: the parent of a root, and the node of an empty stack.
pub(crate) const ROOT: u32 = u32::MAX;

/// Nodes as columns, as they stand in a `raw` message.
#[derive(Debug, Default)]
pub(crate) struct CallTree {
    pub frame: Vec<u32>,
    pub parent: Vec<u32>,
    /// Parent in the high half, frame in the low one.
    children: FxHashMap<u64, u32>,
}

impl CallTree {
    pub fn clear(&mut self) {
        self.frame.clear();
        self.parent.clear();
        self.children.clear();
    }

    /// The node for `frame` called from `parent`.
    #[inline]
    pub fn child(&mut self, parent: u32, frame: u32) -> u32 {
        let next = self.frame.len() as u32;
        let node = *self.children.entry(u64::from(parent) << 32 | u64::from(frame)).or_insert(next);
        if node == next {
            self.frame.push(frame);
            self.parent.push(parent);
        }
        node
    }
}
