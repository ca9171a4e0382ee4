//! WebSockets: the HTTP upgrade, and messages as text or binary frames.

use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::time::{Duration, Instant};

use percent_encoding::percent_decode_str;
use tungstenite::error::ProtocolError;
use tungstenite::handshake::HandshakeError;
use tungstenite::handshake::server::{Callback, ErrorResponse, Request, Response};
use tungstenite::http::{HeaderValue, StatusCode, Uri, header};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Bytes, ClientRequestBuilder, Message, Utf8Bytes, WebSocket};

use crate::buffered::read_buffered;
use crate::cli::net::address::Host;
use crate::cli::net::disconnect::Disconnect;
use crate::cli::net::socket::Socket;
use crate::cli::net::token::Token;
use crate::limits::LINE_READ;

/// How long the first byte of a request may take.
const HEAD: Duration = Duration::from_secs(3);
/// How long an answer may take to be read.
const PARTING: Duration = Duration::from_secs(1);
/// Bytes of a binary frame: what is longer goes in several.
const BINARY: usize = 16 * 1024 * 1024;

type Replies = Box<dyn FnMut(&[u8]) + Send>;

/// A connection whose first words have to come in time.
pub(crate) struct DeadlineSocket {
    pub socket: Socket,
    /// When reading has to be done with.
    pub deadline: Option<Instant>,
    /// Bytes that came.
    taken: u64,
    /// How much may come, frames and all, where nothing is asked for.
    budget: Option<Budget>,
    /// Where bytes go that are written, if not to the socket.
    replies: Option<Replies>,
}

impl DeadlineSocket {
    pub fn new(socket: Socket, within: Duration) -> Self {
        DeadlineSocket {
            socket,
            deadline: Some(Instant::now() + within),
            taken: 0,
            budget: None,
            replies: None,
        }
    }

    /// The first words are said: reading may wait as long as it has to.
    pub fn clear_deadline(&mut self) -> io::Result<()> {
        self.deadline = None;
        self.socket.set_read_timeout(None)
    }
}

impl Read for DeadlineSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
        }
        let count = self.socket.read(buffer)?;
        self.taken += count as u64;
        let is_spent = self.budget.as_mut().is_some_and(|budget| !budget.takes(count));
        if is_spent { Err(io::ErrorKind::QuotaExceeded.into()) } else { Ok(count) }
    }
}

impl Write for DeadlineSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.replies {
            Some(replies) => {
                replies(bytes);
                Ok(bytes.len())
            }
            None => self.socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(16 * 1024)
        .max_frame_size(Some(LINE_READ))
        .max_message_size(Some(LINE_READ))
}

/// Answers who wants a web socket; refuses who may not have it, in HTTP.
pub(crate) fn accept(socket: DeadlineSocket, token: Option<&Token>) -> io::Result<WebSocket<DeadlineSocket>> {
    let mut asks = socket.socket.try_clone()?;
    asks.set_read_timeout(Some(HEAD))?;
    // A web socket is asked for by GET; of the answer to HEAD nobody wants the text.
    let mut start = [0; 5];
    let is_head = asks.peek(&mut start).is_ok() && start.starts_with(b"HEAD");
    let authorize = Authorize { token };
    let error = match tungstenite::accept_hdr_with_config(socket, authorize, Some(config())) {
        Ok(web) => return Ok(web),
        Err(HandshakeError::Interrupted(_)) => io::ErrorKind::TimedOut.into(),
        Err(HandshakeError::Failure(tungstenite::Error::Io(error))) => return Err(error),
        Err(HandshakeError::Failure(error)) => {
            if let Some(status) = status_of(&error, is_head) {
                // Who does not wait for the answer does not want it.
                let _ = answer(&mut asks, status, is_head);
            }
            let _ = part(&mut asks);
            io_error(error)
        }
    };
    Err(error)
}

/// What is answered to who asks for no web socket, or for one of another version; `None` where it is answered.
fn status_of(error: &tungstenite::Error, is_head: bool) -> Option<StatusCode> {
    match error {
        tungstenite::Error::Http(_) => None,
        tungstenite::Error::Protocol(ProtocolError::WrongHttpMethod) if !is_head => {
            Some(StatusCode::METHOD_NOT_ALLOWED)
        }
        tungstenite::Error::Protocol(
            ProtocolError::WrongHttpMethod
            | ProtocolError::WrongHttpVersion
            | ProtocolError::MissingConnectionUpgradeHeader
            | ProtocolError::MissingUpgradeWebSocketHeader
            | ProtocolError::MissingSecWebSocketVersionHeader,
        ) => Some(StatusCode::UPGRADE_REQUIRED),
        _ => Some(StatusCode::BAD_REQUEST),
    }
}

fn answer(socket: &mut Socket, status: StatusCode, is_head: bool) -> io::Result<()> {
    let text = "This is a stream of messages for a WebSocket (RFC 6455, version 13).\n";
    let allow = if status == StatusCode::METHOD_NOT_ALLOWED { "Allow: GET\r\n" } else { "" };
    let upgrade = if status == StatusCode::UPGRADE_REQUIRED { "Upgrade, close" } else { "close" };
    let head = format!(
        "HTTP/1.1 {} {}\r\nConnection: {upgrade}\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n{allow}\
         Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
        status.as_str(),
        status.canonical_reason().unwrap_or_default(),
        text.len(),
    );
    socket.write_all(head.as_bytes())?;
    if is_head { Ok(()) } else { socket.write_all(text.as_bytes()) }
}

/// Lets an answer be read: what comes meanwhile is skipped, or the connection would break with it.
fn part(socket: &mut Socket) -> io::Result<()> {
    socket.shutdown(Shutdown::Write);
    let until = Instant::now() + PARTING;
    let mut buffer = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        socket.set_read_timeout(Some(left))?;
        if socket.read(&mut buffer)? == 0 {
            return Ok(());
        }
    }
}

struct Authorize<'a> {
    token: Option<&'a Token>,
}

impl Callback for Authorize<'_> {
    fn on_request(self, request: &Request, response: Response) -> Result<Response, ErrorResponse> {
        let refused = match self.token {
            Some(token) if !has_token(request, token) => Some(StatusCode::UNAUTHORIZED),
            // Any page that a browser of this machine shows could ask otherwise.
            None if !is_local_page(request) => Some(StatusCode::FORBIDDEN),
            _ => None,
        };
        match refused {
            None => Ok(response),
            Some(status) => {
                let mut refusal = ErrorResponse::new(None);
                *refusal.status_mut() = status;
                if status == StatusCode::UNAUTHORIZED {
                    refusal
                        .headers_mut()
                        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                }
                Err(refusal)
            }
        }
    }
}

fn has_token(request: &Request, token: &Token) -> bool {
    let header = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let bearer = header
        .and_then(|value| value.split_once(' '))
        .filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    let query =
        request.uri().query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("token="));
    let query = query.map(|given| percent_decode_str(given).collect::<Vec<u8>>());
    let is = |given: Option<&[u8]>| given.is_some_and(|given| token.is(given));
    is(bearer.map(|(_, given)| given.trim().as_bytes())) | is(query.as_deref())
}

/// Whether no page asks, or one that this machine serves.
fn is_local_page(request: &Request) -> bool {
    let Some(origin) = request.headers().get("origin") else { return true };
    let uri: Option<Uri> = origin.to_str().ok().and_then(|origin| origin.parse().ok());
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

/// Asks for a web socket.
pub(crate) fn connect(
    socket: DeadlineSocket,
    host: &Host,
    path: &str,
    token: Option<&Token>,
) -> io::Result<WebSocket<DeadlineSocket>> {
    let uri: Uri = format!("ws://{host}{path}").parse().map_err(io::Error::other)?;
    let mut request = ClientRequestBuilder::new(uri);
    if let Some(token) = token {
        request = request.with_header("Authorization", token.bearer());
    }
    match tungstenite::client::client_with_config(request, socket, Some(config())) {
        Ok((socket, _)) => Ok(socket),
        Err(HandshakeError::Interrupted(_)) => Err(io::ErrorKind::TimedOut.into()),
        Err(HandshakeError::Failure(error)) => Err(io_error(error)),
    }
}

fn io_error(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        error => io::Error::other(error.to_string()),
    }
}

/// Messages into frames.
pub(crate) struct Frames {
    web: WebSocket<Memory>,
    is_binary: bool,
}

/// Takes what is written.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Read for Memory {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Frames {
    /// Of who was asked for the web socket, or of who asked; of lines of text, or of bytes.
    pub fn new(is_server: bool, is_binary: bool) -> Self {
        let role = if is_server { Role::Server } else { Role::Client };
        let config = config().max_message_size(None).max_frame_size(None);
        Frames { web: WebSocket::from_raw_socket(Memory::default(), role, Some(config)), is_binary }
    }

    /// The frame of a message: of a line its text, of bytes that are too many for one frame several.
    pub fn of(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        if self.is_binary {
            for piece in message.chunks(BINARY) {
                self.web.send(Message::Binary(Bytes::copy_from_slice(piece))).map_err(io_error)?;
            }
            return Ok(self.taken());
        }
        let text = Bytes::copy_from_slice(message.strip_suffix(b"\n").unwrap_or(message));
        let text = Utf8Bytes::try_from(text).map_err(|_| io::Error::other("a line that is not UTF-8"))?;
        self.web.send(Message::Text(text)).map_err(io_error)?;
        Ok(self.taken())
    }

    /// The frame that ends it all, and says why.
    pub fn of_close(&mut self, code: CloseCode, reason: &str) -> io::Result<Vec<u8>> {
        let close = CloseFrame { code, reason: Utf8Bytes::from(reason) };
        self.web.send(Message::Close(Some(close))).map_err(io_error)?;
        Ok(self.taken())
    }

    fn taken(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.web.get_mut().0)
    }
}

/// Reads what the other end of a web socket says and passes over it; answers what has to be answered
/// through `replies`. Ends with the connection, or when more than `bound` bytes came within a minute.
pub(crate) fn drain_inbound(
    mut web: WebSocket<DeadlineSocket>,
    bound: usize,
    replies: impl FnMut(&[u8]) + Send + 'static,
) -> Disconnect {
    let socket = web.get_mut();
    socket.replies = Some(Box::new(replies));
    if socket.clear_deadline().is_err() {
        return Disconnect::Broken;
    }
    web.get_mut().budget = Some(Budget::new(bound));
    web.set_config(|config| {
        config.max_message_size = Some(bound);
        config.max_frame_size = Some(bound);
    });
    // What a closing other end says is answered by the next read, which then fails.
    loop {
        match web.read() {
            Ok(_) => {}
            Err(tungstenite::Error::Capacity(_)) => return Disconnect::Flooding,
            Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::QuotaExceeded => {
                return Disconnect::Flooding;
            }
            Err(
                tungstenite::Error::ConnectionClosed
                | tungstenite::Error::AlreadyClosed
                | tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
            ) => return Disconnect::Closed,
            Err(_) => return Disconnect::Broken,
        }
    }
}

/// How much may come within a minute.
pub(crate) struct Budget {
    bound: usize,
    left: usize,
    since: Instant,
}

impl Budget {
    pub fn new(bound: usize) -> Self {
        Budget { bound, left: bound, since: Instant::now() }
    }

    pub fn takes(&mut self, bytes: usize) -> bool {
        if self.since.elapsed() >= Duration::from_secs(60) {
            *self = Budget::new(self.bound);
        }
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

/// The messages of a web socket as lines.
pub(crate) struct WebLines {
    web: WebSocket<DeadlineSocket>,
    /// Bytes of the handshake.
    handshake: u64,
    line: Vec<u8>,
    at: usize,
}

impl WebLines {
    pub fn new(mut web: WebSocket<DeadlineSocket>) -> io::Result<Self> {
        web.get_mut().clear_deadline()?;
        let handshake = web.get_ref().taken;
        Ok(WebLines { web, handshake, line: Vec::new(), at: 0 })
    }
}

impl BufRead for WebLines {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at == self.line.len() {
            self.at = 0;
            self.line.clear();
            match self.web.read() {
                Ok(Message::Text(text)) => {
                    self.line.extend_from_slice(text.as_bytes());
                    self.line.push(b'\n');
                }
                Ok(Message::Binary(bytes)) => self.line.extend_from_slice(&bytes),
                Ok(_) => {}
                Err(tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed) => break,
                // One that leaves without a word, or in the middle of one.
                Err(tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake))
                    if self.web.get_ref().taken == self.handshake =>
                {
                    break;
                }
                Err(error) => return Err(io_error(error)),
            }
        }
        Ok(&self.line[self.at..])
    }

    fn consume(&mut self, taken: usize) {
        self.at += taken;
    }
}

impl Read for WebLines {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_what_may_come_within_a_minute() {
        let mut budget = Budget::new(10);
        assert!(budget.takes(4) && budget.takes(6));
        assert!(budget.takes(0) && !budget.takes(1));
        let mut budget = Budget::new(10);
        assert!(!budget.takes(11) && !budget.takes(1));
    }
}
