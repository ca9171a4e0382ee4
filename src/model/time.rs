//! Time spans and clock pairs.

/// From the earliest to the latest of some times, microseconds of the profiler's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TimeSpan {
    /// The earliest time.
    pub first_us: u64,
    /// The latest time.
    pub last_us: u64,
}

impl TimeSpan {
    /// The span of one time.
    pub const fn at(time_us: u64) -> Self {
        TimeSpan { first_us: time_us, last_us: time_us }
    }

    /// The span of these times; `None` without any.
    #[inline(always)]
    pub fn of(times_us: &[u64]) -> Option<Self> {
        let (first, rest) = times_us.split_first()?;
        let join = |(low, high): (u64, u64), time: &u64| (low.min(*time), high.max(*time));
        let (first_us, last_us) = rest.iter().fold((*first, *first), join);
        Some(TimeSpan { first_us, last_us })
    }

    /// The least span that holds both.
    #[must_use]
    #[inline(always)]
    pub fn join(self, other: TimeSpan) -> Self {
        TimeSpan { first_us: self.first_us.min(other.first_us), last_us: self.last_us.max(other.last_us) }
    }

    /// Widens a span, which is `None` while it holds nothing, so that it holds this one too.
    #[inline(always)]
    pub fn add_to(self, span: &mut Option<TimeSpan>) {
        *span = Some(span.map_or(self, |span| span.join(self)));
    }

    /// From the first time to the last, microseconds; 0 where a file says that the last comes first.
    pub fn duration_us(self) -> u64 {
        self.last_us.saturating_sub(self.first_us)
    }
}

/// One instant on two clocks: what is needed to give other times of the first a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockPair {
    /// Microseconds of the profiler's monotonic clock.
    pub monotonic_us: u64,
    /// The same instant as Unix time, microseconds.
    pub wall_us: i64,
}

impl ClockPair {
    /// The Unix time of `monotonic_us`, microseconds; `None` where it does not fit.
    pub fn wall_at(self, monotonic_us: u64) -> Option<i64> {
        let since = i128::from(monotonic_us) - i128::from(self.monotonic_us);
        i64::try_from(i128::from(self.wall_us) + since).ok()
    }

    /// How far the wall clock was set forward between `earlier` and this pair, microseconds; negative if it was set
    /// back.
    pub fn step_from(self, earlier: ClockPair) -> i128 {
        let offset = |pair: ClockPair| i128::from(pair.wall_us) - i128::from(pair.monotonic_us);
        offset(self) - offset(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_holds_all_its_times_whatever_their_order() {
        assert_eq!(TimeSpan::of(&[]), None);
        let span = TimeSpan::of(&[7, 3, u64::MAX, 3]).expect("times");
        assert_eq!(span, TimeSpan { first_us: 3, last_us: u64::MAX });
        assert_eq!(span.duration_us(), u64::MAX - 3);
        assert_eq!(TimeSpan::at(9).join(TimeSpan::at(2)), TimeSpan { first_us: 2, last_us: 9 });
    }

    #[test]
    fn a_pair_of_clocks_dates_times_before_and_after_it() {
        let pair = ClockPair { monotonic_us: 1_000, wall_us: -5 };
        assert_eq!(pair.wall_at(1_000), Some(-5));
        assert_eq!(pair.wall_at(0), Some(-1_005));
        assert_eq!(pair.wall_at(1_010), Some(5));
        assert_eq!(pair.wall_at(u64::MAX), None);
    }

    #[test]
    fn a_step_of_the_wall_clock_is_the_change_of_its_distance() {
        let pair = ClockPair { monotonic_us: 1_000, wall_us: 5_000 };
        let after = |wall_us| ClockPair { monotonic_us: 3_000, wall_us }.step_from(pair);
        assert_eq!([7_000, 7_300, 6_000].map(after), [0, 300, -1_000]);
    }
}
