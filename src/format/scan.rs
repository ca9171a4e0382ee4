//! The first walk over a sample region: everything is checked before anything is delivered, and
//! what the second walk needs to put samples in time order is noted down.
//!
//! A REPEAT record is written when its thread's stack changes or its buffer is full, so a thread
//! that sits still, or has ended, has its samples far behind those of its neighbours: in the
//! extreme at the very end of the file. Records that come more than
//! [`REORDER_SAMPLES`] too late are copied aside, so that the second walk can deliver them in
//! time with a window of fixed size.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom, Write};

use rustc_hash::{FxHashMap, FxHashSet};
use tempfile::SpooledTempFile;

use crate::error::{Error, ErrorKind, Result};
use crate::format::record::{Body, REPEAT, Record, RecordReader};
use crate::format::varint;
use crate::limits::{LATE_RECORDS, REORDER_SAMPLES, SPOOL_MEMORY, STACK_DEPTH};
use crate::model::{StackChange, ThreadKey};

/// What a sample region holds.
#[derive(Debug, Default)]
pub struct Scan {
    /// Samples of the sound records.
    pub samples: u64,
    /// Samples that hold no frame.
    pub empty: u64,
    /// Samples with the deepest stack that a profile can hold; outer frames may be missing.
    pub at_depth_limit: u64,
    /// Records by kind: REPEAT, FULL, SUFFIX, POP_PUSH.
    pub records: [u64; 4],
    /// Earliest and latest sample time, microseconds.
    pub span_us: Option<(u64, u64)>,
    /// Bytes of the region, unpacked.
    pub region_len: u64,
    /// The threads, in the order in which the profiler lists them as far as the profile shows it.
    pub threads: Vec<ThreadScan>,
    /// The frames that samples use, by index.
    pub(crate) used_frames: Vec<bool>,
    /// The same in the order in which the records first name them.
    pub(crate) first_used: Vec<u32>,
    /// Byte of the region behind the last sound record.
    pub(crate) sound_end: u64,
}

/// What a region holds of one thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadScan {
    /// Who it is.
    pub thread: ThreadKey,
    /// Its samples.
    pub samples: u64,
    /// Earliest and latest of their times, microseconds.
    pub span_us: Option<(u64, u64)>,
}

/// Threads by key, with a short cut for the thread that was asked for last.
#[derive(Debug, Default)]
pub(crate) struct ThreadIndex {
    indexes: FxHashMap<ThreadKey, u32>,
    last: Option<(ThreadKey, u32)>,
}

impl ThreadIndex {
    /// The thread's number; a new thread gets the next one.
    #[inline]
    pub fn get_or_insert(&mut self, thread: ThreadKey) -> usize {
        if let Some((key, index)) = self.last
            && key == thread
        {
            return index as usize;
        }
        let next = self.indexes.len() as u32;
        let index = *self.indexes.entry(thread).or_insert(next);
        self.last = Some((thread, index));
        index as usize
    }
}

/// The highest key among the samples that were read more than [`REORDER_SAMPLES`] ago. A record
/// that starts below it is late; samples below it are complete, but for late records.
///
/// Both walks feed it the same samples in the same steps, so both see the same records as late.
#[derive(Debug, Default)]
pub(crate) struct Horizon {
    blocks: VecDeque<u64>,
    read: u64,
    high: u64,
    passed: Option<u64>,
}

impl Horizon {
    const BLOCK: u64 = 4096;

    pub fn get(&self) -> Option<u64> {
        self.passed
    }

    /// How many samples may be read before [`Horizon::advance`] is told.
    pub fn step(&self) -> u32 {
        (Self::BLOCK - self.read % Self::BLOCK) as u32
    }

    /// `samples`, at most [`Horizon::step`], were read of a thread whose highest time is `high`.
    #[inline]
    pub fn advance(&mut self, samples: u32, high: u64) {
        self.high = self.high.max(high);
        self.read += u64::from(samples);
        if self.read.is_multiple_of(Self::BLOCK) && samples > 0 {
            self.blocks.push_back(self.high);
            if self.blocks.len() as u64 > REORDER_SAMPLES as u64 / Self::BLOCK {
                self.passed = self.blocks.pop_front();
            }
        }
    }
}

/// Records that come too late in the file, by the key of their first sample.
#[derive(Debug, Default)]
pub(crate) struct Late {
    pub records: Vec<LateRecord>,
    pub spool: Option<SpooledTempFile>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LateRecord {
    pub first_key: u64,
    /// Byte of the region; the second walk recognizes the record by it.
    pub at: u64,
    pub thread: u32,
    pub samples: u32,
    /// Byte of the spool where its change (if it has one) and its entries stand.
    pub spool_at: u64,
    pub change: Option<StackChange>,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    key: ThreadKey,
    last_time: u64,
    high: Option<u64>,
    low: u64,
    depth: u32,
    samples: u64,
}

/// What is being walked.
pub(crate) struct Region<'a> {
    pub reader: RecordReader<'a>,
    pub start_us: u64,
    pub frames: usize,
}

impl Region<'_> {
    /// Walks the region. The first fault ends the walk: what came before it is in the results, and
    /// the fault comes beside them. An error of the operating system is an error.
    pub fn scan(mut self) -> Result<(Scan, Late, Option<Error>)> {
        let mut scan = Scanner {
            scan: Scan { used_frames: vec![false; self.frames], ..Scan::default() },
            late: Late::default(),
            index: ThreadIndex::default(),
            threads: Vec::new(),
            start_us: self.start_us,
            horizon: Horizon::default(),
            order: OrderSeen::default(),
            copy: Vec::new(),
        };
        let fault = loop {
            match self.reader.next() {
                Ok(None) => break None,
                Ok(Some(record)) => {
                    if let Err(fault) = scan.record(&mut self.reader, record) {
                        break Some(fault);
                    }
                    scan.scan.sound_end = self.reader.position();
                }
                Err(fault) => break Some(fault),
            }
        };
        match fault {
            Some(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Limit) => Err(error),
            fault => {
                scan.scan.region_len = self.reader.position();
                let (scan, late) = scan.finish();
                Ok((scan, late, fault))
            }
        }
    }
}

/// A fault inside a REPEAT record of `count` entries.
fn announced(count: u32, fault: Error) -> Error {
    match fault.position() {
        Some(position) if fault.kind() == ErrorKind::Profile => {
            let detail = format!("a REPEAT record announces {count} samples: {}", fault.detail());
            Error::profile(detail).at(position)
        }
        _ => fault,
    }
}

struct Scanner {
    scan: Scan,
    late: Late,
    index: ThreadIndex,
    threads: Vec<Thread>,
    start_us: u64,
    horizon: Horizon,
    order: OrderSeen,
    copy: Vec<u8>,
}

impl Scanner {
    fn record(&mut self, reader: &mut RecordReader<'_>, record: Record) -> Result<()> {
        let index = self.index.get_or_insert(record.thread);
        if index == self.threads.len() {
            self.threads.push(Thread {
                key: record.thread,
                last_time: self.start_us,
                high: None,
                low: u64::MAX,
                depth: 0,
                samples: 0,
            });
        }
        match record.body {
            Body::Repeat { count } => self.repeat(reader, record, index, count)?,
            Body::Change { delta, status, change } => {
                let thread = self.threads[index];
                let resolved =
                    change.resolve(thread.depth).map_err(|fault| reader.fault(record.at, fault))?;
                for &frame in &reader.pushed {
                    match self.scan.used_frames.get_mut(frame as usize) {
                        Some(used) => {
                            if !*used {
                                *used = true;
                                self.scan.first_used.push(frame);
                            }
                        }
                        None => {
                            let frames = self.scan.used_frames.len();
                            let fault = format!("frame index {frame} is out of range (0..{frames})");
                            return Err(reader.fault(record.at, fault));
                        }
                    }
                }
                let time = thread.last_time.wrapping_add(delta);
                let key = thread.high.map_or(time, |high| high.max(time));
                self.order.written(time, index as u32);
                if self.is_late(key) {
                    if change.keeps_innermost(thread.depth).is_some() {
                        let fault =
                            "the record stands far behind its time and adds no frame, which no writer makes";
                        return Err(reader.fault(record.at, fault));
                    }
                    self.copy.clear();
                    varint::write(&mut self.copy, delta);
                    self.copy.push(status);
                    for &frame in &reader.pushed {
                        self.copy.extend_from_slice(&frame.to_le_bytes());
                    }
                    self.set_aside(record.at, index, key, Some(resolved), 1)?;
                }
                let thread = &mut self.threads[index];
                thread.depth = resolved.keep + resolved.push;
                thread.last_time = time;
                thread.low = thread.low.min(time);
                thread.high = Some(key);
                thread.samples += 1;
                self.horizon.advance(1, key);
                self.count(change.encoding(), 1, resolved.keep + resolved.push);
            }
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        reader: &mut RecordReader<'_>,
        record: Record,
        index: usize,
        count: u32,
    ) -> Result<()> {
        let mut thread = self.threads[index];
        let (mut time, mut high, mut low) = (thread.last_time, thread.high.unwrap_or(0), thread.low);
        let late_before = self.late.records.len();
        let mut left = count;
        let mut late = false;
        while left > 0 {
            // The first entry alone tells whether the record is late.
            let is_first = left == count;
            let step = if is_first { 1 } else { left.min(self.horizon.step()) };
            let copy = &mut self.copy;
            copy.clear();
            let mut pass = |delta: u64| {
                time = time.wrapping_add(delta);
                high = high.max(time);
                low = low.min(time);
            };
            let result = if is_first || late {
                reader.entries(step, |delta, status| {
                    pass(delta);
                    varint::write(copy, delta);
                    copy.push(status);
                })
            } else {
                reader.entries(step, |delta, _| pass(delta))
            };
            if let Err(fault) = result {
                self.late.records.truncate(late_before);
                return Err(announced(count, fault));
            }
            if is_first && self.is_late(high) {
                late = true;
                self.set_aside(record.at, index, high, None, count)?;
            } else if late {
                self.spool()?;
            }
            self.horizon.advance(step, high);
            left -= step;
        }
        if count > 0 {
            thread.high = Some(high);
        }
        (thread.last_time, thread.low) = (time, low);
        thread.samples += u64::from(count);
        self.threads[index] = thread;
        self.count(REPEAT, count, thread.depth);
        Ok(())
    }

    fn count(&mut self, encoding: u8, samples: u32, depth: u32) {
        self.scan.records[encoding as usize] += 1;
        self.scan.samples += u64::from(samples);
        if depth == 0 {
            self.scan.empty += u64::from(samples);
        }
        if depth as usize == STACK_DEPTH {
            self.scan.at_depth_limit += u64::from(samples);
        }
    }

    #[inline]
    fn is_late(&self, key: u64) -> bool {
        self.horizon.get().is_some_and(|passed| key < passed)
    }

    #[cold]
    fn set_aside(
        &mut self,
        at: u64,
        index: usize,
        first_key: u64,
        change: Option<StackChange>,
        samples: u32,
    ) -> Result<()> {
        let late = &mut self.late;
        if late.records.len() == LATE_RECORDS {
            let detail = format!("more than {LATE_RECORDS} records stand far behind their time");
            return Err(Error::new(ErrorKind::Limit, detail));
        }
        let spool = late.spool.get_or_insert_with(|| SpooledTempFile::new(SPOOL_MEMORY));
        let spool_at = spool.stream_position()?;
        late.records.push(LateRecord { first_key, at, thread: index as u32, samples, spool_at, change });
        self.spool()
    }

    fn spool(&mut self) -> Result<()> {
        let spool = self.late.spool.as_mut().expect("made with the record");
        Ok(spool.write_all(&self.copy)?)
    }

    fn finish(mut self) -> (Scan, Late) {
        let rank = self.order.rank(&self.threads);
        let mut sorted: Vec<(u32, &Thread)> = rank.iter().copied().zip(&self.threads).collect();
        sorted.sort_unstable_by_key(|(rank, _)| *rank);
        let span = |thread: &Thread| thread.high.map(|high| (thread.low, high));
        self.scan.threads = sorted
            .into_iter()
            .map(|(_, thread)| ThreadScan {
                thread: thread.key,
                samples: thread.samples,
                span_us: span(thread),
            })
            .collect();
        self.scan.span_us = self.threads.iter().filter_map(span).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        for record in &mut self.late.records {
            record.thread = rank[record.thread as usize];
        }
        // Stable: records of one key stay in file order.
        self.late.records.sort_by_key(|record| record.first_key);
        (self.scan, self.late)
    }
}

/// Which thread was written before which within one instant.
#[derive(Debug, Default)]
struct OrderSeen {
    time: u64,
    last: Option<u32>,
    /// Number of the current instant, and the last one in which each thread was written.
    instant: u64,
    written_in: Vec<u64>,
    pairs: FxHashSet<(u32, u32)>,
    newest: Option<(u32, u32)>,
}

impl OrderSeen {
    /// Pairs beyond this many tell nothing new that is worth the room.
    const PAIRS: usize = 1 << 20;

    /// A sample of `thread` at `time` was written the moment it was taken.
    #[inline]
    fn written(&mut self, time: u64, thread: u32) {
        if self.written_in.len() <= thread as usize {
            self.written_in.resize(thread as usize + 1, 0);
        }
        // A thread that comes again begins another instant, even at the same time.
        let same = self.time == time && self.written_in[thread as usize] != self.instant;
        if same
            && let Some(last) = self.last
            && self.newest != Some((last, thread))
            && self.pairs.len() < Self::PAIRS
        {
            self.newest = Some((last, thread));
            self.pairs.insert((last, thread));
        }
        self.instant += u64::from(!same);
        self.written_in[thread as usize] = self.instant;
        self.time = time;
        self.last = Some(thread);
    }

    /// Each thread's place: by the pairs, and where they leave it open, newest first (interpreter id,
    /// then thread id, descending), which is how CPython walks its lists on Linux. Where the
    /// pairs contradict each other, since an id stood for two threads, the newest goes first.
    fn rank(&self, threads: &[Thread]) -> Vec<u32> {
        let mut newest: Vec<u32> = (0..threads.len() as u32).collect();
        newest.sort_unstable_by_key(|index| std::cmp::Reverse(threads[*index as usize].key));
        let mut place = vec![0u32; threads.len()];
        for (at, index) in newest.iter().enumerate() {
            place[*index as usize] = at as u32;
        }
        let mut after: Vec<Vec<u32>> = vec![Vec::new(); threads.len()];
        let mut waits = vec![0u32; threads.len()];
        for (first, second) in &self.pairs {
            after[*first as usize].push(*second);
            waits[*second as usize] += 1;
        }
        let mut open: std::collections::BTreeSet<u32> =
            place.iter().zip(&waits).filter(|(_, waits)| **waits == 0).map(|(place, _)| *place).collect();
        let mut left: std::collections::BTreeSet<u32> = place.iter().copied().collect();
        let mut rank = vec![0u32; threads.len()];
        for next in 0..threads.len() as u32 {
            let chosen =
                open.pop_first().unwrap_or_else(|| *left.first().expect("one is left for each place"));
            left.remove(&chosen);
            let index = newest[chosen as usize];
            rank[index as usize] = next;
            for &second in &after[index as usize] {
                waits[second as usize] = waits[second as usize].saturating_sub(1);
                let place = place[second as usize];
                if waits[second as usize] == 0 && left.contains(&place) {
                    open.insert(place);
                }
            }
        }
        rank
    }
}

impl Late {
    /// Reads the part of the spool that belongs to a record, from its entry `at` bytes in.
    pub fn read_at(&mut self, at: u64, buffer: &mut [u8]) -> Result<usize> {
        let Some(spool) = self.spool.as_mut() else {
            return Ok(0);
        };
        spool.seek(SeekFrom::Start(at))?;
        let mut filled = 0;
        while filled < buffer.len() {
            match spool.read(&mut buffer[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        Ok(filled)
    }
}
