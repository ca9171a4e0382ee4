//! Conversion between the binary profile and the stream. Only this module knows both.
//!
//! [`to_stream`] makes a stream of a profile, [`RunStream`] one of a run's parts, and [`ToBinary`] and
//! [`ToChunks`] a profile of a stream's lines. [`StreamReader`] delivers a stream's samples as
//! [`Profile::samples`](crate::format::Profile::samples) does those of a profile.

mod aggregate;
mod counts;
mod diff;
mod group_reader;
mod session;
mod stream_counts;
pub(crate) mod stream_definitions;
mod stream_reader;
mod to_binary;
mod to_stream;
mod tree;
mod upgrade;
pub(crate) mod used_frames;

pub use crate::convert::to_stream::options::{Flush, StreamOptions};
#[doc(hidden)]
pub use crate::convert::to_stream::to_cpython::CpythonRun;
#[doc(hidden)]
pub use crate::counts::{By, Counting};
pub(crate) use diff::{Change, DiffRow, Subject};
#[doc(hidden)]
pub use diff::{ProfileSide, Side, StreamSide, diff, mismatches};
pub use stream_reader::StreamReader;
pub use to_binary::{Outcome, ProfileOptions, ToBinary, ToChunks};
pub use to_stream::{RunStream, StreamSummary, to_stream};
pub use upgrade::Upgrade;
