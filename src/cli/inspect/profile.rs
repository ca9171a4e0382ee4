//! The report on a single binary profile.

use std::io::{Read, Seek};

use serde::Serialize;

use crate::cli::exit::Status;
use crate::cli::inspect::chunks;
use crate::cli::inspect::rows::{capture_text, interval_text, measured_rows, span_text};
use crate::cli::inspect::text::{Sheet, instant};
use crate::cli::inspect::{FaultReport, Job, ThreadReport};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    ByteOrder, Compression, Contents, Fault, FaultCode, Footer, Framing, HEADER_LEN, Header, Layout, Outline,
    Part, PartLocation, Sequence,
};
use crate::limits::STACK_DEPTH;
use crate::model::{Statistics, TimeSpan};
use crate::protocol::message::{Capture, Stats};

#[derive(Serialize)]
struct Report {
    kind: &'static str,
    profiles: Vec<ProfileReport>,
    /// Parts of joined files that cannot be opened.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<FaultReport>,
}

#[derive(Serialize)]
struct ProfileReport {
    /// Where it begins in the input.
    offset_bytes: u64,
    size_bytes: u64,
    format_version: u32,
    layout: &'static str,
    byte_order: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    python: Option<String>,
    clock: &'static str,
    start_usec: u64,
    sample_interval_usec: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<Capture>,
    samples_declared: u64,
    threads_declared: u32,
    depth_limit: usize,
    /// What the profiler measured about itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Stats>,
    compression: &'static str,
    compression_number: u32,
    sample_data_bytes: u64,
    string_count: u32,
    frame_count: u32,
    /// Left out of an outline.
    #[serde(flatten)]
    found: Option<Inspected>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<FaultReport>,
}

/// What the walk over the records has found.
#[derive(Serialize)]
struct Inspected {
    samples: u64,
    samples_empty: u64,
    samples_at_depth_limit: u64,
    thread_count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_usec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_usec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_to_last_sample_usec: Option<u64>,
    /// Not known where the packed data are damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_data_unpacked_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compression_ratio: Option<f64>,
    records: Records,
    threads: Vec<ThreadReport>,
}

#[derive(Serialize)]
struct Records {
    repeat: u64,
    full: u64,
    suffix: u64,
    pop_push: u64,
}

pub(crate) fn run(job: &Job<'_>, mut source: impl Read + Seek) -> Result<Status> {
    let named = |error: Error| error.within(job.name);
    let mut sequence = Sequence::open(&mut source).map_err(named)?;
    if sequence.framing() != Framing::Files {
        return chunks::run(job, sequence, &mut source);
    }
    let joined = sequence.files_left();
    if joined > 1 {
        job.messages.warning(job.name, &format!("{joined} profiles in a row"));
    }
    let mut report = Report { kind: "profile", profiles: Vec::new(), unreadable: Vec::new() };
    let mut unreadable: Vec<Error> = Vec::new();
    let mut status = Status::Done;
    while sequence.files_left() > 0 {
        match look(job, &mut sequence, &mut source) {
            Ok(Some(profile)) => {
                if !profile.faults.is_empty() {
                    status = Status::Partial;
                }
                report.profiles.push(profile);
            }
            Ok(None) => break,
            Err(error) if error.kind() == ErrorKind::Io => return Err(named(error)),
            Err(error) => unreadable.push(error),
        }
    }
    if report.profiles.is_empty() && !unreadable.is_empty() {
        return Err(named(unreadable.swap_remove(0)));
    }
    for error in &unreadable {
        job.messages.fault(job.name, error);
        report.unreadable.push(FaultReport::new(None, error));
        status = Status::Partial;
    }
    job.write(&report, |report| text(job.name, report))?;
    Ok(status)
}

/// Describes the next profile, and says what is wrong with it.
fn look(
    job: &Job<'_>,
    sequence: &mut Sequence,
    source: &mut (impl Read + Seek),
) -> Result<Option<ProfileReport>> {
    if job.outline {
        let Some(Ok(PartLocation { at, size })) = sequence.next_place(source)? else { return Ok(None) };
        let outline = Outline::read(source, at, size)?;
        return Ok(Some(ProfileReport {
            faults: told(job, &outline.faults),
            ..declared(&outline.header, &outline.footer, outline.statistics, PartLocation { at, size })
        }));
    }
    let at = sequence.position();
    let Some(Part::Profile(profile)) = sequence.next(source)? else { return Ok(None) };
    let contents = profile.contents();
    for warning in &contents.warnings {
        job.messages.warning(job.name, warning);
    }
    if contents.scan.samples == 0 {
        job.messages.warning(job.name, "the profile holds no samples");
    }
    let Contents { header, footer, statistics, size, warnings, faults, .. } = contents;
    Ok(Some(ProfileReport {
        found: Some(found(contents)),
        warnings: warnings.clone(),
        faults: told(job, faults),
        ..declared(header, footer, *statistics, PartLocation { at, size: *size })
    }))
}

/// Says these faults, for the report too.
fn told(job: &Job<'_>, faults: &[Fault]) -> Vec<FaultReport> {
    let told = |fault: &Fault| {
        job.messages.fault(job.name, &fault.error);
        FaultReport::new(Some(fault.code.name()), &fault.error)
    };
    faults.iter().map(told).collect()
}

/// What the profile says of itself.
fn declared(
    header: &Header,
    footer: &Footer,
    statistics: Option<Statistics>,
    place: PartLocation,
) -> ProfileReport {
    let (compression, compression_number) = match header.compression {
        Compression::None => ("none", 0),
        Compression::Zstd => ("zstd", 1),
        Compression::Undefined(number) => ("unknown", number),
    };
    ProfileReport {
        offset_bytes: place.at,
        size_bytes: place.size,
        format_version: 1,
        layout: header.layout.name(),
        byte_order: match header.byte_order {
            ByteOrder::Little => "little",
            ByteOrder::Big => "big",
        },
        python: header.facts.python.map(|python| python.to_string()),
        clock: "monotonic",
        start_usec: header.facts.start_us,
        sample_interval_usec: header.facts.interval_us,
        mode: header.facts.mode.map(|mode| mode.name()),
        capture: header.facts.capture.map(Into::into),
        samples_declared: header.samples,
        threads_declared: header.threads,
        depth_limit: STACK_DEPTH,
        measured: statistics.map(Into::into),
        compression,
        compression_number,
        sample_data_bytes: header.strings_at - HEADER_LEN,
        string_count: footer.strings,
        frame_count: footer.frames,
        found: None,
        warnings: Vec::new(),
        faults: Vec::new(),
    }
}

fn found(contents: &Contents) -> Inspected {
    let Contents { header, scan, faults, .. } = contents;
    let packed = header.strings_at - HEADER_LEN;
    let is_packed = header.compression == Compression::Zstd;
    let damaged = faults.iter().any(|fault| fault.code == FaultCode::DamagedSamples);
    let unpacked = if is_packed { (!damaged).then_some(scan.region_len) } else { Some(packed) };
    let [repeat, full, suffix, pop_push] = scan.records;
    let threads = scan.threads.iter();
    Inspected {
        samples: scan.samples,
        samples_empty: scan.empty,
        samples_at_depth_limit: scan.at_depth_limit,
        thread_count: scan.threads.len(),
        first_usec: scan.span.map(|span| span.first_us),
        last_usec: scan.span.map(|span| span.last_us),
        first_to_last_sample_usec: scan.span.map(TimeSpan::duration_us),
        sample_data_unpacked_bytes: unpacked,
        compression_ratio: unpacked
            .filter(|_| is_packed && packed > 0)
            .map(|unpacked| unpacked as f64 / packed as f64),
        records: Records { repeat, full, suffix, pop_push },
        threads: threads
            .map(|thread| ThreadReport::new(thread.thread, thread.samples, thread.span))
            .collect(),
    }
}

fn text(name: &str, report: &Report) -> String {
    let mut sheet = Sheet::default();
    let joined = report.profiles.len() + report.unreadable.len() > 1;
    for (index, profile) in report.profiles.iter().enumerate() {
        if index > 0 {
            sheet.line("");
        }
        let place = if joined { format!(" at byte {}", profile.offset_bytes) } else { String::new() };
        sheet.line(&format!("{name}: a binary profile{place}"));
        profile.rows(&mut sheet);
    }
    for fault in &report.unreadable {
        sheet.line("");
        sheet.line(&format!("{name}: unreadable: {fault}"));
    }
    sheet.finish()
}

impl ProfileReport {
    fn rows(&self, sheet: &mut Sheet) {
        sheet.row("size", format!("{} bytes", self.size_bytes));
        sheet.row("format version", self.format_version.to_string());
        let layout = if self.layout == Layout::Wide.name() {
            "the 3.15 releases, sample count of 8 bytes"
        } else {
            "the 3.15 alphas, sample count of 4 bytes"
        };
        sheet.row("header layout", format!("{} ({layout})", self.layout));
        sheet.row("byte order", format!("{}-endian", self.byte_order));
        sheet.known("Python", self.python.clone());
        sheet.row("start", format!("{} (monotonic clock, no date)", instant(self.start_usec)));
        sheet.row("interval", interval_text(self.sample_interval_usec));
        sheet.known("mode", self.mode);
        sheet.known("capture settings", self.capture.as_ref().map(capture_text));
        self.sample_rows(sheet);
        measured_rows(sheet, self.measured.as_ref());
        sheet.row("sample data", self.data_text());
        if let Some(Inspected { records: Records { repeat, full, suffix, pop_push }, .. }) = self.found {
            let records = format!("REPEAT {repeat}, FULL {full}, SUFFIX {suffix}, POP_PUSH {pop_push}");
            sheet.row("records", records);
        }
        sheet.row("strings", self.string_count.to_string());
        sheet.row("frames", self.frame_count.to_string());
        for warning in &self.warnings {
            sheet.row("warning", warning.clone());
        }
        for fault in &self.faults {
            sheet.row("fault", fault.to_string());
        }
        if let Some(found) = &self.found {
            sheet.threads(&found.threads);
        }
    }

    fn sample_rows(&self, sheet: &mut Sheet) {
        let Some(found) = &self.found else {
            sheet.row("samples", format!("{} by the header, not read", self.samples_declared));
            sheet.row("threads", format!("{} by the header", self.threads_declared));
            return;
        };
        sheet.row("samples", counted(found.samples, self.samples_declared));
        sheet.row("samples with an empty stack", found.samples_empty.to_string());
        let at_limit = found.samples_at_depth_limit;
        let cut = format!(
            "{at_limit} (of {} frames; the profiler keeps the innermost, so outer frames may be missing)",
            self.depth_limit
        );
        let cut = if at_limit > 0 { cut } else { format!("0 (of {} frames)", self.depth_limit) };
        sheet.row("samples at the depth limit", cut);
        sheet.row("threads", counted(found.thread_count as u64, u64::from(self.threads_declared)));
        let span = found.first_usec.zip(found.last_usec);
        let span = span.map_or_else(|| "no samples".to_string(), |(first, last)| span_text(first, last));
        sheet.row("first to last sample", span);
    }

    fn data_text(&self) -> String {
        let bytes = self.sample_data_bytes;
        let unpacked = self.found.as_ref().map(|found| found.sample_data_unpacked_bytes);
        match (self.compression, unpacked) {
            ("none", _) => format!("{bytes} bytes, not packed"),
            ("zstd", None) => format!("{bytes} bytes, packed with zstd"),
            ("zstd", Some(None)) => format!("{bytes} bytes, packed with zstd, damaged"),
            ("zstd", Some(Some(unpacked))) => {
                let ratio = self.found.as_ref().and_then(|found| found.compression_ratio);
                let ratio = ratio.map_or(String::new(), |ratio| format!(", ratio {ratio:.2}"));
                format!("{bytes} bytes, packed with zstd; {unpacked} bytes unpacked{ratio}")
            }
            _ => format!("{bytes} bytes, compression {} (unknown), read as plain", self.compression_number),
        }
    }
}

fn counted(found: u64, declared: u64) -> String {
    format!("{found} (the header declares {declared})")
}
