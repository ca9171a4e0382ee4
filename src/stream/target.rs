//! Where output is to go, by name.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use same_file::Handle;

use crate::error::{Error, Result};
use crate::stream::Input;
use crate::stream::address::{Address, SocketAddress};
use crate::stream::output::{Output, Place};
use crate::stream::peer::Network;
use crate::stream::unfinished::{begin_unfinished, prepare_unfinished};

/// A file, standard output, or a socket.
#[derive(Clone)]
pub enum Target {
    /// `-`, or nothing.
    Standard,
    /// A path, or `file:PATH`.
    File(PathBuf),
    /// Whoever is at the other end of a socket.
    Socket(SocketAddress, Network),
}

impl Target {
    /// The target that an argument names.
    ///
    /// # Errors
    ///
    /// An address that breaks the rules, or needs a token.
    pub fn of_argument(argument: Option<&Path>, network: &Network) -> Result<Target> {
        Ok(match network.address(argument)? {
            Address::Standard => Target::Standard,
            Address::File(path) => Target::File(path),
            Address::Socket(address) => Target::Socket(address, network.clone()),
        })
    }

    /// Whether it is read while it is written, by somebody who may be slow.
    pub fn is_pipe(&self) -> bool {
        match self {
            Target::Standard => true,
            Target::File(path) => fs::metadata(path).is_ok_and(|found| !found.is_file()),
            Target::Socket(..) => false,
        }
    }

    /// Its name for messages.
    pub fn name(&self) -> String {
        match self {
            Target::Standard => "standard output".to_string(),
            Target::File(path) => path.display().to_string(),
            Target::Socket(address, _) => address.to_string(),
        }
    }

    /// Whether what is written is packed with zstd, by the ending of its name.
    fn is_packed(&self) -> bool {
        matches!(self, Target::File(path) if path.extension().is_some_and(|ending| ending == "zst"))
    }

    /// Whether both are the same place, however they are spelled.
    pub fn is_same_place(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Standard, Target::Standard) => true,
            (Target::File(one), Target::File(other)) => place_of(one) == place_of(other),
            (Target::Socket(one, _), Target::Socket(other, _)) => one.to_string() == other.to_string(),
            _ => false,
        }
    }

    /// Refuses a target that is one of the inputs.
    ///
    /// # Errors
    ///
    /// A usage error that names the file.
    pub fn check_apart_from(&self, inputs: &[Input]) -> Result<()> {
        let Target::File(target) = self else { return Ok(()) };
        let Ok(target_file) = Handle::from_path(target) else { return Ok(()) };
        for input in inputs {
            let same = match input {
                Input::File(path) => Handle::from_path(path).is_ok_and(|handle| handle == target_file),
                Input::Standard => Handle::stdin().is_ok_and(|handle| handle == target_file),
                Input::Socket(..) => false,
            };
            if same && target.is_file() {
                return Err(Error::usage(format!("the output {} is the input", target.display())));
            }
        }
        Ok(())
    }

    /// Opens it for writing. What goes to a socket goes to [`Sinks`](crate::stream::Sinks).
    ///
    /// # Errors
    ///
    /// A file that cannot be made, and a socket.
    pub fn open(&self) -> Result<Output> {
        let path = match self {
            Target::Standard => return Output::new(Place::standard()?, false),
            Target::Socket(..) => return Err(Error::usage("a socket has readers, and is no file")),
            Target::File(path) => path,
        };
        // A link stays a link: what it leads to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        match fs::metadata(&path) {
            Ok(found) if !found.is_file() => {
                Output::new(Place::Special(OpenOptions::new().write(true).open(&path)?), false)
            }
            found => {
                let mut builder = tempfile::Builder::new();
                builder.prefix(".tachyon-jsonl-");
                #[cfg(unix)]
                builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
                prepare_unfinished()?;
                let file = builder.tempfile_in(folder_of(&path))?;
                begin_unfinished(file.path().to_path_buf());
                if let Ok(found) = found {
                    file.as_file().set_permissions(found.permissions())?;
                }
                Output::new(Place::File { file, path }, self.is_packed())
            }
        }
    }
}

/// The one spelling of a path, of which the last part need not be there.
fn place_of(path: &Path) -> PathBuf {
    let in_folder = || Some(fs::canonicalize(folder_of(path)).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(in_folder).unwrap_or_else(|| path.to_path_buf())
}

/// The folder that a path is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
