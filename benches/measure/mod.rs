//! Whole processes, measured from outside.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// GNU time: tells the processor time and the peak memory of one process.
const GNU_TIME: &str = "/usr/bin/time";

/// What one run of a process took.
#[derive(Clone, Copy)]
pub struct Run {
    /// From its start until its output was read and it was gone.
    pub seconds: f64,
    /// Bytes of its standard output.
    pub bytes: u64,
    /// `None` without GNU time.
    pub usage: Option<Usage>,
}

#[derive(Clone, Copy)]
pub struct Usage {
    /// User and system together.
    pub cpu_seconds: f64,
    pub peak_kib: u64,
}

/// Runs a command and reads all that it writes.
pub fn run(command: &[OsString], folder: &Path) -> Result<Run, Box<dyn Error>> {
    let report = folder.join("usage");
    let mut words = Vec::new();
    if Path::new(GNU_TIME).exists() {
        words.extend([GNU_TIME, "-f", "%U %S %M", "-o"].map(OsStr::new));
        words.push(report.as_os_str());
    }
    words.extend(command.iter().map(OsString::as_os_str));
    let (seconds, bytes) = timed(&words)?;
    let usage = (words.len() > command.len()).then(|| usage(&report)).transpose()?;
    Ok(Run { seconds, bytes, usage })
}

/// Seconds of a run without anything around it.
pub fn bare(command: &[OsString]) -> Result<f64, Box<dyn Error>> {
    let words: Vec<&OsStr> = command.iter().map(OsString::as_os_str).collect();
    Ok(timed(&words)?.0)
}

/// Seconds of a run, and the bytes that it wrote.
fn timed(words: &[&OsStr]) -> Result<(f64, u64), Box<dyn Error>> {
    let start = Instant::now();
    let mut child =
        Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut bytes = 0;
    if let Some(mut output) = child.stdout.take() {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match output.read(&mut buffer)? {
                0 => break,
                length => bytes += length as u64,
            }
        }
    }
    let status = child.wait()?;
    let seconds = start.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("{words:?}: {status}").into());
    }
    Ok((seconds, bytes))
}

fn usage(report: &Path) -> Result<Usage, Box<dyn Error>> {
    let text = fs::read_to_string(report)?;
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [user, system, peak] = fields[..] else { return Err(format!("GNU time says {text:?}").into()) };
    Ok(Usage { cpu_seconds: user.parse::<f64>()? + system.parse::<f64>()?, peak_kib: peak.parse()? })
}

/// The middle one; the upper of the two middle ones.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
