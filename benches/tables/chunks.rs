//! What chunks cost, in bytes and in time, compared with one profile in one piece.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::generate::{self, CALM, CHURNY};
use crate::measure::{self, median};
use crate::{Result, Setting, command, head, length, row};

/// Each layout of the same stream, in turns with version 1.
pub fn table(setting: &Setting) -> Result<()> {
    let Setting { pairs, folder, .. } = setting;
    let title =
        format!("Chunks: a stream to a file and back, medians of {pairs} runs beside one of version 1");
    let heads = [
        "profile",
        "layout",
        "chunks",
        "MB",
        "size / v1's",
        "to-bin time / v1's",
        "from-bin raw time / v1's",
    ];
    head(&title, 2, &heads);
    for kind in [CHURNY, CALM] {
        let profiles = generate::profiles(kind, setting.samples(kind), folder)?;
        let stream = folder.join(format!("{}-chunked.jsonl", kind.name));
        let mut make = command(&["from-bin", "--stream-types", "raw"], &profiles.plain);
        make.extend(["-o".into(), stream.clone().into()]);
        measure::run(&make, folder)?;
        let whole = Layout::new(&[], &stream, folder.join(format!("{}-v1.bin", kind.name)));
        for interval in [None, Some("180s"), Some("10s"), Some("1s")] {
            let flush = interval.map(|interval| format!("interval:{interval}"));
            let options: Vec<&str> =
                flush.as_deref().map_or_else(Vec::new, |flush| vec!["--layout", "v2", "--flush", flush]);
            let name = interval.unwrap_or("v1");
            let layout = Layout::new(&options, &stream, folder.join(format!("{}-{name}.bin", kind.name)));
            let (mut to, mut from) = (Vec::new(), Vec::new());
            for _ in 0..*pairs {
                to.push(ratio(&layout.write, &whole.write, folder)?);
                from.push(ratio(&layout.read, &whole.read, folder)?);
            }
            row(&[
                kind.name.to_string(),
                interval.map_or("v1".to_string(), |interval| format!("v2, {interval}")),
                interval.map_or(Ok(1), |_| layout.chunks())?.to_string(),
                format!("{:.1}", length(&layout.file) as f64 / 1e6),
                format!("{:.3}", length(&layout.file) as f64 / length(&whole.file) as f64),
                format!("{:.2}", median(to)),
                format!("{:.2}", median(from)),
            ]);
        }
    }
    Ok(())
}

struct Layout {
    write: Vec<OsString>,
    read: Vec<OsString>,
    file: PathBuf,
}

impl Layout {
    fn new(options: &[&str], stream: &Path, file: PathBuf) -> Self {
        let mut write = command(&["to-bin"], stream);
        write.extend(["-o".into(), file.clone().into()]);
        write.extend(options.iter().map(OsString::from));
        let read = command(&["from-bin", "--stream-types", "raw"], &file);
        Layout { write, read, file }
    }

    /// How many chunks there are, by the sizes in their headers.
    fn chunks(&self) -> Result<u64> {
        let bytes = std::fs::read(&self.file)?;
        let (mut at, mut chunks) = (0, 0);
        while let Some(size) = bytes.get(at + 56..at + 64) {
            at += u64::from_le_bytes(size.try_into()?) as usize;
            chunks += 1;
        }
        Ok(chunks)
    }
}

fn ratio(command: &[OsString], other: &[OsString], folder: &Path) -> Result<f64> {
    let seconds = measure::run(command, folder)?.seconds;
    Ok(seconds / measure::run(other, folder)?.seconds)
}
