//! Reads length-prefixed frames.

use std::io::{self, Read};

use crate::error::{Error, ErrorKind, Position, Result};
use crate::limits::LINE_READ;
use crate::protocol::msgpack::view::{Kind, View};

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

    /// Reads the next frame, which has to be a map; false at the end.
    ///
    /// # Errors
    ///
    /// A frame that is torn, too long, or no map; and errors of the reader.
    pub fn advance(&mut self) -> Result<bool> {
        let at = self.at;
        let fault = |detail: String| Error::stream(detail).at(Position::Byte(at));
        let mut length = [0; 4];
        let got = self.fill(&mut length)?;
        if got == 0 {
            return Ok(false);
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
        self.buffer.clear();
        let got = (&mut self.reader).take(length as u64).read_to_end(&mut self.buffer)?;
        if got < length {
            self.torn = Some(4 + got as u64);
            return Err(fault(format!("the last frame is torn: {got} of {length} bytes are present")));
        }
        self.at += 4 + length as u64;
        match View::of_frame(&self.buffer) {
            Ok((view, rest)) => match (view.kind(), rest.len()) {
                (Kind::Map(_), 0) => Ok(true),
                (Kind::Map(_), left) => Err(fault(format!("a frame with {left} bytes after its map"))),
                _ => Err(fault("a frame that is not a map".to_string())),
            },
            Err(error) => Err(fault(format!("a frame that is not MessagePack: {error}"))),
        }
    }

    /// The map of the frame that was read last.
    pub fn frame(&self) -> View<'_> {
        View::of_frame(&self.buffer).map_or(View::NIL, |(view, _)| view)
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

/// The `magic` of the first frame of a file that begins so, as far as the frame is there.
pub(crate) fn magic(start: &[u8]) -> Option<String> {
    let (_, start) = start.split_at_checked(4)?;
    View::start_of_map(start)?
        .take(16)
        .find(|(key, _)| key.as_str() == Some("magic"))
        .and_then(|(_, value)| value.as_text())
        .map(str::to_string)
}
