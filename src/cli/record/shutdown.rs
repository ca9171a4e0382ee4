//! Stops a recording, also while its output is blocked.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cli::io::Deadline;
use crate::cli::record::packets::Profiler as Id;
use crate::cli::record::profiler::tell;
use crate::cli::ui::signals::end_now;

/// How long outputs may take for what is left, once a signal has come.
const OUTPUT: Duration = Duration::from_secs(5);
/// How long a recorder has that is to end at once.
const AT_ONCE: Duration = Duration::from_secs(2);
/// How long profilers may take to end before they are ended; after SIGTERM, whose sender may not wait longer
/// than 10 s for all of it.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(4));

/// What is known of the end, in every thread.
#[derive(Default)]
pub(crate) struct Shutdown {
    /// Of the outputs.
    pub limit: Deadline,
    state: Mutex<ShutdownState>,
}

#[derive(Default)]
struct ShutdownState {
    has_begun: bool,
    profilers: BTreeSet<Id>,
    signals: u32,
    is_hurried: bool,
    is_draining: bool,
}

impl Shutdown {
    fn lock(&self) -> MutexGuard<'_, ShutdownState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outputs are open; until then a signal finds nothing that would have to be ended.
    pub fn begin(&self) {
        self.lock().has_begun = true;
    }

    /// A profiler is there, or is not any more.
    pub fn profiler(&self, id: Id, is_there: bool) {
        let mut state = self.lock();
        if is_there {
            state.profilers.insert(id);
        } else {
            state.profilers.remove(&id);
        }
    }

    /// Signals that have come.
    pub fn signals(&self) -> u32 {
        self.lock().signals
    }

    /// How long profilers may take to end.
    pub fn patience(&self) -> Duration {
        if self.lock().is_hurried { PATIENCE.1 } else { PATIENCE.0 }
    }

    /// Nothing is left to do but to hand over what waits.
    pub fn drain(&self) {
        let mut state = self.lock();
        state.is_draining = true;
        if state.signals == 1 {
            self.limit.set(Instant::now() + OUTPUT);
        }
    }

    /// Takes a signal. The first one asks the profilers to end, and leaves the outputs a while; the next, or
    /// one that comes when nothing but outputs is left, ends profilers and outputs at once.
    pub fn signal(self: &Arc<Self>, signal: i32) {
        let mut state = self.lock();
        if !state.has_begun {
            drop(state);
            return end_now(signal);
        }
        state.signals += 1;
        state.is_hurried |= signal == Signal::TERM.as_raw();
        let now = Instant::now();
        match state.signals {
            1 if !state.is_draining => {
                tell(state.profilers.iter().copied(), Signal::INT);
                self.limit.set(now + OUTPUT);
            }
            1 | 2 => {
                tell(state.profilers.iter().copied(), Signal::KILL);
                self.limit.set(now);
                let later = std::thread::Builder::new().spawn(move || {
                    std::thread::sleep(AT_ONCE);
                    end_now(signal);
                });
                if later.is_err() {
                    end_now(signal);
                }
            }
            _ => end_now(signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Of a recording that goes on.
    fn shutdown() -> Arc<Shutdown> {
        let shutdown = Arc::new(Shutdown::default());
        // Before that a signal ends the process.
        shutdown.begin();
        shutdown
    }

    /// Only what one signal does: a second one ends the process.
    #[test]
    fn the_first_signal_ends_the_profilers_that_are_there_and_leaves_the_outputs_a_while() {
        let mut sleepers = [(); 2].map(|()| Command::new("sleep").arg("60").spawn().expect("sleep runs"));
        let shutdown = shutdown();
        for sleeper in &sleepers {
            shutdown.profiler(sleeper.id(), true);
        }
        shutdown.profiler(sleepers[1].id(), false);
        assert_eq!((shutdown.signals(), shutdown.patience()), (0, PATIENCE.0));
        shutdown.signal(Signal::INT.as_raw());
        assert_eq!((shutdown.signals(), shutdown.patience()), (1, PATIENCE.0));
        assert!(!shutdown.limit.has_passed());
        assert_eq!(sleepers[0].wait().expect("a child").signal(), Some(Signal::INT.as_raw()));
        assert!(sleepers[1].try_wait().expect("a child").is_none(), "it is none any more");
        sleepers[1].kill().expect("a child");
        sleepers[1].wait().expect("a child");
        // From here on the time counts anew.
        shutdown.drain();
        assert!(!shutdown.limit.has_passed());
    }

    #[test]
    fn who_sends_sigterm_does_not_wait_as_long() {
        let shutdown = shutdown();
        shutdown.signal(Signal::TERM.as_raw());
        assert_eq!((shutdown.signals(), shutdown.patience()), (1, PATIENCE.1));
    }
}
