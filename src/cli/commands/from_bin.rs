//! `from-bin`: profiles into a stream.

use std::io::Cursor;

use crate::cli::args::{FromBin, Schema};
use crate::cli::commands::follow;
use crate::cli::commands::run_id::{is_made_up, several_runs};
use crate::cli::commands::runs::Runs;
use crate::cli::commands::stream_options::{options, threads};
use crate::cli::exit::Status;
use crate::cli::io::sniff::{Sniffed, sniff};
use crate::cli::io::{Deadline, Input, ProfileSource, Target};
use crate::cli::net::Network;
use crate::cli::network::network;
use crate::cli::output::outputs::{Outputs, check_for_subscribers, has_subscribers, targets};
use crate::cli::ui::messages::Messages;
use crate::convert::CpythonRun;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Sequence;

pub(crate) fn run(args: &FromBin, messages: &Messages) -> Result<Status> {
    let network = network(&args.access, messages)?;
    let mut inputs = Vec::new();
    for path in &args.inputs {
        inputs.push(Input::of_argument(Some(path), &network)?);
    }
    if inputs.is_empty() {
        inputs.push(Input::Standard);
    }
    // Options that cannot be are reported before any input is read.
    options(args, "auto")?;
    if inputs.len() > 1 && !is_made_up(&args.run_id) {
        return Err(several_runs());
    }
    let targets = targets(&args.output, &inputs, &network)?;
    if has_subscribers(&targets, &args.live) {
        check_for_subscribers(args.written.format(), args.schema, args.stream_types.as_ref())?;
    }
    if args.follow {
        return follow::run(args, messages, &inputs, |limit| {
            outputs(args, messages, &targets, &network, Some(limit))
        });
    }
    let mut runs = Runs::new(args, messages, outputs(args, messages, &targets, &network, None)?);
    let mut failure: Option<Error> = None;
    for input in &inputs {
        if let Err(error) = convert(input, args, messages, &mut runs) {
            if error.is_of_output() || error.kind() == ErrorKind::Usage {
                return Err(error);
            }
            if let Some(earlier) = failure.replace(error) {
                messages.error(&earlier);
            }
        }
    }
    runs.finish(failure)
}

fn outputs(
    args: &FromBin,
    messages: &Messages,
    targets: &[Target],
    network: &Network,
    limit: Option<&Deadline>,
) -> Result<Outputs> {
    Outputs::open(targets, &args.live, network, args.written.format(), args.follow, limit, messages)
}

/// Writes the runs of one input: one, unless files were joined.
fn convert(input: &Input, args: &FromBin, messages: &Messages, runs: &mut Runs<'_>) -> Result<()> {
    let name = input.name();
    let named = |error: Error| error.within(&name);
    let mut source = match sniff(input).map_err(named)? {
        Sniffed::Profile(source) => source,
        Sniffed::Trace(trace) => return runs.trace(&name, *trace),
        Sniffed::Stream { is_cpython: true, reader, .. } => return runs.cpython(&name, reader),
        // Named for what it looks like.
        Sniffed::Stream { packing: None, reader, .. } => ProfileSource::of_pipe(reader),
        Sniffed::Stream { packing: Some(packing), .. } => {
            let error = Error::stream(format!("a stream packed with {packing}, not a profile"));
            return Err(named(error.hint("a stream is read by to-bin, inspect, check and diff")));
        }
        Sniffed::Packed(start) => ProfileSource::of_pipe(Cursor::new(start)),
    };
    let counting = match args.schema {
        Schema::Own => options(args, "auto")?.counting(),
        Schema::Cpython => Some(CpythonRun::counting()),
    };
    let sequence = Sequence::open(&mut source).map_err(named)?;
    let sequence = sequence.threads(threads(args.threads)).counting(counting);
    let converted = parts(&name, sequence, &mut source, args, messages, runs);
    match source.failure() {
        Some(failure) if converted.is_ok() => runs.broke_off(&name, failure)?,
        // What came is of no use, for this reason among others.
        Some(failure) => messages.fault(&name, &failure),
        None => {}
    }
    converted?;
    runs.end_input(&name)
}

/// Writes the runs of the parts of an input.
fn parts(
    name: &str,
    mut sequence: Sequence,
    source: &mut ProfileSource,
    args: &FromBin,
    messages: &Messages,
    runs: &mut Runs<'_>,
) -> Result<()> {
    let named = |error: Error| error.within(name);
    let joined = sequence.files_left();
    if joined > 1 {
        if !is_made_up(&args.run_id) {
            return Err(several_runs());
        }
        messages.warning(name, &format!("{joined} profiles in a row; each becomes a run"));
    }
    if threads(args.threads) != 1 {
        runs.in_background();
    }
    let framing = sequence.framing();
    while let Some(part) = sequence.next(source).map_err(named)? {
        runs.part(name, framing, part)?;
        runs.submit()?;
        source.forget(sequence.position()).map_err(|error| named(error.into()))?;
    }
    Ok(())
}
