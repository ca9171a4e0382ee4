//! Inputs: files, pipes, standard input and sockets, unpacked where they are compressed.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::SpooledTempFile;

use crate::buffered::read_buffered;
use crate::cli::io::names::Named;
use crate::cli::io::standard;
use crate::cli::net::address::{Address, SocketAddress};
use crate::cli::net::network::Network;
use crate::error::{Error, Position, Result};
use crate::limits::SPOOL_MEMORY;

const BUFFER: usize = 64 * 1024;

/// A file, standard input, or a socket.
#[derive(Clone)]
pub enum Input {
    /// `-`, or nothing.
    Standard,
    /// A path.
    File(PathBuf),
    /// What one other end of a socket sends. It is connected to, or waited for, once it is opened.
    Socket(SocketAddress, Network),
}

impl Input {
    /// The input that an argument names.
    ///
    /// # Errors
    ///
    /// An address that breaks the rules, or needs a token.
    pub fn of_argument(argument: Option<&Path>, network: &Network) -> Result<Input> {
        Ok(match network.address(argument)? {
            Address::Standard => Input::Standard,
            // Even a socket, which cannot be opened by this name.
            Address::File(path) if matches!(Named::of(&path), Ok(Named::Descriptor(_, 0))) => Input::Standard,
            Address::File(path) => Input::File(path),
            Address::Socket(address) => Input::Socket(address, network.clone()),
        })
    }

    /// Its name for messages.
    pub fn name(&self) -> String {
        match self {
            Input::Standard => "standard input".to_string(),
            Input::File(path) => path.display().to_string(),
            Input::Socket(address, _) => address.to_string(),
        }
    }

    /// What stands there. It is not opened: a pipe would wait.
    pub(crate) fn metadata(&self) -> Option<fs::Metadata> {
        match self {
            #[cfg(unix)]
            Input::Standard => {
                use std::os::fd::AsFd;
                let input = standard::input().and_then(|input| input.as_fd().try_clone_to_owned());
                input.and_then(|input| File::from(input).metadata()).ok()
            }
            #[cfg(not(unix))]
            Input::Standard => None,
            Input::File(path) => fs::metadata(path).ok(),
            Input::Socket(..) => None,
        }
    }

    /// Opens it for reading from front to back.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened.
    pub fn reader(&self) -> Result<Box<dyn BufRead>> {
        Ok(match self {
            Input::Standard => Box::new(BufReader::with_capacity(BUFFER, standard::input()?)),
            Input::File(path) => Box::new(BufReader::with_capacity(BUFFER, open(path)?)),
            Input::Socket(address, network) => network.source(address)?,
        })
    }

    /// Opens it for reading anywhere.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened or read.
    pub fn source(&self) -> Result<ProfileSource> {
        let file = match self {
            Input::Standard => None,
            Input::File(path) => Some(open(path)?),
            Input::Socket(address, network) => return Ok(ProfileSource::of_pipe(network.source(address)?)),
        };
        match file {
            Some(file) if file.metadata()?.is_file() => Ok(ProfileSource::File(file)),
            Some(file) => Ok(ProfileSource::of_pipe(file)),
            None => Ok(ProfileSource::of_pipe(standard::input()?)),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(Error::from(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    Ok(file)
}

/// Bytes that can be read anywhere.
pub enum ProfileSource {
    /// A regular file.
    File(File),
    /// What comes through a pipe.
    Pipe(Box<Piped>),
}

impl ProfileSource {
    /// Why nothing more came, where it was not the end: what had come before is there like any other input.
    pub fn failure(&self) -> Option<Error> {
        let ProfileSource::Pipe(pipe) = self else { return None };
        let (kind, what) = pipe.failure.as_ref()?;
        Some(Error::from(io::Error::new(*kind, what.clone())).at(Position::Byte(pipe.end)))
    }

    /// What comes out of `reader`.
    pub fn of_pipe(reader: impl Read + 'static) -> Self {
        ProfileSource::Pipe(Box::new(Piped::new(Box::new(reader))))
    }

    /// Bytes before this place will not be asked for again.
    ///
    /// # Errors
    ///
    /// Errors of the temporary file.
    pub fn forget(&mut self, before: u64) -> io::Result<()> {
        match self {
            ProfileSource::File(_) => Ok(()),
            ProfileSource::Pipe(pipe) => pipe.forget(before),
        }
    }
}

impl Read for ProfileSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ProfileSource::File(file) => file.read(buffer),
            ProfileSource::Pipe(pipe) => pipe.read(buffer),
        }
    }
}

impl Seek for ProfileSource {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            ProfileSource::File(file) => file.seek(to),
            ProfileSource::Pipe(pipe) => pipe.seek(to),
        }
    }
}

/// A pipe in which one can go back, as far as nothing was forgotten: what has come is kept in memory,
/// and in a temporary file once it is large. Reading waits for what is still to come; only the search
/// for the end waits for all of it.
pub struct Piped {
    reader: Box<dyn Read>,
    kept: SpooledTempFile,
    /// Where what is kept starts and ends, and where reading goes on.
    start: u64,
    end: u64,
    at: u64,
    ended: bool,
    /// What broke it off.
    failure: Option<(io::ErrorKind, String)>,
    buffer: Vec<u8>,
}

impl Piped {
    fn new(reader: Box<dyn Read>) -> Self {
        let kept = SpooledTempFile::new(SPOOL_MEMORY);
        Piped { reader, kept, start: 0, end: 0, at: 0, ended: false, failure: None, buffer: vec![0; BUFFER] }
    }

    /// Waits for more, or the end.
    fn pull(&mut self) -> io::Result<()> {
        match self.reader.read(&mut self.buffer) {
            Ok(0) => self.ended = true,
            Ok(n) => {
                self.kept.seek(SeekFrom::Start(self.end - self.start))?;
                self.kept.write_all(&self.buffer[..n])?;
                self.end += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What came before it is of use.
            Err(error) if self.end > 0 => {
                self.failure = Some((error.kind(), error.to_string()));
                self.ended = true;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn forget(&mut self, before: u64) -> io::Result<()> {
        let before = before.min(self.end);
        // What is left is copied, so a little is not worth it.
        if before < self.end && before - self.start < BUFFER as u64 {
            return Ok(());
        }
        let mut rest = SpooledTempFile::new(SPOOL_MEMORY);
        self.kept.seek(SeekFrom::Start(before - self.start))?;
        io::copy(&mut self.kept, &mut rest)?;
        self.kept = rest;
        self.start = before;
        Ok(())
    }
}

impl Read for Piped {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.end && !self.ended {
            self.pull()?;
        }
        let Some(from) = self.at.checked_sub(self.start) else {
            return Err(io::Error::other("the cursor of an abandoned pipe"));
        };
        self.kept.seek(SeekFrom::Start(from))?;
        let n = self.kept.read(buffer)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for Piped {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => {
                while !self.ended {
                    self.pull()?;
                }
                self.end.checked_add_signed(by)
            }
        };
        self.at = to.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

/// A stream that may be packed, unpacked: zstd and gzip are known by their first bytes.
///
/// # Errors
///
/// Errors of the source.
pub fn unpacked(mut reader: Box<dyn BufRead>) -> Result<Box<dyn BufRead>> {
    match packing_of(reader.fill_buf()?) {
        Some(Packing::Zstd) => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(Counted { reader, at: 0 })?;
            decoder.window_log_max(crate::limits::ZSTD_WINDOW_LOG)?;
            Ok(Box::new(BufReader::with_capacity(BUFFER, Unzstd(decoder))))
        }
        Some(Packing::Gzip) => {
            Ok(Box::new(BufReader::with_capacity(BUFFER, Gunzip::new(Counted { reader, at: 0 }))))
        }
        None => Ok(reader),
    }
}

/// How a stream may be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// zstd, a frame that is skipped first or not.
    Zstd,
    /// gzip.
    Gzip,
}

/// How a file that begins so is packed, in as much as [`unpacked`] knows.
pub fn packing_of(start: &[u8]) -> Option<Packing> {
    match start {
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Packing::Zstd),
        [0x1f, 0x8b, ..] => Some(Packing::Gzip),
        _ => None,
    }
}

/// Packed bytes, and where in them reading is.
struct Counted {
    reader: Box<dyn BufRead>,
    at: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, buffer)
    }
}

impl BufRead for Counted {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, taken: usize) {
        self.at += taken as u64;
        self.reader.consume(taken);
    }
}

/// The error of packed data after which something else comes, from byte `at` of the packed file on.
fn trailing(at: u64, part: &str) -> io::Error {
    let fault = format!("trailing data at byte {at} of the packed file, which is not a {part}");
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

/// All frames of a zstd file.
struct Unzstd(zstd::stream::read::Decoder<'static, Counted>);

impl Read for Unzstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer);
        // What zstd says of a magic number that is none; the first was looked at.
        read.map_err(|error| match error.to_string() == "Unknown frame descriptor" {
            true => trailing(self.0.get_ref().at, "zstd frame"),
            false => error,
        })
    }
}

/// All members of a gzip file. As for gzip, zeros may fill it up to its end.
struct Gunzip {
    /// `None` once all of it is read.
    member: Option<flate2::bufread::GzDecoder<Counted>>,
    /// What it failed with: who reads again must not take that for the end.
    fault: Option<(io::ErrorKind, String)>,
}

impl Gunzip {
    fn new(packed: Counted) -> Self {
        Gunzip { member: Some(flate2::bufread::GzDecoder::new(packed)), fault: None }
    }

    /// Goes on to what comes after a member.
    fn next_member(&mut self) -> io::Result<()> {
        let Some(member) = self.member.take() else { return Ok(()) };
        let mut packed = member.into_inner();
        let end = packed.at;
        loop {
            let at = packed.at;
            let rest = packed.fill_buf()?;
            if rest.is_empty() {
                return Ok(());
            }
            let zeros = rest.iter().take_while(|byte| **byte == 0).count();
            if at == end && b"\x1f\x8b".starts_with(&rest[..rest.len().min(2)]) {
                break;
            }
            if zeros < rest.len() {
                return Err(trailing(at + zeros as u64, "gzip member"));
            }
            packed.consume(zeros);
        }
        self.member = Some(flate2::bufread::GzDecoder::new(packed));
        Ok(())
    }
}

impl Read for Gunzip {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some((kind, said)) = &self.fault {
            return Err(io::Error::new(*kind, said.as_str()));
        }
        let read = self.read_members(buffer);
        let lasting = read.as_ref().err().filter(|error| error.kind() != io::ErrorKind::Interrupted);
        self.fault = lasting.map(|error| (error.kind(), error.to_string()));
        read
    }
}

impl Gunzip {
    fn read_members(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = self.member.as_mut().filter(|_| !buffer.is_empty()) {
            match member.read(buffer)? {
                0 => self.next_member()?,
                got => return Ok(got),
            }
        }
        Ok(0)
    }
}
