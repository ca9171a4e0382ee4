//! A binary profile into a stream.

use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

use crate::convert::aggregate::{Aggregator, Table};
use crate::convert::definitions::UsedFrames;
use crate::convert::options::StreamOptions;
use crate::convert::raw::RawBuilder;
use crate::error::{Error, Position, Result};
use crate::format::{Contents, Fault, FaultCode, Profile};
use crate::limits::STACK_DEPTH;
use crate::model::{Cut, Lanes, Slice};
use crate::protocol::message::{
    self, Agg, End, ErrorMessage, Heartbeat, IdScope, Loss, LossAmount, LossReason, Meta,
};
use crate::protocol::{Encoder, MessageType, split};

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

    /// Writes the open batch with these losses and this final table, and opens the next.
    fn write_batch(&mut self, mut losses: Vec<Loss>, whole: Option<Table>) -> Result<()> {
        let next = Batch { index: self.batch.index + 1, ..Batch::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        if batch.at_depth_limit > 0 {
            let amount = LossAmount { samples: Some(batch.at_depth_limit), ..LossAmount::default() };
            losses.insert(0, loss(LossReason::Depth, amount));
        }
        for loss in &mut losses {
            self.lost.entry(loss.reason.clone()).or_default().add(&loss.amount);
            loss.batch = Some(batch.index);
        }
        losses.retain(|_| self.has(MessageType::Loss));
        let aggs = self.aggs(&batch, whole);
        let (frames, strings) = self.used.take(&self.contents.tables);
        let limit = |message| self.options.max_line - self.encoder.envelope_len(message);
        let tables = &self.contents.tables;
        let mut str_defs = Vec::new();
        if self.has(MessageType::StrDef) {
            let strings = strings.iter().map(|id| (*id, tables.strings.get(*id).unwrap_or_default()));
            str_defs = split::str_defs(batch.index, strings, limit(MessageType::StrDef));
        }
        let mut frame_defs = Vec::new();
        if self.has(MessageType::FrameDef) {
            let frames = frames.iter().map(|id| (*id, tables.frames[*id as usize]));
            frame_defs = split::frame_defs(batch.index, frames, limit(MessageType::FrameDef));
        }
        let messages = str_defs.len() + frame_defs.len() + batch.raw_ends.len() + aggs.len() + losses.len();
        let meta = self.meta(&batch, messages as u64);

        let Stream { encoder, text, .. } = self;
        text.clear();
        if self.options.types.has(MessageType::Meta) {
            encoder.message(text, MessageType::Meta, &meta);
            if text.len() > self.options.max_line {
                return Err(Error::usage(format!(
                    "the labels make a meta message of {} bytes, over the line limit",
                    text.len()
                )));
            }
        }
        str_defs.iter().for_each(|body| encoder.message(text, MessageType::StrDef, body));
        frame_defs.iter().for_each(|body| encoder.message(text, MessageType::FrameDef, body));
        let mut start = 0;
        for end in &batch.raw_ends {
            encoder.body(text, MessageType::Raw, &batch.raw[start..*end]);
            start = *end;
        }
        aggs.iter().for_each(|body| encoder.message(text, MessageType::Agg, body));
        losses.iter().for_each(|body| encoder.message(text, MessageType::Loss, body));
        for mut heartbeat in self.heartbeats.waiting.drain(..) {
            heartbeat.batches = batch.index + 1;
            encoder.message(text, MessageType::Heartbeat, &heartbeat);
        }
        self.sink.write_all(text)?;
        self.batch.raw = batch.raw;
        self.batch.raw.clear();
        Ok(())
    }

    /// The tables that end with the batch, and the frames in them as used.
    fn aggs(&mut self, batch: &Batch, whole: Option<Table>) -> Vec<Agg> {
        let limit = self.options.max_line - self.encoder.envelope_len(MessageType::Agg);
        let period = self.options.types.window().map_or(0, |period| period.as_micros() as u64);
        let (low, high) = self.contents.scan.span_us.unwrap_or_default();
        let windows = batch.tables.iter().map(|(start, table)| ("window", *start, period, table));
        let whole = whole.iter().map(|table| ("final", i128::from(low), high - low, table));
        let mut messages = Vec::new();
        for (scope, start_usec, duration_usec, table) in windows.chain(whole) {
            table.rows.iter().for_each(|(frame, ..)| self.used.note(*frame));
            let head = Agg {
                batch: batch.index,
                kind: "frame".to_string(),
                scope: scope.to_string(),
                start_usec,
                duration_usec,
                samples_total: table.total,
                samples_empty: table.empty,
                ..Agg::default()
            };
            messages.extend(split::aggs(&head, &table.rows, limit));
        }
        messages
    }

    fn meta(&self, batch: &Batch, messages: u64) -> Meta {
        let facts = &self.contents.header.facts;
        let (low, high) = batch.span_us.unwrap_or((facts.start_us, facts.start_us));
        Meta {
            batch: batch.index,
            messages,
            start_usec: low,
            duration_usec: high - low,
            samples: batch.samples,
            thread_count: batch.threads,
            run_start_usec: facts.start_us,
            sample_interval_usec: facts.interval_us,
            mode: facts.mode.map(|mode| mode.name().to_string()),
            capture: facts.capture.map(|capture| message::Capture {
                all_threads: capture.all_threads,
                native: capture.native,
                gc: capture.gc,
                opcodes: capture.opcodes,
                blocking: capture.blocking,
            }),
            python: facts.python.map(|python| python.to_string()),
            id_scope: IdScope::Run,
            stream_types: self.options.types.items().map(<[String]>::to_vec),
            clock: "monotonic".to_string(),
            wall_usec: self.wall_us(low),
            labels: (!self.options.labels.is_empty()).then(|| self.options.labels.clone()),
        }
    }

    /// Writes the last batch, what went wrong, and the end.
    fn finish(mut self) -> Result<Written> {
        self.close_window();
        let mut whole = None;
        if self.has(MessageType::Agg) && self.options.types.window().is_none() && self.samples > 0 {
            let none = Aggregator::new(&self.contents.tables, 0, None);
            whole = Some(std::mem::replace(&mut self.aggregator, none).finish());
        }
        let statistics = self.contents.statistics;
        let measured = |reason, percent: Option<f64>| {
            let amount = LossAmount {
                lost_percent: percent.filter(|percent| *percent > 0.0),
                ..LossAmount::default()
            };
            amount.lost_percent.map(|_| loss(reason, amount))
        };
        let missed = measured(LossReason::SamplerMissed, statistics.and_then(|s| s.missed_samples));
        let failed = measured(LossReason::SamplerFailed, statistics.and_then(|s| s.error_rate));
        self.write_batch(missed.into_iter().chain(failed).collect(), whole)?;
        self.text.clear();
        let faults: Vec<&Fault> = self.contents.faults.iter().collect();
        for fault in &faults {
            self.fault(fault);
        }
        let span = self.contents.scan.span_us;
        let end = End {
            complete: faults.is_empty(),
            batches: self.batch.index,
            messages: self.encoder.next_seq() + 1,
            samples: self.samples,
            samples_total: self.samples_total,
            samples_empty: self.samples - self.samples_total,
            duration_usec: span.map_or(0, |(low, high)| high - low),
            lost: (!self.lost.is_empty()).then(|| std::mem::take(&mut self.lost)),
            stats: statistics.map(|s| message::Stats {
                duration_sec: s.duration_sec,
                sample_rate: s.sample_rate,
                error_rate: s.error_rate,
                missed_samples: s.missed_samples,
            }),
        };
        if self.has(MessageType::End) {
            self.encoder.message(&mut self.text, MessageType::End, &end);
        }
        self.sink.write_all(&self.text)?;
        self.sink.flush()?;
        Ok(Written {
            complete: end.complete,
            samples: self.samples,
            batches: end.batches,
            messages: self.encoder.next_seq(),
        })
    }

    /// Tells of a fault of the profile, and of the samples that are lost by it.
    fn fault(&mut self, fault: &Fault) {
        let offset = match fault.error.position() {
            Some(Position::Byte(offset)) => Some(offset),
            _ => None,
        };
        let body = ErrorMessage {
            code: fault.code.name().to_string(),
            detail: fault.error.to_string(),
            offset,
            fatal: true,
        };
        if self.has(MessageType::Error) {
            self.encoder.message(&mut self.text, MessageType::Error, &body);
        }
        if fault.code == FaultCode::DamagedSamples {
            let declared = self.contents.header.samples;
            let amount = LossAmount {
                lost_samples: declared.checked_sub(self.samples).filter(|lost| *lost > 0),
                ..LossAmount::default()
            };
            self.lost.entry(LossReason::Corrupt.name().to_string()).or_default().add(&amount);
            if self.has(MessageType::Loss) {
                self.encoder.message(&mut self.text, MessageType::Loss, &loss(LossReason::Corrupt, amount));
            }
        }
    }
}

fn loss(reason: LossReason, amount: LossAmount) -> Loss {
    Loss { reason: reason.name().to_string(), amount, ..Loss::default() }
}
