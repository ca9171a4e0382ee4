//! Whole conversions, compared with a copy of the same text in memory.

use std::ffi::OsString;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::generate::{self, CALM, CHURNY, Kind};
use crate::measure::{self, Run, Usage, median};
use crate::{Result, Setting, command, head, length, row};

/// One way to run the program.
pub struct Case {
    pub name: &'static str,
    pub command: Vec<OsString>,
    /// The stream that it reads or writes.
    pub text: PathBuf,
}

/// What is converted, and with which words: name, words, whether the profile is packed.
const FROM_BIN: [(&str, &[&str], bool); 9] = [
    ("from-bin raw, 1 thread", &["--stream-types", "raw", "--threads", "1"], false),
    ("from-bin raw, 2 threads", &["--stream-types", "raw", "--threads", "2"], false),
    ("from-bin raw, zstd profile, 1 thread", &["--stream-types", "raw", "--threads", "1"], true),
    ("from-bin raw, zstd profile, 2 threads", &["--stream-types", "raw", "--threads", "2"], true),
    ("from-bin agg:5s, 1 thread", &["--stream-types", "agg:5s", "--threads", "1"], false),
    ("from-bin agg:5s, 2 threads", &["--stream-types", "agg:5s", "--threads", "2"], false),
    ("from-bin agg:5s, zstd profile, 2 threads", &["--stream-types", "agg:5s", "--threads", "2"], true),
    ("from-bin, default types, 1 thread", &["--threads", "1"], false),
    ("from-bin, default types, 2 threads", &["--threads", "2"], false),
];
const TO_BIN: [(&str, &[&str]); 3] = [
    ("to-bin --compression none", &["--compression", "none", "--threads", "1"]),
    ("to-bin, zstd, 1 thread", &["--threads", "1"]),
    ("to-bin, zstd, 2 threads", &["--threads", "2"]),
];

/// The cases of one kind of profile, whose streams are made first.
pub fn cases(kind: Kind, samples: u64, folder: &Path) -> Result<Vec<Case>> {
    let profiles = generate::profiles(kind, samples, folder)?;
    let mut cases = Vec::new();
    for (name, words, is_packed) in FROM_BIN {
        let types = words.iter().skip_while(|word| **word != "--stream-types").nth(1).unwrap_or(&"all");
        let text = folder.join(format!("{}-{samples}-{types}.jsonl", kind.name));
        let profile = if is_packed { &profiles.zstd } else { &profiles.plain };
        let command = command(&[&["from-bin"], words].concat(), profile);
        if cases.iter().all(|case: &Case| case.text != text) {
            let save = [&command[..], &["-o".into(), text.clone().into()]].concat();
            measure::run(&save, folder)?;
        }
        cases.push(Case { name, command, text });
    }
    let text = cases[0].text.clone();
    for (name, words) in TO_BIN {
        let command = command(&[&["to-bin"], words].concat(), &text);
        cases.push(Case { name, command, text: text.clone() });
    }
    Ok(cases)
}

pub fn table(setting: &Setting) -> Result<()> {
    let title = format!(
        "Speed: {} (churny) and {} (calm) samples, medians of {} runs, each beside a copy of its text in memory",
        setting.samples(CHURNY),
        setting.samples(CALM),
        setting.pairs
    );
    let heads =
        ["profile", "case", "M samples/s", "MB/s of text", "of memcpy's", "CPU ns a sample", "peak MiB"];
    head(&title, 2, &heads);
    for kind in [CHURNY, CALM] {
        for case in cases(kind, setting.samples(kind), &setting.folder)? {
            let text = fs::read(&case.text)?;
            let mut copy = vec![1; text.len()];
            let mut runs = Vec::new();
            let mut ratios = Vec::new();
            for _ in 0..setting.pairs {
                let run = measure::run(&case.command, &setting.folder)?;
                if case.name.starts_with("from-bin") && run.bytes != text.len() as u64 {
                    // Packed and plain profiles differ in the run id, which is as long.
                    return Err(format!("{}: another stream than before", case.name).into());
                }
                let start = Instant::now();
                copy.copy_from_slice(black_box(&text));
                black_box(&mut copy);
                ratios.push(start.elapsed().as_secs_f64() / run.seconds);
                runs.push(run);
            }
            let seconds = median(runs.iter().map(|run| run.seconds));
            let per_sample = |usage: Usage| usage.cpu_seconds / setting.samples(kind) as f64 * 1e9;
            row(&[
                kind.name.to_string(),
                case.name.to_string(),
                format!("{:.1}", setting.samples(kind) as f64 / seconds / 1e6),
                format!("{:.0}", length(&case.text) as f64 / seconds / 1e6),
                format!("{:.3}", median(ratios)),
                usages(&runs, per_sample, 0),
                usages(&runs, peak_mib, 1),
            ]);
        }
    }
    Ok(())
}

pub fn peak_mib(usage: Usage) -> f64 {
    usage.peak_kib as f64 / 1024.0
}

/// The median of a quantity that not every system tells.
pub fn usages(runs: &[Run], quantity: impl Fn(Usage) -> f64, digits: usize) -> String {
    let values: Option<Vec<f64>> = runs.iter().map(|run| run.usage.map(&quantity)).collect();
    values.map_or("-".to_string(), |values| format!("{:.digits$}", median(values)))
}
