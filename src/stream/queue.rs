//! What waits for one reader, bounded in bytes: when it is full, the oldest goes that may go, and what
//! went stays in its place as a note of the loss.
//!
//! A message is a text and a few plain numbers about it; what it says is its maker's affair.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// What a message is to a reader who cannot have all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Opens a batch: a reader may start here, or at no other.
    Opens,
    /// May be dropped alone, and a batch that has lost all of these is of no use.
    Data,
    /// May be dropped alone.
    Pulse,
    /// Is dropped with its batch, or not at all.
    Kept,
    /// Ends the run.
    Ends,
}

/// A message.
#[derive(Debug)]
pub struct Item {
    /// Names the run.
    pub run: Arc<str>,
    /// Number in its run; they rise by one.
    pub seq: u64,
    /// What may be done with it.
    pub class: Class,
    /// Whether it belongs to the batch that was opened last.
    pub in_batch: bool,
    /// Samples in it, if it holds samples.
    pub samples: Option<u64>,
    /// The time that it tells of, from and to.
    pub span_us: Option<(u64, u64)>,
    /// The message, with its line feed.
    pub text: Box<[u8]>,
}

impl Item {
    /// Whether it makes sense to a reader who knows nothing of the run.
    fn is_start(&self) -> bool {
        matches!(self.class, Class::Opens | Class::Ends)
    }
}

/// Why a reader did not get something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was too slow.
    Slow,
    /// It was not there.
    Away,
}

/// Messages in a row that a reader does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Names the run.
    pub run: Arc<str>,
    /// Why.
    pub why: Why,
    /// The first of them.
    pub first_seq: u64,
    /// The last of them.
    pub last_seq: u64,
    /// Their samples, if one of them holds samples.
    pub samples: Option<u64>,
    /// The time that they tell of, from and to.
    pub span_us: Option<(u64, u64)>,
}

impl Lost {
    fn of(item: &Item, why: Why) -> Self {
        let Item { run, seq, samples, span_us, .. } = item;
        Lost {
            run: Arc::clone(run),
            why,
            first_seq: *seq,
            last_seq: *seq,
            samples: *samples,
            span_us: *span_us,
        }
    }

    /// How many messages.
    pub fn messages(&self) -> u64 {
        self.last_seq - self.first_seq + 1
    }

    /// Takes up another loss if it follows directly; gives it back if not.
    fn join(&mut self, next: Lost) -> Option<Lost> {
        let follows = self.last_seq.checked_add(1) == Some(next.first_seq);
        if !follows || self.run != next.run || self.why != next.why {
            return Some(next);
        }
        self.last_seq = next.last_seq;
        self.samples = sum(self.samples, next.samples);
        self.span_us = match (self.span_us, next.span_us) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        None
    }
}

fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}

/// How much of a run a reader did not get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Messages.
    pub messages: u64,
    /// Samples, if one of them held samples.
    pub samples: Option<u64>,
}

impl Amount {
    fn add(&mut self, messages: u64, samples: Option<u64>) {
        self.messages = self.messages.saturating_add(messages);
        self.samples = sum(self.samples, samples);
    }
}

/// What a reader did not get of a run so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Because it was too slow.
    pub slow: Amount,
    /// Because it was not there.
    pub away: Amount,
}

/// What is next for a reader.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A message.
    Item(Arc<Item>),
    /// Messages that it does not get, and has to be told of.
    Lost(Lost),
    /// What of a run went before the reader came.
    Missed {
        /// Names the run.
        run: Arc<str>,
        /// How much.
        amount: Amount,
    },
}

impl Entry {
    fn size(&self) -> usize {
        // What an entry itself takes is counted too, so that many small ones cannot be without bound.
        size_of::<Entry>()
            + if let Entry::Item(item) = self { item.text.len() + size_of::<Item>() } else { 0 }
    }
}

/// The totals of the runs that a reader is in: those of which something is missing.
#[derive(Debug, Default)]
pub struct Tally {
    runs: HashMap<Arc<str>, Totals>,
}

impl Tally {
    /// Totals of this run.
    pub fn of(&self, run: &Arc<str>) -> Totals {
        self.runs.get(run).copied().unwrap_or_default()
    }

    fn totals(&mut self, run: &Arc<str>) -> &mut Totals {
        self.runs.entry(Arc::clone(run)).or_default()
    }

    /// An entry was handed to the reader; `all` counts over the runs.
    pub fn note(&mut self, entry: &Entry, all: &mut Amount) {
        match entry {
            Entry::Item(item) if item.class == Class::Ends => drop(self.runs.remove(&item.run)),
            Entry::Item(_) => {}
            Entry::Lost(lost) => {
                let totals = self.totals(&lost.run);
                let amount = match lost.why {
                    Why::Slow => &mut totals.slow,
                    Why::Away => &mut totals.away,
                };
                amount.add(lost.messages(), lost.samples);
                all.add(lost.messages(), lost.samples);
            }
            Entry::Missed { run, amount } => {
                self.totals(run).away.add(amount.messages, amount.samples);
            }
        }
    }
}

/// Entries that wait for a reader.
#[derive(Debug)]
pub struct Queue {
    entries: VecDeque<Entry>,
    bytes: usize,
    limit: usize,
    /// Where the reader came late: the runs that it is in.
    runs: Option<HashSet<Arc<str>>>,
    /// Whether the batch that comes is the rest of one that the reader lost.
    broken: bool,
}

impl Queue {
    /// An empty queue for `limit` bytes. A reader that comes `late` gets nothing of a run
    /// before its next batch.
    pub fn new(limit: usize, late: bool) -> Self {
        Queue { entries: VecDeque::new(), bytes: 0, limit, runs: late.then(HashSet::new), broken: false }
    }

    /// Messages that wait.
    pub fn messages(&self) -> u64 {
        self.entries.iter().filter(|entry| matches!(entry, Entry::Item(_))).count() as u64
    }

    /// Whether a message waits.
    pub fn has_messages(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry, Entry::Item(_)))
    }

    /// Whether these many bytes more are too many.
    pub fn is_full_with(&self, bytes: usize) -> bool {
        !self.entries.is_empty() && self.bytes + bytes > self.limit
    }

    /// Adds a message; `before` is what of its run came before it.
    pub fn push(&mut self, item: &Arc<Item>, before: Amount) {
        if let Some(runs) = &mut self.runs
            && !runs.contains(&item.run)
        {
            if !item.is_start() {
                return;
            }
            runs.insert(Arc::clone(&item.run));
            if before.messages > 0 {
                self.add(Entry::Missed { run: Arc::clone(&item.run), amount: before });
            }
        }
        if let (Some(runs), Class::Ends) = (&mut self.runs, item.class) {
            runs.remove(&item.run);
        }
        if self.broken && !item.is_start() {
            return self.add_lost(Lost::of(item, Why::Away));
        }
        self.broken = false;
        self.add(Entry::Item(Arc::clone(item)));
    }

    /// Adds the note of a loss, to the last one where it follows that.
    fn add_lost(&mut self, lost: Lost) {
        let rest = match self.entries.back_mut() {
            Some(Entry::Lost(last)) => last.join(lost),
            _ => Some(lost),
        };
        if let Some(lost) = rest {
            self.add(Entry::Lost(lost));
        }
    }

    fn add(&mut self, entry: Entry) {
        self.bytes += entry.size();
        self.entries.push_back(entry);
    }

    /// Takes the next entry.
    pub fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.bytes -= entry.size();
        Some(entry)
    }

    /// Puts back what could not be handed over.
    pub fn put_back(&mut self, entry: Entry) {
        self.bytes += entry.size();
        self.entries.push_front(entry);
    }

    /// Drops what may go, oldest first, if the queue is over its limit; whether it is within it then.
    pub fn shrink(&mut self) -> bool {
        if self.bytes <= self.limit {
            return true;
        }
        // A little more goes than has to, or every message that comes would cost a walk over all of them.
        let goal = self.limit - self.limit / 16;
        let gone = self.to_drop(goal);
        self.replace(&gone, Why::Slow);
        self.bytes <= self.limit
    }

    /// Which entries have to go, so that no more bytes than these are left.
    fn to_drop(&self, goal: usize) -> Vec<bool> {
        let mut batches: BTreeMap<usize, Batch> = BTreeMap::new();
        let mut batch_of = vec![0; self.entries.len()];
        let mut open = 0;
        for (at, entry) in self.entries.iter().enumerate() {
            let Entry::Item(item) = entry else { continue };
            if item.class == Class::Opens {
                open = at;
                batches.insert(at, Batch { is_whole: true, data: 0, end: at + 1 });
            }
            if item.in_batch {
                batch_of[at] = open;
                let batch = batches.entry(open).or_default();
                batch.data += usize::from(item.class == Class::Data);
                batch.end = at + 1;
            }
        }
        let mut gone = vec![false; self.entries.len()];
        let mut left = self.bytes;
        for (at, entry) in self.entries.iter().enumerate() {
            if left <= goal {
                break;
            }
            let Entry::Item(item) = entry else { continue };
            if gone[at] || !matches!(item.class, Class::Data | Class::Pulse) {
                continue;
            }
            gone[at] = true;
            left -= entry.size();
            if !item.in_batch || item.class != Class::Data {
                continue;
            }
            let open = batch_of[at];
            let Some(batch) = batches.get_mut(&open) else { continue };
            batch.data -= 1;
            if batch.data == 0 && batch.is_whole {
                let of_it = self.entries.range(open..batch.end).zip(&mut gone[open..batch.end]);
                for (entry, gone) in of_it {
                    let is_in_it = matches!(entry, Entry::Item(item) if item.in_batch);
                    if is_in_it && !std::mem::replace(gone, true) {
                        left -= entry.size();
                    }
                }
            }
        }
        gone
    }

    /// Puts a note of the loss in the place of what goes.
    fn replace(&mut self, gone: &[bool], why: Why) {
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        for (entry, gone) in entries.into_iter().zip(gone) {
            match entry {
                Entry::Item(item) if *gone => self.add_lost(Lost::of(&item, why)),
                Entry::Lost(lost) => self.add_lost(lost),
                entry => self.add(entry),
            }
        }
    }

    /// What may not be dropped is too much as well: all that waits is lost, and notes of losses that are too
    /// many go into the totals alone. Goes on with the next batch.
    pub fn overflow(&mut self, tally: &mut Tally, all: &mut Amount) {
        let gone = vec![true; self.entries.len()];
        self.replace(&gone, Why::Slow);
        while self.bytes > self.limit / 2
            && let Some(entry) = self.pop()
        {
            tally.note(&entry, all);
        }
        self.broken = true;
    }

    /// The connection broke, and another begins: what is left of the batch that it broke in is lost, up to
    /// the next that begins.
    pub fn resume(&mut self) {
        let is_start = |entry: &Entry| matches!(entry, Entry::Item(item) if item.is_start());
        let start = self.entries.iter().position(is_start);
        let upto = start.unwrap_or(self.entries.len());
        let gone: Vec<bool> = (0..self.entries.len()).map(|at| at < upto).collect();
        self.replace(&gone, Why::Away);
        // Where none begins yet, what comes may still be of that batch.
        self.broken = start.is_none();
    }

    /// What of the entries is lost with the queue.
    pub fn abandon(&mut self, tally: &mut Tally, all: &mut Amount) {
        let gone = vec![true; self.entries.len()];
        self.replace(&gone, Why::Away);
        while let Some(entry) = self.pop() {
            tally.note(&entry, all);
        }
    }
}

/// What of a batch waits.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    /// Whether nothing of it was handed over.
    is_whole: bool,
    data: usize,
    /// Behind its last entry.
    end: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message that takes 1000 bytes: `m` opens a batch, `d` defines, `r` has ten samples, `h`, `l` between
    /// batches, `e` ends.
    fn item(kind: char, seq: u64) -> Arc<Item> {
        item_of("run", kind, seq)
    }

    fn item_of(run: &str, kind: char, seq: u64) -> Arc<Item> {
        let class = match kind {
            'm' => Class::Opens,
            'r' => Class::Data,
            'h' => Class::Pulse,
            'e' => Class::Ends,
            _ => Class::Kept,
        };
        Arc::new(Item {
            run: run.into(),
            seq,
            class,
            in_batch: matches!(kind, 'm' | 'd' | 'r'),
            samples: (kind == 'r').then_some(10),
            span_us: (kind == 'r').then_some((seq * 10, seq * 10 + 10)),
            text: vec![b' '; 1000 - size_of::<Entry>() - size_of::<Item>()].into(),
        })
    }

    fn filled(limit: usize, kinds: &str) -> Queue {
        let mut queue = Queue::new(limit, false);
        for (seq, kind) in (0..).zip(kinds.chars()) {
            queue.push(&item(kind, seq), Amount::default());
        }
        queue
    }

    /// Numbers of the messages, ranges of the losses.
    fn told(queue: &mut Queue) -> String {
        let mut told = Vec::new();
        while let Some(entry) = queue.pop() {
            told.push(match entry {
                Entry::Item(item) => item.seq.to_string(),
                Entry::Lost(lost) => format!("-{}..{}", lost.first_seq, lost.last_seq),
                Entry::Missed { amount, .. } => format!("missed {}", amount.messages),
            });
        }
        assert_eq!(queue.bytes, 0);
        told.join(" ")
    }

    #[test]
    fn the_oldest_data_go_first_and_definitions_only_with_all_of_their_batch() {
        let mut queue = filled(7_000, "mdrrmdrrh");
        assert!(queue.shrink());
        assert_eq!(told(&mut queue), "-0..3 4 5 6 7 8");
        let mut queue = filled(8_900, "mdrrmdrrh");
        assert!(queue.shrink());
        assert_eq!(told(&mut queue), "0 1 -2..2 3 4 5 6 7 8");
    }

    #[test]
    fn what_stands_between_batches_stays_and_heartbeats_go() {
        let mut queue = filled(3_000, "mdrhlmdre");
        assert!(queue.shrink());
        assert_eq!(told(&mut queue), "-0..3 4 -5..7 8");
    }

    #[test]
    fn a_batch_that_was_begun_keeps_what_defines() {
        let mut queue = filled(1_900, "mdrr");
        queue.pop();
        assert!(queue.shrink());
        assert_eq!(told(&mut queue), "1 -2..3");
    }

    #[test]
    fn what_may_not_be_dropped_does_not_fit() {
        let mut queue = filled(2_500, "llll");
        assert!(!queue.shrink());
        assert_eq!(queue.messages(), 4);
    }

    #[test]
    fn what_is_too_much_in_any_case_is_lost_and_counted() {
        let mut queue = filled(2_500, "mdrl");
        queue.pop();
        for seq in 4..20 {
            queue.push(&item('l', seq), Amount::default());
        }
        assert!(!queue.shrink());
        let (mut tally, mut all) = (Tally::default(), Amount::default());
        queue.overflow(&mut tally, &mut all);
        assert!(queue.shrink());
        for (seq, kind) in (20..).zip("drmdr".chars()) {
            queue.push(&item(kind, seq), Amount::default());
        }
        assert_eq!(told(&mut queue), "-1..19 -20..21 22 23 24");
        let mut queue = filled(500, "m");
        for run in 0..20 {
            let mut end = Arc::into_inner(item('e', 0)).expect("mine alone");
            end.run = run.to_string().into();
            queue.push(&Arc::new(end), Amount::default());
        }
        queue.overflow(&mut tally, &mut all);
        assert_eq!((queue.bytes <= 250, all.messages + queue.entries.len() as u64), (true, 21));
    }

    #[test]
    fn a_loss_holds_the_samples_and_the_time() {
        let mut queue = filled(1, "mdrr");
        queue.shrink();
        let Some(Entry::Lost(lost)) = queue.pop() else { panic!("a loss") };
        assert_eq!((lost.messages(), lost.samples, lost.span_us), (4, Some(20), Some((20, 40))));
    }

    #[test]
    fn a_late_reader_begins_with_a_batch_and_its_losses_are_counted() {
        let mut queue = Queue::new(1 << 20, true);
        let before = Amount { messages: 4, samples: Some(20) };
        for (seq, kind) in (2..).zip("rrmdr".chars()) {
            queue.push(&item(kind, seq), before);
        }
        assert_eq!(told(&mut queue), "missed 4 4 5 6");
    }

    #[test]
    fn of_runs_side_by_side_each_has_its_losses() {
        let mut queue = Queue::new(1 << 20, true);
        let before = Amount { messages: 2, samples: Some(20) };
        // One begins again at 2, the other is in the middle of a batch, a third begins.
        for (run, kind, seq) in [("a", 'm', 2), ("b", 'h', 2), ("a", 'r', 3), ("b", 'm', 3), ("b", 'r', 4)] {
            queue.push(&item_of(run, kind, seq), Amount { messages: seq, ..before });
        }
        queue.push(&item_of("c", 'm', 0), Amount::default());
        let (mut tally, mut all) = (Tally::default(), Amount::default());
        let mut got = Vec::new();
        while let Some(entry) = queue.pop() {
            tally.note(&entry, &mut all);
            if let Entry::Item(item) = &entry {
                got.push((item.run.to_string(), item.seq));
            }
        }
        let want = [("a", 2), ("a", 3), ("b", 3), ("b", 4), ("c", 0)];
        assert_eq!(got, want.map(|(run, seq)| (run.to_string(), seq)));
        let away = |run: &str| tally.of(&run.into()).away;
        assert_eq!(["a", "b", "c"].map(|run| away(run).messages), [2, 3, 0]);
        assert_eq!(away("b").samples, Some(20));
    }

    #[test]
    fn after_a_break_a_connection_goes_on_with_the_next_batch() {
        let mut queue = filled(1 << 20, "mdrrlmdr");
        queue.pop();
        let broke_at = queue.pop().expect("an entry");
        queue.put_back(broke_at);
        queue.resume();
        assert_eq!(told(&mut queue), "-1..4 5 6 7");
        let mut queue = filled(1 << 20, "mdr");
        queue.pop();
        queue.resume();
        for (seq, kind) in (3..).zip("rlmde".chars()) {
            queue.push(&item(kind, seq), Amount::default());
        }
        assert_eq!(told(&mut queue), "-1..4 5 6 7");
    }

    #[test]
    fn losses_in_a_row_for_two_reasons_stay_two() {
        let mut queue = filled(1, "mdr");
        queue.shrink();
        queue.push(&item('r', 3), Amount::default());
        queue.resume();
        let mut tally = Tally::default();
        assert_eq!(queue.entries.len(), 2);
        queue.abandon(&mut tally, &mut Amount::default());
        let totals = tally.of(&"run".into());
        assert_eq!(totals.slow, Amount { messages: 3, samples: Some(10) });
        assert_eq!(totals.away, Amount { messages: 1, samples: Some(10) });
    }

    fn add(queue: &mut Queue, item: Arc<Item>) {
        queue.push(&item, Amount::default());
    }

    #[test]
    fn a_loss_joins_only_what_follows_it_in_its_run() {
        let mut queue = Queue::new(1, false);
        for (run, seq) in [("a", 0), ("a", 1), ("b", 2), ("b", 4), ("b", 5)] {
            add(&mut queue, item_of(run, 'r', seq));
        }
        queue.shrink();
        assert_eq!(told(&mut queue), "-0..1 -2..2 -4..5");
    }

    #[test]
    fn the_totals_of_a_run_end_with_it() {
        let (mut tally, mut all) = (Tally::default(), Amount::default());
        for run in ["a", "b"] {
            tally.note(&Entry::Lost(Lost::of(&item_of(run, 'r', 0), Why::Slow)), &mut all);
        }
        for kind in ['r', 'e'] {
            tally.note(&Entry::Item(item_of("a", kind, 1)), &mut all);
            let messages = ["a", "b"].map(|run| tally.of(&run.into()).slow.messages);
            assert_eq!(messages, if kind == 'r' { [1, 1] } else { [0, 1] });
        }
        assert_eq!(all.messages, 2);
    }

    #[test]
    fn a_queue_is_full_when_another_message_passes_its_limit_and_never_when_empty() {
        let mut queue = filled(1_500, "");
        assert!(!queue.is_full_with(9_999) && !queue.has_messages());
        add(&mut queue, item('r', 0));
        assert!(!queue.is_full_with(500) && queue.is_full_with(501) && queue.has_messages());
        // Losses alone are no messages.
        let mut queue = filled(1, "r");
        queue.shrink();
        assert!(!queue.has_messages() && !queue.entries.is_empty());
    }

    #[test]
    fn a_late_reader_of_a_new_run_has_missed_nothing() {
        let mut queue = Queue::new(1 << 20, true);
        for (seq, kind) in (0..).zip("mdr".chars()) {
            add(&mut queue, item(kind, seq));
        }
        assert_eq!(told(&mut queue), "0 1 2");
    }

    #[test]
    fn what_is_put_back_waits_again() {
        let mut queue = filled(1 << 20, "mdr");
        let entry = queue.pop().expect("an entry");
        queue.put_back(entry);
        assert_eq!(queue.bytes, 3_000);
        assert_eq!(told(&mut queue), "0 1 2");
    }

    #[test]
    fn room_is_made_for_a_sixteenth_of_the_limit() {
        let mut queue = filled(16_000, "mdrrrrrrrrrrrrrrr");
        assert_eq!(queue.messages(), 17);
        assert!(queue.shrink());
        assert_eq!(queue.messages(), 15);
    }

    #[test]
    fn all_of_a_batch_goes_with_its_last_data_and_nothing_before_that() {
        // Also what stands after the data.
        let mut queue = filled(3_500, "mrdmdr");
        queue.shrink();
        assert_eq!(told(&mut queue), "-0..2 3 4 5");
        // A pulse in a batch is none of its data.
        let mut queue = filled(1 << 20, "m");
        let mut pulse = Arc::into_inner(item('h', 1)).expect("mine alone");
        pulse.in_batch = true;
        add(&mut queue, Arc::new(pulse));
        add(&mut queue, item('r', 2));
        queue.limit = 2_500;
        queue.shrink();
        assert_eq!(told(&mut queue), "0 -1..1 2");
    }

    #[test]
    fn notes_of_losses_take_half_of_the_limit_at_most() {
        for (limit, noted) in [(4, 0), (3, 1)] {
            let mut queue = Queue::new(limit * size_of::<Entry>(), false);
            for run in ["a", "b"] {
                add(&mut queue, item_of(run, 'l', 0));
            }
            let (mut tally, mut all) = (Tally::default(), Amount::default());
            queue.overflow(&mut tally, &mut all);
            assert_eq!((all.messages, queue.entries.len() as u64), (noted, 2 - noted));
        }
    }
}
