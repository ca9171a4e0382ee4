//! CPython 3.15's sampling profiles as a columnar JSON Lines stream, and back.
pub mod convert;
pub mod error;
pub mod format;
pub mod limits;
pub mod model;
pub mod protocol;
