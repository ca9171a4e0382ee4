//! Rules of `agg`: a table over one or several lines, and the tables of a run together.

use std::collections::BTreeSet;

use crate::protocol::check::report::Report;
use crate::protocol::message::Agg;

/// The tables of a run.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    open: Option<Open>,
    /// Starts of the windows in the open batch.
    windows: BTreeSet<i128>,
    period: Option<u64>,
    whole: Option<Whole>,
    /// Samples of all tables, with a frame and without.
    total: u128,
    empty: u128,
    /// A table is missing or wrong, so that the tables don't tell the sums of the run.
    doubtful: bool,
}

/// The table over the whole run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    pub line: u64,
    pub start_usec: Option<i128>,
    pub duration_usec: Option<u64>,
}

/// A table that further lines may continue.
#[derive(Debug)]
struct Open {
    /// Without its columns.
    head: Agg,
    line: u64,
    last_frame: Option<u32>,
    self_sum: u128,
    /// Rows are missing or wrong.
    doubtful: bool,
}

impl Tables {
    /// A line of a table may be missing here.
    pub fn doubt(&mut self) {
        self.doubtful = true;
        if let Some(open) = &mut self.open {
            open.doubtful = true;
        }
    }

    /// Samples of all tables with a frame and without, unless they cannot be known.
    pub fn sums(&self) -> Option<(u128, u128)> {
        (!self.doubtful).then_some((self.total, self.empty))
    }

    /// Takes a line of a table of a run that began at `run_start`, whose types ask for windows of
    /// `asked` microseconds (`Some(0)`: for one table), if it is known what they ask for.
    pub fn add(&mut self, body: &Agg, run_start: u64, asked: Option<u64>, report: &mut Report<'_>) {
        let head = Agg { frame_id: Vec::new(), self_: Vec::new(), cumulative: Vec::new(), ..body.clone() };
        if self.open.as_ref().is_none_or(|open| open.head != head) {
            self.close_table(report);
            self.open_table(&head, run_start, asked, report);
            self.open =
                Some(Open { head, line: report.line, last_frame: None, self_sum: 0, doubtful: false });
        }
        if let Some(open) = &mut self.open {
            open.add_rows(body, report);
        }
    }

    fn open_table(&mut self, head: &Agg, run_start: u64, asked: Option<u64>, report: &mut Report<'_>) {
        let found = report.faults;
        if head.kind != "frame" {
            report.say(format!("the kind of table {:?}; it is \"frame\"", head.kind));
        }
        match head.scope.as_str() {
            "window" => self.open_window(head, run_start, asked, report),
            "final" => {
                if self.whole.is_some() {
                    report.say("a second final table");
                } else if asked.is_some_and(|asked| asked > 0) {
                    report.say("a final table where the stream_types ask for windows");
                }
                let Agg { start_usec, duration_usec, .. } = *head;
                self.whole = Some(Whole { line: report.line, start_usec, duration_usec });
            }
            scope => report.say(format!("the scope {scope:?}; it is \"window\" or \"final\"")),
        }
        self.doubtful |= report.faults > found;
        self.total += u128::from(head.samples_total);
        self.empty += u128::from(head.samples_empty.unwrap_or(0));
    }

    fn open_window(&mut self, head: &Agg, run_start: u64, asked: Option<u64>, report: &mut Report<'_>) {
        let (Some(start), Some(duration)) = (head.start_usec, head.duration_usec) else {
            return report.say("a window without start_usec and duration_usec");
        };
        let period = match asked {
            Some(0) => {
                return report.say("a window where the stream_types ask for a final table");
            }
            Some(asked) => asked,
            None => *self.period.get_or_insert(duration),
        };
        if duration == 0 || duration != period {
            report.say(format!("a window of {duration} us; the run has windows of {period} us"));
        } else if !is_aligned(start, run_start, period) {
            report.say(format!("the window at {start} is not a multiple of {period} us from run_start_usec"));
        }
        if !self.windows.insert(start) {
            report.say(format!("a second table of the window at {start} in one batch"));
        }
        if head.samples_total == 0 && head.samples_empty.unwrap_or(0) == 0 {
            report.say("a window without a sample");
        }
    }

    fn close_table(&mut self, report: &mut Report<'_>) {
        let Some(open) = self.open.take() else { return };
        let total = open.head.samples_total;
        if !open.doubtful && open.self_sum != u128::from(total) {
            self.doubtful = true;
            let sum = open.self_sum;
            report.at(
                open.line,
                format!("the table's self adds up to {sum}, but its samples_total is {total}"),
            );
        }
    }

    pub fn close_batch(&mut self, report: &mut Report<'_>) {
        self.close_table(report);
        self.windows.clear();
    }

    /// Windows that it keeps.
    pub fn kept(&self) -> usize {
        self.windows.len()
    }

    pub fn whole(&self) -> Option<Whole> {
        self.whole
    }
}

fn is_aligned(start: i128, run_start: u64, period: u64) -> bool {
    let since = start.checked_sub(i128::from(run_start));
    since.and_then(|since| since.checked_rem(i128::from(period))) == Some(0)
}

impl Open {
    fn add_rows(&mut self, body: &Agg, report: &mut Report<'_>) {
        let mut wrong: Option<String> = None;
        for ((&frame, &self_), &cumulative) in body.frame_id.iter().zip(&body.self_).zip(&body.cumulative) {
            if self.last_frame.is_some_and(|last| last >= frame) {
                wrong.get_or_insert_with(|| format!("frame {frame} is not in ascending order"));
            }
            if self_ > cumulative {
                let fault = || format!("frame {frame} has self {self_} over its cumulative {cumulative}");
                wrong.get_or_insert_with(fault);
            }
            if cumulative > body.samples_total {
                let total = body.samples_total;
                let fault =
                    || format!("frame {frame} has cumulative {cumulative} over the samples_total {total}");
                wrong.get_or_insert_with(fault);
            }
            self.last_frame = Some(frame);
            self.self_sum += u128::from(self_);
        }
        if let Some(wrong) = wrong {
            report.say(wrong);
            self.doubtful = true;
        }
    }
}
