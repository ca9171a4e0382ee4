//! An output file that grows in place, and that other programs may truncate (logrotate) or remove meanwhile.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;

use crate::cli::io::lock::is_at;

/// Bytes that are copied at once.
const COPY: usize = 256 * 1024;

/// A file that is appended to, each time with something whole: if it is cut in between, it begins with the next.
pub(crate) struct Growing {
    file: File,
    path: PathBuf,
    /// What is not whole yet.
    pending: Vec<u8>,
    /// Whether it was noticed that the file is not under its name any more.
    is_gone: bool,
}

impl Growing {
    /// A file that is whole up to its end.
    ///
    /// # Errors
    ///
    /// Errors of the system.
    pub fn new((file, path): (File, PathBuf)) -> io::Result<Self> {
        append_only(&file, true)?;
        Ok(Growing { file, path, pending: Vec::new(), is_gone: false })
    }

    /// Appends what is pending, which is whole now, or nothing of it.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn write_out(&mut self) -> io::Result<()> {
        let mut done = 0;
        while done < self.pending.len() {
            match self.file.write(&self.pending[done..]) {
                Ok(0) => return self.take_back(done, io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.take_back(done, error),
            }
        }
        self.pending.clear();
        Ok(())
    }

    fn take_back(&mut self, written: usize, error: io::Error) -> io::Result<()> {
        self.pending.clear();
        if written > 0 {
            let length = self.file.metadata()?.len();
            self.file.set_len(length.saturating_sub(written as u64))?;
        }
        Err(error)
    }

    /// Appends something whose head is zeros until the rest is stored.
    ///
    /// # Errors
    ///
    /// What cannot be written; what was begun of it is taken away.
    pub fn chunk(&mut self, head: &[u8], rest: &mut impl Read) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        self.append(head, rest).inspect_err(|_| {
            // Where it cannot be taken away it stays uncommitted.
            let _ = append_only(&self.file, true);
            if self.file.metadata().is_ok_and(|found| found.len() > before) {
                let _ = self.file.set_len(before);
            }
        })
    }

    fn append(&mut self, head: &[u8], rest: &mut impl Read) -> io::Result<()> {
        self.file.write_all(&vec![0; head.len()])?;
        let size = head.len() as u64 + io::copy(&mut BufReader::with_capacity(COPY, rest), &mut self.file)?;
        self.file.sync_data()?;
        // Wherever it is now. If the file was cut in the middle of it, the rest alone is left, and not committed.
        let Some(at) = self.file.metadata()?.len().checked_sub(size) else { return Ok(()) };
        append_only(&self.file, false)?;
        write_at(&self.file, head, at)?;
        append_only(&self.file, true)?;
        self.file.sync_data()
    }

    /// Whether the file is not under its name any more. It is reported once.
    pub fn has_gone(&mut self) -> bool {
        let was_gone = std::mem::replace(&mut self.is_gone, !is_at(&self.file, &self.path));
        self.is_gone && !was_gone
    }

    /// Stores what is there.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn finish(&mut self) -> io::Result<()> {
        self.write_out()?;
        self.file.sync_all()
    }
}

impl Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_out()
    }
}

/// Has every write go to the end of the file, wherever that is then, or not.
#[cfg(unix)]
fn append_only(file: &File, is_so: bool) -> io::Result<()> {
    use rustix::fs::{OFlags, fcntl_setfl};
    Ok(fcntl_setfl(file, if is_so { OFlags::APPEND } else { OFlags::empty() })?)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(not(unix))]
fn append_only(_: &File, _: bool) -> io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
fn write_at(mut file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)?;
    file.seek(SeekFrom::End(0)).map(|_| ())
}
