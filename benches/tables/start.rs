//! How long the smallest job takes, beside the smallest program.

use std::path::Path;

use crate::measure::{self, median};
use crate::{Result, Setting, command, head, row};

const RUNS: usize = 200;
const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cpython/tiny_script_none.bin");

pub fn table(_: &Setting) -> Result<()> {
    head(&format!("Start: medians of {RUNS} runs in turns"), 1, &["command", "ms", "of /bin/true"]);
    let commands = [
        ("/bin/true", vec!["/bin/true".into()]),
        ("--version", command(&[], Path::new("--version"))),
        ("from-bin of 632 bytes", command(&["from-bin"], Path::new(PROFILE))),
    ];
    let mut times = vec![Vec::new(); commands.len()];
    for _ in 0..RUNS {
        for ((_, command), times) in commands.iter().zip(&mut times) {
            times.push(measure::bare(command)?);
        }
    }
    let times: Vec<f64> = times.into_iter().map(median).collect();
    for ((name, _), seconds) in commands.iter().zip(&times) {
        row(&[name.to_string(), format!("{:.2}", seconds * 1e3), format!("{:.1}", seconds / times[0])]);
    }
    Ok(())
}
