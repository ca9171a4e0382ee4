//! Beside CPython's own replay of the same samples.

use std::ffi::OsString;

use crate::generate::{self, CALM, CHURNY, Kind};
use crate::measure::{self, median};
use crate::{Result, Setting, command, head, row};

/// A replay that does nothing with the samples.
const NO_OP: &str = "
import sys
from profiling.sampling.binary_reader import BinaryReader
from profiling.sampling.collector import Collector
class Nothing(Collector):
    def collect(self, stack_frames, timestamps_us=None): pass
    def collect_failed_sample(self): pass
    def export(self, filename): pass
with BinaryReader(sys.argv[1]) as reader:
    reader.replay_samples(Nothing())
";
/// Names, words, whether the profile is packed.
const OURS: [(&str, &[&str], bool); 5] = [
    ("from-bin --schema cpython", &["from-bin", "--schema", "cpython"], false),
    ("from-bin agg:5s", &["from-bin", "--stream-types", "agg:5s"], false),
    ("from-bin agg:5s, zstd profile", &["from-bin", "--stream-types", "agg:5s"], true),
    ("from-bin raw", &["from-bin", "--stream-types", "raw"], false),
    ("from-bin, default types", &["from-bin"], false),
];

pub fn table(setting: &Setting) -> Result<()> {
    let Some(python) = &setting.python else {
        eprintln!("no table beside CPython: PYTHON315 names no command");
        return Ok(());
    };
    let title = format!(
        "Beside CPython: samples a second, ours as medians of {} runs on {} (churny) and {} (calm); CPython's no-op replay once on as many, its exporters once on {} and {}",
        setting.pairs,
        setting.samples(CHURNY),
        setting.samples(CALM),
        CHURNY.exported,
        CALM.exported
    );
    let heads = ["profile", "case", "M samples/s", "no-op replay's", "replay --jsonl's", "replay --gecko's"];
    head(&title, 2, &heads);
    for kind in [CHURNY, CALM] {
        let no_op = no_op(python, kind, setting)?;
        let [jsonl, gecko] = ["--jsonl", "--gecko"].map(|format| export(python, kind, format, setting));
        let (jsonl, gecko) = (jsonl?, gecko?);
        for (name, speed) in [("no-op replay", no_op), ("replay --jsonl", jsonl), ("replay --gecko", gecko)] {
            row(&[kind.name, &format!("CPython's {name}"), &format!("{speed:.3}"), "-", "-", "-"]);
        }
        let profiles = generate::profiles(kind, setting.samples(kind), &setting.folder)?;
        for (name, words, is_packed) in OURS {
            let command = command(words, if is_packed { &profiles.zstd } else { &profiles.plain });
            let seconds = (0..setting.pairs).map(|_| measure::bare(&command));
            let seconds = seconds.collect::<Result<Vec<_>>>()?;
            let speed = speed(setting.samples(kind), median(seconds));
            row(&[
                kind.name.to_string(),
                name.to_string(),
                format!("{speed:.1}"),
                format!("{:.0}", speed / no_op),
                format!("{:.0}", speed / jsonl),
                format!("{:.0}", speed / gecko),
            ]);
        }
    }
    Ok(())
}

/// Million samples a second.
fn speed(samples: u64, seconds: f64) -> f64 {
    samples as f64 / seconds / 1e6
}

fn no_op(python: &[OsString], kind: Kind, setting: &Setting) -> Result<f64> {
    let profiles = generate::profiles(kind, setting.samples(kind), &setting.folder)?;
    let command = [python, &["-c".into(), NO_OP.into(), profiles.plain.into()]].concat();
    Ok(speed(setting.samples(kind), measure::bare(&command)?))
}

fn export(python: &[OsString], kind: Kind, format: &str, setting: &Setting) -> Result<f64> {
    let profiles = generate::profiles(kind, kind.exported, &setting.folder)?;
    let out = setting.folder.join("exported");
    let words = ["-m", "profiling.sampling", "replay", format, "-o"].map(OsString::from);
    let command = [python, &words[..], &[out.into(), profiles.plain.into()]].concat();
    Ok(speed(kind.exported, measure::bare(&command)?))
}
