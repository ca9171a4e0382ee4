//! `record`, `snapshot`: what becomes of what a profiler hands over. The profiler is a stand-in; the real
//! one is in tests/interop/record.py.
#![cfg(unix)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::consumer::{self, Message};
use common::{PROGRAM, data, run, stream_of};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

/// The parts of a recording as a profiler would hand them over, and the raw lines of the whole.
struct Parts {
    folder: tempfile::TempDir,
    count: usize,
    samples: u64,
}

/// Made once: each batch of a real profile as a profile of its own.
fn parts() -> &'static Parts {
    static PARTS: OnceLock<Parts> = OnceLock::new();
    PARTS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let stream = stream_of(&profile(), &["--flush", "interval:100ms", "--stream-types", "raw"]);
        let text = String::from_utf8(stream).expect("UTF-8");
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains("\"type\":\"end\"")).collect();
        let batches = lines.chunk_by(|_, next| !next.contains("\"type\":\"meta\""));
        let mut count = 0;
        for batch in batches {
            let ran = run(&["-q", "to-bin"], (batch.join("\n") + "\n").as_bytes());
            assert!(matches!(ran.code, 0 | 3), "{}", ran.stderr);
            fs::write(folder.path().join(format!("{count}.bin")), ran.stdout).expect("writable");
            count += 1;
        }
        let samples = consumer::read(text.as_bytes()).messages.iter().map(samples_of).sum();
        assert!(count >= 8, "{count} parts");
        Parts { folder, count, samples }
    })
}

fn profile() -> PathBuf {
    data("cpython/wall_all_100hz_none.bin")
}

fn samples_of(message: &Message) -> u64 {
    if let Message::Raw { samples, .. } = message { *samples } else { 0 }
}

fn python() -> PathBuf {
    static PYTHON: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PYTHON.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("python3.15");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/fake_python.py");
        fs::write(&path, format!("#!/bin/sh\nexec python3 '{}' \"$@\"\n", script.display()))
            .expect("writable");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
        (folder, path)
    });
    path.clone()
}

fn command(options: &[&str], actions: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["record", "--python"]).arg(python()).args(options).args(["--", "run"]);
    command.args(actions.split_whitespace()).env("PARTS", parts().folder.path());
    command
}

/// Exit status, standard output, standard error.
fn record(options: &[&str], actions: &str) -> (i32, Vec<u8>, String) {
    let output = command(options, actions).output().expect("the program runs");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    (output.status.code().expect("no signal"), output.stdout, said)
}

/// A recording that goes on.
struct Recorder {
    child: Child,
}

impl Recorder {
    fn start(options: &[&str], actions: &str) -> Self {
        let mut command = command(options, actions);
        Recorder { child: command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts") }
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for its end. Exit status, or `None` after a signal, and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("UTF-8");
        (self.child.wait().expect("it ends").code(), said)
    }
}

/// A test that fails leaves nobody behind: the stand-in ends when it has nobody to talk to.
impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a stream in a file has so many of `what`.
fn wait_for_count(path: &Path, what: &str, count: usize) {
    let has = || fs::read_to_string(path).unwrap_or_default().matches(what).count() >= count;
    wait_for(&format!("{count} {what}"), || has().then_some(()));
}

const META: &str = "\"type\":\"meta\"";
const HEARTBEAT: &str = "\"type\":\"heartbeat\"";

/// The messages of a sound stream.
fn sound(stream: &[u8]) -> Vec<Value> {
    let checked = run(&["check"], stream);
    assert_eq!(checked.code, 0, "{}", String::from_utf8_lossy(&checked.stdout));
    stream.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(parse).collect()
}

fn parse(line: &[u8]) -> Value {
    serde_json::from_slice(line).expect("JSON")
}

fn of_type<'a>(messages: &'a [Value], name: &str) -> Vec<&'a Value> {
    messages.iter().filter(|message| message["type"] == name).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The raw messages, but for what tells runs apart.
fn raw(messages: &[Value]) -> Vec<Value> {
    let bare = |message: &&Value| {
        let mut message = (*message).clone();
        for key in ["run_id", "seq", "batch"] {
            message.as_object_mut().expect("an object").remove(key);
        }
        message
    };
    of_type(messages, "raw").iter().map(bare).collect()
}

fn path_in(folder: &tempfile::TempDir, name: &str) -> (PathBuf, String) {
    let path = folder.path().join(name);
    let text = path.to_str().expect("UTF-8").to_string();
    (path, text)
}

#[test]
fn each_part_is_a_batch_and_a_chunk_and_no_sample_is_lost_at_a_seam() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, stream_name) = path_in(&folder, "live.jsonl");
    let (chunks, chunks_name) = path_in(&folder, "live.bin");
    let options = ["-o", &stream_name, "-o", &chunks_name, "--run-id", "r", "--stream-types", "raw"];
    let (code, stdout, said) = record(&options, "say:hello begin all end");
    assert_eq!((code, stdout.as_slice()), (0, &b"hello\n"[..]), "{said}");
    let text = fs::read(stream).expect("readable");
    let live = sound(&text);
    assert_eq!(of_type(&live, "meta").len(), parts().count);
    let end = &live.last().expect("an end");
    assert_eq!((number(&end["samples"]), &end["complete"]), (parts().samples, &Value::Bool(true)));
    let whole = stream_of(&profile(), &["--stream-types", "raw"]);
    assert_eq!(consumer::read(&text).threads, consumer::read(&whole).threads, "the samples of the profile");
    let again = sound(&stream_of(&chunks, &["--stream-types", "raw"]));
    assert_eq!(raw(&again), raw(&live), "the chunks hold the same");
    assert_eq!(of_type(&again, "meta")[0]["labels"], of_type(&live, "meta")[0]["labels"]);
    let verified = run(&["inspect", "--verify", chunks.to_str().expect("UTF-8")], b"");
    assert_eq!(verified.code, 0, "{}", verified.stderr);
}

#[test]
fn labels_and_the_date_come_from_the_profiler_and_the_users_own_go_before() {
    let start = of_type(&sound(&stream_of(&profile(), &[])), "meta")[0]["start_usec"].clone();
    let options = ["--label", "host=mine", "--label", "team=x", "--run-id", "r"];
    let (code, stdout, said) = record(&options, &format!("begin:{start} part:0 end"));
    assert_eq!(code, 0, "{said}");
    let messages = sound(&stdout);
    let meta = of_type(&messages, "meta")[0];
    let labels = &meta["labels"];
    assert_eq!((&labels["host"], &labels["team"]), (&Value::from("mine"), &Value::from("x")));
    assert_eq!(labels["command"], "python app.py");
    assert!(labels["pid"].as_str().is_some_and(|pid| pid.parse::<u32>().is_ok()));
    assert_eq!(meta["wall_usec"], 1_790_000_000_000_000_i64);
}

#[test]
fn the_targets_output_is_its_own_and_never_in_the_stream() {
    let (code, stdout, said) = record(&[], "say:hello begin part:0 end");
    assert_eq!(code, 0);
    assert!(said.contains("hello"), "beside a stream on standard output: {said}");
    assert!(!String::from_utf8_lossy(&stdout).contains("hello"));
    sound(&stdout);
}

#[test]
fn flush_limits_reach_the_profiler() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, name) = path_in(&folder, "x.jsonl");
    for (flush, asked) in [("interval:250ms", "250000|0|"), ("interval:2s,samples:500", "2000000|500|")] {
        let (_, stdout, _) = record(&["-o", &name, "--flush", flush], "asked begin part:0 end");
        assert!(stdout.starts_with(asked.as_bytes()), "{}", String::from_utf8_lossy(&stdout));
    }
}

#[test]
fn r11_batches_come_while_it_runs_and_signals_end_it_with_all_that_is_there() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (stream, name) = path_in(&folder, "live.jsonl");
        let options = ["-o", &name, "--stream-types", "raw,heartbeat:50ms,loss"];
        let recorder = Recorder::start(&options, "begin part:0 part:1 wait part:2 end");
        wait_for_count(&stream, META, 2);
        wait_for_count(&stream, HEARTBEAT, 2);
        recorder.signal(signal);
        let (code, said) = recorder.end();
        assert_eq!(code, Some(0), "{said}");
        let messages = sound(&fs::read(&stream).expect("readable"));
        assert_eq!(of_type(&messages, "meta").len(), 3, "the last batch is there");
        assert_eq!(of_type(&messages, "end")[0]["complete"], true);
    }
}

#[test]
fn a_profiler_that_does_not_listen_is_ended_by_the_second_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, name) = path_in(&folder, "live.jsonl");
    let recorder = Recorder::start(&["-o", &name], "begin part:0 deaf");
    wait_for_count(&stream, META, 1);
    recorder.signal("-TERM");
    std::thread::sleep(Duration::from_millis(200));
    recorder.signal("-TERM");
    assert_eq!(recorder.end().0, Some(3));
    let messages = sound(&fs::read(&stream).expect("readable"));
    assert_eq!(of_type(&messages, "loss").last().expect("a loss")["reason"], "truncated");
}

#[test]
fn a_profiler_that_dies_leaves_what_it_had_handed_over_and_the_end_says_so() {
    for (actions, begun) in
        [("begin part:0 part:1 quit:9", ""), ("begin part:0 part:1 half:2 quit:9", "bytes of a part")]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let (chunks, name) = path_in(&folder, "live.bin");
        let (code, stdout, said) = record(&["-o", "-", "-o", &name], actions);
        assert_eq!(code, 3, "{said}");
        assert!(said.contains("ended before it had handed over all") && said.contains(begun), "{said}");
        let messages = sound(&stdout);
        assert_eq!(of_type(&messages, "meta").len(), 3, "two, and one for the table");
        assert_eq!(of_type(&messages, "error")[0]["code"], "truncated");
        let end = messages.last().expect("an end");
        assert_eq!((&end["type"], &end["complete"]), (&Value::from("end"), &Value::Bool(false)));
        assert!(end["lost"]["truncated"].is_object(), "{end}");
        assert_eq!(of_type(&sound(&stream_of(&chunks, &[])), "meta").len(), 2);
    }
}

#[test]
fn a_damaged_part_is_passed_over_and_missing_in_the_profile() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, name) = path_in(&folder, "live.bin");
    let options = ["-o", "-", "-o", &name, "--stream-types", "raw,loss"];
    let (code, stdout, said) = record(&options, "begin part:0 damaged:1 part:2 end");
    assert_eq!(code, 3, "{said}");
    let messages = sound(&stdout);
    assert_eq!(of_type(&messages, "loss").last().expect("a loss")["reason"], "corrupt");
    assert_eq!(of_type(&messages, "meta").len(), 2);
    let read = run(&["from-bin", &name, "--stream-types", "raw,loss"], b"");
    assert!(read.code == 3 && read.stderr.contains("missing before chunk 2"), "{}", read.stderr);
}

#[test]
fn each_process_is_a_run_of_its_own_however_their_packets_mix() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, name) = path_in(&folder, "all.bin");
    let actions = "begin as:2000000000 begin as:2000000001 mixed:2000000000 as:2000000000 end";
    // The first begins as itself; the second has the packets of two.
    let (code, stdout, said) = record(
        &["-o", "-", "-o", &name, "--run-id", "r", "--stream-types", "raw"],
        &format!("as:2000000001 {actions} as:2000000001 end"),
    );
    assert_eq!(code, 0, "{said}");
    let messages = sound(&stdout);
    let runs: BTreeSet<&str> = messages.iter().filter_map(|message| message["run_id"].as_str()).collect();
    assert_eq!(runs.len(), 2, "{runs:?}");
    assert!(runs.contains("r") && runs.iter().any(|run| run.starts_with("r-")), "{runs:?}");
    assert!(
        of_type(&messages, "end").iter().all(|end| end["complete"] == true && number(&end["samples"]) > 0)
    );
    let profiles = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(profiles, 2, "a profile each");
}

#[test]
fn what_cannot_begin_leaves_what_was_there_and_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, name) = path_in(&folder, "there.jsonl");
    fs::write(&file, "before").expect("writable");
    let cases = [
        ("begin denied:ptrace", 1, "hint: the profiler reads the memory"),
        ("refused:no-such-script quit:2", 2, "no-such-script"),
        ("quit:2", 2, "refuses what stands behind --"),
        ("quit:1", 1, "ended before its first batch"),
        ("begin noise", 1, "something else than its packets"),
    ];
    for (actions, status, why) in cases {
        let (code, stdout, said) = record(&["-o", &name], actions);
        assert_eq!((code, stdout.len()), (status, 0), "{actions}: {said}");
        assert!(said.contains(why), "{actions}: {said}");
        assert_eq!(fs::read(&file).expect("readable"), b"before", "{actions}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "{actions}");
    }
}

#[test]
fn the_interpreter_is_found_and_is_cpython_3_15() {
    let missing = run(&["record", "--python", "/nowhere/python3.15", "--", "run", "x.py"], b"");
    assert!(missing.code == 1 && missing.stderr.contains("hint: install CPython 3.15"), "{}", missing.stderr);
    for (version, status, why) in
        [("3.14.0", "0", "Python 3.14.0"), ("3.15.2", "1", "without its sampling profiler")]
    {
        let mut command = command(&[], "begin part:0 end");
        let output = command.env("VERSION", version).env("PROBE_STATUS", status).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why) && output.stdout.is_empty(), "{said}");
    }
}

#[test]
fn arguments_that_cannot_be_are_usage_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, name) = path_in(&folder, "x.bin");
    let python = python();
    let cases: [(&[&str], &str); 11] = [
        (&["--", "dump", "1"], "run, attach or -m"),
        (&["--run-id", "auto", "--", "run", "x.py"], "--run-id auto"),
        (&["--run-id", "a b", "--", "run", "x.py"], "run id"),
        (&["-o", &name, "-o", &name, "--", "run", "x.py"], "twice"),
        (&["--ring", "soon", "--", "run", "x.py"], "neither a duration"),
        (&["--ring", "30s", "-o", "-", "--", "run", "x.py"], "not standard output"),
        (&["--ring", "30s", "-o", "tcp-listen:0", "--", "run", "x.py"], "a snapshot is a file"),
        (&["-o", "tcp-listen:0", "--format", "msgpack", "--", "run", "x.py"], "MessagePack"),
        (&["-o", "tcp-listen:0.0.0.0:0", "--", "run", "x.py"], "token"),
        (&["--ring-file", &name, "--", "run", "x.py"], "--ring"),
        (&["run", "x.py"], "unexpected argument"),
    ];
    for (args, why) in cases {
        let mut all = vec!["record", "--python", python.to_str().expect("UTF-8")];
        all.extend(args);
        let ran = run(&all, b"");
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn how_the_target_ended_is_told_and_is_no_failure_of_the_recording() {
    for (exit, told) in [("exit:3", "with exit status 3"), ("exit:-11", "by signal 11"), ("exit:0", "")] {
        let (code, _, said) = record(&[], &format!("begin part:0 end {exit}"));
        assert_eq!(code, 0, "{said}");
        assert!(said.contains(told) && (told.is_empty() == said.is_empty()), "{said}");
    }
}

#[test]
fn r06_a_recorder_that_is_killed_has_written_all_that_was_handed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, stream_name) = path_in(&folder, "live.jsonl");
    let (chunks, chunks_name) = path_in(&folder, "live.bin");
    let options = ["-o", &stream_name, "-o", &chunks_name, "--stream-types", "raw"];
    let recorder = Recorder::start(&options, "begin part:0 part:1 part:2 wait");
    wait_for_count(&stream, META, 3);
    recorder.signal("-KILL");
    assert_eq!(recorder.end().0, None);
    assert_eq!(of_type(&sound(&stream_of(&chunks, &[])), "meta").len(), 3);
    // The stand-in ends when it has nobody to talk to.
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "nothing else is left");
}

/// What somebody reads from a socket, until it ends.
fn reader(path: &Path) -> std::thread::JoinHandle<Vec<u8>> {
    let mut socket = UnixStream::connect(path).expect("it listens");
    std::thread::spawn(move || {
        let mut text = Vec::new();
        socket.read_to_end(&mut text).expect("readable");
        text
    })
}

#[test]
fn s05_readers_of_a_recording_come_late_and_know_what_they_missed_of_each_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, socket_name) = path_in(&folder, "live");
    let (file, file_name) = path_in(&folder, "live.jsonl");
    let (gate, gate_name) = path_in(&folder, "gate");
    let address = format!("unix-listen:{socket_name}");
    let options = [
        "-o",
        &address,
        "-o",
        &file_name,
        "--wait-readers",
        "1",
        "--stream-types",
        "raw,heartbeat:50ms,loss",
    ];
    let actions = "as:2000000001 begin part:0 as:2000000002 begin part:0 gate \
                   as:2000000001 part:1 as:2000000002 part:1 as:2000000001 part:2 end as:2000000002 end";
    let mut command = command(&options, actions);
    command.env("GATE", gate_name).stdout(Stdio::null()).stderr(Stdio::piped());
    let recorder = Recorder { child: command.spawn().expect("it starts") };
    wait_for("the socket", || socket.exists().then_some(()));
    let mode = fs::metadata(&socket).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let first = reader(&socket);
    wait_for_count(&file, META, 2);
    // It never reads, and holds nobody up.
    let stalled = UnixStream::connect(&socket).expect("it listens");
    let late = reader(&socket);
    wait_for_count(&file, HEARTBEAT, 8);
    fs::write(gate, "").expect("writable");
    let (code, said) = recorder.end();
    assert_eq!(code, Some(0), "{said}");
    drop(stalled);
    let all = fs::read(&file).expect("readable");
    assert_eq!(first.join().expect("a reader"), all, "what a file gets");
    let ends = sound(&all);
    let ends = of_type(&ends, "end");
    assert_eq!(ends.len(), 2);
    let late = sound(&late.join().expect("a reader"));
    for end in ends {
        let of_run: Vec<_> = late.iter().filter(|message| message["run_id"] == end["run_id"]).collect();
        let of_kind = |kind: &'static str| of_run.iter().filter(move |message| message["type"] == kind);
        assert_eq!(of_run[0]["type"], "meta");
        let got: u64 = of_kind("raw").map(|raw| number(&raw["samples"])).sum();
        let missed = of_kind("end").map(|end| number(&end["lost"]["gap"]["lost_samples"])).sum::<u64>();
        assert!(got > 0 && missed > 0);
        assert_eq!(got + missed, number(&end["samples"]));
    }
}

#[test]
fn a_profile_goes_on_when_the_stream_has_no_reader_any_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let (chunks, name) = path_in(&folder, "live.bin");
    let mut command = command(&["-o", "-", "-o", &name], "begin part:0 sleep:0.2 all end");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let (code, said) = Recorder { child }.end();
    assert_eq!(code, Some(0), "{said}");
    let read = sound(&stream_of(&chunks, &[]));
    assert!(number(&read.last().expect("an end")["samples"]) > parts().samples);
}

/// A pipe with a name that is open at both ends, and of which nobody reads.
fn stalled_pipe(folder: &tempfile::TempDir) -> (fs::File, String) {
    let (path, name) = path_in(folder, "pipe");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo runs").success());
    (fs::OpenOptions::new().read(true).write(true).open(path).expect("it opens"), name)
}

/// A recorder in a process of which no file becomes longer than this many blocks of 512 bytes.
fn with_small_files(blocks: usize, options: &[&str], actions: &str) -> (i32, String) {
    let whole = command(options, actions);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -f {blocks}; exec \"$0\" \"$@\"")]);
    command.arg(whole.get_program()).args(whole.get_args()).env("PARTS", parts().folder.path());
    let output = command.output().expect("sh runs");
    (output.status.code().expect("no signal"), String::from_utf8(output.stderr).expect("UTF-8"))
}

#[test]
fn a_target_that_cannot_be_written_to_is_left_out_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, stream_name) = path_in(&folder, "live.jsonl");
    let (chunks, chunks_name) = path_in(&folder, "live.bin");
    let options = ["-o", &stream_name, "-o", "/dev/full", "-o", &chunks_name, "--stream-types", "raw"];
    let (code, _, said) = record(&options, "begin all end");
    assert_eq!(code, 3, "{said}");
    assert_eq!(said.matches("/dev/full").count(), 1, "{said}");
    let live = sound(&fs::read(stream).expect("readable"));
    let samples = number(&live.last().expect("an end")["samples"]);
    let again = sound(&stream_of(&chunks, &[]));
    assert_eq!((samples, number(&again.last().expect("an end")["samples"])), (parts().samples, samples));

    // The stream becomes too long for its file before the profile does.
    let (stream, stream_name) = path_in(&folder, "long.jsonl");
    let (chunks, chunks_name) = path_in(&folder, "short.bin");
    let options = ["-o", &stream_name, "-o", &chunks_name, "--stream-types", "raw"];
    let whole = fs::metadata(folder.path().join("live.jsonl")).expect("there").len();
    let blocks = usize::try_from(whole * 3 / 4 / 512).expect("small");
    let (code, said) = with_small_files(blocks, &options, "begin all end");
    assert_eq!(code, 3, "{said}");
    let text = fs::read(stream).expect("readable");
    assert!(text.ends_with(b"\n") && text.len() as u64 <= whole * 3 / 4, "{said}");
    assert!(consumer::read(&text).messages.len() > 1);
    let again = sound(&stream_of(&chunks, &[]));
    assert_eq!(number(&again.last().expect("an end")["samples"]), parts().samples);
}

#[test]
fn when_the_last_target_has_failed_the_profiler_ends_and_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, name) = path_in(&folder, "gone");
    let begun = "begin part:0 wait touch:GONE end";
    let (code, stdout, said) = {
        let output = command(&["-o", "/dev/full"], begun).env("GONE", &name).output().expect("it runs");
        (output.status.code(), output.stdout, String::from_utf8(output.stderr).expect("UTF-8"))
    };
    assert_eq!((code, stdout.len()), (Some(1), 0), "{said}");
    assert!(fs::exists(&name).expect("readable"), "it ended as it was asked to: {said}");
    fs::remove_file(&name).expect("removable");
    // Nor does a reader that goes leave a program behind.
    let mut command = command(&[], begun);
    let mut child =
        command.env("GONE", &name).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let (code, said) = Recorder { child }.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(fs::exists(&name).expect("readable"), "{said}");
}

#[test]
fn a_pipe_that_takes_nothing_does_not_keep_a_signal_from_ending_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (pipe, pipe_name) = stalled_pipe(&folder);
    let (stream, name) = path_in(&folder, "live.jsonl");
    let (_, gone) = path_in(&folder, "gone");
    let mut command = command(
        &["-o", &name, "-o", &pipe_name, "--stream-types", "raw"],
        "begin all all all wait touch:GONE end",
    );
    let child =
        command.env("GONE", &gone).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let recorder = Recorder { child };
    wait_for_count(&stream, META, 1);
    std::thread::sleep(Duration::from_millis(300));
    recorder.signal("-TERM");
    let (code, said) = recorder.end();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("pipe: nobody takes what is written"), "{said}");
    assert!(fs::exists(&gone).expect("readable"), "the profiler had its time: {said}");
    let live = sound(&fs::read(&stream).expect("readable"));
    assert_eq!(number(&live.last().expect("an end")["samples"]), parts().samples * 3, "the file has all");
    drop(pipe);
}

#[test]
fn a_second_signal_does_not_wait_for_a_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    let (pipe, pipe_name) = stalled_pipe(&folder);
    let (stream, name) = path_in(&folder, "live.jsonl");
    let options = ["-o", &name, "-o", &pipe_name, "--stream-types", "raw"];
    let recorder = Recorder::start(&options, "begin all all all deaf");
    wait_for_count(&stream, META, 1);
    let begun = Instant::now();
    recorder.signal("-INT");
    std::thread::sleep(Duration::from_millis(200));
    recorder.signal("-INT");
    let (code, said) = recorder.end();
    assert_ne!(code, Some(0), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(9), "not the patience that profilers have");
    let left = fs::read_dir(folder.path()).expect("readable").flatten();
    assert!(
        left.into_iter().all(|entry| !entry.file_name().to_string_lossy().starts_with('.')),
        "nothing unfinished"
    );
    drop(pipe);
}

#[test]
fn a_signal_ends_the_waiting_for_a_collector_that_is_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, name) = path_in(&folder, "live.jsonl");
    // Nobody listens at port 1. The time is longer than a test may take.
    let options = ["-o", &name, "-o", "tcp:127.0.0.1:1", "--stall-timeout", "10m"];
    for signals in [["-TERM"].as_slice(), &["-INT", "-INT"]] {
        let recorder = Recorder::start(&options, "begin part:0 wait end");
        wait_for_count(&stream, META, 1);
        for signal in signals {
            recorder.signal(signal);
            std::thread::sleep(Duration::from_millis(300));
        }
        let (code, said) = recorder.end();
        assert_eq!(code, Some(3), "{said}");
        fs::remove_file(&stream).expect("removable");
    }
    // Where the program has ended by itself, the first signal does.
    let recorder = Recorder::start(&options, "begin part:0 end");
    wait_for_count(&stream, "\"type\":\"end\"", 1);
    std::thread::sleep(Duration::from_millis(300));
    recorder.signal("-INT");
    let (code, said) = recorder.end();
    assert_eq!(code, Some(3), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_hangup_that_is_ignored_stays_so_for_recorder_and_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, name) = path_in(&folder, "live.jsonl");
    let whole = command(&["-o", &name], "hup begin part:0 wait end");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(whole.get_program()).args(whole.get_args());
    command.env("PARTS", parts().folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recorder = Recorder { child: command.spawn().expect("sh starts") };
    let stdout = recorder.child.stdout.take().expect("a pipe");
    wait_for_count(&stream, META, 1);
    let status = fs::read_to_string(format!("/proc/{}/status", recorder.child.id())).expect("it runs");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("there").trim();
    assert_eq!(u64::from_str_radix(mask, 16).expect("a mask") & 1, 1);
    recorder.signal("-HUP");
    recorder.signal("-INT");
    assert_eq!(recorder.end().0, Some(0));
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said).expect("UTF-8");
    assert_eq!(said, "True\n");
}

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

#[test]
fn s11_a_snapshot_decodes_alone_spans_the_ring_and_tells_what_had_gone() {
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
fn s12_snapshots_that_are_asked_for_at_once_are_each_whole() {
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
        assert_eq!(ran.code, 0, "{}", ran.stderr);
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
        assert_eq!(run(&["recover", &format!("{name}.old"), "-o", &recovered_name], b"").code, 0);
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

#[test]
fn the_control_socket_replaces_a_dead_one_and_no_living_one_and_no_file() {
    let ringed = Ringed::start(&["--ring", "30s"], "begin part:0 wait end");
    ringed.wait_for_chunks(1);
    let control = ringed.path("control").display().to_string();
    let (code, _, said) = record(&["--control", &control], "begin part:0 end");
    assert!(code == 2 && said.contains("somebody listens there"), "{said}");
    let (file, name) = path_in(&ringed.folder, "file");
    fs::write(&file, "mine").expect("writable");
    let (code, _, said) = record(&["--control", &name], "begin part:0 end");
    assert!(code == 2 && said.contains("no socket"), "{said}");
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
        assert!(code == 2 && said.contains("is a target twice"), "{said}");
        let ran = run(&[&of_profile[..], &targets].concat(), b"");
        assert!(ran.code == 2 && ran.stderr.contains("is a target twice"), "{}", ran.stderr);
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
        assert!(why.contains("a snapshot is a file") || why.contains("is not known"), "{told}");
    }
    let control = ringed.path("control").display().to_string();
    for (control, output, why) in [
        (control.as_str(), "tcp:4000", "a snapshot is a file"),
        (control.as_str(), "-", "a snapshot is a file"),
        ("tcp:4000", "x.bin", "no unix socket"),
        ("gopher:x", "x.bin", "'gopher:' is not known"),
    ] {
        let ran = run(&["snapshot", "--control", control, "-o", output], b"");
        assert!(ran.code == 2 && ran.stderr.contains(why), "{}", ran.stderr);
    }
    for (control, why) in [("tcp:4000", "no unix socket"), ("gopher:x", "'gopher:' is not known")] {
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
