//! A ring stored in a file, which outlives the recorder.
//!
//! It is written as any other, and not through a mapping: what a process has written is the system's and stays
//! when the process is killed, just as with a mapping, and no page of it has to be trusted (`unsafe`). Only a
//! crash of the machine loses what was not yet stored. Its layout is that of [`crate::format::ring_start`].
//!
//! One recorder has it, by a lock that goes with the process and with the file, whatever that is called. What
//! another has left in it may be all that is left of a program: it stays in its place until there is something
//! newer, and under a name of its own from then on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::cli::io::{Made, is_at, leads_to, lock};
use crate::error::{Error, Result};
use crate::format::{HEADER_LEN, RING_START, is_ring, ring_start};

/// The ring file of a recorder.
pub(crate) struct RingFile {
    file: File,
    path: PathBuf,
    /// Where the next chunk goes.
    at: u64,
    /// Until the first chunk comes.
    unused: Option<Unused>,
}

/// What there is besides a ring without chunks.
enum Unused {
    /// Nothing was there: it goes again if no chunk comes.
    Made,
    /// A ring that holds chunks is in its place, and locked.
    Behind { made: Made, earlier: File },
}

impl RingFile {
    /// Opens it in its full size, and locks it.
    ///
    /// # Errors
    ///
    /// A file that is no ring, that somebody records into, or that there is no room for.
    pub fn open(path: &Path, size: u64) -> Result<Self> {
        // A link stays a link.
        let path = leads_to(path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let mut ring = match options.clone().create_new(true).open(&path) {
            Ok(file) => RingFile { file, path, at: RING_START, unused: Some(Unused::Made) },
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            Err(_) => {
                if !fs::metadata(&path)?.is_file() {
                    return Err(Error::usage("something that is not a file exists there"));
                }
                let found = options.open(&path)?;
                take(&found, &path)?;
                Self::in_place_of(found, path)?
            }
        };
        if matches!(ring.unused, Some(Unused::Made)) {
            take(&ring.file, &ring.path)?;
        }
        ring.file.set_len(0)?;
        fill(&mut ring.file, size)?;
        ring.file.write_all_at(&ring_start(size), 0)?;
        Ok(ring)
    }

    /// The ring that comes after the one that was found: the same file, unless that holds something.
    fn in_place_of(mut found: File, path: PathBuf) -> Result<Self> {
        let mut start = Vec::new();
        (&mut found).take(RING_START).read_to_end(&mut start)?;
        if !is_ring(&start) && !start.is_empty() {
            return Err(Error::usage("a file that is not a ring exists there and is not overwritten"));
        }
        if is_empty(&mut found)? {
            io::Seek::rewind(&mut found)?;
            return Ok(RingFile { file: found, path, at: RING_START, unused: None });
        }
        let (file, made) = Made::in_background(&path)?;
        file.set_permissions(found.metadata()?.permissions())?;
        let unused = Some(Unused::Behind { made, earlier: found });
        Ok(RingFile { file, path, at: RING_START, unused })
    }

    /// A chunk comes: now the file has its name. Returns the name that an earlier ring has from now on.
    ///
    /// # Errors
    ///
    /// A file that cannot get its name.
    pub fn begin(&mut self) -> Result<Option<PathBuf>> {
        let Some(Unused::Behind { made, earlier }) = self.unused.take() else { return Ok(None) };
        let name = keep(&self.path).map_err(|error| self.named(error))?;
        made.rename(&self.path).map_err(|error| self.named(error))?;
        // Its lock is needed until the name is that of the new one.
        drop(earlier);
        Ok(Some(name))
    }

    /// Where a chunk of this size goes in a file of `limit` bytes.
    pub fn place_for(&self, size: u64, limit: u64) -> u64 {
        if self.at + size > limit { RING_START } else { self.at }
    }

    /// Stores a chunk so that it is whole once its header is there.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn write(&mut self, at: u64, chunk: &[u8]) -> Result<()> {
        let (header, body) = chunk.split_at(HEADER_LEN as usize);
        self.uncommit(at)?;
        let written = self.file.write_all_at(body, at + HEADER_LEN);
        written.and_then(|()| self.file.write_all_at(header, at)).map_err(|error| self.named(error))?;
        self.at = at + chunk.len() as u64;
        Ok(())
    }

    /// Takes the header of a chunk away.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn uncommit(&mut self, at: u64) -> Result<()> {
        self.file.write_all_at(&[0; HEADER_LEN as usize], at).map_err(|error| self.named(error))
    }

    /// A chunk that was stored.
    ///
    /// # Errors
    ///
    /// What cannot be read.
    pub fn read(&self, at: u64, size: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size as usize];
        self.file.read_exact_at(&mut bytes, at).map_err(|error| self.named(error))?;
        Ok(bytes)
    }

    /// Its name for messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn named(&self, error: io::Error) -> Error {
        Error::from(error).within(&self.name())
    }
}

impl Drop for RingFile {
    fn drop(&mut self) {
        if let Some(Unused::Made) = self.unused
            && is_at(&self.file, &self.path)
        {
            // What cannot be removed is an empty ring, which the next recorder takes.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a file that is there is a ring file, whatever it is called.
pub(crate) fn is_ring_file(path: &Path) -> bool {
    // A pipe could keep us waiting.
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(RING_START).read_to_end(&mut start));
    read.is_ok() && is_ring(&start)
}

/// Locks a ring file for as long as the process has it open.
fn take(file: &File, path: &Path) -> Result<()> {
    if lock(file)? && is_at(file, path) { Ok(()) } else { Err(Error::usage("somebody records into it")) }
}

/// Gives an empty file its full size, so that a full disk shows now; at once, where the file system can.
fn fill(file: &mut File, size: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(&*file, FallocateFlags::empty(), 0, size) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    io::copy(&mut io::repeat(0).take(size), file).map(|_| ())
}

/// Whether nothing but zeros is left in a file: then there is no chunk to keep.
fn is_empty(file: &mut File) -> io::Result<bool> {
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(true),
            got if piece[..got].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// Gives a file one more name that nothing has yet: `.old` after its own, or `.old.2` and so on.
fn keep(path: &Path) -> io::Result<PathBuf> {
    for number in 1_u64.. {
        let mut name = path.as_os_str().to_os_string();
        name.push(if number == 1 { ".old".to_string() } else { format!(".old.{number}") });
        if fs::symlink_metadata(&name).is_ok() {
            continue;
        }
        match fs::hard_link(path, &name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Not every file system lets a file have two names.
            Err(_) => return fs::rename(path, &name).map(|()| PathBuf::from(name)),
            Ok(()) => return Ok(PathBuf::from(name)),
        }
    }
    unreachable!("there are more numbers than files")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = RING_START + 1_000;

    fn names(folder: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).expect("a folder");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name().into_string();
        let mut names: Vec<String> = entries.map(|entry| name(entry).expect("UTF-8")).collect();
        names.sort();
        names
    }

    #[test]
    fn a_ring_file_is_there_in_full_size_and_goes_again_if_no_chunk_comes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ring");
        let ring = RingFile::open(&path, SIZE).expect("a ring");
        assert_eq!(ring.name(), path.display().to_string());
        assert!(fs::metadata(&path).expect("there").len() == SIZE && is_ring_file(&path));
        drop(ring);
        assert!(names(&folder).is_empty());
        let mut ring = RingFile::open(&path, SIZE).expect("a ring");
        assert_eq!(ring.begin().expect("named"), None);
        ring.write(RING_START, &[1; 100]).expect("stored");
        assert_eq!(ring.read(RING_START, 100).expect("stored"), [1; 100]);
        drop(ring);
        assert_eq!(names(&folder), ["ring"]);
    }

    #[test]
    fn a_file_that_is_somebody_elses_by_now_is_not_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ring");
        let ring = RingFile::open(&path, SIZE).expect("a ring");
        fs::remove_file(&path).expect("there");
        fs::write(&path, "another's").expect("writable");
        drop(ring);
        assert_eq!(fs::read(&path).expect("there"), b"another's");
    }

    #[test]
    fn a_ring_with_chunks_gets_another_name_once_there_is_something_newer() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ring");
        let record = |byte: u8| {
            let mut ring = RingFile::open(&path, SIZE).expect("a ring");
            let summary = ring.begin().expect("named");
            ring.write(RING_START, &[byte; 100]).expect("stored");
            summary
        };
        assert_eq!(record(1), None);
        // Until the first chunk comes nothing is changed or left over.
        drop(RingFile::open(&path, SIZE).expect("a ring"));
        assert_eq!(names(&folder), ["ring"]);
        assert_eq!(record(2), Some(folder.path().join("ring.old")));
        assert_eq!(record(3), Some(folder.path().join("ring.old.2")));
        assert_eq!(names(&folder), ["ring", "ring.old", "ring.old.2"]);
        let byte = |name: &str| fs::read(folder.path().join(name)).expect("there")[RING_START as usize];
        assert_eq!(["ring.old", "ring.old.2", "ring"].map(byte), [1, 2, 3]);
        // One that was emptied holds nothing to keep.
        let mut ring = RingFile::open(&path, SIZE).expect("a ring");
        ring.begin().expect("named");
        drop(ring);
        assert_eq!(record(4), None);
        assert_eq!(names(&folder).len(), 4);
    }

    #[test]
    fn what_is_no_ring_or_is_recorded_into_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let refusal = |name: &str| match RingFile::open(&path(name), SIZE) {
            Ok(_) => panic!("{name} is taken"),
            Err(error) => error.to_string(),
        };
        fs::write(path("text"), "text").expect("writable");
        assert!(refusal("text").contains("not a ring"));
        assert_eq!(fs::read(path("text")).expect("there"), b"text");
        fs::create_dir(path("folder")).expect("writable");
        assert!(refusal("folder").contains("not a file"));
        fs::write(path("empty"), "").expect("writable");
        let _ring = RingFile::open(&path("empty"), SIZE).expect("an empty file holds nothing");
        assert!(refusal("empty").contains("somebody records into it"));
    }

    #[test]
    fn only_zeros_are_nothing_however_long() {
        let is_empty_with = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all_at(bytes, 0).expect("room");
            is_empty(&mut file).expect("readable")
        };
        let mut bytes = vec![0; 200_000];
        assert!(is_empty_with(&[]) && is_empty_with(&bytes));
        bytes[199_999] = 1;
        assert!(!is_empty_with(&bytes) && !is_empty_with(&[1]));
    }
}
