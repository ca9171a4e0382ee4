//! Messages to the user on standard error.

use std::io::Write;

use crate::cli::ui::terminal::shown;
use crate::error::Error;

const PROGRAM: &str = "tachyon-jsonl";

/// Tells people what happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    quiet: bool,
}

impl Messages {
    pub fn new(quiet: bool) -> Self {
        Messages { quiet }
    }

    /// What the command failed with. The error says which file it means.
    pub fn error(&self, error: &Error) {
        say(format_args!("{PROGRAM}: {error}"));
        self.hint(error);
    }

    /// Something is wrong with a file, but it was of use.
    pub fn fault(&self, name: &str, error: &Error) {
        say(format_args!("{PROGRAM}: {name}: {error}"));
        self.hint(error);
    }

    /// Something odd that costs nothing.
    pub fn warning(&self, name: &str, what: &str) {
        if !self.quiet {
            say(format_args!("{PROGRAM}: {name}: warning: {what}"));
        }
    }

    /// What was done.
    pub fn note(&self, name: &str, what: &str) {
        if !self.quiet {
            say(format_args!("{PROGRAM}: {name}: {what}"));
        }
    }

    /// A socket can be connected to. Told in any case: the port may be one that nobody knew before.
    pub fn listening(&self, name: &str) {
        say(format_args!("{PROGRAM}: listening on {name}"));
    }

    fn hint(&self, error: &Error) {
        if let Some(hint) = error.hint_text() {
            say(format_args!("hint: {hint}"));
        }
    }
}

/// A line for people. Nobody may be there to read it.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{}", shown(&line.to_string()));
}
