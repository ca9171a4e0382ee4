//! Bytes, lines and files, without knowing what they mean.

#[cfg(feature = "cli")]
mod input;
mod lines;
#[cfg(feature = "cli")]
mod output;

#[cfg(feature = "cli")]
pub use input::{Input, ProfileSource, unpacked};
pub use lines::{Line, Lines, Tolerated};
#[cfg(feature = "cli")]
pub use output::{Output, Target, remove_unfinished};
