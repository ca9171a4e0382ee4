//! CPython's own JSON Lines into our stream: the same definitions, and the final table.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use crate::error::{Error, Position, Result};
use crate::limits;
use crate::model::{Counts, Frame, Location};
use crate::protocol::message::{Agg, End, ErrorMessage, IdScope, Meta};
use crate::protocol::{
    CpythonFrame, CpythonMessage, CpythonRules, Encoder, Message, MessageType, RawColumns, bodies, decode,
    decode_cpython, is_run_id,
};

/// Faults of a run that are told; more are left out.
const TOLD: usize = 20;

/// Gathers the runs of a file of CPython's JSON Lines (`v` 0 of 3.15, `v` 1 of the proposal), which hold
/// counts and no times.
///
/// ```
/// use tachyon_jsonl::convert::Upgrade;
///
/// let mut upgrade = Upgrade::default();
/// for (number, line) in (1..).zip(std::fs::read_to_string("tests/data/cases/cpython_v0.jsonl")?.lines()) {
///     upgrade.line(number, &mut line.as_bytes().to_vec())?;
/// }
/// let mut stream = Vec::new();
/// let losses = upgrade.finish(&mut stream)?;
/// assert!(losses.is_empty());
/// assert!(stream.starts_with(br#"{"type":"meta","v":2,"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Upgrade {
    runs: Vec<Run>,
    by_id: HashMap<String, usize>,
    max_line: usize,
    columns: RawColumns,
    losses: Vec<Error>,
}

#[derive(Debug, Default)]
struct Run {
    id: String,
    interval_us: Option<u64>,
    mode: Option<String>,
    strings: BTreeMap<u32, Vec<u8>>,
    frames: BTreeMap<u32, CpythonFrame>,
    /// self and cumulative by frame.
    counts: BTreeMap<u32, Counts>,
    samples_total: u64,
    has_end: bool,
    rules: CpythonRules,
    /// What is wrong with it, the first of it.
    faults: Vec<String>,
}

impl Default for Upgrade {
    fn default() -> Self {
        Upgrade {
            runs: Vec::new(),
            by_id: HashMap::new(),
            max_line: limits::LINE,
            columns: RawColumns::default(),
            losses: Vec::new(),
        }
    }
}

impl Upgrade {
    /// Bytes of a line that is written, its line feed included.
    #[must_use]
    pub fn max_line(mut self, bytes: usize) -> Self {
        self.max_line = bytes.max(limits::LINE_MIN);
        self
    }

    /// Takes the line of this number, from 1. A message that is damaged or out of place is passed over and
    /// noted.
    ///
    /// # Errors
    ///
    /// A line of schema version 2, which there is no need to upgrade.
    pub fn line(&mut self, number: u64, line: &mut [u8]) -> Result<()> {
        let at = |error: Error| error.at(Position::Line(number));
        let decoded = match decode(line, &mut self.columns) {
            Ok(decoded) => decoded,
            Err(fault) => {
                self.losses.push(at(fault));
                return Ok(());
            }
        };
        let Message::CPython(kind) = decoded.message else {
            return Err(at(Error::stream("a stream of schema version 2 already")));
        };
        let id = decoded.envelope.run_id;
        if !is_run_id(&id) {
            self.losses.push(at(Error::stream(format!("'{id}' is no run id"))));
            return Ok(());
        }
        let message = match decode_cpython(&kind, line) {
            Ok(message) => message,
            Err(fault) => {
                let fault = at(fault);
                match self.by_id.get(&id) {
                    Some(run) => self.runs[*run].fault(fault.to_string()),
                    None => self.losses.push(fault),
                }
                return Ok(());
            }
        };
        let is_meta = matches!(message, CpythonMessage::Meta { .. });
        let known = self.by_id.get(&id).copied().filter(|index| !(is_meta && self.runs[*index].has_end));
        let index = match known {
            Some(index) => index,
            None => {
                let times = self.runs.iter().filter(|run| run.id == id).count();
                let run_id = if times == 0 { id.clone() } else { format!("{id}-{}", times + 1) };
                self.runs.push(Run { id: run_id, ..Run::default() });
                self.by_id.insert(id, self.runs.len() - 1);
                self.runs.len() - 1
            }
        };
        self.runs[index].message(number, message);
        Ok(())
    }

    /// Writes the runs, and returns what is damaged or missing.
    ///
    /// # Errors
    ///
    /// A file that holds no message of CPython's, and errors of `sink`.
    pub fn finish(self, sink: &mut impl Write) -> Result<Vec<Error>> {
        let Upgrade { runs, max_line, mut losses, .. } = self;
        if runs.is_empty() {
            let first = losses.into_iter().next();
            return Err(first.unwrap_or_else(|| Error::stream("no message of CPython's own JSON Lines")));
        }
        for mut run in runs {
            if !run.has_end {
                run.faults.push("the run has no end message: it was cut off".to_string());
            }
            let faults = std::mem::take(&mut run.faults);
            losses.extend(faults.iter().map(|fault| Error::stream(format!("run {}: {fault}", run.id))));
            sink.write_all(&run.written(max_line, &faults))?;
        }
        sink.flush()?;
        Ok(losses)
    }
}

impl Run {
    fn fault(&mut self, fault: String) {
        if self.faults.len() < TOLD {
            self.faults.push(fault);
        }
    }

    /// Takes the message of this line, and notes what is wrong with it.
    fn message(&mut self, number: u64, message: CpythonMessage) {
        let Run { rules, faults, .. } = self;
        rules.message(&message, &mut |what| {
            if faults.len() < TOLD {
                faults.push(format!("{what} (line {number})"));
            }
        });
        if self.has_end {
            return;
        }
        match message {
            CpythonMessage::Meta { sample_interval_usec, mode } => {
                self.interval_us = sample_interval_usec;
                self.mode = mode;
            }
            CpythonMessage::Strings(strings) => self.strings.extend(strings),
            CpythonMessage::Frames(frames) => {
                self.frames.extend(frames.into_iter().map(|frame| (frame.frame_id, frame)));
            }
            CpythonMessage::Agg { samples_total, entries, .. } => {
                self.samples_total = samples_total;
                for entry in entries {
                    let counts = self.counts.entry(entry.frame_id).or_default();
                    counts.self_ = counts.self_.saturating_add(entry.self_);
                    counts.cumulative = counts.cumulative.saturating_add(entry.cumulative);
                }
            }
            CpythonMessage::End { samples_total } => {
                self.has_end = true;
                self.samples_total = samples_total.unwrap_or(self.samples_total);
            }
            _ => {}
        }
    }

    /// The counts of the frames, and of all samples: each has one innermost frame. Counts that contradict this,
    /// which is told as a fault, are made to fit.
    fn table(&self) -> (Vec<(u32, Counts)>, u64) {
        let mut total = 0;
        let mut rows = Vec::with_capacity(self.counts.len());
        for (frame, counts) in &self.counts {
            let self_ = counts.self_.min(u64::MAX - total);
            total += self_;
            rows.push((*frame, Counts { self_, ..*counts }));
        }
        for (_, counts) in &mut rows {
            counts.cumulative = counts.cumulative.clamp(counts.self_, total);
        }
        (rows, total)
    }

    /// The run as lines.
    fn written(&mut self, max_line: usize, faults: &[String]) -> Vec<u8> {
        let undefined: Vec<u32> =
            self.counts.keys().copied().filter(|frame| !self.frames.contains_key(frame)).collect();
        for frame_id in undefined {
            let name = format!("<undefined frame {frame_id}>");
            let (path_str_id, func_str_id) = (self.new_string(b"~"), self.new_string(name.as_bytes()));
            let frame = CpythonFrame { frame_id, path_str_id, func_str_id, ..CpythonFrame::default() };
            self.frames.insert(frame_id, frame);
        }
        let named: Vec<u32> =
            self.frames.values().flat_map(|frame| [frame.path_str_id, frame.func_str_id]).collect();
        for id in named {
            self.strings.entry(id).or_insert_with(|| format!("<undefined string {id}>").into_bytes());
        }

        let mut encoder = Encoder::new(&self.id);
        let limit = |encoder: &Encoder, message| max_line - encoder.envelope_len(message);
        let strings = self.strings.iter().map(|(id, bytes)| (*id, bytes.as_slice()));
        let str_defs = bodies::str_defs(0, strings, limit(&encoder, MessageType::StrDef));
        let frames = self.frames.iter().map(|(id, frame)| (*id, frame_of(frame)));
        let frame_defs = bodies::frame_defs(0, frames, limit(&encoder, MessageType::FrameDef));
        let (rows, samples_total) = self.table();
        let head =
            Agg { kind: "frame".to_string(), scope: "final".to_string(), samples_total, ..Agg::default() };
        let aggs = bodies::aggs(&head, &rows, limit(&encoder, MessageType::Agg));
        let meta = Meta {
            messages: (str_defs.len() + frame_defs.len() + aggs.len()) as u64,
            sample_interval_usec: self.interval_us,
            mode: self.mode.clone(),
            id_scope: IdScope::Run,
            stream_types: Some(vec![MessageType::Agg.name().to_string()]),
            ..Meta::default()
        };
        let mut out = Vec::new();
        encoder.message(&mut out, MessageType::Meta, &meta);
        str_defs.iter().for_each(|body| encoder.text(&mut out, MessageType::StrDef, body));
        frame_defs.iter().for_each(|body| encoder.text(&mut out, MessageType::FrameDef, body));
        aggs.iter().for_each(|body| encoder.text(&mut out, MessageType::Agg, body));
        for detail in faults {
            let code = if self.has_end { "count_mismatch" } else { "truncated" }.to_string();
            let body = ErrorMessage { code, detail: detail.clone(), offset: None, fatal: true };
            encoder.message(&mut out, MessageType::Error, &body);
        }
        let end = End {
            complete: faults.is_empty(),
            batches: 1,
            messages: encoder.next_seq() + 1,
            samples_total,
            ..End::default()
        };
        encoder.message(&mut out, MessageType::End, &end);
        out
    }

    /// Adds a string behind those that are there.
    fn new_string(&mut self, bytes: &[u8]) -> u32 {
        let known = self.strings.iter().find(|(_, known)| *known == bytes).map(|(id, _)| *id);
        known.unwrap_or_else(|| {
            let id = self.strings.keys().next_back().map_or(0, |last| last.wrapping_add(1));
            self.strings.insert(id, bytes.to_vec());
            id
        })
    }
}

fn frame_of(frame: &CpythonFrame) -> Frame {
    let location = Location {
        line: Some(frame.line).filter(|_| !frame.is_synthetic()),
        end_line: frame.end_line,
        col: frame.col,
        end_col: frame.end_col,
    };
    Frame { path: frame.path_str_id, function: frame.func_str_id, location, opcode: None }
}
