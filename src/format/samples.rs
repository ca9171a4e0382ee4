//! An iterator over the samples of a profile, stack by stack, for library users.

use std::ops::Range;

use crate::error::Result;
use crate::format::replay::Replay;
use crate::model::{Cut, StackSamples, Tables, ThreadKey};

/// Samples that are loaded at once.
const BLOCK: usize = 64 * 1024;

/// Delivers the samples of a profile in blocks of time: [`Profile::samples`].
///
/// Within a block the threads follow each other, each with its samples in order; a block has no sample that belongs
/// before one of the block before it. Memory holds one block, and what waits to be put into order.
///
/// [`Profile::samples`]: crate::format::Profile::samples
pub struct Samples<'a> {
    replay: Replay<'a>,
    tables: &'a Tables,
    rows: Vec<Row>,
    /// The next row to deliver.
    at: usize,
    stacks: Vec<u32>,
    times: Vec<u64>,
    status: Vec<u8>,
}

/// Samples in a row with one stack, as ranges of the block's columns.
struct Row {
    thread: ThreadKey,
    stack: Range<usize>,
    samples: Range<usize>,
}

impl<'a> Samples<'a> {
    pub(crate) fn new(replay: Replay<'a>, tables: &'a Tables) -> Self {
        Samples {
            replay,
            tables,
            rows: Vec::new(),
            at: 0,
            stacks: Vec::new(),
            times: Vec::new(),
            status: Vec::new(),
        }
    }

    /// The next samples; `None` at the end. What is returned is gone with the next call.
    ///
    /// # Errors
    ///
    /// Errors of the source. Damaged samples are no error: [`Contents::faults`](crate::format::Contents::faults) has them from the start, and what is
    /// before them is delivered.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<StackSamples<'_>>> {
        if self.at == self.rows.len() && !self.load()? {
            return Ok(None);
        }
        let Row { thread, stack, samples } = &self.rows[self.at];
        self.at += 1;
        Ok(Some(StackSamples {
            thread: *thread,
            stack: &self.stacks[stack.clone()],
            times_us: &self.times[samples.clone()],
            status: &self.status[samples.clone()],
            tables: self.tables,
        }))
    }

    /// Loads the next block; false at the end.
    fn load(&mut self) -> Result<bool> {
        let Samples { replay, rows, at, stacks, times, status, .. } = self;
        rows.clear();
        stacks.clear();
        times.clear();
        status.clear();
        *at = 0;
        replay.load(BLOCK)?;
        let before = replay.complete_before();
        let buffer = replay.buffer();
        if buffer.cut(BLOCK, before, Cut::AfterInstant) == 0 {
            return Ok(false);
        }
        for samples in buffer.slices() {
            let (thread, mut first) = (samples.thread(), times.len());
            times.extend_from_slice(samples.times());
            status.extend_from_slice(samples.status());
            samples.stacks(|stack, count| {
                let from = stacks.len();
                if count > 0 {
                    stacks.extend_from_slice(stack);
                    let samples = first..first + count;
                    rows.push(Row { thread, stack: from..stacks.len(), samples });
                    first += count;
                }
            });
        }
        buffer.advance();
        Ok(true)
    }
}
