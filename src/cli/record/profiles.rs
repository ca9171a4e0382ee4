//! The profiles that a recording goes to: one a process.

use std::path::{Path, PathBuf};

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
fn named(target: &Target) -> impl Fn(Error) -> Error {
    let name = target.name();
    move |error| error.within(&name)
}

/// The profiles of one process.
pub(super) struct Profiles {
    places: Vec<(Target, Output)>,
}

impl Profiles {
    /// Opens the profiles, of the first process where `pid` is `None`; those that cannot be are left out, with
    /// the reasons.
    pub fn open(paths: &[PathBuf], pid: Option<u32>) -> (Self, Vec<Error>) {
        let (mut places, mut errors) = (Vec::new(), Vec::new());
        for path in paths {
            let path = pid.map_or_else(|| path.clone(), |pid| of_process(path, pid));
            let target = Target::File(path);
            match target.open() {
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
            appended.map_err(|error| errors.push(error)).is_ok()
        });
        errors
    }

    /// Ends the profiles. Returns why some cannot be brought to disk.
    pub fn commit(self) -> Vec<Error> {
        let ends = self.places.into_iter().map(|(target, output)| output.commit().map_err(named(&target)));
        ends.filter_map(Result::err).collect()
    }
}
