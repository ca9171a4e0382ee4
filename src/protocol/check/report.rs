//! The findings of a check.

use crate::limits::FAULTS;

/// Bytes of a finding, about: it may quote a whole line.
pub(super) const WORDS: usize = 300;

/// A breach of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Line of the stream, from 1.
    pub line: u64,
    /// What is wrong.
    pub what: String,
}

/// Where findings about a line go.
pub(super) struct Report<'a> {
    pub line: u64,
    pub findings: &'a mut Vec<Finding>,
    /// All faults of the stream, including those that are not printed.
    pub faults: u64,
}

impl Report<'_> {
    pub fn say(&mut self, what: impl Into<String>) {
        self.at(self.line, what);
    }

    pub fn at(&mut self, line: u64, what: impl Into<String>) {
        self.faults += 1;
        if self.faults <= FAULTS as u64 {
            self.findings.push(Finding { line, what: on_one_line(what.into()) });
        }
    }
}

/// Words that may quote the stream, fit to be shown: no control characters, and not too many.
pub(super) fn on_one_line(what: String) -> String {
    if what.len() <= WORDS && !what.contains(char::is_control) {
        return what;
    }
    let mut shown = String::new();
    for char in what.chars() {
        if shown.len() >= WORDS {
            shown.push_str("...");
            break;
        }
        if char.is_control() { shown.extend(char.escape_default()) } else { shown.push(char) }
    }
    shown
}
