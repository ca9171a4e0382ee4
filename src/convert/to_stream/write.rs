//! Writes the messages that a [`RunStream`] has gathered: a batch, the faults, the end.

use std::io::Write;
use std::sync::Arc;

use crate::convert::aggregate::Aggregator;
use crate::convert::to_stream::parts::loss;
use crate::convert::to_stream::{Batch, RunStream, StreamSummary};
use crate::convert::used_frames::MergedTables;
use crate::counts::CountTable;
use crate::error::{Error, Result};
use crate::format::Framing;
use crate::model::{RunFacts, Tables, TimeSpan};
use crate::protocol::MessageType;
use crate::protocol::message::{Agg, End, ErrorMessage, IdScope, Loss, LossAmount, LossReason, Meta};
use crate::protocol::table_messages;

/// Bytes of text that are written at once.
const PIECE: usize = 1024 * 1024;

/// Writes the text, once it has so many bytes.
fn hand_on(text: &mut Vec<u8>, sink: &mut impl Write, bytes: usize) -> Result<()> {
    if text.len() >= bytes {
        sink.write_all(text)?;
        text.clear();
    }
    Ok(())
}

impl RunStream {
    /// Writes the open batch with this final table, and opens the next.
    pub(crate) fn write_batch(&mut self, whole: Option<CountTable>, sink: &mut impl Write) -> Result<()> {
        let next = Batch { index: self.batch.index + 1, ..Batch::default() };
        let mut batch = std::mem::replace(&mut self.batch, next);
        let mut raw = self.raw.take();
        raw.iter().flat_map(|lines| &lines.frames).for_each(|frame| self.used.note(*frame));
        let mut losses = std::mem::take(&mut batch.losses);
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
        let tables = Arc::clone(&self.tables);
        let (frames, strings) = self.used.take(&tables);
        let limit = |message| self.options.max_line - self.encoder.envelope_len(message);
        let mut str_defs = Vec::new();
        if self.has(MessageType::StrDef) {
            let strings = strings.iter().map(|id| (*id, tables.strings.get(*id).unwrap_or_default()));
            str_defs = table_messages::str_defs(batch.index, strings, limit(MessageType::StrDef));
        }
        let mut frame_defs = Vec::new();
        if self.has(MessageType::FrameDef) {
            let frames = frames.iter().map(|id| (*id, tables.frames[*id as usize]));
            frame_defs = table_messages::frame_defs(batch.index, frames, limit(MessageType::FrameDef));
        }
        let raw_messages: usize = raw.iter().map(|lines| lines.ends.len()).sum();
        let messages = str_defs.len() + frame_defs.len() + raw_messages + aggs.len() + losses.len();
        let meta = self.meta(&batch, messages as u64);

        let RunStream { encoder, text, .. } = self;
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
        str_defs.iter().for_each(|body| encoder.text(text, MessageType::StrDef, body));
        frame_defs.iter().for_each(|body| encoder.text(text, MessageType::FrameDef, body));
        // Most of the stream: it goes out from where it was made.
        sink.write_all(text)?;
        text.clear();
        for lines in &mut raw {
            let mut start = 0;
            for end in &lines.ends {
                let begin = encoder.enclose(&mut lines.text[start..*end], MessageType::Raw);
                sink.write_all(&lines.text[start + begin..*end])?;
                start = *end;
            }
        }
        for body in aggs {
            encoder.text(text, MessageType::Agg, &body);
            hand_on(text, sink, PIECE)?;
        }
        losses.iter().for_each(|body| encoder.message(text, MessageType::Loss, body));
        for mut heartbeat in self.heartbeats.waiting.drain(..) {
            heartbeat.batches = batch.index + 1;
            encoder.message(text, MessageType::Heartbeat, &heartbeat);
            hand_on(text, sink, PIECE)?;
        }
        hand_on(text, sink, 0)?;
        self.raw.give_back(raw);
        if !self.after_batch.is_empty() {
            self.text.clear();
            for (error, loss) in std::mem::take(&mut self.after_batch) {
                self.error_and_loss(error.as_ref(), loss.as_ref());
            }
            sink.write_all(&self.text)?;
        }
        Ok(())
    }

    /// Bodies of the tables that end with the batch, whose frames are noted as used.
    fn aggs(&mut self, batch: &Batch, whole: Option<CountTable>) -> Vec<Vec<u8>> {
        let limit = self.options.max_line - self.encoder.envelope_len(MessageType::Agg);
        let period = self.options.types.window().map_or(0, |period| period.as_micros() as u64);
        let span = self.span.unwrap_or_default();
        let windows = batch.tables.iter().map(|(start, table)| ("window", *start, period, table));
        let whole = whole.iter().map(|table| ("final", i128::from(span.first_us), span.duration_us(), table));
        let mut messages = Vec::new();
        for (scope, start_usec, duration_usec, table) in windows.chain(whole) {
            table.rows.iter().for_each(|(frame, ..)| self.used.note(*frame));
            let head = Agg {
                batch: batch.index,
                kind: "frame".to_string(),
                scope: scope.to_string(),
                start_usec: Some(start_usec),
                duration_usec: Some(duration_usec),
                samples_total: table.total,
                samples_empty: Some(table.empty),
                ..Agg::default()
            };
            messages.extend(table_messages::aggs(&head, &table.rows, limit));
        }
        messages
    }

    fn meta(&self, batch: &Batch, messages: u64) -> Meta {
        let none = RunFacts::default();
        let facts = self.run.as_ref().map_or(&none, |run| &run.facts);
        let labels = self.run.as_ref().map(|run| &run.labels).filter(|labels| !labels.is_empty());
        let span = batch.span.unwrap_or(TimeSpan::at(facts.start_us));
        Meta {
            batch: batch.index,
            messages,
            start_usec: Some(span.first_us),
            duration_usec: Some(span.duration_us()),
            samples: Some(batch.samples),
            thread_count: Some(batch.threads.len() as u64),
            run_start_usec: Some(facts.start_us),
            sample_interval_usec: Some(facts.interval_us),
            mode: facts.mode.map(|mode| mode.name().to_string()),
            capture: facts.capture.map(Into::into),
            python: facts.python.map(|python| python.to_string()),
            id_scope: if self.framing == Framing::Files { IdScope::Run } else { IdScope::Batch },
            stream_types: self.options.types.items().map(<[String]>::to_vec),
            clock: Some("monotonic".to_string()),
            wall_usec: self.wall_us(span.first_us),
            labels: labels.cloned(),
        }
    }

    /// Writes the last batch, what went wrong, and the end.
    ///
    /// # Errors
    ///
    /// As for [`RunStream::profile`].
    pub fn finish(mut self, sink: &mut impl Write) -> Result<StreamSummary> {
        if let Some(error) = self.broken_end() {
            self.broke_off(&error);
        }
        self.close_window();
        let mut whole = None;
        if self.has(MessageType::Agg) && self.options.types.window().is_none() && self.samples > 0 {
            whole = Some(self.final_table());
        }
        if !self.batch.is_empty() || whole.is_some() || self.batch.index == 0 {
            self.write_batch(whole, sink)?;
        }
        self.text.clear();
        for (error, loss) in std::mem::take(&mut self.at_end) {
            self.complete = false;
            self.error_and_loss(Some(&error), loss.as_ref());
        }
        let span = self.span;
        let statistics = self.run.as_ref().and_then(|run| run.statistics.of_run());
        let end = End {
            complete: self.complete,
            batches: self.batch.index,
            messages: self.encoder.next_seq() + 1,
            samples: Some(self.samples),
            samples_total: self.samples_total,
            samples_empty: Some(self.samples - self.samples_total),
            duration_usec: Some(span.map_or(0, TimeSpan::duration_us)),
            lost: (!self.lost.is_empty()).then(|| std::mem::take(&mut self.lost)),
            stats: statistics.map(Into::into),
        };
        if self.has(MessageType::End) {
            self.encoder.message(&mut self.text, MessageType::End, &end);
        }
        sink.write_all(&self.text)?;
        sink.flush()?;
        Ok(StreamSummary {
            complete: end.complete,
            samples: self.samples,
            batches: end.batches,
            messages: self.encoder.next_seq(),
        })
    }

    /// The table of the whole run, of whose frames those of earlier parts come after the last one's.
    fn final_table(&mut self) -> CountTable {
        let none = Aggregator::new(&self.tables, 0, None);
        let last = std::mem::replace(&mut self.aggregator, none);
        let (earlier, uncounted) = std::mem::take(&mut self.totals).finish();
        if earlier.frames.is_empty() && uncounted.is_empty() {
            return last.finish();
        }
        let mut merged = MergedTables::new(Tables::clone(&self.tables));
        let ids = merged.add(&earlier, 0..earlier.frames.len() as u32);
        self.tables = Arc::new(merged.into_tables());
        self.used.resize(self.tables.frames.len());
        let mut whole = Aggregator::new(&self.tables, 0, None);
        whole.resume(last.pause(), |frame| frame);
        whole.resume(uncounted, |frame| ids[frame as usize]);
        whole.finish()
    }

    /// Adds an error and a loss, that stand between batches, to the text.
    pub(crate) fn error_and_loss(&mut self, error: Option<&ErrorMessage>, loss: Option<&Loss>) {
        if let Some(error) = error.filter(|_| self.has(MessageType::Error)) {
            self.encoder.message(&mut self.text, MessageType::Error, error);
        }
        if let Some(loss) = loss {
            self.lost.entry(loss.reason.clone()).or_default().add(&loss.amount);
            if self.has(MessageType::Loss) {
                self.encoder.message(&mut self.text, MessageType::Loss, loss);
            }
        }
    }
}
