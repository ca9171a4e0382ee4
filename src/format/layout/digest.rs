//! Digests of profiles: the checksum of a chunk, and the hash that names a run.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use xxhash_rust::xxh3::Xxh3;

use crate::error::Result;
use crate::format::layout::header::{CHECKSUM_AT, FOOTER_LEN};

const COPY: usize = 256 * 1024;

/// A digest of the profile's bytes up to some place: of those that a walk has read anyway.
#[derive(Clone, Default)]
pub(crate) struct Digest {
    hash: Xxh3,
    up_to: u64,
}

impl Digest {
    pub fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.up_to += bytes.len() as u64;
    }

    /// The digest of all `size` bytes from `base` on, of which those that it lacks are read.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn finish(mut self, source: &mut (impl Read + Seek), base: u64, size: u64) -> Result<u128> {
        update(&mut self.hash, source, base + self.up_to, size - self.up_to)?;
        Ok(self.hash.digest128())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digest").field("up_to", &self.up_to).finish_non_exhaustive()
    }
}

/// A source whose bytes go into a digest when they are read.
pub(crate) struct Digested<'a, R> {
    pub source: R,
    pub digest: &'a mut Digest,
}

impl<R: Read> Read for Digested<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.source.read(buffer)?;
        self.digest.update(&buffer[..got]);
        Ok(got)
    }
}

/// The checksum of the chunk of `size` bytes at `base`, as its footer should hold it.
///
/// # Errors
///
/// Errors of the source.
pub(crate) fn chunk_checksum(source: &mut (impl Read + Seek), base: u64, size: u64) -> Result<[u8; 16]> {
    let mut hash = Xxh3::new();
    let checksum_at = size - FOOTER_LEN + CHECKSUM_AT;
    update(&mut hash, source, base, checksum_at)?;
    hash.update(&[0; 16]);
    Ok(hash.digest128().to_be_bytes())
}

fn update(hash: &mut Xxh3, source: &mut (impl Read + Seek), base: u64, size: u64) -> Result<()> {
    source.seek(SeekFrom::Start(base))?;
    let mut whole = source.take(size);
    let mut buffer = vec![0; size.min(COPY as u64) as usize];
    loop {
        match whole.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => hash.update(&buffer[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}
