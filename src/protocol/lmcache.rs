//! The trace files of LMCache: calls with their times and arguments, as frames.

use std::collections::BTreeMap;
use std::io::Read;

use rmpv::Value;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::{Error, ErrorKind, Position, Result};
use crate::protocol::encode::{Envelope, write_json};
use crate::protocol::message::{End, ErrorMessage, Loss, LossAmount, LossReason};
use crate::protocol::msgpack::frames::{Frames, get, magic, text};
use crate::protocol::msgpack::json;
use crate::protocol::text::quoted;
use sha2::{Digest, Sha256};

const MAGIC: &str = "LMCT";
const FORMAT_VERSION: u64 = 1;
const TRACE_SCHEMA_VERSION: u64 = 1;

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
        let Some(map) = frames.next_frame()? else { return Err(at(Error::stream("an empty file"))) };
        if get(&map, "magic").and_then(text) != Some(MAGIC) {
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
        let string = |key: &str| get(&map, key).and_then(text).map(str::to_string);
        let number = |key: &str| get(&map, key).and_then(Value::as_f64).filter(|number| number.is_finite());
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
            sm_config_json: string("sm_config_json"),
            sm_config_digest: string("sm_config_digest"),
        };
        let mut bytes = Vec::new();
        json::map(&mut bytes, &map, |out, _, value| json::write(out, value));
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
                "trace_schema_version {} is not known; {TRACE_SCHEMA_VERSION} is",
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
            let Some(map) = self.frames.next_frame()? else { return Ok(None) };
            if get(&map, "type").and_then(Value::as_str) != Some("record") {
                self.unknown += 1;
                continue;
            }
            let Some(name) = get(&map, "qualname").and_then(Value::as_str) else {
                return Err(Error::stream("a record without qualname").at(Position::Byte(at)));
            };
            let ts = microseconds(get(&map, "t_mono"));
            let wall = microseconds(get(&map, "t_wall"));
            if let Some(ts) = ts {
                let span = self.span_us.get_or_insert((ts, ts));
                *span = (span.0.min(ts), span.1.max(ts));
            }
            self.records += 1;
            let name = name.to_string();
            let times = [("ts_usec", ts), ("wall_usec", wall)];
            let times =
                times.iter().filter_map(|(key, time)| Some((Value::from(*key), Value::from((*time)?))));
            // What else the record holds, as it is.
            let own =
                map.into_iter().filter(|(key, _)| key.as_str() != Some("type")).map(|(key, value)| match key
                    .as_str()
                {
                    Some(taken @ ("v" | "run_id" | "seq" | "ts_usec" | "wall_usec")) => {
                        (Value::from(format!("record_{taken}")), value)
                    }
                    _ => (key, value),
                });
            let body: Vec<(Value, Value)> = times.chain(own).collect();
            self.line(out, "call", |out| json::map(out, &body, |out, _, value| json::write(out, value)));
            return Ok(Some(name));
        }
    }

    /// Appends what is told of something that could not be read: the error, and what is lost by it.
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

    /// Whether reading can go on behind the frame that the last error was about.
    pub fn goes_on(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Stream && self.frames.torn().is_none()
    }

    fn line(&mut self, out: &mut Vec<u8>, type_: &str, body: impl FnOnce(&mut Vec<u8>)) {
        let at = Envelope { type_, run_id: &self.run_id, seq: self.seq }.open(out);
        self.seq += 1;
        body(out);
        out[at] = b',';
        out.push(b'\n');
    }
}

/// Seconds as whole microseconds, where they are a finite number that fits.
fn microseconds(seconds: Option<&Value>) -> Option<i64> {
    let us = (seconds?.as_f64()? * 1e6).round();
    // The bounds themselves are no doubles.
    (us.is_finite() && us.abs() < 9.2e18).then_some(us as i64)
}
