//! Makes the `raw` messages of a run block by block, in parallel with the walk where there are threads for it.
//!
//! A block is what the walk has cut off the queues: about as many samples as fit into a line. How many that
//! are is known from blocks before; never from the last few, which may still be in the making. So the
//! lines are the same for any number of threads.
//!
//! Where so many threads have a sample at each instant that naming them fills the lines, a block is a group: many
//! samples of each thread, and a line holds all that some of the threads have in it. See `protocol::group`.

use std::collections::VecDeque;

use crate::convert::to_stream::raw::{RawBuilder, start_of};
use crate::limits::GROUP_SAMPLES;
use crate::model::{Cut, ReorderBuffer, ThreadSamples};
use crate::protocol::group;
use crate::worker::{self, Worker};

/// Blocks that may be in the making, and do not count yet in [`RawLines::wanted`].
const AHEAD: usize = 4;
/// Samples of the first block, before it is known how many fit into a line.
const FIRST: usize = 2048;
/// Blocks by the fullest of which the next is measured, so that most fit at once.
const MEASURED: usize = 8;
/// Threads of a block that goes to a worker, which gets a copy of it.
const THREADS_COPIED: usize = 8 * 1024;
/// Samples of a thread in a group.
const IN_A_GROUP: usize = 64;
/// Text of a group, about.
const GROUP_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a thread in a line, besides its id and its samples.
const HEAD: usize = r#"{"thread_id":"","interpreter_id":0,"ts_delta_usec":[],"status":[],"stack":[]},"#.len();
/// Bytes of a few samples of a thread: where a line has no room for so many of each, it is cut by threads.
const A_FEW: usize = 34;

/// Makes the raw lines of a run.
pub(crate) struct RawLines {
    shape: Shape,
    threads: usize,
    /// By each of the last blocks that count.
    fits: VecDeque<Fit>,
    maker: Maker,
    workers: Vec<Worker<Job, Maker>>,
    /// The next worker to get a block.
    next: usize,
    making: VecDeque<Making>,
    done: Vec<Lines>,
    /// Bytes that they take.
    done_bytes: usize,
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

/// What a block says about the size of the next.
#[derive(Clone, Copy)]
struct Fit {
    /// Samples that fit into a line.
    samples: usize,
    heads: Heads,
    /// Bytes of a sample.
    bytes: usize,
}

/// The threads of a block.
#[derive(Clone, Copy, Default)]
struct Heads {
    /// Those that have a sample at one instant, about.
    at_once: usize,
    /// Bytes of all.
    bytes: usize,
    /// Bytes of one, at most.
    most: usize,
}

impl Heads {
    fn of<'a>(slices: impl Iterator<Item = ThreadSamples<'a>>) -> Self {
        let (mut heads, mut samples, mut instants) = (Heads::default(), 0, 1);
        for slice in slices {
            let digits = slice.thread().thread_id.checked_ilog10().unwrap_or(0) as usize + 1;
            heads.bytes += HEAD + digits;
            heads.most = heads.most.max(HEAD + digits);
            samples += slice.times().len();
            instants = instants.max(slice.times().len());
        }
        heads.at_once = samples.div_ceil(instants);
        heads
    }
}

/// How many samples a block should have.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted {
    /// How many, about.
    pub samples: usize,
    /// Whether its lines are cut by threads.
    pub is_group: bool,
    /// Samples that fit into a line.
    pub line: usize,
}

impl Shape {
    /// Whether a line has no room for a few samples of each thread.
    fn is_for_a_group(self, heads: Heads) -> bool {
        heads.at_once * (heads.most + A_FEW) > self.limit
    }

    /// What is known of a block of so many samples that has made so many bytes.
    fn fit(self, samples: usize, heads: Heads, length: usize, is_group: bool) -> Fit {
        // The heads stay where they are a good part of a line.
        let fixed = if 4 * heads.bytes > self.limit && !is_group { heads.bytes } else { 0 };
        let fit = samples * self.limit.saturating_sub(fixed) / length.saturating_sub(fixed).max(1);
        // A little below the limit.
        Fit { samples: (fit * 31 / 32).max(1), heads, bytes: length.div_ceil(samples) }
    }
}

/// A block's raw lines.
#[derive(Default)]
pub(crate) struct Lines {
    /// One after the other, each with room for its envelope at its front and a byte for its line feed.
    pub text: Vec<u8>,
    /// Where each line ends.
    pub ends: Vec<usize>,
    /// The frames of the lines' nodes, some more than once.
    pub frames: Vec<u32>,
    /// What the block says about the size of the next, if anything.
    fit: Option<Fit>,
}

enum Making {
    /// Made here.
    Done(Box<Job>),
    /// By the worker of this number.
    By(usize),
}

#[derive(Default)]
struct Job {
    batch: u64,
    wanted: Wanted,
    block: ReorderBuffer,
    lines: Lines,
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
            done_bytes: 0,
            spare: Vec::new(),
            spare_lines: Vec::new(),
        }
    }

    /// How many samples the next block should have.
    pub fn wanted(&mut self) -> Wanted {
        while self.making.len() >= AHEAD {
            self.collect();
        }
        let line = self.fits.iter().map(|fit| fit.samples).min().unwrap_or(FIRST);
        let bytes = self.fits.iter().map(|fit| fit.bytes).max().unwrap_or(1);
        let heads =
            self.fits.iter().map(|fit| fit.heads).max_by_key(|heads| heads.at_once).unwrap_or_default();
        let is_group = self.shape.is_for_a_group(heads);
        let group = (heads.at_once * IN_A_GROUP).min(GROUP_SAMPLES).min(GROUP_BYTES / bytes).max(line);
        Wanted { samples: if is_group { group } else { line }, is_group, line }
    }

    /// Adds the block that the last cut of `buffer` marks.
    pub fn add(&mut self, batch: u64, buffer: &ReorderBuffer) {
        let wanted = self.wanted();
        let mut job = self.spare.pop().unwrap_or_default();
        job.batch = batch;
        job.wanted = wanted;
        job.lines = self.spare_lines.pop().unwrap_or_default();
        // The first block shows at once how many samples fit, and may be all of a short profile.
        let is_first = self.fits.is_empty();
        if is_first || buffer.slices().nth(THREADS_COPIED).is_some() || !self.has_workers() {
            self.maker.make(self.shape, batch, job.wanted, buffer, &mut job.lines);
            self.making.push_back(Making::Done(Box::new(job)));
            if is_first {
                self.collect();
            }
            return;
        }
        job.block.copy_from(buffer.slices());
        assert!(self.workers[self.next].send(job).is_ok(), "the worker waits for jobs");
        self.making.push_back(Making::By(self.next));
        self.next = (self.next + 1) % self.workers.len();
    }

    /// Starts workers, as many as are asked for and can be had; whether there is any.
    fn has_workers(&mut self) -> bool {
        if self.workers.is_empty() && self.threads != 1 {
            let workers = 1..worker::count(self.threads).min(AHEAD + 1);
            self.workers = workers.map_while(|_| start_worker(self.shape)).collect();
            if self.workers.is_empty() {
                self.threads = 1;
            }
        }
        !self.workers.is_empty()
    }

    /// Bytes of the lines that wait to be taken, without those of the last few blocks, which may still be in the making.
    pub fn waiting_bytes(&self) -> usize {
        self.done_bytes
    }

    /// The lines of all blocks, in order.
    pub fn take(&mut self) -> Vec<Lines> {
        while !self.making.is_empty() {
            self.collect();
        }
        self.done_bytes = 0;
        std::mem::take(&mut self.done)
    }

    /// Takes back what [`RawLines::take`] gave, for its room.
    pub fn give_back(&mut self, lines: Vec<Lines>) {
        self.spare_lines.extend(lines);
    }

    fn collect(&mut self) {
        let mut job = match self.making.pop_front() {
            Some(Making::Done(job)) => *job,
            Some(Making::By(worker)) => self.workers[worker].recv().expect("the worker makes each job"),
            None => return,
        };
        if let Some(fit) = job.lines.fit {
            self.fits.truncate(MEASURED - 1);
            self.fits.push_front(fit);
        }
        self.done_bytes += job.lines.text.len() + size_of_val(&*job.lines.frames);
        self.done.push(std::mem::take(&mut job.lines));
        self.spare.push(job);
    }
}

/// A thread that makes lines, in the order in which it gets its blocks.
fn start_worker(shape: Shape) -> Option<Worker<Job, Maker>> {
    let make = move |maker: &mut Maker, job: &mut Job| {
        job.block.cut(usize::MAX, None, Cut::AfterInstant);
        maker.make(shape, job.batch, job.wanted, &job.block, &mut job.lines);
        Ok(())
    };
    Worker::start(AHEAD, Maker::default(), make).ok()
}

#[derive(Default)]
struct Maker {
    raw: RawBuilder,
    /// A block that doesn't fit into a line.
    rest: ReorderBuffer,
}

impl Maker {
    /// Makes lines of the block that the last cut of `buffer` marks: one, where they fit.
    fn make(&mut self, shape: Shape, batch: u64, wanted: Wanted, buffer: &ReorderBuffer, lines: &mut Lines) {
        lines.text.clear();
        lines.ends.clear();
        lines.frames.clear();
        lines.fit = None;
        let samples: usize = buffer.slices().map(|slice| slice.times().len()).sum();
        let heads = Heads::of(buffer.slices());
        let start_us = start_of(buffer.slices());
        if wanted.is_group {
            self.make_groups(shape, batch, wanted.line, buffer, lines);
            if 2 * samples >= wanted.samples {
                lines.fit = Some(shape.fit(samples, heads, lines.text.len(), true));
            }
            return;
        }
        let length = self.write(shape, batch, start_us.unwrap_or(0), buffer.slices(), lines);
        // A block that had to be small says little.
        if length > shape.limit / 2 || 2 * samples >= wanted.samples {
            lines.fit = Some(shape.fit(samples, heads, length, false));
        }
        if start_us.is_some() && length <= shape.limit || samples == 1 {
            self.keep(lines);
            return;
        }
        lines.text.clear();
        let pieces = (length * 16 / 15).div_ceil(shape.limit).max(2 - usize::from(start_us.is_some()));
        let line = samples.div_ceil(pieces);
        if shape.is_for_a_group(heads) {
            return self.make_groups(shape, batch, line, buffer, lines);
        }
        self.rest.copy_from(buffer.slices());
        self.split(shape, batch, line, false, lines);
    }

    /// Makes lines of about `line` samples, cut by threads: of the block as it stands if that is one group, else of a
    /// copy, piece by piece.
    fn make_groups(
        &mut self,
        shape: Shape,
        batch: u64,
        line: usize,
        buffer: &ReorderBuffer,
        lines: &mut Lines,
    ) {
        let threads: Vec<ThreadSamples<'_>> = buffer.slices().collect();
        let samples = threads.iter().map(|slice| slice.times().len()).sum();
        let is_instant = samples == threads.len();
        let (start, mut of_a_line) = (lines.mark(), line);
        if samples <= GROUP_SAMPLES
            && self.split_group(shape, batch, &mut of_a_line, is_instant, &threads, lines)
            && (is_instant || lines.are_group_from(start, samples))
        {
            return;
        }
        lines.back_to(start);
        self.rest.copy_from(threads.into_iter());
        self.split(shape, batch, line, true, lines);
    }

    /// Makes lines of about `line` samples, fewer where they don't fit, of the rest, cut by threads or by time.
    fn split(&mut self, shape: Shape, batch: u64, mut line: usize, is_group: bool, lines: &mut Lines) {
        let mut rest = std::mem::take(&mut self.rest);
        let mut group = GROUP_SAMPLES;
        while rest.waiting() > 0 {
            let taken = rest.cut(if is_group { group } else { line }, None, Cut::BeforeInstant);
            // An instant that is alone, a sample a thread, is a group in any case.
            if is_group || taken > line {
                let slices: Vec<ThreadSamples<'_>> = rest.slices().collect();
                let start = lines.mark();
                let is_instant = taken == slices.len();
                let fits = self.split_group(shape, batch, &mut line, is_instant, &slices, lines);
                if fits && (is_instant || lines.are_group_from(start, taken)) {
                    drop(slices);
                    rest.advance();
                } else {
                    lines.back_to(start);
                    group = taken / 2;
                }
                continue;
            }
            let start = lines.mark();
            let start_us = start_of(rest.slices());
            let length = self.write(shape, batch, start_us.unwrap_or(0), rest.slices(), lines);
            if start_us.is_some() && length <= shape.limit || taken == 1 {
                self.keep(lines);
                rest.advance();
            } else {
                lines.back_to(start);
                line = fewer(taken, shape.limit, length);
            }
        }
        self.rest = rest;
    }

    /// Makes lines of a group, each of all that some threads have in it: one line if they fit, else lines of about
    /// `line` samples. Returns whether each thread's samples fit into one.
    fn split_group(
        &mut self,
        shape: Shape,
        batch: u64,
        line: &mut usize,
        is_instant: bool,
        threads: &[ThreadSamples<'_>],
        lines: &mut Lines,
    ) -> bool {
        let start_us = start_of(threads.iter().copied());
        if start_us.is_none() && !is_instant {
            return false;
        }
        let samples =
            |slices: &[ThreadSamples<'_>]| slices.iter().map(|slice| slice.times().len()).sum::<usize>();
        // A few more than were expected to fit may do so.
        let all = samples(threads);
        let mut wanted = if all / 2 < *line { all } else { *line };
        let mut left = threads;
        while !left.is_empty() {
            let mut room = wanted;
            let these = left.iter().take_while(|slice| {
                let fits = slice.times().len() <= room;
                room = room.saturating_sub(slice.times().len());
                fits
            });
            let (these, others) = left.split_at(these.count().max(1));
            let start = lines.mark();
            let start_us = start_us.or_else(|| start_of(these.iter().copied()));
            let length = self.write(shape, batch, start_us.unwrap_or(0), these.iter().copied(), lines);
            let taken = samples(these);
            if start_us.is_some() && length <= shape.limit || taken == 1 {
                self.keep(lines);
                left = others;
                // Up to here it is known how many fit.
                if !others.is_empty() {
                    wanted = fitting(taken, shape.limit, length).max(wanted);
                }
            } else if these.len() == 1 {
                return false;
            } else {
                lines.back_to(start);
                wanted = fewer(taken, shape.limit, length);
            }
        }
        *line = wanted;
        true
    }

    /// Appends a line to the text; returns the length of its body.
    fn write<'a>(
        &mut self,
        shape: Shape,
        batch: u64,
        start_us: u64,
        slices: impl Iterator<Item = ThreadSamples<'a>>,
        lines: &mut Lines,
    ) -> usize {
        let start = lines.text.len();
        lines.text.resize(start + shape.envelope - 1, 0);
        self.raw.write(batch, start_us, slices, &mut lines.text);
        lines.text.push(b'\n');
        lines.text.len() - start - shape.envelope
    }

    fn keep(&mut self, lines: &mut Lines) {
        lines.ends.push(lines.text.len());
        lines.frames.extend_from_slice(&self.raw.tree.frame);
    }
}

impl Lines {
    /// The end of what is there.
    fn mark(&self) -> (usize, usize, usize) {
        (self.text.len(), self.ends.len(), self.frames.len())
    }

    /// Whether what came since, with so many samples, can be one group.
    fn are_group_from(&self, (_, ends, frames): (usize, usize, usize), samples: usize) -> bool {
        group::is_group(self.ends.len() - ends, samples, self.frames.len() - frames)
    }

    /// Takes off what came since.
    fn back_to(&mut self, (text, ends, frames): (usize, usize, usize)) {
        self.text.truncate(text);
        self.ends.truncate(ends);
        self.frames.truncate(frames);
    }
}

/// How many samples fit where so many make a body of `length` bytes.
fn fitting(samples: usize, limit: usize, length: usize) -> usize {
    (samples * limit / length * 15 / 16).max(1)
}

/// How many samples to try where so many make a body of `length` bytes that cannot be a line.
fn fewer(samples: usize, limit: usize, length: usize) -> usize {
    // In a body within the limit, the times are too far apart.
    if length > limit { fitting(samples, limit, length) } else { (samples / 2).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{StackChange, ThreadKey};

    const ENVELOPE: usize = 60;
    const LIMIT: usize = 8 * 1024;

    /// Samples of three threads whose stacks change more often as time goes by, so that estimates fail.
    fn samples() -> ReorderBuffer {
        let mut buffer =
            ReorderBuffer::new([5, 6, 7].map(|thread_id| ThreadKey { interpreter_id: 0, thread_id }), 1000);
        let mut state = 1u32;
        for step in 0..20_000u32 {
            for queue in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if (state >> 8) % 20_000 < step {
                    let keep = buffer.depth(queue).min(state >> 29);
                    let pushed = [state >> 20, state >> 22];
                    buffer.change(queue, StackChange { keep, push: 2 }, pushed.into_iter());
                }
                buffer.push(queue, 100, (state >> 24) as u8);
            }
        }
        buffer
    }

    fn lines(threads: usize) -> Vec<Vec<u8>> {
        let mut raw = RawLines::new(ENVELOPE, LIMIT, threads);
        let mut buffer = samples();
        let mut all = Vec::new();
        for batch in 0.. {
            for _ in 0..7 {
                buffer.cut(raw.wanted().samples, None, Cut::BeforeInstant);
                raw.add(batch, &buffer);
                buffer.advance();
                if buffer.waiting() == 0 {
                    break;
                }
            }
            let blocks = raw.take();
            for Lines { text, ends, .. } in &blocks {
                let starts = std::iter::once(&0).chain(ends);
                all.extend(starts.zip(ends).map(|(start, end)| text[*start..*end].to_vec()));
            }
            raw.give_back(blocks);
            if buffer.waiting() == 0 {
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
        let mut buffer = ReorderBuffer::new(threads, 0);
        let mut samples = 0;
        for instant in 0..20 {
            for queue in (0..THREADS as usize).filter(|queue| instant % 4 == 0 || queue % 700 == instant) {
                buffer.change(queue, StackChange { keep: 0, push: 1 }, std::iter::once(queue as u32 % 50));
                buffer.push(queue, 100, 1);
                samples += 1;
            }
        }
        let mut raw = RawLines::new(ENVELOPE, LIMIT, 1);
        let (mut found, mut lines) = (0, 0);
        while buffer.waiting() > 0 {
            buffer.cut(raw.wanted().samples, None, Cut::BeforeInstant);
            raw.add(0, &buffer);
            buffer.advance();
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
