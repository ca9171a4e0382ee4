//! Rows of the report that profiles and runs share.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::inspect::runs::{EndFacts, Gap, LossTotal, RunSummary};
use crate::cli::inspect::text::{Sheet, duration, instant, measured};
use crate::protocol::message::{Capture, IdScope, LossAmount, Stats, VERSION};

/// Gaps and errors that the text lists; `--json` has more.
const LISTED: usize = 5;

/// "yes" or "no" for each setting.
pub(crate) fn capture_text(capture: &Capture) -> String {
    let settings = [
        ("all threads", capture.all_threads),
        ("native", capture.native),
        ("gc", capture.gc),
        ("opcodes", capture.opcodes),
        ("blocking", capture.blocking),
    ];
    settings.map(|(name, on)| format!("{name} {}", if on { "yes" } else { "no" })).join(", ")
}

/// The planned time between two instants, and what that is in a second.
pub(crate) fn interval_text(us: u64) -> String {
    if us == 0 {
        return "0 us".to_string();
    }
    format!("{} ({} a second)", duration(us), measured(1e6 / us as f64))
}

/// The earliest and the latest sample time.
pub(crate) fn span_text(first: u64, last: u64) -> String {
    format!("{} (from {} to {})", duration(last - first), instant(first), instant(last))
}

/// What the profiler measured; what it did not measure is unknown.
pub(crate) fn measured_rows(sheet: &mut Sheet, stats: Option<&Stats>) {
    let percent = |value: f64| format!("{} %", measured(value));
    let seconds = stats.map(|stats| format!("{} s", measured(stats.duration_sec)));
    let rate = stats.map(|stats| format!("{} a second", measured(stats.sample_rate)));
    sheet.known("duration, measured by the profiler", seconds);
    sheet.known("rate, measured by the profiler", rate);
    sheet.known("failed, measured by the profiler", stats.and_then(|stats| stats.error_rate).map(percent));
    sheet
        .known("missed, measured by the profiler", stats.and_then(|stats| stats.missed_samples).map(percent));
}

impl RunSummary {
    pub fn rows(&self, sheet: &mut Sheet) {
        let what = match self.v {
            0 => "CPython's own JSONL, schema version 0: counts, no samples",
            1 => "CPython's proposed JSONL, schema version 1: counts, no samples",
            VERSION => "schema version 2",
            _ => "of an unknown schema version",
        };
        sheet.line(&format!("run {} ({what})", self.run_id));
        sheet.row("complete", self.complete_text());
        let types: Vec<String> =
            self.messages_by_type.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        sheet.row("messages", format!("{} ({})", self.messages, types.join(", ")));
        if self.v == VERSION {
            self.own_rows(sheet);
        } else {
            sheet.known("interval", self.facts.sample_interval_usec.map(interval_text));
            sheet.known("mode", self.facts.mode.clone());
            sheet.known("samples with a frame", self.samples_total.map(|samples| samples.to_string()));
            sheet.row("strings", self.string_count.unwrap_or(0).to_string());
            sheet.row("frames", self.frame_count.unwrap_or(0).to_string());
        }
        sheet.threads(&self.threads);
    }

    fn complete_text(&self) -> &'static str {
        match (self.ended, self.complete) {
            (false, _) => "no end message",
            (true, Some(false)) => "no, as its end message says",
            (true, Some(true)) if self.missing_messages > 0 => {
                "its end message says so, but messages are missing"
            }
            (true, Some(true)) => "yes",
            (true, None) => "yes, it has an end message",
        }
    }

    fn own_rows(&self, sheet: &mut Sheet) {
        let facts = &self.facts;
        sheet.row("batches", self.batches.unwrap_or(0).to_string());
        let types = facts.stream_types.as_ref().map(|types| types.join(","));
        sheet.row("stream types", types.unwrap_or_else(|| "unknown".to_string()));
        sheet.known(
            "ids",
            facts.id_scope.map(|scope| match scope {
                IdScope::Run => "valid throughout the run",
                IdScope::Batch => "valid within each batch",
            }),
        );
        sheet.known("Python", facts.python.clone());
        let clock = facts.clock.as_deref().unwrap_or("unknown");
        sheet.known("start", facts.run_start_usec.map(|us| format!("{} ({clock} clock)", instant(us))));
        if let Some(date) = facts.run_start_wall_usec.and_then(date) {
            sheet.row("date of the start", date);
        }
        sheet.known("interval", facts.sample_interval_usec.map(interval_text));
        sheet.known("mode", facts.mode.clone());
        sheet.known("capture settings", facts.capture.as_ref().map(capture_text));
        for (key, value) in facts.labels.iter().flatten() {
            sheet.row("label", format!("{key}={value}"));
        }
        self.sample_rows(sheet);
        match (self.thread_count, self.threads_in_a_batch) {
            (Some(threads), _) => sheet.row("threads", threads.to_string()),
            (None, Some(threads)) => sheet.row("threads", format!("at most {threads} in a batch")),
            (None, None) => sheet.row("threads", "unknown"),
        }
        let span = self.first_usec.zip(self.last_usec);
        sheet.known("first to last sample", span.map(|(first, last)| span_text(first, last)));
        measured_rows(sheet, self.measured.as_ref());
        self.loss_rows(sheet);
    }

    fn sample_rows(&self, sheet: &mut Sheet) {
        sheet.known("samples, announced by the batches", self.samples_announced.map(|n| n.to_string()));
        let raw = self.samples_raw.map(|samples| {
            format!("{samples} ({} with an empty stack)", self.samples_raw_empty.unwrap_or(0))
        });
        sheet.row("samples, in raw messages", raw.unwrap_or_else(|| "there are no raw messages".to_string()));
        let end =
            self.end.as_ref().map(|EndFacts { samples, samples_total, samples_empty, .. }| {
                match samples.zip(*samples_empty) {
                    Some((samples, empty)) => {
                        format!("{samples} ({samples_total} with a frame, {empty} empty)")
                    }
                    None => format!("{samples_total} with a frame"),
                }
            });
        sheet.known("samples, by the end message", end);
    }

    fn loss_rows(&self, sheet: &mut Sheet) {
        for (reason, total) in &self.losses {
            sheet.row("loss", format!("{reason}{}", amount_text(total)));
        }
        if self.missing_messages > 0 {
            let gaps: Vec<String> = self.gaps.iter().take(LISTED).map(gap_text).collect();
            let more = if self.gaps.len() > LISTED { ", and more" } else { "" };
            sheet
                .row("missing messages", format!("{}, seq {}{more}", self.missing_messages, gaps.join(", ")));
        }
        if self.out_of_order_messages > 0 {
            sheet.row("messages out of order", self.out_of_order_messages.to_string());
        }
        if self.messages_after_end > 0 {
            sheet.row("messages after the end", self.messages_after_end.to_string());
        }
        for error in self.errors.iter().take(LISTED) {
            let fatal = if error.fatal { ", fatal" } else { "" };
            let place =
                error.offset.map_or(String::new(), |offset| format!(" (at byte {offset} of the profile)"));
            sheet.row("error", format!("{}{fatal}: {}{place}", error.code, error.detail));
        }
        let more = self.error_count.saturating_sub(LISTED as u64);
        if more > 0 {
            sheet.row("more errors", more.to_string());
        }
    }
}

fn gap_text(gap: &Gap) -> String {
    let Gap { first_seq, last_seq, line } = gap;
    if first_seq == last_seq {
        format!("{first_seq} (before line {line})")
    } else {
        format!("{first_seq} to {last_seq} (before line {line})")
    }
}

fn amount_text(total: &LossTotal) -> String {
    let LossAmount { lost_samples, lost_messages, lost_bytes, lost_percent, samples } = total.amount;
    let counts = [
        (lost_samples, "samples lost"),
        (lost_messages, "messages lost"),
        (lost_bytes, "bytes lost"),
        (samples, "samples that may lack frames"),
    ];
    let mut parts: Vec<String> =
        counts.iter().filter_map(|(count, what)| count.map(|count| format!("{count} {what}"))).collect();
    parts.extend(lost_percent.map(|percent| format!("{} %", measured(percent))));
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}

/// A Unix time as a date, where it has one.
pub(crate) fn date(wall_usec: i64) -> Option<String> {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(wall_usec) * 1000).ok()?;
    let whole = time.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()?;
    Some(format!("{}.{:06}Z", whole.trim_end_matches('Z'), time.microsecond()))
}
