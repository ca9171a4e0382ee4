//! A live stream for any number of readers, each with a queue of its own: the one who makes it waits for
//! none of them, unless it was told to.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::stream::address::SocketAddress;
use crate::stream::limit::Limit;
use crate::stream::peer::{Bound, Gone, Network, Notice, Peer, Wire};
use crate::stream::queue::{Amount, Class, Item};
use crate::stream::reader::{Ended, HangUp, Numbered, Reader, Wording};
use crate::stream::socket::Socket;

/// Pauses between two attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// What happens when a reader's queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropPolicy {
    /// The oldest messages are dropped for it.
    Oldest,
    /// The stream waits for it.
    Block,
}

/// How readers are treated.
#[derive(Clone)]
pub struct SinkOptions {
    /// What sockets have to know.
    pub network: Network,
    /// What happens when a reader's queue is full.
    pub policy: DropPolicy,
    /// Bytes of a reader's queue.
    pub buffer: usize,
    /// A reader who takes nothing for so long is cut off.
    pub stall: Duration,
    /// Readers at a time.
    pub readers: usize,
    /// Once it is over, no reader is waited for.
    pub limit: Limit,
}

/// Where a live stream goes.
pub struct Sinks {
    hub: Arc<Hub>,
    /// Readers whom an argument named: what they do not get is missing from what was asked for.
    named: Vec<Arc<Reader>>,
    /// Whether others may come.
    listens: bool,
}

struct Hub {
    options: SinkOptions,
    wording: Arc<dyn Wording>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    readers: Vec<Arc<Reader>>,
    /// Who is still being greeted.
    guests: usize,
    /// The runs that go on, and what of them came so far.
    runs: HashMap<Arc<str>, Amount>,
    is_over: bool,
    served: u64,
    cut_off: u64,
}

/// What a reader whom an argument named did not get.
#[derive(Clone, Debug)]
pub struct Undelivered {
    /// Its name.
    pub name: String,
    /// How much of it is known.
    pub amount: Amount,
}

impl Sinks {
    /// Sinks for nobody yet.
    pub fn new(options: SinkOptions, wording: Arc<dyn Wording>) -> Self {
        let hub = Hub { options, wording, state: Mutex::default(), arrived: Condvar::new() };
        Sinks { hub: Arc::new(hub), named: Vec::new(), listens: false }
    }

    /// Adds an address: binds it for any number of readers, or begins to connect to it.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound, or needs a token.
    pub fn open(&mut self, address: &SocketAddress) -> Result<()> {
        let hub = Arc::clone(&self.hub);
        if address.listens {
            let bound = hub.options.network.bind(address)?;
            self.listens = true;
            std::thread::spawn(move || hub.let_in(bound));
        } else {
            let reader = self.name(address.to_string());
            let address = address.clone();
            std::thread::spawn(move || hub.keep_connected(&address, &reader));
        }
        Ok(())
    }

    /// Adds somebody who reads from a pipe.
    pub fn pipe(&mut self, name: &str, pipe: Box<dyn Write + Send>) {
        let reader = self.name(name.to_string());
        let hub = Arc::clone(&self.hub);
        reader.connected();
        std::thread::spawn(move || {
            // What is wrong with it, the one who writes is told.
            reader.serve(&mut Wire::of_pipe(pipe), &*hub.wording);
            reader.give_up();
        });
    }

    fn name(&mut self, name: String) -> Arc<Reader> {
        let reader = Arc::new(Reader::named(name, self.hub.options.buffer));
        self.hub.lock().readers.push(Arc::clone(&reader));
        self.named.push(Arc::clone(&reader));
        reader
    }

    /// Waits for so many readers, and for those who have an address up to the time of a stall.
    ///
    /// # Errors
    ///
    /// An address that nobody answers at.
    pub fn wait_for_readers(&self, count: usize) -> Result<()> {
        let begun = Instant::now();
        let mut state = self.hub.lock();
        loop {
            let absent = self.named.iter().find(|reader| !reader.is_connected());
            let connected = state.readers.iter().filter(|reader| reader.is_connected()).count();
            if absent.is_none() && (connected >= count || !self.listens) {
                return Ok(());
            }
            if let Some(absent) = absent
                && begun.elapsed() >= self.hub.options.stall
            {
                let fault = format!("nobody answers at {}", absent.name);
                return Err(Error::from(io::Error::new(io::ErrorKind::TimedOut, fault)));
            }
            let wait = Duration::from_millis(100);
            state = self.hub.arrived.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Hands messages on to every reader. A batch has to come in one piece, from the message that opens it
    /// to its last, and messages in the order of their numbers.
    pub fn send(&mut self, items: Vec<Item>) {
        let Hub { options, .. } = &*self.hub;
        let mut state = self.hub.lock();
        let items: Vec<Numbered> = items.into_iter().map(|item| state.numbered(item)).collect();
        state.readers.retain(|reader| !reader.is_done());
        let readers = state.readers.clone();
        // One who comes from here on comes behind these messages, and nobody waits for it.
        drop(state);
        for reader in &readers {
            match options.policy {
                DropPolicy::Oldest => reader.push(&items),
                DropPolicy::Block => reader.push_waiting(&items, options.stall, &options.limit),
            }
        }
    }

    /// Whether nobody is left, and nobody can come.
    pub fn is_deserted(&self) -> bool {
        !self.listens && self.named.iter().all(|reader| reader.is_done())
    }

    /// Ends the stream: hands over what waits, to each reader as long as it takes something now and then.
    /// Returns what those did not get whom an argument named.
    pub fn finish(self) -> Vec<Undelivered> {
        let Hub { options, .. } = &*self.hub;
        let readers = {
            let mut state = self.hub.lock();
            state.is_over = true;
            state.readers.clone()
        };
        readers.iter().for_each(|reader| reader.end());
        for reader in &readers {
            if !reader.drained(options.stall, &options.limit) {
                let waiting = reader.waiting();
                reader.give_up();
                self.hub.trouble(&reader.name, &format!("{waiting} messages could not be delivered"));
            }
        }
        let state = self.hub.lock();
        if state.cut_off > 0 {
            let what = format!("{} of {} readers were cut off", state.cut_off, state.served);
            self.hub.trouble("readers", &what);
        }
        drop(state);
        let lacking = self.named.iter().filter(|reader| reader.lost().messages > 0 || reader.is_doubtful());
        lacking.map(|reader| Undelivered { name: reader.name.clone(), amount: reader.lost() }).collect()
    }
}

impl State {
    /// Notes a message as sent, and tells what of its run came before it.
    fn numbered(&mut self, item: Item) -> Numbered {
        let sent = self.runs.entry(Arc::clone(&item.run)).or_default();
        sent.messages = item.seq;
        let before = *sent;
        if let Some(samples) = item.samples {
            sent.samples = Some(before.samples.unwrap_or(0) + samples);
        }
        if item.class == Class::Ends {
            self.runs.remove(&item.run);
        }
        (Arc::new(item), before)
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self, name: &str, what: &str) {
        (self.options.network.notice)(Notice::Trouble(name, what));
    }

    /// Lets readers in, as many as may be there at a time.
    fn let_in(self: Arc<Self>, bound: Bound) {
        let bound = Arc::new(bound);
        loop {
            let (socket, from) = match bound.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Mostly too many open files; it passes.
                    self.trouble(&bound.name(), &format!("nobody could be let in: {error}"));
                    std::thread::sleep(Duration::from_millis(500));
                    continue;
                }
            };
            {
                let mut state = self.lock();
                if state.is_over {
                    return;
                }
                state.readers.retain(|reader| !reader.is_done());
                if state.readers.len() + state.guests >= self.options.readers {
                    drop(state);
                    self.trouble(&bound.name(), &format!("{from} is not let in: enough readers are there"));
                    continue;
                }
                state.guests += 1;
            }
            let (hub, bound) = (Arc::clone(&self), Arc::clone(&bound));
            std::thread::spawn(move || hub.serve(&bound, socket, &from));
        }
    }

    /// Greets a reader, and serves it.
    fn serve(&self, bound: &Bound, socket: Socket, from: &str) {
        let name = bound.name();
        let greeted = bound.greet(socket);
        let reader = {
            let mut state = self.lock();
            state.guests -= 1;
            if state.is_over || greeted.is_err() {
                None
            } else {
                let is_late = !state.runs.is_empty();
                let reader = Arc::new(Reader::guest(name.clone(), self.options.buffer, is_late));
                reader.connected();
                state.readers.push(Arc::clone(&reader));
                state.served += 1;
                self.arrived.notify_all();
                Some(reader)
            }
        };
        let peer = match greeted {
            Ok(peer) => peer,
            Err(error) => return self.trouble(&name, &format!("{from} is not let in: {error}")),
        };
        let Some(reader) = reader else { return };
        let ended = self.attend(&reader, peer);
        let waiting = reader.waiting();
        reader.give_up();
        let lost = reader.lost();
        let stall = self.options.stall;
        let why = match ended {
            Ended::Whole => {
                if lost.messages > 0 {
                    self.trouble(&name, &format!("{from} did not get {} messages", lost.messages));
                }
                return;
            }
            Ended::Broken(error) if is_stall(&error) => format!("took nothing for {stall:?}"),
            Ended::HungUp(HangUp::Gone(Gone::Talks)) => "says too much".to_string(),
            Ended::HungUp(HangUp::Full) => "lets too much wait that cannot be dropped".to_string(),
            // It went.
            Ended::Broken(_) | Ended::HungUp(HangUp::Gone(_)) => return,
        };
        self.lock().cut_off += 1;
        self.trouble(&name, &format!("{from} {why} and was cut off, with {waiting} messages to go"));
    }

    fn attend(&self, reader: &Arc<Reader>, peer: Peer) -> Ended {
        let (to_reply, to_hang_up) = (Arc::clone(reader), Arc::clone(reader));
        let gone = move |gone| to_hang_up.hang_up(HangUp::Gone(gone));
        let wire = peer.wire(self.options.stall, move |bytes| to_reply.reply(bytes), gone);
        match wire {
            Ok(mut wire) => reader.serve(&mut wire, &*self.wording),
            Err(error) => Ended::Broken(error),
        }
    }

    /// Connects to an address, and again whenever the connection breaks.
    fn keep_connected(&self, address: &SocketAddress, reader: &Arc<Reader>) {
        let mut pause = PAUSES.0;
        let mut was_connected = false;
        let mut is_told = false;
        while !reader.is_done() {
            let begun = Instant::now();
            match self.options.network.connect(address) {
                Ok(peer) => {
                    if was_connected {
                        reader.resume();
                    }
                    was_connected = true;
                    reader.connected();
                    self.arrived.notify_all();
                    let what = match self.attend(reader, peer) {
                        Ended::Whole => return,
                        Ended::Broken(error) if is_stall(&error) => {
                            "it took nothing for too long".to_string()
                        }
                        Ended::Broken(error) => error.to_string(),
                        Ended::HungUp(HangUp::Gone(Gone::Talks)) => "it says too much".to_string(),
                        Ended::HungUp(_) => "it hung up".to_string(),
                    };
                    if !reader.is_done() {
                        self.trouble(
                            &reader.name,
                            &format!("the connection broke ({what}); connecting again"),
                        );
                    }
                    is_told = false;
                }
                Err(error) if !is_told => {
                    is_told = true;
                    self.trouble(&reader.name, &format!("no connection yet ({error}); trying again"));
                }
                Err(_) => {}
            }
            // A connection that lasted is no reason to wait long for the next.
            if begun.elapsed() > PAUSES.1 {
                pause = PAUSES.0;
            }
            reader.pause(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

fn is_stall(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
