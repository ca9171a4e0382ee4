//! Decompresses a zstd frame on another thread.
//!
//! The reader is the one that has the source: it hands packed blocks over as the thread asks for them, so
//! neither the source nor its lifetime leaves the reader. A few blocks are under way in each direction.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::buffered::read_buffered;
use crate::limits::ZSTD_WINDOW_LOG;
use crate::worker;

/// Bytes of a packed block.
const PACKED: usize = 64 * 1024;
/// Bytes of an unpacked block.
const UNPACKED: usize = 256 * 1024;
/// Packed blocks that are handed over before the first is asked for.
const AHEAD: usize = 4;

/// The decoder, on whichever thread.
pub(crate) fn decoder<R: BufRead>(packed: R) -> io::Result<zstd::stream::read::Decoder<'static, R>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG)?;
    Ok(decoder)
}

/// Reads what `region` holds, unpacked.
pub(crate) struct Unpacker<R> {
    region: R,
    /// `None` once all packed blocks are handed over.
    packed: Option<SyncSender<Vec<u8>>>,
    events: Receiver<Event>,
    block: Vec<u8>,
    pos: usize,
}

enum Event {
    /// The next packed block is wanted.
    Wanted,
    Unpacked(Vec<u8>),
    Failed(io::Error),
}

impl<R: Read> Unpacker<R> {
    /// Unpacks on a thread of its own; gives the region back where none can be had.
    ///
    /// # Errors
    ///
    /// Errors of the region.
    pub fn new(region: R) -> io::Result<Result<Self, R>> {
        let (packed, blocks) = sync_channel(AHEAD);
        let (sender, events) = sync_channel(AHEAD);
        let thread = worker::spawn(move || {
            let packed = Packed { blocks, events: sender.clone(), block: Vec::new(), pos: 0 };
            if let Err(error) = unpack(packed, &sender) {
                // The receiver may be gone.
                let _ = sender.send(Event::Failed(error));
            }
        });
        if thread.is_none() {
            return Ok(Err(region));
        }
        let mut unpacker = Unpacker { region, packed: Some(packed), events, block: Vec::new(), pos: 0 };
        for _ in 0..AHEAD {
            unpacker.submit()?;
        }
        Ok(Ok(unpacker))
    }

    /// Gives the thread its next packed block. There are never more than it has asked for, so this doesn't
    /// wait.
    fn submit(&mut self) -> io::Result<()> {
        let Some(packed) = &self.packed else { return Ok(()) };
        let mut block = Vec::with_capacity(PACKED);
        (&mut self.region).take(PACKED as u64).read_to_end(&mut block)?;
        // A thread that has met a fault is gone; it has left a message.
        if block.is_empty() || packed.send(block).is_err() {
            self.packed = None;
        }
        Ok(())
    }
}

impl<R: Read> Read for Unpacker<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.pos == self.block.len() {
            match self.events.recv() {
                Ok(Event::Wanted) => self.submit()?,
                Ok(Event::Unpacked(block)) => (self.block, self.pos) = (block, 0),
                Ok(Event::Failed(error)) => return Err(error),
                Err(_) => return Ok(0),
            }
        }
        let read = (&self.block[self.pos..]).read(buffer)?;
        self.pos += read;
        Ok(read)
    }
}

fn unpack(packed: Packed, events: &SyncSender<Event>) -> io::Result<()> {
    let mut decoder = decoder(packed)?;
    loop {
        let mut block = vec![0; UNPACKED];
        let mut filled = 0;
        let mut outcome = Ok(1);
        while filled < block.len() && matches!(outcome, Ok(1..)) {
            outcome = decoder.read(&mut block[filled..]);
            filled += outcome.as_ref().map_or(0, |read| *read);
        }
        block.truncate(filled);
        if filled > 0 && events.send(Event::Unpacked(block)).is_err() {
            return Ok(());
        }
        if outcome? == 0 {
            return Ok(());
        }
    }
}

/// The packed bytes, as the thread sees them.
struct Packed {
    blocks: Receiver<Vec<u8>>,
    events: SyncSender<Event>,
    block: Vec<u8>,
    pos: usize,
}

impl BufRead for Packed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.pos == self.block.len() {
            // Both ends are closed where the reader is gone: that is the end of the bytes.
            self.block = self.blocks.recv().unwrap_or_default();
            self.pos = 0;
            if !self.block.is_empty() {
                let _ = self.events.send(Event::Wanted);
            }
        }
        Ok(&self.block[self.pos..])
    }

    fn consume(&mut self, amount: usize) {
        self.pos += amount;
    }
}

impl Read for Packed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut source: impl Read) -> (Vec<u8>, Option<String>) {
        let (mut bytes, mut piece) = (Vec::new(), [0; 7777]);
        loop {
            match source.read(&mut piece) {
                Ok(0) => return (bytes, None),
                Ok(read) => bytes.extend_from_slice(&piece[..read]),
                Err(error) => return (bytes, Some(error.to_string())),
            }
        }
    }

    #[test]
    fn the_thread_unpacks_what_the_decoder_does_and_fails_as_it_does() {
        let mut state = 1u32;
        let plain: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 28) as u8 * (state >> 20 & 1) as u8
        })
        .take(3_000_000)
        .collect();
        let mut packed = zstd::encode_all(&plain[..1_000_000], 3).expect("a frame");
        packed.extend(zstd::encode_all(&plain[1_000_000..], 3).expect("a frame"));
        assert!(packed.len() > 2 * AHEAD * PACKED, "{} bytes", packed.len());
        let (all, fault) = read(Unpacker::new(&packed[..]).expect("bytes").expect("a thread"));
        assert!(fault.is_none() && all == plain);

        let mut flipped = packed.clone();
        flipped[packed.len() / 2] ^= 0x10;
        let cuts = [0, 1, 3, 100, PACKED, packed.len() / 3, packed.len() - 1].map(|end| &packed[..end]);
        for broken in cuts.into_iter().chain([&flipped[..], &plain[..]]) {
            let (bytes, fault) = read(Unpacker::new(broken).expect("bytes").expect("a thread"));
            let (expected, expected_fault) = read(decoder(broken).expect("a decoder"));
            assert_eq!(fault, expected_fault);
            assert!(bytes.starts_with(&expected), "{} bytes of {}", bytes.len(), expected.len());
        }
    }

    #[test]
    fn a_reader_may_go_before_the_end() {
        let packed = zstd::encode_all(&vec![7; 50_000_000][..], 1).expect("a frame");
        for _ in 0..100 {
            let mut start = [0; 10];
            Unpacker::new(&packed[..])
                .expect("bytes")
                .expect("a thread")
                .read_exact(&mut start)
                .expect("ten bytes");
            assert_eq!(start, [7; 10]);
        }
    }
}
