//! Reasons for the end of a connection.

/// Why nothing more comes from somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disconnect {
    /// It said goodbye.
    Closed,
    /// The connection broke.
    Broken,
    /// It has nothing to say, and says it.
    Flooding,
}
