//! `upgrade`: CPython's own JSON Lines into a stream.

use crate::cli::Status;
use crate::cli::args::{Format, Upgrade as Args};
use crate::cli::messages::Messages;
use crate::cli::network::network;
use crate::cli::outlet::{Outlet, targets};
use crate::cli::sniff::stream_lines;
use crate::convert::{StreamOptions, Upgrade};
use crate::error::{Error, Result};
use crate::stream::{Input, Lines};

pub(super) fn run(args: &Args, messages: &Messages) -> Result<Status> {
    // Says what is wrong with the limit, if something is.
    StreamOptions::new("upgrade")?.max_line(args.max_line)?;
    let network = network(&args.access, messages)?;
    let input = Input::of_argument(args.input.as_deref(), &network)?;
    let targets = targets(&args.output, std::slice::from_ref(&input), &network)?;
    let mut outlet = Outlet::open(&targets, &args.live, &network, Format::Jsonl, false, None, messages)?;
    let name = input.name();
    let named = |error: Error| error.within(&name);
    let mut lines = Lines::new(stream_lines(&input).map_err(named)?);
    let mut upgrade = Upgrade::default().max_line(args.max_line);
    let broken = loop {
        match lines.next_message() {
            Ok(Some(line)) => upgrade.line(line.number, line.bytes).map_err(named)?,
            Ok(None) => break None,
            // What came before it is whole.
            Err(error) => break Some(error),
        }
    };
    let mut stream = Vec::new();
    let losses = upgrade.finish(&mut stream).map_err(named)?;
    let losses: Vec<Error> = broken.into_iter().chain(losses).collect();
    let oddities = lines.tolerated().notes();
    if args.strict
        && let Some(fault) = losses.iter().map(Error::again).chain(oddities.iter().map(Error::stream)).next()
    {
        return Err(named(fault));
    }
    oddities.iter().for_each(|oddity| messages.warning(&name, oddity));
    losses.iter().for_each(|loss| messages.fault(&name, loss));
    std::io::Write::write_all(&mut outlet, &stream).map_err(|error| outlet.named(error.into()))?;
    let status = outlet.commit()?;
    Ok(if losses.is_empty() { status } else { Status::Partial })
}
