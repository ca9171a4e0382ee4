//! `check`.

use crate::cli::Status;
use crate::cli::args::Check;
use crate::cli::messages::Messages;
use crate::error::{Error, Result};

pub(super) fn run(_args: &Check, _messages: &Messages) -> Result<Status> {
    Err(Error::usage("not there yet"))
}
