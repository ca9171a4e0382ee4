//! `inspect` as people and scripts meet it: the program run on files, held against what CPython says
//! of them, and against the answers of the field reports, by which the tests are named.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn read(name: &str) -> Vec<u8> {
    fs::read(data(name)).expect("the file is there")
}

/// Runs the program in the folder of test files, so that names in its texts are short.
fn program(args: &[&str], stdin: &[u8]) -> Outcome {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tachyon-jsonl"))
        .args(args)
        .current_dir(data(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    let bytes = stdin.to_vec();
    // A program that reads its file only leaves the pipe alone.
    let feeder = std::thread::spawn(move || pipe.write_all(&bytes));
    let output = child.wait_with_output().expect("the program ends");
    let _ = feeder.join().expect("the feeder ends");
    Outcome {
        code: output.status.code().expect("an exit code"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn inspect(name: &str) -> Outcome {
    program(&["inspect", name], b"")
}

/// The answer as JSON, and the exit code.
fn json_of(outcome: Outcome) -> (Value, i32) {
    assert_eq!(outcome.stdout.matches('\n').count(), 1, "one line: {}{}", outcome.stdout, outcome.stderr);
    (serde_json::from_str(&outcome.stdout).expect("JSON"), outcome.code)
}

fn profile(name: &str) -> Value {
    let (report, code) = json_of(program(&["inspect", name, "--json"], b""));
    assert_eq!((code, &report["kind"]), (0, &Value::from("profile")), "{name}");
    assert_eq!(report["profiles"].as_array().expect("profiles").len(), 1);
    report["profiles"][0].clone()
}

/// The whole answer on a stream that comes through a pipe, its exit code, and standard error.
fn stream(bytes: &[u8]) -> (Value, i32, String) {
    let outcome = program(&["inspect", "--json"], bytes);
    let stderr = outcome.stderr.clone();
    let (report, code) = json_of(outcome);
    assert_eq!(report["kind"], "stream");
    (report, code, stderr)
}

fn stream_of(profile: &str, options: &[&str]) -> String {
    let outcome = program(&[&["from-bin", profile], options].concat(), b"");
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    outcome.stdout
}

#[test]
fn every_profile_is_described_as_cpython_describes_it() {
    let mut compared = 0;
    for entry in fs::read_dir(data("cpython")).expect("the folder") {
        let path = entry.expect("an entry").path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".info.json")) else {
            continue;
        };
        let expected: Value =
            serde_json::from_slice(&fs::read(&path).expect("the answer")).expect("the answer is JSON");
        let found = profile(&format!("cpython/{name}.bin"));
        let same = |key: &str, value: Value| assert_eq!(expected[key], value, "{name}: {key}");
        same("version", found["format_version"].clone());
        let python: Vec<u64> = found["python"]
            .as_str()
            .expect("a version")
            .split('.')
            .map(|part| part.parse().expect("a number"))
            .collect();
        same("python_version", Value::from(python));
        same("start_time_us", found["start_usec"].clone());
        same("sample_interval_us", found["sample_interval_usec"].clone());
        same("sample_count", found["samples"].clone());
        same("sample_count", found["samples_declared"].clone());
        same("thread_count", found["thread_count"].clone());
        same("thread_count", found["threads_declared"].clone());
        same("string_count", found["string_count"].clone());
        same("frame_count", found["frame_count"].clone());
        let compression = found["compression_number"].as_u64().expect("a number") as u32;
        same("compression_type", Value::from(compression as i32));
        for key in ["duration_sec", "sample_rate", "error_rate", "missed_samples"] {
            // What CPython gives as null is left out.
            assert_ne!(found["measured"].get(key), Some(&Value::Null));
            same(key, found["measured"][key].clone());
        }
        let modes = ["wall", "cpu", "gil", "all", "exception"];
        let mode = found["mode"].as_str().map(|mode| modes.iter().position(|known| *known == mode));
        same("mode", mode.flatten().map_or(Value::Null, Value::from));
        let settings = ["all_threads", "native", "gc", "opcodes", "blocking"];
        let capture = found.get("capture").map(|capture| {
            (0..).zip(settings).map(|(bit, key)| u64::from(capture[key] == true) << bit).sum::<u64>()
        });
        same("capture_features", capture.map_or(Value::Null, Value::from));
        let sum: u64 = found["threads"]
            .as_array()
            .expect("threads")
            .iter()
            .map(|thread| thread["samples"].as_u64().expect("a count"))
            .sum();
        same("sample_count", Value::from(sum));
        compared += 1;
    }
    assert!(compared > 80, "{compared} answers");
}

/// <https://github.com/python/cpython/issues/151292>
#[test]
fn both_layouts_of_version_1_are_recognized() {
    for (name, layout) in [("v1_u32", "narrow"), ("v1_u64", "wide")] {
        let found = profile(&format!("cases/{name}.bin"));
        assert_eq!(found["layout"], layout);
        for (key, count) in [("samples", 4), ("thread_count", 1), ("string_count", 3), ("frame_count", 2)] {
            assert_eq!(found[key], count, "{name}: {key}");
        }
        assert_eq!(found["byte_order"], "little");
    }
    assert_eq!(profile("cases/v1_u64_be.bin")["byte_order"], "big");
    let text = inspect("cases/v1_u32.bin").stdout;
    assert!(text.contains("narrow (the 3.15 alphas"), "{text}");
}

/// <https://github.com/python/cpython/issues/154090>
#[test]
fn configuration_word_is_unpacked() {
    let found = profile("cases/mode_cpu_cfg.bin");
    assert_eq!(found["mode"], "cpu");
    let expected = serde_json::json!({"all_threads": true, "native": false, "gc": true, "opcodes": false, "blocking": false});
    assert_eq!(found["capture"], expected);
    let unknown = profile("cases/v1_u64.bin");
    assert_eq!((unknown.get("mode"), unknown.get("capture")), (None, None));
    let text = inspect("cases/v1_u64.bin").stdout;
    assert!(text.contains("mode:                               unknown\n"), "{text}");
    assert!(!text.contains("wall"), "{text}");
}

/// <https://github.com/python/cpython/issues/152718>
/// <https://github.com/bloomberg/memray/issues/1005>
#[cfg(target_os = "linux")]
#[test]
fn giant_table_counts_in_a_tiny_file_are_refused_in_little_memory() {
    let run = "ulimit -v 400000; exec \"$0\" inspect cases/strings_huge.bin";
    let output = Command::new("sh")
        .args(["-c", run, env!("CARGO_BIN_EXE_tachyon-jsonl")])
        .current_dir(data(""))
        .output()
        .expect("the shell starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("it declares 4294967295 strings where at most"), "{stderr}");
    assert!(output.stdout.is_empty());
}

/// <https://github.com/python/cpython/issues/149009>
#[test]
fn more_threads_than_declared_are_told_and_counted() {
    let outcome = program(&["inspect", "cases/threads_low.bin", "--json"], b"");
    assert!(
        outcome.stderr.contains("the header declares 1 threads, but the data hold 2 (at byte 36)"),
        "{}",
        outcome.stderr
    );
    let (report, code) = json_of(outcome);
    let found = &report["profiles"][0];
    assert_eq!((code, &found["thread_count"], &found["threads_declared"]), (3, &2.into(), &1.into()));
    assert_eq!(found["faults"][0]["code"], "count_mismatch");
    assert_eq!(found["faults"][0]["offset_bytes"], 36);
}

/// <https://github.com/python/cpython/issues/151022>
/// <https://github.com/python/cpython/issues/153364>
#[test]
fn samples_at_the_depth_limit_are_counted() {
    let found = profile("cpython/edge_depth_256.bin");
    assert_eq!(found["depth_limit"], 256);
    assert!(found["samples_at_depth_limit"].as_u64() > Some(0), "{found}");
    let text = inspect("cpython/edge_depth_256.bin").stdout;
    assert!(text.contains("outer frames may be missing"), "{text}");
}

/// <https://github.com/python/cpython/issues/152434>
#[test]
fn nothing_is_claimed_about_async_tasks() {
    let text = inspect("cpython/async_all_linear_1k_none.bin").stdout;
    assert!(!text.to_lowercase().contains("async_aware") && !text.contains("task"), "{text}");
}

/// <https://github.com/python/cpython/issues/154089>
#[test]
fn what_is_unknown_is_not_shown_as_zero() {
    assert_eq!(profile("cases/v1_u64.bin").get("measured"), None);
    let text = inspect("cases/v1_u64.bin").stdout;
    for key in ["duration", "rate", "failed", "missed"] {
        let row = text.lines().find(|line| line.trim_start().starts_with(&format!("{key}, measured")));
        assert!(row.expect("a row").ends_with(" unknown"), "{text}");
    }
    let only_rate = profile("cpython/stats_only_rate.bin");
    assert_eq!(only_rate["measured"], serde_json::json!({"duration_sec": 1.25, "sample_rate": 999.5}));
}

/// <https://github.com/python/cpython/issues/154060>
#[test]
fn the_span_is_labelled_and_no_duration_is_made_up() {
    let found = profile("cases/v1_u64.bin");
    assert_eq!(found["first_to_last_sample_usec"], 3000);
    assert_eq!(found.get("measured"), None);
    let text = inspect("cases/v1_u64.bin").stdout;
    let span = text.lines().find(|line| line.contains("first to last sample:")).expect("a row");
    assert!(span.contains("3.0 ms"), "{span}");
}

#[test]
fn statistics_of_both_sizes_are_read() {
    for (name, error_rate) in [("cpython/stats_full.bin", Some(3.5)), ("legacy/v1_stats32_none.bin", None)] {
        let found = profile(name);
        assert!(found["measured"]["sample_rate"].as_f64() > Some(0.0), "{found}");
        assert_eq!(found["measured"]["error_rate"].as_f64(), error_rate, "{name}");
    }
    let skipped = profile("malformed/stats_size_55.bin");
    assert_eq!(skipped.get("measured"), None);
    assert!(skipped["warnings"][0].as_str().expect("a warning").contains("55 bytes"), "{skipped}");
}

/// <https://github.com/python/cpython/issues/149718>
#[test]
fn what_the_sampler_missed_stands_apart_from_what_was_lost_on_the_way() {
    let whole = stream_of("cpython/wall_all_20k_zstd.bin", &[]);
    let missed = profile("cpython/wall_all_20k_zstd.bin")["measured"]["missed_samples"].clone();
    assert!(missed.as_f64() > Some(0.0));
    // Without the second raw message.
    let raw: Vec<usize> = whole.match_indices("{\"type\":\"raw\"").map(|(at, _)| at).take(3).collect();
    let torn = format!("{}{}", &whole[..raw[1]], &whole[raw[2]..]);
    let (report, code, stderr) = stream(torn.as_bytes());
    let run = &report["runs"][0];
    assert_eq!(run["losses"]["sampler_missed"]["lost_percent"], missed);
    assert_eq!(run["missing_messages"], 1);
    assert_eq!(code, 3);
    assert!(stderr.contains("1 message missing"), "{stderr}");
    let (report, code, stderr) = stream(whole.as_bytes());
    assert_eq!((report["runs"][0].get("missing_messages"), code), (None, 0), "{stderr}");
}

/// <https://github.com/foxglove/mcap/issues/697>
#[test]
fn a_cut_profile_is_called_cut_with_its_byte() {
    for (name, words) in [("cut1", "no valid footer"), ("cut_half", "truncated")] {
        let outcome = inspect(&format!("cases/{name}.bin"));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
        assert!(outcome.stderr.contains(words) && outcome.stderr.contains("(at byte "), "{}", outcome.stderr);
    }
}

#[test]
fn an_outline_says_what_the_header_and_the_end_say_and_reads_no_samples() {
    let mut outlined = 0;
    for folder in ["cpython", "cases", "legacy", "malformed"] {
        for entry in fs::read_dir(data(folder)).expect("the folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|extension| extension != "bin") {
                continue;
            }
            let path = path.to_str().expect("a path");
            let (whole, code) = match program(&["inspect", path, "--json"], b"") {
                outcome if outcome.code == 1 => continue,
                outcome => json_of(outcome),
            };
            if whole["kind"] != "profile" {
                continue;
            }
            let (outline, outline_code) = json_of(program(&["inspect", path, "--json", "--outline"], b""));
            assert!([0, code].contains(&outline_code), "{path}");
            let profiles = |report: &Value| report["profiles"].as_array().expect("profiles").clone();
            assert_eq!(profiles(&outline).len(), profiles(&whole).len(), "{path}");
            for (outline, whole) in profiles(&outline).iter().zip(profiles(&whole)) {
                let outline = outline.as_object().expect("an object");
                assert!(!outline.contains_key("samples") && !outline.contains_key("threads"), "{path}");
                for (key, value) in outline.iter().filter(|(key, _)| *key != "faults") {
                    assert_eq!(value, &whole[key], "{path}: {key}");
                }
                outlined += 1;
            }
        }
    }
    assert!(outlined > 80, "{outlined} profiles");

    // Samples that nobody can read are in nobody's way.
    let mut bytes = read("cases/v1_u64.bin");
    let strings_at = u64::from_le_bytes(bytes[40..48].try_into().expect("eight bytes")) as usize;
    bytes[64..strings_at].fill(0xff);
    assert_eq!(program(&["inspect"], &bytes).code, 1);
    let outline = program(&["inspect", "--outline"], &bytes);
    assert_eq!(outline.code, 0, "{}", outline.stderr);
    assert!(outline.stdout.contains("4 by the header, not read"), "{}", outline.stdout);
    // A footer that is none, or of another size, is told all the same.
    let end = bytes.len();
    let cut = program(&["inspect", "--outline"], &bytes[..end - 1]);
    assert_ne!(cut.code, 0, "{}", cut.stdout);
    bytes[end - 24] ^= 1;
    let other = program(&["inspect", "--outline"], &bytes);
    assert_eq!(other.code, 3, "{}", other.stderr);
    assert!(other.stdout.contains("the footer says"), "{}", other.stdout);
    assert_eq!(program(&["inspect", "--outline", "--verify"], &bytes).code, 2);
}

#[test]
fn empty_stacks_are_counted_apart() {
    let found = profile("cases/empty_stack.bin");
    assert_eq!((&found["samples"], &found["samples_empty"]), (&3.into(), &2.into()));
}

#[test]
fn packed_sample_data_have_two_sizes_and_a_ratio() {
    let packed = profile("cpython/pair_idle_10k_zstd.bin");
    let plain = profile("cpython/pair_idle_10k_none.bin");
    assert_eq!(plain.get("compression_ratio"), None);
    assert_eq!(plain["sample_data_bytes"], plain["sample_data_unpacked_bytes"]);
    assert_eq!((&packed["compression"], &plain["compression"]), (&"zstd".into(), &"none".into()));
    assert!(packed["compression_ratio"].as_f64() > Some(1.0), "{packed}");
}

#[test]
fn thread_ids_are_exact() {
    let found = profile("legacy/v1_bigendian_thread_ids_none.bin");
    let has = |id: &str| found["threads"].as_array().expect("threads").iter().any(|t| t["thread_id"] == id);
    assert!(has("18446744073709551615"), "{found}");
    assert_eq!(profile("cases/tid_2p53p1.bin")["threads"][0]["thread_id"], "9007199254740993");
}

#[test]
fn the_text_lists_twenty_threads_and_json_all() {
    let name = "cpython/manythreads_200_500hz_zstd.bin";
    let text = inspect(name).stdout;
    assert!(text.ends_with("    and 227 more threads: --json lists all\n"), "{text}");
    assert_eq!(profile(name)["threads"].as_array().expect("threads").len(), 247);
}

#[test]
fn joined_profiles_are_described_one_by_one() {
    let parts = ["cpython/tiny_script_none.bin", "cases/v1_u32.bin", "cases/count_low.bin"].map(read);
    let outcome = program(&["inspect", "--json", "-"], &parts.concat());
    assert!(outcome.stderr.contains("the header declares 3 samples, but the data hold 4"));
    let (report, code) = json_of(outcome);
    let profiles = report["profiles"].as_array().expect("profiles");
    let samples: Vec<&Value> = profiles.iter().map(|profile| &profile["samples"]).collect();
    assert_eq!((samples, code), (vec![&33.into(), &4.into(), &4.into()], 3));
    assert_eq!(profiles[1]["offset_bytes"], parts[0].len());
}

#[test]
fn what_is_neither_is_named_as_from_bin_names_it() {
    for name in ["collapsed", "text", "pickle", "gzip", "elf", "one_byte"] {
        let name = format!("malformed/type_{name}.bin");
        let (ours, theirs) = (inspect(&name), program(&["from-bin", &name, "-o", "/dev/null"], b""));
        assert_eq!((ours.code, ours.stdout.as_str(), ours.stderr), (1, "", theirs.stderr));
    }
    // A pstats file begins with a brace.
    let pstats = program(&["inspect"], b"{(\x03\x00\x00\x00\xda\x04a.py");
    assert!(pstats.stderr.contains("pstats"), "{}", pstats.stderr);
    let json = inspect("malformed/type_json.bin");
    assert_eq!(json.code, 1);
    assert!(
        json.stderr.contains("JSON, but not a stream: not a message: missing field `type`"),
        "{}",
        json.stderr
    );
}

#[test]
fn a_stream_tells_the_same_as_its_profile() {
    for name in ["cpython/wall_all_100hz_none.bin", "cpython/edge_empty_stacks.bin", "cases/v1_u32.bin"] {
        let profile = profile(name);
        let (report, code, stderr) = stream(stream_of(name, &["--flush", "samples:500"]).as_bytes());
        assert_eq!((code, stderr.as_str()), (0, ""));
        let run = &report["runs"][0];
        assert_eq!((&run["v"], &run["complete"]), (&2.into(), &true.into()));
        for (in_run, in_profile) in [
            ("run_start_usec", "start_usec"),
            ("samples_raw", "samples"),
            ("samples_announced", "samples"),
            ("samples_raw_empty", "samples_empty"),
            ("first_usec", "first_usec"),
            ("last_usec", "last_usec"),
        ] {
            assert_eq!(run[in_run], profile[in_profile], "{name}: {in_run}");
        }
        for key in ["sample_interval_usec", "mode", "capture", "python", "measured", "thread_count"] {
            assert_eq!(run[key], profile[key], "{name}: {key}");
        }
        let sorted = |threads: &Value| {
            let mut threads: Vec<String> =
                threads.as_array().expect("threads").iter().map(Value::to_string).collect();
            threads.sort();
            threads
        };
        assert_eq!(sorted(&run["threads"]), sorted(&profile["threads"]), "{name}");
    }
}

#[test]
fn packed_streams_are_unpacked() {
    let plain = stream_of("cases/v1_u64.bin", &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stream.jsonl.zst");
    let path = path.to_str().expect("a name");
    stream_of("cases/v1_u64.bin", &["-o", path]);
    let (mut report, code) = json_of(program(&["inspect", path, "--json"], b""));
    assert_eq!((report["packing"].take(), code), ("zstd".into(), 0));
    assert_eq!(report["runs"], stream(plain.as_bytes()).0["runs"]);
    let mut torn = fs::read(path).expect("the file");
    torn.truncate(40);
    let outcome = program(&["inspect"], &torn);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("packed with zstd, but it cannot be unpacked"), "{}", outcome.stderr);
}

#[test]
fn damaged_lines_are_counted_with_the_first_and_the_rest_is_described() {
    let text = stream_of("cases/v1_u64.bin", &[]);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.insert(2, "{\"type\":\"raw\",\"v\":2}");
    lines.insert(4, "{nothing}");
    let (report, code, stderr) = stream((lines.join("\n") + "\n").as_bytes());
    assert_eq!(code, 3);
    assert_eq!(report["damaged_lines"], serde_json::json!({"lines": 2, "first_line": 3}));
    assert!(stderr.contains("(line 3)") && stderr.contains("1 more damaged line\n"), "{stderr}");
    assert_eq!(report["runs"][0]["samples_raw"], 4);
    assert_eq!(report["runs"][0]["complete"], true);
}

#[test]
fn a_torn_last_line_and_a_missing_end_are_told() {
    let text = stream_of("cases/v1_u64.bin", &[]);
    let torn = &text[..text.len() - 20];
    let (report, code, stderr) = stream(torn.as_bytes());
    assert_eq!((code, &report["runs"][0]["ended"]), (3, &false.into()));
    assert!(report["torn_last_line_bytes"].as_u64() > Some(0));
    assert!(stderr.contains("the last line is torn") && stderr.contains("no end message"), "{stderr}");
    // Whole but for its line feed.
    let (report, code, _) = stream(text.trim_end().as_bytes());
    assert_eq!((code, report.get("torn_last_line_bytes")), (0, None));
    // Nobody asked for an end.
    let (report, code, stderr) =
        stream(stream_of("cases/v1_u64.bin", &["--stream-types", "raw,-end"]).as_bytes());
    assert_eq!((code, &report["runs"][0]["ended"]), (0, &false.into()), "{stderr}");
}

#[test]
fn runs_are_told_apart_also_where_a_file_stands_twice() {
    let (a, b) = (stream_of("cases/v1_u64.bin", &[]), stream_of("cases/recursion.bin", &["--run-id", "b"]));
    let interleaved: String = a.lines().zip(b.lines()).flat_map(|(a, b)| [a, "\n", b, "\n"]).collect();
    let (report, code, _) = stream(interleaved.as_bytes());
    assert_eq!((report["runs"].as_array().map(Vec::len), code), (Some(2), 0));
    let (report, code, stderr) = stream([a.as_bytes(), a.as_bytes()].concat().as_slice());
    assert_eq!((report["runs"].as_array().map(Vec::len), code), (Some(2), 0), "{stderr}");
    assert_eq!(report["runs"][0]["samples_raw"], report["runs"][1]["samples_raw"]);
}

#[test]
fn cpythons_own_jsonl_is_named_and_counted() {
    for (name, v, runs) in [("cpython_v0", 0, 1), ("cpython_v1", 1, 1), ("two_runs", 0, 2)] {
        let (report, code, _) = stream(&read(&format!("cases/{name}.jsonl")));
        assert_eq!((report["runs"].as_array().map(Vec::len), code), (Some(runs), 0));
        for run in report["runs"].as_array().expect("runs") {
            assert_eq!(
                (&run["v"], &run["ended"], &run["samples_total"]),
                (&v.into(), &true.into(), &7.into())
            );
            assert_eq!((&run["string_count"], &run["frame_count"]), (&2.into(), &1.into()));
            assert_eq!((&run["mode"], &run["sample_interval_usec"]), (&"wall".into(), &1000.into()));
        }
    }
    for flaw in ["bom", "crlf", "blank_lines", "progress_mixed", "unknown_type"] {
        let (report, code, stderr) = stream(&read(&format!("cases/{flaw}.jsonl")));
        assert_eq!((code, &report["runs"][0]["samples_total"]), (0, &7.into()), "{flaw}");
        assert_eq!(report["tolerated"].as_array().map(Vec::len), Some(1), "{flaw}");
        assert!(stderr.contains("warning: "), "{flaw}: {stderr}");
    }
    let (report, code, _) = stream(&read("cases/surrogate.jsonl"));
    assert_eq!((code, &report["runs"][0]["string_count"]), (0, &2.into()));
    for cut in ["cut_line", "no_end"] {
        let (_, code, stderr) = stream(&read(&format!("cases/{cut}.jsonl")));
        assert_eq!(code, 3);
        assert!(stderr.contains("no end message"), "{stderr}");
    }
}

fn with_snapshots(check: impl FnOnce()) {
    insta::with_settings!({ snapshot_path => "../snapshots", prepend_module_to_snapshot => false }, {
        check();
    });
}

#[test]
fn a_profile_in_words() {
    let outcome = inspect("cpython/subinterpreters_1k_none.bin");
    with_snapshots(|| insta::assert_snapshot!("inspect__profile", outcome.stdout));
}

#[test]
fn a_stream_in_words() {
    let options = ["--run-id", "example", "--wall-start", "2026-09-21T14:13:20Z", "--label", "host=web-3"];
    let text = stream_of("cpython/tiny_script_none.bin", &options);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(2);
    lines.insert(1, "done");
    let outcome = program(&["inspect"], lines.join("\r\n").as_bytes());
    let all = format!("{}--- exit {}\n{}", outcome.stdout, outcome.code, outcome.stderr);
    with_snapshots(|| insta::assert_snapshot!("inspect__stream", all));
}
