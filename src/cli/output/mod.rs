//! The outputs of a command: files, pipes and subscribers together.

pub(crate) mod live;
pub(crate) mod outputs;
pub(crate) mod profile_output;
