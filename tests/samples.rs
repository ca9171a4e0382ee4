//! `Profile::samples` delivers what a stream of the profile holds, and `StreamReader` the same.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufRead;

use common::{consumer, data, profiles, stream_of};
use tachyon_jsonl::convert::StreamReader;
use tachyon_jsonl::format::Profile;
use tachyon_jsonl::model::StackSamples;

/// Time, status and depth of each sample, by thread.
type Outline = BTreeMap<(u64, u64), Vec<(u64, u64, usize)>>;

#[test]
fn samples_are_those_of_the_stream() {
    let mut compared = 0;
    for path in profiles("cpython", &[""]).into_iter().chain(profiles("legacy", &["v1_", "new_"])) {
        if path.metadata().expect("a file").len() > 300_000 {
            continue;
        }
        let Ok(mut profile) = Profile::open(File::open(&path).expect("a file")) else { continue };
        let mut found = Outline::new();
        let mut samples = profile.samples().expect("samples");
        while let Some(run) = samples.next().expect("samples") {
            assert_eq!(run.times_us.len(), run.status.len());
            assert!(!run.times_us.is_empty());
            let thread = (u64::from(run.thread.interpreter_id), run.thread.thread_id);
            let of_thread = found.entry(thread).or_default();
            of_thread.extend(
                run.times_us
                    .iter()
                    .zip(run.status)
                    .map(|(time, status)| (*time, u64::from(*status), run.stack.len())),
            );
        }
        let threads = consumer::read(&stream_of(&path, &["--stream-types", "raw"])).threads;
        let depth =
            |stack: &str| serde_json::Deserializer::from_str(stack).into_iter::<serde_json::Value>().count();
        let expected: Outline = threads
            .iter()
            .map(|(thread, samples)| {
                let samples = samples.iter().map(|(time, status, stack)| (*time, *status, depth(stack)));
                (*thread, samples.collect())
            })
            .collect();
        assert!(found == expected, "{path:?}");
        compared += 1;
    }
    assert!(compared > 10, "only {compared} profiles");
}

/// Time, status and named stack of each sample, by thread.
type Named = BTreeMap<(u32, u64), Vec<(u64, u8, Vec<String>)>>;

fn add(samples: &mut Named, run: StackSamples<'_>) {
    let tables = run.tables;
    let name = |frame: &u32| {
        let line = tables.frames[*frame as usize].location.line;
        format!("{}:{}:{line:?}", tables.path(*frame), tables.function(*frame))
    };
    let stack: Vec<String> = run.stack.iter().map(name).collect();
    let of_thread = samples.entry((run.thread.interpreter_id, run.thread.thread_id)).or_default();
    of_thread
        .extend(run.times_us.iter().zip(run.status).map(|(time, status)| (*time, *status, stack.clone())));
}

fn of_stream<R: BufRead>(mut reader: StreamReader<R>) -> (Named, Vec<String>) {
    let mut found = Named::new();
    while let Some(run) = reader.next().expect("a stream") {
        add(&mut found, run);
    }
    assert!(reader.next().expect("over").is_none());
    (found, reader.finish().expect("a run").iter().map(ToString::to_string).collect())
}

#[test]
fn a_stream_has_the_samples_of_its_profile() {
    for path in profiles("cpython", &[""]) {
        if path.metadata().expect("a file").len() > 100_000 {
            continue;
        }
        let Ok(mut profile) = Profile::open(File::open(&path).expect("a file")) else { continue };
        let mut expected = Named::new();
        let mut samples = profile.samples().expect("samples");
        while let Some(run) = samples.next().expect("samples") {
            add(&mut expected, run);
        }
        // Lines of 8 KiB make groups of many threads.
        for options in [&[][..], &["--flush", "samples:50", "--max-line", "8k"]] {
            let stream = stream_of(&path, &[&["--stream-types", "raw"], options].concat());
            let (found, losses) = of_stream(StreamReader::new(stream.as_slice()));
            assert!(found == expected, "{path:?}");
            assert_eq!(losses, [""; 0], "{path:?}");
        }
    }
}

#[test]
fn what_a_stream_lacks_is_reported_and_the_rest_is_read() {
    let stream = stream_of(&data("legacy/v2_20_chunks_zstd.bin"), &[]);
    let (whole, losses) = of_stream(StreamReader::new(stream.as_slice()));
    let count = |samples: &Named| samples.values().map(Vec::len).sum::<usize>();
    assert_eq!((count(&whole), losses.len()), (1942, 0));
    let lines: Vec<&[u8]> = stream.split_inclusive(|byte| *byte == b'\n').collect();
    let at = lines.iter().position(|line| line.starts_with(b"{\"type\":\"raw\"")).expect("samples");
    let without = [&lines[..at], &lines[at + 1..]].concat().concat();
    let (rest, losses) = of_stream(StreamReader::new(without.as_slice()));
    let lost = common::messages(lines[at])[0]["samples"].as_u64().expect("a number") as usize;
    assert_eq!(count(&rest), 1942 - lost);
    assert!(losses[0].starts_with("1 messages are missing before message 4 (line 4)"), "{losses:?}");

    let other = String::from_utf8(stream_of(&data("cpython/tiny_script_none.bin"), &[])).expect("JSON");
    let run_id = common::messages(other.as_bytes())[0]["run_id"].as_str().expect("an id").to_string();
    let other = other.replace(&format!("\"run_id\":\"{run_id}\""), "\"run_id\":\"other\"").into_bytes();
    let both = [stream, other.clone()].concat();
    let mut reader = StreamReader::new(both.as_slice());
    let error = loop {
        match reader.next() {
            Ok(run) => assert!(run.is_some(), "two runs were taken for one"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("several runs"), "{error}");
    let (found, losses) = of_stream(StreamReader::run(both.as_slice(), "other"));
    assert!(found == of_stream(StreamReader::new(other.as_slice())).0 && losses.is_empty(), "{losses:?}");
}
