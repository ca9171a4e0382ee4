//! Between the binary profile and the stream: the only place that knows both.

mod aggregate;
mod definitions;
mod options;
mod raw;
mod to_stream;
mod tree;

pub use options::{Flush, StreamOptions};
pub use to_stream::{Written, to_stream};
