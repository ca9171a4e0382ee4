//! Profile to CPython's own JSON Lines.

use std::io::{Read, Seek, Write};

use crate::convert::counts::FrameCounts;
use crate::counts::Counting;
use crate::error::{Error, Result};
use crate::format::{ChunkOrder, Profile};
use crate::model::RunFacts;
use crate::protocol::{CpythonEncoder, CpythonEntry, CpythonFrame, CpythonString};

/// Makes of a run what CPython 3.15's `replay --jsonl` makes of a profile: one table of counts by frame,
/// without samples.
///
/// ```
/// use tachyon_jsonl::convert::CpythonRun;
/// use tachyon_jsonl::format::Profile;
///
/// let file = std::fs::File::open("tests/data/cpython/edge_zero_samples_none.bin")?;
/// let mut run = CpythonRun::new("0b60c1a604e74e9eae8a33cfd2d4332e");
/// run.profile(&mut Profile::open(file)?)?;
/// let mut jsonl = Vec::new();
/// run.finish(&mut jsonl)?;
/// let expected = std::fs::read("tests/data/cpython/edge_zero_samples_none.expected.jsonl")?;
/// assert_eq!(jsonl, expected);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CpythonRun {
    encoder: CpythonEncoder,
    facts: Option<RunFacts>,
    order: ChunkOrder,
    gaps: u64,
    counts: FrameCounts,
}

impl CpythonRun {
    /// A run of this id.
    pub fn new(run_id: &str) -> Self {
        CpythonRun {
            encoder: CpythonEncoder::new(run_id),
            facts: None,
            order: ChunkOrder::default(),
            gaps: 0,
            counts: FrameCounts::default(),
        }
    }

    /// What can be counted while a profile of the run is opened.
    pub fn counting() -> Counting {
        FrameCounts::default().counting()
    }

    /// A part of the run was skipped: the format has no place for that.
    pub fn lost(&mut self) {
        self.order.lost();
    }

    /// How often chunks were missing before one that came.
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Why the run is not whole, if its chunks so far say so: see [`ChunkOrder::broken_end`].
    pub fn broken_end(&self) -> Option<Error> {
        self.order.broken_end()
    }

    /// Counts the samples of a profile: the run's only one, or its next part.
    ///
    /// # Errors
    ///
    /// Errors of the profile's source.
    pub fn profile<R: Read + Seek>(&mut self, profile: &mut Profile<R>) -> Result<()> {
        if let Some(chunk) = &profile.contents().chunk {
            self.gaps += u64::from(self.order.is_gap_before(chunk));
        }
        self.facts.get_or_insert_with(|| profile.contents().header.facts.clone());
        self.counts.add(profile)
    }

    /// Writes the lines, and returns the number of samples that hold a frame.
    ///
    /// # Errors
    ///
    /// Errors of `sink`.
    pub fn finish(self, sink: &mut impl Write) -> Result<u64> {
        let CpythonRun { encoder, facts, counts, .. } = self;
        let facts = facts.unwrap_or_default();
        let ids = 0u32..;
        let mut out = Vec::new();
        encoder.meta(&mut out, facts.interval_us, facts.mode.map(|mode| mode.name()));
        let strings = ids.clone().zip(counts.strings());
        let strings: Vec<_> = strings.map(|(str_id, value)| CpythonString { str_id, value }).collect();
        encoder.strings(&mut out, &strings);
        let frames = ids.clone().zip(counts.frames()).map(|(frame_id, (key, _))| CpythonFrame {
            frame_id,
            path_str_id: key.path,
            func_str_id: key.function,
            line: key.line,
            end_line: key.end_line,
            col: key.col,
            end_col: key.end_col,
            synthetic: false,
        });
        encoder.frames(&mut out, &frames.collect::<Vec<_>>());
        let entries = ids.zip(counts.frames()).map(|(frame_id, (_, counts))| CpythonEntry {
            frame_id,
            self_: counts.self_,
            cumulative: counts.cumulative,
        });
        encoder.agg(&mut out, counts.samples_total, &entries.collect::<Vec<_>>());
        encoder.end(&mut out, counts.samples_total);
        sink.write_all(&out)?;
        Ok(counts.samples_total)
    }
}
