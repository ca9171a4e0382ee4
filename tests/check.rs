//! `check`: each breach of the protocol is found where it is.

mod common;

use common::{findings, run};

const EXAMPLE: &str = include_str!("../schema/examples.jsonl");

#[test]
fn the_example_is_sound() {
    assert_eq!(findings(EXAMPLE.as_bytes()), [""; 0]);
}

/// The example with `from` on line `line` replaced by `to`.
fn edited(line: usize, from: &str, to: &str) -> String {
    let mut lines: Vec<String> = EXAMPLE.split_inclusive('\n').map(str::to_string).collect();
    assert_eq!(lines[line - 1].matches(from).count(), 1, "line {line} does not hold {from} once");
    lines[line - 1] = lines[line - 1].replace(from, to);
    lines.concat()
}

/// Lines of the example in this order, numbered anew.
fn arranged(order: &[usize]) -> String {
    let lines: Vec<&str> = EXAMPLE.split_inclusive('\n').collect();
    let mut stream = String::new();
    for (seq, number) in order.iter().enumerate() {
        let line = lines[number - 1];
        let old = format!("\"seq\":{},", number - 1);
        assert!(line.contains(&old));
        stream += &line.replace(&old, &format!("\"seq\":{seq},"));
    }
    stream
}

#[track_caller]
fn finds(stream: impl AsRef<[u8]>, expected: &[&str]) {
    assert_eq!(findings(stream.as_ref()), expected);
}

#[test]
fn the_frame_of_a_line() {
    finds(format!("\u{feff}{EXAMPLE}"), &["line 1: a byte order mark"]);
    finds(edited(4, "\n", "\r\n"), &["line 4: a carriage return before the line feed"]);
    finds(edited(4, "\n", "\n\n"), &["line 5: a blank line"]);
    finds(edited(4, "\n", "\nSampling 12 ...\n"), &["line 5: text that is not a JSON object"]);
    finds(EXAMPLE.trim_end(), &["line 15: no line feed ends the last line"]);
    finds("", &["line 1: the stream is empty"]);
    let cut = EXAMPLE.len() - 20;
    finds(
        &EXAMPLE[..cut],
        &[
            "line 15: the stream breaks off within this line",
            "line 14: the run 'Qm3vT0kZx9JrWc7uHs1-aA' has no end",
        ],
    );
    let mut bytes = EXAMPLE.as_bytes().to_vec();
    let at = EXAMPLE.find("Worker.poll").expect("a name");
    bytes[at] = 0xff;
    let column = at - EXAMPLE.find('\n').expect("a line");
    finds(bytes, &[&format!("line 2: no JSON: bytes that are not UTF-8 (column {column})")]);
}

#[test]
fn the_shape_of_a_line() {
    let mut columns = Vec::new();
    for (line, from, to, expected) in [
        (4, "\"samples\":12", "\"samples\": 12", "blanks outside of strings"),
        (
            4,
            "\"batch\":0,\"start_usec\":7204131127",
            "\"start_usec\":7204131127,\"batch\":0",
            "key \"batch\" stands after \"start_usec\"",
        ),
        (4, "\"status\":[37", "\"status\":[37],\"status\":[37", "key \"status\" stands twice"),
        (
            4,
            "{\"type\":\"raw\",\"v\":2",
            "{\"v\":2,\"type\":\"raw\"",
            "the line does not begin with the keys type, v, run_id, seq",
        ),
        (4, "\"v\":2", "\"extra\":1,\"v\":2", "the line does not begin with the keys type, v, run_id, seq"),
        (6, ",\"seq\":5", "", "key \"seq\" is missing"),
        (5, "\"scope\":\"window\",", "", "key \"scope\" is missing"),
        (4, "{\"thread_id\":\"41240\",", "{", "key \"thread_id\" is missing"),
        (6, "\"ts_usec\":7205131145", "\"ts_usec\":null", "key \"ts_usec\" is null instead of left out"),
        (
            3,
            ",\"end_col\":[34,23,null,9,11,null]",
            ",\"end_col\":[34,23,null,9,11,null],\"opcode\":[null,null,null,null,null,null]",
            "column \"opcode\" holds no value and has to be left out",
        ),
        (
            6,
            "\"dropped_messages\":0",
            "\"dropped_messages\":0,\"new\":null",
            "key \"new\" is null instead of left out",
        ),
        (4, "\"41240\"", "\"041240\"", "thread_id \"041240\" is not a 64-bit number in plain digits"),
        (
            4,
            "\"41240\"",
            "\"18446744073709551616\"",
            "thread_id \"18446744073709551616\" is not a 64-bit number in plain digits",
        ),
        (2, "{\"5\":", "{\"05\":", "key \"05\" is not an id"),
        (12, "1.5", "1.50000000000000005", "1.50000000000000005 is 1.5, which takes fewer digits"),
        (12, "1.5", "1e999", "1e999 is beyond the numbers of 64 bits"),
        (13, "frame index", "\\ud800 index", "half a surrogate pair in a string"),
        (13, "}\n", "}}\n", "no JSON: text after the object"),
        (13, "true}", "tru}", "no JSON: a missing value"),
    ] {
        let findings = findings(edited(line, from, to).as_bytes());
        assert_eq!(findings.len(), 1, "{findings:?}");
        let (finding, column) = findings[0].rsplit_once(" (column ").expect("a column");
        assert_eq!(finding, format!("line {line}: {expected}"));
        columns.push(column.trim_end_matches(')').parse::<usize>().expect("a number"));
    }
    let at = |line: usize, text: &str| {
        let line = EXAMPLE.lines().nth(line - 1).expect("a line");
        line.find(text).expect("the text") + 1
    };
    assert_eq!(columns[0], at(4, ":12,") + 1, "the blank");
    assert_eq!(columns[1], at(4, "\"batch\"") + "\"start_usec\":7204131127,".len(), "the key");
    assert_eq!(columns[3], 1, "the whole line");
    // What a later version may add.
    for (line, from, to) in [
        (4, "\"samples\":12", "\"samples\":12,\"new\":{\"threads\":[{}]}"),
        (12, "sampler_missed", "sampler_tired"),
        (13, "damaged_samples", "new_code"),
    ] {
        let expected = if to == "sampler_tired" {
            vec![
                "line 15: lost has \"sampler_missed\", but no loss message has",
                "line 15: lost does not have \"sampler_tired\", but a loss message has",
            ]
        } else {
            Vec::new()
        };
        finds(edited(line, from, to), &expected);
    }
}

#[test]
fn versions_and_names() {
    finds(edited(6, "\"v\":2", "\"v\":3"), &["line 6: schema version 3 is unknown; 0, 1 and 2 are known"]);
    finds(edited(6, "heartbeat", "pulse"), &[]);
    let stranger = edited(6, "Qm3vT0kZx9JrWc7uHs1-aA", "a b");
    finds(stranger, &["line 6: the run_id is not 1 to 64 of the characters A-Z a-z 0-9 - _"]);
    let cpython = "{\"type\": \"meta\", \"v\": 0, \"run_id\": \"a\"}\n{\"type\":\"end\",\"v\":0}\n";
    finds(
        cpython,
        &["line 2: not a message: missing field `run_id` (column 20)", "line 2: the run 'a' has no end"],
    );
    // What goes with times goes with them everywhere.
    let untimed = "key \"samples_empty\" is missing, unlike the times of the run";
    finds(edited(5, "\"samples_empty\":1,", ""), &[&format!("line 5: {untimed}")]);
    finds(edited(15, "\"samples_empty\":1,", ""), &[&format!("line 15: {untimed}")]);
    finds(
        edited(1, "\"start_usec\":7204131127,", ""),
        &["line 1: start_usec is missing next to duration_usec"],
    );
}

#[test]
fn numbers_of_messages() {
    finds(
        edited(9, "\"seq\":8", "\"seq\":7"),
        &["line 9: message 7 comes again, after message 7", "line 10: message 8 is missing before this one"],
    );
    let mut lines: Vec<&str> = EXAMPLE.split_inclusive('\n').collect();
    lines.swap(4, 5);
    finds(lines.concat(), &["line 6: message 4 comes late, after message 5"]);
    lines.swap(4, 5);
    lines.remove(4);
    finds(lines.concat(), &["line 5: message 4 is missing before this one"]);
    finds(lines[6..].concat(), &["line 1: messages 0 to 6 are missing before this one"]);
    // A loss message tells of the hole.
    let told = lines.concat().replace(
        "\"reason\":\"corrupt\",\"lost_samples\":4}",
        "\"reason\":\"gap\",\"first_seq\":4,\"last_seq\":4}",
    );
    finds(told, &[]);
    finds(
        format!("{EXAMPLE}{}", lines[0]),
        &["line 16: a message after the end of its run 'Qm3vT0kZx9JrWc7uHs1-aA'"],
    );
}

#[test]
fn runs_may_be_mixed() {
    let other = EXAMPLE.replace("Qm3vT0kZx9JrWc7uHs1-aA", "other");
    finds(format!("{EXAMPLE}{other}"), &[]);
    let mixed: String =
        EXAMPLE.split_inclusive('\n').zip(other.split_inclusive('\n')).flat_map(|(a, b)| [a, b]).collect();
    finds(&mixed, &[]);
    let cut: String = mixed.split_inclusive('\n').take(29).collect();
    finds(cut, &["line 28: the run 'other' has no end"]);
}

#[test]
fn the_order_of_a_batch() {
    finds(
        arranged(&[1, 3, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        &["line 3: str_def after frame_def in one batch"],
    );
    finds(
        arranged(&[1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        &["line 6: a message of batch 0 after heartbeat, which stands between batches"],
    );
    finds(
        arranged(&[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
            .replace("\"messages\":15", "\"messages\":14"),
        &["line 1: the run 'Qm3vT0kZx9JrWc7uHs1-aA' does not begin with a meta message"],
    );
    finds(edited(9, "\"batch\":1", "\"batch\":0"), &["line 9: a message of batch 0 within batch 1"]);
    finds(edited(7, "\"batch\":1", "\"batch\":3"), &["line 7: batch 3 where batch 1 is due"]);
    finds(
        edited(14, "\"reason\"", "\"batch\":1,\"reason\""),
        &[
            "line 14: a message of batch 1 after error, which stands between batches",
            "line 7: messages is 5, but 6 of the batch follow",
        ],
    );
}

#[test]
fn the_meta_says_what_follows() {
    for (line, from, to, expected) in [
        (1, "\"messages\":4", "\"messages\":5", "messages is 5, but 4 of the batch follow"),
        (1, "\"samples\":12", "\"samples\":11", "samples is 11, but the batch's raw messages give 12"),
        (
            1,
            "\"start_usec\":7204131127",
            "\"start_usec\":7204131126",
            "start_usec is 7204131126, but the batch's raw messages give 7204131127",
        ),
        (
            7,
            "\"duration_usec\":199991",
            "\"duration_usec\":199992",
            "duration_usec is 199992, but the batch's raw messages give 199991",
        ),
        (
            7,
            "\"thread_count\":2",
            "\"thread_count\":1",
            "thread_count is 1, but the batch's raw messages give 2",
        ),
        (7, "\"host\":\"web-3\"", "\"host\":\"web-4\"", "labels is not what the run's first meta says"),
        (7, "\"mode\":\"wall\"", "\"mode\":\"cpu\"", "mode is not what the run's first meta says"),
        (7, "\"gc\":true", "\"gc\":false", "capture is not what the run's first meta says"),
    ] {
        finds(edited(line, from, to), &[&format!("line {line}: {expected}")]);
    }
    let without =
        EXAMPLE.replace("\"raw\",\"agg:1s\",\"heartbeat:1s\",\"loss\"", "\"raw\",\"agg:1s\",\"loss\"");
    finds(without, &["line 6: a message of the type heartbeat, which stream_types leaves out"]);
    finds(EXAMPLE.replace("monotonic", "sundial"), &["line 1: the clock \"sundial\"; it is \"monotonic\""]);
}

#[test]
fn definitions() {
    for (line, from, to, expected) in [
        (
            2,
            "\"str_id\":[0,1,",
            "\"str_id\":[0,2,",
            &["line 2: defined twice in the batch: string 2", "line 3: not defined in the batch: string 1"][..],
        ),
        (
            9,
            "\"frame_id\":[0,1,2,3,4,6]",
            "\"frame_id\":[0,1,2,3,4,7]",
            &["line 10: not defined in the batch: frame 6"],
        ),
        (
            8,
            "Worker.poll",
            "Worker.pill",
            &["line 8: defined otherwise than in an earlier batch of the run: string 1"],
        ),
        (
            9,
            "\"line\":[31,22",
            "\"line\":[31,23",
            &["line 9: defined otherwise than in an earlier batch of the run: frame 1"],
        ),
        (
            2,
            "L3Nydi9zaG9wL2NhZukucHk=",
            "L3Nydi9zaG9wL2NhZXMucHk=",
            &[
                "line 2: string 5 is UTF-8 and needs no base64",
                "line 8: defined otherwise than in an earlier batch of the run: string 5",
            ],
        ),
        (
            2,
            "L3Nydi9zaG9wL2NhZukucHk=",
            "L3Nydi9zaG9wL2NhZukucHk",
            &[
                "line 2: the base64 of string 5 is broken: Invalid padding",
                "line 8: defined otherwise than in an earlier batch of the run: string 5",
            ],
        ),
        (
            8,
            "{\"5\":",
            "{\"12\":",
            &[
                "line 8: base64 has an entry for string 12, which is not in the message",
                "line 8: defined otherwise than in an earlier batch of the run: string 5",
            ],
        ),
        (
            2,
            "/srv/shop/caf\u{fffd}.py",
            "/srv/shop/cafe.py",
            &["line 2: string 5 does not show what its base64 holds"],
        ),
        (
            3,
            "\"line\":[31,22,1024,58,12,null]",
            "\"line\":[31,22,1024,58,12]",
            &["line 3: the columns frame_id and line have 6 and 5 elements"],
        ),
    ] {
        finds(edited(line, from, to), expected);
    }
    let own = EXAMPLE.replace("\"id_scope\":\"run\"", "\"id_scope\":\"batch\"");
    finds(own.replace("\"line\":[31,22,1024,58,12,40]", "\"line\":[31,23,1024,58,12,40]"), &[]);
}

#[test]
fn samples() {
    for (line, from, to, expected) in [
        (
            4,
            "\"stack_parent\":[null,null,1,2,0,4]",
            "\"stack_parent\":[null,null,1,3,0,4]",
            "node 3 has the parent 3, which is not below it",
        ),
        (
            4,
            "\"stack\":[0,4,4,5,4,4]",
            "\"stack\":[0,4,4,6,4,4]",
            "a sample has the stack 6, out of range (0..6)",
        ),
        (4, "\"stack\":[0,4,4,5,4,4]", "\"stack\":[0,4,4,4,4,4]", "no sample and no other node needs node 5"),
        (4, "\"samples\":12", "\"samples\":13", "the message declares 13 samples and holds 12"),
        (
            4,
            "[37,37,37,36,37,37]",
            "[37,37,37,36,37]",
            "the columns ts_delta_usec and status have 6 and 5 elements",
        ),
        (
            10,
            "\"stack_frame_id\":[2,1,6,4,3],\"stack_parent\":[null,0,1,null,3]",
            "\"stack_frame_id\":[2,1,6,2,3],\"stack_parent\":[null,0,1,null,3]",
            "two nodes of frame 2 stand as roots",
        ),
    ] {
        finds(edited(line, from, to), &[&format!("line {line}: {expected}")]);
    }
    let status = findings(edited(4, "[37,37,37,36,37,37]", "[37,37,37,256,37,37]").as_bytes());
    assert!(status.len() == 1 && status[0].starts_with("line 4: "), "{status:?}");
    let time = findings(
        edited(
            10,
            "\"ts_delta_usec\":[0,199991],\"status\":[5,5]",
            "\"ts_delta_usec\":[-7205331161,0],\"status\":[5,5]",
        )
        .as_bytes(),
    );
    assert!(time.len() == 1 && time[0].starts_with("line 10: "), "{time:?}");
    finds(
        edited(10, "\"thread_id\":\"41240\"", "\"thread_id\":\"41237\""),
        &[
            // The message is damaged, so its batch is not counted.
            "line 10: thread 41237 of interpreter 0 stands twice in the message",
        ],
    );
}

#[test]
fn samples_come_in_time_order() {
    let meta = EXAMPLE.lines().next().expect("a meta").replace("\"messages\":4", "\"messages\":2");
    let meta = meta.replace(
        "\"start_usec\":7204131127,\"duration_usec\":1000017,\"samples\":12",
        "\"start_usec\":100,\"duration_usec\":30,\"samples\":4",
    );
    let meta = meta.replace("\"raw\",\"agg:1s\",\"heartbeat:1s\",\"loss\"", "\"raw\",\"-end\"");
    let raw = |seq: u64, a: [i64; 2], b: [i64; 2]| {
        let thread = |id: u64, deltas: [i64; 2]| {
            let deltas: Vec<String> =
                deltas.iter().filter(|delta| **delta != 99).map(i64::to_string).collect();
            let status = vec!["1"; deltas.len()].join(",");
            (!deltas.is_empty()).then(|| format!(
                "{{\"thread_id\":\"{id}\",\"interpreter_id\":0,\"ts_delta_usec\":[{}],\"status\":[{status}]}}", deltas.join(",")))
        };
        let samples = a.iter().chain(&b).filter(|delta| **delta != 99).count();
        let threads: Vec<String> = [thread(1, a), thread(2, b)].into_iter().flatten().collect();
        format!(
            "{{\"type\":\"raw\",\"v\":2,\"run_id\":\"Qm3vT0kZx9JrWc7uHs1-aA\",\"seq\":{seq},\"batch\":0,\"start_usec\":100,\"samples\":{samples},\"stack_frame_id\":[],\"threads\":[{}]}}\n",
            threads.join(",")
        )
    };
    let none = 99;
    let stream = |first: String, second: String| format!("{meta}\n{first}{second}");
    // An instant may be cut between two threads, and one clock may go back.
    finds(stream(raw(1, [0, 30], [0, none]), raw(2, [none, none], [30, none])), &[]);
    finds(stream(raw(1, [0, 30], [none, none]), raw(2, [5, none], [30, none])), &[]);
    finds(
        stream(raw(1, [0, 30], [0, none]), raw(2, [none, none], [29, none])),
        &[
            "line 3: out of time order: a sample of thread 2 at 129 comes after one at 130 in an earlier message",
        ],
    );
}

#[test]
fn tables() {
    for (line, from, to, expected) in [
        (5, "\"frame_id\":[0,1,2,3,4,5]", "\"frame_id\":[0,2,1,3,4,5]", "frame 1 is not in ascending order"),
        (5, "\"self\":[3,1,0,3,1,1]", "\"self\":[4,1,0,3,1,0]", "frame 0 has self 4 over its cumulative 3"),
        (
            5,
            "\"cumulative\":[3,",
            "\"cumulative\":[10,",
            "frame 0 has cumulative 10 over the samples_total 9",
        ),
        (
            5,
            "\"self\":[3,1,0,3,1,1]",
            "\"self\":[2,1,0,3,1,1]",
            "the table's self adds up to 8, but its samples_total is 9",
        ),
        (5, "\"kind\":\"frame\"", "\"kind\":\"line\"", "the kind of table \"line\"; it is \"frame\""),
        (
            5,
            "\"scope\":\"window\"",
            "\"scope\":\"minute\"",
            "the scope \"minute\"; it is \"window\" or \"final\"",
        ),
        (
            5,
            "\"scope\":\"window\"",
            "\"scope\":\"final\"",
            "a final table where the stream_types ask for windows",
        ),
        (
            5,
            "\"start_usec\":7204118000",
            "\"start_usec\":7204118001",
            "the window at 7204118001 is not a multiple of 1000000 us from run_start_usec",
        ),
        (
            11,
            "\"duration_usec\":1000000",
            "\"duration_usec\":2000000",
            "a window of 2000000 us; the run has windows of 1000000 us",
        ),
    ] {
        finds(edited(line, from, to), &[&format!("line {line}: {expected}")]);
    }
    finds(
        edited(5, "\"samples_empty\":1", "\"samples_empty\":2"),
        &["line 15: the agg tables count 15 samples with a frame and 2 without, not 15 and 1"],
    );
}

#[test]
fn the_end() {
    for (from, to, expected) in [
        ("\"messages\":15", "\"messages\":14", "messages is 14, but has to be 15"),
        ("\"batches\":2", "\"batches\":3", "batches is 3, but has to be 2"),
        ("\"samples\":16", "\"samples\":17", "samples is 17, but has to be 16"),
        ("\"samples_empty\":1", "\"samples_empty\":0", "samples_total and samples_empty do not add up to 16"),
        (
            "\"duration_usec\":1400024",
            "\"duration_usec\":1400025",
            "duration_usec is 1400025, but has to be 1400024",
        ),
        ("\"complete\":false", "\"complete\":true", "complete is true after a fatal error"),
        (
            "\"lost_samples\":4",
            "\"lost_samples\":5",
            "lost is not the sum of the loss messages of \"corrupt\"",
        ),
        (",\"corrupt\":{\"lost_samples\":4}", "", "lost does not have \"corrupt\", but a loss message has"),
    ] {
        finds(edited(15, from, to), &[&format!("line 15: {expected}")]);
    }
    finds(
        arranged(&[1, 2, 3, 4, 5, 6, 13, 7, 8, 9, 10, 11, 12, 14, 15]),
        &["line 11: samples after a fatal error"],
    );
    let no_end: String = EXAMPLE.split_inclusive('\n').take(9).collect();
    finds(
        no_end,
        &[
            "line 7: messages is 5, but 2 of the batch follow",
            "line 9: the run 'Qm3vT0kZx9JrWc7uHs1-aA' has no end",
        ],
    );
}

#[test]
fn any_bytes_are_checked_without_a_panic() {
    // A small generator: each line of the example with some bytes changed, over and over.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..3000 {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        for _ in 0..1 + next(4) {
            let at = next(bytes.len());
            match next(3) {
                0 => bytes[at] = next(256) as u8,
                1 => drop(bytes.drain(at..(at + 1 + next(40)).min(bytes.len()))),
                _ => bytes[at] = b"0123456789-nul,:[]{}\"\\\n"[next(23)],
            }
        }
        if bytes != EXAMPLE.as_bytes() {
            findings(&bytes);
        }
    }
}

#[test]
fn the_command_tells_findings_on_standard_output_and_by_its_status() {
    let sound = run(&["check"], EXAMPLE.as_bytes());
    assert_eq!((Some(sound.code), sound.stdout.as_slice()), (Some(0), &b""[..]));

    let faulty = run(&["check", "-"], edited(5, "\"cumulative\":[3,", "\"cumulative\":[10,").as_bytes());
    assert_eq!(Some(faulty.code), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&faulty.stdout),
        "line 5: frame 0 has cumulative 10 over the samples_total 9\n"
    );
    assert_eq!(faulty.stderr, "tachyon-jsonl: standard input: 1 fault in 15 messages\n");

    let packed = zstd::encode_all(&EXAMPLE.as_bytes()[..EXAMPLE.len() - 1], 3).expect("packed");
    let packed = run(&["check"], &packed);
    assert_eq!(Some(packed.code), Some(1));
    assert_eq!(String::from_utf8_lossy(&packed.stdout), "line 15: no line feed ends the last line\n");

    let nothing = run(&["check", "no/such/file"], b"");
    assert_eq!((Some(nothing.code), nothing.stdout.as_slice()), (Some(1), &b""[..]));
}

#[test]
fn heartbeats_never_go_back() {
    let twice = arranged(&[1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
        .replace("\"messages\":15", "\"messages\":16");
    finds(&twice, &[]);
    for (key, first) in
        [("samples", "13"), ("batches", "2"), ("dropped_messages", "1"), ("ts_usec", "7205131146")]
    {
        let mut lines: Vec<String> = twice.split_inclusive('\n').map(str::to_string).collect();
        let at = lines[5].find(&format!("\"{key}\":")).expect("a key") + key.len() + 3;
        let end = at + lines[5][at..].find([',', '}']).expect("an end of the number");
        let second = lines[5][at..end].to_string();
        lines[5].replace_range(at..end, first);
        let mut expected = vec![format!("line 7: {key} goes back from {first} to {second}")];
        if key == "batches" {
            expected.insert(0, "line 6: 2 batches where 1 were sent".to_string());
        }
        assert_eq!(findings(lines.concat().as_bytes()), expected, "{key}");
    }
}

#[test]
fn a_whole_run_has_no_fatal_error_and_no_torn_input() {
    let fatal = edited(15, "\"complete\":false", "\"complete\":true");
    finds(fatal, &["line 15: complete is true after a fatal error"]);
    let torn = edited(15, "\"complete\":false", "\"complete\":true")
        .replace("\"fatal\":true", "\"fatal\":false")
        .replace("\"corrupt\"", "\"truncated\"");
    finds(torn, &["line 15: complete is true after a torn input"]);
}
