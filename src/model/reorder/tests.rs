use proptest::prelude::*;

use super::*;
use crate::model::Clock;

const THREADS: usize = 5;

/// A sample as the slow twin keeps it: where it goes, whose it is, which of the queue's it is.
type Entry = (OrderKey, usize, u64, u8);

/// The reorder buffer, slow and obvious: all samples in a list, sorted by the rule.
#[derive(Default)]
struct Twin {
    waiting: Vec<Entry>,
    clocks: [Clock; THREADS],
    times: [u64; THREADS],
}

impl Twin {
    fn push(&mut self, queue: usize, delta: u64, status: u8) {
        self.times[queue] = self.times[queue].wrapping_add(delta);
        self.waiting.push((self.clocks[queue].take(self.times[queue]), queue, self.times[queue], status));
    }

    fn cut(&mut self, wanted: usize, before: Option<OrderKey>, cut: Cut) -> Vec<Entry> {
        // Stable: a queue's samples stay in order.
        self.waiting.sort_by_key(|(place, queue, ..)| (*place, *queue));
        let complete = self.waiting.partition_point(|entry| before.is_none_or(|before| entry.0 < before));
        let mut taken = complete;
        if complete > wanted {
            let last = self.waiting[wanted.max(1) - 1].0;
            let up_to = self.waiting[..complete].partition_point(|entry| entry.0 <= last);
            let below = self.waiting.partition_point(|entry| entry.0 < last);
            taken = if cut == Cut::BeforeInstant && up_to > wanted && below > 0 { below } else { up_to };
        }
        self.waiting.drain(..taken).collect()
    }
}

fn queues() -> ReorderBuffer {
    ReorderBuffer::new((0..THREADS as u64).map(|thread_id| ThreadKey { interpreter_id: 0, thread_id }), 0)
}

/// What the last cut marks, queue by queue.
fn marked(queues: &ReorderBuffer) -> Vec<(usize, Vec<u64>, Vec<u8>)> {
    queues.slices().map(|slice| (slice.index(), slice.times().to_vec(), slice.status().to_vec())).collect()
}

fn by_queue(mut entries: Vec<Entry>) -> Vec<(usize, Vec<u64>, Vec<u8>)> {
    entries.sort_by_key(|(_, queue, ..)| *queue);
    let of_queue = |entries: &[Entry]| {
        let times = entries.iter().map(|entry| entry.2).collect();
        (entries[0].1, times, entries.iter().map(|entry| entry.3).collect())
    };
    entries.chunk_by(|a, b| a.1 == b.1).map(of_queue).collect()
}

/// Mostly a clock that goes on; it stands still, jumps, and goes back.
fn delta() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 1u64..4, 3 => Just(0), 1 => Just(50), 1 => (1u64..9).prop_map(u64::wrapping_neg)]
}

proptest! {
    #[test]
    fn cuts_are_those_of_a_sorted_list(
        rounds in prop::collection::vec(
            (
                prop::collection::vec((0..THREADS, delta(), any::<u8>()), 0..30),
                0usize..20,
                prop::option::of((0u64..60, 0u64..4)),
                any::<bool>(),
            ),
            1..12,
        )
    ) {
        let (mut queues, mut twin) = (queues(), Twin::default());
        // Above all times that go back before the first sample.
        (0..THREADS).for_each(|queue| { queues.push(queue, 100, 0); twin.push(queue, 100, 0) });
        for (samples, wanted, before, up) in rounds {
            for (queue, delta, status) in samples {
                queues.push(queue, delta, status);
                twin.push(queue, delta, status);
            }
            for queue in 0..THREADS {
                prop_assert_eq!(queues.next_key(queue), twin.clocks[queue].next());
            }
            let before = before.map(|(key, nth)| OrderKey { key: 100 + key, nth });
            let counted = twin.waiting.iter().filter(|entry| before.is_none_or(|before| entry.0 < before)).count();
            prop_assert_eq!(queues.count_before(before), counted);
            prop_assert_eq!(queues.first_key(), twin.waiting.iter().map(|entry| entry.0.key).min());
            let cut = if up { Cut::AfterInstant } else { Cut::BeforeInstant };
            let expected = twin.cut(wanted.max(1), before, cut);
            prop_assert_eq!(queues.cut(wanted.max(1), before, cut), expected.len());
            prop_assert_eq!(marked(&queues), by_queue(expected));
            let mut copy = ReorderBuffer::default();
            copy.copy_from(queues.slices());
            copy.cut(usize::MAX, None, Cut::AfterInstant);
            let of_copy: Vec<_> = marked(&copy).into_iter().map(|(_, times, status)| (times, status)).collect();
            let of_queues: Vec<_> = marked(&queues).into_iter().map(|(_, times, status)| (times, status)).collect();
            prop_assert_eq!(of_copy, of_queues);
            queues.advance();
            prop_assert_eq!(queues.waiting(), twin.waiting.len());
        }
    }
}

/// Only queues with samples are looked at, and an empty one of many gives its room back.
#[test]
fn queues_that_are_empty_hold_nothing() {
    let threads = (0..1000).map(|thread_id| ThreadKey { interpreter_id: 0, thread_id });
    let mut queues = ReorderBuffer::new(threads, 0);
    for queue in 0..1000 {
        (0..500).for_each(|_| queues.push(queue, 10, 1));
    }
    assert_eq!(queues.cut(usize::MAX, Some(OrderKey::first_at(5000)), Cut::AfterInstant), 499_000);
    queues.advance();
    assert_eq!(queues.active.len(), 1000);
    assert_eq!(queues.cut(usize::MAX, None, Cut::AfterInstant), 1000);
    queues.advance();
    assert!(queues.active.is_empty() && queues.first_key().is_none());
    let room: usize = queues.queues.iter().map(ThreadQueue::room).sum();
    assert!(room <= ReorderBuffer::ROOM * 9, "room for {room} bytes of samples");
}
