//! Messages, signals and terminals.

pub(crate) mod messages;
pub(crate) mod signals;
pub(crate) mod terminal;
