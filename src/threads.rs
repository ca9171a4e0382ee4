//! How many threads to work on.

use std::num::NonZeroUsize;
use std::sync::LazyLock;

/// So many; one a core where 0 is asked for. The system is asked once, and only where there is work for several
/// threads: it opens files to tell.
pub(crate) fn count(asked: usize) -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    if asked == 0 { *CORES } else { asked }
}
