//! `inspect`: a summary of a profile or a stream.
//!
//! The first bytes tell which of the two it is. Memory does not grow with the number of samples: a
//! profile is opened and never replayed, a stream is read a line at a time.

mod chunks;
mod profile;
mod rows;
mod runs;
mod stream;
mod text;
mod trace;

use std::fmt;
use std::io::{self, Cursor};

use serde::Serialize;

use crate::cli::args::Inspect;
use crate::cli::exit::Status;
use crate::cli::io::Input;
use crate::cli::io::sniff::{Sniffed, sniff};
use crate::cli::network::network;
use crate::cli::ui::messages::Messages;
use crate::cli::ui::terminal::{self, shown_lines};
use crate::error::{Error, Position, Result};
use crate::model::{ThreadKey, TimeSpan};

/// A thread of a profile or a run.
#[derive(Debug, Serialize)]
struct ThreadReport {
    interpreter_id: u32,
    thread_id: String,
    samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_usec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_usec: Option<u64>,
}

impl ThreadReport {
    fn new(thread: ThreadKey, samples: u64, span: Option<TimeSpan>) -> Self {
        ThreadReport {
            interpreter_id: thread.interpreter_id,
            thread_id: thread.thread_id.to_string(),
            samples,
            first_usec: span.map(|span| span.first_us),
            last_usec: span.map(|span| span.last_us),
        }
    }
}

/// Something wrong, with its place where that is known.
#[derive(Debug, Serialize)]
struct FaultReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unpacked_offset_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
}

impl FaultReport {
    fn new(code: Option<&'static str>, error: &Error) -> Self {
        let mut report = FaultReport {
            code,
            detail: error.detail().to_string(),
            offset_bytes: None,
            unpacked_offset_bytes: None,
            line: None,
        };
        match error.position() {
            Some(Position::Byte(byte)) => report.offset_bytes = Some(byte),
            Some(Position::Unpacked(byte)) => report.unpacked_offset_bytes = Some(byte),
            Some(Position::Line(line)) => report.line = Some(line),
            None => {}
        }
        report
    }
}

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)?;
        let places = [
            self.offset_bytes.map(Position::Byte),
            self.unpacked_offset_bytes.map(Position::Unpacked),
            self.line.map(Position::Line),
        ];
        match places.into_iter().flatten().next() {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

pub(crate) fn run(args: &Inspect, messages: &Messages) -> Result<Status> {
    let input = Input::of_argument(args.input.as_deref(), &network(&args.access, messages)?)?;
    let name = input.name();
    let job = Job { name: &name, json: args.json, verify: args.verify, outline: args.outline, messages };
    match sniff(&input).map_err(|error| error.within(&name))? {
        Sniffed::Stream { packing, reader, .. } => stream::run(&job, packing, reader),
        Sniffed::Profile(mut source) => {
            let looked = profile::run(&job, &mut source);
            let Some(failure) = source.failure() else { return looked };
            messages.fault(&name, &failure);
            looked.map(|_| Status::Partial)
        }
        Sniffed::Trace(trace) => trace::run(&job, *trace),
        // Told for what it looks like.
        Sniffed::Packed(start) => profile::run(&job, Cursor::new(start)),
    }
}

/// What is asked, and where to say what.
struct Job<'a> {
    name: &'a str,
    json: bool,
    /// Whether every part is opened, where an outline would do.
    verify: bool,
    /// Whether an outline does of any profile.
    outline: bool,
    messages: &'a Messages,
}

impl Job<'_> {
    /// Writes the answer to standard output.
    fn write<T: Serialize>(&self, report: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        let answer = if self.json {
            let mut line =
                serde_json::to_string(report).map_err(|error| Error::from(io::Error::other(error)))?;
            line.push('\n');
            line
        } else {
            shown_lines(&text(report)).into_owned()
        };
        terminal::write(|out| out.write_all(answer.as_bytes()))
    }
}
