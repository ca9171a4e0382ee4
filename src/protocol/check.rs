//! Checks a stream against the rules of the protocol and reports each violation with its line.
//!
//! Strict where readers are mild: what a reader overlooks (a blank line, a carriage return, keys in
//! another order) is a breach of the wire all the same. What a later version may add (types, keys, reasons,
//! codes) is none. One cause is reported once: where a message is missing or cannot be understood,
//! what follows from that (sums, undefined ids) is not reported again.
//!
//! Memory holds a little for each run, id and thread that it follows, up to [`KEPT`] of them, and nothing for
//! each sample or line. A run for which there is no room is not followed any further, and that is said.

mod batch;
mod define;
mod keys;
mod raw;
mod report;
mod run;
mod shape;
mod tables;

use std::collections::HashMap;

use crate::limits::{KEPT, LINE_MAX, LINE_READ, RUN_KEPT};
use crate::marks::{after_byte_order_mark, record_separators};
pub use crate::protocol::check::report::Finding;
use crate::protocol::check::report::Report;
use crate::protocol::check::run::RunChecker;
use crate::protocol::check::shape::Shape;
use crate::protocol::columns::RawColumns;
use crate::protocol::cpython::{CpythonMessage, CpythonRules, decode_cpython};
use crate::protocol::decode::{Decoded, Message, decode};
use crate::protocol::encode::is_run_id;
use crate::protocol::message::VERSION;

/// Checks a stream line by line.
///
/// ```
/// use tachyon_jsonl::protocol::Checker;
///
/// let mut checker = Checker::default();
/// let mut findings = Vec::new();
/// checker.line(1, &mut b"".to_vec(), true, &mut findings);
/// checker.finish(&mut findings);
/// assert_eq!(findings[0].line, 1);
/// assert_eq!(findings[0].what, "a blank line");
/// ```
#[derive(Debug, Default)]
pub struct Checker {
    runs: HashMap<String, Followed<Box<RunChecker>>>,
    columns: RawColumns,
    room: raw::Room,
    messages: u64,
    faults: u64,
    last_line: u64,
    /// CPython's own runs by id.
    cpython: HashMap<String, Followed<CpythonRules>>,
    /// How much the runs keep, in the units of [`KEPT`].
    kept: usize,
    /// That there is no room for other runs was reported.
    is_full: bool,
    /// Lines that may have been messages of any run: they explain as many missing numbers.
    unread: u64,
}

/// A run of the stream.
#[derive(Debug)]
enum Followed<R> {
    Open(R),
    Ended,
    /// There is no room for it.
    GivenUp,
}

/// As how much a run counts of which the id alone is kept.
const ID_KEPT: usize = 3;

impl Checker {
    /// JSON objects so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Checks the line of this number, without its line feed; `terminated` says whether it had one.
    /// Appends what is wrong to `findings`. The bytes of `line` may be changed.
    pub fn line(&mut self, number: u64, line: &mut [u8], terminated: bool, findings: &mut Vec<Finding>) {
        self.last_line = number;
        let mut report = Report { line: number, findings, faults: self.faults };
        self.take(line, terminated, &mut report);
        self.faults = report.faults;
    }

    fn take(&mut self, line: &mut [u8], terminated: bool, report: &mut Report<'_>) {
        let Some(line) = framed(report.line, line, terminated, report) else { return };
        self.messages += 1;
        let shape = match shape::scan(line) {
            Ok(shape) => shape,
            Err(broken) => {
                self.unread += 1;
                let shape::Broken { what, column, breaks_off } = broken;
                if terminated || !breaks_off {
                    report.say(format!("no JSON: {what} (column {column})"));
                    if terminated {
                        return;
                    }
                }
                return report.say("the stream breaks off within this line");
            }
        };
        if !terminated {
            report.say("no line feed ends the last line");
        }
        match shape.version {
            Some(0 | 1) => self.cpython(line, report),
            Some(version) if version != VERSION => {
                self.unread += 1;
                report.say(format!("schema version {version} is unknown; 0, 1 and 2 are known"));
            }
            _ => self.message(shape, line, report),
        }
    }

    fn cpython(&mut self, line: &mut [u8], report: &mut Report<'_>) {
        let understood = decode(line, &mut self.columns).and_then(|decoded| match decoded.message {
            Message::CPython(kind) => Ok((decoded.envelope.run_id, decode_cpython(&kind, line)?)),
            _ => Ok((decoded.envelope.run_id, CpythonMessage::Other)),
        });
        let (run_id, message) = match understood {
            Ok(understood) => understood,
            Err(fault) => return report.say(fault.detail()),
        };
        if !self.has_room(self.cpython.contains_key(&run_id), report) {
            return;
        }
        let open = || {
            self.kept += RUN_KEPT;
            Followed::Open(CpythonRules::default())
        };
        let run = self.cpython.entry(run_id).or_insert_with(open);
        let Followed::Open(rules) = run else { return };
        let before = rules.kept();
        rules.message(&message, &mut |what| report.say(what));
        self.kept = self.kept + rules.kept() - before;
        if self.kept > KEPT {
            self.kept -= rules.kept() + RUN_KEPT - ID_KEPT;
            *run = Followed::GivenUp;
            report.say(no_room());
        }
    }

    /// Whether there is room for one more run, if it is not known.
    fn has_room(&mut self, is_known: bool, report: &mut Report<'_>) -> bool {
        let has_room = is_known || self.kept + RUN_KEPT <= KEPT;
        if !has_room && !std::mem::replace(&mut self.is_full, true) {
            report.say(no_room());
        }
        has_room
    }

    /// A message of this run was taken, before which it kept so much.
    fn settle(&mut self, run_id: &str, before: usize, report: &mut Report<'_>) {
        let Some(run) = self.runs.get_mut(run_id) else { return };
        let after = match run {
            Followed::Open(run) => run.kept(),
            Followed::Ended | Followed::GivenUp => ID_KEPT,
        };
        self.kept = self.kept + after - before;
        if self.kept > KEPT && matches!(run, Followed::Open(_)) {
            self.kept = self.kept + ID_KEPT - after;
            *run = Followed::GivenUp;
            report.say(no_room());
        }
    }

    fn message(&mut self, shape: Shape, line: &mut [u8], report: &mut Report<'_>) {
        let length = line.len() + 1;
        let well_formed = shape.faults.is_empty();
        shape.faults.iter().for_each(|fault| report.say(fault));
        let decoded = decode(line, &mut self.columns);
        let is_one_string =
            matches!(&decoded, Ok(Decoded { message: Message::StrDef(body), .. }) if body.str_id.len() == 1);
        if length > LINE_MAX && !is_one_string {
            report.say(format!("a line of {length} bytes; the greatest line limit is {LINE_MAX}"));
        }
        let run_id = match &decoded {
            Ok(decoded) => Some(decoded.envelope.run_id.clone()),
            Err(fault) => {
                if well_formed {
                    report.say(fault.detail());
                }
                shape.run_id.clone().filter(|run_id| shape.seq.is_some() && is_run_id(run_id))
            }
        };
        let Some(run_id) = run_id else { return self.unread += 1 };
        if !self.has_room(self.runs.contains_key(&run_id), report) {
            return;
        }
        let run = self.runs.entry(run_id.clone()).or_insert_with(|| {
            self.kept += RUN_KEPT;
            Followed::Open(Box::new(RunChecker::new(&run_id, report.line)))
        });
        let open = match run {
            Followed::Open(open) => open,
            Followed::Ended => return report.say(format!("a message after the end of its run '{run_id}'")),
            Followed::GivenUp => return,
        };
        let before = open.kept();
        let seq = decoded.as_ref().ok().and_then(|decoded| decoded.envelope.seq).or(shape.seq);
        let is_over = if seq.is_some_and(|seq| !open.takes_seq(seq, &mut self.unread, report)) {
            false
        } else if let Ok(decoded) = &decoded {
            open.message(&decoded.message, &self.columns, shape.batch, &mut self.room, report);
            matches!(decoded.message, Message::End(_))
        } else {
            open.not_understood(&shape, report)
        };
        if is_over {
            *run = Followed::Ended;
        }
        self.settle(&run_id, before, report);
    }

    /// The line of this number was too long to be read.
    pub fn unreadable(&mut self, number: u64, findings: &mut Vec<Finding>) {
        self.last_line = number;
        self.messages += 1;
        self.unread += 1;
        self.faults += 1;
        Report { line: number, findings, faults: 0 }
            .say(format!("a line of more than {LINE_READ} bytes, which is not read"));
    }

    /// Ends the stream: appends what is missing from it. Returns how many faults there are, of which the
    /// first [`FAULTS`](crate::limits::FAULTS) are reported.
    pub fn finish(self, findings: &mut Vec<Finding>) -> u64 {
        let mut report = Report { line: self.last_line.max(1), findings, faults: self.faults };
        if self.last_line == 0 {
            report.say("the stream is empty");
            return report.faults;
        }
        let is_cut_off =
            |run: &Followed<CpythonRules>| matches!(run, Followed::Open(rules) if !rules.has_end());
        let mut cut_off: Vec<_> =
            self.cpython.iter().filter(|(_, run)| is_cut_off(run)).map(|(id, _)| id).collect();
        cut_off.sort_unstable();
        for id in cut_off {
            report.at(self.last_line, format!("the run '{id}' has no end"));
        }
        let runs = self.runs.into_values().filter_map(|run| match run {
            Followed::Open(run) => Some(run),
            Followed::Ended | Followed::GivenUp => None,
        });
        let mut open: Vec<Box<RunChecker>> = runs.collect();
        open.sort_unstable_by_key(|run| run.last_line());
        for run in open {
            run.cut_off(&mut report);
        }
        report.faults
    }
}

fn no_room() -> String {
    format!(
        "the stream needs more than {KEPT} ids, threads and runs to be followed at a time, the limit; this run is not checked any further"
    )
}

/// The line without what must not be around a message; `None` where there is no message in it.
fn framed<'a>(
    number: u64,
    line: &'a mut [u8],
    terminated: bool,
    report: &mut Report<'_>,
) -> Option<&'a mut [u8]> {
    let mut line = line;
    if number == 1
        && let Some(rest) = after_byte_order_mark(line)
    {
        report.say("a byte order mark");
        let mark = line.len() - rest.len();
        line = &mut line[mark..];
    }
    let separators = record_separators(line);
    if separators > 0 {
        report.say("a record separator before the message");
        line = &mut line[separators..];
    }
    match line.trim_ascii_start().first() {
        Some(b'{') => {}
        None => {
            report.say("a blank line");
            return None;
        }
        Some(_) => {
            report.say("text that is not a JSON object");
            return None;
        }
    }
    if terminated && line.last() == Some(&b'\r') {
        report.say("a carriage return before the line feed");
        let end = line.len() - 1;
        line = &mut line[..end];
    }
    if line.ends_with(b"},") {
        report.say("a comma after the message");
        let end = line.len() - 1;
        line = &mut line[..end];
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use crate::protocol::check::report::{WORDS, on_one_line};

    #[test]
    fn what_quotes_the_stream_is_short_and_without_control_characters() {
        let longest = "x".repeat(WORDS);
        for (what, shown) in [
            ("a \u{1b}[2J b\n", "a \\u{1b}[2J b\\n"),
            (longest.as_str(), longest.as_str()),
            (&format!("{longest}y"), &format!("{longest}...")),
            (&format!("{longest}\n"), &format!("{longest}...")),
            (&"\u{7f}".repeat(WORDS), &format!("{}...", "\\u{7f}".repeat(WORDS / 6))),
        ] {
            assert_eq!(on_one_line(what.to_string()), shown);
        }
    }
}
