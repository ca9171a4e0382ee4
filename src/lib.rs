//! CPython 3.15's sampling profiles ("Tachyon", `python -m profiling.sampling run --binary`) as a
//! columnar JSON Lines stream, and back.
//!
//! Bytes come in at one end and leave at the other:
//!
//! * [`mod@format`] knows the binary profile, [`protocol`] the messages of the stream; neither knows
//!   the other.
//! * [`convert`] is between them: [`convert::to_stream`] and [`convert::ToBinary`], each with an
//!   example.
//! * [`counts`] counts samples by frame, function or file, in windows of time.
//! * [`model`] is what all are about: threads, frames, the order of samples.
//!
//! The wire format and the binary layout are described for readers in any language in the
//! repository's `schema/` folder.

#[cfg(feature = "cli")]
pub mod cli;
pub mod convert;
pub mod counts;
pub mod error;
pub mod format;
pub mod limits;
pub mod model;
pub mod protocol;
mod varint;
mod worker;
