//! Tables of strings and frames.

use std::borrow::Cow;

/// A frame of a stack as profiles define it once and refer to by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// File name, an index into the strings.
    pub path: u32,
    /// Qualified function name, an index into the strings.
    pub function: u32,
    /// Where in the file.
    pub location: Location,
    /// The bytecode instruction, where opcodes were recorded.
    pub opcode: Option<u8>,
}

/// A span of source code, each part where it is known.
///
/// Without a line there is no location, whatever the other parts say: so with synthetic frames
/// (`<GC>`, `<native>`) and shims. The other parts are kept all the same, since profiles hold them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Location {
    /// First line, from 1.
    pub line: Option<i32>,
    /// Last line.
    pub end_line: Option<i32>,
    /// First column, UTF-8 bytes from 0.
    pub col: Option<i32>,
    /// Column after the last.
    pub end_col: Option<i32>,
}

/// Strings as bytes, by index. UTF-8 is usual but not certain.
#[derive(Clone, Debug, Default)]
pub struct StringTable {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl StringTable {
    /// Adds a string and returns its index.
    pub fn push(&mut self, string: &[u8]) -> u32 {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
        (self.ends.len() - 1) as u32
    }

    /// The bytes of string `index`, if there is one.
    pub fn get(&self, index: u32) -> Option<&[u8]> {
        let index = index as usize;
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }

    /// How many strings there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// The definitions of a profile. Equal entries occur in real files and stay apart.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// File and function names.
    pub strings: StringTable,
    /// Frames; a frame that no sample uses may name strings that don't exist.
    pub frames: Vec<Frame>,
}

impl Tables {
    /// The qualified name of a frame's function, with U+FFFD for bytes that are not UTF-8; empty for a frame or a
    /// string that is not there.
    pub fn function(&self, frame: u32) -> Cow<'_, str> {
        self.name(frame, |frame| frame.function)
    }

    /// The name of a frame's file, likewise.
    pub fn path(&self, frame: u32) -> Cow<'_, str> {
        self.name(frame, |frame| frame.path)
    }

    fn name(&self, frame: u32, string: impl Fn(&Frame) -> u32) -> Cow<'_, str> {
        let bytes = self.frames.get(frame as usize).and_then(|frame| self.strings.get(string(frame)));
        bytes.map(String::from_utf8_lossy).unwrap_or_default()
    }
}
