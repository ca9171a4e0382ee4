//! What a process leaves behind if it ends too early: files in the making, and the names of sockets.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The files in the making and the names of sockets, for a process that ends before they are done with.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes every file that is still in the making, for a process that is about to end.
pub fn remove_unfinished() {
    let mut paths = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    for path in paths.drain(..) {
        // What cannot be removed stays; nobody is there to be told.
        let _ = fs::remove_file(path);
    }
}

type Prepare = fn() -> io::Result<()>;

/// Called once, before there is the first of them.
static BEFORE_UNFINISHED: Mutex<Option<Prepare>> = Mutex::new(None);

/// Has `prepare` called before there is anything that [`remove_unfinished`] removes, if there ever is.
pub fn before_unfinished(prepare: Prepare) {
    *BEFORE_UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner) = Some(prepare);
}

/// Something is about to be made that is to be removed with [`remove_unfinished`].
pub(super) fn prepare_unfinished() -> io::Result<()> {
    let prepare = BEFORE_UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).take();
    prepare.map_or(Ok(()), |prepare| prepare())
}

/// It is made.
pub(super) fn begin_unfinished(path: PathBuf) {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(path);
}

/// It is finished, or gone.
pub(super) fn end_unfinished(made: &Path) {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| path != made);
}
