//! The stream: its messages, and how lines are encoded and decoded.
//!
//! The wire format is described for readers in any language in `schema/README.md`; here
//! [`message`] has a struct for each message but `raw`, whose columns are borrowed
//! ([`Raw`]) when they are written and reused ([`RawColumns`]) when they are read.

mod check;
mod columns;
mod cpython;
mod decode;
mod encode;
pub(crate) mod envelope;
pub(crate) mod group;
pub(crate) mod json;
pub(crate) mod lines;
pub(crate) mod lmcache;
pub mod message;
mod msgpack;
pub(crate) mod stream_types;
pub(crate) mod table_messages;
mod text;

pub use crate::protocol::envelope::{Head, amended, loss_line};
pub use crate::protocol::stream_types::{MessageType, StreamTypes, parse_duration};
pub use check::{Checker, Finding};
pub use columns::{RawColumns, ThreadColumns};
pub use cpython::{
    CpythonEncoder, CpythonEntry, CpythonFrame, CpythonMessage, CpythonString, decode_cpython,
};
pub(crate) use cpython::{CpythonOddities, CpythonRules};
pub(crate) use decode::unknown_version;
pub use decode::{Decoded, Envelope, Message, decode};
pub use encode::{Encoder, Raw, RawThread, is_run_id};
pub use lines::{Line, Lines, Tolerated};
pub use msgpack::{FromMsgpack, LmcacheHeader, LmcacheTrace, ToMsgpack, is_msgpack};
pub(crate) use text::quoted;
