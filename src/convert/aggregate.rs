//! Counts samples by frame, in windows of time or over the whole run.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::convert::used_frames::MergedTables;
use crate::counts::grouping::groups;
use crate::counts::{By, CountTable, CountedStack, Counter, Counts, HIDDEN};
use crate::model::{Tables, ThreadSamples};

/// Counts samples, window by window or all in one.
#[derive(Debug)]
pub(crate) struct Aggregator {
    group: Vec<u32>,
    counter: Counter,
    stacks: Vec<CountedStack>,
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
    table: CountTable,
    current: Option<i128>,
    strays: BTreeMap<i128, Stray>,
}

impl Uncounted {
    /// Whether no sample was counted.
    pub fn is_empty(&self) -> bool {
        self.table.total + self.table.empty == 0
    }

    /// The frames in it, each once.
    pub fn frames(&self) -> Vec<u32> {
        let strays = self.strays.values().flat_map(|stray| stray.counts.keys());
        let mut frames: Vec<u32> =
            self.table.rows.iter().map(|(frame, _)| frame).chain(strays).copied().collect();
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
        let CountTable { total, empty, rows } = part.table;
        let ids = self.tables.add(tables, rows.iter().map(|(frame, _)| *frame));
        for (id, (_, these)) in ids.into_iter().zip(rows) {
            let id = id as usize;
            if self.counts.len() <= id {
                self.counts.resize(id + 1, Counts::default());
            }
            self.counts[id] += these;
        }
        self.total += total;
        self.empty += empty;
    }

    /// The frames, and what was counted by them.
    pub fn finish(self) -> (Tables, Uncounted) {
        let rows = (0..).zip(self.counts).collect();
        let table = CountTable { rows, total: self.total, empty: self.empty };
        (self.tables.into_tables(), Uncounted { table, ..Uncounted::default() })
    }
}

#[derive(Debug, Default)]
struct Stray {
    total: u64,
    empty: u64,
    counts: FxHashMap<u32, Counts>,
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
            counter: Counter::new(tables.frames.len()),
            stacks: Vec::new(),
            windows: period_us.map(|period_us| Windows {
                start_us,
                period_us,
                current: None,
                strays: BTreeMap::new(),
            }),
        }
    }

    /// Up to where samples may be counted before [`Aggregator::close_windows`] is due: the end of the
    /// window in which `key` lies.
    pub fn window_end(&mut self, key: u64) -> Option<u64> {
        let windows = self.windows.as_mut()?;
        let index = windows.index(key);
        windows.current = Some(index);
        u64::try_from(windows.start_of(index + 1)).ok()
    }

    /// Counts the samples of a queue, all of one window by their keys.
    pub fn count(&mut self, slice: &ThreadSamples<'_>) {
        self.make_stack(slice.index());
        let Aggregator { group, counter, stacks, windows } = self;
        let stack = &mut stacks[slice.index()];
        let mut times = slice.times();
        for run in slice.runs() {
            stack.change(counter, group, run.keep, run.pushed);
            let (these, rest) = times.split_at(run.samples);
            times = rest;
            let here = match windows {
                Some(windows) if !slice.is_rising() => windows.set_apart(stack, these),
                _ => run.samples,
            };
            stack.add(here as u64);
        }
    }

    /// Counts samples of a queue in one table, whatever their times: its stack keeps `keep` frames, and
    /// `pushed`, innermost first, come on top.
    pub fn count_run(&mut self, index: usize, keep: usize, pushed: &[u32], samples: u64) {
        self.make_stack(index);
        let Aggregator { group, counter, stacks, .. } = self;
        stacks[index].change(counter, group, keep, pushed);
        stacks[index].add(samples);
    }

    /// Adds what was counted elsewhere, all of it in the window in which `key` lies; `frame` tells the
    /// frame of these tables that one of the table's is.
    pub fn add(&mut self, table: CountTable, frame: impl Fn(u32) -> u32) {
        for (old, these) in table.rows {
            self.counter.add(self.group[frame(old) as usize], these);
        }
        self.counter.add_samples(table.total, table.empty);
    }

    fn make_stack(&mut self, index: usize) {
        if index >= self.stacks.len() {
            self.stacks.resize_with(index + 1, CountedStack::default);
        }
    }

    /// Stops counting, in the middle of a window as it may be.
    pub fn pause(mut self) -> Uncounted {
        let table = self.take().unwrap_or_default();
        let (current, strays) =
            self.windows.map(|windows| (windows.current, windows.strays)).unwrap_or_default();
        Uncounted { table, current, strays }
    }

    /// Goes on where another aggregator paused; `frame` tells the frame of these tables that one of the
    /// other's is.
    pub fn resume(&mut self, uncounted: Uncounted, frame: impl Fn(u32) -> u32) {
        self.add(uncounted.table, &frame);
        let Aggregator { group, windows: Some(windows), .. } = self else { return };
        windows.current = uncounted.current;
        for (index, stray) in uncounted.strays {
            let mut moved = Stray { total: stray.total, empty: stray.empty, counts: FxHashMap::default() };
            for (old, these) in stray.counts {
                *moved.counts.entry(group[frame(old) as usize]).or_default() += these;
            }
            windows.strays.insert(index, moved);
        }
    }

    /// Ends the counting of the current window or run and returns its table, if a sample was
    /// counted.
    fn take(&mut self) -> Option<CountTable> {
        let Aggregator { counter, stacks, .. } = self;
        stacks.iter_mut().for_each(|stack| stack.settle(counter));
        counter.take()
    }

    /// Closes the current window, and those that strays fell into: (start, table), by time.
    pub fn close_windows(&mut self) -> Vec<(i128, CountTable)> {
        if self.windows.is_none() {
            return Vec::new();
        }
        let table = self.take();
        let windows = self.windows.as_mut().expect("looked at above");
        let mut closed: BTreeMap<i128, CountTable> = BTreeMap::new();
        for (index, stray) in std::mem::take(&mut windows.strays) {
            let mut rows: Vec<_> = stray.counts.into_iter().collect();
            rows.sort_unstable_by_key(|(frame, _)| *frame);
            let table = CountTable { total: stray.total, empty: stray.empty, rows };
            closed.insert(windows.start_of(index), table);
        }
        // No stray falls into the current window, since no time is above its key.
        if let (Some(table), Some(current)) = (table, windows.current.take()) {
            closed.insert(windows.start_of(current), table);
        }
        closed.into_iter().collect()
    }

    /// The table of the whole run.
    pub fn finish(mut self) -> CountTable {
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

impl Windows {
    fn index(&self, time: u64) -> i128 {
        (i128::from(time) - i128::from(self.start_us)).div_euclid(i128::from(self.period_us))
    }

    fn start_of(&self, index: i128) -> i128 {
        i128::from(self.start_us) + index * i128::from(self.period_us)
    }

    /// Books the samples whose own time lies in another window, and returns how many are left.
    #[cold]
    fn set_apart(&mut self, stack: &CountedStack, times: &[u64]) -> usize {
        let mut here = 0;
        for &time in times {
            let index = self.index(time);
            if self.current == Some(index) {
                here += 1;
                continue;
            }
            let stray = self.strays.entry(index).or_default();
            match stack.innermost() {
                Some(group) => {
                    stray.counts.entry(group).or_default().self_ += 1;
                    stray.total += 1;
                }
                None => stray.empty += 1,
            }
            for group in stack.counted() {
                stray.counts.entry(group).or_default().cumulative += 1;
            }
        }
        here
    }
}

/// Both tables added up.
pub(crate) fn merged(mut one: CountTable, other: CountTable) -> CountTable {
    one.total += other.total;
    one.empty += other.empty;
    one.rows.extend(other.rows);
    one.join_rows();
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Frame, Location, StringTable};

    /// Frames 0 to 2 are functions of one file, frame 3 is as frame 0.
    fn tables() -> Tables {
        let mut strings = StringTable::default();
        let path = strings.push(b"file.py");
        let functions = [b"a", b"b", b"c", b"a"].map(|name| strings.push(name));
        let location = Location { line: Some(1), ..Location::default() };
        let frames = functions.map(|function| Frame { path, function, location, opcode: None }).to_vec();
        Tables { strings, frames }
    }

    fn rows(table: &CountTable) -> Vec<(u32, u64, u64)> {
        table.rows.iter().map(|(frame, counts)| (*frame, counts.self_, counts.cumulative)).collect()
    }

    #[test]
    fn recursion_and_equal_frames_count_once_a_sample() {
        let mut aggregator = Aggregator::new(&tables(), 0, None);
        // Pushed frames are innermost first: a calls b, then itself again in another frame of the table.
        aggregator.count_run(0, 0, &[1, 0], 3);
        aggregator.count_run(0, 2, &[3], 4);
        aggregator.count_run(1, 0, &[], 5);
        let table = aggregator.finish();
        assert_eq!((table.total, table.empty), (7, 5));
        assert_eq!(rows(&table), [(0, 4, 7), (1, 3, 7)]);
    }

    #[test]
    fn windows_reach_before_the_start_of_the_run() {
        let windows = Windows { start_us: 100, period_us: 10, current: None, strays: BTreeMap::new() };
        for (time, index) in [(100, 0), (109, 0), (110, 1), (99, -1), (90, -1), (89, -2)] {
            assert_eq!(windows.index(time), index, "{time}");
            let start = windows.start_of(index);
            assert!(start <= i128::from(time) && i128::from(time) < start + 10);
        }
    }

    #[test]
    fn parts_add_up_by_what_their_frames_are() {
        let mut totals = Totals::default();
        for (frames, samples) in [(vec![0], 2), (vec![2], 5)] {
            let mut tables = tables();
            // The second part has another table, in which the same function has another number.
            if samples == 5 {
                tables.frames.swap(0, 2);
            }
            let mut aggregator = Aggregator::new(&tables, 0, None);
            aggregator.count_run(0, 0, &frames, samples);
            totals.add(&tables, aggregator.pause());
        }
        let (tables, uncounted) = totals.finish();
        assert_eq!(rows(&uncounted.table), [(0, 7, 7)]);
        assert_eq!(tables.function(0), "a");
    }
}
