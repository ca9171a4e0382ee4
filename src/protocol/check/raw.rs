//! Rules of `raw` messages: their samples, and their order from message to message.

use std::collections::HashMap;

use crate::limits::THREADS;
use crate::model::NONE;
use crate::model::{Clock, OrderKey, ThreadKey};
use crate::protocol::check::report::Report;
use crate::protocol::columns::RawColumns;
use crate::protocol::group::Groups;

/// Memory that is used again for every message.
#[derive(Debug, Default)]
pub(crate) struct Room {
    used: Vec<bool>,
    nodes: Vec<(u32, u32)>,
}

/// Where the threads of a run are.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    known: HashMap<ThreadKey, ThreadOrder>,
    groups: Groups,
    /// The last sample, in time order, of the groups before the current one, and of that one.
    before: Option<OrderKey>,
    last: Option<OrderKey>,
    /// Samples are missing, or threads too many.
    unknown_order: bool,
    too_many: bool,
}

#[derive(Clone, Copy, Debug)]
struct ThreadOrder {
    clock: Clock,
    /// The last batch that has a sample of it.
    batch: u64,
}

/// Samples, and what they say together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub samples: u64,
    pub empty: u64,
    pub threads: u64,
    /// Earliest and latest time.
    pub span: Option<(u64, u64)>,
}

impl Sums {
    pub fn add(&mut self, other: &Sums) {
        self.samples = self.samples.saturating_add(other.samples);
        self.empty = self.empty.saturating_add(other.empty);
        self.threads += other.threads;
        if let Some((low, high)) = other.span {
            self.cover(low, high);
        }
    }

    pub fn cover(&mut self, low: u64, high: u64) {
        let span = self.span.get_or_insert((low, high));
        *span = (span.0.min(low), span.1.max(high));
    }
}

/// Checks the call tree: each node is of use and stands once.
pub(crate) fn check_tree(columns: &RawColumns, room: &mut Room, report: &mut Report<'_>) {
    let Room { used, nodes } = room;
    used.clear();
    used.resize(columns.stack_frame_id.len(), false);
    if columns.samples == 0 {
        report.say("a raw message without a sample");
    }
    for thread in columns.threads() {
        if thread.status.is_empty() && columns.samples > 0 {
            report.say(format!("thread {} has no sample in the message", thread.thread_id));
        }
        let nodes = thread.stacks.iter().map(|(node, _)| *node);
        nodes.filter(|node| *node != NONE).for_each(|node| used[node as usize] = true);
    }
    columns.stack_parent.iter().filter(|node| **node != NONE).for_each(|node| used[*node as usize] = true);
    let idle = used.iter().filter(|used| !**used).count();
    if let Some(first) = used.iter().position(|used| !used) {
        let more = if idle > 1 { format!(" and {} more", idle - 1) } else { String::new() };
        report.say(format!("no sample and no other node needs node {first}{more}"));
    }
    nodes.clear();
    nodes.extend(columns.stack_parent.iter().copied().zip(columns.stack_frame_id.iter().copied()));
    nodes.sort_unstable();
    if let Some(same) = nodes.windows(2).find(|pair| pair[0] == pair[1]) {
        let (parent, frame) = same[0];
        let parent = if parent == NONE { "as roots".to_string() } else { format!("under node {parent}") };
        report.say(format!("two nodes of frame {frame} stand {parent}"));
    }
}

impl Threads {
    /// A part of the run begins: its times have to do with those before it as little as its ids.
    pub fn open_part(&mut self) {
        (self.before, self.last) = (None, None);
        self.known.values_mut().for_each(|thread| thread.clock = Clock::default());
    }

    /// Samples are missing: the order of those that follow cannot be known.
    pub fn lose_order(&mut self) {
        self.unknown_order = true;
    }

    /// Threads that it keeps.
    pub fn kept(&self) -> usize {
        self.known.len()
    }

    /// Whether the sums' number of threads is right.
    pub fn are_counted(&self) -> bool {
        !self.too_many
    }

    /// Takes the samples of a message of the run's `batch`-th batch.
    pub fn add(&mut self, columns: &RawColumns, batch: u64, report: &mut Report<'_>) -> Sums {
        let mut sums = Sums { samples: columns.samples, ..Sums::default() };
        if !self.groups.goes_on(columns) {
            self.before = self.last;
        }
        let mut first: Option<(OrderKey, u64)> = None;
        for thread in columns.threads() {
            let Some(&start) = thread.times_usec.first() else { continue };
            let key = thread.key();
            // No profile has as many. The rules about threads need all of them, so they end here.
            if self.known.len() >= THREADS && !self.known.contains_key(&key) {
                self.too_many = true;
                self.unknown_order = true;
                self.known.clear();
            }
            let before = self.known.get(&key).copied();
            let mut clock = before.map_or(Clock::default(), |thread| thread.clock);
            let mut place = clock.take(start);
            if first.is_none_or(|(first, _)| place < first) {
                first = Some((place, thread.thread_id));
            }
            let (mut low, mut high) = (start, start);
            for &time in &thread.times_usec[1..] {
                place = clock.take(time);
                low = low.min(time);
                high = high.max(time);
            }
            sums.cover(low, high);
            sums.empty += thread.empty() as u64;
            sums.threads += u64::from(before.is_none_or(|thread| thread.batch != batch));
            self.last = self.last.max(Some(place));
            self.known.insert(key, ThreadOrder { clock, batch });
        }
        if let (Some((place, thread)), Some(before)) = (first, self.before)
            && place < before
            && !self.unknown_order
        {
            report.say(format!(
                "out of time order: a sample of thread {thread} at {} comes after one at {} in an earlier message",
                place.key, before.key
            ));
        }
        sums
    }
}
