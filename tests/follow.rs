//! `from-bin --follow`: a profile in chunks while it is being written.
#![cfg(unix)]

mod common;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::consumer::{self, Message};
use common::{PROGRAM, data, rfc, run};

struct Follower {
    child: Child,
    output: PathBuf,
}

impl Follower {
    fn start(folder: &Path, file: &Path, options: &[&str]) -> Self {
        let output = folder.join("stream.jsonl");
        let child = Command::new(PROGRAM)
            .args(["from-bin", "--follow", file.to_str().expect("UTF-8")])
            .args(options)
            .stdout(File::create(&output).expect("writable"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        Follower { child, output }
    }

    fn text(&self) -> Vec<u8> {
        std::fs::read(&self.output).expect("readable")
    }

    fn count(&self, what: &str) -> usize {
        String::from_utf8_lossy(&self.text()).matches(what).count()
    }

    /// Waits until so many of `what` are there.
    fn wait_for(&self, what: &str, count: usize) {
        let begun = Instant::now();
        while self.count(what) < count {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} of {count} {what}", self.count(what));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.count(what), count);
    }

    /// Asks it to end. Exit status, stream, messages.
    fn stop(mut self, signal: &str) -> (i32, Vec<u8>, String) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
        let begun = Instant::now();
        let status = self.child.wait().expect("it ends");
        assert!(begun.elapsed() < Duration::from_secs(1), "within a second");
        let mut said = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("UTF-8");
        (status.code().expect("no signal"), self.text(), said)
    }
}

const META: &str = "\"type\":\"meta\"";
const END: &str = "\"type\":\"end\"";

/// The chunks of a file.
fn chunks() -> Vec<Vec<u8>> {
    let bytes = std::fs::read(data("legacy/v2_20_chunks_zstd.bin")).expect("readable");
    let sizes = rfc::read(&bytes).0.into_iter().map(|chunk| chunk.size);
    let mut at = 0;
    sizes
        .map(|size| {
            at += size;
            bytes[at - size..at].to_vec()
        })
        .collect()
}

/// As a writer commits a chunk: zeros and the rest, then the header.
fn begin(file: &mut File, chunk: &[u8]) {
    file.seek(SeekFrom::End(0)).expect("a file");
    file.write_all(&[0; 64]).expect("writable");
    file.write_all(&chunk[64..]).expect("writable");
}

fn commit(file: &mut File, chunk: &[u8]) {
    file.seek(SeekFrom::End(-(chunk.len() as i64))).expect("a file");
    file.write_all(&chunk[..64]).expect("writable");
}

fn samples(stream: &[u8]) -> u64 {
    consumer::read(stream)
        .messages
        .iter()
        .map(|message| if let Message::End { samples, .. } = message { *samples } else { 0 })
        .sum()
}

#[test]
fn each_chunk_comes_when_it_is_committed_and_signals_end_it() {
    let chunks = chunks();
    for signal in ["-INT", "-TERM", "-HUP"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("live.bin");
        let follower = Follower::start(folder.path(), &path, &["--stream-types", "raw,agg:500ms,loss"]);
        std::thread::sleep(Duration::from_millis(100));
        let mut file = File::create(&path).expect("writable");
        for (number, chunk) in chunks[..6].iter().enumerate() {
            begin(&mut file, chunk);
            std::thread::sleep(Duration::from_millis(80));
            assert_eq!(follower.count(META), number, "not before it is committed");
            commit(&mut file, chunk);
            follower.wait_for(META, number + 1);
        }
        begin(&mut file, &chunks[6]);
        let (code, stream, said) = follower.stop(signal);
        assert_eq!(code, 0, "{said}");
        let checked = run(&["check"], &stream);
        assert_eq!(checked.code, 0, "{}", String::from_utf8_lossy(&checked.stdout));
        let read = consumer::read(&stream);
        let lost = chunks[6].len() as u64;
        assert!(read.messages.iter().any(|message| matches!(message,
            Message::Loss { reason, lost_bytes: Some(bytes), .. } if reason == "truncated" && *bytes == lost)));
        assert!(matches!(read.messages.last(), Some(Message::End { complete: false, .. })));
        // The samples are those of the six chunks, and the windows hold all of them.
        let six = run(&["from-bin", "--stream-types", "raw,agg:500ms,loss"], &chunks[..6].concat());
        let six = consumer::read(&six.stdout);
        assert!(read.threads == six.threads && read.agg == six.agg);
    }
}

#[test]
fn without_an_id_a_file_that_is_cut_or_replaced_is_another_run() {
    let chunks = chunks();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("live.bin");
    std::fs::write(&path, chunks[..3].concat()).expect("writable");
    let follower = Follower::start(folder.path(), &path, &["--stream-types", "raw"]);
    follower.wait_for(META, 3);
    // Cut, and started anew.
    std::fs::write(&path, &chunks[3]).expect("writable");
    follower.wait_for(META, 4);
    follower.wait_for(END, 1);
    // Another in its place.
    let other = folder.path().join("other.bin");
    std::fs::write(&other, chunks[4..6].concat()).expect("writable");
    std::fs::rename(&other, &path).expect("same disk");
    follower.wait_for(META, 6);
    follower.wait_for(END, 2);
    // Gone, and there again.
    std::fs::remove_file(&path).expect("there");
    std::thread::sleep(Duration::from_millis(100));
    std::fs::write(&other, &chunks[6]).expect("writable");
    std::fs::rename(&other, &path).expect("same disk");
    follower.wait_for(META, 7);
    let (code, stream, said) = follower.stop("-INT");
    assert_eq!(code, 0, "{said}");
    assert_eq!(run(&["check"], &stream).code, 0);
    let whole = run(&["from-bin", "--stream-types", "raw"], &chunks[..7].concat());
    assert_eq!(samples(&stream), samples(&whole.stdout));
    assert_eq!(String::from_utf8_lossy(&stream).matches("\"complete\":true").count(), 4);
}

/// The chunks of a run that has this id.
fn chunks_of(run_id: &str) -> Vec<Vec<u8>> {
    let stream = run(
        &["from-bin", "--run-id", run_id, "-"],
        &std::fs::read(common::recorder::profile()).expect("readable"),
    );
    let bytes = run(&["to-bin", "--layout", "v2", "--flush", "samples:200"], &stream.stdout).stdout;
    let mut rest = bytes.as_slice();
    let sizes = rfc::read(&bytes).0.into_iter().map(|chunk| chunk.size);
    sizes.map(|size| rest.split_off(..size).expect("so many").to_vec()).collect()
}

fn append(path: &Path, chunks: &[Vec<u8>]) {
    let mut file = File::options().append(true).create(true).open(path).expect("writable");
    file.write_all(&chunks.concat()).expect("writable");
}

#[test]
fn a_run_goes_on_however_its_file_is_rotated() {
    type Rotate = fn(&Path, &Path, &[Vec<u8>]);
    let rotations: [(&str, Rotate); 8] = [
        ("renamed, another begins while its writer goes on for a while", |path, other, chunks| {
            std::fs::rename(path, other).expect("same disk");
            append(other, &chunks[3..4]);
            File::create(path).expect("writable");
            std::thread::sleep(Duration::from_millis(150));
            append(other, &chunks[4..5]);
            std::thread::sleep(Duration::from_millis(150));
            append(path, &chunks[5..]);
        }),
        ("copied and cut", |path, _, chunks| {
            File::create(path).expect("writable");
            append(path, &chunks[3..]);
        }),
        ("cut, and nothing comes for a while", |path, _, chunks| {
            File::create(path).expect("writable");
            std::thread::sleep(Duration::from_millis(150));
            append(path, &chunks[3..]);
        }),
        ("cut under a writer that does not append", |path, _, chunks| {
            let length = std::fs::metadata(path).expect("there").len();
            let mut file = File::create(path).expect("writable");
            std::thread::sleep(Duration::from_millis(150));
            file.seek(SeekFrom::Start(length)).expect("a file");
            file.write_all(&chunks[3..].concat()).expect("writable");
        }),
        ("cut, and longer than before at once", |path, other, chunks| {
            std::fs::write(other, chunks[3..].concat()).expect("writable");
            assert!(chunks[3..].concat().len() > chunks[..3].concat().len());
            std::fs::copy(other, path).expect("writable");
        }),
        ("removed and made anew", |path, _, chunks| {
            std::fs::remove_file(path).expect("there");
            append(path, &chunks[3..]);
        }),
        ("replaced by a shorter one", |path, other, chunks| {
            append(other, &chunks[3..4]);
            std::fs::rename(other, path).expect("same disk");
            std::thread::sleep(Duration::from_millis(150));
            append(path, &chunks[4..]);
        }),
        ("replaced by a longer one that holds all", |path, other, chunks| {
            append(other, chunks);
            std::fs::rename(other, path).expect("same disk");
        }),
    ];
    let chunks = chunks_of("r");
    assert!(chunks.len() >= 7, "{}", chunks.len());
    let whole = run(&["from-bin", "--stream-types", "raw"], &chunks.concat());
    for (how, rotate) in rotations {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("live.bin");
        append(&path, &chunks[..3]);
        let follower = Follower::start(folder.path(), &path, &["--stream-types", "raw,loss"]);
        follower.wait_for(META, 3);
        rotate(&path, &folder.path().join("other.bin"), &chunks);
        follower.wait_for(META, chunks.len());
        let (code, stream, said) = follower.stop("-INT");
        assert_eq!((code, said.as_str()), (0, ""), "{how}");
        assert_eq!(run(&["check"], &stream).code, 0, "{how}");
        let text = String::from_utf8_lossy(&stream);
        assert_eq!(text.matches(END).count(), 1, "{how}: one run");
        let is_lost = ["gap", "corrupt", "truncated"].iter().any(|reason| text.contains(reason));
        assert!(!is_lost && text.contains("\"complete\":true"), "{how}: {text}");
        assert_eq!(samples(&stream), samples(&whole.stdout), "{how}");
    }
}

#[test]
fn what_a_rotation_costs_is_a_gap_and_another_run_is_another() {
    let (chunks, others) = (chunks_of("r"), chunks_of("s"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("live.bin");
    append(&path, &chunks[..2]);
    let follower = Follower::start(folder.path(), &path, &["--stream-types", "raw,loss"]);
    follower.wait_for(META, 2);
    // What had come last went with the cut.
    std::fs::write(&path, &chunks[3]).expect("writable");
    follower.wait_for(META, 3);
    std::fs::remove_file(&path).expect("there");
    append(&path, &others);
    follower.wait_for(META, 3 + others.len());
    let (code, stream, said) = follower.stop("-INT");
    assert_eq!(code, 3, "{said}");
    let text = String::from_utf8_lossy(&stream);
    assert_eq!((text.matches(END).count(), text.matches("\"reason\":\"gap\"").count()), (2, 1), "{text}");
    assert_eq!(text.matches("\"complete\":true").count(), 1);
}

#[test]
fn a_writer_that_died_and_came_back_costs_its_last_chunk() {
    let chunks = chunks();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("live.bin");
    std::fs::write(&path, &chunks[0]).expect("writable");
    let follower = Follower::start(folder.path(), &path, &["--stream-types", "raw,loss"]);
    follower.wait_for(META, 1);
    let mut file = File::options().read(true).write(true).open(&path).expect("writable");
    begin(&mut file, &chunks[1][..600]);
    std::thread::sleep(Duration::from_millis(100));
    // Another chunk behind the one that was never committed.
    begin(&mut file, &chunks[2]);
    commit(&mut file, &chunks[2]);
    follower.wait_for(META, 2);
    let (code, stream, _) = follower.stop("-TERM");
    assert_eq!(code, 3);
    assert!(String::from_utf8_lossy(&stream).contains("\"reason\":\"corrupt\",\"lost_bytes\":600"));
}

#[test]
fn heartbeats_come_while_nothing_else_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("live.bin");
    std::fs::write(&path, &chunks()[0]).expect("writable");
    let follower =
        Follower::start(folder.path(), &path, &["--stream-types", "raw,heartbeat:100ms", "-o", "-"]);
    follower.wait_for(META, 1);
    std::thread::sleep(Duration::from_millis(1050));
    let beats = follower.count("\"type\":\"heartbeat\"");
    assert!((3..=11).contains(&beats), "{beats}");
    let (code, stream, _) = follower.stop("-INT");
    assert_eq!(code, 0);
    let read = consumer::read(&stream);
    let beats = read.messages.iter().filter(|message| matches!(message, Message::Heartbeat { .. }));
    assert!(beats.clone().count() >= 3);
    let Some(Message::Meta { start_usec, duration_usec, samples: all, .. }) = read.messages.first() else {
        panic!("{:?}", read.messages.first());
    };
    let last_us = start_usec + duration_usec;
    for beat in beats {
        // A watermark: the sample just before it is counted. This profile has no date.
        assert!(
            matches!(beat, Message::Heartbeat { ts_usec, wall_usec: None, samples, batches: 1, .. }
                if *ts_usec == last_us + 1 && samples == all),
            "{beat:?}"
        );
    }
}

/// Ticks of a hundredth of a second.
/// <https://github.com/python/cpython/issues/144342>
#[cfg(target_os = "linux")]
#[test]
fn idle_it_takes_next_to_no_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("live.bin");
    std::fs::write(&path, &chunks()[0]).expect("writable");
    let follower = Follower::start(folder.path(), &path, &["--stream-types", "raw"]);
    follower.wait_for(META, 1);
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", follower.child.id())).expect("it runs");
        let times = stat.split(' ').skip(13).take(2);
        times.map(|time| time.parse::<u64>().expect("a number")).sum::<u64>()
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(3));
    assert!(ticks() - before <= 3, "{} hundredths in 3 seconds", ticks() - before);
    follower.stop("-TERM");
}

#[test]
fn the_stream_goes_to_a_file_that_grows() {
    let chunks = chunks();
    let folder = tempfile::tempdir().expect("a folder");
    let (path, target) = (folder.path().join("live.bin"), folder.path().join("out.jsonl"));
    std::fs::write(&path, &chunks[0]).expect("writable");
    let follower = Follower::start(folder.path(), &path, &["-o", target.to_str().expect("UTF-8")]);
    let begun = Instant::now();
    while !target.exists() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    let first = std::fs::read(&target).expect("there").len();
    let mut file = File::options().append(true).open(&path).expect("writable");
    file.write_all(&chunks[1]).expect("writable");
    while std::fs::read(&target).expect("there").len() == first {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    follower.stop("-INT");
    assert_eq!(run(&["check", target.to_str().expect("UTF-8")], b"").code, 0);
}

#[test]
fn what_cannot_be_followed_is_refused() {
    for (arguments, code) in [(&["from-bin", "--follow"][..], 2), (&["from-bin", "--follow", "a", "b"], 2)] {
        assert_eq!(run(arguments, b"").code, code);
    }
    let whole = data("cpython/tiny_script_none.bin");
    let ran = run(&["from-bin", "--follow", whole.to_str().expect("UTF-8")], b"");
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
    assert!(ran.stderr.contains("nothing to follow"), "{}", ran.stderr);
}
