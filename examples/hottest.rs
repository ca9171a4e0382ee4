//! Self time by function, through the library.
//!
//! cargo run --example hottest -- prof.bin

use std::collections::HashMap;
use std::error::Error;

use tachyon_jsonl::format::Profile;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: hottest PROFILE")?;
    let mut profile = Profile::open(std::fs::File::open(path)?)?;
    for fault in &profile.contents().faults {
        eprintln!("{}", fault.error);
    }
    let mut by_function: HashMap<String, usize> = HashMap::new();
    let mut samples = profile.samples()?;
    while let Some(run) = samples.next()? {
        let function = run.stack.last().map_or("(no frames)".into(), |frame| run.tables.function(*frame));
        *by_function.entry(function.into_owned()).or_default() += run.times_us.len();
    }
    let mut rows: Vec<(usize, String)> =
        by_function.into_iter().map(|(name, samples)| (samples, name)).collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    for (samples, function) in rows.iter().take(10) {
        println!("{samples:>10} {function}");
    }
    Ok(())
}
