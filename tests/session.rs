//! The rules of a stream while `to-bin` reads it: what is missing is told, once, and with its place.

mod common;

use std::io::Cursor;

use common::{data, stream_of};
use serde_json::{Value, json};
use tachyon_jsonl::convert::{ProfileOptions, ToBinary};

/// Three batches of 4, 3 and 2 samples, and the end.
fn messages() -> Vec<Value> {
    let options = ["--flush", "samples:3", "--stream-types", "raw"];
    let stream = stream_of(&data("malformed/00_good_plain.bin"), &options);
    let messages = common::messages(&stream);
    assert_eq!(messages.len(), 3 * 4 + 1);
    messages
}

/// Samples of the profile, and what is told as lost.
fn to_bin(messages: &[Value]) -> (u64, Vec<String>) {
    let mut to_binary = ToBinary::new(Cursor::new(Vec::new()), ProfileOptions::default());
    for (number, message) in (1..).zip(messages) {
        let mut line = format!("{message}\n").into_bytes();
        to_binary.line(number, &mut line).expect("memory has no errors");
    }
    let outcome = to_binary.finish().expect("a profile");
    (outcome.samples, outcome.losses.iter().map(ToString::to_string).collect())
}

fn renumber(messages: &mut [Value]) {
    for (seq, message) in messages.iter_mut().enumerate() {
        message["seq"] = json!(seq);
    }
}

#[test]
fn a_sound_stream_loses_nothing() {
    assert_eq!(to_bin(&messages()), (9, vec![]));
}

#[test]
fn definitions_hold_for_their_batch_unless_the_meta_says_for_the_run() {
    let mut messages = messages();
    // The first batch defines all that any of them has.
    messages[1] = json!({"type": "str_def", "v": 2, "run_id": "r", "batch": 0, "str_id": [0, 1],
        "value": ["a.py", "f"]});
    messages[2] = json!({"type": "frame_def", "v": 2, "run_id": "r", "batch": 0, "frame_id": [0, 1, 2, 3],
        "path_str_id": [0, 0, 0, 0], "func_str_id": [1, 1, 1, 1], "line": [1, 2, 3, 4],
        "end_line": [1, 2, 3, 4], "col": [0, 0, 0, 0], "end_col": [1, 1, 1, 1]});
    let is_kept = |(at, message): &(usize, Value)| {
        *at < 4 || !["str_def", "frame_def"].contains(&message["type"].as_str().expect("a type"))
    };
    let mut messages: Vec<Value> = messages.into_iter().enumerate().filter(is_kept).map(|(_, m)| m).collect();
    renumber(&mut messages);
    for message in &mut messages[4..] {
        if message["type"] == "meta" {
            message["messages"] = json!(1);
        }
    }
    let mut with_scope = |scope: &str| {
        for message in messages.iter_mut().filter(|message| message["type"] == "meta") {
            message["id_scope"] = json!(scope);
        }
        to_bin(&messages)
    };
    assert_eq!(with_scope("run"), (9, vec![]));
    let (samples, losses) = with_scope("batch");
    assert_eq!((samples, losses.len()), (9, 2), "{losses:?}");
    assert!(losses.iter().all(|loss| loss.contains("frames are not defined")), "{losses:?}");
}

#[test]
fn what_a_batch_promises_and_does_not_hold_is_told() {
    let mut messages = messages();
    messages[0]["samples"] = json!(4 + 5);
    messages[4]["messages"] = json!(3 + 2);
    messages[8]["samples"] = json!(2 + 1);
    let expected = [
        "5 samples of batch 0 are missing (line 1)",
        "2 messages of batch 1 are missing (line 5)",
        "1 samples of batch 2 are missing (line 9)",
    ];
    assert_eq!(to_bin(&messages), (9, expected.map(String::from).to_vec()));
    // The last batch is over where the stream is, too.
    messages.pop();
    let (_, losses) = to_bin(&messages);
    assert_eq!(losses[..3], expected);
    assert_eq!(losses.len(), 4, "and the end is missing: {losses:?}");
}

#[test]
fn an_end_that_counts_other_samples_is_told() {
    let mut messages = messages();
    messages.last_mut().expect("an end")["samples"] = json!(11);
    let (samples, losses) = to_bin(&messages);
    assert_eq!(samples, 9);
    assert_eq!(losses, ["the stream's end counts 11 samples, but 9 came"]);
}

#[test]
fn stacks_that_are_cut_are_told_once() {
    let mut messages = messages();
    // 300 nodes, each the child of the one before; the first sample of each thread has all of them.
    let parents: Vec<Value> =
        (0..300_u64).map(|at| at.checked_sub(1).map_or(Value::Null, Value::from)).collect();
    let raw = &mut messages[3];
    raw["stack_frame_id"] = json!(vec![0; 300]);
    raw["stack_parent"] = Value::Array(parents);
    raw["threads"][0]["stack"][0] = json!(299);
    let (samples, losses) = to_bin(&messages);
    assert_eq!(samples, 9);
    let [loss] = &losses[..] else { panic!("{losses:?}") };
    assert!(loss.starts_with("1 samples had more than 256 frames"), "{loss}");
}

#[test]
fn twenty_faults_are_told_and_the_rest_is_counted() {
    for (faults, more) in [(20, None), (21, Some("1 more")), (25, Some("5 more"))] {
        let mut messages = messages();
        let stray = messages[1].clone();
        for _ in 0..faults {
            let mut stray = stray.clone();
            stray["batch"] = json!(77);
            messages.insert(12, stray);
        }
        renumber(&mut messages);
        let (_, losses) = to_bin(&messages);
        assert_eq!(losses.len(), 20 + usize::from(more.is_some()), "{faults}");
        assert!(losses[..20].iter().all(|loss| loss.contains("batch 77")));
        if let Some(more) = more {
            assert!(losses[20].starts_with(more), "{}", losses[20]);
        }
    }
}

/// A loss stands for the messages up to its own number; of others it says nothing.
#[test]
fn only_a_loss_that_ends_at_its_own_number_stands_for_messages() {
    for (first, last, is_told) in [(4, 5, false), (2, 3, true)] {
        let mut messages = messages();
        // The numbers 4 and 5 are missing, 5 is the loss's own.
        let loss = json!({"type": "loss", "v": 2, "run_id": messages[0]["run_id"], "seq": 5, "reason": "sampler_missed",
            "first_seq": first, "last_seq": last, "lost_messages": 2});
        messages.insert(4, loss);
        for (seq, message) in (6..).zip(&mut messages[5..]) {
            message["seq"] = json!(seq);
        }
        let (_, losses) = to_bin(&messages);
        let missing = losses.iter().any(|loss| loss.contains("messages are missing before message 5"));
        assert_eq!(missing, is_told, "{losses:?}");
    }
}

/// Of CPython's own messages, too.
#[test]
fn of_several_runs_the_one_that_is_asked_for_is_read() {
    let one = std::fs::read_to_string(data("cases/cpython_v1.jsonl")).expect("readable");
    let id = "a".repeat(32);
    assert!(one.contains(&id));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("two.jsonl");
    let name = path.to_str().expect("UTF-8");
    std::fs::write(&path, format!("{}{one}", one.replace(&id, &"b".repeat(32)))).expect("writable");
    let several = common::run(&["diff", name, name], b"");
    assert_eq!(several.code, 1, "{}", several.stderr);
    assert!(several.stderr.contains("several runs"), "{}", several.stderr);
    for id in ["a", "b"] {
        let chosen = common::run(&["diff", name, name, "--run-id", &id.repeat(32)], b"");
        assert_eq!(chosen.code, 0, "{}", chosen.stderr);
    }
}
