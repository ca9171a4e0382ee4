//! The last chunks of a recording, within limits: in memory, or in a file that outlives the recorder.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use super::ring_file::RingFile;
use crate::cli::args::RingLimits;
use crate::cli::messages::Messages;
use crate::error::Result;
use crate::format::{ChunkInfo, RING_START};

/// What is known of a chunk in the ring.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub run_id: String,
    pub samples: u64,
    /// `None` without samples.
    pub span_us: Option<(u64, u64)>,
}

impl Kept {
    pub fn new(info: &ChunkInfo, samples: u64) -> Self {
        Kept { run_id: info.run_id.clone(), samples, span_us: (samples > 0).then_some(info.span_us) }
    }
}

struct Entry {
    kept: Kept,
    size: u64,
    place: Place,
}

enum Place {
    Memory(Arc<Vec<u8>>),
    /// Byte of the ring file.
    File(u64),
}

/// Chunks that have gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    pub chunks: u64,
    pub samples: u64,
}

/// The ring.
pub(super) struct Ring {
    limits: RingLimits,
    /// The oldest first.
    entries: VecDeque<Entry>,
    bytes: u64,
    gone: Gone,
    file: Option<RingFile>,
    messages: Messages,
}

/// The ring as it was at some time.
pub(super) struct Held {
    /// Run by run, in each the oldest first.
    pub chunks: Vec<(Kept, Arc<Vec<u8>>)>,
    pub gone: Gone,
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
        Ok(Ring { limits, entries: VecDeque::new(), bytes: 0, gone: Gone::default(), file, messages })
    }

    /// Takes the newest chunk, for which the oldest go.
    ///
    /// # Errors
    ///
    /// Errors of the ring file.
    pub fn push(&mut self, kept: Kept, chunk: Vec<u8>) -> Result<()> {
        let size = chunk.len() as u64;
        let room = self.limits.bytes - self.file.as_ref().map_or(0, |_| RING_START);
        if size > room {
            // It would take the place of all others, and not fit.
            self.gone.chunks += 1;
            self.gone.samples += kept.samples;
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
        let newest = kept.span_us.map(|span| span.1);
        let at = self.file.as_ref().map(|file| file.place_for(size, self.limits.bytes));
        if let Some(at) = at {
            let is_in_the_way = |entry: &Entry| match entry.place {
                Place::File(start) => start < at + size && at < start + entry.size,
                Place::Memory(_) => false,
            };
            while self.entries.iter().any(is_in_the_way) {
                self.drop_oldest()?;
            }
        }
        let place = match (&mut self.file, at) {
            (Some(file), Some(at)) => {
                file.write(at, &chunk)?;
                Place::File(at)
            }
            _ => Place::Memory(Arc::new(chunk)),
        };
        self.bytes += size;
        self.entries.push_back(Entry { kept, size, place });
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

    /// When the oldest chunk ends, or, where it has no samples, the first behind it that has.
    fn oldest_end_us(&self) -> Option<u64> {
        self.entries.iter().find_map(|entry| entry.kept.span_us).map(|span| span.1)
    }

    fn drop_oldest(&mut self) -> Result<()> {
        let Some(entry) = self.entries.pop_front() else { return Ok(()) };
        self.bytes -= entry.size;
        self.gone.chunks += 1;
        self.gone.samples += entry.kept.samples;
        if let (Some(file), Place::File(at)) = (&mut self.file, entry.place) {
            file.uncommit(at)?;
        }
        Ok(())
    }

    /// What is in it now.
    ///
    /// # Errors
    ///
    /// Errors of the ring file.
    pub fn held(&self) -> Result<Held> {
        let mut chunks: Vec<(Kept, Arc<Vec<u8>>)> = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let bytes = match (&entry.place, &self.file) {
                (Place::Memory(bytes), _) => Arc::clone(bytes),
                (Place::File(at), Some(file)) => Arc::new(file.read(*at, entry.size)?),
                (Place::File(_), None) => continue,
            };
            chunks.push((entry.kept.clone(), bytes));
        }
        // The sort is stable, and a run's chunks stand in order.
        let mut runs: Vec<String> = Vec::new();
        for (kept, _) in &chunks {
            if !runs.contains(&kept.run_id) {
                runs.push(kept.run_id.clone());
            }
        }
        chunks.sort_by_key(|(kept, _)| runs.iter().position(|run| *run == kept.run_id));
        Ok(Held { chunks, gone: self.gone })
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

    pub fn gone(&self) -> Gone {
        self.gone
    }

    /// Microseconds from the first sample in it to the last.
    pub fn duration_us(&self) -> u64 {
        whole_span(self.entries.iter().map(|entry| &entry.kept)).map_or(0, |(low, high)| high - low)
    }
}

/// From the first sample of chunks to the last.
pub(super) fn whole_span<'a>(chunks: impl Iterator<Item = &'a Kept>) -> Option<(u64, u64)> {
    let spans = chunks.filter_map(|kept| kept.span_us);
    spans.reduce(|(low, high), span| (low.min(span.0), high.max(span.1)))
}
