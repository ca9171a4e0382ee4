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

pub(crate) use crate::protocol::envelope::loss_line;
#[doc(hidden)]
pub use crate::protocol::envelope::{Head, amended};
pub(crate) use crate::protocol::stream_types::parse_duration;
pub use crate::protocol::stream_types::{MessageType, StreamTypes};
pub use check::{Checker, Finding};
pub use columns::{RawColumns, ThreadColumns};
#[doc(hidden)]
pub use cpython::decode_cpython;
pub(crate) use cpython::{
    CpythonEncoder, CpythonEntry, CpythonFrame, CpythonMessage, CpythonOddities, CpythonRules, CpythonString,
};
pub(crate) use decode::unknown_version;
pub use decode::{Decoded, Envelope, Message, decode};
pub(crate) use encode::is_run_id;
pub use encode::{Encoder, Raw, RawThread};
pub use lines::{Line, Lines, Tolerated};
pub(crate) use msgpack::LmcacheHeader;
#[doc(hidden)]
pub use msgpack::LmcacheTrace;
pub(crate) use msgpack::is_msgpack;
pub use msgpack::{FromMsgpack, ToMsgpack};
pub(crate) use text::quoted;
