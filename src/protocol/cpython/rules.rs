//! The rules of CPython's own JSON Lines: one `meta`, tables before what refers to them, one final table
//! whose lines agree, one `end`.

use std::hash::BuildHasher;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::protocol::cpython::{CpythonEntry, CpythonFrame, CpythonMessage};
use crate::protocol::text::quoted;

/// Follows a run.
#[derive(Debug, Default)]
pub(crate) struct CpythonRules {
    has_meta: bool,
    /// A hash of each value.
    strings: FxHashMap<u32, u64>,
    frames: FxHashMap<u32, u64>,
    /// Frames that have counts.
    counted: FxHashSet<u32>,
    samples_total: Option<u64>,
    self_sum: u128,
    ended: bool,
}

impl CpythonRules {
    /// Takes the next message, and says what is wrong with it.
    pub fn message(&mut self, message: &CpythonMessage, say: &mut impl FnMut(String)) {
        if self.ended {
            return say("a message after the end of its run".to_string());
        }
        if !self.has_meta && !matches!(message, CpythonMessage::Meta { .. }) {
            say("a message before the meta of its run".to_string());
            self.has_meta = true;
        }
        match message {
            CpythonMessage::Meta { .. } => {
                if std::mem::replace(&mut self.has_meta, true) {
                    say("a second meta".to_string());
                }
            }
            CpythonMessage::Strings(strings) => {
                for (id, value) in strings {
                    let hash = FxBuildHasher.hash_one(value);
                    if self.strings.insert(*id, hash).is_some_and(|known| known != hash) {
                        say(format!("string {id} is defined again with another value"));
                    }
                }
            }
            CpythonMessage::Frames(frames) => frames.iter().for_each(|frame| self.frame(frame, say)),
            CpythonMessage::Agg { kind, scope, samples_total, entries } => {
                for (key, found, known) in [("kind", kind, "frame"), ("scope", scope, "final")] {
                    if let Some(found) = found.as_ref().filter(|found| *found != known) {
                        say(format!("{key} is {:?}; it is {known:?}", quoted(found)));
                    }
                }
                self.total("agg", *samples_total, say);
                entries.iter().for_each(|entry| self.entry(entry, *samples_total, say));
            }
            CpythonMessage::End { samples_total } => self.end(*samples_total, say),
            CpythonMessage::Other => {}
        }
    }

    fn frame(&mut self, frame: &CpythonFrame, say: &mut impl FnMut(String)) {
        let id = frame.frame_id;
        for string in [frame.path_str_id, frame.func_str_id] {
            if !self.strings.contains_key(&string) {
                say(format!("frame {id} names string {string}, which is not defined"));
            }
        }
        let hash = FxBuildHasher.hash_one(frame);
        if self.frames.insert(id, hash).is_some_and(|known| known != hash) {
            say(format!("frame {id} is defined again with another value"));
        }
    }

    fn entry(&mut self, entry: &CpythonEntry, samples_total: u64, say: &mut impl FnMut(String)) {
        let CpythonEntry { frame_id, self_, cumulative } = *entry;
        if !self.frames.contains_key(&frame_id) {
            say(format!("frame {frame_id} is counted, but not defined"));
        }
        if !self.counted.insert(frame_id) {
            say(format!("frame {frame_id} is counted twice"));
        }
        if self_ > cumulative || cumulative > samples_total {
            say(format!(
                "frame {frame_id} has self {self_}, cumulative {cumulative} and samples_total {samples_total}, which have to rise"
            ));
        }
        self.self_sum += u128::from(self_);
    }

    fn total(&mut self, what: &str, samples_total: u64, say: &mut impl FnMut(String)) {
        if let Some(known) = self.samples_total.filter(|known| *known != samples_total) {
            say(format!("samples_total of {what} is {samples_total}, but was {known} before"));
        }
        self.samples_total = Some(samples_total);
    }

    fn end(&mut self, samples_total: Option<u64>, say: &mut impl FnMut(String)) {
        self.ended = true;
        self.strings = FxHashMap::default();
        self.frames = FxHashMap::default();
        self.counted = FxHashSet::default();
        match samples_total {
            Some(total) => self.total("end", total, say),
            None => say("the end has no samples_total".to_string()),
        }
        // Each sample has one innermost frame.
        if let Some(total) = self.samples_total.filter(|total| u128::from(*total) != self.self_sum) {
            say(format!("self adds up to {}, but samples_total is {total}", self.self_sum));
        }
    }

    /// How much it keeps: ids.
    pub fn kept(&self) -> usize {
        self.strings.len() + self.frames.len() + self.counted.len()
    }

    /// Whether its end is there.
    pub fn has_end(&self) -> bool {
        self.ended
    }
}
