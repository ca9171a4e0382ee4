//! Bytes, lines, files and sockets, without knowing what they mean.
//!
//! A live stream is handed to `Sinks`, whole batches at a time, as texts with a few plain numbers about
//! each (`Item`); every reader has a queue of its own there.

#[cfg(feature = "cli")]
mod address;
#[cfg(feature = "cli")]
mod beside;
#[cfg(feature = "cli")]
mod door;
#[cfg(feature = "cli")]
mod growing;
#[cfg(feature = "cli")]
mod input;
#[cfg(feature = "cli")]
mod limit;
mod lines;
#[cfg(feature = "cli")]
mod lock;
#[cfg(feature = "cli")]
mod names;
#[cfg(feature = "cli")]
mod output;
#[cfg(feature = "cli")]
mod peer;
#[cfg(feature = "cli")]
mod queue;
#[cfg(feature = "cli")]
mod reader;
#[cfg(feature = "cli")]
mod secret;
#[cfg(feature = "cli")]
mod sinks;
#[cfg(feature = "cli")]
mod socket;
#[cfg(feature = "cli")]
mod standard;
#[cfg(feature = "cli")]
mod target;
#[cfg(feature = "cli")]
mod unfinished;
#[cfg(feature = "cli")]
mod web;

#[cfg(feature = "cli")]
pub use address::{Address, Host, SocketAddress, Transport};
#[cfg(feature = "cli")]
pub use input::{Input, Packing, ProfileSource, packing_of, unpacked};
#[cfg(feature = "cli")]
pub use limit::Limit;
pub use lines::{Line, Lines, Tolerated};
#[cfg(feature = "cli")]
pub use lock::{is_at, lock};
#[cfg(feature = "cli")]
pub use names::{folder_of, leads_to};
#[cfg(feature = "cli")]
pub use output::Output;
#[cfg(feature = "cli")]
pub use peer::{Network, Notice};
#[cfg(feature = "cli")]
pub use queue::{Amount, Class, Item, Lost, Totals, Why};
#[cfg(feature = "cli")]
pub use reader::Wording;
#[cfg(feature = "cli")]
pub use secret::Token;
#[cfg(feature = "cli")]
pub use sinks::{DropPolicy, SinkOptions, Sinks, Undelivered};
#[cfg(all(feature = "cli", unix))]
pub use socket::{BindFault, PrivateListener};
#[cfg(all(feature = "cli", unix))]
pub use standard::note_closed as note_closed_streams;
#[cfg(feature = "cli")]
pub use standard::output as standard_output;
#[cfg(feature = "cli")]
pub use target::Target;
#[cfg(feature = "cli")]
pub use unfinished::{Made, before_unfinished, remove_unfinished};
