//! Output targets as named in arguments.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cli::io::Input;
use crate::cli::io::cleanup::Unfinished;
use crate::cli::io::lock::is_same;
use crate::cli::io::names::{Named, has_ending, unkept_promise};
use crate::cli::io::output::{Destination, Output};
use crate::cli::io::standard;
use crate::cli::net::address::{Address, SocketAddress};
use crate::cli::net::network::Network;
use crate::error::{Error, Result};

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
    /// An address that breaks the rules, or needs a token, and a name that promises what is not done.
    pub fn of_argument(argument: Option<&Path>, network: &Network) -> Result<Target> {
        match network.address(argument)? {
            Address::Standard => Ok(Target::Standard),
            Address::File(path) => Target::of_file(path),
            Address::Socket(address) => Ok(Target::Socket(address, network.clone())),
        }
    }

    /// The target of this name, which may lead to standard output.
    ///
    /// # Errors
    ///
    /// A name that promises what is not done.
    pub fn of_file(path: PathBuf) -> Result<Target> {
        if let Some(ending) = unkept_promise(&path) {
            let fault = format!("the name ends in .{ending}, which is not supported");
            return Err(Error::usage(fault).within(&path.display().to_string()).hint(
                "a name that ends in .zst is compressed with zstd; for other formats pipe the output",
            ));
        }
        // What cannot be followed is reported when it is opened.
        let is_standard = matches!(Named::of(&path), Ok(Named::Descriptor(_, 1)));
        Ok(if is_standard { Target::Standard } else { Target::File(path) })
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
        matches!(self, Target::File(path) if has_ending(path, "zst"))
    }

    /// Whether both are the same place, however they are spelled.
    pub fn is_same_place(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Standard, Target::Standard) => true,
            (Target::Socket(one, _), Target::Socket(other, _)) => one.to_string() == other.to_string(),
            (Target::Socket(..), _) | (_, Target::Socket(..)) => false,
            (Target::File(one), Target::File(other)) if is_same_path(one, other) => true,
            _ => self.is_file_of(other.metadata()),
        }
    }

    /// What stands there. It is not opened: a pipe would wait.
    fn metadata(&self) -> Option<fs::Metadata> {
        match self {
            Target::Standard => standard::output().and_then(|output| output.metadata()).ok(),
            Target::File(path) => fs::metadata(path).ok(),
            Target::Socket(..) => None,
        }
    }

    /// Whether it is this file, or this pipe. A device takes what comes from anybody.
    fn is_file_of(&self, other: Option<fs::Metadata>) -> bool {
        let (Some(own), Some(other)) = (self.metadata(), other) else { return false };
        (own.is_file() || is_pipe(&own)) && is_same(&own, &other)
    }

    /// Refuses a target that is one of the inputs.
    ///
    /// # Errors
    ///
    /// A usage error that names the file.
    pub fn check_apart_from(&self, inputs: &[Input]) -> Result<()> {
        if inputs.iter().any(|input| self.is_file_of(input.metadata())) {
            return Err(Error::usage(format!("the output {} is the input", self.name())));
        }
        Ok(())
    }

    /// Opens it for writing. What goes to a socket goes to [`Sinks`](crate::cli::net::Sinks). A named pipe is waited
    /// for until it has a reader, but no longer than `patience`.
    ///
    /// # Errors
    ///
    /// A file that cannot be made, a pipe without a reader, and a socket.
    pub fn open(&self, patience: Duration) -> Result<Output> {
        match self {
            Target::Standard => Output::standard(),
            Target::Socket(..) => Err(Error::usage("a socket is not a file")),
            Target::File(path) => match place_of(path, patience)? {
                #[cfg(unix)]
                Destination::Special(pipe) if is_pipe(&pipe.metadata()?) => {
                    Output::pipe(pipe, self.is_packed())
                }
                destination => Output::new(destination, self.is_packed()),
            },
        }
    }
}

/// The place that a name leads to, opened as it is: what is no file is written to like a pipe, and a descriptor
/// goes on where it is.
fn place_of(path: &Path, patience: Duration) -> Result<Destination> {
    let path = match Named::of(path)? {
        Named::Path(path) => path,
        Named::Descriptor(at, number) => return Ok(Destination::Special(open_descriptor(&at, number)?)),
        Named::Foreign(at) => return Ok(Destination::Special(OpenOptions::new().append(true).open(at)?)),
    };
    let there = match open_there(&path, patience) {
        Ok(there) if !there.metadata()?.is_file() => return Ok(Destination::Special(there)),
        Ok(there) => Some(there),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) if is_socket(&path) => {
            return Err(Error::from(error).hint("write a socket as unix:PATH"));
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(Error::from(error).hint("--stall-timeout says how long to wait"));
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Destination::File(Unfinished::of(path, there)?))
}

/// Opens what is there for writing, and leaves it as it is. A pipe is waited for until it has a reader.
#[cfg(unix)]
fn open_there(path: &Path, patience: Duration) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
    use rustix::io::Errno;

    // A terminal does not become ours by this. A pipe that has no reader is refused at once.
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let since = Instant::now();
    let file = loop {
        match open(path, flags, Mode::empty()) {
            Err(Errno::NXIO) if !fs::metadata(path).is_ok_and(|found| is_pipe(&found)) => {
                return Err(Errno::NXIO.into());
            }
            Err(Errno::NXIO) if since.elapsed() >= patience => {
                let why = format!("no reader has opened the pipe within {patience:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Err(Errno::NXIO) => std::thread::sleep(PIPE_POLL),
            Err(Errno::INTR) => {}
            opened => break opened?,
        }
    };
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file.into())
}

/// How often a pipe is looked at that has no reader.
#[cfg(unix)]
const PIPE_POLL: Duration = Duration::from_millis(20);

#[cfg(not(unix))]
fn open_there(path: &Path, _: Duration) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

#[cfg(unix)]
fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

#[cfg(not(unix))]
fn is_socket(_: &Path) -> bool {
    false
}

/// A descriptor of this process. Where the system does not give away any but the standard ones, what it leads to is
/// opened anew, and appended to.
#[cfg(unix)]
fn open_descriptor(at: &Path, number: i32) -> io::Result<File> {
    match number {
        0 => standard::writable(io::stdin()),
        1 => standard::output(),
        2 => standard::writable(io::stderr()),
        #[cfg(target_os = "linux")]
        _ => {
            use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
            let taken = pidfd_open(getpid(), PidfdFlags::empty())
                .and_then(|own| pidfd_getfd(own, number, PidfdGetfdFlags::empty()));
            match taken {
                Ok(descriptor) => standard::writable(descriptor),
                Err(rustix::io::Errno::BADF) => {
                    Err(io::Error::new(io::ErrorKind::NotFound, "no such descriptor is open"))
                }
                Err(_) => OpenOptions::new().append(true).open(at),
            }
        }
        #[cfg(not(target_os = "linux"))]
        _ => OpenOptions::new().append(true).open(at),
    }
}

#[cfg(not(unix))]
fn open_descriptor(at: &Path, _: i32) -> io::Result<File> {
    OpenOptions::new().append(true).open(at)
}

/// Whether both lead to the same name, at which nothing need be yet.
fn is_same_path(one: &Path, other: &Path) -> bool {
    Named::of(one).ok().is_some_and(|one| Named::of(other).is_ok_and(|other| one == other))
}

#[cfg(unix)]
fn is_pipe(found: &fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&found.file_type())
}

#[cfg(not(unix))]
fn is_pipe(_: &fs::Metadata) -> bool {
    false
}
