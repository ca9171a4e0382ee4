//! The commands, one file each.

pub(crate) mod check;
pub(crate) mod diff;
pub(crate) mod follow;
pub(crate) mod from_bin;
pub(crate) mod recover;
pub(crate) mod run_chunks;
pub(crate) mod run_id;
pub(crate) mod runs;
pub(crate) mod snapshot;
pub(crate) mod stream_options;
pub(crate) mod to_bin;
pub(crate) mod upgrade;
