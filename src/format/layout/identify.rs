//! Identifies a file that is not a profile.

use std::io::{Read, Seek};

use crate::error::{Error, Position, Result};
use crate::format::layout::header::{ByteOrder, FOOTER_LEN, Footer, HEADER_LEN, Layout, version_start};
use crate::format::layout::ring::is_ring;
use crate::format::section::read_up_to;
use crate::marks::{
    LINES_OF_ARRAY, after_byte_order_mark, begins_an_array, begins_an_object, record_separators, unmarked,
};

/// Bytes that tell whether a file was changed as if it were text.
const SEEN: usize = 1 << 20;
/// So many line feeds that follow carriage returns, or characters that replace a byte, are no chance.
const BY_CHANCE: usize = 4;
/// Zeros at the start that can only be a header that was never written.
const ZEROS: usize = 32;
/// Bytes that may be missing at the start of a profile.
const MISSING: u64 = 64;

/// Whether a file that begins so is a profile: a file, a chunk, one after its length, or a ring of chunks.
pub fn is_profile(start: &[u8]) -> bool {
    ByteOrder::of_magic(start).is_some()
        || is_ring(start)
        || start.get(4..).is_some_and(|rest| ByteOrder::of_magic(rest).is_some())
}

/// What the first bytes of a file of `size` bytes say that it is instead of a profile; `None` where
/// they are a profile's.
pub(crate) fn fault(start: &[u8], size: u64) -> Option<Error> {
    if ByteOrder::of_magic(start).is_some() {
        return None;
    }
    Some(match size {
        0 => Error::profile("an empty file: the recording never flushed").hint(
            "a profiler that is stopped by SIGTERM or SIGKILL early leaves 0 bytes; stop it with SIGINT",
        ),
        _ if start.iter().all(|byte| *byte == 0) && !start.is_empty() => zeros(start, size),
        _ => look(start),
    })
}

fn zeros(start: &[u8], size: u64) -> Error {
    let never = "the profiler was stopped before it wrote header, names and tables; stop it with SIGINT";
    match (start.len(), size) {
        (64, 64) => {
            Error::profile("64 zero bytes: a recording that never finished and holds no samples").hint(never)
        }
        (64, _) => Error::profile(
            "a zero header: a recording that was cut off before it was finished, its names never written",
        )
        .hint("recover saves what is left: times, threads, frame numbers"),
        _ => Error::profile("zero bytes only: no profile"),
    }
}

const GZIP: &str = "a gzip file";
const ZSTD: &str = "a zstd file";
const PSTATS: &str = "a pstats file (marshal data)";
const MARKED: &str = "a profile after a byte order mark";

/// What a file that begins so is, where it is of a kind that this program neither reads nor takes for text.
pub fn known(start: &[u8]) -> Option<&'static str> {
    let is = |magic: &[u8]| start.starts_with(magic);
    Some(match start {
        _ if after_byte_order_mark(start).is_some_and(is_profile_or_torn) => MARKED,
        // A mark of UTF-16, and no UTF-16.
        _ if begins_an_object(start) || begins_an_array(start) => return None,
        [0x1f, 0x8b, ..] => GZIP,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [(0x50..=0x5f), 0x2a, 0x4d, 0x18, ..] => ZSTD,
        _ if is(b"\xfd7zXZ\0") => "an xz file",
        _ if is(b"BZh") => "a bzip2 file",
        [0x04, 0x22, 0x4d, 0x18, ..] => "an lz4 file",
        _ if is(b"PK\x03\x04") => "a zip archive",
        _ if is(b"7z\xbc\xaf\x27\x1c") => "a 7z archive",
        _ if is(b"\x7fELF") => "an ELF program",
        _ if is(b"\x89PNG") => "a PNG picture",
        _ if is(b"%PDF-") => "a PDF document",
        _ if is(b"SQLite format 3\0") => "an SQLite database",
        _ if is(b"PERFILE2") || is(b"2ELIFREP") => "a recording of Linux perf (perf.data)",
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => "a text in UTF-32",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'{', 0, b'"', 0, ..] | [0, b'{', 0, b'"', ..] => {
            "a text in UTF-16"
        }
        [0x80, (..=5), ..] => "a Python pickle",
        [b'{' | 0xfb, b'(' | b')' | 0xa8 | 0xa9, ..] => PSTATS,
        [_, _, b'\r', b'\n', ..] if !start[1].is_ascii_graphic() => "a compiled Python file (.pyc)",
        _ => return None,
    })
}

/// Whether a profile begins so, or one whose header was never written.
fn is_profile_or_torn(start: &[u8]) -> bool {
    is_profile(start) || (start.len() >= ZEROS && start[..ZEROS].iter().all(|byte| *byte == 0))
}

fn look(start: &[u8]) -> Error {
    if is_ring(start) {
        return Error::profile("the ring file of a recorder, not a profile")
            .hint("recover makes a profile of the chunks in it");
    }
    if let Some(what) = known(start) {
        let error = Error::profile(format!("{what}, not a profile"));
        return match what {
            GZIP => error.hint("unpack it first: gunzip"),
            ZSTD => error.hint("unpack it first: zstd -d"),
            PSTATS => error.hint("record with --binary instead of --pstats"),
            MARKED => Error::profile(format!("{what}: something took it for text")).hint(ORIGINAL),
            _ => error,
        };
    }
    let after = match after_byte_order_mark(start) {
        Some(_) => " after a byte order mark",
        None if record_separators(start) > 0 => " after a record separator (jq --seq)",
        None => "",
    };
    let text = unmarked(start);
    let shown =
        |byte: &u8| !byte.is_ascii_control() || byte.is_ascii_whitespace() || *byte == 0x1b || *byte == 0x1e;
    if !text.iter().all(shown) {
        Error::profile("not a profile: the magic number is missing")
    } else if text.starts_with(b"tid:") {
        Error::profile("collapsed stacks, not a profile").hint("record with --binary instead of --collapsed")
    } else if begins_an_array(text) {
        Error::profile(format!("a JSON array{after}, not a profile")).hint(LINES_OF_ARRAY)
    } else if begins_an_object(text) {
        Error::profile(format!("JSON{after}, not a profile"))
            .hint("a stream is read by to-bin, inspect, check and diff")
    } else if matches!(text.first(), Some(b'{' | b'[')) {
        Error::profile(format!("JSON{after}, not a profile"))
    } else {
        Error::profile(format!("a text file{after}, not a profile")).hint("record with --binary")
    }
}

const ORIGINAL: &str = "take the original file, and copy it as binary";

/// Why the bytes of a profile that cannot be opened are not where they were when it was written, if that shows:
/// something stands in front of it, its start is gone, or it was changed as if it were text. Nothing can
/// be read of it then, and what looks like samples is none.
pub(crate) fn displaced(source: &mut (impl Read + Seek), size: u64) -> Result<Option<Error>> {
    let mut seen = vec![0; size.min(SEEN as u64) as usize];
    let got = read_up_to(source, 0, &mut seen)?;
    seen.truncate(got);
    let start = &seen[..got.min(HEADER_LEN as usize)];
    if ByteOrder::of_magic(start).is_none() {
        match known(start) {
            Some(MARKED) => return Ok(Some(look(start))),
            // A profile can stand in a packed file as it is.
            Some(_) => return Ok(None),
            None => {}
        }
        if let Some(fault) = shifted(source, start, size)? {
            return Ok(Some(fault.hint(ORIGINAL)));
        }
        // A header holds zeros, and no change to text takes them away: this was a text before.
        if !start.contains(&0) {
            return Ok(None);
        }
    }
    let is_whole = got as u64 == size;
    let text = if was_lines(&seen, is_whole) {
        "a line feed in it became a carriage return and a line feed"
    } else if was_characters(&seen) {
        "bytes in it became UTF-8"
    } else {
        return Ok(None);
    };
    Ok(Some(Error::profile(format!("a profile that was changed as if it were text: {text}")).hint(ORIGINAL)))
}

/// Where a profile begins, if not with the first byte.
fn shifted(source: &mut (impl Read + Seek), start: &[u8], size: u64) -> Result<Option<Error>> {
    let starts = [ByteOrder::Little, ByteOrder::Big].map(|order| version_start(order, Layout::Wide));
    let behind = |at: u64| {
        let fault = format!("a profile that begins at byte {at}: what is before it does not belong to it");
        Some(Error::profile(fault).at(Position::Byte(at)))
    };
    let missing = |bytes: u64| {
        Some(
            Error::profile(format!("the start of a profile is missing: {bytes} bytes")).at(Position::Byte(0)),
        )
    };
    for whole in &starts {
        if let Some(at) = start.windows(whole.len()).position(|window| window == whole) {
            return Ok(behind(at as u64));
        }
        if let Some(gone) = (1..=4).find(|gone| start.starts_with(&whole[*gone..])) {
            return Ok(missing(gone as u64));
        }
    }
    if size < FOOTER_LEN {
        return Ok(None);
    }
    let mut end = [0; FOOTER_LEN as usize];
    read_up_to(source, size - FOOTER_LEN, &mut end)?;
    for (order, whole) in [ByteOrder::Little, ByteOrder::Big].into_iter().zip(&starts) {
        let declared = Footer::read(&end, order).size;
        if declared > size && declared - size < MISSING {
            return Ok(missing(declared - size));
        }
        let mut magic = [0; 8];
        if let Some(at) = size.checked_sub(declared).filter(|at| *at > 0 && declared > FOOTER_LEN)
            && read_up_to(source, at, &mut magic)? == magic.len()
            && magic == *whole
        {
            return Ok(behind(at));
        }
    }
    Ok(None)
}

/// Whether every line feed follows a carriage return, and not by chance.
fn was_lines(seen: &[u8], is_whole: bool) -> bool {
    let feeds = seen.iter().filter(|byte| **byte == b'\n').count();
    let pairs = seen.windows(2).filter(|pair| *pair == b"\r\n").count();
    if feeds == 0 || pairs < feeds {
        return false;
    }
    if feeds >= BY_CHANCE {
        return true;
    }
    // By what the footer says of the size before.
    let mut before = Vec::with_capacity(seen.len());
    let kept =
        seen.iter().enumerate().filter(|(at, byte)| **byte != b'\r' || seen.get(at + 1) != Some(&b'\n'));
    before.extend(kept.map(|(_, byte)| *byte));
    let footer = before.last_chunk::<{ FOOTER_LEN as usize }>().filter(|_| is_whole);
    footer.is_some_and(|footer| {
        let sizes = [ByteOrder::Little, ByteOrder::Big].map(|order| Footer::read(footer, order).size);
        sizes.contains(&(before.len() as u64))
    })
}

/// Whether no byte is left that a text in UTF-8 cannot hold, although such bytes were there: they were
/// replaced, or each became a character.
fn was_characters(seen: &[u8]) -> bool {
    let text = match std::str::from_utf8(seen) {
        Ok(text) => text,
        // The last character may be cut.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&seen[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let beyond = || text.chars().filter(|char| !char.is_ascii());
    let replaced = beyond().filter(|char| *char == char::REPLACEMENT_CHARACTER).count();
    replaced >= BY_CHANCE || (beyond().count() >= 2 * BY_CHANCE && beyond().all(|char| char <= '\u{ff}'))
}
