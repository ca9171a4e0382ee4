//! Counts that are made while profiles are opened give the same stream as those made of the samples in order.

mod common;

use std::fs::File;
use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use common::profiles;
use tachyon_jsonl::convert::Counting;
use tachyon_jsonl::convert::{Flush, ProfileOptions, RunStream, StreamOptions, ToBinary};
use tachyon_jsonl::format::{Part, Sequence};

/// The stream of a file's first run, and how many of its parts were counted while they were opened.
fn stream(
    path: &Path,
    options: &StreamOptions,
    counting: Option<Counting>,
    threads: usize,
) -> Option<(Vec<u8>, usize)> {
    let mut file = File::open(path).expect("a file");
    let sequence = Sequence::open(&mut file).expect("readable");
    let mut sequence = sequence.counting(counting).threads(threads);
    let mut run = RunStream::new(sequence.framing(), options.clone());
    let (mut stream, mut counted) = (Vec::new(), 0);
    while let Some(part) = sequence.next(&mut file).ok()? {
        match part {
            Part::Profile(mut profile) => {
                counted += usize::from(profile.is_counted());
                run.profile(&mut profile, &mut stream).expect("a stream");
            }
            Part::Lost(lost) => run.lost(&lost, &mut stream).expect("a stream"),
        }
    }
    run.finish(&mut stream).expect("a stream");
    Some((stream, counted))
}

#[test]
fn the_stream_is_the_same() {
    let new = |types: &str| StreamOptions::new("r").expect("an id").types(types.parse().expect("types"));
    let small = Flush { samples: Some(100), ..Flush::default() };
    let options = [
        new("agg"),
        new("agg:5s,loss"),
        new("agg:1ms").flush(small),
        new("agg:50ms,loss").flush(Flush { samples: Some(1000), part: true, ..Flush::default() }),
        new("agg:7ms").flush(small),
        new("raw,agg,loss").flush(small),
        new("raw,agg:50ms,heartbeat:20ms"),
        new("agg:20ms,frame_def").flush(Flush { part: true, ..small }),
        new("agg:1s").flush(Flush { interval: Some(Duration::from_millis(30)), ..small }),
    ];
    let mut counted = 0;
    for folder in ["cpython", "legacy", "cases", "malformed"] {
        for path in profiles(folder, &[""]) {
            for (index, options) in options.iter().enumerate() {
                let is_large = path.metadata().expect("a file").len() > 100_000;
                if is_large && index > 2 || path.to_string_lossy().contains("bomb") {
                    continue;
                }
                let Some((expected, none)) = stream(&path, options, None, 1) else { continue };
                let counting = options.counting();
                assert!(counting.is_some() && none == 0);
                let mut parts = 0;
                for threads in [1, 3] {
                    let (found, counted) = stream(&path, options, counting, threads).expect("opened before");
                    assert!(found == expected, "{path:?} with options {index} on {threads} threads");
                    parts += counted;
                }
                counted += usize::from(parts > 0);
            }
        }
    }
    assert!(counted > 1500, "only {counted} were counted");
}

/// A clock that jumps anywhere: before the start of the run, back, far ahead.
#[test]
fn odd_clocks_are_left_to_the_samples_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    for (number, times) in
        [[500_i64, 0, 0], [2000, -1500, 10], [1500, 500, -1], [5_000_000, 1 << 60, 7], [0, 0, 1000]]
            .iter()
            .enumerate()
    {
        let mut text = format!(
            r#"{{"type":"meta","v":2,"run_id":"r","seq":0,"batch":0,"messages":3,"start_usec":0,"samples":3,"run_start_usec":1000,"sample_interval_usec":1000,"id_scope":"run"}}
{{"type":"str_def","v":2,"run_id":"r","seq":1,"batch":0,"str_id":[0,1],"value":["a.py","f"]}}
{{"type":"frame_def","v":2,"run_id":"r","seq":2,"batch":0,"frame_id":[0],"path_str_id":[0],"func_str_id":[1],"line":[1]}}
{{"type":"raw","v":2,"run_id":"r","seq":3,"batch":0,"start_usec":0,"samples":3,"stack_frame_id":[0,0],"stack_parent":[null,0],"threads":[{{"thread_id":"3","interpreter_id":0,"ts_delta_usec":{times:?},"status":[0,0,0],"stack":[0,1,1]}}]}}
{{"type":"end","v":2,"run_id":"r","seq":4,"complete":true,"batches":1,"messages":5,"samples":3,"samples_total":3}}
"#
        )
        .into_bytes();
        let mut to_binary = ToBinary::new(Cursor::new(Vec::new()), ProfileOptions::default());
        for (number, line) in (1..).zip(text.split_inclusive_mut(|byte| *byte == b'\n')) {
            to_binary.line(number, line).expect("a Vec takes all");
        }
        let outcome = to_binary.finish().expect("a profile");
        assert!(outcome.losses.is_empty(), "{:?}", outcome.losses);
        let path = folder.path().join(number.to_string());
        std::fs::write(&path, outcome.sink.into_inner()).expect("written");
        for types in ["agg", "agg:1ms", "raw,agg:1ms"] {
            let options = StreamOptions::new("r").expect("an id").types(types.parse().expect("types"));
            let expected = stream(&path, &options, None, 1);
            let found = stream(&path, &options, options.counting(), 1);
            assert_eq!(found.map(|(text, _)| text), expected.map(|(text, _)| text), "{times:?}, {types}");
        }
    }
}
