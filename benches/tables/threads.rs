//! What a sample costs where many threads sit still, compared with few.

use std::ffi::OsString;

use crate::generate::pool;
use crate::measure::{self, Usage};
use crate::tables::speed::{peak_mib, usages};
use crate::{Result, Setting, command, head, length, row};

/// Samples of each profile.
const SAMPLES: u64 = 5_000_000;

/// Each command on the profiles in turns.
pub fn table(setting: &Setting) -> Result<()> {
    let Setting { pairs, folder, .. } = setting;
    let samples = setting.samples.unwrap_or(SAMPLES);
    let title =
        format!("Idle threads: {samples} samples of a pool and one busy thread, medians of {pairs} runs");
    let heads = [
        "threads",
        "line limit",
        "bytes a sample",
        "from-bin, CPU ns a sample",
        "check",
        "to-bin",
        "peak MiB of the three",
    ];
    head(&title, 1, &heads);
    for threads in [8, 64, 1000, 10_000] {
        let profile = pool(threads, samples, folder)?;
        for limit in ["65535", "8k"] {
            let stream = folder.join(format!("pool-{threads}-{limit}.jsonl"));
            let from = command(&["from-bin", "--max-line", limit], &profile);
            let mut make = from.clone();
            make.extend(["-o".into(), stream.clone().into()]);
            measure::run(&make, folder)?;
            let again = OsString::from(folder.join("pool-again.bin"));
            let mut to = command(&["to-bin"], &stream);
            to.extend(["-o".into(), again]);
            let commands = [from, command(&["check"], &stream), to];
            let mut runs = [const { Vec::new() }; 3];
            for _ in 0..*pairs {
                for (runs, command) in runs.iter_mut().zip(&commands) {
                    runs.push(measure::run(command, folder)?);
                }
            }
            let time = |usage: Usage| usage.cpu_seconds / samples as f64 * 1e9;
            let mut cells = vec![
                threads.to_string(),
                limit.to_string(),
                format!("{:.1}", length(&stream) as f64 / samples as f64),
            ];
            cells.extend(runs.iter().map(|runs| usages(runs, time, 0)));
            cells.push(runs.each_ref().map(|runs| usages(runs, peak_mib, 0)).join(", "));
            row(&cells);
        }
    }
    Ok(())
}
