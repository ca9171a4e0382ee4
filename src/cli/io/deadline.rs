//! Deadlines for blocked writes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Until when what is written may wait for whoever takes it: for ever, unless a time is set. Clones are one
/// and the same limit.
#[derive(Clone, Default)]
pub struct Deadline(Arc<Mutex<Option<Instant>>>);

impl Deadline {
    /// Sets it, from any thread.
    pub fn set(&self, end: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// Whether its time is over.
    pub fn has_passed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|end| end <= Instant::now())
    }
}
