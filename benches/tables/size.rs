//! Bytes a sample.

use std::fs;

use crate::generate::{CALM, CHURNY};
use crate::tables::speed::cases;
use crate::{Result, Setting, head, row};

/// What CPython's developers packed streams with when they compared them.
const LEVEL: i32 = 3;

pub fn table(setting: &Setting) -> Result<()> {
    head(
        "Size: bytes a sample of all lines, default line limit",
        2,
        &["profile", "types", "JSONL", "zstd -3"],
    );
    for kind in [CHURNY, CALM] {
        let cases = cases(kind, setting.samples(kind), &setting.folder)?;
        for (types, case) in
            [("raw", "from-bin raw, 1 thread"), ("default", "from-bin, default types, 1 thread")]
        {
            let Some(case) = cases.iter().find(|other| other.name == case) else { continue };
            let text = fs::read(&case.text)?;
            let packed = zstd::encode_all(&text[..], LEVEL)?;
            let a_sample = |bytes: usize| format!("{:.2}", bytes as f64 / setting.samples(kind) as f64);
            row(&[kind.name, types, &a_sample(text.len()), &a_sample(packed.len())]);
        }
    }
    Ok(())
}
