//! Writing profiles: records, tables, compression.

pub(crate) mod delta;
pub(crate) mod pack;
pub(crate) mod writer;
