//! The runs of a recording, one for each process, made from the parts that the profiler delivers.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::cli::args::Record as Args;
use crate::cli::commands::run_id::{own_id, random_id};
use crate::cli::exit::{Status, is_broken_pipe};
use crate::cli::io::{Deadline, Target};
use crate::cli::net::Network;
use crate::cli::record::label;
use crate::cli::record::packets::{Begin, Fact, Profiler, ProfilerMessage};
use crate::cli::record::profiles::Profiles;
use crate::cli::record::ring::{ChunkSummary, Ring};
use crate::cli::record::stream::Stream;
use crate::cli::ui::messages::Messages;
use crate::convert::{RunStream, StreamOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{ChunkInfo, Framing, LostPart, Profile, RunEnd};
use crate::model::{ClockPair, Statistics, TimeSpan};

/// Processes that are named where there may be any number.
const NAMED: usize = 10;
/// Percentage of samples from which on it is said that they were missed.
const MISSED: f64 = 10.0;

pub(crate) struct Recording<'a> {
    args: &'a Args,
    messages: &'a Messages,
    run_id: String,
    /// Of the process that was asked for.
    first: Option<Profiler>,
    runs: BTreeMap<Profiler, ProcessRun>,
    stream: Stream,
    profile_paths: Vec<PathBuf>,
    /// Those of the first process, until it begins.
    profiles: Option<Profiles>,
    pub ring: Option<Ring>,
    status: Status,
    /// Errors of targets that failed, not reported yet.
    errors: Vec<Error>,
    /// Whether something is in a target.
    has_data: bool,
    /// Why there may be nothing.
    pub failure: Option<Error>,
    /// How the target ended, where it ended by itself: its status, if that can be known.
    pub exit: Option<Option<i32>>,
    /// Processes that the target started and that could not be sampled.
    missed: Missed,
    pub chunks: u64,
    pub samples: u64,
}

/// A process that is profiled.
struct ProcessRun {
    id: String,
    pid: u32,
    labels: BTreeMap<String, String>,
    /// The profiler's clock, and Unix time at the same instant.
    wall: ClockPair,
    index: u64,
    samples: u64,
    /// What its next part says of its end.
    end: RunEnd,
    /// What the profiler says of itself in the last part that came.
    statistics: Option<Statistics>,
    /// Once its first part is there.
    stream: Option<RunStream>,
    profiles: Option<Profiles>,
    /// Whether a part has come.
    has_begun: bool,
    is_over: bool,
    /// The first name that is not UTF-8, and how many there are.
    escaped: Option<(String, u64)>,
}

/// Processes that could not be sampled.
#[derive(Default)]
struct Missed {
    count: u64,
    /// The first of them.
    pids: Vec<u32>,
}

impl Missed {
    fn add(&mut self, pid: u32) {
        self.count += 1;
        if self.pids.len() < NAMED {
            self.pids.push(pid);
        }
    }

    fn to_error(&self) -> Error {
        let pids: Vec<String> = self.pids.iter().map(u32::to_string).collect();
        let more = if self.count > NAMED as u64 { ", ..." } else { "" };
        let fault = format!(
            "processes of CPython that the program started are not in the recording: {} ({}{more}); they ended before the profiler could read them, or could not be read",
            self.count,
            pids.join(", ")
        );
        Error::profile(fault)
    }
}

impl<'a> Recording<'a> {
    /// Opens the targets.
    ///
    /// # Errors
    ///
    /// A target that cannot be opened, and options that cannot be.
    pub fn new(
        args: &'a Args,
        messages: &'a Messages,
        network: &Network,
        limit: &Deadline,
        streams: &[Target],
        profile_paths: Vec<PathBuf>,
        ring: Option<Ring>,
    ) -> Result<Self> {
        let run_id = match args.run_id.as_str() {
            "random" => own_id(random_id()?),
            id => id.to_string(),
        };
        // Told before anything is started.
        stream_options(args, &run_id)?;
        let (profiles, errors) = Profiles::open(&profile_paths, None, args.live.stall_timeout);
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        Ok(Recording {
            args,
            messages,
            run_id,
            first: None,
            runs: BTreeMap::new(),
            profiles: Some(profiles),
            stream: Stream::open(streams, args, network, messages, Some(limit))?,
            profile_paths,
            ring,
            status: Status::Done,
            errors: Vec::new(),
            has_data: false,
            failure: None,
            exit: None,
            missed: Missed::default(),
            chunks: 0,
            samples: 0,
        })
    }

    /// Waits for as many readers as were asked for.
    ///
    /// # Errors
    ///
    /// An address that nobody answers at.
    pub fn wait_for_subscribers(&mut self) -> Result<()> {
        self.stream.wait_for_subscribers()
    }

    /// Profilers whose runs are not over.
    pub fn open_profilers(&self) -> Vec<Profiler> {
        self.runs.iter().filter(|(_, run)| !run.is_over).map(|(profiler, _)| *profiler).collect()
    }

    /// The runs: id, process, chunks, samples, whether it is over.
    pub fn runs(&self) -> impl Iterator<Item = (&str, u32, u64, u64, bool)> {
        self.runs.values().map(|run| (run.id.as_str(), run.pid, run.index, run.samples, run.is_over))
    }

    /// Takes what a profiler says.
    ///
    /// # Errors
    ///
    /// The failure of the last target.
    pub fn parse_message(&mut self, profiler: Profiler, parse_message: ProfilerMessage) -> Result<()> {
        self.take(profiler, parse_message)?;
        self.settle()
    }

    fn take(&mut self, profiler: Profiler, parse_message: ProfilerMessage) -> Result<()> {
        match parse_message {
            ProfilerMessage::Fact(Fact::Begin(begin)) => self.begin(profiler, begin),
            ProfilerMessage::Profile(bytes) => self.part(profiler, bytes),
            ProfilerMessage::Fact(Fact::Last) => {
                if let Some(run) = self.runs.get_mut(&profiler) {
                    run.end = RunEnd::Complete;
                }
                Ok(())
            }
            ProfilerMessage::Fact(Fact::End) => self.end(profiler, None),
            ProfilerMessage::Fact(Fact::Exit { status }) => {
                self.exit = Some(status);
                Ok(())
            }
            ProfilerMessage::Fact(Fact::Escaped { name }) => {
                if let Some(run) = self.runs.get_mut(&profiler) {
                    run.escaped.get_or_insert((name, 0)).1 += 1;
                }
                Ok(())
            }
            ProfilerMessage::Fact(Fact::Missed { pid }) => {
                self.missed.add(pid);
                Ok(())
            }
            ProfilerMessage::Fact(Fact::Denied { detail }) => {
                let error = std::io::Error::new(std::io::ErrorKind::PermissionDenied, detail);
                self.denied(profiler, Error::from(error).hint(TRACING))
            }
            ProfilerMessage::Fact(Fact::Unreadable { detail }) => {
                let error = Error::from(std::io::Error::other(detail));
                self.denied(profiler, error.hint(READING))
            }
            ProfilerMessage::Fact(Fact::Refused { detail }) => self.denied(profiler, Error::usage(detail)),
        }
    }

    /// A profiler could not begin: of the first one that is the recording's failure. Others may have come too
    /// late for a process that is gone.
    fn denied(&mut self, profiler: Profiler, error: Error) -> Result<()> {
        let is_first = self.first.is_none_or(|first| first == profiler);
        if let Some(run) = self.runs.get_mut(&profiler) {
            run.is_over = true;
        }
        if is_first {
            self.failure = Some(error);
        } else {
            self.fault(&error.within("a process is left out"));
        }
        Ok(())
    }

    /// Tells of targets that failed: the recording goes on as long as there is another.
    fn settle(&mut self) -> Result<()> {
        self.errors.extend(self.stream.failure.take());
        let Some(last) = self.errors.pop() else { return Ok(()) };
        let mut open = self.runs.values().filter(|run| !run.is_over).filter_map(|run| run.profiles.as_ref());
        let is_first_open = self.profiles.as_ref().is_some_and(|profiles| !profiles.is_empty());
        let is_deserted =
            !self.stream.is_wanted() && self.ring.is_none() && !is_first_open && open.all(Profiles::is_empty);
        let mut told = std::mem::take(&mut self.errors);
        let shutdown = if is_deserted {
            Err(last)
        } else {
            told.push(last);
            Ok(())
        };
        // Whoever reads no more knows it.
        for error in told.into_iter().filter(|error| !is_broken_pipe(error)) {
            self.fault(&error);
        }
        shutdown
    }

    /// Ends a recording that could not go on: what it is worth.
    ///
    /// # Errors
    ///
    /// The reason, where nothing is in any target, and that nobody reads any more.
    pub fn give_up(mut self, error: Error) -> Result<Status> {
        if is_broken_pipe(&error) {
            return if self.status == Status::Partial { Ok(self.status) } else { Err(error) };
        }
        if self.has_data {
            self.fault(&error);
            return Ok(self.status);
        }
        Err(error)
    }

    fn fault(&mut self, error: &Error) {
        self.messages.error(error);
        self.status = Status::Partial;
    }

    fn begin(&mut self, profiler: Profiler, begin: Begin) -> Result<()> {
        let is_first = *self.first.get_or_insert(profiler) == profiler;
        let pid = begin.pid;
        // Another process cannot have the place of one that goes on.
        self.end(profiler, Some(0))?;
        let mut labels = BTreeMap::from([("pid".to_string(), pid.to_string())]);
        labels.extend(begin.host.map(|host| ("host".to_string(), host)));
        let command = label::command(&begin.arguments, self.args);
        labels.extend(command.map(|command| ("command".to_string(), command)));
        labels.extend(self.args.label.iter().cloned());
        let profiles = match self.profiles.take() {
            Some(profiles) if is_first => profiles,
            first => {
                self.profiles = first;
                let (profiles, errors) =
                    Profiles::open(&self.profile_paths, Some(pid), self.args.live.stall_timeout);
                self.errors.extend(errors);
                profiles
            }
        };
        let id = if is_first { self.run_id.clone() } else { child_id(&self.run_id, pid) };
        let run = ProcessRun {
            id,
            pid,
            labels,
            wall: ClockPair { monotonic_us: begin.monotonic_us, wall_us: begin.wall_us },
            index: 0,
            samples: 0,
            end: RunEnd::Open,
            statistics: None,
            stream: None,
            profiles: Some(profiles),
            has_begun: false,
            is_over: false,
            escaped: None,
        };
        self.runs.insert(profiler, run);
        Ok(())
    }

    fn part(&mut self, profiler: Profiler, bytes: Vec<u8>) -> Result<()> {
        let Some(run) = self.runs.get_mut(&profiler) else {
            self.fault(&Error::profile("a part of a run that never began"));
            return Ok(());
        };
        let size = bytes.len() as u64;
        let opened = Profile::open(Cursor::new(bytes));
        let opened = opened.and_then(|profile| match profile.contents().faults.first() {
            Some(fault) => Err(fault.error.again()),
            None => Ok(profile),
        });
        let profile = match opened {
            Ok(profile) => profile,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(error) => {
                run.index += 1;
                let lost = LostPart { at: 0, bytes: size, samples: None, is_tail: false, error };
                if let Some(stream) = &mut run.stream {
                    self.stream.write(|written| stream.lost(&lost, written))?;
                }
                self.fault(&lost.to_error());
                return Ok(());
            }
        };
        let samples = profile.contents().scan.samples;
        // The first part comes at once, mostly empty, so that readers know of the run. A file needs none.
        let is_opening = !std::mem::replace(&mut run.has_begun, true) && samples == 0;
        if is_opening && (!self.stream.is_wanted() || self.stream.is_binary()) {
            return Ok(());
        }
        let start_us = profile.contents().header.facts.start_us;
        let span = profile.contents().scan.span.or(is_opening.then_some(TimeSpan::at(start_us)));
        let wall_us = span.and_then(|span| run.wall.wall_at(span.first_us));
        let info = ChunkInfo {
            run_id: run.id.clone(),
            index: run.index,
            span: span.unwrap_or_default(),
            wall_us,
            end: run.end,
            labels: run.labels.clone(),
        };
        run.index += u64::from(!is_opening);
        run.samples += samples;
        run.statistics = profile.contents().statistics.or(run.statistics);
        self.chunks += 1;
        self.samples += samples;
        if !is_opening && (!self.profile_paths.is_empty() || self.ring.is_some() || self.stream.is_binary()) {
            let chunk = profile.to_chunk(&info)?;
            if let Some(profiles) = &mut run.profiles {
                self.errors.extend(profiles.chunk(&chunk));
                self.has_data |= !profiles.is_empty();
            }
            if self.stream.is_binary() {
                self.stream.write(|written| written.chunk(&info, samples, &chunk))?;
                self.has_data |= self.stream.is_wanted();
            }
            if let Some(ring) = &mut self.ring {
                ring.push(ChunkSummary::new(&info, samples), chunk)?;
            }
        }
        if self.stream.is_wanted() && !self.stream.is_binary() {
            let stream = match &mut run.stream {
                Some(stream) => stream,
                None => {
                    let options = stream_options(self.args, &run.id)?.live();
                    run.stream.insert(RunStream::new(Framing::Chunks, options))
                }
            };
            self.stream.write(|written| stream.profile(&mut profile.of_run(info), written))?;
            self.has_data |= self.stream.is_wanted();
        }
        Ok(())
    }

    /// A run is over: all of it is there, or it broke off with so many bytes of a part.
    fn end(&mut self, profiler: Profiler, broken: Option<u64>) -> Result<()> {
        let Some(run) = self.runs.get_mut(&profiler).filter(|run| !run.is_over) else { return Ok(()) };
        run.is_over = true;
        let missed = run.statistics.and_then(|statistics| statistics.missed_samples).unwrap_or(0.0);
        if missed >= MISSED {
            let what = format!(
                "the profiler missed {missed:.0} % of the samples of process {}: the rate is more than it can keep up with",
                run.pid
            );
            self.messages.warning("record", &what);
        }
        if let Some((name, count)) = &run.escaped {
            let what = format!(
                "names in process {} that are not UTF-8: {count}, written with escapes, as in {name}",
                run.pid
            );
            self.messages.warning("record", &what);
        }
        let is_missing = self.missed.count > 0 && self.first == Some(profiler);
        let mut error = None;
        if let Some(bytes) = broken {
            let begun = if bytes > 0 { format!(", {bytes} bytes of a part") } else { String::new() };
            let fault = format!(
                "the profiler of process {} ended before it had handed over all: what came after its last part is lost{begun}",
                run.pid
            );
            error = Some(Error::profile(fault));
        }
        if let Some(mut stream) = run.stream.take() {
            if let Some(error) = &error {
                stream.broke_off(error);
            }
            let mut is_complete = true;
            self.stream.write(|written| {
                if is_missing {
                    stream.sampler_missed(written)?;
                }
                is_complete = stream.finish(written)?.complete;
                Ok(())
            })?;
            if !is_complete {
                self.status = Status::Partial;
            }
        }
        // Without a chunk, what was in its place stays.
        if let Some(profiles) = run.profiles.take().filter(|_| run.index > 0) {
            self.errors.extend(profiles.commit());
        }
        if let Some(error) = error {
            self.fault(&error);
        }
        Ok(())
    }

    /// Says in every stream that it goes on.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn heartbeat(&mut self) -> Result<()> {
        for stream in self.runs.values_mut().filter_map(|run| run.stream.as_mut()) {
            self.stream.write(|written| stream.heartbeat(written))?;
        }
        self.settle()
    }

    /// The profilers are gone, some of them in the middle of something; `refused` is why nothing can be
    /// taken any more.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn broke_off(
        &mut self,
        unfinished: &std::collections::HashMap<Profiler, u64>,
        refused: Option<Error>,
    ) -> Result<()> {
        if let Some(error) = refused {
            self.fault(&error);
        }
        for profiler in self.open_profilers() {
            // Of one that was refused nothing is lost.
            let bytes = unfinished.get(&profiler).copied().unwrap_or(0);
            self.end(profiler, Some(bytes))?;
        }
        self.settle()
    }

    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// A recording in which there is nothing, and what cannot be written.
    pub fn finish(mut self, status: ExitStatus) -> Result<Status> {
        if self.chunks == 0 {
            // It has printed its help.
            let is_done = self.first.is_none() && status.success();
            return match self.failure {
                Some(failure) => Err(failure),
                None if is_done => Ok(Status::Done),
                None => Err(nothing(status)),
            };
        }
        if self.missed.count > 0 {
            self.fault(&self.missed.to_error());
        }
        let mut status = self.status;
        if let Some(failure) = &self.failure {
            self.messages.error(failure);
            status = Status::Partial;
        }
        if self.samples == 0 {
            self.messages.warning("record", "no samples were taken");
        }
        let delivered = self.stream.commit()?;
        Ok(if delivered == Status::Done { status } else { delivered })
    }
}

/// Why a recording in which there is nothing has nothing.
fn nothing(status: ExitStatus) -> Error {
    match status.code() {
        Some(2) => Error::usage("CPython's profiler refuses what follows --"),
        Some(130) => interrupted(),
        None if status.signal() == Some(2) => interrupted(),
        _ => {
            let fault = format!("the profiler ended before its first batch ({status})");
            Error::from(std::io::Error::other(fault))
        }
    }
}

fn interrupted() -> Error {
    Error::from(std::io::Error::new(std::io::ErrorKind::Interrupted, "interrupted before the first batch"))
}

const READING: &str =
    "it has to be a process of CPython 3.15 that runs; one in a container is attached to from inside it";

const TRACING: &str = if cfg!(target_os = "macos") {
    "the profiler reads the memory of the program, for which macOS wants root: sudo -E"
} else {
    "the profiler reads the memory of the program: it needs root, CAP_SYS_PTRACE (docker run --cap-add=SYS_PTRACE), or kernel.yama.ptrace_scope=0 and the same user"
};

/// The id of another process's run.
fn child_id(id: &str, pid: u32) -> String {
    let shutdown = format!("-{pid}");
    let room = 64 - shutdown.len();
    format!("{}{shutdown}", &id[..id.len().min(room)])
}

/// Of the run of this id.
pub(crate) fn stream_options(args: &Args, run_id: &str) -> Result<StreamOptions> {
    let mut options = StreamOptions::new(run_id)?.max_line(args.max_line)?;
    if let Some(types) = &args.stream_types {
        options = options.types(types.clone());
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_another_process_has_its_number_and_64_characters_at_most() {
        assert_eq!(child_id("run", 42), "run-42");
        let id = "x".repeat(64);
        assert_eq!(child_id(&id, 4711), format!("{}-4711", "x".repeat(59)));
    }

    #[test]
    fn an_interrupted_recording_of_nothing_is_told_as_that() {
        let kind = |raw| nothing(ExitStatus::from_raw(raw)).to_string();
        for interrupted in [130 << 8, 2] {
            assert!(kind(interrupted).contains("interrupted before the first batch"), "{interrupted}");
        }
        assert!(kind(2 << 8).contains("refuses what follows --"));
        for other in [0, 1 << 8, 9] {
            assert!(kind(other).contains("the profiler ended before its first batch"), "{other}");
        }
    }
}
