//! Where a recording goes: streams, of which each gets all, and profiles, one a process.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::cli::args::Format;
use crate::cli::runs::Written;
use crate::error::{Error, Result};
use crate::stream::{Output, Target};

/// Whether a target of this name is a profile in chunks, and no stream.
pub(super) fn is_profile(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "bin")
}

/// The name of the profile of another process than the first, as the profiler makes them.
fn of_process(path: &Path, pid: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}_{pid}.bin"))
}

/// An error of a target, with its name.
pub(super) fn named(target: &Target) -> impl Fn(Error) -> Error {
    let name = target.name();
    move |error| error.within(&name)
}

/// Every target of streams.
pub(super) struct Streams {
    places: Vec<(Target, Written)>,
    /// The place at which writing has failed.
    failed: Option<usize>,
}

impl Streams {
    /// Opens the targets.
    ///
    /// # Errors
    ///
    /// One that cannot be opened.
    pub fn open(targets: Vec<Target>, format: Format) -> Result<Self> {
        let open = |target: Target| -> Result<_> {
            let output = target.open().map_err(named(&target))?;
            Ok((target, Written::new(format, output)))
        };
        let places = targets.into_iter().map(open).collect::<Result<_>>()?;
        Ok(Streams { places, failed: None })
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Names the target that an error is about.
    pub fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match self.failed {
            Some(place) => named(&self.places[place].0)(error),
            None => error,
        })
    }

    /// Lets readers have what was written so far.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn publish(&mut self) -> Result<()> {
        for (target, written) in &mut self.places {
            written.place().publish().map_err(named(target))?;
        }
        Ok(())
    }

    /// Ends the writing.
    ///
    /// # Errors
    ///
    /// A file that cannot be brought to disk or to its place.
    pub fn commit(self) -> Result<()> {
        for (target, written) in self.places {
            written.into_place().commit().map_err(named(&target))?;
        }
        Ok(())
    }

    fn each(&mut self, mut act: impl FnMut(&mut Written) -> io::Result<()>) -> io::Result<()> {
        for (place, (_, written)) in self.places.iter_mut().enumerate() {
            if let Err(error) = act(written) {
                self.failed = Some(place);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Write for Streams {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.each(|written| written.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.each(Written::flush)
    }
}

/// The profiles of one process.
pub(super) struct Profiles {
    places: Vec<(Target, Output)>,
}

impl Profiles {
    /// Opens the profiles: of the first process where `pid` is `None`.
    ///
    /// # Errors
    ///
    /// One that cannot be opened.
    pub fn open(paths: &[PathBuf], pid: Option<u32>) -> Result<Self> {
        let open = |path: &PathBuf| -> Result<_> {
            let path = pid.map_or_else(|| path.clone(), |pid| of_process(path, pid));
            let target = Target::of_argument(Some(&path));
            let output = target.open().map_err(named(&target))?;
            Ok((target, output))
        };
        Ok(Profiles { places: paths.iter().map(open).collect::<Result<_>>()? })
    }

    /// Appends a chunk.
    ///
    /// # Errors
    ///
    /// What cannot be written; the chunks before stay whole.
    pub fn chunk(&mut self, chunk: &[u8]) -> Result<()> {
        let (header, mut body) = chunk.split_at(crate::format::HEADER_LEN as usize);
        for (target, output) in &mut self.places {
            output.chunk(header, &mut body).map_err(named(target))?;
            body = &chunk[header.len()..];
        }
        Ok(())
    }

    /// Ends the profiles.
    ///
    /// # Errors
    ///
    /// A file that cannot be brought to disk.
    pub fn commit(self) -> Result<()> {
        for (target, output) in self.places {
            output.commit().map_err(named(&target))?;
        }
        Ok(())
    }
}
