//! `inspect`: what a profile or a stream holds.
//!
//! The first bytes tell which of the two it is. Memory does not grow with the number of samples: a
//! profile is opened and never replayed, a stream is read a line at a time.

mod chunks;
mod profile;
mod rows;
mod runs;
mod stream;
mod text;

use std::fmt;
use std::fs;
use std::io::{self, BufRead, Cursor, Read, Write};

use serde::Serialize;

use crate::cli::Status;
use crate::cli::args::Inspect;
use crate::cli::messages::Messages;
use crate::error::{Error, Position, Result};
use crate::model::ThreadKey;
use crate::stream::{Input, ProfileSource, unpacked};

/// Bytes that decide what an input is: room for what a program says before its first line.
const PEEK: u64 = 8 * 1024;

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
    fn new(thread: ThreadKey, samples: u64, span_us: Option<(u64, u64)>) -> Self {
        ThreadReport {
            interpreter_id: thread.interpreter_id,
            thread_id: thread.thread_id.to_string(),
            samples,
            first_usec: span_us.map(|span| span.0),
            last_usec: span_us.map(|span| span.1),
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

pub(super) fn run(args: &Inspect, messages: &Messages) -> Result<Status> {
    let input = Input::of_argument(args.input.as_deref());
    let name = input.name();
    let job = Job { name: &name, json: args.json, verify: args.verify, messages };
    let named = |error: Error| error.within(&name);
    let mut reader = input.reader().map_err(named)?;
    let start = peek(&mut reader).map_err(named)?;
    let whole: Box<dyn BufRead> = Box::new(Cursor::new(start.clone()).chain(reader));
    if is_stream(&start) {
        return stream::run(&job, None, whole);
    }
    let packing = match start.as_slice() {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [0x1f, 0x8b, ..] => Some("gzip"),
        _ => None,
    };
    if let Some(packing) = packing {
        let opened = unpacked(whole).and_then(|mut reader| Ok((peek(&mut reader)?, reader)));
        let (unpacked_start, reader) = opened.map_err(|error| {
            let fault = format!("packed with {packing}, but it cannot be unpacked: {}", error.detail());
            named(Error::stream(fault))
        })?;
        if is_stream(&unpacked_start) {
            return stream::run(&job, Some(packing), Box::new(Cursor::new(unpacked_start).chain(reader)));
        }
        // Told for what it looks like.
        return profile::run(&job, Cursor::new(start));
    }
    profile::run(&job, source(&input, whole).map_err(named)?)
}

/// Takes up to [`PEEK`] bytes. An error behind the first byte is left to who reads on.
fn peek(reader: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut start = Vec::new();
    match reader.take(PEEK).read_to_end(&mut start) {
        Err(error) if start.is_empty() => Err(error.into()),
        _ => Ok(start),
    }
}

/// Whether a file that begins so holds lines of JSON objects, maybe behind lines that a program said.
/// A pstats file begins with a brace, too.
fn is_stream(start: &[u8]) -> bool {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    match text.strip_prefix(b"{") {
        Some(rest) => matches!(rest.trim_ascii_start().first(), None | Some(b'"' | b'}')),
        None => {
            let said = |byte: &u8| !byte.is_ascii_control() || byte.is_ascii_whitespace() || *byte == 0x1b;
            text.split_inclusive(|byte| *byte == b'\n')
                .take_while(|line| line.iter().all(said))
                .any(|line| line.starts_with(b"{\"type\":"))
        }
    }
}

/// The input as bytes that can be read anywhere; `whole` is the same, opened already.
fn source(input: &Input, whole: Box<dyn BufRead>) -> Result<ProfileSource> {
    if let Input::File(path) = input
        && fs::metadata(path)?.is_file()
    {
        return input.source();
    }
    Ok(ProfileSource::of_pipe(whole))
}

/// What is asked, and where to say what.
struct Job<'a> {
    name: &'a str,
    json: bool,
    /// Whether every part is opened, where an outline would do.
    verify: bool,
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
            text(report)
        };
        let mut stdout = io::stdout().lock();
        stdout.write_all(answer.as_bytes())?;
        stdout.flush()?;
        Ok(())
    }
}
