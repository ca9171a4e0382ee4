//! Samples counted by frame as CPython's JSONL does: `self` where a frame is innermost, `cumulative`
//! where it is anywhere, once a sample however often it recurs.
//!
//! A frame's cumulative count is what its thread has counted when the frame leaves the stack, less
//! what it had counted when the frame came: work is done where stacks change, not for each sample.

use std::ops::AddAssign;

use crate::model::IdSet;

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// A frame: a place in a function.
    #[default]
    Frame,
    /// A function of a file.
    Function,
    /// A file.
    File,
}

/// The group of frames that are not counted.
pub const HIDDEN: u32 = u32::MAX;

/// How many samples have a frame innermost, and anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Innermost.
    pub self_: u64,
    /// Anywhere, once a sample.
    pub cumulative: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.self_ += other.self_;
        self.cumulative += other.cumulative;
    }
}

/// The counts of a window, or of a whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountTable {
    /// Samples with at least one counted frame.
    pub total: u64,
    /// Samples without.
    pub empty: u64,
    /// Counted frames, in order of frame.
    pub rows: Vec<(u32, Counts)>,
}

impl CountTable {
    /// Adds up the rows of each frame, of which there may be several in any order.
    pub fn join_rows(&mut self) {
        self.rows.sort_unstable_by_key(|(frame, _)| *frame);
        self.rows.dedup_by(|(frame, these), (kept, counts)| {
            let is_same = frame == kept;
            if is_same {
                *counts += *these;
            }
            is_same
        });
    }
}

/// A table in the making.
#[derive(Debug)]
pub struct Counter {
    counts: Vec<Counts>,
    /// The frames that may have counts.
    touched: IdSet,
    total: u64,
    empty: u64,
}

impl Counter {
    /// For frames below `frames`.
    pub fn new(frames: usize) -> Self {
        Counter { counts: vec![Counts::default(); frames], touched: IdSet::new(frames), total: 0, empty: 0 }
    }

    /// Adds to what a frame has.
    pub fn add(&mut self, frame: u32, these: Counts) {
        self.counts[frame as usize].self_ += these.self_;
        self.cumulate(frame, these.cumulative);
    }

    /// Adds samples that have a frame anywhere; those that have it innermost are among them.
    #[inline(always)]
    fn cumulate(&mut self, frame: u32, samples: u64) {
        let counts = &mut self.counts[frame as usize];
        if counts.cumulative == 0 {
            self.touched.insert(frame);
        }
        counts.cumulative += samples;
    }

    /// A frame of this group leaves a stack, after so many samples were seen; it came at `came`.
    #[inline(always)]
    fn left(&mut self, group: u32, came: u64, seen: u64) {
        if came != UNCOUNTED {
            self.cumulate(group, seen - came);
        }
    }

    /// Adds samples with a counted frame, and without.
    pub fn add_samples(&mut self, total: u64, empty: u64) {
        self.total += total;
        self.empty += empty;
    }

    /// The table, if a sample was counted; counting begins anew.
    pub fn take(&mut self) -> Option<CountTable> {
        let Counter { counts, touched, .. } = self;
        let rows = touched.drain().map(|frame| (frame, std::mem::take(&mut counts[frame as usize])));
        let rows = rows.filter(|(_, counts)| *counts != Counts::default()).collect();
        let table = CountTable {
            rows,
            total: std::mem::take(&mut self.total),
            empty: std::mem::take(&mut self.empty),
        };
        (table.total + table.empty > 0).then_some(table)
    }
}

/// The stack of a thread, and how long its frames have been on it.
#[derive(Debug)]
pub struct CountedStack {
    /// The frames' groups, outermost first.
    groups: Vec<u32>,
    /// For each the samples that were seen when it came, or [`UNCOUNTED`].
    came: Vec<u64>,
    /// How many of the groups fall on each place: where there is none, none recurs. (The deepest stack that a
    /// profile can hold may make one come round to 0, but nothing is pushed onto that.)
    places: [u8; PLACES],
    /// Samples since the last [`CountedStack::settle`], and those of them before the stack's last change.
    seen: u64,
    changed: u64,
}

const PLACES: usize = 256;

fn place(group: u32) -> usize {
    (group.wrapping_mul(0x9e37_79b9) >> 24) as usize
}

/// Stands for when a frame came that isn't counted, or whose group is on the stack further out.
const UNCOUNTED: u64 = u64::MAX;

impl Default for CountedStack {
    fn default() -> Self {
        CountedStack { groups: Vec::new(), came: Vec::new(), places: [0; PLACES], seen: 0, changed: 0 }
    }
}

impl CountedStack {
    /// Keeps the `keep` outermost frames, and puts `pushed`, innermost first, on top, up to the deepest stack
    /// that a profile can hold. `groups` are the frames that frames count as, or [`HIDDEN`].
    #[inline(always)]
    pub fn change(&mut self, counter: &mut Counter, groups: &[u32], keep: usize, pushed: &[u32]) {
        self.end_run(counter);
        let CountedStack { groups: own, came, places, seen, .. } = self;
        for (group, came) in own[keep..].iter().zip(&came[keep..]).rev() {
            let place = &mut places[place(*group)];
            *place = place.wrapping_sub(1);
            counter.left(*group, *came, *seen);
        }
        own.truncate(keep);
        came.truncate(keep);
        for frame in pushed.iter().rev() {
            let group = groups[*frame as usize];
            let place = &mut places[place(group)];
            let is_counted = group != HIDDEN && (*place == 0 || !own.contains(&group));
            *place = place.wrapping_add(1);
            own.push(group);
            came.push(if is_counted { *seen } else { UNCOUNTED });
        }
    }

    /// Samples with the stack as it is.
    #[inline(always)]
    pub fn add(&mut self, samples: u64) {
        self.seen += samples;
    }

    /// Counts the samples since the last change, which are of the frame that is innermost.
    #[inline(always)]
    fn end_run(&mut self, counter: &mut Counter) {
        let samples = self.seen - self.changed;
        self.changed = self.seen;
        match self.innermost() {
            Some(group) => {
                counter.counts[group as usize].self_ += samples;
                counter.total += samples;
            }
            None => counter.empty += samples,
        }
    }

    /// Counts all samples up to here. What comes may be counted elsewhere.
    pub fn settle(&mut self, counter: &mut Counter) {
        if self.seen == 0 {
            return;
        }
        self.end_run(counter);
        for (group, came) in self.groups.iter().zip(&mut self.came) {
            counter.left(*group, *came, self.seen);
            if *came != UNCOUNTED {
                *came = 0;
            }
        }
        (self.seen, self.changed) = (0, 0);
    }

    /// Frames on the stack.
    #[inline(always)]
    pub fn depth(&self) -> usize {
        self.groups.len()
    }

    /// The group of the innermost frame that is counted.
    #[inline(always)]
    pub fn innermost(&self) -> Option<u32> {
        match self.groups.last() {
            Some(group) if *group != HIDDEN => Some(*group),
            _ => self.groups.iter().rev().copied().find(|group| *group != HIDDEN),
        }
    }

    /// The groups that a sample with this stack counts for.
    pub fn counted(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().zip(&self.came).filter(|(_, came)| **came != UNCOUNTED).map(|(group, _)| *group)
    }
}
