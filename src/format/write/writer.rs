//! Writes a version-1 profile with the wide header, as CPython 3.15 releases do, or a chunk.

use std::io::{Read, Seek, SeekFrom, Write};

use tempfile::SpooledTempFile;

use crate::error::{Error, ErrorKind, Result};
use crate::format::layout::digest::chunk_checksum;
use crate::format::layout::extension::{self, ChunkInfo};
use crate::format::layout::header::{
    ByteOrder, CHECKSUM_AT, Compression, FOOTER_LEN, Footer, HEADER_LEN, Header, Layout,
};
use crate::format::layout::stats;
use crate::format::layout::tables;
use crate::format::write::pack::Packer;
use crate::limits::{CHUNK_BYTES, SPOOL_MEMORY, TABLE_BYTES, TABLE_ENTRIES};
use crate::model::{Frame, RunFacts, Statistics};
use crate::worker;

/// Bytes of sample data handed on at once, as in CPython's writer.
const PIECE: usize = 512 * 1024;

/// How to pack the sample region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// As it is.
    None,
    /// One zstd frame of this level; CPython writes level 5.
    Zstd(i32),
}

/// A profile in the making. Its header is zeros until [`Writer::finish`], so that a file that was
/// cut off is known as such.
pub struct Writer<W: Write + Seek> {
    region: Region<W>,
    piece: Vec<u8>,
    facts: RunFacts,
    samples: u64,
    string_bytes: Vec<u8>,
    strings: u32,
    frame_bytes: Vec<u8>,
    frames: u32,
}

enum Region<W: Write> {
    Plain(W),
    Zstd(zstd::stream::write::Encoder<'static, W>),
    Background(Packer<W>),
}

impl<W: Write> Write for Region<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Region::Plain(sink) => sink.write(bytes),
            Region::Zstd(encoder) => encoder.write(bytes),
            Region::Background(packer) => packer.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Region::Plain(sink) => sink.flush(),
            Region::Zstd(encoder) => encoder.flush(),
            Region::Background(packer) => packer.flush(),
        }
    }
}

impl<W: Write + Seek> Writer<W> {
    /// Starts a profile at the start of `sink`. With more than one thread (0: one a core) the samples are packed
    /// in parallel with the caller, to the same bytes.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn new(mut sink: W, facts: RunFacts, packing: Packing, threads: usize) -> Result<Self> {
        sink.write_all(&[0; HEADER_LEN as usize])?;
        let region = match packing {
            Packing::None => Region::Plain(sink),
            Packing::Zstd(level) => {
                let packer = if worker::count(threads) > 1 { Packer::new(sink, level)? } else { Err(sink) };
                match packer {
                    Ok(packer) => Region::Background(packer),
                    Err(sink) => Region::Zstd(zstd::stream::write::Encoder::new(sink, level)?),
                }
            }
        };
        Ok(Writer {
            region,
            piece: Vec::with_capacity(PIECE),
            facts,
            samples: 0,
            string_bytes: Vec::new(),
            strings: 0,
            frame_bytes: Vec::new(),
            frames: 0,
        })
    }

    /// Adds a string and returns its index.
    pub fn string(&mut self, string: &[u8]) -> u32 {
        tables::write_string(&mut self.string_bytes, string);
        self.strings += 1;
        self.strings - 1
    }

    /// Adds a frame, whose strings are indexes that [`Writer::string`] gave, and returns its index.
    pub fn frame(&mut self, frame: &Frame) -> u32 {
        tables::write_frame(&mut self.frame_bytes, frame);
        self.frames += 1;
        self.frames - 1
    }

    /// The end of the sample data so far; whole records are appended.
    pub(crate) fn records(&mut self) -> &mut Vec<u8> {
        &mut self.piece
    }

    /// `samples` more were appended.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub(crate) fn added(&mut self, samples: u64) -> Result<()> {
        self.samples += samples;
        self.check_tables()?;
        self.hand_on()
    }

    /// Refuses tables that no reader of ours takes.
    fn check_tables(&self) -> Result<()> {
        let bytes = self.string_bytes.len() + self.frame_bytes.len();
        if self.strings.max(self.frames) <= TABLE_ENTRIES && bytes <= TABLE_BYTES {
            return Ok(());
        }
        let fault = format!(
            "the profile would have {} strings and {} frames in {bytes} bytes, over the limit of {TABLE_ENTRIES} or of \
             {TABLE_BYTES} bytes",
            self.strings, self.frames
        );
        Err(Error::new(ErrorKind::Limit, fault).hint("--layout v2 makes chunks with tables of their own"))
    }

    /// Writes what is there of the sample data, in whole pieces.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    #[inline]
    pub(crate) fn hand_on(&mut self) -> Result<()> {
        if self.piece.len() < PIECE {
            return Ok(());
        }
        let whole = self.piece.len() - self.piece.len() % PIECE;
        self.region.write_all(&self.piece[..whole])?;
        self.piece.drain(..whole);
        Ok(())
    }

    /// Samples so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Writes the rest: tables, statistics, footer, and the header last. Gives the sink back.
    ///
    /// # Errors
    ///
    /// Statistics that are no measured values, and errors of the sink.
    pub fn finish(self, threads: u32, statistics: Option<&Statistics>) -> Result<W> {
        let (mut sink, header, size) = self.finish_body(Layout::Wide, threads, statistics, |_, _| Ok(()))?;
        sink.seek(SeekFrom::Start(0))?;
        sink.write_all(&header)?;
        sink.seek(SeekFrom::Start(size))?;
        sink.flush()?;
        Ok(sink)
    }

    /// Writes all but the header, which it returns with the size of the whole.
    fn finish_body(
        mut self,
        layout: Layout,
        threads: u32,
        statistics: Option<&Statistics>,
        extension: impl FnOnce(&mut Vec<u8>, &RunFacts) -> Result<()>,
    ) -> Result<(W, [u8; 64], u64)> {
        if let Some(fault) = statistics.and_then(stats::fault) {
            return Err(Error::stream(fault));
        }
        self.check_tables()?;
        self.region.write_all(&self.piece)?;
        let (mut sink, compression) = match self.region {
            Region::Plain(sink) => (sink, Compression::None),
            Region::Zstd(encoder) => (encoder.finish()?, Compression::Zstd),
            Region::Background(packer) => (packer.finish()?, Compression::Zstd),
        };
        let strings_at = sink.stream_position()?;
        let frames_at = strings_at + self.string_bytes.len() as u64;
        sink.write_all(&self.string_bytes)?;
        let mut end = self.frame_bytes;
        extension(&mut end, &self.facts)?;
        if let Some(statistics) = statistics {
            stats::write(&mut end, statistics);
        }
        let size = frames_at + end.len() as u64 + FOOTER_LEN;
        let footer = Footer { strings: self.strings, frames: self.frames, size, checksum: [0; 16] };
        end.extend_from_slice(&footer.write());
        sink.write_all(&end)?;
        let header = Header {
            byte_order: ByteOrder::Little,
            layout,
            facts: self.facts,
            samples: self.samples,
            threads,
            strings_at,
            frames_at,
            compression,
        };
        Ok((sink, header.write(size), size))
    }
}

impl Writer<SpooledTempFile> {
    /// Starts a chunk, built aside: in memory, and in a temporary file once it is large.
    ///
    /// # Errors
    ///
    /// Errors of the temporary file.
    pub fn chunk(facts: RunFacts, packing: Packing, threads: usize) -> Result<Self> {
        Writer::new(SpooledTempFile::new(SPOOL_MEMORY), facts, packing, threads)
    }

    /// Ends the chunk.
    ///
    /// # Errors
    ///
    /// A chunk of more than [`CHUNK_BYTES`] or of 2^32 samples, and as for [`Writer::finish`].
    pub fn finish_chunk(
        self,
        threads: u32,
        statistics: Option<&Statistics>,
        info: &ChunkInfo,
    ) -> Result<Chunk> {
        let samples = self.samples;
        let (mut body, header, size) =
            self.finish_body(Layout::Chunk, threads, statistics, |end, facts| {
                extension::write(end, info, facts)
            })?;
        if size > CHUNK_BYTES || u32::try_from(samples).is_err() {
            let fault = format!("a chunk of {size} bytes with {samples} samples is too large");
            return Err(Error::new(ErrorKind::Limit, fault).hint("let chunks close earlier: --flush"));
        }
        body.seek(SeekFrom::Start(0))?;
        body.write_all(&header)?;
        let checksum = chunk_checksum(&mut body, 0, size)?;
        body.seek(SeekFrom::Start(size - FOOTER_LEN + CHECKSUM_AT))?;
        body.write_all(&checksum)?;
        body.seek(SeekFrom::Start(HEADER_LEN))?;
        Ok(Chunk { header, size, samples, info: info.clone(), body })
    }
}

/// A finished chunk. Where it can be, its header is to be stored after all else is.
pub struct Chunk {
    /// Its first bytes.
    pub header: [u8; 64],
    /// Bytes of all of it.
    pub size: u64,
    /// Samples in it.
    pub samples: u64,
    /// What it says of itself and its run.
    pub info: ChunkInfo,
    body: SpooledTempFile,
}

impl Chunk {
    /// What stands after the header, once.
    pub fn body(&mut self) -> impl Read {
        &mut self.body
    }

    /// All of it.
    ///
    /// # Errors
    ///
    /// Errors of the temporary file.
    pub fn bytes(mut self) -> Result<Vec<u8>> {
        let mut bytes = self.header.to_vec();
        self.body().read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
