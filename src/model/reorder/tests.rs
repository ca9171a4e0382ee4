use proptest::prelude::*;

use super::*;
use crate::model::Clock;

const LANES: usize = 5;

/// A sample as the slow twin keeps it: where it goes, whose it is, which of the lane's it is.
type Entry = (Place, usize, u64, u8);

/// The reorder buffer, slow and obvious: all samples in a list, sorted by the rule.
#[derive(Default)]
struct Twin {
    waiting: Vec<Entry>,
    clocks: [Clock; LANES],
    times: [u64; LANES],
}

impl Twin {
    fn push(&mut self, lane: usize, delta: u64, status: u8) {
        self.times[lane] = self.times[lane].wrapping_add(delta);
        self.waiting.push((self.clocks[lane].take(self.times[lane]), lane, self.times[lane], status));
    }

    fn cut(&mut self, wanted: usize, before: Option<Place>, cut: Cut) -> Vec<Entry> {
        // Stable: a lane's samples stay in order.
        self.waiting.sort_by_key(|(place, lane, ..)| (*place, *lane));
        let complete = self.waiting.partition_point(|entry| before.is_none_or(|before| entry.0 < before));
        let mut taken = complete;
        if complete > wanted {
            let last = self.waiting[wanted.max(1) - 1].0;
            let up_to = self.waiting[..complete].partition_point(|entry| entry.0 <= last);
            let below = self.waiting.partition_point(|entry| entry.0 < last);
            taken = if cut == Cut::Down && up_to > wanted && below > 0 { below } else { up_to };
        }
        self.waiting.drain(..taken).collect()
    }
}

fn lanes() -> Lanes {
    Lanes::new((0..LANES as u64).map(|thread_id| ThreadKey { interpreter_id: 0, thread_id }), 0)
}

/// What the last cut marks, lane by lane.
fn marked(lanes: &Lanes) -> Vec<(usize, Vec<u64>, Vec<u8>)> {
    lanes.slices().map(|slice| (slice.index(), slice.times().to_vec(), slice.status().to_vec())).collect()
}

fn by_lane(mut entries: Vec<Entry>) -> Vec<(usize, Vec<u64>, Vec<u8>)> {
    entries.sort_by_key(|(_, lane, ..)| *lane);
    let of_lane = |entries: &[Entry]| {
        let times = entries.iter().map(|entry| entry.2).collect();
        (entries[0].1, times, entries.iter().map(|entry| entry.3).collect())
    };
    entries.chunk_by(|a, b| a.1 == b.1).map(of_lane).collect()
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
                prop::collection::vec((0..LANES, delta(), any::<u8>()), 0..30),
                0usize..20,
                prop::option::of((0u64..60, 0u64..4)),
                any::<bool>(),
            ),
            1..12,
        )
    ) {
        let (mut lanes, mut twin) = (lanes(), Twin::default());
        // Above all times that go back before the first sample.
        (0..LANES).for_each(|lane| { lanes.push(lane, 100, 0); twin.push(lane, 100, 0) });
        for (samples, wanted, before, up) in rounds {
            for (lane, delta, status) in samples {
                lanes.push(lane, delta, status);
                twin.push(lane, delta, status);
            }
            for lane in 0..LANES {
                prop_assert_eq!(lanes.next_place(lane), twin.clocks[lane].next());
            }
            let before = before.map(|(key, nth)| Place { key: 100 + key, nth });
            let counted = twin.waiting.iter().filter(|entry| before.is_none_or(|before| entry.0 < before)).count();
            prop_assert_eq!(lanes.count_before(before), counted);
            prop_assert_eq!(lanes.first_key(), twin.waiting.iter().map(|entry| entry.0.key).min());
            let cut = if up { Cut::Up } else { Cut::Down };
            let expected = twin.cut(wanted.max(1), before, cut);
            prop_assert_eq!(lanes.cut(wanted.max(1), before, cut), expected.len());
            prop_assert_eq!(marked(&lanes), by_lane(expected));
            let mut copy = Lanes::default();
            copy.copy_from(lanes.slices());
            copy.cut(usize::MAX, None, Cut::Up);
            let of_copy: Vec<_> = marked(&copy).into_iter().map(|(_, times, status)| (times, status)).collect();
            let of_lanes: Vec<_> = marked(&lanes).into_iter().map(|(_, times, status)| (times, status)).collect();
            prop_assert_eq!(of_copy, of_lanes);
            lanes.advance();
            prop_assert_eq!(lanes.waiting(), twin.waiting.len());
        }
    }
}

/// Only lanes with samples are looked at, and an empty one of many gives its room back.
#[test]
fn lanes_that_are_empty_hold_nothing() {
    let threads = (0..1000).map(|thread_id| ThreadKey { interpreter_id: 0, thread_id });
    let mut lanes = Lanes::new(threads, 0);
    for lane in 0..1000 {
        (0..500).for_each(|_| lanes.push(lane, 10, 1));
    }
    assert_eq!(lanes.cut(usize::MAX, Some(Place::first_at(5000)), Cut::Up), 499_000);
    lanes.advance();
    assert_eq!(lanes.active.len(), 1000);
    assert_eq!(lanes.cut(usize::MAX, None, Cut::Up), 1000);
    lanes.advance();
    assert!(lanes.active.is_empty() && lanes.first_key().is_none());
    let room: usize = lanes.lanes.iter().map(Lane::room).sum();
    assert!(room <= 1000 * 64 * 9, "room for {room} bytes of samples");
}
