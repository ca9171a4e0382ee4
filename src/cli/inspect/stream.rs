//! The report on a stream: its runs, by `run_id`, and the faults of its lines.

use std::io::BufRead;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::cli::exit::Status;
use crate::cli::inspect::runs::RunSummary;
use crate::cli::inspect::text::{Sheet, counted};
use crate::cli::inspect::{FaultReport, Job};
use crate::error::{Error, ErrorKind, Position, Result};
use crate::limits::KEPT;
use crate::protocol::{CpythonOddities, Decoded, Message, RawColumns, decode};
use crate::protocol::{Lines, Tolerated};

#[derive(Serialize)]
struct Report {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    packing: Option<&'static str>,
    runs: Vec<RunSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_lines: Option<Damaged>,
    /// Bytes of a last line that was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    torn_last_line_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tolerated: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<FaultReport>,
}

#[derive(Serialize)]
struct Damaged {
    lines: u64,
    first_line: u64,
    #[serde(skip)]
    first: Error,
}

pub(crate) fn run(job: &Job<'_>, packing: Option<&'static str>, reader: Box<dyn BufRead>) -> Result<Status> {
    let named = |error: Error| error.within(job.name);
    let mut stream = Stream::default();
    let mut lines = Lines::new(reader);
    let broken = loop {
        if stream.kept > KEPT {
            let what = format!("more than {KEPT} ids, threads and runs, the limit; what follows is not read");
            break Some(Error::new(ErrorKind::Limit, what));
        }
        match lines.next_message() {
            Ok(Some(line)) => stream.line(line.number, line.bytes, line.terminated),
            Ok(None) => break None,
            // What came before it is whole.
            Err(error) => break Some(error),
        }
    };
    let (report, faults) = stream.finish(packing, lines.tolerated(), broken).map_err(named)?;
    for oddity in &report.tolerated {
        job.messages.warning(job.name, oddity);
    }
    for fault in &faults {
        job.messages.fault(job.name, fault);
    }
    job.write(&report, |report| text(job.name, report))?;
    Ok(if faults.is_empty() { Status::Done } else { Status::Partial })
}

#[derive(Default)]
struct Stream {
    columns: RawColumns,
    runs: Vec<RunSummary>,
    /// How much they keep, in the units of [`KEPT`].
    kept: usize,
    /// The newest run of each id.
    newest: FxHashMap<String, usize>,
    /// The run of the message before: mostly that of the next one.
    last: Option<usize>,
    damaged: Option<Damaged>,
    oddities: CpythonOddities,
    /// The last line, where it was cut off: its bytes, and why it is no message.
    torn: Option<(usize, Error)>,
}

impl Stream {
    fn line(&mut self, number: u64, line: &mut [u8], terminated: bool) {
        let length = line.len();
        let understood =
            decode(line, &mut self.columns).and_then(|decoded| self.message(number, decoded, line));
        match understood {
            Ok(()) => {}
            Err(fault) if !terminated => self.torn = Some((length, fault.at(Position::Line(number)))),
            Err(fault) => match &mut self.damaged {
                Some(damaged) => damaged.lines += 1,
                None => {
                    let first = fault.at(Position::Line(number));
                    self.damaged = Some(Damaged { lines: 1, first_line: number, first });
                }
            },
        }
    }

    fn message(&mut self, number: u64, decoded: Decoded, line: &[u8]) -> Result<()> {
        let runs = self.runs.len();
        let index = self.run_of(number, &decoded);
        let Decoded { envelope, message } = decoded;
        if matches!(message, Message::CPython(_)) {
            self.oddities.line(line);
        }
        let run = &mut self.runs[index];
        let before = if index < runs { run.kept() } else { 0 };
        let understood = run.message(number, envelope.seq, message, &self.columns, line);
        self.kept = self.kept + run.kept() - before;
        understood
    }

    /// The run that a message belongs to. An id that comes again after its end is another run: so
    /// with a file that was joined to itself.
    fn run_of(&mut self, number: u64, decoded: &Decoded) -> usize {
        let envelope = &decoded.envelope;
        let known = match self.last {
            Some(last) if self.runs[last].run_id() == envelope.run_id => Some(last),
            _ => self.newest.get(&envelope.run_id).copied(),
        };
        let opens = match &decoded.message {
            Message::Meta(_) => envelope.seq == Some(0),
            Message::CPython(kind) => kind == "meta",
            _ => false,
        };
        let index = match known {
            Some(known) if !(opens && self.runs[known].is_over(envelope.version)) => known,
            _ => {
                self.runs.push(RunSummary::new(envelope, number));
                self.newest.insert(envelope.run_id.clone(), self.runs.len() - 1);
                self.runs.len() - 1
            }
        };
        self.last = Some(index);
        index
    }

    /// The report, and its faults as errors.
    fn finish(
        mut self,
        packing: Option<&'static str>,
        tolerated: Tolerated,
        broken: Option<Error>,
    ) -> Result<(Report, Vec<Error>)> {
        if self.runs.is_empty() {
            return Err(self.no_stream(broken));
        }
        let mut faults = Vec::new();
        if let Some(damaged) = &self.damaged {
            faults.push(damaged.first.again());
            if damaged.lines > 1 {
                faults.push(Error::stream(counted(damaged.lines - 1, "more damaged line")));
            }
        }
        for run in &mut self.runs {
            faults.extend(run.finish());
        }
        if let Some((length, fault)) = &self.torn {
            let what =
                Error::stream(format!("the last line is torn: {length} bytes that are not a whole message"));
            faults.push(match fault.position() {
                Some(line) => what.at(line),
                None => what,
            });
        }
        faults.extend(broken);
        let unknown = self.runs.iter().filter_map(RunSummary::unknown_types);
        let report = Report {
            kind: "stream",
            packing,
            tolerated: tolerated.notes().into_iter().chain(unknown).chain(self.oddities.notes()).collect(),
            runs: self.runs,
            damaged_lines: self.damaged,
            torn_last_line_bytes: self.torn.map(|(length, _)| length),
            faults: faults.iter().map(|fault| FaultReport::new(None, fault)).collect(),
        };
        Ok((report, faults))
    }

    /// Why there is no message at all.
    fn no_stream(self, broken: Option<Error>) -> Error {
        let torn = self.torn.map(|(_, fault)| fault);
        let Some(fault) = self.damaged.map(|damaged| damaged.first).or(torn) else {
            return broken.unwrap_or_else(|| Error::stream("no message at all"));
        };
        let error = Error::stream(format!("JSON, but not a stream: {}", fault.detail()));
        match fault.position() {
            Some(line) => error.at(line),
            None => error,
        }
    }
}

fn text(name: &str, report: &Report) -> String {
    let mut sheet = Sheet::default();
    let packing = report.packing.map_or(String::new(), |packing| format!(", packed with {packing}"));
    let runs = counted(report.runs.len() as u64, "run");
    sheet.line(&format!("{name}: a stream of {runs}{packing}"));
    if let Some(damaged) = &report.damaged_lines {
        sheet.row("damaged lines", format!("{} (line {} first)", damaged.lines, damaged.first_line));
    }
    if let Some(length) = report.torn_last_line_bytes {
        sheet.row("torn last line", format!("{length} bytes"));
    }
    for oddity in &report.tolerated {
        sheet.row("tolerated", oddity.clone());
    }
    for run in &report.runs {
        sheet.line("");
        run.rows(&mut sheet);
    }
    sheet.finish()
}
