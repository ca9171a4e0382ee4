//! Compresses a zstd frame on another thread while its content is made.

use std::io::{self, Write};

use crate::worker::Worker;

/// Blocks that may wait for the thread.
const AHEAD: usize = 2;

/// Writes a zstd frame to `sink`, the same bytes as one compressed without a thread.
pub(crate) struct Packer<W> {
    sink: W,
    /// A job comes with a plain block and goes with what is compressed by then.
    worker: Worker<Vec<u8>, zstd::stream::write::Encoder<'static, Vec<u8>>>,
}

impl<W: Write> Packer<W> {
    /// Compresses on another thread; gives the sink back where the system has none.
    ///
    /// # Errors
    ///
    /// A level that zstd does not have.
    pub fn new(sink: W, level: i32) -> io::Result<Result<Self, W>> {
        let encoder = zstd::stream::write::Encoder::new(Vec::new(), level)?;
        let worker = Worker::start(AHEAD, encoder, |encoder, block: &mut Vec<u8>| {
            encoder.write_all(block)?;
            block.clear();
            block.append(encoder.get_mut());
            Ok(())
        });
        Ok(match worker {
            Ok(worker) => Ok(Packer { sink, worker }),
            Err(_) => Err(sink),
        })
    }

    /// Ends the frame and gives the sink back.
    pub fn finish(mut self) -> io::Result<W> {
        let (encoder, blocks) = self.worker.finish()?;
        blocks.iter().try_for_each(|block| self.sink.write_all(block))?;
        self.sink.write_all(&encoder.finish()?)?;
        Ok(self.sink)
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut block = Vec::new();
        while let Some(packed) = self.worker.try_recv() {
            self.sink.write_all(&packed)?;
            block = packed;
        }
        block.clear();
        block.extend_from_slice(bytes);
        if self.worker.send(block).is_err() {
            return Err(io::Error::other("the thread that compresses has failed"));
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
