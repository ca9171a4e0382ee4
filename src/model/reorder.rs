//! The reorder buffer: holds samples until they can be delivered in time order, with one queue for each thread.
//!
//! A queue holds a thread's samples in recorded order as columns (time, status), and its stacks as
//! runs: a change of the stack, then how many samples have the result. Nothing is stored per sample
//! that a run can say once. Queues without a waiting sample cost nothing but their state, however many there are.
//!
//! Samples are delivered in the order of their [`OrderKey`], and within a place in queue order.

mod queue;

pub use queue::{Appender, ThreadQueue, ThreadSamples};

use crate::model::{OrderKey, StackChange, ThreadKey};
use queue::Group;

/// All queues of a profile, in the order in which the profiler lists its threads.
#[derive(Debug, Default)]
pub struct ReorderBuffer {
    queues: Vec<ThreadQueue>,
    /// The queues that have waiting samples, ascending from each [`ReorderBuffer::cut`] on.
    active: Vec<u32>,
    /// Where the last [`ReorderBuffer::cut`] ends in each of the first active queues.
    ends: Vec<usize>,
    waiting: usize,
}

/// Where to cut when an instant passes the wanted number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// After the instant.
    AfterInstant,
    /// Before the instant, unless it is the first: then it is marked alone, a sample a thread.
    BeforeInstant,
}

impl ReorderBuffer {
    /// So many queues keep the room that they once needed.
    const FEW: usize = 64;
    /// Samples for which more queues keep room, all together.
    const ROOM: usize = 512 * 1024;

    /// A queue for each of `threads`, each starting with an empty stack at `start_us`.
    pub fn new(threads: impl IntoIterator<Item = ThreadKey>, start_us: u64) -> Self {
        let queues: Vec<ThreadQueue> =
            threads.into_iter().map(|thread| ThreadQueue::new(thread, start_us)).collect();
        ReorderBuffer { queues, ..ReorderBuffer::default() }
    }

    /// Samples that wait, over all queues.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Frames that wait with them, as parts of the changes to their threads' stacks.
    pub fn frames_waiting(&self) -> usize {
        self.active.iter().map(|queue| self.queues[*queue as usize].frames_waiting()).sum()
    }

    /// The least place that the next sample of queue `index` can have.
    pub fn next_key(&self, index: usize) -> OrderKey {
        self.queues[index].next_key()
    }

    /// The time of the newest sample in queue `index`; at first the start of the run.
    pub fn last_time(&self, index: usize) -> u64 {
        self.queues[index].last_time
    }

    /// The depth of the newest stack in queue `index`.
    pub fn depth(&self, index: usize) -> u32 {
        self.queues[index].depth
    }

    /// The newest stack of queue `index`, outermost frame first.
    pub fn newest_stack(&self, index: usize) -> Vec<u32> {
        self.queues[index].newest_stack()
    }

    /// Starts a run: the newest stack of queue `index` changes. `pushed` are the frames that come on
    /// top, innermost first.
    #[inline(always)]
    pub fn change(&mut self, index: usize, change: StackChange, pushed: impl Iterator<Item = u32>) {
        self.queues[index].change(change, pushed);
    }

    /// Adds a sample with the newest stack to queue `index`, `delta` microseconds after the thread's last
    /// one, modulo 2^64.
    #[inline(always)]
    pub fn push(&mut self, index: usize, delta: u64, status: u8) {
        self.append(index).push(delta, status);
    }

    /// Starts to add samples with the newest stack to queue `index`.
    #[inline(always)]
    pub fn append(&mut self, index: usize) -> Appender<'_> {
        self.wake(index);
        Appender::new(&mut self.queues[index], &mut self.waiting)
    }

    /// Adds `samples` with the newest stack to queue `index`, of which `fill` gives time differences, modulo
    /// 2^64, and status bytes. Where it fails there is nothing added.
    #[inline(always)]
    pub fn extend<E>(
        &mut self,
        index: usize,
        samples: usize,
        fill: impl FnOnce(&mut [u64], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.wake(index);
        self.queues[index].extend(samples, fill)?;
        self.waiting += samples;
        Ok(())
    }

    /// A queue is about to get samples.
    #[inline(always)]
    fn wake(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        if !queue.is_active {
            queue.is_active = true;
            self.active.push(index as u32);
        }
    }

    /// How many waiting samples have a place below `before` (all where `None`).
    pub fn count_before(&self, before: Option<OrderKey>) -> usize {
        let Some(before) = before else { return self.waiting };
        self.active
            .iter()
            .map(|queue| &self.queues[*queue as usize])
            .map(|queue| queue.count_below(before))
            .sum()
    }

    /// The least key that waits.
    pub fn first_key(&self) -> Option<u64> {
        self.active.iter().filter_map(|queue| self.queues[*queue as usize].head_key()).min()
    }

    /// Marks the first samples in order, about `wanted` as `cut` says, fewer where not so many have a
    /// place below `before`. Returns how many were marked.
    pub fn cut(&mut self, wanted: usize, before: Option<OrderKey>, cut: Cut) -> usize {
        self.active.sort_unstable();
        let ReorderBuffer { queues, active, ends, .. } = self;
        let queues = || active.iter().map(|queue| &queues[*queue as usize]);
        ends.clear();
        ends.extend(queues().map(|queue| queue.end_below(before)));
        let total: usize = queues().zip(&*ends).map(|(queue, end)| queue.waiting_to(*end)).sum();
        if total <= wanted {
            return total;
        }
        // The instant that reaches `wanted`: first its key ...
        let keys = || queues().zip(&*ends).map(|(queue, end)| queue.keys_to(*end));
        let low = keys().filter_map(|keys| keys.first()).min().copied().unwrap_or(0);
        let high = keys().filter_map(|keys| keys.last()).max().copied().unwrap_or(0);
        let up_to = |key: u64| -> usize { keys().map(|keys| keys.partition_point(|k| *k <= key)).sum() };
        let key = least(low, high, |key| up_to(key) >= wanted);
        // ... then how many samples of one thread at that key.
        let groups: Vec<Group> = queues().zip(&*ends).map(|(queue, end)| queue.group(*end, key)).collect();
        let below: usize =
            queues().zip(&groups).map(|(queue, group)| queue.waiting_to(group.range.start)).sum();
        let filled = || groups.iter().filter(|group| !group.range.is_empty());
        let first = filled().map(|group| group.before).min().unwrap_or(0);
        let last = filled().map(|group| group.before + group.range.len() as u64).max().unwrap_or(0);
        let up_to = |nth: u64| below + groups.iter().map(|group| group.below(nth + 1)).sum::<usize>();
        let nth = least(first, last, |nth| up_to(nth) >= wanted);
        let total = up_to(nth);
        let whole = below + groups.iter().map(|group| group.below(nth)).sum::<usize>();
        let (nth, total) = if cut == Cut::BeforeInstant && total > wanted && whole > 0 {
            (nth, whole)
        } else {
            (nth + 1, total)
        };
        for (group, end) in groups.iter().zip(ends.iter_mut()) {
            *end = group.range.start + group.below(nth);
        }
        total
    }

    /// The queues that have samples in the last cut, in order.
    pub fn slices(&self) -> impl Iterator<Item = ThreadSamples<'_>> + Clone {
        let marked = self.active.iter().zip(&self.ends);
        marked.filter_map(|(queue, end)| self.queues[*queue as usize].slice(*queue as usize, *end))
    }

    /// Holds a copy of these slices in place of what was here.
    pub fn copy_from<'a>(&mut self, slices: impl Iterator<Item = ThreadSamples<'a>>) {
        let mut count = 0;
        self.waiting = 0;
        for slice in slices {
            if count == self.queues.len() {
                self.queues.push(ThreadQueue::new(slice.thread(), 0));
            }
            self.queues[count].copy_from(&slice);
            self.waiting += slice.times().len();
            count += 1;
        }
        self.queues.truncate(count);
        self.active.clear();
        self.active.extend(0..count as u32);
        self.ends.clear();
    }

    /// Takes the last cut's samples off the queues.
    pub fn advance(&mut self) {
        let is_many = self.queues.len() > Self::FEW;
        let room = is_many.then(|| Self::ROOM / self.queues.len());
        let ReorderBuffer { queues, active, ends, waiting } = self;
        let mut ends = ends.drain(..);
        active.retain(|index| {
            let queue = &mut queues[*index as usize];
            let Some(end) = ends.next() else { return true };
            *waiting -= queue.waiting_to(end);
            queue.advance(end, room);
            queue.is_active
        });
    }
}

/// The least number in `low..=high` for which `holds`, which stays true once it is.
fn least(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests;
