//! The profiles that a recording writes, one for each process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::io::names::has_ending;
use crate::cli::io::{Output, Target};
use crate::error::{Error, Result};

/// Whether a target of this name is a profile in chunks, and no stream.
pub(crate) fn is_profile(path: &Path) -> bool {
    has_ending(path, "bin")
}

/// Refuses a name that promises a profile packed as a whole: its chunks are packed, and it would be a stream.
///
/// # Errors
///
/// A usage error.
pub(crate) fn check_name(path: &Path) -> Result<()> {
    let inner = path.file_stem().map(Path::new).filter(|_| has_ending(path, "zst"));
    if inner.is_some_and(is_profile) {
        let fault = "a profile in chunks is packed chunk by chunk, so its name ends in .bin";
        return Err(Error::usage(fault).within(&path.display().to_string()));
    }
    Ok(())
}

/// The name of the profile of another process than the first, as the profiler makes them.
fn of_process(path: &Path, pid: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}_{pid}.bin"))
}

/// An error of a target, with its name.
fn named(target: &Target) -> impl Fn(Error) -> Error {
    let name = target.name();
    move |error| error.within(&name)
}

/// The profiles of one process.
pub(crate) struct Profiles {
    places: Vec<(Target, Output)>,
}

impl Profiles {
    /// Opens the profiles, of the first process where `pid` is `None`; those that cannot be are left out, with
    /// the reasons.
    pub fn open(paths: &[PathBuf], pid: Option<u32>, patience: Duration) -> (Self, Vec<Error>) {
        let (mut places, mut errors) = (Vec::new(), Vec::new());
        for path in paths {
            let path = pid.map_or_else(|| path.clone(), |pid| of_process(path, pid));
            let target = Target::File(path);
            match target.open(patience) {
                Ok(output) => places.push((target, output)),
                Err(error) => errors.push(named(&target)(error)),
            }
        }
        (Profiles { places }, errors)
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Appends a chunk. Those that cannot be written to are left out; in them the chunks before stay whole.
    /// Returns the reasons.
    pub fn chunk(&mut self, chunk: &[u8]) -> Vec<Error> {
        let (header, body) = chunk.split_at(crate::format::HEADER_LEN as usize);
        let mut errors = Vec::new();
        self.places.retain_mut(|(target, output)| {
            let appended = output.chunk(header, &mut { body }).map_err(named(target));
            errors.extend(output.displaced().map(named(target)));
            appended.map_err(|error| errors.push(error)).is_ok()
        });
        errors
    }

    /// Ends the profiles. Returns why some cannot be brought to disk.
    pub fn commit(self) -> Vec<Error> {
        let ends = self.places.into_iter().flat_map(|(target, mut output)| {
            let displaced = output.displaced();
            displaced.into_iter().chain(output.commit().err()).map(named(&target)).collect::<Vec<_>>()
        });
        ends.collect()
    }
}
