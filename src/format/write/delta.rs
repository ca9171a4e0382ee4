//! Encodes samples as records by the rules of CPython's writer: the same samples in the same order give the same bytes.
//!
//! CPython keeps a run of every thread until it is full or the thread's stack changes. Where all of them together
//! take more than [`RUNS_MEMORY`], they go on in a temporary file.

use std::io::{Read, Seek, SeekFrom, Write};

use rustc_hash::FxHashMap;
use tempfile::SpooledTempFile;

use crate::error::Result;
use crate::format::record::entries::{self, ENTRY_MAX};
use crate::format::record::{Change, FULL, REPEAT, write_change, write_head};
use crate::format::threads::ThreadMemory;
use crate::limits::{RUNS_MEMORY, SPOOL_MEMORY};
use crate::model::ThreadKey;
use crate::varint;

/// A run is written before it could pass this many bytes with one more entry of the greatest length.
const RUN_BYTES: usize = 16 * 1024;

/// Encodes samples, thread by thread, into the records of one profile.
#[derive(Debug)]
pub(crate) struct DeltaEncoder {
    start_us: u64,
    indexes: FxHashMap<ThreadKey, usize>,
    /// In the order in which they were first seen.
    threads: Vec<EncodedThread>,
    memory: ThreadMemory,
    /// Bytes that the runs have room for in memory, and how many may be there.
    kept: usize,
    may_keep: usize,
    spool: Option<SpooledTempFile>,
}

#[derive(Debug)]
struct EncodedThread {
    key: ThreadKey,
    last_time: u64,
    /// Outermost frame first.
    stack: Vec<u32>,
    /// Frames of the deepest that it had.
    deepest: u32,
    /// The run's end, after what is in the spool.
    run: Vec<u8>,
    run_samples: u32,
    /// Pieces of the spool: where, and how long.
    spooled: Vec<(u64, u32)>,
    /// Bytes of them.
    spooled_len: usize,
}

impl DeltaEncoder {
    pub fn new(start_us: u64) -> Self {
        DeltaEncoder {
            start_us,
            indexes: FxHashMap::default(),
            threads: Vec::new(),
            memory: ThreadMemory::default(),
            kept: 0,
            may_keep: RUNS_MEMORY,
            spool: None,
        }
    }

    /// The number of a thread; a new one gets the next.
    ///
    /// # Errors
    ///
    /// More threads than a profile may hold.
    pub fn thread(&mut self, key: ThreadKey) -> Result<usize> {
        if let Some(known) = self.known_thread(key) {
            return Ok(known);
        }
        self.memory.add_thread()?;
        self.indexes.insert(key, self.threads.len());
        self.threads.push(EncodedThread {
            key,
            last_time: self.start_us,
            stack: Vec::new(),
            deepest: 0,
            run: Vec::new(),
            run_samples: 0,
            spooled: Vec::new(),
            spooled_len: 0,
        });
        Ok(self.threads.len() - 1)
    }

    /// Whether the profile takes so many more threads.
    pub fn has_room_for(&self, threads: usize) -> bool {
        self.memory.has_room_for(threads)
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

    /// Whether the thread's run must be written before it takes another sample. That happens at the sample's place
    /// in time, so other threads' records may come first.
    #[inline]
    pub fn is_full(&self, thread: usize) -> bool {
        self.threads[thread].room() < ENTRY_MAX
    }

    /// Adds the first of these samples, which have the thread's stack, to its run, as many as fit before it is full;
    /// returns how many.
    ///
    /// # Errors
    ///
    /// Errors of the spool.
    #[inline]
    pub fn extend(&mut self, thread: usize, times: &[u64], status: &[u8]) -> Result<usize> {
        let run = &mut self.threads[thread];
        let before = run.run.capacity();
        let taken = run.extend(times, status);
        self.kept += run.run.capacity() - before;
        if self.kept > self.may_keep {
            self.spool()?;
        }
        Ok(taken)
    }

    /// Takes all runs out of memory.
    #[cold]
    fn spool(&mut self) -> Result<()> {
        let spool = self.spool.get_or_insert_with(|| SpooledTempFile::new(SPOOL_MEMORY));
        let mut at = spool.seek(SeekFrom::End(0))?;
        for thread in self.threads.iter_mut().filter(|thread| !thread.run.is_empty()) {
            spool.write_all(&thread.run)?;
            thread.spooled.push((at, thread.run.len() as u32));
            thread.spooled_len += thread.run.len();
            at += thread.run.len() as u64;
        }
        self.threads.iter_mut().for_each(|thread| thread.run = Vec::new());
        self.kept = 0;
        Ok(())
    }

    /// Writes the thread's run, if there is one.
    ///
    /// # Errors
    ///
    /// Errors of the spool.
    pub fn flush(&mut self, thread: usize, out: &mut Vec<u8>) -> Result<()> {
        let thread = &mut self.threads[thread];
        if thread.run_samples == 0 {
            return Ok(());
        }
        write_head(out, thread.key, REPEAT);
        varint::write(out, u64::from(thread.run_samples));
        if let (Some(spool), false) = (&mut self.spool, thread.spooled.is_empty()) {
            for (at, len) in thread.spooled.drain(..) {
                let start = out.len();
                out.resize(start + len as usize, 0);
                spool.seek(SeekFrom::Start(at))?;
                spool.read_exact(&mut out[start..])?;
            }
            thread.spooled_len = 0;
        }
        out.append(&mut thread.run);
        thread.run_samples = 0;
        Ok(())
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
    ) -> Result<()> {
        self.flush(thread, out)?;
        let thread = &mut self.threads[thread];
        let old_depth = thread.stack.len();
        let new_depth = shared + new.len();
        if new_depth > thread.deepest as usize {
            self.memory.deepen(&mut thread.deepest, new_depth as u32)?;
        }
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
        Ok(())
    }
}

impl EncodedThread {
    /// Bytes that the run may still take.
    #[inline]
    fn room(&self) -> usize {
        RUN_BYTES - self.run.len() - self.spooled_len
    }

    #[inline]
    fn extend(&mut self, times: &[u64], status: &[u8]) -> usize {
        let mut taken = 0;
        // So many fit, however long they are.
        while taken < times.len() && self.room() >= ENTRY_MAX {
            let these = taken..times.len().min(taken + self.room() / ENTRY_MAX);
            taken = these.end;
            for (time, status) in times[these.clone()].iter().zip(&status[these]) {
                entries::write(&mut self.run, time.wrapping_sub(self.last_time), *status);
                self.last_time = *time;
            }
        }
        self.run_samples += taken as u32;
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
        let thread = encoder.thread(THREAD).expect("few");
        let mut kinds = Vec::new();
        for (time, stack) in (1..).zip(stacks) {
            let shared = encoder.stack(thread).iter().zip(*stack).take_while(|(a, b)| a == b).count();
            let new: Vec<u32> = stack[shared..].iter().rev().copied().collect();
            let mut out = Vec::new();
            encoder.change(thread, time, 0, shared, &new, &mut out).expect("memory");
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
        let thread = encoder.thread(THREAD).expect("few");
        let times: Vec<u64> = (1..=9000).collect();
        let status = vec![0; times.len()];
        assert_eq!(encoder.extend(thread, &times, &status).expect("memory"), 8187);
        assert!(encoder.is_full(thread));
        assert_eq!(encoder.extend(thread, &times, &status).expect("memory"), 0);
        // One by one just as many.
        let other = encoder.thread(ThreadKey { thread_id: 8, ..THREAD }).expect("few");
        let mut one_by_one = times.chunks(1).zip(status.chunks(1));
        let taken =
            one_by_one.position(|(time, status)| encoder.extend(other, time, status).expect("memory") == 0);
        assert_eq!(taken, Some(8187));
    }

    #[test]
    fn runs_that_go_on_in_a_file_are_written_as_those_in_memory() {
        let records = |may_keep: usize| {
            let mut encoder = DeltaEncoder { may_keep, ..DeltaEncoder::new(0) };
            let mut out = Vec::new();
            let threads: Result<Vec<usize>> =
                (0..20).map(|id| encoder.thread(ThreadKey { thread_id: id, ..THREAD })).collect();
            let threads = threads.expect("few");
            for tick in 1..12_000u64 {
                for &thread in &threads {
                    if encoder.is_full(thread) {
                        encoder.flush(thread, &mut out).expect("a file");
                    }
                    let time = tick * 100 + thread as u64 * tick % 7;
                    if tick % 5000 == thread as u64 {
                        encoder.change(thread, time, 1, 0, &[tick as u32], &mut out).expect("a file");
                    } else {
                        assert_eq!(encoder.extend(thread, &[time], &[tick as u8]).expect("a file"), 1);
                    }
                    assert!(encoder.kept <= may_keep);
                }
            }
            for thread in threads {
                encoder.flush(thread, &mut out).expect("a file");
            }
            (out, encoder.spool.is_some())
        };
        let (expected, false) = records(RUNS_MEMORY) else { panic!("all fit into memory") };
        for may_keep in [20_000, 100_000] {
            let (found, true) = records(may_keep) else { panic!("they do not fit into memory") };
            assert!(found == expected);
        }
    }
}
