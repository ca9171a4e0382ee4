//! Sample counts by frame, function or file: tables, windows of time, and grouping.

pub(crate) mod grouping;
pub(crate) mod observer;
pub(crate) mod table;
pub(crate) mod windows;

pub use table::{By, Counts};
pub(crate) use table::{CountTable, CountedStack, Counter, HIDDEN};
pub use windows::Counting;
pub(crate) use windows::{CountedWindow, CountedWindows};
