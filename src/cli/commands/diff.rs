//! `diff`: what changed between two runs.

use std::io::{self, Write};

use serde::Serialize;

use crate::cli::args::{Diff as Args, DiffBy};
use crate::cli::commands::stream_options::threads;
use crate::cli::exit::Status;
use crate::cli::io::sniff::{Sniffed, sniff};
use crate::cli::io::{Input, ProfileSource};
use crate::cli::network::network;
use crate::cli::ui::messages::Messages;
use crate::cli::ui::terminal::{self, shown};
use crate::convert::{By, Change, DiffRow, ProfileSide, Side, StreamSide, Subject, diff, mismatches};
use crate::error::{Error, Result};
use crate::format::{Part, RunEnds, Sequence, known};
use crate::protocol::Lines;
use crate::protocol::message::Capture;

pub(crate) fn run(args: &Args, messages: &Messages) -> Result<Status> {
    let network = network(&args.access, messages)?;
    let input = |path| Input::of_argument(Some(path), &network);
    let inputs = [input(&args.base)?, input(&args.new)?];
    if inputs.iter().all(|input| matches!(input, Input::Standard)) {
        return Err(Error::usage("standard input can be one of the two runs, not both"));
    }
    let mut status = Status::Done;
    let [base, new] = &inputs;
    let base_side = side(base, args, messages, &mut status)?;
    let new_side = side(new, args, messages, &mut status)?;
    let (differ, unknown) = mismatches(&base_side, &new_side);
    let names = format!("{} and {}", base.name(), new.name());
    if !differ.is_empty() {
        let what = format!("{names}: recorded differently: {}", differ.join(", "));
        if !args.force {
            return Err(Error::stream(what).hint("--force compares them anyway"));
        }
        messages.warning(&names, &format!("recorded differently: {}", differ.join(", ")));
    }
    for what in unknown {
        messages.warning(&names, &format!("{what} known for only one of the two"));
    }
    if let (Some(a), Some(b)) = (base_side.interval_us, new_side.interval_us)
        && a != b
    {
        messages.warning(&names, &format!("sampled every {a} and every {b} us: compare shares, not samples"));
    }
    let rows = diff(&base_side, &new_side);
    let sides = [(base, &base_side), (new, &new_side)];
    terminal::write(
        |out| {
            if args.json { json(out, args, sides, &rows) } else { table(out, args, sides, &rows) }
        },
    )?;
    Ok(status)
}

fn by(args: &Args) -> By {
    match args.by {
        DiffBy::Frame => By::Frame,
        DiffBy::Function => By::Function,
        DiffBy::File => By::File,
    }
}

/// Counts the samples of an input.
fn side(input: &Input, args: &Args, messages: &Messages, status: &mut Status) -> Result<Side> {
    let name = input.name();
    let named = |error: Error| error.within(&name);
    let mut lost = |loss: &Error| {
        messages.fault(&name, loss);
        *status = Status::Partial;
    };
    match sniff(input).map_err(named)? {
        Sniffed::Stream { reader, .. } => {
            let mut lines = Lines::new(reader);
            let mut counts = StreamSide::new(by(args), args.run_id.clone());
            loop {
                match lines.next_message() {
                    Ok(Some(line)) => counts.line(line.number, line.bytes).map_err(named)?,
                    Ok(None) => break,
                    // What came before it is whole.
                    Err(error) => {
                        lost(&error);
                        break;
                    }
                }
            }
            let (side, losses, tolerated) = counts.finish().map_err(named)?;
            losses.iter().for_each(&mut lost);
            let oddities = lines.tolerated().notes().into_iter().chain(tolerated);
            oddities.for_each(|oddity| messages.warning(&name, &oddity));
            Ok(side)
        }
        Sniffed::Profile(source) => profile_side(source, by(args), &mut lost).map_err(named),
        Sniffed::Trace(_) => {
            Err(named(Error::stream("a trace of LMCache, which holds calls and no samples")))
        }
        Sniffed::Packed(start) => {
            let what = known(&start).unwrap_or("a packed file");
            Err(named(Error::stream(format!("{what} without a stream in it")).hint("unpack it first")))
        }
    }
}

fn profile_side(mut source: ProfileSource, by: By, lost: &mut impl FnMut(&Error)) -> Result<Side> {
    let mut counts = ProfileSide::new(by);
    let sequence = Sequence::open(&mut source)?.threads(threads(None));
    let mut sequence = sequence.counting(Some(counts.counting()));
    if sequence.files_left() > 1 {
        return Err(Error::profile("several profiles in a row; diff compares single runs"));
    }
    let mut first_lost = None;
    let mut parts = 0;
    let mut ends = RunEnds::default();
    while let Some(part) = sequence.next(&mut source)? {
        match part {
            Part::Profile(mut profile) => {
                profile.contents().faults.iter().for_each(|fault| lost(&fault.error));
                ends.chunk(profile.contents().chunk.as_ref()).iter().for_each(&mut *lost);
                counts.profile(&mut profile)?;
                parts += 1;
            }
            Part::Lost(part) => {
                lost(&part.to_error());
                ends.lost();
                first_lost.get_or_insert(part.error);
            }
        }
        source.forget(sequence.position())?;
    }
    if let Some(failure) = source.failure() {
        lost(&failure);
        ends.lost();
        first_lost.get_or_insert(failure);
    }
    ends.finish().iter().for_each(lost);
    match first_lost {
        Some(error) if parts == 0 => Err(error),
        _ => Ok(counts.finish()),
    }
}

/// The first line of the answer.
#[derive(Serialize)]
struct Head<'a> {
    #[serde(rename = "type")]
    type_: &'a str,
    by: &'a str,
    base: RunRow<'a>,
    new: RunRow<'a>,
}

#[derive(Serialize)]
struct RunRow<'a> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<Capture>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_interval_usec: Option<u64>,
    samples_total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples_empty: Option<u64>,
}

/// A row of the answer.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(rename = "type")]
    type_: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_line: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    col: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_col: Option<i32>,
    self_base: u64,
    self_new: u64,
    self_change: i128,
    self_base_share: f64,
    self_new_share: f64,
    self_share_change: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    self_ratio: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    cumulative: Option<CumulativeRow>,
}

#[derive(Serialize)]
struct CumulativeRow {
    cumulative_base: u64,
    cumulative_new: u64,
    cumulative_change: i128,
    cumulative_base_share: f64,
    cumulative_new_share: f64,
    cumulative_share_change: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cumulative_ratio: Option<f64>,
}

fn json(out: &mut dyn Write, args: &Args, sides: [(&Input, &Side); 2], rows: &[DiffRow]) -> io::Result<()> {
    let [base, new] = sides.map(|(input, side)| RunRow {
        name: input.name(),
        mode: side.mode.as_deref(),
        capture: side.capture,
        sample_interval_usec: side.interval_us,
        samples_total: side.samples_total,
        samples_empty: side.samples_empty,
    });
    let by = match args.by {
        DiffBy::Frame => "frame",
        DiffBy::Function => "function",
        DiffBy::File => "file",
    };
    line(out, &Head { type_: "diff", by, base, new })?;
    for DiffRow { subject, self_, cumulative } in rows {
        let row = Row {
            type_: "row",
            path: &subject.path,
            function: subject.function.as_deref(),
            line: subject.line,
            end_line: subject.end_line,
            col: subject.col,
            end_col: subject.end_col,
            self_base: self_.base,
            self_new: self_.new,
            self_change: self_.samples(),
            self_base_share: self_.base_share,
            self_new_share: self_.new_share,
            self_share_change: self_.share(),
            self_ratio: self_.ratio(),
            cumulative: cumulative.map(|change| CumulativeRow {
                cumulative_base: change.base,
                cumulative_new: change.new,
                cumulative_change: change.samples(),
                cumulative_base_share: change.base_share,
                cumulative_new_share: change.new_share,
                cumulative_share_change: change.share(),
                cumulative_ratio: change.ratio(),
            }),
        };
        line(out, &row)?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

fn table(out: &mut dyn Write, args: &Args, sides: [(&Input, &Side); 2], rows: &[DiffRow]) -> io::Result<()> {
    for (what, (input, side)) in ["base", "new"].iter().zip(sides) {
        let name = input.name();
        writeln!(out, "{what:<5} {}: {} samples with a frame", shown(&name), side.samples_total)?;
    }
    let listed = if args.top == 0 { rows.len() } else { args.top.min(rows.len()) };
    writeln!(out)?;
    writeln!(
        out,
        "{:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>7} {:>8}  where",
        "base", "new", "change", "base", "new", "points", "times", "on stack"
    )?;
    for DiffRow { subject, self_, cumulative } in &rows[..listed] {
        let percent = |share: f64| format!("{:.2}%", 100.0 * share);
        let times = self_.ratio().map_or_else(|| "-".to_string(), |ratio| format!("{ratio:.2}"));
        let points = |change: &Change| format!("{:+.2}", 100.0 * change.share());
        writeln!(
            out,
            "{:>9} {:>9} {:>+9} {:>8} {:>8} {:>8} {times:>7} {:>8}  {}",
            self_.base,
            self_.new,
            self_.samples(),
            percent(self_.base_share),
            percent(self_.new_share),
            points(self_),
            cumulative.as_ref().map_or_else(|| "-".to_string(), points),
            place(subject),
        )?;
    }
    if listed < rows.len() {
        writeln!(out, "and {} more: --top 0 lists all", rows.len() - listed)?;
    }
    Ok(())
}

/// The subject in a line.
fn place(subject: &Subject) -> String {
    let mut text = match (&subject.function, subject.line) {
        (None, _) => subject.path.clone(),
        (Some(function), None) => format!("{function} ({})", subject.path),
        (Some(function), Some(line)) => format!("{function} ({}:{line})", subject.path),
    };
    if let (Some(col), Some(_)) = (subject.col, subject.line) {
        text.truncate(text.len() - 1);
        text.push_str(&format!(":{col})"));
    }
    shown(&text).into_owned()
}
