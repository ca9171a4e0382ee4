//! Counts made while a profile was opened, used in place of counting its samples again.

use std::io::{Read, Seek, Write};

use crate::convert::to_stream::RunStream;
use crate::counts::{CountedWindow, CountedWindows};
use crate::error::Result;
use crate::format::Profile;

/// What was counted of a profile while it was opened, if it was.
pub(crate) struct Counted {
    windows: Option<CountedWindows>,
    /// The numbers of its frames, where they aren't its own.
    numbers: Option<Vec<u32>>,
}

impl Counted {
    /// Whether it was counted, and its samples are not to be counted again.
    pub fn is_there(&self) -> bool {
        self.windows.is_some()
    }

    /// Whether there are counts of the window in which this key lies, not taken yet.
    pub fn is_due(&self, key: u64) -> bool {
        self.windows.as_ref().is_some_and(|windows| windows.is_due(key))
    }

    fn next(&mut self) -> Result<Option<CountedWindow>> {
        self.windows.as_mut().map_or(Ok(None), CountedWindows::next)
    }
}

impl RunStream {
    /// What was counted of this profile; `numbers` are those of its frames, where they aren't its own.
    pub(crate) fn counted<R: Read + Seek>(
        &self,
        profile: &mut Profile<R>,
        numbers: Option<&[u32]>,
    ) -> Counted {
        let counting = self.options.counting();
        let windows = counting.and_then(|counting| profile.take_windows(counting, self.start_us()));
        let numbers = numbers.filter(|_| windows.is_some()).map(<[u32]>::to_vec);
        Counted { windows, numbers }
    }

    /// Takes what was counted while the profile was opened in place of its samples.
    pub(crate) fn take_windows(&mut self, counted: &mut Counted, sink: &mut impl Write) -> Result<()> {
        while let Some(window) = counted.next()? {
            let key = window.span.first_us;
            self.pass(key, sink)?;
            self.batch.first_key.get_or_insert(key);
            self.window_end = self.aggregator.window_end(key);
            self.note_span(window.span);
            self.batch.threads.extend(&window.threads);
            self.batch.at_depth_limit += window.at_depth_limit;
            let samples = window.table.total + window.table.empty;
            self.batch.samples += samples;
            self.batch.fresh += samples;
            self.samples += samples;
            self.add_window(window, counted);
        }
        Ok(())
    }

    /// Takes the counts of a window whose samples are about to come.
    pub(crate) fn take_window(&mut self, counted: &mut Counted) -> Result<()> {
        if let Some(window) = counted.next()? {
            self.add_window(window, counted);
        }
        Ok(())
    }

    fn add_window(&mut self, window: CountedWindow, counted: &Counted) {
        self.samples_total += window.table.total;
        let number = |frame| counted.numbers.as_ref().map_or(frame, |numbers| numbers[frame as usize]);
        self.aggregator.add(window.table, number);
    }
}
