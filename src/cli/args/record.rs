//! Arguments of `record` and `snapshot`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::cli::args::{Access, Live, Written, parse_flush, parse_label, parse_size};
use crate::convert::Flush;
use crate::protocol::{StreamTypes, parse_duration};

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tachyon-jsonl record -- run -a -r 10khz script.py args | jq -c 'select(.type == \"agg\")'
  tachyon-jsonl record -o prof.bin -o prof.jsonl.zst -- run -m module
  tachyon-jsonl record --stream-types raw,agg:5s,heartbeat:1s,loss -- attach -a 4711
  tachyon-jsonl record -o prof.bin -o tcp-listen:4000 -o ws-listen:4001 -- attach -a 4711
  tachyon-jsonl record --ring 30s -o 'last-{}.bin' --control unix:/run/app.sock -- attach -a 4711

The arguments after -- are those of CPython's profiler (python3.15 -m profiling.sampling); its output formats \
and its -o cannot be used. The program keeps its standard streams, except that its output goes to standard \
error when the stream goes to standard output.

SIGINT, SIGTERM and SIGHUP end the recording: the last batch, losses and the end message are written, and a \
program that was started with run is terminated, as the profiler does. Outputs then have 5 s to take what is \
left; a second signal ends everything at once. SIGHUP stays ignored under nohup. If a target fails, the others \
go on. When the last one has failed or has no reader left, the recording ends as it does on a signal, and so \
does the program.

With --subprocesses each process is a run of its own, named ID-PID, and each profile is named NAME_PID.bin. \
Runs have the labels pid, host and command (the program and its script without their arguments), which --label \
can replace.

Exit status: 0 everything was recorded, however the program ended (a status other than 0 is reported on \
standard error); 1 nothing was recorded; 2 wrong usage; 3 data was lost.")]
pub(crate) struct Record {
    /// Where to write: a chunked profile if the name ends in .bin, otherwise a stream (a path, '-' or an
    /// address); may be repeated. With --ring, the file that SIGUSR1 writes, in whose name {} is replaced by time and
    /// number [default: standard output; with --ring tachyon-{}.bin]
    #[arg(short, long, value_name = "TARGET")]
    pub output: Vec<PathBuf>,

    /// Message types to write, such as raw,agg:5s,heartbeat:1s,loss; -TYPE removes one from the default, as in -agg
    #[arg(long, value_name = "LIST", allow_hyphen_values = true, value_parser = |list: &str| list.parse::<StreamTypes>())]
    pub stream_types: Option<StreamTypes>,

    /// When to close and send a batch: interval:DURATION, samples:N or both, whichever comes first
    #[arg(long, value_name = "LIMITS", default_value = "interval:1s", value_parser = parse_flush)]
    pub flush: Flush,

    /// Run id: random, or an id of your own
    #[arg(long, value_name = "ID", default_value = "random", allow_hyphen_values = true)]
    pub run_id: String,

    #[command(flatten)]
    pub written: Written,

    /// Longest line, including its line feed: in bytes, or with the suffix k or m
    #[arg(long, value_name = "BYTES", default_value = "65535", value_parser = parse_size)]
    pub max_line: usize,

    /// Label to add to every meta message; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,

    /// Leave out the command label
    #[arg(long, conflicts_with = "command_arguments")]
    pub no_command: bool,

    /// Include arguments in the command label; they may contain secrets
    #[arg(long)]
    pub command_arguments: bool,

    /// The command that runs CPython 3.15
    #[arg(long, value_name = "COMMAND", default_value = "python3.15")]
    pub python: PathBuf,

    /// Keep only the most recent part, and write it on SIGUSR1, a --control command or snapshot. A duration
    /// (30s), a size (256MiB), or both separated by a comma; a duration alone is limited to 256MiB
    #[arg(long, value_name = "LIMITS", value_parser = str::parse::<RingLimits>)]
    pub ring: Option<RingLimits>,

    /// Keep the ring in this file, from which recover can read it even after the recorder was killed. An
    /// existing ring is renamed to FILE.old, FILE.old.2 and so on when the first chunk is written
    #[arg(long, value_name = "FILE", requires = "ring")]
    pub ring_file: Option<PathBuf>,

    /// Listen for commands, one per line: snapshot PATH [after 5s], status, stop. PATH may be a JSON string,
    /// and must be one if it ends like a delay: snapshot "x after 1s"
    #[arg(long, value_name = "unix:PATH")]
    pub control: Option<String>,

    #[command(flatten)]
    pub live: Live,

    #[command(flatten)]
    pub access: Access,

    /// Arguments of CPython's profiler: run SCRIPT, run -m MODULE or attach PID, with its options
    #[arg(last = true, required = true, value_name = "ARGS")]
    pub profiler: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tachyon-jsonl snapshot --control unix:/run/app.sock -o last.bin
  tachyon-jsonl snapshot --control unix:/run/app.sock -o around.jsonl --after 5s

The recorder writes the file. When this command ends, the file is complete.")]
pub(crate) struct Snapshot {
    /// Control socket of the recorder
    #[arg(long, value_name = "unix:PATH")]
    pub control: String,

    /// File to write: a chunked profile if the name ends in .bin, otherwise a stream
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,

    /// Delay before the snapshot is taken
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub after: Option<Duration>,
}

/// What a ring holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingLimits {
    /// From its newest chunk back.
    pub duration: Option<Duration>,
    pub bytes: u64,
}

impl FromStr for RingLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut duration, mut bytes) = (None, None);
        for limit in text.split(',') {
            let twice = if let Ok(period) = parse_duration(limit) {
                duration.replace(period).is_some()
            } else if let Some(size) = ring_size(limit) {
                bytes.replace(size).is_some()
            } else {
                return Err(format!("'{limit}' is neither a duration (30s) nor a size (256MiB)"));
            };
            if twice {
                return Err(format!("'{limit}' is one limit too many"));
            }
        }
        let bytes = bytes.unwrap_or(RING_BYTES);
        if bytes < RING_LEAST {
            return Err(format!("a ring of {bytes} bytes; it must have {RING_LEAST} at least"));
        }
        Ok(RingLimits { duration, bytes })
    }
}

/// Of a ring that is limited by time alone.
const RING_BYTES: u64 = 256 << 20;
const RING_LEAST: u64 = 64 << 10;

fn ring_size(text: &str) -> Option<u64> {
    let units = [("kib", 10), ("mib", 20), ("gib", 30)];
    let lower = text.to_ascii_lowercase();
    let unit = units.iter().find_map(|(unit, bits)| Some((lower.strip_suffix(unit)?, *bits)));
    let (digits, bits) = unit.unwrap_or((&lower, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << bits)
}
