//! Puts the samples of `raw` messages into the order in which a profiler would have written them.
//!
//! Samples go by their [`OrderKey`], then by the order of the group's threads. Where a sample repeats its
//! thread's stack the order doesn't matter, so threads are followed one by one up to where
//! they write a record, and only those places are put in order.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io::{Seek, Write};
use std::ops::Range;

use crate::convert::stream_definitions::{Definitions, TableSink};
use crate::error::Result;
use crate::format::Writer;
use crate::format::write::delta::DeltaEncoder;
use crate::limits::STACK_DEPTH;
use crate::model::NONE;
use crate::model::{Clock, Frame, OrderKey, keys};
use crate::protocol::{RawColumns, ThreadColumns};

impl<W: Write + Seek> TableSink for Writer<W> {
    fn string(&mut self, bytes: &[u8]) -> u32 {
        Writer::string(self, bytes)
    }
    fn frame(&mut self, frame: &Frame) -> u32 {
        Writer::frame(self, frame)
    }
}

/// Encodes one group of `raw` messages after another.
#[derive(Debug)]
pub(crate) struct Merge {
    encoder: DeltaEncoder,
    /// Of each of the encoder's threads.
    clocks: Vec<Clock>,
    cut_stacks: u64,
    /// Of each node of the current messages, and the greatest.
    depth: Vec<u32>,
    deepest: usize,
    /// The profile's index of each node's frame, once it was looked up in these messages.
    index: Vec<Option<u32>>,
    frames: Vec<u32>,
}

/// Where a thread's next sample goes: by its place, then by the thread's number in the group. In one number,
/// which compares without branches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due(u128);

impl Due {
    /// Bits of a thread's number: a group has no room for so many.
    const ORDER_BITS: u32 = 28;

    fn new(OrderKey { key, nth }: OrderKey, order: usize) -> Self {
        debug_assert!(order >> Self::ORDER_BITS == 0 && nth.leading_zeros() >= Self::ORDER_BITS);
        Due(u128::from(key) << 64 | u128::from(nth << Self::ORDER_BITS | order as u64))
    }

    fn order(self) -> usize {
        self.0 as usize & ((1 << Self::ORDER_BITS) - 1)
    }

    fn place(self) -> OrderKey {
        OrderKey { key: (self.0 >> 64) as u64, nth: self.0 as u64 >> Self::ORDER_BITS }
    }
}

/// A thread of the current messages, at its next sample.
struct Cursor<'a> {
    message: &'a RawColumns,
    /// Number of the message's first node.
    base: usize,
    columns: &'a ThreadColumns,
    /// Number in the encoder.
    thread: usize,
    next: usize,
    end: usize,
    /// Number of the next sample's run of one stack, and the sample after that run.
    run: usize,
    run_end: usize,
    /// The node of the thread's last stack, once it has one in this message.
    node: Option<u32>,
}

impl<'a> Cursor<'a> {
    fn new(
        (message, base): (&'a RawColumns, usize),
        columns: &'a ThreadColumns,
        thread: usize,
        range: &Range<usize>,
    ) -> Self {
        let end = range.end;
        let mut cursor =
            Cursor { message, base, columns, thread, next: 0, end, run: 0, run_end: 0, node: None };
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

    /// Whether the profile takes the threads of these messages.
    pub fn has_room_for(&self, group: &[RawColumns]) -> bool {
        let threads = || group.iter().flat_map(RawColumns::threads);
        let is_new = |thread: &&ThreadColumns| self.encoder.known_thread(thread.key()).is_none();
        self.encoder.has_room_for(threads().count())
            || self.encoder.has_room_for(threads().filter(is_new).count())
    }

    /// Samples whose outermost frames were left out.
    pub fn cut_stacks(&self) -> u64 {
        self.cut_stacks
    }

    /// The key of each of a thread's samples from the first of `range` on: the thread's highest time so far.
    pub fn keys<'a>(&self, thread: &'a ThreadColumns, range: Range<usize>) -> Cow<'a, [u64]> {
        let times = &thread.times_usec[range];
        let known = self.encoder.known_thread(thread.key());
        let high = known.map_or(0, |thread| self.clocks[thread].high());
        if times.first().is_none_or(|first| *first >= high) && times.is_sorted() {
            return Cow::Borrowed(times);
        }
        Cow::Owned(keys(high, times).collect())
    }

    /// Appends some of the samples of messages that are in order together to `writer`: of each thread those in its
    /// range. What a group has goes in order, so the ranges of one call begin where those of the last one ended.
    ///
    /// # Errors
    ///
    /// Errors of the writer's sink, and of what is spooled; more threads, or deeper stacks of them, than a profile may
    /// hold.
    pub fn add<W: Write + Seek>(
        &mut self,
        group: &[RawColumns],
        ranges: &[Range<usize>],
        definitions: &mut Definitions,
        writer: &mut Writer<W>,
    ) -> Result<()> {
        self.depth.clear();
        for message in group {
            let base = self.depth.len();
            for parent in &message.stack_parent {
                let depth = if *parent == NONE { 0 } else { self.depth[base + *parent as usize] };
                self.depth.push(depth + 1);
            }
        }
        self.deepest = self.depth.iter().max().map_or(0, |depth| *depth as usize);
        self.index.clear();
        self.index.resize(self.depth.len(), None);
        let mut cursors = self.cursors(group, ranges)?;
        let mut due = BinaryHeap::with_capacity(cursors.len());
        for (order, cursor) in cursors.iter_mut().enumerate() {
            if let Some(place) = self.follow(cursor, definitions)? {
                due.push(Reverse(Due::new(place, order)));
            }
        }
        while let Some(mut first) = due.peek_mut() {
            let Reverse(due) = *first;
            let order = due.order();
            let cursor = &mut cursors[order];
            self.write(cursor, due.place(), definitions, writer)?;
            match self.follow(cursor, definitions)? {
                Some(place) => *first = Reverse(Due::new(place, order)),
                None => drop(PeekMut::pop(first)),
            }
        }
        Ok(())
    }

    /// A cursor for each thread of the group, in its order. New threads are made known in the order of
    /// their first samples.
    fn cursors<'a>(&mut self, group: &'a [RawColumns], ranges: &[Range<usize>]) -> Result<Vec<Cursor<'a>>> {
        let mut bases = 0;
        let messages = group.iter().map(|message| {
            let base = bases;
            bases += message.stack_parent.len();
            (message, base)
        });
        let threads = messages.flat_map(|(message, base)| {
            message.threads().iter().map(move |thread| ((message, base), thread))
        });
        let chosen: Vec<_> = threads.zip(ranges).filter(|(_, range)| !range.is_empty()).collect();
        let mut by_first: Vec<usize> = (0..chosen.len()).collect();
        by_first.sort_by_key(|index| {
            let ((_, thread), range) = chosen[*index];
            thread.times_usec[range.start]
        });
        let mut numbers = vec![0; chosen.len()];
        for index in by_first {
            let ((_, thread), _) = chosen[index];
            numbers[index] = self.encoder.thread(thread.key())?;
        }
        self.clocks.resize(self.encoder.threads(), Clock::default());
        let chosen = chosen.into_iter().zip(numbers);
        let cursors =
            chosen.map(|(((message, thread), range), number)| Cursor::new(message, thread, number, range));
        Ok(cursors.collect())
    }

    /// Takes samples as long as they repeat the thread's stack and its run has room; returns the place of
    /// the next one, if there is one.
    fn follow(&mut self, cursor: &mut Cursor<'_>, definitions: &Definitions) -> Result<Option<OrderKey>> {
        let ThreadColumns { times_usec, status, .. } = cursor.columns;
        let node = cursor.next_node();
        if cursor.node.is_none() && self.is_stack(cursor, node, definitions) {
            cursor.node = Some(node);
        }
        if cursor.node == Some(node) {
            let same = cursor.next..cursor.run_end.min(cursor.end);
            let (times, status) = (&times_usec[same.clone()], &status[same]);
            let taken = self.encoder.extend(cursor.thread, times, status)?;
            let clock = &mut self.clocks[cursor.thread];
            for time in &times[..taken] {
                clock.take(*time);
            }
            cursor.go_to(cursor.next + taken);
            if self.is_cut(cursor.base, node) {
                self.cut_stacks += taken as u64;
            }
        }
        let next = times_usec[..cursor.end].get(cursor.next);
        Ok(next.map(|next| self.clocks[cursor.thread].place(*next)))
    }

    /// Whether the stack of `node` has more frames than a profile takes.
    fn is_cut(&self, base: usize, node: u32) -> bool {
        node != NONE && self.depth[base + node as usize] as usize > STACK_DEPTH
    }

    /// Whether the thread's stack in the encoder is that of `node`.
    fn is_stack(&self, cursor: &Cursor<'_>, node: u32, definitions: &Definitions) -> bool {
        let stack = self.encoder.stack(cursor.thread);
        let frames = Frames { columns: cursor.message, node }.take(STACK_DEPTH);
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
        place: OrderKey,
        definitions: &mut Definitions,
        writer: &mut Writer<W>,
    ) -> Result<()> {
        let (time, status) = (cursor.columns.times_usec[cursor.next], cursor.columns.status[cursor.next]);
        let node = cursor.next_node();
        let shared = self.new_frames(cursor, node, definitions, writer);
        let old = self.encoder.stack(cursor.thread).len();
        if self.frames.is_empty() && shared == old {
            if self.encoder.is_full(cursor.thread) {
                self.encoder.flush(cursor.thread, writer.records())?;
            }
            self.encoder.extend(cursor.thread, &[time], &[status])?;
        } else {
            self.encoder.change(cursor.thread, time, status, shared, &self.frames, writer.records())?;
        }
        if self.is_cut(cursor.base, node) {
            self.cut_stacks += 1;
        }
        self.clocks[cursor.thread].pass(place);
        cursor.node = Some(node);
        cursor.go_to(cursor.next + 1);
        writer.hand_on()
    }

    /// Puts the frames of `node` that come on top of the thread's stack into `self.frames`, innermost first,
    /// and returns how many of that stack stay.
    fn new_frames<W: Write + Seek>(
        &mut self,
        cursor: &Cursor<'_>,
        node: u32,
        definitions: &mut Definitions,
        writer: &mut Writer<W>,
    ) -> usize {
        let Cursor { message: columns, base, .. } = *cursor;
        self.frames.clear();
        // Where the last stack is a node of this message, the nodes' common ancestor decides.
        if let Some(last) = cursor.node
            && self.deepest <= STACK_DEPTH
        {
            // A parent has a lower number than its children, and no node at all the lowest.
            let is_above = |a: u32, b: u32| a.wrapping_add(1) > b.wrapping_add(1);
            let (mut old, mut new) = (last, node);
            let mut popped = 0;
            while old != new {
                if is_above(new, old) {
                    let index = &mut self.index[base + new as usize];
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
    ///
    /// # Errors
    ///
    /// As for [`Merge::add`].
    pub fn finish<W: Write + Seek>(&mut self, writer: &mut Writer<W>) -> Result<()> {
        for thread in 0..self.encoder.threads() {
            self.encoder.flush(thread, writer.records())?;
            writer.hand_on()?;
        }
        Ok(())
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
        if self.node == NONE {
            return None;
        }
        let node = self.node as usize;
        self.node = self.columns.stack_parent[node];
        Some(self.columns.stack_frame_id[node])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_due_number_orders_as_place_and_thread_do(
            dues in proptest::collection::vec((any::<u64>(), 0u64..1 << 36, 0usize..1 << Due::ORDER_BITS), 2)
        ) {
            let packed = |(key, nth, order): (u64, u64, usize)| Due::new(OrderKey { key, nth }, order);
            prop_assert_eq!(dues[0].cmp(&dues[1]), packed(dues[0]).cmp(&packed(dues[1])));
            let due = packed(dues[0]);
            prop_assert_eq!((due.place().key, due.place().nth, due.order()), dues[0]);
        }
    }

    /// A thread whose samples have these stacks, node and number in a row.
    fn columns(stacks: &[(u32, usize)]) -> RawColumns {
        let mut message = RawColumns::default();
        let thread = message.next_thread();
        thread.stacks.extend(stacks);
        let samples = stacks.iter().map(|(_, samples)| samples).sum();
        thread.times_usec.resize(samples, 0);
        thread.status.resize(samples, 0);
        message
    }

    #[test]
    fn a_cursor_begins_anywhere_and_knows_the_stack_of_each_sample() {
        let stacks = [(4, 3), (NONE, 1), (7, 2)];
        let message = columns(&stacks);
        let nodes: Vec<u32> = message.threads()[0].nodes().collect();
        for start in 0..nodes.len() {
            let mut cursor = Cursor::new((&message, 0), &message.threads()[0], 0, &(start..nodes.len()));
            let mut found = Vec::new();
            while cursor.next < cursor.end {
                found.push(cursor.next_node());
                cursor.go_to(cursor.next + 1);
            }
            assert_eq!(found, nodes[start..]);
        }
    }
}
