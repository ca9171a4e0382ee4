//! Writes snapshots of a ring, one at a time, in parallel with the recording.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::args::Record as Args;
use crate::cli::io::Target;
use crate::cli::net::Network;
use crate::cli::record::control::{check_plain, failed};
use crate::cli::record::profiles::is_profile;
use crate::cli::record::recording::stream_options;
use crate::cli::record::ring::{RingContents, whole_span};
use crate::cli::record::ring_file::is_ring_file;
use crate::cli::record::stream::Stream;
use crate::cli::ui::messages::Messages;
use crate::convert::RunStream;
use crate::error::{Error, Result};
use crate::format::{Framing, Profile};
use crate::model::TimeSpan;

/// A snapshot that was asked for.
pub(crate) struct Wanted {
    pub path: PathBuf,
    pub contents: RingContents,
    /// Who waits for the answer.
    pub reply: Option<Sender<String>>,
}

/// The thread that writes snapshots.
pub(crate) struct Snapshots {
    queue: Sender<Wanted>,
    /// Whether all that nobody waited for were written.
    thread: JoinHandle<bool>,
}

impl Snapshots {
    pub fn start(args: &Args, network: &Network, messages: Messages) -> std::io::Result<Self> {
        let (queue, wanted) = mpsc::channel::<Wanted>();
        let (args, network) = (args.clone(), network.clone());
        let thread = std::thread::Builder::new().spawn(move || {
            let mut all_written = true;
            for Wanted { path, contents, reply } in wanted {
                let (is_written, told) = answer(&args, &network, messages, &path, &contents);
                match reply {
                    // One who has gone needs no answer.
                    Some(reply) => drop(reply.send(told)),
                    None => all_written &= is_written,
                }
            }
            all_written
        })?;
        Ok(Snapshots { queue, thread })
    }

    /// Has a snapshot written after those that were asked for before.
    pub fn want(&self, wanted: Wanted) {
        // The thread ends after the queue.
        let _ = self.queue.send(wanted);
    }

    /// Waits until all are written. Returns whether those were that nobody waited for.
    pub fn finish(self) -> bool {
        drop(self.queue);
        self.thread.join().unwrap_or(false)
    }
}

/// Writes a snapshot, and returns whether it could and how it went.
fn answer(
    args: &Args,
    network: &Network,
    messages: Messages,
    path: &Path,
    contents: &RingContents,
) -> (bool, String) {
    let samples: u64 = contents.chunks.iter().map(|(summary, _)| summary.samples).sum();
    let span = whole_span(contents.chunks.iter().map(|(summary, _)| summary));
    let name = path.display().to_string();
    match write(args, network, &messages, path, contents) {
        Ok(()) => {
            let dropped = contents.dropped;
            messages.note(
                &name,
                &format!(
                    "{samples} samples in {} chunks; {} samples in {} chunks had gone before",
                    contents.chunks.len(),
                    dropped.samples,
                    dropped.chunks
                ),
            );
            let told = json!({
                "ok": true,
                "path": name,
                "chunks": contents.chunks.len(),
                "samples": samples,
                "start_usec": span.map(|span| span.first_us),
                "duration_usec": span.map(TimeSpan::duration_us),
                "gone_chunks": dropped.chunks,
                "gone_samples": dropped.samples,
            });
            (true, told.to_string())
        }
        Err(error) => {
            messages.error(&error);
            (false, failed(&error.to_string()))
        }
    }
}

fn write(
    args: &Args,
    network: &Network,
    messages: &Messages,
    path: &Path,
    contents: &RingContents,
) -> Result<()> {
    let target = Target::File(path.to_path_buf());
    let named = |error: Error| error.within(&target.name());
    // It was one when it was asked for, perhaps.
    check_plain(path)?;
    if contents.chunks.is_empty() {
        return Err(named(Error::profile("the ring holds no chunk yet")));
    }
    if is_ring_file(path) {
        return Err(named(Error::usage("that is a ring file, and it is not written over")));
    }
    if is_profile(path) {
        let mut output = target.open(Duration::ZERO).map_err(named)?;
        for (_, chunk) in &contents.chunks {
            output.write_all(chunk).map_err(|error| named(error.into()))?;
        }
        return output.commit().map_err(named);
    }
    let targets = std::slice::from_ref(&target);
    let mut snapshot = Stream::open(targets, args, network, messages, None)?;
    for run in contents.chunks.chunk_by(|(a, _), (b, _)| a.run_id == b.run_id) {
        let mut stream = RunStream::new(Framing::Chunks, stream_options(args, &run[0].0.run_id)?);
        for (_, chunk) in run {
            let mut profile = Profile::open(Cursor::new(chunk.as_slice()))?;
            snapshot.write_hidden(|written| stream.profile(&mut profile, written))?;
        }
        snapshot.write_hidden(|written| stream.finish(written).map(drop))?;
    }
    snapshot.commit().map(drop)
}

/// The file of the snapshot of this number, by the pattern: `{}` in it becomes time and number, which
/// otherwise stand before the ending.
pub(crate) fn file_of(pattern: &Path, number: u64) -> PathBuf {
    let now = OffsetDateTime::now_utc();
    let whole = now.replace_nanosecond(0).unwrap_or(now);
    let time = whole.format(&Rfc3339).unwrap_or_default().replace(['-', ':'], "");
    let mark = format!("{time}-{number}");
    let name = pattern.file_name().unwrap_or_default().to_string_lossy();
    let marked = if name.contains("{}") {
        name.replace("{}", &mark)
    } else {
        match name.split_once('.') {
            Some((stem, shutdown)) if !stem.is_empty() => format!("{stem}-{mark}.{shutdown}"),
            _ => format!("{name}-{mark}"),
        }
    };
    pattern.with_file_name(marked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_number_stand_where_the_pattern_says_or_before_the_ending() {
        for (pattern, start, end) in [
            ("a/app-{}.bin", "app-", "-7.bin"),
            ("a/app.bin", "app-", "-7.bin"),
            ("a/app.jsonl.zst", "app-", "-7.jsonl.zst"),
            ("a/app", "app-", "-7"),
            ("a/.app", ".app-", "-7"),
        ] {
            let path = file_of(Path::new(pattern), 7);
            assert_eq!(path.parent(), Some(Path::new("a")));
            let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
            let time = name.strip_prefix(start).and_then(|name| name.strip_suffix(end));
            let is_time = |time: &str| time.len() == 16 && time.starts_with("20") && time.ends_with('Z');
            assert!(time.is_some_and(is_time), "{pattern}: {name}");
        }
    }
}
