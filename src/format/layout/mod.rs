//! The fixed parts of a profile: header, tables, statistics, extension blocks, footer.

pub(crate) mod digest;
pub(crate) mod extension;
pub(crate) mod header;
pub(crate) mod identify;
pub(crate) mod ring;
pub(crate) mod stats;
pub(crate) mod tables;
