//! Text layout of reports: aligned `key: value` rows in sections.

use std::fmt::Write;

use crate::cli::inspect::ThreadReport;
use crate::cli::ui::terminal::shown;

/// Threads that the text lists; `--json` has them all.
const THREADS: usize = 20;

/// A text in the making.
#[derive(Default)]
pub(crate) struct Sheet {
    text: String,
    rows: Vec<(&'static str, String)>,
}

impl Sheet {
    /// A line of its own.
    pub fn line(&mut self, text: &str) {
        self.align();
        self.text.push_str(&shown(text));
        self.text.push('\n');
    }

    /// A value under its name.
    pub fn row(&mut self, key: &'static str, value: impl Into<String>) {
        self.rows.push((key, value.into()));
    }

    /// A value that may not be known, which is never shown as a number.
    pub fn known(&mut self, key: &'static str, value: Option<impl Into<String>>) {
        self.row(key, value.map_or_else(|| "unknown".to_string(), Into::into));
    }

    /// The threads with the most samples.
    pub fn threads(&mut self, threads: &[ThreadReport]) {
        self.align();
        if threads.is_empty() {
            return;
        }
        let mut busiest: Vec<&ThreadReport> = threads.iter().collect();
        busiest.sort_by_key(|thread| std::cmp::Reverse(thread.samples));
        let more = busiest.len().saturating_sub(THREADS);
        busiest.truncate(THREADS);
        let mut table = vec![["interpreter", "thread", "samples", "first", "last"].map(String::from)];
        for thread in busiest {
            let time = |time: Option<u64>| time.map_or_else(|| "unknown".to_string(), instant);
            table.push([
                thread.interpreter_id.to_string(),
                thread.thread_id.clone(),
                thread.samples.to_string(),
                time(thread.first_usec),
                time(thread.last_usec),
            ]);
        }
        self.table(&table);
        if more > 0 {
            let _ = writeln!(self.text, "    and {}: --json lists all", counted(more as u64, "more thread"));
        }
    }

    /// Rows of cells, the first one the heads of the columns.
    pub fn table<const COLUMNS: usize>(&mut self, table: &[[String; COLUMNS]]) {
        self.align();
        let width =
            |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        for row in table {
            self.text.push_str("   ");
            for (cell, width) in row.iter().zip(&widths) {
                let _ = write!(self.text, " {:>width$} ", shown(cell));
            }
            self.text.truncate(self.text.trim_end().len());
            self.text.push('\n');
        }
    }

    /// Writes the rows that wait.
    fn align(&mut self) {
        let width = self.rows.iter().map(|(key, _)| key.len()).max().unwrap_or_default() + 1;
        for (key, value) in self.rows.drain(..) {
            let _ = writeln!(self.text, "  {:<width$} {}", format!("{key}:"), shown(&value));
        }
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        self.align();
        self.text
    }
}

/// A number of things, whose plural has an s.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A length of time.
pub(crate) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{} ms", decimal(us, 3)),
        1_000_000..60_000_000 => instant(us),
        _ => {
            let minutes = us / 60_000_000;
            let seconds = decimal(us % 60_000_000, 6);
            let clock = match (minutes / 60, minutes % 60) {
                (0, minutes) => format!("{minutes} min {seconds} s"),
                (hours, minutes) => format!("{hours} h {minutes} min {seconds} s"),
            };
            format!("{} ({clock})", instant(us))
        }
    }
}

/// A time on the profiler's clock.
pub(crate) fn instant(us: u64) -> String {
    format!("{} s", decimal(us, 6))
}

/// `value` with its last `places` digits after the point, without zeros at the end but for one.
fn decimal(value: u64, places: usize) -> String {
    let one = 10u64.pow(places as u32);
    let fraction = format!("{:0places$}", value % one);
    let fraction = match fraction.trim_end_matches('0') {
        "" => "0",
        digits => digits,
    };
    format!("{}.{fraction}", value / one)
}

/// A measured number with six digits that count. One that is not zero never looks like zero.
pub(crate) fn measured(value: f64) -> String {
    if value == 0.0 {
        return "0".to_string();
    }
    // No logarithm: a whole library would be loaded for it.
    let scientific = format!("{value:e}");
    let exponent = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok());
    let Some(exponent @ -4..15) = exponent else { return scientific };
    let places = usize::try_from(5 - exponent).unwrap_or(0);
    let text = format!("{value:.places$}");
    if places == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_exact_and_readable() {
        assert_eq!(duration(0), "0 us");
        assert_eq!(duration(3_000), "3.0 ms");
        assert_eq!(duration(1_234_567), "1.234567 s");
        assert_eq!(duration(3_723_500_000), "3723.5 s (1 h 2 min 3.5 s)");
    }

    #[test]
    fn a_measured_number_never_looks_like_zero() {
        assert_eq!(measured(0.0), "0");
        assert_eq!(measured(999.999_903_407), "1000");
        assert_eq!(measured(0.000_123_4), "0.0001234");
        assert_eq!(measured(5e-324), "5e-324");
        assert_eq!(measured(f64::MAX), "1.7976931348623157e308");
        assert_eq!(measured(-12.5), "-12.5");
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        let mut sheet = Sheet::default();
        sheet.row("mode", "\u{1b}[31mred\n");
        assert_eq!(sheet.finish(), "  mode: \\u{1b}[31mred\\n\n");
    }
}
