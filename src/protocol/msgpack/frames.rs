//! Frames out of a reader.

use std::io::{self, Read};

use rmpv::Value;

use crate::error::{Error, ErrorKind, Position, Result};
use crate::limits::{FRAME_DEPTH, LINE_READ};

/// Reads one frame after another: a length as a big-endian u32, and a MessagePack map.
pub struct Frames<R> {
    reader: R,
    at: u64,
    torn: Option<u64>,
    buffer: Vec<u8>,
}

impl<R: Read> Frames<R> {
    /// Frames from where `reader` stands, which counts as byte 0.
    pub fn new(reader: R) -> Self {
        Frames { reader, at: 0, torn: None, buffer: Vec::new() }
    }

    /// The byte at which the next frame starts.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Bytes of a last frame that is torn.
    pub fn torn(&self) -> Option<u64> {
        self.torn
    }

    /// The next frame's map; `None` at the end.
    ///
    /// # Errors
    ///
    /// A frame that is torn, too long, or no map; and errors of the reader.
    pub fn next_frame(&mut self) -> Result<Option<Vec<(Value, Value)>>> {
        let at = self.at;
        let fault = |detail: String| Error::stream(detail).at(Position::Byte(at));
        let mut length = [0; 4];
        let got = self.fill(&mut length)?;
        if got == 0 {
            return Ok(None);
        }
        if got < length.len() {
            self.torn = Some(got as u64);
            return Err(fault(format!("the last frame is torn: {got} bytes of its length")));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > LINE_READ {
            let detail = format!("a frame of {length} bytes, over the limit of {LINE_READ}");
            return Err(Error::new(ErrorKind::Limit, detail).at(Position::Byte(at)));
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let got = (&mut self.reader).take(length as u64).read_to_end(&mut buffer)?;
        if got < length {
            self.torn = Some(4 + got as u64);
            return Err(fault(format!("the last frame is torn: {got} of {length} bytes are there")));
        }
        let mut rest = buffer.as_slice();
        let value = rmpv::decode::read_value_with_max_depth(&mut rest, FRAME_DEPTH);
        let left = rest.len();
        self.buffer = buffer;
        self.at += 4 + length as u64;
        match value {
            Ok(Value::Map(map)) if left == 0 => Ok(Some(map)),
            Ok(Value::Map(_)) => Err(fault(format!("a frame with {left} bytes behind its map"))),
            Ok(_) => Err(fault("a frame that is no map".to_string())),
            Err(error) => Err(fault(format!("a frame that is no MessagePack: {error}"))),
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.reader.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// What stands under `key`.
pub(crate) fn get<'a>(map: &'a [(Value, Value)], key: &str) -> Option<&'a Value> {
    map.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
}

/// Text, which some writers store as bytes: msgspec does so with what Python calls bytes.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Binary(bytes) => std::str::from_utf8(bytes).ok(),
        value => value.as_str(),
    }
}

/// The `magic` of the first frame of a file that begins so, as far as the frame is there.
pub(crate) fn magic(start: &[u8]) -> Option<String> {
    let (_, mut rest) = start.split_at_checked(4)?;
    let entries = rmp_map_len(&mut rest)?;
    for _ in 0..entries.min(16) {
        let key = rmpv::decode::read_value_with_max_depth(&mut rest, FRAME_DEPTH).ok()?;
        let value = rmpv::decode::read_value_with_max_depth(&mut rest, FRAME_DEPTH).ok()?;
        if key.as_str() == Some("magic") {
            return text(&value).map(str::to_string);
        }
    }
    None
}

/// Reads the head of a map.
fn rmp_map_len(rest: &mut &[u8]) -> Option<usize> {
    let (head, tail) = rest.split_first()?;
    let (length, tail) = match head {
        0x80..=0x8f => (usize::from(head & 0xf), tail),
        0xde => {
            let (length, tail) = tail.split_at_checked(2)?;
            (usize::from(u16::from_be_bytes(length.try_into().ok()?)), tail)
        }
        0xdf => {
            let (length, tail) = tail.split_at_checked(4)?;
            (u32::from_be_bytes(length.try_into().ok()?) as usize, tail)
        }
        _ => return None,
    };
    *rest = tail;
    Some(length)
}
