//! Saves the intact part of a torn or damaged profile as a sound one.

pub(crate) mod salvage;

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use tempfile::SpooledTempFile;

use crate::error::{Error, ErrorKind, Position, Result};
use crate::format::chunks::sequence::{Framing, LostPart, Part, Sequence};
use crate::format::fault::Fault;
use crate::format::layout::extension::{ChunkInfo, RunEnds};
use crate::format::layout::ring::{RING_START, is_ring};
use crate::format::open::Contents;
use crate::format::recover::salvage::{Salvaged, salvage};
use crate::format::section::read_up_to;
use crate::limits::{LOSSES, SPOOL_MEMORY};

/// A sound copy of what was whole.
#[derive(Debug)]
pub struct Recovered {
    /// The copy, from its first byte.
    pub copy: SpooledTempFile,
    /// How its parts are separated.
    pub framing: Framing,
    /// How many there are.
    pub parts: u64,
    /// Samples in them.
    pub samples: u64,
    /// What is lost, or was made up. Empty where at most the form was broken.
    pub losses: Vec<Error>,
    more_losses: u64,
}

/// Copies what is whole of the profile that `source` holds: every chunk or framed profile, or a version-1
/// profile, and where that is broken, all its whole records. What is returned reads back without a fault.
///
/// # Errors
///
/// A source in which nothing is whole, and errors of the source.
pub fn recover(source: &mut (impl Read + Seek)) -> Result<Recovered> {
    let mut recovered = copy(source)?;
    recovered.verify()?;
    if recovered.more_losses > 0 {
        let fault = format!("{} more losses of this kind", recovered.more_losses);
        recovered.losses.push(Error::profile(fault));
    }
    recovered.copy.seek(SeekFrom::Start(0))?;
    Ok(recovered)
}

fn copy(source: &mut (impl Read + Seek)) -> Result<Recovered> {
    let mut start = [0; RING_START as usize];
    let got = read_up_to(source, 0, &mut start)?;
    if is_ring(&start[..got]) {
        return ring(source);
    }
    let mut sequence = Sequence::open(source)?;
    let mut unopened = None;
    if sequence.framing() == Framing::Files {
        match files(source, &mut sequence) {
            Ok(recovered) => return Ok(recovered),
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(error) => unopened = Some(error),
        }
        // The start of a file in chunks may be what is damaged.
        sequence = Sequence::of_chunks();
    }
    match parts(source, sequence)? {
        Ok(recovered) => Ok(recovered),
        Err(lost) => match unopened {
            Some(_) => salvage(source).map(Recovered::from),
            None => Err(lost.map_or_else(
                || Error::profile("the input holds no chunk"),
                |lost| Error::profile(format!("nothing can be saved: {}", lost.error.detail())),
            )),
        },
    }
}

/// A copy of files of version 1 that have no fault, and nothing that other readers refuse although this one does not.
fn files(source: &mut (impl Read + Seek), sequence: &mut Sequence) -> Result<Recovered> {
    let mut parts = 0;
    let mut samples = 0;
    while let Some(part) = sequence.next(source)? {
        let Part::Profile(profile) = part else { break };
        if let Some(fault) = profile.contents().faults.first() {
            return Err(fault.error.again());
        }
        if let Some(warning) = profile.contents().warnings.first() {
            return Err(Error::profile(warning));
        }
        samples += profile.contents().scan.samples;
        parts += 1;
    }
    let mut copy = SpooledTempFile::new(SPOOL_MEMORY);
    source.seek(SeekFrom::Start(0))?;
    io::copy(source, &mut copy)?;
    Ok(Recovered { copy, framing: Framing::Files, parts, samples, losses: Vec::new(), more_losses: 0 })
}

/// Every whole part. Where there is none, the first thing that is lost.
fn parts(
    source: &mut (impl Read + Seek),
    mut sequence: Sequence,
) -> Result<Result<Recovered, Option<LostPart>>> {
    let mut first_lost = None;
    let mut ends = RunEnds::default();
    let (copy, framing) = (SpooledTempFile::new(SPOOL_MEMORY), sequence.framing());
    let mut recovered = Recovered { copy, framing, parts: 0, samples: 0, losses: Vec::new(), more_losses: 0 };
    loop {
        let at = sequence.position();
        match sequence.next(source)? {
            None => break,
            Some(Part::Lost(part)) => {
                ends.lost();
                recovered.lose(Some(part.to_error()));
                first_lost.get_or_insert(part);
                continue;
            }
            Some(Part::Profile(profile)) => {
                recovered.lose(ends.chunk(profile.contents().chunk.as_ref()));
                recovered.samples += profile.contents().scan.samples;
                recovered.parts += 1;
            }
        }
        source.seek(SeekFrom::Start(at))?;
        let bytes = sequence.position() - at;
        io::copy(&mut (&mut *source).take(bytes), &mut recovered.copy)?;
    }
    if recovered.parts == 0 {
        return Ok(Err(first_lost));
    }
    recovered.lose(ends.finish());
    Ok(Ok(recovered))
}

/// The chunks of a ring, by their runs and numbers. What else stands there was written over, or never
/// committed.
fn ring(source: &mut (impl Read + Seek)) -> Result<Recovered> {
    let mut sequence = Sequence::of_chunks_from(RING_START);
    let mut chunks: Vec<RingChunk> = Vec::new();
    loop {
        let at = sequence.position();
        let Some(part) = sequence.next(source)? else { break };
        if let Part::Profile(profile) = part
            && let Some(info) = &profile.contents().chunk
        {
            let Contents { scan, size, .. } = profile.contents();
            chunks.push(RingChunk {
                info: ChunkInfo { labels: BTreeMap::new(), ..info.clone() },
                at,
                size: *size,
                samples: scan.samples,
            });
        }
    }
    if chunks.is_empty() {
        return Err(Error::profile("a ring file that holds no chunk"));
    }
    chunks.sort_by(|a, b| (&a.info.run_id, a.info.index).cmp(&(&b.info.run_id, b.info.index)));
    let mut recovered = Recovered {
        copy: SpooledTempFile::new(SPOOL_MEMORY),
        framing: Framing::Chunks,
        parts: chunks.len() as u64,
        samples: chunks.iter().map(|chunk| chunk.samples).sum(),
        losses: Vec::new(),
        more_losses: 0,
    };
    let mut ends = RunEnds::default();
    for (number, chunk) in chunks.iter().enumerate() {
        recovered.lose(ends.chunk(Some(&chunk.info)));
        source.seek(SeekFrom::Start(chunk.at))?;
        io::copy(&mut (&mut *source).take(chunk.size), &mut recovered.copy)?;
        let before = number.checked_sub(1).map(|before| &chunks[before]);
        if let Some(before) = before.filter(|before| before.info.run_id == chunk.info.run_id) {
            let (before, index) = (before.info.index, chunk.info.index);
            if before + 1 < index {
                let fault = format!("chunks {} to {} of the run are missing", before + 1, index - 1);
                recovered.lose(Some(Error::profile(fault).at(Position::Byte(chunk.at))));
            }
        }
    }
    recovered.lose(ends.finish());
    Ok(recovered)
}

/// A whole chunk in a ring.
struct RingChunk {
    /// Without the labels.
    info: ChunkInfo,
    at: u64,
    size: u64,
    samples: u64,
}

impl Recovered {
    fn lose(&mut self, loss: Option<Error>) {
        if self.losses.len() < LOSSES {
            self.losses.extend(loss);
        } else {
            self.more_losses += u64::from(loss.is_some());
        }
    }

    /// Reads the copy as anybody will.
    fn verify(&mut self) -> Result<()> {
        let mut sequence = Sequence::open(&mut self.copy)?;
        let (mut parts, mut samples) = (0, 0);
        while let Some(part) = sequence.next(&mut self.copy)? {
            if let Part::Profile(profile) = part
                && !profile.contents().faults.iter().any(Fault::concerns_samples)
            {
                parts += 1;
                samples += profile.contents().scan.samples;
            }
        }
        if (parts, samples) != (self.parts, self.samples) {
            return Err(Error::profile(format!(
                "what was saved does not read back: {samples} samples in {parts} parts"
            )));
        }
        Ok(())
    }
}

impl From<Salvaged> for Recovered {
    fn from(salvaged: Salvaged) -> Self {
        let Salvaged { profile, samples, losses } = salvaged;
        Recovered { copy: profile, framing: Framing::Files, parts: 1, samples, losses, more_losses: 0 }
    }
}
