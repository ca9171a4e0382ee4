//! The 64-byte header and the 32-byte footer.
//!
//! Two layouts bear the version number 1: the *wide* one of 3.15 releases, whose sample count has
//! eight bytes, and the *narrow* one of the 3.15 alphas, whose later fields all stand four bytes
//! lower. Only one of the two readings gives table offsets that are in order and inside the file.
//! Version 2, a chunk, is the narrow layout with the chunk's size at its end.

use crate::error::{Error, Position, Result};
use crate::model::{Capture, Mode, PythonVersion, RunFacts};

/// Bytes of a header.
pub const HEADER_LEN: u64 = 64;
/// Bytes of a footer.
pub const FOOTER_LEN: u64 = 32;

const MAGIC: u32 = 0x5441_4348;
const VERSION: u32 = 1;
const CHUNK_VERSION: u32 = 2;
/// Where a chunk's header says its size.
const CHUNK_SIZE_AT: usize = 56;
const CAPTURE_KNOWN: u32 = 1 << 3;
const COMPRESSION_NONE: u32 = 0;
const COMPRESSION_ZSTD: u32 = 1;

/// The order of the bytes in fixed-size numbers; varints have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Lowest byte first: x86-64, arm64.
    Little,
    /// Highest byte first.
    Big,
}

impl ByteOrder {
    /// Reads a number at `at`; the caller has checked the length.
    #[inline]
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let array = bytes[at..at + 4].try_into().expect("four bytes");
        match self {
            ByteOrder::Little => u32::from_le_bytes(array),
            ByteOrder::Big => u32::from_be_bytes(array),
        }
    }

    /// Reads a number at `at`; the caller has checked the length.
    #[inline]
    pub(crate) fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let array = bytes[at..at + 8].try_into().expect("eight bytes");
        match self {
            ByteOrder::Little => u64::from_le_bytes(array),
            ByteOrder::Big => u64::from_be_bytes(array),
        }
    }

    /// Reads a float at `at`; the caller has checked the length.
    pub(crate) fn f64(self, bytes: &[u8], at: usize) -> f64 {
        f64::from_bits(self.u64(bytes, at))
    }

    /// The byte order that the first four bytes of a profile tell, if they are its magic.
    pub(crate) fn of_magic(start: &[u8]) -> Option<ByteOrder> {
        let magic = start.get(..4)?;
        [ByteOrder::Little, ByteOrder::Big].into_iter().find(|order| order.u32(magic, 0) == MAGIC)
    }
}

/// Which of the header layouts a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 3.15 releases: the sample count has eight bytes, and there is a configuration word.
    Wide,
    /// 3.15 alphas: the sample count has four bytes.
    Narrow,
    /// Format version 2: a chunk, whose header says how long it is.
    Chunk,
}

impl Layout {
    /// "wide", "narrow" or "chunk".
    pub fn name(self) -> &'static str {
        match self {
            Layout::Wide => "wide",
            Layout::Narrow => "narrow",
            Layout::Chunk => "chunk",
        }
    }

    /// The number that the header gives as its version.
    pub fn format_version(self) -> u32 {
        match self {
            Layout::Wide | Layout::Narrow => VERSION,
            Layout::Chunk => CHUNK_VERSION,
        }
    }

    /// Where the fields after the sample count stand: threads, then the offsets, then the compression.
    pub(crate) fn threads_at(self) -> u64 {
        match self {
            Layout::Wide => 36,
            Layout::Narrow | Layout::Chunk => 32,
        }
    }

    pub(crate) fn compression_at(self) -> u64 {
        self.threads_at() + 20
    }
}

/// How the sample region is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As it is.
    None,
    /// One zstd frame (several in a row are read, too).
    Zstd,
    /// A number that nobody has defined; CPython's writer leaves the data plain.
    Undefined(u32),
}

/// A header, decoded. Offsets count from the profile's first byte.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Byte order of the whole file.
    pub byte_order: ByteOrder,
    /// Which layout the header has.
    pub layout: Layout,
    /// Start, interval, mode, capture settings, Python version.
    pub facts: RunFacts,
    /// Declared number of samples.
    pub samples: u64,
    /// Declared number of (interpreter, thread) pairs.
    pub threads: u32,
    /// Where the sample region ends and the strings begin.
    pub strings_at: u64,
    /// Where the frames begin.
    pub frames_at: u64,
    /// How the sample region is packed.
    pub compression: Compression,
}

/// The format version that the first eight bytes of a profile give, with its byte order.
pub(crate) fn version_of(start: &[u8]) -> Option<(ByteOrder, u32)> {
    let order = ByteOrder::of_magic(start)?;
    (start.len() >= 8).then(|| (order, order.u32(start, 4)))
}

/// The size that a chunk's header gives, with its byte order; `None` where it is no chunk's.
pub(crate) fn chunk_size(header: &[u8; 64]) -> Option<(ByteOrder, u64)> {
    let (order, version) = version_of(header)?;
    (version == CHUNK_VERSION).then(|| (order, order.u64(header, CHUNK_SIZE_AT)))
}

/// The eight bytes that a profile of this layout begins with.
pub(crate) fn version_start(order: ByteOrder, layout: Layout) -> [u8; 8] {
    let mut start = [0; 8];
    let numbers = [MAGIC, layout.format_version()].map(|number| match order {
        ByteOrder::Little => number.to_le_bytes(),
        ByteOrder::Big => number.to_be_bytes(),
    });
    start.copy_from_slice(numbers.as_flattened());
    start
}

impl Header {
    /// Decodes the header of a profile or a chunk of `size` bytes; `base` is its place in the input, for
    /// positions in errors.
    pub fn read(bytes: &[u8; 64], size: u64, base: u64) -> Result<Header> {
        let at = |offset: u64| Position::Byte(base + offset);
        let Some(byte_order) = ByteOrder::of_magic(bytes) else {
            return Err(Error::profile("not a profile: the magic number is missing").at(at(0)));
        };
        match byte_order.u32(bytes, 4) {
            VERSION => {}
            CHUNK_VERSION => return Header::read_chunk(bytes, byte_order, size, base),
            other => {
                let fault = format!("format version {other} is unknown; 1 and 2 are");
                return Err(Error::profile(fault).at(at(4)));
            }
        }
        let wide = Header::decode(bytes, byte_order, Layout::Wide);
        let narrow = Header::decode(bytes, byte_order, Layout::Narrow);
        let header = match (wide.offset_fault(size), narrow.offset_fault(size)) {
            (None, Some(_)) => wide,
            (Some(_), None) => narrow,
            (None, None) => {
                return Err(Error::profile(
                    "both header layouts of version 1 fit this file, so its tables cannot be found",
                )
                .at(at(28)));
            }
            (Some(fault), Some(_)) => {
                return Err(Error::profile(fault).at(at(40)).hint("recover may save its samples"));
            }
        };
        Ok(header)
    }

    /// Why the mode that the header of a profile at `base` gives is not known, if it gives one.
    pub(crate) fn mode_fault(&self, bytes: &[u8; 64], base: u64) -> Option<Error> {
        let mode = self.byte_order.u32(bytes, 60) & 7;
        let is_odd = self.layout == Layout::Wide && mode as usize > Mode::ALL.len();
        is_odd.then(|| {
            let fault = format!("the configuration word has mode bits {mode}, which no mode has");
            Error::profile(fault).at(Position::Byte(base + 60))
        })
    }

    fn read_chunk(bytes: &[u8; 64], order: ByteOrder, size: u64, base: u64) -> Result<Header> {
        let header = Header::decode(bytes, order, Layout::Chunk);
        let declared = order.u64(bytes, CHUNK_SIZE_AT);
        let at = |at: u64| Position::Byte(base + at);
        if declared != size {
            let fault = format!("the chunk's header gives its size as {declared} bytes, but it has {size}");
            return Err(Error::profile(fault).at(at(CHUNK_SIZE_AT as u64)));
        }
        match header.offset_fault(size) {
            Some(fault) => Err(Error::profile(fault).at(at(36))),
            None => Ok(header),
        }
    }

    pub(crate) fn decode(bytes: &[u8; 64], order: ByteOrder, layout: Layout) -> Header {
        let samples = match layout {
            Layout::Wide => order.u64(bytes, 28),
            Layout::Narrow | Layout::Chunk => u64::from(order.u32(bytes, 28)),
        };
        let config = match layout {
            Layout::Wide => order.u32(bytes, 60),
            Layout::Narrow | Layout::Chunk => 0,
        };
        let rest = layout.threads_at() as usize;
        Header {
            byte_order: order,
            layout,
            facts: RunFacts {
                start_us: order.u64(bytes, 12),
                interval_us: order.u64(bytes, 20),
                mode: mode_of(config),
                capture: capture_of(config),
                python: Some(PythonVersion { major: bytes[8], minor: bytes[9], micro: bytes[10] }),
            },
            samples,
            threads: order.u32(bytes, rest),
            strings_at: order.u64(bytes, rest + 4),
            frames_at: order.u64(bytes, rest + 12),
            compression: match order.u32(bytes, rest + 20) {
                COMPRESSION_NONE => Compression::None,
                COMPRESSION_ZSTD => Compression::Zstd,
                other => Compression::Undefined(other),
            },
        }
    }

    fn offset_fault(&self, size: u64) -> Option<String> {
        let (strings, frames) = (self.strings_at, self.frames_at);
        let end = size.saturating_sub(FOOTER_LEN);
        if strings < HEADER_LEN {
            Some(format!("string table offset {strings} lies inside the header"))
        } else if frames < strings {
            Some(format!("frame table offset {frames} lies before the string table at {strings}"))
        } else if frames > end {
            Some(format!(
                "truncated or damaged: the tables should start at {strings} and {frames}, but the file has {size} bytes"
            ))
        } else {
            None
        }
    }

    /// The bytes of a header, little-endian, of a profile of `size` bytes.
    pub(crate) fn write(&self, size: u64) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC.to_le_bytes());
        put(4, &self.layout.format_version().to_le_bytes());
        if let Some(python) = self.facts.python {
            put(8, &[python.major, python.minor, python.micro]);
        }
        put(12, &self.facts.start_us.to_le_bytes());
        put(20, &self.facts.interval_us.to_le_bytes());
        let rest = self.layout.threads_at() as usize;
        // A chunk of ours is closed before its samples pass 32 bits.
        put(28, &self.samples.to_le_bytes()[..rest - 28]);
        put(rest, &self.threads.to_le_bytes());
        put(rest + 4, &self.strings_at.to_le_bytes());
        put(rest + 12, &self.frames_at.to_le_bytes());
        let compression = match self.compression {
            Compression::None => COMPRESSION_NONE,
            Compression::Zstd => COMPRESSION_ZSTD,
            Compression::Undefined(number) => number,
        };
        put(rest + 20, &compression.to_le_bytes());
        match self.layout {
            Layout::Wide => put(60, &config_word(&self.facts).to_le_bytes()),
            Layout::Narrow => {}
            Layout::Chunk => put(CHUNK_SIZE_AT, &size.to_le_bytes()),
        }
        bytes
    }
}

pub(crate) fn mode_of(config: u32) -> Option<Mode> {
    Mode::ALL.get((config & 7).checked_sub(1)? as usize).copied()
}

pub(crate) fn capture_of(config: u32) -> Option<Capture> {
    if config & CAPTURE_KNOWN == 0 {
        return None;
    }
    let bit = |bit: u32| config >> bit & 1 == 1;
    Some(Capture { all_threads: bit(4), native: bit(5), gc: bit(6), opcodes: bit(7), blocking: bit(8) })
}

pub(crate) fn config_word(facts: &RunFacts) -> u32 {
    let mode = facts.mode.map_or(0, |mode| {
        1 + Mode::ALL.iter().position(|known| *known == mode).expect("a known mode") as u32
    });
    let capture = facts.capture.map_or(0, |capture| {
        let flags = [capture.all_threads, capture.native, capture.gc, capture.opcodes, capture.blocking];
        (0..).zip(flags).fold(CAPTURE_KNOWN, |word, (index, on)| word | u32::from(on) << (4 + index))
    });
    mode | capture
}

/// A footer, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Declared number of strings.
    pub strings: u32,
    /// Declared number of frames.
    pub frames: u32,
    /// Bytes of the whole profile.
    pub size: u64,
    /// XXH3-128 of a chunk, canonical, taken with these bytes as zeros; zeros where there is none.
    pub checksum: [u8; 16],
}

/// Where the checksum stands in a footer.
pub(crate) const CHECKSUM_AT: u64 = 16;

impl Footer {
    pub(crate) fn read(bytes: &[u8; 32], order: ByteOrder) -> Footer {
        Footer {
            strings: order.u32(bytes, 0),
            frames: order.u32(bytes, 4),
            size: order.u64(bytes, 8),
            checksum: bytes[CHECKSUM_AT as usize..].try_into().expect("sixteen bytes"),
        }
    }

    pub(crate) fn write(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&self.strings.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.frames.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[CHECKSUM_AT as usize..].copy_from_slice(&self.checksum);
        bytes
    }
}
