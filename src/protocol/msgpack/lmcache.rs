//! The trace files of LMCache: calls with their times and arguments, as frames.

use std::io::Read;

use rmpv::Value;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::{Error, ErrorKind, Position, Result};
use crate::protocol::encode::{Envelope, write_json};
use crate::protocol::message::{End, ErrorMessage, Loss, LossAmount, LossReason};
use crate::protocol::msgpack::frames::{Frames, get, magic};
use crate::protocol::msgpack::json;

const MAGIC: &str = "LMCT";
const FORMAT_VERSION: u64 = 1;

/// What a trace's header frame says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LmcacheHeader {
    /// Version of the framing.
    pub format_version: u64,
    /// How much was traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<serde_json::Value>,
    /// Version of the records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_schema_version: Option<serde_json::Value>,
    /// Seconds of the monotonic clock at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_mono_start: Option<f64>,
    /// Unix seconds at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_wall_start: Option<f64>,
    /// The storage manager's configuration, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_config_json: Option<String>,
    /// Its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_config_digest: Option<String>,
}

/// Reads a trace and gives it as lines: type `trace` for the header, `call` for each record, `end`.
pub struct LmcacheTrace<R> {
    frames: Frames<R>,
    header: LmcacheHeader,
    run_id: String,
    seq: u64,
    records: u64,
    unknown: u64,
    span_us: Option<(i64, i64)>,
}

#[derive(Serialize)]
struct Trace<'a> {
    format: &'a str,
    #[serde(flatten)]
    header: &'a LmcacheHeader,
}

/// Whether a file that begins so is a trace of LMCache.
pub(crate) fn is_lmcache(start: &[u8]) -> bool {
    magic(start).as_deref() == Some(MAGIC)
}

impl<R: Read> LmcacheTrace<R> {
    /// Whether a file that begins so is a trace.
    pub fn is_begun_by(start: &[u8]) -> bool {
        is_lmcache(start)
    }

    /// Reads the header frame.
    ///
    /// # Errors
    ///
    /// Another magic, an unknown version, and errors of the reader.
    pub fn open(reader: R) -> Result<Self> {
        let mut frames = Frames::new(reader);
        let at = |error: Error| error.at(Position::Byte(0));
        let Some(map) = frames.next_frame()? else { return Err(at(Error::stream("an empty file"))) };
        if get(&map, "magic").and_then(Value::as_str) != Some(MAGIC) {
            return Err(at(Error::stream("no LMCache trace: the magic is missing")));
        }
        match get(&map, "format_version").and_then(Value::as_u64) {
            Some(FORMAT_VERSION) => {}
            Some(other) => {
                let fault = format!(
                    "an LMCache trace of format version {other}, which is not known; {FORMAT_VERSION} is"
                );
                return Err(at(Error::stream(fault)));
            }
            None => return Err(at(Error::stream("an LMCache trace without a format_version"))),
        }
        let text = |key: &str| get(&map, key).and_then(Value::as_str).map(str::to_string);
        let number = |key: &str| get(&map, key).and_then(Value::as_f64);
        let any = |key: &str| {
            let mut json = Vec::new();
            json::write(&mut json, get(&map, key)?);
            serde_json::from_slice(&json).ok()
        };
        let header = LmcacheHeader {
            format_version: FORMAT_VERSION,
            level: any("level"),
            trace_schema_version: any("trace_schema_version"),
            t_mono_start: number("t_mono_start"),
            t_wall_start: number("t_wall_start"),
            sm_config_json: text("sm_config_json"),
            sm_config_digest: text("sm_config_digest"),
        };
        let mut bytes = Vec::new();
        json::map(&mut bytes, &map, |out, _, value| json::write(out, value));
        let run_id = format!("{:032x}", xxh3_128(&bytes));
        Ok(LmcacheTrace { frames, header, run_id, seq: 0, records: 0, unknown: 0, span_us: None })
    }

    /// What the header says.
    pub fn header(&self) -> &LmcacheHeader {
        &self.header
    }

    /// Gives the run another id than the one that is made of the header.
    #[must_use]
    pub fn run_id(mut self, run_id: &str) -> Self {
        self.run_id = run_id.to_string();
        self
    }

    /// Records so far, and frames of types that are not known.
    pub fn counts(&self) -> (u64, u64) {
        (self.records, self.unknown)
    }

    /// The earliest and the latest time of a record so far, microseconds of the monotonic clock.
    pub fn span_us(&self) -> Option<(i64, i64)> {
        self.span_us
    }

    /// Bytes up to here.
    pub fn position(&self) -> u64 {
        self.frames.position()
    }

    /// Appends the line of the header.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        let body = Trace { format: "lmcache", header: &self.header.clone() };
        self.line(out, "trace", |out| write_json(out, &body));
    }

    /// Appends the line of the next record; returns what was called, or `None` at the end.
    ///
    /// # Errors
    ///
    /// A frame that is torn or no record, and errors of the reader.
    pub fn next_call(&mut self, out: &mut Vec<u8>) -> Result<Option<String>> {
        loop {
            let at = self.frames.position();
            let Some(map) = self.frames.next_frame()? else { return Ok(None) };
            if get(&map, "type").and_then(Value::as_str) != Some("record") {
                self.unknown += 1;
                continue;
            }
            let fault = |what: &str| Error::stream(format!("a record without {what}")).at(Position::Byte(at));
            let time = |key: &str| get(&map, key).and_then(Value::as_f64);
            let mono = time("t_mono").ok_or_else(|| fault("t_mono"))?;
            let wall = time("t_wall");
            let name = get(&map, "qualname").and_then(Value::as_str).ok_or_else(|| fault("qualname"))?;
            let us = |seconds: f64| (seconds * 1e6).round() as i64;
            let ts = us(mono);
            let span = self.span_us.get_or_insert((ts, ts));
            *span = (span.0.min(ts), span.1.max(ts));
            self.records += 1;
            self.line(out, "call", |out| {
                out.extend_from_slice(b"{\"ts_usec\":");
                write_json(out, &ts);
                if let Some(wall) = wall {
                    out.extend_from_slice(b",\"wall_usec\":");
                    write_json(out, &us(wall));
                }
                // What else the record holds, as it is.
                for (key, value) in &map {
                    let Some(key) = key.as_str().filter(|key| *key != "type") else { continue };
                    out.push(b',');
                    write_json(out, key);
                    out.push(b':');
                    json::write(out, value);
                }
                out.push(b'}');
            });
            return Ok(Some(name.to_string()));
        }
    }

    /// Appends what ends the run: the error, if there is one, what is lost by it, and the end.
    pub fn end(&mut self, out: &mut Vec<u8>, fault: Option<&Error>) {
        if let Some(error) = fault {
            let offset = Some(self.frames.position());
            let code = if error.kind() == ErrorKind::Limit { "limit" } else { "truncated" };
            let body =
                ErrorMessage { code: code.to_string(), detail: error.to_string(), offset, fatal: true };
            self.line(out, "error", |out| write_json(out, &body));
            let amount = LossAmount { lost_bytes: self.frames.torn(), ..LossAmount::default() };
            let reason = LossReason::Truncated.name().to_string();
            let body = Loss { reason, amount, ..Loss::default() };
            self.line(out, "loss", |out| write_json(out, &body));
        }
        let duration = self.span_us.map(|(first, last)| (last - first) as u64);
        let body = End {
            complete: fault.is_none(),
            messages: self.seq + 1,
            duration_usec: duration,
            ..End::default()
        };
        self.line(out, "end", |out| write_json(out, &body));
    }

    fn line(&mut self, out: &mut Vec<u8>, type_: &str, body: impl FnOnce(&mut Vec<u8>)) {
        let at = Envelope { type_, run_id: &self.run_id, seq: self.seq }.open(out);
        self.seq += 1;
        body(out);
        out[at] = b',';
        out.push(b'\n');
    }
}
