//! How many threads to work on, and threads.

use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::thread::{Builder, JoinHandle};

/// So many; one a core where 0 is asked for. The system is asked once, and only where there is work for several
/// threads: it opens files to tell.
pub(crate) fn count(asked: usize) -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    if asked == 0 { *CORES } else { asked }
}

/// A thread that does this work, if one can be had. Where none can, the caller does it itself.
pub(crate) fn worker<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<JoinHandle<T>> {
    Builder::new().spawn(work).ok()
}
