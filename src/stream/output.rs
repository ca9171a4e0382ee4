//! Where bytes go: an open target.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, SpooledData, SpooledTempFile};

use crate::error::Result;
use crate::stream::beside::Beside;
use crate::stream::limit::Limit;
use crate::stream::target::folder_of;
use crate::stream::unfinished::end_unfinished;

/// Of the zstd frame around a packed output.
const PACKING_LEVEL: i32 = 3;

/// Bytes that are copied at once.
const COPY: usize = 256 * 1024;

/// Bytes that a pipe is asked to hold, where it may be asked: the most that Linux grants to everyone.
#[cfg(target_os = "linux")]
const PIPE: usize = 1024 * 1024;

/// An open target. A file appears under its name only with [`Output::commit`]; dropped before, it
/// leaves what was there.
pub struct Output {
    sink: Sink,
    /// Whether a write has failed: then it is the target's error and not the input's.
    failed: bool,
}

enum Sink {
    Plain(Place),
    Packed(zstd::stream::write::Encoder<'static, Place>),
}

pub(super) enum Place {
    Standard,
    /// A device or a pipe.
    Special(File),
    /// The same, written to on a thread of its own.
    Beside(Beside),
    /// The same, for whose reader nobody waits longer than this.
    #[cfg(unix)]
    Limited(File, Limit),
    /// A file in the making beside its place.
    File {
        file: NamedTempFile,
        path: PathBuf,
    },
    /// A file in its place, whole up to here.
    Growing {
        file: File,
        whole: u64,
    },
}

impl Output {
    pub(super) fn new(place: Place, packed: bool) -> Result<Self> {
        let sink = if packed {
            Sink::Packed(zstd::stream::write::Encoder::new(place, PACKING_LEVEL)?)
        } else {
            Sink::Plain(place)
        };
        Ok(Output { sink, failed: false })
    }

    /// Has writes to a pipe or a device fail once this limit is over and nothing is taken. It may be set while a
    /// write waits.
    ///
    /// # Errors
    ///
    /// Errors of the system.
    #[cfg(unix)]
    pub fn limited(mut self, limit: &Limit) -> Result<Self> {
        self.sink = match self.sink {
            Sink::Plain(Place::Special(file)) => Sink::Plain(Place::Limited(file, limit.clone())),
            other => other,
        };
        Ok(self)
    }

    /// The same, where there is no means to wait with a limit.
    #[cfg(not(unix))]
    #[expect(clippy::unnecessary_wraps, reason = "it can fail elsewhere")]
    pub fn limited(self, _: &Limit) -> Result<Self> {
        Ok(self)
    }

    /// Lets a pipe hold more, so that neither end waits for the other as often. Not for a live stream, of which
    /// everything that a slow reader has not come to grows old there.
    #[must_use]
    pub fn roomy(self) -> Self {
        #[cfg(target_os = "linux")]
        {
            use rustix::pipe::fcntl_setpipe_size;
            if let Sink::Plain(Place::Special(file)) = &self.sink {
                // What is no pipe, or may not grow, is as good as it is.
                let _ = fcntl_setpipe_size(file, PIPE);
            }
        }
        self
    }

    /// Writes to a pipe or a device on a thread of its own. Errors are told late, at the latest by
    /// [`Output::commit`].
    #[must_use]
    pub fn beside(mut self) -> Self {
        self.sink = match self.sink {
            Sink::Plain(Place::Special(file)) => Sink::Plain(Place::Beside(Beside::new(file))),
            other => other,
        };
        self
    }

    /// Lets such a thread have what was written so far, which does not wait for more.
    ///
    /// # Errors
    ///
    /// What could not be written.
    pub fn hand_over(&mut self) -> io::Result<()> {
        let Sink::Plain(Place::Beside(beside)) = &mut self.sink else { return Ok(()) };
        let handed = beside.hand_over();
        self.failed |= handed.is_err();
        handed
    }

    /// Writes all that was set aside, from its start.
    ///
    /// # Errors
    ///
    /// What cannot be read or written.
    pub fn spooled(&mut self, spool: SpooledTempFile) -> io::Result<()> {
        let mut file = match spool.into_inner() {
            SpooledData::InMemory(bytes) => return self.write_all(bytes.get_ref()),
            SpooledData::OnDisk(file) => file,
        };
        file.rewind()?;
        #[cfg(target_os = "linux")]
        if let Sink::Plain(Place::Special(pipe)) = &self.sink {
            let given = give(&file, pipe);
            self.failed |= given.is_err();
            given?;
        }
        io::copy(&mut BufReader::with_capacity(COPY, file), self).map(|_| ())
    }

    /// Gives up a target that could not be written to: a file that is in its place ends where it was last
    /// published. Returns whether there is such a file.
    ///
    /// # Errors
    ///
    /// A file that cannot be cut.
    pub fn abandon(self) -> io::Result<bool> {
        let mut sink = self.sink;
        let place = match &mut sink {
            Sink::Plain(place) => place,
            Sink::Packed(encoder) => encoder.get_mut(),
        };
        let Place::Growing { file, whole } = place else { return Ok(false) };
        file.set_len(*whole)?;
        Ok(true)
    }

    /// Whether a write has failed.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// The file in the making, for who writes back and forth in it; `None` where only writing on is
    /// possible.
    pub fn file(&mut self) -> Option<&mut File> {
        match &mut self.sink {
            Sink::Plain(Place::File { file, .. }) => Some(file.as_file_mut()),
            _ => None,
        }
    }

    /// Appends something that is whole only as a whole and begins with `head`. In a file the head is zeros
    /// until the rest is stored, and the first such piece puts the file into its place.
    ///
    /// # Errors
    ///
    /// What cannot be written; of what was appended before, nothing is lost.
    pub fn chunk(&mut self, head: &[u8], rest: &mut impl Read) -> Result<()> {
        let result = self.append(head, rest);
        self.failed |= result.is_err();
        result
    }

    fn append(&mut self, head: &[u8], rest: &mut impl Read) -> Result<()> {
        let rest = &mut BufReader::with_capacity(COPY, rest);
        let place = match &mut self.sink {
            Sink::Plain(place) => place,
            Sink::Packed(encoder) => {
                encoder.write_all(head)?;
                io::copy(rest, encoder)?;
                return Ok(encoder.flush()?);
            }
        };
        match place {
            Place::File { file, .. } => {
                append_to(file.as_file_mut(), 0, head, rest)?;
                self.put_in_place()
            }
            Place::Growing { file, whole } => match append_to(file, *whole, head, rest) {
                Ok(size) => {
                    *whole += size;
                    Ok(())
                }
                Err(error) => {
                    // What was begun is worth nothing; where it cannot be taken away it stays uncommitted.
                    let _ = file.set_len(*whole);
                    Err(error)
                }
            },
            place => {
                place.write_all(head)?;
                io::copy(rest, place)?;
                Ok(place.flush()?)
            }
        }
    }

    /// Lets others have what was written so far: a file appears in its place now, and grows there.
    ///
    /// # Errors
    ///
    /// What cannot be written or put in its place.
    pub fn publish(&mut self) -> Result<()> {
        self.flush()?;
        self.put_in_place()
    }

    /// Puts a file in the making into its place, to grow there.
    fn put_in_place(&mut self) -> Result<()> {
        let place = match &mut self.sink {
            Sink::Plain(place) => place,
            Sink::Packed(encoder) => encoder.get_mut(),
        };
        if let Place::Growing { file, whole } = place {
            *whole = file.stream_position()?;
        }
        if !matches!(place, Place::File { .. }) {
            return Ok(());
        }
        if let Place::File { file, path } = std::mem::replace(place, Place::Standard) {
            let mut file = persist(file, &path)?;
            let whole = file.stream_position()?;
            *place = Place::Growing { file, whole };
        }
        Ok(())
    }

    /// Ends the writing.
    ///
    /// # Errors
    ///
    /// A file that cannot be brought to disk or to its place.
    pub fn commit(self) -> Result<()> {
        let place = match self.sink {
            Sink::Plain(place) => place,
            Sink::Packed(encoder) => encoder.finish()?,
        };
        match place {
            Place::Standard => io::stdout().flush()?,
            Place::Special(mut file) => file.flush()?,
            Place::Beside(mut beside) => beside.finish()?,
            #[cfg(unix)]
            Place::Limited(mut file, _) => file.flush()?,
            Place::File { file, path } => {
                file.as_file().sync_all()?;
                persist(file, &path)?;
            }
            Place::Growing { file, .. } => file.sync_all()?,
        }
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.sink {
            Sink::Plain(place) => place.write(bytes),
            Sink::Packed(encoder) => encoder.write(bytes),
        };
        self.failed |= written.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = match &mut self.sink {
            Sink::Plain(place) => place.flush(),
            Sink::Packed(encoder) => encoder.flush(),
        };
        self.failed |= flushed.is_err();
        flushed
    }
}

impl Place {
    /// Standard output, without the buffer of lines that the one of the library has.
    #[cfg(unix)]
    pub fn standard() -> io::Result<Self> {
        use std::os::fd::AsFd;
        Ok(Place::Special(io::stdout().as_fd().try_clone_to_owned()?.into()))
    }

    #[cfg(not(unix))]
    #[expect(clippy::unnecessary_wraps, reason = "it can fail elsewhere")]
    pub fn standard() -> io::Result<Self> {
        Ok(Place::Standard)
    }
}

impl Write for Place {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Place::Standard => io::stdout().write(bytes),
            Place::Special(file) => file.write(bytes),
            Place::Beside(beside) => beside.write(bytes),
            #[cfg(unix)]
            Place::Limited(file, limit) => write_limited(file, bytes, limit),
            Place::File { file, .. } => file.as_file_mut().write(bytes),
            Place::Growing { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Place::Standard => io::stdout().flush(),
            Place::Special(file) => file.flush(),
            Place::Beside(beside) => beside.flush(),
            #[cfg(unix)]
            Place::Limited(file, _) => file.flush(),
            Place::File { file, .. } => file.as_file_mut().flush(),
            Place::Growing { file, .. } => file.flush(),
        }
    }
}

/// Writes as much as a pipe takes without waiting that takes anything.
#[cfg(unix)]
fn write_limited(file: &mut File, bytes: &[u8], limit: &Limit) -> io::Result<usize> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    /// A pipe that can be written to has room for so much.
    const PIECE: usize = 4096;
    let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    loop {
        match poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(&pause)) {
            Ok(0) if limit.is_over() => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "nobody takes what is written"));
            }
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return file.write(&bytes[..bytes.len().min(PIECE)]),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Has the system give the rest of a file, which nobody changes any more, to a pipe, without a copy, as far as it
/// can.
#[cfg(target_os = "linux")]
fn give(file: &File, pipe: &File) -> io::Result<()> {
    use rustix::io::Errno;
    use rustix::pipe::{SpliceFlags, splice};
    loop {
        match splice(file, None, pipe, None, PIPE, SpliceFlags::empty()) {
            // Nothing is left, or it is no pipe.
            Ok(0) | Err(Errno::INVAL) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes zeros for the head, the rest, and once that is stored the head. Returns the bytes of both.
fn append_to(file: &mut File, at: u64, head: &[u8], rest: &mut impl Read) -> Result<u64> {
    file.seek(SeekFrom::Start(at))?;
    file.write_all(&vec![0; head.len()])?;
    let size = head.len() as u64 + io::copy(rest, file)?;
    file.sync_data()?;
    file.seek(SeekFrom::Start(at))?;
    file.write_all(head)?;
    file.sync_data()?;
    file.seek(SeekFrom::Start(at + size))?;
    Ok(size)
}

/// Puts a file in the making into its place.
fn persist(file: NamedTempFile, path: &Path) -> Result<File> {
    let made = file.path().to_path_buf();
    let file = file.persist(path).map_err(|error| error.error)?;
    end_unfinished(&made);
    sync_folder(path)?;
    Ok(file)
}

/// Stores that a file is in its place.
fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(folder_of(path))?.sync_all()?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::stream::Target;

    #[test]
    fn what_was_set_aside_goes_to_pipes_and_files_from_its_start() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        // In memory, and in a file.
        for memory in [bytes.len() + 1, 10] {
            let spool = || {
                let mut spool = SpooledTempFile::new(memory);
                spool.write_all(&bytes).expect("room");
                spool
            };
            let (mut reader, writer) = io::pipe().expect("a pipe");
            let place = Place::Special(OwnedFd::from(writer).into());
            let mut output = Output::new(place, false).expect("an output").roomy();
            let read = std::thread::spawn(move || {
                let mut found = Vec::new();
                reader.read_to_end(&mut found).map(|_| found)
            });
            output.spooled(spool()).expect("written");
            output.commit().expect("written");
            assert!(read.join().expect("no panic").expect("bytes") == bytes);

            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("file");
            let mut output = Target::File(path.clone()).open().expect("a file");
            output.spooled(spool()).expect("written");
            output.commit().expect("written");
            assert!(std::fs::read(path).expect("bytes") == bytes);

            // Nobody reads.
            let (reader, writer) = io::pipe().expect("a pipe");
            drop(reader);
            let place = Place::Special(OwnedFd::from(writer).into());
            let mut output = Output::new(place, false).expect("an output");
            let error = output.spooled(spool()).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            assert!(output.failed());
        }
    }
}
