//! The order of samples across threads: the one rule that the reorder buffer, the stream, the way back into a profile,
//! chunks and `check` share.
//!
//! A thread's samples stay in recorded order, even where the clock goes back. Over threads a sample's place is
//! the highest time that its thread has reached, then how many earlier samples of the thread share it. Samples of
//! one place go in the order of their threads. Where no clock goes back, that is the order of times.

/// Where a sample stands in time order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderKey {
    /// The highest time that the sample's thread has reached, the sample included.
    pub key: u64,
    /// How many earlier samples of the thread share the key.
    pub nth: u64,
}

impl OrderKey {
    /// After every sample.
    pub const MAX: OrderKey = OrderKey { key: u64::MAX, nth: u64::MAX };

    /// Before every sample with this key.
    #[inline]
    pub const fn first_at(key: u64) -> Self {
        OrderKey { key, nth: 0 }
    }
}

/// How far a thread has come: the least place that its next sample can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock(OrderKey);

impl Clock {
    /// A thread whose next sample can have no lower place.
    pub fn from_next(place: OrderKey) -> Self {
        Clock(place)
    }

    /// The least place of the next sample.
    #[inline]
    pub fn next(self) -> OrderKey {
        self.0
    }

    /// The place of the last sample; before the first, that of the next.
    #[inline]
    pub fn last(self) -> OrderKey {
        OrderKey { key: self.0.key, nth: self.0.nth.saturating_sub(1) }
    }

    /// The highest time so far; 0 before the first sample.
    #[inline]
    pub fn high(self) -> u64 {
        self.0.key
    }

    /// The place of the thread's next sample, if it is taken at `time`.
    #[inline]
    pub fn place(self, time: u64) -> OrderKey {
        if time > self.0.key { OrderKey::first_at(time) } else { self.0 }
    }

    /// The thread's next sample has this place.
    #[inline]
    pub fn pass(&mut self, place: OrderKey) {
        self.0 = OrderKey { key: place.key, nth: place.nth + 1 };
    }

    /// Takes the thread's next sample; returns its place.
    #[inline]
    pub fn take(&mut self, time: u64) -> OrderKey {
        let place = self.place(time);
        self.pass(place);
        place
    }
}

/// The key of each of a thread's next samples, where the highest time so far is `high`.
pub fn keys(mut high: u64, times: &[u64]) -> impl Iterator<Item = u64> {
    times.iter().map(move |time| {
        high = high.max(*time);
        high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_is_no_later_than_the_highest_time_counts_on_there() {
        let mut clock = Clock::default();
        let places = [5, 5, 3, 7, 6, 8].map(|time| clock.take(time));
        let expected =
            [(5, 0), (5, 1), (5, 2), (7, 0), (7, 1), (8, 0)].map(|(key, nth)| OrderKey { key, nth });
        assert_eq!(places, expected);
        assert!(places.is_sorted());
        assert_eq!(keys(0, &[5, 5, 3, 7, 6, 8]).collect::<Vec<u64>>(), expected.map(|place| place.key));
    }

    #[test]
    fn a_first_sample_at_zero_has_the_first_place() {
        let mut clock = Clock::default();
        assert_eq!([clock.take(0), clock.take(0)], [(0, 0), (0, 1)].map(|(key, nth)| OrderKey { key, nth }));
    }
}
