//! Who is at the other end of a connection, once both have said what has to be said first.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use tungstenite::WebSocket;

use crate::error::{Error, Result};
use crate::stream::address::{Address, SocketAddress, Transport};
use crate::stream::secret::Token;
use crate::stream::socket::{Listener, Socket};
use crate::stream::web::{self, Budget, Frames, Guarded, WebLines};

/// How long the first words of a connection may take.
const FIRST_WORDS: Duration = Duration::from_secs(5);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the other end may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes that a reader may say within a minute, although nobody listens.
const INBOUND: usize = 64 * 1024;
const BUFFER: usize = 256 * 1024;
/// Bytes of one write, so that it shows soon whether something goes.
const PIECE: usize = 64 * 1024;

/// Something that happens at a socket and that people are told.
#[derive(Clone, Debug)]
pub enum Notice<'a> {
    /// A socket can be connected to, at this address.
    Listening(&'a str),
    /// Something is wrong at the address of this name.
    Trouble(&'a str, &'a str),
}

/// What every socket has to know.
#[derive(Clone)]
pub struct Network {
    /// Asked of who connects by TCP, and sent to whom is connected to.
    pub token: Option<Token>,
    /// Told what happens.
    pub notice: Arc<dyn Fn(Notice<'_>) + Send + Sync>,
}

impl Network {
    /// Refuses to be open to the world without a token.
    ///
    /// # Errors
    ///
    /// A usage error, and a host that cannot be resolved.
    pub fn check(&self, address: &SocketAddress) -> Result<()> {
        if self.token.is_none()
            && address.is_open_to_others().map_err(|error| error.within(&address.to_string()))?
        {
            return Err(Error::usage(format!("{address} is open to other machines, so it needs a token"))
                .hint("give one with --token-file, or listen on 127.0.0.1 or a unix socket"));
        }
        Ok(())
    }

    /// The address that an argument names; none is that of standard input or output.
    ///
    /// # Errors
    ///
    /// An address that breaks the rules, or needs a token.
    pub(super) fn address(&self, argument: Option<&Path>) -> Result<Address> {
        let address = argument.map_or(Ok(Address::Standard), Address::parse)?;
        if let Address::Socket(address) = &address {
            self.check(address)?;
        }
        Ok(address)
    }

    fn listen(&self, address: &SocketAddress) -> Result<Listener> {
        self.check(address)?;
        let listener = Listener::bind(&address.transport)?;
        (self.notice)(Notice::Listening(&listener.name(address)));
        Ok(listener)
    }

    /// Binds an address that others connect to.
    pub(super) fn bind(&self, address: &SocketAddress) -> Result<Bound> {
        Ok(Bound { listener: self.listen(address)?, address: address.clone(), token: self.token.clone() })
    }

    /// Connects to an address.
    pub(super) fn connect(&self, address: &SocketAddress) -> Result<Peer> {
        let mut socket = Socket::connect(&address.transport, CONNECT)?;
        let token = self.token.as_ref();
        Ok(match &address.transport {
            Transport::Web(host, path) => Peer::Web {
                web: Box::new(web::connect(Guarded::new(socket, CONNECT), host, path, token)?),
                is_server: false,
            },
            Transport::Tcp(_) => {
                token.map_or(Ok(()), |token| token.send(&mut socket))?;
                Peer::Plain(socket)
            }
            Transport::Unix(_) => Peer::Plain(socket),
        })
    }

    /// The one other end of an address: connects, or waits for who connects.
    fn one(&self, address: &SocketAddress) -> Result<Peer> {
        if !address.listens {
            return self.connect(address);
        }
        let bound = self.bind(address)?;
        loop {
            let (socket, from) = bound.accept()?;
            match bound.greet(socket) {
                Ok(peer) => return Ok(peer),
                Err(error) => {
                    (self.notice)(Notice::Trouble(
                        &address.to_string(),
                        &format!("{from} is not let in: {error}"),
                    ));
                }
            }
        }
    }

    /// What comes from the one other end of an address.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound or connected to.
    pub fn source(&self, address: &SocketAddress) -> Result<Box<dyn BufRead>> {
        Ok(match self.one(address)? {
            Peer::Plain(socket) => Box::new(BufReader::with_capacity(BUFFER, socket)),
            Peer::Web { web, .. } => Box::new(WebLines::new(*web)?),
        })
    }

    /// Where bytes go that are for the one other end of an address.
    ///
    /// # Errors
    ///
    /// As for [`Network::source`].
    pub(super) fn target(&self, address: &SocketAddress) -> Result<Socket> {
        match self.one(address)? {
            Peer::Plain(socket) => Ok(socket),
            Peer::Web { web, .. } => Ok(web.into_inner().socket),
        }
    }
}

/// An address that others connect to.
pub(super) struct Bound {
    listener: Listener,
    address: SocketAddress,
    token: Option<Token>,
}

impl Bound {
    /// The next who connects, and a name for it.
    pub fn accept(&self) -> io::Result<(Socket, String)> {
        self.listener.accept()
    }

    /// Its address, with the port that it has.
    pub fn name(&self) -> String {
        self.listener.name(&self.address)
    }

    /// Lets somebody in who says what has to be said, in time.
    pub fn greet(&self, socket: Socket) -> io::Result<Peer> {
        socket.set_write_timeout(Some(FIRST_WORDS))?;
        let mut guarded = Guarded::new(socket, FIRST_WORDS);
        let peer = match &self.address.transport {
            Transport::Web(..) => {
                Peer::Web { web: Box::new(web::accept(guarded, self.token.as_ref())?), is_server: true }
            }
            Transport::Tcp(_) => {
                let is_right = self.token.as_ref().map_or(Ok(true), |token| token.is_sent(&mut guarded));
                if !is_right.map_err(in_time)? {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, "no token, or a wrong one"));
                }
                guarded.relax()?;
                Peer::Plain(guarded.socket)
            }
            // Who may open it is the file system's affair.
            Transport::Unix(_) => {
                guarded.relax()?;
                Peer::Plain(guarded.socket)
            }
        };
        peer.socket().set_write_timeout(None)?;
        Ok(peer)
    }
}

/// A read that did not come in time, as such.
fn in_time(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "too slow")
        }
        _ => error,
    }
}

/// The other end.
pub(super) enum Peer {
    Plain(Socket),
    Web { web: Box<WebSocket<Guarded>>, is_server: bool },
}

impl Peer {
    fn socket(&self) -> &Socket {
        match self {
            Peer::Plain(socket) => socket,
            Peer::Web { web, .. } => &web.get_ref().socket,
        }
    }

    /// Where lines for it go. A write of which nothing goes for `stall` fails. What it says is passed over
    /// meanwhile; what has to be answered goes to `replies`, and `gone` is told why nothing more comes.
    pub fn wire(
        self,
        stall: Duration,
        replies: impl FnMut(&[u8]) + Send + 'static,
        gone: impl FnOnce(Gone) + Send + 'static,
    ) -> io::Result<Wire> {
        let socket = self.socket().try_clone()?;
        socket.set_write_timeout(Some(stall))?;
        let mut frames = None;
        let (ended, farewell) = mpsc::channel::<()>();
        match self {
            Peer::Plain(mut inbound) => {
                std::thread::spawn(move || {
                    let mut budget = Budget::new(INBOUND);
                    let mut buffer = [0; 4096];
                    loop {
                        match inbound.read(&mut buffer) {
                            // It may have nothing to say and listen all the same.
                            Ok(0) => break,
                            Ok(count) if budget.takes(count) => {}
                            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                            Ok(_) => break gone(Gone::Talks),
                            Err(_) => break gone(Gone::Broke),
                        }
                    }
                    drop(ended);
                });
            }
            Peer::Web { web, is_server } => {
                frames = Some(Frames::new(is_server));
                std::thread::spawn(move || {
                    gone(web::pass_over(*web, INBOUND, replies));
                    drop(ended);
                });
            }
        }
        Ok(Wire { sink: Sink::Socket(socket), frames, farewell: Some(farewell) })
    }
}

/// Why nothing more comes from somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// It said goodbye.
    Left,
    /// The connection broke.
    Broke,
    /// It has nothing to say, and says it.
    Talks,
}

/// Where lines for a reader go.
pub(super) struct Wire {
    sink: Sink,
    frames: Option<Frames>,
    /// Ends when the other end has said goodbye.
    farewell: Option<Receiver<()>>,
}

enum Sink {
    Socket(Socket),
    Pipe(Box<dyn Write + Send>),
}

impl Wire {
    /// Of somebody who reads from a pipe.
    pub fn of_pipe(pipe: Box<dyn Write + Send>) -> Self {
        Wire { sink: Sink::Pipe(pipe), frames: None, farewell: None }
    }

    /// Writes a line; calls `moved` as it gets on.
    pub fn line(&mut self, line: &[u8], moved: impl FnMut(usize)) -> io::Result<()> {
        match &mut self.frames {
            None => self.bytes(line, moved),
            Some(frames) => {
                let frame = frames.of_line(line)?;
                self.bytes(&frame, moved)
            }
        }
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, mut bytes: &[u8], mut moved: impl FnMut(usize)) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = &bytes[..bytes.len().min(PIECE)];
            let written = match &mut self.sink {
                Sink::Socket(socket) => socket.write(piece),
                Sink::Pipe(pipe) => pipe.write(piece),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    moved(count);
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match &mut self.sink {
            Sink::Socket(_) => Ok(()),
            Sink::Pipe(pipe) => pipe.flush(),
        }
    }

    /// Nothing more comes. Waits a little for the other end to say that it has all.
    pub fn end(&mut self) -> io::Result<()> {
        if let Some(frames) = &mut self.frames {
            let frame = frames.of_end()?;
            self.bytes(&frame, |_| {})?;
        }
        if let Sink::Socket(socket) = &self.sink {
            socket.shutdown(Shutdown::Write);
        }
        if let Some(farewell) = &self.farewell {
            let _ = farewell.recv_timeout(FAREWELL);
        }
        Ok(())
    }
}

impl Drop for Wire {
    /// Also ends the thread that reads what the other end says.
    fn drop(&mut self) {
        if let Sink::Socket(socket) = &self.sink {
            socket.shutdown(Shutdown::Both);
        }
    }
}
