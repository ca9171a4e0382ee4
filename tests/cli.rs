//! The command line: exit status, what goes where, files that are whole or not there.

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{PROGRAM, data, run, stream_of};

fn small() -> String {
    data("cpython/tiny_script_none.bin").to_str().expect("UTF-8").to_string()
}

#[test]
fn usage_errors_name_what_is_wrong() {
    let file = "tests/data/cpython/tiny_script_none.bin";
    let mut said = String::new();
    for args in [
        &["from-bin", file, "--stream-types", "raw,foo"][..],
        &["from-bin", file, "--stream-types", "raw:5s"],
        &["from-bin", file, "--stream-types", "raw,-raw"],
        &["from-bin", file, "--stream-types", "agg:0s"],
        &["from-bin", file, "--flush", "bytes:5"],
        &["from-bin", file, "--flush", "samples:0"],
        &["from-bin", file, "--run-id", "not ok"],
        &["from-bin", file, file, "--run-id", "one"],
        &["from-bin", file, "--max-line", "100"],
        &["from-bin", file, "--max-line", "0"],
        &["from-bin", file, "--max-line", "17m"],
        &["from-bin", file, "--max-line", "ten"],
        &["from-bin", file, "--label", "novalue"],
        &["from-bin", file, "--wall-start", "yesterday"],
        &["to-bin", "--compression", "gzip"],
        &["to-bin", "--compression", "zstd:99"],
        &["no-such-command"],
    ] {
        let ran = run(args, b"");
        assert_eq!((ran.code, ran.stdout.len()), (2, 0), "{args:?}: {}", ran.stderr);
        let first = ran.stderr.lines().next().expect("a line");
        writeln!(said, "{}\n    {first}", args.join(" ")).expect("a String takes all");
    }
    insta::with_settings!({ snapshot_path => "../snapshots", prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("usage-errors", said);
    });
}

#[test]
fn files_that_cannot_be_read_or_written_are_named() {
    for (args, told) in [
        (vec!["from-bin", "/no/such/file"], "/no/such/file: No such file"),
        (vec!["from-bin", "/"], "/: "),
        (vec!["to-bin", "/no/such/file"], "/no/such/file: No such file"),
        (vec!["from-bin", &small(), "-o", "/no/such/folder/x"], "/no/such/folder/x: No such file"),
    ] {
        let ran = run(&args, b"");
        assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{args:?}");
        assert!(ran.stderr.starts_with("tachyon-jsonl: ") && ran.stderr.contains(told), "{}", ran.stderr);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_with_its_cause() {
    let stream = stream_of(Path::new(&small()), &[]);
    for (args, stdin) in [
        (vec!["from-bin", &small(), "-o", "/dev/full"], &b""[..]),
        (vec!["to-bin", "-o", "/dev/full"], &stream),
    ] {
        let ran = run(&args, stdin);
        assert_eq!(ran.code, 1, "{args:?}");
        assert!(ran.stderr.contains("/dev/full: No space left"), "{}", ran.stderr);
    }
}

#[test]
fn an_output_appears_when_it_is_whole_and_never_over_its_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    std::fs::copy(small(), path("a.bin")).expect("copied");
    let before = std::fs::read(path("a.bin")).expect("readable");

    let ran = run(&["from-bin", &path("a.bin"), "-o", &path("a.bin")], b"");
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("is the input"), "{}", ran.stderr);
    assert_eq!(std::fs::read(path("a.bin")).expect("readable"), before);

    std::fs::write(path("out"), "what was there").expect("written");
    let ran = run(
        &["from-bin", data("malformed/body_random.bin").to_str().expect("UTF-8"), "-o", &path("out")],
        b"",
    );
    assert_eq!(ran.code, 1);
    assert_eq!(std::fs::read_to_string(path("out")).expect("readable"), "what was there");

    assert_eq!(run(&["from-bin", &path("a.bin"), "-o", &path("out")], b"").code, 0);
    assert_eq!(run(&["to-bin", &path("out"), "-o", &path("again"), "--compression", "none"], b"").code, 0);
    assert_eq!(std::fs::read(path("again")).expect("readable"), before);
    assert_eq!(run(&["from-bin", &path("a.bin"), "-o", &format!("file:{}", path("out.zst"))], b"").code, 0);
    let packed = std::fs::File::open(path("out.zst")).expect("there");
    assert_eq!(zstd::decode_all(packed).expect("zstd"), std::fs::read(path("out")).expect("readable"));
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    assert_eq!(names, ["a.bin", "again", "out", "out.zst"], "nothing is left behind");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in [
        vec!["from-bin".to_string(), data("cpython/idle_10k_none.bin").display().to_string()],
        vec!["--help".to_string()],
        vec!["schema".to_string()],
    ] {
        let mut child = Command::new(PROGRAM)
            .args(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{args:?}");
    }
}

#[test]
fn several_inputs_are_runs_of_their_own_and_a_bad_one_does_not_take_the_others_along() {
    let bad = data("malformed/body_random.bin").display().to_string();
    let ran = run(&["from-bin", &small(), &bad, &small()], b"");
    assert_eq!(ran.code, 3);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    let ends = String::from_utf8(ran.stdout).expect("UTF-8").matches("{\"type\":\"end\"").count();
    assert_eq!(ends, 2);
}

#[test]
fn the_run_id_is_the_contents_the_users_or_random() {
    let id = |options: &[&str]| {
        let ran = run(&[&["from-bin", &small()], options].concat(), b"");
        let text = String::from_utf8(ran.stdout).expect("UTF-8");
        text.split("\"run_id\":\"").nth(1).expect("an id").split('"').next().expect("an end").to_string()
    };
    assert_eq!(id(&[]), id(&["--run-id", "auto"]));
    assert_eq!(id(&["--run-id", "my-run_1"]), "my-run_1");
    assert_ne!(id(&["--run-id", "random"]), id(&["--run-id", "random"]));
    let other = run(&["from-bin", data("cpython/stats_full.bin").to_str().expect("UTF-8")], b"");
    assert!(!String::from_utf8_lossy(&other.stdout).contains(&id(&[])));
}

#[test]
fn quiet_keeps_errors_and_drops_warnings() {
    let odd = data("malformed/comp_2.bin").display().to_string();
    assert!(run(&["from-bin", &odd], b"").stderr.contains("warning"));
    assert_eq!(run(&["-q", "from-bin", &odd], b"").stderr, "");
    let bad = data("malformed/body_random.bin").display().to_string();
    assert!(!run(&["-q", "from-bin", &bad], b"").stderr.is_empty());
}

#[test]
fn help_has_examples_and_version_and_completions_print() {
    for command in ["from-bin", "to-bin", "inspect", "check", "recover", "diff", "upgrade"] {
        let ran = run(&[command, "--help"], b"");
        assert_eq!(ran.code, 0);
        assert!(String::from_utf8_lossy(&ran.stdout).contains("Examples:"), "{command}");
    }
    assert!(String::from_utf8_lossy(&run(&["--version"], b"").stdout).contains(env!("CARGO_PKG_VERSION")));
    // Help is wrapped at words, but for the examples, which are lines to be copied.
    for columns in [60, 80] {
        let mut help = Command::new(PROGRAM);
        let ran =
            help.args(["from-bin", "--help"]).env("COLUMNS", columns.to_string()).output().expect("it runs");
        let text = String::from_utf8(ran.stdout).expect("UTF-8");
        let before_examples = text.split("Examples:").next().expect("options");
        // Titles stay on one line.
        let options = before_examples.lines().filter(|line| line.starts_with(' '));
        let longest = options.map(str::len).max().expect("lines");
        assert!(longest <= columns && longest > columns - 15, "{columns}: {longest}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell], b"");
        assert!(ran.code == 0 && String::from_utf8_lossy(&ran.stdout).contains("from-bin"), "{shell}");
    }
    let page = run(&["man"], b"");
    assert!(page.code == 0 && page.stdout.starts_with(b".ie"));
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(run(&["man", folder.path().to_str().expect("UTF-8")], b"").code, 0);
    assert!(folder.path().join("tachyon-jsonl-from-bin.1").exists());
}

#[test]
fn the_start_of_a_run_is_any_rfc_3339_time_or_what_date_prints() {
    let file = data("cpython/tiny_script_none.bin");
    let wall = |time: &str| {
        let ran = run(&["from-bin", file.to_str().expect("UTF-8"), "--wall-start", time], b"");
        let meta = common::messages(&ran.stdout).into_iter().next();
        let wall = meta.map(|meta| {
            let since = meta["start_usec"].as_i64().expect("a time")
                - meta["run_start_usec"].as_i64().expect("a time");
            meta["wall_usec"].as_i64().expect("a time") - since
        });
        (ran.code, wall)
    };
    for (time, expected) in [
        ("2026-09-21T14:13:20Z", 1_790_000_000_000_000),
        ("2026-09-21T16:13:20+02:00", 1_790_000_000_000_000),
        ("2026-09-21t08:43:20.5-05:30", 1_790_000_000_500_000),
        ("2026-09-21 14:13:20.123456789012345678Z", 1_790_000_000_123_456),
        ("1790000000", 1_790_000_000_000_000),
        ("1790000000.123456789", 1_790_000_000_123_456),
        ("1790000000.0000000000001", 1_790_000_000_000_000),
        ("1969-12-31T23:59:59.5Z", -500_000),
        // A leap second has no Unix time of its own.
        ("2016-12-31T23:59:60Z", 1_483_228_799_999_999),
        ("2017-01-01T00:59:60.5+01:00", 1_483_228_799_999_999),
    ] {
        assert_eq!(wall(time), (0, Some(expected)), "{time}");
    }
    // Without an offset it could be any of 26 hours; these seconds are milliseconds.
    for time in ["2026-09-21T14:13:20", "2026-09-21", "1790000000.", ".5", "1790000000000", "1e9", "", "now"]
    {
        assert_eq!(wall(time), (2, None), "{time}");
    }
}

#[test]
fn a_time_that_does_not_exist_is_refused_for_the_part_of_it() {
    let file = data("cpython/tiny_script_none.bin");
    for (time, part) in [
        ("2026-02-30T00:00:00Z", "day"),
        ("2026-02-29T00:00:00+01:00", "day"),
        ("2026-01-00T00:00:00Z", "day"),
        ("2026-13-01T00:00:00Z", "month"),
        ("2026-00-01T00:00:00Z", "month"),
        ("2026-01-01T24:00:00Z", "hour"),
        ("2026-01-01T23:60:00Z", "minute"),
        ("2026-01-01T23:59:61Z", "second"),
        ("2026-01-01T12:00:60Z", "second"),
        ("2026-01-01T00:00:00+24:00", "offset hour"),
        ("2026-01-01T00:00:00-01:60", "offset minute"),
    ] {
        let ran = run(&["from-bin", file.to_str().expect("UTF-8"), "--wall-start", time], b"");
        let fault = format!("'{time}' is not a time: its {part} does not exist");
        assert!(ran.code == 2 && ran.stderr.contains(&fault), "{time}: {}", ran.stderr);
    }
}

#[test]
fn a_run_id_may_begin_with_a_hyphen() {
    let file = data("cpython/tiny_script_none.bin");
    let file = file.to_str().expect("UTF-8");
    let stream = run(&["from-bin", file, "--run-id", "-abc"], b"").stdout;
    assert_eq!(common::messages(&stream)[0]["run_id"], "-abc");
    let ran = run(&["to-bin", "--compression", "none", "--run-id", "-abc"], &stream);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout == std::fs::read(file).expect("readable"));
    let ran = run(&["diff", file, "-", "--run-id", "-abc"], &stream);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}
