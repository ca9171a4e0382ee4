//! Rules of a run: its sequence numbers, its batches, and the totals in its `end`.

use std::collections::BTreeMap;

use crate::limits::RUN_KEPT;
use crate::protocol::check::batch::Batch;
use crate::protocol::check::define::{Definitions, hash};
use crate::protocol::check::raw::{Room, Sums, Threads, check_tree};
use crate::protocol::check::report::Report;
use crate::protocol::check::shape::Shape;
use crate::protocol::check::tables::Tables;
use crate::protocol::columns::RawColumns;
use crate::protocol::decode::Message;
use crate::protocol::message::{End, ErrorMessage, Heartbeat, IdScope, Loss, LossAmount, Meta};
use crate::protocol::stream_types::{MessageType, StreamTypes};

/// Holes in the numbers that are kept until a loss message may tell of them.
const OPEN_GAPS: usize = 1000;
/// Reasons of loss that are added up.
const REASONS: usize = 64;
/// Bytes of a choice of types that is held against what comes.
const TYPES: usize = 1000;
/// Bytes of such a reason.
const REASON: usize = 64;

/// Follows one run.
#[derive(Debug)]
pub(crate) struct RunChecker {
    run_id: String,
    next_seq: u64,
    last_line: u64,
    gaps: Vec<Gap>,
    /// A message is missing or was not understood: sums of the run cannot be known.
    doubtful: bool,
    /// What the first meta says of the run, and its parsed types, unless they hold names of another version.
    first: Option<Facts>,
    is_trace: bool,
    /// Whether it says when and how much was sampled.
    has_times: bool,
    types: Option<StreamTypes>,
    metas: u64,
    /// The numbers that the next batch may have: after one that is wrong, two.
    due: [u64; 2],
    batch: Option<Batch>,
    definitions: Definitions,
    threads: Threads,
    tables: Tables,
    sums: Sums,
    lost: BTreeMap<String, LossAmount>,
    fatal: bool,
    torn: bool,
    heartbeat: Option<Heartbeat>,
    /// Types that were reported as not requested.
    told: Vec<MessageType>,
}

/// What each meta says of the run.
#[derive(Debug)]
struct Facts {
    run_start_usec: u64,
    /// Of the value of each; a value may be long.
    hashes: [(&'static str, u64); 9],
}

impl Facts {
    fn of(meta: &Meta) -> Self {
        Facts {
            run_start_usec: meta.run_start_usec.unwrap_or(0),
            hashes: [
                ("run_start_usec", hash(&meta.run_start_usec)),
                ("sample_interval_usec", hash(&meta.sample_interval_usec)),
                ("mode", hash(&meta.mode)),
                ("capture", hash(&meta.capture)),
                ("python", hash(&meta.python)),
                ("id_scope", hash(&(meta.id_scope == IdScope::Batch))),
                ("stream_types", hash(&meta.stream_types)),
                ("clock", hash(&meta.clock)),
                ("labels", hash(&meta.labels)),
            ],
        }
    }

    /// Tells which of them another batch says otherwise.
    fn report_changes(&self, now: &Facts, report: &mut Report<'_>) {
        let pairs = self.hashes.iter().zip(&now.hashes);
        for ((fact, _), _) in pairs.filter(|(first, now)| first != now) {
            report.say(format!("{fact} is not what the run's first meta says"));
        }
    }
}

/// Numbers that are missing before a line.
#[derive(Clone, Copy, Debug)]
struct Gap {
    first: u64,
    last: u64,
    line: u64,
}

impl RunChecker {
    /// A run whose first message stands on this line.
    pub fn new(run_id: &str, line: u64) -> Self {
        RunChecker {
            run_id: run_id.to_string(),
            next_seq: 0,
            last_line: line,
            gaps: Vec::new(),
            doubtful: false,
            first: None,
            is_trace: false,
            has_times: true,
            types: None,
            metas: 0,
            due: [0; 2],
            batch: None,
            definitions: Definitions::new(),
            threads: Threads::default(),
            tables: Tables::default(),
            sums: Sums::default(),
            lost: BTreeMap::new(),
            fatal: false,
            torn: false,
            heartbeat: None,
            told: Vec::new(),
        }
    }

    /// How much it keeps, in the units of [`KEPT`](crate::limits::KEPT).
    pub fn kept(&self) -> usize {
        let RunChecker { gaps, definitions, threads, tables, lost, .. } = self;
        RUN_KEPT + gaps.len() + definitions.kept() + threads.kept() + tables.kept() + lost.len()
    }

    /// Line of the run's last message.
    pub fn last_line(&self) -> u64 {
        self.last_line
    }

    /// Whether a message with this number is to be looked at. `unread` lines explain as many missing
    /// numbers.
    pub fn takes_seq(&mut self, seq: u64, unread: &mut u64, report: &mut Report<'_>) -> bool {
        self.last_line = report.line;
        if seq < self.next_seq {
            let last = self.next_seq - 1;
            let gap = self.gaps.iter().position(|gap| (gap.first..=gap.last).contains(&seq));
            match gap {
                Some(gap) => {
                    if self.gaps[gap].first == self.gaps[gap].last {
                        self.gaps.remove(gap);
                    }
                    report.say(format!("message {seq} comes late, after message {last}"));
                }
                None => report.say(format!("message {seq} comes again, after message {last}")),
            }
            return false;
        }
        let missing = seq - self.next_seq;
        if missing > 0 {
            self.doubt();
            if missing <= *unread {
                *unread -= missing;
            } else {
                if self.gaps.len() == OPEN_GAPS {
                    self.report_gaps(report);
                }
                self.gaps.push(Gap { first: self.next_seq, last: seq - 1, line: report.line });
            }
        }
        self.next_seq = seq.saturating_add(1);
        true
    }

    /// What a reader did not get because it was not there has no message of its own where it came after the
    /// beginning: only the end says how much.
    fn forgive_gaps(&mut self, end: &End) {
        let by_end = end.lost.as_ref().and_then(|lost| lost.get("gap")?.lost_messages);
        let by_losses = self.lost.get("gap").and_then(|sum| sum.lost_messages).unwrap_or(0);
        let first = self.gaps.first().filter(|gap| gap.first == 0).map(|gap| gap.last + 1);
        if first.is_some() && by_end.and_then(|all| all.checked_sub(by_losses)) == first {
            self.gaps.remove(0);
        }
    }

    fn report_gaps(&mut self, report: &mut Report<'_>) {
        for Gap { first, last, line } in self.gaps.drain(..) {
            let what = if first == last {
                format!("message {first} is missing before this one")
            } else {
                format!("messages {first} to {last} are missing before this one")
            };
            report.at(line, what);
        }
    }

    /// Something is missing here, or was not understood.
    fn doubt(&mut self) {
        self.doubtful = true;
        self.threads.lose_order();
        self.tables.doubt();
        if let Some(batch) = &mut self.batch {
            batch.doubtful = true;
        }
    }

    /// A message of the run that is broken in itself; whether it was the last.
    pub fn not_understood(&mut self, shape: &Shape, report: &mut Report<'_>) -> bool {
        self.doubt();
        match shape.kind.as_deref().and_then(MessageType::of_name) {
            Some(MessageType::Meta) => {
                self.close_batch(report);
                self.metas += 1;
                let index = shape.batch.unwrap_or(self.due[0]);
                self.due = [index.saturating_add(1); 2];
                false
            }
            Some(MessageType::End) => {
                self.close_batch(report);
                self.report_gaps(report);
                true
            }
            _ => false,
        }
    }

    /// Takes a message; the columns of a raw one are in `columns`.
    pub fn message(
        &mut self,
        message: &Message,
        columns: &RawColumns,
        batch: Option<u64>,
        room: &mut Room,
        report: &mut Report<'_>,
    ) {
        if let Message::Meta(meta) = message {
            self.meta(meta, report);
        }
        let stands_for_missing = self
            .next_seq
            .checked_sub(1)
            .is_some_and(|seq| matches!(message, Message::Loss(loss) if loss.stands_for(seq)));
        if stands_for_missing {
            self.doubt();
        }
        if let Some(kind) = message.kind().filter(|_| !stands_for_missing)
            && self.types.as_ref().is_some_and(|types| !types.has(kind))
            && !self.told.contains(&kind)
        {
            self.told.push(kind);
            report.say(format!("a message of the type {}, which stream_types leaves out", kind.name()));
        }
        if self.first.is_none() && !self.doubtful && !self.is_trace {
            if matches!(message, Message::Unknown(kind) if kind == "trace") {
                // What stands in for the meta of a run of calls.
                self.is_trace = true;
                return;
            }
            self.doubt();
            report.say(format!("the run '{}' does not begin with a meta message", self.run_id));
        }
        let enters =
            !matches!(message, Message::Meta(_)) && !stands_for_missing && self.enter(message, batch, report);
        match message {
            Message::StrDef(body) if enters => self.definitions.add_strings(body, report),
            Message::FrameDef(body) if enters => self.definitions.add_frames(body, report),
            Message::Raw => self.raw(columns, enters, room, report),
            Message::Agg(body) => {
                if enters {
                    self.definitions.use_frames(&body.frame_id, report.line);
                }
                let asked = self.types.as_ref().map(|types| {
                    types.window().map_or(0, |window| u64::try_from(window.as_micros()).unwrap_or(u64::MAX))
                });
                let timed = [
                    ("start_usec", body.start_usec.is_some()),
                    ("duration_usec", body.duration_usec.is_some()),
                    ("samples_empty", body.samples_empty.is_some()),
                ];
                let wrong = timed.iter().filter(|(_, is_there)| *is_there != self.has_times);
                for (key, is_there) in wrong.filter(|_| self.first.is_some()) {
                    let is = if *is_there { "there" } else { "missing" };
                    report.say(format!("key {key:?} is {is}, unlike the times of the run"));
                    self.tables.doubt();
                }
                if let Some(first) = &self.first {
                    self.tables.add(body, first.run_start_usec, asked, report);
                }
            }
            Message::Loss(body) => self.loss(body, report),
            Message::Heartbeat(body) => self.heartbeat(body, report),
            Message::Error(ErrorMessage { fatal, .. }) => self.fatal |= fatal,
            Message::End(body) => self.end(body, report),
            _ => {}
        }
    }

    /// Puts a message into the open batch, if it belongs to one; whether the batch is known.
    fn enter(&mut self, message: &Message, index: Option<u64>, report: &mut Report<'_>) -> bool {
        let Some(batch) = &mut self.batch else { return false };
        let Some(index) = index else {
            batch.between(message);
            return false;
        };
        if !batch.is_numbered(index) && batch.doubtful {
            // Its meta is among what is missing.
            self.close_batch(report);
            return false;
        }
        batch.enter(message, index, report);
        true
    }

    fn meta(&mut self, meta: &Meta, report: &mut Report<'_>) {
        self.close_batch(report);
        let is_due = self.due.contains(&meta.batch) || self.doubtful && meta.batch >= self.due[0];
        if !is_due {
            report.say(format!("batch {} where batch {} is due", meta.batch, self.due[0]));
        }
        self.batch = Some(Batch::new(meta, if is_due { meta.batch } else { self.due[0] }, report.line));
        self.due = [self.due[0], meta.batch].map(|index| index.saturating_add(1));
        if is_due {
            self.due = [meta.batch.saturating_add(1); 2];
        }
        self.metas += 1;
        let facts = Facts::of(meta);
        match &self.first {
            Some(first) => first.report_changes(&facts, report),
            None => {
                self.first_meta(meta, report);
                self.first = Some(facts);
            }
        }
        let is_part = meta.id_scope == IdScope::Batch;
        self.definitions.open_batch(is_part);
        if is_part {
            self.threads.open_part();
        }
    }

    fn first_meta(&mut self, meta: &Meta, report: &mut Report<'_>) {
        self.types = match meta.stream_types.as_deref() {
            None => Some(StreamTypes::default()),
            Some([]) => {
                report.say("stream_types is empty instead of left out");
                None
            }
            // Others than ours may be of any length.
            Some(items) => {
                Some(items.join(",")).filter(|list| list.len() <= TYPES).and_then(|list| list.parse().ok())
            }
        };
        if let Some(clock) = meta.clock.as_ref().filter(|clock| *clock != "monotonic") {
            report.say(format!("the clock {clock:?}; it is \"monotonic\""));
        }
        self.has_times = has_times(meta, report);
    }

    fn raw(&mut self, columns: &RawColumns, enters: bool, room: &mut Room, report: &mut Report<'_>) {
        check_tree(columns, room, report);
        if self.fatal {
            report.say("samples after a fatal error");
        }
        if enters {
            self.definitions.use_frames(&columns.stack_frame_id, report.line);
        }
        let sums = self.threads.add(columns, self.metas, report);
        if let Some(batch) = &mut self.batch {
            batch.sums.add(&sums);
            batch.has_raw = true;
        }
    }

    /// Whether messages of this type have to be there, where they have something to say.
    fn asks_for(&self, message: MessageType) -> bool {
        self.types.as_ref().is_some_and(|types| types.has(message))
    }

    fn close_batch(&mut self, report: &mut Report<'_>) {
        let Some(batch) = self.batch.take() else { return };
        self.definitions.close_batch(!batch.doubtful, report);
        self.tables.close_batch(report);
        if batch.doubtful {
            return;
        }
        batch.check_messages(report);
        if batch.has_raw || self.asks_for(MessageType::Raw) {
            batch.check_sums(self.threads.are_counted(), report);
            self.sums.add(&batch.sums);
        } else {
            self.sums.add(&batch.declared());
        }
    }

    fn loss(&mut self, body: &Loss, report: &mut Report<'_>) {
        if let (Some(first), Some(last)) = (body.first_seq, body.last_seq) {
            if first > last {
                report.say(format!("the first missing message is {first}, the last one {last}"));
            }
            self.gaps.retain(|gap| first > gap.first || gap.last > last);
            // Of a hole that began before, the rest is reported.
            for gap in self.gaps.iter_mut().filter(|gap| gap.first < first && first <= gap.last) {
                gap.last = if gap.last <= last { first - 1 } else { gap.last };
            }
        }
        self.torn |= body.reason == "truncated";
        let is_kept = self.lost.len() < REASONS && body.reason.len() <= REASON;
        if is_kept || self.lost.contains_key(&body.reason) {
            self.lost.entry(body.reason.clone()).or_default().add(&body.amount);
        }
    }

    fn heartbeat(&mut self, body: &Heartbeat, report: &mut Report<'_>) {
        if let Some(before) = &self.heartbeat {
            let counts = [
                ("samples", before.samples, body.samples),
                ("batches", before.batches, body.batches),
                ("dropped_messages", before.dropped_messages, body.dropped_messages),
                ("ts_usec", before.ts_usec.unwrap_or(0), body.ts_usec.unwrap_or(u64::MAX)),
            ];
            for (key, before, now) in counts {
                if now < before {
                    report.say(format!("{key} goes back from {before} to {now}"));
                }
            }
        }
        if !self.doubtful && body.batches > self.metas {
            report.say(format!("{} batches where {} were sent", body.batches, self.metas));
        }
        self.heartbeat = Some(body.clone());
    }

    fn end(&mut self, end: &End, report: &mut Report<'_>) {
        self.close_batch(report);
        self.forgive_gaps(end);
        self.report_gaps(report);
        let mut equal = |what: &str, says: u64, is: u64| {
            if says != is {
                report.say(format!("{what} is {says}, but has to be {is}"));
            }
        };
        equal("messages", end.messages, self.next_seq);
        let known = !self.doubtful && self.first.is_some();
        if known {
            equal("batches", end.batches, self.metas);
            if let Some(samples) = end.samples {
                equal("samples", samples, self.sums.samples);
            }
            let span = self.sums.span.map_or(0, |(low, high)| high - low);
            if let Some(duration) = end.duration_usec {
                equal("duration_usec", duration, span);
            }
        }
        let mut left_out = |what: &str, is_there: bool| {
            if known && is_there != self.has_times {
                let is = if is_there { "there" } else { "missing" };
                report.say(format!("key {what:?} is {is}, unlike the times of the run"));
            }
        };
        left_out("samples", end.samples.is_some());
        left_out("samples_empty", end.samples_empty.is_some());
        left_out("duration_usec", end.duration_usec.is_some());
        let counted = end.samples.zip(end.samples_empty).map(|(samples, empty)| {
            let samples = if known { self.sums.samples } else { samples };
            (samples, u128::from(end.samples_total) + u128::from(empty) == u128::from(samples))
        });
        if let Some((samples, false)) = counted {
            report.say(format!("samples_total and samples_empty do not add up to {samples}"));
        } else if known {
            self.end_of_tables(end, report);
            if let Some(says) = end.samples_empty.filter(|says| *says < self.sums.empty) {
                let is = self.sums.empty;
                report.say(format!("samples_empty is {says}, but {is} samples have an empty stack"));
            }
        }
        if end.lost.as_ref().is_some_and(BTreeMap::is_empty) {
            report.say("lost is empty instead of left out");
        } else if known && self.asks_for(MessageType::Loss) && self.lost.len() < REASONS {
            self.end_of_losses(end, report);
        }
        if end.complete && (self.fatal || self.torn) {
            let cause = if self.fatal { "a fatal error" } else { "a torn input" };
            report.say(format!("complete is true after {cause}"));
        }
    }

    fn end_of_tables(&self, end: &End, report: &mut Report<'_>) {
        let Some((total, empty)) = self.tables.sums().filter(|_| self.asks_for(MessageType::Agg)) else {
            return;
        };
        let Some(says_empty) = end.samples_empty.or((!self.has_times).then_some(0)) else { return };
        let says = (end.samples_total, says_empty);
        if (total, empty) != (u128::from(says.0), u128::from(says.1)) {
            report.say(format!(
                "the agg tables count {total} samples with a frame and {empty} without, not {} and {}",
                says.0, says.1
            ));
        }
        if let (Some(whole), Some((low, high))) = (self.tables.whole(), self.sums.span)
            && (whole.start_usec, whole.duration_usec) != (Some(i128::from(low)), Some(high - low))
        {
            let span = high - low;
            report.at(whole.line, format!("the final table has to start at {low} and last {span} us"));
        }
    }

    fn end_of_losses(&self, end: &End, report: &mut Report<'_>) {
        let none = BTreeMap::new();
        let lost = end.lost.as_ref().unwrap_or(&none);
        for reason in lost.keys().filter(|reason| !self.lost.contains_key(*reason)) {
            report.say(format!("lost has {reason:?}, but no loss message has"));
        }
        for (reason, sum) in &self.lost {
            match lost.get(reason) {
                None => report.say(format!("lost does not have {reason:?}, but a loss message has")),
                Some(says) if says != sum => {
                    report.say(format!("lost is not the sum of the loss messages of {reason:?}"));
                }
                Some(_) => {}
            }
        }
    }

    /// The stream is over, and the run has no end.
    pub fn cut_off(mut self, report: &mut Report<'_>) {
        report.line = self.last_line;
        if let Some(batch) = &mut self.batch
            && batch.is_incomplete()
        {
            batch.check_messages(report);
            batch.doubtful = true;
        }
        self.close_batch(report);
        self.report_gaps(report);
        if self.types.as_ref().is_none_or(|types| types.has(MessageType::End)) {
            report.say(format!("the run '{}' has no end", self.run_id));
        }
    }
}

/// Whether the run knows when and how much was sampled: all of it or nothing.
fn has_times(meta: &Meta, report: &mut Report<'_>) -> bool {
    let keys = [
        ("start_usec", meta.start_usec.is_some()),
        ("duration_usec", meta.duration_usec.is_some()),
        ("samples", meta.samples.is_some()),
        ("thread_count", meta.thread_count.is_some()),
        ("run_start_usec", meta.run_start_usec.is_some()),
        ("clock", meta.clock.is_some()),
    ];
    let there = keys.iter().find(|(_, is_there)| *is_there);
    if let Some((there, _)) = there {
        for (key, _) in keys.iter().filter(|(_, is_there)| !is_there) {
            report.say(format!("{key} is missing next to {there}"));
        }
    }
    there.is_some()
}
