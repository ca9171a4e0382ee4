//! `from-bin`: profiles into a stream.

use std::io::{Read, Seek, SeekFrom};

use crate::cli::Status;
use crate::cli::args::FromBin;
use crate::cli::follow;
use crate::cli::messages::Messages;
use crate::cli::runs::{Runs, is_made_up, options, several_runs};
use crate::error::{Error, ErrorKind, Result};
use crate::format::Sequence;
use crate::protocol::LmcacheTrace;
use crate::stream::{Input, ProfileSource, Target};

/// Bytes in which the magic of a trace is looked for.
const TRACE_START: u64 = 128;

pub(super) fn run(args: &FromBin, messages: &Messages) -> Result<Status> {
    let mut inputs: Vec<Input> = args.inputs.iter().map(|path| Input::of_argument(Some(path))).collect();
    if inputs.is_empty() {
        inputs.push(Input::Standard);
    }
    // Options that cannot be are told before any input is read.
    options(args, "auto")?;
    if inputs.len() > 1 && !is_made_up(&args.run_id) {
        return Err(several_runs());
    }
    let target = Target::of_argument(args.output.as_deref());
    target.check_apart_from(&inputs)?;
    if args.follow {
        return follow::run(args, messages, &inputs, target);
    }
    let mut runs = Runs::new(args, messages, target)?;
    let mut failure: Option<Error> = None;
    for input in &inputs {
        if let Err(error) = convert(input, args, messages, &mut runs) {
            if runs.output_failed() || error.kind() == ErrorKind::Usage {
                return Err(error);
            }
            if let Some(earlier) = failure.replace(error) {
                messages.error(&earlier);
            }
        }
    }
    runs.finish(failure)
}

/// Writes the runs of one input: one, unless files were joined.
fn convert(input: &Input, args: &FromBin, messages: &Messages, runs: &mut Runs<'_>) -> Result<()> {
    let name = input.name();
    let named = |error: Error| error.within(&name);
    let mut source = input.source().map_err(named)?;
    if is_trace(&mut source).map_err(named)? {
        return runs.trace(&name, LmcacheTrace::open(source).map_err(named)?);
    }
    let mut sequence = Sequence::open(&mut source).map_err(named)?;
    let joined = sequence.files_left();
    if joined > 1 {
        if !is_made_up(&args.run_id) {
            return Err(several_runs());
        }
        messages.warning(&name, &format!("{joined} profiles one behind the other; each becomes a run"));
    }
    let framing = sequence.framing();
    while let Some(part) = sequence.next(&mut source).map_err(named)? {
        runs.part(&name, framing, part)?;
        source.forget(sequence.position()).map_err(|error| named(error.into()))?;
    }
    runs.end_input(&name)
}

/// Whether this is a trace of LMCache, by its first bytes.
fn is_trace(source: &mut ProfileSource) -> Result<bool> {
    let mut start = Vec::new();
    source.take(TRACE_START).read_to_end(&mut start)?;
    source.seek(SeekFrom::Start(0))?;
    Ok(LmcacheTrace::<ProfileSource>::is_begun_by(&start))
}
