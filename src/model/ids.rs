//! Sets of ids.

/// The id that stands for none: the parent of an outermost frame, the node of an empty stack.
///
/// Ids (of strings, frames, nodes) are plain numbers: whole columns of them are read, written and compared as slices,
/// which types of their own would turn into casts.
pub(crate) const NONE: u32 = u32::MAX;

/// A set of small numbers, taken out in order: a bit for each.
#[derive(Clone, Debug, Default)]
pub struct IdSet {
    words: Vec<u64>,
}

impl IdSet {
    /// For numbers below `end`.
    pub fn new(end: usize) -> Self {
        IdSet { words: vec![0; end.div_ceil(64)] }
    }

    /// From here on for numbers below `end`.
    pub fn resize(&mut self, end: usize) {
        self.words.resize(end.div_ceil(64), 0);
    }

    /// Adds a number.
    #[inline(always)]
    pub fn insert(&mut self, id: u32) {
        self.words[id as usize / 64] |= 1 << (id % 64);
    }

    /// Takes all numbers out, the least first.
    pub fn drain(&mut self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&mut self.words).flat_map(|(word, bits)| {
            let mut left = std::mem::take(bits);
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(64 * word + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_once_and_in_order() {
        let mut set = IdSet::new(200);
        [199, 0, 64, 63, 128, 0, 64].into_iter().for_each(|id| set.insert(id));
        assert_eq!(set.drain().collect::<Vec<_>>(), [0, 63, 64, 128, 199]);
        assert_eq!(set.drain().count(), 0);
    }
}
