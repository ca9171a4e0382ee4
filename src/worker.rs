//! Background threads: how many to use, and a worker that returns its buffers.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// The number of threads to use: `asked`, or one for each core where that is 0.
///
/// The system is asked once, and only where there is work for several threads: it opens files to answer.
pub(crate) fn count(asked: usize) -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    if asked == 0 { *CORES } else { asked }
}

/// A thread that does this, if the system has one to give. Where it has none, the caller does the work itself.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<JoinHandle<T>> {
    Builder::new().spawn(work).ok()
}

/// A thread that does one job after another and hands each back when it is done.
///
/// A job carries its own buffers, so they come back to be used again. At most `ahead` jobs wait for the thread;
/// [`Worker::send`] blocks while there are more. The thread itself never waits to hand a job back.
#[derive(Debug)]
pub(crate) struct Worker<J, S> {
    jobs: SyncSender<J>,
    done: Receiver<J>,
    /// Jobs that came back before anybody asked for them.
    returned: VecDeque<J>,
    in_flight: usize,
    thread: JoinHandle<io::Result<S>>,
}

impl<J: Send + 'static, S: Send + 'static> Worker<J, S> {
    /// Starts a thread that does jobs with `state`. The first error ends it; [`Worker::finish`] returns that error.
    /// Gives the state back where the system has no thread to give.
    pub fn start(
        ahead: usize,
        state: S,
        mut work: impl FnMut(&mut S, &mut J) -> io::Result<()> + Send + 'static,
    ) -> Result<Self, S> {
        let (jobs, todo) = sync_channel::<J>(ahead);
        // `send` takes in what is done before it blocks, so no more than this can be on their way back: those that
        // waited, the one at work, and the one being sent.
        let (finished, done) = sync_channel(ahead + 2);
        let (give, given) = sync_channel(1);
        let thread = spawn(move || {
            let mut state: S = given.recv().map_err(io::Error::other)?;
            for mut job in todo {
                work(&mut state, &mut job)?;
                // Nobody may be left who would use it again.
                let _ = finished.send(job);
            }
            Ok(state)
        });
        let Some(thread) = thread else { return Err(state) };
        // The thread waits for it.
        drop(give.send(state));
        Ok(Worker { jobs, done, returned: VecDeque::new(), in_flight: 0, thread })
    }

    /// Gives the thread a job. Gives it back where the thread has failed.
    pub fn send(&mut self, job: J) -> Result<(), J> {
        self.returned.extend(self.done.try_iter());
        self.jobs.send(job).map_err(|unsent| unsent.0)?;
        self.in_flight += 1;
        Ok(())
    }

    /// The next job that is done, in the order in which they were sent; `None` if there is none yet.
    pub fn try_recv(&mut self) -> Option<J> {
        let job = self.returned.pop_front().or_else(|| self.done.try_recv().ok())?;
        self.in_flight -= 1;
        Some(job)
    }

    /// Waits for the next job to be done; `None` if none was sent, or the thread has failed.
    pub fn recv(&mut self) -> Option<J> {
        if self.in_flight == 0 {
            return None;
        }
        let job = match self.returned.pop_front() {
            Some(job) => job,
            None => self.done.recv().ok()?,
        };
        self.in_flight -= 1;
        Some(job)
    }

    /// Whether jobs were sent that have not been received.
    #[cfg(feature = "cli")]
    pub fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    /// Waits until all jobs are done; returns the thread's state, and the jobs that nobody has received.
    ///
    /// # Errors
    ///
    /// The error that has ended the thread.
    pub fn finish(self) -> io::Result<(S, Vec<J>)> {
        let Worker { jobs, done, returned, thread, .. } = self;
        drop(jobs);
        let rest = returned.into_iter().chain(done).collect();
        match thread.join() {
            Ok(state) => Ok((state?, rest)),
            Err(_) => Err(io::Error::other("a thread of the program has panicked")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adder(ahead: usize) -> Worker<u64, u64> {
        let work = |sum: &mut u64, job: &mut u64| {
            *sum += *job;
            if *job == 13 { Err(io::Error::other("thirteen")) } else { Ok(()) }
        };
        Worker::start(ahead, 0, work).expect("a thread")
    }

    #[test]
    fn jobs_come_back_in_order_whenever_they_are_asked_for() {
        for ahead in [0, 1, 4] {
            let mut worker = adder(ahead);
            let mut received = Vec::new();
            for job in 100..200 {
                worker.send(job).expect("the thread runs");
                // Nobody asks for a while: sending must not block for ever.
                if job % 10 == 9 {
                    received.extend(std::iter::from_fn(|| worker.try_recv()));
                }
            }
            received.extend(std::iter::from_fn(|| worker.recv()));
            assert_eq!(received, (100..200).collect::<Vec<_>>(), "{ahead}");
            let (sum, rest) = worker.finish().expect("no error");
            assert_eq!((sum, rest), ((100..200).sum(), Vec::new()));
        }
    }

    #[test]
    fn what_nobody_has_received_comes_with_the_end() {
        let mut worker = adder(8);
        (100..105).for_each(|job| worker.send(job).expect("the thread runs"));
        let (sum, rest) = worker.finish().expect("no error");
        assert_eq!((sum, rest), (510, (100..105).collect()));
    }

    #[test]
    fn the_first_error_ends_the_thread() {
        let mut worker = adder(2);
        worker.send(1).expect("the thread runs");
        worker.send(13).expect("the thread runs");
        while worker.recv().is_some() {}
        // The thread has ended, or is about to.
        assert!((0..100).any(|job| worker.send(100 + job).is_err()));
        assert_eq!(worker.finish().expect_err("an error").to_string(), "thirteen");
    }
}
