//! `inspect`.

use crate::cli::Status;
use crate::cli::args::Inspect;
use crate::cli::messages::Messages;
use crate::error::{Error, Result};

pub(super) fn run(_args: &Inspect, _messages: &Messages) -> Result<Status> {
    Err(Error::usage("not there yet"))
}
