//! What `to-bin` makes of streams: tolerant where nothing is lost, exact about the data.

mod common;

use common::{data, profile_of, run, stream_of};

const PLAIN: &[&str] = &["--compression", "none"];

fn recording() -> (Vec<u8>, Vec<u8>) {
    let path = data("cpython/wall_all_100hz_none.bin");
    let stream = stream_of(&path, &["--flush", "samples:300", "--max-line", "8k"]);
    (std::fs::read(path).expect("readable"), stream)
}

fn lines(stream: &[u8]) -> Vec<Vec<u8>> {
    stream.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn to_bin(stream: &[u8], options: &[&str]) -> common::Ran {
    run(&[&["to-bin"], PLAIN, options].concat(), stream)
}

/// The messages numbered anew from 0.
fn renumbered(text: &str) -> String {
    let line = |(seq, line): (usize, &str)| {
        let (head, tail) = line.split_once("\"seq\":").expect("a seq");
        format!("{head}\"seq\":{seq}{}\n", tail.trim_start_matches(|c: char| c.is_ascii_digit()))
    };
    text.lines().enumerate().map(line).collect()
}

#[test]
fn oddities_that_lose_nothing_are_overlooked_and_told() {
    let (bytes, stream) = recording();
    let text = String::from_utf8(stream).expect("UTF-8");
    let foreign = text.replacen('\n', "\nJSONL profile written to /dev/stdout\n", 1);
    let future = "\n{\"type\":\"future\",\"v\":2,\"run_id\":\"r\",\"seq\":1}\n";
    let oddities = [
        (format!("\u{feff}{text}"), "byte order mark"),
        (text.replace('\n', "\r\n"), "carriage return"),
        (text.replace('\n', "\n\n"), "blank"),
        (foreign, "not messages were skipped (line 2"),
        (renumbered(&text.replacen('\n', future, 1)), "unknown types"),
    ];
    for (odd, told) in oddities {
        let ran = to_bin(odd.as_bytes(), &[]);
        assert_eq!(ran.code, 0, "{told}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{told}: {}", ran.stderr);
        assert!(ran.stdout == bytes, "{told}");
        let strict = to_bin(odd.as_bytes(), &["--strict"]);
        assert_eq!((strict.code, strict.stdout.len()), (1, 0), "{told}: {}", strict.stderr);
    }
    let ran = to_bin(text.trim_end().as_bytes(), &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "the last line feed may be missing");
    assert!(ran.stdout == bytes);
}

#[test]
fn keys_in_another_order_and_blanks_are_read_by_the_general_parser() {
    let (bytes, stream) = recording();
    let mut odd = Vec::new();
    for line in lines(&stream) {
        let value: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&line).expect("JSON");
        // serde_json sorts the keys, so "batch" comes first.
        odd.extend(
            serde_json::to_vec(&value)
                .expect("JSON")
                .strip_prefix(b"{")
                .map(|rest| [b"{ ", rest].concat())
                .expect("an object"),
        );
        odd.push(b'\n');
    }
    assert!(odd.starts_with(b"{ \"batch\""));
    assert!(profile_of(&odd, PLAIN) == bytes);
}

#[test]
fn packed_streams_are_unpacked() {
    let (bytes, stream) = recording();
    assert!(profile_of(&zstd::encode_all(&stream[..], 3).expect("zstd"), PLAIN) == bytes);
    let mut gzip = std::process::Command::new("gzip")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("gzip");
    let mut input = gzip.stdin.take().expect("a pipe");
    let feeder =
        std::thread::spawn(move || std::io::Write::write_all(&mut input, &stream).expect("gzip reads"));
    let packed = gzip.wait_with_output().expect("gzip ends").stdout;
    feeder.join().expect("the feeder ends");
    assert!(profile_of(&packed, PLAIN) == bytes);
}

#[test]
fn a_stream_cut_anywhere_gives_what_was_whole() {
    let (_, stream) = recording();
    let mut last = 0;
    for cut in (0..stream.len()).step_by(stream.len() / 40) {
        let ran = to_bin(&stream[..cut], &[]);
        assert!(!ran.stderr.is_empty());
        if ran.code == 1 {
            assert!(ran.stdout.is_empty());
            assert_eq!(last, 0, "what could be read once can be read with more behind it");
            continue;
        }
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        let whole = run(&["from-bin", "--stream-types", "end"], &ran.stdout);
        assert_eq!(whole.code, 0, "{}", whole.stderr);
        let end: serde_json::Value =
            serde_json::from_slice(lines(&whole.stdout).last().expect("an end")).expect("JSON");
        let samples = end["samples"].as_u64().expect("a count");
        assert!(samples >= last);
        last = samples;
    }
    assert!(last > 1000);
}

#[test]
fn lost_messages_are_told_and_the_rest_is_kept() {
    let (_, stream) = recording();
    let all = lines(&stream);
    for (what, told) in [
        ("raw", "missing"),
        ("meta", "whose meta is missing"),
        ("frame_def", "1 frame is not defined"),
        ("end", "no end message"),
    ] {
        let prefix = format!("{{\"type\":\"{what}\"");
        let at = all.iter().rposition(|line| line.starts_with(prefix.as_bytes())).expect("there is one");
        let mut kept = all.clone();
        kept.remove(at);
        let ran = to_bin(&kept.concat(), &[]);
        assert_eq!(ran.code, 3, "{what}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{what}: {}", ran.stderr);
        let again = run(&["from-bin"], &ran.stdout);
        assert_eq!(again.code, 0, "{what}: {}", again.stderr);
    }
}

#[test]
fn a_reader_may_join_at_any_meta() {
    let (_, stream) = recording();
    let all = lines(&stream);
    let second = all
        .iter()
        .enumerate()
        .filter(|(_, line)| line.starts_with(b"{\"type\":\"meta\""))
        .nth(1)
        .expect("a second batch")
        .0;
    let ran = to_bin(&all[second..].concat(), &[]);
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("messages are missing before message"), "{}", ran.stderr);
    assert_eq!(run(&["from-bin"], &ran.stdout).code, 0);
}

#[test]
fn several_runs_want_a_choice() {
    let (first, stream) = recording();
    let path = data("cpython/tiny_script_none.bin");
    let second = std::fs::read(&path).expect("readable");
    let other = run(&["from-bin", path.to_str().expect("UTF-8"), "--run-id", "other"], b"").stdout;
    let joined = [stream.clone(), other.clone()].concat();
    let mut interleaved = Vec::new();
    let (mut a, mut b) = (lines(&stream).into_iter(), lines(&other).into_iter());
    loop {
        let (x, y) = (a.next(), b.next());
        if x.is_none() && y.is_none() {
            break;
        }
        interleaved.extend(x.into_iter().chain(y).flatten());
    }
    for mixed in [joined, interleaved] {
        let refused = to_bin(&mixed, &[]);
        assert_eq!((refused.code, refused.stdout.len()), (1, 0));
        assert!(
            refused.stderr.contains("'r' and 'other'") && refused.stderr.contains("--run-id"),
            "{}",
            refused.stderr
        );
        assert!(to_bin(&mixed, &["--run-id", "r"]).stdout == first);
        assert!(to_bin(&mixed, &["--run-id", "other"]).stdout == second);
        assert_eq!(to_bin(&mixed, &["--run-id", "neither"]).code, 1);
    }
}

#[test]
fn a_stream_without_raw_messages_is_refused_with_the_reason() {
    let path = data("cpython/wall_all_100hz_none.bin");
    let agg = stream_of(&path, &["--stream-types", "agg:1s"]);
    let ran = to_bin(&agg, &[]);
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
    assert!(ran.stderr.contains("no raw messages (its types are agg:1s)"), "{}", ran.stderr);

    for (case, version) in [("cpython_v0", 0), ("cpython_v1", 1)] {
        let ran = run(&["to-bin", data(&format!("cases/{case}.jsonl")).to_str().expect("UTF-8")], b"");
        assert_eq!((ran.code, ran.stdout.len()), (1, 0));
        assert!(ran.stderr.contains(&format!("(v {version}) holds counts and no samples")), "{}", ran.stderr);
    }
}

#[test]
fn an_unknown_version_is_refused_by_name() {
    let (_, stream) = recording();
    let text = String::from_utf8(stream).expect("UTF-8").replace("\"v\":2", "\"v\":3");
    let ran = to_bin(text.as_bytes(), &[]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("schema version 3 is unknown"), "{}", ran.stderr);
}

#[test]
fn a_duplicate_key_is_damage() {
    let (_, stream) = recording();
    let text = String::from_utf8(stream).expect("UTF-8").replacen(
        "\"start_usec\"",
        "\"samples\":1,\"start_usec\"",
        1,
    );
    let ran = to_bin(text.as_bytes(), &["--strict"]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr.contains("duplicate field `samples`") && ran.stderr.contains("(line 1)"),
        "{}",
        ran.stderr
    );
}

/// Also one of the envelope, in a line that is read without looking at all of it.
#[test]
fn a_key_of_the_envelope_stands_once() {
    let stream = stream_of(&data("malformed/00_good_plain.bin"), &[]);
    let stream = String::from_utf8(stream).expect("UTF-8");
    for key in ["\"type\":\"end\"", "\"v\":2", "\"run_id\":\"r\"", "\"seq\":7"] {
        for (number, line) in stream.lines().enumerate() {
            let end = line.len() - 1;
            let twice = stream.replacen(line, &format!("{},{key}}}", &line[..end]), 1);
            let ran = to_bin(twice.as_bytes(), &["--strict"]);
            assert_eq!(ran.code, 1, "{line}");
            assert!(ran.stderr.contains("duplicate field"), "{}", ran.stderr);
            assert!(ran.stderr.contains(&format!("(line {})", number + 1)), "{}", ran.stderr);
        }
    }
    let labelled =
        stream.replacen("\"clock\"", "\"labels\":{\"type\":\"seq\",\"v\":\"run_id\"},\"clock\"", 1);
    assert_eq!(to_bin(labelled.as_bytes(), &["--strict"]).code, 0);
}

/// Each batch defines what it uses, so that a lost definition costs the names of its own batch.
#[test]
fn a_name_that_comes_late_is_that_of_all_samples_behind_it() {
    let options = ["--flush", "samples:3"];
    let stream = stream_of(&data("malformed/00_good_plain.bin"), &options);
    let without_first: Vec<u8> =
        lines(&stream).into_iter().enumerate().filter(|(n, _)| *n != 1).flat_map(|(_, l)| l).collect();
    let ran = to_bin(&without_first, &[]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let nameless = |threads: std::collections::BTreeMap<_, Vec<common::Sample>>| -> usize {
        threads.values().flatten().filter(|(.., stack)| stack.contains("<undefined")).count()
    };
    let whole = common::consumer::read(&run(&["from-bin", "-q"], &ran.stdout).stdout).threads;
    let chunks = to_bin(&without_first, &["--layout", "v2", "--flush", "samples:3"]);
    let chunks = common::consumer::read(&run(&["from-bin", "-q"], &chunks.stdout).stdout).threads;
    assert_eq!(whole, chunks);
    let lost = nameless(whole);
    assert!((1..=4).contains(&lost), "{lost}");
}

/// <https://github.com/grafana/pyroscope/issues/3203>
#[test]
fn an_undefined_frame_keeps_its_sample_and_a_redefinition_is_told() {
    let stream = String::from_utf8(stream_of(&data("malformed/00_good_plain.bin"), &[])).expect("UTF-8");
    let undefined = stream.replacen("\"frame_id\":[0,", "\"frame_id\":[77,", 1);
    let ran = to_bin(undefined.as_bytes(), &[]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("1 frame is not defined; its name is lost (line 4)"), "{}", ran.stderr);
    let again = run(&["from-bin"], &ran.stdout);
    assert!(String::from_utf8_lossy(&again.stdout).contains("<undefined frame 0>"));

    let str_def = lines(stream.as_bytes()).remove(1);
    let changed = String::from_utf8(str_def).expect("UTF-8").replacen("main.py", "other.py", 1);
    let redefined =
        stream.replacen("{\"type\":\"frame_def\"", &format!("{changed}{{\"type\":\"frame_def\""), 1);
    let renumbered = renumbered(&redefined);
    let ran = to_bin(renumbered.as_bytes(), &[]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("string 0 is defined again with another value (line 3)"), "{}", ran.stderr);
}

#[test]
fn numbers_past_every_limit_are_told_and_not_rounded() {
    let stream = String::from_utf8(stream_of(&data("malformed/00_good_plain.bin"), &[])).expect("UTF-8");
    for (from, to) in [
        ("\"thread_id\":\"8\"", "\"thread_id\":\"18446744073709551616\""),
        ("\"interpreter_id\":0", "\"interpreter_id\":4294967296"),
        ("\"status\":[4,4]", "\"status\":[4,256]"),
        ("\"ts_delta_usec\":[0,1000]", "\"ts_delta_usec\":[0,18446744073709551615]"),
        ("\"ts_delta_usec\":[0,1000]", "\"ts_delta_usec\":[0,1.5]"),
        ("\"stack_parent\":[null,", "\"stack_parent\":[9,"),
        ("\"stack\":[0,0]", "\"stack\":[0,4000000000]"),
        ("\"stack\":[0,0]", "\"stack\":[0]"),
    ] {
        assert!(stream.contains(from), "{from}: {stream}");
        let ran = to_bin(stream.replacen(from, to, 1).as_bytes(), &[]);
        assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{to}: {}", ran.stderr);
        assert!(ran.stderr.contains("(line "), "{to}: {}", ran.stderr);
    }
}

#[test]
fn counts_at_the_end_of_their_range_are_no_panic() {
    let most = u64::MAX;
    let meta = format!(
        "{{\"type\":\"meta\",\"v\":2,\"run_id\":\"r\",\"seq\":SEQ,\"batch\":{most},\"messages\":{most},\"start_usec\":{most},\
         \"duration_usec\":{most},\"samples\":{most},\"thread_count\":{most},\"run_start_usec\":{most},\
         \"sample_interval_usec\":{most},\"id_scope\":\"run\",\"clock\":\"monotonic\"}}\n"
    );
    let loss = format!(
        "{{\"type\":\"loss\",\"v\":2,\"run_id\":\"r\",\"seq\":SEQ,\"reason\":\"gap\",\"lost_samples\":{most},\"lost_messages\":{most}}}\n"
    );
    let seqs = [0, 1, 2, 3, most, most];
    let lines = [&meta, &meta, &loss, &loss, &loss, &meta];
    let stream: String =
        lines.iter().zip(seqs).map(|(line, seq)| line.replace("SEQ", &seq.to_string())).collect();
    for command in ["to-bin", "inspect", "check"] {
        let ran = run(&[command], stream.as_bytes());
        assert!(matches!(ran.code, 1 | 3), "{command}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{command}: {}", ran.stderr);
    }
}

/// Any bytes give a profile or an error: every byte of a small stream set to others, in our own shape and
/// in one that the general parser reads.
#[test]
fn no_change_of_a_byte_makes_a_panic() {
    use std::io::Cursor;
    use tachyon_jsonl::convert::{ProfileOptions, ToBinary};
    use tachyon_jsonl::format::{Packing, Profile};

    let stream = stream_of(&data("malformed/00_good_plain.bin"), &["--stream-types", "raw,agg:2ms,loss"]);
    let general = String::from_utf8(stream.clone()).expect("UTF-8").replace(":", ": ").into_bytes();
    for sound in [stream, general] {
        for at in 0..sound.len() {
            for byte in [b'0', b'9', b'-', b'"', b'}', b']', b',', 0xff] {
                let mut bytes = sound.clone();
                bytes[at] = byte;
                let options = ProfileOptions::default().packing(Packing::None);
                let mut to_binary = ToBinary::new(Cursor::new(Vec::new()), options);
                let lines = (1..).zip(bytes.split_inclusive_mut(|byte| *byte == b'\n'));
                let fed =
                    lines.map(|(number, line)| to_binary.line(number, line)).collect::<Result<Vec<()>, _>>();
                if fed.is_err() {
                    continue;
                }
                if let Ok(outcome) = to_binary.finish() {
                    // What was written is a profile, whatever came in.
                    let profile = Profile::open(outcome.sink).expect("a sound profile");
                    assert!(profile.contents().faults.is_empty());
                }
            }
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let plain = data("cpython/idle_10k_none.bin");
    let expected = stream_of(&plain, &["--threads", "1"]);
    let packed = to_bin_packed(&expected, "1");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("packed.bin");
    std::fs::write(&path, &packed).expect("written");
    for threads in ["2", "3", "64"] {
        assert!(stream_of(&plain, &["--threads", threads]) == expected, "{threads} threads, plain");
        assert!(to_bin_packed(&expected, threads) == packed, "{threads} threads, packing");
        assert!(stream_of(&path, &["--threads", threads]) == expected, "{threads} threads, packed");
    }
    assert_eq!(run(&["from-bin", "--threads", "0"], b"").code, 2);
}

/// Weakly packed, so that there is enough of it for a thread of its own.
fn to_bin_packed(stream: &[u8], threads: &str) -> Vec<u8> {
    let ran = run(&["to-bin", "--compression", "zstd:1", "--threads", threads], stream);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.len() > 40_000, "{} bytes", ran.stdout.len());
    ran.stdout
}
