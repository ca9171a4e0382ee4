//! LMCache trace files: calls with their times and arguments, as MessagePack frames.

use std::collections::BTreeMap;
use std::io::Read;

use rustc_hash::FxHashSet;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::{Error, ErrorKind, Position, Result};
use crate::limits::LINE_READ;
use crate::protocol::encode::{Envelope, write_json};
use crate::protocol::message::{End, ErrorMessage, Loss, LossAmount, LossReason};
use crate::protocol::msgpack::frames::{Frames, magic};
use crate::protocol::msgpack::json;
use crate::protocol::msgpack::view::{Kind, View};
use crate::protocol::text::quoted;
use sha2::{Digest, Sha256};

const MAGIC: &str = "LMCT";
const FORMAT_VERSION: u64 = 1;
const TRACE_SCHEMA_VERSION: u64 = 1;
/// Of one map of a record.
const KEYS: usize = 64 * 1024;

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
    lost: BTreeMap<String, LossAmount>,
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
        if !frames.advance()? {
            return Err(at(Error::stream("an empty file")));
        }
        let map = frames.frame();
        if map.get("magic").and_then(View::as_text) != Some(MAGIC) {
            return Err(at(Error::stream("not an LMCache trace: the magic is missing")));
        }
        match map.get("format_version").and_then(View::as_u64) {
            Some(FORMAT_VERSION) => {}
            Some(other) => {
                let fault = format!(
                    "an LMCache trace of format version {other}, which is unknown; {FORMAT_VERSION} is known"
                );
                return Err(at(Error::stream(fault)));
            }
            None => return Err(at(Error::stream("an LMCache trace without a format_version"))),
        }
        let string = |key: &str| map.get(key).and_then(View::as_text).map(str::to_string);
        let number = |key: &str| map.get(key).and_then(View::as_f64).filter(|number| number.is_finite());
        let any = |key: &str| {
            let mut json = Vec::new();
            json::write(&mut json, map.get(key)?);
            serde_json::from_slice(&json).ok()
        };
        let header = LmcacheHeader {
            format_version: FORMAT_VERSION,
            level: any("level"),
            trace_schema_version: any("trace_schema_version"),
            t_mono_start: number("t_mono_start"),
            t_wall_start: number("t_wall_start"),
            sm_config_json: string("sm_config_json"),
            sm_config_digest: string("sm_config_digest"),
        };
        let mut bytes = Vec::new();
        json::write(&mut bytes, map);
        let run_id = format!("{:032x}", xxh3_128(&bytes));
        Ok(LmcacheTrace {
            frames,
            header,
            run_id,
            seq: 0,
            records: 0,
            unknown: 0,
            span_us: None,
            lost: BTreeMap::new(),
        })
    }

    /// What is odd about the header.
    pub fn oddities(&self) -> Vec<String> {
        let LmcacheHeader { trace_schema_version, sm_config_json, sm_config_digest, .. } = &self.header;
        let mut oddities = Vec::new();
        if let Some(version) =
            trace_schema_version.as_ref().filter(|version| **version != TRACE_SCHEMA_VERSION)
        {
            oddities.push(format!(
                "trace_schema_version {} is unknown; {TRACE_SCHEMA_VERSION} is known",
                quoted(&version.to_string())
            ));
        }
        if let (Some(config), Some(digest)) = (sm_config_json, sm_config_digest) {
            let own: String = Sha256::digest(config).iter().map(|byte| format!("{byte:02x}")).collect();
            if own != *digest {
                oddities.push("sm_config_digest is not the SHA-256 of sm_config_json".to_string());
            }
        }
        oddities
    }

    /// What the header says.
    pub fn header(&self) -> &LmcacheHeader {
        &self.header
    }

    /// The id of the run.
    pub fn id(&self) -> &str {
        &self.run_id
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
            if !self.frames.advance()? {
                return Ok(None);
            }
            let record = self.frames.frame();
            if record.get("type").and_then(View::as_str) != Some("record") {
                self.unknown += 1;
                continue;
            }
            let Some(name) = record.get("qualname").and_then(View::as_str) else {
                return Err(Error::stream("a record without qualname").at(Position::Byte(at)));
            };
            let ts = microseconds(record.get("t_mono"));
            if let Some(ts) = ts {
                let span = self.span_us.get_or_insert((ts, ts));
                *span = (span.0.min(ts), span.1.max(ts));
            }
            let times = [("ts_usec", ts), ("wall_usec", microseconds(record.get("t_wall")))];
            check_keys(record, call_key).map_err(|error| error.at(Position::Byte(at)))?;
            let before = out.len();
            let envelope = Envelope { type_: "call", run_id: &self.run_id, seq: self.seq };
            line(out, envelope, |out| call(out, times, record));
            if out.len() > LINE_READ {
                out.truncate(before);
                let fault = format!("a record that makes a line of more than {LINE_READ} bytes");
                return Err(Error::stream(fault).at(Position::Byte(at)));
            }
            self.seq += 1;
            self.records += 1;
            return Ok(Some(name.to_string()));
        }
    }

    /// Appends the messages for something that could not be read: the error, and the loss.
    pub fn lost(&mut self, out: &mut Vec<u8>, error: &Error) {
        let goes_on = self.goes_on(error);
        let offset = match error.position() {
            Some(Position::Byte(at)) => at,
            _ => self.frames.position(),
        };
        let (code, reason) = match error.kind() {
            ErrorKind::Limit => ("limit", LossReason::Truncated),
            _ if goes_on => ("corrupt_chunk", LossReason::Corrupt),
            _ => ("truncated", LossReason::Truncated),
        };
        let lost_bytes = if goes_on { Some(self.frames.position() - offset) } else { self.frames.torn() };
        let detail = error.to_string();
        let body = ErrorMessage { code: code.to_string(), detail, offset: Some(offset), fatal: !goes_on };
        self.line(out, "error", |out| write_json(out, &body));
        let amount = LossAmount { lost_bytes, ..LossAmount::default() };
        self.lost.entry(reason.name().to_string()).or_default().add(&amount);
        let body = Loss { reason: reason.name().to_string(), amount, ..Loss::default() };
        self.line(out, "loss", |out| write_json(out, &body));
    }

    /// Appends what ends the run.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        let duration = self.span_us.map(|(first, last)| (last - first) as u64);
        let body = End {
            complete: self.lost.is_empty(),
            lost: (!self.lost.is_empty()).then(|| std::mem::take(&mut self.lost)),
            messages: self.seq + 1,
            duration_usec: duration,
            ..End::default()
        };
        self.line(out, "end", |out| write_json(out, &body));
    }

    /// Whether reading can go on after the frame that the last error was about.
    pub fn goes_on(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Stream && self.frames.torn().is_none()
    }

    fn line(&mut self, out: &mut Vec<u8>, type_: &str, body: impl FnOnce(&mut Vec<u8>)) {
        let envelope = Envelope { type_, run_id: &self.run_id, seq: self.seq };
        self.seq += 1;
        line(out, envelope, body);
    }
}

fn line(out: &mut Vec<u8>, envelope: Envelope<'_>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = envelope.open(out);
    body(out);
    out[at] = b',';
    out.push(b'\n');
}

/// Appends what is known of a call: its times, and what else the record holds, as it is.
fn call(out: &mut Vec<u8>, times: [(&str, Option<i64>); 2], record: View<'_>) {
    out.push(b'{');
    let separate = |out: &mut Vec<u8>| {
        if out.last() != Some(&b'{') {
            out.push(b',');
        }
    };
    for (key, time) in times {
        if let Some(time) = time {
            separate(out);
            write_json(out, key);
            out.push(b':');
            write_json(out, &time);
        }
    }
    let Kind::Map(entries) = record.kind() else { return out.push(b'}') };
    for (key, value) in entries.filter(|(key, _)| key.as_str() != Some("type")) {
        separate(out);
        if out.len() > LINE_READ {
            break;
        }
        write_json(out, call_key(key).as_str());
        out.push(b':');
        json::write(out, value);
    }
    out.push(b'}');
}

/// The key that a record's key gets in the line.
fn call_key(key: View<'_>) -> String {
    match json::key(key) {
        taken if matches!(taken.as_str(), "v" | "run_id" | "seq" | "ts_usec" | "wall_usec") => {
            format!("record_{taken}")
        }
        key => key,
    }
}

/// Checks that no key stands twice in one of the maps of a value, or of its elements: readers of JSON differ in which
/// of the two values they take. `name` is what becomes of the value's own keys.
fn check_keys(value: View<'_>, name: fn(View<'_>) -> String) -> Result<()> {
    match value.kind() {
        Kind::Array(mut items) => items.try_for_each(|item| check_keys(item, json::key)),
        Kind::Map(entries) => {
            let mut names = FxHashSet::default();
            for (key, value) in entries {
                let name = name(key);
                if names.len() == KEYS {
                    return Err(Error::stream(format!(
                        "a record with more than {KEYS} keys in a map, the limit"
                    )));
                }
                if names.contains(&name) {
                    return Err(Error::stream(format!("a record in which the key {name:?} stands twice")));
                }
                names.insert(name);
                check_keys(value, json::key)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Seconds as whole microseconds, where they are a finite number that fits.
fn microseconds(seconds: Option<View<'_>>) -> Option<i64> {
    let us = (seconds?.as_f64()? * 1e6).round();
    // The bounds themselves are no doubles.
    (us.is_finite() && us.abs() < 9.2e18).then_some(us as i64)
}
