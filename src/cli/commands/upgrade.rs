//! `upgrade`: CPython's own JSON Lines into a stream.

use std::io::BufRead;

use crate::cli::args::{Format, Upgrade as Args};
use crate::cli::exit::Status;
use crate::cli::io::Input;
use crate::cli::io::sniff::{StreamLines, no_stream, stream_lines};
use crate::cli::network::network;
use crate::cli::output::outputs::{Outputs, targets};
use crate::cli::ui::messages::Messages;
use crate::convert::{StreamOptions, Upgrade};
use crate::error::{Error, Result};
use crate::protocol::Lines;

pub(crate) fn run(args: &Args, messages: &Messages) -> Result<Status> {
    // Says what is wrong with the limit, if something is.
    StreamOptions::new("upgrade")?.max_line(args.max_line)?;
    let network = network(&args.access, messages)?;
    let input = Input::of_argument(args.input.as_deref(), &network)?;
    let targets = targets(&args.output, std::slice::from_ref(&input), &network)?;
    let mut outputs = Outputs::open(&targets, &args.live, &network, Format::Jsonl, false, None, messages)?;
    let name = input.name();
    let StreamLines { reader, other } = stream_lines(&input).map_err(|error| error.within(&name))?;
    let CpythonFile { upgrade, losses, oddities } = read(&name, reader, other, args.max_line)?;
    if args.strict
        && let Some(fault) = losses.iter().map(Error::again).chain(oddities.iter().map(Error::stream)).next()
    {
        return Err(fault.within(&name));
    }
    oddities.iter().for_each(|oddity| messages.warning(&name, oddity));
    losses.iter().for_each(|loss| messages.fault(&name, loss));
    upgrade.write(&mut outputs)?;
    let status = outputs.commit()?;
    Ok(if losses.is_empty() { status } else { Status::Partial })
}

/// The runs of a file, read to its end.
pub(crate) struct CpythonFile {
    pub upgrade: Upgrade,
    /// What is damaged or missing.
    pub losses: Vec<Error>,
    /// What was overlooked.
    pub oddities: Vec<String>,
}

/// Reads the input of this name, which is `other` if none of its lines is a message.
///
/// # Errors
///
/// An input that there is nothing of CPython's in.
pub(crate) fn read(
    name: &str,
    reader: impl BufRead,
    other: Option<&'static str>,
    max_line: usize,
) -> Result<CpythonFile> {
    let named = |error: Error| error.within(name);
    let mut lines = Lines::new(reader);
    let mut upgrade = Upgrade::default().max_line(max_line);
    let mut is_stream = false;
    let broken = loop {
        match lines.next_message() {
            Ok(Some(line)) => {
                is_stream = true;
                upgrade.line(line.number, line.bytes).map_err(named)?;
            }
            Ok(None) => break None,
            // What came before it is whole.
            Err(error) => break Some(error),
        }
    };
    if let Some(other) = other.filter(|_| !is_stream) {
        return Err(named(no_stream(other)));
    }
    let losses = upgrade.end().map_err(named)?;
    let oddities = lines.tolerated().notes().into_iter().chain(upgrade.tolerated()).collect();
    Ok(CpythonFile { losses: broken.into_iter().chain(losses).collect(), oddities, upgrade })
}
