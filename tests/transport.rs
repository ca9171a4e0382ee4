//! The parts that move bytes, each alone: lines, pipes that are read twice, targets, limits.

use std::fs;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tachyon_jsonl::cli::io::{Deadline, ProfileSource, Target};
use tachyon_jsonl::cli::net::Network;
use tachyon_jsonl::error::Position;
use tachyon_jsonl::protocol::Lines;

/// Each piece at one read; `None` is a signal that interrupts it.
struct Pieces(Vec<Option<&'static [u8]>>);

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Ok(0);
        }
        match self.0.remove(0) {
            None => Err(io::ErrorKind::Interrupted.into()),
            Some(b"error") => Err(io::Error::other("a bad block")),
            Some(piece) => {
                buffer[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
    }
}

#[test]
fn a_signal_does_not_end_a_line_and_an_error_has_the_number_of_its_line() {
    let pieces = Pieces(vec![Some(b"one\ntw"), None, Some(b"o\nthr"), Some(b"error")]);
    let mut lines = Lines::new(BufReader::new(pieces));
    for (number, text) in [(1, "one"), (2, "two")] {
        let line = lines.next_line().expect("a line").expect("a line");
        assert_eq!((line.number, &*line.bytes), (number, text.as_bytes()));
    }
    let Err(error) = lines.next_line() else { panic!("an error") };
    assert_eq!(error.position(), Some(Position::Line(3)));
}

#[test]
fn a_signal_does_not_end_a_pipe_and_an_error_does_with_what_came_before_it() {
    let mut source = ProfileSource::of_pipe(Pieces(vec![Some(b"one"), None, Some(b"two")]));
    let mut all = Vec::new();
    source.read_to_end(&mut all).expect("bytes");
    assert_eq!(all, b"onetwo");
    assert!(source.failure().is_none());
    let mut source = ProfileSource::of_pipe(Pieces(vec![Some(b"one"), Some(b"error")]));
    all.clear();
    source.read_to_end(&mut all).expect("what came");
    assert_eq!(all, b"one");
    let failure = source.failure().expect("an error");
    assert_eq!(failure.io().map(io::Error::kind), Some(io::ErrorKind::Other));
}

/// What is left is copied, so a little is kept for longer; at the end nothing is.
#[test]
fn what_a_pipe_may_forget_is_given_up_once_it_is_worth_it() {
    const WORTH: u64 = 64 * 1024;
    let bytes: Vec<u8> = (0..4 * WORTH).map(|at| (at % 251) as u8).collect();
    let mut source = ProfileSource::of_pipe(Cursor::new(bytes.clone()));
    let byte = |source: &mut ProfileSource, at: u64| {
        let mut byte = [0];
        source.seek(SeekFrom::Start(at)).expect("a place");
        source.read_exact(&mut byte).map(|()| byte[0])
    };
    assert_eq!(source.seek(SeekFrom::End(0)).expect("an end"), 4 * WORTH);
    let mut start = 0;
    for (before, is_worth_it) in [
        (WORTH - 1, false),
        (WORTH, true),
        (2 * WORTH - 1, false),
        (2 * WORTH + 1, true),
        (4 * WORTH - 1, true),
        (4 * WORTH, true),
    ] {
        source.forget(before).expect("room");
        if is_worth_it {
            start = before;
        }
        if start > 0 {
            assert!(byte(&mut source, start - 1).is_err(), "before {before}");
        }
        if start < 4 * WORTH {
            assert_eq!(byte(&mut source, start).expect("kept"), bytes[start as usize], "{before}");
        }
    }
}

fn target(argument: &str) -> Target {
    let network = Network { token: None, notice: Arc::new(|_| {}) };
    Target::of_argument(Some(Path::new(argument)), &network).expect("a target")
}

#[test]
fn standard_output_and_devices_are_pipes_and_files_and_sockets_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    assert!(!Target::File(file.clone()).is_pipe(), "not there yet");
    fs::write(&file, "text").expect("writable");
    assert!(!Target::File(file).is_pipe());
    assert!(!target("tcp:127.0.0.1:4000").is_pipe());
    assert!(target("-").is_pipe());
    if cfg!(unix) {
        assert!(target("/dev/null").is_pipe());
    }
}

#[test]
fn the_same_place_is_known_however_it_is_spelled() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| Target::File(folder.path().join(name));
    for (one, other, is_same) in [
        (target("-"), target("-"), true),
        (place("a"), place("./a"), true),
        (place("a"), place("b"), false),
        (target("tcp:4000"), target("tcp:127.0.0.1:4000"), true),
        (target("tcp:4000"), target("tcp:4001"), false),
        (target("tcp:4000"), target("tcp-listen:4000"), false),
        (target("-"), place("a"), false),
        (target("tcp:4000"), target("-"), false),
    ] {
        let names = format!("{} and {}", one.name(), other.name());
        assert_eq!((one.is_same_place(&other), other.is_same_place(&one)), (is_same, is_same), "{names}");
    }
}

#[test]
fn a_limit_is_over_when_its_time_has_come_for_all_who_hold_it() {
    let limit = Deadline::default();
    let other = limit.clone();
    assert!(!limit.has_passed());
    limit.set(Instant::now() + Duration::from_secs(3600));
    assert!(!other.has_passed());
    limit.set(Instant::now());
    assert!(other.has_passed());
}

/// What is in the making belongs to the whole process: who removes it is alone.
static MAKING: Mutex<()> = Mutex::new(());

#[test]
fn a_file_in_the_making_can_be_written_back_and_forth() {
    let _making = MAKING.lock().expect("no panic");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let mut output = Target::File(path.clone()).open(Duration::ZERO).expect("a file");
    let file = output.file().expect("no pipe");
    file.write_all(b"wrong").expect("room");
    file.rewind().expect("a start");
    file.write_all(b"right").expect("room");
    output.commit().expect("in its place");
    assert_eq!(fs::read(path).expect("there"), b"right");
}

#[cfg(unix)]
mod unix {
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use tachyon_jsonl::cli::io::remove_unfinished_files;
    use tachyon_jsonl::cli::net::{BindFault, PrivateListener};

    use super::*;

    fn fifo(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        path
    }

    /// A pipe that takes nothing is waited for until the limit, and no longer.
    #[test]
    fn a_limited_output_waits_for_its_reader_until_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = fifo(&folder);
        let limit = Deadline::default();
        let reader = {
            let path = path.clone();
            std::thread::spawn(move || fs::File::open(path).expect("a reader"))
        };
        let output =
            Target::File(path).open(Duration::from_secs(10)).map(|output| output.with_deadline(&limit));
        let mut output = output.expect("a pipe");
        let mut reader = reader.join().expect("no panic");
        // More than a pipe holds, while nobody reads for a while.
        let bytes = vec![7; 1 << 20];
        let size = bytes.len();
        let reading = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(400));
            let mut taken = vec![0; size];
            reader.read_exact(&mut taken).map(|()| (reader, taken))
        });
        output.write_all(&bytes).expect("waits as long as it takes");
        let (reader, taken) = reading.join().expect("no panic").expect("bytes");
        assert!(taken == bytes);
        limit.set(Instant::now());
        let error = output.write_all(&bytes).expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(reader);
    }

    #[test]
    fn a_listener_takes_the_name_of_one_that_is_gone_and_of_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        fs::write(&path, "text").expect("writable");
        assert!(matches!(PrivateListener::bind(&path), Err(BindFault::NoSocket)));
        fs::remove_file(&path).expect("there");
        let living = UnixListener::bind(&path).expect("a socket");
        assert!(matches!(PrivateListener::bind(&path), Err(BindFault::Living)));
        drop(living);
        let listener = PrivateListener::bind(&path).expect("it was left behind");
        drop(listener);
        assert!(!path.exists(), "its name goes with it");
        // Somebody is there, though not for streams.
        let _datagrams = UnixDatagram::bind(&path).expect("a socket");
        assert!(matches!(PrivateListener::bind(&path), Err(BindFault::Living)));
    }

    /// Only what is still there is removed when the process ends early.
    #[test]
    fn the_name_of_a_socket_that_is_closed_is_somebody_elses() {
        let _making = MAKING.lock().expect("no panic");
        let folder = tempfile::tempdir().expect("a folder");
        let [closed, open] = ["closed", "open"].map(|name| folder.path().join(name));
        let listener = PrivateListener::bind(&closed).expect("a socket");
        let _listener = PrivateListener::bind(&open).expect("a socket");
        drop(listener);
        fs::write(&closed, "another's").expect("writable");
        remove_unfinished_files();
        assert!(closed.exists() && !open.exists());
    }
}
