//! Samples as library users get them, from a profile or from a stream.

use crate::model::{Tables, ThreadKey};

/// Samples of one thread in a row that have the same stack.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StackSamples<'a> {
    /// The thread.
    pub thread: ThreadKey,
    /// Its stack, outermost frame first, as numbers of [`Tables::frames`]; empty where it had none.
    pub stack: &'a [u32],
    /// When each sample was taken, microseconds of the profiler's monotonic clock.
    pub times_us: &'a [u64],
    /// The status bits of each sample: [`crate::model::status`].
    pub status: &'a [u8],
    /// What the frames are called.
    pub tables: &'a Tables,
}
