//! Between the binary profile and the stream: the only place that knows both.
//!
//! [`to_stream`] makes a stream of a profile, [`RunStream`] one of a run's parts, and [`ToBinary`] and
//! [`ToChunks`] a profile of a stream's lines.

mod aggregate;
mod counts;
mod defined;
mod definitions;
mod diff;
mod merge;
mod options;
mod raw;
mod raw_lines;
mod session;
mod stream_counts;
mod to_binary;
mod to_cpython;
mod to_stream;
mod tree;
mod upgrade;

pub use counts::{FrameCounts, FrameKey};
pub use diff::{Change, DiffRow, ProfileSide, Side, StreamSide, Subject, diff, mismatches};
pub use options::{Flush, StreamOptions};
pub use to_binary::{Outcome, ProfileOptions, ToBinary, ToChunks};
pub use to_cpython::CpythonRun;
pub use to_stream::{RunStream, Written, to_stream};
pub use upgrade::Upgrade;

pub use crate::model::{By, Counts};
