//! Writes samples as the body of one `raw` message.

use crate::convert::tree::CallTree;
use crate::model::NONE;
use crate::model::ThreadSamples;
use crate::protocol::{Raw, RawThread};

/// Room that is used again for every message.
#[derive(Debug, Default)]
pub(crate) struct RawBuilder {
    pub tree: CallTree,
    /// (node, samples), all threads one after the other.
    stacks: Vec<(u32, usize)>,
    /// The current thread's stack as nodes, outermost first.
    path: Vec<u32>,
}

/// Whether the differences of these times, the first from `start`, are signed numbers of 64 bits.
fn is_near(start: u64, slice: &ThreadSamples<'_>) -> bool {
    let times = slice.times();
    if slice.is_rising() && start <= times[0] {
        return i64::try_from(times[times.len() - 1] - start).is_ok();
    }
    let before = std::iter::once(&start).chain(times);
    before.zip(times).all(|(before, time)| i64::try_from(i128::from(*time) - i128::from(*before)).is_ok())
}

/// Where the times of a message or group with these samples count from, unless a clock jumps farther than a signed
/// number of 64 bits can say, so that they belong in several. One sample alone never does.
pub(crate) fn start_of<'a>(slices: impl Iterator<Item = ThreadSamples<'a>> + Clone) -> Option<u64> {
    let key = slices.clone().map(|slice| slice.keys()[0]).min().unwrap_or(0);
    // A clock that was set back is far below its thread's highest time.
    let time = slices.clone().map(|slice| slice.times()[0]).min().unwrap_or(0);
    [key, time].into_iter().find(|start| slices.clone().all(|slice| is_near(*start, &slice)))
}

impl RawBuilder {
    /// Appends the body of a message with these samples to `out`. Its times count from `start_us`, that of the
    /// message or of its group (see [`start_of`]).
    pub fn write<'a>(
        &mut self,
        batch: u64,
        start_us: u64,
        slices: impl Iterator<Item = ThreadSamples<'a>>,
        out: &mut Vec<u8>,
    ) {
        self.tree.clear();
        self.stacks.clear();
        let mut ends = Vec::new();
        let slices: Vec<ThreadSamples<'a>> = slices.collect();
        for slice in &slices {
            self.thread(slice);
            ends.push(self.stacks.len());
        }
        let mut start = 0;
        let mut threads = Vec::with_capacity(ends.len());
        for (slice, end) in slices.iter().zip(ends) {
            threads.push(RawThread {
                thread: slice.thread(),
                times: slice.times(),
                status: slice.status(),
                stacks: &self.stacks[start..end],
            });
            start = end;
        }
        let raw = Raw {
            batch,
            start_us,
            node_frame: &self.tree.frame,
            node_parent: &self.tree.parent,
            threads: &threads,
        };
        raw.write(out);
    }

    fn thread(&mut self, slice: &ThreadSamples<'_>) {
        self.path.clear();
        // Of the stack that the thread comes with, only what the first run keeps is needed.
        let kept = slice.runs().next().map_or(0, |run| run.keep);
        self.push(slice.stack()[..kept].iter());
        for run in slice.runs() {
            self.path.truncate(run.keep);
            let node = self.push(run.pushed.iter().rev());
            self.stacks.push((node, run.samples));
        }
    }

    /// Puts frames on top of the current stack, whose node it returns.
    #[inline(always)]
    fn push<'a>(&mut self, frames: impl Iterator<Item = &'a u32>) -> u32 {
        let mut node = self.path.last().copied().unwrap_or(NONE);
        for &frame in frames {
            node = self.tree.child(node, frame);
            self.path.push(node);
        }
        node
    }
}
