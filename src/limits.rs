//! Limits on data from outside, checked before it takes memory.

/// Frames that CPython's writer keeps of one stack, the innermost ones; its reader refuses more.
pub const STACK_DEPTH: usize = 256;

/// Bytes of a line of the stream, its line feed included, unless the caller sets another limit:
/// the one size that every common line reader takes.
pub const LINE: usize = 65_535;

/// The least line limit: a sample at the depth limit and a frame's definition always fit.
pub const LINE_MIN: usize = 8 * 1024;

/// The greatest line limit: what DuckDB and WebSocket readers take.
pub const LINE_MAX: usize = 16 * 1024 * 1024;

/// Bytes of a line that a reader of streams takes: room for a name of any profile CPython can
/// write in practice, and small compared with the memory of a machine that reads a hostile stream.
pub const LINE_READ: usize = 64 * 1024 * 1024;

/// Levels of arrays and maps in a MessagePack frame.
pub const FRAME_DEPTH: usize = 64;

/// Bytes from a profile's string table to its end.
pub const TABLE_BYTES: usize = 128 << 20;

/// Strings, and frames, of a profile.
pub const TABLE_ENTRIES: u32 = 4 << 20;

/// Labels of a chunk's run.
pub const LABELS: usize = 4096;

/// Losses that are reported one by one; more are counted.
pub const LOSSES: usize = 1000;

/// Chunks, and runs, that are listed one by one; more are counted.
pub const CHUNKS_LISTED: usize = 100_000;

/// Bytes of a chunk or a framed profile: what the length of a framed one can say.
pub const CHUNK_BYTES: u64 = u32::MAX as u64;

/// Samples of a chunk that is written, so that the worst stacks stay within [`CHUNK_BYTES`].
pub const CHUNK_SAMPLES: u64 = 2 * 1024 * 1024;

/// Samples that a profile's records may be out of time order before a record counts as late
/// and is set aside. Of samples that bring frames every [`FRAMES_A_SAMPLE`] count as one more.
pub const REORDER_SAMPLES: usize = 256 * 1024;

/// As many frames of a stack take about as much memory as a sample.
pub const FRAMES_A_SAMPLE: u32 = 16;

/// Bytes of raw messages, tables of counts and heartbeats that a batch holds before it closes, whatever else closes it.
pub const BATCH_BYTES: usize = 32 * 1024 * 1024;

/// Threads of one profile or chunk, those that have ended among them: up to a kilobyte of each stays in memory.
pub const THREADS: usize = 128 * 1024;

/// Frames of the deepest stacks of a profile's threads, all together: a thread's last stack stays in memory, since
/// a record says only how the next one differs.
pub const THREAD_FRAMES: usize = 4 * 1024 * 1024;

/// Late records of one profile. CPython's writer leaves at most a few for each thread and 16 KiB of samples.
pub const LATE_RECORDS: usize = 1024 * 1024;

/// Samples whose raw messages are cut by threads, not by time, and go in order together.
pub const GROUP_SAMPLES: usize = REORDER_SAMPLES;

/// Windows of time that a walk sets aside, those that it meets again more than once.
pub const WINDOW_PIECES: usize = 128 * 1024;

/// Bytes of unfinished REPEAT records, of all threads of a profile that is written, before they go to a temporary
/// file. CPython keeps up to 16 KiB of each thread.
pub const RUNS_MEMORY: usize = 64 * 1024 * 1024;

/// Bytes of set-aside data kept in memory before they go to a temporary file.
pub const SPOOL_MEMORY: usize = 8 * 1024 * 1024;

/// Largest zstd window as a power of two (128 MiB), zstd's own default and what CPython takes.
pub const ZSTD_WINDOW_LOG: u32 = 27;

/// Entries of a list or map of a run's facts in one message: labels, stream types, reasons of loss.
pub const FACTS: usize = 4096;

/// Nodes of a `raw` message's call tree: more than a line of [`LINE_MAX`] has room for, but for the same number
/// again and again.
pub const NODES: usize = 2 * 1024 * 1024;

/// Strings, and as many frames, of a run that a reader of streams keeps at a time.
pub const DEFINITIONS: usize = 2 * 1024 * 1024;

/// Things that following a stream keeps at a time, over all of its runs: ids, threads, holes, windows, and
/// [`RUN_KEPT`] for each run.
pub const KEPT: usize = 2 * 1024 * 1024;

/// As how much a run counts that is followed.
pub const RUN_KEPT: usize = 64;

/// Faults of a stream that are reported one by one.
pub const FAULTS: usize = 1000;
