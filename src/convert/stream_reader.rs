//! Reads the samples of a stream, for library users.

use std::cell::Cell;
use std::io::BufRead;
use std::ops::Range;

use crate::convert::group_reader::{GroupReader, RunHead};
use crate::convert::stream_definitions::Definitions;
use crate::error::{Error, Position, Result};
use crate::model::{StackSamples, Tables};
use crate::protocol::message::Meta;
use crate::protocol::{Lines, RawColumns};

/// Delivers the samples of one run of a stream, as [`Samples`](crate::format::Samples) does those of a profile.
///
/// Samples come message by message, and within a message thread by thread, each thread's in order. Memory holds the
/// messages that are in order together, and the names of the run.
///
/// ```
/// # use tachyon_jsonl::convert::StreamReader;
/// let stream = std::io::BufReader::new(std::fs::File::open("schema/examples.jsonl")?);
/// let mut reader = StreamReader::new(stream);
/// while let Some(run) = reader.next()? {
///     let function = run.stack.last().map(|frame| run.tables.function(*frame));
///     println!("{} {function:?} {:?}", run.thread.thread_id, run.times_us);
/// }
/// for loss in reader.finish()? {
///     eprintln!("{loss}");
/// }
/// # Ok::<(), tachyon_jsonl::error::Error>(())
/// ```
pub struct StreamReader<R> {
    lines: Lines<R>,
    reader: GroupReader,
    group: Group,
    tables: Tables,
    /// The samples that come next.
    at: Place,
    stack: Vec<u32>,
    samples: u64,
    is_over: bool,
}

/// Messages that are in order together.
#[derive(Default)]
struct Group {
    messages: Vec<RawColumns>,
    /// Of each message, the frame of each node, as a number of the tables.
    frames: Vec<Vec<u32>>,
}

#[derive(Clone, Copy, Default)]
struct Place {
    message: usize,
    thread: usize,
    /// Stacks and samples of the thread before it.
    stack: usize,
    sample: usize,
}

impl Group {
    fn take(&mut self, messages: &mut Vec<RawColumns>, definitions: &mut Definitions, tables: &mut Tables) {
        std::mem::swap(&mut self.messages, messages);
        self.frames.resize_with(self.messages.len().max(self.frames.len()), Vec::new);
        for (message, frames) in self.messages.iter().zip(&mut self.frames) {
            frames.clear();
            frames.extend(message.stack_frame_id.iter().map(|id| definitions.frame(*id, tables)));
        }
    }

    /// The samples at this place that have one stack, with its node; moves on to those after them.
    fn next(&self, at: &mut Place) -> Option<(Place, u32, Range<usize>)> {
        loop {
            let threads = self.messages.get(at.message)?.threads();
            let Some(thread) = threads.get(at.thread) else {
                *at = Place { message: at.message + 1, ..Place::default() };
                continue;
            };
            let Some((node, samples)) = thread.stacks.get(at.stack) else {
                *at = Place { message: at.message, thread: at.thread + 1, ..Place::default() };
                continue;
            };
            let place = *at;
            at.stack += 1;
            at.sample += samples;
            return Some((place, *node, place.sample..at.sample));
        }
    }
}

impl<R: BufRead> StreamReader<R> {
    /// Reads JSON Lines of a stream that holds one run.
    pub fn new(stream: R) -> Self {
        Self::of(stream, None)
    }

    /// The same, of the run with this id. The messages of others are skipped.
    pub fn run(stream: R, run_id: &str) -> Self {
        Self::of(stream, Some(run_id.to_string()))
    }

    fn of(stream: R, run_id: Option<String>) -> Self {
        StreamReader {
            lines: Lines::new(stream),
            reader: GroupReader::new(run_id),
            group: Group::default(),
            tables: Tables::default(),
            at: Place::default(),
            stack: Vec::new(),
            samples: 0,
            is_over: false,
        }
    }

    /// The first `meta` of the run, once it has been read.
    pub fn meta(&self) -> Option<&Meta> {
        self.reader.run().map(|run| &run.meta)
    }

    /// The next samples; `None` at the end. What is returned is gone with the next call.
    ///
    /// # Errors
    ///
    /// Errors of the source, and a second run where none was chosen. What is damaged or missing is no error:
    /// [`StreamReader::finish`] returns it, and the rest is delivered.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<StackSamples<'_>>> {
        let (place, node, samples) = loop {
            match self.group.next(&mut self.at) {
                Some(found) => break found,
                None if self.is_over => return Ok(None),
                None => self.load()?,
            }
        };
        let message = &self.group.messages[place.message];
        let thread = &message.threads()[place.thread];
        self.stack.clear();
        let frames = &self.group.frames[place.message];
        let mut node = node as usize;
        // A stack without frames, and the caller of an outermost frame, are no node.
        while let Some(frame) = frames.get(node) {
            self.stack.push(*frame);
            node = message.stack_parent[node] as usize;
        }
        self.stack.reverse();
        self.samples += samples.len() as u64;
        Ok(Some(StackSamples {
            thread: thread.key(),
            stack: &self.stack,
            times_us: &thread.times_usec[samples.clone()],
            status: &thread.status[samples],
            tables: &self.tables,
        }))
    }

    /// Reads on until a group is there, or to the end.
    fn load(&mut self) -> Result<()> {
        let StreamReader { lines, reader, group, tables, at, is_over, .. } = self;
        let is_loaded = Cell::new(false);
        let mut take = |messages: &mut Vec<RawColumns>, _: &RunHead, definitions: &mut Definitions| {
            group.take(messages, definitions, tables);
            is_loaded.set(true);
            *at = Place::default();
            Ok(())
        };
        while let Some(line) = lines.next_message()? {
            let here = Position::Line(line.number);
            reader.line(line.number, line.bytes, &mut take).map_err(|error| error.at(here))?;
            if is_loaded.get() {
                return Ok(());
            }
        }
        *is_over = true;
        reader.write_group(take)
    }

    /// Ends the reading, and returns what was damaged or missing in what was read, the first of each kind with its
    /// line: empty if the stream was read to its end and all of the run was there.
    ///
    /// # Errors
    ///
    /// A stream without the run, or without `raw` messages.
    pub fn finish(self) -> Result<Vec<Error>> {
        Ok(self.reader.finish(0, self.samples)?.losses)
    }
}
