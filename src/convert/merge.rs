//! The samples of `raw` messages in the order in which a profiler would have written them.
//!
//! Samples go by their thread's highest time so far, then by how many samples the thread already
//! has at that time, then by the order of the message's threads. Where a sample repeats its
//! thread's stack the order doesn't matter, so threads are followed one by one up to where
//! they write a record, and only those places are put in order.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io::{Seek, Write};
use std::ops::Range;

use crate::convert::defined::{Definitions, TableSink};
use crate::convert::tree::ROOT;
use crate::format::Writer;
use crate::format::delta::DeltaEncoder;
use crate::limits::STACK_DEPTH;
use crate::model::{Frame, ThreadKey};
use crate::protocol::{RawColumns, ThreadColumns};

impl<W: Write + Seek> TableSink for Writer<W> {
    fn string(&mut self, bytes: &[u8]) -> u32 {
        Writer::string(self, bytes)
    }
    fn frame(&mut self, frame: &Frame) -> u32 {
        Writer::frame(self, frame)
    }
}

/// Encodes one `raw` message after another.
#[derive(Debug)]
pub(crate) struct Merge {
    encoder: DeltaEncoder,
    /// Of each of the encoder's threads.
    clocks: Vec<Clock>,
    cut_stacks: u64,
    /// Of each node of the current message, and the greatest.
    depth: Vec<u32>,
    deepest: usize,
    /// The profile's index of each node's frame, once it was looked up in this message.
    index: Vec<Option<u32>>,
    frames: Vec<u32>,
}

/// A thread's highest time so far, and how many samples it has there.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    high: Option<u64>,
    count: u64,
}

impl Clock {
    /// The place of a sample at `time`: the highest time so far, and the samples already there.
    #[inline]
    fn place(&self, time: u64) -> (u64, u64) {
        match self.high {
            Some(high) if time <= high => (high, self.count),
            _ => (time, 0),
        }
    }

    #[inline]
    fn pass(&mut self, place: (u64, u64)) {
        self.high = Some(place.0);
        self.count = place.1 + 1;
    }
}

/// Where a thread's next sample goes: by its place, then by the thread's number in the message. In one number,
/// which compares without branches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due(u128);

impl Due {
    /// Bits of a thread's number: a line has no room for so many.
    const ORDER_BITS: u32 = 28;

    fn new((time, count): (u64, u64), order: usize) -> Self {
        debug_assert!(order >> Self::ORDER_BITS == 0 && count.leading_zeros() >= Self::ORDER_BITS);
        Due(u128::from(time) << 64 | u128::from(count << Self::ORDER_BITS | order as u64))
    }

    fn order(self) -> usize {
        self.0 as usize & ((1 << Self::ORDER_BITS) - 1)
    }

    fn place(self) -> (u64, u64) {
        ((self.0 >> 64) as u64, self.0 as u64 >> Self::ORDER_BITS)
    }
}

/// A thread of the current message, at its next sample.
struct Cursor<'a> {
    columns: &'a ThreadColumns,
    /// Number in the encoder.
    thread: usize,
    next: usize,
    end: usize,
    /// Number of the next sample's run of one stack, and the sample behind that run.
    run: usize,
    run_end: usize,
    /// The node of the thread's last stack, once it has one in this message.
    node: Option<u32>,
}

impl<'a> Cursor<'a> {
    fn new(columns: &'a ThreadColumns, thread: usize, range: &Range<usize>) -> Self {
        let mut cursor = Cursor { columns, thread, next: 0, end: range.end, run: 0, run_end: 0, node: None };
        cursor.run_end = columns.stacks.first().map_or(0, |(_, samples)| *samples);
        while cursor.run_end <= range.start && cursor.run + 1 < columns.stacks.len() {
            cursor.next_run();
        }
        cursor.next = range.start;
        cursor
    }

    fn next_run(&mut self) {
        self.run += 1;
        self.run_end += self.columns.stacks[self.run].1;
    }

    /// Goes on to this sample, at most the first of the next run.
    #[inline]
    fn go_to(&mut self, sample: usize) {
        self.next = sample;
        if sample == self.run_end && sample < self.end {
            self.next_run();
        }
    }

    /// The next sample's node.
    fn next_node(&self) -> u32 {
        self.columns.stacks[self.run].0
    }
}

impl Merge {
    pub fn new(start_us: u64) -> Self {
        Merge {
            encoder: DeltaEncoder::new(start_us),
            clocks: Vec::new(),
            cut_stacks: 0,
            depth: Vec::new(),
            deepest: 0,
            index: Vec::new(),
            frames: Vec::new(),
        }
    }

    pub fn threads(&self) -> usize {
        self.encoder.threads()
    }

    /// Samples whose outermost frames were left out.
    pub fn cut_stacks(&self) -> u64 {
        self.cut_stacks
    }

    /// The key of each of a thread's samples from the first of `range` on: the thread's highest time so far.
    pub fn keys<'a>(&self, thread: &'a ThreadColumns, range: Range<usize>) -> Cow<'a, [u64]> {
        let times = &thread.times_usec[range];
        let key = ThreadKey { interpreter_id: thread.interpreter_id, thread_id: thread.thread_id };
        let mut high =
            self.encoder.known_thread(key).and_then(|thread| self.clocks[thread].high).unwrap_or(0);
        if times.first().is_none_or(|first| *first >= high) && times.is_sorted() {
            return Cow::Borrowed(times);
        }
        let passed = times.iter().map(|time| {
            high = high.max(*time);
            high
        });
        Cow::Owned(passed.collect())
    }

    /// Appends some of a message's samples to `writer`: of each thread those in its range. What a message
    /// has goes in order, so the ranges of one call begin where those of the last one ended.
    pub fn add<W: Write + Seek>(
        &mut self,
        columns: &RawColumns,
        ranges: &[Range<usize>],
        definitions: &mut Definitions,
        writer: &mut Writer<W>,
    ) {
        self.depth.clear();
        for parent in &columns.stack_parent {
            let depth = if *parent == ROOT { 0 } else { self.depth[*parent as usize] };
            self.depth.push(depth + 1);
        }
        self.deepest = self.depth.iter().max().map_or(0, |depth| *depth as usize);
        self.index.clear();
        self.index.resize(columns.stack_frame_id.len(), None);
        let mut cursors = self.cursors(columns, ranges);
        let mut due = BinaryHeap::with_capacity(cursors.len());
        for (order, cursor) in cursors.iter_mut().enumerate() {
            if let Some(place) = self.follow(cursor, columns, definitions) {
                due.push(Reverse(Due::new(place, order)));
            }
        }
        while let Some(mut first) = due.peek_mut() {
            let Reverse(due) = *first;
            let order = due.order();
            let cursor = &mut cursors[order];
            self.write(cursor, due.place(), columns, definitions, writer);
            match self.follow(cursor, columns, definitions) {
                Some(place) => *first = Reverse(Due::new(place, order)),
                None => drop(PeekMut::pop(first)),
            }
        }
    }

    /// A cursor for each thread of the message, in its order. New threads are made known in the order of
    /// their first samples.
    fn cursors<'a>(&mut self, columns: &'a RawColumns, ranges: &[Range<usize>]) -> Vec<Cursor<'a>> {
        let threads = columns.threads();
        let mut by_first: Vec<usize> =
            (0..threads.len()).filter(|index| !ranges[*index].is_empty()).collect();
        by_first.sort_by_key(|index| threads[*index].times_usec[ranges[*index].start]);
        let mut numbers = vec![0; threads.len()];
        for index in by_first {
            let thread = &threads[index];
            let key = ThreadKey { interpreter_id: thread.interpreter_id, thread_id: thread.thread_id };
            numbers[index] = self.encoder.thread(key);
            self.clocks.resize(self.encoder.threads(), Clock::default());
        }
        let chosen = threads.iter().zip(ranges).zip(numbers).filter(|((_, range), _)| !range.is_empty());
        chosen.map(|((columns, range), thread)| Cursor::new(columns, thread, range)).collect()
    }

    /// Takes samples as long as they repeat the thread's stack and its run has room; returns the place of
    /// the next one, if there is one.
    fn follow(
        &mut self,
        cursor: &mut Cursor<'_>,
        columns: &RawColumns,
        definitions: &Definitions,
    ) -> Option<(u64, u64)> {
        let ThreadColumns { times_usec, status, .. } = cursor.columns;
        let node = cursor.next_node();
        if cursor.node.is_none() && self.is_stack(cursor.thread, node, columns, definitions) {
            cursor.node = Some(node);
        }
        let clock = &mut self.clocks[cursor.thread];
        if cursor.node == Some(node) {
            let same = cursor.next..cursor.run_end.min(cursor.end);
            let (times, status) = (&times_usec[same.clone()], &status[same]);
            let taken = self.encoder.run(cursor.thread).extend(times, status);
            times[..taken].iter().for_each(|time| clock.pass(clock.place(*time)));
            cursor.go_to(cursor.next + taken);
            if self.is_cut(node) {
                self.cut_stacks += taken as u64;
            }
        }
        let next = times_usec[..cursor.end].get(cursor.next)?;
        Some(self.clocks[cursor.thread].place(*next))
    }

    /// Whether the stack of `node` has more frames than a profile takes.
    fn is_cut(&self, node: u32) -> bool {
        node != ROOT && self.depth[node as usize] as usize > STACK_DEPTH
    }

    /// Whether the thread's stack in the encoder is that of `node`.
    fn is_stack(&self, thread: usize, node: u32, columns: &RawColumns, definitions: &Definitions) -> bool {
        let stack = self.encoder.stack(thread);
        let frames = Frames { columns, node }.take(STACK_DEPTH);
        let mut depth = 0;
        for id in frames {
            let Some(at) = stack.len().checked_sub(depth + 1) else { return false };
            if definitions.known_frame(id) != Some(stack[at]) {
                return false;
            }
            depth += 1;
        }
        depth == stack.len()
    }

    /// Writes what the cursor's next sample brings: a full run, another stack.
    fn write<W: Write + Seek>(
        &mut self,
        cursor: &mut Cursor<'_>,
        place: (u64, u64),
        columns: &RawColumns,
        definitions: &mut Definitions,
        writer: &mut Writer<W>,
    ) {
        let (time, status) = (cursor.columns.times_usec[cursor.next], cursor.columns.status[cursor.next]);
        let node = cursor.next_node();
        let shared = self.new_frames(cursor, node, columns, definitions, writer);
        let old = self.encoder.stack(cursor.thread).len();
        if self.frames.is_empty() && shared == old {
            if self.encoder.run(cursor.thread).is_full() {
                self.encoder.flush(cursor.thread, writer.records());
            }
            self.encoder.run(cursor.thread).extend(&[time], &[status]);
        } else {
            self.encoder.change(cursor.thread, time, status, shared, &self.frames, writer.records());
        }
        if self.is_cut(node) {
            self.cut_stacks += 1;
        }
        self.clocks[cursor.thread].pass(place);
        cursor.node = Some(node);
        cursor.go_to(cursor.next + 1);
    }

    /// Puts the frames of `node` that come on top of the thread's stack into `self.frames`, innermost first,
    /// and returns how many of that stack stay.
    fn new_frames<W: Write + Seek>(
        &mut self,
        cursor: &Cursor<'_>,
        node: u32,
        columns: &RawColumns,
        definitions: &mut Definitions,
        writer: &mut Writer<W>,
    ) -> usize {
        self.frames.clear();
        // Where the last stack is a node of this message, the nodes' common ancestor tells.
        if let Some(last) = cursor.node
            && self.deepest <= STACK_DEPTH
        {
            // A parent has a lower number than its children, and no node at all the lowest.
            let is_above = |a: u32, b: u32| a.wrapping_add(1) > b.wrapping_add(1);
            let (mut old, mut new) = (last, node);
            let mut popped = 0;
            while old != new {
                if is_above(new, old) {
                    let index = &mut self.index[new as usize];
                    let id = columns.stack_frame_id[new as usize];
                    self.frames.push(*index.get_or_insert_with(|| definitions.frame(id, writer)));
                    new = columns.stack_parent[new as usize];
                } else {
                    popped += 1;
                    old = columns.stack_parent[old as usize];
                }
            }
            // Equal frames in nodes of their own, which we don't write but others may.
            let stack = self.encoder.stack(cursor.thread);
            let shared = stack.len() - popped;
            let equal = stack[shared..].iter().zip(self.frames.iter().rev()).take_while(|(a, b)| a == b);
            let equal = equal.count();
            self.frames.truncate(self.frames.len() - equal);
            return shared + equal;
        }
        for id in (Frames { columns, node }).take(STACK_DEPTH) {
            self.frames.push(definitions.frame(id, writer));
        }
        let stack = self.encoder.stack(cursor.thread);
        let shared = stack.iter().zip(self.frames.iter().rev()).take_while(|(a, b)| a == b).count();
        self.frames.truncate(self.frames.len() - shared);
        shared
    }

    /// Writes the runs that are left.
    pub fn finish<W: Write + Seek>(&mut self, writer: &mut Writer<W>) {
        for thread in 0..self.encoder.threads() {
            self.encoder.flush(thread, writer.records());
        }
    }
}

/// The frame ids of a node's stack, innermost first.
struct Frames<'a> {
    columns: &'a RawColumns,
    node: u32,
}

impl Iterator for Frames<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.node == ROOT {
            return None;
        }
        let node = self.node as usize;
        self.node = self.columns.stack_parent[node];
        Some(self.columns.stack_frame_id[node])
    }
}
