//! Columns of integers as JSON text, both ways.

pub(crate) mod read_raw;
pub(crate) mod write_ints;
