//! What people see: messages, signals, exit codes.

pub(crate) mod messages;
pub(crate) mod signals;
pub(crate) mod terminal;
