//! What a [`Stream`] has gathered, as messages: a batch, the faults, the end.

use std::io::Write;

use super::{Batch, Stream, Written};
use crate::convert::aggregate::{Aggregator, Table};
use crate::error::{Error, Position, Result};
use crate::format::{Fault, FaultCode};
use crate::protocol::message::{self, Agg, End, ErrorMessage, IdScope, Loss, LossAmount, LossReason, Meta};
use crate::protocol::{MessageType, split};

impl<W: Write> Stream<'_, W> {
    /// Writes the open batch with these losses and this final table, and opens the next.
    pub(super) fn write_batch(&mut self, mut losses: Vec<Loss>, whole: Option<Table>) -> Result<()> {
        let next = Batch { index: self.batch.index + 1, ..Batch::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        if batch.at_depth_limit > 0 {
            let amount = LossAmount { samples: Some(batch.at_depth_limit), ..LossAmount::default() };
            losses.insert(0, loss(LossReason::Depth, amount));
        }
        for loss in &mut losses {
            self.lost.entry(loss.reason.clone()).or_default().add(&loss.amount);
            loss.batch = Some(batch.index);
        }
        losses.retain(|_| self.has(MessageType::Loss));
        let aggs = self.aggs(&batch, whole);
        let (frames, strings) = self.used.take(&self.contents.tables);
        let limit = |message| self.options.max_line - self.encoder.envelope_len(message);
        let tables = &self.contents.tables;
        let mut str_defs = Vec::new();
        if self.has(MessageType::StrDef) {
            let strings = strings.iter().map(|id| (*id, tables.strings.get(*id).unwrap_or_default()));
            str_defs = split::str_defs(batch.index, strings, limit(MessageType::StrDef));
        }
        let mut frame_defs = Vec::new();
        if self.has(MessageType::FrameDef) {
            let frames = frames.iter().map(|id| (*id, tables.frames[*id as usize]));
            frame_defs = split::frame_defs(batch.index, frames, limit(MessageType::FrameDef));
        }
        let messages = str_defs.len() + frame_defs.len() + batch.raw_ends.len() + aggs.len() + losses.len();
        let meta = self.meta(&batch, messages as u64);

        let Stream { encoder, text, .. } = self;
        text.clear();
        if self.options.types.has(MessageType::Meta) {
            encoder.message(text, MessageType::Meta, &meta);
            if text.len() > self.options.max_line {
                return Err(Error::usage(format!(
                    "the labels make a meta message of {} bytes, over the line limit",
                    text.len()
                )));
            }
        }
        str_defs.iter().for_each(|body| encoder.message(text, MessageType::StrDef, body));
        frame_defs.iter().for_each(|body| encoder.message(text, MessageType::FrameDef, body));
        let mut start = 0;
        for end in &batch.raw_ends {
            encoder.body(text, MessageType::Raw, &batch.raw[start..*end]);
            start = *end;
        }
        aggs.iter().for_each(|body| encoder.message(text, MessageType::Agg, body));
        losses.iter().for_each(|body| encoder.message(text, MessageType::Loss, body));
        for mut heartbeat in self.heartbeats.waiting.drain(..) {
            heartbeat.batches = batch.index + 1;
            encoder.message(text, MessageType::Heartbeat, &heartbeat);
        }
        self.sink.write_all(text)?;
        self.batch.raw = batch.raw;
        self.batch.raw.clear();
        Ok(())
    }

    /// The tables that end with the batch, and the frames in them as used.
    fn aggs(&mut self, batch: &Batch, whole: Option<Table>) -> Vec<Agg> {
        let limit = self.options.max_line - self.encoder.envelope_len(MessageType::Agg);
        let period = self.options.types.window().map_or(0, |period| period.as_micros() as u64);
        let (low, high) = self.contents.scan.span_us.unwrap_or_default();
        let windows = batch.tables.iter().map(|(start, table)| ("window", *start, period, table));
        let whole = whole.iter().map(|table| ("final", i128::from(low), high - low, table));
        let mut messages = Vec::new();
        for (scope, start_usec, duration_usec, table) in windows.chain(whole) {
            table.rows.iter().for_each(|(frame, ..)| self.used.note(*frame));
            let head = Agg {
                batch: batch.index,
                kind: "frame".to_string(),
                scope: scope.to_string(),
                start_usec,
                duration_usec,
                samples_total: table.total,
                samples_empty: table.empty,
                ..Agg::default()
            };
            messages.extend(split::aggs(&head, &table.rows, limit));
        }
        messages
    }

    fn meta(&self, batch: &Batch, messages: u64) -> Meta {
        let facts = &self.contents.header.facts;
        let (low, high) = batch.span_us.unwrap_or((facts.start_us, facts.start_us));
        Meta {
            batch: batch.index,
            messages,
            start_usec: low,
            duration_usec: high - low,
            samples: batch.samples,
            thread_count: batch.threads,
            run_start_usec: facts.start_us,
            sample_interval_usec: facts.interval_us,
            mode: facts.mode.map(|mode| mode.name().to_string()),
            capture: facts.capture.map(|capture| message::Capture {
                all_threads: capture.all_threads,
                native: capture.native,
                gc: capture.gc,
                opcodes: capture.opcodes,
                blocking: capture.blocking,
            }),
            python: facts.python.map(|python| python.to_string()),
            id_scope: IdScope::Run,
            stream_types: self.options.types.items().map(<[String]>::to_vec),
            clock: "monotonic".to_string(),
            wall_usec: self.wall_us(low),
            labels: (!self.options.labels.is_empty()).then(|| self.options.labels.clone()),
        }
    }

    /// Writes the last batch, what went wrong, and the end.
    pub(super) fn finish(mut self) -> Result<Written> {
        self.close_window();
        let mut whole = None;
        if self.has(MessageType::Agg) && self.options.types.window().is_none() && self.samples > 0 {
            let none = Aggregator::new(&self.contents.tables, 0, None);
            whole = Some(std::mem::replace(&mut self.aggregator, none).finish());
        }
        let statistics = self.contents.statistics;
        let measured = |reason, percent: Option<f64>| {
            let amount = LossAmount {
                lost_percent: percent.filter(|percent| *percent > 0.0),
                ..LossAmount::default()
            };
            amount.lost_percent.map(|_| loss(reason, amount))
        };
        let missed = measured(LossReason::SamplerMissed, statistics.and_then(|s| s.missed_samples));
        let failed = measured(LossReason::SamplerFailed, statistics.and_then(|s| s.error_rate));
        self.write_batch(missed.into_iter().chain(failed).collect(), whole)?;
        self.text.clear();
        let faults: Vec<&Fault> = self.contents.faults.iter().collect();
        for fault in &faults {
            self.fault(fault);
        }
        let span = self.contents.scan.span_us;
        let end = End {
            complete: faults.is_empty(),
            batches: self.batch.index,
            messages: self.encoder.next_seq() + 1,
            samples: self.samples,
            samples_total: self.samples_total,
            samples_empty: self.samples - self.samples_total,
            duration_usec: span.map_or(0, |(low, high)| high - low),
            lost: (!self.lost.is_empty()).then(|| std::mem::take(&mut self.lost)),
            stats: statistics.map(|s| message::Stats {
                duration_sec: s.duration_sec,
                sample_rate: s.sample_rate,
                error_rate: s.error_rate,
                missed_samples: s.missed_samples,
            }),
        };
        if self.has(MessageType::End) {
            self.encoder.message(&mut self.text, MessageType::End, &end);
        }
        self.sink.write_all(&self.text)?;
        self.sink.flush()?;
        Ok(Written {
            complete: end.complete,
            samples: self.samples,
            batches: end.batches,
            messages: self.encoder.next_seq(),
        })
    }

    /// Tells of a fault of the profile, and of the samples that are lost by it.
    fn fault(&mut self, fault: &Fault) {
        let offset = match fault.error.position() {
            Some(Position::Byte(offset)) => Some(offset),
            _ => None,
        };
        let body = ErrorMessage {
            code: fault.code.name().to_string(),
            detail: fault.error.to_string(),
            offset,
            fatal: true,
        };
        if self.has(MessageType::Error) {
            self.encoder.message(&mut self.text, MessageType::Error, &body);
        }
        if fault.code == FaultCode::DamagedSamples {
            let declared = self.contents.header.samples;
            let amount = LossAmount {
                lost_samples: declared.checked_sub(self.samples).filter(|lost| *lost > 0),
                ..LossAmount::default()
            };
            self.lost.entry(LossReason::Corrupt.name().to_string()).or_default().add(&amount);
            if self.has(MessageType::Loss) {
                self.encoder.message(&mut self.text, MessageType::Loss, &loss(LossReason::Corrupt, amount));
            }
        }
    }
}

fn loss(reason: LossReason, amount: LossAmount) -> Loss {
    Loss { reason: reason.name().to_string(), amount, ..Loss::default() }
}
