//! Reads a profile through the library, without any JSON: self time by function.
//!
//! cargo run --example hottest -- prof.bin

use std::collections::HashMap;
use std::error::Error;

use tachyon_jsonl::format::Profile;
use tachyon_jsonl::model::Cut;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: hottest PROFILE")?;
    let mut profile = Profile::open(std::fs::File::open(path)?)?;
    for fault in &profile.contents().faults {
        eprintln!("{}", fault.error);
    }

    let (mut replay, contents) = profile.replay()?;
    let mut by_frame: HashMap<Option<u32>, u64> = HashMap::new();
    loop {
        // A window of samples in time order; what comes before `complete_before` is all there.
        replay.load(64 * 1024)?;
        let before = replay.complete_before();
        let buffer = replay.buffer();
        if buffer.cut(64 * 1024, before, Cut::AfterInstant) == 0 {
            break;
        }
        // Stacks come outermost frame first, once for all samples in a row that have them.
        for slice in buffer.slices() {
            slice.stacks(|stack, samples| {
                *by_frame.entry(stack.last().copied()).or_default() += samples as u64
            });
        }
        buffer.advance();
    }

    let name = |string| contents.tables.strings.get(string).map(String::from_utf8_lossy).unwrap_or_default();
    let mut by_function: HashMap<String, u64> = HashMap::new();
    for (frame, samples) in by_frame {
        let function =
            frame.map_or("(no frames)".into(), |frame| name(contents.tables.frames[frame as usize].function));
        *by_function.entry(function.into_owned()).or_default() += samples;
    }
    let mut rows: Vec<(u64, String)> =
        by_function.into_iter().map(|(function, samples)| (samples, function)).collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    for (samples, function) in rows.iter().take(10) {
        println!("{samples:>10} {function}");
    }
    Ok(())
}
