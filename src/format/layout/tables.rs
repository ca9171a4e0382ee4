//! The string table and the frame table.

use crate::error::{Error, ErrorKind, Position, Result};
use crate::format::layout::header::Footer;
use crate::limits::TABLE_ENTRIES;
use crate::model::{Frame, Location, StringTable, Tables};
use crate::varint;

/// The least bytes of a string and of a frame: a declared count that cannot fit is refused before
/// anything is allocated for it.
const STRING_MIN: u64 = 1;
const FRAME_MIN: u64 = 7;
/// No opcode, as a byte.
const NO_OPCODE: u8 = 255;
/// No line or column, as a number.
const NO_POSITION: i32 = -1;

/// Tables as read, with the places that errors and warnings name.
pub(crate) struct Read {
    pub tables: Tables,
    /// Bytes of the input from the string table that the strings and the frames take.
    pub strings_end: u64,
    pub frames_end: u64,
    /// Where each frame stands, kept for the frames whose string indexes are out of range only.
    pub bad_frames: Vec<(u32, u64, String)>,
}

/// Reads both tables out of `bytes`, everything from the string table to the profile's end; the frames
/// start at `frames_at` in it, and `base` is its place in the input.
pub(crate) fn read(bytes: &[u8], frames_at: usize, footer: &Footer, base: u64) -> Result<Read> {
    check(footer, 0, frames_at as u64, bytes.len() as u64, base)?;

    let mut fields = Fields { bytes, pos: 0, base };
    let mut strings = StringTable::default();
    for index in 0..footer.strings {
        let start = fields.pos;
        let length = fields.u32(|| format!("the length of string {index}"))? as usize;
        let Some(string) = bytes[fields.pos..].get(..length) else {
            return Err(fields
                .fault_at(start, format!("string {index} of {length} bytes passes the end of the tables")));
        };
        strings.push(string);
        fields.pos += length;
    }
    let strings_end = base + fields.pos as u64;

    fields.pos = frames_at;
    let mut frames = Vec::with_capacity(footer.frames as usize);
    let mut bad_frames = Vec::new();
    for index in 0..footer.frames {
        let at = base + fields.pos as u64;
        let frame = fields.frame(index)?;
        for (what, string) in [("file", frame.path), ("function", frame.function)] {
            if string >= footer.strings {
                let fault = format!(
                    "frame {index} names string {string} as its {what}, out of range (0..{})",
                    footer.strings
                );
                bad_frames.push((index, at, fault));
                break;
            }
        }
        frames.push(frame);
    }
    let frames_end = base + fields.pos as u64;
    Ok(Read { tables: Tables { strings, frames }, strings_end, frames_end, bad_frames })
}

/// Checks that as many strings and frames fit as the footer declares. The tables start at these bytes of what
/// stands at `base` of the input and is `size` bytes long.
pub(crate) fn check(footer: &Footer, strings_at: u64, frames_at: u64, size: u64, base: u64) -> Result<()> {
    check_count("string", footer.strings, STRING_MIN, size - strings_at, base + strings_at)?;
    check_count("frame", footer.frames, FRAME_MIN, size - frames_at, base + frames_at)
}

/// Reads tables of `strings` and `frames` entries that stand one right after the other at the start of
/// `bytes`. `None` where there are none; else also the bytes that they take.
pub(crate) fn read_together(bytes: &[u8], strings: u32, frames: u32) -> Option<(Tables, usize)> {
    let mut fields = Fields { bytes, pos: 0, base: 0 };
    if strings.max(frames) > TABLE_ENTRIES {
        return None;
    }
    let mut tables = Tables::default();
    for _ in 0..strings {
        tables.strings.push(fields.string()?);
    }
    for index in 0..frames {
        let frame = fields.frame(index).ok()?;
        if frame.path.max(frame.function) >= strings {
            return None;
        }
        tables.frames.push(frame);
    }
    Some((tables, fields.pos))
}

/// Bytes that so many frames take, which stand at the start of `bytes`, at `base` of the input.
pub(crate) fn frames_len(bytes: &[u8], frames: u32, base: u64) -> Result<u64> {
    let mut fields = Fields { bytes, pos: 0, base };
    (0..frames).try_for_each(|index| fields.frame(index).map(drop))?;
    Ok(fields.pos as u64)
}

/// Reads what there is of tables whose counts are not known: strings up to `frames_at`, then at most
/// `most` frames. Zeros are a hole that nobody wrote to: a writer makes no two empty strings, and no frame of zeros.
pub(crate) fn read_remains(bytes: &[u8], frames_at: usize, most: usize) -> Tables {
    let mut tables = Tables::default();
    let mut fields = Fields { bytes: &bytes[..frames_at.min(bytes.len())], pos: 0, base: 0 };
    let mut has_empty = false;
    while tables.strings.len() < TABLE_ENTRIES as usize
        && let Some(string) = fields.string()
    {
        if string.is_empty() && std::mem::replace(&mut has_empty, true) {
            break;
        }
        tables.strings.push(string);
    }
    let mut fields = Fields { bytes, pos: frames_at.min(bytes.len()), base: 0 };
    while tables.frames.len() < most.min(TABLE_ENTRIES as usize) {
        let start = fields.pos;
        let Ok(frame) = fields.frame(tables.frames.len() as u32) else { break };
        if bytes[start..fields.pos].iter().all(|byte| *byte == 0)
            || frame.path.max(frame.function) as usize >= tables.strings.len()
        {
            break;
        }
        tables.frames.push(frame);
    }
    tables
}

fn check_count(what: &str, count: u32, least: u64, room: u64, at: u64) -> Result<()> {
    let most = room / least;
    if count > TABLE_ENTRIES && u64::from(count) <= most {
        let fault = format!("the profile has {count} {what}s, over the limit of {TABLE_ENTRIES}");
        return Err(Error::new(ErrorKind::Limit, fault).at(Position::Byte(at)));
    }
    if u64::from(count) > most {
        let fault = format!("no valid footer: it declares {count} {what}s where at most {most} fit");
        return Err(Error::profile(fault)
            .at(Position::Byte(at))
            .hint("the file is truncated, or something stands after its end; recover may save its samples"));
    }
    Ok(())
}

struct Fields<'a> {
    bytes: &'a [u8],
    pos: usize,
    base: u64,
}

impl Fields<'_> {
    fn fault_at(&self, pos: usize, fault: String) -> Error {
        Error::profile(fault).at(Position::Byte(self.base + pos as u64))
    }

    fn u32(&mut self, what: impl Fn() -> String) -> Result<u32> {
        let start = self.pos;
        let value = varint::read(self.bytes, &mut self.pos)
            .map_err(|_| self.fault_at(start, format!("{} is not a number of at most ten bytes", what())))?;
        u32::try_from(value).map_err(|_| self.fault_at(start, format!("{} is {value}, over 32 bits", what())))
    }

    /// The next string, where it is whole.
    fn string(&mut self) -> Option<&[u8]> {
        let length = usize::try_from(self.u32(String::new).ok()?).ok()?;
        let string = self.bytes.get(self.pos..self.pos + length)?;
        self.pos += length;
        Some(string)
    }

    fn i32(&mut self, what: impl Fn() -> String) -> Result<i32> {
        Ok(varint::unzigzag(self.u32(what)?))
    }

    fn frame(&mut self, index: u32) -> Result<Frame> {
        let path = self.u32(|| format!("the file of frame {index}"))?;
        let function = self.u32(|| format!("the function of frame {index}"))?;
        let line = self.i32(|| format!("the line of frame {index}"))?;
        let end_line = line.wrapping_add(self.i32(|| format!("the end line of frame {index}"))?);
        let col = self.i32(|| format!("the column of frame {index}"))?;
        let end_col = col.wrapping_add(self.i32(|| format!("the end column of frame {index}"))?);
        let Some(&opcode) = self.bytes.get(self.pos) else {
            return Err(self.fault_at(self.pos, format!("the tables end inside frame {index}")));
        };
        self.pos += 1;
        let known = |value: i32| (value != NO_POSITION).then_some(value);
        Ok(Frame {
            path,
            function,
            location: Location {
                line: known(line),
                end_line: known(end_line),
                col: known(col),
                // Without a column there is no end column, as CPython reads it.
                end_col: known(col).and_then(|_| known(end_col)),
            },
            opcode: (opcode != NO_OPCODE).then_some(opcode),
        })
    }
}

/// Appends a string.
pub(crate) fn write_string(out: &mut Vec<u8>, string: &[u8]) {
    varint::write(out, string.len() as u64);
    out.extend_from_slice(string);
}

/// Appends a frame.
pub(crate) fn write_frame(out: &mut Vec<u8>, frame: &Frame) {
    let mut put = |value: u32| varint::write(out, u64::from(value));
    put(frame.path);
    put(frame.function);
    let Location { line, end_line, col, end_col } = frame.location;
    let [line, end_line, col, end_col] =
        [line, end_line, col, end_col].map(|value| value.unwrap_or(NO_POSITION));
    put(varint::zigzag(line));
    put(varint::zigzag(end_line.wrapping_sub(line)));
    put(varint::zigzag(col));
    put(varint::zigzag(end_col.wrapping_sub(col)));
    out.push(frame.opcode.unwrap_or(NO_OPCODE));
}
