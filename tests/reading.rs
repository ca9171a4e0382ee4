//! How the lines of a stream are read: what is an integer, what is overlooked, and what is said of it.

mod common;

use common::{Ran, data, findings, run};

fn case(name: &str) -> Vec<u8> {
    std::fs::read(data(&format!("cases/{name}"))).expect("readable")
}

fn text_of(name: &str) -> String {
    String::from_utf8(case(name)).expect("UTF-8")
}

fn to_bin(stream: &[u8]) -> Ran {
    run(&["to-bin", "--compression", "none"], stream)
}

/// A file for the commands that take no pipe for it.
fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&file, bytes).expect("written");
    file
}

/// A line with each of its integers in another notation.
fn rewritten(line: &str, number: impl Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut digits = String::new();
    let (mut in_string, mut escaped) = (false, false);
    for char in line.chars() {
        if !in_string && (char.is_ascii_digit() || matches!(char, '-' | '.' | 'e' | 'E' | '+')) {
            // The e of true and false stands behind no digit.
            if char.is_ascii_digit() || char == '-' || !digits.is_empty() {
                digits.push(char);
                continue;
            }
        }
        if !digits.is_empty() {
            let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
            out.push_str(&if is_integer { number(&digits) } else { digits.clone() });
            digits.clear();
        }
        out.push(char);
        match char {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
    }
    out
}

#[test]
fn every_integer_of_every_message_may_be_written_as_a_float_without_a_fraction() {
    let examples = include_str!("../schema/examples.jsonl");
    let clocks = include_str!("../schema/vectors/clocks.jsonl");
    let windows = include_str!("../schema/vectors/small_windows.jsonl");
    for stream in [examples, clocks, windows] {
        let expected = to_bin(stream.as_bytes());
        for number in [
            |digits: &str| format!("{digits}.0"),
            |digits: &str| if digits == "0" { "0E7".to_string() } else { format!("{digits}0e-1") },
        ] {
            let floats: String = stream.split_inclusive('\n').map(|line| rewritten(line, number)).collect();
            assert_ne!(floats, stream);
            let ran = to_bin(floats.as_bytes());
            assert_eq!((ran.code, &ran.stderr), (expected.code, &expected.stderr));
            assert!(ran.stdout == expected.stdout);
            let (before, now) = (findings(stream.as_bytes()), findings(floats.as_bytes()));
            assert_eq!(now, before);
            let inspect = |stream: &str| run(&["inspect", "--json"], stream.as_bytes()).stdout;
            assert!(inspect(&floats) == inspect(stream));
        }
    }
    let cpython = text_of("cpython_v0.jsonl");
    let floats: String =
        cpython.split_inclusive('\n').map(|line| rewritten(line, |digits| format!("{digits}.0"))).collect();
    let upgrade = |text: &str| run(&["upgrade"], text.as_bytes());
    assert_eq!(upgrade(&floats).stdout, upgrade(&cpython).stdout);
    assert_eq!(upgrade(&floats).code, 0);
}

#[test]
fn a_stream_whose_filter_writes_floats_gives_the_same_profile() {
    let (floats, commas) = (to_bin(&case("rw_floats.jsonl")), to_bin(&case("rw_comma.jsonl")));
    assert_eq!((floats.code, floats.stderr.as_str(), commas.code), (0, "", 0));
    assert!(floats.stdout == commas.stdout && !floats.stdout.is_empty());
}

#[test]
fn a_number_with_a_fraction_is_no_integer() {
    let stream = text_of("rw_floats.jsonl").replacen("\"seq\": 2.0", "\"seq\": 2.5", 1);
    let ran = to_bin(stream.as_bytes());
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("2.5") && ran.stderr.contains("(line 3)"), "{}", ran.stderr);
}

#[test]
fn commas_and_record_separators_around_messages_are_overlooked_and_told_by_every_command() {
    let plain = text_of("rw_comma.jsonl").replace("},\n", "}\n");
    let array = format!("[\n{}]\n", text_of("rw_comma.jsonl"));
    let sequence = plain.replace("{\"type\"", "\u{1e}{\"type\"");
    let expected = to_bin(plain.as_bytes());
    assert_eq!((expected.code, expected.stderr.as_str()), (0, ""));
    let whole = file_of(plain.as_bytes());
    for (odd, said, fault) in [
        (array, "lines have a comma after their object", "a comma after the message"),
        (sequence, "lines begin with a record separator", "a record separator before the message"),
    ] {
        let ran = to_bin(odd.as_bytes());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stdout == expected.stdout);
        assert_eq!(ran.stderr.matches(said).count(), 1, "{}", ran.stderr);
        let file = file_of(odd.as_bytes());
        let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("UTF-8").to_string();
        for args in [vec!["inspect", &path(&file)], vec!["diff", &path(&whole), &path(&file)]] {
            let ran = run(&args, b"");
            assert_eq!((ran.code, ran.stderr.matches(said).count()), (0, 1), "{args:?}: {}", ran.stderr);
        }
        assert!(findings(odd.as_bytes()).iter().any(|finding| finding.contains(fault)));
    }
    let cpython = text_of("cpython_v0.jsonl").replace("}\n", "},\n");
    for command in ["upgrade", "from-bin"] {
        let ran = run(&[command], cpython.as_bytes());
        assert_eq!(ran.code, 0, "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("lines have a comma after their object"), "{}", ran.stderr);
    }
}

#[test]
fn what_is_wrong_with_a_line_is_said_in_words_about_lines() {
    let plain = text_of("rw_comma.jsonl").replace("},\n", "}\n");
    let pretty: String = common::messages(plain.as_bytes())
        .iter()
        .map(|message| serde_json::to_string_pretty(message).expect("JSON") + "\n")
        .collect();
    let cut = &plain[..plain.len() / 2];
    for (stream, said, hint) in [
        (plain.replace('\n', "\r"), "lines that end in a carriage return alone", "hint: tr"),
        (pretty, "an object over several lines", "hint: each message must be on one line"),
        (plain.replacen("}\n{", "}{", 1), "text after the object (column", ""),
        (cut.to_string(), "the line ends within it", ""),
        (plain.replacen("\"batch\":0", "\"batch\":x", 1), "expected value (column", ""),
    ] {
        let ran = to_bin(stream.as_bytes());
        assert!(matches!(ran.code, 1 | 3), "{said}: {}", ran.code);
        assert!(ran.stderr.contains(said) && ran.stderr.contains(hint), "{said}: {}", ran.stderr);
        for word in ["InternalError", "at character", "Eof", "ExpectedUnsigned"] {
            assert!(!ran.stderr.contains(word), "{}", ran.stderr);
        }
    }
    // A line may be of any length; what is said of it is not.
    let long =
        format!("{{\"type\":\"meta\",\"v\":2,\"run_id\":\"r\",\"seq\":\"{}\"}}\n", "x".repeat(100_000));
    let ran = to_bin(long.as_bytes());
    assert!(ran.code == 1 && ran.stderr.len() < 1000, "{} bytes", ran.stderr.len());
}

#[test]
fn strings_without_a_definition_are_told_by_every_command() {
    let stream = case("raw_without_str_def.jsonl");
    let ran = to_bin(&stream);
    assert_eq!(ran.code, 3);
    let said = "19 strings are not defined; their names are lost (line 3)";
    assert_eq!(ran.stderr.matches(said).count(), 1, "{}", ran.stderr);
    let strict = run(&["to-bin", "--strict"], &stream);
    assert_eq!((strict.code, strict.stdout.len()), (1, 0));
    let file = data("cases/raw_without_str_def.jsonl");
    let file = file.to_str().expect("UTF-8");
    for by in ["frame", "function"] {
        let ran = run(&["diff", file, file, "--by", by], b"");
        assert_eq!((ran.code, ran.stderr.matches(said).count()), (3, 2), "{}", ran.stderr);
    }
    let ran = run(&["inspect", file], b"");
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("19 strings not defined in the batch (line 2)"), "{}", ran.stderr);
    assert_eq!(findings(&stream), ["line 2: not defined in the batch: strings 0, 1, 2, 3 and 15 more"]);
}

#[test]
fn tables_of_frames_without_a_definition_are_told_by_every_command() {
    let profile = data("cpython/tiny_script_none.bin");
    let table = common::stream_of(&profile, &["--stream-types", "agg,-frame_def"]);
    let frames =
        common::messages(&table).iter().find_map(|message| Some(message["frame_id"].as_array()?.len()));
    let said = format!("{} frames", frames.expect("a table"));
    let file = file_of(&table);
    let path = file.path().to_str().expect("UTF-8");
    for args in [vec!["diff", path, profile.to_str().expect("UTF-8")], vec!["inspect", path]] {
        let ran = run(&args, b"");
        assert_eq!((ran.code, ran.stderr.matches(&said).count()), (3, 1), "{args:?}: {}", ran.stderr);
    }
    assert!(findings(&table)[0].contains("not defined in the batch: frames"));
}

#[test]
fn chunks_tell_once_of_what_is_not_defined() {
    let ran =
        run(&["to-bin", "--layout", "v2", "--flush", "samples:100"], &case("raw_without_str_def.jsonl"));
    assert_eq!((ran.code, ran.stderr.matches("not defined").count()), (3, 1), "{}", ran.stderr);
}

#[test]
fn a_profile_of_version_1_has_no_place_for_labels_and_a_date_and_that_is_said() {
    let profile = data("cpython/tiny_script_none.bin");
    let facts = ["--label", "host=web1", "--wall-start", "1790000000"];
    for (options, said) in [
        (&facts[..], "a version-1 profile cannot hold the labels and the date; --layout v2 keeps them"),
        (&facts[..2], "cannot hold the labels;"),
        (&facts[2..], "cannot hold the date;"),
    ] {
        let stream = common::stream_of(&profile, options);
        let ran = to_bin(&stream);
        assert_eq!((ran.code, ran.stderr.matches(said).count()), (0, 1), "{}", ran.stderr);
        let chunks = run(&["to-bin", "--layout", "v2"], &stream);
        assert_eq!((chunks.code, chunks.stderr.as_str()), (0, ""));
        let again = common::messages(&run(&["from-bin"], &chunks.stdout).stdout).remove(0);
        let meta = common::messages(&stream).remove(0);
        assert_eq!((&again["labels"], &again["wall_usec"]), (&meta["labels"], &meta["wall_usec"]));
    }
    assert_eq!(to_bin(&common::stream_of(&profile, &[])).stderr, "");
}

#[test]
fn check_tells_the_first_faults_and_counts_the_rest() {
    let ran = run(&["check"], format!("{{}}\n{}", "\n".repeat(3000)).as_bytes());
    assert_eq!((ran.code, ran.stdout.iter().filter(|byte| **byte == b'\n').count()), (1, 1000));
    assert!(ran.stderr.contains(" faults in 1 message, of which the first 1000 are shown"), "{}", ran.stderr);
}

#[test]
fn what_one_message_can_hold_has_limits_that_are_named() {
    let meta = |more: &str| {
        format!(
            "{{\"type\":\"meta\",\"v\":2,\"run_id\":\"r\",\"seq\":0,\"batch\":0,\"messages\":1,\"id_scope\":\"run\"{more}}}\n"
        )
    };
    let labels: Vec<String> = (0..5000).map(|number| format!("\"{number}\":\"\"")).collect();
    let numbers = |count: usize| vec!["0"; count].join(",");
    let raw = |nodes: usize| {
        let nodes = numbers(nodes);
        meta("")
            + &format!(
                "{{\"type\":\"raw\",\"v\":2,\"run_id\":\"r\",\"seq\":1,\"batch\":0,\"start_usec\":0,\"samples\":0,\"stack_frame_id\":[{nodes}],\"threads\":[]}}\n"
            )
    };
    for (stream, limit) in [
        (meta(&format!(",\"labels\":{{{}}}", labels.join(","))), "more than 4096 entries, the limit"),
        (meta(&format!(",\"stream_types\":[{}]", vec!["\"raw\""; 5000].join(","))), "more than 4096 entries"),
        (raw(2_200_000), "a raw message of 2200000 nodes, over the limit of 2097152"),
        (raw(9_000_000), "only one string by itself may have more than 16777216"),
    ] {
        for command in ["to-bin", "inspect", "check"] {
            let ran = run(&[command], stream.as_bytes());
            assert!(matches!(ran.code, 1 | 3), "{command}: {}", ran.code);
            let said = ran.stderr + &String::from_utf8_lossy(&ran.stdout);
            assert!(said.contains(limit), "{command}: {said}");
        }
    }
}

#[test]
fn a_string_may_be_longer_than_any_line() {
    let stream = text_of("rw_comma.jsonl").replace("},\n", "}\n");
    let long = format!("\"{}\"", "x".repeat(17 * 1024 * 1024));
    let line = format!(
        "{{\"type\":\"str_def\",\"v\":2,\"run_id\":\"V69PlUiPGtTD5vKD5HPfLQ\",\"seq\":1,\"batch\":0,\"str_id\":[99],\"value\":[{long}]}}\n"
    );
    let number = |line: &str| {
        line.split("\"seq\":").nth(1).and_then(|rest| rest.split(',').next()?.parse::<u64>().ok())
    };
    let mut lines: Vec<String> = stream.split_inclusive('\n').map(String::from).collect();
    for text in &mut lines[1..] {
        let seq = number(text).expect("a number");
        *text = text.replacen(&format!("\"seq\":{seq}"), &format!("\"seq\":{}", seq + 1), 1);
    }
    lines[0] = lines[0].replacen("\"messages\":6", "\"messages\":7", 1);
    lines.insert(1, line);
    let ran = to_bin(lines.concat().as_bytes());
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

#[test]
fn upgrade_names_versions_and_counts_types_that_it_does_not_know() {
    let ran = run(&["upgrade"], &case("upgrade_v7.jsonl"));
    assert_eq!(ran.code, 3);
    assert!(
        ran.stderr.contains("schema version 7 is unknown; 0, 1 and 2 are known (line 2)"),
        "{}",
        ran.stderr
    );
    assert!(!ran.stderr.contains("already"), "{}", ran.stderr);
    let unknown =
        "}\n{\"type\":\"a\",\"v\":0,\"run_id\":\"x\"}\n{\"type\":\"b\",\"v\":2,\"run_id\":\"x\",\"seq\":0}\n";
    let odd = text_of("cpython_v0.jsonl").replacen("}\n", unknown, 1);
    let said = "2 messages of unknown types were skipped";
    for command in ["upgrade", "from-bin"] {
        let odd = odd.replacen("\"run_id\":\"x\"}", &format!("\"run_id\":\"{}\"}}", "a".repeat(32)), 1);
        let ran = run(&[command], odd.as_bytes());
        assert_eq!((ran.code, ran.stderr.matches(said).count()), (0, 1), "{command}: {}", ran.stderr);
        let strict = run(&[command, "--strict"], odd.as_bytes());
        assert_eq!((strict.code, strict.stdout.len()), (1, 0), "{command}: {}", strict.stderr);
    }
    // A message of our own is another thing.
    let own = run(&["upgrade"], text_of("rw_comma.jsonl").as_bytes());
    assert!(
        own.code == 1 && own.stderr.contains("a stream of schema version 2 already (line 1)"),
        "{}",
        own.stderr
    );
}
