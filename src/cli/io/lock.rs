//! Output locks: one process at a time writes to a file. The lock belongs to the process and to the file itself,
//! whatever its name.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Takes the lock of a file for as long as it is open. False if somebody else has it; a file system without
/// locks keeps nobody out.
///
/// # Errors
///
/// Errors of the system.
#[cfg(unix)]
pub fn lock(file: &File) -> io::Result<bool> {
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS | Errno::INVAL) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The same, where there is no such lock.
///
/// # Errors
///
/// None.
#[cfg(not(unix))]
pub fn lock(_: &File) -> io::Result<bool> {
    Ok(true)
}

/// Whether an open file is the one of this name. It may have got another name, or have gone, since it was opened.
#[cfg(unix)]
pub fn is_at(file: &File, path: &Path) -> bool {
    let both = file.metadata().and_then(|open| Ok((open, fs::metadata(path)?)));
    both.is_ok_and(|(open, there)| is_same(&open, &there))
}

/// The same, where files have nothing by which they are known.
#[cfg(not(unix))]
pub fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Whether both are one and the same file, whatever it is called.
#[cfg(unix)]
pub(crate) fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
pub(crate) fn is_same(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    false
}
