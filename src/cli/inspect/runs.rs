//! The summary of one run of a stream, updated message by message.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::cli::inspect::ThreadReport;
use crate::cli::inspect::text::counted;
use crate::error::{Error, Position, Result};
use crate::limits::RUN_KEPT;
use crate::model::{ThreadKey, TimeSpan};
use crate::protocol::message::{
    Capture, End, ErrorMessage, IdScope, Loss, LossAmount, LossReason, Meta, Stats, VERSION,
};
use crate::protocol::{CpythonMessage, Envelope, Message, RawColumns, decode_cpython, quoted};

/// Gaps and errors that are listed; more are counted.
const LISTED: usize = 100;
/// Largest number of message types and loss reasons that are counted separately, and of the bytes of each.
const NAMES: usize = 64;
/// Bytes of text that count as one of what is kept.
const TEXT_KEPT: usize = 64;
/// What a thread counts for, with its row of the report.
const THREAD_KEPT: usize = 4;

/// A run, as far as it is read.
#[derive(Default, Serialize)]
pub(crate) struct RunSummary {
    pub run_id: String,
    /// Version of its schema.
    pub v: u64,
    pub first_line: u64,
    /// Whether there is an end message.
    pub ended: bool,
    /// What the end message says of the whole; CPython's own says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
    pub messages: u64,
    pub messages_by_type: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batches: Option<u64>,
    #[serde(flatten)]
    pub facts: Facts,
    /// Samples that the batches announce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_announced: Option<u64>,
    /// Samples in raw messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_raw: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_raw_empty: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<EndFacts>,
    /// CPython's own JSONL: samples that hold a frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_count: Option<usize>,
    /// Without raw messages: the most threads of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads_in_a_batch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_usec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_usec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_to_last_sample_usec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Stats>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub losses: BTreeMap<String, LossTotal>,
    #[serde(skip_serializing_if = "is_zero")]
    pub missing_messages: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
    #[serde(skip_serializing_if = "is_zero")]
    pub out_of_order_messages: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub messages_after_end: u64,
    /// Ids that a batch uses and does not define.
    #[serde(skip_serializing_if = "is_zero")]
    pub undefined_strings: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub undefined_frames: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub error_count: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorMessage>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadReport>,
    #[serde(skip)]
    state: RunState,
}

/// What the run's first meta message says.
#[derive(Default, Serialize)]
pub(crate) struct Facts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_start_usec: Option<u64>,
    /// Unix time of the run's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_start_wall_usec: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_interval_usec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<Capture>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_scope: Option<IdScope>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_types: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// The end message's own counts.
#[derive(Serialize)]
pub(crate) struct EndFacts {
    pub batches: u64,
    pub messages: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    pub samples_total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_empty: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_usec: Option<u64>,
}

/// All loss messages of one reason.
#[derive(Default, Serialize)]
pub(crate) struct LossTotal {
    pub messages: u64,
    #[serde(flatten)]
    pub amount: LossAmount,
}

/// Messages that never came.
#[derive(Serialize)]
pub(crate) struct Gap {
    pub first_seq: u64,
    pub last_seq: u64,
    /// The message after the gap.
    pub line: u64,
}

#[derive(Default)]
struct RunState {
    next_seq: u64,
    threads: FxHashMap<ThreadKey, ThreadTotal>,
    /// The threads in order of appearance.
    order: Vec<ThreadKey>,
    meta_span: Option<TimeSpan>,
    first_out_of_order: u64,
    first_after_end: u64,
    unknown: u64,
    first_unknown: u64,
    strings: Ids,
    frames: Ids,
    facts_kept: usize,
    fatal: Option<Error>,
}

/// Ids of one kind in a batch.
#[derive(Default)]
struct Ids {
    defined: FxHashSet<u32>,
    undefined: FxHashSet<u32>,
    /// A definition may be among messages that are missing.
    is_doubtful: bool,
    /// Where one was used first without a definition.
    first_line: u64,
}

impl Ids {
    fn open_batch(&mut self) {
        self.defined.clear();
        self.undefined.clear();
        self.is_doubtful = false;
    }

    /// Takes note of uses on this line; how many ids are not defined and were not used before.
    fn use_ids<'a>(&mut self, line: u64, ids: impl IntoIterator<Item = &'a u32>) -> u64 {
        let mut new = 0;
        for id in ids.into_iter().filter(|_| !self.is_doubtful) {
            new += u64::from(!self.defined.contains(id) && self.undefined.insert(*id));
        }
        if new > 0 && self.first_line == 0 {
            self.first_line = line;
        }
        new
    }
}

#[derive(Default)]
struct ThreadTotal {
    samples: u64,
    span: Option<TimeSpan>,
}

/// A name of which there may be any number, of any length, as long as there are few others.
fn name_of(name: &str, others: usize) -> String {
    if others < NAMES && name.len() <= NAMES { name.to_string() } else { "other".to_string() }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl RunSummary {
    /// A run whose first message stands on this line.
    pub fn new(envelope: &Envelope, line: u64) -> Self {
        RunSummary {
            run_id: envelope.run_id.clone(),
            v: envelope.version,
            first_line: line,
            ..RunSummary::default()
        }
    }

    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Whether a message of this version that opens a run opens another one.
    pub fn is_over(&self, version: u64) -> bool {
        self.ended || self.v != version
    }

    /// How much it keeps, in the units of [`KEPT`](crate::limits::KEPT).
    pub fn kept(&self) -> usize {
        let RunState { threads, strings, frames, facts_kept, .. } = &self.state;
        let ids = [strings, frames].map(|ids| ids.defined.len() + ids.undefined.len());
        let listed =
            self.messages_by_type.len() + self.losses.len() + self.gaps.len() + 8 * self.errors.len();
        RUN_KEPT + ids[0] + ids[1] + THREAD_KEPT * threads.len() + listed + facts_kept
    }

    /// Takes a message. The columns of a raw message are in `columns`; `line` is the whole line, as it
    /// was for messages of CPython's own.
    pub fn message(
        &mut self,
        number: u64,
        seq: Option<u64>,
        message: Message,
        columns: &RawColumns,
        line: &[u8],
    ) -> Result<()> {
        let kind = match &message {
            Message::CPython(kind) => {
                self.cpython(kind, line)?;
                kind.as_str()
            }
            Message::Unknown(kind) => {
                self.state.unknown += 1;
                if self.state.unknown == 1 {
                    self.state.first_unknown = number;
                }
                kind.as_str()
            }
            Message::Meta(_) => "meta",
            Message::StrDef(_) => "str_def",
            Message::FrameDef(_) => "frame_def",
            Message::Raw => "raw",
            Message::Agg(_) => "agg",
            Message::Loss(_) => "loss",
            Message::Heartbeat(_) => "heartbeat",
            Message::Error(_) => "error",
            Message::End(_) => "end",
        };
        match self.messages_by_type.get_mut(kind) {
            Some(count) => *count += 1,
            None => {
                *self.messages_by_type.entry(name_of(kind, self.messages_by_type.len())).or_default() += 1
            }
        }
        self.messages += 1;
        let is_end = matches!(&message, Message::End(_))
            || matches!(&message, Message::CPython(kind) if kind == "end");
        if self.ended && !matches!(&message, Message::Unknown(_)) {
            self.messages_after_end += 1;
            if self.messages_after_end == 1 {
                self.state.first_after_end = number;
            }
        }
        self.ended |= is_end;
        if self.v == VERSION
            && let Some(seq) = seq
        {
            self.seq(number, seq);
        }
        match message {
            Message::Meta(meta) => self.meta(*meta),
            Message::StrDef(body) => self.state.strings.defined.extend(body.str_id),
            Message::FrameDef(body) => {
                let names = body.path_str_id.iter().chain(&body.func_str_id);
                self.undefined_strings += self.state.strings.use_ids(number, names);
                self.state.frames.defined.extend(body.frame_id);
            }
            Message::Agg(body) => {
                self.undefined_frames += self.state.frames.use_ids(number, &body.frame_id);
            }
            Message::Raw => {
                self.undefined_frames += self.state.frames.use_ids(number, &columns.stack_frame_id);
                self.raw(columns);
            }
            Message::Loss(loss) => self.loss(&loss),
            Message::Error(error) => self.error(number, error),
            Message::End(end) => self.end(*end),
            _ => {}
        }
        Ok(())
    }

    fn seq(&mut self, number: u64, seq: u64) {
        let next = self.state.next_seq;
        if seq < next {
            self.out_of_order_messages += 1;
            if self.out_of_order_messages == 1 {
                self.state.first_out_of_order = number;
            }
            return;
        }
        if seq > next {
            self.state.strings.is_doubtful = true;
            self.state.frames.is_doubtful = true;
            self.missing_messages = self.missing_messages.saturating_add(seq - next);
            if self.gaps.len() < LISTED {
                self.gaps.push(Gap { first_seq: next, last_seq: seq - 1, line: number });
            }
        }
        self.state.next_seq = seq.saturating_add(1);
    }

    fn meta(&mut self, meta: Meta) {
        self.state.strings.open_batch();
        self.state.frames.open_batch();
        *self.batches.get_or_insert(0) += 1;
        let announced = self.samples_announced.get_or_insert(0);
        *announced = announced.saturating_add(meta.samples.unwrap_or(0));
        let timing = meta.timing();
        if let Some(timing) = timing {
            let threads = self.threads_in_a_batch.get_or_insert(0);
            *threads = timing.thread_count.max(*threads);
            if timing.samples > 0 {
                let last_us = timing.start_usec.saturating_add(timing.duration_usec);
                let span = TimeSpan { first_us: timing.start_usec, last_us };
                span.add_to(&mut self.state.meta_span);
            }
        }
        if self.facts.id_scope.is_some() {
            return;
        }
        let texts = [&meta.python, &meta.clock, &meta.mode].into_iter().flatten();
        let labels = meta.labels.iter().flatten().flat_map(|(key, value)| [key, value]);
        let texts = texts.chain(labels).chain(meta.stream_types.iter().flatten());
        self.state.facts_kept = texts.map(|text| 1 + text.len() / TEXT_KEPT).sum();
        let before = timing.map(|timing| i128::from(timing.start_usec) - i128::from(timing.run_start_usec));
        self.facts = Facts {
            python: meta.python,
            clock: meta.clock,
            run_start_usec: meta.run_start_usec,
            run_start_wall_usec: meta
                .wall_usec
                .zip(before)
                .and_then(|(wall, before)| i64::try_from(i128::from(wall) - before).ok()),
            sample_interval_usec: meta.sample_interval_usec,
            mode: meta.mode,
            capture: meta.capture,
            id_scope: Some(meta.id_scope),
            stream_types: meta.stream_types,
            labels: meta.labels,
        };
    }

    fn raw(&mut self, columns: &RawColumns) {
        let mut empty = 0;
        for thread in columns.threads() {
            let key = ThreadKey { interpreter_id: thread.interpreter_id, thread_id: thread.thread_id };
            let total = self.state.threads.entry(key).or_insert_with(|| {
                self.state.order.push(key);
                ThreadTotal::default()
            });
            total.samples += thread.times_usec.len() as u64;
            if let Some(span) = TimeSpan::of(&thread.times_usec) {
                span.add_to(&mut total.span);
            }
            empty += thread.empty() as u64;
        }
        *self.samples_raw.get_or_insert(0) += columns.samples;
        *self.samples_raw_empty.get_or_insert(0) += empty;
    }

    fn loss(&mut self, loss: &Loss) {
        let is_known = self.losses.contains_key(&loss.reason);
        let name = if is_known { loss.reason.clone() } else { name_of(&loss.reason, self.losses.len()) };
        let total = self.losses.entry(name).or_default();
        total.messages += 1;
        total.amount.add(&loss.amount);
    }

    fn error(&mut self, number: u64, error: ErrorMessage) {
        self.error_count += 1;
        if error.fatal && self.state.fatal.is_none() {
            let fault = format!("the stream reports an error: {}", quoted(&error.detail));
            self.state.fatal = Some(Error::stream(fault).at(Position::Line(number)));
        }
        if self.errors.len() < LISTED {
            let [code, detail] = [&error.code, &error.detail].map(|text| quoted(text).into_owned());
            self.errors.push(ErrorMessage { code, detail, ..error });
        }
    }

    fn end(&mut self, end: End) {
        self.complete = Some(end.complete);
        self.measured = end.stats;
        self.end = Some(EndFacts {
            batches: end.batches,
            messages: end.messages,
            samples: end.samples,
            samples_total: end.samples_total,
            samples_empty: end.samples_empty,
            duration_usec: end.duration_usec,
        });
    }

    /// Counts what stands in a line of CPython's own.
    fn cpython(&mut self, kind: &str, line: &[u8]) -> Result<()> {
        match decode_cpython(kind, line)? {
            CpythonMessage::Meta { sample_interval_usec, mode } => {
                self.facts.sample_interval_usec = sample_interval_usec;
                self.facts.mode = mode;
            }
            CpythonMessage::Strings(strings) => {
                *self.string_count.get_or_insert(0) += strings.len() as u64;
            }
            CpythonMessage::Frames(frames) => *self.frame_count.get_or_insert(0) += frames.len() as u64,
            CpythonMessage::Agg { samples_total, .. } => self.samples_total = Some(samples_total),
            CpythonMessage::End { samples_total } => {
                self.samples_total = samples_total.or(self.samples_total)
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds up what is known only now, and returns what is wrong.
    pub fn finish(&mut self) -> Vec<Error> {
        let RunState { threads, order, meta_span, .. } = &self.state;
        let mut span = *meta_span;
        if self.samples_raw.is_some() {
            span = threads.values().filter_map(|thread| thread.span).reduce(TimeSpan::join);
            self.thread_count = Some(threads.len());
            self.threads_in_a_batch = None;
            self.threads = order
                .iter()
                .map(|key| ThreadReport::new(*key, threads[key].samples, threads[key].span))
                .collect();
        }
        self.first_usec = span.map(|span| span.first_us);
        self.last_usec = span.map(|span| span.last_us);
        self.first_to_last_sample_usec = span.map(TimeSpan::duration_us);
        self.faults()
    }

    fn faults(&mut self) -> Vec<Error> {
        let mut faults: Vec<Error> = self.state.fatal.take().into_iter().collect();
        let mut tell = |what: String, line: Option<u64>| {
            let fault = Error::stream(format!("run {}: {what}", self.run_id));
            faults.push(match line {
                Some(line) => fault.at(Position::Line(line)),
                None => fault,
            });
        };
        if self.missing_messages > 0 {
            let what = format!("{} missing", counted(self.missing_messages, "message"));
            tell(what, self.gaps.first().map(|gap| gap.line));
        }
        if self.out_of_order_messages > 0 {
            let what = format!("{} out of order", counted(self.out_of_order_messages, "message"));
            tell(what, Some(self.state.first_out_of_order));
        }
        if self.messages_after_end > 0 {
            let what = format!("{} after its end", counted(self.messages_after_end, "message"));
            tell(what, Some(self.state.first_after_end));
        }
        let RunState { strings, frames, .. } = &self.state;
        for (ids, count, what) in
            [(strings, self.undefined_strings, "string"), (frames, self.undefined_frames, "frame")]
        {
            if count > 0 {
                tell(format!("{} not defined in the batch", counted(count, what)), Some(ids.first_line));
            }
        }
        let harmless = [LossReason::SamplerMissed, LossReason::SamplerFailed, LossReason::Depth];
        for (reason, total) in &self.losses {
            if harmless.iter().all(|harmless| harmless.name() != reason) {
                tell(format!("{} ({reason})", counted(total.messages, "loss message")), None);
            }
        }
        let no_end_wanted =
            self.facts.stream_types.as_ref().is_some_and(|types| types.iter().any(|name| name == "-end"));
        if !self.ended && !no_end_wanted {
            tell("no end message: the stream was cut off or is still being written".to_string(), None);
        }
        if self.complete == Some(false) {
            tell("its end message says that it is not complete".to_string(), None);
        }
        faults
    }

    /// A sentence on messages that this program does not know.
    pub fn unknown_types(&self) -> Option<String> {
        let RunState { unknown, first_unknown, .. } = self.state;
        (unknown > 0).then(|| {
            format!("{} of unknown type skipped (line {first_unknown} first)", counted(unknown, "message"))
        })
    }
}
