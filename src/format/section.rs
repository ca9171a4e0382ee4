//! A section of a source: a byte range that is read by offset.

use std::io::{Read, Seek, SeekFrom};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::TABLE_BYTES;

/// The length of a profile's tables as a size in memory.
///
/// # Errors
///
/// Tables of more than [`TABLE_BYTES`].
pub(crate) fn table_len(length: u64) -> Result<usize> {
    let fits = usize::try_from(length).ok().filter(|length| *length <= TABLE_BYTES);
    fits.ok_or_else(|| {
        Error::new(
            ErrorKind::Limit,
            format!("the tables take {length} bytes, over the limit of {TABLE_BYTES}"),
        )
    })
}

/// Whether all of these bytes are zeros, at the speed of memory: holes of sparse files are large.
pub(crate) fn are_zeros(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|block| block == &ZEROS[..block.len()])
}

/// Fills `buffer` from byte `at`, as far as there is something.
pub(crate) fn read_up_to(source: &mut (impl Read + Seek), at: u64, buffer: &mut [u8]) -> Result<usize> {
    source.seek(SeekFrom::Start(at))?;
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}
