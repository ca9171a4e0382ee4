//! Streams into columns and records, compared with simdjson and zstd alone.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tachyon_jsonl::protocol::{RawColumns, decode};

use crate::generate::{self, CALM, CHURNY, Kind};
use crate::measure::{self, median};
use crate::tables::speed::cases;
use crate::{Result, Setting, head, row};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/simdjson/columns.cpp");
/// CPython's.
const LEVEL: i32 = 5;

pub fn table(setting: &Setting) -> Result<()> {
    let title = format!(
        "Parsing: the raw lines of {} (churny) and {} (calm) samples, one thread, medians of {} rounds in turns",
        setting.samples(CHURNY),
        setting.samples(CALM),
        setting.pairs
    );
    let simdjson = simdjson(&setting.folder);
    head(&title, 2, &["profile", "case", "MB/s of text", "simdjson's", "zstd -5's"]);
    for kind in [CHURNY, CALM] {
        let rounds = Rounds::run(kind, setting, simdjson.as_deref())?;
        let simdjson = rounds.simdjson.clone();
        rounds.row(kind, "simdjson on demand (C++, typed), parsing", &simdjson);
        rounds.row(kind, "decode, parsing", &rounds.decode);
        rounds.row(kind, "to-bin --compression none, whole process", &rounds.plain);
        rounds.row(kind, "zstd -5 of the region, in memory", &rounds.zstd);
        rounds.row(kind, "to-bin, zstd, 2 threads, whole process", &rounds.packed);
    }
    Ok(())
}

/// Seconds of each round.
#[derive(Default)]
struct Rounds {
    bytes: usize,
    simdjson: Vec<f64>,
    decode: Vec<f64>,
    plain: Vec<f64>,
    zstd: Vec<f64>,
    packed: Vec<f64>,
}

impl Rounds {
    fn run(kind: Kind, setting: &Setting, simdjson: Option<&Path>) -> Result<Self> {
        let cases = cases(kind, setting.samples(kind), &setting.folder)?;
        let case = |name| cases.iter().find(|case| case.name == name).ok_or("no such case");
        let plain = case("to-bin --compression none")?;
        let packed = case("to-bin, zstd, 2 threads")?;
        let region =
            region(&fs::read(generate::profiles(kind, setting.samples(kind), &setting.folder)?.plain)?)?;
        let text = fs::read(&plain.text)?;
        let mut rounds = Rounds { bytes: text.len(), ..Rounds::default() };
        for _ in 0..setting.pairs {
            if let Some(program) = simdjson {
                rounds.simdjson.push(seconds_of(program, &plain.text)?);
            }
            rounds.decode.push(decoded(&text)?);
            rounds.plain.push(measure::run(&plain.command, &setting.folder)?.seconds);
            let start = Instant::now();
            black_box(zstd::encode_all(&region[..], LEVEL)?);
            rounds.zstd.push(start.elapsed().as_secs_f64());
            rounds.packed.push(measure::run(&packed.command, &setting.folder)?.seconds);
        }
        Ok(rounds)
    }

    fn row(&self, kind: Kind, name: &str, seconds: &[f64]) {
        if seconds.is_empty() {
            return;
        }
        let ratio = |others: &[f64]| {
            let pairs = others.iter().zip(seconds);
            if others.is_empty() {
                return "-".to_string();
            }
            format!("{:.2}", median(pairs.map(|(other, this)| other / this)))
        };
        let speed = self.bytes as f64 / median(seconds.iter().copied()) / 1e6;
        let cells = [format!("{speed:.0}"), ratio(&self.simdjson), ratio(&self.zstd)];
        row(&[&[kind.name.to_string(), name.to_string()], &cells[..]].concat());
    }
}

/// The sample region of a plain profile: from the end of its header to its strings.
fn region(profile: &[u8]) -> Result<Vec<u8>> {
    let strings_at = profile.get(40..48).ok_or("no profile")?;
    Ok(profile[64..u64::from_le_bytes(strings_at.try_into()?) as usize].to_vec())
}

/// Seconds for the raw lines of `text`.
fn decoded(text: &[u8]) -> Result<f64> {
    let mut lines: Vec<Vec<u8>> = text
        .split(|byte| *byte == b'\n')
        .filter(|line| line.starts_with(b"{\"type\":\"raw\""))
        .map(<[u8]>::to_vec)
        .collect();
    let mut columns = RawColumns::default();
    let start = Instant::now();
    for line in &mut lines {
        decode(line, &mut columns)?;
        black_box(&columns);
    }
    Ok(start.elapsed().as_secs_f64())
}

/// The program that reads streams with simdjson, built where its library and a compiler are.
fn simdjson(folder: &Path) -> Option<PathBuf> {
    let program = folder.join("simdjson-columns");
    let built = Command::new("c++")
        .args(["-O3", "-march=native", "-std=c++17", "-o"])
        .arg(&program)
        .arg(SOURCE)
        .arg("-lsimdjson")
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("no simdjson in the table: it needs a C++ compiler and libsimdjson-dev");
        return None;
    }
    Some(program)
}

/// Seconds that the program prints for one round.
fn seconds_of(program: &Path, text: &Path) -> Result<f64> {
    let output = Command::new(program).arg(text).arg("1").stderr(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(format!("{}: {}", program.display(), output.status).into());
    }
    Ok(std::str::from_utf8(&output.stdout)?.trim().parse()?)
}
