//! Frames into lines of a stream.

use std::io::{self, Read};

use rmpv::Value;

use crate::error::{Error, ErrorKind, Position, Result};
use crate::protocol::decode::{Message, RawColumns, decode};
use crate::protocol::message::VERSION;
use crate::protocol::msgpack::frames::{Frames, get};
use crate::protocol::msgpack::{FORMAT_VERSION, MAGIC, digest, json};

/// Reads frames and gives the same messages as lines. Header frames are checked and give none.
pub struct FromMsgpack<R> {
    frames: Frames<R>,
    line: Vec<u8>,
    given: usize,
    /// The digest of the last header, until the run's first `meta` is held against it.
    digest: Option<String>,
    columns: RawColumns,
    any: bool,
}

impl<R: Read> FromMsgpack<R> {
    /// Frames out of `reader`.
    pub fn new(reader: R) -> Self {
        FromMsgpack {
            frames: Frames::new(reader),
            line: Vec::new(),
            given: 0,
            digest: None,
            columns: RawColumns::default(),
            any: false,
        }
    }

    /// Makes the next line. False at the end.
    fn next_line(&mut self) -> Result<bool> {
        self.line.clear();
        self.given = 0;
        loop {
            let at = Position::Byte(self.frames.position());
            let map = match self.frames.next_frame() {
                Ok(Some(map)) => map,
                Ok(None) => return Ok(false),
                // A frame of sound length costs itself: it becomes a line that is no message.
                Err(error)
                    if self.any && error.kind() == ErrorKind::Stream && self.frames.torn().is_none() =>
                {
                    self.line.extend_from_slice(format!("{{{error}\n").as_bytes());
                    return Ok(true);
                }
                Err(error) => return Err(error),
            };
            // A message may have a key of this name, too.
            if let Some(magic) = get(&map, "magic").filter(|_| get(&map, "type").is_none()) {
                self.header(magic, &map).map_err(|error| error.at(at))?;
                self.any = true;
                continue;
            }
            if !self.any {
                return Err(Error::stream("the first frame is no header").at(at));
            }
            if get(&map, "type").and_then(Value::as_str) == Some("raw") {
                raw(&mut self.line, &map);
            } else {
                json::map(&mut self.line, &map, |out, _, value| json::write(out, value));
            }
            if get(&map, "type").and_then(Value::as_str) == Some("meta")
                && let Some(expected) = self.digest.take()
            {
                let decoded = decode(&self.line, &mut self.columns);
                if let Ok(Message::Meta(meta)) = decoded.map(|decoded| decoded.message)
                    && digest(&meta) != expected
                {
                    let fault =
                        "the facts of the run are not those that the header's config_digest was made of";
                    return Err(Error::stream(fault).at(at));
                }
            }
            self.line.push(b'\n');
            return Ok(true);
        }
    }

    fn header(&mut self, magic: &Value, map: &[(Value, Value)]) -> Result<()> {
        if magic.as_str() != Some(MAGIC) {
            return Err(Error::stream(format!("a header frame with the magic {magic}; it is \"{MAGIC}\"")));
        }
        for (key, known) in [("format_version", FORMAT_VERSION), ("schema_version", VERSION)] {
            match get(map, key).and_then(Value::as_u64) {
                Some(version) if version == known => {}
                Some(version) => {
                    return Err(Error::stream(format!("{key} {version} is not known; {known} is")));
                }
                None => return Err(Error::stream(format!("the header frame has no {key}"))),
            }
        }
        self.digest = get(map, "config_digest").and_then(Value::as_str).map(str::to_string);
        Ok(())
    }
}

impl<R: Read> Read for FromMsgpack<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given == self.line.len() {
            match self.next_line() {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(error) => {
                    return Err(match error.io() {
                        Some(known) => io::Error::from(known.kind()),
                        None => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
                    });
                }
            }
        }
        let piece = &self.line[self.given..];
        let length = piece.len().min(buffer.len());
        buffer[..length].copy_from_slice(&piece[..length]);
        self.given += length;
        Ok(length)
    }
}

/// Appends a `raw` message; differences that were written modulo 2^64 come back as they are.
fn raw(out: &mut Vec<u8>, message: &[(Value, Value)]) {
    let start = get(message, "start_usec").and_then(Value::as_u64).unwrap_or(0);
    json::map(out, message, |out, key, value| match value {
        Value::Array(threads) if key == "threads" => {
            json::array(out, threads, |out, thread| match thread {
                Value::Map(thread) => json::map(out, thread, |out, key, value| match value {
                    Value::Array(deltas) if key == "ts_delta_usec" => differences(out, start, deltas),
                    value => json::write(out, value),
                }),
                other => json::write(out, other),
            });
        }
        value => json::write(out, value),
    });
}

fn differences(out: &mut Vec<u8>, start: u64, deltas: &[Value]) {
    let mut last = start;
    json::array(out, deltas, |out, value| {
        let delta = match value {
            Value::Integer(number) => number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)),
            _ => None,
        };
        let Some(delta) = delta else { return json::write(out, value) };
        let time = last.wrapping_add(delta as u64);
        out.extend_from_slice((i128::from(time) - i128::from(last)).to_string().as_bytes());
        last = time;
    });
}
