//! Fans a live stream out to any number of subscribers, each with its own queue. The producer waits for none of them
//! unless asked to.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::io::deadline::Deadline;
use crate::cli::net::address::SocketAddress;
use crate::cli::net::disconnect::Disconnect;
use crate::cli::net::listener::{Acceptor, Refusal};
use crate::cli::net::network::{Network, Notice};
use crate::cli::net::peer::{Peer, Wire};
use crate::cli::net::queue::{Amount, Class, Item, Numbered};
use crate::cli::net::subscriber::{Ended, HangUp, LossFormatter, Subscriber, Undelivered};
use crate::error::{Error, Result};

/// Pauses between two attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// How often it is looked whether somebody takes the first messages.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

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
    pub subscribers: usize,
    /// Readers that have to be there, and to stay, before anything is theirs; with none, the stream begins at once
    /// and is nobody's in particular.
    pub wait: usize,
    /// Whether messages are bytes, and not lines of text.
    pub is_binary: bool,
    /// Once it is over, no reader is waited for.
    pub limit: Deadline,
}

/// Where a live stream goes.
pub struct Sinks {
    hub: Arc<Hub>,
    /// Readers that an argument names: what they do not receive counts as lost.
    outgoing: Vec<Arc<Subscriber>>,
    /// Whether others may come.
    listens: bool,
    acceptors: Vec<Arc<Acceptor>>,
    /// What was sent, as long as those who have it may be nobody who reads: `None` once one has stayed.
    opening: Option<Opening>,
}

/// The first messages, kept for readers to come while those who came have left at once, as one does that only
/// asks whether somebody listens.
#[derive(Default)]
struct Opening {
    items: Vec<Numbered>,
    bytes: usize,
    /// Who came, and how many of the messages each was given.
    given: Vec<(Arc<Subscriber>, usize)>,
}

struct Hub {
    options: SinkOptions,
    formatter: Arc<dyn LossFormatter>,
    state: Mutex<HubState>,
    arrived: Condvar,
}

#[derive(Default)]
struct HubState {
    subscribers: Vec<Arc<Subscriber>>,
    /// The runs that go on.
    runs: HashMap<Arc<str>, Sent>,
    /// Whether one who comes is late.
    has_begun: bool,
    is_over: bool,
    served: u64,
    /// Who took nothing for too long, or lets too much wait.
    cut_off: u64,
}

/// What of a run was sent.
#[derive(Default)]
struct Sent {
    amount: Amount,
    /// The message that opened the last batch, and what came before it.
    opened: Option<(Arc<Item>, Amount)>,
}

impl Sinks {
    /// Sinks for nobody yet.
    pub fn new(options: SinkOptions, formatter: Arc<dyn LossFormatter>) -> Self {
        let opening = Some(Opening::default());
        let hub = Hub { options, formatter, state: Mutex::default(), arrived: Condvar::new() };
        Sinks { hub: Arc::new(hub), outgoing: Vec::new(), listens: false, acceptors: Vec::new(), opening }
    }

    /// Adds an address: binds it for any number of readers, or begins to connect to it.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound, or needs a token; no thread to serve it on.
    pub fn open(&mut self, address: &SocketAddress) -> Result<()> {
        let hub = Arc::clone(&self.hub);
        if address.listens {
            let network = &hub.options.network;
            let acceptor = Acceptor::new(network.bind(address)?, network.clone());
            let known = Arc::clone(&acceptor);
            acceptor.open(move |peer, from| hub.serve(&known, peer, from))?;
            self.listens = true;
            self.acceptors.push(acceptor);
        } else {
            let subscriber = self.name(address.to_string());
            let address = address.clone();
            thread::Builder::new().spawn(move || hub.keep_connected(&address, &subscriber))?;
        }
        Ok(())
    }

    /// Adds somebody who reads from a pipe.
    ///
    /// # Errors
    ///
    /// No thread to serve it on.
    pub fn pipe(&mut self, name: &str, pipe: Box<dyn Write + Send>) -> Result<()> {
        let subscriber = self.name(name.to_string());
        let hub = Arc::clone(&self.hub);
        subscriber.connected();
        thread::Builder::new().spawn(move || {
            // What is wrong with it is reported to the one who writes.
            subscriber.serve(&mut Wire::of_pipe(pipe), &*hub.formatter);
            subscriber.give_up();
        })?;
        Ok(())
    }

    fn name(&mut self, name: String) -> Arc<Subscriber> {
        let subscriber = Arc::new(Subscriber::outgoing(name, self.hub.options.buffer));
        self.hub.lock().subscribers.push(Arc::clone(&subscriber));
        self.outgoing.push(Arc::clone(&subscriber));
        subscriber
    }

    /// Waits for as many readers as there have to be, and for those who have an address up to the time of a stall.
    ///
    /// # Errors
    ///
    /// An address that nobody answers at, and a time limit that is over.
    pub fn wait_for_subscribers(&self) -> Result<()> {
        let Hub { options, .. } = &*self.hub;
        if options.wait == 0 || self.opening.is_none() {
            return Ok(());
        }
        let begun = Instant::now();
        let mut state = self.hub.lock();
        loop {
            let absent = self.outgoing.iter().find(|subscriber| !subscriber.is_connected());
            let connected = state.subscribers.iter().filter(|subscriber| subscriber.is_connected()).count();
            if absent.is_none() && (connected >= options.wait || !self.listens) {
                return Ok(());
            }
            if let Some(absent) = absent
                && begun.elapsed() >= options.stall
            {
                let fault = format!("nobody answers at {}", absent.name);
                return Err(Error::from(io::Error::new(io::ErrorKind::TimedOut, fault)));
            }
            if options.limit.has_passed() {
                let fault = "asked to end before there was a reader";
                return Err(Error::from(io::Error::new(io::ErrorKind::TimedOut, fault)));
            }
            state = self.hub.wait_for_more(state);
        }
    }

    /// Hands messages on to every reader. A batch has to come in one piece, from the message that opens it
    /// to its last, and messages in the order of their numbers. The first messages wait for as many readers as
    /// there have to be, and are kept for others as long as those leave.
    ///
    /// # Errors
    ///
    /// As for [`Sinks::wait_for_subscribers`].
    pub fn send(&mut self, items: Vec<Item>) -> Result<()> {
        let mut state = self.hub.lock();
        let items: Vec<Numbered> = items.into_iter().map(|item| state.numbered(item)).collect();
        let Some(opening) = &mut self.opening else {
            state.subscribers.retain(|subscriber| !subscriber.is_done());
            let subscribers = state.subscribers.clone();
            // One who comes from here on comes after these messages, and nobody waits for it.
            drop(state);
            subscribers.iter().for_each(|subscriber| self.hub.push(subscriber, &items));
            return Ok(());
        };
        drop(state);
        opening.bytes += items.iter().map(|numbered| numbered.item.text.len()).sum::<usize>();
        opening.items.extend(items);
        loop {
            self.wait_for_subscribers()?;
            // No more is kept than may wait for a reader.
            let is_full = |opening: &Opening| opening.bytes >= self.hub.options.buffer;
            let is_full = self.opening.as_ref().is_some_and(is_full);
            if !self.is_kept() || !is_full {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Gives those who are there what they have not got of the first messages; whether these are kept for others.
    fn is_kept(&mut self) -> bool {
        let Some(opening) = &mut self.opening else { return false };
        loop {
            let mut state = self.hub.lock();
            state.subscribers.retain(|subscriber| !subscriber.is_done());
            let lacking: Vec<_> =
                state.subscribers.iter().filter(|subscriber| opening.lacks(subscriber)).cloned().collect();
            if lacking.is_empty() {
                let stay = |subscriber: &&Arc<Subscriber>| subscriber.is_outgoing() || subscriber.stays();
                let is_enough = state.subscribers.iter().filter(stay).count() >= self.hub.options.wait;
                if !self.listens || is_enough {
                    state.has_begun = true;
                    self.opening = None;
                    return false;
                }
                return true;
            }
            drop(state);
            lacking.iter().for_each(|subscriber| opening.give(subscriber, &self.hub));
        }
    }

    /// Ends the stream for those who are there, until one of them has all, or is there to stay.
    fn end_opening(&mut self) {
        while self.is_kept()
            && let Some(opening) = &self.opening
        {
            opening.given.iter().for_each(|(subscriber, _)| subscriber.end());
            if opening.given.iter().any(|(subscriber, _)| subscriber.has_all()) {
                return;
            }
            let is_anybody_there = opening.given.iter().any(|(subscriber, _)| !subscriber.is_done());
            if !is_anybody_there && self.wait_for_subscribers().is_err() {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether nobody is left, and nobody can come.
    pub fn is_deserted(&self) -> bool {
        !self.listens && self.outgoing.iter().all(|subscriber| subscriber.is_done())
    }

    /// Ends the stream: hands over what waits, to each reader as long as it takes something now and then.
    /// Returns what is missing: what readers that an argument names did not receive, who was cut off although the stream
    /// waits for its readers, and that there was no reader who got all.
    pub fn finish(mut self) -> Vec<Undelivered> {
        if self.hub.options.wait > 0 {
            self.end_opening();
        }
        let Hub { options, .. } = &*self.hub;
        let mut subscribers = {
            let mut state = self.hub.lock();
            state.is_over = true;
            state.subscribers.clone()
        };
        subscribers.extend(
            self.opening
                .iter()
                .flat_map(|opening| &opening.given)
                .map(|(subscriber, _)| Arc::clone(subscriber)),
        );
        self.acceptors.iter().for_each(|acceptor| acceptor.close());
        subscribers.iter().for_each(|subscriber| subscriber.end());
        for subscriber in &subscribers {
            if !subscriber.drained(options.stall, &options.limit) {
                let waiting = subscriber.waiting();
                subscriber.give_up();
                self.hub.lock().cut_off += u64::from(!subscriber.is_outgoing() && subscriber.cut_off());
                if waiting > 0 {
                    self.hub.trouble(&subscriber.name, &format!("{waiting} messages could not be delivered"));
                }
            }
        }
        let mut lacking: Vec<Undelivered> =
            self.outgoing.iter().filter_map(|subscriber| subscriber.lacks()).collect();
        let (cut_off, served) = {
            let state = self.hub.lock();
            (state.cut_off, state.served)
        };
        if cut_off > 0 {
            let what = format!("{cut_off} of {served} readers were cut off");
            match options.policy {
                DropPolicy::Oldest => self.hub.trouble("readers", &what),
                DropPolicy::Block => lacking.push(Undelivered { name: "readers".to_string(), what }),
            }
        }
        if self.listens
            && options.wait > 0
            && lacking.is_empty()
            && !subscribers.iter().any(|subscriber| subscriber.has_all())
        {
            let what = format!("none of {served} that connected received everything");
            lacking.push(Undelivered { name: "readers".to_string(), what });
        }
        lacking
    }
}

impl Opening {
    fn lacks(&self, subscriber: &Arc<Subscriber>) -> bool {
        let given = self.given.iter().find(|(other, _)| Arc::ptr_eq(other, subscriber));
        given.is_none_or(|(_, given)| *given < self.items.len())
    }

    fn give(&mut self, subscriber: &Arc<Subscriber>, hub: &Hub) {
        let at = self.given.iter().position(|(other, _)| Arc::ptr_eq(other, subscriber));
        let at = at.unwrap_or_else(|| {
            // Who has gone without all of it does not come again.
            self.given.retain(|(other, _)| !other.is_done() || other.has_all());
            self.given.push((Arc::clone(subscriber), 0));
            self.given.len() - 1
        });
        let given = std::mem::replace(&mut self.given[at].1, self.items.len());
        hub.push(subscriber, &self.items[given..]);
    }
}

impl HubState {
    /// Notes a message as sent, and returns the state of its run before it.
    fn numbered(&mut self, item: Item) -> Numbered {
        let item = Arc::new(item);
        let sent = self.runs.entry(Arc::clone(&item.run)).or_default();
        sent.amount.messages = item.seq;
        let before = sent.amount;
        let opened = sent.opened.clone().filter(|_| item.class == Class::Pulse);
        if let Some(samples) = item.samples {
            sent.amount.samples = Some(before.samples.unwrap_or(0) + samples);
        }
        match item.class {
            Class::Opens => sent.opened = Some((Arc::clone(&item), before)),
            Class::Ends => drop(self.runs.remove(&item.run)),
            _ => {}
        }
        Numbered { item, before, opened }
    }

    /// Makes room for one more, if there is: those that say nothing more may have gone, and hold no place of
    /// another.
    fn has_room(&mut self, subscribers: usize) -> bool {
        self.subscribers.retain(|subscriber| !subscriber.is_done());
        let (quiet, others): (Vec<_>, Vec<_>) =
            self.subscribers.iter().partition(|subscriber| subscriber.is_quiet());
        if quiet.len() >= subscribers {
            quiet[0].hang_up(HangUp::Disconnected(Disconnect::Closed));
        }
        others.len() < subscribers
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self, name: &str, what: &str) {
        (self.options.network.notice)(Notice::Trouble(name, what));
    }

    fn push(&self, subscriber: &Subscriber, items: &[Numbered]) {
        match self.options.policy {
            DropPolicy::Oldest => subscriber.push(items),
            DropPolicy::Block => subscriber.push_waiting(items, self.options.stall, &self.options.limit),
        }
    }

    fn wait_for_more<'a>(&self, state: MutexGuard<'a, HubState>) -> MutexGuard<'a, HubState> {
        let wait = Duration::from_millis(50);
        self.arrived.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Serves a reader who came by itself, if there is room.
    fn serve(&self, acceptor: &Acceptor, peer: Peer, from: &str) {
        let name = acceptor.name();
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        if !state.has_room(self.options.subscribers) {
            drop(state);
            acceptor
                .refused(Refusal::Full, &format!("{from} is turned away: the limit of readers is reached"));
            return peer.turn_away();
        }
        let subscriber =
            Arc::new(Subscriber::accepted(name.to_string(), self.options.buffer, state.has_begun));
        subscriber.connected();
        state.subscribers.push(Arc::clone(&subscriber));
        state.served += 1;
        drop(state);
        self.arrived.notify_all();
        let ended = self.serve_connection(&subscriber, peer);
        let (waiting, stall) = (subscriber.waiting(), self.options.stall);
        let (why, is_cut_off) = match ended {
            Ended::Broken(error) if is_stall(&error) => (format!("took nothing for {stall:?}"), true),
            Ended::HungUp(HangUp::Full) => {
                ("leaves too much waiting that cannot be dropped".to_string(), true)
            }
            Ended::HungUp(HangUp::Disconnected(Disconnect::Flooding)) => ("says too much".to_string(), false),
            ended => {
                subscriber.give_up();
                return match ended {
                    Ended::NoThread(error) => {
                        acceptor.refused(Refusal::System, &format!("{from} is refused: {error}"));
                    }
                    Ended::Whole if subscriber.lost().messages > 0 => {
                        self.trouble(
                            name,
                            &format!("{from} did not get {} messages", subscriber.lost().messages),
                        );
                    }
                    // It went.
                    _ => {}
                };
            }
        };
        // Counted before it is done with.
        self.lock().cut_off += u64::from(is_cut_off && subscriber.cut_off());
        subscriber.give_up();
        self.trouble(name, &format!("{from} {why} and was cut off, with {waiting} messages to go"));
    }

    fn serve_connection(&self, subscriber: &Arc<Subscriber>, peer: Peer) -> Ended {
        let (to_reply, to_hear) = (Arc::clone(subscriber), Arc::clone(subscriber));
        let heard = move |heard| to_hear.heard(heard);
        let SinkOptions { stall, is_binary, .. } = self.options;
        match peer.wire(stall, is_binary, move |bytes| to_reply.reply(bytes), heard) {
            Ok(mut wire) => subscriber.serve(&mut wire, &*self.formatter),
            Err(error) => Ended::NoThread(error),
        }
    }

    /// Connects to an address, and again whenever the connection breaks.
    fn keep_connected(&self, address: &SocketAddress, subscriber: &Arc<Subscriber>) {
        let mut pause = PAUSES.0;
        let mut was_connected = false;
        let mut is_reported = false;
        while !subscriber.is_done() {
            let begun = Instant::now();
            match self.options.network.connect(address) {
                Ok(peer) => {
                    if was_connected {
                        subscriber.resume();
                    }
                    was_connected = true;
                    subscriber.connected();
                    self.arrived.notify_all();
                    let what = match self.serve_connection(subscriber, peer) {
                        Ended::Whole => return,
                        Ended::Broken(error) if is_stall(&error) => {
                            "it took nothing for too long".to_string()
                        }
                        Ended::Broken(error) | Ended::NoThread(error) => error.to_string(),
                        Ended::HungUp(HangUp::Disconnected(Disconnect::Flooding)) => {
                            "it says too much".to_string()
                        }
                        Ended::HungUp(_) => "it hung up".to_string(),
                    };
                    if !subscriber.is_done() {
                        self.trouble(
                            &subscriber.name,
                            &format!("the connection broke ({what}); connecting again"),
                        );
                    }
                    is_reported = false;
                }
                Err(error) if !is_reported => {
                    is_reported = true;
                    self.trouble(&subscriber.name, &format!("no connection yet ({error}); trying again"));
                }
                Err(_) => {}
            }
            // A connection that lasted is no reason to wait long for the next.
            if begun.elapsed() > PAUSES.1 {
                pause = PAUSES.0;
            }
            subscriber.pause(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

fn is_stall(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
