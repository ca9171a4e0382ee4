//! Opens a version-1 profile: header, footer, tables, statistics, and a first walk over the samples.

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use crate::counts::observer::WindowObserver;
use crate::counts::windows::{CountedWindows, Counting, Period, WindowCounter};
use crate::error::{Error, Position, Result};
use crate::format::fault::{Fault, FaultCode};
use crate::format::layout::digest::{Digest, Digested, chunk_checksum};
use crate::format::layout::extension::{self, ChunkInfo};
use crate::format::layout::header::{ByteOrder, Compression, FOOTER_LEN, Footer, HEADER_LEN, Header, Layout};
use crate::format::layout::stats;
use crate::format::layout::tables;
use crate::format::outline::{Ends, size_fault};
use crate::format::record::{Body, RecordReader, RegionPosition};
use crate::format::replay::Replay;
use crate::format::samples::Samples;
use crate::format::scan::{Late, Region, SampleSummary, ScanResult};
use crate::format::section::{read_up_to, table_len};
use crate::format::threads::ThreadIndex;
use crate::format::unpack::{self, Unpacker};
use crate::limits::REORDER_SAMPLES;
use crate::model::{Statistics, Tables};
use crate::worker;

pub(crate) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes of samples that are unpacked or counted on a thread of their own; fewer are through before it is there.
const WORTH_A_THREAD: u64 = 32 * 1024;
const COPY: usize = 256 * 1024;

/// A binary profile whose every byte has been checked once, ready to be replayed.
///
/// Opening walks the whole sample region, so that a damaged profile is known as such before
/// anything is made out of it: [`Contents::faults`].
#[derive(Debug)]
pub struct Profile<R> {
    source: R,
    /// The profile's place in the source.
    base: u64,
    contents: Contents,
    late: Late,
    windows: Option<CountedWindows>,
    digest: Digest,
    threads: usize,
}

/// How to read a profile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Threads, the caller's among them: with more than one, packed samples are unpacked in parallel with every walk.
    pub threads: usize,
    /// What to count while the records are checked.
    pub counting: Option<Counting>,
}

impl Default for Reading {
    fn default() -> Self {
        Reading { threads: 1, counting: None }
    }
}

/// All that a profile holds, but for the samples themselves.
#[derive(Debug)]
pub struct Contents {
    /// The header as it stands in the file.
    pub header: Header,
    /// The footer as it stands in the file.
    pub footer: Footer,
    /// Strings and frames.
    pub tables: Arc<Tables>,
    /// What the profiler measured about itself, where the profile says.
    pub statistics: Option<Statistics>,
    /// What a chunk says of its run, where it has our extension, or what is known of a part of a run.
    pub chunk: Option<ChunkInfo>,
    /// What the sample region holds.
    pub scan: SampleSummary,
    /// Bytes of the whole profile.
    pub size: u64,
    /// Oddities that cost nothing.
    pub warnings: Vec<String>,
    /// What is wrong with the profile although samples can be had. Empty for a sound one.
    pub faults: Vec<Fault>,
}

impl<R: Read + Seek> Profile<R> {
    /// Opens the profile that `source` holds from its first byte to its last.
    ///
    /// # Errors
    ///
    /// What is no profile of a known version, or has a header, tables or statistics that cannot be
    /// read, or has no readable sample where it declares some; and errors of the source.
    pub fn open(mut source: R) -> Result<Self> {
        let size = source.seek(SeekFrom::End(0))?;
        Self::open_part(source, 0, size)
    }

    /// Opens the profile that stands at byte `base` of `source` and is `size` bytes long.
    ///
    /// # Errors
    ///
    /// As for [`Profile::open`]. Positions count from the source's first byte.
    pub fn open_part(source: R, base: u64, size: u64) -> Result<Self> {
        Self::open_as(Reading::default(), source, base, size)
    }

    /// [`Profile::open_part`] in this way.
    pub(crate) fn open_as(reading: Reading, mut source: R, base: u64, size: u64) -> Result<Self> {
        let Ends { start, mut header, footer } = Ends::read(&mut source, base, size)?;
        let order = header.byte_order;
        let footer_at = size - FOOTER_LEN;

        // As CPython reads them, the tables may run into the footer.
        let mut bytes = vec![0; table_len(size - header.strings_at)?];
        read_up_to(&mut source, base + header.strings_at, &mut bytes)?;
        let frames_at = table_len(header.frames_at - header.strings_at)?;
        let read = tables::read(&bytes, frames_at, &footer, base + header.strings_at)?;
        let mut warnings = Vec::new();
        if read.strings_end > base + header.frames_at {
            let over = read.strings_end - base - header.frames_at;
            warnings.push(format!(
                "the strings pass the start of the frame table by {over} bytes (at byte {})",
                base + header.frames_at
            ));
        }
        let footer_place = base + footer_at;
        let tables_end = read.strings_end.max(read.frames_end);
        if tables_end > footer_place {
            let over = tables_end - footer_place;
            warnings.push(format!(
                "the tables pass the start of the footer by {over} bytes (at byte {footer_place})"
            ));
        }
        let free = footer_place - read.frames_end.min(footer_place);
        let tail = &bytes[frames_at..bytes.len() - FOOTER_LEN as usize];
        let found = stats::read(tail, || Ok(free), order, footer_place)?;
        let before = &tail[..tail.len() - found.len(tail, order)];
        let mut faults: Vec<Fault> = Fault::of_mode(&header, &start, base).into_iter().collect();
        let statistics = match found {
            stats::StatsBlock::Nothing => None,
            stats::StatsBlock::Unsound(error) => {
                faults.push(Fault { code: FaultCode::InvalidStatistics, error });
                None
            }
            stats::StatsBlock::Statistics(statistics) => Some(statistics),
            stats::StatsBlock::PassedOver(why) => {
                warnings
                    .push(format!("the statistics block is skipped: {why} (at byte {})", footer_place - 16));
                None
            }
        };
        let mut chunk = None;
        if header.layout == Layout::Chunk {
            let blocks =
                before.get((read.frames_end - base - header.frames_at) as usize..).unwrap_or_default();
            match extension::read(blocks, order) {
                Ok(found) => {
                    if let Some(found) = &found {
                        (header.facts.mode, header.facts.capture) = (found.mode, found.capture);
                    }
                    chunk = found.map(|found| found.info);
                }
                Err(why) => warnings.push(format!(
                    "the chunk's block on its run is skipped: {why} (at byte {})",
                    base + header.frames_at + before.len() as u64
                )),
            }
        }
        drop(bytes);
        let has_checksum = header.layout == Layout::Chunk && footer.checksum != [0; 16];
        if has_checksum && chunk_checksum(&mut source, base, size)? != footer.checksum {
            let fault = "the chunk's bytes are not those that its checksum was made of";
            return Err(Error::profile(fault).at(Position::Byte(base)));
        }

        let contents = Contents {
            header,
            footer,
            tables: Arc::new(read.tables),
            statistics,
            chunk,
            scan: SampleSummary::default(),
            size,
            warnings,
            faults,
        };
        let Reading { threads, counting } = reading;
        let mut digest = Digest::default();
        digest.update(&start);
        let late = Late::default();
        let mut profile = Profile { source, base, contents, late, windows: None, digest, threads };
        let scanned = profile.scan(counting)?;
        (profile.late, profile.windows) = (scanned.late, scanned.windows);
        profile.contents.scan = scanned.scan;
        profile.contents.check_samples(scanned.fault, base)?;
        let used = &profile.contents.scan.used_frames;
        let unreadable = read.bad_frames.into_iter().find(|(frame, ..)| used[*frame as usize]);
        if let Some((_, at, fault)) = unreadable {
            return Err(Error::profile(fault).at(Position::Byte(at)));
        }
        Ok(profile)
    }

    fn scan(&mut self, counting: Option<Counting>) -> Result<ScanResult> {
        let start_us = self.contents.header.facts.start_us;
        let tables = Arc::clone(&self.contents.tables);
        let Profile { source, base, contents, digest, threads, .. } = self;
        // Packed samples have a thread next to the walk already.
        let busy = if contents.header.compression == Compression::Zstd { 2 } else { 1 };
        let in_background = contents.header.strings_at >= WORTH_A_THREAD && worker::count(*threads) > busy;
        let windows = counting.map(|counting| {
            WindowObserver::new(WindowCounter::new(counting, &tables, start_us), in_background)
        });
        let reader = records(source, *base, &contents.header, *threads, Some(digest))?;
        Region { start_us, frames: tables.frames.len(), reader, windows, reorder: REORDER_SAMPLES }.scan()
    }

    /// Whether its samples were counted while it was opened, as [`Sequence::counting`] asks.
    ///
    /// [`Sequence::counting`]: crate::format::Sequence::counting
    pub fn is_counted(&self) -> bool {
        self.windows.is_some()
    }

    /// What was counted while the records were checked, if just that was asked for, in windows from
    /// `start_us`, and could be done.
    pub(crate) fn take_windows(&mut self, wanted: Counting, start_us: u64) -> Option<CountedWindows> {
        let period = Period { start_us, period_us: wanted.period_us };
        self.windows.take().filter(|windows| windows.period == period && windows.by == wanted.by)
    }

    /// Takes what is wrong with the profile out of its contents.
    pub fn take_faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.contents.faults)
    }

    /// All that the profile holds, but for the samples themselves.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The same, known to be this part of a run.
    #[must_use]
    pub fn of_run(mut self, info: ChunkInfo) -> Self {
        self.contents.chunk = Some(info);
        self
    }

    /// Its bytes as they are.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn bytes(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.source.seek(SeekFrom::Start(self.base))?;
        (&mut self.source).take(self.contents.size).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn source(&self) -> &R {
        &self.source
    }

    fn records(&mut self) -> Result<RecordReader<'_>> {
        records(&mut self.source, self.base, &self.contents.header, self.threads, None)
    }

    /// The samples, each stack with the samples in a row that have it.
    ///
    /// ```
    /// # use tachyon_jsonl::format::Profile;
    /// let file = std::fs::File::open("tests/data/cpython/wall_all_100hz_none.bin")?;
    /// let mut profile = Profile::open(file)?;
    /// let mut in_doze = 0;
    /// let mut samples = profile.samples()?;
    /// while let Some(run) = samples.next()? {
    ///     if run.stack.last().is_some_and(|frame| run.tables.function(*frame) == "doze") {
    ///         in_doze += run.times_us.len();
    ///     }
    /// }
    /// assert_eq!(in_doze, 645);
    /// # Ok::<(), tachyon_jsonl::error::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn samples(&mut self) -> Result<Samples<'_>> {
        let (replay, contents) = self.replay()?;
        Ok(Samples::new(replay, &contents.tables))
    }

    /// The samples in time order in a reorder buffer, and the contents.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    #[doc(hidden)]
    pub fn replay(&mut self) -> Result<(Replay<'_>, &Contents)> {
        let records = records(&mut self.source, self.base, &self.contents.header, self.threads, None)?;
        let start_us = self.contents.header.facts.start_us;
        let replay = Replay::new(records, &self.contents.scan, start_us, &mut self.late);
        Ok((replay, &self.contents))
    }

    /// The stacks in the order of the records, for counts that need no times. `each` is called with a
    /// thread's number, in order of appearance, how many of its outermost frames stay, the frames that
    /// come on top, innermost first, and how many samples have the result.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn stacks(&mut self, mut each: impl FnMut(usize, usize, &[u32], u64)) -> Result<()> {
        let end = self.contents.scan.sound_end;
        let mut reader = self.records()?;
        let mut index = ThreadIndex::default();
        let mut stacks: Vec<Vec<u32>> = Vec::new();
        while reader.position() < end {
            let Some(record) = reader.next()? else { break };
            let thread = index.get_or_insert(record.thread);
            if thread == stacks.len() {
                stacks.push(Vec::new());
            }
            let stack = &mut stacks[thread];
            let depth = stack.len() as u32;
            match record.body {
                Body::Repeat { count } => {
                    reader.entries(count, |_, _| {})?;
                    each(thread, stack.len(), &[], u64::from(count));
                }
                Body::Change { change, .. } => {
                    if let Some(innermost) = change.keeps_innermost(depth) {
                        stack.drain(..stack.len() - innermost as usize);
                        let pushed: Vec<u32> = stack.iter().rev().copied().collect();
                        each(thread, 0, &pushed, 1);
                        continue;
                    }
                    let resolved = change.resolve(depth).map_err(|fault| reader.fault(record.at, fault))?;
                    stack.truncate(resolved.keep as usize);
                    stack.extend(reader.pushed().iter().rev());
                    each(thread, resolved.keep as usize, reader.pushed(), 1);
                }
            }
        }
        Ok(())
    }

    /// A digest of all bytes of the profile.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn content_hash(&mut self) -> Result<u128> {
        self.digest.clone().finish(&mut self.source, self.base, self.contents.size)
    }
}

impl Contents {
    /// Holds what the walk has found against what the header and the footer declare.
    fn check_samples(&mut self, fault: Option<Error>, base: u64) -> Result<()> {
        let declared = self.header.samples;
        let found = self.scan.samples;
        let header = |at: u64| Position::Byte(base + at);
        let layout = self.header.layout;

        if let Compression::Undefined(number) = self.header.compression {
            let at = header(layout.compression_at());
            if fault.is_some() || found != declared {
                let fault = format!(
                    "compression {number} is unknown, and as plain data the samples are not the {declared} that the header declares"
                );
                return Err(Error::profile(fault).at(at));
            }
            self.warnings.push(format!("compression {number} is unknown; read as plain data, which hold exactly the declared samples ({at})"));
        }
        if let Some(error) = fault {
            if found == 0 {
                return Err(error);
            }
            self.faults.push(Fault { code: FaultCode::DamagedSamples, error });
        } else if found != declared {
            let fault = format!("the header declares {declared} samples, but the data hold {found}");
            let error = Error::profile(fault).at(header(28));
            if found == 0 {
                return Err(error);
            }
            self.faults.push(Fault { code: FaultCode::CountMismatch, error });
        }
        let threads = self.scan.threads.len();
        if threads as u64 > u64::from(self.header.threads) {
            let fault =
                format!("the header declares {} threads, but the data hold {threads}", self.header.threads);
            let error = Error::profile(fault).at(header(layout.threads_at()));
            self.faults.push(Fault { code: FaultCode::CountMismatch, error });
        }
        self.faults.extend(size_fault(&self.footer, self.size, base));
        Ok(())
    }
}

/// The records of a profile's sample region, from the first. The digest is given the bytes as they are read,
/// if they are plain.
fn records<'a>(
    source: &'a mut (impl Read + Seek),
    base: u64,
    header: &Header,
    threads: usize,
    digest: Option<&'a mut Digest>,
) -> Result<RecordReader<'a>> {
    let at = base + HEADER_LEN;
    let length = header.strings_at - HEADER_LEN;
    let order = header.byte_order;
    if header.compression == Compression::Zstd {
        let mut magic = [0; 4];
        let wanted = 4.min(length) as usize;
        let got = read_up_to(source, at, &mut magic[..wanted])?;
        if magic[..got] != ZSTD_MAGIC {
            return Err(Error::profile("the sample data are not a zstd frame").at(Position::Byte(at)));
        }
    }
    source.seek(SeekFrom::Start(at))?;
    let region = source.take(length);
    Ok(match header.compression {
        Compression::Zstd => {
            let in_background = length >= WORTH_A_THREAD && worker::count(threads) > 1;
            let unpacked: Box<dyn Read + '_> =
                match if in_background { Unpacker::new(region)? } else { Err(region) } {
                    Ok(unpacker) => Box::new(unpacker),
                    Err(region) => {
                        let packed = BufReader::with_capacity(length.min(COPY as u64) as usize, region);
                        Box::new(unpack::decoder(packed)?)
                    }
                };
            RecordReader::new(unpacked, u64::MAX, order, RegionPosition::Unpacked)
        }
        Compression::None | Compression::Undefined(_) => {
            let region: Box<dyn Read> = match digest {
                Some(digest) => Box::new(Digested { source: region, digest }),
                None => Box::new(region),
            };
            RecordReader::new(region, length, order, RegionPosition::File(at))
        }
    })
}

/// The version-1 profiles that stand one after the other in a source of `size` bytes, as (place, size): one,
/// unless files were joined. Each footer's size leads to the start of its profile.
///
/// # Errors
///
/// Errors of the source.
pub(crate) fn parts(source: &mut (impl Read + Seek), size: u64) -> Result<Vec<(u64, u64)>> {
    let mut parts = Vec::new();
    let mut end = size;
    while end >= HEADER_LEN + FOOTER_LEN {
        let mut footer = [0; FOOTER_LEN as usize];
        read_up_to(source, end - FOOTER_LEN, &mut footer)?;
        let start = [ByteOrder::Little, ByteOrder::Big].into_iter().find_map(|order| {
            let length = Footer::read(&footer, order).size;
            let start = end.checked_sub(length).filter(|_| length >= HEADER_LEN + FOOTER_LEN)?;
            Some((start, order))
        });
        let Some((start, order)) = start else { break };
        let mut head = [0; 8];
        read_up_to(source, start, &mut head)?;
        if ByteOrder::of_magic(&head) != Some(order) || order.u32(&head, 4) != 1 {
            break;
        }
        parts.push((start, end - start));
        end = start;
    }
    if end != 0 || parts.is_empty() {
        return Ok(vec![(0, size)]);
    }
    parts.reverse();
    Ok(parts)
}
