//! Converts frames to lines of a stream.

use std::io::{self, Read};

use crate::error::{Error, ErrorKind, Position, Result};
use crate::protocol::columns::RawColumns;
use crate::protocol::decode::{Message, decode};
use crate::protocol::encode::write_json;
use crate::protocol::message::VERSION;
use crate::protocol::msgpack::frames::Frames;
use crate::protocol::msgpack::view::{Items, Kind, View};
use crate::protocol::msgpack::{FORMAT_VERSION, MAGIC, digest, json};
use crate::protocol::text::quoted;

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
            match self.frames.advance() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // A frame of sound length costs itself: it becomes a line that is not a message.
                Err(error)
                    if self.any && error.kind() == ErrorKind::Stream && self.frames.torn().is_none() =>
                {
                    self.line.extend_from_slice(format!("{{{error}\n").as_bytes());
                    return Ok(true);
                }
                Err(error) => return Err(error),
            }
            let map = self.frames.frame();
            // A message may have a key of this name, too.
            if let Some(magic) = map.get("magic").filter(|_| map.get("type").is_none()) {
                self.digest = header(magic, map).map_err(|error| error.at(at))?;
                self.any = true;
                continue;
            }
            if !self.any {
                return Err(Error::stream("the first frame is not a header").at(at));
            }
            let version = map.get("v").and_then(View::as_u64);
            if map.get("type").and_then(View::as_str) == Some("raw") && version == Some(VERSION) {
                raw(&mut self.line, map);
            } else {
                json::write(&mut self.line, map);
            }
            if map.get("type").and_then(View::as_str) == Some("meta")
                && let Some(expected) = self.digest.take()
            {
                let decoded = decode(&self.line, &mut self.columns);
                if let Ok(Message::Meta(meta)) = decoded.map(|decoded| decoded.message)
                    && digest(&meta) != expected
                {
                    let fault = "the facts of the run do not match the header's config_digest";
                    return Err(Error::stream(fault).at(at));
                }
            }
            self.line.push(b'\n');
            return Ok(true);
        }
    }
}

/// Checks the header; returns the digest that it gives.
fn header(magic: View<'_>, map: View<'_>) -> Result<Option<String>> {
    if magic.as_str() != Some(MAGIC) {
        let mut text = Vec::new();
        json::write(&mut text, magic);
        let text = String::from_utf8_lossy(&text).into_owned();
        return Err(Error::stream(format!(
            "a header frame with the magic {}; it is \"{MAGIC}\"",
            quoted(&text)
        )));
    }
    for (key, known) in [("format_version", FORMAT_VERSION), ("schema_version", VERSION)] {
        match map.get(key).and_then(View::as_u64) {
            Some(version) if version == known => {}
            Some(version) => {
                return Err(Error::stream(format!("{key} {version} is unknown; {known} is known")));
            }
            None => return Err(Error::stream(format!("the header frame has no {key}"))),
        }
    }
    Ok(map.get("config_digest").and_then(View::as_str).map(str::to_string))
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
fn raw(out: &mut Vec<u8>, message: View<'_>) {
    let Kind::Map(entries) = message.kind() else { return };
    let start = message.get("start_usec").and_then(View::as_u64).unwrap_or(0);
    json::map(out, entries, |out, key, value| match value.kind() {
        Kind::Array(threads) if key == "threads" => {
            json::array(out, threads, |out, thread| match thread.kind() {
                Kind::Map(thread) => json::map(out, thread, |out, key, value| match value.kind() {
                    Kind::Array(deltas) if key == "ts_delta_usec" => differences(out, start, deltas),
                    _ => json::write(out, value),
                }),
                _ => json::write(out, thread),
            });
        }
        _ => json::write(out, value),
    });
}

fn differences(out: &mut Vec<u8>, start: u64, deltas: Items<'_>) {
    let mut last = start;
    json::array(out, deltas, |out, value| {
        let Kind::Int(delta) = value.kind() else { return json::write(out, value) };
        let time = last.wrapping_add(delta as u64);
        write_json(out, &(i128::from(time) - i128::from(last)));
        last = time;
    });
}
