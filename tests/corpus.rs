//! Real profiles, held against what CPython 3.15.2 says that they hold.

mod common;

use std::collections::HashSet;

use common::consumer::{self, Message};
use common::{answer, answered_profiles, data, name, profile_of, profiles, replayed, run, stream_of};

/// Batches and lines of very different sizes.
const SHAPES: [&[&str]; 4] = [
    &[],
    &["--flush", "samples:100", "--max-line", "8k"],
    &["--flush", "interval:50ms"],
    &["--flush", "interval:1s,samples:3000", "--max-line", "1m"],
];

/// Joined files become runs of their own; here each profile is one.
const JOINED: [&str; 1] = ["extra_twice"];

#[test]
fn raw_messages_hold_the_samples_that_cpython_replays() {
    for path in answered_profiles() {
        if JOINED.contains(&name(&path).as_str()) || name(&path) == "zstd_bomb_50m_samples" {
            continue;
        }
        let expected = replayed(&answer(&path, "samples.jsonl").expect("an answer"));
        for shape in SHAPES {
            let read = consumer::read(&stream_of(&path, shape));
            assert!(read.threads == expected, "{} {shape:?}: the samples differ", path.display());
        }
    }
}

#[test]
fn the_final_table_is_cpythons() {
    for path in answered_profiles() {
        let Some(jsonl) = answer(&path, "expected.jsonl") else { continue };
        let (expected, total) = consumer::cpython_agg(&jsonl);
        let read = consumer::read(&stream_of(&path, &["--stream-types", "agg"]));
        let table = read.agg.get("final").cloned().unwrap_or_default();
        assert!(table == expected, "{}", path.display());
        assert_eq!(read.agg_totals.get("final").copied().unwrap_or_default().0, total, "{}", path.display());
    }
}

#[test]
fn windows_of_any_period_add_up_to_the_final_table() {
    for path in answered_profiles() {
        if JOINED.contains(&name(&path).as_str()) {
            continue;
        }
        let whole = consumer::read(&stream_of(&path, &["--stream-types", "agg"]));
        for types in ["agg:5s", "agg:100ms", "raw,agg:1s"] {
            let windows =
                consumer::read(&stream_of(&path, &["--stream-types", types, "--flush", "samples:1000"]));
            let pick = |read: &consumer::Read, scope: &str| {
                (read.agg.get(scope).cloned(), read.agg_totals.get(scope).copied())
            };
            assert!(pick(&windows, "window") == pick(&whole, "final"), "{} {types}", path.display());
        }
    }
}

#[test]
fn a_sample_is_counted_in_the_window_of_its_own_time() {
    let path = data("cpython/wall_all_100hz_none.bin");
    let raw = consumer::read(&stream_of(&path, &[]));
    let windows = consumer::read(&stream_of(&path, &["--stream-types", "agg:250ms"]));
    let run_start = windows.messages.iter().find_map(|message| match message {
        Message::Meta { run_start_usec, .. } => Some(*run_start_usec),
        _ => None,
    });
    let run_start = run_start.expect("a meta");
    let mut expected = std::collections::BTreeMap::new();
    for (time, ..) in raw.threads.values().flatten() {
        *expected.entry((time - run_start) / 250_000).or_insert(0) += 1;
    }
    let mut got = std::collections::BTreeMap::new();
    for message in &windows.messages {
        if let Message::Agg { start_usec, duration_usec, samples_total, samples_empty, .. } = message {
            assert_eq!(*duration_usec, 250_000);
            let index = (*start_usec as u64 - run_start) / 250_000;
            assert_eq!(*start_usec as u64, run_start + index * 250_000);
            got.insert(index, samples_total + samples_empty);
        }
    }
    assert_eq!(got, expected);
}

#[test]
fn the_same_profile_gives_the_same_bytes_from_a_file_and_from_a_pipe_in_any_locale() {
    for path in [data("cpython/unicode_1k_none.bin"), data("cpython/wall_all_20k_zstd.bin")] {
        let file = path.to_str().expect("UTF-8");
        let first = run(&["from-bin", file], b"");
        let piped = run(&["from-bin"], &std::fs::read(&path).expect("readable"));
        assert_eq!(first.code, 0, "{}", first.stderr);
        assert!(first.stdout == piped.stdout);
        let french = std::process::Command::new(common::PROGRAM)
            .args(["from-bin", file])
            .env("LC_ALL", "fr_FR")
            .output();
        assert!(first.stdout == french.expect("the program starts").stdout);
    }
}

#[test]
fn no_line_passes_the_limit_but_for_a_single_string() {
    for path in answered_profiles() {
        for (options, limit) in
            [(&[][..], 65_535), (&["--max-line", "30k"], 30 * 1024), (&["--max-line", "8192"], 8192)]
        {
            if JOINED.contains(&name(&path).as_str())
                || name(&path) == "zstd_bomb_50m_samples" && limit < 65_535
            {
                continue;
            }
            for line in stream_of(&path, options).split_inclusive(|byte| *byte == b'\n') {
                if line.len() > limit {
                    let Message::StrDef { str_id, .. } = consumer::parse(line) else {
                        panic!("{}: a line of {} bytes", path.display(), line.len());
                    };
                    assert_eq!(str_id.len(), 1, "{}", path.display());
                }
            }
        }
    }
}

#[test]
fn lines_are_filled_before_another_begins() {
    let stream = stream_of(&data("cpython/idle_10k_none.bin"), &["--stream-types", "raw"]);
    let raw: Vec<usize> = stream
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| line.starts_with(b"{\"type\":\"raw\""))
        .map(<[u8]>::len)
        .collect();
    let full = raw.iter().filter(|length| **length > 65_535 * 85 / 100).count();
    assert!(full * 10 > raw.len() * 9, "{raw:?}");
}

#[test]
fn every_batch_can_be_read_alone() {
    for path in [data("cpython/wall_all_100hz_none.bin"), data("cpython/opcodes_main_2k_none.bin")] {
        let whole = stream_of(&path, &["--flush", "samples:400", "--stream-types", "raw,agg:200ms,loss"]);
        let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        let metas: Vec<usize> =
            (0..lines.len()).filter(|at| lines[*at].starts_with(b"{\"type\":\"meta\"")).collect();
        assert!(metas.len() > 3);
        let mut samples: HashSet<usize> = HashSet::new();
        for at in metas {
            // The reader forgets all definitions at each meta, so any lack of one is a panic in it.
            let read = consumer::read(&lines[at..].concat());
            samples.insert(read.threads.values().map(Vec::len).sum());
        }
        assert!(samples.len() > 3);
    }
}

#[test]
fn batches_close_at_whichever_limit_comes_first() {
    let path = data("cpython/wall_all_100hz_none.bin");
    let metas = |flush: &str| -> Vec<(u64, u64)> {
        let read = consumer::read(&stream_of(&path, &["--flush", flush]));
        let metas = read.messages.iter().filter_map(|message| match message {
            Message::Meta { samples, duration_usec, .. } => Some((*samples, *duration_usec)),
            _ => None,
        });
        metas.collect()
    };
    let by_samples = metas("samples:600");
    assert!(
        by_samples.iter().rev().skip(1).all(|(samples, _)| (600..606).contains(samples)),
        "{by_samples:?}"
    );
    let by_time = metas("interval:500ms");
    assert!(by_time.iter().all(|(_, duration)| *duration < 500_000), "{by_time:?}");
    let both = metas("samples:600,interval:500ms");
    assert!(both.iter().all(|(samples, duration)| *samples < 606 && *duration < 500_000), "{both:?}");
    assert!(both.len() >= by_time.len().max(by_samples.len()));
}

#[test]
fn an_instant_stays_in_one_message_where_it_fits() {
    for (file, limit) in [
        ("cpython/manythreads_200_500hz_zstd.bin", "65535"),
        ("cpython/manythreads_200_500hz_zstd.bin", "16k"),
    ] {
        let stream = stream_of(
            &data(file),
            &["--stream-types", "raw", "--max-line", limit, "--flush", "samples:7777"],
        );
        let mut last = None;
        for line in stream
            .split_inclusive(|byte| *byte == b'\n')
            .filter(|line| line.starts_with(b"{\"type\":\"raw\""))
        {
            let read = consumer::read_raw_times(line);
            let first = read.iter().min().copied();
            assert!(last < first, "the instant at {last:?} is cut");
            last = read.iter().max().copied();
        }
    }
}

#[test]
fn the_same_profile_twice_is_two_runs() {
    let file = data("cpython/tiny_script_none.bin").display().to_string();
    let ran = run(&["from-bin", &file, &file], b"");
    let ids: HashSet<String> = String::from_utf8(ran.stdout)
        .expect("UTF-8")
        .lines()
        .map(|line| {
            line.split("\"run_id\":\"").nth(1).expect("an id").split('"').next().expect("an end").to_string()
        })
        .collect();
    assert_eq!((ran.code, ids.len()), (0, 2));
}

/// The only recording that comes back with its records in another order: an id stands for two
/// threads, one after the other.
const TWO_THREADS_ONE_ID: &str = "tid_reuse_1k_none";

#[test]
fn plain_recordings_come_back_byte_for_byte() {
    let mut compared = 0;
    for path in profiles("cpython", &[""]) {
        let bytes = std::fs::read(&path).expect("readable");
        let is_plain = bytes.len() > 64 && bytes[..4] == *b"HCAT" && bytes[56..60] == [0; 4];
        if !is_plain || name(&path) == TWO_THREADS_ONE_ID {
            continue;
        }
        for shape in SHAPES {
            let again = profile_of(&stream_of(&path, shape), &["--compression", "none"]);
            assert!(again == bytes, "{} {shape:?}", path.display());
            compared += 1;
        }
    }
    assert!(compared >= 55 * SHAPES.len(), "{compared}");
}

#[test]
fn packed_recordings_come_back_with_the_same_samples_and_facts() {
    for path in answered_profiles() {
        // What single chunks say that was measured cannot be stored in a profile in one piece.
        let skipped = ["zstd_bomb_50m_samples", "v2_stats_each_chunk"];
        if JOINED.contains(&name(&path).as_str()) || skipped.contains(&name(&path).as_str()) {
            continue;
        }
        let stream = stream_of(&path, &[]);
        if String::from_utf8_lossy(&stream).contains("\"complete\":false") {
            continue;
        }
        let again = profile_of(&stream, &["--compression", "zstd:3"]);
        let ran = run(&["from-bin", "--run-id", "r"], &again);
        assert_eq!(ran.code, 0, "{}: {}", path.display(), ran.stderr);
        let facts = |stream: &[u8]| {
            let read = consumer::read(stream);
            let facts = read.messages.into_iter().filter_map(|message| match message {
                Message::Meta { run_start_usec, sample_interval_usec, mode, capture, python, .. } => {
                    Some(format!("{run_start_usec} {sample_interval_usec} {mode:?} {capture:?} {python:?}"))
                }
                Message::End { complete, samples, samples_total, stats, lost, .. } => {
                    Some(format!("{complete} {samples} {samples_total} {stats:?} {lost:?}"))
                }
                _ => None,
            });
            let mut facts: Vec<String> = facts.collect();
            facts.dedup();
            (facts, read.threads)
        };
        assert!(facts(&stream) == facts(&ran.stdout), "{}", path.display());
    }
}

#[test]
fn fifty_million_samples_in_three_kilobytes_are_counted() {
    let stream = stream_of(&data("malformed/zstd_bomb_50m_samples.bin"), &["--stream-types", "agg"]);
    let read = consumer::read(&stream);
    assert_eq!(read.agg_totals["final"].0, 50_000_001);
}

/// The id of a run in CPython's answer is made up at random.
#[test]
fn cpythons_own_json_lines_are_written_byte_for_byte() {
    let mut compared = 0;
    for path in answered_profiles() {
        let Some(expected) = answer(&path, "expected.jsonl") else { continue };
        let meta: serde_json::Value =
            serde_json::from_str(expected.lines().next().expect("a line")).expect("JSON");
        let run_id = meta["run_id"].as_str().expect("an id");
        let file = path.to_str().expect("UTF-8");
        let ran = run(&["from-bin", "-q", file, "--schema", "cpython", "--run-id", run_id], b"");
        assert!(ran.stdout == expected.as_bytes(), "{}", path.display());
        compared += 1;
    }
    assert!(compared > 110, "{compared}");
    for option in [&["--flush", "samples:9"][..], &["--stream-types", "raw"], &["--label", "a=b"]] {
        let ran = run(&[&["from-bin", "--schema", "cpython"], option].concat(), b"");
        assert_eq!(ran.code, 2, "{}", ran.stderr);
    }
}
