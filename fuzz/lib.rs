//! What all fuzz targets share: the invariants, and a bound on memory.

pub mod invariants;

use std::alloc::System;

use cap::Cap;

/// Bytes that may be in use at once. An input of a fuzzer is some kilobytes long; what is allowed to grow
/// beyond that (the samples that wait for their order, the window of zstd) ends far below this.
const MEMORY: usize = 256 * 1024 * 1024;

/// Refuses more, which ends the process: to the fuzzer that is a crash like any other.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY);
