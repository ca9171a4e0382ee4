//! Rules of definitions: an id is defined once in each batch that uses it, and means the same throughout a run.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::limits::KEPT;
use crate::protocol::check::report::Report;
use crate::protocol::message::{FrameDef, StrDef};

/// Ids of one kind that a run is remembered by from batch to batch.
const REMEMBERED: usize = KEPT / 4;

/// The strings and frames of a run.
#[derive(Debug)]
pub(crate) struct Definitions {
    strings: Ids,
    frames: Ids,
}

#[derive(Debug)]
struct Ids {
    what: &'static str,
    batch: u64,
    known: HashMap<u32, Known>,
    /// Ids that the open batch uses and has not defined so far, with the line of the first use.
    undefined: BTreeMap<u32, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Of the value, which is not kept.
    hash: u64,
    batch: u64,
}

impl Definitions {
    pub fn new() -> Self {
        Definitions { strings: Ids::new("string"), frames: Ids::new("frame") }
    }

    /// A batch begins; with `forget` its ids mean something of their own.
    pub fn open_batch(&mut self, forget: bool) {
        self.strings.open_batch(forget);
        self.frames.open_batch(forget);
    }

    pub fn add_strings(&mut self, body: &StrDef, report: &mut Report<'_>) {
        if body.str_id.is_empty() {
            report.say("a str_def without a string");
        }
        let mut ids = Vec::new();
        if body.base64.is_some() {
            ids.extend_from_slice(&body.str_id);
            ids.sort_unstable();
        }
        for (id, text) in body.base64.iter().flatten() {
            if ids.binary_search(id).is_err() {
                report.say(format!("base64 has an entry for string {id}, which is not in the message"));
            } else if let Some(fault) = STANDARD.decode(text).err() {
                report.say(format!("the base64 of string {id} is broken: {fault}"));
            }
        }
        let rows = body.str_id.iter().zip(&body.value).map(|(id, value)| {
            let base64 = body.base64.as_ref().and_then(|entries| entries.get(id));
            let Some(bytes) = base64.and_then(|text| STANDARD.decode(text).ok()) else {
                return (*id, hash(value.as_bytes()));
            };
            if std::str::from_utf8(&bytes).is_ok() {
                report.say(format!("string {id} is UTF-8 and needs no base64"));
            } else if String::from_utf8_lossy(&bytes) != *value {
                report.say(format!("string {id} does not show what its base64 holds"));
            }
            (*id, hash(&bytes))
        });
        let rows: Vec<(u32, u64)> = rows.collect();
        self.strings.define(&rows, report);
    }

    pub fn add_frames(&mut self, body: &FrameDef, report: &mut Report<'_>) {
        if body.frame_id.is_empty() {
            report.say("a frame_def without a frame");
        }
        if body.opcode.iter().flatten().any(|opcode| *opcode == Some(u8::MAX)) {
            report.say("an opcode of 255; they go from 0 to 254");
        }
        let at = |column: &Option<Vec<Option<i32>>>, row: usize| column.as_ref().map(|column| column[row]);
        let mut rows = Vec::with_capacity(body.frame_id.len());
        for (row, id) in body.frame_id.iter().enumerate() {
            let (path, function) = (body.path_str_id[row], body.func_str_id[row]);
            self.strings.use_id(path, report.line);
            self.strings.use_id(function, report.line);
            let places = [&body.line, &body.end_line, &body.col, &body.end_col]
                .map(|column| at(column, row).flatten());
            let opcode = body.opcode.as_ref().and_then(|column| column[row]);
            rows.push((*id, hash(&(path, function, places, opcode))));
        }
        self.frames.define(&rows, report);
    }

    /// Ids that it keeps.
    pub fn kept(&self) -> usize {
        [&self.strings, &self.frames].map(|ids| ids.known.len() + ids.undefined.len()).iter().sum()
    }

    /// The open batch uses these frames.
    pub fn use_frames(&mut self, frames: &[u32], line: u64) {
        frames.iter().for_each(|frame| self.frames.use_id(*frame, line));
    }

    /// The batch is over: reports the strings and frames that it used without a definition, unless messages
    /// are missing.
    pub fn close_batch(&mut self, tell: bool, report: &mut Report<'_>) {
        for ids in [&mut self.strings, &mut self.frames] {
            let mut by_line: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            for (id, line) in std::mem::take(&mut ids.undefined) {
                by_line.entry(line).or_default().push(id);
            }
            if tell {
                for (line, undefined) in by_line {
                    let listed = listed(ids.what, &undefined);
                    report.at(line, format!("not defined in the batch: {listed}"));
                }
            }
        }
    }
}

impl Ids {
    fn new(what: &'static str) -> Self {
        Ids { what, batch: 0, known: HashMap::new(), undefined: BTreeMap::new() }
    }

    fn open_batch(&mut self, forget: bool) {
        self.batch += 1;
        if forget || self.known.len() > REMEMBERED {
            self.known.clear();
        }
    }

    fn define(&mut self, rows: &[(u32, u64)], report: &mut Report<'_>) {
        let (mut twice, mut changed) = (Vec::new(), Vec::new());
        for &(id, hash) in rows {
            self.undefined.remove(&id);
            match self.known.insert(id, Known { hash, batch: self.batch }) {
                Some(before) if before.batch == self.batch => twice.push(id),
                Some(before) if before.hash != hash => changed.push(id),
                _ => {}
            }
        }
        if !twice.is_empty() {
            report.say(format!("defined twice in the batch: {}", listed(self.what, &twice)));
        }
        if !changed.is_empty() {
            let listed = listed(self.what, &changed);
            report.say(format!("defined otherwise than in an earlier batch of the run: {listed}"));
        }
    }

    #[inline]
    fn use_id(&mut self, id: u32, line: u64) {
        if self.known.get(&id).is_none_or(|known| known.batch != self.batch) {
            self.undefined.entry(id).or_insert(line);
        }
    }
}

/// "frame 7" or "frames 1, 2, 3 and 9 more".
fn listed(what: &str, ids: &[u32]) -> String {
    if let [id] = ids {
        return format!("{what} {id}");
    }
    let (first, more) = ids.split_at(ids.len().min(4));
    let first: Vec<String> = first.iter().map(u32::to_string).collect();
    match more.len() {
        0 => format!("{what}s {}", first.join(", ")),
        more => format!("{what}s {} and {more} more", first.join(", ")),
    }
}

pub(crate) fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
