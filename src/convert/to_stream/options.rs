//! Options for making a stream.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::counts::By;
use crate::counts::Counting;
use crate::error::{Error, Result};
use crate::limits;
use crate::protocol::{MessageType, StreamTypes, is_run_id};

/// A period in microseconds.
pub(crate) fn micros(period: Duration) -> u64 {
    u64::try_from(period.as_micros()).unwrap_or(u64::MAX)
}

/// When a batch (or, in a profile, a chunk) closes: at whichever limit comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flush {
    /// Once it has this many samples, at the end of the instant that reaches them; where it holds counts alone,
    /// of the window.
    pub samples: Option<u64>,
    /// Before it would span this much time.
    pub interval: Option<Duration>,
    /// With each part of the input: a chunk, a framed profile, a whole file.
    pub part: bool,
}

impl Flush {
    /// For a run that is one profile.
    pub const OF_FILE: Flush = Flush { samples: Some(262_144), interval: None, part: false };
    /// For a run that comes in parts.
    pub const OF_PARTS: Flush = Flush { samples: None, interval: None, part: true };

    /// The interval in microseconds.
    pub(crate) fn interval_us(self) -> Option<u64> {
        self.interval.map(micros)
    }
}

/// How to make a stream of a profile.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    pub(crate) run_id: String,
    pub(crate) types: StreamTypes,
    pub(crate) flush: Option<Flush>,
    pub(crate) max_line: usize,
    pub(crate) wall_start_us: Option<i64>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) live: bool,
    pub(crate) threads: usize,
}

impl StreamOptions {
    /// The defaults, for a run of this id.
    ///
    /// # Errors
    ///
    /// A `run_id` that is not 1 to 64 characters of URL-safe base64.
    pub fn new(run_id: impl Into<String>) -> Result<Self> {
        let run_id = run_id.into();
        if !is_run_id(&run_id) {
            return Err(Error::usage(format!(
                "the run id '{run_id}' is not 1 to 64 of the characters A-Z a-z 0-9 - _"
            )));
        }
        Ok(StreamOptions {
            run_id,
            types: StreamTypes::default(),
            flush: None,
            max_line: limits::LINE,
            wall_start_us: None,
            labels: BTreeMap::new(),
            live: false,
            threads: 1,
        })
    }

    /// The id of the run.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Which messages to write.
    #[must_use]
    pub fn types(mut self, types: StreamTypes) -> Self {
        self.types = types;
        self
    }

    /// When batches close; [`Flush::OF_FILE`] or [`Flush::OF_PARTS`] unless said otherwise.
    #[must_use]
    pub fn flush(mut self, flush: Flush) -> Self {
        self.flush = Some(flush);
        self
    }

    /// What to have counted while profiles are opened, by [`Sequence::counting`]: a stream of counts alone
    /// then needs no second walk over them. The stream is the same without.
    ///
    /// [`Sequence::counting`]: crate::format::Sequence::counting
    pub fn counting(&self) -> Option<Counting> {
        let period_us = self.types.window().map(micros);
        self.types.has(MessageType::Agg).then_some(Counting { period_us, by: By::Frame })
    }

    /// Whether the stream can be made of counts: nothing in it needs the samples in order.
    pub(crate) fn is_of_counts(&self) -> bool {
        let types = &self.types;
        types.has(MessageType::Agg)
            && ![MessageType::Raw, MessageType::Heartbeat].into_iter().any(|other| types.has(other))
            && ![MessageType::StrDef, MessageType::FrameDef].into_iter().any(|other| types.asks_for(other))
            // Batches that end at any time.
            && self.flush.is_none_or(|flush| flush.interval.is_none())
    }

    /// Bytes of a line, its line feed included.
    ///
    /// # Errors
    ///
    /// A limit outside of [`limits::LINE_MIN`] to [`limits::LINE_MAX`].
    pub fn max_line(mut self, bytes: usize) -> Result<Self> {
        if !(limits::LINE_MIN..=limits::LINE_MAX).contains(&bytes) {
            return Err(Error::usage(format!(
                "a line limit of {bytes} bytes; it must be {} (so that any sample fits) to {} (what DuckDB and WebSocket readers take)",
                limits::LINE_MIN,
                limits::LINE_MAX
            )));
        }
        self.max_line = bytes;
        Ok(self)
    }

    /// How many threads to work on, the caller's among them: 1 unless said otherwise, 0 for one a core. The
    /// stream is the same for any number; only raw messages, counts and packed profiles have work for more than
    /// one.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Unix time, microseconds, at which the run began.
    #[must_use]
    pub fn wall_start_us(mut self, wall_start_us: i64) -> Self {
        self.wall_start_us = Some(wall_start_us);
        self
    }

    /// The profile is still being written: a part's batch goes out with the part, so that what ends with
    /// the run comes in a batch of its own, and heartbeats come by [`RunStream::heartbeat`] alone.
    ///
    /// [`RunStream::heartbeat`]: crate::convert::RunStream::heartbeat
    #[must_use]
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// A fact of the user's own, repeated in every `meta`.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }
}
