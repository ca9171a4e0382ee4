//! `check`: reports each violation of the protocol in a stream, with its line.

use std::io::Write;

use crate::cli::args::Check as Args;
use crate::cli::exit::Status;
use crate::cli::io::Input;
use crate::cli::io::sniff::{StreamLines, no_stream, stream_lines};
use crate::cli::network::network;
use crate::cli::ui::messages::Messages;
use crate::cli::ui::terminal::{self, shown};
use crate::error::{Error, ErrorKind, Position, Result};
use crate::protocol::Lines;
use crate::protocol::{Checker, Finding};

/// The findings are the command's data and go to standard output.
pub(crate) fn run(args: &Args, messages: &Messages) -> Result<Status> {
    let input = Input::of_argument(args.input.as_deref(), &network(&args.access, messages)?)?;
    let name = input.name();
    let named = |error: Error| error.within(&name);
    let StreamLines { reader, other } = stream_lines(&input).map_err(named)?;
    let mut lines = Lines::new(reader);
    let mut checker = Checker::default();
    let mut told = FindingPrinter { out: terminal::open()?, told: 0 };
    let mut findings = Vec::new();
    loop {
        match lines.next_line() {
            Ok(Some(line)) => checker.line(line.number, line.bytes, line.terminated, &mut findings),
            Ok(None) => break,
            Err(error) => match (error.kind(), error.position()) {
                (ErrorKind::Limit, Some(Position::Line(number))) => checker.unreadable(number, &mut findings),
                // What is missing after it is not the stream's fault.
                _ => {
                    told.flush()?;
                    return Err(named(error));
                }
            },
        }
        told.tell(&mut findings)?;
    }
    let messages = checker.messages();
    let faults = checker.finish(&mut findings);
    told.tell(&mut findings)?;
    told.flush()?;
    if faults == 0 {
        return Ok(Status::Done);
    }
    if let Some(other) = other.filter(|_| messages == 0) {
        return Err(named(no_stream(other)));
    }
    let more = if faults > told.told {
        format!(", of which the first {} are shown", told.told)
    } else {
        String::new()
    };
    let (faults, messages) = (counted(faults, "fault"), counted(messages, "message"));
    Err(named(Error::stream(format!("{faults} in {messages}{more}"))))
}

struct FindingPrinter<W> {
    out: W,
    told: u64,
}

impl<W: Write> FindingPrinter<W> {
    fn tell(&mut self, findings: &mut Vec<Finding>) -> Result<()> {
        for Finding { line, what } in findings.drain(..) {
            self.told += 1;
            let line = format!("line {line}: {what}");
            writeln!(self.out, "{}", shown(&line)).map_err(terminal::named)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(terminal::named)
    }
}

fn counted(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
