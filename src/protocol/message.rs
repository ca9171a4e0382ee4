//! The messages: one struct each, with fields in wire order.
//!
//! A line is the envelope (`type`, `v`, `run_id`, `seq`) and the fields of one of these structs. `None`
//! is left out. Times are microseconds of the profiler's monotonic clock unless a name says
//! `wall`. `schema/README.md` says the same for readers in any language.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model;
use crate::protocol::text;

/// The version of the schema, the `v` of every message.
pub const VERSION: u64 = 2;

/// Opens a batch: what follows, and the facts of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Number of the batch in its run, from 0.
    pub batch: u64,
    /// How many messages of this batch follow.
    pub messages: u64,
    /// Earliest sample time of the batch; `run_start_usec` where it has no sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_usec: Option<u64>,
    /// From there to its latest sample time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_usec: Option<u64>,
    /// Samples of the batch; a sample is one thread at one instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// (interpreter, thread) pairs that have a sample in the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_count: Option<u64>,
    /// When the run began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_start_usec: Option<u64>,
    /// Planned time between two instants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_interval_usec: Option<u64>,
    /// "wall", "cpu", "gil", "all" or "exception".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// What was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<Capture>,
    /// Version of the Python that recorded, as "3.15.2".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Whether ids keep their meaning from batch to batch.
    pub id_scope: IdScope,
    /// The types that were asked for, as they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text::few")]
    pub stream_types: Option<Vec<String>>,
    /// The clock of all times: "monotonic".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<String>,
    /// Unix time of `start_usec`, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_usec: Option<i64>,
    /// The user's own facts.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text::few_by_key")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// When and how much was sampled. A run that was made of counts alone knows nothing of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// As [`Meta::start_usec`].
    pub start_usec: u64,
    /// As [`Meta::duration_usec`].
    pub duration_usec: u64,
    /// As [`Meta::samples`].
    pub samples: u64,
    /// As [`Meta::thread_count`].
    pub thread_count: u64,
    /// As [`Meta::run_start_usec`].
    pub run_start_usec: u64,
}

impl Meta {
    /// When and how much was sampled, where all of it is known.
    pub fn timing(&self) -> Option<Timing> {
        Some(Timing {
            start_usec: self.start_usec?,
            duration_usec: self.duration_usec?,
            samples: self.samples?,
            thread_count: self.thread_count?,
            run_start_usec: self.run_start_usec?,
        })
    }
}

/// What a profiler was asked to record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capture {
    /// All threads, not only the main one.
    pub all_threads: bool,
    /// `<native>` frames.
    pub native: bool,
    /// `<GC>` frames.
    pub gc: bool,
    /// Bytecode instructions.
    pub opcodes: bool,
    /// The target was stopped for each sample.
    pub blocking: bool,
}

impl From<model::Capture> for Capture {
    fn from(capture: model::Capture) -> Self {
        let model::Capture { all_threads, native, gc, opcodes, blocking } = capture;
        Capture { all_threads, native, gc, opcodes, blocking }
    }
}

impl From<Capture> for model::Capture {
    fn from(capture: Capture) -> Self {
        let Capture { all_threads, native, gc, opcodes, blocking } = capture;
        model::Capture { all_threads, native, gc, opcodes, blocking }
    }
}

/// How far an id reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdScope {
    /// Through the run.
    Run,
    /// Through its batch.
    #[default]
    Batch,
}

/// Defines strings, as columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StrDef {
    /// The batch that uses them.
    pub batch: u64,
    /// Ids.
    pub str_id: Vec<u32>,
    /// Values, U+FFFD in place of what is not UTF-8.
    pub value: Vec<String>,
    /// The bytes of the strings that are not UTF-8: id -> base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<BTreeMap<u32, String>>,
}

/// Defines frames, as columns. A null `line` is a frame without a location, whatever else it has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FrameDef {
    /// The batch that uses them.
    pub batch: u64,
    /// Ids.
    pub frame_id: Vec<u32>,
    /// File names.
    pub path_str_id: Vec<u32>,
    /// Qualified function names.
    pub func_str_id: Vec<u32>,
    /// First lines, from 1.
    #[serde(skip_serializing_if = "all_null")]
    pub line: Option<Vec<Option<i32>>>,
    /// Last lines.
    #[serde(skip_serializing_if = "all_null")]
    pub end_line: Option<Vec<Option<i32>>>,
    /// First columns, UTF-8 bytes from 0.
    #[serde(skip_serializing_if = "all_null")]
    pub col: Option<Vec<Option<i32>>>,
    /// Columns after the last.
    #[serde(skip_serializing_if = "all_null")]
    pub end_col: Option<Vec<Option<i32>>>,
    /// Bytecode instructions.
    #[serde(skip_serializing_if = "all_null")]
    pub opcode: Option<Vec<Option<u8>>>,
}

fn all_null<T>(column: &Option<Vec<Option<T>>>) -> bool {
    column.as_ref().is_none_or(|column| column.iter().all(Option::is_none))
}

/// Counts by frame, of a window or of the whole run, as columns in order of `frame_id`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agg {
    /// The batch in which the counting ended.
    pub batch: u64,
    /// What is counted: "frame".
    pub kind: String,
    /// "window" or "final".
    pub scope: String,
    /// Start of the window, or the earliest sample time. Negative in absurd profiles only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_usec: Option<i128>,
    /// Length of the window, or from the earliest sample time to the latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_usec: Option<u64>,
    /// Samples that hold at least one frame.
    pub samples_total: u64,
    /// Samples that hold none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_empty: Option<u64>,
    /// Frames.
    pub frame_id: Vec<u32>,
    /// Samples with the frame innermost.
    #[serde(rename = "self")]
    pub self_: Vec<u64>,
    /// Samples with the frame anywhere.
    pub cumulative: Vec<u64>,
}

/// What is missing from the stream, each quantity where it is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// The batch that it belongs to, if it belongs to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Why: one of [`LossReason`]'s names.
    pub reason: String,
    /// How much.
    #[serde(flatten)]
    pub amount: LossAmount,
    /// First of the messages that are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seq: Option<u64>,
    /// Last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<u64>,
    /// When the loss began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_usec: Option<u64>,
    /// How long it went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_usec: Option<u64>,
}

impl Loss {
    /// Whether it stands in the place of messages that are missing, the last of which has this number. It
    /// does so wherever they would have been, and whatever types were asked for.
    pub fn stands_for(&self, seq: u64) -> bool {
        self.first_seq.is_some_and(|first| first <= seq) && self.last_seq == Some(seq)
    }
}

/// How much is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossAmount {
    /// Samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_samples: Option<u64>,
    /// Messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_messages: Option<u64>,
    /// Bytes of the input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_bytes: Option<u64>,
    /// Percentage of what was planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_percent: Option<f64>,
    /// Samples that are there but may lack something (reason "depth").
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
}

impl LossAmount {
    /// Adds what another message of the same reason says; counts stop at their greatest value, and of
    /// percentages, which are of different wholes, the largest stays.
    pub fn add(&mut self, other: &LossAmount) {
        fn sum<T: Copy>(a: &mut Option<T>, b: Option<T>, add: impl Fn(T, T) -> T) {
            *a = match (*a, b) {
                (Some(a), Some(b)) => Some(add(a, b)),
                (a, b) => a.or(b),
            };
        }
        sum(&mut self.lost_samples, other.lost_samples, u64::saturating_add);
        sum(&mut self.lost_messages, other.lost_messages, u64::saturating_add);
        sum(&mut self.lost_bytes, other.lost_bytes, u64::saturating_add);
        sum(&mut self.lost_percent, other.lost_percent, f64::max);
        sum(&mut self.samples, other.samples, u64::saturating_add);
    }
}

/// Why something is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LossReason {
    /// Planned instants never came: the profile's measured statistics.
    SamplerMissed,
    /// Stacks could not be read: the profile's measured statistics.
    SamplerFailed,
    /// Messages were dropped for a slow reader.
    Backpressure,
    /// Records could not be read.
    Corrupt,
    /// The input ends before its end.
    Truncated,
    /// Messages or chunks never arrived.
    Gap,
    /// Samples sit at the writer's depth limit; outer frames may be missing.
    Depth,
}

impl LossReason {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            LossReason::SamplerMissed => "sampler_missed",
            LossReason::SamplerFailed => "sampler_failed",
            LossReason::Backpressure => "backpressure",
            LossReason::Corrupt => "corrupt",
            LossReason::Truncated => "truncated",
            LossReason::Gap => "gap",
            LossReason::Depth => "depth",
        }
    }
}

/// A sign of life between batches. All counts are since the run began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// How far the stream has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts_usec: Option<u64>,
    /// Unix time of `ts_usec`, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_usec: Option<i64>,
    /// Samples before `ts_usec`.
    pub samples: u64,
    /// Batches sent.
    pub batches: u64,
    /// Messages dropped for a slow reader.
    pub dropped_messages: u64,
}

/// Something went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorMessage {
    /// One of the codes in `schema/README.md`.
    pub code: String,
    /// What, for people.
    pub detail: String,
    /// Byte of the input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Whether the stream is incomplete for it.
    pub fatal: bool,
}

/// The last message of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Whether the whole input is in the stream.
    pub complete: bool,
    /// Batches of the run.
    pub batches: u64,
    /// Messages of the run, this one included.
    pub messages: u64,
    /// Samples of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Those that hold at least one frame, counted as in agg.
    pub samples_total: u64,
    /// Those that hold none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_empty: Option<u64>,
    /// From the earliest sample time to the latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_usec: Option<u64>,
    /// Totals of the loss messages by reason.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text::few_by_key")]
    pub lost: Option<BTreeMap<String, LossAmount>>,
    /// What the profiler measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
}

/// What the profiler measured about itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Seconds of sampling.
    pub duration_sec: f64,
    /// Instants a second.
    pub sample_rate: f64,
    /// Percentage of instants whose stacks could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_rate: Option<f64>,
    /// Percentage of planned instants that never came; may be negative.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed_samples: Option<f64>,
}

impl From<model::Statistics> for Stats {
    fn from(statistics: model::Statistics) -> Self {
        let model::Statistics { duration_sec, sample_rate, error_rate, missed_samples } = statistics;
        Stats { duration_sec, sample_rate, error_rate, missed_samples }
    }
}

impl From<Stats> for model::Statistics {
    fn from(stats: Stats) -> Self {
        let Stats { duration_sec, sample_rate, error_rate, missed_samples } = stats;
        model::Statistics { duration_sec, sample_rate, error_rate, missed_samples }
    }
}
