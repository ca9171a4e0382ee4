//! Follows one run of a stream, and delivers its samples group by group: `raw` messages that are in order together.

use crate::convert::session::{Session, Step};
use crate::convert::stream_definitions::Definitions;
use crate::error::{Error, Position, Result};
use crate::model::{ClockPair, RunFacts, Statistics};
use crate::protocol::group::Groups;
use crate::protocol::message::Meta;
use crate::protocol::{Decoded, Message, RawColumns, decode, quoted};

/// Columns that are kept for their room.
const SPARE: usize = 8;

/// Takes a stream's lines and keeps its rules.
pub(crate) struct GroupReader {
    chosen: Option<String>,
    session: Session,
    /// The raw messages that are in order together, and wait for more of them.
    group: Vec<RawColumns>,
    groups: Groups,
    /// To be used again.
    spare: Vec<RawColumns>,
    run: Option<RunHead>,
    unknown_types: u64,
    cpython: Option<(u64, u64)>,
    raw_messages: u64,
}

/// What the messages of a run say of it.
#[derive(Debug)]
pub(crate) struct RunHead {
    pub id: String,
    pub facts: RunFacts,
    /// The first one.
    pub meta: Meta,
    /// A time of the profiler's clock and the same as Unix time, by the last `meta`.
    pub wall: Option<ClockPair>,
}

impl RunHead {
    /// Facts that only chunks have a place for.
    pub fn left_out(&self) -> Vec<&'static str> {
        let has_labels = self.meta.labels.as_ref().is_some_and(|labels| !labels.is_empty());
        let facts = [("the labels", has_labels), ("the date", self.wall.is_some())];
        facts.into_iter().filter(|(_, is_there)| *is_there).map(|(fact, _)| fact).collect()
    }
}

/// What is known once the stream is over.
pub(crate) struct Ended {
    pub run: RunHead,
    pub statistics: Option<Statistics>,
    pub losses: Vec<Error>,
    pub tolerated: Vec<String>,
}

impl GroupReader {
    pub fn new(chosen: Option<String>) -> Self {
        GroupReader {
            session: Session::new(chosen.clone()),
            chosen,
            group: Vec::new(),
            groups: Groups::default(),
            spare: Vec::new(),
            run: None,
            unknown_types: 0,
            cpython: None,
            raw_messages: 0,
        }
    }

    /// The run, once it has begun.
    pub fn run(&self) -> Option<&RunHead> {
        self.run.as_ref()
    }

    /// Takes the stream's line of this number, from 1, and hands samples that are due to `write`: raw messages that
    /// are in order together.
    ///
    /// # Errors
    ///
    /// A second run where none was chosen, and errors of `write`.
    pub fn line(
        &mut self,
        number: u64,
        line: &mut [u8],
        write: impl FnMut(&mut Vec<RawColumns>, &RunHead, &mut Definitions) -> Result<()>,
    ) -> Result<()> {
        let mut columns = self.spare.pop().unwrap_or_default();
        let taken = match decode(line, &mut columns) {
            Ok(decoded) => self.message(number, &decoded, &columns, write)?,
            Err(fault) => {
                self.session.lose(fault.at(Position::Line(number)));
                false
            }
        };
        let place = if taken { &mut self.group } else { &mut self.spare };
        place.push(columns);
        Ok(())
    }

    /// Takes a message; returns whether its columns go on with the group.
    fn message(
        &mut self,
        number: u64,
        decoded: &Decoded,
        columns: &RawColumns,
        write: impl FnMut(&mut Vec<RawColumns>, &RunHead, &mut Definitions) -> Result<()>,
    ) -> Result<bool> {
        match &decoded.message {
            Message::CPython(_) => {
                self.cpython.get_or_insert((decoded.envelope.version, number));
                return Ok(false);
            }
            Message::Unknown(_) => self.unknown_types += 1,
            // What the ids of the group mean ends here.
            Message::Meta(_) | Message::StrDef(_) | Message::FrameDef(_) => self.write_group(write)?,
            Message::Raw
                if self.session.follows(&decoded.envelope.run_id) && !self.groups.goes_on(columns) =>
            {
                self.write_group(write)?;
            }
            _ => {}
        }
        match self.session.message(number, decoded, columns)? {
            Step::Ignore | Step::Table => {}
            Step::Opened(meta) => self.opened(number, decoded.envelope.run_id.clone(), *meta),
            Step::Samples if self.run.is_none() => {
                let fault = Error::stream("samples before the first meta of their run");
                self.session.lose(fault.at(Position::Line(number)));
            }
            Step::Samples => {
                self.raw_messages += 1;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Hands the samples that wait to `write`.
    ///
    /// # Errors
    ///
    /// Those of `write`.
    pub fn write_group(
        &mut self,
        mut write: impl FnMut(&mut Vec<RawColumns>, &RunHead, &mut Definitions) -> Result<()>,
    ) -> Result<()> {
        if let (Some(run), false) = (&self.run, self.group.is_empty()) {
            write(&mut self.group, run, self.session.definitions_mut())?;
            self.spare.append(&mut self.group);
            self.spare.truncate(SPARE);
        }
        Ok(())
    }

    fn opened(&mut self, number: u64, id: String, meta: Meta) {
        let wall = meta
            .start_usec
            .zip(meta.wall_usec)
            .map(|(monotonic_us, wall_us)| ClockPair { monotonic_us, wall_us });
        if let Some(run) = &mut self.run {
            run.wall = wall.or(run.wall);
            if !same_facts(&run.meta, &meta) {
                let fault = "the facts of the run differ from those of its first batch";
                self.session.lose(Error::stream(fault).at(Position::Line(number)));
            }
            return;
        }
        let facts = facts_of(&meta, number, &mut self.session);
        self.run = Some(RunHead { id, facts, meta, wall });
    }

    /// Ends the stream, of whose samples `written` are in the profile, `cut` of them with fewer frames.
    ///
    /// # Errors
    ///
    /// A stream that cannot become a profile: it has no run, or no samples where there were some.
    pub fn finish(mut self, cut: u64, written: u64) -> Result<Ended> {
        let Some(run) = self.run.take() else { return Err(self.no_run()) };
        let ended = self.session.finish(cut, written);
        if self.raw_messages == 0 && ended.promised_samples > 0 {
            if let Some(first) = ended.losses.into_iter().find(|loss| loss.position().is_some()) {
                return Err(first);
            }
            let types = run.meta.stream_types.as_ref();
            let types = types.map_or(String::new(), |types| format!(" (its types are {})", types.join(",")));
            return Err(Error::stream(format!(
                "the stream holds no raw messages{types}, and the {} samples cannot be had from anything else",
                ended.promised_samples
            ))
            .hint("make the stream with the type raw"));
        }
        let mut tolerated = Vec::new();
        if self.unknown_types > 0 {
            tolerated.push(format!("{} messages of unknown types were skipped", self.unknown_types));
        }
        if let Some((_, line)) = self.cpython {
            tolerated.push(format!("messages of CPython's own JSONL were skipped (line {line})"));
        }
        let statistics = ended.stats.map(Into::into);
        Ok(Ended { run, statistics, losses: ended.losses, tolerated })
    }

    fn no_run(self) -> Error {
        if let Some((version, line)) = self.cpython {
            let fault = format!(
                "CPython's own JSONL (v {version}) holds counts and no samples, so it cannot become a profile"
            );
            return Error::stream(fault)
                .at(Position::Line(line))
                .hint("make a stream from the binary recording: from-bin");
        }
        let chosen = self.chosen.map(|id| Error::stream(format!("the stream holds no run '{id}'")));
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
                Error::stream(format!("the {what} '{}' cannot be stored in a profile", quoted(text)))
                    .at(Position::Line(number)),
            );
        }
        value
    }
    RunFacts {
        start_us: meta.run_start_usec.or(meta.start_usec).unwrap_or(0),
        interval_us: meta.sample_interval_usec.unwrap_or(0),
        mode: parse("mode", &meta.mode, number, session),
        capture: meta.capture.map(Into::into),
        python: parse("Python version", &meta.python, number, session),
    }
}
