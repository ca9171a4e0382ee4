//! The threads of a sample region: their numbers, their order in the profiler, and the memory that they may take.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{THREAD_FRAMES, THREADS};
use crate::model::ThreadKey;

/// Threads by key, with a short cut for those that were asked for last.
#[derive(Debug)]
pub(crate) struct ThreadIndex {
    indexes: FxHashMap<ThreadKey, u32>,
    /// By a few bits that are mixed from the id.
    recent: [Option<(ThreadKey, u32)>; 1 << ThreadIndex::RECENT_BITS],
}

impl Default for ThreadIndex {
    fn default() -> Self {
        ThreadIndex { indexes: FxHashMap::default(), recent: [None; 1 << Self::RECENT_BITS] }
    }
}

impl ThreadIndex {
    const RECENT_BITS: u32 = 8;

    /// The thread's number; a new thread gets the next one.
    #[inline(always)]
    pub fn get_or_insert(&mut self, thread: ThreadKey) -> usize {
        let mixed = thread.thread_id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let recent = (mixed >> (u64::BITS - Self::RECENT_BITS)) as usize;
        match self.recent[recent] {
            Some((key, index)) if key == thread => index as usize,
            _ => self.look_up(thread, recent),
        }
    }

    #[inline(never)]
    fn look_up(&mut self, thread: ThreadKey, recent: usize) -> usize {
        let next = self.indexes.len() as u32;
        let index = *self.indexes.entry(thread).or_insert(next);
        self.recent[recent] = Some((thread, index));
        index as usize
    }
}

/// What has to be known of the threads of one profile, to read or to write it, within its limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadMemory {
    threads: usize,
    /// Of the deepest stack of each.
    frames: usize,
}

impl ThreadMemory {
    /// There is one more thread.
    ///
    /// # Errors
    ///
    /// More than [`THREADS`].
    #[cold]
    pub fn add_thread(&mut self) -> Result<()> {
        self.threads += 1;
        if self.threads > THREADS {
            let detail = format!("the profile holds more than {THREADS} threads, the limit");
            return Err(Error::new(ErrorKind::Limit, detail));
        }
        Ok(())
    }

    /// A thread has a stack of so many frames, where the deepest one so far had `deepest`.
    ///
    /// # Errors
    ///
    /// More than [`THREAD_FRAMES`].
    #[cold]
    pub fn deepen(&mut self, deepest: &mut u32, depth: u32) -> Result<()> {
        self.frames += (depth - *deepest) as usize;
        *deepest = depth;
        if self.frames > THREAD_FRAMES {
            let detail =
                format!("the threads' stacks have more than {THREAD_FRAMES} frames in all, the limit");
            return Err(Error::new(ErrorKind::Limit, detail));
        }
        Ok(())
    }

    /// Whether so many more threads are within the limits, in all likelihood.
    pub fn has_room_for(&self, threads: usize) -> bool {
        self.threads + threads <= THREADS && self.frames <= THREAD_FRAMES / 2
    }
}

/// Which thread was written before which within one instant.
#[derive(Debug)]
pub(crate) struct OrderSeen {
    time: u64,
    last: Option<u32>,
    /// Number of the current instant.
    instant: u64,
    pairs: FxHashSet<(u32, u32)>,
    /// Some of them, by a few bits, since the same ones come all the time.
    recent: [Option<(u32, u32)>; 64],
}

impl Default for OrderSeen {
    fn default() -> Self {
        OrderSeen { time: 0, last: None, instant: 0, pairs: FxHashSet::default(), recent: [None; 64] }
    }
}

impl OrderSeen {
    /// Pairs beyond this many tell nothing new that is worth the room.
    const PAIRS: usize = 1 << 20;

    /// A sample of `thread` at `time` was written the moment it was taken. `written_in` is the last
    /// instant in which that thread was written.
    #[inline(always)]
    pub fn written(&mut self, time: u64, thread: u32, written_in: &mut u64) {
        // A thread that comes again begins another instant, even at the same time.
        if self.time == time && *written_in != self.instant {
            if let Some(last) = self.last {
                let recent = (last.wrapping_mul(11) ^ thread) as usize % self.recent.len();
                if self.recent[recent] != Some((last, thread)) {
                    self.pair(last, thread, recent);
                }
            }
        } else {
            self.instant += 1;
            self.time = time;
        }
        *written_in = self.instant;
        self.last = Some(thread);
    }

    /// Threads came in this order, as is seen from something else.
    pub fn came(&mut self, first: u32, second: u32) {
        if self.pairs.len() < Self::PAIRS {
            self.pairs.insert((first, second));
        }
    }

    #[inline(never)]
    fn pair(&mut self, first: u32, second: u32, recent: usize) {
        self.recent[recent] = Some((first, second));
        self.came(first, second);
    }

    /// Each thread's place: by the pairs, and where they leave it open, newest first (interpreter id,
    /// then thread id, descending), which is how CPython walks its lists on Linux. Where the
    /// pairs contradict each other, since an id stood for two threads, the newest goes first.
    pub fn rank(&self, threads: &[ThreadKey]) -> Vec<u32> {
        let mut newest: Vec<u32> = (0..threads.len() as u32).collect();
        newest.sort_unstable_by_key(|index| Reverse(threads[*index as usize]));
        let mut place = vec![0u32; threads.len()];
        for (at, index) in newest.iter().enumerate() {
            place[*index as usize] = at as u32;
        }
        let mut after: Vec<Vec<u32>> = vec![Vec::new(); threads.len()];
        let mut waits = vec![0u32; threads.len()];
        for (first, second) in &self.pairs {
            after[*first as usize].push(*second);
            waits[*second as usize] += 1;
        }
        let mut open: BTreeSet<u32> =
            place.iter().zip(&waits).filter(|(_, waits)| **waits == 0).map(|(place, _)| *place).collect();
        let mut left: BTreeSet<u32> = place.iter().copied().collect();
        let mut rank = vec![0u32; threads.len()];
        for next in 0..threads.len() as u32 {
            let chosen =
                open.pop_first().unwrap_or_else(|| *left.first().expect("one is left for each place"));
            left.remove(&chosen);
            let index = newest[chosen as usize];
            rank[index as usize] = next;
            for &second in &after[index as usize] {
                waits[second as usize] = waits[second as usize].saturating_sub(1);
                let place = place[second as usize];
                if waits[second as usize] == 0 && left.contains(&place) {
                    open.insert(place);
                }
            }
        }
        rank
    }
}
