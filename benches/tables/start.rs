//! How long the smallest job takes, compared with the smallest program.

use std::path::Path;

use crate::generate::{self, CHURNY};
use crate::measure::{self, median};
use crate::{Result, Setting, command, head, length, row};

const RUNS: usize = 200;
const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cpython/tiny_script_none.bin");

pub fn table(setting: &Setting) -> Result<()> {
    head(&format!("Start: medians of {RUNS} runs in turns"), 1, &["command", "ms", "of /bin/true"]);
    let large = generate::profiles(CHURNY, setting.samples(CHURNY), &setting.folder)?.plain;
    let commands = [
        ("/bin/true".to_string(), vec!["/bin/true".into()]),
        ("--version".to_string(), command(&[], Path::new("--version"))),
        ("from-bin of 632 bytes".to_string(), command(&["from-bin"], Path::new(PROFILE))),
        (
            format!("inspect --outline of {} MB", length(&large) / 1_000_000),
            command(&["inspect", "--outline"], &large),
        ),
        (format!("inspect of {} MB", length(&large) / 1_000_000), command(&["inspect"], &large)),
    ];
    let mut times = vec![Vec::new(); commands.len()];
    for _ in 0..RUNS {
        for ((_, command), times) in commands.iter().zip(&mut times) {
            times.push(measure::bare(command)?);
        }
    }
    let times: Vec<f64> = times.into_iter().map(median).collect();
    for ((name, _), seconds) in commands.iter().zip(&times) {
        row(&[name.clone(), format!("{:.2}", seconds * 1e3), format!("{:.1}", seconds / times[0])]);
    }
    Ok(())
}
