//! `record`: runs CPython's profiler with our collector and turns its parts into streams and profiles as it samples.

mod control;
mod label;
mod packets;
mod profiler;
mod profiles;
mod recording;
mod ring;
mod ring_file;
pub(crate) mod shutdown;
mod snapshot;
mod stream;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::process::{test_kill_process, umask};
use serde_json::json;

use crate::cli::args::{Format, Record as Args, Schema};
use crate::cli::commands::follow::Interval;
use crate::cli::exit::Status;
use crate::cli::io::{Target, folder_of};
use crate::cli::net::Network;
use crate::cli::network::network;
use crate::cli::output::outputs::{self, check_for_subscribers, has_subscribers};
use crate::cli::ui::messages::Messages;
use crate::cli::ui::signals;
use crate::error::{Error, Result};
use crate::protocol::MessageType;
use control::{Command, Control, Request, failed};
pub(crate) use control::{path_of, snapshot_path};
use packets::{Fact, Packets, Profiler as Id, ProfilerMessage};
use profiler::{Profiler, process};
use profiles::{check_name, is_profile};
use recording::Recording;
use ring::Ring;
use shutdown::Shutdown;
use snapshot::{Snapshots, Wanted, file_of};

/// Messages that wait for the recorder; then the profiler waits.
const WAITING: usize = 64;
/// Where SIGUSR1 writes, unless said otherwise.
const SNAPSHOT: &str = "tachyon-{}.bin";

/// What the recorder wakes up for.
enum Event {
    ProfilerMessage(Id, ProfilerMessage),
    /// Nobody is left at the pipe; bytes that were begun, and why nothing more is taken.
    Closed(HashMap<Id, u64>, Option<Error>),
    /// A signal has come.
    Signal,
    Snapshot,
    Asked(Request),
}

pub(crate) fn run(args: &Args, messages: &Messages) -> Result<Status> {
    let asked = profiler_args(&args.profiler)?;
    if args.run_id == "auto" {
        return Err(Error::usage(
            "--run-id auto is made of a whole profile; a recording has random or your own",
        ));
    }
    if args.written.format() == Format::Binary {
        check_binary(args)?;
    }
    let network = network(&args.access, messages)?;
    // What is recorded, and said of the program, is for its owner.
    let mask = umask(Mode::RWXG | Mode::RWXO);
    let control = args.control.as_deref().map(path_of).transpose()?;
    let targets = Targets::of(args, &network)?;
    profiler::check(&args.python)?;
    let ring = args.ring.map(|limits| Ring::new(limits, args.ring_file.as_deref(), *messages)).transpose()?;
    let is_output_ours = targets.streams.iter().any(|target| matches!(target, Target::Standard));
    let shutdown = Arc::new(Shutdown::default());
    let limit = &shutdown.limit;
    let (sender, events) = mpsc::sync_channel(WAITING);
    let (stop, usr1, asks) = (sender.clone(), sender.clone(), sender.clone());
    let ends = Arc::clone(&shutdown);
    // Before anything is opened: a pipe may wait for its reader for ever.
    signals::on_stop(move |signal| {
        ends.signal(signal);
        // Only to wake the recorder: where others wait for it already, it is awake or stuck.
        drop(stop.try_send(Event::Signal));
    })?;
    let mut recording =
        Recording::new(args, messages, &network, limit, &targets.streams, targets.profiles, ring)?;
    // Nothing is lost yet if somebody doesn't want to wait any more.
    recording.wait_for_subscribers()?;
    shutdown.begin();

    // Whoever is gone needs nothing any more.
    signals::on_snapshot(move || drop(usr1.send(Event::Snapshot)))?;
    let control =
        control.map(|path| Control::listen(&path, move |request| asks.send(Event::Asked(request)).is_ok()));
    let control = control.transpose()?;
    let snapshots = args.ring.map(|_| Snapshots::start(args, &network, *messages)).transpose()?;
    let (profiler, pipe) = Profiler::start(&args.python, args.flush, &asked, mask, is_output_ours)?;
    shutdown.profiler(profiler.id(), true);
    let known = Arc::clone(&shutdown);
    // Without it the profiler would have nobody to talk to, and ends.
    std::thread::Builder::new().spawn(move || listen(pipe, &sender, &known))?;

    let heartbeat = args.stream_types.as_ref().filter(|types| types.has(MessageType::Heartbeat));
    let recorder = Recorder {
        is_attached: args.profiler.first().is_some_and(|first| first == "attach"),
        recording,
        profiler,
        snapshots,
        patterns: targets.snapshots,
        heartbeat: heartbeat.map(|types| Interval::new(types.heartbeat())),
        later: Vec::new(),
        taken: 0,
        shutdown,
        signals: 0,
        is_closed: false,
        stopping: None,
    };
    let status = recorder.run(&events, messages);
    drop(control);
    status
}

/// Refuses what has no place in framed chunks.
fn check_binary(args: &Args) -> Result<()> {
    let fault = if args.stream_types.is_some() {
        "--format binary writes chunks, not messages, and cannot be combined with --stream-types"
    } else if args.ring.is_some() {
        "a ring is in chunks anyway: --format binary is for streams"
    } else if args.profiler.iter().any(|arg| arg == "--subprocesses") {
        "chunks of several processes in one stream cannot be told apart: name files, or leave out --format binary"
    } else {
        return Ok(());
    };
    Err(Error::usage(fault))
}

/// What the profiler is asked for: `-m module` alone is `run -m module`.
fn profiler_args(args: &[OsString]) -> Result<Vec<OsString>> {
    let first = args.first().and_then(|first| first.to_str()).unwrap_or_default();
    match first {
        "run" | "attach" => Ok(args.to_vec()),
        "-m" => Ok([OsString::from("run")].into_iter().chain(args.iter().cloned()).collect()),
        _ => Err(Error::usage(format!("'{first}' after --, where run, attach or -m should stand"))
            .hint("tachyon-jsonl record -- run script.py, or -- run -m module, or -- attach PID")),
    }
}

/// Where the recording goes. With a ring nothing goes anywhere until it is asked for.
struct Targets {
    streams: Vec<Target>,
    profiles: Vec<PathBuf>,
    /// What SIGUSR1 writes, where there is a ring.
    snapshots: Vec<PathBuf>,
}

impl Targets {
    fn of(args: &Args, network: &Network) -> Result<Self> {
        let mut targets = Targets { streams: Vec::new(), profiles: Vec::new(), snapshots: Vec::new() };
        let all = if args.output.is_empty() && args.ring.is_some() {
            Vec::new()
        } else {
            outputs::targets(&args.output, &[], network)?
        };
        for target in all {
            if let Target::File(path) = &target {
                check_name(path)?;
            }
            match target {
                Target::File(path) if args.ring.is_some() => {
                    check_snapshot(&path, args.ring_file.as_deref())?;
                    targets.snapshots.push(path);
                }
                target if args.ring.is_some() => {
                    return Err(Error::usage(format!("a snapshot is a file, not {}", target.name())));
                }
                Target::File(path) if is_profile(&path) => targets.profiles.push(path),
                target => targets.streams.push(target),
            }
        }
        if targets.snapshots.is_empty() {
            targets.snapshots.push(PathBuf::from(SNAPSHOT));
        }
        if has_subscribers(&targets.streams, &args.live) {
            check_for_subscribers(args.written.format(), Schema::Own, args.stream_types.as_ref())?;
        }
        Ok(targets)
    }
}

/// Refuses, before it is needed, a place where no snapshot can be.
fn check_snapshot(path: &Path, ring_file: Option<&Path>) -> Result<()> {
    let name = path.display().to_string();
    let target = Target::File(path.to_path_buf());
    if ring_file.is_some_and(|ring| Target::File(ring.to_path_buf()).is_same_place(&target)) {
        return Err(Error::usage("it is the ring file, too").within(&name));
    }
    let folder = folder_of(path);
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Error::usage(format!("{} is not a folder", folder.display())).within(&name)),
        Err(error) => Err(Error::from(error).within(&name)),
    }
}

/// Hands on what the profilers say, until the last has closed the pipe.
fn listen(pipe: std::io::PipeReader, events: &SyncSender<Event>, shutdown: &Shutdown) {
    let mut packets = Packets::new(std::io::BufReader::with_capacity(64 * 1024, pipe));
    let refused = loop {
        match packets.next() {
            Ok(Some((id, parse_message))) => {
                match &parse_message {
                    ProfilerMessage::Fact(Fact::Begin(_)) => shutdown.profiler(id, true),
                    ProfilerMessage::Fact(
                        Fact::End | Fact::Denied { .. } | Fact::Unreadable { .. } | Fact::Refused { .. },
                    ) => shutdown.profiler(id, false),
                    ProfilerMessage::Fact(
                        Fact::Last | Fact::Exit { .. } | Fact::Escaped { .. } | Fact::Missed { .. },
                    )
                    | ProfilerMessage::Profile(_) => {}
                }
                if events.send(Event::ProfilerMessage(id, parse_message)).is_err() {
                    return;
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let _ = events.send(Event::Closed(packets.unfinished(), refused));
}

struct Recorder<'a> {
    recording: Recording<'a>,
    /// Whether the program was there before.
    is_attached: bool,
    profiler: Profiler,
    snapshots: Option<Snapshots>,
    /// What SIGUSR1 writes.
    patterns: Vec<PathBuf>,
    heartbeat: Option<Interval>,
    /// Snapshots that are due later.
    later: Vec<(Instant, Request)>,
    /// Snapshots that SIGUSR1 has asked for.
    taken: u64,
    shutdown: Arc<Shutdown>,
    /// Signals that were heeded.
    signals: u32,
    /// Whether the profilers are gone.
    is_closed: bool,
    /// When profilers that were asked to end are ended.
    stopping: Option<Instant>,
}

impl Recorder<'_> {
    fn run(mut self, events: &Receiver<Event>, messages: &Messages) -> Result<Status> {
        if let Err(error) = self.record(events) {
            // The program is ended as by a signal, whatever the reason is.
            self.wind_down(events);
            self.wait_for_profiler()?;
            if let Some(snapshots) = self.snapshots.take() {
                snapshots.finish();
            }
            self.tell_who_goes_on(messages);
            return self.recording.give_up(error);
        }
        for (_, request) in std::mem::take(&mut self.later) {
            self.obey(request)?;
        }
        let status = self.wait_for_profiler()?;
        let all_written = self.snapshots.take().is_none_or(Snapshots::finish);
        if let Some(exit) = self.recording.exit.filter(|_| self.stopping.is_none()) {
            tell_exit(exit, messages);
        }
        self.tell_who_goes_on(messages);
        self.shutdown.drain();
        let status = self.recording.finish(status)?;
        Ok(if all_written { status } else { Status::Partial })
    }

    fn wait_for_profiler(&mut self) -> Result<ExitStatus> {
        let status = self.profiler.wait();
        self.shutdown.profiler(self.profiler.id(), false);
        status
    }

    /// A profiler that was killed could not end the program that it had started.
    fn tell_who_goes_on(&self, messages: &Messages) {
        if self.is_attached {
            return;
        }
        let first = self.recording.runs().map(|(_, pid, ..)| pid).next();
        let alive = first.filter(|pid| process(*pid).is_some_and(|pid| test_kill_process(pid).is_ok()));
        if let Some(pid) = alive {
            messages.note("record", &format!("process {pid} goes on"));
        }
    }

    /// Has the profilers end, for nothing they say is of use any more.
    fn wind_down(&mut self, events: &Receiver<Event>) {
        if self.stopping.is_none() {
            self.stop();
        }
        while !self.is_closed {
            match events.recv_timeout(self.wait()) {
                Ok(Event::Closed(..)) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(_) | Err(RecvTimeoutError::Timeout) => self.heed(),
            }
        }
    }

    /// Ends profilers that take too long, and does what signals ask for.
    fn heed(&mut self) {
        while self.signals < self.shutdown.signals() {
            self.signals += 1;
            self.stop();
        }
        if self.stopping.is_some_and(|end| end <= Instant::now()) {
            self.profiler.kill(self.recording.open_profilers().into_iter());
            self.stopping = Some(Instant::now() + self.shutdown.patience());
        }
    }

    /// Records until the profilers are gone.
    fn record(&mut self, events: &Receiver<Event>) -> Result<()> {
        loop {
            match events.recv_timeout(self.wait()) {
                Ok(Event::ProfilerMessage(id, parse_message)) => {
                    self.recording.parse_message(id, parse_message)?
                }
                Ok(Event::Closed(unfinished, refused)) => {
                    self.is_closed = true;
                    return self.recording.broke_off(&unfinished, refused);
                }
                Ok(Event::Signal) => {}
                Ok(Event::Snapshot) => self.snapshot_by_signal()?,
                Ok(Event::Asked(request)) => self.asked(request)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.heed();
            let now = Instant::now();
            let due: Vec<_> = self.later.extract_if(.., |(due, _)| *due <= now).collect();
            for (_, request) in due {
                self.obey(request)?;
            }
            if self.heartbeat.as_mut().is_some_and(Interval::is_due) {
                self.recording.heartbeat()?;
            }
        }
    }

    /// How long there is nothing to do, unless something comes.
    fn wait(&self) -> Duration {
        let now = Instant::now();
        let dues = self.later.iter().map(|(due, _)| *due).chain(self.stopping);
        let next = dues.map(|due| due.saturating_duration_since(now)).min();
        let beat = self.heartbeat.as_ref().map(Interval::left);
        next.into_iter().chain(beat).min().unwrap_or(Duration::from_secs(3600))
    }

    /// Asks the profilers to end; the second time, ends them.
    fn stop(&mut self) {
        let profilers = self.recording.open_profilers().into_iter();
        if self.stopping.is_some() {
            self.profiler.kill(profilers);
        } else {
            self.profiler.stop(profilers);
        }
        self.stopping = Some(Instant::now() + self.shutdown.patience());
    }

    fn snapshot_by_signal(&mut self) -> Result<()> {
        let Some(ring) = &self.recording.ring else { return Ok(()) };
        self.taken += 1;
        for pattern in &self.patterns {
            let wanted =
                Wanted { path: file_of(pattern, self.taken), contents: ring.contents()?, reply: None };
            if let Some(snapshots) = &self.snapshots {
                snapshots.want(wanted);
            }
        }
        Ok(())
    }

    fn asked(&mut self, request: Request) -> Result<()> {
        match &request.command {
            Command::Snapshot { after, .. } if !after.is_zero() && self.recording.ring.is_some() => {
                self.later.push((Instant::now() + *after, request));
                Ok(())
            }
            _ => self.obey(request),
        }
    }

    fn obey(&mut self, request: Request) -> Result<()> {
        let Request { command, reply } = request;
        let told = match command {
            Command::Status => self.status(),
            Command::Stop => {
                self.stop();
                json!({"ok": true}).to_string()
            }
            Command::Snapshot { path, .. } => match (&self.recording.ring, &self.snapshots) {
                (Some(ring), Some(snapshots)) => {
                    snapshots.want(Wanted { path, contents: ring.contents()?, reply: Some(reply) });
                    return Ok(());
                }
                _ => failed("the recorder has no ring: record --ring"),
            },
        };
        // One who has gone needs no answer.
        let _ = reply.send(told);
        Ok(())
    }

    fn status(&self) -> String {
        let run = |(id, pid, chunks, samples, is_over)| json!({"run_id": id, "pid": pid, "chunks": chunks, "samples": samples, "ended": is_over});
        let runs: Vec<_> = self.recording.runs().map(run).collect();
        let ring = self.recording.ring.as_ref().map(|ring| {
            json!({
                "chunks": ring.chunks(),
                "bytes": ring.bytes(),
                "limit_bytes": ring.limit(),
                "duration_usec": ring.duration_us(),
                "gone_chunks": ring.dropped().chunks,
                "gone_samples": ring.dropped().samples,
            })
        });
        json!({"ok": true, "runs": runs, "ring": ring}).to_string()
    }
}

/// Tells how the program ended: an exit status, or the number of a signal below zero, if that is known.
fn tell_exit(exit: Option<i32>, messages: &Messages) {
    let how = match exit {
        Some(0) => return,
        None => String::new(),
        Some(status @ 1..) => format!(" with exit status {status}"),
        Some(signal) => {
            let name = signal_hook::low_level::signal_name(-signal);
            let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
            format!(" by signal {}{name}", -signal)
        }
    };
    messages.note("record", &format!("the program ended{how}"));
}
