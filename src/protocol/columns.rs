//! The columns of a decoded `raw` message.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::NODES;
use crate::model::NONE;
use crate::model::ThreadKey;

/// The columns of a `raw` message, read into room that is used again.
#[derive(Clone, Debug, Default)]
pub struct RawColumns {
    /// The batch it belongs to.
    pub batch: u64,
    /// Where the threads' first differences count from.
    pub start_usec: u64,
    /// Declared number of samples.
    pub samples: u64,
    /// Frame of each node.
    pub stack_frame_id: Vec<u32>,
    /// Parent of each node; [`u32::MAX`] for a root.
    pub stack_parent: Vec<u32>,
    threads: Vec<ThreadColumns>,
    used: usize,
}

/// One thread's columns in a `raw` message.
#[derive(Clone, Debug, Default)]
pub struct ThreadColumns {
    /// The thread.
    pub thread_id: u64,
    /// Its interpreter.
    pub interpreter_id: u32,
    /// Sample times, the differences added up.
    pub times_usec: Vec<u64>,
    /// Status bytes.
    pub status: Vec<u8>,
    /// (node, number of samples in a row), no two of one node in a row; [`u32::MAX`] for an empty stack.
    pub stacks: Vec<(u32, usize)>,
}

impl ThreadColumns {
    /// Thread and interpreter.
    pub fn key(&self) -> ThreadKey {
        ThreadKey { interpreter_id: self.interpreter_id, thread_id: self.thread_id }
    }

    /// Node of each sample; [`u32::MAX`] for an empty stack.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.stacks.iter().flat_map(|(node, samples)| std::iter::repeat_n(*node, *samples))
    }

    /// Samples with an empty stack.
    pub fn empty(&self) -> usize {
        self.stacks.iter().filter(|(node, _)| *node == NONE).map(|(_, samples)| samples).sum()
    }

    /// Adds samples with the stack of this node.
    #[inline(always)]
    pub(crate) fn push_stack(&mut self, node: u32, samples: usize) {
        match self.stacks.last_mut() {
            Some((last, before)) if *last == node => *before += samples,
            _ => self.stacks.push((node, samples)),
        }
    }
}

impl RawColumns {
    /// The threads, in the profiler's order.
    pub fn threads(&self) -> &[ThreadColumns] {
        &self.threads[..self.used]
    }

    pub(crate) fn clear(&mut self) {
        self.stack_frame_id.clear();
        self.stack_parent.clear();
        self.used = 0;
    }

    pub(crate) fn next_thread(&mut self) -> &mut ThreadColumns {
        if self.used == self.threads.len() {
            self.threads.push(ThreadColumns::default());
        }
        let thread = &mut self.threads[self.used];
        self.used += 1;
        thread.times_usec.clear();
        thread.status.clear();
        thread.stacks.clear();
        thread
    }

    /// Whether the columns fit together, and how not.
    pub(super) fn check(&self) -> Result<()> {
        let nodes = self.stack_frame_id.len();
        if nodes > NODES {
            let what = format!("a raw message of {nodes} nodes, over the limit of {NODES}");
            return Err(Error::new(ErrorKind::Limit, what));
        }
        same_len("stack_frame_id and stack_parent", nodes, self.stack_parent.len())?;
        let forward =
            (0..).zip(&self.stack_parent).find(|(node, parent)| **parent != NONE && **parent >= *node);
        if let Some((node, parent)) = forward {
            return Err(Error::stream(format!("node {node} has the parent {parent}, which is not below it")));
        }
        let mut samples = 0;
        for thread in self.threads() {
            same_len("ts_delta_usec and status", thread.times_usec.len(), thread.status.len())?;
            let stacks = thread.stacks.iter().map(|(_, samples)| samples).sum();
            same_len("ts_delta_usec and stack", thread.times_usec.len(), stacks)?;
            let has_node = |node: u32| node == NONE || (node as usize) < nodes;
            if let Some((node, _)) = thread.stacks.iter().find(|(node, _)| !has_node(*node)) {
                return Err(Error::stream(format!(
                    "a sample has the stack {node}, out of range (0..{nodes})"
                )));
            }
            samples += thread.status.len() as u64;
        }
        if samples != self.samples {
            return Err(Error::stream(format!(
                "the message declares {} samples and holds {samples}",
                self.samples
            )));
        }
        // The samples of a thread have one order.
        let mut threads: Vec<ThreadKey> = self.threads().iter().map(ThreadColumns::key).collect();
        threads.sort_unstable();
        if let Some(pair) = threads.windows(2).find(|pair| pair[0] == pair[1]) {
            let ThreadKey { interpreter_id, thread_id } = pair[0];
            return Err(Error::stream(format!(
                "thread {thread_id} of interpreter {interpreter_id} stands twice in the message"
            )));
        }
        Ok(())
    }
}

pub(super) fn same_len(what: &str, a: usize, b: usize) -> Result<()> {
    if a == b { Ok(()) } else { Err(Error::stream(format!("the columns {what} have {a} and {b} elements"))) }
}
