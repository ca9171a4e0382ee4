//! Names a file for what it looks like, when it is no profile.

use crate::error::Error;
use crate::format::header::ByteOrder;
use crate::format::ring::is_ring;

/// Whether a file that begins so is a profile: a file, a chunk, one behind its length, or a ring of chunks.
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

fn look(start: &[u8]) -> Error {
    let is = |magic: &[u8]| start.starts_with(magic);
    if is_ring(start) {
        return Error::profile("the ring file of a recorder, not a profile")
            .hint("recover makes a profile of the chunks in it");
    }
    let text = start.iter().all(|byte| !byte.is_ascii_control() || matches!(byte, b'\t' | b'\n' | b'\r'));
    if is(&[0x1f, 0x8b]) {
        Error::profile("a gzip file, not a profile").hint("unpack it first: gunzip")
    } else if is(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Error::profile("a zstd file, not a profile").hint("unpack it first: zstd -d")
    } else if is(b"\x7fELF") {
        Error::profile("an ELF program, not a profile")
    } else if is(b"\x89PNG") {
        Error::profile("a PNG picture, not a profile")
    } else if is(b"PK\x03\x04") {
        Error::profile("a zip archive, not a profile")
    } else if start.len() > 1 && start[0] == 0x80 && start[1] <= 5 {
        Error::profile("a Python pickle, not a profile")
    } else if matches!(start, [b'{' | 0xfb, b'(' | b')' | 0xa8 | 0xa9, ..]) {
        Error::profile("a pstats file (marshal data), not a profile")
            .hint("record with --binary instead of --pstats")
    } else if start.len() > 3 && start[2..4] == *b"\r\n" {
        Error::profile("a compiled Python file (.pyc), not a profile")
    } else if text && is(b"tid:") {
        Error::profile("collapsed stacks, not a profile").hint("record with --binary instead of --collapsed")
    } else if text && matches!(start.trim_ascii_start().first(), Some(b'{' | b'[')) {
        Error::profile("JSON, not a profile").hint("a stream is read by to-bin, inspect, check and diff")
    } else if is(&[0xef, 0xbb, 0xbf]) && ByteOrder::of_magic(&start[3..]).is_some() {
        Error::profile("a profile behind a byte order mark: something took it for text")
    } else if text {
        Error::profile("a text file, not a profile").hint("record with --binary")
    } else {
        Error::profile("no profile: the magic number is missing")
    }
}
