//! `Profile::samples` delivers what a stream of the profile holds.

mod common;

use std::collections::BTreeMap;
use std::fs::File;

use common::{consumer, profiles, stream_of};
use tachyon_jsonl::format::Profile;

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
