//! The layout of a ring file: chunks in a file of fixed size, written in a circle.
//!
//! After [`RING_START`] bytes of a start of its own stand whole chunks (format version 2), each written as in
//! any file: zeros for its header, the rest, then the header. What a chunk is written over loses its header
//! before that. So, whenever the writer dies, what is whole is known by its headers and checksums, and its
//! order by the numbers of the chunks.

/// Bytes before the first chunk.
pub const RING_START: u64 = 64;

/// Nothing that any profile begins with, of which the highest byte first begins with `TACH`.
const MAGIC: &[u8; 8] = b"RINGTACH";
const VERSION: u32 = 1;

/// The start of a ring file of `size` bytes.
pub fn ring_start(size: u64) -> [u8; RING_START as usize] {
    let mut start = [0; RING_START as usize];
    start[..8].copy_from_slice(MAGIC);
    start[8..12].copy_from_slice(&VERSION.to_le_bytes());
    start[16..24].copy_from_slice(&size.to_le_bytes());
    start
}

/// Whether a file that begins so is a ring file.
pub fn is_ring(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}
