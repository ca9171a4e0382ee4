//! Detects the kind of an input by its first bytes: a stream, compressed or not, or a profile.

use std::fs;
use std::io::{BufRead, BufReader, Cursor, Read};

use crate::cli::io::{Input, Packing, ProfileSource, packing_of, unpacked};
use crate::error::{Error, Result};
use crate::format::{HEADER_LEN, is_profile, known};
use crate::marks::{LINES_OF_ARRAY, begins_an_array, begins_an_object, unmarked};
use crate::protocol::Lines;
use crate::protocol::{FromMsgpack, LmcacheTrace, Message, RawColumns, decode, is_msgpack};

/// Bytes that decide: room for what a program says before its first line.
const PEEK: u64 = 8 * 1024;

/// An input, opened.
pub(crate) enum Sniffed {
    /// Lines of JSON objects, maybe after lines that a program said.
    Stream {
        packing: Option<&'static str>,
        /// Whether they are CPython's own.
        is_cpython: bool,
        reader: Box<dyn BufRead>,
    },
    /// A profile, or something that is none.
    Profile(ProfileSource),
    /// A trace of LMCache.
    Trace(Box<LmcacheTrace<Box<dyn BufRead>>>),
    /// Packed, and no stream: its first bytes.
    Packed(Vec<u8>),
}

/// Opens an input for what it is.
///
/// # Errors
///
/// An input that cannot be opened or unpacked.
pub(crate) fn sniff(input: &Input) -> Result<Sniffed> {
    let mut reader = input.reader()?;
    let start = peek(&mut reader)?;
    let whole: Box<dyn BufRead> = Box::new(Cursor::new(start.clone()).chain(reader));
    if is_stream(&start) {
        return Ok(Sniffed::Stream { packing: None, is_cpython: is_cpython(&start), reader: whole });
    }
    if is_msgpack(&start) {
        let reader = lines_of(whole);
        return Ok(Sniffed::Stream { packing: Some("MessagePack"), is_cpython: false, reader });
    }
    if LmcacheTrace::<Box<dyn BufRead>>::is_begun_by(&start) {
        return Ok(Sniffed::Trace(Box::new(LmcacheTrace::open(whole)?)));
    }
    let packing = match packing_of(&start) {
        Some(Packing::Zstd) => "zstd",
        Some(Packing::Gzip) => "gzip",
        None => return Ok(Sniffed::Profile(source(input, whole)?)),
    };
    let opened = unpacked(whole).and_then(|mut reader| Ok((peek(&mut reader)?, reader)));
    let (unpacked_start, reader) = opened.map_err(|error| {
        let fault =
            Error::stream(format!("packed with {packing}, but it cannot be unpacked: {}", error.detail()));
        // As zstd itself says it of a large window.
        let is_too_large = error.detail().contains("too much memory");
        if is_too_large {
            fault.hint("unpack it first, with as much memory as it needs: zstd -d --long=31")
        } else {
            fault
        }
    })?;
    if is_stream(&unpacked_start) {
        let is_cpython = is_cpython(&unpacked_start);
        let reader = Box::new(Cursor::new(unpacked_start).chain(reader));
        return Ok(Sniffed::Stream { packing: Some(packing), is_cpython, reader });
    }
    Ok(Sniffed::Packed(start))
}

/// The lines of an input that is to be a stream.
pub(crate) struct StreamLines {
    pub reader: Box<dyn BufRead>,
    /// What the input is if none of its lines is a message. Its start may be torn, so only its end decides.
    pub other: Option<&'static str>,
}

/// A stream's lines, whatever the stream is packed in.
///
/// # Errors
///
/// An input that cannot be opened or unpacked, and one that is known to be something else.
pub(crate) fn stream_lines(input: &Input) -> Result<StreamLines> {
    let mut source = match sniff(input)? {
        Sniffed::Stream { reader, .. } => return Ok(StreamLines { reader, other: None }),
        Sniffed::Profile(source) => BufReader::new(source),
        Sniffed::Trace(_) => {
            return Err(no_stream("a trace of LMCache").hint("from-bin converts it to a stream"));
        }
        Sniffed::Packed(start) => {
            let what = known(&start).unwrap_or("a packed file");
            let what = format!("{what} without a stream in it");
            return Err(Error::stream(what).hint("unpack it first; inspect then shows what it holds"));
        }
    };
    let start = source.fill_buf()?;
    let is_zeros = start.len() >= HEADER_LEN as usize && start.iter().all(|byte| *byte == 0);
    if is_profile(start) {
        Err(no_stream("a binary profile").hint("from-bin converts it to a stream"))
    } else if is_zeros {
        Err(no_stream("only zeros, such as a recording that was cut off")
            .hint("recover may save its samples"))
    } else if let Some(what) = known(start) {
        Err(no_stream(what))
    } else if begins_an_array(start) {
        Err(no_stream("a JSON array").hint(LINES_OF_ARRAY))
    } else if start.is_empty() {
        Err(Error::stream("an empty input: the stream has no message"))
    } else {
        // Lines, whatever they say.
        let other = Some(other_than_stream(start));
        Ok(StreamLines { reader: Box::new(source), other })
    }
}

/// What begins so and is no stream.
fn other_than_stream(start: &[u8]) -> &'static str {
    let text = unmarked(start);
    let shown = |byte: &u8| !byte.is_ascii_control() || byte.is_ascii_whitespace() || *byte == 0x1b;
    match text.first() {
        None => "blank lines",
        _ if !text.iter().all(shown) => "binary data",
        Some(b'[' | b'{') => "JSON, but not one object per line",
        _ => "a text file",
    }
}

/// The error of an input that is this, and no stream.
pub(crate) fn no_stream(what: &str) -> Error {
    Error::stream(format!("{what}, not a stream"))
}

fn lines_of(frames: Box<dyn BufRead>) -> Box<dyn BufRead> {
    Box::new(BufReader::new(FromMsgpack::new(frames)))
}

/// Takes up to [`PEEK`] bytes, of a profile just enough to know it: what is after them may be long in coming.
/// An error after the first byte is left to who reads on.
fn peek(reader: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut start = Vec::new();
    for upto in [HEADER_LEN, PEEK] {
        match reader.take(upto - start.len() as u64).read_to_end(&mut start) {
            Err(error) if start.is_empty() => return Err(error.into()),
            Err(_) => return Ok(start),
            Ok(_) if is_profile(&start) => return Ok(start),
            Ok(_) => {}
        }
    }
    Ok(start)
}

/// Whether a file that begins so holds lines of JSON objects, maybe after lines that a program said.
fn is_stream(start: &[u8]) -> bool {
    let said = |byte: &u8| !byte.is_ascii_control() || byte.is_ascii_whitespace() || *byte == 0x1b;
    begins_an_object(start)
        || unmarked(start)
            .split_inclusive(|byte| *byte == b'\n')
            .take_while(|line| line.iter().all(said))
            .any(|line| line.starts_with(b"{\"type\":"))
}

/// Whether the first message of a stream that begins so is one of CPython's own.
fn is_cpython(start: &[u8]) -> bool {
    let mut lines = Lines::new(start);
    let first = lines.next_message().ok().flatten();
    let decoded = first.and_then(|line| decode(line.bytes, &mut RawColumns::default()).ok());
    decoded.is_some_and(|decoded| matches!(decoded.message, Message::CPython(_)))
}

/// The input as bytes that can be read anywhere; `whole` is the same, opened already.
fn source(input: &Input, whole: Box<dyn BufRead>) -> Result<ProfileSource> {
    if let Input::File(path) = input
        && fs::metadata(path)?.is_file()
    {
        return input.source();
    }
    Ok(ProfileSource::of_pipe(whole))
}
