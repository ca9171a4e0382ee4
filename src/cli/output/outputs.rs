//! The outputs of a stream: files and pipes that are written to, and subscribers that are served.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::cli::args::{DropPolicy, Format, Live as Args, Schema};
use crate::cli::exit::{Status, is_broken_pipe};
use crate::cli::io::{Deadline, Input, Output, Target};
use crate::cli::net::{Class, Item, Network, Undelivered};
use crate::cli::output::live::Live;
use crate::cli::ui::messages::Messages;
use crate::error::{Error, ErrorKind, Result, of_output};
use crate::format::ChunkInfo;
use crate::protocol::{MessageType, StreamTypes, ToMsgpack};

/// The hint where a target fails and others do not.
const CONTINUES: &str = "the other targets go on";

/// Every target of one stream, open.
pub(crate) struct Outputs {
    outputs: Vec<(String, Output)>,
    /// Makes frames of lines, for outputs.
    frames: Option<ToMsgpack<Vec<u8>>>,
    live: Option<Live>,
    /// Names of the readers, for errors that are about all of them.
    live_name: String,
    /// Whether they may leave when they have enough: those of standard output may.
    may_leave: bool,
    /// Whether a target that fails is left out, and the others go on.
    goes_on: bool,
    /// Whether one is.
    has_left_out: bool,
    messages: Messages,
}

/// The targets that arguments name, none of which may be one of the inputs.
///
/// # Errors
///
/// Usage errors.
pub(crate) fn targets(arguments: &[PathBuf], inputs: &[Input], network: &Network) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for argument in arguments {
        targets.push(Target::of_argument(Some(argument), network)?);
    }
    if targets.is_empty() {
        targets.push(Target::Standard);
    }
    for (at, target) in targets.iter().enumerate() {
        target.check_apart_from(inputs)?;
        if targets[..at].iter().any(|earlier| earlier.is_same_place(target)) {
            return Err(Error::usage(format!("{} is given twice as a target", target.name())));
        }
    }
    Ok(targets)
}

/// Whether some of the targets are served, and not written to.
pub(crate) fn has_subscribers(targets: &[Target], args: &Args) -> bool {
    let drops = args.drop_policy == Some(DropPolicy::Oldest);
    targets.iter().any(|target| matches!(target, Target::Socket(..)) || drops && target.is_pipe())
}

/// Refuses what readers could not make sense of who come late or lose something.
///
/// # Errors
///
/// Usage errors.
pub(crate) fn check_for_subscribers(
    format: Format,
    schema: Schema,
    types: Option<&StreamTypes>,
) -> Result<()> {
    let is_without_meta = types.is_some_and(|types| !types.has(MessageType::Meta));
    let fault = match (format, schema) {
        (Format::Binary, _) => return Ok(()),
        (_, Schema::Cpython) => "CPython's JSON Lines go to files and pipes, not to sockets",
        _ if is_without_meta => "meta cannot be left out for readers that may connect late or lose messages",
        _ => return Ok(()),
    };
    Err(Error::usage(fault))
}

impl Outputs {
    /// Opens the targets. A stream that `is_live` waits for no reader unless asked to. One that has a limit
    /// waits for nobody once that is over, and goes on as long as there is a target that can be written to.
    ///
    /// # Errors
    ///
    /// A target that cannot be opened.
    pub fn open(
        targets: &[Target],
        args: &Args,
        network: &Network,
        format: Format,
        is_live: bool,
        limit: Option<&Deadline>,
        messages: &Messages,
    ) -> Result<Self> {
        let mut outputs = Outputs {
            outputs: Vec::new(),
            frames: (format == Format::Msgpack).then(|| ToMsgpack::new(Vec::new())),
            live: None,
            live_name: String::new(),
            may_leave: true,
            goes_on: limit.is_some(),
            has_left_out: false,
            messages: *messages,
        };
        if args.wait_readers.is_some_and(|wait| wait > args.max_readers) {
            return Err(Error::usage("--wait-readers is more than --max-readers"));
        }
        // Files first: nobody is to connect to a stream that cannot be.
        let (sockets, others): (Vec<_>, Vec<_>) =
            targets.iter().partition(|target| matches!(target, Target::Socket(..)));
        for target in others.into_iter().chain(sockets) {
            let name = target.name();
            let named = |error: Error| error.within(&name);
            let is_served = has_subscribers(std::slice::from_ref(target), args);
            if !is_served {
                let mut output = target.open(args.stall_timeout).map_err(named)?;
                output = match limit {
                    Some(limit) => output.with_deadline(limit),
                    None if is_live => output,
                    None => output.with_large_pipe(),
                };
                outputs.outputs.push((name.clone(), output));
                continue;
            }
            let live = outputs.live.get_or_insert_with(|| {
                Live::new(args, network.clone(), format, is_live, limit.cloned().unwrap_or_default())
            });
            match target {
                Target::Socket(address, _) => live.sinks().open(address).map_err(named)?,
                target => {
                    let pipe = Box::new(target.open(args.stall_timeout).map_err(named)?);
                    live.sinks().pipe(&name, pipe).map_err(named)?;
                }
            }
            if !outputs.live_name.is_empty() {
                outputs.live_name.push_str(", ");
            }
            outputs.live_name.push_str(&name);
            outputs.may_leave &= matches!(target, Target::Standard);
        }
        Ok(outputs)
    }

    /// Writes on a thread of its own, where there is one pipe to write to.
    pub fn in_background(&mut self) {
        if self.live.is_none() && self.outputs.len() == 1 {
            let outputs = std::mem::take(&mut self.outputs);
            self.outputs = outputs.into_iter().map(|(name, output)| (name, output.in_background())).collect();
        }
    }

    /// Lets such a thread have what was written so far.
    ///
    /// # Errors
    ///
    /// What could not be written.
    pub fn submit(&mut self) -> io::Result<()> {
        let [(name, output)] = self.outputs.as_mut_slice() else { return Ok(()) };
        output.submit().map_err(|error| of_output(name, error))
    }

    /// Waits for as many readers as were asked for, which the first write does otherwise.
    ///
    /// # Errors
    ///
    /// An address that nobody answers at.
    pub fn wait_for_subscribers(&mut self) -> Result<()> {
        self.live.as_mut().map_or(Ok(()), Live::wait_for_subscribers)
    }

    /// Lets readers have what was written so far.
    ///
    /// # Errors
    ///
    /// A target that cannot be written to.
    pub fn publish(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.outputs.len() {
            match self.outputs[at].1.publish() {
                Ok(()) => at += 1,
                Err(error) => self.leave_out(at, error)?,
            }
        }
        self.look_for_displaced();
        Ok(())
    }

    /// Goes on without a target that failed, where that is wanted and another is left: a reader who has gone
    /// without a word, for anything else with a report.
    fn leave_out(&mut self, at: usize, error: Error) -> Result<()> {
        let is_last = self.outputs.len() == 1 && self.live.is_none();
        let has_reader_gone = is_broken_pipe(&error) || self.outputs[at].1.is_deserted();
        if is_last || !(self.goes_on || has_reader_gone) {
            return Err(error.of_output(&self.outputs[at].0));
        }
        let (name, output) = self.outputs.remove(at);
        if !is_broken_pipe(&error) {
            self.has_left_out = true;
            self.messages.fault(&name, &error.hint(CONTINUES));
            self.note_what_is_left(&name, &output);
        }
        Ok(())
    }

    /// What is in a file of a target that failed ends where it was whole.
    fn note_what_is_left(&self, name: &str, output: &Output) {
        if output.is_published() {
            self.messages.note(name, "it ends with the last complete batch");
        }
    }

    /// Gives up the target that failed last. Returns whether something whole is in any file.
    pub fn abandon(self) -> bool {
        for (name, output) in &self.outputs {
            self.note_what_is_left(name, output);
        }
        self.outputs.iter().any(|(_, output)| output.is_published())
    }

    /// Tells of files that are not under their names any more.
    fn look_for_displaced(&mut self) {
        for (name, output) in &mut self.outputs {
            if let Some(error) = output.displaced() {
                self.messages.fault(name, &error);
                self.has_left_out = true;
            }
        }
    }

    /// Ends the writing, once every reader has what waits for it.
    ///
    /// # Errors
    ///
    /// A target that cannot be brought to its place.
    pub fn commit(mut self) -> Result<Status> {
        self.look_for_displaced();
        let mut committed = Ok(());
        let mut has_left_out = self.has_left_out;
        for (name, output) in self.outputs {
            let is_published = output.is_published();
            let done = output.commit().map_err(|error| error.of_output(&name));
            match done {
                Err(error) if self.goes_on || is_published => {
                    has_left_out = true;
                    self.messages.error(&error);
                }
                done => committed = committed.and(done),
            }
        }
        // Readers get the end whatever became of a file.
        let undelivered = self.live.map_or(Ok(Vec::new()), Live::finish);
        committed?;
        let undelivered = undelivered.map_err(|error| error.of_output(&self.live_name))?;
        for Undelivered { name, what } in &undelivered {
            self.messages.fault(name, &Error::stream(what));
        }
        Ok(if undelivered.is_empty() && !has_left_out { Status::Done } else { Status::Partial })
    }

    /// Does it to every target that is written to. One reader who goes does not end the stream of the others.
    fn each(&mut self, mut act: impl FnMut(&mut Output) -> io::Result<()>) -> io::Result<()> {
        let mut at = 0;
        while at < self.outputs.len() {
            match act(&mut self.outputs[at].1) {
                Ok(()) => at += 1,
                Err(error) => {
                    // The kind is what the callers go by.
                    let kind = error.kind();
                    let name = self.outputs[at].0.clone();
                    self.leave_out(at, error.into()).map_err(|error| {
                        let why = error.io().map_or_else(|| error.to_string(), io::Error::to_string);
                        of_output(&name, io::Error::new(kind, why))
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Does it to the readers.
    fn serve(&mut self, act: impl FnOnce(&mut Live) -> io::Result<()>) -> io::Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        match act(live) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                let gone = if self.may_leave { error } else { io::Error::other("its reader has gone") };
                if self.outputs.is_empty() {
                    return Err(of_output(&self.live_name, gone));
                }
                self.live = None;
                if !self.may_leave {
                    self.has_left_out = true;
                    self.messages.fault(&self.live_name, &Error::from(gone).hint(CONTINUES));
                }
                Ok(())
            }
            served => served.map_err(|error| of_output(&self.live_name, error)),
        }
    }

    /// Hands on a chunk of a run, after its length.
    ///
    /// # Errors
    ///
    /// A target that cannot be written to, and a chunk of more bytes than a length can tell.
    pub fn chunk(&mut self, info: &ChunkInfo, samples: u64, bytes: &[u8]) -> Result<()> {
        let item = framed_chunk(info, samples, bytes)?;
        let written = self.each(|output| output.write_all(&item.text));
        let served = written.and_then(|()| {
            self.serve(|live| {
                live.message(item).map_err(|error| io::Error::other(error.detail().to_string()))
            })
        });
        Ok(served?)
    }
}

/// A chunk as a message: its length, which is a big-endian u32, and itself.
///
/// # Errors
///
/// A chunk of more bytes than that can tell.
pub(crate) fn framed_chunk(info: &ChunkInfo, samples: u64, bytes: &[u8]) -> Result<Item> {
    let length = u32::try_from(bytes.len()).map_err(|_| {
        Error::new(ErrorKind::Limit, format!("a chunk of {} bytes is too large", bytes.len()))
    })?;
    Ok(chunk_item(info, samples, [&length.to_be_bytes(), bytes].concat()))
}

/// A chunk as a message, in these bytes.
pub(crate) fn chunk_item(info: &ChunkInfo, samples: u64, bytes: Vec<u8>) -> Item {
    Item {
        run: info.run_id.as_str().into(),
        seq: info.index,
        class: Class::Whole,
        in_batch: false,
        samples: Some(samples),
        span: Some(info.span),
        text: bytes.into(),
    }
}

impl Write for Outputs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(frames) = &mut self.frames {
            frames.write_all(bytes)?;
            let framed = std::mem::take(frames.sink());
            self.each(|output| output.write_all(&framed))?;
            self.serve(|live| live.write_all(bytes))?;
            return Ok(bytes.len());
        }
        if let ([(name, output)], None) = (self.outputs.as_mut_slice(), &self.live) {
            return output.write(bytes).map_err(|error| of_output(name, error));
        }
        self.each(|output| output.write_all(bytes))?;
        self.serve(|live| live.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.each(Output::flush)
    }
}
