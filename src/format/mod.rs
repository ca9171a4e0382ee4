//! The binary profile: what its bytes mean, and how to write them.
//!
//! `schema/binary.md` describes the format for readers in any language. Reading goes
//! [`Profile::open`] (header, tables, one checking walk over all records), then
//! [`Profile::samples`] (a second walk that delivers samples in time order); writing goes through
//! [`Writer`]. An input with more than one profile in it is walked by [`Sequence`]; of a broken one
//! [`recover`] saves what is whole.

pub(crate) mod chunks;
mod fault;
pub(crate) mod layout;
pub(crate) mod open;
mod outline;
mod record;
mod recover;
mod replay;
mod samples;
mod scan;
mod section;
mod threads;
mod unpack;
pub(crate) mod write;

pub use crate::format::chunks::sequence::{Framing, LostPart, Part, PartLocation, Sequence};
pub use crate::format::layout::extension::{ChunkInfo, RunEnd};
pub(crate) use crate::format::layout::extension::{ChunkOrder, RunEnds};
pub(crate) use crate::format::layout::header::{ByteOrder, Compression, HEADER_LEN, Layout};
pub(crate) use crate::format::layout::header::{Footer, Header};
pub(crate) use crate::format::layout::identify::{is_profile, known};
#[doc(hidden)]
pub use crate::format::layout::ring::ring_start;
pub(crate) use crate::format::layout::ring::{RING_START, is_ring};
pub use crate::format::open::{Contents, Profile};
pub use crate::format::write::writer::{Chunk, Packing, Writer};
pub use fault::{Fault, FaultCode};
pub use outline::Outline;
pub use recover::{Recovered, recover};
pub use samples::Samples;
