//! The last chunks of a recording, bounded by size and age: in memory, or in a file that outlives the recorder.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use crate::cli::args::RingLimits;
use crate::cli::record::ring_file::RingFile;
use crate::cli::ui::messages::Messages;
use crate::error::Result;
use crate::format::{ChunkInfo, RING_START};
use crate::model::TimeSpan;

/// What is known of a chunk in the ring.
#[derive(Clone, Debug)]
pub(crate) struct ChunkSummary {
    pub run_id: String,
    pub samples: u64,
    /// `None` without samples.
    pub span: Option<TimeSpan>,
}

impl ChunkSummary {
    pub fn new(info: &ChunkInfo, samples: u64) -> Self {
        ChunkSummary { run_id: info.run_id.clone(), samples, span: (samples > 0).then_some(info.span) }
    }
}

struct Entry {
    summary: ChunkSummary,
    size: u64,
    place: EntryLocation,
}

enum EntryLocation {
    Memory(Arc<Vec<u8>>),
    /// Byte of the ring file.
    File(u64),
}

/// Chunks that have gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub chunks: u64,
    pub samples: u64,
}

/// The ring.
pub(crate) struct Ring {
    limits: RingLimits,
    /// The oldest first.
    entries: VecDeque<Entry>,
    bytes: u64,
    dropped: Dropped,
    file: Option<RingFile>,
    messages: Messages,
}

/// The ring as it was at some time.
pub(crate) struct RingContents {
    /// Run by run, in each the oldest first.
    pub chunks: Vec<(ChunkSummary, Arc<Vec<u8>>)>,
    pub dropped: Dropped,
}

impl Ring {
    /// An empty ring. A ring file that holds chunks already is kept under another name, once a chunk comes.
    ///
    /// # Errors
    ///
    /// A file that cannot be made in its full size, that is no ring, or that somebody records into.
    pub fn new(limits: RingLimits, path: Option<&Path>, messages: Messages) -> Result<Self> {
        let open = |path: &Path| {
            RingFile::open(path, limits.bytes).map_err(|error| error.within(&path.display().to_string()))
        };
        let file = path.map(open).transpose()?;
        Ok(Ring { limits, entries: VecDeque::new(), bytes: 0, dropped: Dropped::default(), file, messages })
    }

    /// Takes the newest chunk, for which the oldest go.
    ///
    /// # Errors
    ///
    /// Errors of the ring file.
    pub fn push(&mut self, summary: ChunkSummary, chunk: Vec<u8>) -> Result<()> {
        let size = chunk.len() as u64;
        let room = self.limits.bytes - self.file.as_ref().map_or(0, |_| RING_START);
        if size > room {
            // It would take the place of all others, and not fit.
            self.dropped.chunks += 1;
            self.dropped.samples += summary.samples;
            return Ok(());
        }
        while self.bytes + size > room {
            self.drop_oldest()?;
        }
        if let Some(file) = &mut self.file
            && let Some(earlier) = file.begin()?
        {
            self.messages
                .note(&file.name(), &format!("the ring that was there is now {}", earlier.display()));
        }
        let newest = summary.span.map(|span| span.last_us);
        let at = self.file.as_ref().map(|file| file.place_for(size, self.limits.bytes));
        if let Some(at) = at {
            let is_in_the_way = |entry: &Entry| match entry.place {
                EntryLocation::File(start) => start < at + size && at < start + entry.size,
                EntryLocation::Memory(_) => false,
            };
            while self.entries.iter().any(is_in_the_way) {
                self.drop_oldest()?;
            }
        }
        let place = match (&mut self.file, at) {
            (Some(file), Some(at)) => {
                file.write(at, &chunk)?;
                EntryLocation::File(at)
            }
            _ => EntryLocation::Memory(Arc::new(chunk)),
        };
        self.bytes += size;
        self.entries.push_back(Entry { summary, size, place });
        // All that is left is needed for the whole duration.
        let from = newest.zip(self.limits.duration);
        let from = from.map(|(newest, duration)| newest.saturating_sub(duration.as_micros() as u64));
        while self.entries.len() > 1
            && from.zip(self.oldest_end_us()).is_some_and(|(from, oldest)| oldest < from)
        {
            self.drop_oldest()?;
        }
        Ok(())
    }

    /// When the oldest chunk ends, or, where it has no samples, the first after it that has.
    fn oldest_end_us(&self) -> Option<u64> {
        self.entries.iter().find_map(|entry| entry.summary.span).map(|span| span.last_us)
    }

    fn drop_oldest(&mut self) -> Result<()> {
        let Some(entry) = self.entries.pop_front() else { return Ok(()) };
        self.bytes -= entry.size;
        self.dropped.chunks += 1;
        self.dropped.samples += entry.summary.samples;
        if let (Some(file), EntryLocation::File(at)) = (&mut self.file, entry.place) {
            file.uncommit(at)?;
        }
        Ok(())
    }

    /// What is in it now.
    ///
    /// # Errors
    ///
    /// Errors of the ring file.
    pub fn contents(&self) -> Result<RingContents> {
        let mut chunks: Vec<(ChunkSummary, Arc<Vec<u8>>)> = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let bytes = match (&entry.place, &self.file) {
                (EntryLocation::Memory(bytes), _) => Arc::clone(bytes),
                (EntryLocation::File(at), Some(file)) => Arc::new(file.read(*at, entry.size)?),
                (EntryLocation::File(_), None) => continue,
            };
            chunks.push((entry.summary.clone(), bytes));
        }
        // The sort is stable, and a run's chunks stand in order.
        let mut runs: Vec<String> = Vec::new();
        for (summary, _) in &chunks {
            if !runs.contains(&summary.run_id) {
                runs.push(summary.run_id.clone());
            }
        }
        chunks.sort_by_key(|(summary, _)| runs.iter().position(|run| *run == summary.run_id));
        Ok(RingContents { chunks, dropped: self.dropped })
    }

    pub fn chunks(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn limit(&self) -> u64 {
        self.limits.bytes
    }

    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Microseconds from the first sample in it to the last.
    pub fn duration_us(&self) -> u64 {
        whole_span(self.entries.iter().map(|entry| &entry.summary)).map_or(0, TimeSpan::duration_us)
    }
}

/// From the first sample of chunks to the last.
pub(crate) fn whole_span<'a>(chunks: impl Iterator<Item = &'a ChunkSummary>) -> Option<TimeSpan> {
    let spans = chunks.filter_map(|summary| summary.span);
    spans.reduce(TimeSpan::join)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A chunk of `size` bytes of a run, from this second to the next.
    fn push(ring: &mut Ring, run: &str, second: u64, size: usize) {
        let (first_us, last_us) = (second * 1_000_000, (second + 1) * 1_000_000);
        let span = Some(TimeSpan { first_us, last_us });
        let summary = ChunkSummary { run_id: run.to_string(), samples: 10, span };
        ring.push(summary, vec![second as u8 + 1; size]).expect("stored");
    }

    fn ring(bytes: u64, seconds: Option<u64>, path: Option<&Path>) -> Ring {
        let limits = RingLimits { bytes, duration: seconds.map(Duration::from_secs) };
        Ring::new(limits, path, Messages::new(true)).expect("a ring")
    }

    /// The first byte of each chunk, all of whose bytes have to be the same.
    fn contents(ring: &Ring) -> Vec<u8> {
        let contents = ring.contents().expect("readable");
        assert_eq!(contents.chunks.len(), ring.chunks());
        assert_eq!(contents.chunks.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>(), ring.bytes());
        let first = |bytes: &[u8]| {
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            bytes[0]
        };
        contents.chunks.iter().map(|(_, bytes)| first(bytes)).collect()
    }

    #[test]
    fn the_newest_chunks_stay_that_fit_the_bytes_and_what_has_gone_is_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ring");
        for (path, extra) in [(None, 0), (Some(path.as_path()), RING_START)] {
            let mut ring = ring(1_000 + extra, None, path);
            assert_eq!((ring.limit(), ring.bytes(), contents(&ring)), (1_000 + extra, 0, vec![]));
            push(&mut ring, "a", 0, 500);
            push(&mut ring, "a", 1, 500);
            assert_eq!(contents(&ring), [1, 2], "exactly full");
            push(&mut ring, "a", 2, 100);
            assert_eq!(contents(&ring), [2, 3]);
            push(&mut ring, "a", 3, 1_001);
            assert_eq!(contents(&ring), [2, 3], "it would not fit into an empty one");
            assert_eq!(ring.dropped(), Dropped { chunks: 2, samples: 20 });
            push(&mut ring, "a", 4, 1_000);
            assert_eq!(contents(&ring), [5]);
            assert_eq!(ring.dropped(), Dropped { chunks: 4, samples: 40 });
        }
    }

    #[test]
    fn chunks_that_end_before_the_duration_go_and_the_newest_stays() {
        let mut ring = ring(1 << 20, Some(3), None);
        for second in 0..10 {
            push(&mut ring, "a", second, 100);
            // From the end of the newest three seconds back: what ends just then is still in it.
            let first = second.saturating_sub(3);
            assert_eq!(contents(&ring), (first..=second).map(|second| second as u8 + 1).collect::<Vec<_>>());
            assert_eq!(ring.duration_us(), (second + 1 - first) * 1_000_000);
        }
        push(&mut ring, "a", 99, 100);
        assert_eq!(contents(&ring), [100]);
        // Chunks without samples have no time, and go with the next that has.
        let empty = ChunkSummary { run_id: "a".to_string(), samples: 0, span: None };
        ring.push(empty, vec![7; 100]).expect("stored");
        assert_eq!((contents(&ring), ring.duration_us()), (vec![100, 7], 1_000_000));
        push(&mut ring, "a", 120, 100);
        assert_eq!(contents(&ring), [7, 121]);
    }

    #[test]
    fn the_chunks_of_a_run_are_held_together_in_their_order() {
        let mut ring = ring(1 << 20, None, None);
        for (second, run) in (0..).zip(["a", "b", "a", "c", "b", "a"]) {
            push(&mut ring, run, second, 100);
        }
        assert_eq!(contents(&ring), [1, 3, 6, 2, 5, 4]);
    }

    /// Round and round in a file: no more goes than has to, and what goes loses its header.
    #[test]
    fn in_a_file_only_what_is_in_the_way_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ring");
        let mut ring = ring(RING_START + 900, None, Some(&path));
        for second in 0..3 {
            push(&mut ring, "a", second, 300);
        }
        assert_eq!(contents(&ring), [1, 2, 3], "the last reaches to the end");
        for second in 3..9 {
            push(&mut ring, "a", second, 300);
            assert_eq!(contents(&ring), [second as u8 - 1, second as u8, second as u8 + 1]);
        }
        push(&mut ring, "a", 9, 200);
        assert_eq!(contents(&ring), [8, 9, 10]);
        let bytes = std::fs::read(&path).expect("readable");
        assert_eq!(bytes.len() as u64, RING_START + 900);
        assert!(bytes[64..264].iter().all(|byte| *byte == 10));
        // The next is written over it, so the header of the second has to go.
        push(&mut ring, "a", 10, 200);
        assert_eq!(contents(&ring), [9, 10, 11]);
        let bytes = std::fs::read(&path).expect("readable");
        assert!(bytes[264..464].iter().all(|byte| *byte == 11));
        ring.drop_oldest().expect("written");
        let bytes = std::fs::read(&path).expect("readable");
        assert!(bytes[664..728].iter().all(|byte| *byte == 0), "its header is gone");
        assert!(bytes[728..964].iter().all(|byte| *byte == 9), "the rest may stay");
    }
}
