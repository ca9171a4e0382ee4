//! Messages as length-prefixed MessagePack, and the traces of LMCache.

mod common;

use common::{answered_profiles, data, messages, name, profile_of, run, stream_of};
use rmpv::Value;
use sha2::{Digest, Sha256};
use tachyon_jsonl::protocol::FromMsgpack;

/// The frames of a file, as maps.
fn frames(mut bytes: &[u8]) -> Vec<Value> {
    let mut frames = Vec::new();
    while let Some((length, rest)) = bytes.split_at_checked(4) {
        let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
        let (mut frame, rest) = rest.split_at(length);
        frames.push(rmpv::decode::read_value(&mut frame).expect("MessagePack"));
        assert!(frame.is_empty());
        bytes = rest;
    }
    frames
}

fn framed(values: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        let mut frame = Vec::new();
        rmpv::encode::write_value(&mut frame, value).expect("a Vec takes all");
        bytes.extend((frame.len() as u32).to_be_bytes());
        bytes.extend(frame);
    }
    bytes
}

fn map(entries: &[(&str, Value)]) -> Value {
    Value::Map(entries.iter().map(|(key, value)| (Value::from(*key), value.clone())).collect())
}

fn get<'a>(frame: &'a Value, key: &str) -> &'a Value {
    let entries = frame.as_map().expect("a map");
    &entries.iter().find(|(name, _)| name.as_str() == Some(key)).expect("the key").1
}

/// Back from frames, a stream is the same, and so is the profile.
#[test]
fn frames_hold_the_same_messages() {
    for path in answered_profiles() {
        if ["zstd_bomb_50m_samples", "extra_twice"].contains(&name(&path).as_str()) {
            continue;
        }
        let options = ["--max-line", "8k", "--flush", "samples:500"];
        let lines = stream_of(&path, &options);
        let bytes = stream_of(&path, &[&options[..], &["--format", "msgpack"]].concat());
        let frames = frames(&bytes);
        assert_eq!(frames.len(), lines.split(|byte| *byte == b'\n').count(), "a header, and a frame a line");
        // The same through every reader: here the one that makes a profile.
        if String::from_utf8_lossy(&lines).contains("\"complete\":false") {
            continue;
        }
        let packing = ["--compression", "none"];
        assert!(profile_of(&bytes, &packing) == profile_of(&lines, &packing), "{}", path.display());
        let checked = run(&["check"], &bytes);
        assert_eq!(checked.code, 0, "{}: {}", path.display(), String::from_utf8_lossy(&checked.stdout));
    }
}

#[test]
fn keys_and_values_are_those_of_the_lines() {
    let path = data("cpython/tiny_script_none.bin");
    let lines = stream_of(&path, &["--wall-start", "1790000000.5"]);
    let bytes = stream_of(&path, &["--wall-start", "1790000000.5", "--format", "msgpack"]);
    let frames = frames(&bytes);
    for (frame, line) in frames[1..].iter().zip(lines.split(|byte| *byte == b'\n')) {
        let text = serde_json::to_string(frame).expect("JSON");
        assert_eq!(text.as_bytes(), line);
    }
    let header = &frames[0];
    assert_eq!(get(header, "magic").as_str(), Some("TACH"));
    assert_eq!(get(header, "format_version").as_u64(), Some(1));
    assert_eq!(get(header, "schema_version").as_u64(), Some(2));
    assert_eq!(get(header, "t_wall_start").as_f64(), Some(1_790_000_000.5));
    let start = get(&frames[1], "run_start_usec").as_u64().expect("a number");
    assert_eq!(get(header, "t_mono_start").as_f64(), Some(start as f64 / 1e6));
    let facts = format!(
        r#"{{"run_start_usec":{start},"sample_interval_usec":100000,"mode":"wall","capture":{},"python":"3.15.2","clock":"monotonic"}}"#,
        serde_json::to_string(get(&frames[1], "capture")).expect("JSON")
    );
    let digest: String = Sha256::digest(facts).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(get(header, "config_digest").as_str(), Some(digest.as_str()));
}

/// A later version may add any key.
#[test]
fn a_message_with_a_key_of_the_header_is_a_message() {
    let bytes = stream_of(&data("cpython/tiny_script_none.bin"), &["--format", "msgpack"]);
    let expected = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let mut values = frames(&bytes);
    for value in &mut values[1..] {
        let Value::Map(entries) = value else { panic!("a map") };
        entries.push((Value::from("magic"), Value::from("xyz")));
    }
    let bytes = framed(&values);
    let mut lines = String::new();
    std::io::Read::read_to_string(&mut FromMsgpack::new(bytes.as_slice()), &mut lines).expect("lines");
    assert_eq!(lines.replace(",\"magic\":\"xyz\"", "").as_bytes(), expected);
}

#[test]
fn another_magic_version_or_digest_is_refused() {
    let bytes = stream_of(&data("cpython/tiny_script_none.bin"), &["--format", "msgpack"]);
    let whole = frames(&bytes);
    let with = |key: &str, value: Value| {
        let mut frames = whole.clone();
        if let Value::Map(entries) = &mut frames[0] {
            let entry = entries.iter_mut().find(|(name, _)| name.as_str() == Some(key)).expect("the key");
            entry.1 = value;
        }
        run(&["to-bin"], &framed(&frames))
    };
    for (key, value, said) in [
        ("format_version", Value::from(2), "format_version 2 is unknown; 1 is known"),
        ("schema_version", Value::from(9), "schema_version 9 is unknown; 2 is known"),
        ("config_digest", Value::from("00"), "config_digest"),
    ] {
        let ran = with(key, value);
        assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{key}");
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    let ran = with("magic", Value::from("HATC"));
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
    // Torn anywhere: what is whole is used.
    let ran = run(&["to-bin"], &bytes[..bytes.len() - 7]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("torn"), "{}", ran.stderr);
}

#[test]
fn a_follower_of_lines_reads_frames_as_well() {
    let path = data("cpython/wall_main_1k_none.bin");
    let folder = tempfile::tempdir().expect("a folder");
    let packed = folder.path().join("prof.mp");
    std::fs::write(&packed, stream_of(&path, &["--format", "msgpack"])).expect("writable");
    let file = packed.to_str().expect("UTF-8");
    let inspected = run(&["inspect", "--json", file], b"");
    assert_eq!(inspected.code, 0, "{}", inspected.stderr);
    let report: serde_json::Value = serde_json::from_slice(&inspected.stdout).expect("JSON");
    assert_eq!(report["packing"], "MessagePack");
    assert_eq!(report["runs"][0]["samples_raw"], 2930);
    let compared = run(&["diff", "--json", file, path.to_str().expect("UTF-8")], b"");
    assert_eq!(compared.code, 0, "{}", compared.stderr);
    assert!(!String::from_utf8_lossy(&compared.stdout).contains("\"self_change\":-"));
}

/// A byte of a frame can be five of a line, and was forty in a tree of values.
#[test]
fn a_frame_of_tiny_values_is_refused_and_costs_itself_alone() {
    let mut frames = trace(2);
    let tiny = Value::Array(vec![Value::Nil; 20_000_000]);
    frames.insert(2, map(&[("type", Value::from("record")), ("qualname", Value::from("f")), ("args", tiny)]));
    let ran = run(&["from-bin"], &framed(&frames));
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("a line of more than"), "{}", ran.stderr);
    assert_eq!(
        ran.stdout
            .split(|byte| *byte == b'\n')
            .filter(|line| line.starts_with(b"{\"type\":\"call\""))
            .count(),
        2
    );
}

/// A trace as LMCache writes it.
fn trace(records: usize) -> Vec<Value> {
    let mut frames = vec![map(&[
        ("type", Value::from("header")),
        ("magic", Value::from("LMCT")),
        ("format_version", Value::from(1)),
        ("level", Value::from("storage")),
        ("trace_schema_version", Value::from(3)),
        ("t_mono_start", Value::from(5123.25)),
        ("t_wall_start", Value::from(1_790_000_000.125)),
        ("sm_config_json", Value::from("{\"chunk_size\":256}")),
        ("sm_config_digest", Value::from("ab12")),
    ])];
    for number in 0..records {
        frames.push(map(&[
            ("type", Value::from("record")),
            ("t_mono", Value::from(5123.5 + number as f64)),
            ("t_wall", Value::from(1_790_000_000.375 + number as f64)),
            ("qualname", Value::from(if number % 2 == 0 { "Storage.put" } else { "Storage.get" })),
            (
                "args",
                map(&[
                    ("key", Value::Binary(vec![0, 255, 7])),
                    ("size", Value::from(u64::MAX)),
                    ("tags", Value::Array(vec![Value::Nil, Value::from(true), Value::from(-3)])),
                ]),
            ),
        ]));
    }
    frames
}

#[test]
fn a_trace_of_lmcache_becomes_lines_with_the_same_envelope() {
    let bytes = framed(&trace(5));
    let ran = run(&["from-bin"], &bytes);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines = messages(&ran.stdout);
    assert_eq!(lines.len(), 7);
    for (seq, line) in lines.iter().enumerate() {
        assert_eq!(line["seq"], seq);
        assert_eq!(line["v"], 2);
        assert_eq!(line["run_id"], lines[0]["run_id"]);
    }
    assert_eq!(lines[0]["type"], "trace");
    assert_eq!(lines[0]["sm_config_json"], "{\"chunk_size\":256}");
    let call = &lines[2];
    assert_eq!(call["type"], "call");
    assert_eq!(call["qualname"], "Storage.get");
    assert_eq!(call["ts_usec"], 5_124_500_000u64);
    assert_eq!(call["wall_usec"], 1_790_000_001_375_000u64);
    assert_eq!(call["args"]["key"], "AP8H");
    assert_eq!(call["args"]["size"], u64::MAX);
    assert_eq!(call["args"]["tags"], serde_json::json!([null, true, -3]));
    assert_eq!((&lines[6]["type"], &lines[6]["complete"]), (&"end".into(), &true.into()));
    assert_eq!(run(&["check"], &ran.stdout).code, 0);
}

#[test]
fn inspect_knows_a_trace_of_lmcache() {
    let ran = run(&["inspect", "--json"], &framed(&trace(5)));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(report["kind"], "LMCache trace");
    assert_eq!(report["calls"], 5);
    assert_eq!(report["calls_by_name"]["Storage.put"], 3);
    assert_eq!(report["header"]["trace_schema_version"], 3);
    assert_eq!(run(&["inspect"], &framed(&trace(0))).code, 0);
}

#[test]
fn a_record_with_a_key_twice_is_lost_and_reported() {
    let key = |name: &str| (Value::from(name), Value::from(1));
    let nested =
        Value::Map(vec![(Value::from("args"), Value::Array(vec![Value::Map(vec![key("a"), key("a")])]))]);
    // One that would be read in two ways, one that becomes so in JSON, and one within another value.
    for doubled in [Value::Map(vec![key("a"), key("a")]), Value::Map(vec![key("v"), key("record_v")]), nested]
    {
        let mut frames = trace(3);
        let Value::Map(more) = doubled else { unreachable!("maps") };
        let Value::Map(record) = &mut frames[2] else { unreachable!("a record") };
        record.retain(|(key, _)| key.as_str() != Some("args"));
        record.extend(more);
        let ran = run(&["from-bin"], &framed(&frames));
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        assert!(ran.stderr.contains("stands twice (at byte "), "{}", ran.stderr);
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert_eq!(text.matches("\"type\":\"call\"").count(), 2);
        assert!(text.contains("\"reason\":\"corrupt\",\"lost_bytes\":"), "{text}");
        assert_eq!(run(&["check"], &ran.stdout).code, 0);
    }
}

#[test]
fn a_torn_trace_is_told_and_an_unknown_version_refused() {
    let bytes = framed(&trace(4));
    let whole = framed(&trace(3)).len();
    for cut in [whole + 1, whole + 4, whole + 30, bytes.len() - 1] {
        let ran = run(&["from-bin"], &bytes[..cut]);
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert_eq!(text.matches("\"type\":\"call\"").count(), 3);
        assert!(text.contains(&format!("\"reason\":\"truncated\",\"lost_bytes\":{}", cut - whole)), "{text}");
        assert!(text.contains("\"complete\":false"));
        assert_eq!(run(&["inspect", "-q"], &bytes[..cut]).code, 3);
    }
    let mut frames = trace(1);
    if let Value::Map(entries) = &mut frames[0] {
        entries[2].1 = Value::from(7);
    }
    let ran = run(&["from-bin"], &framed(&frames));
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
    assert!(ran.stderr.contains("LMCache trace of format version 7, which is unknown"), "{}", ran.stderr);
}

/// No bytes make a panic, a hang or much memory.
#[test]
fn any_frames_are_survived() {
    let trace = framed(&trace(2));
    let stream = stream_of(&data("malformed/00_good_plain.bin"), &["--format", "msgpack"]);
    for whole in [&trace, &stream] {
        for at in 0..whole.len().min(700) {
            for change in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                let ran = run(&["inspect", "-q"], &bytes);
                assert!(matches!(ran.code, 0 | 1 | 3), "{at}: {}", ran.stderr);
            }
        }
    }
    // Arrays in arrays in arrays.
    let mut deep = vec![0x81, 0xa5];
    deep.extend(b"magic");
    deep.extend(vec![0x91; 100_000]);
    let mut bytes = (deep.len() as u32).to_be_bytes().to_vec();
    bytes.extend(deep);
    assert!(matches!(run(&["inspect", "-q"], &bytes).code, 1 | 3));
}

/// What a record holds is kept apart from what the line says, and what is no time is left out.
#[test]
fn records_of_a_trace_may_hold_anything() {
    let record = |entries: &[(&str, Value)]| map(&[&[("type", Value::from("record"))], entries].concat());
    let mut frames = trace(0);
    frames.push(record(&[
        ("t_mono", Value::from(f64::NAN)),
        ("t_wall", Value::from(1e300)),
        ("qualname", Value::from("f")),
        ("args", Value::Nil),
        ("seq", Value::from(55)),
        ("run_id", Value::from("zzz")),
    ]));
    frames.push(record(&[("t_mono", Value::from(1)), ("qualname", Value::from(7))]));
    frames.push(record(&[("t_mono", Value::from(2)), ("qualname", Value::from("g"))]));
    let ran = run(&["from-bin"], &framed(&frames));
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let lines = messages(&ran.stdout);
    let types: Vec<&str> = lines.iter().map(|line| line["type"].as_str().expect("a type")).collect();
    assert_eq!(types, ["trace", "call", "error", "loss", "call", "end"]);
    assert!(lines[1].get("ts_usec").is_none() && lines[1].get("wall_usec").is_none());
    assert_eq!((&lines[1]["seq"], &lines[1]["record_seq"]), (&1.into(), &55.into()));
    assert_eq!(lines[1]["record_run_id"], "zzz");
    assert_eq!(lines[3]["reason"], "corrupt");
    assert_eq!(lines[5]["complete"], false);
    assert_eq!(
        run(&["check"], &ran.stdout).code,
        0,
        "{}",
        String::from_utf8_lossy(&run(&["check"], &ran.stdout).stdout)
    );
}

/// A frame that cannot be read costs itself, as a line does.
#[test]
fn one_bad_frame_costs_one_message() {
    let path = data("cpython/wall_all_100hz_none.bin");
    let bytes = stream_of(&path, &["--format", "msgpack", "--flush", "samples:100"]);
    let mut at = 0;
    for _ in 0..20 {
        at += 4 + u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    }
    let mut damaged = bytes.clone();
    damaged[at + 4] = 0xc1;
    let ran = run(&["to-bin"], &damaged);
    assert_eq!(ran.code, 3);
    assert!(!ran.stderr.contains("no end message"), "{}", ran.stderr);
    let again = run(&["from-bin", "-q"], &ran.stdout);
    let text = String::from_utf8_lossy(&again.stdout).into_owned();
    let samples = text
        .lines()
        .last()
        .and_then(|end| serde_json::from_str::<serde_json::Value>(end).expect("JSON")["samples"].as_u64());
    assert!(samples.is_some_and(|samples| samples > 1700), "{samples:?}");
}
