//! Stream to chunked profile.

use std::borrow::Cow;
use std::ops::Range;

use tempfile::SpooledTempFile;

use crate::convert::group_reader::{GroupReader, RunHead};
use crate::convert::stream_definitions::Definitions;
use crate::convert::to_binary::merge::Merge;
use crate::convert::to_binary::{Outcome, ProfileOptions, threads, whole};
use crate::convert::to_stream::options::Flush;
use crate::error::Result;
use crate::format::{Chunk, ChunkInfo, Packing, RunEnd, Writer};
use crate::limits::CHUNK_SAMPLES;
use crate::model::{ClockPair, Statistics, TimeSpan};
use crate::protocol::RawColumns;

/// Makes a version-2 profile out of the lines of a stream: chunks, each of which is handed on once it is
/// whole.
///
/// ```
/// use std::io::{Cursor, Read};
/// use tachyon_jsonl::convert::{Flush, ProfileOptions, StreamOptions, ToChunks, to_stream};
/// use tachyon_jsonl::format::Profile;
///
/// let file = std::fs::File::open("tests/data/cpython/wall_all_100hz_none.bin")?;
/// let mut stream = Vec::new();
/// to_stream(&mut Profile::open(file)?, &StreamOptions::new("example")?, &mut stream)?;
///
/// let mut bytes = Vec::new();
/// let flush = Flush { samples: Some(500), ..Flush::default() };
/// let mut chunks = ToChunks::new(ProfileOptions::default(), flush, |mut chunk| {
///     bytes.extend(chunk.header);
///     chunk.body().read_to_end(&mut bytes)?;
///     Ok(())
/// });
/// for (number, line) in (1..).zip(stream.split_inclusive_mut(|byte| *byte == b'\n')) {
///     chunks.line(number, line)?;
/// }
/// assert!(chunks.finish()?.losses.is_empty());
/// assert_eq!(bytes[..8], *b"HCAT\x02\0\0\0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ToChunks<F> {
    reader: GroupReader,
    chunks: Chunks<F>,
}

/// Samples in order into chunks.
struct Chunks<F> {
    packing: Packing,
    threads: usize,
    flush: Flush,
    commit: F,
    open: Option<OpenChunk>,
    /// Chunks and samples that were handed on.
    index: u64,
    samples: u64,
    cut_stacks: u64,
}

struct OpenChunk {
    writer: Writer<SpooledTempFile>,
    merge: Merge,
    /// Keys of its first and last sample.
    keys: Option<(u64, u64)>,
    span: Option<TimeSpan>,
    /// By which its first sample gets a date.
    wall: Option<ClockPair>,
}

impl<F: FnMut(Chunk) -> Result<()>> ToChunks<F> {
    /// Starts a profile whose chunks close as `flush` says, or before they pass [`CHUNK_SAMPLES`]. `commit`
    /// is handed each of them.
    pub fn new(options: ProfileOptions, flush: Flush, commit: F) -> Self {
        let chunks = Chunks {
            packing: options.packing,
            threads: options.threads,
            flush,
            commit,
            open: None,
            index: 0,
            samples: 0,
            cut_stacks: 0,
        };
        ToChunks { reader: GroupReader::new(options.run_id), chunks }
    }

    /// Takes the stream's line of this number, from 1. A message that is damaged or out of place is
    /// skipped and noted.
    ///
    /// # Errors
    ///
    /// Errors of `commit`, and a second run where none was chosen.
    pub fn line(&mut self, number: u64, line: &mut [u8]) -> Result<()> {
        let ToChunks { reader, chunks, .. } = self;
        reader.line(number, line, |group, run, definitions| chunks.add_all(group, run, definitions))
    }

    /// Ends the stream and its last chunk, which says what was measured over the run.
    ///
    /// # Errors
    ///
    /// A stream that cannot become a profile: it has no run, or no samples where there were some; and
    /// errors of `commit`.
    pub fn finish(self) -> Result<Outcome<()>> {
        let ToChunks { mut reader, mut chunks } = self;
        reader.write_group(|group, run, definitions| chunks.add_all(group, run, definitions))?;
        let Chunks { packing, threads, mut commit, open, index, mut samples, mut cut_stacks, .. } = chunks;
        if let Some(open) = &open {
            samples += open.writer.samples();
            cut_stacks += open.merge.cut_stacks();
        }
        let ended = reader.finish(cut_stacks, samples)?;
        // A chunk is closed by what comes after it, so one is open unless there was no sample.
        let open = match open {
            Some(open) => open,
            None => OpenChunk::new(&ended.run, packing, threads)?,
        };
        let end = if ended.losses.is_empty() { RunEnd::Complete } else { RunEnd::Incomplete };
        commit(open.finish(&ended.run, index, end, ended.statistics.as_ref())?)?;
        Ok(Outcome {
            sink: (),
            samples,
            losses: ended.losses,
            tolerated: ended.tolerated,
            left_out: Vec::new(),
        })
    }
}

impl<F: FnMut(Chunk) -> Result<()>> Chunks<F> {
    /// Adds raw messages that are in order together.
    fn add_all(&mut self, group: &[RawColumns], run: &RunHead, definitions: &mut Definitions) -> Result<()> {
        let mut left = whole(group);
        while left.iter().any(|range| !range.is_empty()) {
            self.add(group, &mut left, run, definitions)?;
        }
        Ok(())
    }

    /// Adds those of the samples that are left which go into one chunk.
    fn add(
        &mut self,
        group: &[RawColumns],
        left: &mut [Range<usize>],
        run: &RunHead,
        definitions: &mut Definitions,
    ) -> Result<()> {
        let limit = self.flush.samples.unwrap_or(CHUNK_SAMPLES).min(CHUNK_SAMPLES);
        if let Some(open) = &self.open
            && let Some((first, last)) = open.keys
        {
            let next = first_key(&keys(&open.merge, group, left));
            let is_full = open.writer.samples() >= limit && next > last;
            let is_over = self.end_of_interval(first).is_some_and(|end| end <= next);
            // A chunk has one date.
            let is_set = open.wall.zip(run.wall).is_some_and(|(open, run)| run.step_from(open) != 0);
            if is_full || is_over || is_set || !open.merge.has_room_for(group) {
                self.close(run)?;
            }
        }
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                definitions.begin_profile();
                OpenChunk::new(run, self.packing, self.threads)?
            }
        };
        let keys = keys(&open.merge, group, left);
        let first = first_key(&keys);
        let begin = open.keys.map_or(first, |(first, _)| first);
        let end = self.flush.interval_us().and_then(|interval| begin.checked_add(interval));
        let room = limit.saturating_sub(open.writer.samples()).max(1);
        let taken = cut(&keys, end, room);
        let mut ranges = Vec::with_capacity(left.len());
        for (left, taken) in left.iter_mut().zip(&taken) {
            ranges.push(left.start..left.start + taken);
            left.start += taken;
        }
        let last =
            keys.iter().zip(&taken).filter(|(_, taken)| **taken > 0).map(|(keys, taken)| keys[taken - 1]);
        let last = last.max().unwrap_or(first);
        open.keys = Some(open.keys.map_or((first, last), |(first, before)| (first, before.max(last))));
        drop(keys);
        for (thread, range) in threads(group).zip(&ranges) {
            if let Some(span) = TimeSpan::of(&thread.times_usec[range.clone()]) {
                span.add_to(&mut open.span);
            }
        }
        open.merge.add(group, &ranges, definitions, &mut open.writer)?;
        open.writer.added(ranges.iter().map(|range| range.len() as u64).sum())?;
        self.open = Some(open);
        Ok(())
    }

    fn end_of_interval(&self, first: u64) -> Option<u64> {
        first.checked_add(self.flush.interval_us()?)
    }

    /// Hands on the open chunk, if there is one.
    fn close(&mut self, run: &RunHead) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        self.samples += open.writer.samples();
        self.cut_stacks += open.merge.cut_stacks();
        let chunk = open.finish(run, self.index, RunEnd::Open, None)?;
        self.index += 1;
        (self.commit)(chunk)
    }
}

impl OpenChunk {
    fn new(run: &RunHead, packing: Packing, threads: usize) -> Result<Self> {
        let merge = Merge::new(run.facts.start_us);
        let writer = Writer::chunk(run.facts.clone(), packing, threads)?;
        Ok(OpenChunk { writer, merge, wall: run.wall, keys: None, span: None })
    }

    fn finish(
        mut self,
        run: &RunHead,
        index: u64,
        end: RunEnd,
        statistics: Option<&Statistics>,
    ) -> Result<Chunk> {
        self.merge.finish(&mut self.writer)?;
        let wall_us = self.span.zip(self.wall).and_then(|(span, wall)| wall.wall_at(span.first_us));
        let span = self.span.unwrap_or_default();
        let labels = run.meta.labels.clone().unwrap_or_default();
        let info = ChunkInfo { run_id: run.id.clone(), index, span, wall_us, end, labels };
        self.writer.finish_chunk(self.merge.threads() as u32, statistics, &info)
    }
}

/// The keys of the samples that are left of each of a group's threads.
fn keys<'a>(merge: &Merge, group: &'a [RawColumns], left: &[Range<usize>]) -> Vec<Cow<'a, [u64]>> {
    threads(group).zip(left).map(|(thread, range)| merge.keys(thread, range.clone())).collect()
}

fn first_key(keys: &[Cow<'_, [u64]>]) -> u64 {
    keys.iter().filter_map(|keys| keys.first().copied()).min().unwrap_or(0)
}

/// How many samples of each thread have a key before `end` and, in order of keys, are among the first
/// `room` of all or of the instant in which those end.
fn cut(keys: &[Cow<'_, [u64]>], end: Option<u64>, room: u64) -> Vec<usize> {
    let below = |key: Option<u64>| -> Vec<usize> {
        let count = |keys: &Cow<'_, [u64]>| key.map_or(keys.len(), |key| keys.partition_point(|k| *k < key));
        keys.iter().map(count).collect()
    };
    let sum = |counts: &[usize]| counts.iter().map(|count| *count as u64).sum::<u64>();
    let all = below(end);
    if sum(&all) <= room {
        return all;
    }
    // The least key after which there are enough.
    let (mut low, mut high) = (0, end.unwrap_or(u64::MAX));
    while low < high {
        let middle = low + (high - low) / 2;
        if sum(&below(Some(middle))) >= room {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let counts = below(Some(low));
    // The last key that there is has none after it.
    if sum(&counts) < room { all } else { counts }
}
