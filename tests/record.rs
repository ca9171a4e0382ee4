//! `record`: what becomes of what a profiler hands over. The profiler is a stand-in; the real one is in
//! tests/interop/record.py.
#![cfg(unix)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::consumer;
use common::recorder::*;
use common::{run, stream_of};
use serde_json::Value;

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
fn batches_come_while_it_runs_and_signals_end_it_with_all_that_is_there() {
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
        let again = common::run(&["from-bin", "-q", chunks.to_str().expect("UTF-8")], b"");
        assert_eq!(again.code, 3, "the chunks have no last one: {}", again.stderr);
        assert_eq!(of_type(&sound(&again.stdout), "meta").len(), 2);
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
        ("quit:2", 2, "refuses what follows --"),
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
    let cases: [(&[&str], &str); 13] = [
        (&["--", "dump", "1"], "run, attach or -m"),
        (&["--run-id", "auto", "--", "run", "x.py"], "--run-id auto"),
        (&["--run-id", "a b", "--", "run", "x.py"], "run id"),
        (&["-o", &name, "-o", &name, "--", "run", "x.py"], "twice"),
        (&["--ring", "soon", "--", "run", "x.py"], "neither a duration"),
        (&["--ring", "30s", "-o", "-", "--", "run", "x.py"], "not standard output"),
        (&["--ring", "30s", "-o", "tcp-listen:0", "--", "run", "x.py"], "a snapshot is a file"),
        (&["--format", "binary", "--stream-types", "raw", "--", "run", "x.py"], "--stream-types"),
        (&["--format", "binary", "--ring", "30s", "--", "run", "x.py"], "a ring is in chunks"),
        (&["--format", "binary", "--", "run", "--subprocesses", "x.py"], "several processes"),
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
fn a_recorder_that_is_killed_has_written_all_that_was_handed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, stream_name) = path_in(&folder, "live.jsonl");
    let (chunks, chunks_name) = path_in(&folder, "live.bin");
    let options = ["-o", &stream_name, "-o", &chunks_name, "--stream-types", "raw"];
    let recorder = Recorder::start(&options, "begin part:0 part:1 part:2 wait");
    wait_for_count(&stream, META, 3);
    recorder.signal("-KILL");
    assert_eq!(recorder.end().0, None);
    let metas = |messages: &[Value]| of_type(messages, "meta").into_iter().cloned().collect::<Vec<_>>();
    let in_chunks = metas(&sound(&stream_of(&chunks, &["--stream-types", "raw"])));
    assert_eq!(in_chunks.len(), 3);
    let text = fs::read(&stream).expect("readable");
    assert!(text.ends_with(b"\n"), "whole messages");
    let samples = |metas: Vec<Value>| metas.iter().map(|meta| number(&meta["samples"])).collect::<Vec<_>>();
    assert_eq!(samples(metas(&common::messages(&text))), samples(in_chunks), "the stream has the same");
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

/// <https://github.com/python/cpython/issues/145464>
#[test]
fn readers_of_a_recording_come_late_and_know_what_they_missed_of_each_process() {
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
    let actions = "as:2000000001 begin part:0 as:2000000002 begin part:0 \
                   as:2000000001 part:1 gate as:2000000002 part:1 as:2000000001 part:2 end as:2000000002 end";
    let mut command = command(&options, actions);
    command.env("GATE", gate_name).stdout(Stdio::null()).stderr(Stdio::piped());
    let recorder = Recorder { child: command.spawn().expect("it starts") };
    wait_for("the socket", || socket.exists().then_some(()));
    let mode = fs::metadata(&socket).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let first = reader(&socket);
    wait_for_count(&file, META, 3);
    // Until the first one is known to stay, whoever comes gets all.
    wait_for_count(&file, HEARTBEAT, 16);
    // It never reads, and holds nobody up.
    let stalled = UnixStream::connect(&socket).expect("it listens");
    let late = reader(&socket);
    wait_for_count(&file, HEARTBEAT, 24);
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
    let mut all_missed = 0;
    for end in ends {
        let of_run: Vec<_> = late.iter().filter(|message| message["run_id"] == end["run_id"]).collect();
        let of_kind = |kind: &'static str| of_run.iter().filter(move |message| message["type"] == kind);
        assert_eq!(of_run[0]["type"], "meta");
        let got: u64 = of_kind("raw").map(|raw| number(&raw["samples"])).sum();
        // It begins with the last batch before it came, which may be the first one of its run.
        let losses = of_kind("end").filter_map(|end| end["lost"].get("gap"));
        let missed: u64 = losses.map(|gap| number(&gap["lost_samples"])).sum();
        assert!(got > 0);
        assert_eq!(got + missed, number(&end["samples"]));
        all_missed += missed;
    }
    assert!(all_missed > 0);
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
    assert!(said.contains("pipe: nobody reads what is written"), "{said}");
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
