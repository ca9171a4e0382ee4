//! Facts of a run: mode, capture, clock, statistics.

use std::fmt;
use std::str::FromStr;

/// What the profiler looked at; `RunFacts::mode` is `None` where the profile doesn't say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Wall-clock time: every thread, running or not.
    Wall,
    /// Threads on a CPU.
    Cpu,
    /// Threads that hold the GIL.
    Gil,
    /// GIL and CPU status of every thread.
    All,
    /// Threads that handle an exception.
    Exception,
}

impl Mode {
    /// Every mode, in the order of CPython's numbers.
    pub const ALL: [Mode; 5] = [Mode::Wall, Mode::Cpu, Mode::Gil, Mode::All, Mode::Exception];

    /// CPython's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Wall => "wall",
            Mode::Cpu => "cpu",
            Mode::Gil => "gil",
            Mode::All => "all",
            Mode::Exception => "exception",
        }
    }
}

impl FromStr for Mode {
    type Err = ();
    fn from_str(name: &str) -> Result<Self, ()> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name).ok_or(())
    }
}

/// Which extras the profiler was asked to record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// `-a`: all threads, not only the main one.
    pub all_threads: bool,
    /// `--native`: `<native>` frames where C code runs.
    pub native: bool,
    /// `<GC>` frames (off with `--no-gc`).
    pub gc: bool,
    /// `--opcodes`: the bytecode instruction of each frame.
    pub opcodes: bool,
    /// `--blocking`: the target was stopped for each sample.
    pub blocking: bool,
}

/// The Python that wrote the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonVersion {
    /// 3 of 3.15.2.
    pub major: u8,
    /// 15 of 3.15.2.
    pub minor: u8,
    /// 2 of 3.15.2.
    pub micro: u8,
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

impl FromStr for PythonVersion {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('.').map(|part| part.parse::<u8>().map_err(|_| ()));
        let mut next = || parts.next().unwrap_or(Err(()));
        let version = PythonVersion { major: next()?, minor: next()?, micro: next()? };
        if parts.next().is_some() {
            return Err(());
        }
        Ok(version)
    }
}

/// What holds for a run as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFacts {
    /// When the collector was made, microseconds of the monotonic clock.
    pub start_us: u64,
    /// Planned time between two sampling instants, microseconds.
    pub interval_us: u64,
    /// What was looked at, where the profile says.
    pub mode: Option<Mode>,
    /// What was recorded, where the profile says.
    pub capture: Option<Capture>,
    /// The Python that wrote the profile, where that is known.
    pub python: Option<PythonVersion>,
}

/// What the profiler measured about itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Seconds of sampling.
    pub duration_sec: f64,
    /// Sampling instants a second.
    pub sample_rate: f64,
    /// Percentage of instants whose stacks could not be read, where measured.
    pub error_rate: Option<f64>,
    /// Percentage of planned instants that never came, where measured; may be negative.
    pub missed_samples: Option<f64>,
}
