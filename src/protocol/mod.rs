//! The stream: what its messages are, and how they become lines and come back.
//!
//! The wire format is described for readers in any language in `schema/README.md`; here
//! [`message`] has a struct for each message but `raw`, whose columns are borrowed
//! ([`Raw`]) when they are written and reused ([`RawColumns`]) when they are read.

pub(crate) mod bodies;
mod check;
mod columns;
mod cpython;
mod decode;
mod encode;
pub(crate) mod group;
pub mod message;
mod msgpack;
mod parse;
mod relay;
mod select;
mod text;

pub use check::{Checker, Finding};
pub(crate) use cpython::CpythonRules;
pub use cpython::{
    CpythonEncoder, CpythonEntry, CpythonFrame, CpythonMessage, CpythonString, decode_cpython,
};
pub(crate) use decode::unknown_version;
pub use decode::{Decoded, Envelope, Message, RawColumns, ThreadColumns, decode};
pub use encode::{Encoder, Raw, RawThread, is_run_id};
pub use msgpack::{Frames, FromMsgpack, LmcacheHeader, LmcacheTrace, ToMsgpack, is_msgpack};
pub use relay::{Head, amended, loss_line};
pub use select::{MessageType, StreamTypes, parse_duration};
pub(crate) use text::quoted;
