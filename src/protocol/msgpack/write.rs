//! Converts lines of a stream to frames.

use std::io::{self, Write};

use rmpv::Value;

use crate::error::{Error, Result};
use crate::model::NONE;
use crate::protocol::columns::RawColumns;
use crate::protocol::decode::{Message, decode};
use crate::protocol::message::{Meta, VERSION};
use crate::protocol::msgpack::{FORMAT_VERSION, MAGIC, digest};

/// Takes lines and hands on the same messages as frames: the first message of each run after a header.
#[derive(Debug)]
pub struct ToMsgpack<W> {
    sink: W,
    /// A line that is not whole yet.
    line: Vec<u8>,
    columns: RawColumns,
    frame: Vec<u8>,
    is_joined: bool,
}

impl<W: Write> ToMsgpack<W> {
    /// Frames into `sink`.
    pub fn new(sink: W) -> Self {
        ToMsgpack {
            sink,
            line: Vec::new(),
            columns: RawColumns::default(),
            frame: Vec::new(),
            is_joined: false,
        }
    }

    /// For readers that may join at any batch: a header stands ahead of every message that one may begin with, a
    /// `meta`, a `loss` or the `end`.
    #[must_use]
    pub fn joined_anywhere(mut self) -> Self {
        self.is_joined = true;
        self
    }

    /// Where the frames go.
    pub fn sink(&mut self) -> &mut W {
        &mut self.sink
    }

    /// Ends the writing.
    pub fn into_sink(self) -> W {
        self.sink
    }

    fn message(&mut self, line: &mut [u8]) -> Result<()> {
        let whole = line.to_vec();
        let decoded = decode(line, &mut self.columns)?;
        let may_begin = matches!(&decoded.message, Message::Meta(_) | Message::Loss(_) | Message::End(_));
        if decoded.envelope.seq == Some(0) || self.is_joined && may_begin {
            let meta = match &decoded.message {
                Message::Meta(meta) => Some(meta.as_ref()),
                _ => None,
            };
            self.frame(&header(meta))?;
        }
        let value = match &decoded.message {
            Message::Raw => {
                let envelope = [
                    ("type", Value::from("raw")),
                    ("v", Value::from(decoded.envelope.version)),
                    ("run_id", Value::from(decoded.envelope.run_id.as_str())),
                    ("seq", Value::from(decoded.envelope.seq.unwrap_or(0))),
                ];
                raw(envelope, &self.columns)
            }
            Message::Agg(body)
                if body
                    .start_usec
                    .is_some_and(|start| i64::try_from(start).is_err() && u64::try_from(start).is_err()) =>
            {
                return Err(Error::stream("a window starts out of 64 bits, which MessagePack cannot say"));
            }
            // Its numbers fit 64 bits, and keys stay in order.
            _ => serde_json::from_slice(&whole).map_err(|error| Error::stream(error.to_string()))?,
        };
        self.frame(&value)
    }

    fn frame(&mut self, value: &Value) -> Result<()> {
        self.frame.clear();
        self.frame.extend_from_slice(&[0; 4]);
        rmpv::encode::write_value(&mut self.frame, value)
            .map_err(|error| Error::stream(format!("not MessagePack: {error}")))?;
        let length = u32::try_from(self.frame.len() - 4).map_err(|_| Error::stream("a frame over 4 GiB"))?;
        self.frame[..4].copy_from_slice(&length.to_be_bytes());
        Ok(self.sink.write_all(&self.frame)?)
    }
}

impl<W: Write> Write for ToMsgpack<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.pop_if(|last| *last == b'\n').is_some() {
                let mut line = std::mem::take(&mut self.line);
                self.message(&mut line).map_err(|error| match error.io() {
                    Some(known) => io::Error::from(known.kind()),
                    None => io::Error::other(error.to_string()),
                })?;
                line.clear();
                self.line = line;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Vec<(Value, Value)> {
    entries.into_iter().map(|(key, value)| (Value::from(key), value)).collect()
}

fn header(meta: Option<&Meta>) -> Value {
    let mut header = map([
        ("magic", Value::from(MAGIC)),
        ("format_version", Value::from(FORMAT_VERSION)),
        ("schema_version", Value::from(VERSION)),
    ]);
    if let Some(meta) = meta {
        let seconds = |us: f64| Value::from(us / 1e6);
        if let Some(timing) = meta.timing() {
            header.extend(map([("t_mono_start", seconds(timing.run_start_usec as f64))]));
            if let Some(wall) = meta.wall_usec {
                let since = timing.start_usec as f64 - timing.run_start_usec as f64;
                header.extend(map([("t_wall_start", seconds(wall as f64 - since))]));
            }
        }
        header.extend(map([("config_digest", Value::from(digest(meta)))]));
    }
    Value::Map(header)
}

/// A `raw` message; a difference of times that no signed number of 64 bits can hold is written modulo
/// 2^64.
fn raw(envelope: [(&str, Value); 4], columns: &RawColumns) -> Value {
    let node = |node: u32| if node == NONE { Value::Nil } else { Value::from(node) };
    let nodes = |nodes: &[u32]| Value::Array(nodes.iter().copied().map(node).collect());
    let mut message = map(envelope);
    message.extend(map([
        ("batch", Value::from(columns.batch)),
        ("start_usec", Value::from(columns.start_usec)),
        ("samples", Value::from(columns.samples)),
        ("stack_frame_id", nodes(&columns.stack_frame_id)),
    ]));
    if columns.stack_parent.iter().any(|parent| *parent != NONE) {
        message.extend(map([("stack_parent", nodes(&columns.stack_parent))]));
    }
    let threads = columns.threads().iter().map(|thread| {
        let mut last = columns.start_usec;
        let deltas = thread.times_usec.iter().map(|time| {
            let delta = i128::from(*time) - i128::from(last);
            let wrapped = time.wrapping_sub(last) as i64;
            last = *time;
            match u64::try_from(delta) {
                Ok(delta) => Value::from(delta),
                Err(_) => Value::from(i64::try_from(delta).unwrap_or(wrapped)),
            }
        });
        let mut entries = map([
            ("thread_id", Value::from(thread.thread_id.to_string())),
            ("interpreter_id", Value::from(thread.interpreter_id)),
            ("ts_delta_usec", Value::Array(deltas.collect())),
            ("status", Value::Array(thread.status.iter().map(|status| Value::from(*status)).collect())),
        ]);
        if thread.empty() < thread.status.len() {
            entries.extend(map([("stack", Value::Array(thread.nodes().map(node).collect()))]));
        }
        Value::Map(entries)
    });
    message.extend(map([("threads", Value::Array(threads.collect()))]));
    Value::Map(message)
}
