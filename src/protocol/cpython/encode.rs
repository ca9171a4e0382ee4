//! Encodes CPython's own JSON Lines, byte for byte as its `json.dumps` writes them.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;

use crate::protocol::cpython::{CpythonEntry, CpythonFrame, CpythonString};

/// Entries of one line.
const ENTRIES: usize = 256;

/// Writes the messages of one run as `replay --jsonl` does.
#[derive(Debug)]
pub struct CpythonEncoder {
    run_id: String,
}

/// A message, its keys in CPython's order.
#[derive(Serialize)]
struct Line<'a, T> {
    #[serde(rename = "type")]
    type_: &'a str,
    v: u64,
    run_id: &'a str,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct Meta<'a> {
    sample_interval_usec: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'a str>,
}

#[derive(Serialize)]
struct Strings<'a> {
    strings: &'a [CpythonString<'a>],
}

#[derive(Serialize)]
struct Frames<'a> {
    frames: &'a [CpythonFrame],
}

#[derive(Serialize)]
struct Agg<'a> {
    kind: &'a str,
    scope: &'a str,
    samples_total: u64,
    entries: &'a [CpythonEntry],
}

#[derive(Serialize)]
struct End {
    samples_total: u64,
}

impl CpythonEncoder {
    /// An encoder for a run that begins.
    pub fn new(run_id: &str) -> Self {
        CpythonEncoder { run_id: run_id.to_string() }
    }

    /// The first message.
    pub fn meta(&self, out: &mut Vec<u8>, sample_interval_usec: u64, mode: Option<&str>) {
        self.line(out, "meta", Meta { sample_interval_usec, mode });
    }

    /// The string table.
    pub fn strings(&self, out: &mut Vec<u8>, strings: &[CpythonString<'_>]) {
        strings.chunks(ENTRIES).for_each(|strings| self.line(out, "string_table", Strings { strings }));
    }

    /// The frame table.
    pub fn frames(&self, out: &mut Vec<u8>, frames: &[CpythonFrame]) {
        frames.chunks(ENTRIES).for_each(|frames| self.line(out, "frame_table", Frames { frames }));
    }

    /// The final table of counts.
    pub fn agg(&self, out: &mut Vec<u8>, samples_total: u64, entries: &[CpythonEntry]) {
        for entries in entries.chunks(ENTRIES) {
            self.line(out, "agg", Agg { kind: "frame", scope: "final", samples_total, entries });
        }
    }

    /// The last message.
    pub fn end(&self, out: &mut Vec<u8>, samples_total: u64) {
        self.line(out, "end", End { samples_total });
    }

    fn line(&self, out: &mut Vec<u8>, type_: &str, body: impl Serialize) {
        let line = Line { type_, v: 0, run_id: &self.run_id, body };
        let mut serializer = serde_json::Serializer::with_formatter(&mut *out, Ascii);
        line.serialize(&mut serializer).expect("a Vec takes all, and the messages have string keys");
        out.push(b'\n');
    }
}

/// Escapes as Python's `json.dumps` does: everything but printable ASCII.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut plain = 0;
        for (at, character) in fragment.char_indices() {
            if matches!(character, ' '..='~') {
                continue;
            }
            writer.write_all(&fragment.as_bytes()[plain..at])?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain = at + character.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[plain..])
    }
}
