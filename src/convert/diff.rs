//! Compares two runs: samples and shares by frame, function or file.

use std::collections::HashMap;
use std::io::{Read, Seek};

use crate::convert::counts::{FrameCounts, FrameKey};
use crate::convert::stream_counts::{Counted, StreamCounts};
use crate::counts::By;
use crate::counts::Counting;
use crate::error::{Error, Result};
use crate::format::Profile;
use crate::protocol::message::Capture;

/// One of the two runs.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// What the profiler looked at, where known.
    pub mode: Option<String>,
    /// What it recorded, where known.
    pub capture: Option<Capture>,
    /// Planned time between two instants, microseconds, where known.
    pub interval_us: Option<u64>,
    /// Samples that hold a frame.
    pub samples_total: u64,
    /// Samples that hold none, where known.
    pub samples_empty: Option<u64>,
    counts: HashMap<Subject, SideCounts>,
}

/// What is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// File name.
    pub path: String,
    /// Qualified function name; `None` for a file.
    pub function: Option<String>,
    /// First line; `None` for a function, a file, and a frame without a place.
    pub line: Option<i32>,
    /// Last line.
    pub end_line: Option<i32>,
    /// First column, UTF-8 bytes.
    pub col: Option<i32>,
    /// Column after the last.
    pub end_col: Option<i32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SideCounts {
    self_: u64,
    cumulative: Option<u64>,
}

/// A count before and after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Samples before.
    pub base: u64,
    /// Samples after.
    pub new: u64,
    /// Share of all samples with a frame before, 0 to 1.
    pub base_share: f64,
    /// The same after.
    pub new_share: f64,
}

/// A subject and what changed of it.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffRow {
    /// What is compared.
    pub subject: Subject,
    /// Samples in which it runs.
    pub self_: Change,
    /// Samples in which it is on the stack, where both sides tell that.
    pub cumulative: Option<Change>,
}

impl Change {
    fn new(base: u64, base_total: u64, new: u64, new_total: u64) -> Self {
        let share = |count: u64, total: u64| if total == 0 { 0.0 } else { count as f64 / total as f64 };
        Change { base, new, base_share: share(base, base_total), new_share: share(new, new_total) }
    }

    /// Samples more, or fewer.
    pub fn samples(&self) -> i128 {
        i128::from(self.new) - i128::from(self.base)
    }

    /// The change of the share.
    pub fn share(&self) -> f64 {
        self.new_share - self.base_share
    }

    /// How many times the share is what it was; `None` where it was nothing.
    pub fn ratio(&self) -> Option<f64> {
        (self.base > 0).then(|| self.new_share / self.base_share)
    }
}

/// Counts the samples of a run that comes as profiles.
#[derive(Debug)]
pub struct ProfileSide {
    counts: FrameCounts,
    by: By,
    side: Option<Side>,
}

impl ProfileSide {
    /// Counts of such things.
    pub fn new(by: By) -> Self {
        ProfileSide { counts: FrameCounts::new(by), by, side: None }
    }

    /// What can be counted while the side's profile is opened.
    pub fn counting(&self) -> Counting {
        self.counts.counting()
    }

    /// Adds a profile: the run's only one, or its next part.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn profile<R: Read + Seek>(&mut self, profile: &mut Profile<R>) -> Result<()> {
        let facts = &profile.contents().header.facts;
        self.side.get_or_insert_with(|| Side {
            mode: facts.mode.map(|mode| mode.name().to_string()),
            capture: facts.capture.map(Into::into),
            interval_us: Some(facts.interval_us),
            ..Side::default()
        });
        self.counts.add(profile)
    }

    /// The run's counts.
    pub fn finish(self) -> Side {
        let ProfileSide { counts, by, side } = self;
        let mut side = side.unwrap_or_default();
        side.samples_total = counts.samples_total;
        side.samples_empty = Some(counts.samples_empty);
        let rows = counts.frames().iter().map(|(key, found)| {
            let found = SideCounts { self_: found.self_, cumulative: Some(found.cumulative) };
            (subject(by, key, counts.strings()), found)
        });
        side.counts = rows.collect();
        side
    }
}

/// Counts the samples of one run of a stream: ours, with samples or tables, or CPython's own.
#[derive(Debug)]
pub struct StreamSide {
    counts: StreamCounts,
    by: By,
}

impl StreamSide {
    /// Counts of such things, of the run of this id where there are several.
    pub fn new(by: By, run_id: Option<String>) -> Self {
        StreamSide { counts: StreamCounts::new(by, run_id), by }
    }

    /// Takes the line of this number, from 1. What is damaged is skipped and noted.
    ///
    /// # Errors
    ///
    /// A second run where none was chosen.
    pub fn line(&mut self, number: u64, line: &mut [u8]) -> Result<()> {
        self.counts.line(number, line)
    }

    /// The run's counts, what is damaged or missing, and what was overlooked.
    ///
    /// # Errors
    ///
    /// A stream without samples and tables.
    pub fn finish(self) -> Result<(Side, Vec<Error>, Vec<String>)> {
        let Counted { facts, samples_total, samples_empty, strings, rows, losses, tolerated } =
            self.counts.finish()?;
        let rows = rows.into_iter().map(|(key, self_, cumulative)| {
            (subject(self.by, &key, &strings), SideCounts { self_, cumulative })
        });
        let side = Side {
            mode: facts.mode,
            capture: facts.capture,
            interval_us: facts.interval_us,
            samples_total,
            samples_empty,
            counts: rows.collect(),
        };
        Ok((side, losses, tolerated))
    }
}

fn subject(by: By, key: &FrameKey, strings: &[String]) -> Subject {
    let name = |id: u32| strings.get(id as usize).cloned().unwrap_or_default();
    let has_place =
        by == By::Frame && *key != FrameKey { line: 0, end_line: None, col: None, end_col: None, ..*key };
    Subject {
        path: name(key.path),
        function: (by != By::File).then(|| name(key.function)),
        line: Some(key.line).filter(|_| has_place),
        end_line: key.end_line,
        col: key.col,
        end_col: key.end_col,
    }
}

/// Why two runs should not be compared: what is known of both and differs. And what is known of one alone.
pub fn mismatches(base: &Side, new: &Side) -> (Vec<String>, Vec<String>) {
    let (mut differ, mut unknown) = (Vec::new(), Vec::new());
    match (&base.mode, &new.mode) {
        (Some(a), Some(b)) if a != b => differ.push(format!("mode ({a} and {b})")),
        (Some(_), Some(_)) | (None, None) => {}
        _ => unknown.push("mode".to_string()),
    }
    match (&base.capture, &new.capture) {
        (Some(a), Some(b)) => {
            let settings = [
                ("all_threads", a.all_threads, b.all_threads),
                ("native", a.native, b.native),
                ("gc", a.gc, b.gc),
                ("opcodes", a.opcodes, b.opcodes),
                ("blocking", a.blocking, b.blocking),
            ];
            let on = |on: bool| if on { "on" } else { "off" };
            let differing = settings.into_iter().filter(|(_, a, b)| a != b);
            differ.extend(differing.map(|(name, a, b)| format!("{name} ({} and {})", on(a), on(b))));
        }
        (None, None) => {}
        _ => unknown.push("capture settings".to_string()),
    }
    (differ, unknown)
}

/// What changed, by the change of the share of samples in which the subject runs, the largest first; then by
/// that of the samples in which it is on the stack.
pub fn diff(base: &Side, new: &Side) -> Vec<DiffRow> {
    let mut subjects: Vec<&Subject> = base.counts.keys().collect();
    subjects.extend(new.counts.keys().filter(|subject| !base.counts.contains_key(subject)));
    let all_cumulative = |side: &Side| side.counts.values().all(|counts| counts.cumulative.is_some());
    let has_cumulative = all_cumulative(base) && all_cumulative(new);
    let change =
        |base_count, new_count| Change::new(base_count, base.samples_total, new_count, new.samples_total);
    let rows = subjects.into_iter().map(|subject| {
        let of = |side: &Side| side.counts.get(subject).copied().unwrap_or_default();
        let (before, after) = (of(base), of(new));
        let cumulative = (before.cumulative.unwrap_or(0), after.cumulative.unwrap_or(0));
        DiffRow {
            subject: subject.clone(),
            self_: change(before.self_, after.self_),
            cumulative: has_cumulative.then(|| change(cumulative.0, cumulative.1)),
        }
    });
    let mut rows: Vec<DiffRow> = rows.collect();
    let by_size = |row: &DiffRow| {
        let cumulative = row.cumulative.map_or(0.0, |change| change.share().abs());
        (row.self_.share().abs(), cumulative)
    };
    rows.sort_by(|a, b| {
        let (x, y) = (by_size(a), by_size(b));
        y.0.total_cmp(&x.0).then(y.1.total_cmp(&x.1)).then_with(|| a.subject.cmp(&b.subject))
    });
    rows
}
