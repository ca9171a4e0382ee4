//! A file or pipe that a background thread writes to.

use std::fs::File;
use std::io::{self, Write};
use std::mem;

use crate::worker::Worker;

/// Bytes that are handed over at once.
const BLOCK: usize = 128 * 1024;
/// Blocks that may wait for the thread.
const AHEAD: usize = 4;

/// Writes to a file in order. An error is returned by a later call than its cause.
pub(crate) struct BackgroundWriter {
    block: Vec<u8>,
    state: WriterState,
}

enum WriterState {
    /// There is no thread before there is a block for it.
    Idle(File),
    Running(Worker<Vec<u8>, File>),
    /// An error was reported.
    Failed,
}

impl BackgroundWriter {
    pub fn new(file: File) -> Self {
        BackgroundWriter { block: Vec::new(), state: WriterState::Idle(file) }
    }

    /// Lets the thread have what was written so far, and does not wait for it. Before there is a whole block, and
    /// so a thread, it is written here.
    ///
    /// # Errors
    ///
    /// Errors of the file, of this or of earlier calls.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        self.state = match mem::replace(&mut self.state, WriterState::Failed) {
            // A thread is worth less than it costs where this is all.
            WriterState::Idle(file) if self.block.len() < BLOCK => {
                self.state = WriterState::Idle(file);
                return self.finish();
            }
            WriterState::Idle(file) => match Worker::start(AHEAD, file, write) {
                Ok(writer) => WriterState::Running(writer),
                // No thread is to be had, so it is written here.
                Err(file) => {
                    self.state = WriterState::Idle(file);
                    return self.finish();
                }
            },
            other => other,
        };
        let WriterState::Running(writer) = &mut self.state else { return Err(failed()) };
        let next = writer.try_recv().unwrap_or_else(|| Vec::with_capacity(BLOCK));
        if writer.send(mem::replace(&mut self.block, next)).is_err() {
            return Err(self.fail());
        }
        Ok(())
    }

    /// Waits until all is written.
    ///
    /// # Errors
    ///
    /// Errors of the file, of this or of earlier calls.
    pub fn finish(&mut self) -> io::Result<()> {
        if let WriterState::Idle(file) = &mut self.state {
            let written = file.write_all(&self.block);
            self.block.clear();
            return written;
        }
        self.submit()?;
        let WriterState::Running(writer) = &mut self.state else { return Err(failed()) };
        while writer.is_busy() {
            if writer.recv().is_none() {
                return Err(self.fail());
            }
        }
        Ok(())
    }

    /// What has ended the thread.
    fn fail(&mut self) -> io::Error {
        match mem::replace(&mut self.state, WriterState::Failed) {
            WriterState::Running(writer) => writer.finish().err().unwrap_or_else(failed),
            WriterState::Idle(_) | WriterState::Failed => failed(),
        }
    }
}

fn failed() -> io::Error {
    io::Error::other("the thread that writes has failed")
}

fn write(file: &mut File, block: &mut Vec<u8>) -> io::Result<()> {
    file.write_all(block)?;
    block.clear();
    Ok(())
}

impl Write for BackgroundWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let WriterState::Failed = self.state {
            return Err(failed());
        }
        let taken = bytes.len().min(BLOCK.saturating_sub(self.block.len()));
        self.block.extend_from_slice(&bytes[..taken]);
        if self.block.len() == BLOCK {
            self.submit()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.submit()
    }
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        // What was taken goes out all the same; an error has nobody left to be reported to.
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    /// Pieces of all lengths, and what they are together.
    fn pieces() -> (Vec<Vec<u8>>, Vec<u8>) {
        let lengths = [0, 1, 7, BLOCK - 8, BLOCK, 1, 3 * BLOCK + 5, 2, 20 * BLOCK];
        let pieces: Vec<Vec<u8>> =
            lengths.iter().map(|length| (0..*length).map(|at| (at % 251) as u8).collect()).collect();
        let all = pieces.concat();
        (pieces, all)
    }

    #[test]
    fn all_is_written_in_order_whoever_waits_for_it() {
        let (pieces, all) = pieces();
        for end in ["finish", "drop", "hand over and drop"] {
            let mut file = tempfile::tempfile().expect("a file");
            let mut in_background = BackgroundWriter::new(file.try_clone().expect("a file"));
            for piece in &pieces {
                in_background.write_all(piece).expect("room");
            }
            match end {
                "finish" => {
                    in_background.finish().expect("written");
                    assert_eq!(file.metadata().expect("a length").len(), all.len() as u64);
                }
                "drop" => {}
                _ => in_background.submit().expect("handed over"),
            }
            drop(in_background);
            let mut found = Vec::new();
            file.rewind().expect("the start");
            file.read_to_end(&mut found).expect("bytes");
            assert!(found == all, "{end}: {} bytes of {}", found.len(), all.len());
        }
    }

    #[test]
    fn what_cannot_be_written_is_told() {
        let (pieces, _) = pieces();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "").expect("a file");
        let write = |in_background: &mut BackgroundWriter| {
            pieces
                .iter()
                .try_for_each(|piece| in_background.write_all(piece))
                .and_then(|()| in_background.finish())
        };
        // Not open for writing.
        let mut in_background = BackgroundWriter::new(File::open(&path).expect("a file"));
        let error = write(&mut in_background).expect_err("refused");
        assert_ne!(error.kind(), io::ErrorKind::Other, "{error}");
        assert!(in_background.write_all(b"more").is_err() && in_background.finish().is_err());
        // Less than a block.
        let mut in_background = BackgroundWriter::new(File::open(&path).expect("a file"));
        in_background.write_all(b"little").expect("room");
        assert!(in_background.finish().is_err());
    }
}
