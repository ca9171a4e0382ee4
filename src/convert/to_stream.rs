//! Binary profile to stream.

mod counted;
pub(crate) mod options;
mod parts;
pub(crate) mod raw;
pub(crate) mod raw_lines;
pub(crate) mod to_cpython;
mod write;

use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::convert::aggregate::{Aggregator, Totals, merged};
use crate::convert::to_stream::options::{Flush, StreamOptions};
use crate::convert::to_stream::raw_lines::{RawLines, Wanted};
use crate::convert::used_frames::UsedFrames;
use crate::counts::{CountTable, Counts};
use crate::error::{Error, Result};
use crate::format::{ChunkOrder, Framing, Profile};
use crate::limits::{BATCH_BYTES, STACK_DEPTH};
use crate::model::{
    ClockPair, Cut, OrderKey, ReorderBuffer, RunFacts, Statistics, Tables, ThreadKey, ThreadSamples, TimeSpan,
};
use crate::protocol::message::{ErrorMessage, Heartbeat, Loss, LossAmount};
use crate::protocol::{Encoder, MessageType};

/// Samples of one cut where no raw message has to fit into a line.
const CUT: usize = 64 * 1024;
/// Heartbeats in a row without a sample between them; a clock that jumps would give any number.
const HEARTBEATS_IN_A_GAP: u64 = 1000;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSummary {
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
) -> Result<StreamSummary> {
    let mut run = RunStream::new(Framing::Files, options.clone());
    run.profile(profile, sink)?;
    run.finish(sink)
}

/// Writes a run that comes in parts: chunks, or framed profiles.
///
/// ```
/// use tachyon_jsonl::convert::{RunStream, StreamOptions};
/// use tachyon_jsonl::format::{Part, Sequence};
///
/// let mut file = std::fs::File::open("tests/data/legacy/v2_3_chunks_none.bin")?;
/// let mut sequence = Sequence::open(&mut file)?;
/// let mut run = RunStream::new(sequence.framing(), StreamOptions::new("example")?);
/// let mut stream = Vec::new();
/// while let Some(part) = sequence.next(&mut file)? {
///     match part {
///         Part::Profile(mut profile) => run.profile(&mut profile, &mut stream)?,
///         Part::Lost(lost) => run.lost(&lost, &mut stream)?,
///     }
/// }
/// let written = run.finish(&mut stream)?;
/// assert_eq!(written.batches, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RunStream {
    options: StreamOptions,
    framing: Framing,
    flush: Flush,
    encoder: Encoder,
    text: Vec<u8>,
    raw: RawLines,
    run: Option<RunState>,
    /// What the open batch defines its frames by.
    tables: Arc<Tables>,
    aggregator: Aggregator,
    /// Of the parts before this one.
    totals: Totals,
    used: UsedFrames,
    /// Depth of the outermost frame that counts on each queue's stack; the greatest number for none.
    counted_from: Vec<usize>,
    window_end: Option<u64>,
    batch: Batch,
    samples: u64,
    samples_total: u64,
    span: Option<TimeSpan>,
    heartbeats: Heartbeats,
    lost: BTreeMap<String, LossAmount>,
    complete: bool,
    /// Reported after the first batch.
    after_batch: Vec<(Option<ErrorMessage>, Option<Loss>)>,
    /// Reported after the last batch.
    at_end: Vec<(ErrorMessage, Option<Loss>)>,
    order: ChunkOrder,
    gaps: u64,
}

/// What is known of the run once its first part is there.
struct RunState {
    facts: RunFacts,
    labels: BTreeMap<String, String>,
    /// A time of the profiler's clock and the same as Unix time, where known.
    wall: Option<ClockPair>,
    statistics: RunStatistics,
}

/// What the parts say that the profiler measured.
#[derive(Default)]
struct RunStatistics {
    /// By the last part.
    measured: Option<Statistics>,
    /// Whether the last part knows its run.
    is_of_run: bool,
    /// How many parts say something.
    parts: u64,
}

/// What the open batch holds so far.
#[derive(Default)]
struct Batch {
    index: u64,
    /// Key of its first sample, and its samples, since the flush limits were last reached.
    first_key: Option<u64>,
    fresh: u64,
    span: Option<TimeSpan>,
    samples: u64,
    threads: FxHashSet<ThreadKey>,
    at_depth_limit: u64,
    has_raw: bool,
    tables: BTreeMap<i128, CountTable>,
    /// Rows of all of them.
    rows: usize,
    losses: Vec<Loss>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.samples == 0 && self.tables.is_empty() && self.losses.is_empty()
    }
}

struct Heartbeats {
    /// When the next one is due; `None` for never.
    due: Option<u64>,
    period: u64,
    waiting: Vec<Heartbeat>,
}

impl RunStream {
    /// A run whose parts are separated by `framing`.
    pub fn new(framing: Framing, options: StreamOptions) -> Self {
        let usual = if framing == Framing::Files { Flush::OF_FILE } else { Flush::OF_PARTS };
        let tables = Arc::<Tables>::default();
        let encoder = Encoder::new(&options.run_id);
        let envelope = encoder.envelope_len(MessageType::Raw);
        RunStream {
            flush: options.flush.unwrap_or(usual),
            framing,
            encoder,
            text: Vec::new(),
            raw: RawLines::new(envelope, options.max_line - envelope, options.threads),
            run: None,
            aggregator: Aggregator::new(&tables, 0, None),
            totals: Totals::default(),
            used: UsedFrames::new(&tables),
            counted_from: Vec::new(),
            tables,
            window_end: None,
            batch: Batch::default(),
            samples: 0,
            samples_total: 0,
            span: None,
            heartbeats: Heartbeats { due: None, period: 0, waiting: Vec::new() },
            lost: BTreeMap::new(),
            complete: true,
            after_batch: Vec::new(),
            at_end: Vec::new(),
            order: ChunkOrder::default(),
            gaps: 0,
            options,
        }
    }

    /// Adds a profile: the run's only one, or its next part.
    ///
    /// # Errors
    ///
    /// As for [`to_stream`].
    pub fn profile<R: Read + Seek>(&mut self, profile: &mut Profile<R>, sink: &mut impl Write) -> Result<()> {
        let numbers = self.begin(profile.contents(), sink)?;
        let mut counted = self.counted(profile, numbers.as_deref());
        if counted.is_there() && self.options.is_of_counts() {
            self.take_windows(&mut counted, sink)?;
            return self.ended(profile.contents(), sink);
        }
        self.counted_from.clear();
        let (mut replay, contents) = profile.replay()?;
        if let Some(numbers) = numbers {
            replay = replay.renumbered(numbers);
        }
        loop {
            replay.load(self.wanted().samples)?;
            let complete = replay.complete_before();
            let buffer = replay.buffer();
            let Some(key) = buffer.first_key() else { break };
            self.pass(key, sink)?;
            while counted.is_due(key) {
                self.take_window(&mut counted)?;
            }
            self.deliver(buffer, key, complete, counted.is_there());
        }
        self.ended(contents, sink)
    }

    /// How often chunks were missing before one that came.
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Why the run is not whole, if its chunks so far say so.
    pub fn broken_end(&self) -> Option<Error> {
        self.order.broken_end()
    }

    /// The profiler's clock at the start of the run.
    fn start_us(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| run.facts.start_us)
    }

    fn has(&self, message: MessageType) -> bool {
        self.options.types.has(message)
    }

    /// How many samples the next cut may take.
    fn wanted(&mut self) -> Wanted {
        if self.has(MessageType::Raw) {
            self.raw.wanted()
        } else {
            Wanted { samples: CUT, ..Wanted::default() }
        }
    }

    /// The next sample has this key: closes what ends before it.
    fn pass(&mut self, key: u64, sink: &mut impl Write) -> Result<()> {
        if self.window_end.is_some_and(|end| end <= key) {
            self.close_window();
        }
        self.beat(key);
        // A batch of counts alone ends with the window that fills it.
        let is_full = self.flush.samples.is_some_and(|samples| self.batch.fresh >= samples)
            || self.waiting_bytes() >= BATCH_BYTES;
        let is_full = is_full && (self.has(MessageType::Raw) || self.window_end.is_none());
        if self.batch.fresh > 0 && (is_full || self.batch_end().is_some_and(|end| end <= key)) {
            self.close_batch(sink)?;
        }
        Ok(())
    }

    /// Bytes that wait for the end of the batch.
    fn waiting_bytes(&self) -> usize {
        self.raw.waiting_bytes()
            + size_of::<(u32, Counts)>() * self.batch.rows
            + size_of::<Heartbeat>() * self.heartbeats.waiting.len()
    }

    /// When the open batch has to close at the latest.
    fn batch_end(&self) -> Option<u64> {
        self.batch.first_key?.checked_add(self.flush.interval_us()?)
    }

    /// Takes samples off the queues, the first of which has this key, into the batch.
    fn deliver(
        &mut self,
        buffer: &mut ReorderBuffer,
        key: u64,
        complete: Option<OrderKey>,
        is_counted: bool,
    ) {
        self.batch.first_key.get_or_insert(key);
        self.window_end = self.aggregator.window_end(key);
        let ends = [self.window_end, self.heartbeats.due, self.batch_end()];
        let before = ends.into_iter().flatten().map(OrderKey::first_at).chain(complete).min();
        let flush = self.flush.samples.filter(|_| self.has(MessageType::Raw));
        let room = flush.map_or(u64::MAX, |samples| samples.saturating_sub(self.batch.fresh));
        let room = usize::try_from(room).unwrap_or(usize::MAX).max(1);
        // A batch closes after the instant that fills it, a message before the one that passes its line.
        let wanted = match self.wanted() {
            // No small group stays for the end of a batch.
            Wanted { samples, is_group: true, .. } => room.div_ceil(room.div_ceil(samples)),
            Wanted { samples, .. } => samples,
        };
        let (wanted, cut) =
            if room <= wanted { (room, Cut::AfterInstant) } else { (wanted, Cut::BeforeInstant) };
        let taken = buffer.cut(wanted, before, cut);
        if self.has(MessageType::Raw) {
            self.raw.add(self.batch.index, buffer);
            self.batch.has_raw = true;
        }
        for slice in buffer.slices() {
            self.note(&slice);
            self.note_stacks(&slice, is_counted);
        }
        if self.options.types.asks_for(MessageType::FrameDef)
            || self.options.types.asks_for(MessageType::StrDef)
        {
            self.note_frames(buffer);
        }
        if self.has(MessageType::Agg) && !is_counted {
            for slice in buffer.slices() {
                self.aggregator.count(&slice);
            }
        }
        buffer.advance();
        self.batch.samples += taken as u64;
        self.batch.fresh += taken as u64;
        self.samples += taken as u64;
    }

    fn note(&mut self, slice: &ThreadSamples<'_>) {
        let times = slice.times();
        let span = if slice.is_rising() {
            Some(TimeSpan { first_us: times[0], last_us: times[times.len() - 1] })
        } else {
            TimeSpan::of(times)
        };
        if let Some(span) = span {
            self.note_span(span);
        }
        self.batch.threads.insert(slice.thread());
    }

    fn note_span(&mut self, span: TimeSpan) {
        span.add_to(&mut self.batch.span);
        span.add_to(&mut self.span);
    }

    fn note_stacks(&mut self, slice: &ThreadSamples<'_>, is_counted: bool) {
        if is_counted {
            let at_limit = slice.runs().filter(|run| run.keep + run.pushed.len() == STACK_DEPTH);
            self.batch.at_depth_limit += at_limit.map(|run| run.samples as u64).sum::<u64>();
            return;
        }
        if slice.index() >= self.counted_from.len() {
            self.counted_from.resize(slice.index() + 1, usize::MAX);
        }
        let counted_from = &mut self.counted_from[slice.index()];
        for run in slice.runs() {
            if *counted_from >= run.keep {
                let counted = run.pushed.iter().rev().position(|frame| self.aggregator.counts(*frame));
                *counted_from = counted.map_or(usize::MAX, |at| run.keep + at);
            }
            if *counted_from != usize::MAX {
                self.samples_total += run.samples as u64;
            }
            if run.keep + run.pushed.len() == STACK_DEPTH {
                self.batch.at_depth_limit += run.samples as u64;
            }
        }
    }

    fn note_frames(&mut self, buffer: &ReorderBuffer) {
        for slice in buffer.slices() {
            slice.stack().iter().for_each(|frame| self.used.note(*frame));
            slice.runs().for_each(|run| run.pushed.iter().for_each(|frame| self.used.note(*frame)));
        }
    }

    fn close_window(&mut self) {
        self.window_end = None;
        for (start, table) in self.aggregator.close_windows() {
            let table = match self.batch.tables.remove(&start) {
                Some(earlier) => {
                    self.batch.rows -= earlier.rows.len();
                    merged(earlier, table)
                }
                None => table,
            };
            self.batch.rows += table.rows.len();
            self.batch.tables.insert(start, table);
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

    /// Unix time of a time of the profiler's clock, where the two are known to go together.
    fn wall_us(&self, time_us: u64) -> Option<i64> {
        self.run.as_ref()?.wall?.wall_at(time_us)
    }

    /// Writes the open batch, unless only counts would stand in it: then it goes on.
    fn close_batch(&mut self, sink: &mut impl Write) -> Result<()> {
        let has_content = self.batch.has_raw
            || !self.batch.tables.is_empty()
            || size_of::<Heartbeat>() * self.heartbeats.waiting.len() >= BATCH_BYTES;
        if !has_content && (self.has(MessageType::Raw) || self.has(MessageType::Agg)) {
            self.batch.first_key = None;
            self.batch.fresh = 0;
            return Ok(());
        }
        self.write_batch(None, sink)
    }
}
