//! The blocks of a chunk that say which run it belongs to: our extension of format version 2.
//!
//! They stand before the statistics block, or before the footer where there is none, and are found from
//! their ends as that one is, so that a reader that doesn't know them passes over them: first
//! `TACHCHNK`, and before it `TACHLABL` where the run has labels.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::format::layout::header::{self, ByteOrder};
use crate::limits;
use crate::model::{Capture, ClockPair, Mode, RunFacts, TimeSpan};
use crate::varint;

const CHUNK: &[u8; 8] = b"TACHCHNK";
const CHUNK_LEN: usize = 120;
const RUN_ID_LEN: usize = 64;
/// Bits of the flags: they are set as follows, nothing of the run comes after this chunk, something of the
/// run is lost.
const HAS_FLAGS: u32 = 1;
const IS_LAST: u32 = 1 << 1;
const IS_INCOMPLETE: u32 = 1 << 2;
const LABELS: &[u8; 8] = b"TACHLABL";
/// Signature, version and size, with which every block ends.
pub(crate) const MARK: usize = 16;
const VERSION: u32 = 1;

/// What a chunk says of itself and its run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkInfo {
    /// Id of the run, 1 to 64 characters of URL-safe base64.
    pub run_id: String,
    /// Number of the chunk in its run, from 0.
    pub index: u64,
    /// From its earliest sample to its latest; both times are 0 where there is no sample.
    pub span: TimeSpan,
    /// Unix time of the earliest sample, microseconds, where known.
    pub wall_us: Option<i64>,
    /// Whether the run ends with it.
    pub end: RunEnd,
    /// Facts of the user's own about the run.
    pub labels: BTreeMap<String, String>,
}

impl ChunkInfo {
    /// The instant of its earliest sample on both clocks, where its date is known.
    pub fn clocks(&self) -> Option<ClockPair> {
        Some(ClockPair { monotonic_us: self.span.first_us, wall_us: self.wall_us? })
    }
}

/// What a chunk says of the end of its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunEnd {
    /// Nothing: it is older than the flags.
    #[default]
    Unknown,
    /// The run goes on after this chunk.
    Open,
    /// It is the last chunk of its run, all of which was written.
    Complete,
    /// It is the last chunk of its run, and its writer knew that something of the run was lost.
    Incomplete,
}

impl RunEnd {
    fn of_flags(flags: u32) -> Self {
        let has = |bit| flags & bit != 0;
        match (has(HAS_FLAGS), has(IS_LAST), has(IS_INCOMPLETE)) {
            (false, ..) => RunEnd::Unknown,
            (true, false, _) => RunEnd::Open,
            (true, true, false) => RunEnd::Complete,
            (true, true, true) => RunEnd::Incomplete,
        }
    }

    fn flags(self) -> u32 {
        match self {
            RunEnd::Unknown => 0,
            RunEnd::Open => HAS_FLAGS,
            RunEnd::Complete => HAS_FLAGS | IS_LAST,
            RunEnd::Incomplete => HAS_FLAGS | IS_LAST | IS_INCOMPLETE,
        }
    }
}

/// Follows a run's chunks by their numbers, to its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkOrder {
    last: Option<u64>,
    /// By the chunk of that number.
    end: RunEnd,
    lost: u64,
}

impl ChunkOrder {
    /// A part of the run was skipped, which is known as a loss of its own.
    pub fn lost(&mut self) {
        self.lost += 1;
    }

    /// The next chunk. Whether others are missing before it, beyond those that were skipped.
    pub fn is_gap_before(&mut self, chunk: &ChunkInfo) -> bool {
        let index = chunk.index;
        let expected = self.last.map_or(0, |last| last.saturating_add(1));
        // A recording begins with an empty part, which has the number of its first chunk.
        if self.last.is_none_or(|last| index >= last) {
            (self.last, self.end) = (Some(index), chunk.end);
        }
        index > expected.saturating_add(std::mem::take(&mut self.lost))
    }

    /// What the last chunk so far says of the run's end.
    pub fn end(&self) -> RunEnd {
        self.end
    }

    /// Why the run is not whole although its chunks so far are, if they say so: its last chunk is not
    /// among them, or says that something was lost. Nothing where the end was skipped, which is known.
    pub fn broken_end(&self) -> Option<Error> {
        let last = self.last.filter(|_| self.lost == 0)?;
        match self.end {
            RunEnd::Unknown | RunEnd::Complete => None,
            RunEnd::Open => Some(Error::profile(format!(
                "the run goes on after its chunk {last}, but the input does not: its writer was stopped, or is still at work"
            ))),
            RunEnd::Incomplete => Some(Error::profile(format!(
                "the run's last chunk, {last}, says that the run is not complete"
            ))),
        }
    }
}

/// Follows the runs of an input that is in chunks, for the ends that are not there.
#[derive(Debug, Default)]
pub struct RunEnds {
    run_id: String,
    order: ChunkOrder,
}

impl RunEnds {
    /// The next chunk. What is wrong with the end of the run before it, if this one begins another.
    pub fn chunk(&mut self, chunk: Option<&ChunkInfo>) -> Option<Error> {
        let run_id = chunk.map_or("", |chunk| &chunk.run_id);
        let broken = if run_id == self.run_id { None } else { self.finish() };
        if let Some(chunk) = chunk {
            self.run_id.clone_from(&chunk.run_id);
            self.order.is_gap_before(chunk);
        }
        broken
    }

    /// A part was skipped, which is known as a loss of its own.
    pub fn lost(&mut self) {
        self.order.lost();
    }

    /// The input is over: what is wrong with the end of its last run.
    pub fn finish(&mut self) -> Option<Error> {
        std::mem::take(self).order.broken_end()
    }
}

/// What was found: the block's facts, the mode and the capture settings.
pub(crate) struct ExtensionBlocks {
    pub info: ChunkInfo,
    pub mode: Option<Mode>,
    pub capture: Option<Capture>,
}

/// The end of a block: its signature, version, and size with this end.
pub(crate) struct Mark {
    pub signature: [u8; 8],
    pub version: u32,
    pub size: u64,
}

impl Mark {
    /// The mark at the end of `tail`, if there is room for one.
    pub fn read(tail: &[u8], order: ByteOrder) -> Option<Mark> {
        let at = tail.len().checked_sub(MARK)?;
        Some(Mark {
            signature: tail[at..at + 8].try_into().expect("eight bytes"),
            version: order.u32(tail, at + 8),
            size: u64::from(order.u32(tail, at + 12)),
        })
    }

    fn write(out: &mut Vec<u8>, signature: &[u8; 8], size: usize) {
        out.extend_from_slice(signature);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(size as u32).to_le_bytes());
    }
}

/// Looks for the blocks at the end of `tail`, what stands between the frames and the statistics. The
/// error tells why they are skipped.
pub(crate) fn read(tail: &[u8], order: ByteOrder) -> Result<Option<ExtensionBlocks>, String> {
    let Some(mark) = Mark::read(tail, order).filter(|mark| mark.signature == *CHUNK) else {
        return Ok(None);
    };
    if mark.version != VERSION || mark.size != CHUNK_LEN as u64 || tail.len() < CHUNK_LEN {
        return Err(format!("it has version {} and {} bytes", mark.version, mark.size));
    }
    let (rest, block) = tail.split_at(tail.len() - CHUNK_LEN);
    let id = block[..RUN_ID_LEN].split(|byte| *byte == 0).next().unwrap_or_default();
    let is_padded = block[id.len()..RUN_ID_LEN].iter().all(|byte| *byte == 0);
    let is_id = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let run_id = match std::str::from_utf8(id) {
        Ok(text) if !id.is_empty() && is_padded && id.iter().all(is_id) => text.to_string(),
        _ => return Err("it has no valid run id".to_string()),
    };
    let config = order.u32(block, 96);
    let wall_us = order.u64(block, 88) as i64;
    Ok(Some(ExtensionBlocks {
        info: ChunkInfo {
            run_id,
            index: order.u64(block, 64),
            span: TimeSpan { first_us: order.u64(block, 72), last_us: order.u64(block, 80) },
            wall_us: (wall_us != 0).then_some(wall_us),
            end: RunEnd::of_flags(order.u32(block, 100)),
            labels: read_labels(rest, order)?,
        },
        mode: header::mode_of(config),
        capture: header::capture_of(config),
    }))
}

fn read_labels(tail: &[u8], order: ByteOrder) -> Result<BTreeMap<String, String>, String> {
    let Some(mark) = Mark::read(tail, order).filter(|mark| mark.signature == *LABELS) else {
        return Ok(BTreeMap::new());
    };
    let fault = || "its labels cannot be read".to_string();
    let size = usize::try_from(mark.size).ok().filter(|size| (MARK..=tail.len()).contains(size));
    let (Some(size), VERSION) = (size, mark.version) else { return Err(fault()) };
    let bytes = &tail[tail.len() - size..tail.len() - MARK];
    let mut pos = 0;
    let mut text = || -> Option<String> {
        let length = usize::try_from(varint::read(bytes, &mut pos).ok()?).ok()?;
        let text = bytes.get(pos..pos.checked_add(length)?)?;
        pos += length;
        String::from_utf8(text.to_vec()).ok()
    };
    let mut labels = BTreeMap::new();
    let mut next = text();
    while let Some(key) = next {
        if labels.len() == limits::LABELS {
            return Err(format!("it has more than {} labels", limits::LABELS));
        }
        labels.insert(key, text().ok_or_else(fault)?);
        next = text();
    }
    if pos == bytes.len() { Ok(labels) } else { Err(fault()) }
}

/// Appends the blocks.
///
/// # Errors
///
/// A run id that is longer than the block has room for.
pub(crate) fn write(out: &mut Vec<u8>, info: &ChunkInfo, facts: &RunFacts) -> Result<()> {
    if info.run_id.is_empty() || info.run_id.len() > RUN_ID_LEN {
        return Err(Error::usage(format!("the run id '{}' cannot be stored in a chunk", info.run_id)));
    }
    if !info.labels.is_empty() {
        let start = out.len();
        for text in info.labels.iter().flat_map(|(key, value)| [key, value]) {
            varint::write(out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
        let size = out.len() - start + MARK;
        Mark::write(out, LABELS, size);
    }
    let mut id = [0; RUN_ID_LEN];
    id[..info.run_id.len()].copy_from_slice(info.run_id.as_bytes());
    out.extend_from_slice(&id);
    for number in [info.index, info.span.first_us, info.span.last_us, info.wall_us.unwrap_or(0) as u64] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&header::config_word(facts).to_le_bytes());
    out.extend_from_slice(&info.end.flags().to_le_bytes());
    Mark::write(out, CHUNK, CHUNK_LEN);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(run_id: &str) -> ChunkInfo {
        ChunkInfo {
            run_id: run_id.to_string(),
            index: 7,
            span: TimeSpan { first_us: 3, last_us: 4 },
            ..ChunkInfo::default()
        }
    }

    fn block(run_id: &str) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, &info(run_id), &RunFacts::default()).expect("a run id that fits");
        out
    }

    fn read_back(block: &[u8]) -> Result<Option<ChunkInfo>, String> {
        read(block, ByteOrder::Little).map(|found| found.map(|found| found.info))
    }

    #[test]
    fn the_last_chunk_of_the_highest_number_says_how_the_run_ends() {
        let chunk = |index, end| ChunkInfo { index, end, ..ChunkInfo::default() };
        let mut order = ChunkOrder::default();
        for (index, end, is_gap, is_broken) in [
            // The empty part that a recording begins with, and its only chunk.
            (0, RunEnd::Open, false, true),
            (0, RunEnd::Complete, false, false),
            (1, RunEnd::Open, false, true),
            (3, RunEnd::Incomplete, true, true),
            // One that comes late.
            (2, RunEnd::Open, false, true),
            (4, RunEnd::Complete, false, false),
        ] {
            assert_eq!(order.is_gap_before(&chunk(index, end)), is_gap, "{index}");
            assert_eq!(order.broken_end().is_some(), is_broken, "{index}");
        }
    }

    #[test]
    fn a_run_id_has_1_to_64_characters() {
        for length in [1, 63, 64] {
            let id = "x".repeat(length);
            assert_eq!(read_back(&block(&id)), Ok(Some(info(&id))), "{length}");
        }
        for length in [0, 65] {
            let refused = write(&mut Vec::new(), &info(&"x".repeat(length)), &RunFacts::default());
            assert!(refused.is_err(), "{length}");
        }
    }

    #[test]
    fn a_block_of_another_version_or_size_is_passed_over() {
        let good = block("run");
        let end = good.len();
        for (at, value) in [(end - 8, 2), (end - 4, CHUNK_LEN as u8 + 8)] {
            let mut other = good.clone();
            other[at] = value;
            assert!(read_back(&other).is_err(), "byte {at}");
        }
        assert!(read_back(&good[1..]).is_err(), "it is incomplete");
        assert_eq!(read_back(&good[..end - 1]), Ok(None), "no signature");
        assert_eq!(read_back(&[]), Ok(None));
    }

    #[test]
    fn a_run_id_is_url_safe_text_with_zeros_after_it() {
        let good = block("run");
        let with = |at: usize, byte: u8| {
            let mut other = good.clone();
            other[at] = byte;
            read_back(&other)
        };
        for (at, byte, why) in [
            (0, 0, "empty"),
            (1, 0, "text after a zero"),
            (1, b'/', "not URL-safe"),
            (1, 0xff, "not UTF-8"),
            (63, b'x', "not padded with zeros"),
        ] {
            assert_eq!(with(at, byte), Err("it has no valid run id".to_string()), "{why}");
        }
        assert_eq!(with(1, b'_'), Ok(Some(info("r_n"))));
    }
}
