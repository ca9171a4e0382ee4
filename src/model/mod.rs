//! The model of a sampling profile, independent of any notation: threads, frames, facts of the run.
//!
//! A *sample* is one thread at one instant. All times are microseconds of the profiler's
//! monotonic clock, as CPython records them.

mod facts;
mod ids;
mod order;
pub(crate) mod reorder;
mod samples;
mod stack;
pub(crate) mod tables;
mod time;

#[doc(hidden)]
pub use crate::model::reorder::Cut;
pub(crate) use crate::model::reorder::{ReorderBuffer, ThreadSamples};
pub use crate::model::tables::{Frame, Location, StringTable, Tables};
pub use facts::{Capture, Mode, PythonVersion, RunFacts, Statistics};
pub(crate) use ids::{IdSet, NONE};
pub(crate) use order::{Clock, OrderKey, keys};
pub use samples::StackSamples;
pub(crate) use stack::StackChange;
pub use time::{ClockPair, TimeSpan};

/// A thread within its interpreter: the key of all state in a profile, since one thread id may
/// stand in several interpreters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadKey {
    /// Interpreter id; 0 is the main interpreter.
    pub interpreter_id: u32,
    /// The operating system's thread id, a name and not a number: up to 2^64-1.
    pub thread_id: u64,
}

/// Thread status bits as CPython writes them; other bits are kept as they are.
pub mod status {
    /// The thread holds the GIL.
    pub const HAS_GIL: u8 = 1;
    /// The thread runs on a CPU.
    pub const ON_CPU: u8 = 2;
    /// Whether it runs is not known.
    pub const UNKNOWN: u8 = 4;
    /// The thread waits for the GIL.
    pub const GIL_REQUESTED: u8 = 8;
    /// An exception is being handled.
    pub const HAS_EXCEPTION: u8 = 16;
    /// The main thread of its interpreter.
    pub const MAIN_THREAD: u8 = 32;
}
