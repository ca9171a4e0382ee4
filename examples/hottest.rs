//! Self time by function, of a profile or of a stream.
//!
//! cargo run --example hottest -- prof.bin

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::BufReader;

use tachyon_jsonl::convert::StreamReader;
use tachyon_jsonl::format::Profile;
use tachyon_jsonl::model::StackSamples;

#[derive(Default)]
struct Counts(HashMap<String, usize>);

impl Counts {
    fn add(&mut self, run: StackSamples<'_>) {
        let function = run.stack.last().map_or("(no frames)".into(), |frame| run.tables.function(*frame));
        *self.0.entry(function.into_owned()).or_default() += run.times_us.len();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: hottest PROFILE|STREAM")?;
    let file = File::open(&path)?;
    let mut counts = Counts::default();
    if path.ends_with(".jsonl") {
        let mut reader = StreamReader::new(BufReader::new(file));
        while let Some(run) = reader.next()? {
            counts.add(run);
        }
        reader.finish()?.iter().for_each(|loss| eprintln!("{loss}"));
    } else {
        let mut profile = Profile::open(file)?;
        profile.contents().faults.iter().for_each(|fault| eprintln!("{}", fault.error));
        let mut samples = profile.samples()?;
        while let Some(run) = samples.next()? {
            counts.add(run);
        }
    }
    let mut rows: Vec<(usize, String)> =
        counts.0.into_iter().map(|(name, samples)| (samples, name)).collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    for (samples, function) in rows.iter().take(10) {
        println!("{samples:>10} {function}");
    }
    Ok(())
}
