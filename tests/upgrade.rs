//! CPython's own JSON Lines: read, checked, and made a stream of.

mod common;

use std::collections::BTreeMap;

use common::{answer, answered_profiles, consumer, data, messages, run};
use serde_json::{Value, json};

fn read(name: &str) -> String {
    std::fs::read_to_string(data(name)).expect("readable")
}

fn upgraded(jsonl: &str) -> Vec<Value> {
    let ran = run(&["upgrade"], jsonl.as_bytes());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let checked = run(&["check"], &ran.stdout);
    assert_eq!(checked.code, 0, "{}", String::from_utf8_lossy(&checked.stdout));
    messages(&ran.stdout)
}

/// The final table by content.
fn table(messages: &[Value]) -> BTreeMap<consumer::AggKey, (u64, u64)> {
    let column =
        |message: &Value, key: &str, row: usize| message.get(key).map_or(Value::Null, |c| c[row].clone());
    let mut strings = BTreeMap::new();
    let mut frames = BTreeMap::new();
    let mut table = BTreeMap::new();
    for message in messages {
        let rows = |key: &str| message[key].as_array().map_or(0, Vec::len);
        match message["type"].as_str().expect("a type") {
            "str_def" => {
                for row in 0..rows("str_id") {
                    strings.insert(message["str_id"][row].as_u64(), message["value"][row].as_str());
                }
            }
            "frame_def" => {
                for row in 0..rows("frame_id") {
                    let name = |key: &str| strings[&message[key][row].as_u64()].expect("a text").to_string();
                    let place = |key: &str| column(message, key, row).as_i64();
                    let line = place("line");
                    let rest = |key| if line.is_some() { place(key) } else { None };
                    let key = (
                        name("path_str_id"),
                        name("func_str_id"),
                        line.unwrap_or(0),
                        rest("end_line").filter(|line| *line > 0),
                        rest("col").filter(|col| *col >= 0),
                        rest("end_col").filter(|col| *col >= 0),
                    );
                    frames.insert(message["frame_id"][row].as_u64(), key);
                }
            }
            "agg" => {
                for row in 0..rows("frame_id") {
                    let count = |key: &str| message[key][row].as_u64().expect("a count");
                    let key = frames[&message["frame_id"][row].as_u64()].clone();
                    table.insert(key, (count("self"), count("cumulative")));
                }
            }
            _ => {}
        }
    }
    table
}

#[test]
fn every_answer_of_cpythons_becomes_the_table_of_its_profile() {
    for path in answered_profiles() {
        let Some(jsonl) = answer(&path, "expected.jsonl") else { continue };
        let messages = upgraded(&jsonl);
        let (expected, total) = consumer::cpython_agg(&jsonl);
        assert!(table(&messages) == expected, "{}", path.display());
        assert_eq!(messages.last().expect("an end")["samples_total"], total);
        let own = run(&["from-bin", "-q", "--schema", "cpython", path.to_str().expect("UTF-8")], b"");
        assert_eq!(run(&["check"], &own.stdout).code, 0, "{}", path.display());
    }
}

/// Names and numbering changed before the release; the content is the same.
/// <https://github.com/python/cpython/issues/146256>
#[test]
fn both_versions_say_the_same() {
    let (old, new) = (upgraded(&read("cases/cpython_v0.jsonl")), upgraded(&read("cases/cpython_v1.jsonl")));
    let expected = BTreeMap::from([(("a.py".to_string(), "f".to_string(), 3, None, None, None), (7, 7))]);
    assert_eq!(table(&old), expected);
    assert_eq!(table(&new), expected);
    // The first id of version 0 is 0, and no name is lost by it.
    assert_eq!(old[1]["str_id"], json!([0, 1]));
    assert_eq!(new[1]["str_id"], json!([1, 2]));
}

/// What is not there is not known, and stops nobody.
#[test]
fn a_missing_key_of_the_meta_stops_nothing() {
    let whole = read("cases/cpython_v0.jsonl");
    for key in [r#","mode":"wall""#, r#","sample_interval_usec":1000"#] {
        assert!(whole.contains(key));
        let less = whole.replace(key, "");
        let messages = upgraded(&less);
        assert_eq!(table(&messages).len(), 1);
        let name = key.split('"').nth(1).expect("a key");
        assert!(messages[0].get(name).is_none());
        assert_eq!(run(&["inspect"], less.as_bytes()).code, 0);
        assert_eq!(run(&["check"], less.as_bytes()).code, 0);
    }
}

/// Python's escapes for bytes that are no text come back as these bytes.
/// <https://github.com/python/cpython/issues/156810>
#[test]
fn lone_surrogates_are_taken_and_keep_their_bytes() {
    let jsonl = read("cases/surrogate.jsonl");
    let defs = &upgraded(&jsonl)[1];
    assert_eq!(defs["value"], json!(["f", "a\u{fffd}.py"]));
    // a\xff.py
    assert_eq!(defs["base64"], json!({"1": "Yf8ucHk="}));
    let other = &upgraded(&jsonl.replace("\\udcff", "\\udcfe"))[1];
    assert_ne!(defs["base64"], other["base64"]);
    assert_eq!(run(&["check"], jsonl.as_bytes()).code, 0);
    assert_eq!(run(&["inspect"], jsonl.as_bytes()).code, 0);
}

/// What CPython says to people stands between its messages.
/// <https://github.com/python/cpython/issues/145464>
#[test]
fn foreign_lines_are_passed_over_and_counted() {
    let ran = run(&["upgrade"], read("cases/progress_mixed.jsonl").as_bytes());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("1 lines that are not messages were skipped (line 4 first)"),
        "{}",
        ran.stderr
    );
    assert_eq!(table(&messages(&ran.stdout)).len(), 1);
    assert_eq!(run(&["upgrade", "--strict"], read("cases/progress_mixed.jsonl").as_bytes()).code, 1);
}

#[test]
fn runs_one_behind_the_other_stay_apart() {
    let messages = upgraded(&read("cases/two_runs.jsonl"));
    let ends: Vec<&Value> = messages.iter().filter(|message| message["type"] == "end").collect();
    assert_eq!(ends.len(), 2);
    assert_ne!(ends[0]["run_id"], ends[1]["run_id"]);
}

/// However often an id comes, and whoever has the name that it would get.
#[test]
fn each_run_has_a_run_id_of_its_own() {
    let long = "b".repeat(64);
    for ids in [["b", "b", "b"], ["b", "b", "b-2"], ["b-2", "b", "b"], [&long, &long, &long]] {
        let lines = ids.map(|id| read("cases/cpython_v0.jsonl").replace(&"a".repeat(32), id)).concat();
        let messages = upgraded(&lines);
        let named: std::collections::BTreeSet<_> =
            messages.iter().map(|message| message["run_id"].as_str().expect("a text")).collect();
        assert_eq!(named.len(), 3, "{named:?}");
        assert!(named.iter().all(|id| id.len() <= 64), "{named:?}");
    }
}

#[test]
fn what_is_unknown_is_left_out() {
    let messages = upgraded(&read("cases/cpython_v0.jsonl"));
    for key in ["start_usec", "duration_usec", "samples", "thread_count", "run_start_usec", "clock"] {
        assert!(messages.iter().all(|message| message.get(key).is_none()), "{key}");
    }
    let again = run(&["to-bin"], &run(&["upgrade"], read("cases/cpython_v0.jsonl").as_bytes()).stdout);
    assert_eq!((again.code, again.stdout.len()), (1, 0));
    assert!(again.stderr.contains("no raw messages"), "{}", again.stderr);
}

#[test]
fn a_torn_file_gives_what_there_is() {
    let whole = read("cases/cpython_v0.jsonl");
    for cut in 0..whole.len() - 1 {
        let ran = run(&["upgrade"], &whole.as_bytes()[..cut]);
        assert_eq!(ran.code, if ran.stdout.is_empty() { 1 } else { 3 }, "{cut}: {}", ran.stderr);
        if !ran.stdout.is_empty() {
            assert_eq!(run(&["check"], &ran.stdout).code, 0, "{cut}");
            assert_eq!(messages(&ran.stdout).last().expect("an end")["complete"], false);
        }
    }
}

#[test]
fn check_finds_what_is_wrong() {
    let whole = read("cases/cpython_v0.jsonl");
    let finds = |jsonl: &str, expected: &[&str]| {
        let ran = run(&["check"], jsonl.as_bytes());
        let found = String::from_utf8(ran.stdout).expect("UTF-8");
        assert_eq!(found.lines().collect::<Vec<_>>(), expected);
        assert_eq!(ran.code, i32::from(!expected.is_empty()));
    };
    finds(&whole, &[]);
    let lines: Vec<&str> = whole.lines().collect();
    let without = |line: usize| {
        let mut lines = lines.clone();
        lines.remove(line);
        lines.join("\n") + "\n"
    };
    finds(&without(0), &["line 1: a message before the meta of its run"]);
    finds(
        &without(1),
        &[
            "line 2: frame 0 names string 1, which is not defined",
            "line 2: frame 0 names string 0, which is not defined",
        ],
    );
    finds(&without(2), &["line 3: frame 0 is counted, but not defined"]);
    finds(&without(4), &["line 4: the run 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' has no end"]);
    let wrong = whole.replace("\"self\":7", "\"self\":6");
    finds(&wrong, &["line 5: self adds up to 6, but samples_total is 7"]);
    let twice = whole.replace("\"value\":\"a.py\"}", "\"value\":\"a.py\"},{\"str_id\":1,\"value\":\"b.py\"}");
    finds(&twice, &["line 2: string 1 is defined again with another value"]);
    finds(&format!("{whole}{}\n", lines[3]), &["line 6: a message after the end of its run"]);
}

/// What `from-bin` gets is named, or taken for what it is.
#[test]
fn from_bin_takes_cpythons_own_lines_as_well() {
    for file in [
        "cases/cpython_v0.jsonl",
        "cases/cpython_v1.jsonl",
        "cases/surrogate.jsonl",
        "cases/progress_mixed.jsonl",
    ] {
        let upgraded = run(&["upgrade", data(file).to_str().expect("UTF-8")], b"");
        let ran = run(&["from-bin", data(file).to_str().expect("UTF-8")], b"");
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stdout == upgraded.stdout, "{file}");
        assert!(ran.stderr.contains("counts and no samples"), "{}", ran.stderr);
    }
    let ran = run(&["from-bin"], read("cases/no_end.jsonl").as_bytes());
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let stream = common::stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let ran = run(&["from-bin"], &stream);
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
    assert!(ran.stderr.contains("JSON, not a profile"), "{}", ran.stderr);
}

#[test]
fn a_stream_of_ours_needs_no_upgrade() {
    let stream = common::stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let ran = run(&["upgrade"], &stream);
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
    assert!(ran.stderr.contains("schema version 2 already"), "{}", ran.stderr);
}

/// A stream says of itself that something of its source is missing or contradicts the rest.
#[test]
fn what_contradicts_itself_is_never_complete() {
    let whole = read("cases/cpython_v0.jsonl");
    let without_agg: String =
        whole.lines().filter(|line| !line.contains("\"agg\"")).map(|line| format!("{line}\n")).collect();
    for wrong in [
        whole.replace("\"self\":7", "\"self\":7.5"),
        whole.replace("\"self\":7", "\"self\":9"),
        whole.replace("\"cumulative\":7", "\"cumulative\":99"),
        whole.replace("\"kind\":\"frame\"", "\"kind\":\"line\""),
        whole.replace("\"scope\":\"final\"", "\"scope\":\"window\""),
        whole.replace("\"frame_id\":0,\"self\"", "\"frame_id\":5,\"self\""),
        whole.replace("\"path_str_id\":1", "\"path_str_id\":8"),
        without_agg,
    ] {
        assert_ne!(wrong, whole);
        let ran = run(&["upgrade"], wrong.as_bytes());
        assert_eq!(ran.code, 3, "{wrong}");
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(text.contains("\"complete\":false") && text.contains("\"type\":\"error\""), "{text}");
        assert_eq!(common::findings(&ran.stdout), [""; 0], "{wrong}");
        assert_eq!(run(&["upgrade", "--strict"], wrong.as_bytes()).code, 1);
        let sound = data("cases/cpython_v0.jsonl");
        let compared = run(&["diff", sound.to_str().expect("UTF-8"), "-"], wrong.as_bytes());
        assert_eq!(compared.code, 3, "{wrong}");
    }
}

/// In every command that reads them, once and without a loss.
#[test]
fn what_is_overlooked_in_cpythons_lines_is_told() {
    let text = read("cases/cpython_v0.jsonl");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let doubled = [&lines[..2], &[lines[1]], &lines[2..]].concat().concat().into_bytes();
    let mut not_utf8 = text.clone().into_bytes();
    let at = text.find("a.py").expect("a name");
    not_utf8[at] = 0xff;
    let said = [(doubled, "1 line repeats the line before it"), (not_utf8, "1 line is not UTF-8")];
    for (bytes, what) in said {
        for command in ["upgrade", "inspect", "from-bin"] {
            let ran = run(&[command], &bytes);
            assert_eq!(ran.code, 0, "{command}: {}", ran.stderr);
            assert_eq!(ran.stderr.matches(what).count(), 1, "{command}: {}", ran.stderr);
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &bytes).expect("writable");
        let ran = run(&["diff", file.path().to_str().expect("UTF-8"), "-"], text.as_bytes());
        assert_eq!(ran.stderr.matches(what).count(), 1, "{}", ran.stderr);
    }
}
