//! Where a stream goes: files and pipes, which are written to, and readers, who are served.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::cli::Status;
use crate::cli::args::{DropPolicy, Format, Live as Args, Schema};
use crate::cli::live::Live;
use crate::cli::messages::Messages;
use crate::error::{Error, Result};
use crate::protocol::{MessageType, StreamTypes};
use crate::stream::{Amount, Input, Network, Output, Target};

/// Every target of one stream, open.
pub(super) struct Outlet {
    outputs: Vec<(String, Output)>,
    live: Option<Live>,
    /// Names of the readers, for errors that are about all of them.
    live_name: String,
    /// The target that a write to failed.
    failed: Option<String>,
    messages: Messages,
}

/// The targets that arguments name, none of which may be one of the inputs.
///
/// # Errors
///
/// Usage errors.
pub(super) fn targets(arguments: &[PathBuf], inputs: &[Input], network: &Network) -> Result<Vec<Target>> {
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
            return Err(Error::usage(format!("{} is a target twice", target.name())));
        }
    }
    Ok(targets)
}

/// Whether some of the targets are served, and not written to.
pub(super) fn has_readers(targets: &[Target], args: &Args) -> bool {
    let drops = args.drop_policy == Some(DropPolicy::Oldest);
    targets.iter().any(|target| matches!(target, Target::Socket(..)) || drops && target.is_pipe())
}

/// Refuses what readers could not make sense of who come late or lose something.
///
/// # Errors
///
/// Usage errors.
pub(super) fn check_for_readers(format: Format, schema: Schema, types: Option<&StreamTypes>) -> Result<()> {
    let is_without_meta = types.is_some_and(|types| !types.has(MessageType::Meta));
    let fault = match (format, schema) {
        (Format::Msgpack, _) => "MessagePack goes to files and pipes, not to sockets",
        (_, Schema::Cpython) => "CPython's JSON Lines go to files and pipes, not to sockets",
        _ if is_without_meta => "meta cannot be left out for readers that may come late or lose something",
        _ => return Ok(()),
    };
    Err(Error::usage(fault))
}

impl Outlet {
    /// Opens the targets. A stream that `is_live` waits for no reader unless it was told to.
    ///
    /// # Errors
    ///
    /// A target that cannot be opened.
    pub fn open(
        targets: &[Target],
        args: &Args,
        network: &Network,
        is_live: bool,
        messages: &Messages,
    ) -> Result<Self> {
        let mut outlet = Outlet {
            outputs: Vec::new(),
            live: None,
            live_name: String::new(),
            failed: None,
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
            let is_served = has_readers(std::slice::from_ref(target), args);
            if !is_served {
                outlet.outputs.push((name.clone(), target.open().map_err(named)?));
                continue;
            }
            let live = outlet.live.get_or_insert_with(|| Live::new(args, network.clone(), is_live));
            match target {
                Target::Socket(address, _) => live.sinks().open(address).map_err(named)?,
                target => live.sinks().pipe(&name, Box::new(target.open().map_err(named)?)),
            }
            if !outlet.live_name.is_empty() {
                outlet.live_name.push_str(", ");
            }
            outlet.live_name.push_str(&name);
        }
        Ok(outlet)
    }

    /// Waits for as many readers as were asked for, which the first write does otherwise.
    ///
    /// # Errors
    ///
    /// An address that nobody answers at.
    pub fn wait_for_readers(&mut self) -> Result<()> {
        self.live.as_mut().map_or(Ok(()), Live::wait_for_readers)
    }

    /// The target that a write to failed, if one has.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// An error of writing, told of the target that it is of.
    pub fn named(&self, error: Error) -> Error {
        let first = self.outputs.first().map_or(self.live_name.as_str(), |(name, _)| name);
        error.within(self.failed().unwrap_or(first))
    }

    /// Lets readers have what was written so far.
    ///
    /// # Errors
    ///
    /// A target that cannot be written to.
    pub fn publish(&mut self) -> Result<()> {
        for (name, output) in &mut self.outputs {
            output.publish().map_err(|error| error.within(name))?;
        }
        Ok(())
    }

    /// Ends the writing, once every reader has what waits for it.
    ///
    /// # Errors
    ///
    /// A target that cannot be brought to its place.
    pub fn commit(self) -> Result<Status> {
        let mut committed = Ok(());
        for (name, output) in self.outputs {
            committed = committed.and(output.commit().map_err(|error| error.within(&name)));
        }
        // Readers get the end whatever became of a file.
        let undelivered = self.live.map_or(Vec::new(), Live::finish);
        committed?;
        for undelivered in &undelivered {
            let Amount { messages, samples } = undelivered.amount;
            let samples = samples.map_or(String::new(), |samples| format!(" with {samples} samples"));
            let what = match messages {
                0 => "the connection broke at the end: not all may have got there".to_string(),
                _ => format!("{messages} messages{samples} did not get there"),
            };
            self.messages.fault(&undelivered.name, &Error::stream(what));
        }
        Ok(if undelivered.is_empty() { Status::Done } else { Status::Partial })
    }

    /// Does it to every target. One reader who goes does not end the stream of the others.
    fn each(&mut self, mut act: impl FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let mut at = 0;
        while at < self.outputs.len() {
            let others = self.outputs.len() - 1 + usize::from(self.live.is_some());
            let (name, output) = &mut self.outputs[at];
            match act(output) {
                Ok(()) => at += 1,
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe && others > 0 => {
                    self.outputs.remove(at);
                }
                Err(error) => {
                    self.failed = Some(name.clone());
                    return Err(error);
                }
            }
        }
        let Some(live) = &mut self.live else { return Ok(()) };
        match act(live) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe && !self.outputs.is_empty() => {
                self.live = None;
                Ok(())
            }
            Err(error) => {
                self.failed = Some(self.live_name.clone());
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let ([(name, output)], None) = (self.outputs.as_mut_slice(), &self.live) {
            let written = output.write(bytes);
            if output.failed() {
                self.failed = Some(name.clone());
            }
            return written;
        }
        self.each(|target| target.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.each(|target| target.flush())
    }
}
