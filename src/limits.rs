//! Every bound that outside data passes before it becomes memory.

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
/// write in practice, and small beside the memory of a machine that reads a hostile stream.
pub const LINE_READ: usize = 64 * 1024 * 1024;

/// Levels of arrays and maps in a MessagePack frame.
pub const FRAME_DEPTH: usize = 64;

/// Bytes from a profile's string table to its end.
pub const TABLE_BYTES: usize = 1 << 30;

/// Bytes of a chunk or a framed profile: what the length of a framed one can say.
pub const CHUNK_BYTES: u64 = u32::MAX as u64;

/// Samples of a chunk that is written, so that the worst stacks stay within [`CHUNK_BYTES`].
pub const CHUNK_SAMPLES: u64 = 2 * 1024 * 1024;

/// Samples that a profile's records may be out of time order before a record counts as late
/// and is set aside.
pub const REORDER_SAMPLES: usize = 256 * 1024;

/// Samples that may wait for their order over threads to be known.
pub const WAITING_SAMPLES: usize = 4 * REORDER_SAMPLES;

/// Late records of one profile. CPython's writer leaves at most a few for each thread.
pub const LATE_RECORDS: usize = 8 * 1024 * 1024;

/// Windows of time that a walk sets aside, those that it meets again more than once.
pub const WINDOW_PIECES: usize = 128 * 1024;

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

/// Threads of a stream's run that become a profile.
pub const THREADS: usize = 512 * 1024;

/// Things that following a stream keeps at a time, over all of its runs: ids, threads, holes, windows, and
/// [`RUN_KEPT`] for each run.
pub const KEPT: usize = 2 * 1024 * 1024;

/// As how much a run counts that is followed.
pub const RUN_KEPT: usize = 32;

/// Faults of a stream that are told one by one.
pub const FAULTS: usize = 1000;
