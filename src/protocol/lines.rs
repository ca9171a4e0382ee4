//! Reads the lines of a stream, tolerating harmless deviations.

use std::io::BufRead;

use memchr::memchr;

use crate::error::{Error, ErrorKind, Position, Result};
use crate::limits::LINE_READ;
use crate::marks::{after_byte_order_mark, record_separators};

/// A line, without its line end.
#[derive(Debug)]
pub struct Line<'a> {
    /// From 1.
    pub number: u64,
    /// The bytes, free to be changed.
    pub bytes: &'a mut [u8],
    /// Whether a line feed ended it. Only the last line may have none.
    pub terminated: bool,
}

/// What was overlooked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tolerated {
    /// A byte order mark before the first line.
    pub byte_order_mark: bool,
    /// Lines that ended with a carriage return, too.
    pub carriage_returns: u64,
    /// Lines that began with a record separator, as RFC 7464 and `jq --seq` have it.
    pub separators: u64,
    /// Lines with a comma after the object, as the elements of an array have one.
    pub commas: u64,
    /// Blank lines.
    pub blank: u64,
    /// Lines of other text than JSON objects, and the first of them.
    pub foreign: u64,
    /// Number of the first foreign line; 0 where there is none.
    pub first_foreign: u64,
}

/// Reads lines one by one, each no longer than [`LINE_READ`].
#[derive(Debug)]
pub struct Lines<R> {
    source: R,
    line: Vec<u8>,
    number: u64,
    tolerated: Tolerated,
    /// The rest of a line that was too long is still to come.
    skipping: bool,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `source`.
    pub fn new(source: R) -> Self {
        Lines { source, line: Vec::new(), number: 0, tolerated: Tolerated::default(), skipping: false }
    }

    /// The next line that holds a JSON object, or seems to. Blank and foreign lines are skipped.
    ///
    /// # Errors
    ///
    /// Errors of the source, and a line over the limit.
    pub fn next_message(&mut self) -> Result<Option<Line<'_>>> {
        let terminated = loop {
            let Some(terminated) = self.fill()? else { return Ok(None) };
            if self.number == 1
                && let Some(rest) = after_byte_order_mark(&self.line)
            {
                self.line.drain(..self.line.len() - rest.len());
                self.tolerated.byte_order_mark = true;
            }
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
                self.tolerated.carriage_returns += 1;
            }
            let separators = record_separators(&self.line);
            if separators > 0 {
                self.line.drain(..separators);
                self.tolerated.separators += 1;
            }
            match self.line.trim_ascii_start().first() {
                Some(b'{') => {
                    let object = self.line.trim_ascii_end().strip_suffix(b",").map(<[u8]>::trim_ascii_end);
                    if let Some(object) = object.filter(|object| object.ends_with(b"}")) {
                        self.line.truncate(object.len());
                        self.tolerated.commas += 1;
                    }
                    break terminated;
                }
                None => self.tolerated.blank += 1,
                Some(_) => {
                    self.tolerated.foreign += 1;
                    if self.tolerated.foreign == 1 {
                        self.tolerated.first_foreign = self.number;
                    }
                }
            }
        };
        Ok(Some(Line { number: self.number, bytes: &mut self.line, terminated }))
    }

    /// The next line as it is, whatever it holds.
    ///
    /// # Errors
    ///
    /// Errors of the source, and a line over the limit; the call after that goes on after that line.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>> {
        let terminated = self.fill()?;
        Ok(terminated.map(|terminated| Line { number: self.number, bytes: &mut self.line, terminated }))
    }

    /// What was overlooked so far.
    pub fn tolerated(&self) -> Tolerated {
        self.tolerated
    }

    /// Reads a line into the buffer, without its line feed, and counts it; whether there was a line feed.
    /// `None` at the end.
    fn fill(&mut self) -> Result<Option<bool>> {
        self.line.clear();
        loop {
            let bytes = match self.source.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::from(error).at(Position::Line(self.number + 1))),
            };
            if bytes.is_empty() {
                let terminated = (!self.line.is_empty()).then_some(false);
                self.number += u64::from(terminated.is_some());
                return Ok(terminated);
            }
            let end = memchr(b'\n', bytes);
            let taken = end.unwrap_or(bytes.len());
            if !self.skipping && self.line.len() + taken > LINE_READ {
                self.skipping = true;
                self.number += 1;
                let fault = format!("a line of more than {LINE_READ} bytes");
                return Err(Error::new(ErrorKind::Limit, fault).at(Position::Line(self.number)));
            }
            if !self.skipping {
                self.line.extend_from_slice(&bytes[..taken]);
            }
            self.source.consume(taken + usize::from(end.is_some()));
            if end.is_some() && !std::mem::take(&mut self.skipping) {
                self.number += 1;
                return Ok(Some(true));
            }
        }
    }
}

impl Tolerated {
    /// A sentence for each thing that was overlooked.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.byte_order_mark {
            notes.push("a byte order mark was skipped (line 1)".to_string());
        }
        if self.carriage_returns > 0 {
            notes.push(format!("{} lines end in a carriage return", self.carriage_returns));
        }
        if self.separators > 0 {
            notes.push(format!("{} lines begin with a record separator", self.separators));
        }
        if self.commas > 0 {
            notes.push(format!("{} lines have a comma after their object", self.commas));
        }
        if self.blank > 0 {
            notes.push(format!("{} blank lines were skipped", self.blank));
        }
        if self.foreign > 0 {
            notes.push(format!(
                "{} lines that are not messages were skipped (line {} first)",
                self.foreign, self.first_foreign
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<(u64, String, bool)>, Tolerated) {
        let mut lines = Lines::new(text.as_bytes());
        let mut read = Vec::new();
        while let Some(line) = lines.next_message().expect("no fault") {
            read.push((line.number, String::from_utf8_lossy(line.bytes).into_owned(), line.terminated));
        }
        (read, lines.tolerated())
    }

    #[test]
    fn marks_returns_blanks_and_text_are_overlooked_and_counted() {
        let (lines, tolerated) = read("\u{feff}{1}\r\n\n  \nwritten to\n{2}");
        assert_eq!(lines, [(1, "{1}".to_string(), true), (5, "{2}".to_string(), false)]);
        assert_eq!(
            tolerated,
            Tolerated {
                byte_order_mark: true,
                carriage_returns: 1,
                blank: 2,
                foreign: 1,
                first_foreign: 4,
                ..Tolerated::default()
            }
        );
        assert_eq!(tolerated.notes().len(), 4);
    }

    #[test]
    fn record_separators_and_commas_between_elements_are_overlooked_and_counted() {
        let (lines, tolerated) = read("\u{1e}{1}\n[\n{2},\n{3} , \r\n]\n");
        let objects: Vec<&str> = lines.iter().map(|(_, line, _)| line.as_str()).collect();
        assert_eq!(objects, ["{1}", "{2}", "{3}"]);
        assert_eq!((tolerated.separators, tolerated.commas, tolerated.foreign), (1, 2, 2));
        assert_eq!(tolerated.notes().len(), 4);
    }

    #[test]
    fn a_line_over_the_limit_is_refused_without_being_kept() {
        struct Endless;
        impl std::io::Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                buffer.fill(b'x');
                Ok(buffer.len())
            }
        }
        let mut lines = Lines::new(std::io::BufReader::with_capacity(1 << 20, Endless));
        let error = lines.next_message().expect_err("refused");
        assert_eq!((error.kind(), error.position()), (ErrorKind::Limit, Some(Position::Line(1))));
    }

    #[test]
    fn lines_come_as_they_are_and_go_on_behind_one_over_the_limit() {
        let text = format!("\u{feff}a\r\n\n{}\n{{}}", "x".repeat(LINE_READ + 1));
        let mut lines = Lines::new(text.as_bytes());
        let mut next = || {
            lines.next_line().map(|line| line.map(|line| (line.number, line.bytes.to_vec(), line.terminated)))
        };
        assert_eq!(next().expect("a line"), Some((1, "\u{feff}a\r".into(), true)));
        assert_eq!(next().expect("a line"), Some((2, Vec::new(), true)));
        assert_eq!(next().expect_err("too long").position(), Some(Position::Line(3)));
        assert_eq!(next().expect("a line"), Some((4, b"{}".to_vec(), false)));
        assert_eq!(next().expect("the end"), None);
    }
}
