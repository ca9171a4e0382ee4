//! Standard input and output, as the process inherited them.
//!
//! Rust's runtime opens `/dev/null` in the place of a standard stream that is closed (rust#88825), and std's own
//! handle takes what is written to a stream that is not open for writing: both would lose all of it without a
//! word. An inherited `/dev/null` is legitimate, and cannot be distinguished from that one once the runtime has begun, so
//! what is closed is noted before (see `main.rs`).

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_INPUT_CLOSED: AtomicBool = AtomicBool::new(false);
static IS_OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Notes which standard streams are closed. It is called before `main`, where nothing of std may be used that
/// allocates or needs the runtime.
#[cfg(unix)]
pub fn note_closed() {
    use rustix::io::{Errno, fcntl_getfd};
    let is_closed = |stream| fcntl_getfd(stream) == Err(Errno::BADF);
    IS_INPUT_CLOSED.store(is_closed(rustix::stdio::stdin()), Ordering::Relaxed);
    IS_OUTPUT_CLOSED.store(is_closed(rustix::stdio::stdout()), Ordering::Relaxed);
}

/// Standard input, unless it is closed.
///
/// # Errors
///
/// A closed one.
pub(crate) fn input() -> io::Result<io::Stdin> {
    if IS_INPUT_CLOSED.load(Ordering::Relaxed) { Err(closed()) } else { Ok(io::stdin()) }
}

/// Standard output, without the buffer of lines that std's own has.
///
/// # Errors
///
/// One that is closed, or not open for writing.
#[cfg(unix)]
pub fn output() -> io::Result<File> {
    if IS_OUTPUT_CLOSED.load(Ordering::Relaxed) {
        return Err(closed());
    }
    writable(io::stdout())
}

/// A file of its own for a descriptor, which has to be open for writing.
#[cfg(unix)]
pub(crate) fn writable(descriptor: impl std::os::fd::AsFd) -> io::Result<File> {
    use rustix::fs::{OFlags, fcntl_getfl};
    if fcntl_getfl(&descriptor)? & OFlags::ACCMODE == OFlags::RDONLY {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not open for writing"));
    }
    Ok(descriptor.as_fd().try_clone_to_owned()?.into())
}

/// Standard output, where std says nothing of what it is.
///
/// # Errors
///
/// None.
#[cfg(not(unix))]
pub fn output() -> io::Result<io::Stdout> {
    Ok(io::stdout())
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "it is closed")
}
