//! Rules of a batch: its contents match what its `meta` announces.

use crate::protocol::check::raw::Sums;
use crate::protocol::check::report::Report;
use crate::protocol::decode::Message;
use crate::protocol::message::{Meta, Timing};
use crate::protocol::stream_types::MessageType;

/// The open batch of a run.
#[derive(Debug)]
pub(crate) struct Batch {
    pub meta: Meta,
    /// Line of the meta.
    pub line: u64,
    /// A message is missing or was not understood: nothing follows from what is not there.
    pub doubtful: bool,
    pub has_raw: bool,
    pub sums: Sums,
    /// The number that it should have, where its meta is wrong about that.
    due: u64,
    messages: u64,
    /// The type that came last in the order of a batch.
    last: MessageType,
    /// A message that stands between batches came.
    between: Option<&'static str>,
}

impl Batch {
    /// The batch that `meta`, on this line, opens where batch `due` has to come.
    pub fn new(meta: &Meta, due: u64, line: u64) -> Self {
        Batch {
            // What it says of the run is kept once.
            meta: Meta {
                batch: meta.batch,
                messages: meta.messages,
                start_usec: meta.start_usec,
                duration_usec: meta.duration_usec,
                samples: meta.samples,
                thread_count: meta.thread_count,
                run_start_usec: meta.run_start_usec,
                wall_usec: meta.wall_usec,
                ..Meta::default()
            },
            line,
            doubtful: false,
            has_raw: false,
            sums: Sums::default(),
            due,
            messages: 0,
            last: MessageType::Meta,
            between: None,
        }
    }

    /// Whether a message of batch `index` belongs here.
    pub fn is_numbered(&self, index: u64) -> bool {
        index == self.meta.batch || index == self.due
    }

    /// A message without a batch came. Types that this version doesn't know may stand anywhere.
    pub fn between(&mut self, message: &Message) {
        if let Some(kind) = message.kind() {
            self.between.get_or_insert(kind.name());
        }
    }

    /// A message of the batch came.
    pub fn enter(&mut self, message: &Message, index: u64, report: &mut Report<'_>) {
        self.messages += 1;
        if !self.is_numbered(index) {
            report.say(format!("a message of batch {index} within batch {}", self.meta.batch));
        }
        if let Some(between) = self.between.take() {
            report.say(format!("a message of batch {index} after {between}, which stands between batches"));
        }
        // The types are declared in the order that they have in a batch.
        let Some(kind) = message.kind() else { return };
        if kind < self.last {
            report.say(format!("{} after {} in one batch", kind.name(), self.last.name()));
        } else {
            self.last = kind;
        }
    }

    /// Whether messages are still to come.
    pub fn is_incomplete(&self) -> bool {
        self.messages < self.meta.messages
    }

    /// What the meta says of the samples.
    pub fn declared(&self) -> Sums {
        let Timing { samples, start_usec, duration_usec, .. } = self.meta.timing().unwrap_or_default();
        let span = (samples > 0).then(|| (start_usec, start_usec.saturating_add(duration_usec)));
        Sums { samples, span, ..Sums::default() }
    }

    pub fn check_messages(&self, report: &mut Report<'_>) {
        if self.messages != self.meta.messages {
            let (says, is) = (self.meta.messages, self.messages);
            report.at(self.line, format!("messages is {says}, but {is} of the batch follow"));
        }
    }

    /// Holds the meta against the raw messages.
    pub fn check_sums(&self, threads_are_counted: bool, report: &mut Report<'_>) {
        let Some(says) = self.meta.timing() else { return };
        let (low, high) = self.sums.span.unwrap_or((says.run_start_usec, says.run_start_usec));
        let mut equal = |what: &str, says: u64, is: u64| {
            if says != is {
                report.at(self.line, format!("{what} is {says}, but the batch's raw messages give {is}"));
            }
        };
        equal("samples", says.samples, self.sums.samples);
        equal("start_usec", says.start_usec, low);
        equal("duration_usec", says.duration_usec, high - low);
        if threads_are_counted {
            equal("thread_count", says.thread_count, self.sums.threads);
        }
    }
}
