//! `to-bin`: a stream into a profile.

use std::io::{self, Seek, SeekFrom, Write};

use tempfile::SpooledTempFile;

use crate::cli::Status;
use crate::cli::args::ToBin as Args;
use crate::cli::messages::Messages;
use crate::convert::{Outcome, ProfileOptions, ToBinary};
use crate::error::{Error, Result};
use crate::limits::SPOOL_MEMORY;
use crate::stream::{Input, Lines, Output, Target, unpacked};

pub(super) fn run(args: &Args, messages: &Messages) -> Result<Status> {
    let input = Input::of_argument(args.input.as_deref());
    let target = Target::of_argument(args.output.as_deref());
    target.check_apart_from(std::slice::from_ref(&input))?;
    let mut output = target.open().map_err(|error| error.within(&target.name()))?;
    let job = Job { args, messages, input: &input };
    let status = match output.file() {
        Some(file) => job.run(&mut *file)?.0,
        None => {
            // A profile's header is written last, so it is made aside where there is no going back.
            let (status, mut spool) = job.run(SpooledTempFile::new(SPOOL_MEMORY))?;
            spool.seek(SeekFrom::Start(0))?;
            io::copy(&mut spool, &mut output).map_err(|error| job.at_target(&target, error))?;
            status
        }
    };
    commit(output, &target)?;
    Ok(status)
}

fn commit(output: Output, target: &Target) -> Result<()> {
    output.commit().map_err(|error| error.within(&target.name()))
}

struct Job<'a> {
    args: &'a Args,
    messages: &'a Messages,
    input: &'a Input,
}

impl Job<'_> {
    fn at_target(&self, target: &Target, error: io::Error) -> Error {
        Error::from(error).within(&target.name())
    }

    fn run<W: Write + Seek>(&self, sink: W) -> Result<(Status, W)> {
        let name = self.input.name();
        let named = |error: Error| error.within(&name);
        let mut options = ProfileOptions::default().packing(self.args.compression);
        if let Some(run_id) = &self.args.run_id {
            options = options.run_id(run_id);
        }
        let mut lines = Lines::new(self.input.reader().and_then(unpacked).map_err(named)?);
        let mut to_binary = ToBinary::new(sink, options);
        let mut broken = None;
        loop {
            match lines.next_message() {
                Ok(Some(line)) => to_binary.line(line.number, line.bytes).map_err(named)?,
                Ok(None) => break,
                // What came before it is whole.
                Err(error) => {
                    broken = Some(error);
                    break;
                }
            }
        }
        let tolerated = lines.tolerated();
        let Outcome { sink, samples, losses, tolerated: more, .. } = match to_binary.finish() {
            Ok(outcome) => outcome,
            Err(error) => return Err(named(broken.unwrap_or(error))),
        };
        let mut losses: Vec<Error> = broken.into_iter().chain(losses).collect();
        let oddities: Vec<String> = tolerated.notes().into_iter().chain(more).collect();
        if self.args.strict {
            let oddity = oddities.first().map(Error::stream);
            if let Some(fault) = losses.into_iter().next().or(oddity) {
                return Err(named(fault));
            }
            return Ok((Status::Done, sink));
        }
        for oddity in &oddities {
            self.messages.warning(&name, oddity);
        }
        if samples == 0
            && let Some(loss) = losses.pop()
        {
            return Err(named(loss));
        }
        for loss in &losses {
            self.messages.fault(&name, loss);
        }
        Ok((if losses.is_empty() { Status::Done } else { Status::Partial }, sink))
    }
}
