//! What the program writes is sound, by its own `check`, for every profile of the test data.

mod common;

use std::time::Duration;

use common::{findings, profiles};
use tachyon_jsonl::convert::{Flush, StreamOptions, to_stream};
use tachyon_jsonl::format::Profile;

/// Options that cut a stream in different ways.
fn options() -> Vec<StreamOptions> {
    let new = || StreamOptions::new("a-run").expect("a run id");
    let types = |list: &str| list.parse().expect("types");
    let small = Flush { samples: Some(64), ..Flush::default() };
    let timed = Flush { interval: Some(Duration::from_millis(250)), ..Flush::default() };
    vec![
        new(),
        new().flush(small).max_line(8 * 1024).expect("a limit"),
        new()
            .types(types("raw,agg:100ms,heartbeat:50ms,loss"))
            .flush(timed)
            .wall_start_us(1_790_000_000_000_000)
            .label("host", "web-3"),
        new().types(types("agg")),
        new().types(types("raw,-end")).flush(Flush { samples: Some(1000), ..Flush::default() }),
    ]
}

#[test]
fn what_the_program_writes_is_sound() {
    let mut streams = 0;
    for folder in ["cpython", "legacy", "cases", "malformed"] {
        for path in profiles(folder, &[""]) {
            let is_bomb = path.to_string_lossy().contains("bomb");
            let is_large = path.metadata().expect("a file").len() > 100_000;
            for (index, options) in options().iter().enumerate() {
                // One large recording of each kind is enough for a debug build.
                if is_large && index != 2 || is_bomb {
                    continue;
                }
                let Ok(mut profile) = Profile::open(std::fs::File::open(&path).expect("a file")) else {
                    continue;
                };
                let mut stream = Vec::new();
                if to_stream(&mut profile, options, &mut stream).is_err() {
                    continue;
                }
                let findings = findings(&stream);
                assert!(findings.is_empty(), "{path:?} with options {index}: {findings:#?}");
                streams += 1;
            }
        }
    }
    assert!(streams > 300, "only {streams} streams");
}
