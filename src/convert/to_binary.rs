//! Stream to binary profile, in one piece or in chunks.

mod chunks;
pub(crate) mod merge;
pub(crate) use std::io::{Seek, Write};
use std::ops::Range;

use crate::convert::stream_definitions::Definitions;
use crate::convert::to_binary::merge::Merge;
use crate::error::{Error, Result};
use crate::format::{Packing, Writer};
use crate::protocol::{RawColumns, ThreadColumns};

use crate::convert::group_reader::GroupReader;
pub use chunks::ToChunks;

/// How to make a profile of a stream.
#[derive(Clone, Debug)]
pub struct ProfileOptions {
    packing: Packing,
    run_id: Option<String>,
    threads: usize,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        ProfileOptions { packing: Packing::Zstd(5), run_id: None, threads: 1 }
    }
}

impl ProfileOptions {
    /// How to pack the samples; as CPython does, unless said otherwise.
    #[must_use]
    pub fn packing(mut self, packing: Packing) -> Self {
        self.packing = packing;
        self
    }

    /// Which run to take, of a stream that holds several.
    #[must_use]
    pub fn run_id(mut self, run_id: impl Into<String>) -> Self {
        self.run_id = Some(run_id.into());
        self
    }

    /// How many threads to work on, the caller's among them: 1 unless said otherwise, 0 for one a core. The
    /// profile is the same for any number; only packing has work for a second one.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
}

/// What became of a stream.
#[derive(Debug)]
pub struct Outcome<W> {
    /// Where the finished profile went.
    pub sink: W,
    /// Samples in it.
    pub samples: u64,
    /// What was damaged, missing or left out, the first of each kind with its line. Empty where the
    /// profile holds all that the stream's `end` promises.
    pub losses: Vec<Error>,
    /// What could be overlooked without losing anything.
    pub tolerated: Vec<String>,
    /// Facts of the run that this layout of profiles has no place for.
    pub left_out: Vec<&'static str>,
}

/// Makes a version-1 profile out of the lines of a stream, as CPython's writer would have written
/// the samples.
///
/// ```
/// use std::io::Cursor;
/// use tachyon_jsonl::convert::{ProfileOptions, StreamOptions, ToBinary, to_stream};
/// use tachyon_jsonl::format::{Packing, Profile};
///
/// let bytes = std::fs::read("tests/data/cpython/tiny_script_none.bin")?;
/// let mut stream = Vec::new();
/// to_stream(&mut Profile::open(Cursor::new(&bytes))?, &StreamOptions::new("example")?, &mut stream)?;
///
/// let options = ProfileOptions::default().packing(Packing::None);
/// let mut to_binary = ToBinary::new(Cursor::new(Vec::new()), options);
/// for (number, line) in (1..).zip(stream.split_inclusive_mut(|byte| *byte == b'\n')) {
///     to_binary.line(number, line)?;
/// }
/// let outcome = to_binary.finish()?;
/// assert!(outcome.losses.is_empty());
/// assert_eq!(outcome.sink.into_inner(), bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ToBinary<W: Write + Seek> {
    packing: Packing,
    threads: usize,
    reader: GroupReader,
    sink: Option<W>,
    profile: Option<(Writer<W>, Merge)>,
}

impl<W: Write + Seek> ToBinary<W> {
    /// Starts a profile at the start of `sink`, where nothing must be yet.
    pub fn new(sink: W, options: ProfileOptions) -> Self {
        ToBinary {
            packing: options.packing,
            threads: options.threads,
            reader: GroupReader::new(options.run_id),
            sink: Some(sink),
            profile: None,
        }
    }

    /// Takes the stream's line of this number, from 1. A message that is damaged or out of place is
    /// skipped and noted.
    ///
    /// # Errors
    ///
    /// Errors of the sink, and a second run where none was chosen.
    pub fn line(&mut self, number: u64, line: &mut [u8]) -> Result<()> {
        let ToBinary { reader, profile, .. } = self;
        reader.line(number, line, |group, _, definitions| add(profile, group, definitions))?;
        if let Some(run) = self.reader.run()
            && let Some(sink) = self.sink.take()
        {
            let merge = Merge::new(run.facts.start_us);
            let writer = Writer::new(sink, run.facts.clone(), self.packing, self.threads)?;
            self.profile = Some((writer, merge));
        }
        Ok(())
    }

    /// Ends the stream and the profile.
    ///
    /// # Errors
    ///
    /// A stream that cannot become a profile: it has no run, or no samples where there were some; and
    /// errors of the sink.
    pub fn finish(mut self) -> Result<Outcome<W>> {
        let ToBinary { reader, profile, .. } = &mut self;
        reader.write_group(|group, _, definitions| add(profile, group, definitions))?;
        let (cut, samples) = match &self.profile {
            Some((writer, merge)) => (merge.cut_stacks(), writer.samples()),
            None => (0, 0),
        };
        let ended = self.reader.finish(cut, samples)?;
        let Some((mut writer, mut merge)) = self.profile else {
            return Err(Error::stream("the stream holds no run"));
        };
        let left_out = ended.run.left_out();
        merge.finish(&mut writer)?;
        let sink = writer.finish(merge.threads() as u32, ended.statistics.as_ref())?;
        Ok(Outcome { sink, samples, losses: ended.losses, tolerated: ended.tolerated, left_out })
    }
}

/// Adds raw messages that are in order together.
fn add<W: Write + Seek>(
    profile: &mut Option<(Writer<W>, Merge)>,
    group: &[RawColumns],
    definitions: &mut Definitions,
) -> Result<()> {
    let Some((writer, merge)) = profile else { return Ok(()) };
    merge.add(group, &whole(group), definitions, writer)?;
    writer.added(group.iter().map(|columns| columns.samples).sum())
}

/// The threads of raw messages that are in order together.
fn threads(group: &[RawColumns]) -> impl Iterator<Item = &ThreadColumns> {
    group.iter().flat_map(RawColumns::threads)
}

/// All samples of these threads.
fn whole(group: &[RawColumns]) -> Vec<Range<usize>> {
    threads(group).map(|thread| 0..thread.times_usec.len()).collect()
}
