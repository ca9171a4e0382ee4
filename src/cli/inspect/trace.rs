//! The report on an LMCache trace.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Serialize;

use crate::cli::exit::Status;
use crate::cli::inspect::text::Sheet;
use crate::cli::inspect::{FaultReport, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::protocol::{LmcacheHeader, LmcacheTrace};

#[derive(Serialize)]
struct Report {
    kind: &'static str,
    header: LmcacheHeader,
    size_bytes: u64,
    calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_usec: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_usec: Option<i64>,
    calls_by_name: BTreeMap<String, u64>,
    unknown_frames: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<FaultReport>,
}

pub(crate) fn run(job: &Job<'_>, mut trace: LmcacheTrace<impl Read>) -> Result<Status> {
    let mut calls_by_name: BTreeMap<String, u64> = BTreeMap::new();
    let mut text_of_call = Vec::new();
    let mut faults: Vec<Error> = Vec::new();
    loop {
        text_of_call.clear();
        match trace.next_call(&mut text_of_call) {
            Ok(Some(name)) => *calls_by_name.entry(name).or_default() += 1,
            Ok(None) => break,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error.within(job.name)),
            Err(error) => {
                let goes_on = trace.goes_on(&error);
                faults.push(error);
                if !goes_on {
                    break;
                }
            }
        }
    }
    let (calls, unknown_frames) = trace.counts();
    faults.iter().for_each(|fault| job.messages.fault(job.name, fault));
    let span = trace.span_us();
    let report = Report {
        kind: "LMCache trace",
        header: trace.header().clone(),
        size_bytes: trace.position(),
        calls,
        first_usec: span.map(|span| span.0),
        last_usec: span.map(|span| span.1),
        calls_by_name,
        unknown_frames,
        faults: faults.iter().map(|fault| FaultReport::new(None, fault)).collect(),
    };
    job.write(&report, |report| text(job.name, report))?;
    Ok(if faults.is_empty() { Status::Done } else { Status::Partial })
}

fn text(name: &str, report: &Report) -> String {
    let mut sheet = Sheet::default();
    let header = &report.header;
    sheet.line(&format!("{name}: a trace of LMCache"));
    sheet.row("format version", header.format_version.to_string());
    sheet.known(
        "schema version of the records",
        header.trace_schema_version.as_ref().map(ToString::to_string),
    );
    sheet.known("level", header.level.as_ref().map(ToString::to_string));
    sheet.known("configuration digest", header.sm_config_digest.clone());
    sheet.row("size", format!("{} bytes", report.size_bytes));
    sheet.row("calls", report.calls.to_string());
    let span = report.first_usec.zip(report.last_usec);
    let seconds = |(first, last): (i64, i64)| format!("{:.6} s", (last - first) as f64 / 1e6);
    sheet.known("first to last call", span.map(seconds));
    for (name, calls) in &report.calls_by_name {
        sheet.row("called", format!("{name}: {calls}"));
    }
    for fault in &report.faults {
        sheet.row("fault", fault.to_string());
    }
    sheet.finish()
}
