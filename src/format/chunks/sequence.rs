//! Walks an input that holds several profiles in a row: chunks (format version 2), framed profiles, or concatenated
//! files.
//!
//! A chunk or a framed profile is taken whole or not at all. Where one is damaged, the next is found
//! by the damaged one's size, or, where that is what is damaged, by a search for the next header that
//! holds: one whose size and whose footer's size agree.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom};

use memchr::memmem::Finder;

use crate::counts::windows::Counting;
use crate::error::{Error, ErrorKind, Position, Result};
use crate::format::layout::header::{
    ByteOrder, FOOTER_LEN, Footer, HEADER_LEN, Header, Layout, chunk_size, version_of, version_start,
};
use crate::format::layout::ring::is_ring;
use crate::format::open::{Profile, Reading, parts};
use crate::format::section::{are_zeros, read_up_to};
use crate::limits::CHUNK_BYTES;

/// Bytes before a framed profile: its length as a big-endian u32.
const LENGTH_LEN: u64 = 4;
const SHORTEST: u64 = HEADER_LEN + FOOTER_LEN;
/// Bytes that are searched at once for a header.
const SEARCH: usize = 64 * 1024;

/// How the profiles of an input are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Version-1 files: one, or several that were joined. Each is a run.
    Files,
    /// Version-2 chunks, parts of a run.
    Chunks,
    /// Version-1 files, each after its length, parts of a run.
    Lengths,
}

/// Walks through an input's profiles.
#[derive(Debug)]
pub struct Sequence {
    framing: Framing,
    /// Bytes before each part that tell its length.
    ahead: u64,
    /// Where the next one starts.
    at: u64,
    /// Files that are still to come, as (place, size).
    files: VecDeque<(u64, u64)>,
    reading: Reading,
}

/// What stands at some place of an input.
#[derive(Debug)]
pub enum Part<R> {
    /// A profile; one of several parts has no faults.
    Profile(Box<Profile<R>>),
    /// Bytes that are no sound part.
    Lost(LostPart),
}

/// Bytes that could not be read.
#[derive(Debug)]
pub struct LostPart {
    /// Place in the input.
    pub at: u64,
    /// How many.
    pub bytes: u64,
    /// Samples in them, where a sound-looking header says.
    pub samples: Option<u64>,
    /// Whether they are the input's torn end, and not something damaged before sound parts.
    pub is_tail: bool,
    /// What is wrong.
    pub error: Error,
}

impl LostPart {
    /// What is lost, and why, in words.
    pub fn to_error(&self) -> Error {
        let samples = self.samples.map_or(String::new(), |samples| format!(" ({samples} samples)"));
        let last = self.at + self.bytes - 1;
        let what = if self.is_tail { "are not a whole chunk" } else { "are skipped" };
        let fault = format!("bytes {} to {last}{samples} {what}: {}", self.at, self.error.detail());
        Error::profile(fault).at(self.error.position().unwrap_or(Position::Byte(self.at)))
    }
}

/// Where a part is, as its header and its footer agree to give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLocation {
    /// Its profile's first byte.
    pub at: u64,
    /// Bytes of its profile.
    pub size: u64,
}

impl PartLocation {
    fn end(self) -> u64 {
        self.at + self.size
    }
}

/// Why there is no part at some place.
struct Broken {
    error: Error,
    /// The part's end, unless another part starts before it.
    end: Option<u64>,
}

impl Sequence {
    /// Looks at the start of `source`.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn open(source: &mut (impl Read + Seek)) -> Result<Self> {
        let mut start = [0; 12];
        let got = read_up_to(source, 0, &mut start)?;
        let start = &start[..got];
        let mut ahead = 0;
        let framed = start.get(LENGTH_LEN as usize..).and_then(layout_of);
        let framing = match layout_of(start) {
            Some(Layout::Chunk) => Framing::Chunks,
            Some(Layout::Wide) => Framing::Files,
            None if framed == Some(Layout::Chunk) => {
                ahead = LENGTH_LEN;
                Framing::Chunks
            }
            None if framed == Some(Layout::Wide) => {
                ahead = LENGTH_LEN;
                Framing::Lengths
            }
            // Its chunks are in no order, and between them is what was written over.
            None if is_ring(start) => Framing::Files,
            // The first chunk may be damaged, or never have been committed.
            _ if Self::of_chunks().search(source, None)?.is_some() => Framing::Chunks,
            _ => Framing::Files,
        };
        let files = if framing == Framing::Files {
            let size = source.seek(SeekFrom::End(0))?;
            parts(source, size)?.into()
        } else {
            VecDeque::new()
        };
        Ok(Sequence { framing, ahead, at: 0, files, reading: Reading::default() })
    }

    /// Chunks from the start of an input, whatever stands there.
    pub fn of_chunks() -> Self {
        Self::of_chunks_from(0)
    }

    /// Chunks from this place of an input, whatever stands there.
    pub fn of_chunks_from(at: u64) -> Self {
        Sequence {
            framing: Framing::Chunks,
            ahead: 0,
            at,
            files: VecDeque::new(),
            reading: Reading::default(),
        }
    }

    /// How many threads to read profiles on, the caller's among them: 1 unless said otherwise, 0 for one a
    /// core.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.reading.threads = threads;
        self
    }

    /// What to count of profiles while their records are checked: nothing unless said otherwise.
    #[must_use]
    pub fn counting(mut self, counting: Option<Counting>) -> Self {
        self.reading.counting = counting;
        self
    }

    /// How the parts are separated.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// How many joined files are still to come.
    pub fn files_left(&self) -> usize {
        self.files.len()
    }

    /// Where the next part starts; what is before it is done with.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The next part, or bytes that are none; `None` at the end.
    ///
    /// # Errors
    ///
    /// Errors of the source, and files of version 1 that cannot be opened.
    pub fn next<'s, R: Read + Seek>(&mut self, source: &'s mut R) -> Result<Option<Part<&'s mut R>>> {
        match self.next_place(source)? {
            Some(place) => self.opened(source, place).map(Some),
            None => Ok(None),
        }
    }

    /// The next part that is whole in a source that grows; `None` where there is none yet. With `search`
    /// also what is lost before one that stands farther on.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn next_committed<'s, R: Read + Seek>(
        &mut self,
        source: &'s mut R,
        search: bool,
    ) -> Result<Option<Part<&'s mut R>>> {
        if !search && self.frame_at(source, self.at)?.is_err() {
            return Ok(None);
        }
        match self.committed(source)? {
            Some(place) => self.opened(source, place).map(Some),
            None => Ok(None),
        }
    }

    /// Where the next part is, unopened, or bytes that are none; `None` at the end.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn next_place(
        &mut self,
        source: &mut (impl Read + Seek),
    ) -> Result<Option<Result<PartLocation, LostPart>>> {
        if self.framing == Framing::Files {
            let Some((at, size)) = self.files.pop_front() else { return Ok(None) };
            self.at = at + size;
            return Ok(Some(Ok(PartLocation { at, size })));
        }
        if let Some(place) = self.committed(source)? {
            return Ok(Some(place));
        }
        let rest = source.seek(SeekFrom::End(0))?.saturating_sub(self.at);
        if rest == 0 {
            return Ok(None);
        }
        let error = match self.frame_at(source, self.at)? {
            Ok(_) => Error::profile("a part that came only now"),
            Err(broken) => broken.error,
        };
        let at = self.at;
        self.at += rest;
        Ok(Some(Err(LostPart { at, bytes: rest, samples: None, is_tail: true, error })))
    }

    /// The next part's place, or damage with a known end; goes on after it.
    fn committed(
        &mut self,
        source: &mut (impl Read + Seek),
    ) -> Result<Option<Result<PartLocation, LostPart>>> {
        let at = self.at;
        let broken = match self.frame_at(source, at)? {
            Ok(place) => {
                self.at = place.end();
                return Ok(Some(Ok(place)));
            }
            Err(broken) => broken,
        };
        let Some(end) = self.search(source, broken.end)?.or(broken.end) else { return Ok(None) };
        self.at = end;
        Ok(Some(Err(LostPart { at, bytes: end - at, samples: None, is_tail: false, error: broken.error })))
    }

    /// Opens a part, or returns why it is lost.
    fn opened<'s, R: Read + Seek>(
        &self,
        source: &'s mut R,
        place: Result<PartLocation, LostPart>,
    ) -> Result<Part<&'s mut R>> {
        let place = match place {
            Ok(place) => place,
            Err(lost) => return Ok(Part::Lost(lost)),
        };
        if self.framing == Framing::Files {
            let profile = Profile::open_as(self.reading, source, place.at, place.size)?;
            return Ok(Part::Profile(Box::new(profile)));
        }
        let samples = declared_samples(source, place)?;
        let error = match Profile::open_as(self.reading, source, place.at, place.size) {
            Ok(profile) => match profile.contents().faults.iter().find(|fault| fault.concerns_samples()) {
                None => return Ok(Part::Profile(Box::new(profile))),
                Some(fault) => fault.error.again(),
            },
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(error) => error,
        };
        // A framed part is lost with its length.
        let at = place.at - self.ahead;
        Ok(Part::Lost(LostPart { at, bytes: place.end() - at, samples, is_tail: false, error }))
    }

    fn frame_at(&self, source: &mut (impl Read + Seek), at: u64) -> Result<Result<PartLocation, Broken>> {
        match (self.framing, self.ahead) {
            (Framing::Lengths, _) => framed_at(source, at, Layout::Wide),
            (_, LENGTH_LEN) => framed_at(source, at, Layout::Chunk),
            _ => chunk_at(source, at),
        }
    }

    /// Where the next part is whose frame holds, after the start of the broken one and before `end`.
    fn search(&self, source: &mut (impl Read + Seek), end: Option<u64>) -> Result<Option<u64>> {
        let layout = if self.framing == Framing::Lengths { Layout::Wide } else { Layout::Chunk };
        let starts = [ByteOrder::Little, ByteOrder::Big].map(|order| version_start(order, layout));
        let finders = starts.each_ref().map(Finder::new);
        let mut buffer = vec![0; SEARCH];
        let mut from = self.at + 1;
        loop {
            let room = end.map_or(u64::MAX, |end| end.saturating_sub(from)).min(SEARCH as u64) as usize;
            let got = read_up_to(source, from, &mut buffer[..room])?;
            let read = &buffer[..got];
            let mut hits: Vec<usize> = match are_zeros(read) {
                true => Vec::new(),
                false => finders.iter().flat_map(|finder| finder.find_iter(read)).collect(),
            };
            hits.sort_unstable();
            for hit in hits {
                let Some(at) = (from + hit as u64).checked_sub(self.ahead).filter(|at| *at > self.at) else {
                    continue;
                };
                if self.frame_at(source, at)?.is_ok() {
                    return Ok(Some(at));
                }
            }
            if got < buffer.len() {
                return Ok(None);
            }
            // A start may lie across the end of the buffer.
            from += (got - starts[0].len() + 1) as u64;
        }
    }
}

/// The layout of a profile that begins with these bytes, of those that can be one of several parts.
fn layout_of(start: &[u8]) -> Option<Layout> {
    let (_, version) = version_of(start)?;
    [Layout::Wide, Layout::Chunk].into_iter().find(|layout| layout.format_version() == version)
}

fn broken<T>(at: u64, fault: impl Into<String>) -> Result<Result<T, Broken>> {
    Ok(Err(Broken { error: Error::profile(fault).at(Position::Byte(at)), end: None }))
}

/// Whether the source has bytes up to `end`; waits for them where they are still to come.
fn reaches(source: &mut (impl Read + Seek), end: u64) -> Result<bool> {
    Ok(read_up_to(source, end - 1, &mut [0])? == 1)
}

fn chunk_at(source: &mut (impl Read + Seek), at: u64) -> Result<Result<PartLocation, Broken>> {
    let mut start = [0; HEADER_LEN as usize];
    let got = read_up_to(source, at, &mut start)?;
    if start[..got].iter().all(|byte| *byte == 0) {
        return broken(at, "a chunk that was never committed: its header is zeros");
    }
    if got < start.len() {
        return broken(at, format!("truncated: {got} bytes are too few for a chunk's header"));
    }
    let Some((order, size)) = chunk_size(&start) else {
        return match version_of(&start) {
            Some((_, version)) => {
                broken(at + 4, format!("format version {version} where a chunk should start"))
            }
            None => broken(at, "not a chunk: the magic number is missing"),
        };
    };
    if !(SHORTEST..=CHUNK_BYTES).contains(&size) {
        return broken(at + 56, format!("the chunk's header gives its size as {size} bytes"));
    }
    let end = at + size;
    if !reaches(source, end)? {
        let there = source.seek(SeekFrom::End(0))?.saturating_sub(at);
        return broken(at, format!("truncated: the chunk's header says {size} bytes, but {there} are there"));
    }
    let mut footer = [0; FOOTER_LEN as usize];
    read_up_to(source, end - FOOTER_LEN, &mut footer)?;
    let declared = Footer::read(&footer, order).size;
    if declared == size {
        return Ok(Ok(PartLocation { at, size }));
    }
    // Where another chunk, or the end, comes just there, the size may be right all the same.
    let mut next = [0; HEADER_LEN as usize];
    let got = read_up_to(source, end, &mut next)?;
    let fits = got == 0 || chunk_size(&next).is_some();
    let fault = format!("the chunk's footer gives its size as {declared} bytes, its header as {size}");
    let error = Error::profile(fault).at(Position::Byte(end - FOOTER_LEN + 8));
    Ok(Err(Broken { error, end: fits.then_some(end) }))
}

fn framed_at(
    source: &mut (impl Read + Seek),
    at: u64,
    layout: Layout,
) -> Result<Result<PartLocation, Broken>> {
    let mut start = [0; 12];
    let got = read_up_to(source, at, &mut start)?;
    if got < start.len() {
        return broken(at, format!("truncated: {got} bytes are too few for a framed profile"));
    }
    let size = u64::from(ByteOrder::Big.u32(&start, 0));
    if size < SHORTEST {
        return broken(at, format!("a framed profile's length is given as {size} bytes"));
    }
    let profile_at = at + LENGTH_LEN;
    let end = profile_at + size;
    if layout_of(&start[LENGTH_LEN as usize..]) != Some(layout) {
        return broken(profile_at, "no profile where a framed one should start");
    }
    if !reaches(source, end)? {
        let there = source.seek(SeekFrom::End(0))?.saturating_sub(profile_at);
        return broken(at, format!("truncated: a framed profile of {size} bytes, but {there} are there"));
    }
    Ok(Ok(PartLocation { at: profile_at, size }))
}

/// The samples that a part's header declares, if its offsets look sound.
fn declared_samples(source: &mut (impl Read + Seek), place: PartLocation) -> Result<Option<u64>> {
    let mut start = [0; HEADER_LEN as usize];
    read_up_to(source, place.at, &mut start)?;
    Ok(Header::read(&start, place.size, place.at).ok().map(|header| header.samples))
}
