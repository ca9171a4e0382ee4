//! `record --ring`, `snapshot`: the last seconds, the file that outlives its recorder, the control socket.
#![cfg(unix)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::recorder::*;
use common::{data, run, stream_of};
use serde_json::Value;

/// A recorder with a ring, to talk to.
struct Ringed {
    recorder: Recorder,
    folder: tempfile::TempDir,
}

impl Ringed {
    fn start(options: &[&str], actions: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (_, control) = path_in(&folder, "control");
        let (_, pattern) = path_in(&folder, "asked-{}.bin");
        let control = format!("unix:{control}");
        let mut all = vec!["--control", &control, "-o", &pattern];
        all.extend(options);
        let recorder = Recorder::start(&all, actions);
        wait_for("the socket", || folder.path().join("control").exists().then_some(()));
        Ringed { recorder, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ask(&self, command: &str) -> Value {
        let mut client = UnixStream::connect(self.path("control")).expect("it listens");
        writeln!(client, "{command}").expect("a command");
        let mut line = String::new();
        BufReader::new(client).read_line(&mut line).expect("an answer");
        parse(line.as_bytes())
    }

    /// Waits until so many chunks have come.
    fn wait_for_chunks(&self, count: usize) {
        wait_for("chunks", || {
            let ring = self.ask("status")["ring"].clone();
            let come = number(&ring["chunks"]) + number(&ring["gone_chunks"]);
            (come >= count as u64).then_some(())
        });
    }

    fn snapshot(&self, name: &str, options: &[&str]) -> PathBuf {
        let path = self.path(name);
        let control = format!("unix:{}", self.path("control").display());
        let mut args = vec!["snapshot", "--control", &control, "-o", path.to_str().expect("UTF-8")];
        args.extend(options);
        let ran = run(&args, b"");
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        path
    }
}

/// The messages of a snapshot, of which older data had gone.
fn partial(path: &Path) -> Vec<Value> {
    let ran = run(&["-q", "from-bin", path.to_str().expect("UTF-8")], b"");
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    sound(&ran.stdout)
}

/// <https://github.com/golang/go/issues/63185>
/// <https://github.com/python/cpython/issues/65634>
#[test]
fn a_snapshot_decodes_alone_spans_the_ring_and_tells_what_had_gone() {
    let ringed = Ringed::start(&["--ring", "300ms", "--run-id", "r"], "begin all wait end");
    ringed.wait_for_chunks(parts().count);
    let names = || fs::read_dir(ringed.folder.path()).expect("a folder").count();
    assert_eq!(names(), 1, "nothing but the socket: nothing was asked for");
    let mode = fs::metadata(ringed.path("control")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let status = ringed.ask("status");
    assert_eq!(status["runs"][0]["run_id"], "r");
    assert_eq!(number(&status["runs"][0]["samples"]), parts().samples);

    let binary = ringed.snapshot("now.bin", &[]);
    let messages = partial(&binary);
    let metas = of_type(&messages, "meta");
    let start = number(&metas[0]["start_usec"]);
    let last = metas.last().expect("a batch");
    let end = number(&last["start_usec"]) + number(&last["duration_usec"]);
    assert!((300_000..=500_000).contains(&(end - start)), "whole chunks, rounded up: {}", end - start);
    let losses = of_type(&messages, "loss");
    let gap = losses.iter().find(|loss| loss["reason"] == "gap").expect("a gap");
    assert_eq!(number(&gap["start_usec"]), number(&metas[0]["run_start_usec"]));
    assert_eq!(number(&gap["start_usec"]) + number(&gap["duration_usec"]), start);

    let stream = ringed.snapshot("now.jsonl", &["--after", "50ms"]);
    let streamed = sound(&fs::read(stream).expect("readable"));
    assert_eq!(raw(&streamed), raw(&messages), "the same as a stream");
    let held: u64 = metas.iter().map(|meta| number(&meta["samples"])).sum();
    assert_eq!(number(&ringed.ask("status")["ring"]["gone_samples"]) + held, parts().samples);

    ringed.recorder.signal("-USR1");
    let is_asked = |name: &str| name.starts_with("asked-") && name.ends_with("-1.bin");
    let asked = wait_for("SIGUSR1", || {
        let names = fs::read_dir(ringed.folder.path()).expect("a folder");
        names
            .map(|entry| entry.expect("an entry").path())
            .find(|path| is_asked(&path.file_name().expect("a name").to_string_lossy()))
    });
    assert_eq!(fs::read(asked).expect("readable"), fs::read(binary).expect("readable"));
    assert_eq!(ringed.ask("stop")["ok"], true);
    let control = ringed.path("control");
    let (code, said) = ringed.recorder.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!control.exists(), "the socket is gone");
}

#[test]
fn snapshots_that_are_asked_for_at_once_are_each_whole() {
    let ringed = Ringed::start(&["--ring", "1h"], "begin all wait end");
    ringed.wait_for_chunks(parts().count);
    std::thread::scope(|scope| {
        for client in 0..6 {
            let ringed = &ringed;
            // Two of them under one name.
            scope.spawn(move || {
                let path = ringed.path(&format!("{}.bin", client / 2));
                let answer = ringed.ask(&format!("snapshot {}", path.display()));
                assert_eq!(answer["ok"], true, "{answer}");
                assert_eq!(number(&answer["samples"]), parts().samples);
                let messages = sound(&stream_of(&path, &[]));
                assert_eq!(number(&messages.last().expect("an end")["samples"]), parts().samples);
            });
        }
    });
    let left = ringed.ask(&format!("snapshot {}", ringed.path("no/such/folder.bin").display()));
    assert_eq!(left["ok"], false);
    assert!(left["error"].as_str().is_some_and(|why| why.contains("folder.bin")), "{left}");
    assert_eq!(ringed.ask("what")["ok"], false);
    ringed.recorder.signal("-INT");
    assert_eq!(ringed.recorder.end().0, Some(0));
}

#[test]
fn a_ring_is_bounded_in_bytes_and_survives_its_recorder_in_a_file() {
    for (rounds, size) in [(1, "1GiB"), (4, "64KiB"), (9, "100KiB")] {
        let size = if size == "1GiB" { "4MiB" } else { size };
        let folder = tempfile::tempdir().expect("a folder");
        let (file, name) = path_in(&folder, "ring");
        let actions = format!("begin {}wait", "all ".repeat(rounds));
        let ringed = Ringed::start(&["--ring", size, "--ring-file", &name, "--run-id", "r"], &actions);
        ringed.wait_for_chunks(parts().count * rounds);
        let length = fs::metadata(&file).expect("there").len();
        let ring = ringed.ask("status")["ring"].clone();
        assert!(number(&ring["bytes"]) <= length && number(&ring["limit_bytes"]) == length, "{ring}");
        let snapshot = ringed.snapshot("now.bin", &[]);
        ringed.recorder.signal("-KILL");
        assert_eq!(fs::metadata(&file).expect("there").len(), length);
        let (recovered, recovered_name) = path_in(&folder, "recovered.bin");
        let ran = run(&["recover", &name, "-o", &recovered_name], b"");
        assert_eq!(ran.code, 3, "the recorder was killed: {}", ran.stderr);
        assert_eq!(fs::read(recovered).expect("readable"), fs::read(snapshot).expect("readable"));
        let looked = run(&["from-bin", &name], b"");
        assert!(looked.code == 1 && looked.stderr.contains("ring file of a recorder"), "{}", looked.stderr);
        // Recorders that come after it do not write over what is left.
        let nowhere =
            ["record", "--python", "/nowhere", "--ring", size, "--ring-file", &name, "--", "run", "x"];
        let ran = run(&nowhere, b"");
        assert!(ran.code == 1 && fs::metadata(format!("{name}.old")).is_err(), "{}", ran.stderr);
        assert_ne!(record(&["--ring", size, "--ring-file", &name], "refused:it").0, 0);
        let (code, _, said) = record(&["--ring", size, "--ring-file", &name], "begin part:0 end");
        assert_eq!(code, 0, "{said}");
        assert_eq!(run(&["recover", &format!("{name}.old"), "-o", &recovered_name], b"").code, 3);
    }
}

#[test]
fn a_ring_file_that_broke_off_at_any_write_gives_whole_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, name) = path_in(&folder, "ring");
    let ringed = Ringed::start(&["--ring", "64KiB", "--ring-file", &name], "begin all all wait");
    ringed.wait_for_chunks(parts().count * 2);
    ringed.recorder.signal("-KILL");
    let whole = fs::read(&file).expect("readable");
    let before = run(&["recover", &name, "-o", "-"], b"").stdout;
    let chunks = common::rfc::read(&before).0.len();
    // What a chunk in the middle of being written leaves: zeros, a part of its body, no header.
    for at in (64..whole.len() - 3000).step_by(7001) {
        let mut torn = whole.clone();
        torn[at..at + 64].fill(0);
        torn[at + 64..at + 2500].fill(0xa5);
        fs::write(&file, &torn).expect("writable");
        let ran = run(&["recover", &name, "-o", "-"], b"");
        assert!(matches!(ran.code, 0 | 3), "{}", ran.stderr);
        let left = common::rfc::read(&ran.stdout).0.len();
        assert!(left < chunks && left + 4 >= chunks, "{left} of {chunks}");
    }
}

/// Those that say nothing, and come back as soon as they are hung up on.
#[test]
fn idle_clients_keep_nobody_out() {
    let ringed = Ringed::start(&["--ring", "30s"], "begin part:0 wait end");
    let idle: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(ringed.path("control")).expect("it listens")).collect();
    let halfway = |mut client: &UnixStream| client.write_all(b"sta").is_ok();
    assert!(idle.iter().rev().take(16).all(halfway));
    ringed.wait_for_chunks(1);
    ringed.snapshot("now.bin", &[]);
    assert_eq!(ringed.ask("stop")["ok"], true);
    let (code, said) = ringed.recorder.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn the_control_socket_replaces_a_dead_one_and_no_living_one_and_no_file() {
    let ringed = Ringed::start(&["--ring", "30s"], "begin part:0 wait end");
    ringed.wait_for_chunks(1);
    let control = ringed.path("control").display().to_string();
    let (code, _, said) = record(&["--control", &control], "begin part:0 end");
    assert!(code == 2 && said.contains("another process listens there"), "{said}");
    let (file, name) = path_in(&ringed.folder, "file");
    fs::write(&file, "mine").expect("writable");
    let (code, _, said) = record(&["--control", &name], "begin part:0 end");
    assert!(code == 2 && said.contains("not a socket"), "{said}");
    ringed.recorder.signal("-KILL");
    wait_for("its death", || UnixStream::connect(ringed.path("control")).is_err().then_some(()));
    let (code, _, said) = record(&["--control", &control], "begin part:0 end");
    assert_eq!(code, 0, "{said}");
    let none = run(&["snapshot", "--control", &control, "-o", &name], b"");
    assert!(none.code == 1 && none.stderr.contains("control"), "{}", none.stderr);
    assert_eq!(fs::read(&file).expect("readable"), b"mine");
}

fn recovered(ring: &Path) -> Vec<u8> {
    let ran = run(&["recover", ring.to_str().expect("UTF-8"), "-o", "-"], b"");
    assert_eq!(ran.code, 0, "{}: {}", ring.display(), ran.stderr);
    ran.stdout
}

#[test]
fn what_a_ring_file_holds_is_never_written_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, name) = path_in(&folder, "ring");
    let names = || fs::read_dir(folder.path()).expect("a folder").count();
    let ring = ["--ring", "64KiB", "--ring-file", &name];
    assert_eq!(record(&ring, "refused:it").0, 2);
    assert_eq!(names(), 0, "no ring without a chunk");
    let old = |number| folder.path().join(format!("ring.old{number}"));
    let mut rings: Vec<Vec<u8>> = Vec::new();
    for part in ["part:0", "part:1", "part:2"] {
        let (code, _, said) = record(&ring, &format!("begin {part} end"));
        assert_eq!(code, 0, "{said}");
        rings.push(recovered(&file));
        // What fails early, and what fails late.
        assert_eq!(record(&ring, "begin denied:ptrace").0, 1);
        let (_, taken) = path_in(&folder, "ring");
        assert_eq!(record(&[&ring[..], &["--control", &taken]].concat(), "begin part:0 end").0, 2);
        assert_eq!(recovered(&file), rings[rings.len() - 1]);
        assert_eq!(names(), rings.len(), "nothing else is left");
    }
    assert_eq!(recovered(&old("")), rings[0]);
    assert_eq!(recovered(&old(".2")), rings[1]);
}

#[test]
fn one_recorder_has_a_ring_file_until_it_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, name) = path_in(&folder, "ring");
    let (other, other_name) = path_in(&folder, "link");
    std::os::unix::fs::symlink(&file, &other).expect("a link");
    let ring = ["--ring", "64KiB", "--ring-file", &name];
    for round in 0..2 {
        let ringed = Ringed::start(&ring, "begin part:0 wait end");
        if round == 0 {
            // Before the first chunk, too, but that is soon over.
            ringed.wait_for_chunks(1);
        }
        for name in [&name, &other_name] {
            let (code, _, said) = record(&["--ring", "64KiB", "--ring-file", name], "begin part:1 end");
            assert!(code == 2 && said.contains("somebody records into it"), "{said}");
        }
        ringed.wait_for_chunks(1);
        let before = recovered(&file);
        // The lock goes with the file.
        fs::rename(&file, folder.path().join("moved")).expect("movable");
        let (_, moved) = path_in(&folder, "moved");
        let (code, _, said) = record(&["--ring", "64KiB", "--ring-file", &moved], "begin part:1 end");
        assert!(code == 2 && said.contains("somebody records into it"), "{said}");
        fs::rename(folder.path().join("moved"), &file).expect("movable");
        assert_eq!(recovered(&file), before);
        ringed.recorder.signal("-KILL");
        ringed.recorder.end();
    }
    let (code, _, said) = record(&ring, "begin part:1 end");
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_snapshot_takes_the_place_of_no_ring_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, name) = path_in(&folder, "ring.bin");
    let ringed = Ringed::start(&["--ring", "64KiB", "--ring-file", &name], "begin part:0 wait end");
    ringed.wait_for_chunks(1);
    let before = recovered(&file);
    std::os::unix::fs::symlink(&file, ringed.path("link.bin")).expect("a link");
    fs::hard_link(&file, ringed.path("hard.jsonl")).expect("a link");
    let spelled = format!("{}/./ring.bin", folder.path().display());
    let [link, hard] = ["link.bin", "hard.jsonl"].map(|name| ringed.path(name).display().to_string());
    for spelling in [&name, &spelled, &link, &hard] {
        let told = ringed.ask(&format!("snapshot {spelling}"));
        assert_eq!(told["ok"], false, "{told}");
        assert!(told["error"].as_str().is_some_and(|why| why.contains("ring file")), "{told}");
        assert_eq!(recovered(&file), before);
    }
    drop(ringed);
    fs::remove_file(&file).expect("removable");
    for spelling in [&name, &spelled] {
        let (code, _, said) =
            record(&["--ring", "64KiB", "--ring-file", &name, "-o", spelling], "begin part:0 end");
        assert!(code == 2 && said.contains("it is the ring file"), "{said}");
    }
}

#[test]
fn one_file_under_two_names_is_one_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, name) = path_in(&folder, "d.jsonl");
    let spelled = format!("{}/./d.jsonl", folder.path().display());
    let (_, link) = path_in(&folder, "link.jsonl");
    let profile = profile();
    let of_profile = ["from-bin", profile.to_str().expect("UTF-8")];
    for other in [&spelled, &link] {
        let targets = ["-o", &name, "-o", other];
        let (code, _, said) = record(&targets, "begin part:0 end");
        assert!(code == 2 && said.contains("is given twice as a target"), "{said}");
        let ran = run(&[&of_profile[..], &targets].concat(), b"");
        assert!(ran.code == 2 && ran.stderr.contains("is given twice as a target"), "{}", ran.stderr);
        // The other way to write it leads to something that is there.
        fs::write(&file, "").expect("writable");
        if fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(&file, &link).expect("a link");
        }
    }
}

#[test]
fn a_snapshot_has_any_name_that_a_file_can_have_and_goes_to_nothing_else() {
    let ringed = Ringed::start(&["--ring", "30s"], "begin part:0 wait end");
    ringed.wait_for_chunks(1);
    for name in ["x after 1s", "\"quoted\".bin", "two\nlines.bin", "back\\slash"] {
        assert!(ringed.snapshot(name, &[]).exists(), "{name:?}");
        assert!(ringed.snapshot(&format!("later {name}"), &["--after", "10ms"]).exists(), "{name:?}");
    }
    for command in ["snapshot -", "snapshot tcp:4000", "snapshot \"ws:4000\"", "snapshot gopher:x"] {
        let told = ringed.ask(command);
        let why = told["error"].as_str().unwrap_or_default();
        assert!(why.contains("a snapshot is a file") || why.contains("unknown scheme"), "{told}");
    }
    let control = ringed.path("control").display().to_string();
    for (control, output, why) in [
        (control.as_str(), "tcp:4000", "a snapshot is a file"),
        (control.as_str(), "-", "a snapshot is a file"),
        ("tcp:4000", "x.bin", "not a unix socket"),
        ("gopher:x", "x.bin", "unknown scheme 'gopher:'"),
    ] {
        let ran = run(&["snapshot", "--control", control, "-o", output], b"");
        assert!(ran.code == 2 && ran.stderr.contains(why), "{}", ran.stderr);
    }
    for (control, why) in [("tcp:4000", "not a unix socket"), ("gopher:x", "unknown scheme 'gopher:'")] {
        let (code, _, said) = record(&["--control", control], "begin part:0 end");
        assert!(code == 2 && said.contains(why), "{said}");
        assert!(!Path::new(control).exists());
    }
}

#[test]
fn a_command_without_an_end_gets_one_answer() {
    let ringed = Ringed::start(&["--ring", "30s"], "begin part:0 wait end");
    let client = UnixStream::connect(ringed.path("control")).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    let mut writer = client.try_clone().expect("a handle");
    // It may be cut off at any time.
    let sent = std::thread::spawn(move || drop(writer.write_all(&vec![b'x'; 5 << 20])));
    let mut answers = Vec::new();
    let mut piece = [0; 4096];
    let end = loop {
        match (&client).read(&mut piece) {
            Ok(0) => break None,
            Ok(got) => answers.extend_from_slice(&piece[..got]),
            Err(error) => break Some(error.kind()),
        }
    };
    assert!(matches!(end, None | Some(ErrorKind::ConnectionReset)), "it is cut off: {end:?}");
    sent.join().expect("sent");
    let answers = String::from_utf8(answers).expect("UTF-8");
    assert!(answers.lines().count() == 1 && answers.contains("more than 8192 bytes"), "{answers}");
    assert_eq!(ringed.ask("status")["ok"], true);
}

#[test]
fn a_snapshot_that_failed_is_in_the_exit_status() {
    let folder = tempfile::tempdir().expect("a folder");
    let (place, _) = path_in(&folder, "place");
    fs::create_dir(&place).expect("a folder");
    let (_, pattern) = path_in(&folder, "place/x-{}.bin");
    let ringed = Ringed::start(&["--ring", "30s", "-o", &pattern], "begin part:0 wait end");
    ringed.wait_for_chunks(1);
    fs::remove_dir(&place).expect("removable");
    ringed.recorder.signal("-USR1");
    wait_for("the other snapshot", || {
        let names = fs::read_dir(ringed.folder.path()).expect("a folder");
        let mut names = names.map(|entry| entry.expect("an entry").file_name());
        names.any(|name| name.to_string_lossy().starts_with("asked-")).then_some(())
    });
    assert_eq!(ringed.ask("stop")["ok"], true);
    let (code, said) = ringed.recorder.end();
    assert!(code == Some(3) && said.contains("place/x-"), "{said}");
    let (code, _, said) = record(&["--ring", "30s", "-o", &pattern], "begin part:0 end");
    assert!(code == 1 && said.contains("place/x-"), "{said}");
}

#[test]
fn a_snapshot_that_cannot_be_written_is_the_failure_of_the_command_that_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, name) = path_in(&folder, "control");
    let control = format!("unix:{name}");
    let whole = command(&["--control", &control, "--ring", "30s"], "begin all wait end");
    let mut command = std::process::Command::new("sh");
    // Files of the recorder may have 4 KiB.
    command.args(["-c", "ulimit -f 8; exec \"$0\" \"$@\""]).arg(whole.get_program()).args(whole.get_args());
    command.env("PARTS", parts().folder.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let recorder = Recorder { child: command.spawn().expect("sh starts") };
    wait_for("the socket", || socket.exists().then_some(()));
    let ask = |output: &str| run(&["snapshot", "--control", &control, "-o", output], b"");
    for name in ["no/such/folder.bin", "no/such/stream.jsonl", "long.bin", "long.jsonl"] {
        let (path, text) = path_in(&folder, name);
        let ran = wait_for("chunks", || {
            let ran = ask(&text);
            (!ran.stderr.contains("holds no chunk yet")).then_some(ran)
        });
        assert_eq!(ran.code, 1, "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(name) && !path.exists(), "{}", ran.stderr);
    }
    recorder.signal("-INT");
    assert_eq!(recorder.end().0, Some(0), "who asked knows");
}

#[test]
fn chunks_without_samples_are_at_no_time() {
    let empty = data("cpython/edge_zero_samples_none");
    let actions = format!("begin part:0 part:{} all wait end", empty.display());
    let ringed = Ringed::start(&["--ring", "1h"], &actions);
    ringed.wait_for_chunks(parts().count + 2);
    let told = ringed.ask(&format!("snapshot {}", ringed.path("now.bin").display()));
    assert_eq!(number(&told["chunks"]), parts().count as u64 + 2);
    let metas = sound(&stream_of(&profile(), &[]));
    let meta = of_type(&metas, "meta")[0];
    assert_eq!(told["start_usec"], meta["start_usec"], "{told}");
    for duration in [&told["duration_usec"], &ringed.ask("status")["ring"]["duration_usec"]] {
        assert!(number(duration) <= 60_000_000, "{duration}");
    }
}
