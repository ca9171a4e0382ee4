//! `recover`: saves the intact part of a torn or damaged profile as a sound one.

use crate::cli::args::Recover as Args;
use crate::cli::exit::Status;
use crate::cli::io::{Input, Target};
use crate::cli::network::network;
use crate::cli::output::profile_output::ProfileOutlet;
use crate::cli::ui::messages::Messages;
use crate::error::{Error, Result};
use crate::format::{Framing, Recovered, recover};

pub(crate) fn run(args: &Args, messages: &Messages) -> Result<Status> {
    let network = network(&args.access, messages)?;
    let input = Input::of_argument(args.input.as_deref(), &network)?;
    let target = Target::of_argument(args.output.as_deref(), &network)?;
    target.check_apart_from(std::slice::from_ref(&input))?;
    let mut output = ProfileOutlet::open(&target, &args.live, false, messages)?;
    let name = input.name();
    let named = |error: Error| error.within(&name);
    let mut source = input.source().map_err(named)?;
    let recovered = recover(&mut source);
    let Recovered { copy, framing, parts, samples, mut losses, .. } = recovered.map_err(named)?;
    losses.extend(source.failure());
    output.spooled(copy)?;
    let delivered = output.commit()?;
    for loss in &losses {
        messages.fault(&name, loss);
    }
    let part = match framing {
        Framing::Files => "profile",
        Framing::Chunks => "chunk",
        Framing::Lengths => "framed profile",
    };
    let plural = if parts == 1 { "" } else { "s" };
    if delivered == Status::Done {
        messages.note(&name, &format!("{samples} samples in {parts} {part}{plural} are saved"));
    }
    Ok(if losses.is_empty() { delivered } else { Status::Partial })
}
