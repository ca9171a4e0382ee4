//! The header and footer of a profile, read without the rest.

use std::io::{Read, Seek};

use crate::error::{Error, Position, Result};
use crate::format::fault::{Fault, FaultCode};
use crate::format::layout::extension::{self, ChunkInfo};
use crate::format::layout::header::{FOOTER_LEN, Footer, HEADER_LEN, Header, Layout};
use crate::format::layout::identify;
use crate::format::layout::stats;
use crate::format::layout::tables;
use crate::format::section::{read_up_to, table_len};
use crate::model::Statistics;

/// Bytes at the end of a profile in which its blocks are looked for.
const TAIL: u64 = 64 * 1024;

/// What a profile says of itself at its start and its end, read without its samples and, unless an old block of
/// statistics has to be distinguished from frames, its tables.
#[derive(Debug)]
pub struct Outline {
    /// The header as it stands in the file.
    pub header: Header,
    /// The footer as it stands in the file.
    pub footer: Footer,
    /// What a chunk says of its run, where it has our extension.
    pub chunk: Option<ChunkInfo>,
    /// What the profiler measured about itself, where the profile says.
    pub statistics: Option<Statistics>,
    /// What the two ends contradict. Whether the samples do is not known.
    pub faults: Vec<Fault>,
}

impl Outline {
    /// Reads the outline of the profile that stands at byte `base` of `source` and is `size` bytes long.
    ///
    /// # Errors
    ///
    /// A header that cannot be read, and errors of the source.
    pub fn read(source: &mut (impl Read + Seek), base: u64, size: u64) -> Result<Self> {
        let Ends { start, mut header, footer } = Ends::read(source, base, size)?;
        let mut faults: Vec<Fault> = Fault::of_mode(&header, &start, base).into_iter().collect();
        tables::check(&footer, header.strings_at, header.frames_at, size, base)?;
        let order = header.byte_order;
        let from = header.frames_at.max(size.saturating_sub(TAIL));
        let mut tail = vec![0; (size - from) as usize];
        read_up_to(source, base + from, &mut tail)?;
        let tail = &tail[..tail.len() - FOOTER_LEN as usize];
        let free = || {
            let mut frames = vec![0; table_len(size - header.frames_at)?];
            read_up_to(source, base + header.frames_at, &mut frames)?;
            let taken = tables::frames_len(&frames, footer.frames, base + header.frames_at)?;
            Ok((size - FOOTER_LEN - header.frames_at).saturating_sub(taken))
        };
        let found = stats::read(tail, free, order, base + size - FOOTER_LEN)?;
        let before = &tail[..tail.len() - found.len(tail, order)];
        let statistics = match found {
            stats::StatsBlock::Statistics(statistics) => Some(statistics),
            stats::StatsBlock::Unsound(error) => {
                faults.push(Fault { code: FaultCode::InvalidStatistics, error });
                None
            }
            stats::StatsBlock::Nothing | stats::StatsBlock::PassedOver(_) => None,
        };
        let mut chunk = None;
        if header.layout == Layout::Chunk
            && let Ok(Some(found)) = extension::read(before, order)
        {
            (header.facts.mode, header.facts.capture) = (found.mode, found.capture);
            chunk = Some(found.info);
        }
        faults.extend(size_fault(&footer, size, base));
        Ok(Outline { header, footer, chunk, statistics, faults })
    }
}

/// The fault that the footer gives another size than the profile has.
pub(crate) fn size_fault(footer: &Footer, size: u64, base: u64) -> Option<Fault> {
    let fault = format!("the footer says that the profile has {} bytes, but it has {size}", footer.size);
    let error = Error::profile(fault).at(Position::Byte(base + size - FOOTER_LEN + 8));
    (footer.size != size).then_some(Fault { code: FaultCode::SizeMismatch, error })
}

/// The two ends of a profile.
pub(crate) struct Ends {
    /// The header's bytes.
    pub start: [u8; HEADER_LEN as usize],
    pub header: Header,
    pub footer: Footer,
}

impl Ends {
    pub fn read(source: &mut (impl Read + Seek), base: u64, size: u64) -> Result<Self> {
        let mut start = [0; HEADER_LEN as usize];
        let got = read_up_to(source, base, &mut start)?;
        if let Some(fault) = identify::fault(&start[..got], size) {
            let displaced = if base == 0 { identify::displaced(source, size)? } else { None };
            return Err(displaced.unwrap_or(fault).at(Position::Byte(base)));
        }
        if size < HEADER_LEN + FOOTER_LEN {
            let fault = format!("truncated: {size} bytes are too few for a header and a footer");
            let error = Error::profile(fault).at(Position::Byte(base + size));
            return Err(error.hint("recover may save its samples"));
        }
        let header = Header::read(&start, size, base)?;
        let mut end = [0; FOOTER_LEN as usize];
        read_up_to(source, base + size - FOOTER_LEN, &mut end)?;
        let footer = Footer::read(&end, header.byte_order);
        Ok(Ends { start, header, footer })
    }
}
