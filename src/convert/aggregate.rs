//! Counts samples by frame as CPython's JSONL does: `self` where a frame is innermost,
//! `cumulative` where it is anywhere, once a sample however often it recurs.
//!
//! A frame's cumulative count is what its thread has counted when the frame leaves the stack, less
//! what it had counted when the frame came: work is done where stacks change, not for each sample.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::convert::counts::By;
use crate::convert::definitions::MergedTables;
use crate::model::{Frame, Slice, Tables};

/// Files whose frames belong to the profiler itself, by their ending.
const INTERNAL: &[u8] = b"_sync_coordinator.py";
/// The group of frames that are not counted.
const HIDDEN: u32 = u32::MAX;

/// What one frame has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    self_: u64,
    cumulative: u64,
}

/// The counts of a window, or of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// Samples with at least one counted frame, and without.
    pub total: u64,
    pub empty: u64,
    /// (frame, self, cumulative) in order of frame.
    pub rows: Vec<(u32, u64, u64)>,
}

/// Counts samples, window by window or all in one.
#[derive(Debug)]
pub(crate) struct Aggregator {
    group: Vec<u32>,
    counts: Vec<Counts>,
    touched: Vec<u32>,
    total: u64,
    empty: u64,
    lanes: Vec<LaneStack>,
    windows: Option<Windows>,
}

#[derive(Debug)]
struct Windows {
    start_us: u64,
    period_us: u64,
    current: Option<i128>,
    /// Samples whose own time lies in another window than their place: the clock went back.
    strays: BTreeMap<i128, Stray>,
}

/// What is counted but not yet in a table, so that counting can go on with other tables.
#[derive(Debug, Default)]
pub(crate) struct Uncounted {
    counts: Vec<(u32, Counts)>,
    total: u64,
    empty: u64,
    current: Option<i128>,
    strays: BTreeMap<i128, Stray>,
}

impl Uncounted {
    /// Whether no sample was counted.
    pub fn is_empty(&self) -> bool {
        self.total + self.empty == 0
    }

    /// The frames in it, each once.
    pub fn frames(&self) -> Vec<u32> {
        let strays = self.strays.values().flat_map(|stray| stray.counts.keys());
        let mut frames: Vec<u32> =
            self.counts.iter().map(|(frame, _)| frame).chain(strays).copied().collect();
        frames.sort_unstable();
        frames.dedup();
        frames
    }
}

/// What the parts of a run have counted so far for one final table, by their frames' content.
#[derive(Debug)]
pub(crate) struct Totals {
    tables: MergedTables,
    counts: Vec<Counts>,
    total: u64,
    empty: u64,
}

impl Default for Totals {
    fn default() -> Self {
        let tables = MergedTables::new(Tables::default());
        Totals { tables, counts: Vec::new(), total: 0, empty: 0 }
    }
}

impl Totals {
    /// Adds what a part with these tables has counted.
    pub fn add(&mut self, tables: &Tables, part: Uncounted) {
        let ids = self.tables.add(tables, part.counts.iter().map(|(frame, _)| *frame));
        for (id, (_, these)) in ids.into_iter().zip(part.counts) {
            let id = id as usize;
            if self.counts.len() <= id {
                self.counts.resize(id + 1, Counts::default());
            }
            self.counts[id].self_ += these.self_;
            self.counts[id].cumulative += these.cumulative;
        }
        self.total += part.total;
        self.empty += part.empty;
    }

    /// The frames, and what was counted by them.
    pub fn finish(self) -> (Tables, Uncounted) {
        let counts = (0..).zip(self.counts).collect();
        let uncounted = Uncounted { counts, total: self.total, empty: self.empty, ..Uncounted::default() };
        (self.tables.into_tables(), uncounted)
    }
}

#[derive(Debug, Default)]
struct Stray {
    total: u64,
    empty: u64,
    counts: FxHashMap<u32, Counts>,
}

#[derive(Debug, Default)]
struct LaneStack {
    slots: Vec<Slot>,
    /// The slots' groups, so that a recurring one is found fast.
    groups: Vec<u32>,
    /// Samples of this lane in the current window.
    seen: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    came: u64,
    /// The outermost frame of its group, and counted.
    outermost: bool,
    /// A bit for each group up to here; several groups share one.
    marks: u128,
}

impl Aggregator {
    /// Counts frames of `tables` in windows of `period_us` from `start_us`, or in one table.
    pub fn new(tables: &Tables, start_us: u64, period_us: Option<u64>) -> Self {
        Self::by(By::Frame, tables, start_us, period_us)
    }

    /// The same for functions or files: each counts as the first of its frames.
    pub fn by(by: By, tables: &Tables, start_us: u64, period_us: Option<u64>) -> Self {
        Aggregator {
            group: groups(by, tables),
            counts: vec![Counts::default(); tables.frames.len()],
            touched: Vec::new(),
            total: 0,
            empty: 0,
            lanes: Vec::new(),
            windows: period_us.map(|period_us| Windows {
                start_us,
                period_us,
                current: None,
                strays: BTreeMap::new(),
            }),
        }
    }

    /// Up to where samples may be counted before [`Aggregator::close`] is due: the end of the window
    /// in which `key` lies.
    pub fn window_end(&mut self, key: u64) -> Option<u64> {
        let windows = self.windows.as_mut()?;
        let index = windows.index(key);
        windows.current = Some(index);
        u64::try_from(windows.start_of(index + 1)).ok()
    }

    /// Counts the samples of a lane, all of one window by their keys.
    pub fn count(&mut self, slice: &Slice<'_>) {
        let index = slice.index();
        if index >= self.lanes.len() {
            self.lanes.resize_with(index + 1, LaneStack::default);
        }
        let mut lane = std::mem::take(&mut self.lanes[index]);
        let mut times = slice.times();
        for run in slice.runs() {
            self.change(&mut lane, run.keep, run.pushed);
            let (these, rest) = times.split_at(run.samples);
            times = rest;
            let here = if slice.is_rising() { run.samples } else { self.set_apart(&lane, these) };
            self.add(&mut lane, here as u64);
        }
        self.lanes[index] = lane;
    }

    /// Counts samples of a lane in one table, whatever their times: its stack keeps `keep` frames, and
    /// `pushed`, innermost first, come on top.
    pub fn count_run(&mut self, index: usize, keep: usize, pushed: &[u32], samples: u64) {
        if index >= self.lanes.len() {
            self.lanes.resize_with(index + 1, LaneStack::default);
        }
        let mut lane = std::mem::take(&mut self.lanes[index]);
        self.change(&mut lane, keep, pushed);
        self.add(&mut lane, samples);
        self.lanes[index] = lane;
    }

    #[inline]
    fn change(&mut self, lane: &mut LaneStack, keep: usize, pushed: &[u32]) {
        self.pop(lane, keep);
        let mut marks = lane.slots.last().map_or(0, |slot| slot.marks);
        for &frame in pushed.iter().rev() {
            let group = self.group[frame as usize];
            let mark = 1 << (group.wrapping_mul(0x9e37_79b9) >> 25);
            let recurs = marks & mark != 0 && lane.groups.contains(&group);
            marks |= mark;
            lane.slots.push(Slot { came: lane.seen, outermost: group != HIDDEN && !recurs, marks });
            lane.groups.push(group);
        }
    }

    fn pop(&mut self, lane: &mut LaneStack, keep: usize) {
        for depth in keep..lane.slots.len() {
            self.settle(lane.groups[depth], lane.slots[depth], lane.seen);
        }
        lane.slots.truncate(keep);
        lane.groups.truncate(keep);
    }

    #[inline]
    fn settle(&mut self, group: u32, slot: Slot, seen: u64) {
        if slot.outermost && seen > slot.came {
            let counts = touch(&mut self.counts, &mut self.touched, group);
            counts.cumulative += seen - slot.came;
        }
    }

    fn add(&mut self, lane: &mut LaneStack, samples: u64) {
        if samples == 0 {
            return;
        }
        lane.seen += samples;
        match innermost(lane) {
            Some(group) => {
                touch(&mut self.counts, &mut self.touched, group).self_ += samples;
                self.total += samples;
            }
            None => self.empty += samples,
        }
    }

    /// Books the samples whose own time lies in another window, and returns how many are left.
    #[cold]
    fn set_apart(&mut self, lane: &LaneStack, times: &[u64]) -> usize {
        let Some(windows) = &mut self.windows else {
            return times.len();
        };
        let mut here = 0;
        for &time in times {
            let index = windows.index(time);
            if windows.current == Some(index) {
                here += 1;
                continue;
            }
            let stray = windows.strays.entry(index).or_default();
            match innermost(lane) {
                Some(group) => {
                    stray.counts.entry(group).or_default().self_ += 1;
                    stray.total += 1;
                }
                None => stray.empty += 1,
            }
            for (group, slot) in lane.groups.iter().zip(&lane.slots) {
                if slot.outermost {
                    stray.counts.entry(*group).or_default().cumulative += 1;
                }
            }
        }
        here
    }

    /// Stops counting, in the middle of a window as it may be.
    pub fn pause(mut self) -> Uncounted {
        self.settle_all();
        self.touched.sort_unstable();
        let counts = self.touched.iter().map(|frame| (*frame, self.counts[*frame as usize])).collect();
        let (current, strays) =
            self.windows.map(|windows| (windows.current, windows.strays)).unwrap_or_default();
        Uncounted { counts, total: self.total, empty: self.empty, current, strays }
    }

    /// Goes on where another aggregator paused; `frame` tells the frame of these tables that one of the
    /// other's is.
    pub fn resume(&mut self, uncounted: Uncounted, frame: impl Fn(u32) -> u32) {
        let Aggregator { group, counts, touched, .. } = self;
        let add = |to: &mut Counts, these: Counts| {
            to.self_ += these.self_;
            to.cumulative += these.cumulative;
        };
        for (old, these) in uncounted.counts {
            add(touch(counts, touched, group[frame(old) as usize]), these);
        }
        self.total += uncounted.total;
        self.empty += uncounted.empty;
        if let Some(windows) = &mut self.windows {
            windows.current = uncounted.current;
            for (index, stray) in uncounted.strays {
                let mut moved =
                    Stray { total: stray.total, empty: stray.empty, counts: FxHashMap::default() };
                for (old, these) in stray.counts {
                    add(moved.counts.entry(group[frame(old) as usize]).or_default(), these);
                }
                windows.strays.insert(index, moved);
            }
        }
    }

    /// Counts the frames that are still on stacks.
    fn settle_all(&mut self) {
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in &mut lanes {
            for depth in 0..lane.slots.len() {
                self.settle(lane.groups[depth], lane.slots[depth], lane.seen);
                lane.slots[depth].came = 0;
            }
            lane.seen = 0;
        }
        self.lanes = lanes;
    }

    /// Ends the counting of the current window or run and returns its table, if a sample was
    /// counted.
    fn take(&mut self) -> Option<Table> {
        self.settle_all();
        self.touched.sort_unstable();
        let rows = self.touched.drain(..).map(|frame| {
            let counts = std::mem::take(&mut self.counts[frame as usize]);
            (frame, counts.self_, counts.cumulative)
        });
        let table = Table {
            rows: rows.collect(),
            total: std::mem::take(&mut self.total),
            empty: std::mem::take(&mut self.empty),
        };
        (table.total + table.empty > 0).then_some(table)
    }

    /// Closes the current window, and those that strays fell into: (start, table), by time.
    pub fn close_windows(&mut self) -> Vec<(i128, Table)> {
        if self.windows.is_none() {
            return Vec::new();
        }
        let table = self.take();
        let windows = self.windows.as_mut().expect("looked at above");
        let mut closed: BTreeMap<i128, Table> = BTreeMap::new();
        for (index, stray) in std::mem::take(&mut windows.strays) {
            let mut rows: Vec<_> =
                stray.counts.into_iter().map(|(f, c)| (f, c.self_, c.cumulative)).collect();
            rows.sort_unstable();
            closed.insert(windows.start_of(index), Table { total: stray.total, empty: stray.empty, rows });
        }
        // No stray falls into the current window, since no time is above its key.
        if let (Some(table), Some(current)) = (table, windows.current.take()) {
            closed.insert(windows.start_of(current), table);
        }
        closed.into_iter().collect()
    }

    /// The table of the whole run.
    pub fn finish(mut self) -> Table {
        self.take().unwrap_or_default()
    }

    /// The frame under which this one is counted, if it is counted.
    pub fn counted_as(&self, frame: u32) -> Option<u32> {
        Some(self.group[frame as usize]).filter(|group| *group != HIDDEN)
    }

    /// Whether a frame is counted.
    pub fn counts(&self, frame: u32) -> bool {
        self.group[frame as usize] != HIDDEN
    }
}

fn touch<'a>(counts: &'a mut [Counts], touched: &mut Vec<u32>, group: u32) -> &'a mut Counts {
    let counts = &mut counts[group as usize];
    if *counts == Counts::default() {
        touched.push(group);
    }
    counts
}

fn innermost(lane: &LaneStack) -> Option<u32> {
    lane.groups.iter().rev().copied().find(|group| *group != HIDDEN)
}

impl Windows {
    fn index(&self, time: u64) -> i128 {
        (i128::from(time) - i128::from(self.start_us)).div_euclid(i128::from(self.period_us))
    }

    fn start_of(&self, index: i128) -> i128 {
        i128::from(self.start_us) + index * i128::from(self.period_us)
    }
}

impl Table {
    /// Both tables added up.
    pub fn merged(&self, other: &Table) -> Table {
        let mut rows: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (frame, self_, cumulative) in self.rows.iter().chain(&other.rows) {
            let row = rows.entry(*frame).or_default();
            row.0 += self_;
            row.1 += cumulative;
        }
        Table {
            total: self.total + other.total,
            empty: self.empty + other.empty,
            rows: rows.into_iter().map(|(frame, (self_, cumulative))| (frame, self_, cumulative)).collect(),
        }
    }
}

/// Whether frames of this file belong to the profiler itself, which CPython does not count.
pub(crate) fn is_internal(path: &[u8]) -> bool {
    path.ends_with(INTERNAL)
}

/// For each frame the lowest-numbered frame that CPython's JSONL doesn't tell from it, since only the
/// opcode differs, or what it calls absent, or bytes that are not UTF-8; [`HIDDEN`] for the
/// profiler's own frames.
fn groups(by: By, tables: &Tables) -> Vec<u32> {
    let mut first_string: FxHashMap<Cow<'_, str>, u32> = FxHashMap::default();
    let mut first_frame: FxHashMap<([u32; 2], [i32; 4]), u32> = FxHashMap::default();
    let mut group = Vec::with_capacity(tables.frames.len());
    for (index, frame) in (0..).zip(&tables.frames) {
        let Frame { path, function, location, .. } = *frame;
        let (Some(path_bytes), Some(function_bytes)) =
            (tables.strings.get(path), tables.strings.get(function))
        else {
            // No sample uses it.
            group.push(HIDDEN);
            continue;
        };
        if is_internal(path_bytes) {
            group.push(HIDDEN);
            continue;
        }
        let names = [(path_bytes, path), (function_bytes, function)]
            .map(|(bytes, id)| *first_string.entry(String::from_utf8_lossy(bytes)).or_insert(id));
        if by != By::Frame {
            let names = [names[0], if by == By::Function { names[1] } else { u32::MAX }];
            group.push(*first_frame.entry((names, [0; 4])).or_insert(index));
            continue;
        }
        let place = location.line.map_or([0, 0, -1, -1], |line| {
            let known = |value: Option<i32>, absent: i32| value.unwrap_or(absent).max(absent);
            [line, known(location.end_line, 0), known(location.col, -1), known(location.end_col, -1)]
        });
        group.push(*first_frame.entry((names, place)).or_insert(index));
    }
    group
}
