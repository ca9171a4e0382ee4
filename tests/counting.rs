//! Counts that are made while profiles are opened give the same stream as those made of the samples in order.

mod common;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use common::profiles;
use tachyon_jsonl::convert::{Flush, RunStream, StreamOptions};
use tachyon_jsonl::format::{Counting, Part, Sequence};

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
