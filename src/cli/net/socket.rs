//! TCP and Unix sockets behind one type.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::io::cleanup::{make, unregister};
use crate::cli::io::names::folder_of;
use crate::cli::net::address::{Host, SocketAddress, Transport};
use crate::error::{Error, Result};

/// A connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// Does the same with either kind.
macro_rules! either {
    ($kind:ident, $socket:expr, $inner:ident => $what:expr) => {
        match $socket {
            $kind::Tcp($inner) => $what,
            #[cfg(unix)]
            $kind::Unix($inner) => $what,
        }
    };
}

impl Socket {
    /// Connects, within about this time for each address of the host.
    pub fn connect(transport: &Transport, timeout: Duration) -> Result<Socket> {
        match transport {
            Transport::Unix(path) => Socket::unix(path),
            Transport::Tcp(host) | Transport::Web(host, _) => Socket::tcp(host, timeout),
        }
    }

    fn tcp(host: &Host, timeout: Duration) -> Result<Socket> {
        let mut last = None;
        for address in host.resolve()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    return Ok(Socket::Tcp(socket));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()).into())
    }

    #[cfg(unix)]
    fn unix(path: &Path) -> Result<Socket> {
        Ok(Socket::Unix(UnixStream::connect(path)?))
    }

    #[cfg(not(unix))]
    fn unix(_: &Path) -> Result<Socket> {
        Err(no_unix())
    }

    pub fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(socket) => Socket::Tcp(socket.try_clone()?),
            #[cfg(unix)]
            Socket::Unix(socket) => Socket::Unix(socket.try_clone()?),
        })
    }

    /// A read that waits longer fails.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        either!(Socket, self, socket => socket.set_read_timeout(timeout))
    }

    /// A write of which nothing goes for longer fails.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        either!(Socket, self, socket => socket.set_write_timeout(timeout))
    }

    /// Waits until neither direction carries anything any more; whether the connection broke. One that only says
    /// nothing more may still listen.
    #[cfg(unix)]
    pub fn wait_for_hang_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            let mut polled = [either!(Socket, self, socket => PollFd::new(socket, PollFlags::empty()))];
            match poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) if polled[0].revents().is_empty() => {}
                ended => return ended.is_err() || polled[0].revents().contains(PollFlags::ERR),
            }
        }
    }

    /// Where there is no means to wait for that: it has hung up.
    #[cfg(not(unix))]
    pub fn wait_for_hang_up(&self) -> bool {
        false
    }

    /// Whether the connection has broken since this was last asked.
    pub fn is_broken(&self) -> bool {
        !matches!(either!(Socket, self, socket => socket.take_error()), Ok(None))
    }

    /// The first bytes that come, which stay to be read. Of a unix socket there are none to be seen.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.peek(buffer),
            #[cfg(unix)]
            Socket::Unix(_) => Ok(0),
        }
    }

    /// Ends one direction or both; whether there was anything to end does not matter.
    pub fn shutdown(&self, how: Shutdown) {
        let _ = either!(Socket, self, socket => socket.shutdown(how));
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(Socket, self, socket => socket.read(buffer))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        either!(Socket, self, socket => socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket that others connect to.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(PrivateListener),
}

impl Listener {
    /// Binds it.
    pub fn bind(transport: &Transport) -> Result<Listener> {
        match transport {
            Transport::Unix(path) => Listener::unix(path),
            Transport::Tcp(host) | Transport::Web(host, _) => {
                let listener = TcpListener::bind(host.resolve()?.as_slice())?;
                listener.set_nonblocking(cfg!(unix))?;
                Ok(Listener::Tcp(listener))
            }
        }
    }

    #[cfg(unix)]
    fn unix(path: &Path) -> Result<Listener> {
        let listening = PrivateListener::bind(path).and_then(|private| {
            private.listener.set_nonblocking(true)?;
            Ok(Listener::Unix(private))
        });
        listening.map_err(|fault| match fault {
            BindFault::NoSocket => {
                Error::usage(format!("{} exists already and is not a socket", path.display()))
            }
            BindFault::Living => {
                let fault = format!("another process listens on {}", path.display());
                Error::from(io::Error::new(io::ErrorKind::AddrInUse, fault))
            }
            BindFault::Io(error) => error.into(),
        })
    }

    #[cfg(not(unix))]
    fn unix(_: &Path) -> Result<Listener> {
        Err(no_unix())
    }

    /// The next who connects within this time, if anybody does, and a name for it.
    pub fn accept(&self, within: Duration) -> io::Result<Option<(Socket, String)>> {
        let accepted = match self {
            Listener::Tcp(listener) => {
                wait_for_any(listener, within)?;
                listener.accept().and_then(|(socket, from)| {
                    socket.set_nonblocking(false)?;
                    socket.set_nodelay(true)?;
                    Ok((Socket::Tcp(socket), from.to_string()))
                })
            }
            #[cfg(unix)]
            Listener::Unix(private) => {
                wait_for_any(&private.listener, within)?;
                private.listener.accept().and_then(|(socket, _)| {
                    socket.set_nonblocking(false)?;
                    Ok((Socket::Unix(socket), "a reader".to_string()))
                })
            }
        };
        match accepted {
            Ok(accepted) => Ok(Some(accepted)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where it listens, now that it does: a port that was left open has a number.
    pub fn name(&self, address: &SocketAddress) -> String {
        let kind = if address.is_web() { "ws" } else { "tcp" };
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(bound) => format!("{kind} {bound}"),
                Err(_) => address.to_string(),
            },
            #[cfg(unix)]
            Listener::Unix(private) => format!("unix {}", private.path.display()),
        }
    }
}

/// Waits until somebody connects, or for this time.
#[cfg(unix)]
fn wait_for_any(listener: &impl std::os::fd::AsFd, within: Duration) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&within)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Accepting waits by itself.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "it can fail elsewhere")]
fn wait_for_any(_: &TcpListener, _: Duration) -> io::Result<()> {
    Ok(())
}

/// Whether somebody listens at this socket. Asked by a datagram, which a listener for connections never sees:
/// a connection would be a reader to it.
#[cfg(unix)]
fn is_living(path: &Path) -> bool {
    let asked = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    !asked.is_err_and(|error| {
        matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
    })
}

/// A unix socket that is open to its owner alone, from its first moment under its name, which goes with it.
#[cfg(unix)]
#[derive(Debug)]
pub struct PrivateListener {
    /// Whom others connect to.
    pub listener: UnixListener,
    path: PathBuf,
}

/// Why a unix socket cannot have its name.
#[cfg(unix)]
#[derive(Debug)]
pub enum BindFault {
    /// There is something else.
    NoSocket,
    /// Somebody listens there.
    Living,
    /// The system does not let it.
    Io(io::Error),
}

#[cfg(unix)]
impl From<io::Error> for BindFault {
    fn from(error: io::Error) -> Self {
        BindFault::Io(error)
    }
}

#[cfg(unix)]
impl PrivateListener {
    /// Creates the socket, replacing one that a process which is gone has left.
    ///
    /// # Errors
    ///
    /// A name that something else has, and errors of the system.
    pub fn bind(path: &Path) -> Result<Self, BindFault> {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt};
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(BindFault::NoSocket),
            Ok(_) if is_living(path) => return Err(BindFault::Living),
            _ => {}
        }
        // Made where nobody else can reach it, and put in its place as it has to be.
        let aside = PrivateFolder::beside(path)?;
        let made = aside.socket();
        let listener = make(&made, |made| UnixListener::bind(made))?;
        fs::set_permissions(&made, fs::Permissions::from_mode(0o600))?;
        make(path, |path| fs::rename(&made, path))?;
        Ok(PrivateListener { listener, path: path.to_path_buf() })
    }
}

/// A folder for a socket until that has its place.
#[cfg(unix)]
struct PrivateFolder(PathBuf);

#[cfg(unix)]
impl PrivateFolder {
    fn beside(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let create = |at: &Path| fs::DirBuilder::new().mode(0o700).create(at);
        let named = tempfile::Builder::new().prefix(".t").make_in(folder_of(path), |at| make(at, create))?;
        Ok(PrivateFolder(named.into_temp_path().keep()?))
    }

    fn socket(&self) -> PathBuf {
        self.0.join("s")
    }
}

#[cfg(unix)]
impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.socket());
        unregister(&self.socket());
        let _ = fs::remove_dir(&self.0);
        unregister(&self.0);
    }
}

#[cfg(unix)]
impl Drop for PrivateListener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        unregister(&self.path);
    }
}

#[cfg(not(unix))]
fn no_unix() -> Error {
    Error::usage("unix sockets are not supported on this system")
}
