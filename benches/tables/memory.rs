//! Peak memory and speed by the number of samples.

use crate::generate::{CALM, CHURNY};
use crate::measure;
use crate::tables::speed::{cases, peak_mib, usages};
use crate::{Result, Setting, head, number_of, row};

pub fn table(setting: &Setting) -> Result<()> {
    let mut sizes = vec![1_000_000, 5_000_000];
    if number_of("BENCH_LARGE")?.is_some_and(|large| large != 0) {
        sizes.extend([20_000_000, 80_000_000]);
    }
    let heads = sizes.iter().map(|size| format!("{} M samples", size / 1_000_000));
    let heads: Vec<String> = ["profile", "case"].map(String::from).into_iter().chain(heads).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    head("Peak memory in MiB, and CPU nanoseconds a sample, one run each", 2, &heads);
    for kind in [CHURNY, CALM] {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for size in &sizes {
            for (index, case) in cases(kind, *size, &setting.folder)?.into_iter().enumerate() {
                if rows.len() == index {
                    rows.push(vec![kind.name.to_string(), case.name.to_string()]);
                }
                let run = [measure::run(&case.command, &setting.folder)?];
                let peak = usages(&run, peak_mib, 1);
                let time = usages(&run, |usage| usage.cpu_seconds / *size as f64 * 1e9, 0);
                rows[index].push(format!("{peak}, {time}"));
            }
        }
        rows.iter().for_each(|cells| row(cells));
    }
    Ok(())
}
