//! A zstd frame, packed on a thread of its own beside the one that makes its content.

use std::io::{self, Write};
use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use crate::worker;

/// Blocks that may wait for the thread.
const AHEAD: usize = 2;

/// Writes a zstd frame to `sink` that is the same as one packed without a thread.
pub(crate) struct Packer<W> {
    sink: W,
    plain: SyncSender<Vec<u8>>,
    /// As many as there were plain ones at most, and taken whenever one of those is sent.
    packed: Receiver<Vec<u8>>,
    thread: JoinHandle<io::Result<()>>,
}

impl<W: Write> Packer<W> {
    /// Packs on a thread of its own; gives the sink back where none can be had.
    ///
    /// # Errors
    ///
    /// A level that zstd does not have.
    pub fn new(sink: W, level: i32) -> io::Result<Result<Self, W>> {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level)?;
        let (plain, blocks) = sync_channel::<Vec<u8>>(AHEAD);
        let (sender, packed) = channel();
        let thread = worker::worker(move || {
            // Where nobody takes what is packed there will be no more blocks.
            for block in blocks {
                encoder.write_all(&block)?;
                let _ = sender.send(mem::take(encoder.get_mut()));
            }
            let _ = sender.send(encoder.finish()?);
            Ok(())
        });
        Ok(match thread {
            Some(thread) => Ok(Packer { sink, plain, packed, thread }),
            None => Err(sink),
        })
    }

    /// Ends the frame and gives the sink back.
    pub fn finish(mut self) -> io::Result<W> {
        drop(self.plain);
        for block in self.packed {
            self.sink.write_all(&block)?;
        }
        self.thread.join().expect("the thread does not panic")?;
        Ok(self.sink)
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.plain.send(bytes.to_vec()).is_err() {
            return Err(io::Error::other("the thread that packs with zstd has failed"));
        }
        for block in self.packed.try_iter() {
            self.sink.write_all(&block)?;
        }
        Ok(bytes.len())
    }

    /// What the thread has is not waited for.
    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_packs_as_the_encoder_does() {
        let mut state = 1u32;
        let content: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 28) as u8
        })
        .take(5_000_000)
        .collect();
        for (length, level) in [(0, 5), (1, 5), (5_000_000, 1), (5_000_000, 5)] {
            let mut beside = Packer::new(Vec::new(), level).expect("a level").expect("a thread");
            let mut here = zstd::stream::write::Encoder::new(Vec::new(), level).expect("an encoder");
            for block in content[..length].chunks(512 * 1024) {
                beside.write_all(block).expect("a vector takes all");
                here.write_all(block).expect("a vector takes all");
            }
            let expected = here.finish().expect("a vector takes all");
            assert!(
                beside.finish().expect("a vector takes all") == expected,
                "{length} bytes, level {level}"
            );
        }
    }
}
