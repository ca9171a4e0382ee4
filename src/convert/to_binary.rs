//! A stream into a binary profile.

use std::io::{Seek, Write};

use crate::convert::merge::Merge;
use crate::convert::session::{Session, Step};
use crate::error::{Error, Position, Result};
use crate::format::{Packing, Writer};
use crate::model::{Capture, RunFacts, Statistics};
use crate::protocol::message::{self, Meta, Stats};
use crate::protocol::{Message, RawColumns, decode};

/// How to make a profile of a stream.
#[derive(Clone, Debug)]
pub struct ProfileOptions {
    packing: Packing,
    run_id: Option<String>,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        ProfileOptions { packing: Packing::Zstd(5), run_id: None }
    }
}

impl ProfileOptions {
    /// How to pack the samples; as CPython does, unless said otherwise.
    #[must_use]
    pub fn packing(mut self, packing: Packing) -> Self {
        self.packing = packing;
        self
    }

    /// Which run to take, of a stream that holds several.
    #[must_use]
    pub fn run_id(mut self, run_id: impl Into<String>) -> Self {
        self.run_id = Some(run_id.into());
        self
    }
}

/// What became of a stream.
#[derive(Debug)]
pub struct Outcome<W> {
    /// The finished profile.
    pub sink: W,
    /// Samples in it.
    pub samples: u64,
    /// What was damaged, missing or left out, the first of each kind with its line. Empty where the
    /// profile holds all that the stream's `end` promises.
    pub losses: Vec<Error>,
    /// What could be overlooked without losing anything.
    pub tolerated: Vec<String>,
}

/// Makes a version-1 profile out of the lines of a stream, as CPython's writer would have written
/// the samples.
///
/// ```
/// use std::io::Cursor;
/// use tachyon_jsonl::convert::{ProfileOptions, StreamOptions, ToBinary, to_stream};
/// use tachyon_jsonl::format::{Packing, Profile};
///
/// let bytes = std::fs::read("tests/data/cpython/tiny_script_none.bin")?;
/// let mut stream = Vec::new();
/// to_stream(&mut Profile::open(Cursor::new(&bytes))?, &StreamOptions::new("example")?, &mut stream)?;
///
/// let options = ProfileOptions::default().packing(Packing::None);
/// let mut to_binary = ToBinary::new(Cursor::new(Vec::new()), options);
/// for (number, line) in (1..).zip(stream.split_inclusive_mut(|byte| *byte == b'\n')) {
///     to_binary.line(number, line)?;
/// }
/// let outcome = to_binary.finish()?;
/// assert!(outcome.losses.is_empty());
/// assert_eq!(outcome.sink.into_inner(), bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ToBinary<W: Write + Seek> {
    options: ProfileOptions,
    columns: RawColumns,
    session: Session,
    sink: Option<W>,
    profile: Option<Open<W>>,
    tolerance: Tolerance,
}

struct Open<W: Write + Seek> {
    writer: Writer<W>,
    merge: Merge,
    facts: Meta,
    raw_messages: u64,
}

#[derive(Default)]
struct Tolerance {
    unknown_types: u64,
    cpython: Option<(u64, u64)>,
}

impl<W: Write + Seek> ToBinary<W> {
    /// Starts a profile at the start of `sink`, where nothing must be yet.
    pub fn new(sink: W, options: ProfileOptions) -> Self {
        ToBinary {
            session: Session::new(options.run_id.clone()),
            options,
            columns: RawColumns::default(),
            sink: Some(sink),
            profile: None,
            tolerance: Tolerance::default(),
        }
    }

    /// Takes the stream's line of this number, from 1. A message that is damaged or out of place is
    /// passed over and noted.
    ///
    /// # Errors
    ///
    /// Errors of the sink, and a second run where none was chosen.
    pub fn line(&mut self, number: u64, line: &mut [u8]) -> Result<()> {
        let decoded = match decode(line, &mut self.columns) {
            Ok(decoded) => decoded,
            Err(fault) => {
                self.session.lose(fault.at(Position::Line(number)));
                return Ok(());
            }
        };
        match &decoded.message {
            Message::CPython(_) => {
                self.tolerance.cpython.get_or_insert((decoded.envelope.version, number));
                return Ok(());
            }
            Message::Unknown(_) => self.tolerance.unknown_types += 1,
            _ => {}
        }
        match self.session.message(number, &decoded, &self.columns)? {
            Step::Ignore => Ok(()),
            Step::Opened(meta) => self.open(number, *meta),
            Step::Samples => self.samples(number),
        }
    }

    fn open(&mut self, number: u64, meta: Meta) -> Result<()> {
        if let Some(open) = &self.profile {
            if !same_facts(&open.facts, &meta) {
                let fault = "the facts of the run differ from those of its first batch";
                self.session.lose(Error::stream(fault).at(Position::Line(number)));
            }
            return Ok(());
        }
        let Some(sink) = self.sink.take() else { return Ok(()) };
        let facts = facts_of(&meta, number, &mut self.session);
        self.profile = Some(Open {
            writer: Writer::new(sink, facts, self.options.packing)?,
            merge: Merge::new(meta.run_start_usec),
            facts: meta,
            raw_messages: 0,
        });
        Ok(())
    }

    fn samples(&mut self, number: u64) -> Result<()> {
        let Some(open) = &mut self.profile else {
            self.session
                .lose(Error::stream("samples before the first meta of their run").at(Position::Line(number)));
            return Ok(());
        };
        open.raw_messages += 1;
        open.merge.add(&self.columns, self.session.definitions_mut(), &mut open.writer);
        open.writer.added(self.columns.samples)
    }

    /// Ends the stream and the profile.
    ///
    /// # Errors
    ///
    /// A stream that cannot become a profile: it has no run, or no samples where there were some; and
    /// errors of the sink.
    pub fn finish(mut self) -> Result<Outcome<W>> {
        let Some(mut open) = self.profile.take() else {
            return Err(self.no_run());
        };
        let ended = self.session.finish(open.merge.cut_stacks(), open.writer.samples());
        if open.raw_messages == 0 && ended.promised_samples > 0 {
            if let Some(first) = ended.losses.into_iter().find(|loss| loss.position().is_some()) {
                return Err(first);
            }
            let types = open
                .facts
                .stream_types
                .map_or(String::new(), |types| format!(" (its types are {})", types.join(",")));
            return Err(Error::stream(format!(
                "the stream holds no raw messages{types}, and the {} samples cannot be had from anything else",
                ended.promised_samples
            ))
            .hint("make the stream with the type raw"));
        }
        open.merge.finish(&mut open.writer);
        let samples = open.writer.samples();
        let stats = ended.stats.as_ref().map(statistics_of);
        let sink = open.writer.finish(open.merge.threads() as u32, stats.as_ref())?;
        let mut tolerated = Vec::new();
        if self.tolerance.unknown_types > 0 {
            tolerated
                .push(format!("{} messages of unknown types were passed over", self.tolerance.unknown_types));
        }
        if let Some((_, line)) = self.tolerance.cpython {
            tolerated.push(format!("messages of CPython's own JSONL were passed over (line {line})"));
        }
        Ok(Outcome { sink, samples, losses: ended.losses, tolerated })
    }

    fn no_run(self) -> Error {
        if let Some((version, line)) = self.tolerance.cpython {
            let fault = format!(
                "CPython's own JSONL (v {version}) holds counts and no samples, so it cannot become a profile"
            );
            return Error::stream(fault)
                .at(Position::Line(line))
                .hint("make a stream from the binary recording: from-bin");
        }
        let chosen = self.options.run_id.map(|id| Error::stream(format!("the stream holds no run '{id}'")));
        let first = self.session.finish(0, 0).losses.into_iter().next();
        chosen.or(first).unwrap_or_else(|| {
            Error::stream("the stream holds no message").hint("a stream begins with a meta message")
        })
    }
}

fn same_facts(a: &Meta, b: &Meta) -> bool {
    let facts = |meta: &Meta| {
        (meta.run_start_usec, meta.sample_interval_usec, meta.mode.clone(), meta.capture, meta.python.clone())
    };
    facts(a) == facts(b)
}

fn facts_of(meta: &Meta, number: u64, session: &mut Session) -> RunFacts {
    fn parse<T: std::str::FromStr>(
        what: &str,
        text: &Option<String>,
        number: u64,
        session: &mut Session,
    ) -> Option<T> {
        let text = text.as_ref()?;
        let value = text.parse().ok();
        if value.is_none() {
            session.lose(
                Error::stream(format!("the {what} '{text}' has no place in a profile"))
                    .at(Position::Line(number)),
            );
        }
        value
    }
    RunFacts {
        start_us: meta.run_start_usec,
        interval_us: meta.sample_interval_usec,
        mode: parse("mode", &meta.mode, number, session),
        capture: meta.capture.map(|capture: message::Capture| Capture {
            all_threads: capture.all_threads,
            native: capture.native,
            gc: capture.gc,
            opcodes: capture.opcodes,
            blocking: capture.blocking,
        }),
        python: parse("Python version", &meta.python, number, session),
    }
}

fn statistics_of(stats: &Stats) -> Statistics {
    Statistics {
        duration_sec: stats.duration_sec,
        sample_rate: stats.sample_rate,
        error_rate: stats.error_rate,
        missed_samples: stats.missed_samples,
    }
}
