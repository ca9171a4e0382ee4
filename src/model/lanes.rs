//! Samples that wait to be delivered in time order: one lane a thread.
//!
//! A lane holds a thread's samples in recorded order as columns (time, status), and its stacks as
//! runs: a change of the stack, then how many samples have the result. Nothing is stored per sample
//! that a run can say once.
//!
//! The order across lanes is that of the *key*: the thread's highest time so far, then how many
//! samples of the thread already bear that time, then the order of the lanes. Where no clock goes
//! back the key is the sample's time, and samples of one instant stand in lane order.

use std::ops::Range;

use super::{StackChange, ThreadKey};

/// All lanes of a profile, in the order in which the profiler lists its threads.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: Vec<Lane>,
    /// Where the last [`Lanes::cut`] ends in each lane.
    ends: Vec<usize>,
    waiting: usize,
}

/// Where to cut when an instant passes the wanted number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Behind the instant.
    Up,
    /// Before the instant, unless it is the first: then it is marked alone, a sample a thread.
    Down,
}

/// One thread's waiting samples.
#[derive(Debug)]
pub struct Lane {
    thread: ThreadKey,
    /// First waiting sample in the columns.
    head: usize,
    times: Vec<u64>,
    status: Vec<u8>,
    /// The highest time so far for each sample, kept once it differs from the time.
    keys: Option<Vec<u64>>,
    /// Of the samples that came in.
    last_time: u64,
    high: Option<u64>,
    depth: u32,
    runs: Vec<Run>,
    run_head: usize,
    pushed: Vec<u32>,
    pushed_head: usize,
    /// The stack before the first waiting run, outermost frame first.
    stack: Vec<u32>,
    /// The key of the last delivered sample, and how many delivered samples in a row have it.
    delivered: (u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Run {
    change: StackChange,
    samples: usize,
}

/// A part of a lane: what one cut delivers of it.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    index: usize,
    lane: &'a Lane,
    end: usize,
}

/// A run of samples with one stack, and the change that makes it out of the stack before.
#[derive(Clone, Copy, Debug)]
pub struct StackRun<'a> {
    /// Outermost frames of the last stack that stay.
    pub keep: usize,
    /// Frames that come on top, innermost first.
    pub pushed: &'a [u32],
    /// How many samples have the stack; 0 where two changes follow each other.
    pub samples: usize,
}

impl Lanes {
    /// A lane for each of `threads`, each starting with an empty stack at `start_us`.
    pub fn new(threads: impl IntoIterator<Item = ThreadKey>, start_us: u64) -> Self {
        let lanes: Vec<Lane> = threads.into_iter().map(|thread| Lane::new(thread, start_us)).collect();
        Lanes { ends: vec![0; lanes.len()], lanes, waiting: 0 }
    }

    /// Samples that wait, over all lanes.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// The highest time that lane `index` has seen.
    pub fn high(&self, index: usize) -> Option<u64> {
        self.lanes[index].high
    }

    /// The time of the newest sample in lane `index`; at first the start of the run.
    pub fn last_time(&self, index: usize) -> u64 {
        self.lanes[index].last_time
    }

    /// The depth of the newest stack in lane `index`.
    pub fn depth(&self, index: usize) -> u32 {
        self.lanes[index].depth
    }

    /// The newest stack of lane `index`, outermost frame first.
    pub fn newest_stack(&self, index: usize) -> Vec<u32> {
        let lane = &self.lanes[index];
        let mut stack = lane.stack.clone();
        let mut pushed = &lane.pushed[lane.pushed_head..];
        for run in &lane.runs[lane.run_head..] {
            let (these, rest) = pushed.split_at(run.change.push as usize);
            stack.truncate(run.change.keep as usize);
            stack.extend(these.iter().rev());
            pushed = rest;
        }
        stack
    }

    /// Starts a run: the newest stack of lane `index` changes. `pushed` are the frames that come on
    /// top, innermost first.
    #[inline(always)]
    pub fn change(&mut self, index: usize, change: StackChange, pushed: impl Iterator<Item = u32>) {
        let lane = &mut self.lanes[index];
        lane.pushed.extend(pushed);
        lane.depth = change.keep + change.push;
        lane.runs.push(Run { change, samples: 0 });
    }

    /// Adds a sample with the newest stack to lane `index`, `delta` microseconds after the thread's last
    /// one, modulo 2^64.
    #[inline(always)]
    pub fn push(&mut self, index: usize, delta: u64, status: u8) {
        let lane = &mut self.lanes[index];
        let time = lane.last_time.wrapping_add(delta);
        let high = lane.high.unwrap_or(0);
        lane.times.push(time);
        lane.status.push(status);
        lane.added(lane.times.len() - 1, (time, high.max(time)), time >= high);
        self.waiting += 1;
    }

    /// Starts to add samples with the newest stack to lane `index`.
    #[inline(always)]
    pub fn append(&mut self, index: usize) -> Appender<'_> {
        let lane = &mut self.lanes[index];
        Appender {
            before: lane.times.len(),
            time: lane.last_time,
            high: lane.high.unwrap_or(0),
            is_rising: true,
            lane,
            waiting: &mut self.waiting,
        }
    }

    /// Adds `samples` with the newest stack to lane `index`, of which `fill` gives time differences, modulo
    /// 2^64, and status bytes. Where it fails there is nothing added.
    #[inline(always)]
    pub fn extend<E>(
        &mut self,
        index: usize,
        samples: usize,
        fill: impl FnOnce(&mut [u64], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let lane = &mut self.lanes[index];
        let before = lane.times.len();
        lane.times.resize(before + samples, 0);
        lane.status.resize(before + samples, 0);
        if let Err(error) = fill(&mut lane.times[before..], &mut lane.status[before..]) {
            lane.times.truncate(before);
            lane.status.truncate(before);
            return Err(error);
        }
        let mut high = lane.high.unwrap_or(0);
        let mut is_rising = true;
        let mut time = lane.last_time;
        for to in &mut lane.times[before..] {
            time = time.wrapping_add(*to);
            *to = time;
            is_rising &= time >= high;
            high = high.max(time);
        }
        lane.added(before, (time, high), is_rising);
        self.waiting += samples;
        Ok(())
    }

    /// How many waiting samples have a key below `before` (all where `None`).
    pub fn count_before(&self, before: Option<u64>) -> usize {
        match before {
            None => self.waiting,
            Some(before) => self.lanes.iter().map(|lane| lane.below(before) - lane.head).sum(),
        }
    }

    /// The least key that waits.
    pub fn first_key(&self) -> Option<u64> {
        self.lanes.iter().filter_map(Lane::head_key).min()
    }

    /// Marks the first samples in order, about `wanted` as `cut` says, fewer where not so many have a
    /// key below `before`. Returns how many were marked.
    pub fn cut(&mut self, wanted: usize, before: Option<u64>, cut: Cut) -> usize {
        let Lanes { lanes, ends, .. } = self;
        let mut total = 0;
        for (lane, end) in lanes.iter().zip(ends.iter_mut()) {
            *end = before.map_or(lane.times.len(), |before| lane.below(before));
            total += *end - lane.head;
        }
        if total <= wanted {
            return total;
        }
        // The instant that reaches `wanted`: first its key ...
        let waiting = lanes.iter().zip(ends.iter()).filter(|(lane, end)| lane.head < **end);
        let low = waiting.clone().map(|(lane, _)| lane.keys()[lane.head]).min().unwrap_or(0);
        let high = waiting.map(|(lane, end)| lane.keys()[*end - 1]).max().unwrap_or(0);
        let up_to = |key: u64| -> usize {
            let counts = lanes.iter().zip(ends.iter());
            counts.map(|(lane, end)| lane.keys()[lane.head..*end].partition_point(|k| *k <= key)).sum()
        };
        let key = least(low, high, |key| up_to(key) >= wanted);
        // ... then how many samples of one thread at that key.
        let groups: Vec<Group> =
            lanes.iter().zip(ends.iter()).map(|(lane, end)| lane.group(*end, key)).collect();
        let below: usize = lanes.iter().zip(&groups).map(|(lane, group)| group.range.start - lane.head).sum();
        let first = groups.iter().filter(|g| !g.range.is_empty()).map(|g| g.before).min().unwrap_or(0);
        let last = groups
            .iter()
            .filter(|g| !g.range.is_empty())
            .map(|g| g.before + g.range.len() as u64)
            .max()
            .unwrap_or(0);
        let up_to = |nth: u64| below + groups.iter().map(|group| group.up_to(nth)).sum::<usize>();
        let nth = least(first, last, |nth| up_to(nth) >= wanted);
        let before_nth = |group: &Group| nth.checked_sub(1).map_or(0, |nth| group.up_to(nth));
        let total = up_to(nth);
        let whole = below + groups.iter().map(before_nth).sum::<usize>();
        if cut == Cut::Down && total > wanted && whole > 0 {
            for (group, end) in groups.iter().zip(ends.iter_mut()) {
                *end = group.range.start + before_nth(group);
            }
            return whole;
        }
        for (group, end) in groups.iter().zip(ends.iter_mut()) {
            *end = group.range.start + group.up_to(nth);
        }
        total
    }

    /// The lanes that have samples in the last cut, in order.
    pub fn slices(&self) -> impl Iterator<Item = Slice<'_>> + Clone {
        let marked = self.lanes.iter().zip(&self.ends).enumerate();
        marked.filter(|(_, (lane, end))| lane.head < **end).map(|(index, (lane, end))| Slice {
            index,
            lane,
            end: *end,
        })
    }

    /// Holds a copy of these slices in place of what was here.
    pub fn copy_from<'a>(&mut self, slices: impl Iterator<Item = Slice<'a>>) {
        let mut count = 0;
        self.waiting = 0;
        for slice in slices {
            if count == self.lanes.len() {
                self.lanes.push(Lane::new(slice.thread(), 0));
            }
            self.lanes[count].copy_from(&slice);
            self.waiting += slice.times().len();
            count += 1;
        }
        self.lanes.truncate(count);
        self.ends.resize(count, 0);
        self.ends.fill(0);
    }

    /// Takes the last cut's samples off the lanes.
    pub fn advance(&mut self) {
        for (lane, end) in self.lanes.iter_mut().zip(&self.ends) {
            if lane.head < *end {
                self.waiting -= *end - lane.head;
                lane.advance(*end);
            }
        }
    }
}

/// Adds samples to a lane; they count once it is dropped.
#[derive(Debug)]
pub struct Appender<'a> {
    lane: &'a mut Lane,
    waiting: &'a mut usize,
    before: usize,
    time: u64,
    high: u64,
    /// Whether every time was the highest so far.
    is_rising: bool,
}

impl Appender<'_> {
    /// Adds a sample, `delta` microseconds after the thread's last one, modulo 2^64.
    #[inline(always)]
    pub fn push(&mut self, delta: u64, status: u8) {
        self.time = self.time.wrapping_add(delta);
        self.is_rising &= self.time >= self.high;
        self.high = self.high.max(self.time);
        self.lane.times.push(self.time);
        self.lane.status.push(status);
    }
}

impl Drop for Appender<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lane.added(self.before, (self.time, self.high), self.is_rising);
        *self.waiting += self.lane.times.len() - self.before;
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

/// A lane's marked samples that bear one key.
struct Group {
    range: Range<usize>,
    /// Delivered samples that bear it, too.
    before: u64,
}

impl Group {
    /// How many come up to the thread's `nth` sample at this key, counted from 0.
    fn up_to(&self, nth: u64) -> usize {
        let wanted = (nth + 1).saturating_sub(self.before);
        usize::try_from(wanted).unwrap_or(usize::MAX).min(self.range.len())
    }
}

impl Lane {
    fn new(thread: ThreadKey, start_us: u64) -> Self {
        Lane {
            thread,
            head: 0,
            times: Vec::new(),
            status: Vec::new(),
            keys: None,
            last_time: start_us,
            high: None,
            depth: 0,
            runs: Vec::new(),
            run_head: 0,
            pushed: Vec::new(),
            pushed_head: 0,
            stack: Vec::new(),
            delivered: (0, 0),
        }
    }

    fn keys(&self) -> &[u64] {
        self.keys.as_deref().unwrap_or(&self.times)
    }

    fn head_key(&self) -> Option<u64> {
        self.keys().get(self.head).copied()
    }

    /// End of the waiting samples with a key below `before`.
    fn below(&self, before: u64) -> usize {
        self.head + self.keys()[self.head..].partition_point(|key| *key < before)
    }

    fn group(&self, end: usize, key: u64) -> Group {
        let keys = &self.keys()[..end];
        let start = self.head + keys[self.head..].partition_point(|k| *k < key);
        let stop = start + keys[start..].partition_point(|k| *k <= key);
        let before = match self.delivered {
            (last, count) if last == key => count,
            _ => 0,
        };
        Group { range: start..stop, before }
    }

    /// Keeps the keys of the samples from `from` on.
    #[cold]
    fn note_keys(&mut self, from: usize) {
        let mut high = self.high.unwrap_or(0);
        let keys = self.keys.get_or_insert_with(|| self.times[..from].to_vec());
        for &time in &self.times[from..] {
            high = high.max(time);
            keys.push(high);
        }
    }

    /// The samples from `before` on are new, the last and the highest of these times.
    #[inline(always)]
    fn added(&mut self, before: usize, (time, high): (u64, u64), is_rising: bool) {
        let added = self.times.len() - before;
        if added == 0 {
            return;
        }
        self.last_time = time;
        if !is_rising || self.keys.is_some() {
            self.note_keys(before);
        }
        self.high = Some(high);
        self.add_to_run(added);
    }

    #[inline]
    fn add_to_run(&mut self, samples: usize) {
        if self.runs.len() == self.run_head {
            self.runs.push(Run { change: StackChange { keep: self.depth, push: 0 }, samples: 0 });
        }
        self.runs.last_mut().expect("just made").samples += samples;
    }

    /// Holds what the slice holds, and nothing else.
    fn copy_from(&mut self, slice: &Slice<'_>) {
        let Lane { thread, last_time, high, delivered, .. } = *slice.lane;
        (self.head, self.run_head, self.pushed_head) = (0, 0, 0);
        (self.thread, self.last_time, self.high, self.delivered) = (thread, last_time, high, delivered);
        self.times.clear();
        self.times.extend_from_slice(slice.times());
        self.status.clear();
        self.status.extend_from_slice(slice.status());
        self.keys = (!slice.is_rising()).then(|| slice.keys().to_vec());
        self.stack.clear();
        self.stack.extend_from_slice(slice.stack());
        self.runs.clear();
        self.pushed.clear();
        for run in slice.runs() {
            let change = StackChange { keep: run.keep as u32, push: run.pushed.len() as u32 };
            self.runs.push(Run { change, samples: run.samples });
            self.pushed.extend_from_slice(run.pushed);
            self.depth = change.keep + change.push;
        }
    }

    fn advance(&mut self, end: usize) {
        let keys = &self.keys()[self.head..end];
        let last = keys[keys.len() - 1];
        let count = keys.iter().rev().take_while(|key| **key == last).count();
        let whole = count == keys.len() && self.delivered.0 == last;
        self.delivered = (last, count as u64 + if whole { self.delivered.1 } else { 0 });

        let mut left = end - self.head;
        let mut run = self.run_head;
        let mut pushed = self.pushed_head + self.runs[run].change.push as usize;
        while self.runs[run].samples < left {
            left -= self.runs[run].samples;
            run += 1;
            pushed += self.runs[run].change.push as usize;
        }
        self.change_stack(self.run_head..run + 1, pushed);
        self.pushed_head = pushed;
        self.run_head = run + 1;
        let rest = self.runs[run].samples - left;
        if rest > 0 {
            // The rest of the run has the stack that is there now.
            self.run_head = run;
            let change = StackChange { keep: self.stack.len() as u32, push: 0 };
            self.runs[run] = Run { change, samples: rest };
        }
        self.head = end;
        self.compact();
    }

    /// Gives the stack the changes of these runs, whose frames end at `pushed`. Most frames that come are
    /// gone again, so the last changes are looked at first.
    fn change_stack(&mut self, runs: Range<usize>, mut pushed: usize) {
        let StackChange { keep, push } = self.runs[runs.end - 1].change;
        let mut known_from = (keep + push) as usize;
        self.stack.resize(known_from, 0);
        for run in self.runs[runs].iter().rev() {
            let keep = run.change.keep as usize;
            if keep < known_from {
                let frames = self.pushed[..pushed].iter().rev();
                self.stack[keep..known_from].iter_mut().zip(frames).for_each(|(to, frame)| *to = *frame);
                known_from = keep;
            }
            pushed -= run.change.push as usize;
        }
    }

    /// Gives back the room of what was delivered once it outweighs what waits.
    fn compact(&mut self) {
        if self.head >= self.times.len() / 2 {
            self.times.drain(..self.head);
            self.status.drain(..self.head);
            if let Some(keys) = &mut self.keys {
                keys.drain(..self.head);
            }
            self.head = 0;
        }
        if self.run_head >= self.runs.len() / 2 {
            self.runs.drain(..self.run_head);
            self.run_head = 0;
            self.pushed.drain(..self.pushed_head);
            self.pushed_head = 0;
        }
    }
}

impl<'a> Slice<'a> {
    /// Number of the lane.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whose samples they are.
    pub fn thread(&self) -> ThreadKey {
        self.lane.thread
    }

    /// Microseconds, in recorded order; not sorted where the clock went back.
    pub fn times(&self) -> &'a [u64] {
        &self.lane.times[self.lane.head..self.end]
    }

    /// Whether every time up to here is the highest so far.
    pub fn is_rising(&self) -> bool {
        self.lane.keys.is_none()
    }

    /// The highest time so far for each sample.
    pub fn keys(&self) -> &'a [u64] {
        &self.lane.keys()[self.lane.head..self.end]
    }

    /// Status bytes, one a sample.
    pub fn status(&self) -> &'a [u8] {
        &self.lane.status[self.lane.head..self.end]
    }

    /// The stack before the first run, outermost frame first.
    pub fn stack(&self) -> &'a [u32] {
        &self.lane.stack
    }

    /// Tells `each` the stack, outermost frame first, and the number of samples of each run.
    pub fn stacks(&self, mut each: impl FnMut(&[u32], usize)) {
        let mut stack = self.stack().to_vec();
        for run in self.runs() {
            stack.truncate(run.keep);
            stack.extend(run.pushed.iter().rev());
            each(&stack, run.samples);
        }
    }

    /// The runs; their samples add up to those of the slice.
    pub fn runs(&self) -> impl Iterator<Item = StackRun<'a>> + use<'a> {
        let lane = self.lane;
        let mut left = self.end - lane.head;
        let mut pushed = lane.pushed_head;
        lane.runs[lane.run_head..].iter().map_while(move |run| {
            if left == 0 {
                return None;
            }
            let from = pushed;
            pushed += run.change.push as usize;
            let samples = left.min(run.samples);
            left -= samples;
            Some(StackRun { keep: run.change.keep as usize, pushed: &lane.pushed[from..pushed], samples })
        })
    }
}
