//! A connection after its handshake.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use tungstenite::WebSocket;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::buffered::read_buffered;
use crate::cli::net::address::{SocketAddress, Transport};
use crate::cli::net::disconnect::Disconnect;
use crate::cli::net::network::{Network, Notice};
use crate::cli::net::socket::{Listener, Socket};
use crate::cli::net::token::Token;
use crate::cli::net::web::{self, Budget, DeadlineSocket, Frames, WebLines};
use crate::error::Result;

/// How long the handshake of a connection may take.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the other end may take to say goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it takes to hear that the other end is gone, which had nothing more to say before.
const NEWS: Duration = Duration::from_millis(200);
/// Bytes that a reader may say within a minute, although nobody listens.
const INBOUND: usize = 64 * 1024;
const BUFFER: usize = 256 * 1024;
/// Bytes of one write, so that it shows soon whether something goes.
const PIECE: usize = 64 * 1024;

impl Network {
    /// Binds an address that others connect to.
    pub(crate) fn bind(&self, address: &SocketAddress) -> Result<BoundListener> {
        self.check(address)?;
        let listener = Listener::bind(&address.transport)?;
        (self.notice)(Notice::Listening(&listener.name(address)));
        let handshaker = Handshaker { address: address.clone(), token: self.token.clone() };
        Ok(BoundListener { name: listener.name(address), listener, handshaker })
    }

    /// Connects to an address.
    pub(crate) fn connect(&self, address: &SocketAddress) -> Result<Peer> {
        let mut socket = Socket::connect(&address.transport, CONNECT_TIMEOUT)?;
        let token = self.token.as_ref();
        Ok(match &address.transport {
            Transport::Web(host, path) => Peer::Web {
                web: Box::new(web::connect(DeadlineSocket::new(socket, CONNECT_TIMEOUT), host, path, token)?),
                is_server: false,
            },
            Transport::Tcp(_) => {
                token.map_or(Ok(()), |token| token.send(&mut socket))?;
                Peer::Plain(socket)
            }
            Transport::Unix(_) => Peer::Plain(socket),
        })
    }
}

/// An address that others connect to.
pub(crate) struct BoundListener {
    pub listener: Listener,
    pub handshaker: Handshaker,
    /// Its address, with the port that it has.
    pub name: String,
}

/// What is asked of who connects to an address.
pub(crate) struct Handshaker {
    address: SocketAddress,
    token: Option<Token>,
}

impl Handshaker {
    /// Lets somebody in who says what has to be said, in time.
    pub fn handshake(&self, socket: Socket) -> io::Result<Peer> {
        socket.set_write_timeout(Some(HANDSHAKE))?;
        let mut socket = DeadlineSocket::new(socket, HANDSHAKE);
        let peer = match &self.address.transport {
            Transport::Web(..) => {
                Peer::Web { web: Box::new(web::accept(socket, self.token.as_ref())?), is_server: true }
            }
            Transport::Tcp(_) => {
                let is_right = self.token.as_ref().map_or(Ok(true), |token| token.is_sent(&mut socket));
                if !is_right.map_err(in_time)? {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, "missing or wrong token"));
                }
                socket.clear_deadline()?;
                Peer::Plain(socket.socket)
            }
            // Who may open it is the file system's affair.
            Transport::Unix(_) => {
                socket.clear_deadline()?;
                Peer::Plain(socket.socket)
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
pub(crate) enum Peer {
    Plain(Socket),
    Web { web: Box<WebSocket<DeadlineSocket>>, is_server: bool },
}

impl Peer {
    fn socket(&self) -> &Socket {
        match self {
            Peer::Plain(socket) => socket,
            Peer::Web { web, .. } => &web.get_ref().socket,
        }
    }

    /// What comes from it.
    pub fn into_source(self) -> io::Result<Box<dyn BufRead + Send>> {
        Ok(match self {
            Peer::Plain(socket) => Box::new(Received::new(BufReader::with_capacity(BUFFER, socket))),
            Peer::Web { web, .. } => Box::new(Received::new(WebLines::new(*web)?)),
        })
    }

    /// Turns it away.
    pub fn turn_away(self) {
        if let Peer::Web { web, is_server } = self {
            let frame =
                Frames::new(is_server, false).of_close(CloseCode::Again, "the limit of readers is reached");
            let mut socket = web.into_inner().socket;
            // Who has gone needs no reason.
            let _ = frame.and_then(|frame| socket.write_all(&frame));
        }
    }

    /// Where messages for it go, as lines of text or as they are. A write of which nothing goes for `stall` fails.
    /// What it says is skipped meanwhile; what has to be answered goes to `replies`, and `heard` is called when
    /// nothing more comes.
    pub fn wire(
        self,
        stall: Duration,
        is_binary: bool,
        replies: impl FnMut(&[u8]) + Send + 'static,
        mut heard: impl FnMut(Heard) + Send + 'static,
    ) -> io::Result<Wire> {
        let socket = self.socket().try_clone()?;
        socket.set_write_timeout(Some(stall))?;
        let mut frames = None;
        let (ended, farewell) = mpsc::channel::<()>();
        match self {
            Peer::Plain(inbound) => {
                thread::Builder::new().spawn(move || {
                    let gone = drain_inbound(inbound, || heard(Heard::NothingMore));
                    heard(Heard::Disconnected(gone));
                    drop(ended);
                })?;
            }
            Peer::Web { web, is_server } => {
                frames = Some(Frames::new(is_server, is_binary));
                thread::Builder::new().spawn(move || {
                    heard(Heard::Disconnected(web::drain_inbound(*web, INBOUND, replies)));
                    drop(ended);
                })?;
            }
        }
        Ok(Wire { sink: Sink::Socket(socket), frames, farewell: Some(farewell) })
    }
}

/// Reads what the other end says and passes over it, until nothing more can come or go; `quiet` is called when it
/// has nothing more to say, after which it may listen all the same.
fn drain_inbound(mut inbound: Socket, quiet: impl FnOnce()) -> Disconnect {
    let mut budget = Budget::new(INBOUND);
    let mut buffer = [0; 4096];
    loop {
        match inbound.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) if budget.takes(count) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) => return Disconnect::Flooding,
            Err(_) => return Disconnect::Broken,
        }
    }
    quiet();
    if inbound.wait_for_hang_up() { Disconnect::Broken } else { Disconnect::Closed }
}

/// What is received from a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It says nothing more, and may have gone or listen all the same.
    NothingMore,
    /// It is gone.
    Disconnected(Disconnect),
}

/// Bytes that come from a connection. One that breaks says so as often as it is asked: the system says it once.
struct Received<R> {
    subscriber: R,
    broke: Option<(io::ErrorKind, String)>,
}

impl<R: BufRead> Received<R> {
    fn new(subscriber: R) -> Self {
        Received { subscriber, broke: None }
    }
}

impl<R: BufRead> BufRead for Received<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if let Some((kind, what)) = &self.broke {
            return Err(io::Error::new(*kind, what.clone()));
        }
        match self.subscriber.fill_buf() {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                self.broke = Some((error.kind(), error.to_string()));
                Err(error)
            }
            filled => filled,
        }
    }

    fn consume(&mut self, taken: usize) {
        self.subscriber.consume(taken);
    }
}

impl<R: BufRead> Read for Received<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, buffer)
    }
}

/// Where lines for a reader go.
pub(crate) struct Wire {
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

    /// Writes a message; calls `moved` as it gets on.
    pub fn message(&mut self, message: &[u8], moved: impl FnMut(usize)) -> io::Result<()> {
        match &mut self.frames {
            None => self.bytes(message, moved),
            Some(frames) => {
                let frame = frames.of(message)?;
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

    /// Nothing more comes. Waits a little for the other end to say that it has all; one that has said before that
    /// it says `nothing_more` has only a moment to be found gone.
    pub fn end(&mut self, nothing_more: bool) -> io::Result<()> {
        if let Some(frames) = &mut self.frames {
            let frame = frames.of_close(CloseCode::Normal, "")?;
            self.bytes(&frame, |_| {})?;
        }
        let Sink::Socket(socket) = &self.sink else { return Ok(()) };
        let Some(farewell) = &self.farewell else { return Ok(()) };
        if nothing_more {
            let _ = farewell.recv_timeout(NEWS);
        }
        socket.shutdown(Shutdown::Write);
        let _ = farewell.recv_timeout(CLOSE_TIMEOUT);
        if socket.is_broken() { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    /// Says why nothing more comes, where there are words for that and it can be said at once.
    pub fn cut_off(&mut self, why: &str) {
        if let (Some(frames), Sink::Socket(socket)) = (&mut self.frames, &mut self.sink) {
            let frame = frames.of_close(CloseCode::Policy, why);
            let _ = socket.set_write_timeout(Some(NEWS));
            let _ = frame.and_then(|frame| socket.write_all(&frame));
        }
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
