//! `record`: what a recording says of the processes in it, and who may read it. The profiler is a stand-in.
#![cfg(unix)]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::recorder::*;
use common::run;
use serde_json::Value;

fn text_of(path: &Path) -> Vec<u8> {
    fs::read(path).expect("readable")
}

#[test]
fn a_run_and_its_heartbeats_are_there_before_its_first_sample() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, name) = path_in(&folder, "live.jsonl");
    let (chunks, chunks_name) = path_in(&folder, "live.bin");
    let options = ["-o", &name, "-o", &chunks_name, "--stream-types", "raw,heartbeat:50ms"];
    let recorder = Recorder::start(&options, "begin open wait part:0 end");
    wait_for_count(&stream, META, 1);
    wait_for_count(&stream, HEARTBEAT, 3);
    assert!(!chunks.exists(), "a profile needs no part without samples");
    recorder.signal("-INT");
    let (code, said) = recorder.end();
    assert_eq!(code, Some(0), "{said}");
    let messages = sound(&text_of(&stream));
    let meta = &messages[0];
    assert_eq!((&meta["samples"], &meta["labels"]["host"]), (&Value::from(0), &Value::from("web1")));
    assert!(meta["wall_usec"].is_i64(), "{meta}");
    let clocks = |message: &Value, time: &str| {
        i128::from(message["wall_usec"].as_i64().expect("a date")) - i128::from(number(&message[time]))
    };
    for beat in of_type(&messages, "heartbeat").into_iter().take(3) {
        assert_eq!((&beat["ts_usec"], &beat["samples"]), (&meta["run_start_usec"], &Value::from(0)));
        assert_eq!(clocks(beat, "ts_usec"), clocks(meta, "start_usec"), "one mapping");
    }
    let read = run(&["from-bin", &chunks_name], b"");
    assert_eq!(read.code, 0, "the first chunk in the profile is its first: {}", read.stderr);
}

#[test]
fn a_heartbeat_is_a_watermark_by_the_clocks_of_meta() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, name) = path_in(&folder, "live.jsonl");
    let options = ["-o", &name, "--stream-types", "raw,heartbeat:50ms"];
    let recorder = Recorder::start(&options, "begin part:0 wait part:1 end");
    wait_for_count(&stream, HEARTBEAT, 2);
    recorder.signal("-INT");
    assert_eq!(recorder.end().0, Some(0));
    let messages = sound(&text_of(&stream));
    let meta = &messages[0];
    let end_us = number(&meta["start_usec"]) + number(&meta["duration_usec"]);
    let beat = of_type(&messages, "heartbeat")[0];
    assert_eq!((number(&beat["ts_usec"]), &beat["samples"]), (end_us + 1, &meta["samples"]));
    let wall = |message: &Value| i128::from(message["wall_usec"].as_i64().expect("a date"));
    let since = i128::from(end_us) + 1 - i128::from(number(&meta["start_usec"]));
    assert_eq!(wall(beat) - wall(meta), since);
}

#[test]
fn processes_that_could_not_be_sampled_are_a_loss() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, name) = path_in(&folder, "live.bin");
    let options = ["-o", "-", "-o", &name];
    let (code, stdout, said) = record(&options, "begin part:0 missed:77 missed:78 part:1 end");
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("not in the recording: 2 (77, 78)"), "{said}");
    let messages = sound(&stdout);
    assert_eq!(of_type(&messages, "loss").last().expect("a loss")["reason"], "sampler_missed");
    let end = messages.last().expect("an end");
    assert_eq!(end["complete"], false);
    assert!(end["lost"]["sampler_missed"].is_object(), "{end}");
    // Where the stream has ended before that is known, and of many.
    let many = (100..120).map(|pid| format!("missed:{pid}")).collect::<Vec<_>>().join(" ");
    let (code, stdout, said) = record(&options, &format!("begin part:0 end {many}"));
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("20 (100, ") && said.contains("109, ...)"), "{said}");
    assert_eq!(sound(&stdout).last().expect("an end")["complete"], true);
}

#[test]
fn names_with_escapes_are_counted_and_said_once() {
    let (code, stdout, said) = record(&[], r"begin part:0 escaped:caf\udce9.py escaped:x\udcff part:1 end");
    assert_eq!(code, 0, "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(r"not UTF-8: 2, written with escapes, as in caf\udce9.py"), "{said}");
    assert_eq!(sound(&stdout).last().expect("an end")["complete"], true);
}

#[test]
fn a_signal_has_its_name_and_an_end_that_nobody_saw_is_told() {
    for (exit, told) in [
        ("exit:-9", "the program ended by signal 9 (SIGKILL)"),
        ("exit:-15", "the program ended by signal 15 (SIGTERM)"),
        ("exit", "the program ended\n"),
    ] {
        let (code, _, said) = record(&[], &format!("begin part:0 end {exit}"));
        assert_eq!(code, 0, "{said}");
        assert!(said.contains(told), "{said}");
    }
}

#[test]
fn arguments_are_in_the_label_only_where_they_were_asked_for() {
    for (options, label) in [
        (vec![], Some("python app.py")),
        (vec!["--command-arguments"], Some("python app.py --token secret")),
        (vec!["--no-command"], None),
        (vec!["--no-command", "--label", "command=mine"], Some("mine")),
    ] {
        let (code, stdout, said) = record(&options, "begin part:0 end");
        assert_eq!(code, 0, "{said}");
        let command = sound(&stdout)[0]["labels"].get("command").cloned();
        assert_eq!(command, label.map(Value::from), "{options:?}");
    }
    let both = run(&["record", "--no-command", "--command-arguments", "--", "run", "x.py"], b"");
    assert_eq!(both.code, 2, "{}", both.stderr);
}

#[test]
fn what_is_recorded_is_for_its_owner_and_the_program_keeps_its_own_mask() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, stream) = path_in(&folder, "live.jsonl");
    let (_, packed) = path_in(&folder, "live.jsonl.zst");
    let (_, chunks) = path_in(&folder, "live.bin");
    let (_, there) = path_in(&folder, "there.bin");
    fs::write(&there, "before").expect("writable");
    fs::set_permissions(&there, PermissionsExt::from_mode(0o644)).expect("its mode");
    let whole =
        command(&["-o", &stream, "-o", &packed, "-o", &chunks, "-o", &there], "umask begin part:0 end");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "umask 027; exec \"$0\" \"$@\""]).arg(whole.get_program()).args(whole.get_args());
    let output = command.env("PARTS", parts().folder.path()).output().expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "027\n", "the program's");
    let mode = |name: &str| fs::metadata(name).expect("there").permissions().mode() & 0o777;
    assert_eq!([mode(&stream), mode(&packed), mode(&chunks), mode(&there)], [0o600, 0o600, 0o600, 0o644]);
}

#[test]
fn the_readers_secret_is_not_in_the_programs_environment() {
    let mut command = command(&["-o", "/dev/null"], "environment:TACHYON begin part:0 end");
    let output = command.env("TACHYON_JSONL_TOKEN", "0123456789abcdef").output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "[]\n");
    assert!(output.status.success());
}

#[test]
fn a_profile_that_cannot_be_written_is_said_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (full, full_name) = path_in(&folder, "full.bin");
    symlink("/dev/full", full).expect("a link");
    let (_, name) = path_in(&folder, "live.bin");
    let (code, _, said) = record(&["-o", &full_name, "-o", &name], "begin all end");
    assert_eq!(code, 3, "{said}");
    assert_eq!(said.matches("full.bin").count(), 1, "{said}");
    let read = sound(&common::stream_of(Path::new(&name), &[]));
    assert_eq!(number(&read.last().expect("an end")["samples"]), parts().samples);
    // The same for another process, whose profile cannot even be opened.
    let (taken, _) = path_in(&folder, "live_2000000001.bin");
    fs::create_dir(taken).expect("a folder");
    let (code, _, said) = record(&["-o", &name], "begin part:0 as:2000000001 begin part:1 end");
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("live_2000000001.bin"), "{said}");
}
