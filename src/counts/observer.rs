//! Counts windows during the first walk: in the walk itself, or on another thread that gets the records block by block.
//! The counts are the same.

use crate::counts::windows::{CountedWindows, Period, WindowCounter};
use crate::model::ThreadKey;
use crate::worker::Worker;

/// Records of a block.
const BLOCK: usize = 4096;
/// Blocks that may wait for the thread.
const AHEAD: usize = 4;

pub(crate) enum WindowObserver {
    Inline(Box<WindowCounter>),
    Background(BackgroundCounter),
}

/// A thread that counts. It ends once there are no more blocks.
pub(crate) struct BackgroundCounter {
    period: Period,
    /// Where the window of each thread's last sample ends.
    ends_us: Vec<u64>,
    block: Block,
    worker: Worker<Block, Box<WindowCounter>>,
}

#[derive(Default)]
struct Block {
    records: Vec<Record>,
    /// The frames of the changes, one after the other.
    pushed: Vec<u32>,
}

/// `samples` with the stack that the thread has, the last at `time_us`; or, where that is 0, one with another.
struct Record {
    time_us: u64,
    thread: u32,
    samples: u32,
    keep: u32,
    push: u32,
}

impl WindowObserver {
    /// Has `counter` count on a thread of its own, or here.
    pub fn new(counter: WindowCounter, in_background: bool) -> Self {
        let counter = Box::new(counter);
        if !in_background {
            return WindowObserver::Inline(counter);
        }
        let period = counter.period();
        let worker = Worker::start(AHEAD, counter, |counter, block: &mut Block| {
            block.count(counter);
            Ok(())
        });
        match worker {
            Ok(worker) => WindowObserver::Background(BackgroundCounter {
                period,
                ends_us: Vec::new(),
                block: Block::default(),
                worker,
            }),
            Err(counter) => WindowObserver::Inline(counter),
        }
    }

    /// A sample of a thread, by number, with another stack. `time_us` is its highest so far.
    #[inline(always)]
    pub fn change(&mut self, thread: usize, time_us: u64, keep: u32, pushed: &[u32]) {
        match self {
            WindowObserver::Inline(counter) => counter.change(thread, time_us, keep, pushed),
            WindowObserver::Background(background) => {
                background.block.pushed.extend_from_slice(pushed);
                background.add(Record {
                    time_us,
                    thread: thread as u32,
                    samples: 0,
                    keep,
                    push: pushed.len() as u32,
                });
            }
        }
    }

    /// Whether a thread's window goes on up to this time, which is its highest so far.
    #[inline(always)]
    pub fn is_within(&self, thread: usize, time_us: u64) -> bool {
        match self {
            WindowObserver::Inline(counter) => counter.is_within(thread, time_us),
            WindowObserver::Background(background) => {
                background.ends_us.get(thread).is_some_and(|end_us| time_us < *end_us)
            }
        }
    }

    /// Samples of a thread with the stack that it has, all in one window, the last at `time_us`.
    #[inline(always)]
    pub fn repeat(&mut self, thread: usize, time_us: u64, samples: u32) {
        match self {
            WindowObserver::Inline(counter) => counter.repeat(thread, time_us, samples),
            WindowObserver::Background(background) => {
                background.add(Record { time_us, thread: thread as u32, samples, keep: 0, push: 0 });
            }
        }
    }

    /// The windows, where all were counted; `keys` are the threads by number.
    pub fn finish(self, keys: Vec<ThreadKey>) -> Option<CountedWindows> {
        match self {
            WindowObserver::Inline(counter) => counter.finish(keys),
            WindowObserver::Background(BackgroundCounter { block, mut worker, .. }) => {
                let _ = worker.send(block);
                let (counter, _) = worker.finish().ok()?;
                counter.finish(keys)
            }
        }
    }
}

impl BackgroundCounter {
    #[inline(always)]
    fn add(&mut self, record: Record) {
        let thread = record.thread as usize;
        if self.ends_us.get(thread).is_none_or(|end_us| record.time_us >= *end_us) {
            self.enter(thread, record.time_us);
        }
        self.block.records.push(record);
        if self.block.records.len() == BLOCK {
            self.send();
        }
    }

    #[cold]
    fn enter(&mut self, thread: usize, time_us: u64) {
        if thread >= self.ends_us.len() {
            self.ends_us.resize(thread + 1, 0);
        }
        self.ends_us[thread] = self.period.end_us(self.period.number(time_us));
    }

    #[cold]
    fn send(&mut self) {
        let next = self.worker.try_recv().unwrap_or_default();
        // If the thread is gone, `finish` finds out.
        let _ = self.worker.send(std::mem::replace(&mut self.block, next));
    }
}

impl Block {
    /// Counts its records, and is empty.
    fn count(&mut self, counter: &mut WindowCounter) {
        let mut pushed = self.pushed.as_slice();
        for record in &self.records {
            let thread = record.thread as usize;
            if record.samples > 0 {
                counter.repeat(thread, record.time_us, record.samples);
            } else {
                let (these, rest) = pushed.split_at(record.push as usize);
                pushed = rest;
                counter.change(thread, record.time_us, record.keep, these);
            }
        }
        self.records.clear();
        self.pushed.clear();
    }
}
