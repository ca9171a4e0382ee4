//! A recording that is asked for, goes wrong or ends in ways of its own.

#![cfg(unix)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use common::recorder::{META, Recorder, path_in, python, record, wait_for, wait_for_count};
use common::{PROGRAM, messages, run};
use serde_json::{Value, json};

#[test]
fn a_module_alone_is_run_and_a_script_alone_is_refused() {
    let (folder, parts) = (tempfile::tempdir().expect("a folder"), common::recorder::parts());
    let (path, name) = path_in(&folder, "out.jsonl");
    let recorded = |args: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["record", "--python"]).arg(python()).args(["-o", &name, "--"]).args(args);
        command.env("PARTS", parts.folder.path()).output().expect("the program runs").status.code()
    };
    assert_eq!(recorded(&["-m", "begin", "part:0", "end"]), Some(0));
    assert!(fs::read_to_string(path).expect("written").contains(META));
    assert_eq!(recorded(&["app.py"]), Some(2));
}

#[test]
fn an_interpreter_that_is_not_there_is_named() {
    let (code, _, said) = {
        let ran = run(&["record", "--python", "/nowhere/python3.15", "--", "run", "x.py"], b"");
        (ran.code, ran.stdout, ran.stderr)
    };
    assert_eq!(code, 1);
    assert!(said.contains("/nowhere/python3.15: "), "{said}");
}

#[test]
fn a_profiler_that_only_told_its_help_is_no_failure() {
    let (code, out, said) = record(&[], "say:help quit:0");
    assert_eq!((code, out.is_empty()), (0, true), "{said}");
    let (code, _, said) = record(&[], "begin quit:0");
    assert_eq!(code, 1);
    assert!(said.contains("the profiler ended before its first batch"), "{said}");
}

#[test]
fn a_snapshot_has_to_be_in_a_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, name) = path_in(&folder, "file");
    fs::write(&file, "text").expect("writable");
    for (target, detail) in
        [(format!("{name}/x.bin"), "is not a folder"), (format!("{name}s/x.bin"), "No such file")]
    {
        let (code, _, said) = record(&["--ring", "1s", "-o", &target], "begin part:0 end");
        assert_ne!(code, 0);
        assert!(said.contains(detail), "{said}");
    }
}

/// An answer of a recorder that has to come soon.
fn ask(socket: &std::path::Path, command: &str) -> Value {
    let client = wait_for("a socket", || UnixStream::connect(socket).ok());
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    writeln!(&client, "{command}").expect("it listens");
    let mut line = String::new();
    BufReader::new(&client).read_line(&mut line).expect("an answer");
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn a_snapshot_for_later_waits_and_one_without_a_ring_is_refused_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let ((socket, control), (stream, name)) = (path_in(&folder, "s"), path_in(&folder, "out.jsonl"));
    let (snapshot, to) = path_in(&folder, "snapshot.bin");
    let recorder = Recorder::start(&["--control", &control, "-o", &name], "begin part:0 wait end");
    wait_for_count(&stream, META, 1);
    let told = ask(&socket, &format!("snapshot {to} after 1h"));
    assert_eq!(told["ok"], json!(false), "{told}");
    assert!(told["error"].as_str().is_some_and(|error| error.contains("no ring")), "{told}");
    assert_eq!(ask(&socket, "stop")["ok"], json!(true));
    assert_eq!(recorder.end().0, Some(0));

    let recorder = Recorder::start(&["--control", &control, "--ring", "1h"], "begin part:0 wait end");
    wait_for("a chunk", || (ask(&socket, "status")["ring"]["chunks"] == json!(1)).then_some(()));
    let begun = Instant::now();
    let told = ask(&socket, &format!("snapshot {to} after 700ms"));
    assert_eq!((&told["ok"], snapshot.exists()), (&json!(true), true), "{told}");
    assert!(begun.elapsed() >= Duration::from_millis(700));
    ask(&socket, "stop");
    assert_eq!(recorder.end().0, Some(0));
}

/// A profiler that does not listen is ended: at once by a second stop, in time after SIGTERM.
#[test]
fn a_profiler_that_does_not_end_is_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let ((socket, control), (stream, name)) = (path_in(&folder, "s"), path_in(&folder, "out.jsonl"));
    let start = || {
        let recorder = Recorder::start(&["--control", &control, "-o", &name], "begin part:0 deaf");
        wait_for_count(&stream, META, 1);
        (recorder, Instant::now())
    };
    let (recorder, begun) = start();
    ask(&socket, "stop");
    ask(&socket, "stop");
    recorder.end();
    assert!(begun.elapsed() < Duration::from_secs(8), "without the patience of one stop");
    let kept = messages(&fs::read(&stream).expect("there"));
    assert_eq!(kept.last().expect("messages")["type"], "end");
    fs::remove_file(&stream).expect("there");
    let (recorder, begun) = start();
    recorder.signal("-TERM");
    recorder.end();
    let taken = begun.elapsed();
    assert!(taken >= Duration::from_secs(3) && taken < Duration::from_secs(9), "{taken:?}");
}

#[test]
fn a_profile_that_cannot_be_written_does_not_end_a_recording_that_has_another_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let ((stream, name), (full, full_name)) = (path_in(&folder, "out.jsonl"), path_in(&folder, "full.bin"));
    std::os::unix::fs::symlink("/dev/full", &full).expect("a link");
    let (code, _, said) = record(&["-o", &name, "-o", &full_name], "begin part:0 part:1 part:2 end");
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("full.bin"), "{said}");
    let stream = messages(&fs::read(stream).expect("written"));
    let raw = stream.iter().filter(|message| message["type"] == "raw");
    assert_eq!(raw.count(), 3, "{said}");
}
