//! The state of a stream that is being read: its run, its batch, its definitions, and the messages that are missing.

use crate::convert::stream_definitions::{Definitions, Missing};
use crate::error::{Error, Position, Result};
use crate::protocol::message::{End, IdScope, LossAmount, LossReason, Meta, Stats};
use crate::protocol::{Decoded, Message, RawColumns, quoted};

/// Losses that are reported one by one; more are counted.
const MAX_REPORTED: usize = 20;

/// Follows one run of a stream.
#[derive(Debug)]
pub(crate) struct Session {
    chosen: Option<String>,
    run: Option<String>,
    next_seq: u64,
    batch: Option<OpenBatch>,
    definitions: Definitions,
    end: Option<End>,
    promised: u64,
    losses: Vec<Error>,
    untold: u64,
}

#[derive(Debug)]
struct OpenBatch {
    index: u64,
    line: u64,
    messages_left: u64,
    samples_left: u64,
    has_raw: bool,
}

/// What the reader has to do with a message.
pub(crate) enum Step {
    Ignore,
    Opened(Box<Meta>),
    Samples,
    /// A table of counts.
    Table,
}

/// What is known once the stream is over.
pub(crate) struct Ended {
    pub promised_samples: u64,
    pub stats: Option<Stats>,
    pub losses: Vec<Error>,
}

impl Session {
    pub fn new(chosen: Option<String>) -> Self {
        Session {
            chosen,
            run: None,
            next_seq: 0,
            batch: None,
            definitions: Definitions::default(),
            end: None,
            promised: 0,
            losses: Vec::new(),
            untold: 0,
        }
    }

    /// Whether it follows this run.
    pub fn follows(&self, id: &str) -> bool {
        self.run.as_deref() == Some(id)
    }

    /// The run that was chosen.
    pub fn chosen(&self) -> Option<&str> {
        self.chosen.as_deref()
    }

    /// Notes that something is damaged, missing or left out.
    pub fn lose(&mut self, loss: Error) {
        if self.losses.len() < MAX_REPORTED {
            self.losses.push(loss);
        } else {
            self.untold += 1;
        }
    }

    fn lose_at(&mut self, line: u64, loss: impl Into<String>) {
        self.lose(Error::stream(loss).at(Position::Line(line)));
    }

    pub fn definitions_mut(&mut self) -> &mut Definitions {
        &mut self.definitions
    }

    /// Takes the next message. Its raw columns, if it has some, are in `columns`.
    pub fn message(&mut self, line: u64, decoded: &Decoded, columns: &RawColumns) -> Result<Step> {
        let id = &decoded.envelope.run_id;
        match (&self.chosen, &self.run) {
            (Some(chosen), _) if chosen != id => return Ok(Step::Ignore),
            (None, Some(run)) if run != id => {
                let fault = format!("the stream holds several runs, '{run}' and '{id}' among them");
                return Err(Error::stream(fault).at(Position::Line(line)).hint("choose one with --run-id"));
            }
            _ => {}
        }
        self.run.get_or_insert_with(|| id.clone());
        if self.end.is_some() {
            self.lose_at(line, "a message after the end of its run");
            return Ok(Step::Ignore);
        }
        let seq = decoded.envelope.seq.unwrap_or(self.next_seq);
        // Such a loss is reported below, with all that it says.
        let told_from = match &decoded.message {
            Message::Loss(loss) if loss.stands_for(seq) => loss.first_seq.unwrap_or(seq),
            _ => seq,
        };
        if !self.takes_seq(line, seq, told_from) {
            return Ok(Step::Ignore);
        }
        match &decoded.message {
            Message::Meta(meta) => {
                self.close_batch();
                if meta.id_scope == IdScope::Batch {
                    self.definitions.forget();
                }
                let samples = meta.samples.unwrap_or(0);
                self.promised = self.promised.saturating_add(samples);
                self.batch = Some(OpenBatch {
                    index: meta.batch,
                    line,
                    messages_left: meta.messages,
                    samples_left: samples,
                    has_raw: false,
                });
                return Ok(Step::Opened(meta.clone()));
            }
            Message::StrDef(body) => {
                if self.belongs(line, body.batch) {
                    self.define(line, |definitions| definitions.strings(body));
                }
            }
            Message::FrameDef(body) => {
                if self.belongs(line, body.batch) {
                    self.define(line, |definitions| definitions.frames(body));
                }
            }
            Message::Raw => {
                if self.belongs(line, columns.batch) {
                    if let Some(batch) = &mut self.batch {
                        batch.has_raw = true;
                        batch.samples_left = batch.samples_left.saturating_sub(columns.samples);
                    }
                    self.tell_missing(line, &columns.stack_frame_id);
                    return Ok(Step::Samples);
                }
            }
            Message::Agg(body) => {
                if self.belongs(line, body.batch) {
                    return Ok(Step::Table);
                }
            }
            Message::Loss(body) => {
                if let Some(batch) = body.batch {
                    self.belongs(line, batch);
                } else if let (true, Some(batch)) = (body.stands_for(seq), &mut self.batch) {
                    // Its messages and samples may be of later batches, too; these of the open one are reported.
                    let LossAmount { lost_messages, lost_samples, .. } = body.amount;
                    batch.messages_left = batch.messages_left.saturating_sub(lost_messages.unwrap_or(0));
                    batch.samples_left = batch.samples_left.saturating_sub(lost_samples.unwrap_or(0));
                }
                let harmless = [LossReason::SamplerMissed, LossReason::SamplerFailed, LossReason::Depth];
                if harmless.iter().all(|reason| reason.name() != body.reason) {
                    let samples = body
                        .amount
                        .lost_samples
                        .map_or(String::new(), |samples| format!(" of {samples} samples"));
                    self.lose_at(
                        line,
                        format!("the stream reports a loss{samples} ({})", quoted(&body.reason)),
                    );
                }
            }
            Message::Error(body) => {
                if body.fatal {
                    self.lose_at(line, format!("the stream reports an error: {}", quoted(&body.detail)));
                }
            }
            Message::End(end) => {
                self.close_batch();
                self.end = Some((**end).clone());
            }
            Message::Heartbeat(_) | Message::Unknown(_) | Message::CPython(_) => {}
        }
        Ok(Step::Ignore)
    }

    /// Tells what of these frames is not defined, before they are used.
    pub fn tell_missing(&mut self, line: u64, frames: &[u32]) {
        let Missing { frames, strings } = self.definitions.missing(frames);
        for (count, what) in [(frames, "frame"), (strings, "string")] {
            match count {
                0 => {}
                1 => self.lose_at(line, format!("1 {what} is not defined; its name is lost")),
                _ => self.lose_at(line, format!("{count} {what}s are not defined; their names are lost")),
            }
        }
    }

    /// Whether a message with this number may come now; notes those that are missing before it, but for
    /// those from `told_from` on, which it reports itself.
    fn takes_seq(&mut self, line: u64, seq: u64, told_from: u64) -> bool {
        if seq < self.next_seq {
            self.lose_at(line, format!("message {seq} comes after message {}", self.next_seq - 1));
            return false;
        }
        let missing = told_from.saturating_sub(self.next_seq);
        if missing > 0 {
            self.lose_at(line, format!("{missing} messages are missing before message {told_from}"));
        }
        self.next_seq = seq.saturating_add(1);
        true
    }

    /// Whether the message belongs to the open batch; counts it.
    fn belongs(&mut self, line: u64, index: u64) -> bool {
        let open = self.batch.as_mut().filter(|batch| batch.index == index);
        if let Some(batch) = open {
            batch.messages_left = batch.messages_left.saturating_sub(1);
            return true;
        }
        self.lose_at(line, format!("a message of batch {index}, whose meta is missing"));
        false
    }

    fn define(&mut self, line: u64, define: impl FnOnce(&mut Definitions) -> Result<()>) {
        if let Err(fault) = define(&mut self.definitions) {
            self.lose(fault.at(Position::Line(line)));
        }
    }

    fn close_batch(&mut self) {
        if let Some(batch) = self.batch.take() {
            if batch.has_raw && batch.samples_left > 0 {
                self.lose_at(
                    batch.line,
                    format!("{} samples of batch {} are missing", batch.samples_left, batch.index),
                );
            } else if batch.messages_left > 0 {
                self.lose_at(
                    batch.line,
                    format!("{} messages of batch {} are missing", batch.messages_left, batch.index),
                );
            }
        }
    }

    /// Ends the stream, of whose stacks `cut` were too deep, and of whose samples `written` are in
    /// the profile.
    pub fn finish(mut self, cut: u64, written: u64) -> Ended {
        self.close_batch();
        if cut > 0 {
            self.lose(Error::stream(format!(
                "{cut} samples had more than 256 frames; the outermost ones are left out"
            )));
        }
        match self.end.take() {
            None => self.lose(Error::stream("the stream has no end message: it was cut off")),
            Some(end) => {
                self.promised = self.promised.max(end.samples.unwrap_or(end.samples_total));
                if end.samples.is_some_and(|samples| samples != written)
                    && written > 0
                    && self.losses.is_empty()
                {
                    self.lose(Error::stream(format!(
                        "the stream's end counts {} samples, but {written} came",
                        end.samples.unwrap_or(0)
                    )));
                }
                if !end.complete && self.losses.is_empty() {
                    self.lose(Error::stream("the stream says that it is not complete"));
                }
                self.end = Some(end);
            }
        }
        if self.untold > 0 {
            self.losses.push(Error::stream(format!("{} more faults of the stream", self.untold)));
        }
        Ended {
            promised_samples: self.promised,
            stats: self.end.and_then(|end| end.stats),
            losses: self.losses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::decode;

    const META: &str = r#""type":"meta","batch":0,"messages":1,"samples":2,"id_scope":"run""#;
    const RAW: &str = r#""type":"raw","batch":0,"start_usec":5,"samples":2,"stack_frame_id":[],"threads":[{"thread_id":"1","interpreter_id":0,"ts_delta_usec":[0,1],"status":[0,0]}]"#;
    const END: &str =
        r#""type":"end","complete":true,"batches":1,"messages":3,"samples":2,"samples_total":0"#;

    /// What is reported of a run of these messages, in this order, with their numbers; `end` comes after them.
    fn losses(messages: &[(u64, &str)]) -> Vec<String> {
        let mut session = Session::new(None);
        let mut columns = RawColumns::default();
        for (line, (seq, body)) in (1..).zip(messages) {
            let (kind, rest) = body.split_once(',').expect("a body");
            let text = format!("{{{kind},\"v\":2,\"run_id\":\"r\",\"seq\":{seq},{rest}}}").into_bytes();
            let decoded = decode(&text, &mut columns).expect(body);
            session.message(line, &decoded, &columns).expect("one run");
        }
        session.finish(0, 2).losses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_whole_run_has_no_loss() {
        assert_eq!(losses(&[(0, META), (1, RAW), (2, END)]), [""; 0]);
    }

    #[test]
    fn what_is_missing_is_reported_with_its_line() {
        let gone = "1 messages are missing before message 2 (line 2)";
        assert_eq!(losses(&[(0, META), (2, END)]), [gone, "1 messages of batch 0 are missing (line 1)"]);
        assert_eq!(losses(&[(0, META), (1, RAW)]), ["the stream has no end message: it was cut off"]);
        assert_eq!(
            losses(&[(0, META), (1, RAW), (1, RAW), (2, END)]),
            ["message 1 comes after message 1 (line 3)"]
        );
    }

    #[test]
    fn a_message_without_its_meta_belongs_to_no_batch() {
        let other = RAW.replace("\"batch\":0", "\"batch\":1");
        assert_eq!(
            losses(&[(0, META), (1, RAW), (2, &other), (3, END)]),
            ["a message of batch 1, whose meta is missing (line 3)"]
        );
    }

    #[test]
    fn a_loss_message_accounts_for_the_hole_before_it() {
        let loss = r#""type":"loss","reason":"backpressure","lost_messages":1,"lost_samples":2,"first_seq":1,"last_seq":1"#;
        assert_eq!(
            losses(&[(0, META), (1, loss), (2, END)]),
            ["the stream reports a loss of 2 samples (backpressure) (line 2)"]
        );
    }
}
