//! The 64-byte header and the 32-byte footer.
//!
//! Two layouts bear the version number 1: the *wide* one of 3.15 releases, whose sample count has
//! eight bytes, and the *narrow* one of the 3.15 alphas, whose later fields all stand four bytes
//! lower. Only one of the two readings gives table offsets that are in order and inside the file.

use crate::error::{Error, Position, Result};
use crate::model::{Capture, Mode, PythonVersion, RunFacts};

/// Bytes of a header.
pub const HEADER_LEN: u64 = 64;
/// Bytes of a footer.
pub const FOOTER_LEN: u64 = 32;

const MAGIC: u32 = 0x5441_4348;
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
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let array = bytes[at..at + 4].try_into().expect("four bytes");
        match self {
            ByteOrder::Little => u32::from_le_bytes(array),
            ByteOrder::Big => u32::from_be_bytes(array),
        }
    }

    /// Reads a number at `at`; the caller has checked the length.
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
}

impl Layout {
    /// "wide" or "narrow".
    pub fn name(self) -> &'static str {
        match self {
            Layout::Wide => "wide",
            Layout::Narrow => "narrow",
        }
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

impl Header {
    /// Decodes the header of a version-1 profile of `size` bytes; `base` is its place in the
    /// input, for positions in errors.
    pub fn read(bytes: &[u8; 64], size: u64, base: u64) -> Result<Header> {
        let at = |offset: u64| Position::Byte(base + offset);
        let Some(byte_order) = ByteOrder::of_magic(bytes) else {
            return Err(Error::profile("no profile: the magic number is missing").at(at(0)));
        };
        let version = byte_order.u32(bytes, 4);
        if version != 1 {
            return Err(unknown_version(version).at(at(4)));
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
                return Err(Error::profile(fault).at(at(40)));
            }
        };
        if header.layout == Layout::Wide {
            let mode = byte_order.u32(bytes, 60) & 7;
            if mode as usize > Mode::ALL.len() {
                let fault = format!("the configuration word has mode bits {mode}, which no mode has");
                return Err(Error::profile(fault).at(at(60)));
            }
        }
        Ok(header)
    }

    fn decode(bytes: &[u8; 64], order: ByteOrder, layout: Layout) -> Header {
        // Where the fields behind the sample count stand.
        let (samples, rest) = match layout {
            Layout::Wide => (order.u64(bytes, 28), 36),
            Layout::Narrow => (u64::from(order.u32(bytes, 28)), 32),
        };
        let config = match layout {
            Layout::Wide => order.u32(bytes, 60),
            Layout::Narrow => 0,
        };
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

    /// The bytes of a header in the wide layout, little-endian.
    pub(crate) fn write(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC.to_le_bytes());
        put(4, &1u32.to_le_bytes());
        if let Some(python) = self.facts.python {
            put(8, &[python.major, python.minor, python.micro]);
        }
        put(12, &self.facts.start_us.to_le_bytes());
        put(20, &self.facts.interval_us.to_le_bytes());
        put(28, &self.samples.to_le_bytes());
        put(36, &self.threads.to_le_bytes());
        put(40, &self.strings_at.to_le_bytes());
        put(48, &self.frames_at.to_le_bytes());
        let compression = match self.compression {
            Compression::None => COMPRESSION_NONE,
            Compression::Zstd => COMPRESSION_ZSTD,
            Compression::Undefined(number) => number,
        };
        put(56, &compression.to_le_bytes());
        put(60, &config_word(&self.facts).to_le_bytes());
        bytes
    }
}

fn unknown_version(version: u32) -> Error {
    if version == 2 {
        return Error::profile("a chunked profile (version 2), which this version cannot read");
    }
    Error::profile(format!("format version {version} is not known; 1 is"))
}

fn mode_of(config: u32) -> Option<Mode> {
    Mode::ALL.get((config & 7).checked_sub(1)? as usize).copied()
}

fn capture_of(config: u32) -> Option<Capture> {
    if config & CAPTURE_KNOWN == 0 {
        return None;
    }
    let bit = |bit: u32| config >> bit & 1 == 1;
    Some(Capture { all_threads: bit(4), native: bit(5), gc: bit(6), opcodes: bit(7), blocking: bit(8) })
}

fn config_word(facts: &RunFacts) -> u32 {
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
}

impl Footer {
    pub(crate) fn read(bytes: &[u8; 32], order: ByteOrder) -> Footer {
        Footer { strings: order.u32(bytes, 0), frames: order.u32(bytes, 4), size: order.u64(bytes, 8) }
    }

    pub(crate) fn write(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&self.strings.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.frames.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }
}
