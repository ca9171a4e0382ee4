//! CPython's own JSON Lines to our stream: the same definitions, and the final table.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;

use crate::counts::Counts;
use crate::error::{Error, ErrorKind, Position, Result};
use crate::limits::{self, KEPT, RUN_KEPT};
use crate::model::{Frame, Location};
use crate::protocol::message::{Agg, End, ErrorMessage, IdScope, Meta, VERSION};
use crate::protocol::table_messages;
use crate::protocol::{
    CpythonFrame, CpythonMessage, CpythonOddities, CpythonRules, Encoder, Message, MessageType, RawColumns,
    decode, decode_cpython, unknown_version,
};

/// Faults of a run that are reported; more are left out.
const MAX_REPORTED: usize = 20;

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
/// assert!(upgrade.end()?.is_empty());
/// let mut stream = Vec::new();
/// upgrade.write(&mut stream)?;
/// assert!(stream.starts_with(br#"{"type":"meta","v":2,"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Upgrade {
    runs: Vec<UpgradedRun>,
    /// The last run of each id, and how many there are.
    by_id: HashMap<String, (usize, u64)>,
    /// What the runs are called.
    names: HashSet<String>,
    /// The last number that was tried where a name was taken.
    spare: u64,
    /// How much the runs keep, in the units of [`KEPT`].
    kept: usize,
    /// Messages of types that are not known.
    unknown: u64,
    oddities: CpythonOddities,
    max_line: usize,
    columns: RawColumns,
    losses: Vec<Error>,
    untold: u64,
}

#[derive(Debug, Default)]
struct UpgradedRun {
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
            names: HashSet::new(),
            spare: 1,
            kept: 0,
            unknown: 0,
            oddities: CpythonOddities::default(),
            untold: 0,
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

    /// Takes the line of this number, from 1. A message that is damaged or out of place is skipped and
    /// noted.
    ///
    /// # Errors
    ///
    /// A message of schema version 2, which there is no need to upgrade, and runs that pass [`KEPT`].
    pub fn line(&mut self, number: u64, line: &mut [u8]) -> Result<()> {
        let at = |error: Error| error.at(Position::Line(number));
        let decoded = match decode(line, &mut self.columns) {
            Ok(decoded) => decoded,
            Err(fault) => {
                self.lose(at(fault));
                return Ok(());
            }
        };
        let version = decoded.envelope.version;
        let kind = match decoded.message {
            Message::CPython(kind) => kind,
            Message::Unknown(_) if version == VERSION => {
                self.unknown += 1;
                return Ok(());
            }
            Message::Unknown(_) => {
                self.lose(at(unknown_version(version)));
                return Ok(());
            }
            _ => return Err(at(Error::stream("a stream of schema version 2 already"))),
        };
        let id = decoded.envelope.run_id;
        self.oddities.line(line);
        let message = match decode_cpython(&kind, line) {
            Ok(message) => message,
            Err(fault) => {
                let fault = at(fault);
                match self.by_id.get(&id) {
                    Some((run, _)) => self.runs[*run].fault(fault.to_string()),
                    None => self.lose(fault),
                }
                return Ok(());
            }
        };
        self.unknown += u64::from(matches!(message, CpythonMessage::Other));
        let run = self.run_of(id, matches!(message, CpythonMessage::Meta { .. }));
        let before = run.kept();
        run.message(number, message);
        let after = run.kept();
        self.kept = self.kept + after - before;
        if self.kept > KEPT {
            let what = format!(
                "more strings, frames, counts and runs than the limit of {KEPT} things that are kept"
            );
            return Err(at(Error::new(ErrorKind::Limit, what)));
        }
        Ok(())
    }

    /// The run of this id; a `meta` after its end opens another.
    fn run_of(&mut self, id: String, is_meta: bool) -> &mut UpgradedRun {
        let times = match self.by_id.get(&id) {
            Some((run, _)) if !(is_meta && self.runs[*run].has_end) => return &mut self.runs[*run],
            Some((_, times)) => times + 1,
            None => 1,
        };
        let run_id = self.name(&id, times);
        self.by_id.insert(id, (self.runs.len(), times));
        self.kept += RUN_KEPT;
        self.runs.push(UpgradedRun { id: run_id, ..UpgradedRun::default() });
        self.runs.last_mut().expect("pushed above")
    }

    /// What to call the run that comes with this id for the `times`-th time: as no other run is called.
    fn name(&mut self, id: &str, times: u64) -> String {
        let mut name = if times == 1 { id.to_string() } else { numbered(id, times) };
        while !self.names.insert(name.clone()) {
            self.spare += 1;
            name = numbered(id, self.spare);
        }
        name
    }

    fn lose(&mut self, loss: Error) {
        if self.losses.len() < MAX_REPORTED {
            self.losses.push(loss);
        } else {
            self.untold += 1;
        }
    }

    /// Ends the file, and returns what is damaged or missing.
    ///
    /// # Errors
    ///
    /// A file that holds no message of CPython's.
    pub fn end(&mut self) -> Result<Vec<Error>> {
        let mut losses = std::mem::take(&mut self.losses);
        if self.runs.is_empty() {
            let first = losses.into_iter().next();
            return Err(first.unwrap_or_else(|| Error::stream("no message of CPython's own JSON Lines")));
        }
        for run in &mut self.runs {
            if !run.has_end {
                run.faults.push("the run has no end message: it was cut off".to_string());
            }
            for fault in &run.faults {
                if losses.len() < 2 * MAX_REPORTED {
                    losses.push(Error::stream(format!("run {}: {fault}", run.id)));
                } else {
                    self.untold += 1;
                }
            }
        }
        if self.untold > 0 {
            losses.push(Error::stream(format!("{} more faults of the file", self.untold)));
        }
        Ok(losses)
    }

    /// What could be overlooked without losing anything.
    pub fn tolerated(&self) -> Vec<String> {
        let unknown =
            (self.unknown > 0).then(|| format!("{} messages of unknown types were skipped", self.unknown));
        unknown.into_iter().chain(self.oddities.notes()).collect()
    }

    /// Writes the runs.
    ///
    /// # Errors
    ///
    /// Errors of `sink`.
    pub fn write(self, sink: &mut impl Write) -> Result<()> {
        for mut run in self.runs {
            let faults = std::mem::take(&mut run.faults);
            sink.write_all(&run.written(self.max_line, &faults))?;
        }
        Ok(sink.flush()?)
    }
}

impl UpgradedRun {
    /// How much it keeps, in the units of [`KEPT`].
    fn kept(&self) -> usize {
        2 * (self.strings.len() + self.frames.len()) + self.counts.len() + 8 * self.faults.len()
    }

    fn fault(&mut self, fault: String) {
        if self.faults.len() < MAX_REPORTED {
            self.faults.push(fault);
        }
    }

    /// Takes the message of this line, and notes what is wrong with it.
    fn message(&mut self, number: u64, message: CpythonMessage) {
        let UpgradedRun { rules, faults, .. } = self;
        rules.message(&message, &mut |what| {
            if faults.len() < MAX_REPORTED {
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
    /// which is reported as a fault, are made to fit.
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
        let free: Vec<u32> =
            (0..).filter(|id| !self.strings.contains_key(id)).take(undefined.len() + 1).collect();
        if let ([_, ..], Some((path_str_id, names))) = (undefined.as_slice(), free.split_first()) {
            self.strings.insert(*path_str_id, b"~".to_vec());
            for (frame_id, func_str_id) in undefined.into_iter().zip(names) {
                self.strings.insert(*func_str_id, format!("<undefined frame {frame_id}>").into_bytes());
                let (path_str_id, func_str_id) = (*path_str_id, *func_str_id);
                let frame = CpythonFrame { frame_id, path_str_id, func_str_id, ..CpythonFrame::default() };
                self.frames.insert(frame_id, frame);
            }
        }
        let named: Vec<u32> =
            self.frames.values().flat_map(|frame| [frame.path_str_id, frame.func_str_id]).collect();
        for id in named {
            self.strings.entry(id).or_insert_with(|| format!("<undefined string {id}>").into_bytes());
        }

        let mut encoder = Encoder::new(&self.id);
        let limit = |encoder: &Encoder, message| max_line - encoder.envelope_len(message);
        let strings = self.strings.iter().map(|(id, bytes)| (*id, bytes.as_slice()));
        let str_defs = table_messages::str_defs(0, strings, limit(&encoder, MessageType::StrDef));
        let frames = self.frames.iter().map(|(id, frame)| (*id, frame_of(frame)));
        let frame_defs = table_messages::frame_defs(0, frames, limit(&encoder, MessageType::FrameDef));
        let (rows, samples_total) = self.table();
        let head =
            Agg { kind: "frame".to_string(), scope: "final".to_string(), samples_total, ..Agg::default() };
        let aggs = table_messages::aggs(&head, &rows, limit(&encoder, MessageType::Agg));
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
}

/// A run id of at most 64 characters, as each has.
fn numbered(id: &str, number: u64) -> String {
    let number = format!("-{number}");
    format!("{}{number}", &id[..id.len().min(64 - number.len())])
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
