//! One subscriber of a live stream: its queue, and the thread that sends from it.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cli::io::deadline::Deadline;
use crate::cli::net::disconnect::Disconnect;
use crate::cli::net::peer::{Heard, Wire};
use crate::cli::net::queue::{Amount, Entry, Item, LossTotals, LostMessages, Numbered, Queue, RunLosses};

/// Answers to a reader that may wait: more are asked for than taken.
const REPLIES: usize = 64;

/// How long it may take to notice that a subscriber is gone after something was sent to it.
const MOMENT: Duration = Duration::from_millis(100);

/// Something that was asked for and is not where it was to be.
#[derive(Clone, Debug)]
pub struct Undelivered {
    /// Whom it was for.
    pub name: String,
    /// What is missing.
    pub what: String,
}

/// What is said to a reader that the maker of the messages has to word.
pub trait LossFormatter: Send + Sync {
    /// The message that reports a loss; its number is that of the last message that is lost. Empty where the
    /// reader finds out by itself.
    fn loss(&self, lost: &LostMessages) -> Vec<u8>;

    /// A message as this reader has to see it, who did not get all; `None` where it stays as it is.
    fn amended(&self, item: &Item, totals: &RunLosses) -> Option<Vec<u8>>;
}

pub(crate) struct Subscriber {
    pub name: String,
    /// Whether it is there to stay, whatever becomes of a connection.
    is_outgoing: bool,
    state: Mutex<SubscriberState>,
    changed: Condvar,
    /// Bytes that it took.
    moved: AtomicU64,
}

struct SubscriberState {
    queue: Queue,
    replies: VecDeque<Vec<u8>>,
    /// What it did not get, of the run that it is in and of all of them.
    losses: LossTotals,
    lost: Amount,
    phase: Phase,
    /// Since when something waits of which nothing was taken.
    waits_since: Instant,
    is_connected: bool,
    /// The connection is of no use any more.
    hung_up: Option<HangUp>,
    /// The other end says nothing more; it may have gone.
    is_quiet: bool,
    is_doubtful: bool,
    /// All up to the end was handed over.
    is_whole: bool,
    is_cut_off: bool,
    /// When it took the first message.
    took: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing more comes.
    Ending,
    /// It has all that it will get.
    Done,
}

/// Why a connection ended.
pub(crate) enum Ended {
    /// The reader has all.
    Whole,
    Broken(io::Error),
    HungUp(HangUp),
    /// The system has no descriptor or no thread to serve it with.
    NoThread(io::Error),
}

/// Why a connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HangUp {
    /// The other end is the reason.
    Disconnected(Disconnect),
    /// What may not be dropped is too much for its queue.
    Full,
}

impl Subscriber {
    /// A reader that an argument names.
    pub fn outgoing(name: String, limit: usize) -> Self {
        Subscriber::new(name, true, limit, false)
    }

    /// A reader who came by itself, perhaps when the stream had begun.
    pub fn accepted(name: String, limit: usize, is_late: bool) -> Self {
        Subscriber::new(name, false, limit, is_late)
    }

    fn new(name: String, is_outgoing: bool, limit: usize, late: bool) -> Self {
        let state = SubscriberState {
            queue: Queue::new(limit, late),
            replies: VecDeque::new(),
            losses: LossTotals::default(),
            lost: Amount::default(),
            phase: Phase::Open,
            waits_since: Instant::now(),
            is_connected: false,
            hung_up: None,
            is_quiet: false,
            is_doubtful: false,
            is_whole: false,
            is_cut_off: false,
            took: None,
        };
        Subscriber {
            name,
            is_outgoing,
            state: Mutex::new(state),
            changed: Condvar::new(),
            moved: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SubscriberState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, SubscriberState>,
        time: Duration,
    ) -> MutexGuard<'a, SubscriberState> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether an argument named it.
    pub fn is_outgoing(&self) -> bool {
        self.is_outgoing
    }

    pub fn is_done(&self) -> bool {
        self.lock().phase == Phase::Done
    }

    pub fn is_connected(&self) -> bool {
        self.lock().is_connected
    }

    /// Whether the other end says nothing more: it may have gone.
    pub fn is_quiet(&self) -> bool {
        self.lock().is_quiet
    }

    /// Whether it is there to stay: it has taken something a moment ago, in which one that has gone is found out.
    pub fn stays(&self) -> bool {
        let state = self.lock();
        let took = state.took.is_some_and(|took| took.elapsed() >= MOMENT);
        state.phase != Phase::Done && state.hung_up.is_none() && state.is_connected && took
    }

    /// Bytes that it took so far.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Whether it had all up to the end.
    pub fn has_all(&self) -> bool {
        let state = self.lock();
        state.is_whole && state.queue.has_begun() && !state.is_doubtful
    }

    fn is_whole(&self) -> bool {
        self.lock().is_whole
    }

    /// Notes that it is cut off; whether that is new.
    pub fn cut_off(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_cut_off, true)
    }

    /// Whether the connection broke when it may not have had all that was handed over.
    fn is_doubtful(&self) -> bool {
        self.lock().is_doubtful
    }

    /// What it did not get, as far as it is known.
    pub fn lost(&self) -> Amount {
        self.lock().lost
    }

    /// What is missing to it, if something is.
    pub fn lacks(&self) -> Option<Undelivered> {
        let Amount { messages, samples } = self.lost();
        let samples = samples.map_or(String::new(), |samples| format!(" with {samples} samples"));
        let what = match messages {
            0 if !self.is_doubtful() && (self.is_whole() || self.moved() == 0) => return None,
            0 => "the connection broke: some messages may not have arrived".to_string(),
            _ => format!("{messages} messages{samples} did not arrive"),
        };
        Some(Undelivered { name: self.name.clone(), what })
    }

    /// Messages that wait for it.
    pub fn waiting(&self) -> u64 {
        self.lock().queue.messages()
    }

    /// Adds messages to its queue, of which the oldest are dropped if they are too many.
    pub fn push(&self, items: &[Numbered]) {
        self.add(self.lock(), items, true);
    }

    /// The same, once there is room: a batch that is larger than the queue comes into an empty one. If
    /// nothing goes for `stall`, or the limit is over, they are dropped all the same.
    pub fn push_waiting(&self, items: &[Numbered], stall: Duration, limit: &Deadline) {
        let bytes = items.iter().map(|numbered| numbered.item.text.len()).sum();
        let mut state = self.lock();
        let mut moved = (self.moved(), Instant::now());
        let mut is_stalled = false;
        while state.phase == Phase::Open && state.queue.is_full_with(bytes) && !is_stalled {
            state = self.wait(state, stall.min(Duration::from_millis(200)));
            if self.moved() != moved.0 {
                moved = (self.moved(), Instant::now());
            }
            is_stalled = moved.1.elapsed() >= stall || limit.has_passed();
        }
        self.add(state, items, is_stalled);
    }

    fn add(&self, mut state: MutexGuard<'_, SubscriberState>, items: &[Numbered], may_drop: bool) {
        if state.phase != Phase::Open {
            return;
        }
        if !state.queue.has_messages() {
            state.waits_since = Instant::now();
        }
        state.queue.extend(items);
        if may_drop && !state.queue.shrink() {
            if self.is_outgoing {
                let SubscriberState { queue, losses, lost, .. } = &mut *state;
                queue.overflow(losses, lost);
            } else {
                state.hung_up.get_or_insert(HangUp::Full);
            }
        }
        self.changed.notify_all();
    }

    /// Says something that only this connection has to know. Bounded: an answer too many is none.
    pub fn reply(&self, bytes: &[u8]) {
        let mut state = self.lock();
        if state.replies.len() < REPLIES {
            state.replies.push_back(bytes.to_vec());
            self.changed.notify_all();
        }
    }

    /// Takes note of what is heard of the other end.
    pub fn heard(&self, heard: Heard) {
        match heard {
            Heard::NothingMore => self.lock().is_quiet = true,
            Heard::Disconnected(gone) => self.hang_up(HangUp::Disconnected(gone)),
        }
        self.changed.notify_all();
    }

    /// The connection is of no use any more.
    pub fn hang_up(&self, why: HangUp) {
        self.lock().hung_up.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Nothing more comes.
    pub fn end(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Ending;
            if !state.queue.has_messages() {
                state.waits_since = Instant::now();
            }
        }
        self.changed.notify_all();
    }

    /// It gets nothing more; what waits for it is lost.
    pub fn give_up(&self) {
        let mut state = self.lock();
        let SubscriberState { queue, losses, lost, .. } = &mut *state;
        queue.abandon(losses, lost);
        state.phase = Phase::Done;
        state.hung_up.get_or_insert(HangUp::Disconnected(Disconnect::Closed));
        self.changed.notify_all();
    }

    /// Its connection broke: what is left of the batch in which it did is lost. Of what was handed over before,
    /// some may never have arrived.
    pub fn resume(&self) {
        let mut state = self.lock();
        state.replies.clear();
        state.queue.resume();
        state.is_doubtful |= self.moved() > 0;
    }

    /// Waits until it has all, and nothing goes for `stall` at the longest, or the limit is over; whether it has.
    /// The time counts in which nothing went before.
    pub fn drained(&self, stall: Duration, limit: &Deadline) -> bool {
        let mut state = self.lock();
        let mut moved = (self.moved(), state.waits_since);
        while state.phase != Phase::Done {
            if self.moved() != moved.0 {
                moved = (self.moved(), Instant::now());
            }
            if limit.has_passed() {
                return false;
            }
            let Some(left) = stall.checked_sub(moved.1.elapsed()).filter(|left| !left.is_zero()) else {
                return false;
            };
            state = self.wait(state, left.min(Duration::from_millis(200)));
        }
        true
    }

    /// Sleeps for this time, unless it is given up meanwhile.
    pub fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.lock();
        while state.phase != Phase::Done {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.wait(state, left);
        }
    }

    /// Hands over what waits and what comes, until the end or until the connection breaks.
    pub fn serve(&self, wire: &mut Wire, formatter: &dyn LossFormatter) -> Ended {
        let ended = self.deliver(wire, formatter);
        let mut state = self.lock();
        state.is_connected = false;
        if matches!(ended, Ended::Whole) {
            state.phase = Phase::Done;
            state.is_whole = true;
        }
        self.changed.notify_all();
        ended
    }

    /// A connection begins.
    pub fn connected(&self) {
        let mut state = self.lock();
        state.is_connected = true;
        state.is_quiet = false;
        state.hung_up = None;
    }

    fn deliver(&self, wire: &mut Wire, formatter: &dyn LossFormatter) -> Ended {
        let moved = |bytes: usize| {
            self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        };
        loop {
            let Some((entry, text)) = self.next(formatter) else {
                let (hung_up, has_all, is_quiet) = {
                    let state = self.lock();
                    let has_all = state.phase == Phase::Ending && !state.queue.has_messages();
                    (state.hung_up, has_all, state.is_quiet)
                };
                if let Some(why) = hung_up.filter(|why| !has_all || *why == HangUp::Full) {
                    if why == HangUp::Disconnected(Disconnect::Flooding) {
                        wire.cut_off("this is a stream to be read");
                    }
                    return Ended::HungUp(why);
                }
                let ended = wire.end(is_quiet);
                let mut state = self.lock();
                // Who has read all closes the connection, and who leaves before breaks it.
                state.is_doubtful |= match state.hung_up {
                    None => ended.is_err(),
                    Some(HangUp::Disconnected(Disconnect::Closed)) => false,
                    Some(_) => true,
                };
                return Ended::Whole;
            };
            let written = match &entry {
                // An answer is whole as it is.
                None => wire.bytes(&text, moved),
                Some(Entry::Missed { .. }) => Ok(()),
                Some(Entry::Item(item)) if text.is_empty() => wire.message(&item.text, moved),
                Some(Entry::Lost(_)) if text.is_empty() => Ok(()),
                Some(_) => wire.message(&text, moved),
            };
            let mut state = self.lock();
            match (written, entry) {
                (Ok(()), None) => {}
                (Ok(()), Some(entry)) => {
                    let SubscriberState { losses, lost, .. } = &mut *state;
                    losses.note(&entry, lost);
                    state.waits_since = Instant::now();
                    state.took.get_or_insert_with(Instant::now);
                    self.changed.notify_all();
                }
                (Err(error), entry) => {
                    if let Some(entry) = entry.filter(|_| state.phase != Phase::Done) {
                        state.queue.put_back(entry);
                    }
                    return Ended::Broken(error);
                }
            }
        }
    }

    /// Waits for what is next, and words it. `None` when nothing more comes.
    fn next(&self, formatter: &dyn LossFormatter) -> Option<(Option<Entry>, Vec<u8>)> {
        let mut state = self.lock();
        loop {
            if state.hung_up.is_some() {
                return None;
            }
            if let Some(reply) = state.replies.pop_front() {
                return Some((None, reply));
            }
            if let Some(entry) = state.queue.pop() {
                let text = match &entry {
                    Entry::Item(item) => {
                        let totals = state.losses.of(&item.run);
                        drop(state);
                        formatter.amended(item, &totals).unwrap_or_default()
                    }
                    Entry::Lost(lost) => formatter.loss(lost),
                    Entry::Missed { .. } => Vec::new(),
                };
                return Some((Some(entry), text));
            }
            if state.phase != Phase::Open {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;
    use crate::cli::net::queue::Class;

    const STALL: Duration = Duration::from_millis(300);

    struct Silent;

    impl LossFormatter for Silent {
        fn loss(&self, _: &LostMessages) -> Vec<u8> {
            b"loss".to_vec()
        }

        fn amended(&self, _: &Item, _: &RunLosses) -> Option<Vec<u8>> {
            None
        }
    }

    /// Takes a piece and then this long a rest; or fails.
    struct Slow(Option<Duration>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            std::thread::sleep(self.0.ok_or_else(|| io::Error::other("a bad wire"))?);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Messages of 1000 bytes, each between batches and none that has to stay.
    fn messages(numbers: std::ops::Range<u64>) -> Vec<Numbered> {
        let message = |seq| Item {
            run: "run".into(),
            seq,
            class: Class::Pulse,
            in_batch: false,
            samples: None,
            span: None,
            text: vec![b' '; 1000].into(),
        };
        let numbered =
            |seq| Numbered { item: Arc::new(message(seq)), before: Amount::default(), opened: None };
        numbers.map(numbered).collect()
    }

    fn subscriber(limit: usize) -> Arc<Subscriber> {
        Arc::new(Subscriber::outgoing("reader".to_string(), limit))
    }

    /// Serves the reader on a thread of its own.
    fn serve(subscriber: &Arc<Subscriber>, wire: Slow) -> std::thread::JoinHandle<Ended> {
        subscriber.connected();
        let subscriber = Arc::clone(subscriber);
        std::thread::spawn(move || subscriber.serve(&mut Wire::of_pipe(Box::new(wire)), &Silent))
    }

    fn taking<T>(what: impl FnOnce() -> T) -> (T, Duration) {
        let begun = Instant::now();
        (what(), begun.elapsed())
    }

    #[test]
    fn who_takes_something_now_and_then_is_waited_for_to_the_end() {
        let subscriber = subscriber(1 << 20);
        subscriber.push(&messages(0..8));
        let served = serve(&subscriber, Slow(Some(STALL / 3)));
        subscriber.end();
        let (has_all, time) = taking(|| subscriber.drained(STALL, &Deadline::default()));
        assert!(has_all && time > STALL, "{time:?}");
        assert!(matches!(served.join().expect("no panic"), Ended::Whole));
        assert_eq!((subscriber.waiting(), subscriber.moved(), subscriber.lost().messages), (0, 8_000, 0));
        assert!(subscriber.is_done());
    }

    #[test]
    fn who_takes_nothing_is_waited_for_as_long_as_a_stall_from_when_something_waits() {
        for count in [0, 3] {
            let subscriber = subscriber(1 << 20);
            // Nothing waited so far.
            std::thread::sleep(STALL * 2);
            subscriber.push(&messages(0..count));
            subscriber.end();
            let (has_all, time) = taking(|| subscriber.drained(STALL, &Deadline::default()));
            assert!(!has_all && time > STALL * 2 / 3 && time < STALL * 20, "{time:?}");
            assert_eq!(subscriber.waiting(), count);
            subscriber.give_up();
            assert_eq!((subscriber.waiting(), subscriber.lost().messages), (0, count));
        }
        let subscriber = subscriber(1 << 20);
        let limit = Deadline::default();
        limit.set(Instant::now());
        assert!(!subscriber.drained(Duration::from_secs(3600), &limit));
    }

    #[test]
    fn for_a_slow_reader_there_is_room_before_more_is_added() {
        let subscriber = subscriber(5_000);
        let served = serve(&subscriber, Slow(Some(STALL / 6)));
        for batch in 0..6 {
            subscriber.push_waiting(&messages(batch * 2..batch * 2 + 2), STALL, &Deadline::default());
            assert!(subscriber.waiting() <= 4, "{} wait", subscriber.waiting());
        }
        subscriber.end();
        assert!(subscriber.drained(STALL * 10, &Deadline::default()));
        served.join().expect("no panic");
        assert_eq!((subscriber.moved(), subscriber.lost().messages), (12_000, 0));
    }

    #[test]
    fn for_a_reader_that_takes_nothing_the_oldest_go_after_a_stall_or_at_the_limit() {
        let over = Deadline::default();
        over.set(Instant::now());
        for (stall, limit) in [(STALL, Deadline::default()), (Duration::from_secs(3600), over)] {
            let subscriber = subscriber(5_000);
            subscriber.push_waiting(&messages(0..4), stall, &limit);
            let ((), time) = taking(|| subscriber.push_waiting(&messages(4..8), stall, &limit));
            assert!(time >= stall.min(STALL) / 2 || limit.has_passed(), "{time:?}");
            assert!(subscriber.waiting() < 6);
            let waiting = subscriber.waiting();
            subscriber.give_up();
            assert_eq!((waiting < 6, subscriber.lost().messages), (true, 8));
        }
    }

    #[test]
    fn what_could_not_be_written_waits_for_the_next_connection() {
        let subscriber = subscriber(1 << 20);
        subscriber.push(&messages(0..3));
        assert!(matches!(serve(&subscriber, Slow(None)).join().expect("no panic"), Ended::Broken(_)));
        assert_eq!((subscriber.waiting(), subscriber.is_connected()), (3, false));
    }

    #[test]
    fn a_connection_that_is_of_no_use_any_more_ends() {
        let subscriber = subscriber(1 << 20);
        let served = serve(&subscriber, Slow(Some(Duration::ZERO)));
        subscriber.hang_up(HangUp::Full);
        assert!(matches!(served.join().expect("no panic"), Ended::HungUp(HangUp::Full)));
    }

    #[test]
    fn only_so_many_answers_wait() {
        let subscriber = subscriber(1 << 20);
        for _ in 0..REPLIES + 5 {
            subscriber.reply(b"pong");
        }
        assert_eq!(subscriber.lock().replies.len(), REPLIES);
        subscriber.resume();
        assert!(subscriber.lock().replies.is_empty(), "they were for the connection that broke");
    }

    #[test]
    fn a_pause_is_as_long_as_it_should_be_unless_nothing_is_left_to_do() {
        let subscriber = subscriber(1 << 20);
        assert!(taking(|| subscriber.pause(STALL)).1 >= STALL);
        subscriber.give_up();
        assert!(taking(|| subscriber.pause(Duration::from_secs(3600))).1 < Duration::from_secs(60));
    }
}
