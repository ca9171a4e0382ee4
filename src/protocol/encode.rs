//! Encodes messages as lines.

use serde::Serialize;

use crate::model::{NONE, ThreadKey};
use crate::protocol::json::write_ints;
use crate::protocol::message::VERSION;
use crate::protocol::stream_types::MessageType;

/// In place of the body's opening brace.
const BEHIND_ENVELOPE: u8 = b',';

/// Numbers the messages of one run and writes them as lines.
#[derive(Debug)]
pub struct Encoder {
    run_id: String,
    next_seq: u64,
}

impl Encoder {
    /// An encoder for a run that begins. `run_id` must be 1 to 64 of the characters `A-Z a-z 0-9 - _`.
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
        fixed + message.name().len() + self.run_id.len() + 1 + u64::MAX.ilog10() as usize
    }

    /// Appends a message to `out`.
    pub fn message(&mut self, out: &mut Vec<u8>, message: MessageType, body: &impl Serialize) {
        let at = self.open(out, message);
        write_json(out, body);
        close(out, at);
    }

    /// Appends a message to `out` whose body is JSON already: an object with at least one key.
    pub fn text(&mut self, out: &mut Vec<u8>, message: MessageType, body: &[u8]) {
        let at = self.open(out, message);
        out.extend_from_slice(body);
        close(out, at);
    }

    /// Appends a `raw` message to `out`.
    pub fn raw(&mut self, out: &mut Vec<u8>, body: &Raw<'_>) {
        let at = self.open(out, MessageType::Raw);
        body.write(out);
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
pub(crate) struct Envelope<'a> {
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

/// The body's opening brace becomes the comma after the envelope.
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
        write_ints::numbers(out, self.node_frame.iter().map(|frame| u64::from(*frame)));
        if self.node_parent.iter().any(|parent| *parent != NONE) {
            key(out, b",\"stack_parent\":");
            let parents = self.node_parent.iter();
            write_ints::optional(out, parents.map(|parent| (*parent != NONE).then_some(i64::from(*parent))));
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
        write_ints::deltas(out, start_us, self.times);
        key(out, b",\"status\":");
        write_ints::bytes(out, self.status);
        if self.stacks.iter().any(|(node, _)| *node != NONE) {
            key(out, b",\"stack\":");
            write_ints::runs(out, self.stacks, NONE);
        }
        out.push(b'}');
    }
}

fn key(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
}
