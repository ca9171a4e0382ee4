//! CPython 3.15's sampling profiles ("Tachyon", `python -m profiling.sampling run --binary`) as a
//! columnar JSON Lines stream, and back.
//!
//! The samples of a profile:
//!
//! ```
//! # use tachyon_jsonl::format::Profile;
//! let file = std::fs::File::open("tests/data/cpython/wall_all_100hz_none.bin")?;
//! let mut profile = Profile::open(file)?;
//! let mut samples = profile.samples()?;
//! while let Some(run) = samples.next()? {
//!     let function = run.stack.last().map(|frame| run.tables.function(*frame));
//!     println!("{} {function:?} {:?}", run.thread.thread_id, run.times_us);
//! }
//! # Ok::<(), tachyon_jsonl::error::Error>(())
//! ```
//!
//! Those of a stream:
//!
//! ```
//! # use tachyon_jsonl::convert::StreamReader;
//! let stream = std::io::BufReader::new(std::fs::File::open("schema/examples.jsonl")?);
//! let mut reader = StreamReader::new(stream);
//! while let Some(run) = reader.next()? {
//!     let function = run.stack.last().map(|frame| run.tables.function(*frame));
//!     println!("{} {function:?} {:?}", run.thread.thread_id, run.times_us);
//! }
//! # Ok::<(), tachyon_jsonl::error::Error>(())
//! ```
//!
//! A profile into a stream, and the stream into a profile:
//!
//! ```
//! # use tachyon_jsonl::convert::{ProfileOptions, StreamOptions, ToBinary, to_stream};
//! # use tachyon_jsonl::format::Profile;
//! # let file = std::fs::File::open("tests/data/cpython/wall_all_100hz_none.bin")?;
//! let mut stream = Vec::new();
//! to_stream(&mut Profile::open(file)?, &StreamOptions::new("a-run")?, &mut stream)?;
//! let mut to_binary = ToBinary::new(std::io::Cursor::new(Vec::new()), ProfileOptions::default());
//! for (number, line) in (1..).zip(stream.split_inclusive_mut(|byte| *byte == b'\n')) {
//!     to_binary.line(number, line)?;
//! }
//! assert_eq!(to_binary.finish()?.samples, 1942);
//! # Ok::<(), tachyon_jsonl::error::Error>(())
//! ```
//!
//! Bytes come in at one end and leave at the other:
//!
//! * [`mod@format`] knows the binary profile, [`protocol`] the messages of the stream; neither knows
//!   the other.
//! * [`convert`] is between them.
//! * [`model`] is what all are about: threads, frames, the order of samples.
//!
//! The wire format and the binary layout are described for readers in any language in the
//! repository's `schema/` folder.

// Some parts of these rooms only the command uses.
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports))]

mod buffered;
#[cfg(feature = "cli")]
pub mod cli;
pub mod convert;
mod counts;
pub mod error;
pub mod format;
// Not part of the library's surface: tests hold the program to them.
#[doc(hidden)]
pub mod limits;
mod marks;
pub mod model;
pub mod protocol;
mod varint;
mod worker;
