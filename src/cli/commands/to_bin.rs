//! `to-bin`: a stream into a profile.

use std::cell::Cell;
use std::time::Duration;

use tempfile::SpooledTempFile;

use crate::cli::args::{Layout, ToBin as Args};
use crate::cli::commands::stream_options::threads;
use crate::cli::exit::{Status, is_broken_pipe};
use crate::cli::io::sniff::{StreamLines, no_stream, stream_lines};
use crate::cli::io::{Input, Target};
use crate::cli::network::network;
use crate::cli::output::profile_output::ProfileOutlet;
use crate::cli::ui::messages::Messages;
use crate::convert::{Flush, Outcome, ProfileOptions, ToBinary, ToChunks};
use crate::error::{Error, ErrorKind, Position, Result};
use crate::limits::SPOOL_MEMORY;
use crate::protocol::Lines;

/// Of chunks, unless said otherwise.
const FLUSH: Flush = Flush { samples: None, interval: Some(Duration::from_secs(10)), part: false };

pub(crate) fn run(args: &Args, messages: &Messages) -> Result<Status> {
    let layout = args.layout();
    if layout == Layout::V1 && args.flush.is_some() {
        return Err(Error::usage("--flush needs chunks: --layout v2 or --format binary"));
    }
    let network = network(&args.access, messages)?;
    let input = Input::of_argument(args.input.as_deref(), &network)?;
    let target = Target::of_argument(args.output.as_deref(), &network)?;
    target.check_apart_from(std::slice::from_ref(&input))?;
    let mut output = ProfileOutlet::open(&target, &args.live, layout == Layout::Framed, messages)?;
    let job = Job { args, messages, input: &input, target: &target };
    let status = match layout {
        Layout::V1 => job.whole(&mut output)?,
        Layout::V2 | Layout::Framed => job.chunks(&mut output)?,
    };
    let delivered = output.commit()?;
    Ok(if status == Status::Done { delivered } else { status })
}

struct Job<'a> {
    args: &'a Args,
    messages: &'a Messages,
    input: &'a Input,
    target: &'a Target,
}

impl Job<'_> {
    fn whole(&self, output: &mut ProfileOutlet) -> Result<Status> {
        if let Some(file) = output.file() {
            let mut profile = ToBinary::new(file, self.options());
            let ended = self.lines(|number, line| profile.line(number, line))?;
            return Ok(self.outcome(profile.finish(), ended)?.0);
        }
        // A profile's header is written last, so it is made aside where there is no going back.
        let mut profile = ToBinary::new(SpooledTempFile::new(SPOOL_MEMORY), self.options());
        let ended = self.lines(|number, line| profile.line(number, line))?;
        let (status, spool) = self.outcome(profile.finish(), ended)?;
        output.spooled(spool)?;
        Ok(status)
    }

    fn chunks(&self, output: &mut ProfileOutlet) -> Result<Status> {
        let flush = self.args.flush.unwrap_or(FLUSH);
        let stored = Cell::new(0);
        let mut profile = ToChunks::new(self.options(), flush, |chunk| {
            output.chunk(chunk)?;
            stored.set(stored.get() + 1);
            Ok(())
        });
        let made = self.lines(|number, line| profile.line(number, line));
        let made = made.and_then(|ended| self.outcome(profile.finish(), ended));
        match made {
            Ok((status, ())) => Ok(status),
            // The chunks before it are whole.
            Err(error)
                if stored.get() > 0
                    && matches!(error.kind(), ErrorKind::Io | ErrorKind::Limit)
                    && !is_broken_pipe(&error) =>
            {
                self.messages.error(&error);
                Ok(Status::Partial)
            }
            Err(error) => Err(error),
        }
    }

    fn options(&self) -> ProfileOptions {
        let options = ProfileOptions::default().packing(self.args.compression);
        let options = options.threads(threads(self.args.threads));
        match &self.args.run_id {
            Some(run_id) => options.run_id(run_id),
            None => options,
        }
    }

    /// Hands on the input's lines. Returns why they broke off, if they did, and what was tolerated.
    fn lines(
        &self,
        mut each: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<(Option<Error>, Vec<String>)> {
        let named = |error: Error| error.within(&self.input.name());
        let StreamLines { reader, other } = stream_lines(self.input).map_err(named)?;
        let mut lines = Lines::new(reader);
        let mut is_stream = false;
        let broken = loop {
            match lines.next_message() {
                Ok(Some(line)) => {
                    is_stream = true;
                    let here = Position::Line(line.number);
                    each(line.number, line.bytes).map_err(|error| named(self.converting(error).at(here)))?;
                }
                Ok(None) if is_stream => break None,
                Ok(None) => break other.map(no_stream),
                // What came before it is whole.
                Err(error) => break Some(error),
            }
        };
        Ok((broken, lines.tolerated().notes()))
    }

    /// An error while samples go from the input's lines to the target. Those of the system are of the target.
    fn converting(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Io => error.of_output(&self.target.name()),
            ErrorKind::Limit if self.args.layout() == Layout::V1 => {
                error.hint("--layout v2 makes chunks, each of which has threads and tables of its own")
            }
            _ => error,
        }
    }

    /// Tells what became of the stream.
    fn outcome<W>(
        &self,
        outcome: Result<Outcome<W>>,
        (broken, tolerated): (Option<Error>, Vec<String>),
    ) -> Result<(Status, W)> {
        let name = self.input.name();
        let named = |error: Error| error.within(&name);
        let Outcome { sink, samples, losses, tolerated: more, left_out } = match outcome {
            Ok(outcome) => outcome,
            Err(error) if error.kind() == ErrorKind::Io => return Err(self.converting(error)),
            Err(error) => return Err(named(broken.unwrap_or(error))),
        };
        if !left_out.is_empty() {
            let facts = left_out.join(" and ");
            let what = format!("a version-1 profile cannot hold {facts}; --layout v2 keeps them");
            self.messages.warning(&name, &what);
        }
        let mut losses: Vec<Error> = broken.into_iter().chain(losses).collect();
        let oddities: Vec<String> = tolerated.into_iter().chain(more).collect();
        if self.args.strict {
            let oddity = oddities.first().map(Error::stream);
            return match losses.into_iter().next().or(oddity) {
                Some(fault) => Err(named(fault)),
                None => Ok((Status::Done, sink)),
            };
        }
        for oddity in &oddities {
            self.messages.warning(&name, oddity);
        }
        if samples == 0 && !losses.is_empty() {
            // The first is the cause of others, mostly.
            let first = losses.remove(0);
            losses.iter().for_each(|loss| self.messages.fault(&name, loss));
            return Err(named(first));
        }
        for loss in &losses {
            self.messages.fault(&name, loss);
        }
        Ok((if losses.is_empty() { Status::Done } else { Status::Partial }, sink))
    }
}
