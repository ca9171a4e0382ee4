//! One table each.

mod chunks;
mod cpython;
mod memory;
mod parsing;
mod size;
mod speed;
mod start;
mod threads;

use crate::{Result, Setting};

type Table = fn(&Setting) -> Result<()>;

/// By the name that `BENCH_TABLES` gives them.
pub const ALL: [(&str, Table); 8] = [
    ("speed", speed::table),
    ("cpython", cpython::table),
    ("parsing", parsing::table),
    ("memory", memory::table),
    ("size", size::table),
    ("start", start::table),
    ("chunks", chunks::table),
    ("threads", threads::table),
];
