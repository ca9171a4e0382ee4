//! Files that grow under their names while others cut them, take them away or write to them, too.
#![cfg(unix)]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::recorder::{Recorder, command, of_type, record, wait_for};
use common::writers::inputs;
use common::{PROGRAM, messages, run, text};

const ENDINGS: [&str; 3] = ["jsonl", "bin", "jsonl.zst"];

/// A recording that waits for a gate in its middle, and its target.
struct Gated {
    folder: tempfile::TempDir,
    target: PathBuf,
    recorder: Recorder,
}

impl Gated {
    /// Two parts come at once, two behind the gate.
    fn start(ending: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join(format!("out.{ending}"));
        let mut command = command(&["-o", text(&target)], "begin part:0 part:1 gate part:2 part:3 end");
        command.env("GATE", folder.path().join("gate")).stdout(Stdio::null()).stderr(Stdio::piped());
        let recorder = Recorder { child: command.spawn().expect("it starts") };
        let gated = Gated { folder, target, recorder };
        wait_for("two parts", || (gated.parts() >= 2).then_some(()));
        gated
    }

    /// Whole parts that are under its name.
    fn parts(&self) -> usize {
        let Ok(bytes) = fs::read(&self.target) else { return 0 };
        count_parts(&self.target, &bytes)
    }

    /// Opens the gate. Exit status, and what was said.
    fn go_on(self) -> (Option<i32>, String, tempfile::TempDir) {
        fs::write(self.folder.path().join("gate"), "").expect("writable");
        let (code, said) = self.recorder.end();
        (code, said, self.folder)
    }
}

/// How many whole parts, from the first byte on; nothing else may be there.
fn count_parts(path: &Path, bytes: &[u8]) -> usize {
    if bytes.is_empty() {
        return 0;
    }
    match path.extension().expect("an ending").to_str().expect("UTF-8") {
        "bin" => {
            let ran = run(&["inspect", "--verify", "--json"], bytes);
            let json: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
            json["runs"][0]["chunk_count"].as_u64().unwrap_or(0) as usize
        }
        "zst" => zstd::decode_all(bytes).map_or(0, |text| count_batches(&text)),
        _ => count_batches(bytes),
    }
}

/// Batches with samples.
fn count_batches(stream: &[u8]) -> usize {
    assert!(stream.starts_with(b"{\"type\":\"meta\"") && stream.ends_with(b"\n"));
    let messages = messages(stream);
    let batches = of_type(&messages, "raw").into_iter().map(|message| message["batch"].to_string());
    batches.collect::<std::collections::BTreeSet<_>>().len()
}

/// What logrotate's copytruncate does.
#[test]
fn a_file_that_was_copied_and_cut_begins_with_the_next_batch() {
    for ending in ENDINGS {
        let gated = Gated::start(ending);
        let target = gated.target.clone();
        let before = fs::read(&target).expect("readable");
        File::options().write(true).truncate(true).open(&target).expect("writable");
        let (code, said, _folder) = gated.go_on();
        assert_eq!(code, Some(0), "{ending}: {said}");
        let after = fs::read(&target).expect("readable");
        assert_eq!((count_parts(&target, &before), count_parts(&target, &after)), (2, 2), "{ending}");
        if ending != "bin" {
            let text = zstd::decode_all(&after[..]).unwrap_or_else(|_| after.clone());
            assert!(text.windows(12).any(|part| part == b"\"type\":\"end\""), "{ending}");
        }
    }
}

#[test]
fn a_second_recording_into_the_same_file_is_refused_at_any_time() {
    for ending in ENDINGS {
        let gated = Gated::start(ending);
        let target = text(&gated.target).to_string();
        let again = |target: &str| {
            let (code, _, said) = record(&["-o", target], "begin part:0 end");
            assert_eq!(code, 1, "{said}");
            assert!(said.contains("another process is writing to it"), "{said}");
        };
        again(&target);
        // By another name, too.
        let link = gated.folder.path().join(format!("link.{ending}"));
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        again(text(&link));
        let ran = run(&["from-bin", text(&inputs().profile), "-o", &target], b"");
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        let (code, said, _folder) = gated.go_on();
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(count_parts(Path::new(&target), &fs::read(&target).expect("there")), 4, "{ending}");
    }
}

/// Before the first part there is nothing under the name yet.
#[test]
fn of_two_recordings_that_begin_together_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("out.jsonl");
    let mut first = command(&["-o", text(&target)], "begin gate part:0 end");
    first.env("GATE", folder.path().join("gate")).stderr(Stdio::piped());
    let first = Recorder { child: first.spawn().expect("it starts") };
    let made = folder.path().join(".tachyon-jsonl-out.jsonl");
    wait_for("the file in the making", || made.exists().then_some(()));
    let (code, _, said) = record(&["-o", text(&target)], "begin part:0 end");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("another process is writing to it") && !said.contains(".tachyon"), "{said}");
    fs::write(folder.path().join("gate"), "").expect("writable");
    assert_eq!(first.end().0, Some(0));
    assert_eq!(count_parts(&target, &fs::read(&target).expect("there")), 1);
}

#[test]
fn a_file_that_is_taken_away_while_it_grows_is_told() {
    for ending in ENDINGS {
        let acts: [fn(&Path); 3] = [
            |target| fs::remove_file(target).expect("removed"),
            |target| fs::rename(target, target.with_file_name("other")).expect("renamed"),
            |target| {
                fs::write(target.with_file_name("new"), "new").expect("writable");
                fs::rename(target.with_file_name("new"), target).expect("replaced");
            },
        ];
        for act in acts {
            let gated = Gated::start(ending);
            act(&gated.target);
            let (code, said, folder) = gated.go_on();
            assert_eq!(code, Some(3), "{ending}: {said}");
            assert_eq!(said.matches("removed, renamed or replaced").count(), 1, "{said}");
            // One who has it under another name has all.
            let other = folder.path().join("other");
            if let Ok(bytes) = fs::read(&other) {
                assert_eq!(count_parts(Path::new(&format!("out.{ending}")), &bytes), 4);
            }
        }
    }
}

#[test]
fn what_a_killed_run_has_left_is_cleared_by_the_next_of_the_same_target() {
    let folder = tempfile::tempdir().expect("a folder");
    for ending in ENDINGS {
        let target = folder.path().join(format!("out.{ending}"));
        let mut killed = command(&["-o", text(&target)], "begin wait");
        let mut killed = killed.stderr(Stdio::null()).spawn().expect("it starts");
        let made = folder.path().join(format!(".tachyon-jsonl-out.{ending}"));
        wait_for("the file in the making", || made.exists().then_some(()));
        let left = fs::metadata(&made).expect("there").ino();
        killed.kill().expect("killed");
        killed.wait().expect("it ends");
        assert_eq!(fs::metadata(&made).expect("it is left").ino(), left);
        let (code, _, said) = record(&["-o", text(&target)], "begin part:0 end");
        assert_eq!(code, 0, "{said}");
        assert!(!made.exists() && count_parts(&target, &fs::read(&target).expect("there")) == 1);
    }
    // Of any length, and whatever somebody has put there.
    let long = folder.path().join("n".repeat(250));
    fs::write(folder.path().join(".tachyon-jsonl-x.jsonl"), "left").expect("writable");
    std::os::unix::fs::symlink("victim", folder.path().join(".tachyon-jsonl-y.jsonl")).expect("a link");
    for target in [long, folder.path().join("x.jsonl"), folder.path().join("y.jsonl")] {
        let ran = run(&["from-bin", text(&inputs().profile), "-o", text(&target)], b"");
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    }
    assert!(!folder.path().join("victim").exists());
    let left = fs::read_dir(folder.path()).expect("a folder");
    let mut left = left.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    assert!(left.all(|name| !name.starts_with(".tachyon-jsonl-")));
}

/// A limit on the size of files stands in for a disk that is full; one in blocks of 512 bytes.
#[test]
fn what_was_whole_before_the_disk_was_full_is_kept_and_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("out.jsonl");
    let source = folder.path().join("live.bin");
    let chunks = fs::read(&inputs().chunks).expect("readable");
    fs::write(&source, &chunks[..chunks.len() / 4]).expect("writable");
    let script = "ulimit -f 24; exec \"$0\" from-bin --follow \"$1\" -o \"$2\"";
    let mut follower = Command::new("sh")
        .args(["-c", script, PROGRAM, text(&source), text(&target)])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    wait_for("the first batch", || target.exists().then_some(()));
    fs::write(&source, &chunks).expect("writable");
    let ended = || follower.try_wait().expect("it can be asked");
    let mut ended = ended;
    let status = wait_for("its end", &mut ended);
    let said = std::io::read_to_string(follower.stderr.take().expect("a pipe")).expect("UTF-8");
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(said.contains("out.jsonl: File too large"), "{said}");
    assert!(said.contains("it ends with the last complete batch"), "{said}");
    assert!(count_batches(&fs::read(&target).expect("there")) >= 1);
}

#[test]
fn a_recorder_that_is_asked_for_what_is_no_file_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let control = format!("unix:{}", folder.path().join("control").display());
    let recorder = Recorder::start(&["--ring", "30s", "--control", &control], "begin part:0 part:1 wait end");
    wait_for("the socket", || folder.path().join("control").exists().then_some(()));
    let pipe = folder.path().join("pipe.bin");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let snapshot = |target: &str| run(&["snapshot", "--control", &control, "-o", target], b"");
    let good = folder.path().join("good.bin");
    wait_for("a snapshot", || (snapshot(text(&good)).code == 0).then_some(()));
    // Asked for as the client does, and straight at the socket.
    for target in
        [text(&pipe), "/dev/null", "/dev/zero", text(folder.path()), "/dev/stdout", "-", "/dev/fd/1"]
    {
        let ran = snapshot(target);
        assert_eq!((ran.code, ran.stdout.len()), (2, 0), "{target}: {}", ran.stderr);
        let mut client = UnixStream::connect(folder.path().join("control")).expect("it listens");
        writeln!(client, "snapshot {target}").expect("it takes it");
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).expect("it answers");
        assert!(answer.contains("a snapshot is a file"), "{target}: {answer}");
    }
    assert_eq!(snapshot(text(&good)).code, 0);
    for name in ["x.bin.zst", "x.jsonl.gz"] {
        assert_eq!(snapshot(text(&folder.path().join(name))).code, 2, "{name}");
    }
    recorder.signal("-TERM");
    let begun = std::time::Instant::now();
    assert_eq!(recorder.end().0, Some(0));
    assert!(begun.elapsed().as_secs() < 10);
}

/// Names, arguments, and what a peer says: nothing of it steers a terminal.
#[test]
fn control_characters_do_not_reach_standard_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let evil = "a\u{1b}[31m\u{9b}\u{202e}b\rc";
    let missing = folder.path().join(evil);
    let inside = missing.join("x");
    let stream = format!(
        "{{\"type\":\"meta\",\"v\":2,\"run_id\":\"r\",\"mode\":\"{e}\",\"python\":\"{e}\",\"nonsense\":\"{e}\"}}\n{{\"type\":\"{e}\"}}\n",
        e = "\\u001b[31m\\u202e"
    );
    let file = folder.path().join(format!("{evil}.jsonl"));
    fs::write(&file, &stream).expect("writable");
    let record = ["record", "--python", text(&missing), "--", "run", evil];
    let commands: [&[&str]; 10] = [
        &["from-bin", text(&missing)],
        &["to-bin", text(&file)],
        &["check", text(&file)],
        &["inspect", text(&file)],
        &["diff", text(&file), text(&file), "--force"],
        &["upgrade", text(&file)],
        &[evil],
        &["from-bin", "--stream-types", evil],
        &["from-bin", text(&inputs().profile), "-o", text(&inside)],
        &record,
    ];
    for command in commands {
        let ran = run(command, b"");
        let shown = ran.stderr + &String::from_utf8_lossy(&ran.stdout);
        let steers = |char: &char| (char.is_control() && *char != '\n') || *char == '\u{202e}';
        assert_eq!(shown.chars().find(steers), None, "{command:?}: {shown:?}");
        assert!(!shown.is_empty(), "{command:?}");
    }
}
