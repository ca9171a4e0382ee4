//! A bounded queue of one subscriber: when full, it drops the oldest droppable messages and records the gap in their
//! place.
//!
//! A message is a text and a few plain numbers about it; what it says is its maker's affair.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::model::TimeSpan;

/// What a message is to a reader who cannot have all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Opens a batch: a reader may start here, or at no other.
    Opens,
    /// May be dropped alone, and a batch that has lost all of these is of no use.
    Data,
    /// May be dropped alone.
    Pulse,
    /// Makes sense alone: a reader may start here, and it may be dropped alone.
    Whole,
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
    /// The time that it reports.
    pub span: Option<TimeSpan>,
    /// The message, as it goes out.
    pub text: Box<[u8]>,
}

impl Item {
    /// Whether it makes sense to a reader who knows nothing of the run.
    fn is_start(&self) -> bool {
        matches!(self.class, Class::Opens | Class::Whole | Class::Ends)
    }
}

/// A message, what of its run came before it, and the message that opened the last batch before it, with what
/// came before that.
#[derive(Clone, Debug)]
pub struct Numbered {
    /// The message.
    pub item: Arc<Item>,
    /// What of its run came before it.
    pub before: Amount,
    /// Where a reader can begin that is let in between two batches.
    pub opened: Option<(Arc<Item>, Amount)>,
}

/// Why a reader did not get something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// It was too slow.
    Backpressure,
    /// It was not there.
    Gap,
}

/// Messages in a row that a reader does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostMessages {
    /// Names the run.
    pub run: Arc<str>,
    /// Why.
    pub cause: LossCause,
    /// The first of them.
    pub first_seq: u64,
    /// The last of them.
    pub last_seq: u64,
    /// Their samples, if one of them holds samples.
    pub samples: Option<u64>,
    /// The time that they tell of.
    pub span: Option<TimeSpan>,
}

impl LostMessages {
    fn of(item: &Item, cause: LossCause) -> Self {
        let Item { run, seq, samples, span, .. } = item;
        LostMessages {
            run: Arc::clone(run),
            cause,
            first_seq: *seq,
            last_seq: *seq,
            samples: *samples,
            span: *span,
        }
    }

    /// How many messages.
    pub fn messages(&self) -> u64 {
        self.last_seq - self.first_seq + 1
    }

    /// Takes up another loss if it follows directly; gives it back if not.
    fn join(&mut self, next: LostMessages) -> Option<LostMessages> {
        let follows = self.last_seq.checked_add(1) == Some(next.first_seq);
        if !follows || self.run != next.run || self.cause != next.cause {
            return Some(next);
        }
        self.last_seq = next.last_seq;
        self.samples = sum(self.samples, next.samples);
        if let Some(span) = next.span {
            span.add_to(&mut self.span);
        }
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
pub struct RunLosses {
    /// Because it was too slow.
    pub backpressure: Amount,
    /// Because it was not there.
    pub gap: Amount,
}

/// What is next for a reader.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A message.
    Item(Arc<Item>),
    /// Messages that it does not receive, to be reported to it.
    Lost(LostMessages),
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
pub struct LossTotals {
    runs: HashMap<Arc<str>, RunLosses>,
}

impl LossTotals {
    /// Totals of this run.
    pub fn of(&self, run: &Arc<str>) -> RunLosses {
        self.runs.get(run).copied().unwrap_or_default()
    }

    fn totals(&mut self, run: &Arc<str>) -> &mut RunLosses {
        self.runs.entry(Arc::clone(run)).or_default()
    }

    /// An entry was handed to the reader; `all` counts over the runs.
    pub fn note(&mut self, entry: &Entry, all: &mut Amount) {
        match entry {
            Entry::Item(item) if item.class == Class::Ends => drop(self.runs.remove(&item.run)),
            Entry::Item(_) => {}
            Entry::Lost(lost) => {
                let totals = self.totals(&lost.run);
                let amount = match lost.cause {
                    LossCause::Backpressure => &mut totals.backpressure,
                    LossCause::Gap => &mut totals.gap,
                };
                amount.add(lost.messages(), lost.samples);
                all.add(lost.messages(), lost.samples);
            }
            Entry::Missed { run, amount } => {
                self.totals(run).gap.add(amount.messages, amount.samples);
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
    /// Whether what it gets of a run before its next batch is lost to it, and not only came before its time.
    broken: bool,
    /// Whether something was taken that a reader can start with.
    begun: bool,
    /// Bytes of the messages that came last together.
    newest: usize,
}

impl Queue {
    /// An empty queue for `limit` bytes. A reader that comes `late` gets nothing of a run
    /// before its next batch.
    pub fn new(limit: usize, late: bool) -> Self {
        Queue {
            entries: VecDeque::new(),
            bytes: 0,
            limit,
            runs: late.then(HashSet::new),
            broken: false,
            begun: false,
            newest: 0,
        }
    }

    /// Whether something was taken that a reader can start with.
    pub fn has_begun(&self) -> bool {
        self.begun
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

    /// Adds messages that belong together.
    pub fn extend(&mut self, items: &[Numbered]) {
        let before = self.bytes;
        items.iter().for_each(|numbered| self.push(numbered));
        self.newest = self.bytes.saturating_sub(before);
    }

    fn push(&mut self, Numbered { item, before, opened }: &Numbered) {
        let is_in = self.runs.as_ref().is_none_or(|runs| runs.contains(&item.run));
        // A run that begins now is nobody's loss.
        if !is_in && before.messages > 0 {
            match (item.class, opened) {
                _ if item.is_start() => self.missed(item, *before),
                (Class::Pulse, Some((opens, before_it))) if !self.broken => {
                    self.missed(opens, *before_it);
                    self.add(Entry::Item(Arc::clone(opens)));
                    self.add_between(opens, *before_it, item, *before);
                }
                _ if self.broken => return self.add_lost(LostMessages::of(item, LossCause::Gap)),
                _ => return,
            }
        }
        if let Some(runs) = &mut self.runs {
            match item.class {
                Class::Ends => drop(runs.remove(&item.run)),
                _ => drop(runs.insert(Arc::clone(&item.run))),
            }
        }
        self.add(Entry::Item(Arc::clone(item)));
    }

    /// Notes what of a run came before the reader.
    fn missed(&mut self, item: &Item, amount: Amount) {
        if !self.broken && amount.messages > 0 {
            self.add(Entry::Missed { run: Arc::clone(&item.run), amount });
        }
    }

    /// Notes the loss of what came between two messages of a run.
    fn add_between(&mut self, from: &Item, before_it: Amount, to: &Item, before: Amount) {
        if from.seq + 1 < to.seq {
            let samples = before.samples.map(|all| all - before_it.samples.unwrap_or(0));
            self.add_lost(LostMessages {
                run: Arc::clone(&to.run),
                cause: LossCause::Gap,
                first_seq: from.seq + 1,
                last_seq: to.seq - 1,
                samples: samples.filter(|samples| *samples > 0),
                span: None,
            });
        }
    }

    /// Adds the note of a loss, to the last one where it follows that.
    fn add_lost(&mut self, lost: LostMessages) {
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
        self.begun |= matches!(&entry, Entry::Item(item) if item.is_start());
        Some(entry)
    }

    /// Puts back what could not be handed over.
    pub fn put_back(&mut self, entry: Entry) {
        self.bytes += entry.size();
        self.entries.push_front(entry);
    }

    /// Drops what may go, oldest first, if the queue is over its limit; whether it is within it then. What came
    /// last together may stay in any case, or nobody were fast enough for a batch that is over the limit.
    pub fn shrink(&mut self) -> bool {
        // With room for the notes of what goes.
        let limit = self.limit.max(self.newest + self.limit / 8);
        if self.bytes <= limit {
            return true;
        }
        // A little more goes than has to, or every message that comes would cost a walk over all of them.
        let goal = self.newest.max(self.limit - self.limit / 16);
        let gone = self.to_drop(goal);
        self.replace(&gone, LossCause::Backpressure);
        self.bytes <= limit
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
        let first = batches.keys().next().copied();
        let mut gone = vec![false; self.entries.len()];
        let mut left = self.bytes;
        for (at, entry) in self.entries.iter().enumerate() {
            if left <= goal {
                break;
            }
            let Entry::Item(item) = entry else { continue };
            if gone[at] || !matches!(item.class, Class::Data | Class::Pulse | Class::Whole) {
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
                let is_first = !self.begun && first == Some(open);
                let of_it = self.entries.range(open..batch.end).zip(&mut gone[open..batch.end]);
                for (entry, gone) in of_it {
                    // A reader begins with a message that opens a batch, if only to hear what is lost.
                    let is_in_it = matches!(entry, Entry::Item(item) if item.in_batch
                        && !(item.class == Class::Opens && is_first));
                    if is_in_it && !std::mem::replace(gone, true) {
                        left -= entry.size();
                    }
                }
            }
        }
        gone
    }

    /// Puts a note of the loss in the place of what goes.
    fn replace(&mut self, gone: &[bool], cause: LossCause) {
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        for (entry, gone) in entries.into_iter().zip(gone) {
            match entry {
                Entry::Item(item) if *gone => self.add_lost(LostMessages::of(&item, cause)),
                Entry::Lost(lost) => self.add_lost(lost),
                entry => self.add(entry),
            }
        }
    }

    /// What may not be dropped is too much as well: all that waits is lost, and notes of losses that are too
    /// many go into the totals alone. Goes on with the next batch.
    pub fn overflow(&mut self, losses: &mut LossTotals, all: &mut Amount) {
        let gone = vec![true; self.entries.len()];
        self.replace(&gone, LossCause::Backpressure);
        while self.bytes > self.limit / 2
            && let Some(entry) = self.pop()
        {
            losses.note(&entry, all);
        }
        self.runs = Some(HashSet::new());
        self.broken = true;
    }

    /// The connection broke, and another begins: what is left of the batch that it broke in is lost, up to
    /// the next that begins.
    pub fn resume(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        self.runs = Some(HashSet::new());
        self.broken = true;
        self.begun = false;
        for entry in entries {
            match entry {
                // Of its number nothing but whether it is the first of its run matters here.
                Entry::Item(item) => {
                    let before = Amount { messages: item.seq, samples: None };
                    self.push(&Numbered { item, before, opened: None });
                }
                Entry::Lost(lost) => self.add_lost(lost),
                entry => self.add(entry),
            }
        }
    }

    /// What of the entries is lost with the queue.
    pub fn abandon(&mut self, losses: &mut LossTotals, all: &mut Amount) {
        let gone = vec![true; self.entries.len()];
        self.replace(&gone, LossCause::Gap);
        while let Some(entry) = self.pop() {
            losses.note(&entry, all);
        }
    }
}

/// What of a batch waits.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    /// Whether nothing of it was handed over.
    is_whole: bool,
    data: usize,
    /// After its last entry.
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
            span: (kind == 'r').then_some(TimeSpan { first_us: seq * 10, last_us: seq * 10 + 10 }),
            text: vec![b' '; 1000 - size_of::<Entry>() - size_of::<Item>()].into(),
        })
    }

    fn at_start(item: Arc<Item>) -> Numbered {
        let before = Amount { messages: item.seq, samples: None };
        Numbered { item, before, opened: None }
    }

    fn filled(limit: usize, kinds: &str) -> Queue {
        let mut queue = Queue::new(limit, false);
        queue.begun = true;
        for (seq, kind) in (0..).zip(kinds.chars()) {
            queue.push(&at_start(item(kind, seq)));
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
    fn a_reader_begins_with_what_opens_a_batch_whatever_is_dropped() {
        let mut queue = filled(3_500, "mdrrmdr");
        queue.begun = false;
        queue.shrink();
        assert_eq!(told(&mut queue), "0 -1..6");
        let mut queue = filled(7_000, "mdrrmdrrh");
        queue.begun = false;
        assert!(queue.shrink());
        assert_eq!(told(&mut queue), "0 -1..3 4 5 6 7 8");
    }

    #[test]
    fn what_comes_last_together_stays_for_who_has_taken_all_before() {
        let all = |kinds: &str| {
            (0..).zip(kinds.chars()).map(|(seq, kind)| at_start(item(kind, seq))).collect::<Vec<_>>()
        };
        let mut queue = Queue::new(1_500, false);
        queue.extend(&all("mdrrr"));
        assert!(queue.shrink());
        assert_eq!(told(&mut queue), "0 1 2 3 4");
        // Of what came before it, nothing stays.
        queue.extend(&all("mdrrr"));
        queue.extend(&all("mdrrrmdr")[5..]);
        assert!(queue.shrink());
        assert_eq!(told(&mut queue), "-0..4 5 6 7");
    }

    #[test]
    fn a_late_reader_of_an_idle_run_begins_with_the_last_batch_and_hears_that_it_lives() {
        let amount = |messages, samples| Amount { messages, samples: Some(samples) };
        let opened = Some((item('m', 4), amount(4, 20)));
        let mut queue = Queue::new(1 << 20, true);
        queue.push(&Numbered { item: item('r', 5), before: amount(5, 20), opened: None });
        queue.push(&Numbered { item: item('h', 7), before: amount(7, 30), opened });
        queue.push(&Numbered { item: item('h', 8), before: amount(8, 30), opened: None });
        let lost = queue.entries.iter().find_map(|entry| match entry {
            Entry::Lost(lost) => Some((lost.cause, lost.samples)),
            _ => None,
        });
        assert_eq!(lost, Some((LossCause::Gap, Some(10))));
        assert_eq!(told(&mut queue), "missed 4 4 -5..6 7 8");
    }

    #[test]
    fn one_that_stands_alone_can_be_the_first_and_is_dropped_alone() {
        let whole = |seq| {
            let mut whole = Arc::into_inner(item('h', seq)).expect("mine alone");
            (whole.class, whole.samples) = (Class::Whole, Some(10));
            at_start(Arc::new(whole))
        };
        let mut queue = Queue::new(2_500, true);
        (3..7).for_each(|seq| queue.push(&whole(seq)));
        assert!(queue.shrink());
        assert_eq!(told(&mut queue), "missed 3 -3..4 5 6");
    }

    #[test]
    fn after_a_break_each_run_goes_on_with_a_batch_of_its_own() {
        let of = |run, kind, seq| at_start(item_of(run, kind, seq));
        let mut queue = Queue::new(1 << 20, false);
        [("a", 'm', 0), ("b", 'm', 0)].iter().for_each(|(run, kind, seq)| queue.push(&of(run, *kind, *seq)));
        queue.pop();
        queue.pop();
        queue.resume();
        for (run, kind, seq) in [("a", 'r', 1), ("a", 'm', 2), ("b", 'r', 1), ("a", 'r', 3), ("b", 'm', 2)] {
            queue.push(&of(run, kind, seq));
        }
        let mut got = Vec::new();
        while let Some(entry) = queue.pop() {
            got.push(match entry {
                Entry::Item(item) => format!("{}{}", item.run, item.seq),
                Entry::Lost(lost) => format!("-{}{}", lost.run, lost.first_seq),
                Entry::Missed { .. } => "missed".to_string(),
            });
        }
        assert_eq!(got, ["-a1", "a2", "-b1", "a3", "b2"]);
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
            queue.push(&at_start(item('l', seq)));
        }
        assert!(!queue.shrink());
        let (mut losses, mut all) = (LossTotals::default(), Amount::default());
        queue.overflow(&mut losses, &mut all);
        assert!(queue.shrink());
        for (seq, kind) in (20..).zip("drmdr".chars()) {
            queue.push(&at_start(item(kind, seq)));
        }
        assert_eq!(told(&mut queue), "-1..19 -20..21 22 23 24");
        let mut queue = filled(500, "m");
        for run in 0..20 {
            let mut end = Arc::into_inner(item('e', 0)).expect("mine alone");
            end.run = run.to_string().into();
            queue.push(&at_start(Arc::new(end)));
        }
        queue.overflow(&mut losses, &mut all);
        assert_eq!((queue.bytes <= 250, all.messages + queue.entries.len() as u64), (true, 21));
    }

    #[test]
    fn a_loss_holds_the_samples_and_the_time() {
        let mut queue = filled(1, "mdrr");
        queue.shrink();
        let Some(Entry::Lost(lost)) = queue.pop() else { panic!("a loss") };
        let span = TimeSpan { first_us: 20, last_us: 40 };
        assert_eq!((lost.messages(), lost.samples, lost.span), (4, Some(20), Some(span)));
    }

    #[test]
    fn a_late_reader_begins_with_a_batch_and_its_losses_are_counted() {
        let mut queue = Queue::new(1 << 20, true);
        let before = Amount { messages: 4, samples: Some(20) };
        for (seq, kind) in (2..).zip("rrmdr".chars()) {
            queue.push(&Numbered { item: item(kind, seq), before, opened: None });
        }
        assert_eq!(told(&mut queue), "missed 4 4 5 6");
    }

    #[test]
    fn of_runs_side_by_side_each_has_its_losses() {
        let mut queue = Queue::new(1 << 20, true);
        let before = Amount { messages: 2, samples: Some(20) };
        // One begins again at 2, the other is in the middle of a batch, a third begins.
        for (run, kind, seq) in [("a", 'm', 2), ("b", 'h', 2), ("a", 'r', 3), ("b", 'm', 3), ("b", 'r', 4)] {
            let before = Amount { messages: seq, ..before };
            queue.push(&Numbered { item: item_of(run, kind, seq), before, opened: None });
        }
        queue.push(&at_start(item_of("c", 'm', 0)));
        let (mut losses, mut all) = (LossTotals::default(), Amount::default());
        let mut got = Vec::new();
        while let Some(entry) = queue.pop() {
            losses.note(&entry, &mut all);
            if let Entry::Item(item) = &entry {
                got.push((item.run.to_string(), item.seq));
            }
        }
        let want = [("a", 2), ("a", 3), ("b", 3), ("b", 4), ("c", 0)];
        assert_eq!(got, want.map(|(run, seq)| (run.to_string(), seq)));
        let away = |run: &str| losses.of(&run.into()).gap;
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
            queue.push(&at_start(item(kind, seq)));
        }
        assert_eq!(told(&mut queue), "-1..4 5 6 7");
    }

    #[test]
    fn losses_in_a_row_for_two_reasons_stay_two() {
        let mut queue = filled(1, "mdr");
        queue.shrink();
        queue.push(&at_start(item('r', 3)));
        queue.resume();
        let mut losses = LossTotals::default();
        assert_eq!(queue.entries.len(), 2);
        queue.abandon(&mut losses, &mut Amount::default());
        let totals = losses.of(&"run".into());
        assert_eq!(totals.backpressure, Amount { messages: 3, samples: Some(10) });
        assert_eq!(totals.gap, Amount { messages: 1, samples: Some(10) });
    }

    fn add(queue: &mut Queue, item: Arc<Item>) {
        queue.push(&at_start(item));
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
        let (mut losses, mut all) = (LossTotals::default(), Amount::default());
        for run in ["a", "b"] {
            losses.note(
                &Entry::Lost(LostMessages::of(&item_of(run, 'r', 0), LossCause::Backpressure)),
                &mut all,
            );
        }
        for kind in ['r', 'e'] {
            losses.note(&Entry::Item(item_of("a", kind, 1)), &mut all);
            let messages = ["a", "b"].map(|run| losses.of(&run.into()).backpressure.messages);
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
            let (mut losses, mut all) = (LossTotals::default(), Amount::default());
            queue.overflow(&mut losses, &mut all);
            assert_eq!((all.messages, queue.entries.len() as u64), (noted, 2 - noted));
        }
    }
}
