//! Counts over a run, read from the tables or the samples of a stream.

use std::collections::HashSet;

use rustc_hash::FxHashMap;

use crate::convert::counts::{FrameCounts, FrameKey};
use crate::convert::session::{Session, Step};
use crate::convert::stream_definitions::TableSink;
use crate::counts::grouping::is_internal;
use crate::counts::{By, Counts};
use crate::error::{Error, ErrorKind, Position, Result};
use crate::limits::DEFINITIONS;
use crate::model::NONE;
use crate::model::{Frame, Location};
use crate::protocol::message::{Agg, Capture};
use crate::protocol::{
    CpythonFrame, CpythonMessage, CpythonOddities, CpythonRules, Decoded, Message, RawColumns, decode,
    decode_cpython,
};

/// Counts the samples of one run of a stream, ours or CPython's own.
#[derive(Debug)]
pub(crate) struct StreamCounts {
    by: By,
    session: Session,
    columns: RawColumns,
    ids: Ids,
    /// By id: of the samples, and of the tables.
    of_samples: Vec<Counts>,
    of_tables: Vec<Counts>,
    samples: Totals,
    tables: Totals,
    facts: Option<StreamFacts>,
    /// Of CPython's own.
    strings: FxHashMap<u32, Vec<u8>>,
    frames: FxHashMap<u32, CpythonFrame>,
    /// Messages of types that are not known.
    unknown: u64,
    oddities: CpythonOddities,
    cpython: Option<CpythonState>,
    last_table: Option<Agg>,
}

/// What the first `meta` says.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamFacts {
    pub mode: Option<String>,
    pub capture: Option<Capture>,
    pub interval_us: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    any: bool,
    total: u64,
    empty: u64,
}

#[derive(Debug)]
struct CpythonState {
    run_id: String,
    rules: CpythonRules,
}

/// What a run counts.
#[derive(Debug)]
pub(crate) struct Counted {
    pub facts: StreamFacts,
    pub samples_total: u64,
    pub samples_empty: Option<u64>,
    pub strings: Vec<String>,
    /// The cumulative count is `None` where tables of frames don't tell it.
    pub rows: Vec<(FrameKey, u64, Option<u64>)>,
    pub losses: Vec<Error>,
    /// What was overlooked.
    pub tolerated: Vec<String>,
}

/// Ids of what is counted.
#[derive(Debug, Default)]
struct Ids {
    counts: FrameCounts,
    /// Ids of frames that are not counted.
    hidden: HashSet<u32>,
}

impl TableSink for Ids {
    fn string(&mut self, bytes: &[u8]) -> u32 {
        self.counts.string(&String::from_utf8_lossy(bytes))
    }

    fn frame(&mut self, frame: &Frame) -> u32 {
        let id = self.counts.id_of_frame(*frame);
        let path = &self.counts.strings()[frame.path as usize];
        if is_internal(path.as_bytes()) {
            self.hidden.insert(id);
        }
        id
    }
}

impl StreamCounts {
    pub fn new(by: By, run_id: Option<String>) -> Self {
        StreamCounts {
            by,
            session: Session::new(run_id),
            columns: RawColumns::default(),
            ids: Ids { counts: FrameCounts::new(by), hidden: HashSet::new() },
            of_samples: Vec::new(),
            of_tables: Vec::new(),
            samples: Totals::default(),
            tables: Totals::default(),
            facts: None,
            strings: FxHashMap::default(),
            frames: FxHashMap::default(),
            unknown: 0,
            oddities: CpythonOddities::default(),
            cpython: None,
            last_table: None,
        }
    }

    /// Takes the line of this number, from 1.
    ///
    /// # Errors
    ///
    /// A second run where none was chosen.
    pub fn line(&mut self, number: u64, line: &mut [u8]) -> Result<()> {
        let decoded = match decode(line, &mut self.columns) {
            Ok(decoded) => decoded,
            Err(fault) => {
                self.session.lose(fault.at(Position::Line(number)));
                return Ok(());
            }
        };
        if let Message::CPython(kind) = &decoded.message {
            return self.cpython(number, &decoded, kind, line);
        }
        self.unknown += u64::from(matches!(decoded.message, Message::Unknown(_)));
        match self.session.message(number, &decoded, &self.columns)? {
            Step::Ignore => {}
            Step::Opened(meta) => {
                let facts = StreamFacts {
                    mode: meta.mode,
                    capture: meta.capture,
                    interval_us: meta.sample_interval_usec,
                };
                self.facts.get_or_insert(facts);
            }
            Step::Samples => self.raw(),
            Step::Table => {
                if let Message::Agg(body) = decoded.message {
                    self.table(number, body);
                }
            }
        }
        Ok(())
    }

    fn raw(&mut self) {
        let StreamCounts { columns, session, ids, of_samples, samples, .. } = self;
        samples.any = true;
        let mut of_node = vec![0u64; columns.stack_frame_id.len()];
        for (node, times) in columns.threads().iter().flat_map(|thread| &thread.stacks) {
            match of_node.get_mut(*node as usize) {
                Some(count) => *count += *times as u64,
                None => samples.empty += *times as u64,
            }
        }
        let id_of: Vec<u32> =
            columns.stack_frame_id.iter().map(|frame| session.definitions_mut().frame(*frame, ids)).collect();
        let is_counted = |node: u32| !ids.hidden.contains(&id_of[node as usize]);
        // The innermost frame that is counted; a parent stands before its children.
        let mut innermost = vec![NONE; id_of.len()];
        for (node, parent) in (0..).zip(&columns.stack_parent) {
            innermost[node as usize] = if is_counted(node) {
                node
            } else {
                innermost.get(*parent as usize).copied().unwrap_or(NONE)
            };
        }
        for (node, count) in innermost.iter().zip(&of_node) {
            match id_of.get(*node as usize) {
                Some(id) => {
                    samples.total += count;
                    counts_of(of_samples, *id).self_ += count;
                }
                None => samples.empty += count,
            }
        }
        // The samples at each node or above it count for its frame, unless that is below it as well.
        let mut with_callees = of_node;
        for (node, parent) in columns.stack_parent.iter().enumerate().rev().filter(|(_, at)| **at != NONE) {
            with_callees[*parent as usize] += with_callees[node];
        }
        for_each_first_call(&columns.stack_parent, &id_of, |node| {
            if is_counted(node) && with_callees[node as usize] > 0 {
                counts_of(of_samples, id_of[node as usize]).cumulative += with_callees[node as usize];
            }
        });
    }

    fn table(&mut self, number: u64, body: Agg) {
        self.session.tell_missing(number, &body.frame_id);
        self.tables.any = true;
        // A table in several lines repeats its head in each.
        let head = Agg { frame_id: Vec::new(), self_: Vec::new(), cumulative: Vec::new(), ..body.clone() };
        if self.last_table.as_ref() != Some(&head) {
            self.tables.total = self.tables.total.saturating_add(head.samples_total);
            self.tables.empty = self.tables.empty.saturating_add(head.samples_empty.unwrap_or(0));
            self.last_table = Some(head);
        }
        for ((frame, self_), cumulative) in body.frame_id.iter().zip(&body.self_).zip(&body.cumulative) {
            let id = self.session.definitions_mut().frame(*frame, &mut self.ids);
            let counts = counts_of(&mut self.of_tables, id);
            counts.self_ = counts.self_.saturating_add(*self_);
            counts.cumulative = counts.cumulative.saturating_add(*cumulative);
        }
    }

    fn cpython(&mut self, number: u64, decoded: &Decoded, kind: &str, line: &[u8]) -> Result<()> {
        let id = &decoded.envelope.run_id;
        if self.session.chosen().is_some_and(|chosen| chosen != id) {
            return Ok(());
        }
        self.oddities.line(line);
        let message = match decode_cpython(kind, line) {
            Ok(message) => message,
            Err(fault) => {
                self.session.lose(fault.at(Position::Line(number)));
                return Ok(());
            }
        };
        let state = self
            .cpython
            .get_or_insert_with(|| CpythonState { run_id: id.clone(), rules: CpythonRules::default() });
        if state.run_id != *id || state.rules.has_end() {
            let fault = Error::stream("the file holds several runs").at(Position::Line(number));
            return Err(fault.hint("choose one with --run-id"));
        }
        if state.rules.kept() > DEFINITIONS {
            let fault = format!("more than {DEFINITIONS} strings, frames and counts, the limit");
            return Err(Error::new(ErrorKind::Limit, fault).at(Position::Line(number)));
        }
        let session = &mut self.session;
        state
            .rules
            .message(&message, &mut |what| session.lose(Error::stream(what).at(Position::Line(number))));
        match message {
            CpythonMessage::Meta { sample_interval_usec, mode } => {
                let facts = StreamFacts { mode, capture: None, interval_us: sample_interval_usec };
                self.facts.get_or_insert(facts);
            }
            CpythonMessage::Strings(strings) => self.strings.extend(strings),
            CpythonMessage::Frames(frames) => {
                self.frames.extend(frames.into_iter().map(|frame| (frame.frame_id, frame)));
            }
            CpythonMessage::Other => self.unknown += 1,
            CpythonMessage::Agg { samples_total, entries, .. } => {
                self.tables = Totals { any: true, total: samples_total, empty: 0 };
                for entry in entries {
                    let id = self.cpython_frame(entry.frame_id);
                    let counts = counts_of(&mut self.of_tables, id);
                    counts.self_ = counts.self_.saturating_add(entry.self_);
                    counts.cumulative = counts.cumulative.saturating_add(entry.cumulative);
                }
            }
            CpythonMessage::End { samples_total } => {
                self.tables.any = true;
                self.tables.total = samples_total.unwrap_or(self.tables.total);
            }
        }
        Ok(())
    }

    /// The id of a frame of CPython's own.
    fn cpython_frame(&mut self, frame_id: u32) -> u32 {
        let StreamCounts { ids, strings, frames, .. } = self;
        let mut name = |id: u32| match strings.get(&id) {
            Some(bytes) => ids.string(bytes),
            None => ids.string(format!("<undefined string {id}>").as_bytes()),
        };
        let frame = match frames.get(&frame_id) {
            Some(found) => {
                let location = Location {
                    line: Some(found.line).filter(|_| !found.is_synthetic()),
                    end_line: found.end_line,
                    col: found.col,
                    end_col: found.end_col,
                };
                let (path, function) = (name(found.path_str_id), name(found.func_str_id));
                Frame { path, function, location, opcode: None }
            }
            None => {
                let path = ids.string(b"~");
                let function = ids.string(format!("<undefined frame {frame_id}>").as_bytes());
                Frame { path, function, location: Location::default(), opcode: None }
            }
        };
        ids.frame(&frame)
    }

    /// The counts: of tables of frames where these are asked for and there, else of the samples.
    ///
    /// # Errors
    ///
    /// A stream that holds neither.
    pub fn finish(self) -> Result<Counted> {
        let takes_tables = self.tables.any && (self.by == By::Frame || !self.samples.any);
        let is_cpython = self.cpython.is_some();
        let losses = match &self.cpython {
            Some(state) if !state.rules.has_end() => {
                let mut losses = self.session.finish(0, 0).losses;
                losses.retain(|loss| loss.position().is_some());
                losses.push(Error::stream("the run has no end message: it was cut off"));
                losses
            }
            Some(_) => {
                let mut losses = self.session.finish(0, 0).losses;
                losses.retain(|loss| loss.position().is_some());
                losses
            }
            None => self.session.finish(0, 0).losses,
        };
        if !takes_tables && !self.samples.any {
            return Err(losses
                .into_iter()
                .next()
                .unwrap_or_else(|| Error::stream("the stream holds neither samples nor tables of counts")));
        }
        let (totals, counts) =
            if takes_tables { (self.tables, &self.of_tables) } else { (self.samples, &self.of_samples) };
        let tells_cumulative = self.by == By::Frame || !takes_tables;
        let rows =
            self.ids.counts.frames().iter().zip(counts).map(|((key, _), counts)| {
                (*key, counts.self_, tells_cumulative.then_some(counts.cumulative))
            });
        Ok(Counted {
            facts: self.facts.unwrap_or_default(),
            samples_total: totals.total,
            samples_empty: (!is_cpython).then_some(totals.empty),
            rows: rows.filter(|(_, self_, cumulative)| *self_ > 0 || *cumulative != Some(0)).collect(),
            strings: self.ids.counts.strings().to_vec(),
            losses,
            tolerated: (self.unknown > 0)
                .then(|| format!("{} messages of unknown types were skipped", self.unknown))
                .into_iter()
                .chain(self.oddities.notes())
                .collect(),
        })
    }
}

/// Walks a call tree, and returns the nodes of frames that have no call of the same frame below them.
fn for_each_first_call(parents: &[u32], id_of: &[u32], mut each: impl FnMut(u32)) {
    // Children as lists: the last one of each node and of the roots, and the one before each.
    let mut last = vec![NONE; parents.len() + 1];
    let mut before = vec![NONE; parents.len()];
    for (node, parent) in (0..).zip(parents) {
        let last = &mut last[(*parent as usize).min(parents.len())];
        before[node as usize] = std::mem::replace(last, node);
    }
    let mut on_path: FxHashMap<u32, u32> = FxHashMap::default();
    let mut at = last[parents.len()];
    while at != NONE {
        let calls = on_path.entry(id_of[at as usize]).or_default();
        *calls += 1;
        if *calls == 1 {
            each(at);
        }
        let mut next = last[at as usize];
        // Back down to a node that has another sibling.
        while next == NONE {
            if let Some(calls) = on_path.get_mut(&id_of[at as usize]) {
                *calls -= 1;
            }
            next = before[at as usize];
            if next == NONE {
                at = parents[at as usize];
                if at == NONE {
                    return;
                }
            }
        }
        at = next;
    }
}

fn counts_of(counts: &mut Vec<Counts>, id: u32) -> &mut Counts {
    let id = id as usize;
    if counts.len() <= id {
        counts.resize(id + 1, Counts::default());
    }
    &mut counts[id]
}
