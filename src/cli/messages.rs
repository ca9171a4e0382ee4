//! What people are told, on standard error.

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
        eprintln!("{PROGRAM}: {error}");
        self.hint(error);
    }

    /// Something is wrong with a file, but it was of use.
    pub fn fault(&self, name: &str, error: &Error) {
        eprintln!("{PROGRAM}: {name}: {error}");
        self.hint(error);
    }

    /// Something odd that costs nothing.
    pub fn warning(&self, name: &str, what: &str) {
        if !self.quiet {
            eprintln!("{PROGRAM}: {name}: warning: {what}");
        }
    }

    /// What was done.
    pub fn note(&self, name: &str, what: &str) {
        if !self.quiet {
            eprintln!("{PROGRAM}: {name}: {what}");
        }
    }

    /// A socket can be connected to. Told in any case: the port may be one that nobody knew before.
    pub fn listening(&self, name: &str) {
        eprintln!("{PROGRAM}: listening on {name}");
    }

    fn hint(&self, error: &Error) {
        if let Some(hint) = error.hint_text() {
            eprintln!("hint: {hint}");
        }
    }
}
