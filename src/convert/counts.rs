//! Counts over a whole run as CPython's exporters make them: frames by content, in the order of their first records;
//! also functions and files.

use std::io::{Read, Seek};

use rustc_hash::FxHashMap;

use crate::convert::aggregate::Aggregator;
use crate::counts::Counting;
use crate::counts::{By, Counts};
use crate::error::Result;
use crate::format::Profile;
use crate::model::{Frame, Tables};

/// A frame as CPython's JSON Lines tell it from others. `line` is 0 where it has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameKey {
    /// File name, an index into [`FrameCounts::strings`].
    pub path: u32,
    /// Qualified function name, an index into [`FrameCounts::strings`]; the empty one for a file.
    pub function: u32,
    /// First line; 0 for a function or a file.
    pub line: i32,
    /// Last line, above 0.
    pub end_line: Option<i32>,
    /// First column, UTF-8 bytes.
    pub col: Option<i32>,
    /// Column after the last.
    pub end_col: Option<i32>,
}

/// The counts of a run.
#[derive(Debug, Default)]
pub struct FrameCounts {
    by: By,
    strings: Vec<String>,
    string_ids: FxHashMap<String, u32>,
    frames: Vec<(FrameKey, Counts)>,
    frame_ids: FxHashMap<FrameKey, u32>,
    /// Samples with a frame that is counted, and without.
    pub samples_total: u64,
    /// Samples without one.
    pub samples_empty: u64,
}

impl FrameCounts {
    /// Counts of such things.
    pub fn new(by: By) -> Self {
        FrameCounts { by, ..FrameCounts::default() }
    }

    /// File and function names, by index.
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// The frames, by index.
    pub fn frames(&self) -> &[(FrameKey, Counts)] {
        &self.frames
    }

    /// What to have counted while profiles are opened, by [`Sequence::counting`]: they are then read once. The
    /// counts are the same without.
    ///
    /// [`Sequence::counting`]: crate::format::Sequence::counting
    pub fn counting(&self) -> Counting {
        Counting { period_us: None, by: self.by }
    }

    /// Counts the samples of a profile, or of a run's next part.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn add<R: Read + Seek>(&mut self, profile: &mut Profile<R>) -> Result<()> {
        let tables = profile.contents().tables.clone();
        let mut aggregator = Aggregator::by(self.by, &tables, 0, None);
        let first_used = profile.contents().scan.first_used.clone();
        let counted: Vec<Option<u32>> =
            first_used.iter().map(|frame| aggregator.counted_as(*frame)).collect();
        let start_us = profile.contents().header.facts.start_us;
        match profile.take_windows(self.counting(), start_us) {
            Some(mut windows) => {
                while let Some(window) = windows.next()? {
                    aggregator.add(window.table, |frame| frame);
                }
            }
            None => profile.stacks(|thread, keep, pushed, samples| {
                aggregator.count_run(thread, keep, pushed, samples);
            })?,
        }
        let table = aggregator.finish();
        self.samples_total += table.total;
        self.samples_empty += table.empty;
        for (frame, counted) in first_used.iter().zip(&counted) {
            if counted.is_some() {
                self.frame(&tables, tables.frames[*frame as usize]);
            }
        }
        for (frame, these) in table.rows {
            let id = self.frame(&tables, tables.frames[frame as usize]);
            let counts = &mut self.frames[id as usize].1;
            *counts += these;
        }
        Ok(())
    }

    /// The id of a frame; a new one gets the next.
    fn frame(&mut self, tables: &Tables, frame: Frame) -> u32 {
        let mut name = |id| self.string(&String::from_utf8_lossy(tables.strings.get(id).unwrap_or_default()));
        let function = name(frame.function);
        let path = name(frame.path);
        self.id_of_frame(Frame { path, function, ..frame })
    }

    /// The id of a frame whose names are strings of these counts.
    pub(crate) fn id_of_frame(&mut self, frame: Frame) -> u32 {
        let Frame { path, function, location: place, .. } = frame;
        let at_least = |least: i32, value: Option<i32>| value.filter(|value| *value >= least);
        let nowhere = FrameKey { path, function, line: 0, end_line: None, col: None, end_col: None };
        let key = match (self.by, place.line) {
            (By::Frame, Some(line)) => FrameKey {
                line,
                end_line: at_least(1, place.end_line),
                col: at_least(0, place.col),
                end_col: at_least(0, place.end_col),
                ..nowhere
            },
            (By::Frame, None) | (By::Function, _) => nowhere,
            (By::File, _) => FrameKey { function: self.string(""), ..nowhere },
        };
        self.id_of(key)
    }

    fn id_of(&mut self, key: FrameKey) -> u32 {
        let FrameCounts { frames, frame_ids, .. } = self;
        *frame_ids.entry(key).or_insert_with(|| {
            frames.push((key, Counts::default()));
            frames.len() as u32 - 1
        })
    }

    pub(crate) fn string(&mut self, value: &str) -> u32 {
        if let Some(id) = self.string_ids.get(value) {
            return *id;
        }
        let id = self.strings.len() as u32;
        self.strings.push(value.to_string());
        self.string_ids.insert(value.to_string(), id);
        id
    }
}
