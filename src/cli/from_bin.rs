//! `from-bin`: profiles into a stream.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::cli::Status;
use crate::cli::args::FromBin;
use crate::cli::messages::Messages;
use crate::convert::{StreamOptions, to_stream};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Profile, parts};
use crate::stream::{Input, Output, Target};

pub(super) fn run(args: &FromBin, messages: &Messages) -> Result<Status> {
    let mut inputs: Vec<Input> = args.inputs.iter().map(|path| Input::of_argument(Some(path))).collect();
    if inputs.is_empty() {
        inputs.push(Input::Standard);
    }
    // Options that cannot be are told before any input is read.
    options(args, "auto")?;
    if inputs.len() > 1 && !is_made_up(&args.run_id) {
        return Err(several_runs());
    }
    let target = Target::of_argument(args.output.as_deref());
    target.check_apart_from(&inputs)?;
    let output = target.open().map_err(|error| error.within(&target.name()))?;
    let mut conversion =
        Conversion { args, messages, output, target, runs: 0, ids: HashMap::new(), status: Status::Done };
    let mut failure: Option<Error> = None;
    for input in &inputs {
        if let Err(error) = conversion.input(input) {
            if conversion.output.failed() || error.kind() == ErrorKind::Usage {
                return Err(error);
            }
            if let Some(earlier) = failure.replace(error) {
                messages.error(&earlier);
            }
        }
    }
    conversion.finish(failure)
}

/// Whether the run id is made up here, so that it can name any number of runs.
fn is_made_up(run_id: &str) -> bool {
    matches!(run_id, "auto" | "random")
}

fn several_runs() -> Error {
    Error::usage("one --run-id cannot name several runs")
}

fn options(args: &FromBin, run_id: &str) -> Result<StreamOptions> {
    let run_id = if is_made_up(&args.run_id) { run_id } else { &args.run_id };
    let mut options = StreamOptions::new(run_id)?.flush(args.flush).max_line(args.max_line)?;
    if let Some(types) = &args.stream_types {
        options = options.types(types.clone());
    }
    if let Some(wall_start) = args.wall_start {
        options = options.wall_start_us(wall_start);
    }
    for (key, value) in &args.label {
        options = options.label(key, value);
    }
    Ok(options)
}

struct Conversion<'a> {
    args: &'a FromBin,
    messages: &'a Messages,
    output: Output,
    target: Target,
    runs: u64,
    /// The ids made of contents, and how often.
    ids: HashMap<String, u64>,
    status: Status,
}

impl Conversion<'_> {
    /// Writes the runs of one input, more than one where files were joined.
    fn input(&mut self, input: &Input) -> Result<()> {
        let name = input.name();
        let named = |error: Error| error.within(&name);
        let mut source = input.source().map_err(named)?;
        let size = source.seek(SeekFrom::End(0))?;
        let parts = parts(&mut source, size).map_err(named)?;
        if parts.len() > 1 {
            if !is_made_up(&self.args.run_id) {
                return Err(several_runs());
            }
            let what = format!("{} profiles one behind the other; each becomes a run", parts.len());
            self.messages.warning(&name, &what);
        }
        for (base, size) in parts {
            let profile = Profile::open_part(&mut source, base, size).map_err(named)?;
            self.run(&name, profile)?;
        }
        Ok(())
    }

    fn run(&mut self, name: &str, mut profile: Profile<impl Read + Seek>) -> Result<()> {
        let named = |error: Error| error.within(name);
        let contents = profile.contents();
        for warning in &contents.warnings {
            if self.args.strict {
                return Err(named(Error::profile(warning)));
            }
            self.messages.warning(name, warning);
        }
        for fault in &contents.faults {
            if self.args.strict {
                return Err(named(fault.error.again()));
            }
            self.messages.fault(name, &fault.error);
            self.status = Status::Partial;
        }
        if contents.scan.samples == 0 {
            self.messages.warning(name, "the profile holds no samples");
        }
        let run_id = match self.args.run_id.as_str() {
            "auto" => {
                let id = URL_SAFE_NO_PAD.encode(profile.content_hash().map_err(named)?.to_be_bytes());
                // The same profile again is another run.
                let times = self.ids.entry(id.clone()).and_modify(|times| *times += 1).or_insert(1);
                if *times == 1 { id } else { format!("{id}-{times}") }
            }
            _ => random_id()?,
        };
        let options = options(self.args, &run_id)?;
        let written = to_stream(&mut profile, &options, &mut self.output);
        match written {
            Ok(_) => self.runs += 1,
            Err(error) if self.output.failed() => return Err(error.within(&self.target.name())),
            Err(error) => return Err(named(error)),
        }
        Ok(())
    }

    fn finish(self, failure: Option<Error>) -> Result<Status> {
        let mut status = self.status;
        if let Some(failure) = failure {
            if self.runs == 0 {
                return Err(failure);
            }
            self.messages.error(&failure);
            status = Status::Partial;
        }
        self.output.commit().map_err(|error| error.within(&self.target.name()))?;
        Ok(status)
    }
}

fn random_id() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::from(std::io::Error::other(error)))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}
