//! `check` says each fault once, with its line and column, and is not led astray by another.

mod common;

use common::{data, findings, stream_of};
use serde_json::{Value, json};
use tachyon_jsonl::protocol::Checker;

/// Three batches of meta, strings, frames and samples; the last one has a table and two losses, too.
fn stream() -> Vec<String> {
    let stream = stream_of(&data("malformed/00_good_plain.bin"), &["--flush", "samples:3"]);
    let text = String::from_utf8(stream).expect("UTF-8");
    let lines: Vec<String> = text.split_inclusive('\n').map(str::to_string).collect();
    assert_eq!(lines.len(), 16);
    lines
}

/// The line of this number with `from` replaced by `to`.
fn edit(lines: &mut [String], number: usize, from: &str, to: &str) {
    let line = &mut lines[number - 1];
    assert_eq!(line.matches(from).count(), 1, "{from} in {line}");
    *line = line.replace(from, to);
}

#[track_caller]
fn finds(lines: &[String], expected: &[&str]) {
    assert_eq!(findings(lines.concat().as_bytes()), expected);
}

fn message(line: &str) -> Value {
    serde_json::from_str(line).expect("JSON")
}

#[test]
fn the_stream_is_sound() {
    finds(&stream(), &[]);
}

#[test]
fn where_the_json_ends_being_json_is_told_by_its_column() {
    let mut lines = stream();
    let column = lines[3].find("\"samples\":4").expect("a key") + "\"samples\":".len() + 1;
    edit(&mut lines, 4, "\"samples\":4", "\"samples\":?");
    finds(&lines, &[&format!("line 4: no JSON: a missing value (column {column})")]);
}

#[test]
fn a_torn_word_breaks_off_and_a_wrong_one_is_wrong_as_well() {
    let no_end = "line 15: the run 'r' has no end";
    for (end, wrong) in [("tr", false), ("trx", true), ("", false), (",", true)] {
        let mut lines = stream();
        let last = lines.last_mut().expect("an end");
        let at = last.find("\"complete\":").expect("a key") + "\"complete\":".len();
        last.truncate(at);
        last.push_str(end);
        let mut expected = vec!["line 16: the stream breaks off within this line".to_string()];
        if wrong {
            let what = format!("line 16: no JSON: a missing value (column {})", at + 1);
            expected.insert(0, what);
        }
        expected.push(no_end.to_string());
        assert_eq!(findings(lines.concat().as_bytes()), expected, "{end}");
    }
}

#[test]
fn only_a_single_string_may_be_longer_than_a_line() {
    const LINE_MAX: usize = 16 * 1024 * 1024;
    let said = |strings: &str, ids: &str, over: usize| {
        let mut lines = stream();
        lines.truncate(2);
        lines[1] = format!(
            "{{\"type\":\"str_def\",\"v\":2,\"run_id\":\"r\",\"seq\":1,\"batch\":0,\"str_id\":[{ids}],\"value\":[{strings}\"\"]}}\n"
        );
        let room = LINE_MAX + over - lines[1].len();
        let at = lines[1].len() - "\"]}\n".len();
        lines[1].insert_str(at, &"x".repeat(room));
        findings(lines.concat().as_bytes()).into_iter().find(|found| found.contains("a line of"))
    };
    assert_eq!(said("\"f\",", "0,1", 0), None);
    let told = format!("line 2: a line of {} bytes; the greatest line limit is {LINE_MAX}", LINE_MAX + 1);
    assert_eq!(said("\"f\",", "0,1", 1), Some(told));
    assert_eq!(said("", "0", 1), None);
}

/// It is known which message it was, so its number is not missing and nothing is held against those after it.
#[test]
fn a_broken_message_is_one_fault() {
    let breaks = [
        (5, "\"messages\":3", "\"messages\":-3"),
        (12, "\"samples\":2", "\"samples\":\"2\""),
        (16, "\"complete\":true", "\"complete\":1"),
    ];
    for (number, from, to) in breaks {
        let mut lines = stream();
        edit(&mut lines, number, from, to);
        let found = findings(lines.concat().as_bytes());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("line {number}: ")), "{found:?}");
    }
}

#[test]
fn a_line_that_is_not_read_explains_one_missing_message_and_no_more() {
    let mut lines = stream();
    lines[5] = "{no JSON}\n".to_string();
    lines.remove(9);
    let found = findings(lines.concat().as_bytes());
    let missing: Vec<&String> = found.iter().filter(|found| found.contains("missing before")).collect();
    assert_eq!(missing, ["line 10: message 9 is missing before this one"], "{found:?}");

    let lines = stream();
    let mut checker = Checker::default();
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(&lines) {
        if number == 6 {
            checker.unreadable(number, &mut findings);
        } else {
            checker.line(number, &mut line.trim_end().as_bytes().to_vec(), true, &mut findings);
        }
    }
    assert_eq!(checker.messages(), 16);
    checker.finish(&mut findings);
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!(finding.line, 6);
    assert!(finding.what.contains("which is not read"), "{}", finding.what);
}

#[test]
fn runs_without_an_end_are_told_by_their_last_lines() {
    let lines = stream();
    let run = |id: &str| -> Vec<String> {
        lines[..4]
            .iter()
            .map(|line| line.replace("\"run_id\":\"r\"", &format!("\"run_id\":\"{id}\"")))
            .collect()
    };
    let ids = ["d", "a", "e", "b", "c"];
    let all: Vec<String> = ids.iter().flat_map(|id| run(id)).collect();
    let expected: Vec<String> =
        (1..).zip(ids).map(|(nth, id)| format!("line {}: the run '{id}' has no end", nth * 4)).collect();
    assert_eq!(findings(all.concat().as_bytes()), expected);
}

/// The batch that is cut off lacks messages; one that is whole is held against its meta all the same.
#[test]
fn a_whole_batch_is_checked_where_the_stream_is_cut_off_behind_it() {
    let mut lines = stream();
    lines.truncate(8);
    edit(&mut lines, 5, "\"samples\":3", "\"samples\":4");
    let sums = "line 5: samples is 4, but the batch's raw messages give 3";
    let no_end = "line 8: the run 'r' has no end";
    finds(&lines, &[sums, no_end]);
    lines.truncate(7);
    finds(&lines, &["line 5: messages is 3, but 2 of the batch follow", "line 7: the run 'r' has no end"]);
}

#[test]
fn nodes_and_threads_without_a_sample_are_told() {
    let mut lines = stream();
    let mut raw = message(&lines[3]);
    raw["stack_frame_id"] = json!([0, 1, 0, 1]);
    raw["stack_parent"] = json!([null, 0, 1, 2]);
    lines[3] = format!("{raw}\n");
    let found = findings(lines.concat().as_bytes());
    assert!(
        found.iter().any(|found| found.ends_with("no sample and no other node needs node 3")),
        "{found:?}"
    );
    raw["stack_parent"] = json!([null, 0, 1, 1]);
    lines[3] = format!("{raw}\n");
    let found = findings(lines.concat().as_bytes());
    let more = "no sample and no other node needs node 2 and 1 more";
    assert!(found.iter().any(|found| found.ends_with(more)), "{found:?}");
}

#[test]
fn a_hole_that_a_loss_tells_of_in_part_is_told_for_the_rest() {
    let mut lines = stream();
    // Missing are 1, and 5 to 8; the loss stands between batches and tells of 7 and 8.
    let loss = json!({"type": "loss", "v": 2, "run_id": "r", "seq": 9, "reason": "backpressure",
        "first_seq": 7, "last_seq": 8, "lost_messages": 2});
    lines.splice(5..9, [format!("{loss}\n")]);
    lines.remove(1);
    let found = findings(lines.concat().as_bytes());
    let missing: Vec<&String> = found.iter().filter(|found| found.contains("missing before")).collect();
    let expected = [
        "line 2: message 1 is missing before this one",
        "line 5: messages 5 to 6 are missing before this one",
    ];
    assert_eq!(missing, expected, "{found:?}");
}

#[test]
fn the_final_table_spans_the_samples() {
    let mut lines = stream();
    edit(&mut lines, 13, "\"start_usec\":5001000", "\"start_usec\":5001001");
    finds(&lines, &["line 13: the final table has to start at 5001000 and last 6000 us"]);
}

/// They are of different wholes, so the largest stays.
#[test]
fn of_percentages_that_are_lost_the_end_has_the_largest() {
    let base = stream();
    let loss = |percent: f64| {
        let mut loss = message(&base[13]);
        loss["lost_percent"] = json!(percent);
        loss
    };
    for (parts, sum, is_sum) in [
        (&[0.25][..], 0.25, true),
        (&[0.25], 0.250_000_000_000_1, false),
        (&[0.1, 0.2], 0.2, true),
        (&[0.2, 0.1], 0.2, true),
        (&[0.1, 0.2], 0.300_000_000_000_000_04, false),
        (&[0.1, 0.2], 0.200_000_000_000_1, false),
    ] {
        let mut end = message(&base[15]);
        end["lost"]["sampler_missed"]["lost_percent"] = json!(sum);
        let mut meta = message(&base[8]);
        meta["messages"] = json!(5 + parts.len());
        let mut messages: Vec<Value> = base.iter().map(|line| message(line)).collect();
        messages.splice(13..14, parts.iter().map(|part| loss(*part)));
        messages[8] = meta;
        *messages.last_mut().expect("an end") = end;
        let count = messages.len();
        for (seq, message) in messages.iter_mut().enumerate() {
            message["seq"] = json!(seq);
        }
        messages[count - 1]["messages"] = json!(count);
        let text: String = messages.iter().map(|message| format!("{message}\n")).collect();
        let found = findings(text.as_bytes());
        let told = found.iter().any(|found| found.contains("not the sum of the loss messages"));
        assert_eq!(told, !is_sum, "{parts:?} {sum}: {found:?}");
    }
}

#[test]
fn eight_faults_of_a_line_are_told() {
    for (faults, told) in [(7, 7), (8, 8), (10, 8)] {
        let mut lines = stream();
        let twice: String = (0..faults).map(|key| format!(",\"x{key}\":1,\"x{key}\":1")).collect();
        let at = lines[2].len() - "}\n".len();
        lines[2].insert_str(at, &twice);
        let found = findings(lines.concat().as_bytes());
        assert_eq!(found.iter().filter(|found| found.contains("stands twice")).count(), told, "{found:?}");
    }
}

#[test]
fn the_first_keys_are_looked_at_also_where_a_later_one_is_missing() {
    let mut lines = stream();
    edit(&mut lines, 3, "\"v\":2,\"run_id\":\"r\",", "\"run_id\":\"r\",\"v\":2,");
    edit(&mut lines, 3, "\"batch\":0,", "");
    let found = findings(lines.concat().as_bytes());
    for what in ["key \"batch\" is missing", "the line does not begin with the keys type, v, run_id, seq"] {
        assert!(found.iter().any(|found| found.starts_with("line 3: ") && found.contains(what)), "{found:?}");
    }
}

/// Also a column that only a later version knows.
#[test]
fn a_column_without_a_value_is_left_out() {
    for (column, is_told) in [("[null,null]", true), ("[null,1]", false), ("[]", false)] {
        let mut lines = stream();
        let key = format!(",\"later\":{column}");
        let at = lines[2].len() - "}\n".len();
        lines[2].insert_str(at, &key);
        let found = findings(lines.concat().as_bytes());
        let told = found.iter().any(|found| found.contains("column \"later\" holds no value"));
        assert_eq!(told, is_told, "{found:?}");
    }
}
