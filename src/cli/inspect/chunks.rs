//! The report on a chunked profile or a sequence of framed profiles: one row for each part.
//!
//! Without `--verify` only headers, footers and our blocks are read; with it every part is opened.

use std::io::{Read, Seek, SeekFrom};

use serde::Serialize;

use crate::cli::exit::Status;
use crate::cli::inspect::rows::{capture_text, date, interval_text, measured_rows, span_text};
use crate::cli::inspect::text::{Sheet, instant};
use crate::cli::inspect::{FaultReport, Job};
use crate::error::{Error, ErrorKind, Position, Result};
use crate::format::{
    ByteOrder, ChunkInfo, ChunkOrder, Compression, Fault, Footer, Framing, Header, LostPart, Outline,
    PartLocation, Profile, RunEnd, Sequence,
};
use crate::limits::{CHUNKS_LISTED, LOSSES};
use crate::model::{Statistics, TimeSpan};
use crate::protocol::message::{Capture, Stats};

#[derive(Serialize)]
struct Report {
    kind: &'static str,
    size_bytes: u64,
    /// Whether every part was opened, and its checksum checked.
    verified: bool,
    samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_usec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_usec: Option<u64>,
    runs: Vec<RunReport>,
    chunks: Vec<ChunkReport>,
    /// Whole chunks, and lost ones, that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    not_listed: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lost: Vec<LostReport>,
    /// Runs whose ends are not there, and what parts say of themselves that cannot be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<FaultReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// What parts that follow each other have in common.
#[derive(Serialize)]
struct RunReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    chunk_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    python: Option<String>,
    start_usec: u64,
    sample_interval_usec: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<Capture>,
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    labels: std::collections::BTreeMap<String, String>,
    /// By the last part, where it knows its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Stats>,
    /// Whether its last chunk is there and says that nothing is lost; left out where its chunks do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    #[serde(skip)]
    next_index: u64,
    #[serde(skip)]
    has_holes: bool,
    #[serde(skip)]
    order: ChunkOrder,
}

#[derive(Serialize)]
struct ChunkReport {
    /// Number in its run, where the part says, else in the input.
    index: u64,
    offset_bytes: u64,
    size_bytes: u64,
    byte_order: &'static str,
    compression: &'static str,
    samples: u64,
    thread_count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_usec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_usec: Option<u64>,
    /// Unix time of the first sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    wall_usec: Option<i64>,
    /// "none", "not checked" or "sound": a part with a wrong one is lost.
    checksum: &'static str,
}

#[derive(Serialize)]
struct LostReport {
    offset_bytes: u64,
    size_bytes: u64,
    reason: &'static str,
    fault: FaultReport,
}

/// A part, as far as it was looked at.
struct Seen {
    place: PartLocation,
    header: Header,
    footer: Footer,
    chunk: Option<ChunkInfo>,
    statistics: Option<Statistics>,
    threads: u32,
    span: Option<TimeSpan>,
    verify: bool,
    faults: Vec<Fault>,
}

pub(crate) fn run(job: &Job<'_>, mut sequence: Sequence, source: &mut (impl Read + Seek)) -> Result<Status> {
    let named = |error: Error| error.within(job.name);
    let mut report = Report {
        kind: if sequence.framing() == Framing::Lengths { "framed profiles" } else { "chunked profile" },
        size_bytes: source.seek(SeekFrom::End(0)).map_err(|error| named(error.into()))?,
        verified: job.verify,
        samples: 0,
        first_usec: None,
        last_usec: None,
        runs: Vec::new(),
        chunks: Vec::new(),
        not_listed: 0,
        lost: Vec::new(),
        faults: Vec::new(),
        warnings: Vec::new(),
    };
    let mut losses = Vec::new();
    while let Some(place) = sequence.next_place(source).map_err(named)? {
        let lost = match place.map(|place| (place, look(source, place, job.verify))) {
            Ok((_, Ok(mut seen))) => {
                for fault in std::mem::take(&mut seen.faults) {
                    report.faults.push(FaultReport::new(Some(fault.code.name()), &fault.error));
                    losses.push(fault.error);
                }
                report.add(seen).map_err(named)?;
                continue;
            }
            Ok((_, Err(error))) if error.kind() == ErrorKind::Io => return Err(named(error)),
            Ok((PartLocation { at, size }, Err(error))) => {
                LostPart { at, bytes: size, samples: None, is_tail: false, error }
            }
            Err(lost) => lost,
        };
        if let Some(run) = report.runs.last_mut() {
            run.order.lost();
            run.has_holes = true;
        }
        if losses.len() >= LOSSES {
            report.not_listed += 1;
            continue;
        }
        losses.push(lost.to_error());
        report.lost.push(LostReport {
            offset_bytes: lost.at,
            size_bytes: lost.bytes,
            reason: if lost.is_tail { "truncated" } else { "corrupt" },
            fault: FaultReport::new(None, &lost.error),
        });
    }
    if report.chunks.is_empty() && !losses.is_empty() {
        return Err(named(losses.swap_remove(0)));
    }
    for run in &mut report.runs {
        let broken = run.order.broken_end();
        run.complete = match run.order.end() {
            RunEnd::Unknown => None,
            end => Some(end == RunEnd::Complete && !run.has_holes),
        };
        report.faults.extend(broken.iter().map(|error| FaultReport::new(Some("truncated"), error)));
        losses.extend(broken);
    }
    for loss in &losses {
        job.messages.fault(job.name, loss);
    }
    for warning in &report.warnings {
        job.messages.warning(job.name, warning);
    }
    job.write(&report, |report| text(job.name, report))?;
    Ok(if losses.is_empty() { Status::Done } else { Status::Partial })
}

fn look(source: &mut (impl Read + Seek), place: PartLocation, verify: bool) -> Result<Seen> {
    let PartLocation { at, size } = place;
    if !verify {
        let Outline { header, footer, chunk, statistics, mut faults } = Outline::read(source, at, size)?;
        let (threads, samples) = (header.threads, header.samples);
        let span = chunk.as_ref().map(|chunk| chunk.span).filter(|_| samples > 0);
        faults.retain(|fault| !fault.concerns_samples());
        return Ok(Seen { place, header, footer, chunk, statistics, threads, span, verify, faults });
    }
    let mut profile = Profile::open_part(source, at, size)?;
    let faults = profile.take_faults();
    if let Some(fault) = faults.iter().find(|fault| fault.concerns_samples()) {
        return Err(fault.error.again());
    }
    let contents = profile.contents();
    Ok(Seen {
        place,
        header: contents.header.clone(),
        footer: contents.footer,
        chunk: contents.chunk.clone(),
        statistics: contents.statistics,
        threads: contents.scan.threads.len() as u32,
        span: contents.scan.span,
        verify,
        faults,
    })
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Report {
    fn add(&mut self, seen: Seen) -> Result<()> {
        let Seen { place, header, footer, chunk, statistics, threads, span, verify, .. } = seen;
        let run_id = chunk.as_ref().map(|chunk| chunk.run_id.as_str());
        let goes_on = self.runs.last().is_some_and(|run| run_id.is_none() || run.run_id.as_deref() == run_id);
        if !goes_on {
            if self.runs.len() == CHUNKS_LISTED {
                let fault = format!("the profile holds more runs than the limit of {CHUNKS_LISTED}");
                return Err(Error::new(ErrorKind::Limit, fault).at(Position::Byte(place.at)));
            }
            self.runs.push(RunReport::new(&header, chunk.as_ref()));
        }
        let run = self.runs.last_mut().expect("pushed above");
        let index = chunk.as_ref().map_or(run.next_index, |chunk| chunk.index);
        if index > run.next_index && goes_on && self.lost.is_empty() {
            self.warnings.push(format!("chunks are missing before chunk {index} (at byte {})", place.at));
        }
        run.next_index = index.saturating_add(1);
        if let Some(chunk) = &chunk {
            run.has_holes |= run.order.is_gap_before(chunk);
        }
        run.chunk_count += 1;
        run.measured = statistics.filter(|_| chunk.is_some()).map(Into::into);
        self.samples += header.samples;
        if let Some(TimeSpan { first_us: first, last_us: last }) = span {
            self.first_usec = Some(self.first_usec.map_or(first, |time| time.min(first)));
            self.last_usec = Some(self.last_usec.map_or(last, |time| time.max(last)));
        }
        if self.chunks.len() == CHUNKS_LISTED {
            self.not_listed += 1;
            return Ok(());
        }
        self.chunks.push(ChunkReport {
            index,
            offset_bytes: place.at,
            size_bytes: place.size,
            byte_order: match header.byte_order {
                ByteOrder::Little => "little",
                ByteOrder::Big => "big",
            },
            compression: match header.compression {
                Compression::None => "none",
                Compression::Zstd => "zstd",
                Compression::Undefined(_) => "unknown",
            },
            samples: header.samples,
            thread_count: threads,
            first_usec: span.map(|span| span.first_us),
            last_usec: span.map(|span| span.last_us),
            wall_usec: chunk.and_then(|chunk| chunk.wall_us),
            checksum: match (footer.checksum == [0; 16], verify) {
                (true, _) => "none",
                (false, false) => "not checked",
                (false, true) => "sound",
            },
        });
        Ok(())
    }
}

impl RunReport {
    fn new(header: &Header, chunk: Option<&ChunkInfo>) -> Self {
        let facts = &header.facts;
        RunReport {
            run_id: chunk.map(|chunk| chunk.run_id.clone()),
            chunk_count: 0,
            python: facts.python.map(|python| python.to_string()),
            start_usec: facts.start_us,
            sample_interval_usec: facts.interval_us,
            mode: facts.mode.map(|mode| mode.name()),
            capture: facts.capture.map(Into::into),
            labels: chunk.map(|chunk| chunk.labels.clone()).unwrap_or_default(),
            measured: None,
            complete: None,
            next_index: 0,
            has_holes: false,
            order: ChunkOrder::default(),
        }
    }
}

fn text(name: &str, report: &Report) -> String {
    let mut sheet = Sheet::default();
    sheet.line(&format!("{name}: a {}", report.kind));
    sheet.row("size", format!("{} bytes", report.size_bytes));
    sheet.row("samples", report.samples.to_string());
    let span = report.first_usec.zip(report.last_usec).map(|(first, last)| span_text(first, last));
    sheet.known("first to last sample", span);
    sheet.row("verified", if report.verified { "every chunk" } else { "not checked (use --verify)" });
    for run in &report.runs {
        sheet.line("");
        sheet.known("run", run.run_id.clone());
        sheet.row("chunks", run.chunk_count.to_string());
        let complete = run.complete.map(|complete| if complete { "yes" } else { "no" });
        sheet.known("complete", complete);
        sheet.known("Python", run.python.clone());
        sheet.row("start", format!("{} (monotonic clock)", instant(run.start_usec)));
        sheet.row("interval", interval_text(run.sample_interval_usec));
        sheet.known("mode", run.mode);
        sheet.known("capture settings", run.capture.as_ref().map(capture_text));
        for (key, value) in &run.labels {
            sheet.row("label", format!("{key}={value}"));
        }
        measured_rows(&mut sheet, run.measured.as_ref());
    }
    sheet.line("");
    let heads = ["chunk", "byte", "size", "samples", "threads", "first", "last", "date", "checksum"];
    let mut table = vec![heads.map(String::from)];
    let time = |time: Option<u64>| time.map_or_else(|| "unknown".to_string(), instant);
    table.extend(report.chunks.iter().map(|part| {
        [
            part.index.to_string(),
            part.offset_bytes.to_string(),
            part.size_bytes.to_string(),
            part.samples.to_string(),
            part.thread_count.to_string(),
            time(part.first_usec),
            time(part.last_usec),
            part.wall_usec.and_then(date).unwrap_or_else(|| "unknown".to_string()),
            part.checksum.to_string(),
        ]
    }));
    sheet.table(&table);
    if report.not_listed > 0 {
        sheet.line(&format!("    and {} more", report.not_listed));
    }
    for lost in &report.lost {
        let last = lost.offset_bytes + lost.size_bytes - 1;
        sheet.line(&format!(
            "  bytes {} to {last} are lost ({}): {}",
            lost.offset_bytes, lost.reason, lost.fault
        ));
    }
    for fault in &report.faults {
        sheet.line(&format!("  {fault}"));
    }
    for warning in &report.warnings {
        sheet.line(&format!("  {warning}"));
    }
    sheet.finish()
}
