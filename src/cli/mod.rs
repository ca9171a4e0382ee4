//! The command line: arguments, files, messages to the user, exit statuses. Only data goes to standard output.

mod args;
mod commands;
pub(crate) mod exit;
mod inspect;
#[doc(hidden)]
pub mod io;
#[doc(hidden)]
pub mod net;
pub(crate) mod network;
pub(crate) mod output;
#[cfg(unix)]
mod record;
mod ui;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::exit::{Status, exit_code};
use crate::error::{Error, Result};
use args::{Args, Command};
use ui::messages::Messages;
use ui::terminal::{shown, shown_lines};

#[cfg(unix)]
pub use crate::cli::io::note_closed_streams;

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return no_command(&error),
    };
    let messages = Messages::new(args.quiet);
    exit_code(run(&args, &messages), &messages)
}

/// What there is to say instead of a command's work: help and version on standard output, or that the arguments
/// are none.
fn no_command(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        // Arguments come from outside. Colours are left to those that need no care.
        let is_plain = |argument: OsString| matches!(shown(&argument.to_string_lossy()), Cow::Borrowed(_));
        let _ = if std::env::args_os().all(is_plain) {
            error.print()
        } else {
            write!(std::io::stderr(), "{}", shown_lines(&error.render().to_string()))
        };
        return ExitCode::from(2);
    }
    let printed = ui::terminal::write(|_| error.print().and_then(|()| std::io::stdout().flush()));
    exit_code(printed.map(|()| Status::Done), &Messages::new(false))
}

fn run(args: &Args, messages: &Messages) -> Result<Status> {
    ui::signals::size_limit_is_an_error()?;
    let ends_by_itself = matches!(&args.command, Command::FromBin(args) if args.follow)
        || matches!(args.command, Command::Record(_));
    if !ends_by_itself {
        crate::cli::io::before_first_file(ui::signals::clean_up_on_stop);
    }
    match &args.command {
        Command::FromBin(args) => commands::from_bin::run(args, messages),
        Command::ToBin(args) => commands::to_bin::run(args, messages),
        Command::Inspect(args) => inspect::run(args, messages),
        Command::Check(args) => commands::check::run(args, messages),
        Command::Diff(args) => commands::diff::run(args, messages),
        Command::Upgrade(args) => commands::upgrade::run(args, messages),
        Command::Recover(args) => commands::recover::run(args, messages),
        #[cfg(unix)]
        Command::Record(args) => record::run(args, messages),
        #[cfg(unix)]
        Command::Snapshot(args) => commands::snapshot::run(args, messages),
        #[cfg(not(unix))]
        Command::Record(_) | Command::Snapshot(_) => Err(Error::usage("recording needs Unix")),
        Command::Schema => print(include_bytes!("../../schema/stream.schema.json")),
        Command::Man { folder: None } => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Args::command()).render(&mut page)?;
            print(&page)
        }
        Command::Man { folder: Some(folder) } => {
            let made = std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(Args::command(), folder));
            made.map_err(|error| Error::from(error).within(&folder.display().to_string()))?;
            Ok(Status::Done)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "tachyon-jsonl", &mut script);
            print(&script)
        }
    }
}

fn print(bytes: &[u8]) -> Result<Status> {
    ui::terminal::write(|out| out.write_all(bytes))?;
    Ok(Status::Done)
}
