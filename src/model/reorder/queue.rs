//! The queue of one thread: its waiting samples, and those that the current cut delivers.

use std::ops::Range;

use crate::model::{Clock, OrderKey, StackChange, ThreadKey, keys};

/// One thread's waiting samples.
#[derive(Debug)]
pub struct ThreadQueue {
    thread: ThreadKey,
    /// Whether it stands in the list of queues that have samples.
    pub(crate) is_active: bool,
    /// First waiting sample in the columns.
    head: usize,
    times: Vec<u64>,
    status: Vec<u8>,
    /// The highest time so far for each sample, kept once it differs from the time.
    keys: Option<Vec<u64>>,
    /// Of the samples that came in.
    pub(crate) last_time: u64,
    high: u64,
    pub(crate) depth: u32,
    runs: Vec<PendingRun>,
    run_head: usize,
    pushed: Vec<u32>,
    pushed_head: usize,
    /// The stack before the first waiting run, outermost frame first.
    stack: Vec<u32>,
    /// Of the samples that were delivered.
    delivered: Clock,
}

#[derive(Clone, Copy, Debug)]
struct PendingRun {
    change: StackChange,
    samples: usize,
}

/// A part of a queue: what one cut delivers of it.
#[derive(Clone, Copy, Debug)]
pub struct ThreadSamples<'a> {
    index: usize,
    queue: &'a ThreadQueue,
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

/// A queue's marked samples that bear one key.
pub(crate) struct Group {
    pub range: Range<usize>,
    /// Delivered samples that bear it, too.
    pub before: u64,
}

impl Group {
    /// How many of them come before the thread's `nth` sample at this key, counted from 0.
    pub fn below(&self, nth: u64) -> usize {
        let wanted = nth.saturating_sub(self.before);
        usize::try_from(wanted).unwrap_or(usize::MAX).min(self.range.len())
    }
}

/// Adds samples to a queue; they count once it is dropped.
#[derive(Debug)]
pub struct Appender<'a> {
    queue: &'a mut ThreadQueue,
    waiting: &'a mut usize,
    before: usize,
    time: u64,
    high: u64,
    /// Whether every time was the highest so far.
    is_rising: bool,
}

impl<'a> Appender<'a> {
    #[inline(always)]
    pub(crate) fn new(queue: &'a mut ThreadQueue, waiting: &'a mut usize) -> Self {
        let (before, time, high) = (queue.times.len(), queue.last_time, queue.high);
        Appender { before, time, high, is_rising: true, queue, waiting }
    }

    /// Adds a sample, `delta` microseconds after the thread's last one, modulo 2^64.
    #[inline(always)]
    pub fn push(&mut self, delta: u64, status: u8) {
        self.time = self.time.wrapping_add(delta);
        self.is_rising &= self.time >= self.high;
        self.high = self.high.max(self.time);
        self.queue.times.push(self.time);
        self.queue.status.push(status);
    }
}

impl Drop for Appender<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.added(self.before, (self.time, self.high), self.is_rising);
        *self.waiting += self.queue.times.len() - self.before;
    }
}

impl ThreadQueue {
    pub(crate) fn new(thread: ThreadKey, start_us: u64) -> Self {
        ThreadQueue {
            thread,
            is_active: false,
            head: 0,
            times: Vec::new(),
            status: Vec::new(),
            keys: None,
            last_time: start_us,
            high: 0,
            depth: 0,
            runs: Vec::new(),
            run_head: 0,
            pushed: Vec::new(),
            pushed_head: 0,
            stack: Vec::new(),
            delivered: Clock::default(),
        }
    }

    /// Bytes that its columns have room for.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        8 * self.times.capacity() + self.status.capacity()
    }

    fn keys(&self) -> &[u64] {
        self.keys.as_deref().unwrap_or(&self.times)
    }

    /// The keys of the waiting samples up to `end`.
    pub(crate) fn keys_to(&self, end: usize) -> &[u64] {
        &self.keys()[self.head..end]
    }

    pub(crate) fn head_key(&self) -> Option<u64> {
        self.keys().get(self.head).copied()
    }

    pub(crate) fn frames_waiting(&self) -> usize {
        self.pushed.len() - self.pushed_head
    }

    /// How many samples wait before `end`.
    pub(crate) fn waiting_to(&self, end: usize) -> usize {
        end - self.head
    }

    /// End of the waiting samples with a place below `before`, of all where `None`.
    pub(crate) fn end_below(&self, before: Option<OrderKey>) -> usize {
        before.map_or(self.times.len(), |before| self.head + self.count_below(before))
    }

    /// How many waiting samples have a place below `before`.
    pub(crate) fn count_below(&self, before: OrderKey) -> usize {
        if before.nth == 0 {
            return self.keys()[self.head..].partition_point(|key| *key < before.key);
        }
        let group = self.group(self.times.len(), before.key);
        group.range.start - self.head + group.below(before.nth)
    }

    /// The waiting samples before `end` that bear this key.
    pub(crate) fn group(&self, end: usize, key: u64) -> Group {
        let keys = &self.keys()[..end];
        let start = self.head + keys[self.head..].partition_point(|k| *k < key);
        let stop = start + keys[start..].partition_point(|k| *k <= key);
        let next = self.delivered.next();
        Group { range: start..stop, before: if next.key == key { next.nth } else { 0 } }
    }

    pub(crate) fn next_key(&self) -> OrderKey {
        let group = self.group(self.times.len(), self.high);
        OrderKey { key: self.high, nth: group.before + group.range.len() as u64 }
    }

    pub(crate) fn slice(&self, index: usize, end: usize) -> Option<ThreadSamples<'_>> {
        (self.head < end).then_some(ThreadSamples { index, queue: self, end })
    }

    pub(crate) fn newest_stack(&self) -> Vec<u32> {
        let mut stack = self.stack.clone();
        let mut pushed = &self.pushed[self.pushed_head..];
        for run in &self.runs[self.run_head..] {
            let (these, rest) = pushed.split_at(run.change.push as usize);
            stack.truncate(run.change.keep as usize);
            stack.extend(these.iter().rev());
            pushed = rest;
        }
        stack
    }

    #[inline(always)]
    pub(crate) fn change(&mut self, change: StackChange, pushed: impl Iterator<Item = u32>) {
        self.pushed.extend(pushed);
        self.depth = change.keep + change.push;
        self.runs.push(PendingRun { change, samples: 0 });
    }

    #[inline(always)]
    pub(crate) fn extend<E>(
        &mut self,
        samples: usize,
        fill: impl FnOnce(&mut [u64], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.times.len();
        self.times.resize(before + samples, 0);
        self.status.resize(before + samples, 0);
        if let Err(error) = fill(&mut self.times[before..], &mut self.status[before..]) {
            self.times.truncate(before);
            self.status.truncate(before);
            return Err(error);
        }
        let mut high = self.high;
        let mut is_rising = true;
        let mut time = self.last_time;
        for to in &mut self.times[before..] {
            time = time.wrapping_add(*to);
            *to = time;
            is_rising &= time >= high;
            high = high.max(time);
        }
        self.added(before, (time, high), is_rising);
        Ok(())
    }

    /// Keeps the keys of the samples from `from` on.
    #[cold]
    fn note_keys(&mut self, from: usize) {
        let known = self.keys.get_or_insert_with(|| self.times[..from].to_vec());
        known.extend(keys(self.high, &self.times[from..]));
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
        self.high = high;
        self.add_to_run(added);
    }

    #[inline]
    fn add_to_run(&mut self, samples: usize) {
        if self.runs.len() == self.run_head {
            self.runs.push(PendingRun { change: StackChange { keep: self.depth, push: 0 }, samples: 0 });
        }
        self.runs.last_mut().expect("just made").samples += samples;
    }

    /// Holds what the slice holds, and nothing else.
    pub(crate) fn copy_from(&mut self, slice: &ThreadSamples<'_>) {
        let ThreadQueue { thread, last_time, high, delivered, .. } = *slice.queue;
        (self.head, self.run_head, self.pushed_head, self.is_active) = (0, 0, 0, true);
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
            self.runs.push(PendingRun { change, samples: run.samples });
            self.pushed.extend_from_slice(run.pushed);
            self.depth = change.keep + change.push;
        }
    }

    /// Takes the samples before `end` off. What is there beyond `room`, of samples, runs and frames, is given back where
    /// it is not needed.
    pub(crate) fn advance(&mut self, end: usize, room: Option<usize>) {
        if self.head < end {
            self.deliver(end);
        }
        self.compact();
        self.is_active = self.head < self.times.len();
        let Some(room) = room else { return };
        if self.times.capacity() > room.max(4 * self.times.len()) {
            self.times.shrink_to(room);
            self.status.shrink_to(room);
            self.keys.iter_mut().for_each(|keys| keys.shrink_to(room));
        }
        if self.runs.capacity() > room.max(4 * self.runs.len()) {
            self.runs.shrink_to(room);
        }
        if self.pushed.capacity() > room.max(4 * self.pushed.len()) {
            self.pushed.shrink_to(room);
        }
    }

    fn deliver(&mut self, end: usize) {
        let last = self.keys()[end - 1];
        let Group { range, before } = self.group(end, last);
        self.delivered = Clock::from_next(OrderKey { key: last, nth: before + range.len() as u64 });

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
            self.runs[run] = PendingRun { change, samples: rest };
        }
        self.head = end;
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

impl<'a> ThreadSamples<'a> {
    /// Number of the queue.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whose samples they are.
    pub fn thread(&self) -> ThreadKey {
        self.queue.thread
    }

    /// Microseconds, in recorded order; not sorted where the clock went back.
    pub fn times(&self) -> &'a [u64] {
        &self.queue.times[self.queue.head..self.end]
    }

    /// Whether every time up to here is the highest so far.
    pub fn is_rising(&self) -> bool {
        self.queue.keys.is_none()
    }

    /// The highest time so far for each sample.
    pub fn keys(&self) -> &'a [u64] {
        self.queue.keys_to(self.end)
    }

    /// Status bytes, one a sample.
    pub fn status(&self) -> &'a [u8] {
        &self.queue.status[self.queue.head..self.end]
    }

    /// The stack before the first run, outermost frame first.
    pub fn stack(&self) -> &'a [u32] {
        &self.queue.stack
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
        let queue = self.queue;
        let mut left = self.end - queue.head;
        let mut pushed = queue.pushed_head;
        queue.runs[queue.run_head..].iter().map_while(move |run| {
            if left == 0 {
                return None;
            }
            let from = pushed;
            pushed += run.change.push as usize;
            let samples = left.min(run.samples);
            left -= samples;
            Some(StackRun { keep: run.change.keep as usize, pushed: &queue.pushed[from..pushed], samples })
        })
    }
}
