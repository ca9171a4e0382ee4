//! The first walk over a sample region: checks everything before anything is delivered, and notes what the second walk
//! needs to put samples in time order.
//!
//! A REPEAT record is written when its thread's stack changes or its buffer is full, so a thread
//! that sits still, or has ended, has its samples far after those of its neighbours: in the
//! extreme at the very end of the file. Records that come more than
//! [`REORDER_SAMPLES`](crate::limits::REORDER_SAMPLES) too late are copied aside, so that the second walk can deliver them in
//! time with a window of fixed size.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom, Write};

use tempfile::SpooledTempFile;

use crate::counts::observer::WindowObserver;
use crate::counts::windows::CountedWindows;
use crate::error::{Error, ErrorKind, Result};
use crate::format::record::entries;
use crate::format::record::{Body, Change, ENTRIES_AT_ONCE, REPEAT, Record, RecordReader};
use crate::format::threads::{OrderSeen, ThreadIndex, ThreadMemory};
use crate::limits::{FRAMES_A_SAMPLE, LATE_RECORDS, SPOOL_MEMORY, STACK_DEPTH};
use crate::model::{Clock, OrderKey, StackChange, ThreadKey, TimeSpan};

/// What a sample region holds.
#[derive(Debug, Default)]
pub struct SampleSummary {
    /// Samples of the sound records.
    pub samples: u64,
    /// Samples that hold no frame.
    pub empty: u64,
    /// Samples with the deepest stack that a profile can hold; outer frames may be missing.
    pub at_depth_limit: u64,
    /// Records by kind: REPEAT, FULL, SUFFIX, POP_PUSH.
    pub records: [u64; 4],
    /// Earliest and latest sample time, microseconds.
    pub span: Option<TimeSpan>,
    /// Bytes of the region, unpacked.
    pub region_len: u64,
    /// The threads, in the order in which the profiler lists them as far as the profile shows it.
    pub threads: Vec<ThreadSummary>,
    /// The frames that samples use, by index.
    pub(crate) used_frames: Vec<bool>,
    /// The same in the order in which the records first name them.
    pub(crate) first_used: Vec<u32>,
    /// Byte of the region after the last sound record.
    pub(crate) sound_end: u64,
    /// No sample from the beginning of each [`BLOCK`] on has a lower place, but for late records: what is below it
    /// is complete once the block begins.
    pub(crate) bounds: Vec<OrderKey>,
    /// The place in `threads` of each thread, by number in order of appearance.
    pub(crate) rank: Vec<u32>,
}

/// What a region holds of one thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadSummary {
    /// Who it is.
    pub thread: ThreadKey,
    /// Its samples.
    pub samples: u64,
    /// Earliest and latest of their times, microseconds.
    pub span: Option<TimeSpan>,
}

/// Samples of a block: so often it is noted how far the walk has come.
pub(crate) const BLOCK: u64 = ENTRIES_AT_ONCE as u64;

/// How far a walk has come in time: the highest place among the samples that were read more than
/// `reorder` ago. A record that starts below it is late.
///
/// Places are those that a sample has at least: of a REPEAT's samples at one time it is not known how many
/// they are.
#[derive(Debug)]
struct Horizon {
    reorder: usize,
    /// The highest place up to each of the last blocks.
    highs: VecDeque<OrderKey>,
    high: OrderKey,
    passed: OrderKey,
    /// The least place in each block, but for late records; the greatest where there are only these.
    lows: Vec<OrderKey>,
    low: OrderKey,
    /// Samples that the block still takes; see [`weight`].
    left: u32,
}

/// What a sample that brings so many frames counts for in the window of those that wait: its frames wait too.
#[inline(always)]
pub(crate) fn weight(frames: u32) -> u32 {
    1 + frames / FRAMES_A_SAMPLE
}

impl Horizon {
    fn new(reorder: usize) -> Self {
        Horizon {
            reorder,
            highs: VecDeque::new(),
            high: OrderKey::default(),
            passed: OrderKey::default(),
            lows: Vec::new(),
            low: OrderKey::MAX,
            left: ENTRIES_AT_ONCE,
        }
    }

    /// Whether a record that starts at this place is late.
    #[inline(always)]
    fn is_behind(&self, place: OrderKey) -> bool {
        place < self.passed
    }

    /// How many samples may be read before [`Horizon::advance`] is called.
    #[inline(always)]
    fn step(&self) -> u32 {
        self.left
    }

    /// `samples`, at most [`Horizon::step`] or a single one of some [`weight`], were read of one thread, with places
    /// from `low`, or the greatest one if they are late, to `high`.
    #[inline(always)]
    fn advance(&mut self, samples: u32, low: OrderKey, high: OrderKey) {
        self.high = self.high.max(high);
        self.low = self.low.min(low);
        if samples < self.left {
            self.left -= samples;
        } else {
            self.next_block(samples - self.left);
        }
    }

    /// `over` samples of the last step are in the next block.
    #[cold]
    fn next_block(&mut self, over: u32) {
        self.left = ENTRIES_AT_ONCE - over;
        self.lows.push(std::mem::replace(&mut self.low, OrderKey::MAX));
        self.highs.push_back(self.high);
        if self.highs.len() as u64 > self.reorder as u64 / BLOCK {
            self.passed = self.highs.pop_front().unwrap_or_default();
        }
    }

    /// The least place from each block's start to the end.
    fn bounds(mut self) -> Vec<OrderKey> {
        self.lows.push(self.low);
        let mut least = OrderKey::MAX;
        for low in self.lows.iter_mut().rev() {
            least = least.min(*low);
            *low = least;
        }
        self.lows
    }
}

/// Records that come too late in the file, by the least place of their first sample.
#[derive(Debug, Default)]
pub(crate) struct Late {
    pub records: Vec<LateRecord>,
    pub spool: Option<SpooledTempFile>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LateRecord {
    pub first: OrderKey,
    /// Byte of the region; the second walk recognizes the record by it.
    pub at: u64,
    pub thread: u32,
    pub samples: u32,
    /// Byte of the spool where its change (if it has one) and its entries stand.
    pub spool_at: u64,
    pub change: Option<StackChange>,
}

#[derive(Clone, Copy, Debug)]
struct ScannedThread {
    key: ThreadKey,
    walk: Walk,
    depth: u32,
    /// The greatest depth that it had.
    deepest: u32,
    samples: u64,
    /// The last instant in which it was written: [`OrderSeen`].
    written_in: u64,
    /// Whether its stack ever changed.
    has_changed: bool,
    /// Byte of the region after its last REPEAT.
    repeated_at: u64,
}

/// How far the walk has come in a thread.
#[derive(Clone, Copy, Debug)]
struct Walk {
    last_time: u64,
    clock: Clock,
    /// The lowest of the times; the greatest number before the first.
    low: u64,
}

impl Walk {
    #[inline(always)]
    fn take(&mut self, delta: u64) {
        self.last_time = self.last_time.wrapping_add(delta);
        self.clock.take(self.last_time);
        self.low = self.low.min(self.last_time);
    }

    /// Takes `samples` whose times rise by `sum` in all, where that is certain; otherwise returns why not: the clock goes
    /// back, or has gone back.
    #[inline(always)]
    fn take_rising(&mut self, samples: u32, sum: Option<u64>, first: OrderKey) -> bool {
        let high = self.clock.high();
        let Some(last) = sum.and_then(|sum| self.last_time.checked_add(sum)) else { return false };
        if self.last_time < high {
            return false;
        }
        self.low = self.low.min(first.key);
        self.last_time = last;
        // All at one time, or at least one at the last.
        let nth = if last == high { self.clock.next().nth + u64::from(samples) } else { 1 };
        self.clock = Clock::from_next(OrderKey { key: last, nth });
        true
    }
}

/// What is being walked.
pub(crate) struct Region<'a> {
    pub reader: RecordReader<'a>,
    pub start_us: u64,
    pub frames: usize,
    /// What counts the samples on the way, if they are wanted by window.
    pub windows: Option<WindowObserver>,
    /// Samples that records may be out of time order before one is late.
    pub reorder: usize,
}

/// What a walk has found.
pub(crate) struct ScanResult {
    pub scan: SampleSummary,
    pub late: Late,
    /// The first fault, which has ended the walk: what came before it is in the rest.
    pub fault: Option<Error>,
    /// The windows, where they were wanted and could be counted.
    pub windows: Option<CountedWindows>,
}

impl Region<'_> {
    /// Walks the region. An error of the operating system is an error.
    pub fn scan(mut self) -> Result<ScanResult> {
        let mut scan = Scanner {
            scan: SampleSummary { used_frames: vec![false; self.frames], ..SampleSummary::default() },
            late: Late::default(),
            index: ThreadIndex::default(),
            threads: Vec::new(),
            memory: ThreadMemory::default(),
            start_us: self.start_us,
            horizon: Horizon::new(self.reorder),
            order: OrderSeen::default(),
            changed_at: 0,
            copy: Vec::new(),
            windows: self.windows,
        };
        let (fault, sound_end) = loop {
            match self.reader.next() {
                Ok(None) => break (None, self.reader.position()),
                Ok(Some(record)) => {
                    if let Err(fault) = scan.record(&mut self.reader, record) {
                        break (Some(fault), record.at);
                    }
                }
                Err(fault) => break (Some(fault), self.reader.position()),
            }
        };
        scan.scan.sound_end = sound_end;
        match fault {
            Some(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Limit) => Err(error),
            fault => {
                scan.scan.region_len = self.reader.position();
                Ok(ScanResult { fault, ..scan.finish() })
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
    scan: SampleSummary,
    late: Late,
    index: ThreadIndex,
    threads: Vec<ScannedThread>,
    memory: ThreadMemory,
    start_us: u64,
    horizon: Horizon,
    order: OrderSeen,
    /// Byte of the region where the last record stands that changes a stack.
    changed_at: u64,
    copy: Vec<u8>,
    /// Until something comes that cannot be counted in the order of the records.
    windows: Option<WindowObserver>,
}

impl Scanner {
    #[inline(always)]
    fn record(&mut self, reader: &mut RecordReader<'_>, record: Record) -> Result<()> {
        let index = self.index.get_or_insert(record.thread);
        if index == self.threads.len() {
            self.add_thread(record.thread)?;
        }
        match record.body {
            Body::Repeat { count } => self.repeat(reader, record, index, count),
            Body::Change { delta, status, change } => {
                self.change(reader, record.at, index, (delta, status), change)
            }
        }
    }

    #[cold]
    fn add_thread(&mut self, key: ThreadKey) -> Result<()> {
        self.memory.add_thread()?;
        let walk = Walk { last_time: self.start_us, clock: Clock::default(), low: u64::MAX };
        self.threads.push(ScannedThread {
            key,
            walk,
            depth: 0,
            deepest: 0,
            samples: 0,
            written_in: 0,
            has_changed: false,
            repeated_at: 0,
        });
        Ok(())
    }

    #[inline(always)]
    fn change(
        &mut self,
        reader: &mut RecordReader<'_>,
        at: u64,
        index: usize,
        (delta, status): (u64, u8),
        change: Change,
    ) -> Result<()> {
        let thread = &mut self.threads[index];
        let resolved = change.resolve(thread.depth).map_err(|fault| reader.fault(at, fault))?;
        let weight = weight(change.brings(thread.depth));
        for &frame in reader.pushed() {
            match self.scan.used_frames.get_mut(frame as usize) {
                Some(true) => {}
                Some(used) => {
                    *used = true;
                    self.scan.first_used.push(frame);
                }
                None => {
                    let frames = self.scan.used_frames.len();
                    let fault = format!("frame index {frame} is out of range (0..{frames})");
                    return Err(reader.fault(at, fault));
                }
            }
        }
        let time = thread.walk.last_time.wrapping_add(delta);
        let place = thread.walk.clock.place(time);
        self.order.written(time, index as u32, &mut thread.written_in);
        let mut low = place;
        if let Some(windows) = &mut self.windows {
            // The clock goes forward from the start on, and the stack changes as the record's own words say.
            if time == place.key && time >= self.start_us && change.keeps_innermost(thread.depth).is_none() {
                windows.change(index, time, resolved.keep, reader.pushed());
            } else {
                self.windows = None;
            }
        }
        if self.horizon.is_behind(place) {
            low = OrderKey::MAX;
            self.change_late(reader, at, index, (delta, status, place), change, resolved)?;
        }
        let depth = resolved.keep + resolved.push;
        let thread = &mut self.threads[index];
        if depth > thread.deepest {
            self.memory.deepen(&mut thread.deepest, depth)?;
        }
        thread.depth = depth;
        thread.has_changed = true;
        thread.walk.take(delta);
        thread.samples += 1;
        self.horizon.advance(weight, low, place);
        self.changed_at = at;
        self.count(change.encoding, 1, depth);
        Ok(())
    }

    #[cold]
    fn change_late(
        &mut self,
        reader: &RecordReader<'_>,
        at: u64,
        index: usize,
        (delta, status, place): (u64, u8, OrderKey),
        change: Change,
        resolved: StackChange,
    ) -> Result<()> {
        if change.keeps_innermost(self.threads[index].depth).is_some() {
            let fault = "the record is far from its time and adds no frame, which no writer makes";
            return Err(reader.fault(at, fault));
        }
        self.copy.clear();
        entries::write(&mut self.copy, delta, status);
        for &frame in reader.pushed() {
            self.copy.extend_from_slice(&frame.to_le_bytes());
        }
        self.set_aside(at, index, place, Some(resolved), 1)
    }

    #[inline(always)]
    fn repeat(
        &mut self,
        reader: &mut RecordReader<'_>,
        record: Record,
        index: usize,
        count: u32,
    ) -> Result<()> {
        let mut walk = self.threads[index].walk;
        // The first entry decides whether the record is late.
        let first = match reader.first_delta() {
            Some(delta) => walk.clock.place(walk.last_time.wrapping_add(delta)),
            None => walk.clock.next(),
        };
        if self.horizon.is_behind(first) && count > 0 {
            return self.repeat_late(reader, record, index, count);
        }
        let mut least = first;
        let mut left = count;
        while left > 0 {
            let step = left.min(self.horizon.step());
            let mark = reader.mark_entries(step);
            let mut time = walk.last_time;
            let sum = reader.sum_entries(step).map_err(|fault| self.broken(count, fault))?;
            if walk.take_rising(step, sum, least) {
                if let Some(windows) = &mut self.windows {
                    if windows.is_within(index, walk.last_time) {
                        windows.repeat(index, walk.last_time, step);
                    } else {
                        reader.back_to(mark);
                        reader.entries(step, |delta, _| {
                            time += delta;
                            windows.repeat(index, time, 1);
                        })?;
                    }
                }
            } else {
                self.windows = None;
                reader.back_to(mark);
                reader.entries(step, |delta, _| walk.take(delta))?;
            }
            self.horizon.advance(step, least, walk.clock.last());
            least = walk.clock.next();
            left -= step;
        }
        self.repeated(reader.position(), index, count, walk);
        Ok(())
    }

    #[cold]
    fn repeat_late(
        &mut self,
        reader: &mut RecordReader<'_>,
        record: Record,
        index: usize,
        count: u32,
    ) -> Result<()> {
        self.windows = None;
        let mut walk = self.threads[index].walk;
        let late_before = self.late.records.len();
        let mut left = count;
        while left > 0 {
            let is_first = left == count;
            let step = if is_first { 1 } else { left.min(self.horizon.step()) };
            let copy = &mut self.copy;
            copy.clear();
            let read = reader.entries(step, |delta, status| {
                walk.take(delta);
                entries::write(copy, delta, status);
            });
            if let Err(fault) = read {
                self.late.records.truncate(late_before);
                return Err(announced(count, fault));
            }
            if is_first {
                self.set_aside(record.at, index, walk.clock.last(), None, count)?;
            } else {
                self.spool()?;
            }
            self.horizon.advance(step, OrderKey::MAX, walk.clock.last());
            left -= step;
        }
        self.repeated(reader.position(), index, count, walk);
        Ok(())
    }

    /// A REPEAT of `count` entries ends too early, after some of them may have been counted.
    #[cold]
    fn broken(&mut self, count: u32, fault: Error) -> Error {
        self.windows = None;
        announced(count, fault)
    }

    #[inline(always)]
    fn repeated(&mut self, end: u64, index: usize, count: u32, walk: Walk) {
        let thread = &mut self.threads[index];
        thread.repeated_at = end;
        thread.walk = walk;
        thread.samples += u64::from(count);
        let depth = thread.depth;
        self.count(REPEAT, count, depth);
    }

    #[inline(always)]
    fn count(&mut self, encoding: u8, samples: u32, depth: u32) {
        self.scan.records[encoding as usize] += 1;
        self.scan.samples += u64::from(samples);
        // Neither is usual, and one question asks for both.
        if depth.wrapping_sub(1) >= STACK_DEPTH as u32 - 1 {
            let count = if depth == 0 { &mut self.scan.empty } else { &mut self.scan.at_depth_limit };
            *count += u64::from(samples);
        }
    }

    #[cold]
    fn set_aside(
        &mut self,
        at: u64,
        index: usize,
        first: OrderKey,
        change: Option<StackChange>,
        samples: u32,
    ) -> Result<()> {
        let late = &mut self.late;
        if late.records.len() == LATE_RECORDS {
            let detail = format!("more than {LATE_RECORDS} records are far from their time");
            return Err(Error::new(ErrorKind::Limit, detail));
        }
        let spool = late.spool.get_or_insert_with(|| SpooledTempFile::new(SPOOL_MEMORY));
        let spool_at = spool.stream_position()?;
        late.records.push(LateRecord { first, at, thread: index as u32, samples, spool_at, change });
        self.spool()
    }

    fn spool(&mut self) -> Result<()> {
        let spool = self.late.spool.as_mut().expect("made with the record");
        Ok(spool.write_all(&self.copy)?)
    }

    /// At the end the writer ends each thread's run, in the order in which it came to know the threads: of those
    /// that began at the same time it is the one in which the profiler lists them, and all that tells of a
    /// thread whose stack never changed.
    fn note_order_of_end(&mut self) {
        let (threads, changed_at) = (&self.threads, self.changed_at);
        let mut ended: Vec<usize> =
            (0..threads.len()).filter(|index| threads[*index].repeated_at > changed_at).collect();
        ended.sort_unstable_by_key(|index| (threads[*index].walk.low, threads[*index].repeated_at));
        for pair in ended.windows(2) {
            let (first, second) = (&threads[pair[0]], &threads[pair[1]]);
            if first.walk.low == second.walk.low && !(first.has_changed && second.has_changed) {
                self.order.came(pair[0] as u32, pair[1] as u32);
            }
        }
    }

    fn finish(mut self) -> ScanResult {
        self.note_order_of_end();
        let keys: Vec<ThreadKey> = self.threads.iter().map(|thread| thread.key).collect();
        let rank = self.order.rank(&keys);
        let mut sorted: Vec<(u32, &ScannedThread)> = rank.iter().copied().zip(&self.threads).collect();
        sorted.sort_unstable_by_key(|(rank, _)| *rank);
        let span = |thread: &ScannedThread| {
            let (first_us, last_us) = (thread.walk.low, thread.walk.clock.high());
            (thread.samples > 0).then_some(TimeSpan { first_us, last_us })
        };
        self.scan.threads = sorted
            .into_iter()
            .map(|(_, thread)| ThreadSummary {
                thread: thread.key,
                samples: thread.samples,
                span: span(thread),
            })
            .collect();
        self.scan.span = self.threads.iter().filter_map(span).reduce(TimeSpan::join);
        for record in &mut self.late.records {
            record.thread = rank[record.thread as usize];
        }
        self.scan.bounds = self.horizon.bounds();
        self.scan.rank = rank;
        // Stable: records of one place stay in file order.
        self.late.records.sort_by_key(|record| record.first);
        let windows = self.windows.and_then(|windows| windows.finish(keys));
        ScanResult { scan: self.scan, late: self.late, fault: None, windows }
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
