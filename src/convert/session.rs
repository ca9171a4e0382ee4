//! The rules of a stream while it is read: which run, which batch, what is defined, what is missing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustc_hash::FxHashMap;

use crate::convert::definitions::KnownFrames;
use crate::error::{Error, Position, Result};
use crate::model::{Frame, Location};
use crate::protocol::message::{End, FrameDef, IdScope, LossAmount, LossReason, Meta, Stats, StrDef};
use crate::protocol::{Decoded, Message, RawColumns};

/// Losses that are told one by one; more are counted.
const TOLD: usize = 20;

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

    /// The run that was chosen.
    pub fn chosen(&self) -> Option<&str> {
        self.chosen.as_deref()
    }

    /// Notes that something is damaged, missing or left out.
    pub fn lose(&mut self, loss: Error) {
        if self.losses.len() < TOLD {
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
        // Such a loss is told below, with all that it says.
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
                    let missing = self.definitions.missing(columns);
                    if missing > 0 {
                        self.lose_at(line, format!("{missing} frames are not defined; their names are lost"));
                    }
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
                    // Its messages and samples may be of later batches, too; these of the open one are told.
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
                    self.lose_at(line, format!("the stream tells of a loss{samples} ({})", body.reason));
                }
            }
            Message::Error(body) => {
                if body.fatal {
                    self.lose_at(line, format!("the stream tells of an error: {}", body.detail));
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

    /// Whether a message with this number may come now; notes those that are missing before it, but for
    /// those from `told_from` on, of which it tells itself.
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

/// Strings and frames as the stream has defined them, and where they are in the profile.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    strings: FxHashMap<u32, Defined<Vec<u8>>>,
    frames: FxHashMap<u32, Defined<Frame>>,
    /// What is in the profile from batches whose ids are forgotten.
    known_strings: FxHashMap<Vec<u8>, u32>,
    known_frames: KnownFrames,
    forgets: bool,
}

#[derive(Debug)]
struct Defined<T> {
    value: T,
    index: Option<u32>,
}

impl Definitions {
    /// A batch begins whose ids mean something else.
    fn forget(&mut self) {
        self.forgets = true;
        self.strings.clear();
        self.frames.clear();
        self.known_frames.begin_batch();
    }

    /// What was put into the profile is not in the next one.
    pub fn begin_profile(&mut self) {
        self.strings.values_mut().for_each(|string| string.index = None);
        self.frames.values_mut().for_each(|frame| frame.index = None);
        self.known_strings.clear();
        self.known_frames = KnownFrames::default();
    }

    fn strings(&mut self, body: &StrDef) -> Result<()> {
        for (id, value) in body.str_id.iter().zip(&body.value) {
            let bytes = match body.base64.as_ref().and_then(|base64| base64.get(id)) {
                Some(base64) => STANDARD
                    .decode(base64)
                    .map_err(|fault| Error::stream(format!("string {id} has bad base64: {fault}")))?,
                None => value.clone().into_bytes(),
            };
            define(&mut self.strings, *id, bytes)
                .map_err(|()| Error::stream(format!("string {id} is defined again with another value")))?;
        }
        Ok(())
    }

    fn frames(&mut self, body: &FrameDef) -> Result<()> {
        let at =
            |column: &Option<Vec<Option<i32>>>, row: usize| column.as_ref().and_then(|column| column[row]);
        for (row, id) in body.frame_id.iter().enumerate() {
            let frame = Frame {
                path: body.path_str_id[row],
                function: body.func_str_id[row],
                location: Location {
                    line: at(&body.line, row),
                    end_line: at(&body.end_line, row),
                    col: at(&body.col, row),
                    end_col: at(&body.end_col, row),
                },
                opcode: body.opcode.as_ref().and_then(|column| column[row]),
            };
            define(&mut self.frames, *id, frame)
                .map_err(|()| Error::stream(format!("frame {id} is defined again with another value")))?;
        }
        Ok(())
    }

    /// How many frames of a message have no definition.
    fn missing(&self, columns: &RawColumns) -> usize {
        let mut missing: Vec<u32> =
            columns.stack_frame_id.iter().copied().filter(|id| !self.frames.contains_key(id)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing.len()
    }

    /// The profile's index of frame `id`, if it has one already.
    pub fn known_frame(&self, id: u32) -> Option<u32> {
        self.frames.get(&id).and_then(|frame| frame.index)
    }

    /// The profile's index of frame `id`; `add_string` and `add_frame` put into the profile what is not
    /// there yet. An id without a definition gets a name that says so.
    pub fn frame(&mut self, id: u32, sink: &mut impl TableSink) -> u32 {
        if let Some(index) = self.known_frame(id) {
            return index;
        }
        let value = match self.frames.get(&id) {
            Some(frame) => frame.value,
            None => {
                let name = self.add_string(format!("<undefined frame {id}>").into_bytes(), sink);
                let path = self.add_string(b"~".to_vec(), sink);
                let frame = Frame { path, function: name, location: Location::default(), opcode: None };
                let index = sink.frame(&frame);
                // Its path and function are no ids of the stream; only the index is used.
                self.frames.insert(id, Defined { value: frame, index: Some(index) });
                return index;
            }
        };
        let path = self.string(value.path, sink);
        let function = self.string(value.function, sink);
        let frame = Frame { path, function, ..value };
        let index = if self.forgets {
            self.known_frames.get_or_add(frame, || sink.frame(&frame))
        } else {
            sink.frame(&frame)
        };
        if let Some(defined) = self.frames.get_mut(&id) {
            defined.index = Some(index);
        }
        index
    }

    fn string(&mut self, id: u32, sink: &mut impl TableSink) -> u32 {
        let bytes = match self.strings.get(&id) {
            Some(Defined { index: Some(index), .. }) => return *index,
            Some(string) => string.value.clone(),
            None => format!("<undefined string {id}>").into_bytes(),
        };
        let index = if self.forgets { self.add_string(bytes, sink) } else { sink.string(&bytes) };
        if let Some(string) = self.strings.get_mut(&id) {
            string.index = Some(index);
        }
        index
    }

    fn add_string(&mut self, bytes: Vec<u8>, sink: &mut impl TableSink) -> u32 {
        match self.known_strings.get(&bytes) {
            Some(index) => *index,
            None => {
                let index = sink.string(&bytes);
                self.known_strings.insert(bytes, index);
                index
            }
        }
    }
}

/// Where definitions go once they are used.
pub(crate) trait TableSink {
    fn string(&mut self, bytes: &[u8]) -> u32;
    fn frame(&mut self, frame: &Frame) -> u32;
}

/// Adds a definition; the same one again is none.
fn define<T: PartialEq>(definitions: &mut FxHashMap<u32, Defined<T>>, id: u32, value: T) -> Result<(), ()> {
    match definitions.get(&id) {
        Some(known) if known.value == value => Ok(()),
        Some(_) => Err(()),
        None => {
            definitions.insert(id, Defined { value, index: None });
            Ok(())
        }
    }
}
