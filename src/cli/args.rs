//! The command line's arguments.

mod record;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use time::OffsetDateTime;
use time::error::ParseFromDescription::InvalidComponent;
use time::error::{Parse, TryFromParsed};
use time::format_description::well_known::Rfc3339;

use crate::convert::Flush;
use crate::format::Packing;
use crate::protocol::{StreamTypes, parse_duration};
pub(crate) use record::{Record, RingLimits, Snapshot};

/// CPython 3.15's sampling profiles as a columnar JSON Lines stream, and back.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  python3.15 -m profiling.sampling run --binary -o prof.bin script.py
  tachyon-jsonl from-bin prof.bin | jq -c 'select(.type == \"agg\")'
  tachyon-jsonl from-bin prof.bin --stream-types raw,agg:5s,loss -o prof.jsonl
  tachyon-jsonl to-bin < prof.jsonl > again.bin

Exit status: 0 success; 1 failure, nothing usable was written; 2 wrong usage; 3 data was lost or damaged, \
and the rest was written.")]
pub(crate) struct Args {
    /// Do not print warnings; errors are still printed
    #[arg(short, long, global = true)]
    pub quiet: bool,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Convert binary profiles to a stream
    FromBin(Box<FromBin>),
    /// Convert a stream to a binary profile
    ToBin(Box<ToBin>),
    /// Summarize a profile or a stream
    Inspect(Inspect),
    /// Check a stream against the protocol
    Check(Check),
    /// Compare two profiles or streams, frame by frame
    Diff(Diff),
    /// Convert CPython's own JSON Lines to a stream
    Upgrade(Upgrade),
    /// Save the intact part of a torn or damaged profile
    Recover(Recover),
    /// Profile a program with CPython 3.15, streaming while it runs
    Record(Box<Record>),
    /// Ask a recorder to write its ring to a file
    Snapshot(Snapshot),
    /// Print the JSON Schema of the stream
    Schema,
    /// Print the manual pages
    Man {
        /// Folder to write to, with one page for each command; without it the main page is printed
        folder: Option<PathBuf>,
    },
    /// Print a completion script
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tachyon-jsonl from-bin prof.bin | jq -c 'select(.type == \"raw\")'
  tachyon-jsonl from-bin prof.bin --stream-types raw,agg:5s,loss -o prof.jsonl
  tachyon-jsonl from-bin prof.bin --flush interval:10s,samples:50000 --max-line 30k
  tachyon-jsonl from-bin live.bin --follow --stream-types raw,agg:5s,heartbeat:1s
  tachyon-jsonl from-bin live.bin --follow -o all.jsonl -o tcp-listen:4000 -o ws-listen:4001")]
pub(crate) struct FromBin {
    /// Profiles, one run each; standard input if omitted or '-'
    pub inputs: Vec<PathBuf>,

    /// Where to write: a path (compressed if it ends in .zst), '-' or an address; may be repeated
    #[arg(short, long, value_name = "TARGET")]
    pub output: Vec<PathBuf>,

    /// Message types to write, such as raw,agg:5s,heartbeat:1s,loss; -TYPE removes one from the default, as in -agg
    #[arg(long, value_name = "LIST", allow_hyphen_values = true, value_parser = |list: &str| list.parse::<StreamTypes>())]
    pub stream_types: Option<StreamTypes>,

    /// When to close a batch: interval:DURATION, samples:N, chunk, or several of them, whichever comes first
    /// [default: chunk for chunked profiles, samples:262144 for others]
    #[arg(long, value_name = "LIMITS", value_parser = parse_batches)]
    pub flush: Option<Flush>,

    /// Run id: auto (derived from the profile's content), random, or an id of your own
    #[arg(long, value_name = "ID", default_value = "auto", allow_hyphen_values = true)]
    pub run_id: String,

    /// Schema of the stream: our version 2, or that of CPython 3.15's replay --jsonl, which is a single
    /// table of counts without samples
    #[arg(long, value_name = "SCHEMA", default_value = "2")]
    pub schema: Schema,

    #[command(flatten)]
    pub written: Written,

    /// Longest line, including its line feed: in bytes, or with the suffix k or m
    #[arg(long, value_name = "BYTES", default_value = "65535", value_parser = parse_size)]
    pub max_line: usize,

    /// Number of worker threads; the output does not depend on it [default: one per core]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,

    /// Date and time when the run began, which profiles do not record: RFC 3339 with an offset (a leap second
    /// is the end of the second before it), or Unix seconds such as those of date +%s.%N
    #[arg(long, value_name = "TIME", value_parser = parse_wall)]
    pub wall_start: Option<i64>,

    /// Label to add to every meta message; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,

    /// Keep reading a chunked profile while it is being written, until SIGINT, SIGTERM or SIGHUP; it may not
    /// exist yet
    #[arg(long)]
    pub follow: bool,

    /// Refuse a profile with any fault or irregularity
    #[arg(long)]
    pub strict: bool,

    #[command(flatten)]
    pub live: Live,

    #[command(flatten)]
    pub access: Access,
}

/// How the readers of a live stream are treated.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Readers")]
pub(crate) struct Live {
    /// What to do when a reader is slow: drop its oldest messages and report the loss to it, or make the
    /// stream wait [default: oldest for sockets of --follow and record, otherwise block]
    #[arg(long, value_name = "POLICY")]
    pub drop_policy: Option<DropPolicy>,

    /// Size of the queue for each reader, at least 64k: in bytes, or with the suffix k, m or g
    #[arg(long, value_name = "BYTES", default_value = "64m", value_parser = parse_buffer)]
    pub buffer: usize,

    /// Disconnect a reader that takes nothing for this long while data waits for it; also how long to wait for a
    /// server to connect to, or for the reader of a named pipe
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub stall_timeout: Duration,

    /// Number of readers to wait for before the start [default: 1; 0 with --follow and record]
    #[arg(long, value_name = "READERS")]
    pub wait_readers: Option<usize>,

    /// Largest number of simultaneous readers of the listening addresses
    #[arg(long, value_name = "READERS", default_value = "64", value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    pub max_readers: usize,
}

/// What happens when a reader is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DropPolicy {
    Oldest,
    Block,
}

/// Who may connect, and how we show that we may.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Sockets (unix:PATH tcp:HOST:PORT ws:HOST:PORT; unix-listen:PATH to listen)")]
pub(crate) struct Access {
    /// Secret that listening TCP and WebSocket addresses ask for and that outgoing connections send; required
    /// to listen on an address that other machines can reach. Arguments are visible to other users: prefer
    /// --token-file or the variable TACHYON_JSONL_TOKEN
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    pub token: Option<Hidden>,

    /// File that contains the secret
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Text that is not to be seen in messages.
#[derive(Clone)]
pub(crate) struct Hidden(String);

impl Hidden {
    pub fn shown(&self) -> &str {
        &self.0
    }
}

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Hidden(text)
    }
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden")
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tachyon-jsonl to-bin < prof.jsonl > again.bin
  tachyon-jsonl to-bin prof.jsonl.zst -o again.bin --compression none
  tachyon-jsonl to-bin prof.jsonl -o chunks.bin --layout v2 --flush interval:180s
  python3.15 -m profiling.sampling replay again.bin --flamegraph")]
pub(crate) struct ToBin {
    /// A stream, which may be compressed with zstd or gzip; standard input if omitted or '-'
    pub input: Option<PathBuf>,

    /// Where to write: a path, '-' or an address
    #[arg(short, long, value_name = "TARGET")]
    pub output: Option<PathBuf>,

    /// v1: one profile as CPython 3.15 writes it; v2: chunks, so that a crash costs only the last one [default: v1]
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<Layout>,

    /// binary: length-prefixed chunks, as from-bin and record send them to sockets
    #[arg(long, value_name = "FORMAT", conflicts_with = "layout")]
    format: Option<Framed>,

    /// The same as --format binary
    #[arg(long, conflicts_with_all = ["layout", "format"])]
    binary: bool,

    /// When to close a chunk: interval:DURATION, samples:N or both, whichever comes first
    /// [default: interval:10s]
    #[arg(long, value_name = "LIMITS", value_parser = parse_flush)]
    pub flush: Option<Flush>,

    /// Compression of the samples: zstd, zstd:LEVEL or none
    #[arg(long, value_name = "HOW", default_value = "zstd", value_parser = parse_packing)]
    pub compression: Packing,

    /// Number of worker threads; the output does not depend on it [default: one per core]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,

    /// The run to convert, if the stream has several
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub run_id: Option<String>,

    /// Refuse a stream with any fault or irregularity
    #[arg(long)]
    pub strict: bool,

    #[command(flatten)]
    pub live: Live,

    #[command(flatten)]
    pub access: Access,
}

impl ToBin {
    pub fn layout(&self) -> Layout {
        match self.layout {
            _ if self.binary || self.format.is_some() => Layout::Framed,
            layout => layout.unwrap_or(Layout::V1),
        }
    }
}

/// Whose messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Schema {
    #[value(name = "2")]
    Own,
    Cpython,
}

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Jsonl,
    Msgpack,
    /// Length-prefixed chunks of a profile
    Binary,
}

/// How a stream is written.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Written {
    /// Output format: JSON Lines, the same messages as length-prefixed MessagePack, or the samples as
    /// length-prefixed chunks of a binary profile, which from-bin can read at the other end
    #[arg(long, value_name = "FORMAT", default_value = "jsonl")]
    format: Format,

    /// The same as --format binary
    #[arg(long, conflicts_with = "format")]
    binary: bool,
}

impl Written {
    pub fn format(&self) -> Format {
        if self.binary { Format::Binary } else { self.format }
    }
}

/// How a profile is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Layout {
    V1,
    V2,
    /// Chunks, each after its length.
    #[value(skip)]
    Framed,
}

/// How a profile goes to sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Framed {
    Binary,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tachyon-jsonl inspect prof.bin
  tachyon-jsonl inspect prof.jsonl --json | jq .runs")]
pub(crate) struct Inspect {
    /// A profile or a stream; standard input if omitted or '-'
    pub input: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Check the checksum and the samples of every chunk of a chunked profile
    #[arg(long)]
    pub verify: bool,

    /// Print only what the header and footer of a profile say, without reading its samples and tables
    #[arg(long, conflicts_with = "verify")]
    pub outline: bool,

    #[command(flatten)]
    pub access: Access,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tachyon-jsonl check prof.jsonl
  tachyon-jsonl from-bin prof.bin | tachyon-jsonl check

Exit status: 0 the stream is valid; 1 it has faults, which are printed one per line.")]
pub(crate) struct Check {
    /// A stream, which may be compressed with zstd or gzip; standard input if omitted or '-'
    pub input: Option<PathBuf>,

    #[command(flatten)]
    pub access: Access,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tachyon-jsonl diff before.bin after.bin
  tachyon-jsonl diff before.bin after.jsonl --by function --top 10
  tachyon-jsonl diff before.bin after.bin --json | jq -c 'select(.self_share_change > 0.01)'

Each side may be a profile, a stream (its tables are used, or else its samples) or CPython's own JSON Lines. \
Shares are of all samples that have a stack, so that runs of different lengths can be compared. Rows are \
sorted by the change of the share of samples in which the frame is innermost, largest first.")]
pub(crate) struct Diff {
    /// The profile or stream to compare with; '-' is standard input
    pub base: PathBuf,

    /// The profile or stream that is newer; '-' is standard input
    pub new: PathBuf,

    /// What to compare by
    #[arg(long, value_name = "WHAT", default_value = "frame")]
    pub by: DiffBy,

    /// Print JSON Lines: one line about the two runs, then one line for each row
    #[arg(long)]
    pub json: bool,

    /// Number of rows to print, 0 for all; --json always prints all
    #[arg(long, value_name = "ROWS", default_value = "25")]
    pub top: usize,

    /// The run to compare, if a stream has several
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub run_id: Option<String>,

    /// Compare even if mode or capture settings differ
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub access: Access,
}

/// What `diff` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DiffBy {
    Frame,
    Function,
    File,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  python3.15 -m profiling.sampling run --jsonl -o prof.jsonl script.py
  tachyon-jsonl upgrade prof.jsonl | jq -c 'select(.type == \"agg\")'

The result has the definitions and the final table. It has no times, since the input has none.")]
pub(crate) struct Upgrade {
    /// CPython's JSON Lines, which may be compressed with zstd or gzip; standard input if omitted or '-'
    pub input: Option<PathBuf>,

    /// Where to write: a path (compressed if it ends in .zst), '-' or an address; may be repeated
    #[arg(short, long, value_name = "TARGET")]
    pub output: Vec<PathBuf>,

    /// Longest line, including its line feed: in bytes, or with the suffix k or m
    #[arg(long, value_name = "BYTES", default_value = "65535", value_parser = parse_size)]
    pub max_line: usize,

    /// Refuse a file with any fault or irregularity
    #[arg(long)]
    pub strict: bool,

    #[command(flatten)]
    pub live: Live,

    #[command(flatten)]
    pub access: Access,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tachyon-jsonl recover torn.bin -o whole.bin
  tachyon-jsonl recover killed.bin | tachyon-jsonl from-bin

Of a chunked profile every intact chunk is copied; of any other profile the intact records, with the names \
that were written. What is lost is reported on standard error.

Exit status: 0 nothing was lost; 1 there is nothing to save; 3 data was lost.")]
pub(crate) struct Recover {
    /// A profile; standard input if omitted or '-'
    pub input: Option<PathBuf>,

    /// Where to write: a path, '-' or an address
    #[arg(short, long, value_name = "TARGET")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub live: Live,

    #[command(flatten)]
    pub access: Access,
}

/// The limits of a batch.
fn parse_batches(text: &str) -> Result<Flush, String> {
    let limits: Vec<&str> = text.split(',').collect();
    let (parts, others): (Vec<&str>, Vec<&str>) = limits.into_iter().partition(|limit| *limit == "chunk");
    let flush = if others.is_empty() { Flush::default() } else { parse_flush(&others.join(","))? };
    Ok(Flush { part: !parts.is_empty(), ..flush })
}

/// The limits of a chunk.
fn parse_flush(text: &str) -> Result<Flush, String> {
    let mut flush = Flush::default();
    for limit in text.split(',') {
        match limit.split_once(':') {
            Some(("interval", period)) if flush.interval.is_none() => {
                flush.interval = Some(parse_duration(period)?)
            }
            Some(("samples", number)) if flush.samples.is_none() => {
                let samples: Option<u64> = number.parse().ok().filter(|samples| *samples > 0);
                flush.samples =
                    Some(samples.ok_or_else(|| format!("'{number}' is not a number of samples"))?);
            }
            _ => {
                return Err(format!("'{limit}' is neither interval:DURATION nor samples:N, or one too many"));
            }
        }
    }
    Ok(flush)
}

fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.to_ascii_lowercase().as_str() {
        lower if lower.ends_with('k') => (&text[..text.len() - 1], 1024),
        lower if lower.ends_with('m') => (&text[..text.len() - 1], 1024 * 1024),
        _ => (text, 1),
    };
    let number: Option<usize> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| format!("'{text}' is not a size; write it like 65535, 30k or 1m"))
}

/// Bytes of a queue.
fn parse_buffer(text: &str) -> Result<usize, String> {
    let bytes = match text.strip_suffix(['g', 'G']) {
        Some(digits) => digits.parse().ok().and_then(|number: usize| number.checked_mul(1 << 30)),
        None => parse_size(text).ok(),
    };
    let bytes =
        bytes.ok_or_else(|| format!("'{text}' is not a size; write it like 65536, 512k, 64m or 1g"))?;
    if bytes < 64 * 1024 {
        return Err(format!("'{text}' is less than 64k, which is about one message"));
    }
    Ok(bytes)
}

/// Unix microseconds of Unix seconds, as `date +%s.%N` prints them, or of an RFC 3339 time with its offset.
/// What is less than a microsecond is cut off.
fn parse_wall(text: &str) -> Result<i64, String> {
    let fault = || {
        format!(
            "'{text}' is not a time with an offset; write it like 2026-09-21T14:13:20+02:00 or 1790000000.5"
        )
    };
    match OffsetDateTime::parse(text, &Rfc3339) {
        Ok(time) => return i64::try_from(time.unix_timestamp_nanos().div_euclid(1000)).map_err(|_| fault()),
        Err(error) => {
            if let Some(part) = impossible_part(text, &error) {
                return Err(format!("'{text}' is not a time: its {part} does not exist"));
            }
        }
    }
    let (seconds, fraction) = match text.split_once('.') {
        Some((seconds, fraction)) if !fraction.is_empty() => (seconds, fraction),
        Some(_) => return Err(fault()),
        None => (text, ""),
    };
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || !is_digits(seconds) || !is_digits(fraction) {
        return Err(fault());
    }
    let micros: i64 = format!("{fraction:0<6}")[..6].parse().map_err(|_| fault())?;
    let seconds: Option<i64> = seconds.parse().ok();
    let time = seconds.and_then(|seconds| seconds.checked_mul(1_000_000)?.checked_add(micros));
    // As far as an RFC 3339 time goes: milliseconds by mistake are no seconds.
    time.filter(|time| *time < 253_402_300_800_000_000).ok_or_else(fault)
}

/// The part of a time in the form of RFC 3339 that is out of its range.
fn impossible_part(text: &str, error: &Parse) -> Option<&'static str> {
    let form = text.replace(|char: char| char.is_ascii_digit(), "0");
    let has_form = form.starts_with("0000-00-00")
        && ["Z", "z", "+00:00", "-00:00"].iter().any(|end| form.ends_with(end));
    match error {
        Parse::TryFromParsed(TryFromParsed::ComponentRange(range)) => Some(range.name()),
        // The range of these is looked at while they are read.
        Parse::ParseFromDescription(InvalidComponent(part @ ("month" | "offset hour"))) if has_form => {
            Some(part)
        }
        _ => None,
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("'{text}' is not KEY=VALUE"))?;
    if key.is_empty() {
        return Err(format!("'{text}' has no key"));
    }
    Ok((key.to_string(), value.to_string()))
}

fn parse_packing(text: &str) -> Result<Packing, String> {
    let fault = || format!("'{text}' is neither none, zstd nor zstd:LEVEL (1 to 22)");
    match text.split_once(':') {
        None if text == "none" => Ok(Packing::None),
        None if text == "zstd" => Ok(Packing::Zstd(5)),
        Some(("zstd", level)) => {
            let level: Option<i32> = level.parse().ok().filter(|level| (1..=22).contains(level));
            level.map(Packing::Zstd).ok_or_else(fault)
        }
        _ => Err(fault()),
    }
}
