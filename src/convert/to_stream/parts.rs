//! Carries a run from part to part: its facts, its total counts, and what is missing between parts.

use std::io::Write;
use std::sync::Arc;

use crate::convert::aggregate::Aggregator;
use crate::convert::to_stream::options::micros;
use crate::convert::to_stream::{Heartbeats, RunState, RunStatistics, RunStream};
use crate::convert::used_frames::{MergedTables, UsedFrames};
use crate::error::{ErrorKind, Position, Result};
use crate::format::{ChunkInfo, Contents, Fault, FaultCode, Framing, LostPart};
use crate::model::{ClockPair, Statistics, Tables};
use crate::protocol::MessageType;
use crate::protocol::message::{ErrorMessage, Heartbeat, Loss, LossAmount, LossReason};

impl RunStream {
    /// A part begins. Returns the numbers that its frames get in the open batch, where they aren't its own.
    pub(crate) fn begin(&mut self, contents: &Contents, sink: &mut impl Write) -> Result<Option<Vec<u32>>> {
        self.open_run(contents, sink)?;
        self.note_gap(contents, sink)?;
        if self.flush.part && !self.batch.is_empty() {
            self.close_batch(sink)?;
        }
        let mut uncounted = self.replace_aggregator(&Arc::default()).pause();
        if self.has(MessageType::Agg) && self.options.types.window().is_none() {
            // Wanted at the end alone.
            self.totals.add(&self.tables, std::mem::take(&mut uncounted));
        }
        let counted = uncounted.frames();
        if self.batch.is_empty() {
            // A new batch: the part's own numbers, and after them what is still being counted.
            let mut ids = Vec::new();
            let mut tables = Arc::clone(&contents.tables);
            if !counted.is_empty() {
                let mut merged = MergedTables::new(Tables::clone(&contents.tables));
                ids = merged.add(&self.tables, counted.iter().copied());
                tables = Arc::new(merged.into_tables());
            }
            self.used = UsedFrames::new(&tables);
            self.replace_aggregator(&tables).pause();
            self.tables = tables;
            self.aggregator
                .resume(uncounted, |old| ids[counted.binary_search(&old).expect("one of the counted")]);
            return Ok(None);
        }
        let mut merged = MergedTables::new(Tables::clone(&self.tables));
        let numbers = merged.add(&contents.tables, 0..contents.tables.frames.len() as u32);
        let tables = Arc::new(merged.into_tables());
        self.used.resize(tables.frames.len());
        self.replace_aggregator(&tables).pause();
        self.tables = tables;
        self.aggregator.resume(uncounted, |old| old);
        Ok(Some(numbers))
    }

    /// Puts a fresh aggregator for `tables` in the place of the one that is there, which it returns.
    fn replace_aggregator(&mut self, tables: &Arc<Tables>) -> Aggregator {
        let types = &self.options.types;
        let window = types.has(MessageType::Agg).then(|| types.window()).flatten().map(micros);
        let start_us = self.start_us();
        std::mem::replace(&mut self.aggregator, Aggregator::new(tables, start_us, window))
    }

    fn open_run(&mut self, contents: &Contents, sink: &mut impl Write) -> Result<()> {
        let start_us = contents.header.facts.start_us;
        let chunk = contents.chunk.as_ref();
        let clocks = chunk.and_then(ChunkInfo::clocks);
        if let Some(wall) = self.run.as_ref().map(|run| run.wall) {
            if self.options.wall_start_us.is_some() || clocks.is_none() {
                return Ok(());
            }
            // A batch has one date. Where the wall clock was set, what is before that has a batch of its own.
            let is_set = wall.zip(clocks).is_some_and(|(wall, clocks)| clocks.step_from(wall) != 0);
            if is_set && !self.batch.is_empty() {
                self.close_batch(sink)?;
            }
            self.run.as_mut().expect("seen above").wall = clocks;
            return Ok(());
        }
        let mut labels = chunk.map(|chunk| chunk.labels.clone()).unwrap_or_default();
        labels.extend(self.options.labels.clone());
        self.run = Some(RunState {
            facts: contents.header.facts.clone(),
            labels,
            wall: self
                .options
                .wall_start_us
                .map(|wall_us| ClockPair { monotonic_us: start_us, wall_us })
                .or(clocks),
            statistics: RunStatistics::default(),
        });
        let types = &self.options.types;
        let period = micros(types.heartbeat());
        let beats = types.has(MessageType::Heartbeat) && !self.options.live;
        let due = beats.then(|| start_us.checked_add(period)).flatten();
        self.heartbeats = Heartbeats { due, period, waiting: Vec::new() };
        Ok(())
    }

    /// Tells of chunks that are missing before this one.
    fn note_gap(&mut self, contents: &Contents, sink: &mut impl Write) -> Result<()> {
        let Some(chunk) = &contents.chunk else { return Ok(()) };
        if !self.order.is_gap_before(chunk) {
            return Ok(());
        }
        self.gaps += 1;
        let mut body = Loss { reason: LossReason::Gap.name().to_string(), ..Loss::default() };
        // What is before the first part that is there has begun with the run.
        let from = self.span.map_or(contents.header.facts.start_us, |span| span.last_us);
        if self.span.is_some() || contents.scan.samples > 0 {
            body.start_usec = Some(from);
            body.duration_usec = chunk.span.first_us.checked_sub(from);
        }
        self.tell(None, Some(body), sink)
    }

    /// A part has ended.
    pub(crate) fn ended(&mut self, contents: &Contents, sink: &mut impl Write) -> Result<()> {
        let run = self.run.as_mut().expect("opened with the part");
        run.statistics.note(contents);
        if let Some(statistics) = contents.statistics {
            let measured = [
                (LossReason::SamplerMissed, statistics.missed_samples),
                (LossReason::SamplerFailed, statistics.error_rate),
            ];
            for (reason, percent) in measured {
                if let Some(percent) = percent.filter(|percent| *percent > 0.0) {
                    let amount = LossAmount { lost_percent: Some(percent), ..LossAmount::default() };
                    self.batch.losses.push(loss(reason, amount));
                }
            }
        }
        self.at_end.extend(contents.faults.iter().map(|fault| fault_messages(fault, contents)));
        // What ends with the run belongs into its last batch, unless readers wait for what is there.
        if self.options.live && self.batch.index == 0 && self.batch.is_empty() {
            // Readers know of the run before it has a sample.
            return self.write_batch(None, sink);
        }
        let is_whole = self.options.live || !self.has(MessageType::Agg);
        if self.flush.part && is_whole && self.framing != Framing::Files && !self.batch.is_empty() {
            self.close_batch(sink)?;
        }
        Ok(())
    }

    /// Some of the input could not be read.
    ///
    /// # Errors
    ///
    /// As for [`RunStream::profile`].
    pub fn lost(&mut self, lost: &LostPart, sink: &mut impl Write) -> Result<()> {
        self.order.lost();
        let amount =
            LossAmount { lost_samples: lost.samples, lost_bytes: Some(lost.bytes), ..LossAmount::default() };
        let mut error = error_message("corrupt_chunk", &lost.error, Some(lost.at));
        if lost.is_tail {
            error.code = "truncated".to_string();
            self.at_end.push((error, Some(loss(LossReason::Truncated, amount))));
            return Ok(());
        }
        // What comes after it is sound.
        error.fatal = false;
        self.tell(Some(error), Some(loss(LossReason::Corrupt, amount)), sink)
    }

    /// Some processes that belong to the recording could not be sampled.
    ///
    /// # Errors
    ///
    /// Errors of `sink`.
    pub fn sampler_missed(&mut self, sink: &mut impl Write) -> Result<()> {
        self.tell(None, Some(loss(LossReason::SamplerMissed, LossAmount::default())), sink)
    }

    /// The recording or the input broke off: what came after the last part is lost, however much it was.
    pub fn broke_off(&mut self, error: &crate::error::Error) {
        self.order.lost();
        let loss = Loss {
            start_usec: self.span.map(|span| span.last_us),
            ..loss(LossReason::Truncated, LossAmount::default())
        };
        let code = if error.kind() == ErrorKind::Io { "io" } else { "truncated" };
        self.at_end.push((error_message(code, error, None), Some(loss)));
    }

    /// Ends the open batch and reports after it something that is missing.
    fn tell(&mut self, error: Option<ErrorMessage>, loss: Option<Loss>, sink: &mut impl Write) -> Result<()> {
        self.complete = false;
        if self.batch.index == 0 && self.batch.is_empty() {
            // A run begins with a batch.
            self.after_batch.push((error, loss));
            return Ok(());
        }
        if !self.batch.is_empty() {
            self.write_batch(None, sink)?;
        }
        self.text.clear();
        self.error_and_loss(error.as_ref(), loss.as_ref());
        sink.write_all(&self.text)?;
        Ok(())
    }

    /// Tells that the stream is alive and how far it is, if heartbeats were asked for.
    ///
    /// # Errors
    ///
    /// Errors of `sink`.
    pub fn heartbeat(&mut self, sink: &mut impl Write) -> Result<()> {
        if !self.has(MessageType::Heartbeat) {
            return Ok(());
        }
        // A part holds all samples up to its last.
        let reached = self.span.map(|span| span.last_us.saturating_add(1));
        let reached = reached.or_else(|| self.run.as_ref().map(|run| run.facts.start_us));
        let body = Heartbeat {
            ts_usec: reached,
            wall_usec: reached.and_then(|time_us| self.wall_us(time_us)),
            samples: self.samples,
            batches: self.batch.index,
            ..Heartbeat::default()
        };
        self.text.clear();
        self.encoder.message(&mut self.text, MessageType::Heartbeat, &body);
        sink.write_all(&self.text)?;
        Ok(sink.flush()?)
    }
}

pub(crate) fn loss(reason: LossReason, amount: LossAmount) -> Loss {
    Loss { reason: reason.name().to_string(), amount, ..Loss::default() }
}

fn error_message(code: &str, error: &crate::error::Error, offset: Option<u64>) -> ErrorMessage {
    let offset = match error.position() {
        Some(Position::Byte(offset)) => Some(offset),
        _ => offset,
    };
    ErrorMessage { code: code.to_string(), detail: error.to_string(), offset, fatal: true }
}

/// A fault of a profile, and what is lost by it.
fn fault_messages(fault: &Fault, contents: &Contents) -> (ErrorMessage, Option<Loss>) {
    let error = error_message(fault.code.name(), &fault.error, None);
    let lost = (fault.code == FaultCode::DamagedSamples).then(|| {
        let missing = contents.header.samples.checked_sub(contents.scan.samples);
        let amount = LossAmount { lost_samples: missing.filter(|lost| *lost > 0), ..LossAmount::default() };
        loss(LossReason::Corrupt, amount)
    });
    (error, lost)
}

impl RunStatistics {
    fn note(&mut self, contents: &Contents) {
        self.measured = contents.statistics;
        self.is_of_run = contents.chunk.is_some();
        self.parts += u64::from(contents.statistics.is_some());
    }

    /// What was measured over the whole run: what its last part says, where that part knows its run
    /// or is the only one that says something. Others speak for themselves.
    pub(crate) fn of_run(&self) -> Option<Statistics> {
        self.measured.filter(|_| self.is_of_run || self.parts == 1)
    }
}
