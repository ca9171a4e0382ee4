//! Splits a stream or a chunked profile into whole messages for subscribers.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use crate::cli::args::{DropPolicy as Policy, Format, Live as Args};
use crate::cli::io::Deadline;
use crate::cli::net::{
    Amount, Class, DropPolicy, Item, LossCause, LossFormatter, LostMessages, Network, RunLosses, SinkOptions,
    Sinks, Undelivered,
};
use crate::error::{Error, Result};
use crate::model::TimeSpan;
use crate::protocol::message::{Loss, LossAmount, LossReason};
use crate::protocol::{Head, ToMsgpack, amended, loss_line};

/// Takes the text of a stream and hands its messages on, those of a batch all at once.
pub(crate) struct Live {
    sinks: Sinks,
    format: Format,
    /// A line that is not whole yet.
    rest: Vec<u8>,
    run: Option<Arc<str>>,
    /// Messages of a batch that is not whole yet, and when what they tell of ends, as far as they know.
    open: Vec<(Item, Option<u64>)>,
    /// How many messages of it are still to come.
    due: u64,
    batch_end: Option<u64>,
}

impl Live {
    /// Sinks for nobody yet. A stream that `is_live` waits for no reader unless asked to.
    /// For it the oldest is dropped of what a slow reader has not taken; any other waits for its readers.
    pub fn new(args: &Args, network: Network, format: Format, is_live: bool, limit: Deadline) -> Self {
        let options = SinkOptions {
            network,
            policy: match args.drop_policy {
                Some(Policy::Oldest) => DropPolicy::Oldest,
                None if is_live => DropPolicy::Oldest,
                Some(Policy::Block) | None => DropPolicy::Block,
            },
            buffer: args.buffer,
            stall: args.stall_timeout,
            subscribers: args.max_readers,
            wait: args.wait_readers.unwrap_or(if is_live { 0 } else { 1 }),
            is_binary: format != Format::Jsonl,
            limit,
        };
        Live {
            sinks: Sinks::new(options, Arc::new(StreamLossFormatter { format })),
            format,
            rest: Vec::new(),
            run: None,
            open: Vec::new(),
            due: 0,
            batch_end: None,
        }
    }

    /// Where readers are added.
    pub fn sinks(&mut self) -> &mut Sinks {
        &mut self.sinks
    }

    /// Waits for as many readers as were asked for, once.
    ///
    /// # Errors
    ///
    /// An address that nobody answers at.
    pub fn wait_for_subscribers(&mut self) -> Result<()> {
        self.sinks.wait_for_subscribers()
    }

    /// Hands on a message that a reader can begin with, or that belongs to the one before it.
    ///
    /// # Errors
    ///
    /// An address that nobody answers at, and that nobody reads any more.
    pub fn message(&mut self, item: Item) -> Result<()> {
        self.hand_on(vec![item])
    }

    fn hand_on(&mut self, items: Vec<Item>) -> Result<()> {
        if self.sinks.is_deserted() {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        self.sinks.send(items)
    }

    /// Hands over what waits; returns what did not arrive.
    pub fn finish(mut self) -> Result<Vec<Undelivered>> {
        self.send()?;
        Ok(self.sinks.finish())
    }

    /// Takes text up to where lines are whole; the rest is kept.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !part.ends_with(b"\n") {
                self.rest.extend_from_slice(part);
            } else if self.rest.is_empty() {
                self.line(part)?;
            } else {
                let mut line = std::mem::take(&mut self.rest);
                line.extend_from_slice(part);
                self.line(&line)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        let head = Head::of(line).ok_or_else(|| io::Error::other("a line that is not a message"))?;
        let end = head.start_usec.zip(head.duration_usec).map(|(start, length)| start.saturating_add(length));
        if let Some(messages) = head.messages {
            self.due = messages;
            self.batch_end = end;
        } else if head.batch.is_some() {
            self.due = self.due.saturating_sub(1);
        }
        let end = if head.kind == "raw" { self.batch_end } else { end };
        let item = self.item(&head, line)?;
        self.open.push((item, end));
        Ok(())
    }

    /// Hands on what there is.
    fn send(&mut self) -> Result<()> {
        // A raw message does not say how long it goes on: until the next one begins, or its batch ends.
        let mut next = None;
        for (item, end) in self.open.iter_mut().rev() {
            let Some(TimeSpan { first_us, .. }) = item.span else { continue };
            if item.samples.is_some() {
                let last_us = next.or(*end).unwrap_or(first_us).max(first_us);
                item.span = Some(TimeSpan { first_us, last_us });
                next = Some(first_us);
            } else if item.class == Class::Opens {
                // It holds no data itself.
                item.span = None;
                next = None;
            } else {
                item.span = Some(TimeSpan { first_us, last_us: end.unwrap_or(first_us) });
            }
        }
        let items: Vec<Item> = self.open.drain(..).map(|(item, _)| item).collect();
        if items.is_empty() { Ok(()) } else { self.hand_on(items) }
    }

    fn item(&mut self, head: &Head<'_>, line: &[u8]) -> io::Result<Item> {
        let run = match &self.run {
            Some(run) if **run == *head.run_id => Arc::clone(run),
            _ => Arc::clone(self.run.insert(head.run_id.into())),
        };
        let class = match head.kind {
            "meta" | "trace" => Class::Opens,
            "raw" | "agg" | "call" => Class::Data,
            "heartbeat" => Class::Pulse,
            "end" => Class::Ends,
            _ => Class::Kept,
        };
        // What may have to be amended is written in its form then.
        let is_line = self.format == Format::Jsonl || is_amended(class);
        Ok(Item {
            run,
            seq: head.seq,
            class,
            in_batch: head.batch.is_some(),
            samples: head.samples,
            span: head.start_usec.map(TimeSpan::at),
            text: if is_line { line.into() } else { frame(line)?.into() },
        })
    }
}

impl Write for Live {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let told = |error: Error| match error.io().map(io::Error::kind) {
            Some(kind) => io::Error::new(kind, error.detail().to_string()),
            None => io::Error::other(error.detail().to_string()),
        };
        // Nobody waits long for what is only begun.
        self.wait_for_subscribers().map_err(told)?;
        self.take(bytes)?;
        if self.due == 0 {
            self.send().map_err(told)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is said to a reader who did not get all.
struct StreamLossFormatter {
    format: Format,
}

/// Whether such a message is amended for a reader who did not get all.
fn is_amended(class: Class) -> bool {
    matches!(class, Class::Pulse | Class::Ends)
}

/// A line as MessagePack.
fn frame(line: &[u8]) -> io::Result<Vec<u8>> {
    let mut frames = ToMsgpack::new(Vec::new()).joined_anywhere();
    frames.write_all(line)?;
    Ok(frames.into_sink())
}

fn reason(why: LossCause) -> LossReason {
    match why {
        LossCause::Backpressure => LossReason::Backpressure,
        LossCause::Gap => LossReason::Gap,
    }
}

impl LossFormatter for StreamLossFormatter {
    fn loss(&self, lost: &LostMessages) -> Vec<u8> {
        let amount = Amount { messages: lost.messages(), samples: lost.samples };
        let body = Loss {
            reason: reason(lost.cause).name().to_string(),
            amount: told(amount),
            first_seq: Some(lost.first_seq),
            last_seq: Some(lost.last_seq),
            start_usec: lost.span.map(|span| span.first_us),
            duration_usec: lost.span.map(TimeSpan::duration_us),
            ..Loss::default()
        };
        let line = loss_line(&lost.run, lost.last_seq, &body);
        match self.format {
            Format::Jsonl => line,
            // Its own line is understood, as below.
            Format::Msgpack => frame(&line).unwrap_or_default(),
            // Their numbers tell of chunks that are missing.
            Format::Binary => Vec::new(),
        }
    }

    fn amended(&self, item: &Item, totals: &RunLosses) -> Option<Vec<u8>> {
        if !is_amended(item.class) || self.format == Format::Binary {
            return None;
        }
        let framed = |line: &[u8]| (self.format == Format::Msgpack).then(|| frame(line).ok()).flatten();
        if *totals == RunLosses::default() {
            return framed(&item.text);
        }
        let all = [(LossCause::Backpressure, totals.backpressure), (LossCause::Gap, totals.gap)];
        let lost: BTreeMap<String, LossAmount> = all
            .into_iter()
            .filter(|(_, amount)| amount.messages > 0)
            .map(|(why, amount)| (reason(why).name().to_string(), told(amount)))
            .collect();
        // Its own line is understood, or it would not be here.
        let line = amended(&item.text, totals.backpressure.messages, &lost).ok()?;
        Some(framed(&line).unwrap_or(line))
    }
}

fn told(amount: Amount) -> LossAmount {
    LossAmount { lost_messages: Some(amount.messages), lost_samples: amount.samples, ..LossAmount::default() }
}
