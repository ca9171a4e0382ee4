//! Bytes, lines and files, without knowing what they mean.

mod lines;
#[cfg(feature = "cli")]
mod input;
#[cfg(feature = "cli")]
mod output;

pub use lines::{Line, Lines, Tolerated};
#[cfg(feature = "cli")]
pub use input::{Input, ProfileSource, unpacked};
#[cfg(feature = "cli")]
pub use output::{Output, Target};
