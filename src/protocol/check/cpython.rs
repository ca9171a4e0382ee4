//! The rules of CPython's own JSON Lines: one `meta`, tables before what refers to them, one final table
//! whose lines agree, one `end`.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::protocol::check::Report;
use crate::protocol::cpython::{CpythonEntry, CpythonFrame, CpythonMessage};

/// Follows a run.
#[derive(Debug, Default)]
pub(super) struct CpythonRun {
    has_meta: bool,
    strings: FxHashMap<u32, Vec<u8>>,
    frames: FxHashMap<u32, CpythonFrame>,
    /// Frames that have counts.
    counted: FxHashSet<u32>,
    samples_total: Option<u64>,
    self_sum: u128,
    last_line: u64,
    ended: bool,
}

impl CpythonRun {
    pub fn message(&mut self, message: CpythonMessage, report: &mut Report<'_>) {
        self.last_line = report.line;
        if self.ended {
            return report.say("a message behind the end of its run");
        }
        if !self.has_meta && !matches!(message, CpythonMessage::Meta { .. }) {
            report.say("a message before the meta of its run");
            self.has_meta = true;
        }
        match message {
            CpythonMessage::Meta { .. } => {
                if std::mem::replace(&mut self.has_meta, true) {
                    report.say("a second meta");
                }
            }
            CpythonMessage::Strings(strings) => {
                for (id, value) in strings {
                    if self.strings.get(&id).is_some_and(|known| *known != value) {
                        report.say(format!("string {id} is defined again with another value"));
                    }
                    self.strings.insert(id, value);
                }
            }
            CpythonMessage::Frames(frames) => frames.into_iter().for_each(|frame| self.frame(frame, report)),
            CpythonMessage::Agg { samples_total, entries } => {
                self.total("agg", samples_total, report);
                entries.iter().for_each(|entry| self.entry(entry, samples_total, report));
            }
            CpythonMessage::End { samples_total } => self.end(samples_total, report),
            CpythonMessage::Other => {}
        }
    }

    fn frame(&mut self, frame: CpythonFrame, report: &mut Report<'_>) {
        let id = frame.frame_id;
        for string in [frame.path_str_id, frame.func_str_id] {
            if !self.strings.contains_key(&string) {
                report.say(format!("frame {id} names string {string}, which is not defined"));
            }
        }
        if self.frames.get(&id).is_some_and(|known| *known != frame) {
            report.say(format!("frame {id} is defined again with another value"));
        }
        self.frames.insert(id, frame);
    }

    fn entry(&mut self, entry: &CpythonEntry, samples_total: u64, report: &mut Report<'_>) {
        let CpythonEntry { frame_id, self_, cumulative } = *entry;
        if !self.frames.contains_key(&frame_id) {
            report.say(format!("frame {frame_id} is counted, but not defined"));
        }
        if !self.counted.insert(frame_id) {
            report.say(format!("frame {frame_id} is counted twice"));
        }
        if self_ > cumulative || cumulative > samples_total {
            report.say(format!(
                "frame {frame_id} has self {self_}, cumulative {cumulative} and samples_total {samples_total}, which have to rise"
            ));
        }
        self.self_sum += u128::from(self_);
    }

    fn total(&mut self, what: &str, samples_total: u64, report: &mut Report<'_>) {
        if let Some(known) = self.samples_total.filter(|known| *known != samples_total) {
            report.say(format!("samples_total of {what} is {samples_total}, but was {known} before"));
        }
        self.samples_total = Some(samples_total);
    }

    fn end(&mut self, samples_total: Option<u64>, report: &mut Report<'_>) {
        self.ended = true;
        match samples_total {
            Some(total) => self.total("end", total, report),
            None => report.say("the end has no samples_total"),
        }
        // Each sample has one innermost frame.
        if let Some(total) = self.samples_total.filter(|total| u128::from(*total) != self.self_sum) {
            report.say(format!("self adds up to {}, but samples_total is {total}", self.self_sum));
        }
    }

    /// Line of its last message, if it has no end.
    pub fn cut_off(&self) -> Option<u64> {
        (!self.ended).then_some(self.last_line)
    }
}
