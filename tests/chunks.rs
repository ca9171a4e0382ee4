//! Profiles in chunks (format version 2), and framed ones: whole, torn, damaged.

mod common;

use std::collections::BTreeMap;

use common::consumer::{self, Message};
use common::{Ran, data, name, profiles, run};

fn from_bin(bytes: &[u8], options: &[&str]) -> Ran {
    let mut args = vec!["from-bin"];
    args.extend(options);
    run(&args, bytes)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(data(name)).expect("readable")
}

/// Place and size of each chunk, by the sizes in their headers.
fn chunks(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut chunks = Vec::new();
    let mut at = 0;
    while let Some(size) = bytes.get(at + 56..at + 64) {
        let size = u64::from_le_bytes(size.try_into().expect("eight bytes")) as usize;
        chunks.push((at, size));
        at += size;
    }
    chunks
}

fn metas(read: &consumer::Read) -> Vec<(u64, String)> {
    let metas = read.messages.iter().filter_map(|message| match message {
        Message::Meta { samples, id_scope, .. } => Some((*samples, id_scope.clone())),
        _ => None,
    });
    metas.collect()
}

fn lost(read: &consumer::Read) -> Vec<(String, Option<u64>, Option<u64>)> {
    let lost = read.messages.iter().filter_map(|message| match message {
        Message::Loss { reason, lost_bytes: lost_bytes @ Some(_), lost_samples, .. } => {
            Some((reason.clone(), *lost_bytes, *lost_samples))
        }
        _ => None,
    });
    lost.collect()
}

fn is_complete(read: &consumer::Read) -> bool {
    matches!(read.messages.last(), Some(Message::End { complete: true, .. }))
}

#[test]
fn a_chunk_is_a_batch_unless_flush_says_otherwise() {
    let bytes = read("legacy/v2_20_chunks_zstd.bin");
    let batches = |options: &[&str]| metas(&consumer::read(&from_bin(&bytes, options).stdout));
    assert_eq!(batches(&[]).len(), 20);
    assert!(batches(&[]).iter().all(|(_, scope)| scope == "batch"));
    assert_eq!(batches(&["--flush", "interval:1h"]).len(), 1);
    let of_300 = batches(&["--flush", "samples:300"]);
    assert!(of_300.iter().rev().skip(1).all(|(samples, _)| (300..306).contains(samples)), "{of_300:?}");
    // The chunks' ends, and within them every 40 samples.
    assert!(batches(&["--flush", "chunk,samples:40"]).len() > 40);
}

#[test]
fn a_file_and_a_pipe_give_the_same_stream() {
    for path in profiles("legacy", &["v2_"]) {
        let bytes = std::fs::read(&path).expect("readable");
        for options in [&["--stream-types", "raw,agg:100ms,loss"][..], &["--flush", "samples:100"]] {
            let mut args = vec!["from-bin", path.to_str().expect("UTF-8")];
            args.extend(options);
            let (file, pipe) = (run(&args, b""), from_bin(&bytes, options));
            assert_eq!(file.code, pipe.code, "{}", path.display());
            assert!(file.stdout == pipe.stdout, "{}", path.display());
        }
    }
}

/// A chunk that comes through a pipe is not kept back until more comes.
#[test]
fn a_pipe_gives_each_chunk_as_it_comes() {
    use std::io::{BufRead, BufReader, Write};
    let bytes = read("malformed/v2_good.bin");
    let mut child = std::process::Command::new(common::PROGRAM)
        .args(["from-bin", "--stream-types", "raw"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for (at, size) in chunks(&bytes) {
        input.write_all(&bytes[at..at + size]).expect("it reads");
        input.flush().expect("it reads");
        let mut types = (0..4).map(|_| lines.next().expect("a line").expect("UTF-8"));
        assert!(types.next().expect("a meta").starts_with("{\"type\":\"meta\""));
        assert!(types.last().expect("a raw").starts_with("{\"type\":\"raw\""));
    }
    drop(input);
    assert!(lines.next().expect("a line").expect("UTF-8").starts_with("{\"type\":\"end\""));
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn every_stream_of_chunks_is_well_formed() {
    for path in [profiles("legacy", &["v2_"]), profiles("malformed", &["v2_"])].concat() {
        for options in
            [&[][..], &["--flush", "interval:2s"], &["--stream-types", "agg:700ms,heartbeat:200ms"]]
        {
            let mut args = vec!["from-bin", "-q", path.to_str().expect("UTF-8")];
            args.extend(options);
            let stream = run(&args, b"");
            if stream.code != 1 {
                let checked = run(&["check"], &stream.stdout);
                let said = String::from_utf8_lossy(&checked.stdout);
                assert_eq!(checked.code, 0, "{} {options:?}: {said}", path.display());
            }
        }
    }
}

/// A frame's counts don't depend on how the run was cut into chunks.
#[test]
fn tables_are_those_of_the_profile_in_one_piece() {
    let tables = |file: &str, types: &str| {
        let path = data(file);
        let ran = run(&["from-bin", path.to_str().expect("UTF-8"), "--stream-types", types], b"");
        let read = consumer::read(&ran.stdout);
        (read.agg, read.agg_totals)
    };
    for types in ["agg", "agg:300ms", "agg:10s"] {
        let whole = tables("legacy/v1_wall_all_none.bin", types);
        for file in ["v2_3_chunks_none", "v2_20_chunks_zstd", "v2_bigendian_3_none", "v2_own_start_times"] {
            assert!(tables(&format!("legacy/{file}.bin"), types) == whole, "{file} {types}");
        }
    }
}

/// What is torn off, by the bytes that are left of the last chunk.
#[test]
fn a_torn_end_is_told_with_its_bytes_and_what_is_before_it_is_delivered() {
    let bytes = read("legacy/v2_3_chunks_none.bin");
    let chunks = chunks(&bytes);
    let samples = [640, 1288, 1942];
    for (whole, (at, size)) in chunks.iter().enumerate().skip(1) {
        for rest in [1, 17, 63, 64, 65, 200, size / 2, size - 32, size - 1] {
            let ran = from_bin(&bytes[..at + rest], &[]);
            assert_eq!(ran.code, 3, "{}", ran.stderr);
            let read = consumer::read(&ran.stdout);
            assert_eq!(metas(&read).iter().map(|(samples, _)| samples).sum::<u64>(), samples[whole - 1]);
            assert_eq!(lost(&read), [("truncated".to_string(), Some(rest as u64), None)]);
            assert!(!is_complete(&read));
            assert!(ran.stderr.contains(&format!("bytes {at} to {} are", at + rest - 1)), "{}", ran.stderr);
        }
    }
}

/// What each damaged file of three chunks gives: samples, lost bytes, lost samples.
#[test]
fn a_damaged_chunk_is_passed_over_and_the_next_is_found() {
    let sound = (24, vec![]);
    let second = |samples| (16, vec![("corrupt".to_string(), Some(302), samples)]);
    let expected: BTreeMap<&str, _> = [
        ("v2_good", sound.clone()),
        ("v2_chunks_reversed", sound.clone()),
        ("v2_second_bigendian", sound),
        ("v2_bad_record_in_second", second(Some(8))),
        ("v2_bad_zstd_in_second", second(Some(8))),
        ("v2_sample_count_in_third", second(Some(99))),
        ("v2_zero_gap", (24, vec![("corrupt".to_string(), Some(64), None)])),
    ]
    .into();
    for path in profiles("malformed", &["v2_"]) {
        let bytes = std::fs::read(&path).expect("readable");
        let ran = from_bin(&bytes, &[]);
        let read = consumer::read(&ran.stdout);
        let samples: u64 = metas(&read).iter().map(|(samples, _)| samples).sum();
        let (expected, losses) = expected.get(name(&path).as_str()).cloned().unwrap_or_else(|| second(None));
        assert_eq!((samples, lost(&read)), (expected, losses.clone()), "{}", path.display());
        assert_eq!(is_complete(&read), losses.is_empty(), "{}", path.display());
        assert_eq!(ran.code, if losses.is_empty() { 0 } else { 3 }, "{}", path.display());
    }
}

#[test]
fn any_bytes_that_are_no_chunk_may_stand_between_two() {
    let bytes = read("malformed/v2_good.bin");
    let parts: Vec<&[u8]> = chunks(&bytes).iter().map(|(at, size)| &bytes[*at..at + size]).collect();
    let text = b"text that some program said\n".to_vec();
    for junk in [vec![0; 1], vec![0xff; 100_000], text, parts[0][..150].to_vec(), bytes[..8].repeat(20_000)] {
        let whole = [parts[0], &junk, parts[1], &junk, parts[2], &junk].concat();
        let ran = from_bin(&whole, &["--stream-types", "raw,loss"]);
        let read = consumer::read(&ran.stdout);
        assert_eq!(metas(&read).len(), 3);
        let bytes = Some(junk.len() as u64);
        let corrupt = ("corrupt".to_string(), bytes, None);
        assert_eq!(lost(&read), [corrupt.clone(), corrupt, ("truncated".to_string(), bytes, None)]);
    }
}

/// A writer that died in its first chunk, and one that went on behind it.
#[test]
fn what_is_before_the_first_whole_chunk_is_lost_and_told() {
    let bytes = read("malformed/v2_good.bin");
    let torn = read("legacy/v2_torn_first.bin");
    for start in [torn.as_slice(), b"HCAT\x03\0\0\0 another version", b"no chunk at all", &[0; 64]] {
        let ran = from_bin(&[start, &bytes].concat(), &["--stream-types", "raw,loss"]);
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        let read = consumer::read(&ran.stdout);
        assert_eq!(metas(&read).len(), 3);
        assert_eq!(lost(&read), [("corrupt".to_string(), Some(start.len() as u64), None)]);
        assert_eq!(run(&["check"], &ran.stdout).code, 0);
    }
}

#[test]
fn framed_profiles_are_batches_of_one_run() {
    let one = read("cpython/wall_all_100hz_none.bin");
    let two = read("cpython/unicode_1k_none.bin");
    let frame = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let framed = [frame(&one), frame(&two), frame(&one)].concat();
    let ran = from_bin(&framed, &["--stream-types", "raw"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let read = consumer::read(&ran.stdout);
    let batches = metas(&read);
    assert_eq!(batches.len(), 3);
    assert!(batches[0] == batches[2] && batches[0].1 == "batch");
    assert!(
        consumer::read(&from_bin(&one, &[]).stdout).threads.keys().all(|key| read.threads.contains_key(key))
    );

    // Torn, and damaged in the middle.
    let cut = from_bin(&framed[..framed.len() - 5], &["--stream-types", "raw,loss"]);
    let read = consumer::read(&cut.stdout);
    assert_eq!((cut.code, metas(&read).len()), (3, 2));
    assert_eq!(lost(&read), [("truncated".to_string(), Some(one.len() as u64 - 1), None)]);
    let mut damaged = framed.clone();
    damaged[frame(&one).len() + 4 + 64 + 12] = 9;
    let ran = from_bin(&damaged, &["--stream-types", "raw,loss"]);
    let read = consumer::read(&ran.stdout);
    assert_eq!((ran.code, metas(&read).len()), (3, 2));
    assert_eq!(lost(&read)[0].1, Some(two.len() as u64 + 4));
    // A length that is damaged is not believed.
    let mut damaged = framed.clone();
    damaged[frame(&one).len() + 1] ^= 0x10;
    let ran = from_bin(&damaged, &["--stream-types", "raw,loss"]);
    assert_eq!((ran.code, metas(&consumer::read(&ran.stdout)).len()), (3, 2), "{}", ran.stderr);
}

#[test]
fn joined_files_are_runs_of_their_own() {
    let files =
        ["cpython/wall_all_100hz_none.bin", "cpython/tiny_script_none.bin", "cpython/unicode_1k_none.bin"];
    let joined = files.map(read).concat();
    let ran = from_bin(&joined, &[]);
    assert_eq!(ran.code, 0);
    let alone: Vec<Vec<u8>> = files.iter().map(|file| from_bin(&read(file), &[]).stdout).collect();
    assert!(ran.stdout == alone.concat());
}

/// Whatever the bytes are, reading ends, with a stream that says what it lacks.
#[test]
fn no_change_of_a_byte_makes_a_panic_or_a_silent_half() {
    use std::io::Cursor;
    use tachyon_jsonl::convert::{RunStream, StreamOptions};
    use tachyon_jsonl::format::{Part, Sequence};

    let sound = read("malformed/v2_good.bin");
    for at in 0..sound.len() {
        for change in [0x01, 0x02, 0x10, 0x80, 0xff] {
            let mut bytes = sound.clone();
            bytes[at] ^= change;
            let mut source = Cursor::new(bytes);
            let mut sequence = Sequence::of_chunks();
            let mut run = RunStream::new(sequence.framing(), StreamOptions::new("r").expect("an id"));
            let mut stream = Vec::new();
            let (mut samples, mut lost) = (0, 0);
            while let Some(part) = sequence.next(&mut source).expect("memory has no errors") {
                match part {
                    Part::Profile(mut profile) => {
                        samples += profile.contents().scan.samples;
                        run.profile(&mut profile, &mut stream).expect("memory has no errors");
                    }
                    Part::Lost(part) => {
                        lost += part.bytes;
                        run.lost(&part, &mut stream).expect("memory has no errors");
                    }
                }
            }
            let written = run.finish(&mut stream).expect("memory has no errors");
            assert_eq!((written.samples, written.complete), (samples, lost == 0));
            assert!(
                samples >= 16 && (samples == 24 || lost >= 302),
                "byte {at}: {samples} samples, {lost} lost"
            );
        }
    }
}

fn inspected(bytes: &[u8], options: &[&str]) -> (serde_json::Value, i32) {
    let ran = run(&[&["inspect", "--json"], options].concat(), bytes);
    (serde_json::from_slice(&ran.stdout).unwrap_or_default(), ran.code)
}

#[test]
fn inspect_lists_the_chunks() {
    for path in profiles("legacy", &["v2_"]) {
        let name = name(&path);
        let info = common::answer(&path, "info.json").expect("an answer");
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        let bytes = std::fs::read(&path).expect("readable");
        for options in [&[][..], &["--verify"]] {
            let (report, code) = inspected(&bytes, options);
            if name == common::TORN_FIRST {
                assert_eq!(code, 1);
                continue;
            }
            let torn = &info["bytes_after_last_complete_chunk"];
            assert_eq!(code, if torn == 0 { 0 } else { 3 }, "{name}");
            let chunks = report["chunks"].as_array().expect("an array");
            let expected = info["chunks"].as_array().expect("an array");
            assert_eq!(chunks.len(), expected.len(), "{name}");
            let mut at = 0;
            for (chunk, expected) in chunks.iter().zip(expected) {
                assert_eq!(chunk["offset_bytes"], at, "{name}");
                assert_eq!(chunk["size_bytes"], expected["size"], "{name}");
                assert_eq!(chunk["samples"], expected["samples"], "{name}");
                assert_eq!(chunk["thread_count"], expected["threads"], "{name}");
                assert_eq!(chunk["checksum"], "none");
                at += chunk["size_bytes"].as_u64().expect("a number");
            }
            assert_eq!(report["samples"], info["samples"], "{name}");
        }
    }
}

#[test]
fn inspect_verify_opens_every_chunk() {
    let stream = common::stream_of(&data("cpython/wall_all_100hz_none.bin"), &[]);
    let mut bytes = common::profile_of(&stream, &["--layout", "v2", "--flush", "samples:500"]);
    let states = |report: &serde_json::Value| -> Vec<String> {
        let chunks = report["chunks"].as_array().expect("an array").iter();
        chunks.map(|chunk| chunk["checksum"].as_str().expect("a text").to_string()).collect()
    };
    let (quick, code) = inspected(&bytes, &[]);
    assert_eq!((states(&quick), code), (vec!["not checked".to_string(); 4], 0));
    let (full, code) = inspected(&bytes, &["--verify"]);
    assert_eq!((states(&full), code), (vec!["sound".to_string(); 4], 0));
    for key in ["first_usec", "last_usec", "samples"] {
        assert_eq!(quick["chunks"][2][key], full["chunks"][2][key]);
    }
    assert_eq!(quick["chunks"][3]["index"], 3);
    bytes[300] ^= 4;
    let (full, code) = inspected(&bytes, &["--verify"]);
    assert_eq!((states(&full).len(), code), (3, 3));
    assert!(full["lost"][0]["fault"]["detail"].as_str().expect("a text").contains("checksum"));
}

/// What the program writes of parts is well-formed, whatever their clocks say.
#[test]
fn framed_profiles_in_any_order_are_well_formed() {
    let frame = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let later = read("cpython/wall_all_100hz_none.bin");
    let earlier = read("cpython/edge_empty_stacks.bin");
    let ran = from_bin(&[frame(&later), frame(&earlier), frame(&later)].concat(), &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let checked = run(&["check"], &ran.stdout);
    assert_eq!(checked.code, 0, "{}", String::from_utf8_lossy(&checked.stdout));
    assert!(ran.stderr.contains("settings that differ from the run's first part"), "{}", ran.stderr);
    // Percentages of parts are not added up.
    let measured = frame(&read("cpython/stats_full.bin"));
    let ran = from_bin(&measured.repeat(30), &["--stream-types", "raw,loss"]);
    assert!(String::from_utf8_lossy(&ran.stdout).contains("\"sampler_failed\":{\"lost_percent\":3.5}"));
    assert_eq!(run(&["check"], &ran.stdout).code, 0);
}

/// What is added to monotonic times for Unix times, batch by batch; batches without samples left out.
fn clock_offsets(stream: &[u8]) -> Vec<i64> {
    let metas = common::messages(stream).into_iter().filter(|message| message["type"] == "meta");
    let of = |meta: &serde_json::Value, key| meta[key].as_i64().expect("an integer");
    let with_samples = metas.filter(|meta| meta["samples"] != 0);
    let mut offsets: Vec<i64> =
        with_samples.map(|meta| of(&meta, "wall_usec") - of(&meta, "start_usec")).collect();
    offsets.dedup();
    offsets
}

/// A wall clock that was set while CPython recorded: a date that holds for one part is wrong for another
/// (<https://github.com/open-telemetry/opentelemetry-js/issues/852>).
#[test]
fn where_the_wall_clock_was_set_another_batch_and_another_chunk_begin() {
    let bytes = read("cases/step.bin");
    let dates = [1_796_068_855_860_277, 1_796_072_455_860_277];
    for options in [&[][..], &["--flush", "interval:200ms"], &["--flush", "samples:1000000"]] {
        let stream = from_bin(&bytes, options);
        let said = "the wall clock was set forward by 3600.000 s before chunk 1";
        assert!(stream.code == 0 && stream.stderr.contains(said), "{}", stream.stderr);
        assert_eq!(clock_offsets(&stream.stdout), dates);
        assert_eq!(common::findings(&stream.stdout), [""; 0]);
        let chunks = run(&["to-bin", "--layout", "v2"], &stream.stdout);
        assert_eq!(chunks.code, 0, "{}", chunks.stderr);
        let again = from_bin(&chunks.stdout, &["--flush", "samples:1000000"]);
        assert_eq!(clock_offsets(&again.stdout), dates);
    }
    // A date that is given is the one for all.
    let given = from_bin(&bytes, &["--wall-start", "2026-12-01T00:00:00Z"]);
    assert_eq!((given.stderr.as_str(), clock_offsets(&given.stdout).len()), ("", 1));
}
