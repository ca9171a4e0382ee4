//! Listening sockets. Handshakes run in parallel, so that a silent client does not keep others out.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::net::address::SocketAddress;
use crate::cli::net::network::{Network, Notice};
use crate::cli::net::peer::{BoundListener, Handshaker, Peer};
use crate::cli::net::socket::{Listener, Socket};
use crate::error::Result;

/// Who may be in the middle of a handshake at a time: the oldest goes when another comes.
const MAX_HANDSHAKES: usize = 64;
/// How often the one who waits for others looks whether that is over.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The pause after somebody could not be let in for want of descriptors or threads, which passes.
const PAUSE: Duration = Duration::from_millis(100);
/// Senders that may be connected at a time, of which the first that sends something is taken.
const SENDERS: usize = 64;
/// The least time between two notices of a kind.
const NOTICES: Duration = Duration::from_secs(1);

/// An address that others connect to, and who is in the middle of a handshake there.
pub(crate) struct Acceptor {
    /// Until others are let in.
    listener: Mutex<Option<Listener>>,
    handshaker: Handshaker,
    network: Network,
    name: String,
    is_closed: AtomicBool,
    accepted: Mutex<VecDeque<(u64, Socket)>>,
    next: AtomicU64,
    told: Mutex<HashMap<Refusal, (Instant, u64)>>,
}

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// The system has no descriptor or no thread for it.
    System,
    /// The handshake failed.
    Handshake,
    /// Enough are there.
    Full,
    /// It left at once.
    Left,
}

impl Acceptor {
    pub fn new(bound: BoundListener, network: Network) -> Arc<Acceptor> {
        let BoundListener { listener, handshaker, name } = bound;
        Arc::new(Acceptor {
            listener: Mutex::new(Some(listener)),
            handshaker,
            name,
            network,
            is_closed: AtomicBool::new(false),
            accepted: Mutex::default(),
            next: AtomicU64::new(0),
            told: Mutex::default(),
        })
    }

    /// Its address, with the port that it has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets nobody in any more.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.accepted().drain(..).for_each(|(_, socket)| socket.shutdown(Shutdown::Both));
    }

    fn accepted(&self) -> MutexGuard<'_, VecDeque<(u64, Socket)>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to let others in, each on a thread of its own, on which `admit` is handed it and its name.
    ///
    /// # Errors
    ///
    /// No thread to do it on.
    pub fn open(self: &Arc<Self>, admit: impl Fn(Peer, &str) + Send + Sync + 'static) -> io::Result<()> {
        let acceptor = Arc::clone(self);
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let accept_all = move || {
            if let Some(listener) = listener {
                acceptor.accept_all(&listener, Arc::new(admit));
            }
        };
        thread::Builder::new().spawn(accept_all).map(drop)
    }

    fn accept_all(
        self: Arc<Self>,
        listener: &Listener,
        admit: Arc<impl Fn(Peer, &str) + Send + Sync + 'static>,
    ) {
        while !self.is_closed.load(Ordering::Relaxed) {
            let accept_all = match listener.accept(POLL_INTERVAL) {
                Ok(None) => continue,
                Ok(Some((socket, from))) => self.handshake(socket, from, Arc::clone(&admit)),
                Err(error) => Err(error),
            };
            if let Err(error) = accept_all {
                self.refused(Refusal::System, &format!("no connection can be accepted: {error}"));
                thread::sleep(PAUSE);
            }
        }
    }

    /// Greets somebody, and has it admitted if it says what has to be said.
    fn handshake(
        self: &Arc<Self>,
        socket: Socket,
        from: String,
        admit: Arc<impl Fn(Peer, &str) + Send + Sync + 'static>,
    ) -> io::Result<()> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let known = socket.try_clone()?;
        {
            let mut accepted = self.accepted();
            if accepted.len() >= MAX_HANDSHAKES
                && let Some((_, oldest)) = accepted.pop_front()
            {
                oldest.shutdown(Shutdown::Both);
            }
            accepted.push_back((id, known));
        }
        let acceptor = Arc::clone(self);
        let handshake = move || {
            let peer = acceptor.handshaker.handshake(socket);
            acceptor.accepted().retain(|(other, _)| *other != id);
            match peer {
                Ok(peer) => admit(peer, &from),
                Err(error) => {
                    acceptor.refused(Refusal::Handshake, &format!("{from} is refused: {error}"));
                }
            }
        };
        let spawned = thread::Builder::new().spawn(handshake);
        if spawned.is_err() {
            self.accepted().retain(|(other, _)| *other != id);
        }
        spawned.map(drop)
    }

    /// Tells that somebody is not let in: of each kind at most once a second, and how many there were
    /// meanwhile.
    pub fn refused(&self, kind: Refusal, what: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let untold = match told.get_mut(&kind) {
            Some((last, untold)) if last.elapsed() < NOTICES => {
                *untold += 1;
                return;
            }
            Some((_, untold)) => *untold,
            None => 0,
        };
        told.insert(kind, (Instant::now(), 0));
        drop(told);
        let more = if untold > 0 { format!(" ({untold} more of this kind before)") } else { String::new() };
        (self.network.notice)(Notice::Trouble(&self.name, &format!("{what}{more}")));
    }
}

impl Network {
    /// What comes from the one other end of an address. Of those who connect to it the first that sends something
    /// is it: one that leaves before that has only asked whether somebody listens.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound or connected to.
    pub fn source(&self, address: &SocketAddress) -> Result<Box<dyn BufRead>> {
        if !address.listens {
            return Ok(self.connect(address)?.into_source()?);
        }
        let acceptor = Acceptor::new(self.bind(address)?, self.clone());
        let (sender, sources) = mpsc::sync_channel(0);
        let known = Arc::clone(&acceptor);
        let senders = Arc::new(Mutex::new(0));
        acceptor.open(move |peer, from| {
            let count = |by: isize| {
                let mut senders = senders.lock().unwrap_or_else(PoisonError::into_inner);
                *senders += by;
                *senders
            };
            let begun = if count(1) > SENDERS as isize {
                Err(io::Error::new(io::ErrorKind::QuotaExceeded, "enough others wait"))
            } else {
                peer.into_source().map(|mut source| {
                    let has_said = match source.fill_buf() {
                        Ok(bytes) => !bytes.is_empty(),
                        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => false,
                        // It has said something, and that is reported.
                        Err(_) => true,
                    };
                    (has_said, source)
                })
            };
            count(-1);
            match begun {
                // One that comes after the first has nobody to take it.
                Ok((true, source)) => drop(sender.send(source)),
                Ok((false, _)) => known
                    .refused(Refusal::Left, &format!("{from} closed the connection before it sent anything")),
                Err(error) => known.refused(Refusal::Left, &format!("{from} sent nothing: {error}")),
            }
        })?;
        let source = sources.recv().map_err(io::Error::other)?;
        acceptor.close();
        Ok(source)
    }
}
