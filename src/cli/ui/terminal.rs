//! Text on standard output, and the filter that keeps control characters off terminals.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};

use crate::cli::io::standard_output;
use crate::error::{Error, Result};

/// Text of which parts come from outside, in one line: what would steer a terminal, break the line or turn the
/// direction of writing is shown as an escape.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, steers)
}

/// The same of several lines.
pub(crate) fn shown_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |char| char != '\n' && steers(char))
}

fn escaped(text: &str, is_hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_hidden(char) {
            shown.extend(char.escape_default());
        } else {
            shown.push(char);
        }
    }
    Cow::Owned(shown)
}

/// Control characters, line and paragraph separators, and Unicode's controls of direction.
fn steers(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes to standard output with a buffer, all of it.
///
/// # Errors
///
/// One that is closed or cannot be written to.
pub(crate) fn write(act: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut output = open()?;
    act(&mut output).and_then(|()| output.flush()).map_err(named)
}

/// Standard output with a buffer.
///
/// # Errors
///
/// One that is closed.
pub(crate) fn open() -> Result<BufWriter<impl Write>> {
    standard_output().map(BufWriter::new).map_err(named)
}

/// An error of standard output.
pub(crate) fn named(error: io::Error) -> Error {
    Error::from(error).within("standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown_and_all_else_is_left() {
        for text in ["", "naïve \u{1f600} \u{200d} / \\", "שלום"] {
            assert!(matches!(shown(text), Cow::Borrowed(_)), "{text}");
        }
        assert_eq!(shown("a\u{1b}[31m\r\u{9b}\u{7f}\n"), "a\\u{1b}[31m\\r\\u{9b}\\u{7f}\\n");
        assert_eq!(
            shown("\u{202e}x\u{2066}\u{200f}\u{61c}\u{2028}"),
            "\\u{202e}x\\u{2066}\\u{200f}\\u{61c}\\u{2028}"
        );
        assert_eq!(shown_lines("a\n\tb\n"), "a\n\\tb\n");
    }
}
