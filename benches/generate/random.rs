//! Randomness with a fixed seed.

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, but not 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    pub fn range(&mut self, from: usize, to: usize) -> usize {
        from + (self.next() % (to - from) as u64) as usize
    }

    /// Exponential with this rate, the fraction dropped.
    pub fn exponential(&mut self, rate: f64) -> usize {
        (-(1.0 - self.unit()).ln() / rate) as usize
    }

    pub fn normal(&mut self, mean: f64, deviation: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        mean + deviation * radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A rank below `count`, about as Zipf's law has it.
    pub fn rank(&mut self, count: usize) -> usize {
        ((count as f64).powf(self.unit()) as usize).clamp(1, count) - 1
    }

    /// Any of them.
    pub fn any<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.range(0, items.len())]
    }

    /// One of them, the first most often.
    pub fn hot<T: Copy>(&mut self, items: &[T]) -> T {
        match items {
            [only] => *only,
            _ if self.chance(0.8) => items[self.rank(items.len())],
            _ => self.any(items),
        }
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            let other = self.range(0, end + 1);
            items.swap(end, other);
        }
    }
}
