//! Public bug reports, each with its right answer, as far as conversion is concerned. Those about
//! `inspect` are in `inspect.rs`, those about reading streams in `streams.rs`.

mod common;

use common::consumer::{self, Message, Read};
use common::{data, profile_of, run, stream_of};

fn case(name: &str, options: &[&str]) -> Read {
    consumer::read(&stream_of(&data(&format!("cases/{name}.bin")), options))
}

fn end(read: &Read) -> (u64, u64, u64) {
    match read.messages.last() {
        Some(Message::End { samples, samples_total, samples_empty, .. }) => {
            (*samples, *samples_total, *samples_empty)
        }
        other => panic!("no end: {other:?}"),
    }
}

fn same_after_a_round_trip(stream: &[u8]) -> bool {
    let again = run(&["from-bin", "-q"], &profile_of(stream, &[]));
    consumer::read(&again.stdout).threads == consumer::read(stream).threads
}

/// <https://github.com/python/cpython/issues/151292>
#[test]
fn two_header_layouts_share_version_1() {
    let (old, new) = (case("v1_u32", &[]), case("v1_u64", &[]));
    assert_eq!(end(&old).0, 4);
    assert!(old.threads == new.threads && case("v1_u64_be", &[]).threads == new.threads);
}

/// <https://github.com/python/cpython/issues/154090>
/// <https://github.com/python/cpython/issues/154089>
#[test]
fn a_mode_that_was_not_recorded_is_left_out() {
    let Message::Meta { mode, capture, .. } = &case("v1_u64", &[]).messages[0] else { panic!("no meta") };
    assert!(mode.is_none() && capture.is_none());
    let Message::Meta { mode, capture, .. } = &case("mode_cpu_cfg", &[]).messages[0] else {
        panic!("no meta")
    };
    let capture = capture.as_ref().expect("recorded");
    assert_eq!(mode.as_deref(), Some("cpu"));
    assert!(capture["all_threads"] && capture["gc"]);
    assert!(!capture["native"] && !capture["opcodes"] && !capture["blocking"]);
    // Nothing was measured, so nothing is said, least of all 0.
    let Some(Message::End { stats, lost, .. }) = case("v1_u64", &[]).messages.pop() else { panic!("no end") };
    assert!(stats.is_none() && lost.is_none());
}

/// <https://github.com/python/cpython/issues/149342>
/// <https://github.com/python/cpython/issues/157605>
#[test]
fn empty_stacks_are_samples_and_are_counted_apart() {
    let read = case("empty_stack", &[]);
    assert_eq!(end(&read), (3, 1, 2));
    assert_eq!(read.agg_totals["final"], (1, 2));
    assert_eq!(read.threads.values().flatten().filter(|(.., stack)| stack.is_empty()).count(), 2);
}

/// 64 threads of a pool that sit still and a busy one, by CPython's own writer: their runs are full all at once.
#[test]
fn samples_of_many_idle_threads_come_in_time_order() {
    let path = data("cases/pool64_zstd.bin");
    for options in [["--max-line", "64k"], ["--max-line", "8k"], ["--flush", "samples:5000"]] {
        let stream = stream_of(&path, &options);
        let checked = run(&["check"], &stream);
        assert!(checked.code == 0, "{options:?}: {}", checked.stderr);
        assert!(stream.len() < 12 * 780_000, "{} bytes", stream.len());
        let again = profile_of(&stream, &[]);
        assert!(again == std::fs::read(&path).expect("readable"), "{options:?}");
    }
}

/// <https://github.com/python/cpython/issues/149342>
#[test]
fn a_wrong_sample_count_is_told_and_the_end_does_not_claim_success() {
    let ran = run(&["from-bin", data("cases/count_low.bin").to_str().expect("UTF-8")], b"");
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("declares 3 samples, but the data hold 4"), "{}", ran.stderr);
    let read = consumer::read(&ran.stdout);
    assert_eq!(end(&read).0, 4);
    assert!(matches!(read.messages.last(), Some(Message::End { complete: false, .. })));
}

/// <https://github.com/python/cpython/issues/149009>
#[test]
fn more_threads_than_declared_are_told() {
    let ran = run(&["from-bin", data("cases/threads_low.bin").to_str().expect("UTF-8")], b"");
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("declares 1 threads, but the data hold 2"), "{}", ran.stderr);
    assert_eq!(consumer::read(&ran.stdout).threads.len(), 2);
}

/// <https://github.com/python/cpython/issues/151022>
/// <https://github.com/python/cpython/issues/153364>
#[test]
fn samples_at_the_depth_limit_are_told() {
    let read = consumer::read(&stream_of(&data("cpython/recurse_3000_500hz_zstd.bin"), &[]));
    let deep = read.threads.values().flatten().filter(|(.., stack)| depth(stack) == 256).count();
    let told: u64 = read
        .messages
        .iter()
        .map(|message| match message {
            Message::Loss { reason, samples, .. } if reason == "depth" => samples.expect("how many"),
            _ => 0,
        })
        .sum();
    assert!(told > 0);
    assert_eq!(told, deep as u64);
}

fn depth(stack: &str) -> usize {
    let mut frames = serde_json::Deserializer::from_str(stack).into_iter::<serde_json::Value>();
    let mut depth = 0;
    while let Some(Ok(_)) = frames.next() {
        depth += 1;
    }
    depth
}

#[test]
fn one_thread_id_in_two_interpreters_is_two_threads() {
    let read = case("same_tid_two_interp", &[]);
    let threads: Vec<_> = read.threads.keys().collect();
    assert_eq!(threads.len(), 2);
    assert!(threads[0].0 != threads[1].0 && threads[0].1 == threads[1].1);
}

#[test]
fn status_bits_are_kept_as_they_are() {
    let read = case("status_main_bit", &[]);
    assert!(read.threads.values().flatten().any(|(_, status, _)| *status == 33));
    let path = data("cpython/edge_status_all.bin");
    let again = profile_of(&stream_of(&path, &[]), &["--compression", "none"]);
    assert!(again == std::fs::read(path).expect("readable"));
}

#[test]
fn no_samples_are_a_valid_result_with_a_warning_and_noise_is_an_error() {
    let ran = run(&["from-bin", data("cases/zero_samples.bin").to_str().expect("UTF-8")], b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("holds no samples"), "{}", ran.stderr);
    assert_eq!(end(&consumer::read(&ran.stdout)), (0, 0, 0));
    let noise: Vec<u8> = (0..5000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let ran = run(&["from-bin"], &noise);
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
}

/// <https://github.com/python/cpython/issues/154085>
#[test]
fn recursion_counts_once_a_sample() {
    let read = case("recursion", &["--stream-types", "agg"]);
    let counts: Vec<_> = read.agg["final"].values().collect();
    assert_eq!(counts, [&(1, 1)]);
}

/// <https://github.com/python/cpython/issues/145464>
/// <https://github.com/python/cpython/issues/149718>
#[test]
fn a_run_of_equal_samples_is_split_at_the_windows_edge() {
    let path = data("cpython/idle_200hz_zstd.bin");
    let windows = consumer::read(&stream_of(&path, &["--stream-types", "agg:700ms"]));
    let whole = consumer::read(&stream_of(&path, &["--stream-types", "agg"]));
    assert!(windows.windows.len() > 5);
    assert_eq!(windows.agg["window"], whole.agg["final"]);
}

/// <https://github.com/python/cpython/issues/156810>
#[test]
fn a_recording_that_never_finished_is_named_as_such() {
    for file in ["cpython/surrogate_filename.bin", "cpython/broken_surrogate.bin"] {
        let ran = run(&["from-bin", data(file).to_str().expect("UTF-8")], b"");
        assert_eq!((ran.code, ran.stdout.len()), (1, 0));
        assert!(
            ran.stderr.contains("a recording that never finished and holds no samples"),
            "{}",
            ran.stderr
        );
    }
    let ran = run(&["from-bin", data("cases/killed.bin").to_str().expect("UTF-8")], b"");
    assert!(ran.code == 1 && ran.stderr.contains("its names never written"), "{}", ran.stderr);
    let ran = run(&["from-bin"], b"");
    assert!(ran.code == 1 && ran.stderr.contains("never flushed"), "{}", ran.stderr);
}

#[test]
fn names_with_separators_and_nul_survive() {
    for (file, escape) in [("cases/nul_name.bin", "\\u0000"), ("cases/collapsed_hostile.bin", "\\n")] {
        let stream = stream_of(&data(file), &[]);
        assert!(String::from_utf8_lossy(&stream).contains(escape), "{file}");
        assert!(same_after_a_round_trip(&stream), "{file}");
    }
}

/// <https://github.com/python/cpython/issues/156810>
#[test]
fn names_that_are_not_utf8_lose_nothing() {
    let stream = stream_of(&data("cases/badutf8_name.bin"), &[]);
    let text = String::from_utf8(stream.clone()).expect("the stream is UTF-8");
    assert!(text.contains("\"base64\":{"), "{text}");
    let base64 =
        text.split("\"base64\":{").nth(1).expect("bytes").split('"').nth(3).expect("a value").to_string();
    let again = run(&["from-bin", "-q"], &profile_of(&stream, &[]));
    assert!(String::from_utf8_lossy(&again.stdout).contains(&base64));
    assert!(same_after_a_round_trip(&stream));
}

/// <https://github.com/google/perfetto/issues/522>
#[test]
fn thread_ids_above_2_to_the_53rd_are_strings_of_digits() {
    let stream = stream_of(&data("cases/tid_2p53p1.bin"), &[]);
    assert!(String::from_utf8_lossy(&stream).contains("\"thread_id\":\"9007199254740993\""));
}

#[test]
fn times_go_back_and_first_deltas_count_from_the_start() {
    let times: Vec<u64> =
        case("clock_back", &[]).threads.into_values().flatten().map(|(time, ..)| time).collect();
    assert_eq!(times, [1_005_000, 1_003_000, 1_003_010]);
}

/// <https://github.com/python/cpython/issues/152721>
#[test]
fn alternating_statuses_are_linear_and_all_there() {
    let read = case("rle_alternating_200k", &[]);
    assert_eq!(end(&read).0, 200_001);
}

/// <https://github.com/python/cpython/issues/145464>
#[test]
fn standard_output_holds_nothing_but_json_lines() {
    for path in common::answered_profiles() {
        if common::name(&path) == "zstd_bomb_50m_samples" {
            continue;
        }
        let ran = run(&["from-bin", path.to_str().expect("UTF-8"), "-o", "-"], b"");
        for line in ran.stdout.split_inclusive(|byte| *byte == b'\n') {
            consumer::parse(line);
        }
    }
}

#[test]
fn two_runs_of_cpythons_own_jsonl_hold_no_samples() {
    let ran = run(&["to-bin", data("cases/two_runs.jsonl").to_str().expect("UTF-8")], b"");
    assert!(ran.code == 1 && ran.stderr.contains("holds counts and no samples"), "{}", ran.stderr);
}

/// A time since the boot of a machine is no date.
#[test]
fn there_is_no_date_unless_it_is_told() {
    let path = data("cases/v1_u64.bin");
    let clock = |options: &[&str]| {
        let metas = consumer::read(&stream_of(&path, options)).messages.into_iter();
        let mut metas = metas.filter_map(|message| match message {
            Message::Meta { clock, wall_usec, run_start_usec, start_usec, .. } => {
                Some((clock, wall_usec, start_usec - run_start_usec))
            }
            _ => None,
        });
        metas.next_back().expect("a meta")
    };
    let (name, wall, since) = clock(&[]);
    assert_eq!((name.as_str(), wall), ("monotonic", None));
    let (_, wall, _) = clock(&["--wall-start", "2026-11-29T12:00:00Z"]);
    assert_eq!(wall, Some(1_795_953_600_000_000 + since as i64));
}

/// Marks, carriage returns and blank lines are taken, and never written.
#[test]
fn marks_and_line_ends_cost_no_record() {
    let upgraded = |name: &str| run(&["upgrade", "-q", data(name).to_str().expect("UTF-8")], b"");
    let expected = upgraded("cases/cpython_v0.jsonl");
    assert_eq!(expected.code, 0);
    for name in ["cases/bom.jsonl", "cases/crlf.jsonl", "cases/blank_lines.jsonl"] {
        let found = upgraded(name);
        assert_eq!((found.code, &found.stdout), (0, &expected.stdout), "{name}");
    }
    assert!(!expected.stdout.starts_with(b"\xef\xbb\xbf"));
    assert!(!expected.stdout.contains(&b'\r'));
}

/// A cut last line costs itself.
#[test]
fn an_unfinished_last_line_is_told_and_the_rest_is_used() {
    let path = |name: &str| data(name).to_str().expect("UTF-8").to_string();
    let whole = run(&["upgrade", &path("cases/cpython_v0.jsonl")], b"");
    let no_line_end = run(&["upgrade", &path("cases/nonl.jsonl")], b"");
    assert_eq!((no_line_end.code, no_line_end.stderr.as_str()), (0, ""));
    assert!(no_line_end.stdout == whole.stdout);
    for name in ["cases/cut_line.jsonl", "cases/no_end.jsonl"] {
        let ran = run(&["upgrade", &path(name)], b"");
        assert_eq!(ran.code, 3, "{name}");
        assert!(ran.stderr.contains("no end message"), "{name}: {}", ran.stderr);
        assert!(String::from_utf8_lossy(&ran.stdout).contains("\"complete\":false"), "{name}");
        assert_eq!(run(&["inspect", "-q", &path(name)], b"").code, 3, "{name}");
    }
}

/// The common line readers take 65,535 bytes, and some log shippers half of that.
#[test]
fn lines_fit_the_readers_and_a_limit_that_none_has_is_refused() {
    let path = data("cpython/manythreads_200_500hz_zstd.bin");
    for (options, limit) in [(&[][..], 65_535), (&["--max-line", "30k"], 30 * 1024)] {
        let stream = stream_of(&path, options);
        assert!(stream.split_inclusive(|byte| *byte == b'\n').all(|line| line.len() <= limit));
        assert!(same_after_a_round_trip(&stream));
    }
    let ran = run(&["from-bin", "--max-line", "0", path.to_str().expect("UTF-8")], b"");
    assert_eq!((ran.code, ran.stdout.len()), (2, 0));
    assert!(ran.stderr.contains("DuckDB and WebSocket"), "{}", ran.stderr);
}

/// An output is never its input.
#[test]
fn the_input_is_never_written_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.bin");
    let bytes = std::fs::read(data("cpython/tiny_script_none.bin")).expect("readable");
    std::fs::write(&path, &bytes).expect("writable");
    let file = path.to_str().expect("UTF-8");
    for command in [
        &["from-bin", file, "-o", file][..],
        &["recover", file, "-o", file],
        &["to-bin", file, "-o", file],
        &["upgrade", file, "-o", file],
    ] {
        assert_eq!(run(command, b"").code, 2, "{command:?}");
        assert!(std::fs::read(&path).expect("there") == bytes);
    }
}

/// Two frames of zstd one behind the other are both read, and a cut is no end.
/// <https://github.com/facebook/zstd/issues/1109>
#[test]
fn joined_zstd_frames_are_read_and_a_cut_is_told() {
    let path = data("malformed/zstd_two_frames.bin");
    let expected = common::replayed(&common::answer(&path, "samples.jsonl").expect("an answer"));
    assert!(consumer::read(&stream_of(&path, &[])).threads == expected);
    let ran =
        run(&["from-bin", "-q", data("malformed/zstd_last_block_missing.bin").to_str().expect("UTF-8")], b"");
    assert!(matches!(ran.code, 1 | 3), "{}", ran.stderr);
    assert!(ran.stderr.contains("zstd"), "{}", ran.stderr);
}
