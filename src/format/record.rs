//! Decodes sample records one by one from a region of any length, through a buffer of fixed size.
//!
//! A record's head is `thread_id` u64, `interpreter_id` u32, `encoding` u8; what follows depends on
//! the encoding. Nothing here knows a thread's stack: [`Change::resolve`] is given its depth.

pub(crate) mod entries;

use std::io::Read;

use crate::error::{Error, Position, Result};
use crate::format::layout::header::ByteOrder;
use crate::limits::STACK_DEPTH;
use crate::model::{StackChange, ThreadKey};
use crate::varint::{self, Fault};
use entries::ENTRY_MAX;

/// The thread's stack again, any number of times.
pub(crate) const REPEAT: u8 = 0;
/// A whole stack.
pub(crate) const FULL: u8 = 1;
/// The outermost frames of the last stack, and new ones on top.
pub(crate) const SUFFIX: u8 = 2;
/// Frames off the top of the last stack, and new ones on.
pub(crate) const POP_PUSH: u8 = 3;

const HEAD: usize = 13;
const BUFFER: usize = 128 * 1024;
/// No record but REPEAT is longer; REPEAT is read entry by entry.
const RECORD_MAX: usize = HEAD + 2 * varint::MAX_LEN + 1 + (STACK_DEPTH + 2) * varint::MAX_LEN;
/// Entries that [`RecordReader::mark_entries`] holds ready.
pub(crate) const ENTRIES_AT_ONCE: u32 = 4096;

/// A record without its frames and entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Byte of the region where it starts.
    pub at: u64,
    pub thread: ThreadKey,
    pub body: Body,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// `count` entries follow: [`RecordReader::entries`].
    Repeat { count: u32 },
    /// One sample with another stack.
    Change { delta: u64, status: u8, change: Change },
}

/// How a record says what stays of a stack; `push` frames come on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// [`FULL`], [`SUFFIX`] or [`POP_PUSH`].
    pub encoding: u8,
    /// Of a SUFFIX the frames that stay, of a POP_PUSH those that go, of a FULL 0.
    old: u32,
    push: u32,
}

impl Change {
    pub fn full(push: u32) -> Self {
        Change { encoding: FULL, old: 0, push }
    }

    pub fn suffix(shared: u32, push: u32) -> Self {
        Change { encoding: SUFFIX, old: shared, push }
    }

    pub fn pop_push(pop: u32, push: u32) -> Self {
        Change { encoding: POP_PUSH, old: pop, push }
    }

    /// What it does to a stack of `depth` frames, or why it cannot.
    #[inline]
    pub fn resolve(self, depth: u32) -> Result<StackChange, String> {
        let Change { encoding, old, push } = self;
        let keep = match encoding {
            FULL => 0,
            SUFFIX if old > depth => {
                return Err(format!("the record shares {old} frames of a stack of {depth}"));
            }
            SUFFIX => old,
            // Popping more than there is empties the stack, as in CPython's reader.
            _ => depth.saturating_sub(old),
        };
        if u64::from(keep) + u64::from(push) > STACK_DEPTH as u64 {
            return Err(too_deep(u64::from(keep) + u64::from(push)));
        }
        Ok(StackChange { keep, push })
    }

    /// How many of the *innermost* frames stay and nothing else, where that is what the record does
    /// to a stack of `depth` frames. No writer makes such a SUFFIX without new frames; by its
    /// own words it would keep the outermost ones, but this is how CPython's reader takes it.
    #[inline]
    pub fn keeps_innermost(self, depth: u32) -> Option<u32> {
        (self.encoding == SUFFIX && self.push == 0 && self.old < depth).then_some(self.old)
    }

    /// How many frames the record puts onto a stack of `depth` frames.
    #[inline]
    pub fn brings(self, depth: u32) -> u32 {
        self.keeps_innermost(depth).unwrap_or(self.push)
    }
}

/// Appends a record's head.
pub(crate) fn write_head(out: &mut Vec<u8>, thread: ThreadKey, encoding: u8) {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&thread.thread_id.to_le_bytes());
    head[8..12].copy_from_slice(&thread.interpreter_id.to_le_bytes());
    head[12] = encoding;
    out.extend_from_slice(&head);
}

/// Appends a record of one sample with another stack; `pushed` innermost first.
pub(crate) fn write_change(
    out: &mut Vec<u8>,
    thread: ThreadKey,
    (delta, status): (u64, u8),
    change: Change,
    pushed: impl Iterator<Item = u32>,
) {
    write_head(out, thread, change.encoding);
    varint::write(out, delta);
    out.push(status);
    if change.encoding != FULL {
        varint::write(out, u64::from(change.old));
    }
    varint::write(out, u64::from(change.push));
    for frame in pushed {
        varint::write(out, u64::from(frame));
    }
}

fn too_deep(depth: u64) -> String {
    format!("the record makes a stack of {depth} frames, over the limit of {STACK_DEPTH}")
}

/// Where a region's bytes are, for positions in errors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RegionPosition {
    /// Plain: the region starts at this byte of the input.
    File(u64),
    /// Unpacked from a compressed region.
    Unpacked,
}

impl RegionPosition {
    pub fn position(self, at: u64) -> Position {
        match self {
            RegionPosition::File(base) => Position::Byte(base + at),
            RegionPosition::Unpacked => Position::Unpacked(at),
        }
    }
}

/// Decodes records out of a region.
pub(crate) struct RecordReader<'a> {
    source: Box<dyn Read + 'a>,
    order: ByteOrder,
    place: RegionPosition,
    buffer: Vec<u8>,
    pos: usize,
    len: usize,
    /// Byte of the region at which the buffer starts.
    base: u64,
    ended: bool,
    /// Why the source ended early; returned once the bytes before it are used up.
    failure: Option<Error>,
    pushed: [u32; STACK_DEPTH],
    push: usize,
}

impl<'a> RecordReader<'a> {
    /// Reads a region of at most `length` bytes.
    pub fn new(source: Box<dyn Read + 'a>, length: u64, order: ByteOrder, place: RegionPosition) -> Self {
        RecordReader {
            source,
            order,
            place,
            // A byte more, so that the end is seen.
            buffer: vec![0; length.saturating_add(1).min(BUFFER as u64) as usize],
            pos: 0,
            len: 0,
            base: 0,
            ended: false,
            failure: None,
            pushed: [0; STACK_DEPTH],
            push: 0,
        }
    }

    /// The frames of the last record, innermost first.
    #[inline(always)]
    pub fn pushed(&self) -> &[u32] {
        &self.pushed[..self.push]
    }

    /// Bytes of the region before the next record or entry.
    #[inline]
    pub fn position(&self) -> u64 {
        self.base + self.pos as u64
    }

    /// An error at byte `at` of the region.
    pub fn fault(&self, at: u64, detail: impl Into<String>) -> Error {
        Error::profile(detail).at(self.place.position(at))
    }

    /// Makes `least` bytes available, unless the region ends before.
    #[inline]
    fn fill(&mut self, least: usize) {
        if self.len - self.pos < least {
            self.refill();
        }
    }

    #[cold]
    fn refill(&mut self) {
        if self.ended {
            return;
        }
        self.buffer.copy_within(self.pos..self.len, 0);
        self.base += self.pos as u64;
        self.len -= self.pos;
        self.pos = 0;
        while self.len < self.buffer.len() && !self.ended {
            match self.source.read(&mut self.buffer[self.len..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.len += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = true;
                    self.failure = Some(match self.place {
                        RegionPosition::File(_) => Error::from(error),
                        RegionPosition::Unpacked => {
                            let at = self.place.position(self.base + self.len as u64);
                            Error::profile(format!("the sample data are not a valid zstd frame: {error}"))
                                .at(at)
                        }
                    });
                }
            }
        }
    }

    /// The error for bytes that end too early or a number that doesn't end.
    #[cold]
    fn broken(&mut self, at: u64, fault: Fault, what: &str) -> Error {
        match (fault, self.failure.take()) {
            (Fault::Short, Some(failure)) => failure,
            (Fault::Short, None) => self.fault(at, format!("the sample data end inside {what}")),
            (Fault::Long, _) => self.fault(at, format!("{what} holds a number of more than ten bytes")),
        }
    }

    /// The next record; [`RecordReader::pushed`] has its frames. `None` at the end of the region. The
    /// entries of a REPEAT must have been read.
    #[inline(always)]
    pub fn next(&mut self) -> Result<Option<Record>> {
        self.fill(RECORD_MAX);
        let at = self.position();
        let bytes = &self.buffer[self.pos..self.len];
        let Some(head) = bytes.first_chunk::<HEAD>() else { return self.no_record(at).map(|()| None) };
        let thread =
            ThreadKey { thread_id: self.order.u64(head, 0), interpreter_id: self.order.u32(head, 8) };
        let mut pos = HEAD;
        let encoding = head[12];
        let body = if encoding == REPEAT {
            narrow(bytes, &mut pos).map(|count| Body::Repeat { count })
        } else {
            change(bytes, &mut pos, encoding, &mut self.pushed).map(|(delta, status, change)| {
                self.push = change.push as usize;
                Body::Change { delta, status, change }
            })
        };
        match body {
            Ok(body) => {
                self.pos += pos;
                Ok(Some(Record { at, thread, body }))
            }
            Err(fault) => Err(self.unreadable(at, fault)),
        }
    }

    /// Too few bytes for a record are left.
    #[cold]
    fn no_record(&mut self, at: u64) -> Result<()> {
        match (self.failure.take(), self.len - self.pos) {
            (Some(failure), _) => Err(failure),
            (None, 0) => Ok(()),
            (None, left) => {
                Err(self.fault(at, format!("the sample data end in {left} bytes that are not a record")))
            }
        }
    }

    #[cold]
    fn unreadable(&mut self, at: u64, fault: BodyFault) -> Error {
        match fault {
            BodyFault::Number(fault) => self.broken(at, fault, "a record"),
            fault => self.fault(at, fault.detail()),
        }
    }

    /// Reads `count` entries of a REPEAT, each a time delta and a status.
    #[inline(always)]
    pub fn entries(&mut self, count: u32, mut each: impl FnMut(u64, u8)) -> Result<()> {
        let mut left = count;
        loop {
            let bytes = &self.buffer[self.pos..self.len];
            let mut pos = 0;
            let fault = loop {
                if left == 0 {
                    break None;
                }
                match entries::one(bytes, &mut pos) {
                    Ok((delta, status)) => {
                        each(delta, status);
                        left -= 1;
                    }
                    Err(fault) => break Some(fault),
                }
            };
            self.pos += pos;
            match fault {
                None => return Ok(()),
                Some(Fault::Short) if !self.ended => self.refill(),
                Some(fault) => return Err(self.broken(self.position(), fault, "a REPEAT record")),
            }
        }
    }

    /// Sees to it that the bytes of `count` entries, at most [`ENTRIES_AT_ONCE`], are there, so that they can be
    /// read again after [`RecordReader::back_to`].
    #[inline]
    pub fn mark_entries(&mut self, count: u32) -> Mark {
        self.fill(count as usize * ENTRY_MAX);
        Mark(self.pos)
    }

    /// Goes back to where the entries were marked.
    #[inline]
    pub fn back_to(&mut self, mark: Mark) {
        self.pos = mark.0;
    }

    /// Reads entries of a REPEAT, at most [`ENTRIES_AT_ONCE`], into columns of the same length.
    pub fn entry_columns(&mut self, deltas: &mut [u64], status: &mut [u8]) -> Result<()> {
        self.fill(deltas.len() * ENTRY_MAX);
        let bytes = &self.buffer[self.pos..self.len];
        let mut pos = 0;
        let read = entries::columns(bytes, &mut pos, deltas, status);
        self.pos += pos;
        read.map_err(|fault| self.broken(self.position(), fault, "a REPEAT record"))
    }

    /// Passes over `count` marked entries of a REPEAT and adds up their time deltas; `None` where one is so
    /// great that times might wrap.
    #[inline(always)]
    pub fn sum_entries(&mut self, count: u32) -> Result<Option<u64>> {
        let bytes = &self.buffer[self.pos..self.len];
        let mut pos = 0;
        match entries::sum(bytes, &mut pos, count) {
            Ok(sum) => {
                self.pos += pos;
                Ok(sum)
            }
            Err(fault) => {
                self.pos += pos;
                Err(self.broken(self.position(), fault, "a REPEAT record"))
            }
        }
    }

    /// The time delta of a REPEAT's first entry, where it can be read. It was made available with the record.
    #[inline]
    pub fn first_delta(&self) -> Option<u64> {
        varint::read(&self.buffer[self.pos..self.len], &mut 0).ok()
    }
}

/// A place to which a reader can go back.
#[derive(Clone, Copy)]
pub(crate) struct Mark(usize);

/// Small, and without words, since it stands in the way of every number.
#[derive(Clone, Copy)]
enum BodyFault {
    Number(Fault),
    Kind(u8),
    Wide(u64),
    Deep(u32),
}

impl BodyFault {
    fn detail(self) -> String {
        match self {
            BodyFault::Number(_) => "not a number".to_string(),
            BodyFault::Kind(encoding) => format!("record kind {encoding} is not known"),
            BodyFault::Wide(value) => {
                format!("a record holds the number {value} where at most 32 bits are meant")
            }
            BodyFault::Deep(depth) => too_deep(u64::from(depth)),
        }
    }
}

impl From<Fault> for BodyFault {
    fn from(fault: Fault) -> Self {
        BodyFault::Number(fault)
    }
}

/// What stands after the head of a record that is no REPEAT: time delta, status, change. Its frames go to
/// `pushed`.
#[inline(always)]
fn change(
    bytes: &[u8],
    pos: &mut usize,
    encoding: u8,
    pushed: &mut [u32; STACK_DEPTH],
) -> Result<(u64, u8, Change), BodyFault> {
    if encoding > POP_PUSH {
        return Err(BodyFault::Kind(encoding));
    }
    let (delta, status) = entries::one(bytes, pos)?;
    let old = if encoding == FULL { 0 } else { narrow(bytes, pos)? };
    let push = narrow(bytes, pos)?;
    let Some(pushed) = pushed.get_mut(..push as usize) else { return Err(BodyFault::Deep(push)) };
    for frame in pushed {
        *frame = narrow(bytes, pos)?;
    }
    Ok((delta, status, Change { encoding, old, push }))
}

/// A number that must fit into 32 bits.
#[inline(always)]
fn narrow(bytes: &[u8], pos: &mut usize) -> Result<u32, BodyFault> {
    let value = varint::read(bytes, pos)?;
    u32::try_from(value).map_err(|_| BodyFault::Wide(value))
}
