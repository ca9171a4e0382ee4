//! Open outputs.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};

use tempfile::{SpooledData, SpooledTempFile};

use crate::cli::io::background::BackgroundWriter;
use crate::cli::io::cleanup::Unfinished;
use crate::cli::io::deadline::Deadline;
use crate::cli::io::growing_file::Growing;
use crate::error::{Error, Result};

/// Of the zstd frame around a packed output.
const PACKING_LEVEL: i32 = 3;

/// Bytes that are copied at once.
const COPY: usize = 256 * 1024;

/// Bytes that a pipe is asked to hold, where it may be asked: the most that Linux grants to everyone.
#[cfg(target_os = "linux")]
const PIPE: usize = 1024 * 1024;

/// An open target. A file appears under its name only with [`Output::commit`] or [`Output::publish`]; dropped
/// before, it leaves what was there.
pub struct Output {
    sink: Sink,
    /// Whether a reader that goes away is no error.
    may_lose_its_reader: bool,
    /// A pipe that was named, by which it can be seen in the end whether its reader is still there.
    pipe: Option<File>,
    /// Whether it has lost it.
    is_deserted: bool,
    /// Whether a frame of zstd holds anything yet.
    is_in_frame: bool,
}

enum Sink {
    Plain(Destination),
    Packed(Packer),
    /// While one is made of the other.
    Nothing,
}

type Packer = zstd::stream::write::Encoder<'static, Destination>;

pub(crate) enum Destination {
    #[cfg(not(unix))]
    Standard(io::Stdout),
    /// A device or a pipe.
    Special(File),
    /// The same, written to on a thread of its own.
    Background(BackgroundWriter),
    /// The same, for whose reader nobody waits longer than this.
    #[cfg(unix)]
    WithDeadline(File, Deadline),
    /// A file in the making.
    File(Unfinished),
    /// A file in its place.
    Growing(Growing),
}

impl Output {
    pub(crate) fn new(destination: Destination, packed: bool) -> Result<Self> {
        let sink = if packed { Sink::Packed(packer(destination)?) } else { Sink::Plain(destination) };
        Ok(Output { sink, may_lose_its_reader: false, pipe: None, is_deserted: false, is_in_frame: false })
    }

    /// A pipe whose reader has to take all.
    #[cfg(unix)]
    pub(crate) fn pipe(pipe: File, packed: bool) -> Result<Self> {
        let watched = Some(pipe.try_clone()?);
        Ok(Output { pipe: watched, ..Output::new(Destination::Special(pipe), packed)? })
    }

    /// Standard output, whose reader may go away when it has enough.
    ///
    /// # Errors
    ///
    /// One that is closed.
    pub(crate) fn standard() -> Result<Self> {
        let standard = crate::cli::io::standard::output()?;
        #[cfg(unix)]
        let destination = Destination::Special(standard);
        #[cfg(not(unix))]
        let destination = Destination::Standard(standard);
        Ok(Output { may_lose_its_reader: true, ..Output::new(destination, false)? })
    }

    /// Has writes to a pipe or a device fail once this limit is over and nothing is taken. It may be set while a
    /// write waits.
    #[must_use]
    pub fn with_deadline(self, limit: &Deadline) -> Self {
        #[cfg(unix)]
        let with_deadline = |destination| match destination {
            Destination::Special(file) => Destination::WithDeadline(file, limit.clone()),
            other => other,
        };
        #[cfg(not(unix))]
        let (with_deadline, _) = (|destination| destination, limit);
        self.on_plain(with_deadline)
    }

    /// Makes another of a place that nothing was written to yet.
    fn on_plain(mut self, act: impl FnOnce(Destination) -> Destination) -> Self {
        self.sink = match self.sink {
            Sink::Plain(destination) => Sink::Plain(act(destination)),
            other => other,
        };
        self
    }

    /// Lets a pipe hold more, so that neither end waits for the other as often. Not for a live stream, of which
    /// everything that a slow reader has not come to grows old there.
    #[must_use]
    pub fn with_large_pipe(self) -> Self {
        #[cfg(target_os = "linux")]
        {
            use rustix::pipe::fcntl_setpipe_size;
            if let Sink::Plain(Destination::Special(file)) = &self.sink {
                // What is no pipe, or may not grow, is as good as it is.
                let _ = fcntl_setpipe_size(file, PIPE);
            }
        }
        self
    }

    /// Writes to a pipe or a device on a thread of its own. Errors are reported late, at the latest by
    /// [`Output::commit`].
    #[must_use]
    pub fn in_background(self) -> Self {
        self.on_plain(|destination| match destination {
            Destination::Special(file) => Destination::Background(BackgroundWriter::new(file)),
            other => other,
        })
    }

    /// Lets such a thread have what was written so far, which does not wait for more.
    ///
    /// # Errors
    ///
    /// What could not be written.
    pub fn submit(&mut self) -> io::Result<()> {
        let Sink::Plain(Destination::Background(in_background)) = &mut self.sink else { return Ok(()) };
        let handed = in_background.submit();
        self.noted(handed)
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
        if let Sink::Plain(Destination::Special(pipe)) = &self.sink {
            let given = give(&file, pipe);
            self.noted(given)?;
        }
        io::copy(&mut BufReader::with_capacity(COPY, file), self).map(|_| ())
    }

    /// Notes a failure. A reader who has gone is one, too, but for standard output.
    fn noted<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            io::ErrorKind::BrokenPipe if !self.may_lose_its_reader => {
                self.is_deserted = true;
                io::Error::other("its reader has gone")
            }
            _ => error,
        })
    }

    /// Whether it has failed because its reader has gone, which is no reason to end what others read.
    pub fn is_deserted(&self) -> bool {
        self.is_deserted
    }

    /// Whether it is a file in its place, which holds something whole whatever becomes of the rest.
    pub fn is_published(&self) -> bool {
        matches!(&self.sink, Sink::Plain(Destination::Growing(_)))
            || matches!(&self.sink, Sink::Packed(packer) if matches!(packer.get_ref(), Destination::Growing(_)))
    }

    /// Why nobody finds under its name what is written to it, if that is so. It is reported once.
    pub fn displaced(&mut self) -> Option<Error> {
        let destination = match &mut self.sink {
            Sink::Plain(destination) => destination,
            Sink::Packed(packer) => packer.get_mut(),
            Sink::Nothing => return None,
        };
        let Destination::Growing(growing) = destination else { return None };
        let fault = "the file was removed, renamed or replaced while it was being written: what comes from here \
                     on is not under its name";
        growing.has_gone().then(|| Error::from(io::Error::other(fault)))
    }

    /// The file in the making, for who writes back and forth in it; `None` where only writing on is
    /// possible.
    pub fn file(&mut self) -> Option<&mut File> {
        match &mut self.sink {
            Sink::Plain(Destination::File(made)) => Some(&mut made.file),
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
        Ok(self.noted(result)?)
    }

    fn append(&mut self, head: &[u8], rest: &mut impl Read) -> io::Result<()> {
        match &mut self.sink {
            Sink::Plain(Destination::Growing(growing)) => return growing.chunk(head, rest),
            Sink::Plain(Destination::File(made)) => {
                made.file.write_all(head)?;
                io::copy(&mut BufReader::with_capacity(COPY, rest), &mut made.file)?;
                made.file.sync_data()?;
                return self.put_in_place();
            }
            _ => {}
        }
        self.write_all(head)?;
        io::copy(&mut BufReader::with_capacity(COPY, rest), self)?;
        self.flush()
    }

    /// Lets others have what was written so far: a file appears in its place now, and grows there.
    ///
    /// # Errors
    ///
    /// What cannot be written or put in its place.
    pub fn publish(&mut self) -> Result<()> {
        self.flush()?;
        let put = self.put_in_place();
        Ok(self.noted(put)?)
    }

    /// Puts a file in the making into its place, to grow there.
    fn put_in_place(&mut self) -> io::Result<()> {
        self.sink = match std::mem::replace(&mut self.sink, Sink::Nothing) {
            Sink::Plain(Destination::File(made)) => {
                Sink::Plain(Destination::Growing(Growing::new(made.put()?)?))
            }
            Sink::Packed(encoder) if matches!(encoder.get_ref(), Destination::File(_)) => {
                match encoder.finish()? {
                    Destination::File(made) => {
                        Sink::Packed(packer(Destination::Growing(Growing::new(made.put()?)?))?)
                    }
                    other => Sink::Packed(packer(other)?),
                }
            }
            other => other,
        };
        Ok(())
    }

    /// Ends a frame that holds something, and hands it on.
    fn end_frame(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_in_frame) {
            return Ok(());
        }
        if let Sink::Packed(ended) = std::mem::replace(&mut self.sink, Sink::Nothing) {
            let mut destination = ended.finish()?;
            let flushed = destination.flush();
            self.sink = Sink::Packed(packer(destination)?);
            flushed?;
        }
        Ok(())
    }

    /// Ends the writing.
    ///
    /// # Errors
    ///
    /// A file that cannot be brought to disk or to its place.
    pub fn commit(mut self) -> Result<()> {
        let ended = match std::mem::replace(&mut self.sink, Sink::Nothing) {
            Sink::Plain(destination) => destination.end(),
            Sink::Packed(packer) => packer.finish().and_then(Destination::end),
            Sink::Nothing => Ok(()),
        };
        let taken = ended.and_then(|()| self.pipe.as_ref().map_or(Ok(()), has_reader));
        Ok(self.noted(taken)?)
    }
}

/// Whether a pipe is still read. One who is to have all waits for its end.
fn has_reader(pipe: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(pipe, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::ERR) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
    }
    #[cfg(not(unix))]
    let _ = pipe;
    Ok(())
}

fn packer(destination: Destination) -> io::Result<Packer> {
    zstd::stream::write::Encoder::new(destination, PACKING_LEVEL)
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.sink {
            Sink::Plain(destination) => destination.write(bytes),
            Sink::Packed(packer) => {
                self.is_in_frame = true;
                packer.write(bytes)
            }
            Sink::Nothing => Err(io::ErrorKind::NotConnected.into()),
        };
        self.noted(written)
    }

    /// Hands on what is whole now. In a packed file that grows it is a frame, which can be read alone.
    fn flush(&mut self) -> io::Result<()> {
        let flushed = match &mut self.sink {
            Sink::Plain(destination) => destination.flush(),
            Sink::Packed(packer) if matches!(packer.get_ref(), Destination::Growing(_)) => self.end_frame(),
            Sink::Packed(packer) => packer.flush(),
            Sink::Nothing => Err(io::ErrorKind::NotConnected.into()),
        };
        self.noted(flushed)
    }
}

impl Destination {
    /// Ends the writing.
    fn end(self) -> io::Result<()> {
        match self {
            #[cfg(not(unix))]
            Destination::Standard(mut standard) => standard.flush(),
            Destination::Special(mut file) => file.flush(),
            Destination::Background(mut in_background) => in_background.finish(),
            #[cfg(unix)]
            Destination::WithDeadline(mut file, _) => file.flush(),
            Destination::File(made) => {
                made.file.sync_all()?;
                made.put().map(|_| ())
            }
            Destination::Growing(mut growing) => growing.finish(),
        }
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            #[cfg(not(unix))]
            Destination::Standard(standard) => standard.write(bytes),
            Destination::Special(file) => file.write(bytes),
            Destination::Background(in_background) => in_background.write(bytes),
            #[cfg(unix)]
            Destination::WithDeadline(file, limit) => write_until(file, bytes, limit),
            Destination::File(made) => made.file.write(bytes),
            Destination::Growing(growing) => growing.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            #[cfg(not(unix))]
            Destination::Standard(standard) => standard.flush(),
            Destination::Special(file) => file.flush(),
            Destination::Background(in_background) => in_background.flush(),
            #[cfg(unix)]
            Destination::WithDeadline(file, _) => file.flush(),
            Destination::File(made) => made.file.flush(),
            Destination::Growing(growing) => growing.flush(),
        }
    }
}

/// Writes as much as a pipe takes without waiting that takes anything.
#[cfg(unix)]
fn write_until(file: &mut File, bytes: &[u8], limit: &Deadline) -> io::Result<usize> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    /// A pipe that can be written to has room for so much.
    const PIECE: usize = 4096;
    let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    loop {
        match poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(&pause)) {
            Ok(0) if limit.has_passed() => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "nobody reads what is written"));
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

#[cfg(all(test, unix))]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::cli::io::Target;

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
            let destination = Destination::Special(OwnedFd::from(writer).into());
            let mut output = Output::new(destination, false).expect("an output").with_large_pipe();
            let read = std::thread::spawn(move || {
                let mut found = Vec::new();
                reader.read_to_end(&mut found).map(|_| found)
            });
            output.spooled(spool()).expect("written");
            output.commit().expect("written");
            assert!(read.join().expect("no panic").expect("bytes") == bytes);

            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("file");
            let mut output = Target::File(path.clone()).open(std::time::Duration::ZERO).expect("a file");
            output.spooled(spool()).expect("written");
            output.commit().expect("written");
            assert!(std::fs::read(path).expect("bytes") == bytes);

            // Nobody reads.
            let (reader, writer) = io::pipe().expect("a pipe");
            drop(reader);
            let destination = Destination::Special(OwnedFd::from(writer).into());
            let mut output = Output::new(destination, false).expect("an output");
            let error = output.spooled(spool()).expect_err("refused");
            // Only standard output may lose its reader.
            assert_ne!(error.kind(), io::ErrorKind::BrokenPipe);
            assert!(output.is_deserted());
        }
    }
}
