//! `from-bin --follow`: a profile in chunks while it is being written.
//!
//! A chunk is delivered once its header is there. The file may not exist yet, and be rotated in any way: replaced
//! by another, which may take its time to begin, or cut, after which its writer goes on at the start or where it
//! was. Whether the run goes on in it is for the chunks to say.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use notify::Watcher;
use same_file::Handle;

use crate::cli::args::FromBin;
use crate::cli::commands::runs::Runs;
use crate::cli::exit::Status;
use crate::cli::io::{Deadline, Input, folder_of};
use crate::cli::output::outputs::Outputs;
use crate::cli::ui::messages::Messages;
use crate::cli::ui::signals::{end_now, on_stop};
use crate::error::{Error, Result};
use crate::format::{Framing, HEADER_LEN, LostPart, Part, Sequence};
use crate::protocol::MessageType;

/// How often the file is looked at without a notification: not every file system sends them.
const LOOK: Duration = Duration::from_secs(1);
/// The same where nothing can be heard at all.
const LOOK_DEAF: Duration = Duration::from_millis(200);
/// The least time between two looks, however much is written.
const PAUSE: Duration = Duration::from_millis(30);
/// How long outputs may take for what is left, once it is asked to end.
const ENDING: Duration = Duration::from_secs(5);
/// The least time between two searches after a chunk that is not whole.
const SEARCH: Duration = Duration::from_secs(2);

/// What the reading wakes up for.
enum Wake {
    Changed,
    Stop,
}

/// The targets are opened once it is known that there is a file to follow.
pub(crate) fn run(
    args: &FromBin,
    messages: &Messages,
    inputs: &[Input],
    open: impl FnOnce(&Deadline) -> Result<Outputs>,
) -> Result<Status> {
    let [Input::File(path)] = inputs else {
        return Err(Error::usage("--follow needs the name of one file"));
    };
    let (sender, wakes) = mpsc::channel();
    let stop = sender.clone();
    let is_open = Arc::new(AtomicBool::new(false));
    let may_wait = Arc::clone(&is_open);
    let limit = Deadline::default();
    let shutdown = limit.clone();
    on_stop(move |signal| {
        // Who asks again does not want to wait for readers. A pipe may wait for its first one for ever.
        if !may_wait.swap(false, Ordering::Relaxed) {
            end_now(signal);
        }
        shutdown.set(Instant::now() + ENDING);
        let _ = stop.send(Wake::Stop);
    })?;
    let watcher = watch(path, sender.clone());
    let look = if watcher.is_some() { LOOK } else { LOOK_DEAF };
    let mut follow = Follow {
        path,
        name: inputs[0].name(),
        runs: Runs::new(args, messages, open(&limit)?),
        open: None,
        cut_at: None,
    };
    is_open.store(true, Ordering::Relaxed);
    let period = args.stream_types.as_ref().filter(|types| types.has(MessageType::Heartbeat));
    let mut heartbeat = period.map(|types| Interval::new(types.heartbeat()));
    let ended = loop {
        let looked = Instant::now();
        if let Err(error) = follow.look().and_then(|()| follow.beat(heartbeat.as_mut())) {
            break Err(error);
        }
        let due = heartbeat.as_ref().map_or(look, |heartbeat| heartbeat.left().min(look));
        if !sleep(&wakes, looked + PAUSE, due) {
            break follow.stop();
        }
    };
    match ended {
        Ok(()) => follow.runs.finish(None),
        Err(error) if error.is_of_output() => follow.runs.give_up(error),
        Err(error) => Err(error),
    }
}

/// Waits for a change, for `due`, and in any case until `earliest`. False if it is time to stop.
fn sleep(wakes: &Receiver<Wake>, earliest: Instant, due: Duration) -> bool {
    let mut wait = due;
    loop {
        match wakes.recv_timeout(wait) {
            Ok(Wake::Stop) => return false,
            // One look covers all the changes that were notified, but none of them hides a stop.
            Ok(Wake::Changed) => wait = earliest.saturating_duration_since(Instant::now()),
            // Somebody has to be there to say stop.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return true,
        }
    }
}

/// Tells of every change of the file, or of another in its place. `None` where the system has nothing
/// for that.
fn watch(path: &Path, sender: Sender<Wake>) -> Option<notify::RecommendedWatcher> {
    let name = path.file_name()?.to_os_string();
    let concerns = move |event: &notify::Event| {
        !event.kind.is_access() && event.paths.iter().any(|path| path.file_name() == Some(&name))
    };
    let tell = move |event: notify::Result<notify::Event>| {
        if event.as_ref().map_or(true, &concerns) {
            let _ = sender.send(Wake::Changed);
        }
    };
    let mut watcher = notify::recommended_watcher(tell).ok()?;
    watcher.watch(folder_of(path), notify::RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
}

/// Something that is due once in a while.
pub(crate) struct Interval {
    period: Duration,
    next: Instant,
}

impl Interval {
    pub fn new(period: Duration) -> Self {
        Interval { period, next: Instant::now() + period }
    }

    pub fn left(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    pub fn is_due(&mut self) -> bool {
        let is_due = self.left().is_zero();
        if is_due {
            self.next = Instant::now() + self.period;
        }
        is_due
    }
}

struct Follow<'a> {
    path: &'a PathBuf,
    name: String,
    runs: Runs<'a>,
    open: Option<OpenFile>,
    /// Where a writer that does not know that the file was cut goes on, after a hole.
    cut_at: Option<u64>,
}

/// A file whose first chunk has begun.
struct OpenFile {
    file: File,
    handle: Handle,
    /// Its first bytes, by which it is known again.
    start: [u8; HEADER_LEN as usize],
    sequence: Sequence,
    searched: Option<(u64, Instant)>,
}

impl Follow<'_> {
    fn named(&self, error: impl Into<Error>) -> Error {
        error.into().within(&self.name)
    }

    /// Delivers what has become whole since the last time.
    fn look(&mut self) -> Result<()> {
        loop {
            if self.open.is_none() {
                self.open = OpenFile::begun(self.path, self.cut_at).map_err(|error| self.named(error))?;
            }
            let Some(open) = &self.open else { return Ok(()) };
            // Before it is read on: after the cut nothing is where it was.
            if open.is_cut().map_err(|error| self.named(error))? {
                // What was there is gone, so nothing can be said of it.
                self.cut_at = Some(open.sequence.position());
                self.open = None;
                self.rotated()?;
                continue;
            }
            self.deliver()?;
            let Some(open) = &self.open else { return Ok(()) };
            if !open.is_replaced(self.path).map_err(|error| self.named(error))? {
                return Ok(());
            }
            self.rest(false)?;
            self.cut_at = None;
            self.rotated()?;
        }
    }

    fn rotated(&mut self) -> Result<()> {
        self.runs.rotated(&self.name)?;
        self.runs.publish()
    }

    fn deliver(&mut self) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let named = |error: Error| error.within(&self.name);
        let mut any = false;
        loop {
            let may_search = open.may_search().map_err(|error| named(error.into()))?;
            let Some(part) = open.sequence.next_committed(&mut open.file, may_search).map_err(named)? else {
                break;
            };
            self.runs.part(&self.name, Framing::Chunks, part)?;
            any = true;
        }
        if any { self.runs.publish() } else { Ok(()) }
    }

    /// Ends the file that is open; what is not whole in it counts as lost to its run, which may go on, or, when
    /// this is the end, to this stream alone.
    fn rest(&mut self, is_stop: bool) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        while let Some(part) = open.sequence.next(&mut open.file).map_err(|error| self.named(error))? {
            match part {
                Part::Lost(lost) if lost.is_tail && is_stop => self.runs.unfinished(&self.name, &lost)?,
                Part::Lost(lost) => {
                    let lost = LostPart { is_tail: false, ..lost };
                    self.runs.part(&self.name, Framing::Chunks, Part::<File>::Lost(lost))?;
                }
                part => self.runs.part(&self.name, Framing::Chunks, part)?,
            }
        }
        Ok(())
    }

    fn beat(&mut self, heartbeat: Option<&mut Interval>) -> Result<()> {
        if heartbeat.is_some_and(Interval::is_due) { self.runs.heartbeat() } else { Ok(()) }
    }

    fn stop(&mut self) -> Result<()> {
        self.look()?;
        self.rest(true)?;
        self.runs.end_run(&self.name)?;
        self.runs.publish()
    }
}

impl OpenFile {
    /// The file, once it has begun to be a profile in chunks; if it begins with a hole, at `cut_at`.
    fn begun(path: &Path, cut_at: Option<u64>) -> Result<Option<Self>> {
        // A pipe is not even opened: that would wait for a writer.
        let opened =
            fs::metadata(path).and_then(|found| found.is_file().then(|| File::open(path)).transpose());
        let mut file = match opened {
            Ok(Some(file)) => file,
            Ok(None) => {
                return Err(Error::usage("only a regular file can be followed")
                    .hint("a pipe is read to its end without --follow"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let start = start_of(&mut file)?;
        let length = file.metadata()?.len();
        if length < HEADER_LEN {
            return Ok(None);
        }
        let sequence = if start.iter().any(|byte| *byte != 0) {
            Sequence::open(&mut file)?
        } else {
            match cut_at.filter(|at| length >= at + HEADER_LEN) {
                Some(at) => Sequence::of_chunks_from(at),
                // The first chunk is not committed yet.
                None => return Ok(None),
            }
        };
        if sequence.framing() != Framing::Chunks {
            let fault = "not a profile in chunks (format version 2), so there is nothing to follow";
            return Err(Error::profile(fault).hint("read it without --follow when it is complete"));
        }
        let handle = Handle::from_file(file.try_clone()?)?;
        Ok(Some(OpenFile { file, handle, start, sequence, searched: None }))
    }

    /// Whether it was cut, and perhaps begun again.
    fn is_cut(&self) -> io::Result<bool> {
        let is_shorter = self.file.metadata()?.len() < self.sequence.position();
        let mut file = self.file.try_clone()?;
        Ok(is_shorter || start_of(&mut file)? != self.start)
    }

    /// Whether another stands in its place that has begun. Until then its writer may go on in this one.
    fn is_replaced(&self, path: &Path) -> io::Result<bool> {
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Ok(true);
        }
        match Handle::from_path(path) {
            // What cannot be followed is reported once this one is done with.
            Ok(handle) => Ok(handle != self.handle && !matches!(Self::begun(path, None), Ok(None))),
            // Gone; it may still be written, or another may come.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether to look for a whole chunk after one that is not: when the file has grown, and not all
    /// the time.
    fn may_search(&mut self) -> io::Result<bool> {
        let length = self.file.metadata()?.len();
        let may = self.searched.is_none_or(|(last, at)| length != last && at.elapsed() >= SEARCH);
        if may {
            self.searched = Some((length, Instant::now()));
        }
        Ok(may)
    }
}

fn start_of(file: &mut File) -> io::Result<[u8; HEADER_LEN as usize]> {
    use std::io::{Read, Seek, SeekFrom};
    let mut start = [0; HEADER_LEN as usize];
    file.seek(SeekFrom::Start(0))?;
    let mut filled = 0;
    while filled < start.len() {
        match file.read(&mut start[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_among_changes_is_heeded() {
        let (sender, wakes) = mpsc::channel();
        for wake in [Wake::Changed, Wake::Stop, Wake::Changed] {
            sender.send(wake).expect("open");
        }
        assert!(!sleep(&wakes, Instant::now(), LOOK));
        assert!(sleep(&wakes, Instant::now(), LOOK), "a change does not stop it");
    }
}
