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
    /// Opens the profiles: of the first process where `pid` is `None`.
    ///
    /// # Errors
    ///
    /// One that cannot be opened.
    pub fn open(paths: &[PathBuf], pid: Option<u32>) -> Result<Self> {
        let open = |path: &PathBuf| -> Result<_> {
            let path = pid.map_or_else(|| path.clone(), |pid| of_process(path, pid));
            let target = Target::File(path);
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
