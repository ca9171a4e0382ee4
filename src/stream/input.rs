//! Where bytes come from.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tempfile::SpooledTempFile;

use crate::error::{Error, Result};
use crate::limits::SPOOL_MEMORY;

const BUFFER: usize = 256 * 1024;

/// A file, or standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// `-`, or nothing.
    Standard,
    /// A path.
    File(PathBuf),
}

impl Input {
    /// The input that an argument names.
    pub fn of_argument(argument: Option<&Path>) -> Input {
        match argument {
            None => Input::Standard,
            Some(path) if path == Path::new("-") => Input::Standard,
            Some(path) => Input::File(path.to_path_buf()),
        }
    }

    /// Its name for messages.
    pub fn name(&self) -> String {
        match self {
            Input::Standard => "standard input".to_string(),
            Input::File(path) => path.display().to_string(),
        }
    }

    /// Opens it for reading from front to back.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened.
    pub fn reader(&self) -> Result<Box<dyn BufRead>> {
        Ok(match self {
            Input::Standard => Box::new(BufReader::with_capacity(BUFFER, io::stdin())),
            Input::File(path) => Box::new(BufReader::with_capacity(BUFFER, open(path)?)),
        })
    }

    /// Opens it for reading anywhere. What cannot be sought in is copied aside first: to memory, and to a
    /// temporary file once it is large.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened or read.
    pub fn source(&self) -> Result<ProfileSource> {
        let file = match self {
            Input::Standard => None,
            Input::File(path) => Some(open(path)?),
        };
        match file {
            Some(file) if file.metadata()?.is_file() => Ok(ProfileSource::File(file)),
            Some(file) => ProfileSource::spool(file),
            None => ProfileSource::spool(io::stdin()),
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
#[derive(Debug)]
pub enum ProfileSource {
    /// A regular file.
    File(File),
    /// A copy of what came through a pipe.
    Spool(Box<SpooledTempFile>),
}

impl ProfileSource {
    fn spool(mut from: impl Read) -> Result<Self> {
        let mut spool = SpooledTempFile::new(SPOOL_MEMORY);
        io::copy(&mut from, &mut spool)?;
        spool.seek(SeekFrom::Start(0))?;
        Ok(ProfileSource::Spool(Box::new(spool)))
    }
}

impl Read for ProfileSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ProfileSource::File(file) => file.read(buffer),
            ProfileSource::Spool(spool) => spool.read(buffer),
        }
    }
}

impl Seek for ProfileSource {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            ProfileSource::File(file) => file.seek(to),
            ProfileSource::Spool(spool) => spool.seek(to),
        }
    }
}

/// A stream that may be packed, unpacked: zstd and gzip are known by their first bytes.
///
/// # Errors
///
/// Errors of the source.
pub fn unpacked(mut reader: Box<dyn BufRead>) -> Result<Box<dyn BufRead>> {
    let start = reader.fill_buf()?;
    if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(reader)?;
        decoder.window_log_max(crate::limits::ZSTD_WINDOW_LOG)?;
        Ok(Box::new(BufReader::with_capacity(BUFFER, decoder)))
    } else if start.starts_with(&[0x1f, 0x8b]) {
        Ok(Box::new(BufReader::with_capacity(BUFFER, flate2::bufread::MultiGzDecoder::new(reader))))
    } else {
        Ok(reader)
    }
}
