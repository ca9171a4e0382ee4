//! Assigns the parts of an input to runs while a stream is made, and reports losses to the user.

use std::collections::HashMap;
use std::io::{BufRead, Read, Seek, Write};

use crate::cli::args::{Format, FromBin, Schema};
use crate::cli::commands::run_chunks::RunChunks;
use crate::cli::commands::run_id::{is_made_up, own_id, random_id, several_runs};
use crate::cli::commands::stream_options::options;
use crate::cli::commands::upgrade::{self, CpythonFile};
use crate::cli::exit::Status;
use crate::cli::output::outputs::Outputs;
use crate::cli::ui::messages::Messages;
use crate::convert::{CpythonRun, RunStream};
use crate::error::{Error, Result};
use crate::format::{Contents, Framing, LostPart, Part, Profile};
use crate::model::{ClockPair, RunFacts};
use crate::protocol::LmcacheTrace;

/// Irregularities that are reported for each run; more are left out.
const MAX_REPORTED: usize = 20;
/// A smaller change of the wall clock is taken for its adjustment.
const STEP_REPORTED_US: i128 = 1_000_000;

pub(crate) struct Runs<'a> {
    args: &'a FromBin,
    messages: &'a Messages,
    output: Outputs,
    ended: u64,
    /// The ids made of contents, and how often.
    ids: HashMap<String, u64>,
    status: Status,
    open: Option<OpenRun>,
    /// What is lost before the first part of a run.
    early: Vec<LostPart>,
}

struct OpenRun {
    converter: RunConverter,
    /// The id that the run's chunks bear.
    chunk_id: Option<String>,
    /// Facts of its first part.
    facts: RunFacts,
    /// The checksum of each numbered chunk.
    seen: HashMap<u64, [u8; 16]>,
    /// Whether its file was rotated: then a chunk that comes again was copied.
    is_rotated: bool,
    /// The highest of the numbers.
    last: Option<u64>,
    /// The clocks by the last chunk that has a date.
    clocks: Option<ClockPair>,
    warnings: usize,
}

/// Where a chunk belongs.
#[derive(PartialEq, Eq)]
enum PartOf {
    TheRun,
    AnotherRun,
    /// It is there already.
    Before,
}

impl OpenRun {
    /// How the wall clock was set since the last chunk with a date.
    fn clock_step(&mut self, contents: &Contents) -> Option<String> {
        let clocks = contents.chunk.as_ref()?.clocks()?;
        let step_us = clocks.step_from(self.clocks.replace(clocks)?);
        let way = if step_us > 0 { "forward" } else { "back" };
        let seconds = step_us.unsigned_abs() as f64 / 1e6;
        (step_us.abs() >= STEP_REPORTED_US).then(|| format!("{way} by {seconds:.3} s"))
    }

    fn place_of(&self, contents: &Contents) -> PartOf {
        let Some(chunk) = &contents.chunk else {
            // Nothing but its facts says where it belongs.
            let is_same = self.chunk_id.is_none() && is_same_recording(&self.facts, &contents.header.facts);
            return if is_same { PartOf::TheRun } else { PartOf::AnotherRun };
        };
        if self.chunk_id.as_ref() != Some(&chunk.run_id) {
            return PartOf::AnotherRun;
        }
        match self.seen.get(&chunk.index) {
            None => PartOf::TheRun,
            Some(checksum) if *checksum == contents.footer.checksum => PartOf::Before,
            Some(_) => PartOf::AnotherRun,
        }
    }
}

/// Whether two parts were recorded alike. Each may have a start of its own.
fn is_same_recording(a: &RunFacts, b: &RunFacts) -> bool {
    RunFacts { start_us: 0, ..a.clone() } == RunFacts { start_us: 0, ..b.clone() }
}

/// What is made of a run.
enum RunConverter {
    Stream(Box<RunStream>),
    Cpython(Box<CpythonRun>),
    Chunks(Box<RunChunks>),
}

impl RunConverter {
    fn profile<R: Read + Seek>(&mut self, profile: &mut Profile<R>, output: &mut Outputs) -> Result<()> {
        match self {
            RunConverter::Stream(stream) => stream.profile(profile, output),
            RunConverter::Cpython(run) => run.profile(profile),
            RunConverter::Chunks(chunks) => chunks.profile(profile, output),
        }
    }

    fn lost(&mut self, lost: &LostPart, output: &mut Outputs) -> Result<()> {
        match self {
            RunConverter::Stream(stream) => stream.lost(lost, output),
            RunConverter::Cpython(run) => {
                run.lost();
                Ok(())
            }
            // Their numbers tell the readers.
            RunConverter::Chunks(chunks) => {
                chunks.lost();
                Ok(())
            }
        }
    }

    fn gaps(&self) -> u64 {
        match self {
            RunConverter::Stream(stream) => stream.gaps(),
            RunConverter::Cpython(run) => run.gaps(),
            RunConverter::Chunks(chunks) => chunks.gaps(),
        }
    }

    /// The input broke off.
    fn broke_off(&mut self, error: &Error) {
        match self {
            RunConverter::Stream(stream) => stream.broke_off(error),
            RunConverter::Cpython(run) => run.lost(),
            RunConverter::Chunks(_) => {}
        }
    }

    fn broken_end(&self) -> Option<Error> {
        match self {
            RunConverter::Stream(stream) => stream.broken_end(),
            RunConverter::Cpython(run) => run.broken_end(),
            RunConverter::Chunks(chunks) => chunks.broken_end(),
        }
    }

    /// Writes the rest; returns the samples.
    fn finish(self, output: &mut Outputs) -> Result<u64> {
        match self {
            RunConverter::Stream(stream) => Ok(stream.finish(output)?.samples),
            RunConverter::Cpython(run) => run.finish(output),
            RunConverter::Chunks(chunks) => chunks.finish(output),
        }
    }
}

impl<'a> Runs<'a> {
    /// Runs for these targets.
    pub fn new(args: &'a FromBin, messages: &'a Messages, outputs: Outputs) -> Self {
        Runs {
            args,
            messages,
            output: outputs,
            ended: 0,
            ids: HashMap::new(),
            status: Status::Done,
            open: None,
            early: Vec::new(),
        }
    }

    /// Writes on a thread of its own, where that is of use. What it has to write waits for more, up to
    /// [`Runs::submit`].
    pub fn in_background(&mut self) {
        self.output.in_background();
    }

    /// Has all written that there is of the parts so far.
    pub fn submit(&mut self) -> Result<()> {
        Ok(self.output.submit()?)
    }

    /// Takes the next part of the input of this name.
    pub fn part<R: Read + Seek>(&mut self, name: &str, framing: Framing, part: Part<R>) -> Result<()> {
        match part {
            Part::Profile(profile) => self.profile(name, framing, *profile),
            Part::Lost(lost) => self.lost(name, lost),
        }
    }

    fn profile(
        &mut self,
        name: &str,
        framing: Framing,
        mut profile: Profile<impl Read + Seek>,
    ) -> Result<()> {
        let chunk = profile.contents().chunk.as_ref().map(|chunk| (chunk.run_id.clone(), chunk.index));
        let checksum = profile.contents().footer.checksum;
        let place = match (&self.open, framing) {
            (None, _) | (_, Framing::Files) => PartOf::AnotherRun,
            (Some(_), Framing::Lengths) => PartOf::TheRun,
            (Some(open), Framing::Chunks) => open.place_of(profile.contents()),
        };
        if let (PartOf::Before, Some((_, index))) = (&place, &chunk) {
            if self.open.as_ref().is_some_and(|open| open.is_rotated) {
                return Ok(());
            }
            let what = format!("chunk {index} is repeated and was skipped");
            if self.args.strict {
                return Err(Error::profile(what).within(name));
            }
            self.messages.warning(name, &what);
            return Ok(());
        }
        if place == PartOf::AnotherRun {
            self.end_run(name)?;
            if self.ended > 0 && !is_made_up(&self.args.run_id) {
                return Err(several_runs());
            }
            let run_id = self.run_id(&mut profile).map_err(|error| error.within(name))?;
            let options = options(self.args, &run_id)?;
            let mut converter = match self.args.schema {
                _ if self.args.written.format() == Format::Binary => RunConverter::Chunks(Box::new(
                    RunChunks::new(framing, chunk.is_some(), options, self.args)?,
                )),
                Schema::Own => RunConverter::Stream(Box::new(RunStream::new(framing, options))),
                Schema::Cpython => RunConverter::Cpython(Box::new(CpythonRun::new(options.run_id()))),
            };
            for lost in self.early.drain(..) {
                let written = converter.lost(&lost, &mut self.output);
                written?;
            }
            let facts = profile.contents().header.facts.clone();
            let chunk_id = chunk.as_ref().map(|(id, _)| id.clone());
            self.open = Some(OpenRun {
                converter,
                chunk_id,
                facts,
                seen: HashMap::new(),
                last: None,
                clocks: None,
                is_rotated: false,
                warnings: 0,
            });
        }
        let open = self.open.as_mut().expect("opened above");
        let contents = profile.contents();
        if let Some((_, index)) = chunk {
            if open.last.is_some_and(|last| index < last) {
                self.messages.warning(name, &format!("chunk {index} comes after later ones"));
            }
            open.last = open.last.max(Some(index));
            open.seen.insert(index, checksum);
            if let Some(step) = open.clock_step(contents).filter(|_| self.args.wall_start.is_none()) {
                self.messages.warning(name, &format!("the wall clock was set {step} before chunk {index}"));
            }
        }
        if !is_same_recording(&open.facts, &contents.header.facts) {
            self.messages
                .warning(name, "a part was recorded with settings that differ from the run's first part");
        }
        for warning in &contents.warnings {
            if self.args.strict {
                return Err(Error::profile(warning).within(name));
            }
            open.warnings += 1;
            if open.warnings <= MAX_REPORTED {
                self.messages.warning(name, warning);
            }
        }
        for fault in &contents.faults {
            if self.args.strict {
                return Err(fault.error.again().within(name));
            }
            self.messages.fault(name, &fault.error);
            self.status = Status::Partial;
        }
        let gaps = open.converter.gaps();
        let written = open.converter.profile(&mut profile, &mut self.output);
        let gaps = open.converter.gaps() - gaps;
        written.map_err(|error| error.within(name))?;
        if gaps > 0 {
            let index = profile.contents().chunk.as_ref().map_or(0, |chunk| chunk.index);
            self.fault(name, Error::profile(format!("chunks are missing before chunk {index} of the run")))?;
        }
        Ok(())
    }

    fn lost(&mut self, name: &str, lost: LostPart) -> Result<()> {
        self.fault(
            name,
            lost.to_error().hint("the rest is read; recover copies the intact parts to another file"),
        )?;
        match &mut self.open {
            Some(open) => {
                let written = open.converter.lost(&lost, &mut self.output);
                written.map_err(|error| error.within(name))
            }
            None => {
                self.early.push(lost);
                Ok(())
            }
        }
    }

    fn fault(&mut self, name: &str, error: Error) -> Result<()> {
        if self.args.strict {
            return Err(error.within(name));
        }
        self.messages.fault(name, &error);
        self.status = Status::Partial;
        Ok(())
    }

    /// Something that costs nothing.
    fn oddity(&self, name: &str, what: &str) -> Result<()> {
        if self.args.strict {
            return Err(Error::stream(what).within(name));
        }
        self.messages.warning(name, what);
        Ok(())
    }

    /// The file of the open run was rotated: the run goes on in the next one if the chunks there say so, which
    /// those without an id cannot.
    pub fn rotated(&mut self, name: &str) -> Result<()> {
        match &mut self.open {
            Some(open) if open.chunk_id.is_some() => {
                open.is_rotated = true;
                Ok(())
            }
            _ => self.end_run(name),
        }
    }

    /// Ends the open run, if there is one; more input begins another.
    pub fn end_run(&mut self, name: &str) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if open.warnings > MAX_REPORTED {
            self.messages
                .warning(name, &format!("{} more irregularities of this kind", open.warnings - MAX_REPORTED));
        }
        if let Some(error) = open.converter.broken_end() {
            self.fault(name, error)?;
        }
        let written = open.converter.finish(&mut self.output);
        if written.map_err(|error| error.within(name))? == 0 {
            self.messages.warning(name, "the profile holds no samples");
        }
        self.ended += 1;
        Ok(())
    }

    /// The input of this name broke off: what came of it is kept.
    ///
    /// # Errors
    ///
    /// The reason, where it has begun no run.
    pub fn broke_off(&mut self, name: &str, error: Error) -> Result<()> {
        let Some(open) = &mut self.open else { return Err(error.within(name)) };
        open.converter.broke_off(&error);
        self.fault(name, error)
    }

    /// Ends the input of this name.
    pub fn end_input(&mut self, name: &str) -> Result<()> {
        self.end_run(name)?;
        match self.early.drain(..).next() {
            Some(lost) => Err(lost.error.within(name)),
            None => Ok(()),
        }
    }

    /// Takes CPython's own JSON Lines, whose runs hold counts.
    pub fn cpython(&mut self, name: &str, reader: impl BufRead) -> Result<()> {
        let CpythonFile { upgrade, losses, oddities } =
            upgrade::read(name, reader, None, self.args.max_line)?;
        for loss in losses {
            self.fault(name, loss)?;
        }
        for oddity in oddities {
            self.oddity(name, &oddity)?;
        }
        self.messages.warning(name, "CPython's own JSON Lines, which hold counts and no samples");
        let written = upgrade.write(&mut self.output);
        written.map_err(|error| error.within(name))?;
        self.ended += 1;
        Ok(())
    }

    /// Takes a trace of LMCache, which is a run.
    pub fn trace<R: Read>(&mut self, name: &str, mut trace: LmcacheTrace<R>) -> Result<()> {
        if self.ended > 0 && !is_made_up(&self.args.run_id) {
            return Err(several_runs());
        }
        if self.args.schema == Schema::Cpython {
            return Err(Error::usage("CPython's JSON Lines cannot hold calls").within(name));
        }
        for oddity in trace.oddities() {
            self.oddity(name, &oddity)?;
        }
        let id = match self.args.run_id.as_str() {
            "auto" => self.own_among(trace.id().to_string()),
            "random" => self.written_id(random_id()?),
            id => id.to_string(),
        };
        trace = trace.run_id(&id);
        let mut text = Vec::new();
        trace.begin(&mut text);
        loop {
            let written = self.output.write_all(&text).map_err(Error::from);
            written.map_err(|error| error.within(name))?;
            text.clear();
            match trace.next_call(&mut text) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    trace.lost(&mut text, &error);
                    let goes_on = trace.goes_on(&error);
                    self.fault(name, error)?;
                    if !goes_on {
                        break;
                    }
                }
            }
        }
        let (calls, unknown) = trace.counts();
        if unknown > 0 {
            self.messages.warning(name, &format!("{unknown} frames of unknown types were skipped"));
        }
        if calls == 0 {
            self.messages.warning(name, "the trace holds no calls");
        }
        trace.end(&mut text);
        let written = self.output.write_all(&text).and_then(|()| self.output.flush()).map_err(Error::from);
        written.map_err(|error| error.within(name))?;
        self.ended += 1;
        Ok(())
    }

    /// Says that the stream goes on.
    pub fn heartbeat(&mut self) -> Result<()> {
        let Some(OpenRun { converter: RunConverter::Stream(stream), .. }) = &mut self.open else {
            return Ok(());
        };
        stream.heartbeat(&mut self.output)
    }

    /// The reading stops before a part that is not whole yet: it is lost to this stream alone.
    pub fn unfinished(&mut self, name: &str, lost: &LostPart) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        self.messages.warning(name, &lost.to_error().to_string());
        if open.converter.broken_end().is_some() {
            self.status = Status::Partial;
        }
        let written = open.converter.lost(lost, &mut self.output);
        written.map_err(|error| error.within(name))
    }

    /// Lets readers have what was written so far.
    pub fn publish(&mut self) -> Result<()> {
        self.output.publish()
    }

    /// Ends a stream whose last target has failed: what it is worth.
    ///
    /// # Errors
    ///
    /// The reason, where nothing whole is in any file.
    pub fn give_up(self, error: Error) -> Result<Status> {
        if !self.output.abandon() {
            return Err(error);
        }
        self.messages.error(&error);
        Ok(Status::Partial)
    }

    /// Ends the stream, after what went wrong last.
    pub fn finish(self, failure: Option<Error>) -> Result<Status> {
        let mut status = self.status;
        if let Some(failure) = failure {
            if self.ended == 0 {
                return Err(failure);
            }
            self.messages.error(&failure);
            status = Status::Partial;
        }
        let delivered = self.output.commit()?;
        Ok(if delivered == Status::Done { status } else { delivered })
    }

    fn run_id(&mut self, profile: &mut Profile<impl Read + Seek>) -> Result<String> {
        let id = match (self.args.run_id.as_str(), &profile.contents().chunk) {
            ("auto", Some(chunk)) => chunk.run_id.clone(),
            ("auto", None) => self.written_id(profile.content_hash()?.to_be_bytes()),
            _ => self.written_id(random_id()?),
        };
        Ok(self.own_among(id))
    }

    /// The id, or another that is made of it where a run has it already.
    fn own_among(&mut self, id: String) -> String {
        let times = self.ids.entry(id.clone()).and_modify(|times| *times += 1).or_insert(1);
        if *times == 1 { id } else { format!("{id}-{times}") }
    }

    /// Sixteen bytes as a run id: CPython's are hexadecimal.
    fn written_id(&self, bytes: [u8; 16]) -> String {
        match self.args.schema {
            Schema::Own => own_id(bytes),
            Schema::Cpython => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}
