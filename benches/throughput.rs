//! How fast the command is, and how much memory it takes: see `benches/README.md`.

mod chunking;
mod generate;
mod measure;

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use generate::{CALM, CHURNY, Kind, Profiles};
use measure::{Run, Usage, median};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tachyon-jsonl");
const SAMPLES: u64 = 5_000_000;
const PAIRS: usize = 5;
/// Samples of the profile for CPython, which is slow.
const REPLAY_SAMPLES: u64 = 200_000;

fn main() -> Result<()> {
    // `cargo test --benches` comes here too, and wants no measuring.
    let asked = env::args().any(|word| word == "--bench") && env::args().all(|word| word != "--test");
    if !asked {
        return Ok(());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench-data");
    let samples = number_of("BENCH_SAMPLES", SAMPLES)?;
    let pairs = number_of("BENCH_PAIRS", PAIRS as u64)?.max(1);
    if number_of("BENCH_CHUNKS_ONLY", 0)? == 0 {
        throughput(samples, pairs, &folder)?;
        memory(&folder)?;
    }
    chunking::table(samples, pairs, &folder)
}

fn number_of(variable: &str, default: u64) -> Result<u64> {
    match env::var(variable) {
        Ok(text) => Ok(text.parse().map_err(|fault| format!("{variable}={text}: {fault}"))?),
        Err(_) => Ok(default),
    }
}

/// One way to run the program.
struct Case {
    name: &'static str,
    command: Vec<OsString>,
    /// The stream that it reads or writes.
    text: PathBuf,
    /// The larger one of its input and its output, for the plain copy.
    copied: PathBuf,
}

impl Case {
    fn writes_text(&self) -> bool {
        self.name.starts_with("from-bin")
    }
}

/// The cases of one profile, whose streams are made first.
fn cases(kind: Kind, profiles: &Profiles, folder: &Path) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (name, types, profile) in [
        ("from-bin raw", Some("raw"), &profiles.plain),
        ("from-bin raw, zstd profile", Some("raw"), &profiles.zstd),
        ("from-bin agg:5s", Some("agg:5s"), &profiles.plain),
        ("from-bin, default types", None, &profiles.plain),
    ] {
        let mut command = words([PROGRAM, "from-bin"]);
        command.push(profile.into());
        if let Some(types) = types {
            command.extend(words(["--stream-types", types]));
        }
        let text = folder.join(format!("{}-{}.jsonl", kind.name, types.unwrap_or("all")));
        let mut save = command.clone();
        save.extend(["-o".into(), text.clone().into()]);
        measure::run(&save, folder)?;
        let copied = [&text, profile].into_iter().max_by_key(|path| length(path)).cloned();
        cases.push(Case { name, command, copied: copied.unwrap_or_default(), text });
    }
    let text = cases[0].text.clone();
    for (name, packing) in [("to-bin --compression none", "none"), ("to-bin (zstd)", "zstd")] {
        let mut command = words([PROGRAM, "to-bin", "--compression", packing]);
        command.push(text.clone().into());
        cases.push(Case { name, command, copied: text.clone(), text: text.clone() });
    }
    Ok(cases)
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).to_vec()
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

/// Each case against a plain copy of the same bytes, in turns, and against CPython where it is there.
fn throughput(samples: u64, pairs: u64, folder: &Path) -> Result<()> {
    println!("Throughput: {samples} samples, medians of {pairs} pairs of a run and a plain copy\n");
    println!(
        "| profile | case | M samples/s | MB/s of text | CPU s | peak MiB | time / copy's | speed / replay's |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for kind in [CHURNY, CALM] {
        let profiles = generate::profiles(kind, samples, folder)?;
        let replay = replay(kind, folder)?;
        for case in cases(kind, &profiles, folder)? {
            let copy = ["cat".into(), case.copied.clone().into()];
            let mut runs = Vec::new();
            let mut ratios = Vec::new();
            for _ in 0..pairs {
                let run = measure::run(&case.command, folder)?;
                if case.writes_text() && run.bytes != length(&case.text) {
                    return Err(format!("{}: another stream than before", case.name).into());
                }
                ratios.push(run.seconds / measure::run(&copy, folder)?.seconds);
                runs.push(run);
            }
            let seconds = median(runs.iter().map(|run| run.seconds));
            let speed = samples as f64 / seconds / 1e6;
            let replayed = replay.filter(|_| case.writes_text());
            row(&[
                kind.name.to_string(),
                case.name.to_string(),
                format!("{speed:.1}"),
                format!("{:.0}", length(&case.text) as f64 / seconds / 1e6),
                usages(&runs, |usage| usage.cpu_seconds, 2),
                usages(&runs, peak_mib, 1),
                format!("{:.1}", median(ratios)),
                replayed.map_or("-".to_string(), |replay| format!("{:.0}", speed / replay)),
            ]);
        }
        if let Some(speed) = replay {
            let name = format!("CPython's replay --jsonl, once, {REPLAY_SAMPLES} samples");
            let blank = || "-".to_string();
            row(&[
                kind.name.to_string(),
                name,
                format!("{speed:.3}"),
                blank(),
                blank(),
                blank(),
                blank(),
                "1".to_string(),
            ]);
        }
    }
    Ok(())
}

/// Million samples a second of CPython's own way to JSON Lines, on a small profile.
fn replay(kind: Kind, folder: &Path) -> Result<Option<f64>> {
    let Ok(python) = env::var("PYTHON315") else { return Ok(None) };
    let profiles = generate::profiles(kind, REPLAY_SAMPLES, folder)?;
    let mut command: Vec<OsString> = python.split_whitespace().map(OsString::from).collect();
    command.extend(words(["-m", "profiling.sampling", "replay", "--jsonl", "-o", "/dev/null"]));
    command.push(profiles.plain.into());
    let run = measure::run(&command, folder)?;
    Ok(Some(REPLAY_SAMPLES as f64 / run.seconds / 1e6))
}

/// Peak memory beside the number of samples.
fn memory(folder: &Path) -> Result<()> {
    let mut sizes = vec![1_000_000, 5_000_000];
    if number_of("BENCH_LARGE", 0)? != 0 {
        sizes.push(20_000_000);
    }
    println!("\nPeak memory in MiB, one run each\n");
    let heads = sizes.iter().map(|size| format!("{} M samples", size / 1_000_000));
    row(&["profile".to_string(), "case".to_string()].into_iter().chain(heads).collect::<Vec<_>>());
    println!("| --- | --- |{}", " ---: |".repeat(sizes.len()));
    for kind in [CHURNY, CALM] {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for size in &sizes {
            let profiles = generate::profiles(kind, *size, folder)?;
            for (index, case) in cases(kind, &profiles, folder)?.into_iter().enumerate() {
                if rows.len() == index {
                    rows.push(vec![kind.name.to_string(), case.name.to_string()]);
                }
                rows[index].push(usages(&[measure::run(&case.command, folder)?], peak_mib, 1));
            }
        }
        rows.iter().for_each(|cells| row(cells));
    }
    Ok(())
}

fn peak_mib(usage: Usage) -> f64 {
    usage.peak_kib as f64 / 1024.0
}

/// The median of a quantity that not every system tells.
fn usages(runs: &[Run], quantity: impl Fn(Usage) -> f64, digits: usize) -> String {
    let values: Option<Vec<f64>> = runs.iter().map(|run| run.usage.map(&quantity)).collect();
    values.map_or("-".to_string(), |values| format!("{:.digits$}", median(values)))
}

fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}
