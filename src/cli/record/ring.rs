//! The last chunks of a recording, within limits: in memory, or in a file that outlives the recorder.
//!
//! The file is written as any other, and not through a mapping: what a process has written is the system's
//! and stays when the process is killed, just as with a mapping, and no page of it has to be trusted
//! (`unsafe`). Only a crash of the machine loses what was not yet stored. Its layout is that of
//! [`crate::format::ring_start`].

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::args::RingLimits;
use crate::error::{Error, Result};
use crate::format::{ChunkInfo, HEADER_LEN, RING_START, is_ring, ring_start};

/// What is known of a chunk in the ring.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub run_id: String,
    pub samples: u64,
    pub span_us: (u64, u64),
}

impl Kept {
    pub fn new(info: &ChunkInfo, samples: u64) -> Self {
        Kept { run_id: info.run_id.clone(), samples, span_us: info.span_us }
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
}

struct RingFile {
    file: File,
    path: PathBuf,
    /// Where the next chunk goes.
    at: u64,
}

/// The ring as it was at some time.
pub(super) struct Held {
    /// Run by run, in each the oldest first.
    pub chunks: Vec<(Kept, Arc<Vec<u8>>)>,
    pub gone: Gone,
}

impl Ring {
    /// An empty ring. A ring file that is there already is kept under another name, which is returned.
    ///
    /// # Errors
    ///
    /// A file that cannot be made in its full size, or that is no ring.
    pub fn new(limits: RingLimits, path: Option<&Path>) -> Result<(Self, Option<PathBuf>)> {
        let (file, earlier) = match path {
            Some(path) => {
                let (file, earlier) = RingFile::create(path, limits.bytes)
                    .map_err(|error| error.within(&path.display().to_string()))?;
                (Some(file), earlier)
            }
            None => (None, None),
        };
        let ring = Ring { limits, entries: VecDeque::new(), bytes: 0, gone: Gone::default(), file };
        Ok((ring, earlier))
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
        let newest = kept.span_us.1;
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
        let needed = |duration: std::time::Duration| newest.saturating_sub(duration.as_micros() as u64);
        while let (Some(from), Some(oldest)) = (self.limits.duration.map(needed), self.entries.front())
            && self.entries.len() > 1
            && oldest.kept.span_us.1 < from
        {
            self.drop_oldest()?;
        }
        Ok(())
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
        let low = self.entries.iter().map(|entry| entry.kept.span_us.0).min().unwrap_or(0);
        self.entries.iter().map(|entry| entry.kept.span_us.1).max().unwrap_or(0).saturating_sub(low)
    }
}

/// Whether nothing but zeros is left in a file: then there is no chunk to keep.
fn is_empty(mut file: File) -> io::Result<bool> {
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(true),
            got if piece[..got].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

impl RingFile {
    fn create(path: &Path, size: u64) -> Result<(Self, Option<PathBuf>)> {
        let mut earlier = None;
        match File::open(path) {
            Ok(mut found) => {
                let mut start = Vec::new();
                (&mut found).take(RING_START).read_to_end(&mut start)?;
                if !is_ring(&start) && !start.is_empty() {
                    return Err(Error::usage("there is a file that is no ring, and it is not written over"));
                }
                if !is_empty(found)? {
                    // It may be all that is left of a recorder that was killed.
                    let mut name = path.as_os_str().to_os_string();
                    name.push(".old");
                    fs::rename(path, &name)?;
                    earlier = Some(PathBuf::from(name));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        // Written in full, so that a disk that is full tells so now.
        io::copy(&mut io::repeat(0).take(size), &mut file)?;
        file.write_all_at(&ring_start(size), 0)?;
        Ok((RingFile { file, path: path.to_path_buf(), at: RING_START }, earlier))
    }

    fn place_for(&self, size: u64, limit: u64) -> u64 {
        if self.at + size > limit { RING_START } else { self.at }
    }

    /// Stores a chunk so that it is whole once its header is there.
    fn write(&mut self, at: u64, chunk: &[u8]) -> Result<()> {
        let (header, body) = chunk.split_at(HEADER_LEN as usize);
        self.uncommit(at)?;
        let written = self.file.write_all_at(body, at + HEADER_LEN);
        written.and_then(|()| self.file.write_all_at(header, at)).map_err(|error| self.named(error))?;
        self.at = at + chunk.len() as u64;
        Ok(())
    }

    fn uncommit(&mut self, at: u64) -> Result<()> {
        self.file.write_all_at(&[0; HEADER_LEN as usize], at).map_err(|error| self.named(error))
    }

    fn read(&self, at: u64, size: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size as usize];
        self.file.read_exact_at(&mut bytes, at).map_err(|error| self.named(error))?;
        Ok(bytes)
    }

    fn named(&self, error: io::Error) -> Error {
        Error::from(error).within(&self.path.display().to_string())
    }
}
