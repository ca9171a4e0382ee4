//! The raw messages of a run, made block by block, beside the walk where there are threads for it.
//!
//! A block is what the walk has cut off the lanes: about as many samples as fit into a line. How many that
//! are is known from blocks before; never from the last few, which may still be in the making. So the
//! lines are the same for any number of threads.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::convert::raw::RawBuilder;
use crate::model::{Cut, Lanes, Slice};
use crate::threads;

/// Blocks that may be in the making, and do not count yet in [`RawLines::wanted`].
const AHEAD: usize = 4;
/// Samples of the first block, before it is known how many fit into a line.
const FIRST: usize = 2048;
/// Blocks by the fullest of which the next is measured, so that most fit at once.
const MEASURED: usize = 8;

/// Makes the raw lines of a run.
pub(crate) struct RawLines {
    shape: Shape,
    threads: usize,
    /// Samples that fit into a line, by each of the last blocks that count.
    fits: VecDeque<usize>,
    maker: Maker,
    workers: Vec<Worker>,
    /// The next worker to get a block.
    next: usize,
    making: VecDeque<Making>,
    done: Vec<Lines>,
    /// To be used again.
    spare: Vec<Job>,
    spare_lines: Vec<Lines>,
}

/// How long lines are.
#[derive(Clone, Copy)]
struct Shape {
    /// Room for the envelope and the line feed.
    envelope: usize,
    /// The longest body.
    limit: usize,
}

/// A block's raw lines.
#[derive(Default)]
pub(crate) struct Lines {
    /// One behind the other, each with room for its envelope at its front and a byte for its line feed.
    pub text: Vec<u8>,
    /// Where each line ends.
    pub ends: Vec<usize>,
    /// The frames of the lines' nodes, some more than once.
    pub frames: Vec<u32>,
    /// How many of these samples would have fitted into a line, where the block says.
    fit: Option<usize>,
}

enum Making {
    /// Made here.
    Done(Job),
    /// By the worker of this number.
    By(usize),
}

#[derive(Default)]
struct Job {
    batch: u64,
    wanted: usize,
    block: Lanes,
    lines: Lines,
}

/// A thread that makes lines, in the order in which it gets its blocks. It ends once its jobs do.
struct Worker {
    jobs: SyncSender<Job>,
    done: Receiver<Job>,
}

impl RawLines {
    /// For lines with `limit` bytes of body and `envelope` bytes around it, made on so many threads, the
    /// caller's among them.
    pub fn new(envelope: usize, limit: usize, threads: usize) -> Self {
        let shape = Shape { envelope, limit };
        RawLines {
            shape,
            threads,
            fits: VecDeque::new(),
            maker: Maker::default(),
            workers: Vec::new(),
            next: 0,
            making: VecDeque::new(),
            done: Vec::new(),
            spare: Vec::new(),
            spare_lines: Vec::new(),
        }
    }

    /// How many samples the next block should have.
    pub fn wanted(&mut self) -> usize {
        while self.making.len() >= AHEAD {
            self.collect();
        }
        self.fits.iter().min().copied().unwrap_or(FIRST)
    }

    /// Adds the block that the last cut of `lanes` marks.
    pub fn add(&mut self, batch: u64, lanes: &Lanes) {
        let mut job = self.spare.pop().unwrap_or_default();
        job.batch = batch;
        job.wanted = self.wanted();
        job.lines = self.spare_lines.pop().unwrap_or_default();
        // The first tells at once how many samples fit, and is all of a short profile.
        let is_first = self.fits.is_empty();
        if is_first || !self.has_workers() {
            self.maker.make(self.shape, batch, job.wanted, lanes, &mut job.lines);
            self.making.push_back(Making::Done(job));
            if is_first {
                self.collect();
            }
            return;
        }
        job.block.copy_from(lanes.slices());
        self.workers[self.next].jobs.send(job).expect("the worker waits for jobs");
        self.making.push_back(Making::By(self.next));
        self.next = (self.next + 1) % self.workers.len();
    }

    /// Starts workers, as many as are asked for and can be had; whether there is any.
    fn has_workers(&mut self) -> bool {
        if self.workers.is_empty() && self.threads != 1 {
            let workers = 1..threads::count(self.threads).min(AHEAD + 1);
            self.workers = workers.map_while(|_| Worker::start(self.shape)).collect();
            if self.workers.is_empty() {
                self.threads = 1;
            }
        }
        !self.workers.is_empty()
    }

    /// The lines of all blocks, in order.
    pub fn take(&mut self) -> Vec<Lines> {
        while !self.making.is_empty() {
            self.collect();
        }
        std::mem::take(&mut self.done)
    }

    /// Takes back what [`RawLines::take`] gave, for its room.
    pub fn give_back(&mut self, lines: Vec<Lines>) {
        self.spare_lines.extend(lines);
    }

    fn collect(&mut self) {
        let mut job = match self.making.pop_front() {
            Some(Making::Done(job)) => job,
            Some(Making::By(worker)) => self.workers[worker].done.recv().expect("the worker makes each job"),
            None => return,
        };
        if let Some(fit) = job.lines.fit {
            self.fits.truncate(MEASURED - 1);
            self.fits.push_front(fit);
        }
        self.done.push(std::mem::take(&mut job.lines));
        self.spare.push(job);
    }
}

impl Worker {
    fn start(shape: Shape) -> Option<Self> {
        let (jobs, todo) = sync_channel::<Job>(AHEAD);
        let (finished, done) = sync_channel(AHEAD);
        threads::worker(move || {
            let mut maker = Maker::default();
            for mut job in todo {
                job.block.cut(usize::MAX, None, Cut::Up);
                maker.make(shape, job.batch, job.wanted, &job.block, &mut job.lines);
                if finished.send(job).is_err() {
                    return;
                }
            }
        })?;
        Some(Worker { jobs, done })
    }
}

#[derive(Default)]
struct Maker {
    raw: RawBuilder,
    /// A block that doesn't fit into a line.
    rest: Lanes,
}

impl Maker {
    /// Makes lines of the block that the last cut of `lanes` marks: one, where they fit.
    fn make(&mut self, shape: Shape, batch: u64, wanted: usize, lanes: &Lanes, lines: &mut Lines) {
        lines.text.clear();
        lines.ends.clear();
        lines.frames.clear();
        lines.fit = None;
        let samples: usize = lanes.slices().map(|slice| slice.times().len()).sum();
        let length = self.write(shape, batch, lanes.slices(), lines);
        // A little below the limit. A block that had to be small says little.
        if length > shape.limit / 2 || 2 * samples >= wanted {
            lines.fit = Some((samples * shape.limit / length * 31 / 32).max(1));
        }
        if length <= shape.limit || samples == 1 {
            self.keep(lines);
            return;
        }
        lines.text.clear();
        self.rest.copy_from(lanes.slices());
        let pieces = (length * 16 / 15).div_ceil(shape.limit);
        self.split(shape, batch, samples.div_ceil(pieces), lines);
    }

    /// Makes lines of about `wanted` samples, fewer where they don't fit.
    fn split(&mut self, shape: Shape, batch: u64, mut wanted: usize, lines: &mut Lines) {
        let mut rest = std::mem::take(&mut self.rest);
        while rest.waiting() > 0 {
            let taken = rest.cut(wanted, None, Cut::Down);
            // An instant that is alone: a sample a thread.
            if taken > wanted {
                self.split_instant(shape, batch, wanted, &rest.slices().collect::<Vec<_>>(), lines);
                rest.advance();
                continue;
            }
            let start = lines.text.len();
            let length = self.write(shape, batch, rest.slices(), lines);
            if length <= shape.limit || taken == 1 {
                self.keep(lines);
                rest.advance();
            } else {
                lines.text.truncate(start);
                wanted = fewer(taken, shape.limit, length);
            }
        }
        self.rest = rest;
    }

    /// Makes lines of a sample of each of these threads: one line if they fit, else of about `wanted` threads.
    fn split_instant(
        &mut self,
        shape: Shape,
        batch: u64,
        wanted: usize,
        threads: &[Slice<'_>],
        lines: &mut Lines,
    ) {
        // A few more than were expected to fit may do so.
        let mut wanted = if threads.len() / 2 < wanted { threads.len() } else { wanted };
        let mut left = threads;
        while !left.is_empty() {
            let (these, others) = left.split_at(wanted.min(left.len()));
            let start = lines.text.len();
            let length = self.write(shape, batch, these.iter().copied(), lines);
            if length <= shape.limit || these.len() == 1 {
                self.keep(lines);
                left = others;
            } else {
                lines.text.truncate(start);
                wanted = fewer(these.len(), shape.limit, length);
            }
        }
    }

    /// Appends a line to the text; returns the length of its body.
    fn write<'a>(
        &mut self,
        shape: Shape,
        batch: u64,
        slices: impl Iterator<Item = Slice<'a>> + Clone,
        lines: &mut Lines,
    ) -> usize {
        let start = lines.text.len();
        lines.text.resize(start + shape.envelope - 1, 0);
        self.raw.write(batch, slices, &mut lines.text);
        lines.text.push(b'\n');
        lines.text.len() - start - shape.envelope
    }

    fn keep(&mut self, lines: &mut Lines) {
        lines.ends.push(lines.text.len());
        lines.frames.extend_from_slice(&self.raw.tree.frame);
    }
}

/// How many samples to try where so many make a body of `length` bytes, over the limit.
fn fewer(samples: usize, limit: usize, length: usize) -> usize {
    (samples * limit / length * 15 / 16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{StackChange, ThreadKey};

    const ENVELOPE: usize = 60;
    const LIMIT: usize = 8 * 1024;

    /// Samples of three threads whose stacks change more often as time goes by, so that estimates fail.
    fn samples() -> Lanes {
        let mut lanes =
            Lanes::new([5, 6, 7].map(|thread_id| ThreadKey { interpreter_id: 0, thread_id }), 1000);
        let mut state = 1u32;
        for step in 0..20_000u32 {
            for lane in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if (state >> 8) % 20_000 < step {
                    let keep = lanes.depth(lane).min(state >> 29);
                    let pushed = [state >> 20, state >> 22];
                    lanes.change(lane, StackChange { keep, push: 2 }, pushed.into_iter());
                }
                lanes.push(lane, 100, (state >> 24) as u8);
            }
        }
        lanes
    }

    fn lines(threads: usize) -> Vec<Vec<u8>> {
        let mut raw = RawLines::new(ENVELOPE, LIMIT, threads);
        let mut lanes = samples();
        let mut all = Vec::new();
        for batch in 0.. {
            for _ in 0..7 {
                lanes.cut(raw.wanted(), None, Cut::Down);
                raw.add(batch, &lanes);
                lanes.advance();
                if lanes.waiting() == 0 {
                    break;
                }
            }
            let blocks = raw.take();
            for Lines { text, ends, .. } in &blocks {
                let starts = std::iter::once(&0).chain(ends);
                all.extend(starts.zip(ends).map(|(start, end)| text[*start..*end].to_vec()));
            }
            raw.give_back(blocks);
            if lanes.waiting() == 0 {
                break;
            }
        }
        all
    }

    #[test]
    fn any_number_of_threads_makes_the_same_lines_of_all_samples() {
        let expected = lines(1);
        for threads in [2, 3, 9] {
            assert_eq!(lines(threads), expected, "{threads} threads");
        }
        let mut samples = 0;
        for line in &expected {
            assert!(line.len() <= ENVELOPE + LIMIT, "{} bytes", line.len());
            let body: serde_json::Value = serde_json::from_slice(&line[ENVELOPE - 1..]).expect("an object");
            samples += body["samples"].as_u64().expect("a number");
        }
        assert_eq!(samples, 60_000);
        let full = expected.iter().filter(|line| line.len() > LIMIT / 2).count();
        assert!(full > expected.len() / 2, "{full} of {} lines are half full", expected.len());
    }

    /// Threads whose samples of one instant fill many lines, and instants of fewer threads in between.
    #[test]
    fn an_instant_of_many_threads_is_cut_between_threads_into_full_lines() {
        const THREADS: u64 = 3000;
        let threads = (0..THREADS).map(|thread_id| ThreadKey { interpreter_id: 0, thread_id });
        let mut lanes = Lanes::new(threads, 0);
        let mut samples = 0;
        for instant in 0..20 {
            for lane in (0..THREADS as usize).filter(|lane| instant % 4 == 0 || lane % 700 == instant) {
                lanes.change(lane, StackChange { keep: 0, push: 1 }, std::iter::once(lane as u32 % 50));
                lanes.push(lane, 100, 1);
                samples += 1;
            }
        }
        let mut raw = RawLines::new(ENVELOPE, LIMIT, 1);
        let (mut found, mut lines) = (0, 0);
        while lanes.waiting() > 0 {
            lanes.cut(raw.wanted(), None, Cut::Down);
            raw.add(0, &lanes);
            lanes.advance();
        }
        for Lines { text, ends, .. } in raw.take() {
            let starts = std::iter::once(&0).chain(&ends);
            for (start, end) in starts.zip(&ends) {
                assert!(end - start <= ENVELOPE + LIMIT, "{} bytes", end - start);
                let body = &text[start + ENVELOPE - 1..*end];
                let body: serde_json::Value = serde_json::from_slice(body).expect("an object");
                found += body["samples"].as_u64().expect("a number");
                lines += 1;
            }
        }
        assert_eq!(found, samples);
        // About 90 bytes a thread, and a line a small instant.
        assert!(lines < 2 * samples * 90 / LIMIT as u64, "{lines} lines of {samples} samples");
    }
}
