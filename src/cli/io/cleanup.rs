//! Removes unfinished files and socket names when a process ends early.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::cli::io::lock::{is_at, lock};
use crate::cli::io::names::folder_of;

/// The files in the making and the names of sockets, for a process that ends before they are done with.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes every file that is still in the making, for a process that is about to end.
pub fn remove_unfinished_files() {
    let mut paths = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    // A folder was made before what is in it.
    for path in paths.drain(..).rev() {
        // What cannot be removed stays; there is nobody to report it to.
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    }
}

type Prepare = fn() -> io::Result<()>;

/// Called once, before there is the first of them.
static BEFORE_FIRST: Mutex<Option<Prepare>> = Mutex::new(None);

/// Has `prepare` called before there is anything that [`remove_unfinished_files`] removes, if there ever is.
pub fn before_first_file(prepare: Prepare) {
    *BEFORE_FIRST.lock().unwrap_or_else(PoisonError::into_inner) = Some(prepare);
}

/// Makes something that [`remove_unfinished_files`] removes, from its first moment on: the process does not end
/// in between.
pub(crate) fn make<T>(path: &Path, create: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if let Some(prepare) = BEFORE_FIRST.lock().unwrap_or_else(PoisonError::into_inner).take() {
        prepare()?;
    }
    let mut paths = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let made = create(path)?;
    paths.push(path.to_path_buf());
    Ok(made)
}

/// It is finished, or gone.
pub(crate) fn unregister(made: &Path) {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| path != made);
}

/// Begins the name of a file in the making; the name of its target follows.
const PREFIX: &str = ".tachyon-jsonl-";
/// Bytes of a name up to which every file system has room for the prefix, too.
const NAME: usize = 200;
/// Attempts to make a file while others do the same.
const ATTEMPTS: u32 = 100;

/// What a file is called until it has its place: gone when dropped.
#[derive(Debug)]
pub struct Made(PathBuf);

impl Made {
    /// Makes a file that is to be `path`, in the same folder, and locks it. The name is the same each time: what
    /// a killed process has left of it is cleared, and what is locked is the work of another.
    ///
    /// # Errors
    ///
    /// A folder in which no file can be made, and a target that another process works on.
    pub fn in_background(path: &Path) -> io::Result<(File, Made)> {
        let made = name_beside(path);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.create_new(true);
        for _ in 0..ATTEMPTS {
            match make(&made, |made| options.open(made)) {
                Ok(file) => {
                    // Another may have taken it for a leftover in between, and removed it.
                    if lock(&file)? && is_at(&file, &made) {
                        return Ok((file, Made(made)));
                    }
                    unregister(&made);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => clear(&made)?,
                Err(error) => return Err(error),
            }
        }
        Err(taken())
    }

    /// Gives the file its name, whatever has that so far.
    ///
    /// # Errors
    ///
    /// What cannot have that name.
    pub fn rename(&self, path: &Path) -> io::Result<()> {
        fs::rename(&self.0, path)?;
        unregister(&self.0);
        sync_folder(path)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let mut paths = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has its place is not there any more.
        if let Some(at) = paths.iter().position(|path| *path == self.0) {
            let _ = fs::remove_file(paths.swap_remove(at));
        }
    }
}

/// The error of a file that another process writes to.
pub(crate) fn taken() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another process is writing to it")
}

fn name_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let mut made = OsString::from(PREFIX);
    if name.len() <= NAME {
        made.push(name);
    } else {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        made.push(format!("{:016x}", hasher.finish()));
    }
    path.with_file_name(made)
}

/// Removes what a process has left that is gone.
fn clear(made: &Path) -> io::Result<()> {
    let gone = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
    let found = match fs::symlink_metadata(made) {
        Ok(found) => found,
        Err(error) => return gone(error),
    };
    if found.is_file() {
        let file = match OpenOptions::new().read(true).write(true).open(made) {
            Ok(file) => file,
            Err(error) => return gone(error),
        };
        if !lock(&file)? {
            return Err(taken());
        }
        if !is_at(&file, made) {
            return Ok(());
        }
    }
    fs::remove_file(made).or_else(gone)
}

/// A file in the making, and the place that it is to have.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub file: File,
    /// `None` where what stands in the place cannot be replaced: then it is written over in the end.
    made: Option<Made>,
    path: PathBuf,
    /// The file that stands there, which is locked.
    there: Option<File>,
}

impl Unfinished {
    /// Makes a file for this place, in which there is a file already or none.
    ///
    /// # Errors
    ///
    /// A place where no file can be, and one that another process writes to.
    pub fn of(path: PathBuf, there: Option<File>) -> io::Result<Self> {
        let Some(there) = there else {
            let (file, made) = Made::in_background(&path)?;
            // Another may have put its file there in the meantime, and go on with it.
            if let Ok(found) = File::open(&path)
                && !lock(&found)?
            {
                return Err(taken());
            }
            return Ok(Unfinished { file, made: Some(made), path, there: None });
        };
        if !lock(&there)? {
            return Err(taken());
        }
        let made = if is_replaceable(&there, &path) { Made::in_background(&path) } else { Err(denied()) };
        let made = made.and_then(|(file, made)| adopt(&file, &there).map(|()| (file, made)));
        let (file, made) = match made {
            Ok((file, made)) => (file, Some(made)),
            Err(error) if cannot_replace(&error) => (aside()?, None),
            Err(error) => return Err(error),
        };
        if made.is_some() && !is_at(&there, &path) {
            return Err(taken());
        }
        Ok(Unfinished { file, made, path, there: Some(there) })
    }

    /// Puts the file in its place, where what was written is stored. Where nothing can be put there, what stands
    /// there is written over.
    ///
    /// # Errors
    ///
    /// What cannot be written, or put there.
    pub fn put(mut self) -> io::Result<(File, PathBuf)> {
        if let Some(made) = &self.made {
            match made.rename(&self.path) {
                Ok(()) => return Ok((self.file, self.path)),
                Err(error) if self.there.is_some() && cannot_replace(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let Some(mut there) = self.there else { return Err(denied()) };
        let size = self.file.metadata()?.len();
        has_room(&there, size)?;
        self.file.rewind()?;
        io::copy(&mut self.file, &mut there)?;
        there.set_len(size)?;
        // The system takes such rights away where somebody else writes; not all may change them.
        #[cfg(unix)]
        let _ = adopt(&there, &there);
        there.sync_all()?;
        Ok((there, self.path))
    }
}

/// A file without a name, until there is all that is to be written.
fn aside() -> io::Result<File> {
    tempfile::tempfile().map_err(|error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let folder = std::env::temp_dir();
        io::Error::new(error.kind(), format!("cannot create a temporary file in {}: {why}", folder.display()))
    })
}

fn denied() -> io::Error {
    io::ErrorKind::PermissionDenied.into()
}

/// Whether an error is about the name, which cannot be given to another file, and not about the file.
fn cannot_replace(error: &io::Error) -> bool {
    use std::io::ErrorKind::{CrossesDevices, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | CrossesDevices)
        || error.raw_os_error() == Some(EBUSY)
}

/// What renaming over a mount says; [`taken`] is of the same kind.
const EBUSY: i32 = 16;

/// Whether another file may take the name of this one: not where it has more names, which would not lead to what
/// is written, and not where it is mounted there.
#[cfg(target_os = "linux")]
fn is_replaceable(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let is_mounted = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    !is_mounted && file.metadata().is_ok_and(|found| found.nlink() == 1)
}

#[cfg(not(target_os = "linux"))]
fn is_replaceable(_: &File, _: &Path) -> bool {
    true
}

/// Gives a file in the making the owner and permissions of the file that it replaces, but never
/// those of who runs it (setuid).
#[cfg(unix)]
fn adopt(file: &File, there: &File) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let (made, found) = (file.metadata()?, there.metadata()?);
    if (made.uid(), made.gid()) != (found.uid(), found.gid()) {
        fchown(file, Some(found.uid()), Some(found.gid()))?;
    }
    file.set_permissions(fs::Permissions::from_mode(found.mode() & 0o777))
}

#[cfg(not(unix))]
fn adopt(_: &File, _: &File) -> io::Result<()> {
    Ok(())
}

/// Whether a file can be written over with so many bytes: better known before it is.
#[cfg(target_os = "linux")]
fn has_room(file: &File, size: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size.max(1)) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(error.into()),
        // Not every file system can say.
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn has_room(_: &File, _: u64) -> io::Result<()> {
    Ok(())
}

/// Stores that a file is in its place.
fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    match File::open(folder_of(path)) {
        Ok(folder) => folder.sync_all()?,
        // One may be allowed to write in a folder, and not to read it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        Err(error) => return Err(error),
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}
