//! Groups of `raw` messages: messages whose samples are sorted together.
//!
//! A message is later than those before it, but where a line would hold so many threads that it has no room for their
//! samples, a writer cuts some time into messages by threads: a *group*. Its messages stand in one batch, one after
//! the other, count their times from the same `start_usec`, and have no thread in common. A message that has a
//! thread again, or would make the group too large to be kept, begins another one. So a group is known without a mark, and a
//! reader that does not care for the order over threads needs to know nothing of it.

use rustc_hash::FxHashSet;

use crate::limits::{GROUP_SAMPLES, THREADS};
use crate::model::ThreadKey;
use crate::protocol::RawColumns;

/// What a group may weigh, so that a reader can keep it, and it has at most the threads of a profile. A writer's groups
/// have half as many samples, but for the instant that they end with.
const LIMIT: u64 = 2 * GROUP_SAMPLES as u64;

/// What a reader has to keep of these messages.
fn weight(messages: usize, samples: u64, nodes: usize) -> u64 {
    16 * messages as u64 + samples + nodes as u64 / 4
}

/// Whether messages with so many samples and nodes can be one group.
pub(crate) fn is_group(messages: usize, samples: usize, nodes: usize) -> bool {
    weight(messages, samples as u64, nodes) <= LIMIT
}

/// Tells the groups of a run apart, message by message.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Batch and start of the current group.
    current: Option<(u64, u64)>,
    weight: u64,
    thread_count: usize,
    /// The threads of its first message, and once it has two those of all.
    first: Vec<ThreadKey>,
    threads: FxHashSet<ThreadKey>,
}

impl Groups {
    /// Takes the run's next message; returns whether it goes on with the group of those before it.
    pub fn goes_on(&mut self, columns: &RawColumns) -> bool {
        let head = Some((columns.batch, columns.start_usec));
        let keys = || columns.threads().iter().map(|thread| thread.key());
        let samples = columns.samples.max(columns.threads().len() as u64);
        let weight = weight(1, samples, columns.stack_frame_id.len());
        let threads = self.thread_count + columns.threads().len();
        let has_room = self.weight.saturating_add(weight) <= LIMIT && threads <= THREADS;
        let goes_on = self.current == head && has_room && {
            self.threads.extend(self.first.drain(..));
            !keys().any(|key| self.threads.contains(&key))
        };
        if goes_on {
            self.weight += weight;
            self.thread_count = threads;
            self.threads.extend(keys());
            return true;
        }
        self.current = head;
        self.weight = weight;
        self.thread_count = columns.threads().len();
        self.threads.clear();
        self.first.clear();
        self.first.extend(keys());
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::decode;

    /// A message of the batch with a sample of each of these threads.
    fn columns(batch: u64, start_usec: u64, threads: &[u64]) -> RawColumns {
        let rows: Vec<String> = threads
            .iter()
            .map(|id| {
                format!(r#"{{"thread_id":"{id}","interpreter_id":0,"ts_delta_usec":[5],"status":[1]}}"#)
            })
            .collect();
        let line = format!(
            r#"{{"type":"raw","v":2,"run_id":"r","seq":1,"batch":{batch},"start_usec":{start_usec},"samples":{},"stack_frame_id":[],"threads":[{}]}}"#,
            threads.len(),
            rows.join(",")
        );
        let mut columns = RawColumns::default();
        decode(line.as_bytes(), &mut columns).expect("a message");
        columns
    }

    #[test]
    fn a_group_is_messages_of_one_start_without_a_thread_in_common() {
        let mut groups = Groups::default();
        let mut goes_on = |batch, start, threads: &[u64]| groups.goes_on(&columns(batch, start, threads));
        assert!(!goes_on(0, 100, &[1, 2]));
        assert!(goes_on(0, 100, &[3]));
        assert!(goes_on(0, 100, &[5, 4]));
        // A thread of the first message, of a later one, of the new group's.
        assert!(!goes_on(0, 100, &[6, 1]));
        assert!(goes_on(0, 100, &[2]));
        assert!(!goes_on(0, 100, &[7, 2]));
        assert!(!goes_on(0, 100, &[7]));
        // Another start, another batch.
        assert!(!goes_on(0, 101, &[8]));
        assert!(!goes_on(1, 101, &[9]));
        assert!(goes_on(1, 101, &[8]));
    }

    #[test]
    fn a_group_ends_before_it_is_too_large_to_be_kept() {
        let mut groups = Groups::default();
        let per_message = 16 + 2;
        let fitting = LIMIT / per_message;
        for message in 0..fitting {
            let goes_on = groups.goes_on(&columns(0, 100, &[2 * message, 2 * message + 1]));
            assert_eq!(goes_on, message > 0, "message {message}");
        }
        assert!(!groups.goes_on(&columns(0, 100, &[u64::MAX])));
    }
}
