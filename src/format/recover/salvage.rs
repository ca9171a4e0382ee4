//! Salvages a version-1 profile that cannot be opened: its writer was killed, or its header, footer or tables are
//! damaged.
//!
//! Records stand on their own, so every whole one is kept up to the first that is broken. Where the
//! header is lost, the tables are looked for after the records; frames whose definitions are lost are
//! named by their numbers.
//!
//! Nothing is invented. Zeros up to the end, or a block of them, are room that a file system gave and nobody wrote to, so
//! a record counts only if it ends before them. Where it is not known how far the records go, bytes that no writer
//! makes a record of are none; and without a header, or zeros in its place, the tables have to show that
//! records begin where they should.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io::{BufReader, Read, Seek, SeekFrom};

use memchr::memmem;
use rustc_hash::FxHashMap;
use tempfile::SpooledTempFile;

use crate::error::{Error, ErrorKind, Position, Result};
use crate::format::layout::header::{
    ByteOrder, FOOTER_LEN, Footer, HEADER_LEN, Header, Layout, version_start,
};
use crate::format::layout::identify;
use crate::format::layout::stats;
use crate::format::layout::tables;
use crate::format::open::ZSTD_MAGIC;
use crate::format::record::{
    Body, FULL, REPEAT, Record, RecordReader, RegionPosition, write_change, write_head,
};
use crate::format::section::{are_zeros, read_up_to};
use crate::format::threads::ThreadMemory;
use crate::format::write::writer::{Packing, Writer};
use crate::limits::{SPOOL_MEMORY, STACK_DEPTH, TABLE_BYTES, THREADS, ZSTD_WINDOW_LOG};
use crate::model::{Frame, Location, RunFacts, Statistics, Tables, ThreadKey};
use crate::varint;

/// Entries of a REPEAT that are written at once.
const ENTRIES: u32 = 8192;
/// Ends of records, the last ones, after which tables are looked for.
const ENDS: usize = 64;
/// Bytes that are searched at once for the last one that is not zero.
const PIECE: u64 = 64 * 1024;
/// Bytes of a file system's block, the least that a hole can have.
const FS_BLOCK: usize = 4096;
/// Interpreters are numbered from 0; greater ids than this are bytes of something else.
const INTERPRETER_IDS: u32 = 1 << 20;
/// The status bits that a writer sets.
const STATUS_BITS: u8 = 0x3f;
/// Bytes of tables that are looked for after records whose end is not known.
const REMAINS: u64 = TABLE_BYTES as u64;

/// A sound profile made out of a broken one.
pub(crate) struct Salvaged {
    /// The profile, from its first byte.
    pub profile: SpooledTempFile,
    /// Samples in it.
    pub samples: u64,
    /// What is lost, or was made up. Empty where only the form was broken.
    pub losses: Vec<Error>,
}

/// Makes a sound version-1 profile out of what `source` holds.
///
/// # Errors
///
/// A source in which there is no whole sample, and errors of the source.
pub(crate) fn salvage(source: &mut (impl Read + Seek)) -> Result<Salvaged> {
    let size = source.seek(SeekFrom::End(0))?;
    let mut start = [0; HEADER_LEN as usize];
    let got = read_up_to(source, 0, &mut start)?;
    if size <= HEADER_LEN && start.iter().all(|byte| *byte == 0) {
        return Err(identify::fault(&start[..got], size).expect("zeros are not a profile"));
    }
    if let Some(fault) = identify::displaced(source, size)? {
        return Err(fault);
    }
    let mut magic = [0; 4];
    read_up_to(source, HEADER_LEN, &mut magic)?;
    let is_zstd = magic == ZSTD_MAGIC;
    let mut written_end = last_nonzero(source, size)?;
    let hole = if is_zstd { None } else { first_hole(source, written_end)? };
    if let Some(hole) = hole {
        written_end = last_nonzero(source, hole)?;
    }
    let mut best: Option<(Walk, Head)> = None;
    for mut head in heads(&start, size) {
        head.hole = hole.filter(|hole| *hole < head.records_end);
        head.records_end = head.records_end.min(written_end);
        let mut walk = walk(source, &head, is_zstd)?;
        if head.header.as_ref().is_some_and(|header| header.samples != walk.samples) {
            head.records_end = last_nonzero(source, head.records_end)?;
            walk = self::walk(source, &head, is_zstd)?;
        }
        // Records of one byte order are records of the other, too, but for the ids of threads: those are addresses or
        // small numbers, whose high bytes are zero.
        let rank = |walk: &Walk| (walk.samples, Reverse(walk.first_thread_id));
        if best.as_ref().is_none_or(|(other, _)| rank(other) < rank(&walk)) {
            best = Some((walk, head));
        }
    }
    let Some((walk, head)) = best.filter(|(walk, _)| walk.samples > 0) else {
        return Err(nothing(&start[..got], size));
    };
    let found = find_tables(source, &head, &walk, size, is_zstd)?;
    if !head.is_anchored && found.at.is_none() {
        return Err(nothing(&start[..got], size));
    }
    let records_end = found.at.map_or(head.records_end, |at| at.min(head.records_end));
    write(source, &Head { records_end, ..head }, found, is_zstd)
}

/// Where the last byte before `end` that is not zero ends; not before the records.
fn last_nonzero(source: &mut (impl Read + Seek), end: u64) -> Result<u64> {
    let mut piece = vec![0; PIECE as usize];
    let mut end = end;
    while end > HEADER_LEN {
        let from = end.saturating_sub(PIECE).max(HEADER_LEN);
        let got = read_up_to(source, from, &mut piece[..(end - from) as usize])?;
        if !are_zeros(&piece[..got]) {
            let zeros = piece[..got].iter().rev().take_while(|byte| **byte == 0).count();
            return Ok(from + (got - zeros) as u64);
        }
        end = from;
    }
    Ok(HEADER_LEN)
}

/// Where the first hole before `end` begins: a block of a file system that was never written, in zeros. No run of records
/// has so many.
fn first_hole(source: &mut (impl Read + Seek), end: u64) -> Result<Option<u64>> {
    let mut piece = vec![0; PIECE as usize];
    for from in (0..end).step_by(piece.len()) {
        let room = PIECE.min(end - from) as usize;
        let got = read_up_to(source, from, &mut piece[..room])?;
        if let Some(block) = piece[..got].chunks_exact(FS_BLOCK).position(are_zeros) {
            return Ok(Some(from + (block * FS_BLOCK) as u64));
        }
    }
    Ok(None)
}

fn nothing(start: &[u8], size: u64) -> Error {
    match identify::fault(start, size) {
        Some(fault) if start.iter().any(|byte| *byte != 0) => fault,
        _ => Error::profile(format!("not one whole sample stands in these {size} bytes"))
            .at(Position::Byte(HEADER_LEN.min(size))),
    }
}

/// What is taken for a header.
struct Head {
    order: ByteOrder,
    facts: RunFacts,
    /// The header as a whole, where its offsets hold.
    header: Option<Header>,
    /// Why its mode is not known, if it gives one.
    mode_fault: Option<Error>,
    /// Whether the facts are those of the recording.
    knows_facts: bool,
    /// Where the records end, at the latest.
    records_end: u64,
    /// Where a hole breaks them off, if one does.
    hole: Option<u64>,
    /// Whether they end just there.
    is_end_known: bool,
    /// Whether it shows that records begin after it.
    is_anchored: bool,
}

/// The readings of a header that may be right, the best first.
fn heads(start: &[u8; 64], size: u64) -> Vec<Head> {
    let magic = ByteOrder::of_magic(start);
    let orders = match magic {
        Some(order) => vec![order],
        None => vec![ByteOrder::Little, ByteOrder::Big],
    };
    // Offsets that hold together tell more than a magic number or a version.
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let mut mended = *start;
        mended[..8].copy_from_slice(&version_start(order, Layout::Wide));
        if let Ok(header) = Header::read(&mended, size, 0) {
            let (facts, records_end) = (header.facts.clone(), header.strings_at);
            let (knows_facts, is_end_known, is_anchored) = (true, true, true);
            let mode_fault = header.mode_fault(&mended, 0);
            let header = Some(header);
            return vec![Head {
                order,
                facts,
                header,
                mode_fault,
                knows_facts,
                records_end,
                hole: None,
                is_end_known,
                is_anchored,
            }];
        }
    }
    let is_blank = start[8..].iter().all(|byte| *byte == 0);
    let is_anchored = magic.is_some() || start.iter().all(|byte| *byte == 0);
    let head = |order| {
        let read = Header::decode(start, order, Layout::Wide);
        // Of a file that is cut in its tables.
        let is_end_known = magic.is_some()
            && (HEADER_LEN..=size).contains(&read.strings_at)
            && read.frames_at >= read.strings_at;
        let records_end = if is_end_known { read.strings_at } else { size };
        let facts = if is_blank { RunFacts::default() } else { read.facts };
        Head {
            order,
            facts,
            header: None,
            mode_fault: None,
            knows_facts: !is_blank,
            records_end,
            hole: None,
            is_end_known,
            is_anchored,
        }
    };
    orders.into_iter().map(head).collect()
}

/// What a first walk over the records finds.
#[derive(Default)]
struct Walk {
    /// Whether something else than records may stand after them.
    is_doubtful: bool,
    samples: u64,
    threads: u32,
    /// The thread of the first record.
    first_thread_id: Option<u64>,
    /// Frames are numbered below this.
    frames: u32,
    /// Byte of the region after the last whole record, and samples up to there; entries of a record that
    /// broke off count as well.
    end: u64,
    /// Ends of the last records, in bytes of the region.
    ends: VecDeque<u64>,
    /// Why the walk ended, unless at the end of the region.
    fault: Option<Error>,
    /// Bytes that the region takes of the source, where that is known.
    packed_len: Option<u64>,
}

/// The records of the region.
fn records<'a>(source: &'a mut (impl Read + Seek), head: &Head, is_zstd: bool) -> Result<RecordReader<'a>> {
    source.seek(SeekFrom::Start(HEADER_LEN))?;
    let region = source.take(head.records_end.saturating_sub(HEADER_LEN));
    if !is_zstd {
        return Ok(RecordReader::new(
            Box::new(region),
            u64::MAX,
            head.order,
            RegionPosition::File(HEADER_LEN),
        ));
    }
    let mut decoder = zstd::stream::read::Decoder::with_buffer(BufReader::new(region))?.single_frame();
    decoder.window_log_max(ZSTD_WINDOW_LOG)?;
    Ok(RecordReader::new(Box::new(decoder), u64::MAX, head.order, RegionPosition::Unpacked))
}

fn walk(source: &mut (impl Read + Seek), head: &Head, is_zstd: bool) -> Result<Walk> {
    let mut walk = Walk { is_doubtful: !is_zstd && !head.is_end_known, ..Walk::default() };
    each_record(&mut records(source, head, is_zstd)?, &mut walk, |_, _| Ok(()))?;
    if is_zstd && walk.fault.is_none() && head.header.is_none() {
        walk.packed_len = Some(frame_len(source, head.records_end)?);
    }
    Ok(walk)
}

/// Bytes of the zstd frame after the header.
fn frame_len(source: &mut (impl Read + Seek), end: u64) -> Result<u64> {
    source.seek(SeekFrom::Start(HEADER_LEN))?;
    let mut region = BufReader::new(source.take(end - HEADER_LEN));
    let mut decoder = zstd::stream::read::Decoder::with_buffer(&mut region)?.single_frame();
    decoder.window_log_max(ZSTD_WINDOW_LOG)?;
    std::io::copy(&mut decoder, &mut std::io::sink())?;
    drop(decoder);
    let unused = region.buffer().len() as u64;
    let left = region.into_inner().limit();
    Ok(end - HEADER_LEN - left - unused)
}

/// The sound part of a record that is handed on.
enum Sound<'a> {
    /// A sample with another stack.
    Change { delta: u64, status: u8, change: crate::format::record::Change, pushed: &'a [u32] },
    /// Entries of a REPEAT.
    Entries { count: u32, bytes: &'a [u8] },
}

/// Frames of a thread's stack, and of its deepest so far.
#[derive(Clone, Copy, Default)]
struct Depth {
    now: u32,
    deepest: u32,
}

/// Hands on every sound record up to the first that is broken, and of that one the entries before the break.
fn each_record(
    reader: &mut RecordReader<'_>,
    walk: &mut Walk,
    mut each: impl FnMut(ThreadKey, Sound<'_>) -> Result<()>,
) -> Result<()> {
    // What is saved must be readable again.
    let mut memory = ThreadMemory::default();
    let mut depths: FxHashMap<ThreadKey, Depth> = FxHashMap::default();
    let mut entries = Vec::new();
    let fault = loop {
        let Record { at, thread, body } = match reader.next() {
            Ok(Some(record)) => record,
            Ok(None) => break None,
            Err(fault) => break Some(fault),
        };
        walk.first_thread_id.get_or_insert(thread.thread_id);
        let known = depths.get(&thread).copied();
        let depth = known.map(|known| known.now);
        if walk.is_doubtful && !is_written(thread, depth, &body) {
            break Some(reader.fault(at, "bytes that no writer makes a record of"));
        }
        let mut known = known.unwrap_or_default();
        if depths.len() == THREADS && depth.is_none() {
            break Some(reader.fault(at, format!("more than {THREADS} threads, the limit of a profile")));
        }
        match body {
            Body::Change { delta, status, change } => {
                let resolved = match change.resolve(depth.unwrap_or(0)) {
                    Ok(resolved) => resolved,
                    Err(fault) => break Some(reader.fault(at, fault)),
                };
                known.now = resolved.keep + resolved.push;
                if known.now > known.deepest
                    && let Err(limit) = memory.deepen(&mut known.deepest, known.now)
                {
                    break Some(reader.fault(at, limit.detail()));
                }
                // Frames are numbered as they come, so a number can be ahead by one stack at most.
                let limit = walk.frames.saturating_add(STACK_DEPTH as u32);
                if let Some(frame) = reader.pushed().iter().find(|frame| **frame >= limit) {
                    break Some(reader.fault(at, format!("frame number {frame} is out of order")));
                }
                let highest = reader.pushed().iter().max();
                let frames = walk.frames.max(highest.map_or(0, |highest| highest + 1));
                if walk.is_doubtful && !are_numbered(reader.pushed(), walk.frames..frames) {
                    break Some(reader.fault(at, "frame numbers are left out"));
                }
                walk.frames = frames;
                depths.insert(thread, known);
                each(thread, Sound::Change { delta, status, change, pushed: reader.pushed() })?;
                walk.samples += 1;
            }
            Body::Repeat { count } => {
                let mut left = count;
                let mut fault = None;
                while left > 0 && fault.is_none() {
                    entries.clear();
                    let mut whole = 0;
                    let mut is_sound = true;
                    let read = reader.entries(left.min(ENTRIES), |delta, status| {
                        is_sound &= !walk.is_doubtful || status & !STATUS_BITS == 0;
                        if is_sound {
                            varint::write(&mut entries, delta);
                            entries.push(status);
                            whole += 1;
                        }
                    });
                    if whole > 0 {
                        depths.entry(thread).or_default();
                        each(thread, Sound::Entries { count: whole, bytes: &entries })?;
                        walk.samples += u64::from(whole);
                    }
                    left -= left.min(ENTRIES);
                    let odd = (!is_sound).then(|| reader.fault(at, "a status that no writer gives"));
                    fault = read.err().or(odd);
                }
                if fault.is_some() {
                    break fault;
                }
            }
        }
        walk.end = reader.position();
        if walk.ends.len() == ENDS {
            walk.ends.pop_front();
        }
        walk.ends.push_back(walk.end);
    };
    walk.threads = depths.len() as u32;
    match fault {
        Some(fault) if fault.kind() == ErrorKind::Io => Err(fault),
        fault => {
            walk.fault = fault;
            Ok(())
        }
    }
}

/// Whether a writer makes such a record of a thread whose stack has this depth, where it had a record before.
fn is_written(thread: ThreadKey, depth: Option<u32>, body: &Body) -> bool {
    let is_known = match body {
        Body::Repeat { count } => *count > 0,
        // Where no frame can stay, the stack is written in full.
        Body::Change { status, change, .. } => {
            status & !STATUS_BITS == 0 && (depth.is_some_and(|depth| depth > 0) || change.encoding == FULL)
        }
    };
    is_known && thread.interpreter_id < INTERPRETER_IDS
}

/// Whether all of these numbers, which are new, are among the frames.
fn are_numbered(frames: &[u32], new: std::ops::Range<u32>) -> bool {
    new.len() <= frames.len() && new.into_iter().all(|number| frames.contains(&number))
}

/// What was found after the records.
#[derive(Default)]
struct FoundTables {
    tables: Tables,
    statistics: Option<Statistics>,
    /// Byte of the source where they begin.
    at: Option<u64>,
}

fn find_tables(
    source: &mut (impl Read + Seek),
    head: &Head,
    walk: &Walk,
    size: u64,
    is_zstd: bool,
) -> Result<FoundTables> {
    let mut bytes = [0; FOOTER_LEN as usize];
    let footer_at = size.saturating_sub(FOOTER_LEN);
    read_up_to(source, footer_at, &mut bytes)?;
    let footer = Footer::read(&bytes, head.order);
    // Where the tables may begin, the likeliest first.
    let starts: Vec<u64> = match (&head.header, walk.packed_len) {
        (Some(header), _) => vec![header.strings_at],
        (None, Some(packed)) => vec![HEADER_LEN + packed],
        (None, None) if is_zstd => Vec::new(),
        (None, None) => walk.ends.iter().rev().map(|end| HEADER_LEN + end).collect(),
    };
    let from = starts.iter().min().copied().unwrap_or(size);
    let tail = read_tail(source, from, size)?;
    if footer.size == size {
        let before_footer = &tail[..tail.len().saturating_sub(FOOTER_LEN as usize)];
        for start in &starts {
            let bytes = &before_footer[((start - from) as usize).min(before_footer.len())..];
            let Some((tables, length)) = tables::read_together(bytes, footer.strings, footer.frames) else {
                continue;
            };
            let room = bytes.len() - length;
            let statistics = statistics(bytes, room, head.order, footer_at);
            if room == 0 || statistics.is_some() {
                return Ok(FoundTables { tables, statistics, at: Some(*start) });
            }
        }
    }
    let Some(header) = &head.header else { return Ok(FoundTables::default()) };
    // The places are known, the counts are not.
    let frames_at = (header.frames_at - header.strings_at) as usize;
    let tables = tables::read_remains(&tail, frames_at, walk.frames as usize);
    let mark = memmem::rfind(&tail, b"TACHSTAT").filter(|mark| *mark + 16 <= tail.len());
    let statistics = mark.and_then(|mark| {
        let end = mark + 16;
        statistics(&tail[..end], end, head.order, from + end as u64)
    });
    Ok(FoundTables { tables, statistics, at: Some(header.strings_at) })
}

/// The statistics at the end of `tail`, whose last `free` bytes no frame takes.
fn statistics(tail: &[u8], free: usize, order: ByteOrder, end: u64) -> Option<Statistics> {
    match stats::read(tail, || Ok(free as u64), order, end) {
        Ok(stats::StatsBlock::Statistics(statistics)) => Some(statistics),
        _ => None,
    }
}

fn read_tail(source: &mut (impl Read + Seek), from: u64, size: u64) -> Result<Vec<u8>> {
    let length = size.saturating_sub(from).min(REMAINS);
    let mut tail = vec![0; length as usize];
    let got = read_up_to(source, from, &mut tail)?;
    tail.truncate(got);
    Ok(tail)
}

/// Writes the sound profile, in a second walk over the records.
fn write(
    source: &mut (impl Read + Seek),
    head: &Head,
    found: FoundTables,
    is_zstd: bool,
) -> Result<Salvaged> {
    let packing = if is_zstd { Packing::Zstd(5) } else { Packing::None };
    let mut writer = Writer::new(SpooledTempFile::new(SPOOL_MEMORY), head.facts.clone(), packing, 1)?;
    let is_doubtful = !is_zstd && !head.is_end_known && found.at.is_none();
    let mut walk = Walk { is_doubtful, ..Walk::default() };
    each_record(&mut records(source, head, is_zstd)?, &mut walk, |thread, sound| {
        let out = writer.records();
        let samples = match sound {
            Sound::Change { delta, status, change, pushed } => {
                write_change(out, thread, (delta, status), change, pushed.iter().copied());
                1
            }
            Sound::Entries { count, bytes } => {
                write_head(out, thread, REPEAT);
                varint::write(out, u64::from(count));
                out.extend_from_slice(bytes);
                count
            }
        };
        writer.added(u64::from(samples))
    })?;

    if walk.fault.is_none()
        && let Some(hole) = head.hole
    {
        walk.fault = Some(Error::profile("a hole of zeros").at(Position::Byte(hole)));
    }

    let FoundTables { tables, statistics, at } = found;
    for index in 0..tables.strings.len() as u32 {
        writer.string(tables.strings.get(index).unwrap_or_default());
    }
    for frame in &tables.frames {
        writer.frame(frame);
    }
    let known = tables.frames.len() as u32;
    let lost_frames = walk.frames.saturating_sub(known);
    if lost_frames > 0 {
        let path = writer.string(b"~");
        for number in known..walk.frames {
            let function = writer.string(format!("<lost frame {number}>").as_bytes());
            writer.frame(&Frame { path, function, location: Location::default(), opcode: None });
        }
    }
    let profile = writer.finish(walk.threads, statistics.as_ref())?;
    let mut losses = losses(head, &walk, lost_frames, at.is_some(), statistics.is_some());
    losses.extend(
        head.mode_fault.as_ref().map(|fault| {
            Error::profile(format!("the mode is lost: {}", fault.detail())).at(Position::Byte(60))
        }),
    );
    Ok(Salvaged { profile, samples: walk.samples, losses })
}

fn losses(head: &Head, walk: &Walk, lost_frames: u32, has_tables: bool, has_statistics: bool) -> Vec<Error> {
    let mut losses = Vec::new();
    if !head.knows_facts {
        losses.push(Error::profile(
            "the header was never written: start time, interval, mode and capture settings are lost; times count from the start of the recording",
        ));
    }
    if head.header.is_none() && head.knows_facts {
        losses.push(Error::profile(
            "the header is damaged: start time, interval and Python version are taken as they stand, mode and capture settings may be lost",
        ));
    }
    if has_tables && !has_statistics {
        losses.push(Error::profile("what the profiler measured, if it was there, is lost"));
    }
    if lost_frames > 0 {
        let why = if has_tables { "are lost" } else { "were never written" };
        losses.push(Error::profile(format!(
            "the names of {lost_frames} of {} frames {why}; they are called <lost frame N> by their numbers",
            walk.frames
        )));
    }
    let declared = head.header.as_ref().map(|header| header.samples);
    if let Some(missing) = declared.and_then(|declared| declared.checked_sub(walk.samples)).filter(|n| *n > 0)
    {
        losses.push(Error::profile(format!("{missing} of the samples that the header declares are lost")));
    }
    if let Some(fault) = &walk.fault {
        let detail = format!("the records break off after {} samples: {}", walk.samples, fault.detail());
        let error = Error::profile(detail);
        losses.push(match fault.position() {
            Some(position) => error.at(position),
            None => error,
        });
    }
    losses
}

#[cfg(test)]
mod tests;
