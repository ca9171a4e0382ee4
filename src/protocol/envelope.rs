//! The envelope of a line (type, run, sequence number) for code that passes messages on, and the loss messages that it
//! inserts where it cannot pass on all of them.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::protocol::columns::RawColumns;
use crate::protocol::decode::{Message, decode};
use crate::protocol::encode::{Envelope, write_json};
use crate::protocol::message::{Loss, LossAmount};

/// A line as it looks from outside. Only lines that were written by this program are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The type.
    pub kind: &'a str,
    /// The run that it belongs to.
    pub run_id: &'a str,
    /// Its number.
    pub seq: u64,
    /// The batch that it belongs to.
    pub batch: Option<u64>,
    /// How many messages of its batch follow a `meta`.
    pub messages: Option<u64>,
    /// Samples of a `raw` message.
    pub samples: Option<u64>,
    /// Start of what it reports.
    pub start_usec: Option<u64>,
    /// How long that lasts; a `raw` message does not say.
    pub duration_usec: Option<u64>,
}

impl<'a> Head<'a> {
    /// The head of a line; `None` if it is not as this program writes it.
    pub fn of(line: &'a [u8]) -> Option<Head<'a>> {
        let mut rest = Rest(line);
        let kind = rest.text(b"{\"type\":\"")?;
        let run_id = rest.text(b",\"v\":2,\"run_id\":\"")?;
        let seq = rest.number(b",\"seq\":")?;
        let batch = rest.number(b",\"batch\":");
        let mut head = Head {
            kind,
            run_id,
            seq,
            batch,
            messages: None,
            samples: None,
            start_usec: None,
            duration_usec: None,
        };
        match kind {
            "meta" => {
                head.messages = Some(rest.number(b",\"messages\":")?);
                head.start_usec = rest.number(b",\"start_usec\":");
                head.duration_usec = rest.number(b",\"duration_usec\":");
            }
            "raw" => {
                head.start_usec = Some(rest.number(b",\"start_usec\":")?);
                head.samples = Some(rest.number(b",\"samples\":")?);
            }
            "agg" => {
                rest.text(b",\"kind\":\"")?;
                if rest.text(b",\"scope\":\"")? == "window" {
                    head.start_usec = rest.number(b",\"start_usec\":");
                    head.duration_usec = rest.number(b",\"duration_usec\":");
                }
            }
            _ => {}
        }
        Some(head)
    }
}

/// What of a line is still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// Text without escapes, after this.
    fn text(&mut self, behind: &[u8]) -> Option<&'a str> {
        let rest = self.0.strip_prefix(behind)?;
        let end = memchr::memchr(b'"', rest)?;
        self.0 = &rest[end + 1..];
        std::str::from_utf8(&rest[..end]).ok()
    }

    /// Digits, after this. Nothing is read where there are none.
    fn number(&mut self, behind: &[u8]) -> Option<u64> {
        let rest = self.0.strip_prefix(behind)?;
        let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        let number = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        self.0 = &rest[end..];
        Some(number)
    }
}

/// The line that stands in the place of messages that are lost to a reader; its number is that of the last
/// of them.
pub fn loss_line(run_id: &str, seq: u64, loss: &Loss) -> Vec<u8> {
    line("loss", run_id, seq, loss)
}

/// A `heartbeat` or `end` line as a reader has to see it who did not get these many messages, and lost so
/// much for each reason. Other lines stay as they are.
///
/// # Errors
///
/// A line that is no message.
pub fn amended(bytes: &[u8], dropped: u64, lost: &BTreeMap<String, LossAmount>) -> Result<Vec<u8>> {
    let decoded = decode(bytes, &mut RawColumns::default())?;
    let envelope = &decoded.envelope;
    let seq = envelope.seq.ok_or_else(|| Error::stream("a message without a number"))?;
    Ok(match decoded.message {
        Message::Heartbeat(mut body) => {
            body.dropped_messages = body.dropped_messages.saturating_add(dropped);
            line("heartbeat", &envelope.run_id, seq, &body)
        }
        Message::End(mut body) => {
            let totals = body.lost.get_or_insert_default();
            for (reason, amount) in lost {
                totals.entry(reason.clone()).or_default().add(amount);
            }
            if totals.is_empty() {
                body.lost = None;
            }
            line("end", &envelope.run_id, seq, &body)
        }
        _ => bytes.to_vec(),
    })
}

fn line(kind: &str, run_id: &str, seq: u64, body: &impl serde::Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    let body_at = Envelope { type_: kind, run_id, seq }.open(&mut out);
    write_json(&mut out, body);
    // The body's opening brace becomes the comma after the envelope.
    out[body_at] = b',';
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heads_of_our_own_lines_are_known() {
        let text = include_str!("../../schema/examples.jsonl");
        let mut samples = 0;
        for line in text.lines() {
            let head = Head::of(line.as_bytes()).expect("our own");
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(value["type"], head.kind);
            assert_eq!(value["run_id"], head.run_id);
            assert_eq!(value["seq"].as_u64(), Some(head.seq));
            assert_eq!(value["batch"].as_u64(), head.batch);
            assert_eq!(head.messages.is_some(), head.kind == "meta");
            if head.kind == "meta" {
                assert_eq!(value["messages"].as_u64(), head.messages);
            }
            if head.kind == "raw" {
                assert_eq!(value["samples"].as_u64(), head.samples);
            }
            let is_timed =
                matches!(head.kind, "raw" | "meta") || head.kind == "agg" && value["scope"] == "window";
            assert_eq!(head.start_usec, is_timed.then(|| value["start_usec"].as_u64()).flatten());
            samples += head.samples.unwrap_or(0);
        }
        assert_eq!(samples, 16);
        assert_eq!(Head::of(b"{\"v\":2}"), None);
        assert_eq!(Head::of(b"{\"type\":\"end\",\"v\":0,\"run_id\":\"a\"}"), None);
    }

    #[test]
    fn lines_without_a_loss_stay_what_they_are() {
        let text = include_str!("../../schema/examples.jsonl");
        for line in text.split_inclusive('\n') {
            let same = amended(line.as_bytes(), 0, &BTreeMap::new()).expect("a message");
            // The order of the reasons of a loss says nothing.
            assert_eq!(same.len(), line.len());
            let value = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).expect("JSON");
            assert_eq!(value(&same), value(line.as_bytes()));
        }
    }
}
