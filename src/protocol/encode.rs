//! Messages into lines.

use serde::Serialize;

use crate::model::ThreadKey;
use crate::protocol::columns;
use crate::protocol::message::{Agg, FrameDef, VERSION, all_null};
use crate::protocol::select::MessageType;

/// Stands for null in columns of nodes.
pub(crate) const NULL: u32 = u32::MAX;

/// In place of the body's opening brace.
const BEHIND_ENVELOPE: u8 = b',';

/// Numbers the messages of one run and writes them as lines.
#[derive(Debug)]
pub struct Encoder {
    run_id: String,
    next_seq: u64,
}

impl Encoder {
    /// An encoder for a run that begins. `run_id` must satisfy [`is_run_id`].
    pub fn new(run_id: &str) -> Self {
        debug_assert!(is_run_id(run_id));
        Encoder { run_id: run_id.to_string(), next_seq: 0 }
    }

    /// The number of the next message, which is how many there were.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// The longest that a line can be around a body of no length, its line feed included.
    pub fn envelope_len(&self, message: MessageType) -> usize {
        let fixed = r#"{"type":"","v":2,"run_id":"","seq":"#.len() + 1;
        fixed + message.name().len() + self.run_id.len() + columns::digits(u64::MAX)
    }

    /// Appends a message to `out`.
    pub fn message(&mut self, out: &mut Vec<u8>, message: MessageType, body: &impl Serialize) {
        let at = self.open(out, message);
        write_json(out, body);
        close(out, at);
    }

    /// Appends an `agg` to `out`.
    pub fn agg(&mut self, out: &mut Vec<u8>, body: &Agg) {
        let at = self.open(out, MessageType::Agg);
        write_agg(out, body);
        close(out, at);
    }

    /// Appends a `frame_def` to `out`.
    pub fn frame_def(&mut self, out: &mut Vec<u8>, body: &FrameDef) {
        let at = self.open(out, MessageType::FrameDef);
        write_frame_def(out, body);
        close(out, at);
    }

    /// Makes a line of a body that is JSON already: an object with at least one key. `line` has room for the
    /// envelope ([`Encoder::envelope_len`]), the body, and a byte for the line feed, which counts as part of
    /// the envelope. Returns where the line begins.
    pub fn enclose(&mut self, line: &mut [u8], message: MessageType) -> usize {
        let body_at = self.envelope_len(message) - 1;
        let mut envelope = Vec::with_capacity(body_at);
        self.open(&mut envelope, message);
        let begin = body_at - envelope.len();
        line[begin..body_at].copy_from_slice(&envelope);
        line[body_at] = BEHIND_ENVELOPE;
        if let Some(last) = line.last_mut() {
            *last = b'\n';
        }
        begin
    }

    fn open(&mut self, out: &mut Vec<u8>, message: MessageType) -> usize {
        let envelope = Envelope { type_: message.name(), run_id: &self.run_id, seq: self.next_seq };
        self.next_seq += 1;
        envelope.open(out)
    }
}

/// What every message begins with.
pub(super) struct Envelope<'a> {
    pub type_: &'a str,
    pub run_id: &'a str,
    pub seq: u64,
}

impl Envelope<'_> {
    /// Writes it without its closing brace; returns where the body begins.
    pub fn open(&self, out: &mut Vec<u8>) -> usize {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(self.type_.as_bytes());
        out.extend_from_slice(b"\",\"v\":");
        number(out, VERSION);
        out.extend_from_slice(b",\"run_id\":\"");
        out.extend_from_slice(self.run_id.as_bytes());
        out.extend_from_slice(b"\",\"seq\":");
        number(out, self.seq);
        out.len()
    }
}

/// The body's opening brace becomes the comma behind the envelope.
fn close(out: &mut Vec<u8>, body_at: usize) {
    out[body_at] = BEHIND_ENVELOPE;
    out.push(b'\n');
}

/// Whether `text` can be a run id: 1 to 64 characters of URL-safe base64.
pub fn is_run_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

pub(crate) fn write_json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("a Vec takes all, and the messages have string keys");
}

fn number(out: &mut Vec<u8>, value: u64) {
    write_json(out, &value);
}

/// Appends the body of an `agg` to `out`: serde's text, with the columns made as those of `raw`.
fn write_agg(out: &mut Vec<u8>, body: &Agg) {
    const EMPTY: &[u8] = b",\"frame_id\":[],\"self\":[],\"cumulative\":[]}";
    let Agg { frame_id, self_, cumulative, .. } = body;
    let head = Agg {
        batch: body.batch,
        kind: body.kind.clone(),
        scope: body.scope.clone(),
        start_usec: body.start_usec,
        duration_usec: body.duration_usec,
        samples_total: body.samples_total,
        samples_empty: body.samples_empty,
        ..Agg::default()
    };
    write_json(out, &head);
    debug_assert!(out.ends_with(EMPTY));
    out.truncate(out.len() - EMPTY.len());
    key(out, b",\"frame_id\":");
    columns::numbers(out, frame_id.iter().map(|frame| u64::from(*frame)));
    key(out, b",\"self\":");
    columns::numbers(out, self_.iter().copied());
    key(out, b",\"cumulative\":");
    columns::numbers(out, cumulative.iter().copied());
    out.push(b'}');
}

/// Appends the body of a `frame_def` to `out`, as serde writes it.
fn write_frame_def(out: &mut Vec<u8>, body: &FrameDef) {
    let FrameDef { batch, frame_id, path_str_id, func_str_id, line, end_line, col, end_col, opcode } = body;
    key(out, b"{\"batch\":");
    number(out, *batch);
    let ids = [
        (b",\"frame_id\":".as_slice(), frame_id),
        (b",\"path_str_id\":", path_str_id),
        (b",\"func_str_id\":", func_str_id),
    ];
    for (name, column) in ids {
        key(out, name);
        columns::numbers(out, column.iter().map(|id| u64::from(*id)));
    }
    let places = [
        (b",\"line\":".as_slice(), line),
        (b",\"end_line\":", end_line),
        (b",\"col\":", col),
        (b",\"end_col\":", end_col),
    ];
    for (name, column) in places {
        if !all_null(column) {
            key(out, name);
            columns::optional(out, column.iter().flatten().map(|value| value.map(i64::from)));
        }
    }
    if !all_null(opcode) {
        key(out, b",\"opcode\":");
        columns::optional(out, opcode.iter().flatten().map(|value| value.map(i64::from)));
    }
    out.push(b'}');
}

/// Borrowed columns of a `raw` message: a call tree, and the samples that point into it.
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    /// The batch it belongs to.
    pub batch: u64,
    /// Where the threads' first differences count from, microseconds.
    pub start_us: u64,
    /// Frame of each node.
    pub node_frame: &'a [u32],
    /// Parent of each node, always a lower number; [`u32::MAX`] for a root.
    pub node_parent: &'a [u32],
    /// The threads, in the profiler's order.
    pub threads: &'a [RawThread<'a>],
}

/// One thread's samples in a `raw` message.
#[derive(Clone, Copy, Debug)]
pub struct RawThread<'a> {
    /// Whose samples they are.
    pub thread: ThreadKey,
    /// Microseconds.
    pub times: &'a [u64],
    /// Status bytes.
    pub status: &'a [u8],
    /// (node, number of samples in a row); [`u32::MAX`] for an empty stack.
    pub stacks: &'a [(u32, usize)],
}

impl Raw<'_> {
    /// Appends the message's body, a JSON object, to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let samples: usize = self.threads.iter().map(|thread| thread.times.len()).sum();
        key(out, b"{\"batch\":");
        number(out, self.batch);
        key(out, b",\"start_usec\":");
        number(out, self.start_us);
        key(out, b",\"samples\":");
        number(out, samples as u64);
        key(out, b",\"stack_frame_id\":");
        columns::numbers(out, self.node_frame.iter().map(|frame| u64::from(*frame)));
        if self.node_parent.iter().any(|parent| *parent != NULL) {
            key(out, b",\"stack_parent\":");
            let parents = self.node_parent.iter();
            columns::optional(out, parents.map(|parent| (*parent != NULL).then_some(i64::from(*parent))));
        }
        key(out, b",\"threads\":[");
        for (index, thread) in self.threads.iter().enumerate() {
            key(out, if index == 0 { b"{" } else { b",{" });
            thread.write(out, self.start_us);
        }
        key(out, b"]}");
    }
}

impl RawThread<'_> {
    fn write(&self, out: &mut Vec<u8>, start_us: u64) {
        key(out, b"\"thread_id\":\"");
        number(out, self.thread.thread_id);
        key(out, b"\",\"interpreter_id\":");
        number(out, u64::from(self.thread.interpreter_id));
        key(out, b",\"ts_delta_usec\":");
        columns::deltas(out, start_us, self.times);
        key(out, b",\"status\":");
        columns::bytes(out, self.status);
        if self.stacks.iter().any(|(node, _)| *node != NULL) {
            key(out, b",\"stack\":");
            columns::runs(out, self.stacks, NULL);
        }
        out.push(b'}');
    }
}

fn key(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_written_as_serde_writes_them() {
        let some = Agg {
            batch: 7,
            kind: "frame".to_string(),
            scope: "window".to_string(),
            start_usec: Some(-5),
            duration_usec: Some(5_000_000),
            samples_total: 3,
            samples_empty: Some(0),
            frame_id: vec![0, 9999, u32::MAX],
            self_: vec![0, 10_000, u64::MAX],
            cumulative: vec![1, 2, 3],
        };
        for body in [some, Agg::default()] {
            let mut text = Vec::new();
            write_agg(&mut text, &body);
            assert_eq!(text, serde_json::to_vec(&body).expect("json"));
        }
    }
    #[test]
    fn definitions_are_written_as_serde_writes_them() {
        let some = FrameDef {
            batch: 7,
            frame_id: vec![0, 1, 10_000],
            path_str_id: vec![3, 3, u32::MAX],
            func_str_id: vec![4, 5, 6],
            line: Some(vec![Some(1), None, Some(i32::MAX)]),
            end_line: Some(vec![None, None, None]),
            col: Some(vec![Some(0), None, Some(-7)]),
            end_col: None,
            opcode: Some(vec![None, Some(255), None]),
        };
        let opcodes = FrameDef { opcode: Some(vec![None; 3]), ..some.clone() };
        for body in [some, opcodes, FrameDef::default()] {
            let mut text = Vec::new();
            write_frame_def(&mut text, &body);
            assert_eq!(text, serde_json::to_vec(&body).expect("json"));
        }
    }
}
