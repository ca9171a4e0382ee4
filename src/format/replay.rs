//! The second walk over a sample region: samples into [`Lanes`], complete up to a known time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::Result;
use crate::format::record::{Body, RecordReader};
use crate::format::scan::{Horizon, Late, ThreadIndex};
use crate::format::varint;
use crate::limits::WAITING_SAMPLES;
use crate::model::{Lanes, StackChange, ThreadKey};
use rustc_hash::FxHashMap;

/// Loads a profile's samples in time order, a window at a time.
///
/// Memory holds the window ([`crate::limits::REORDER_SAMPLES`]) and what the caller lets wait in
/// [`Replay::lanes`], whatever the profile's size.
pub struct Replay<'a> {
    reader: RecordReader<'a>,
    sound_end: u64,
    index: ThreadIndex,
    /// Number of a thread in order of appearance -> its lane.
    lane_of: Vec<usize>,
    lane_by_key: FxHashMap<ThreadKey, usize>,
    lanes: Lanes,
    horizon: Horizon,
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
    /// Where there are some, the thread's clock as the walk comes by: the lane's is ahead of it.
    clock: Option<Clock>,
}

/// A thread's time and highest time.
#[derive(Clone, Copy, Default)]
struct Clock {
    time: u64,
    high: u64,
}

impl Clock {
    fn pass(&mut self, delta: u64) {
        self.time = self.time.wrapping_add(delta);
        self.high = self.high.max(self.time);
    }
}

struct LateQueue<'a> {
    late: &'a mut Late,
    progress: Vec<Progress>,
    /// Unfinished records: the key that their next sample has at least, then their number.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    by_place: FxHashMap<u64, usize>,
    buffer: Vec<u8>,
}

/// How far a late record is loaded.
#[derive(Clone, Copy, Default)]
struct Progress {
    samples: u32,
    bytes: u64,
    /// The thread's clock before its first sample.
    clock: Clock,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(
        reader: RecordReader<'a>,
        sound_end: u64,
        threads: Vec<ThreadKey>,
        start_us: u64,
        late: &'a mut Late,
    ) -> Self {
        Replay {
            reader,
            sound_end,
            index: ThreadIndex::default(),
            lane_of: Vec::new(),
            lane_by_key: threads.iter().enumerate().map(|(lane, thread)| (*thread, lane)).collect(),
            lanes: Lanes::new(threads, start_us),
            horizon: Horizon::default(),
            open: None,
            ended: false,
            late: LateQueue {
                progress: vec![Progress::default(); late.records.len()],
                heap: late
                    .records
                    .iter()
                    .enumerate()
                    .map(|(n, record)| Reverse((record.first_key, n)))
                    .collect(),
                by_place: late.records.iter().enumerate().map(|(n, record)| (record.at, n)).collect(),
                late,
                buffer: vec![0; 64 * 1024],
            },
            renumbered: None,
        }
    }

    /// Delivers `numbers[i]` for the profile's frame i.
    #[must_use]
    pub fn renumbered(mut self, numbers: Vec<u32>) -> Self {
        self.renumbered = Some(numbers);
        self
    }

    fn renumber(numbers: Option<&[u32]>, frames: &mut [u32]) {
        if let Some(numbers) = numbers {
            frames.iter_mut().for_each(|frame| *frame = numbers[*frame as usize]);
        }
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
        let passed = if self.ended { u64::MAX } else { self.horizon.get().unwrap_or(0) };
        let open = self.open.map_or(u64::MAX, |open| self.lanes.high(open.lane).unwrap_or(0));
        let late = self.late.heap.peek().map_or(u64::MAX, |Reverse((key, _))| *key);
        let before = passed.min(open).min(late);
        if self.lanes.waiting() < WAITING_SAMPLES {
            return Some(before);
        }
        // The clock stands still, or is far behind where it was: any number of samples may share this
        // key. Their order over threads is given up rather than the bound on memory.
        before.checked_add(1)
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
            let target = self.lanes.waiting() + wanted.max(16 * 1024);
            while self.lanes.waiting() < target && !self.is_through() {
                self.step()?;
            }
        }
    }

    /// Loads a little more of what holds the complete time back.
    fn step(&mut self) -> Result<()> {
        let late = self.late.heap.peek().map(|Reverse((key, _))| *key);
        let main = match self.open {
            Some(open) => self.lanes.high(open.lane),
            None => self.horizon.get(),
        };
        match late {
            Some(key) if self.ended || main.is_some_and(|main| key < main) => self.load_late(),
            _ => self.load_main(),
        }
    }

    fn load_main(&mut self) -> Result<()> {
        if let Some(open) = self.open {
            return self.load_open(open);
        }
        if self.reader.position() >= self.sound_end {
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
        let met = self.late.meet(record.at);
        let skip = met.map_or(0, |met| met.samples);
        let mut clock = met.map(|met| met.clock);
        match record.body {
            Body::Repeat { count } => {
                if count > 0 {
                    self.load_open(Open { lane, left: count, skip, clock })?;
                }
            }
            Body::Change { delta, status, change } => {
                if skip == 0 {
                    let depth = self.lanes.depth(lane);
                    if let Some(innermost) = change.keeps_innermost(depth) {
                        let stack = self.lanes.newest_stack(lane);
                        let pushed: Vec<u32> = stack.iter().rev().take(innermost as usize).copied().collect();
                        self.lanes.change(lane, StackChange { keep: 0, push: innermost }, &pushed);
                    } else {
                        let change =
                            change.resolve(depth).map_err(|fault| self.reader.fault(record.at, fault))?;
                        Self::renumber(self.renumbered.as_deref(), &mut self.reader.pushed);
                        self.lanes.change(lane, change, &self.reader.pushed);
                    }
                    self.lanes.append(lane).push(delta, status);
                }
                if let Some(clock) = &mut clock {
                    clock.pass(delta);
                }
                self.horizon.advance(1, self.high(lane, clock));
            }
        }
        Ok(())
    }

    /// The highest time of a thread as the walk has seen it.
    fn high(&self, lane: usize, clock: Option<Clock>) -> u64 {
        clock.map_or_else(|| self.lanes.high(lane).unwrap_or(0), |clock| clock.high)
    }

    fn load_open(&mut self, mut open: Open) -> Result<()> {
        let step = open.left.min(self.horizon.step());
        let mut append = self.lanes.append(open.lane);
        let skip = open.skip.min(step);
        if let Some(clock) = &mut open.clock {
            self.reader.entries(skip, |delta, _| clock.pass(delta))?;
            self.reader.entries(step - skip, |delta, status| {
                clock.pass(delta);
                append.push(delta, status);
            })?;
        } else {
            self.reader.entries(step, |delta, status| append.push(delta, status))?;
        }
        drop(append);
        open.skip -= skip;
        open.left -= step;
        self.horizon.advance(step, self.high(open.lane, open.clock));
        self.open = (open.left > 0).then_some(open);
        Ok(())
    }

    fn load_late(&mut self) -> Result<()> {
        let Some(Reverse((_, number))) = self.late.heap.pop() else {
            return Ok(());
        };
        let record = self.late.late.records[number];
        let lane = record.thread as usize;
        if self.late.progress[number].samples == 0 {
            let clock = Clock { time: self.lanes.last_time(lane), high: self.lanes.high(lane).unwrap_or(0) };
            self.late.progress[number].clock = clock;
        }
        let Progress { samples: loaded, bytes, clock } = self.late.progress[number];
        let LateQueue { late, buffer, .. } = &mut self.late;
        let got = late.read_at(record.spool_at + bytes, buffer)?;
        let buffer = &buffer[..got];
        let mut pos = 0;
        let mut now = 0;
        if let Some(change) = record.change {
            let frames_at = buffer.iter().position(|byte| *byte < 0x80).map_or(0, |at| at + 2);
            let frames = buffer[frames_at..frames_at + 4 * change.push as usize].chunks_exact(4);
            let mut pushed: Vec<u32> =
                frames.map(|frame| u32::from_le_bytes(frame.try_into().expect("four bytes"))).collect();
            Self::renumber(self.renumbered.as_deref(), &mut pushed);
            self.lanes.change(lane, change, &pushed);
        }
        let mut append = self.lanes.append(lane);
        while loaded + now < record.samples {
            let mut next = pos;
            match varint::read(buffer, &mut next) {
                Ok(delta) if next < buffer.len() => append.push(delta, buffer[next]),
                _ => break,
            }
            pos = next + 1;
            now += 1;
        }
        drop(append);
        self.late.progress[number] = Progress { samples: loaded + now, bytes: bytes + pos as u64, clock };
        if loaded + now < record.samples && now > 0 {
            let key = self.lanes.high(lane).unwrap_or(record.first_key);
            self.late.heap.push(Reverse((key, number)));
        }
        Ok(())
    }
}

impl LateQueue<'_> {
    /// The walk has come to the record at byte `at` of the region: from here on it is loaded from
    /// there. Returns what of it is loaded already, if something is.
    fn meet(&mut self, at: u64) -> Option<Progress> {
        // Most profiles have none, or have met them all.
        if self.by_place.is_empty() {
            return None;
        }
        let number = self.by_place.remove(&at)?;
        let progress = self.progress[number];
        if progress.samples < self.late.records[number].samples {
            self.heap.retain(|Reverse((_, other))| *other != number);
        }
        Some(progress).filter(|progress| progress.samples > 0)
    }
}
