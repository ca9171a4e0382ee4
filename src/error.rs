//! The error type: what is wrong, where, and a hint for whoever can act on it.

use std::fmt;
use std::io;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with its place in the input. One pointer wide, so that results stay small.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    detail: String,
    position: Option<Position>,
    hint: Option<&'static str>,
    source: Option<io::Error>,
    /// The file or address that it is about, once that is known.
    path: Option<String>,
    is_of_output: bool,
}

/// An error of an output on its way through [`io::Write`], which has room for [`io::Error`] alone.
#[derive(Debug)]
struct OutputError {
    path: String,
    source: io::Error,
}

/// Who can act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused: see [`std::error::Error::source`].
    Io,
    /// The binary profile is damaged, or isn't one.
    Profile,
    /// The stream of messages breaks a rule of the protocol.
    Stream,
    /// A bound of [`crate::limits`] was passed.
    Limit,
    /// The caller asked for something that cannot be.
    Usage,
}

/// A place in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Byte of the file, from 0.
    Byte(u64),
    /// Byte of the unpacked sample data, from 0: a place in a compressed region has no byte of its own.
    Unpacked(u64),
    /// Line of a stream, from 1.
    Line(u64),
}

impl Error {
    /// An error of `kind` that says `detail`.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            detail: detail.into(),
            position: None,
            hint: None,
            source: None,
            path: None,
            is_of_output: false,
        }))
    }

    /// A damaged profile.
    pub fn profile(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Profile, detail)
    }

    /// A broken stream.
    pub fn stream(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Stream, detail)
    }

    /// A request that cannot be met.
    pub fn usage(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, detail)
    }

    /// The same error at `position` of the input, unless it has one already, or is of an output.
    #[must_use]
    pub fn at(mut self, position: Position) -> Self {
        if !self.0.is_of_output {
            self.0.position.get_or_insert(position);
        }
        self
    }

    /// The same words at the same place, as an error of its own.
    #[must_use]
    pub fn again(&self) -> Self {
        Error(Box::new(Inner {
            kind: self.0.kind,
            detail: self.0.detail.clone(),
            position: self.0.position,
            hint: self.0.hint,
            source: None,
            path: self.0.path.clone(),
            is_of_output: self.0.is_of_output,
        }))
    }

    /// The same error of the input of this name, a file or an address, unless it is known to be of that or of an output.
    #[must_use]
    pub fn within(mut self, path: &str) -> Self {
        if self.path() != Some(path) && !self.0.is_of_output {
            self.0.detail = format!("{path}: {}", self.0.detail);
            self.0.path = Some(path.to_string());
        }
        self
    }

    /// The same error of the output of this name, unless it is known to be of one.
    #[must_use]
    pub fn of_output(self, path: &str) -> Self {
        let mut error = self.within(path);
        error.0.is_of_output = true;
        error
    }

    /// Whether it is an output that failed, and not the input or what was asked for.
    pub fn is_of_output(&self) -> bool {
        self.0.is_of_output
    }

    /// The file or address that the error is about, where that is known: an input or an output.
    pub fn path(&self) -> Option<&str> {
        self.0.path.as_deref()
    }

    /// The same error with a sentence on what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: &'static str) -> Self {
        self.0.hint = Some(hint);
        self
    }

    /// Who can act on it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Where it is, if that is known.
    pub fn position(&self) -> Option<Position> {
        self.0.position
    }

    /// What is wrong, without the place.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// What to do about it, if there is something.
    pub fn hint_text(&self) -> Option<&'static str> {
        self.0.hint
    }

    /// The operating system's error, if that is what it is.
    pub fn io(&self) -> Option<&io::Error> {
        self.0.source.as_ref()
    }
}

/// The same error, which becomes an [`Error`] that is of the output of this name.
pub(crate) fn of_output(path: &str, source: io::Error) -> io::Error {
    if source.get_ref().is_some_and(|inner| inner.is::<OutputError>()) {
        return source;
    }
    io::Error::new(source.kind(), OutputError { path: path.to_string(), source })
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl std::error::Error for OutputError {}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        match source.downcast::<OutputError>() {
            Ok(OutputError { path, source }) => Error::from(source).of_output(&path),
            Err(source) => {
                let mut error = Self::new(ErrorKind::Io, source.to_string());
                error.0.source = Some(source);
                error
            }
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Byte(n) => write!(f, "at byte {n}"),
            Position::Unpacked(n) => write!(f, "at byte {n} of the unpacked sample data"),
            Position::Line(n) => write!(f, "line {n}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.detail)?;
        match self.0.position {
            Some(position) => write!(f, " ({position})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_once() {
        let error = Error::profile("cut off").within("a.bin").within("a.bin");
        assert_eq!((error.detail(), error.path()), ("a.bin: cut off", Some("a.bin")));
        let error = error.within("tcp:host");
        assert_eq!(error.detail(), "tcp:host: a.bin: cut off");
    }

    #[test]
    fn an_error_of_an_output_stays_one_on_its_way_through_a_writer() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let error = Error::from(of_output("out", of_output("out", full())));
        let error = error.at(Position::Line(3)).within("input");
        assert!(error.is_of_output());
        assert_eq!((error.path(), error.position()), (Some("out"), None));
        assert_eq!(error.to_string(), format!("out: {}", full()));
        assert_eq!(error.io().map(io::Error::kind), Some(io::ErrorKind::StorageFull));
        assert!(!Error::from(full()).within("input").is_of_output());
    }
}
