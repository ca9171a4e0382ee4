//! Names a file for what it looks like, when it is no profile.

use std::io::{Read, Seek};

use crate::error::{Error, Position, Result};
use crate::format::layout::header::{ByteOrder, FOOTER_LEN, Footer, HEADER_LEN, Layout, version_start};
use crate::format::layout::ring::is_ring;
use crate::format::section::read_up_to;

/// Bytes that tell whether a file was changed as if it were text.
const SEEN: usize = 1 << 20;
/// So many line feeds that follow carriage returns, or characters that replace a byte, are no chance.
const BY_CHANCE: usize = 4;
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
        .hint("recover saves what is there: times, threads, frame numbers"),
        _ => Error::profile("zero bytes only: no profile"),
    }
}

const GZIP: &str = "a gzip file";
const ZSTD: &str = "a zstd file";
const PSTATS: &str = "a pstats file (marshal data)";

/// What a file that begins so is, where it is of a kind that this program neither reads nor takes for text.
pub fn known(start: &[u8]) -> Option<&'static str> {
    let is = |magic: &[u8]| start.starts_with(magic);
    Some(match start {
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

fn look(start: &[u8]) -> Error {
    let is = |magic: &[u8]| start.starts_with(magic);
    if is_ring(start) {
        return Error::profile("the ring file of a recorder, not a profile")
            .hint("recover makes a profile of the chunks in it");
    }
    let text = start.iter().all(|byte| !byte.is_ascii_control() || matches!(byte, b'\t' | b'\n' | b'\r'));
    if let Some(what) = known(start) {
        let error = Error::profile(format!("{what}, not a profile"));
        match what {
            GZIP => error.hint("unpack it first: gunzip"),
            ZSTD => error.hint("unpack it first: zstd -d"),
            PSTATS => error.hint("record with --binary instead of --pstats"),
            _ => error,
        }
    } else if text && is(b"tid:") {
        Error::profile("collapsed stacks, not a profile").hint("record with --binary instead of --collapsed")
    } else if text && matches!(start.trim_ascii_start().first(), Some(b'{' | b'[')) {
        Error::profile("JSON, not a profile").hint("a stream is read by to-bin, inspect, check and diff")
    } else if is(BOM) && ByteOrder::of_magic(&start[3..]).is_some() {
        Error::profile("a profile after a byte order mark: something took it for text").hint(ORIGINAL)
    } else if text {
        Error::profile("a text file, not a profile").hint("record with --binary")
    } else {
        Error::profile("no profile: the magic number is missing")
    }
}

const BOM: &[u8] = &[0xef, 0xbb, 0xbf];
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
        if start.starts_with(BOM) && ByteOrder::of_magic(&start[BOM.len()..]).is_some() {
            return Ok(Some(look(start)));
        }
        // A profile can stand in a packed file as it is.
        if known(start).is_none()
            && let Some(fault) = shifted(source, start, size)?
        {
            return Ok(Some(fault.hint(ORIGINAL)));
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
