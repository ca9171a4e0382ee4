//! `snapshot`: asks a recorder to write its ring to a file.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde::Deserialize;

use crate::cli::args::Snapshot as Args;
use crate::cli::exit::Status;
use crate::cli::record::{path_of, snapshot_path};
use crate::cli::ui::messages::Messages;
use crate::error::{Error, Result};

/// What the recorder answers.
#[derive(Deserialize)]
struct Answer {
    ok: bool,
    error: Option<String>,
    #[serde(default)]
    chunks: u64,
    #[serde(default)]
    samples: u64,
    #[serde(default)]
    gone_samples: u64,
}

pub(crate) fn run(args: &Args, messages: &Messages) -> Result<Status> {
    // The recorder may stand in another folder.
    let path = std::path::absolute(snapshot_path(&args.output)?)?;
    let name = args.output.display().to_string();
    let Some(path) = path.to_str() else {
        return Err(Error::usage("the path is not UTF-8").within(&name));
    };
    // Whatever it holds, it ends where the quotes do.
    let path = serde_json::Value::from(path);
    let after = args.after.map_or(String::new(), |after| format!(" after {}ms", after.as_millis()));
    let socket = path_of(&args.control)?;
    let named = |error: std::io::Error| Error::from(error).within(&socket.display().to_string());
    let mut recorder = UnixStream::connect(&socket).map_err(named)?;
    let mut line = String::new();
    // It may have answered, and hung up, before it was asked. Without an answer there is no snapshot.
    let asked = writeln!(recorder, "snapshot {path}{after}");
    let answered = BufReader::new(recorder).read_line(&mut line).map(drop);
    let answer: Answer = serde_json::from_str(&line).map_err(|_| {
        let why = asked.and(answered).map_or_else(|error| format!(" ({error})"), |()| String::new());
        named(std::io::Error::other(format!("the recorder ended without an answer{why}")))
    })?;
    if !answer.ok {
        let why = answer.error.unwrap_or_default();
        return Err(named(std::io::Error::other(why)));
    }
    let (samples, chunks) = (answer.samples, answer.chunks);
    let gone = answer.gone_samples;
    messages.note(&name, &format!("{samples} samples in {chunks} chunks; {gone} samples had gone before"));
    Ok(Status::Done)
}
