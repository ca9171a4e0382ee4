//! `to-bin --layout v2`: chunks that any reader of the proposal reads, and that lose nothing.

mod common;

use common::consumer::{self, Message};
use common::{answered_profiles, data, name, profile_of, profiles, rfc, run, stream_of};

const FLUSHES: [&str; 3] = ["samples:100", "interval:100ms", "interval:1s,samples:500"];

fn chunks_of(stream: &[u8], flush: &str, options: &[&str]) -> Vec<u8> {
    profile_of(stream, &[&["--layout", "v2", "--flush", flush], options].concat())
}

fn stream_of_bytes(bytes: &[u8], options: &[&str]) -> Vec<u8> {
    let ran = run(&[&["from-bin", "-q"], options].concat(), bytes);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout
}

#[test]
fn a_reader_of_the_proposal_finds_the_samples_of_the_stream() {
    for path in answered_profiles() {
        if ["zstd_bomb_50m_samples", "extra_twice"].contains(&name(&path).as_str()) {
            continue;
        }
        let stream = stream_of(&path, &[]);
        if String::from_utf8_lossy(&stream).contains("\"complete\":false") {
            continue;
        }
        let expected = consumer::read(&stream).threads;
        for (flush, packing) in FLUSHES.iter().zip(["zstd", "none", "zstd:1"]) {
            let (chunks, threads) = rfc::read(&chunks_of(&stream, flush, &["--compression", packing]));
            // The consumer doesn't list threads without a sample, this reader neither.
            assert!(threads == expected, "{} {flush}", path.display());
            assert!(chunks.iter().all(|chunk| chunk.tail.len() >= 120), "the extension is there");
            assert!(chunks.iter().all(|chunk| chunk.checksum != [0; 16]));
        }
    }
}

/// Rule for rule: behind the instant that reaches the number, before the interval is passed.
#[test]
fn chunks_close_where_batches_do() {
    let path = data("cpython/wall_all_100hz_none.bin");
    let stream = stream_of(&path, &[]);
    for flush in FLUSHES {
        let metas = |stream: &[u8]| -> Vec<(u64, u64, u64)> {
            let messages = consumer::read(stream).messages.into_iter();
            let metas = messages.filter_map(|message| match message {
                Message::Meta { start_usec, duration_usec, samples, .. } => {
                    Some((start_usec, duration_usec, samples))
                }
                _ => None,
            });
            metas.collect()
        };
        let batches = metas(&stream_of(&path, &["--flush", flush]));
        let chunks = metas(&stream_of_bytes(&chunks_of(&stream, flush, &[]), &[]));
        assert_eq!(batches, chunks, "{flush}");
    }
}

#[test]
fn through_chunks_and_back_a_recording_is_the_same_byte_for_byte() {
    let mut compared = 0;
    for path in profiles("cpython", &[""]) {
        let bytes = std::fs::read(&path).expect("readable");
        let is_plain = bytes.len() > 64 && bytes[..4] == *b"HCAT" && bytes[56..60] == [0; 4];
        // An id that stood for two threads.
        if !is_plain || name(&path) == "tid_reuse_1k_none" {
            continue;
        }
        let stream = stream_of(&path, &[]);
        for flush in FLUSHES {
            let chunks = chunks_of(&stream, flush, &[]);
            for options in [&[][..], &["--flush", "samples:150"], &["--flush", "interval:1h"]] {
                let again = profile_of(&stream_of_bytes(&chunks, options), &["--compression", "none"]);
                assert!(again == bytes, "{} {flush} {options:?}", path.display());
                compared += 1;
            }
        }
    }
    assert!(compared > 400, "{compared}");
}

/// What a chunk has no room for in the proposal stands in our extension.
#[test]
fn the_facts_of_the_run_survive() {
    let path = data("cpython/opcodes_main_2k_none.bin");
    let stream =
        stream_of(&path, &["--label", "host=wéb1", "--label", "empty=", "--wall-start", "1790000000.25"]);
    let stream =
        String::from_utf8(stream).expect("UTF-8").replace("\"run_id\":\"r\"", "\"run_id\":\"my-run_1\"");
    let chunks = chunks_of(stream.as_bytes(), "samples:200", &[]);
    let again = stream_of_bytes(&chunks, &["--flush", "samples:262144"]);
    let facts = |stream: &[u8]| {
        let messages = consumer::read(stream).messages.into_iter();
        let facts = messages.filter_map(|message| match message {
            Message::Meta { run_id, mode, capture, python, wall_usec, labels, start_usec, .. } => Some(
                format!("{run_id} {mode:?} {capture:?} {python:?} {wall_usec:?} {labels:?} {start_usec}"),
            ),
            Message::End { run_id, samples, stats, lost, .. } => {
                Some(format!("{run_id} {samples} {stats:?} {lost:?}"))
            }
            _ => None,
        });
        facts.collect::<Vec<_>>()
    };
    assert_eq!(facts(stream.as_bytes()), facts(&again));
    assert!(facts(&again)[0].contains("wéb1"));
}

#[test]
fn every_batch_of_a_run_bears_its_wall_clock() {
    let path = data("cpython/wall_all_100hz_none.bin");
    let stream = stream_of(&path, &["--wall-start", "1790000000"]);
    let again = stream_of_bytes(&chunks_of(&stream, "samples:300", &[]), &[]);
    let clocks = |message: Message| match message {
        Message::Meta { start_usec, wall_usec, .. } => Some((start_usec as i64, wall_usec.expect("known"))),
        _ => None,
    };
    let clocks: Vec<(i64, i64)> = consumer::read(&again).messages.into_iter().filter_map(clocks).collect();
    assert!(clocks.len() > 3);
    assert!(clocks.iter().all(|(clock, wall)| wall - clock == clocks[0].1 - clocks[0].0));
}

/// A bit that is wrong in a chunk of ours never goes by unseen.
#[test]
fn a_flipped_bit_is_found_by_the_checksum() {
    let stream = stream_of(&data("malformed/00_good_plain.bin"), &[]);
    let chunks = chunks_of(&stream, "samples:4", &["--compression", "none"]);
    for at in 0..chunks.len() {
        let mut bytes = chunks.clone();
        bytes[at] ^= 1 << (at % 8);
        let ran = run(&["from-bin", "-q"], &bytes);
        assert_eq!(ran.code, 3, "byte {at}: {}", ran.stderr);
    }
}

#[test]
fn a_chunk_that_is_missing_is_a_gap() {
    let stream = stream_of(&data("cpython/wall_all_100hz_none.bin"), &[]);
    let bytes = chunks_of(&stream, "samples:300", &[]);
    let (chunks, _) = rfc::read(&bytes);
    let second = chunks[0].size..chunks[0].size + chunks[1].size;
    let ran = run(&["from-bin"], &[&bytes[..second.start], &bytes[second.end..]].concat());
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("chunks are missing before chunk 2"), "{}", ran.stderr);
    let read = consumer::read(&ran.stdout);
    let gap = read.messages.iter().find_map(|message| match message {
        Message::Loss { reason, start_usec, duration_usec, .. } if reason == "gap" => {
            Some((start_usec.expect("known"), duration_usec.expect("known")))
        }
        _ => None,
    });
    let starts: Vec<(u64, u64)> = read
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::Meta { start_usec, duration_usec, .. } => {
                Some((*start_usec, start_usec + duration_usec))
            }
            _ => None,
        })
        .collect();
    assert_eq!(gap, Some((starts[0].1, starts[1].0 - starts[0].1)));
    assert!(matches!(read.messages.last(), Some(Message::End { complete: false, .. })));
}

#[test]
fn two_runs_in_chunks_are_told_apart_by_their_ids() {
    let one = chunks_of(&stream_of(&data("cpython/tiny_script_none.bin"), &[]), "samples:10", &[]);
    let two = stream_of(&data("cpython/wall_all_100hz_none.bin"), &[]);
    let two = String::from_utf8(two).expect("UTF-8").replace("\"run_id\":\"r\"", "\"run_id\":\"other\"");
    let two = chunks_of(two.as_bytes(), "samples:1000", &[]);
    let stream = stream_of_bytes(&[one.clone(), two, one].concat(), &[]);
    let ends = consumer::read(&stream).messages.into_iter().filter_map(|message| match message {
        Message::End { run_id, complete, .. } => Some((run_id, complete)),
        _ => None,
    });
    let expected = ["r", "other", "r-2"].map(|id| (id.to_string(), true));
    assert_eq!(ends.collect::<Vec<_>>(), expected);
}

#[test]
fn what_cannot_be_is_refused() {
    let stream = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let ran = run(&["to-bin", "--flush", "samples:10"], &stream);
    assert_eq!((ran.code, ran.stdout.len()), (2, 0), "{}", ran.stderr);
    let agg = stream_of(&data("cpython/tiny_script_none.bin"), &["--stream-types", "agg"]);
    let ran = run(&["to-bin", "--layout", "v2"], &agg);
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
    assert!(ran.stderr.contains("no raw messages"), "{}", ran.stderr);
}

/// A chunk that comes twice counts once; another one of its number belongs to another run.
#[test]
fn chunks_that_come_again_are_not_counted_again() {
    let stream = stream_of(&data("cpython/wall_all_100hz_none.bin"), &[]);
    let bytes = chunks_of(&stream, "samples:300", &[]);
    let (chunks, _) = rfc::read(&bytes);
    let first = &bytes[..chunks[0].size];
    let samples = |bytes: &[u8]| {
        let ran = run(&["from-bin"], bytes);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let ends = consumer::read(&ran.stdout).messages.into_iter().filter_map(|message| match message {
            Message::End { samples, complete, .. } => Some((samples, complete)),
            _ => None,
        });
        (ends.collect::<Vec<_>>(), ran.stderr)
    };
    for again in
        [[bytes.as_slice(), &bytes].concat(), [bytes.as_slice(), first].concat(), [first, &bytes].concat()]
    {
        let (ends, said) = samples(&again);
        assert_eq!(ends, [(1942, true)]);
        assert!(said.contains("chunk 0 is repeated and was skipped"), "{said}");
        assert_eq!(run(&["from-bin", "--strict"], &again).code, 1);
    }
    let other = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let (ends, _) = samples(&[bytes.as_slice(), &chunks_of(&other, "samples:300", &[])].concat());
    assert_eq!(ends, [(1942, true), (33, true)]);
}

/// Chunks that say nothing of their run belong together while they were recorded alike.
#[test]
fn chunks_of_the_proposal_do_not_run_into_another_run() {
    let stream = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let ours = chunks_of(&stream, "samples:10", &[]);
    let anonymous = std::fs::read(data("legacy/v2_3_chunks_none.bin")).expect("readable");
    let mut other = anonymous.clone();
    // Another interval in the second chunk.
    let second = u64::from_le_bytes(anonymous[56..64].try_into().expect("eight bytes")) as usize;
    other[second + 20] ^= 1;
    let runs = |bytes: &[u8]| {
        let ran = run(&["from-bin", "-q"], bytes);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(run(&["check"], &ran.stdout).code, 0);
        String::from_utf8_lossy(&ran.stdout).matches("\"type\":\"end\"").count()
    };
    assert_eq!(runs(&anonymous), 1);
    assert_eq!(runs(&[ours.as_slice(), &anonymous].concat()), 2);
    assert_eq!(runs(&[anonymous.as_slice(), &ours, &anonymous].concat()), 3);
    assert_eq!(runs(&other), 3);
}

/// The places between the chunks of a profile.
fn boundaries(chunks: &[u8]) -> Vec<usize> {
    let sizes = rfc::read(chunks).0.into_iter().map(|chunk| chunk.size);
    let ends = sizes.scan(0, |end, size| {
        *end += size;
        Some(*end)
    });
    ends.filter(|end| *end < chunks.len()).collect()
}

/// A writer that is killed, or has no room left, between two chunks leaves whole chunks only.
#[test]
fn a_run_without_its_last_chunk_is_not_complete_in_any_command() {
    let stream = stream_of(&data("cpython/wall_all_100hz_none.bin"), &[]);
    let bytes = chunks_of(&stream, "samples:500", &[]);
    assert_eq!(run(&["from-bin", "-q"], &bytes).code, 0);
    let whole = run(&["inspect", "--json"], &bytes);
    let report: serde_json::Value = serde_json::from_slice(&whole.stdout).expect("JSON");
    assert_eq!((whole.code, &report["runs"][0]["complete"]), (0, &serde_json::Value::Bool(true)));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("whole.bin");
    std::fs::write(&path, &bytes).expect("writable");
    for cut in boundaries(&bytes) {
        let torn = &bytes[..cut];
        let ran = run(&["from-bin", "-q"], torn);
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        assert!(ran.stderr.contains("the run goes on after its chunk"), "{}", ran.stderr);
        let read = consumer::read(&ran.stdout);
        let losses = read.messages.iter().filter_map(|message| match message {
            Message::Loss { reason, start_usec, .. } => Some((reason.as_str(), start_usec.is_some())),
            _ => None,
        });
        assert_eq!(losses.collect::<Vec<_>>(), [("truncated", true)]);
        assert!(matches!(read.messages.last(), Some(Message::End { complete: false, .. })));
        assert_eq!(run(&["check"], &ran.stdout).code, 0);
        assert_eq!(run(&["from-bin", "-q", "--schema", "cpython"], torn).code, 3);
        let strict = run(&["from-bin", "--strict"], torn);
        assert_eq!(strict.code, 1, "{}", strict.stderr);
        for options in [&[][..], &["--verify"]] {
            let ran = run(&[&["inspect", "--json"], options].concat(), torn);
            let report: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
            assert_eq!((ran.code, &report["runs"][0]["complete"]), (3, &serde_json::Value::Bool(false)));
        }
        let diffed = run(&["diff", "-", path.to_str().expect("UTF-8")], torn);
        assert_eq!(diffed.code, 3, "{}", diffed.stderr);
        let saved = run(&["recover"], torn);
        assert_eq!((saved.code, saved.stdout == torn), (3, true), "{}", saved.stderr);
        // Another run after it does not make it whole.
        let other = std::fs::read(data("legacy/v2_3_chunks_none.bin")).expect("readable");
        let joined = run(&["from-bin", "-q"], &[torn, &other].concat());
        let ends = consumer::read(&joined.stdout).messages.into_iter().filter_map(|message| match message {
            Message::End { complete, .. } => Some(complete),
            _ => None,
        });
        assert_eq!((joined.code, ends.collect::<Vec<_>>()), (3, vec![false, true]));
    }
}

#[test]
fn chunks_of_a_stream_that_is_not_complete_say_so() {
    let stream = stream_of(&data("cases/count_low.bin"), &[]);
    let ran = run(&["to-bin", "--layout", "v2", "--flush", "samples:2"], &stream);
    assert_eq!(ran.code, 3);
    let again = run(&["from-bin", "-q"], &ran.stdout);
    assert_eq!(again.code, 3, "{}", again.stderr);
    assert!(again.stderr.contains("says that the run is not complete"), "{}", again.stderr);
    assert!(String::from_utf8_lossy(&again.stdout).contains("\"complete\":false"));
}

/// Files of earlier versions of this program say nothing of the end of their runs.
#[test]
fn chunks_without_flags_are_read_as_before() {
    let bytes = std::fs::read(data("cases/chunks_without_flags.bin")).expect("readable");
    let ran = run(&["from-bin"], &bytes);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout == std::fs::read(data("cases/chunks_without_flags.jsonl")).expect("readable"));
    for cut in boundaries(&bytes) {
        assert_eq!(run(&["from-bin", "-q"], &bytes[..cut]).code, 0);
        assert_eq!(run(&["recover", "-q"], &bytes[..cut]).code, 0);
        let ran = run(&["inspect", "--json"], &bytes[..cut]);
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        assert!(ran.code == 0 && report["runs"][0].get("complete").is_none());
    }
}
