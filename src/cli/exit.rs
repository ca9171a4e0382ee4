//! Exit statuses, and how the outcome of a command maps to them.

use std::process::ExitCode;

use crate::cli::ui::messages::Messages;
use crate::error::{Error, ErrorKind, Result};

/// How a command ended, if it wasn't with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// All of it was done.
    Done,
    /// Something was lost or damaged; what could be kept was written.
    Partial,
}

/// The exit status of a command, whose error is reported here.
pub(crate) fn exit_code(ended: Result<Status>, messages: &Messages) -> ExitCode {
    // Names of sockets that nobody answers on any more.
    crate::cli::io::remove_unfinished_files();
    match ended {
        Ok(Status::Done) => ExitCode::SUCCESS,
        Ok(Status::Partial) => ExitCode::from(3),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            messages.error(&error);
            ExitCode::from(if error.kind() == ErrorKind::Usage { 2 } else { 1 })
        }
    }
}

/// Whether it is that nobody reads any more, which is no failure of a command that writes to standard output.
pub(crate) fn is_broken_pipe(error: &Error) -> bool {
    error.io().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
