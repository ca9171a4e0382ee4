//! CPython's profiler as a child process.

use std::ffi::OsString;
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::Mode;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::network::TOKEN_VARIABLE;
use crate::cli::record::packets::Profiler as Id;
use crate::convert::Flush;
use crate::error::{Error, Result};

/// What the interpreter runs.
const COLLECTOR: &str =
    concat!(include_str!("collector.py"), "\n\n", include_str!("children.py"), "\n\nmain()\n");
/// Tells the version, and fails where the profiler is missing.
const PROBE: &str = "\
import sys
sys.path = [path for path in sys.path if path]
sys.stdout.write('%d.%d.%d\\n' % sys.version_info[:3])
sys.stdout.flush()
if sys.version_info[:2] == (3, 15):
    import profiling.sampling, _remote_debugging";
const INSTALL: &str = "install CPython 3.15, or name the command that runs it: --python COMMAND";

/// A profiler that runs.
pub(crate) struct Profiler {
    child: Child,
}

impl Profiler {
    /// Has the interpreter begin; the program gets this file mode mask. With `is_output_ours` the target's standard output goes to standard error.
    ///
    /// # Errors
    ///
    /// An interpreter that does not start.
    pub fn start(
        python: &Path,
        flush: Flush,
        args: &[OsString],
        mask: Mode,
        is_output_ours: bool,
    ) -> Result<(Self, PipeReader)> {
        let (reader, writer) = io::pipe()?;
        // It is for this one child. Nothing else is started before it is closed here.
        fcntl_setfd(&writer, FdFlags::empty()).map_err(io::Error::from)?;
        let interval = flush.interval.map_or(u64::MAX, |interval| interval.as_micros() as u64);
        let mut command = Command::new(python);
        command.args(["-P", "-c", COLLECTOR]);
        command.args([
            writer.as_raw_fd().to_string(),
            interval.to_string(),
            flush.samples.unwrap_or(0).to_string(),
            mask.bits().to_string(),
        ]);
        command.args(args);
        // The readers' secret is none of the program's business.
        command.env_remove(TOKEN_VARIABLE);
        if is_output_ours {
            command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        }
        let child = command.spawn().map_err(|error| Error::from(error).within(&name(python)))?;
        Ok((Profiler { child }, reader))
    }

    /// Asks the profilers of these ids, and the first one, to end: they hand over what they have.
    pub fn stop(&self, others: impl Iterator<Item = Id>) {
        self.signal(others, Signal::INT);
    }

    /// Ends them at once.
    pub fn kill(&self, others: impl Iterator<Item = Id>) {
        self.signal(others, Signal::KILL);
    }

    fn signal(&self, others: impl Iterator<Item = Id>, signal: Signal) {
        let own = self.child.id();
        tell(others.filter(|id| *id != own).chain([own]), signal);
    }

    /// Of the first process.
    pub fn id(&self) -> Id {
        self.child.id()
    }

    /// How it ended.
    ///
    /// # Errors
    ///
    /// Errors of the system.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }
}

/// Sends a signal to profilers. One that has ended already has nothing to hear.
pub(crate) fn tell(profilers: impl IntoIterator<Item = Id>, signal: Signal) {
    for pid in profilers.into_iter().filter_map(process) {
        let _ = kill_process(pid, signal);
    }
}

/// A process of this number, as the system knows it.
pub(crate) fn process(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

fn name(python: &Path) -> String {
    python.display().to_string()
}

/// Checks the interpreter.
///
/// # Errors
///
/// One that is not there or is not CPython 3.15.
pub(crate) fn check(python: &Path) -> Result<()> {
    let named = |error: Error| error.within(&name(python));
    let output = Command::new(python).args(["-c", PROBE]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let error = Error::from(error);
        named(if is_missing { error.hint(INSTALL) } else { error })
    })?;
    let version = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_string();
    let parse_message = String::from_utf8_lossy(&output.stderr);
    let last = parse_message.lines().last().unwrap_or_default();
    if version.starts_with("3.15.") && output.status.success() {
        return Ok(());
    }
    let error = if version.starts_with("3.15.") {
        Error::usage(format!("Python {version} without its sampling profiler: {last}"))
    } else if version.is_empty() {
        let parse_message = if last.is_empty() { String::new() } else { format!(", {last}") };
        Error::usage(format!("it does not run as a Python ({}{parse_message})", output.status))
    } else {
        Error::usage(format!("Python {version}, but the sampling profiler is that of CPython 3.15"))
    };
    Err(named(error.hint(INSTALL)))
}
