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

What follows -- goes to CPython's profiler (python3.15 -m profiling.sampling), but for its \
formats and its -o. The program keeps its input, its output and its errors; only where the stream goes to \
standard output does the program's output go to standard error. SIGINT, SIGTERM and SIGHUP end the \
recording: the last batch, losses and the end are written, and a program that was started with run is \
ended, as the profiler does; outputs have 5 s then to take what is left, and a second signal ends all at \
once. SIGHUP is ignored where it was (nohup). A target that fails is left out and the others go on; when the \
last one has failed, or nobody reads it any more, the recording ends as by a signal, and so does the \
program. With --subprocesses every process is a run of its own: ID-PID, and in \
profiles NAME_PID.bin. The labels of a run are pid, host and command, which is the program and its script \
without their arguments; --label replaces them.

Exit status: 0 all of it was recorded, however the program ended (standard error says so of another status \
than 0); 1 nothing was recorded; 2 usage; 3 something was lost.")]
pub(crate) struct Record {
    /// Where to write: a name that ends in .bin is a profile in chunks, all else a stream (a path, '-', or
    /// an address); several times for several targets. With --ring, what SIGUSR1 writes: {} in the name is replaced by time and number
    /// [default: standard output; with --ring tachyon-{}.bin]
    #[arg(short, long, value_name = "TARGET")]
    pub output: Vec<PathBuf>,

    /// Message types, as in raw,agg:5s,heartbeat:1s,loss; -TYPE takes one out
    #[arg(long, value_name = "LIST", allow_hyphen_values = true, value_parser = |list: &str| list.parse::<StreamTypes>())]
    pub stream_types: Option<StreamTypes>,

    /// When a batch closes and goes out, as far as samples come: interval:DURATION, samples:N or both,
    /// the first one reached
    #[arg(long, value_name = "LIMITS", default_value = "interval:1s", value_parser = parse_flush)]
    pub flush: Flush,

    /// Id of the run: random, or your own
    #[arg(long, value_name = "ID", default_value = "random", allow_hyphen_values = true)]
    pub run_id: String,

    #[command(flatten)]
    pub written: Written,

    /// Longest line, its line feed included: bytes, or with k or m
    #[arg(long, value_name = "BYTES", default_value = "65535", value_parser = parse_size)]
    pub max_line: usize,

    /// A fact of your own for every meta message
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,

    /// No label with the program's command line
    #[arg(long, conflicts_with = "command_arguments")]
    pub no_command: bool,

    /// Arguments in the label for the command line, too: among them may be secrets
    #[arg(long)]
    pub command_arguments: bool,

    /// The command that runs CPython 3.15
    #[arg(long, value_name = "COMMAND", default_value = "python3.15")]
    pub python: PathBuf,

    /// Keep the last part only, and write it when asked: by SIGUSR1, --control or snapshot. A
    /// duration, a size (256MiB), or both with a comma; a duration alone takes 256MiB at most
    #[arg(long, value_name = "LIMITS", value_parser = str::parse::<RingLimits>)]
    pub ring: Option<RingLimits>,

    /// Keep the ring in this file, from which recover reads it although the recorder was killed. A ring
    /// that is there already gets the name FILE.old, or FILE.old.2 and so on, with the first chunk
    #[arg(long, value_name = "FILE", requires = "ring")]
    pub ring_file: Option<PathBuf>,

    /// Listen for commands, a line each: snapshot PATH [after 5s], status, stop. PATH may be a JSON
    /// string, and has to be one where it ends like a delay: snapshot "x after 1s"
    #[arg(long, value_name = "unix:PATH")]
    pub control: Option<String>,

    #[command(flatten)]
    pub live: Live,

    #[command(flatten)]
    pub access: Access,

    /// What CPython's profiler is to do: run SCRIPT, run -m MODULE, attach PID, with its options
    #[arg(last = true, required = true, value_name = "ARGS")]
    pub profiler: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tachyon-jsonl snapshot --control unix:/run/app.sock -o last.bin
  tachyon-jsonl snapshot --control unix:/run/app.sock -o around.jsonl --after 5s

The recorder writes the file. It is there, and whole, when this command ends.")]
pub(crate) struct Snapshot {
    /// Where the recorder listens
    #[arg(long, value_name = "unix:PATH")]
    pub control: String,

    /// Where to write: a name that ends in .bin is a profile in chunks, all else a stream
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,

    /// Not now, but so much later
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
