//! A read from a buffered reader that is served from its buffer.

use std::io::{self, BufRead, Read};

/// The [`Read::read`] of a reader that has a buffer.
pub(crate) fn read_buffered(reader: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize> {
    let read = reader.fill_buf()?.read(buffer)?;
    reader.consume(read);
    Ok(read)
}
