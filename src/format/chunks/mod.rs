//! Inputs that hold more than one profile: chunks, framed and joined files.

pub(crate) mod framed;
pub(crate) mod sequence;
