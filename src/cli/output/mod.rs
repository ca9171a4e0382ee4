//! Where a stream or a profile goes: files, pipes and subscribers together.

pub(crate) mod live;
pub(crate) mod outputs;
pub(crate) mod profile_output;
