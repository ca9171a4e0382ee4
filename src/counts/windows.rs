//! Counts frames by windows of time while the first walk checks the records. A stream of counts alone then needs no
//! second walk.
//!
//! A record may stand far from its neighbours in time, so several windows are counted at once. A few are
//! at hand as tables over all frames. The others wait in a spool as rows, in as many pieces as a window was at
//! hand, which are joined when they are read. Times must not go back: a walk that finds one that does gives the
//! counting up.

use std::io::{Read, Seek, SeekFrom, Write};

use tempfile::SpooledTempFile;

use crate::counts::grouping::groups;
use crate::counts::{By, CountTable, CountedStack, Counter, Counts};
use crate::error::{Error, Result};
use crate::limits::{SPOOL_MEMORY, STACK_DEPTH, WINDOW_PIECES};
use crate::model::{Tables, ThreadKey, TimeSpan};
use crate::varint;

/// What to count while a profile is opened: [`StreamOptions::counting`] returns what a stream can use, and
/// [`ProfileSide::counting`] what a comparison can.
///
/// [`StreamOptions::counting`]: crate::convert::StreamOptions::counting
/// [`ProfileSide::counting`]: crate::convert::ProfileSide::counting
#[derive(Clone, Copy, Debug)]
pub struct Counting {
    /// Length of a window, microseconds; `None` counts all samples in one.
    pub(crate) period_us: Option<u64>,
    /// What is counted.
    pub(crate) by: By,
}

/// The samples of a window, counted.
#[derive(Debug)]
pub(crate) struct CountedWindow {
    /// Earliest and latest time, microseconds.
    pub span: TimeSpan,
    /// Samples with the deepest stack that a profile can hold.
    pub at_depth_limit: u64,
    /// The threads that have a sample in it, some more than once.
    pub threads: Vec<ThreadKey>,
    pub table: CountTable,
}

/// Bytes of the tables at hand, and how many these are.
const OPEN_BYTES: usize = 4 * 1024 * 1024;
const MAX_OPEN: usize = 8;
const MIN_OPEN: usize = 2;

/// How the time of a run is divided into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    pub start_us: u64,
    /// Length of a window; `None`: there is one.
    pub period_us: Option<u64>,
}

impl Period {
    /// Number of the window in which a time lies that isn't before the start.
    pub fn number(self, time_us: u64) -> u64 {
        self.period_us.map_or(0, |period_us| (time_us - self.start_us) / period_us)
    }

    /// Where a window ends; the greatest number where that is after all times, or where there is one window.
    pub fn end_us(self, number: u64) -> u64 {
        let end = self.period_us.and_then(|period_us| number.checked_add(1)?.checked_mul(period_us));
        end.and_then(|end| end.checked_add(self.start_us)).unwrap_or(u64::MAX)
    }
}

/// Counts the windows of a profile.
pub(crate) struct WindowCounter {
    period: Period,
    by: By,
    groups: Vec<u32>,
    open: Vec<Window>,
    max_open: usize,
    /// By number.
    threads: Vec<CountedThread>,
    pieces: Pieces,
    /// Whether the spool does not take more.
    is_full: bool,
}

/// A window at hand.
struct Window {
    number: u64,
    counter: Counter,
    span: Option<TimeSpan>,
    at_depth_limit: u64,
    /// The threads that came into it, each once.
    threads: Vec<u32>,
}

#[derive(Default)]
struct CountedThread {
    stack: CountedStack,
    /// The place at hand of the window that it counts in.
    at: Option<usize>,
    /// Where that window ends; 0 for none.
    end_us: u64,
    last_us: u64,
}

/// Windows as rows.
#[derive(Debug)]
struct Pieces {
    spool: SpooledTempFile,
    written: u64,
    places: Vec<Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    window: u64,
    at: u64,
    len: usize,
}

impl WindowCounter {
    pub fn new(counting: Counting, tables: &Tables, start_us: u64) -> Self {
        let groups = groups(counting.by, tables);
        let table = groups.len().max(1) * size_of::<Counts>();
        WindowCounter {
            period: Period { start_us, period_us: counting.period_us },
            by: counting.by,
            open: Vec::new(),
            max_open: (OPEN_BYTES / table).clamp(MIN_OPEN, MAX_OPEN),
            threads: Vec::new(),
            pieces: Pieces { spool: SpooledTempFile::new(SPOOL_MEMORY), written: 0, places: Vec::new() },
            is_full: false,
            groups,
        }
    }

    pub fn period(&self) -> Period {
        self.period
    }

    /// A sample of a thread, by number, with another stack. `time_us` is its highest so far.
    #[inline(always)]
    pub fn change(&mut self, thread: usize, time_us: u64, keep: u32, pushed: &[u32]) {
        let at = self.enter(thread, time_us);
        let WindowCounter { groups, open, threads, .. } = self;
        let (stack, window) = (&mut threads[thread].stack, &mut open[at]);
        stack.change(&mut window.counter, groups, keep as usize, pushed);
        stack.add(1);
        if stack.depth() == STACK_DEPTH {
            window.at_depth_limit += 1;
        }
    }

    /// Whether a thread's window goes on up to this time, which is its highest so far.
    #[inline(always)]
    pub fn is_within(&self, thread: usize, time_us: u64) -> bool {
        self.threads.get(thread).is_some_and(|thread| time_us < thread.end_us)
    }

    /// Samples of a thread with the stack that it has, all in one window, the last at `time_us`.
    #[inline(always)]
    pub fn repeat(&mut self, thread: usize, time_us: u64, samples: u32) {
        let at = self.enter(thread, time_us);
        let WindowCounter { open, threads, .. } = self;
        let (stack, window) = (&mut threads[thread].stack, &mut open[at]);
        stack.add(u64::from(samples));
        if stack.depth() == STACK_DEPTH {
            window.at_depth_limit += u64::from(samples);
        }
    }

    /// Enters the window of this time and returns its slot.
    #[inline(always)]
    fn enter(&mut self, thread: usize, time_us: u64) -> usize {
        match self.threads.get_mut(thread) {
            Some(CountedThread { at: Some(at), end_us, last_us, .. }) if time_us < *end_us => {
                *last_us = time_us;
                *at
            }
            _ => self.enter_another(thread, time_us),
        }
    }

    #[cold]
    fn enter_another(&mut self, thread: usize, time_us: u64) -> usize {
        if thread >= self.threads.len() {
            self.threads.resize_with(thread + 1, CountedThread::default);
        }
        if self.is_full {
            // What is counted from here on is for nothing, and no more windows are made for it.
            let thread = &mut self.threads[thread];
            thread.end_us = u64::MAX;
            return *thread.at.get_or_insert(0);
        }
        let number = self.period.number(time_us);
        if let Some(at) = self.threads[thread].at {
            // The last window ends with the last time that there is.
            if self.open[at].number == number {
                self.threads[thread].last_us = time_us;
                return at;
            }
            self.open[at].leave(&mut self.threads[thread]);
        }
        let at = match self.open.iter().position(|window| window.number == number) {
            Some(at) => at,
            None => self.open_window(number),
        };
        let window = &mut self.open[at];
        window.threads.push(thread as u32);
        TimeSpan::at(time_us).add_to(&mut window.span);
        let end_us = self.period.end_us(number);
        let thread = &mut self.threads[thread];
        (thread.at, thread.end_us, thread.last_us) = (Some(at), end_us, time_us);
        at
    }

    /// Makes an empty window, in the place of the earliest where there are enough.
    fn open_window(&mut self, number: u64) -> usize {
        if self.open.len() < self.max_open {
            self.open.push(Window {
                number,
                counter: Counter::new(self.groups.len()),
                span: None,
                at_depth_limit: 0,
                threads: Vec::new(),
            });
            return self.open.len() - 1;
        }
        let windows = self.open.iter().enumerate();
        let at = windows.min_by_key(|(_, window)| window.number).map_or(0, |(at, _)| at);
        self.spool_window(at);
        self.open[at].number = number;
        at
    }

    /// Writes the window in this place as a piece, and empties it.
    fn spool_window(&mut self, at: usize) {
        let window = &mut self.open[at];
        for number in 0..window.threads.len() {
            let thread = &mut self.threads[window.threads[number] as usize];
            if thread.at == Some(at) {
                window.leave(thread);
            }
        }
        let is_written = self.pieces.places.len() < WINDOW_PIECES && self.pieces.write(window).is_ok();
        self.is_full |= !is_written;
        window.threads.clear();
        (window.span, window.at_depth_limit) = (None, 0);
    }

    /// The windows, where all were counted; `keys` are the threads by number.
    pub fn finish(mut self, keys: Vec<ThreadKey>) -> Option<CountedWindows> {
        (0..self.open.len()).for_each(|at| self.spool_window(at));
        // Stable: the pieces of a window stay in order.
        self.pieces.places.sort_by_key(|piece| piece.window);
        (!self.is_full).then_some(CountedWindows {
            period: self.period,
            by: self.by,
            pieces: self.pieces,
            next: 0,
            keys,
        })
    }
}

impl Window {
    /// A thread counts elsewhere from here on.
    fn leave(&mut self, thread: &mut CountedThread) {
        thread.stack.settle(&mut self.counter);
        TimeSpan::at(thread.last_us).add_to(&mut self.span);
        (thread.at, thread.end_us) = (None, 0);
    }
}

impl Pieces {
    fn write(&mut self, window: &mut Window) -> Result<()> {
        let Some(table) = window.counter.take() else { return Ok(()) };
        let mut bytes = Vec::new();
        let span = window.span.unwrap_or_default();
        let head = [span.first_us, span.last_us, window.at_depth_limit, table.total, table.empty];
        head.into_iter().for_each(|number| varint::write(&mut bytes, number));
        varint::write(&mut bytes, window.threads.len() as u64);
        window.threads.iter().for_each(|thread| varint::write(&mut bytes, u64::from(*thread)));
        for (frame, counts) in &table.rows {
            let row = [u64::from(*frame), counts.self_, counts.cumulative];
            row.into_iter().for_each(|number| varint::write(&mut bytes, number));
        }
        self.spool.write_all(&bytes)?;
        self.places.push(Piece { window: window.number, at: self.written, len: bytes.len() });
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Adds a piece to its window.
    fn read(&mut self, piece: Piece, keys: &[ThreadKey], window: &mut CountedWindow) -> Result<()> {
        let mut bytes = vec![0; piece.len];
        self.spool.seek(SeekFrom::Start(piece.at))?;
        self.spool.read_exact(&mut bytes)?;
        let mut pos = 0;
        let mut next =
            || varint::read(&bytes, &mut pos).map_err(|_| Error::from(std::io::Error::other("a torn spool")));
        window.span = window.span.join(TimeSpan { first_us: next()?, last_us: next()? });
        window.at_depth_limit += next()?;
        window.table.total += next()?;
        window.table.empty += next()?;
        for _ in 0..next()? {
            window.threads.push(keys[next()? as usize]);
        }
        while let Ok(frame) = next() {
            window.table.rows.push((frame as u32, Counts { self_: next()?, cumulative: next()? }));
        }
        Ok(())
    }
}

/// The windows of a profile that have samples, by time.
#[derive(Debug)]
pub(crate) struct CountedWindows {
    pub period: Period,
    pub by: By,
    pieces: Pieces,
    next: usize,
    keys: Vec<ThreadKey>,
}

impl CountedWindows {
    /// Whether the next window is the one of this time, or an earlier one.
    pub fn is_due(&self, time_us: u64) -> bool {
        self.pieces.places.get(self.next).is_some_and(|piece| piece.window <= self.period.number(time_us))
    }

    /// The next window.
    ///
    /// # Errors
    ///
    /// Errors of the spool.
    pub fn next(&mut self) -> Result<Option<CountedWindow>> {
        let CountedWindows { pieces, next, keys, .. } = self;
        let Some(first) = pieces.places.get(*next).copied() else { return Ok(None) };
        let mut window = CountedWindow {
            // As of no time at all.
            span: TimeSpan { first_us: u64::MAX, last_us: 0 },
            at_depth_limit: 0,
            threads: Vec::new(),
            table: CountTable::default(),
        };
        let from = *next;
        while let Some(piece) = pieces.places.get(*next).copied().filter(|piece| piece.window == first.window)
        {
            pieces.read(piece, keys, &mut window)?;
            *next += 1;
        }
        if *next > from + 1 {
            window.table.join_rows();
        }
        Ok(Some(window))
    }
}
