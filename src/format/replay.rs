//! The second walk over a sample region: fills the [`ReorderBuffer`], complete up to a known point.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::{Error, Result};
use crate::format::record::entries::{self, ENTRY_MAX};
use crate::format::record::{Body, RecordReader};
use crate::format::scan::{BLOCK, Late, SampleSummary, weight};
use crate::format::threads::ThreadIndex;
use crate::limits::{FRAMES_A_SAMPLE, REORDER_SAMPLES, STACK_DEPTH};
use crate::model::{OrderKey, ReorderBuffer, StackChange};

/// So many frames that wait with complete samples are enough.
const FRAMES_WAITING: usize = REORDER_SAMPLES * FRAMES_A_SAMPLE as usize;

/// Entries that are loaded one by one; of more, room is made for all at once.
const FEW: u32 = 16;

/// Loads a profile's samples in time order, a window at a time.
///
/// Memory holds what is not yet known to be complete, at most about twice
/// [`crate::limits::REORDER_SAMPLES`], and what the caller lets wait in [`Replay::buffer`], whatever the
/// profile's size and the number of its threads.
pub struct Replay<'a> {
    reader: RecordReader<'a>,
    scan: &'a SampleSummary,
    /// Samples that were read of the region, by [`weight`].
    read: u64,
    /// Samples that were put into the buffer, by the same.
    loaded: u64,
    index: ThreadIndex,
    buffer: ReorderBuffer,
    open: Option<Open>,
    ended: bool,
    late: LateQueue<'a>,
    /// The number to deliver for each frame, where it isn't the profile's own.
    renumbered: Option<Vec<u32>>,
}

/// A REPEAT record of the region that is loaded in part.
#[derive(Clone, Copy)]
struct Open {
    queue: usize,
    left: u32,
    /// Entries at its front that the queue already has, from the copy set aside.
    skip: u32,
    /// Whether the bounds of the walk leave it out.
    is_late: bool,
}

/// Late records that are not loaded yet, from the copies set aside. Those of one thread are loaded one after the
/// other: none has a lower place than one before it, and none is loaded before its place has come.
struct LateQueue<'a> {
    late: &'a mut Late,
    progress: Vec<Progress>,
    /// Records from this one on are not begun.
    next: usize,
    /// Begun and unfinished records: the least place that the next sample can have, then their number.
    begun: BinaryHeap<Reverse<(OrderKey, usize)>>,
    /// (byte of the region, number), the records in the order of the region, and how many of them were met.
    by_region: Vec<(u64, usize)>,
    met: usize,
    /// Samples of a record that are loaded at once: the records of all threads may wait for the same time.
    at_once: u32,
    /// Room for them.
    buffer: Vec<u8>,
}

/// How far a late record is loaded.
#[derive(Clone, Copy, Default)]
struct Progress {
    samples: u32,
    bytes: u64,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(
        reader: RecordReader<'a>,
        scan: &'a SampleSummary,
        start_us: u64,
        late: &'a mut Late,
    ) -> Self {
        let threads = scan.threads.iter().map(|thread| thread.thread);
        Replay {
            reader,
            scan,
            read: 0,
            loaded: 0,
            index: ThreadIndex::default(),
            buffer: ReorderBuffer::new(threads, start_us),
            open: None,
            ended: false,
            late: LateQueue::new(late, scan.threads.len()),
            renumbered: None,
        }
    }

    /// Delivers `numbers[i]` for the profile's frame i.
    #[must_use]
    pub fn renumbered(mut self, numbers: Vec<u32>) -> Self {
        self.renumbered = Some(numbers);
        self
    }

    /// The samples that wait; those with a place below [`Replay::complete_before`] are complete.
    pub fn buffer(&mut self) -> &mut ReorderBuffer {
        &mut self.buffer
    }

    /// Every sample with a lower place has been loaded; `None`: every sample at all.
    pub fn complete_before(&self) -> Option<OrderKey> {
        if self.is_through() {
            return None;
        }
        Some(self.main_bound().min(self.late.head().map_or(OrderKey::MAX, |(place, _)| place)))
    }

    /// No sample that the walk is still to load from the region has a lower place.
    fn main_bound(&self) -> OrderKey {
        if self.ended {
            return OrderKey::MAX;
        }
        let bound = self.scan.bounds.get((self.read / BLOCK) as usize).copied().unwrap_or(OrderKey::MAX);
        match self.open {
            Some(Open { queue, is_late: true, .. }) => bound.min(self.buffer.next_key(queue)),
            _ => bound,
        }
    }

    /// Whether every sample has been loaded.
    fn is_through(&self) -> bool {
        self.ended && self.late.head().is_none()
    }

    /// Loads until at least `wanted` samples are complete, or all of them; fewer, but one at least, where the frames
    /// that wait with them would take too much memory.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn load(&mut self, wanted: usize) -> Result<()> {
        loop {
            let Some(before) = self.complete_before() else { return Ok(()) };
            let complete = self.buffer.count_before(Some(before));
            if complete >= wanted || complete > 0 && self.buffer.frames_waiting() > FRAMES_WAITING {
                return Ok(());
            }
            // Counting walks all queues, so a good many samples are loaded between two counts.
            let target = self.loaded + (wanted as u64).clamp(BLOCK, REORDER_SAMPLES as u64);
            // Without late records, as in most profiles, there is nothing to choose from.
            while self.late.head().is_none() && !self.ended && self.loaded < target {
                self.load_main()?;
            }
            while self.loaded < target && !self.is_through() {
                self.step()?;
            }
        }
    }

    /// Loads a little more of what holds the complete time back.
    fn step(&mut self) -> Result<()> {
        match self.late.head() {
            Some((place, number)) if self.ended || place < self.main_bound() => self.load_late(place, number),
            _ => self.load_main(),
        }
    }

    #[inline(always)]
    fn load_main(&mut self) -> Result<()> {
        if let Some(open) = self.open {
            return self.load_open(open);
        }
        if self.reader.position() >= self.scan.sound_end {
            self.ended = true;
            return Ok(());
        }
        let Some(record) = self.reader.next()? else {
            self.ended = true;
            return Ok(());
        };
        let queue = self.scan.rank[self.index.get_or_insert(record.thread)] as usize;
        let met = self.late.meet(record.at);
        let (is_late, skip) = (met.is_some(), met.unwrap_or(0));
        match record.body {
            Body::Repeat { count } if count > 0 => self.load_open(Open { queue, left: count, skip, is_late }),
            Body::Repeat { .. } => Ok(()),
            Body::Change { delta, status, change } => {
                // A record that brings the innermost frames is never late.
                let depth = if skip > 0 { 0 } else { self.buffer.depth(queue) };
                self.read += u64::from(weight(change.brings(depth)));
                if skip > 0 {
                    return Ok(());
                }
                self.loaded += u64::from(weight(change.brings(depth)));
                if let Some(innermost) = change.keeps_innermost(depth) {
                    let stack = self.buffer.newest_stack(queue);
                    let pushed = stack.iter().rev().take(innermost as usize).copied();
                    self.buffer.change(queue, StackChange { keep: 0, push: innermost }, pushed);
                } else {
                    let change =
                        change.resolve(depth).map_err(|fault| self.reader.fault(record.at, fault))?;
                    let pushed = self.reader.pushed().iter();
                    match &self.renumbered {
                        None => self.buffer.change(queue, change, pushed.copied()),
                        Some(numbers) => {
                            self.buffer.change(queue, change, pushed.map(|frame| numbers[*frame as usize]));
                        }
                    }
                }
                self.buffer.push(queue, delta, status);
                Ok(())
            }
        }
    }

    #[inline(always)]
    fn load_open(&mut self, mut open: Open) -> Result<()> {
        // The bound is looked at again where the next block begins.
        let step = u64::from(open.left).min(BLOCK - self.read % BLOCK) as u32;
        let skip = open.skip.min(step);
        if skip > 0 {
            self.reader.entries(skip, |_, _| {})?;
        }
        let reader = &mut self.reader;
        let these = step - skip;
        if these < FEW {
            let mut append = self.buffer.append(open.queue);
            reader.entries(these, |delta, status| append.push(delta, status))?;
        } else {
            let fill = |deltas: &mut [u64], status: &mut [u8]| reader.entry_columns(deltas, status);
            self.buffer.extend(open.queue, these as usize, fill)?;
        }
        open.skip -= skip;
        open.left -= step;
        self.read += u64::from(step);
        self.loaded += u64::from(these);
        self.open = (open.left > 0).then_some(open);
        Ok(())
    }

    /// Loads some of the late record of this number, which is at the head of the queue with this place.
    fn load_late(&mut self, place: OrderKey, number: usize) -> Result<()> {
        let record = self.late.late.records[number];
        let queue = record.thread as usize;
        // Another record of the thread, which stands before it in the queue, may not be finished.
        let next = self.buffer.next_key(queue);
        if next > place {
            self.late.put_off(number, next);
            return Ok(());
        }
        let LateQueue { late, buffer, at_once, progress, .. } = &mut self.late;
        let Progress { samples: loaded, bytes } = progress[number];
        let got = late.read_at(record.spool_at + bytes, buffer)?;
        let buffer = &buffer[..got];
        let mut pos = 0;
        if let Some(change) = record.change {
            let frames_at = buffer.iter().position(|byte| *byte < 0x80).map_or(0, |at| at + 2);
            let frames = buffer[frames_at..frames_at + 4 * change.push as usize].chunks_exact(4);
            let pushed = frames.map(|frame| {
                let frame = u32::from_le_bytes(frame.try_into().expect("four bytes"));
                self.renumbered.as_ref().map_or(frame, |numbers| numbers[frame as usize])
            });
            self.buffer.change(queue, change, pushed);
            self.loaded += u64::from(weight(change.push));
        }
        let these = (record.samples - loaded).min(*at_once);
        let fill = |deltas: &mut [u64], status: &mut [u8]| entries::columns(buffer, &mut pos, deltas, status);
        let torn = |_| Error::from(std::io::Error::other("a torn spool"));
        self.buffer.extend(queue, these as usize, fill).map_err(torn)?;
        self.loaded += u64::from(these);
        progress[number] = Progress { samples: loaded + these, bytes: bytes + pos as u64 };
        self.late.put_off(number, self.buffer.next_key(queue));
        Ok(())
    }
}

impl<'a> LateQueue<'a> {
    /// Bytes of a late record's change.
    const CHANGE: usize = ENTRY_MAX + 4 * STACK_DEPTH;

    fn new(late: &'a mut Late, threads: usize) -> Self {
        let at_once = (REORDER_SAMPLES / threads.max(1)).clamp(FEW as usize, BLOCK as usize);
        let buffer = if late.records.is_empty() { 0 } else { Self::CHANGE.max(at_once * ENTRY_MAX) };
        let mut by_region: Vec<(u64, usize)> =
            late.records.iter().enumerate().map(|(number, record)| (record.at, number)).collect();
        by_region.sort_unstable();
        LateQueue {
            progress: vec![Progress::default(); late.records.len()],
            next: 0,
            begun: BinaryHeap::new(),
            by_region,
            met: 0,
            at_once: at_once as u32,
            buffer: vec![0; buffer],
            late,
        }
    }

    fn is_finished(&self, number: usize) -> bool {
        self.progress[number].samples == self.late.records[number].samples
    }

    /// The record to load next, by the least place that its next sample can have. The first of those with one
    /// place.
    fn head(&self) -> Option<(OrderKey, usize)> {
        let begun = self.begun.peek().map(|Reverse(begun)| *begun);
        let fresh = self.late.records.get(self.next).map(|record| (record.first, self.next));
        match (begun, fresh) {
            (Some(begun), Some(fresh)) => Some(begun.min(fresh)),
            (begun, fresh) => begun.or(fresh),
        }
    }

    /// The record at the head goes on from this place, unless it is finished.
    fn put_off(&mut self, number: usize, place: OrderKey) {
        if number == self.next {
            self.next += 1;
        } else {
            self.begun.pop();
        }
        if !self.is_finished(number) {
            self.begun.push(Reverse((place, number)));
        }
        self.settle();
    }

    /// Takes finished records off the head.
    fn settle(&mut self) {
        while self.next < self.late.records.len() && self.is_finished(self.next) {
            self.next += 1;
        }
        while self.begun.peek().is_some_and(|Reverse((_, number))| self.is_finished(*number)) {
            self.begun.pop();
        }
    }

    /// The walk has come to the record at byte `at` of the region: from here on it is loaded from
    /// there. Returns how many of its samples are loaded already, if it is late.
    #[inline]
    fn meet(&mut self, at: u64) -> Option<u32> {
        // Most profiles have none, or have met them all.
        let (_, number) = self.by_region.get(self.met).copied().filter(|(next, _)| *next == at)?;
        self.met += 1;
        let samples = self.late.records[number].samples;
        let loaded = std::mem::replace(&mut self.progress[number].samples, samples);
        self.settle();
        Some(loaded)
    }
}

#[cfg(test)]
mod tests;
