//! The binary profile: what its bytes mean, and how to write them.
//!
//! `schema/binary.md` describes the format for readers in any language. Reading goes
//! [`Profile::open`] (header, tables, one checking walk over all records), then
//! [`Profile::replay`] (a second walk that delivers samples in time order); writing goes through
//! [`Writer`]. An input with more than one profile in it is walked by [`Sequence`]; of a broken one
//! [`recover`] saves what is whole.

pub(crate) mod delta;
mod digest;
mod entries;
mod extension;
mod framed;
mod header;
mod identify;
mod outline;
mod pack;
mod reader;
mod record;
mod recover;
mod replay;
mod ring;
mod salvage;
mod scan;
mod sequence;
mod stats;
mod tables;
mod tally;
mod threads;
mod unpack;
mod varint;
mod windows;
mod writer;

pub use extension::{ChunkInfo, ChunkOrder, RunEnd, RunEnds};
pub use header::{ByteOrder, Compression, FOOTER_LEN, Footer, HEADER_LEN, Header, Layout};
pub use identify::{is_profile, known};
pub use outline::Outline;
pub use reader::{Contents, Fault, FaultCode, Profile};
pub use recover::{Recovered, recover};
pub use replay::Replay;
pub use ring::{RING_START, is_ring, ring_start};
pub use scan::{Scan, ThreadScan};
pub use sequence::{Framing, Lost, Part, Place, Sequence};
pub use windows::Counting;
pub(crate) use windows::{CountedWindow, CountedWindows};
pub use writer::{Chunk, Packing, Writer};
