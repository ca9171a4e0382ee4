//! A binary profile into a stream.

mod write;

use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

use crate::convert::aggregate::{Aggregator, Table};
use crate::convert::definitions::UsedFrames;
use crate::convert::options::StreamOptions;
use crate::convert::raw::RawBuilder;
use crate::error::Result;
use crate::format::{Contents, Profile};
use crate::limits::STACK_DEPTH;
use crate::model::{Cut, Lanes, Slice};
use crate::protocol::message::{Heartbeat, LossAmount};
use crate::protocol::{Encoder, MessageType};

/// Samples of one cut where no raw message has to fit into a line.
const CUT: usize = 64 * 1024;
/// Samples of the first raw message, before it is known how many fit into a line.
const FIRST_CUT: usize = 2048;
/// Heartbeats in a row without a sample between them; a clock that jumps would give any number.
const HEARTBEATS_IN_A_GAP: u64 = 1000;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Whether the stream says `complete`.
    pub complete: bool,
    /// Samples.
    pub samples: u64,
    /// Batches.
    pub batches: u64,
    /// Messages.
    pub messages: u64,
}

/// Writes `profile` to `sink` as the stream of one run, batch by batch.
///
/// The same profile and options give the same bytes. Memory holds one batch as text, and a window of
/// samples, whatever the profile's size.
///
/// ```
/// use tachyon_jsonl::convert::{StreamOptions, to_stream};
/// use tachyon_jsonl::format::Profile;
///
/// let file = std::fs::File::open("tests/data/cpython/tiny_script_none.bin")?;
/// let mut profile = Profile::open(file)?;
/// let options = StreamOptions::new("example")?.types("raw,agg:5s,loss".parse()?);
/// let mut stream = Vec::new();
/// let written = to_stream(&mut profile, &options, &mut stream)?;
/// assert!(written.complete);
/// assert!(stream.starts_with(br#"{"type":"meta","v":2,"run_id":"example","seq":0,"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Errors of the profile's source and of `sink`, and labels that pass the line limit. Faults of the
/// profile are no errors: they stand in the stream, whose `end` then says that it is not complete.
pub fn to_stream<R: Read + Seek>(
    profile: &mut Profile<R>,
    options: &StreamOptions,
    sink: &mut impl Write,
) -> Result<Written> {
    let (mut replay, contents) = profile.replay()?;
    let mut stream = Stream::new(contents, options, sink);
    loop {
        replay.load(stream.wanted())?;
        let complete = replay.complete_before();
        let lanes = replay.lanes();
        let Some(key) = lanes.first_key() else { break };
        stream.pass(key)?;
        stream.deliver(lanes, key, complete)?;
    }
    stream.finish()
}

/// Gathers samples into batches.
struct Stream<'a, W> {
    contents: &'a Contents,
    options: &'a StreamOptions,
    sink: &'a mut W,
    encoder: Encoder,
    text: Vec<u8>,
    raw: RawBuilder,
    aggregator: Aggregator,
    window_end: Option<u64>,
    used: UsedFrames,
    /// Samples that fit into a raw message, by the last one.
    raw_samples: usize,
    /// The lane's last batch, plus one.
    lane_batch: Vec<u64>,
    batch: Batch,
    samples: u64,
    samples_total: u64,
    heartbeats: Heartbeats,
    lost: BTreeMap<String, LossAmount>,
}

/// What the open batch holds so far.
#[derive(Default)]
struct Batch {
    index: u64,
    /// Key of its first sample, and its samples, since the flush limits were last reached.
    first_key: Option<u64>,
    fresh: u64,
    span_us: Option<(u64, u64)>,
    samples: u64,
    threads: u64,
    at_depth_limit: u64,
    raw: Vec<u8>,
    raw_ends: Vec<usize>,
    tables: BTreeMap<i128, Table>,
}

struct Heartbeats {
    /// When the next one is due; `None` for never.
    due: Option<u64>,
    period: u64,
    waiting: Vec<Heartbeat>,
}

impl<'a, W: Write> Stream<'a, W> {
    fn new(contents: &'a Contents, options: &'a StreamOptions, sink: &'a mut W) -> Self {
        let start_us = contents.header.facts.start_us;
        let micros = |period: std::time::Duration| u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        let window =
            options.types.has(MessageType::Agg).then(|| options.types.window()).flatten().map(micros);
        let period = micros(options.types.heartbeat());
        let due = options.types.has(MessageType::Heartbeat).then(|| start_us.checked_add(period)).flatten();
        Stream {
            encoder: Encoder::new(&options.run_id),
            text: Vec::new(),
            raw: RawBuilder::default(),
            aggregator: Aggregator::new(&contents.tables, start_us, window),
            window_end: None,
            used: UsedFrames::new(&contents.tables),
            raw_samples: FIRST_CUT,
            lane_batch: vec![0; contents.scan.threads.len()],
            batch: Batch::default(),
            samples: 0,
            samples_total: 0,
            heartbeats: Heartbeats { due, period, waiting: Vec::new() },
            lost: BTreeMap::new(),
            contents,
            options,
            sink,
        }
    }

    fn has(&self, message: MessageType) -> bool {
        self.options.types.has(message)
    }

    /// How many samples the next cut may take.
    fn wanted(&self) -> usize {
        if self.has(MessageType::Raw) { self.raw_samples } else { CUT }
    }

    /// The next sample has this key: closes what ends before it.
    fn pass(&mut self, key: u64) -> Result<()> {
        if self.window_end.is_some_and(|end| end <= key) {
            self.close_window();
        }
        self.beat(key);
        let flush = self.options.flush;
        let is_full = flush.samples.is_some_and(|samples| self.batch.fresh >= samples);
        if self.batch.fresh > 0 && (is_full || self.batch_end().is_some_and(|end| end <= key)) {
            self.close_batch()?;
        }
        Ok(())
    }

    /// When the open batch has to close at the latest.
    fn batch_end(&self) -> Option<u64> {
        let interval = self.options.flush.interval?;
        let interval = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
        self.batch.first_key?.checked_add(interval)
    }

    /// Takes samples off the lanes, the first of which has this key, into the batch.
    fn deliver(&mut self, lanes: &mut Lanes, key: u64, complete: Option<u64>) -> Result<()> {
        self.batch.first_key.get_or_insert(key);
        self.window_end = self.aggregator.window_end(key);
        let ends = [complete, self.window_end, self.heartbeats.due, self.batch_end()];
        let before = ends.into_iter().flatten().min();
        let room =
            self.options.flush.samples.map_or(u64::MAX, |samples| samples.saturating_sub(self.batch.fresh));
        let room = usize::try_from(room).unwrap_or(usize::MAX).max(1);
        // A batch closes behind the instant that fills it, a message before the one that passes its line.
        let (wanted, cut) = if room <= self.wanted() { (room, Cut::Up) } else { (self.wanted(), Cut::Down) };
        let taken = if self.has(MessageType::Raw) {
            self.add_raw(lanes, wanted, before, cut)
        } else {
            lanes.cut(wanted, before, cut)
        };
        for slice in lanes.slices() {
            self.note(&slice);
        }
        if self.options.types.asks_for(MessageType::FrameDef)
            || self.options.types.asks_for(MessageType::StrDef)
        {
            self.note_frames(lanes);
        }
        if self.has(MessageType::Agg) {
            for slice in lanes.slices() {
                self.aggregator.count(&slice);
            }
        }
        let Stream { aggregator, batch, samples_total, .. } = self;
        lanes.advance(|stack, samples| {
            if aggregator.is_counted(stack) {
                *samples_total += samples as u64;
            }
            if stack.len() == STACK_DEPTH {
                batch.at_depth_limit += samples as u64;
            }
        });
        self.batch.samples += taken as u64;
        self.batch.fresh += taken as u64;
        self.samples += taken as u64;
        Ok(())
    }

    fn note(&mut self, slice: &Slice<'_>) {
        let times = slice.times();
        let (low, high) = if slice.is_rising() {
            (times[0], times[times.len() - 1])
        } else {
            times.iter().fold((u64::MAX, 0), |(low, high), time| (low.min(*time), high.max(*time)))
        };
        let span = self.batch.span_us.get_or_insert((low, high));
        *span = (span.0.min(low), span.1.max(high));
        let last = &mut self.lane_batch[slice.index()];
        if *last != self.batch.index + 1 {
            *last = self.batch.index + 1;
            self.batch.threads += 1;
        }
    }

    fn note_frames(&mut self, lanes: &Lanes) {
        for slice in lanes.slices() {
            slice.stack().iter().for_each(|frame| self.used.note(*frame));
            slice.runs().for_each(|run| run.pushed.iter().for_each(|frame| self.used.note(*frame)));
        }
    }

    /// Adds one raw message with about `wanted` samples, fewer where they don't fit into a line.
    fn add_raw(&mut self, lanes: &mut Lanes, mut wanted: usize, before: Option<u64>, mut cut: Cut) -> usize {
        let limit = self.options.max_line - self.encoder.envelope_len(MessageType::Raw);
        let start = self.batch.raw.len();
        loop {
            let taken = lanes.cut(wanted, before, cut);
            self.raw.write(self.batch.index, lanes.slices(), &mut self.batch.raw);
            let length = self.batch.raw.len() - start;
            if length <= limit || taken == 1 {
                // Aim a little below the limit, so that most messages fit at once.
                if length > limit / 2 || 2 * taken >= self.raw_samples {
                    self.raw_samples = (taken * limit / length * 31 / 32).max(1);
                }
                for frame in &self.raw.tree.frame {
                    self.used.note(*frame);
                }
                self.batch.raw_ends.push(self.batch.raw.len());
                return taken;
            }
            self.batch.raw.truncate(start);
            // An instant that doesn't fit although it is alone is cut between two threads.
            cut = if cut != Cut::Up && taken > wanted { Cut::Within } else { Cut::Down };
            wanted = (taken.min(wanted) * limit / length * 15 / 16).max(1);
        }
    }

    fn close_window(&mut self) {
        self.window_end = None;
        for (start, table) in self.aggregator.close_windows() {
            let merged = match self.batch.tables.remove(&start) {
                Some(earlier) => earlier.merged(&table),
                None => table,
            };
            self.batch.tables.insert(start, merged);
        }
    }

    /// Notes the heartbeats that are due before a sample with this key.
    fn beat(&mut self, key: u64) {
        let mut in_a_row = 0;
        while let Some(due) = self.heartbeats.due.filter(|due| *due <= key) {
            self.heartbeats.waiting.push(Heartbeat {
                ts_usec: Some(due),
                wall_usec: self.wall_us(due),
                samples: self.samples,
                ..Heartbeat::default()
            });
            in_a_row += 1;
            let period = self.heartbeats.period;
            let next =
                if in_a_row == HEARTBEATS_IN_A_GAP { due + (key - due) / period * period } else { due };
            self.heartbeats.due = next.max(due).checked_add(period);
        }
    }

    fn wall_us(&self, time_us: u64) -> Option<i64> {
        let since = i128::from(time_us) - i128::from(self.contents.header.facts.start_us);
        i64::try_from(i128::from(self.options.wall_start_us?) + since).ok()
    }

    /// Writes the open batch, unless only counts would stand in it: then it goes on.
    fn close_batch(&mut self) -> Result<()> {
        if self.batch.raw_ends.is_empty() && self.batch.tables.is_empty() && self.has_content_type() {
            self.batch.first_key = None;
            self.batch.fresh = 0;
            return Ok(());
        }
        self.write_batch(Vec::new(), None)
    }

    fn has_content_type(&self) -> bool {
        self.has(MessageType::Raw) || self.has(MessageType::Agg)
    }
}
