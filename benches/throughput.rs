//! How fast the command is, how much memory it takes, how large streams are: see `benches/README.md`.

mod generate;
mod measure;
mod tables;

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use generate::Kind;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tachyon-jsonl");
const PAIRS: u64 = 5;

/// What all tables are made with.
struct Setting {
    /// Samples of the profiles in place of their own number, but for the table about memory.
    samples: Option<u64>,
    /// Runs of each case, each next to one of what it is compared with.
    pairs: u64,
    /// Where profiles and streams are.
    folder: PathBuf,
    /// The words of a command that runs CPython 3.15.
    python: Option<Vec<OsString>>,
}

fn main() -> Result<()> {
    // `cargo test --benches` comes here too, and wants no measuring.
    let asked = env::args().any(|word| word == "--bench") && env::args().all(|word| word != "--test");
    if !asked {
        return Ok(());
    }
    let setting = Setting {
        samples: number_of("BENCH_SAMPLES")?,
        pairs: number_of("BENCH_PAIRS")?.unwrap_or(PAIRS).max(1),
        folder: Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench-data"),
        python: env::var("PYTHON315")
            .ok()
            .map(|words| words.split_whitespace().map(OsString::from).collect()),
    };
    fs::create_dir_all(&setting.folder)?;
    let chosen = env::var("BENCH_TABLES").ok();
    for (name, table) in tables::ALL {
        if chosen.as_ref().is_none_or(|chosen| chosen.split(',').any(|other| other == name)) {
            table(&setting)?;
            println!();
        }
    }
    Ok(())
}

impl Setting {
    fn samples(&self, kind: Kind) -> u64 {
        self.samples.unwrap_or(kind.samples)
    }
}

fn number_of(variable: &str) -> Result<Option<u64>> {
    match env::var(variable) {
        Ok(text) => Ok(Some(text.parse().map_err(|fault| format!("{variable}={text}: {fault}"))?)),
        Err(_) => Ok(None),
    }
}

/// The command with these words; `file` goes last.
fn command(words: &[&str], file: &Path) -> Vec<OsString> {
    let words = [PROGRAM].iter().chain(words).map(OsString::from);
    words.chain([file.into()]).collect()
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

/// A table's title and head; all but the first columns hold numbers.
fn head(title: &str, words: usize, cells: &[&str]) {
    println!("{title}\n");
    println!("| {} |", cells.join(" | "));
    let lines = cells.iter().enumerate().map(|(at, _)| if at < words { "---" } else { "---:" });
    println!("| {} |", lines.collect::<Vec<_>>().join(" | "));
}

fn row<S: AsRef<str>>(cells: &[S]) {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    println!("| {} |", cells.join(" | "));
}
