//! Stream options from the arguments of `from-bin`.

use std::num::NonZeroUsize;

use crate::cli::args::{Format, FromBin, Schema};
use crate::cli::commands::run_id::is_made_up;
use crate::convert::StreamOptions;
use crate::error::{Error, Result};

/// The options for a run of this id, unless the arguments name it.
///
/// # Errors
///
/// Usage errors.
pub(crate) fn options(args: &FromBin, run_id: &str) -> Result<StreamOptions> {
    let asked = [
        ("--stream-types", args.stream_types.is_some()),
        ("--flush", args.flush.is_some()),
        ("--wall-start", args.wall_start.is_some()),
        ("--label", !args.label.is_empty()),
        ("--follow", args.follow),
        ("--format msgpack", args.written.format() == Format::Msgpack),
        ("--format binary", args.written.format() == Format::Binary),
    ];
    if args.schema == Schema::Cpython
        && let Some((option, _)) = asked.iter().find(|(_, is_asked)| *is_asked)
    {
        return Err(Error::usage(format!("CPython's JSON Lines cannot be combined with {option}")));
    }
    if args.written.format() == Format::Binary && args.stream_types.is_some() {
        return Err(Error::usage(
            "--format binary writes chunks, not messages, and cannot be combined with --stream-types",
        ));
    }
    let run_id = if is_made_up(&args.run_id) { run_id } else { &args.run_id };
    let options = StreamOptions::new(run_id)?.max_line(args.max_line)?;
    let mut options = options.threads(threads(args.threads));
    if let Some(flush) = args.flush {
        options = options.flush(flush);
    }
    if let Some(types) = &args.stream_types {
        options = options.types(types.clone());
    }
    if let Some(wall_start) = args.wall_start {
        options = options.wall_start_us(wall_start);
    }
    if args.follow {
        options = options.live();
    }
    for (key, value) in &args.label {
        options = options.label(key, value);
    }
    Ok(options)
}

/// How many threads to work on: those asked for, or one a core.
pub(crate) fn threads(asked: Option<NonZeroUsize>) -> usize {
    asked.map_or(0, NonZeroUsize::get)
}
