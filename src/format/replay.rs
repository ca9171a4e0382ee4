//! The second walk over a sample region: samples into [`Lanes`], complete up to a known time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::Result;
use crate::format::entries::ENTRY_MAX;
use crate::format::record::{Body, RecordReader};
use crate::format::scan::{BLOCK, Late, Scan};
use crate::format::threads::ThreadIndex;
use crate::format::varint;
use crate::limits::{REORDER_SAMPLES, STACK_DEPTH, WAITING_SAMPLES};
use crate::model::{Lanes, StackChange, ThreadKey};
use rustc_hash::FxHashMap;

/// Entries that are loaded one by one; of more, room is made for all at once.
const FEW: u32 = 16;

/// Loads a profile's samples in time order, a window at a time.
///
/// Memory holds what is not yet known to be complete, at most about
/// [`crate::limits::REORDER_SAMPLES`], and what the caller lets wait in [`Replay::lanes`], whatever the
/// profile's size.
pub struct Replay<'a> {
    reader: RecordReader<'a>,
    scan: &'a Scan,
    /// Samples that were read of the region.
    read: u64,
    index: ThreadIndex,
    /// Number of a thread in order of appearance -> its lane.
    lane_of: Vec<usize>,
    lane_by_key: FxHashMap<ThreadKey, usize>,
    lanes: Lanes,
    open: Option<Open>,
    ended: bool,
    late: LateQueue<'a>,
    /// The number to deliver for each frame, where it isn't the profile's own.
    renumbered: Option<Vec<u32>>,
}

/// A REPEAT record of the region that is loaded in part.
#[derive(Clone, Copy)]
struct Open {
    lane: usize,
    left: u32,
    /// Entries at its front that the lane already has, from the copy set aside.
    skip: u32,
}

struct LateQueue<'a> {
    late: &'a mut Late,
    progress: Vec<Progress>,
    /// Unfinished records: the key that their next sample has at least, then their number.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    by_place: FxHashMap<u64, usize>,
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
    pub(crate) fn new(reader: RecordReader<'a>, scan: &'a Scan, start_us: u64, late: &'a mut Late) -> Self {
        let threads: Vec<ThreadKey> = scan.threads.iter().map(|thread| thread.thread).collect();
        Replay {
            reader,
            scan,
            read: 0,
            index: ThreadIndex::default(),
            lane_of: Vec::new(),
            lane_by_key: threads.iter().enumerate().map(|(lane, thread)| (*thread, lane)).collect(),
            lanes: Lanes::new(threads.iter().copied(), start_us),
            open: None,
            ended: false,
            late: LateQueue::new(late, threads.len()),
            renumbered: None,
        }
    }

    /// Delivers `numbers[i]` for the profile's frame i.
    #[must_use]
    pub fn renumbered(mut self, numbers: Vec<u32>) -> Self {
        self.renumbered = Some(numbers);
        self
    }

    /// The samples that wait; those with a key below [`Replay::complete_before`] are complete.
    pub fn lanes(&mut self) -> &mut Lanes {
        &mut self.lanes
    }

    /// Every sample with a key below this has been loaded; `None`: every sample at all.
    pub fn complete_before(&self) -> Option<u64> {
        if self.is_through() {
            return None;
        }
        let late = self.late.heap.peek().map_or(u64::MAX, |Reverse((key, _))| *key);
        let before = self.bound().min(late);
        if self.lanes.waiting() < WAITING_SAMPLES {
            return Some(before);
        }
        // The clock stands still, or is far behind where it was: any number of samples may share this
        // key. Their order over threads is given up rather than the bound on memory.
        before.checked_add(1)
    }

    /// No sample that the walk is still to read has a key below this.
    fn bound(&self) -> u64 {
        if self.ended {
            return u64::MAX;
        }
        self.scan.bounds.get((self.read / BLOCK) as usize).copied().unwrap_or(u64::MAX)
    }

    /// Whether every sample has been loaded.
    fn is_through(&self) -> bool {
        self.ended && self.late.heap.is_empty()
    }

    /// Loads until at least `wanted` samples are complete, or all of them.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn load(&mut self, wanted: usize) -> Result<()> {
        loop {
            let before = self.complete_before();
            if before.is_none() || self.lanes.count_before(before) >= wanted {
                return Ok(());
            }
            // Counting walks all lanes, so a good many samples are loaded between two counts.
            let target = self.lanes.waiting() + wanted.max(BLOCK as usize);
            // Without late records, as in most profiles, there is nothing to choose from.
            while self.late.heap.is_empty() && !self.ended && self.lanes.waiting() < target {
                self.load_main()?;
            }
            while self.lanes.waiting() < target && !self.is_through() {
                self.step()?;
            }
        }
    }

    /// Loads a little more of what holds the complete time back.
    fn step(&mut self) -> Result<()> {
        match self.late.heap.peek() {
            Some(Reverse((key, _))) if self.ended || *key < self.bound() => self.load_late(),
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
        let number = self.index.get_or_insert(record.thread);
        if number == self.lane_of.len() {
            self.lane_of.push(self.lane_by_key[&record.thread]);
        }
        let lane = self.lane_of[number];
        let skip = self.late.meet(record.at);
        match record.body {
            Body::Repeat { count } if count > 0 => self.load_open(Open { lane, left: count, skip }),
            Body::Repeat { .. } => Ok(()),
            Body::Change { delta, status, change } => {
                self.read += 1;
                if skip > 0 {
                    return Ok(());
                }
                let depth = self.lanes.depth(lane);
                if let Some(innermost) = change.keeps_innermost(depth) {
                    let stack = self.lanes.newest_stack(lane);
                    let pushed = stack.iter().rev().take(innermost as usize).copied();
                    self.lanes.change(lane, StackChange { keep: 0, push: innermost }, pushed);
                } else {
                    let change =
                        change.resolve(depth).map_err(|fault| self.reader.fault(record.at, fault))?;
                    let pushed = self.reader.pushed().iter();
                    match &self.renumbered {
                        None => self.lanes.change(lane, change, pushed.copied()),
                        Some(numbers) => {
                            self.lanes.change(lane, change, pushed.map(|frame| numbers[*frame as usize]));
                        }
                    }
                }
                self.lanes.push(lane, delta, status);
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
            let mut append = self.lanes.append(open.lane);
            reader.entries(these, |delta, status| append.push(delta, status))?;
        } else {
            let fill = |deltas: &mut [u64], status: &mut [u8]| reader.entry_columns(deltas, status);
            self.lanes.extend(open.lane, these as usize, fill)?;
        }
        open.skip -= skip;
        open.left -= step;
        self.read += u64::from(step);
        self.open = (open.left > 0).then_some(open);
        Ok(())
    }

    fn load_late(&mut self) -> Result<()> {
        let Some(Reverse((_, number))) = self.late.heap.pop() else {
            return Ok(());
        };
        let record = self.late.late.records[number];
        let lane = record.thread as usize;
        let Progress { samples: loaded, bytes } = self.late.progress[number];
        let LateQueue { late, buffer, at_once, .. } = &mut self.late;
        let got = late.read_at(record.spool_at + bytes, buffer)?;
        let buffer = &buffer[..got];
        let mut pos = 0;
        let mut now = 0;
        if let Some(change) = record.change {
            let frames_at = buffer.iter().position(|byte| *byte < 0x80).map_or(0, |at| at + 2);
            let frames = buffer[frames_at..frames_at + 4 * change.push as usize].chunks_exact(4);
            let pushed = frames.map(|frame| {
                let frame = u32::from_le_bytes(frame.try_into().expect("four bytes"));
                self.renumbered.as_ref().map_or(frame, |numbers| numbers[frame as usize])
            });
            self.lanes.change(lane, change, pushed);
        }
        let mut append = self.lanes.append(lane);
        while now < *at_once && loaded + now < record.samples {
            let mut next = pos;
            match varint::read(buffer, &mut next) {
                Ok(delta) if next < buffer.len() => append.push(delta, buffer[next]),
                _ => break,
            }
            pos = next + 1;
            now += 1;
        }
        drop(append);
        self.late.progress[number] = Progress { samples: loaded + now, bytes: bytes + pos as u64 };
        if loaded + now < record.samples && now > 0 {
            let key = self.lanes.high(lane).unwrap_or(record.first_key);
            self.late.heap.push(Reverse((key, number)));
        }
        Ok(())
    }
}

impl<'a> LateQueue<'a> {
    /// Bytes of a late record's change.
    const CHANGE: usize = ENTRY_MAX + 4 * STACK_DEPTH;

    fn new(late: &'a mut Late, threads: usize) -> Self {
        let records = late.records.iter().enumerate();
        let at_once = (REORDER_SAMPLES / threads.max(1)).clamp(64, BLOCK as usize);
        let buffer = if late.records.is_empty() { 0 } else { Self::CHANGE.max(at_once * ENTRY_MAX) };
        LateQueue {
            progress: vec![Progress::default(); late.records.len()],
            heap: records.clone().map(|(n, record)| Reverse((record.first_key, n))).collect(),
            by_place: records.map(|(n, record)| (record.at, n)).collect(),
            at_once: at_once as u32,
            buffer: vec![0; buffer],
            late,
        }
    }

    /// The walk has come to the record at byte `at` of the region: from here on it is loaded from
    /// there. Returns how many of its samples are loaded already.
    #[inline]
    fn meet(&mut self, at: u64) -> u32 {
        // Most profiles have none, or have met them all.
        if self.by_place.is_empty() {
            return 0;
        }
        let Some(number) = self.by_place.remove(&at) else { return 0 };
        let loaded = self.progress[number].samples;
        if loaded < self.late.records[number].samples {
            self.heap.retain(|Reverse((_, other))| *other != number);
        }
        loaded
    }
}
