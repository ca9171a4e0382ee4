//! Holds a stream against the rules of the protocol, and tells every breach with its line.
//!
//! Strict where readers are mild: what a reader overlooks (a blank line, a carriage return, keys in
//! another order) is a breach of the wire all the same. What a later version may add (types, keys, reasons,
//! codes) is none. One cause is told once: where a message is missing or cannot be understood,
//! what follows from that (sums, undefined ids) is not told as well.
//!
//! Memory holds a little for each run, the definitions of one batch, a number for each id and thread of
//! a run up to a bound, and nothing for each sample or line.

mod batch;
mod define;
mod keys;
mod raw;
mod run;
mod shape;
mod tables;

use std::collections::HashMap;

use crate::limits::{LINE_MAX, LINE_READ};
use crate::protocol::check::run::Run;
use crate::protocol::check::shape::Shape;
use crate::protocol::cpython::{CpythonMessage, CpythonRules, decode_cpython};
use crate::protocol::decode::{Decoded, Message, RawColumns, decode};
use crate::protocol::encode::is_run_id;
use crate::protocol::message::VERSION;

/// Bytes of a finding, about: it may quote a whole line.
const WORDS: usize = 300;

/// A breach of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Line of the stream, from 1.
    pub line: u64,
    /// What is wrong.
    pub what: String,
}

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
    /// By run id; `None` once the run has ended.
    runs: HashMap<String, Option<Box<Run>>>,
    columns: RawColumns,
    room: raw::Room,
    messages: u64,
    last_line: u64,
    /// CPython's own runs by id.
    cpython: HashMap<String, CpythonRules>,
    /// Lines that may have been messages of any run: they explain as many missing numbers.
    unread: u64,
}

/// Where findings about a line go.
struct Report<'a> {
    line: u64,
    findings: &'a mut Vec<Finding>,
}

impl Report<'_> {
    fn say(&mut self, what: impl Into<String>) {
        self.at(self.line, what);
    }

    fn at(&mut self, line: u64, what: impl Into<String>) {
        self.findings.push(Finding { line, what: on_one_line(what.into()) });
    }
}

/// Words that may quote the stream, fit to be shown: no control characters, and not too many.
fn on_one_line(what: String) -> String {
    if what.len() <= WORDS && !what.contains(char::is_control) {
        return what;
    }
    let mut shown = String::new();
    for char in what.chars() {
        if shown.len() >= WORDS {
            shown.push_str("...");
            break;
        }
        if char.is_control() { shown.extend(char.escape_default()) } else { shown.push(char) }
    }
    shown
}

impl Checker {
    /// JSON objects so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Checks the line of this number, without its line feed; `terminated` tells whether it had one.
    /// Appends what is wrong to `findings`. The bytes of `line` may be changed.
    pub fn line(&mut self, number: u64, line: &mut [u8], terminated: bool, findings: &mut Vec<Finding>) {
        self.last_line = number;
        let mut report = Report { line: number, findings };
        let Some(line) = framed(number, line, terminated, &mut report) else { return };
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
            Some(0 | 1) => self.cpython(line, &mut report),
            Some(version) if version != VERSION => {
                self.unread += 1;
                report.say(format!("schema version {version} is not known; 0, 1 and 2 are"));
            }
            _ => self.message(shape, line, &mut report),
        }
    }

    fn cpython(&mut self, line: &mut [u8], report: &mut Report<'_>) {
        let understood = decode(line, &mut self.columns).and_then(|decoded| match decoded.message {
            Message::CPython(kind) => Ok((decoded.envelope.run_id, decode_cpython(&kind, line)?)),
            _ => Ok((decoded.envelope.run_id, CpythonMessage::Other)),
        });
        match understood {
            Ok((run_id, message)) => {
                self.cpython.entry(run_id).or_default().message(&message, &mut |what| report.say(what));
            }
            Err(fault) => report.say(fault.detail()),
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
        match decoded {
            Ok(decoded) => {
                let run_id = &decoded.envelope.run_id;
                let Some(run) = open(&mut self.runs, run_id, report) else { return };
                let seq = decoded.envelope.seq.or(shape.seq);
                if seq.is_some_and(|seq| !run.takes_seq(seq, &mut self.unread, report)) {
                    return;
                }
                let is_end = matches!(decoded.message, Message::End(_));
                run.message(&decoded.message, &self.columns, shape.batch, &mut self.room, report);
                if is_end {
                    self.runs.insert(decoded.envelope.run_id, None);
                }
            }
            Err(fault) => {
                if well_formed {
                    report.say(fault.detail());
                }
                match (&shape.run_id, shape.seq) {
                    (Some(run_id), Some(seq)) if is_run_id(run_id) => {
                        let Some(run) = open(&mut self.runs, run_id, report) else { return };
                        if run.takes_seq(seq, &mut self.unread, report) && run.not_understood(&shape, report)
                        {
                            self.runs.insert(run_id.clone(), None);
                        }
                    }
                    _ => self.unread += 1,
                }
            }
        }
    }

    /// The line of this number was too long to be read.
    pub fn unreadable(&mut self, number: u64, findings: &mut Vec<Finding>) {
        self.last_line = number;
        self.messages += 1;
        self.unread += 1;
        Report { line: number, findings }
            .say(format!("a line of more than {LINE_READ} bytes, which is not read"));
    }

    /// Ends the stream: appends what is missing from it.
    pub fn finish(self, findings: &mut Vec<Finding>) {
        if self.last_line == 0 {
            Report { line: 1, findings }.say("the stream is empty");
            return;
        }
        let cut_off = self.cpython.iter().filter(|(_, run)| !run.has_end()).map(|(id, _)| id);
        let mut cut_off: Vec<_> = cut_off.collect();
        cut_off.sort_unstable();
        for id in cut_off {
            Report { line: self.last_line, findings }.say(format!("the run '{id}' has no end"));
        }
        let mut open: Vec<Box<Run>> = self.runs.into_values().flatten().collect();
        open.sort_unstable_by_key(|run| run.last_line());
        for run in open {
            run.cut_off(&mut Report { line: self.last_line, findings });
        }
    }
}

/// The run of this id, unless it has ended.
fn open<'a>(
    runs: &'a mut HashMap<String, Option<Box<Run>>>,
    run_id: &str,
    report: &mut Report<'_>,
) -> Option<&'a mut Run> {
    // The id is copied only where it is new.
    if !runs.contains_key(run_id) {
        runs.insert(run_id.to_string(), Some(Box::new(Run::new(run_id))));
    }
    let run = runs.get_mut(run_id).and_then(Option::as_deref_mut);
    if run.is_none() {
        report.say(format!("a message behind the end of its run '{run_id}'"));
    }
    run
}

/// The line without what must not be around a message; `None` where there is no message in it.
fn framed<'a>(
    number: u64,
    line: &'a mut [u8],
    terminated: bool,
    report: &mut Report<'_>,
) -> Option<&'a mut [u8]> {
    let mut line = line;
    if number == 1 && line.starts_with(b"\xef\xbb\xbf") {
        report.say("a byte order mark");
        line = &mut line[3..];
    }
    match line.trim_ascii_start().first() {
        Some(b'{') => {}
        None => {
            report.say("a blank line");
            return None;
        }
        Some(_) => {
            report.say("text that is no JSON object");
            return None;
        }
    }
    if terminated && line.last() == Some(&b'\r') {
        report.say("a carriage return before the line feed");
        let end = line.len() - 1;
        line = &mut line[..end];
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

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
