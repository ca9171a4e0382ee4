//! Samples into records, by the rules of CPython's writer: the same samples in the same order give
//! the same bytes.

use rustc_hash::FxHashMap;

use crate::format::entries::{self, ENTRY_MAX};
use crate::format::record::{Change, FULL, REPEAT, write_change, write_head};
use crate::format::varint;
use crate::model::ThreadKey;

/// A run is written before it could pass this many bytes with one more entry of the greatest length.
const RUN_BYTES: usize = 16 * 1024;

/// Encodes samples, thread by thread, into the records of one profile.
#[derive(Debug)]
pub(crate) struct DeltaEncoder {
    start_us: u64,
    indexes: FxHashMap<ThreadKey, usize>,
    /// In the order in which they were first seen.
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    key: ThreadKey,
    last_time: u64,
    /// Outermost frame first.
    stack: Vec<u32>,
    run: Vec<u8>,
    run_samples: u32,
}

impl DeltaEncoder {
    pub fn new(start_us: u64) -> Self {
        DeltaEncoder { start_us, indexes: FxHashMap::default(), threads: Vec::new() }
    }

    /// The number of a thread; a new one gets the next.
    pub fn thread(&mut self, key: ThreadKey) -> usize {
        *self.indexes.entry(key).or_insert_with(|| {
            self.threads.push(Thread {
                key,
                last_time: self.start_us,
                stack: Vec::new(),
                run: Vec::new(),
                run_samples: 0,
            });
            self.threads.len() - 1
        })
    }

    /// The number of a thread that has one.
    pub fn known_thread(&self, key: ThreadKey) -> Option<usize> {
        self.indexes.get(&key).copied()
    }

    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The thread's stack, outermost frame first.
    pub fn stack(&self, thread: usize) -> &[u32] {
        &self.threads[thread].stack
    }

    /// The thread's run, to which samples with its stack are added.
    pub fn run(&mut self, thread: usize) -> Run<'_> {
        Run { thread: &mut self.threads[thread] }
    }

    /// Writes the thread's run, if there is one.
    pub fn flush(&mut self, thread: usize, out: &mut Vec<u8>) {
        let thread = &mut self.threads[thread];
        if thread.run_samples > 0 {
            write_head(out, thread.key, REPEAT);
            varint::write(out, u64::from(thread.run_samples));
            out.append(&mut thread.run);
            thread.run_samples = 0;
        }
    }

    /// Adds a sample with another stack: `shared` outermost frames stay, `new` come on top, innermost
    /// first. The stacks must differ.
    pub fn change(
        &mut self,
        thread: usize,
        time: u64,
        status: u8,
        shared: usize,
        new: &[u32],
        out: &mut Vec<u8>,
    ) {
        self.flush(thread, out);
        let thread = &mut self.threads[thread];
        let old_depth = thread.stack.len();
        let new_depth = shared + new.len();
        let count = |frames: usize| frames as u32;
        let change = if shared == 0 || shared != old_depth && shared < new_depth / 2 {
            Change::full(count(new_depth))
        } else if shared == old_depth {
            Change::suffix(count(shared), count(new.len()))
        } else {
            Change::pop_push(count(old_depth - shared), count(new.len()))
        };
        let delta = time.wrapping_sub(thread.last_time);
        thread.last_time = time;
        thread.stack.truncate(shared);
        thread.stack.extend(new.iter().rev());
        let frames = if change.encoding == FULL { new_depth } else { new.len() };
        let pushed = thread.stack.iter().rev().take(frames).copied();
        write_change(out, thread.key, (delta, status), change, pushed);
    }
}

#[inline]
fn is_full(run: &[u8]) -> bool {
    run.len() + ENTRY_MAX > RUN_BYTES
}

/// A thread's samples since its last record.
pub(crate) struct Run<'a> {
    thread: &'a mut Thread,
}

impl Run<'_> {
    /// Whether the run must be written before it takes another sample. That happens at the sample's place
    /// in time, so other threads' records may come first.
    #[inline]
    pub fn is_full(&self) -> bool {
        is_full(&self.thread.run)
    }

    /// Adds the first of these samples, as many as fit before the run is full; returns how many.
    #[inline]
    pub fn extend(&mut self, times: &[u64], status: &[u8]) -> usize {
        let Thread { last_time, run, run_samples, .. } = &mut *self.thread;
        let mut taken = 0;
        while taken < times.len() && !is_full(run) {
            // So many fit, however long they are.
            let these = taken..times.len().min(taken + (RUN_BYTES - run.len()) / ENTRY_MAX);
            taken = these.end;
            for (time, status) in times[these.clone()].iter().zip(&status[these]) {
                entries::write(run, time.wrapping_sub(*last_time), *status);
                *last_time = *time;
            }
        }
        *run_samples += taken as u32;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::{POP_PUSH, SUFFIX};

    const THREAD: ThreadKey = ThreadKey { interpreter_id: 0, thread_id: 7 };

    fn kinds(stacks: &[&[u32]]) -> Vec<u8> {
        let mut encoder = DeltaEncoder::new(0);
        let thread = encoder.thread(THREAD);
        let mut kinds = Vec::new();
        for (time, stack) in (1..).zip(stacks) {
            let shared = encoder.stack(thread).iter().zip(*stack).take_while(|(a, b)| a == b).count();
            let new: Vec<u32> = stack[shared..].iter().rev().copied().collect();
            let mut out = Vec::new();
            encoder.change(thread, time, 0, shared, &new, &mut out);
            kinds.push(out[12]);
        }
        kinds
    }

    #[test]
    fn a_stack_that_shares_nothing_is_full() {
        assert_eq!(kinds(&[&[1, 2], &[3], &[]]), [FULL, FULL, FULL]);
    }

    #[test]
    fn frames_on_top_of_the_whole_old_stack_are_a_suffix() {
        assert_eq!(kinds(&[&[1], &[1, 2, 3, 4, 5]]), [FULL, SUFFIX]);
    }

    #[test]
    fn less_than_half_shared_is_full_and_half_is_pop_push() {
        assert_eq!(kinds(&[&[1, 9], &[1, 2, 3, 4]]), [FULL, FULL]);
        assert_eq!(kinds(&[&[1, 2, 9], &[1, 2, 3, 4, 5]]), [FULL, POP_PUSH]);
        assert_eq!(kinds(&[&[1, 2, 9], &[1, 2]]), [FULL, POP_PUSH]);
    }

    #[test]
    fn a_run_is_full_before_it_could_pass_sixteen_kib() {
        let mut encoder = DeltaEncoder::new(0);
        let thread = encoder.thread(THREAD);
        let times: Vec<u64> = (1..=9000).collect();
        let status = vec![0; times.len()];
        assert_eq!(encoder.run(thread).extend(&times, &status), 8187);
        assert!(encoder.run(thread).is_full());
        assert_eq!(encoder.run(thread).extend(&times, &status), 0);
        // One by one just as many.
        let other = encoder.thread(ThreadKey { thread_id: 8, ..THREAD });
        let mut one_by_one = times.chunks(1).zip(status.chunks(1));
        let taken = one_by_one.position(|(time, status)| encoder.run(other).extend(time, status) == 0);
        assert_eq!(taken, Some(8187));
    }
}
