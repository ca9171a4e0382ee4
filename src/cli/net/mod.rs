//! Sockets: listeners, outgoing connections, and a bounded queue for each subscriber.

pub(crate) mod address;
pub(crate) mod disconnect;
pub(crate) mod listener;
pub(crate) mod network;
pub(crate) mod peer;
pub(crate) mod queue;
pub(crate) mod sinks;
pub(crate) mod socket;
pub(crate) mod subscriber;
pub(crate) mod token;
pub(crate) mod web;

pub use address::{Address, SocketAddress, Transport};
pub use network::{Network, Notice};
pub use queue::{Amount, Class, Item, LossCause, LostMessages, RunLosses};
pub use sinks::{DropPolicy, SinkOptions, Sinks};
pub use socket::{BindFault, PrivateListener};
pub use subscriber::{LossFormatter, Undelivered};
pub use token::Token;
