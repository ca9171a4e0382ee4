//! Decodes lines into messages.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, Visitor};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::LINE_MAX;
use crate::model::NONE;
use crate::protocol::columns::{RawColumns, same_len};
use crate::protocol::encode::is_run_id;
use crate::protocol::json::read_raw;
use crate::protocol::message::{Agg, End, ErrorMessage, FrameDef, Heartbeat, Loss, Meta, StrDef, VERSION};
use crate::protocol::stream_types::MessageType;
use crate::protocol::text;

/// What every message begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Version of the schema.
    pub version: u64,
    /// The run that the message belongs to.
    pub run_id: String,
    /// Number of the message in its run; CPython's own messages have none.
    pub seq: Option<u64>,
}

/// A line, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// What it begins with.
    pub envelope: Envelope,
    /// The rest.
    pub message: Message,
}

/// A message, but for the columns of `raw`, which go into the caller's [`RawColumns`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Message {
    Meta(Box<Meta>),
    StrDef(StrDef),
    FrameDef(FrameDef),
    Raw,
    Agg(Agg),
    Loss(Loss),
    Heartbeat(Heartbeat),
    Error(ErrorMessage),
    End(Box<End>),
    /// A type that this version doesn't know.
    Unknown(String),
    /// A message of CPython's own JSONL (`v` 0 or 1), by its type.
    CPython(String),
}

impl Message {
    /// The type of a message, if this version knows it.
    pub fn kind(&self) -> Option<MessageType> {
        Some(match self {
            Message::Meta(_) => MessageType::Meta,
            Message::StrDef(_) => MessageType::StrDef,
            Message::FrameDef(_) => MessageType::FrameDef,
            Message::Raw => MessageType::Raw,
            Message::Agg(_) => MessageType::Agg,
            Message::Loss(_) => MessageType::Loss,
            Message::Heartbeat(_) => MessageType::Heartbeat,
            Message::Error(_) => MessageType::Error,
            Message::End(_) => MessageType::End,
            Message::Unknown(_) | Message::CPython(_) => return None,
        })
    }
}

/// Decodes one line, with or without its line end. The columns of a `raw` message go into `columns`.
///
/// # Errors
///
/// A line that is no message, or whose message breaks a rule that it can break alone. The caller
/// knows the line's number.
pub fn decode(line: &[u8], columns: &mut RawColumns) -> Result<Decoded> {
    let (kind, envelope, body_at) = match canonical_envelope(line) {
        Some(found) => found,
        None => general_envelope(line)?,
    };
    let message = match (envelope.version, MessageType::of_name(&kind)) {
        (0 | 1, _) => Message::CPython(kind.into_owned()),
        (VERSION, None) => Message::Unknown(kind.into_owned()),
        (VERSION, Some(kind)) => {
            if envelope.seq.is_none() {
                return Err(Error::stream("the message has no seq"));
            }
            if line.len() >= LINE_MAX && !(kind == MessageType::StrDef && is_one_string(line)) {
                return Err(too_long(line.len()));
            }
            body(kind, line, body_at, columns)?
        }
        // An unknown type may have a version of its own.
        (_, None) => Message::Unknown(kind.into_owned()),
        (version, Some(_)) => {
            return Err(unknown_version(version));
        }
    };
    Ok(Decoded { envelope, message })
}

/// What is said of a message of a version that is not known.
pub(crate) fn unknown_version(version: u64) -> Error {
    Error::stream(format!("schema version {version} is unknown; 0, 1 and 2 are known"))
}

/// What is said of a line over [`LINE_MAX`].
pub(crate) fn too_long(bytes: usize) -> Error {
    let what = format!("a message of {bytes} bytes; only one string by itself may have more than {LINE_MAX}");
    Error::new(ErrorKind::Limit, what)
}

/// Whether a `str_def` defines one string.
fn is_one_string(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct One {
        #[serde(rename = "str_id")]
        _str_id: [IgnoredAny; 1],
        #[serde(rename = "value")]
        _value: [IgnoredAny; 1],
        #[serde(default, rename = "base64", deserialize_with = "text::few_by_key")]
        _base64: Option<BTreeMap<u32, IgnoredAny>>,
    }
    text::read::<One>(line).is_ok()
}

fn body(kind: MessageType, line: &[u8], body_at: Option<usize>, columns: &mut RawColumns) -> Result<Message> {
    if kind != MessageType::Raw {
        sole_envelope(line, body_at)?;
    }
    Ok(match kind {
        MessageType::Meta => Message::Meta(Box::new(text::parse(line)?)),
        MessageType::StrDef => {
            let body: StrDef = text::parse(line)?;
            same_len("str_id and value", body.str_id.len(), body.value.len())?;
            Message::StrDef(body)
        }
        MessageType::FrameDef => Message::FrameDef(checked_frames(text::parse(line)?)?),
        MessageType::Raw => {
            let canonical = body_at.and_then(|at| read_raw::raw(&line[at..], columns));
            if canonical.is_none() {
                sole_envelope(line, body_at)?;
                general_raw(line, columns)?;
            }
            columns.check()?;
            Message::Raw
        }
        MessageType::Agg => {
            let body: Agg = text::parse(line)?;
            same_len("frame_id and self", body.frame_id.len(), body.self_.len())?;
            same_len("frame_id and cumulative", body.frame_id.len(), body.cumulative.len())?;
            Message::Agg(body)
        }
        MessageType::Loss => Message::Loss(text::parse(line)?),
        MessageType::Heartbeat => Message::Heartbeat(text::parse(line)?),
        MessageType::Error => Message::Error(text::parse(line)?),
        MessageType::End => Message::End(Box::new(text::parse(line)?)),
    })
}

fn checked_frames(body: FrameDef) -> Result<FrameDef> {
    let rows = body.frame_id.len();
    same_len("frame_id and path_str_id", rows, body.path_str_id.len())?;
    same_len("frame_id and func_str_id", rows, body.func_str_id.len())?;
    let lengths =
        [&body.line, &body.end_line, &body.col, &body.end_col].map(|column| column.as_ref().map(Vec::len));
    for (name, length) in ["line", "end_line", "col", "end_col", "opcode"]
        .iter()
        .zip(lengths.into_iter().chain([body.opcode.as_ref().map(Vec::len)]))
    {
        if let Some(length) = length {
            same_len(&format!("frame_id and {name}"), rows, length)?;
        }
    }
    Ok(body)
}

type Head<'a> = (Cow<'static, str>, Envelope, Option<usize>);

/// Reads the envelope of a line in our own shape; the place after it comes along.
fn canonical_envelope(line: &[u8]) -> Option<Head<'static>> {
    let mut rest = line.strip_prefix(b"{\"type\":\"")?;
    let kind = MessageType::ALL.into_iter().find(|kind| {
        rest.starts_with(kind.name().as_bytes()) && rest.get(kind.name().len()) == Some(&b'"')
    })?;
    rest = rest[kind.name().len()..].strip_prefix(b"\",\"v\":2,\"run_id\":\"")?;
    let run_id = &rest[..rest.iter().take(65).position(|byte| *byte == b'"')?];
    rest = rest[run_id.len()..].strip_prefix(b"\",\"seq\":")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || digits > 1 && rest[0] == b'0' {
        return None;
    }
    let (seq, body) = rest.split_at(digits);
    let body = body.strip_prefix(b",")?;
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let run_id = text(run_id).filter(|run_id| is_run_id(run_id))?.to_string();
    let envelope = Envelope { version: VERSION, run_id, seq: Some(text(seq)?.parse().ok()?) };
    Some((Cow::Borrowed(kind.name()), envelope, Some(line.len() - body.len())))
}

/// Whether the keys of an envelope in our own shape do not come again after it. A body in our own shape has no
/// room for them, so one that is read as such need not be asked.
fn sole_envelope(line: &[u8], body_at: Option<usize>) -> Result<()> {
    let Some(body) = body_at.and_then(|at| line.get(at..)) else { return Ok(()) };
    let keys: [&[u8]; 4] = [b"\"type\"", b"\"v\"", b"\"run_id\"", b"\"seq\""];
    let is_key = |at: usize| keys.iter().any(|key| body[at..].starts_with(key));
    if memchr::memchr_iter(b'"', body).any(is_key) {
        // It may as well be a value, or a key of something within.
        general_envelope(line)?;
    }
    Ok(())
}

fn general_envelope(line: &[u8]) -> Result<Head<'static>> {
    #[derive(Deserialize)]
    struct Any {
        #[serde(rename = "type")]
        kind: String,
        v: u64,
        run_id: String,
        seq: Option<u64>,
    }
    let any: Any = text::read(line)?;
    if !is_run_id(&any.run_id) && (any.v <= VERSION || any.run_id.len() > 64) {
        return Err(Error::stream("the run_id is not 1 to 64 of the characters A-Z a-z 0-9 - _"));
    }
    Ok((Cow::Owned(any.kind), Envelope { version: any.v, run_id: any.run_id, seq: any.seq }, None))
}

/// A `raw` body in any shape.
fn general_raw(line: &[u8], columns: &mut RawColumns) -> Result<()> {
    #[derive(Deserialize)]
    struct Body {
        batch: u64,
        start_usec: u64,
        samples: u64,
        stack_frame_id: Vec<u32>,
        stack_parent: Option<Vec<NodeJson>>,
        threads: Vec<ThreadJson>,
    }
    #[derive(Deserialize)]
    struct ThreadJson {
        thread_id: String,
        interpreter_id: u32,
        ts_delta_usec: Vec<i128>,
        status: Vec<u8>,
        stack: Option<Vec<NodeJson>>,
    }
    let body: Body = text::parse(line)?;
    columns.clear();
    columns.batch = body.batch;
    columns.start_usec = body.start_usec;
    columns.samples = body.samples;
    columns.stack_frame_id.extend(body.stack_frame_id);
    match body.stack_parent {
        Some(parents) => columns.stack_parent.extend(parents.iter().map(|node| node.0)),
        None => columns.stack_parent.resize(columns.stack_frame_id.len(), NONE),
    }
    for thread in body.threads {
        let fits = !thread.thread_id.is_empty() && thread.thread_id.bytes().all(|byte| byte.is_ascii_digit());
        let Some(thread_id) = thread.thread_id.parse().ok().filter(|_| fits) else {
            return Err(Error::stream(format!(
                "the thread id '{}' is not a 64-bit number",
                text::quoted(&thread.thread_id)
            )));
        };
        let next = columns.next_thread();
        next.thread_id = thread_id;
        next.interpreter_id = thread.interpreter_id;
        let mut time = i128::from(body.start_usec);
        for delta in thread.ts_delta_usec {
            time = time.saturating_add(delta);
            next.times_usec.push(
                u64::try_from(time)
                    .map_err(|_| Error::stream(format!("a sample has the time {time}, out of 64 bits")))?,
            );
        }
        next.status.extend(thread.status);
        match thread.stack {
            Some(nodes) => nodes.iter().for_each(|node| next.push_stack(node.0, 1)),
            None => next.push_stack(NONE, next.status.len()),
        }
    }
    Ok(())
}

/// A node, or null.
struct NodeJson(u32);

impl<'de> Deserialize<'de> for NodeJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;
        impl Visitor<'_> for NodeVisitor {
            type Value = NodeJson;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a node number or null")
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<NodeJson, E> {
                u32::try_from(value)
                    .ok()
                    .filter(|node| *node != NONE)
                    .map(NodeJson)
                    .ok_or_else(|| E::custom("a node number over 32 bits"))
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<NodeJson, E> {
                u64::try_from(value)
                    .map_err(|_| E::custom("a negative node number"))
                    .and_then(|value| self.visit_u64(value))
            }
            fn visit_unit<E>(self) -> Result<NodeJson, E> {
                Ok(NodeJson(NONE))
            }
            fn visit_none<E>(self) -> Result<NodeJson, E> {
                Ok(NodeJson(NONE))
            }
        }
        deserializer.deserialize_any(NodeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::ThreadKey;
    use crate::protocol::{Encoder, Raw, RawThread};

    type Column = Vec<(u64, u8, u32)>;

    fn line(start_us: u64, frames: &[u32], threads: &[(u64, Column)]) -> Vec<u8> {
        let parents: Vec<u32> =
            (0..frames.len() as u32).map(|node| node.checked_sub(1).unwrap_or(NONE)).collect();
        let split = |column: &Column| -> (Vec<u64>, Vec<u8>, Vec<(u32, usize)>) {
            let nodes = frames.len() as u32;
            let node = |node: u32| if node < nodes { node } else { NONE };
            (
                column.iter().map(|(time, ..)| *time).collect(),
                column.iter().map(|(_, status, _)| *status).collect(),
                column.iter().map(|(_, _, stack)| (node(*stack), 1)).collect(),
            )
        };
        let columns: Vec<_> = threads.iter().map(|(id, column)| (*id, split(column))).collect();
        let threads: Vec<RawThread<'_>> = columns
            .iter()
            .map(|(id, (times, status, stacks))| RawThread {
                thread: ThreadKey { interpreter_id: *id as u32, thread_id: *id },
                times,
                status,
                stacks,
            })
            .collect();
        let mut encoder = Encoder::new("run");
        let mut line = Vec::new();
        let raw = Raw { batch: 0, start_us, node_frame: frames, node_parent: &parents, threads: &threads };
        encoder.raw(&mut line, &raw);
        line
    }

    fn told(columns: &RawColumns) -> String {
        let RawColumns { batch, start_usec, samples, stack_frame_id, stack_parent, .. } = columns;
        let threads = columns.threads();
        format!("{batch} {start_usec} {samples} {stack_frame_id:?} {stack_parent:?} {threads:?}")
    }

    /// What the general parser makes of a line.
    fn general_of(line: &[u8]) -> Option<String> {
        let mut columns = RawColumns::default();
        general_raw(line, &mut columns).ok()?;
        Some(told(&columns))
    }

    /// What the parser of our own shape makes of it, which may be nothing.
    fn canonical_of(line: &[u8]) -> Option<String> {
        let (_, _, at) = canonical_envelope(line)?;
        let mut columns = RawColumns::default();
        read_raw::raw(&line[at?..], &mut columns)?;
        Some(told(&columns))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn both_parsers_read_the_same_in_our_own_lines_and_in_damaged_ones(
            start_us in prop_oneof![0..5u64, any::<u64>()],
            frames in prop::collection::vec(prop_oneof![0..9u32, any::<u32>()], 0..9),
            threads in prop::collection::vec(
                (any::<u64>(), prop::collection::vec(
                    (prop_oneof![0..2000u64, any::<u64>()], any::<u8>(), 0..12u32), 1..9)),
                0..4),
            damage in prop::collection::vec(
                (any::<prop::sample::Index>(), prop::sample::select(b"0123456789-,]}[{\" .en".to_vec())), 0..3),
        ) {
            let mut line = line(start_us, &frames, &threads);
            let whole = canonical_of(&line);
            prop_assert!(whole.is_some());
            prop_assert_eq!(&whole, &general_of(&line));
            for (at, byte) in damage {
                let at = at.index(line.len());
                line[at] = byte;
            }
            if let Some(canonical) = canonical_of(&line) {
                prop_assert_eq!(Some(canonical), general_of(&line), "{}", String::from_utf8_lossy(&line));
            }
        }
    }
}
