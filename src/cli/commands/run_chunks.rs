//! The chunks of a run: passed on as they are, or made again from its samples.

use std::cell::RefCell;
use std::io::{self, Read, Seek, Write};
use std::rc::Rc;
use std::time::Duration;

use crate::cli::args::FromBin;
use crate::cli::commands::run_id::is_made_up;
use crate::cli::commands::stream_options::threads;
use crate::cli::output::outputs::Outputs;
use crate::convert::{Flush, ProfileOptions, RunStream, StreamOptions, ToChunks};
use crate::error::{Error, Result};
use crate::format::{Chunk, ChunkOrder, Framing, Profile};

/// Of chunks that are made anew, unless said otherwise.
const FLUSH: Flush = Flush { samples: None, interval: Some(Duration::from_secs(10)), part: false };

/// A run on its way to chunks.
pub(crate) enum RunChunks {
    /// Its chunks go out as they are.
    Same { order: ChunkOrder, gaps: u64, samples: u64 },
    /// Its samples go into chunks of another size, or of other facts.
    Anew(Box<Anew>),
}

type Made = Rc<RefCell<Vec<Chunk>>>;
type Commit = Box<dyn FnMut(Chunk) -> Result<()>>;

/// The run as a stream, and that as chunks.
pub(crate) struct Anew {
    stream: RunStream,
    chunks: ToChunks<Commit>,
    /// Chunks that are whole and not handed on yet.
    made: Made,
    /// A line that is not whole yet.
    line: Vec<u8>,
    lines: u64,
}

impl RunChunks {
    /// The start of a run whose parts are separated by `framing` and name their run themselves.
    ///
    /// # Errors
    ///
    /// Options that cannot be.
    pub fn new(framing: Framing, says_run: bool, options: StreamOptions, args: &FromBin) -> Result<Self> {
        let is_plain = args.flush.is_none() && args.label.is_empty() && args.wall_start.is_none();
        if says_run && is_plain && is_made_up(&args.run_id) {
            return Ok(RunChunks::Same { order: ChunkOrder::default(), gaps: 0, samples: 0 });
        }
        let made = Made::default();
        let known = Rc::clone(&made);
        let commit: Commit = Box::new(move |chunk| {
            known.borrow_mut().push(chunk);
            Ok(())
        });
        let types = "raw,loss".parse()?;
        let profile = ProfileOptions::default().threads(threads(args.threads));
        Ok(RunChunks::Anew(Box::new(Anew {
            stream: RunStream::new(framing, options.types(types)),
            chunks: ToChunks::new(profile, args.flush.unwrap_or(FLUSH), commit),
            made,
            line: Vec::new(),
            lines: 0,
        })))
    }

    /// Takes the next part.
    ///
    /// # Errors
    ///
    /// What cannot be read, made or written.
    pub fn profile<R: Read + Seek>(&mut self, profile: &mut Profile<R>, output: &mut Outputs) -> Result<()> {
        match self {
            RunChunks::Same { order, gaps, samples } => {
                let taken = profile.contents().scan.samples;
                let Some(info) = profile.contents().chunk.clone() else {
                    return Err(Error::profile("a chunk without a run id"));
                };
                *gaps += u64::from(order.is_gap_before(&info));
                *samples += taken;
                let bytes = profile.bytes()?;
                output.chunk(&info, taken, &bytes)
            }
            RunChunks::Anew(anew) => anew.write(output, |stream, lines| stream.profile(profile, lines)),
        }
    }

    /// A part was skipped.
    pub fn lost(&mut self) {
        if let RunChunks::Same { order, .. } = self {
            order.lost();
        }
    }

    /// How often chunks were missing so far.
    pub fn gaps(&self) -> u64 {
        match self {
            RunChunks::Same { gaps, .. } => *gaps,
            RunChunks::Anew(anew) => anew.stream.gaps(),
        }
    }

    /// Why the run is not whole, if its chunks say so.
    pub fn broken_end(&self) -> Option<Error> {
        match self {
            RunChunks::Same { order, .. } => order.broken_end(),
            RunChunks::Anew(anew) => anew.stream.broken_end(),
        }
    }

    /// Writes the rest; returns the samples.
    ///
    /// # Errors
    ///
    /// As for [`RunChunks::profile`].
    pub fn finish(self, output: &mut Outputs) -> Result<u64> {
        match self {
            RunChunks::Same { samples, .. } => Ok(samples),
            RunChunks::Anew(anew) => anew.finish(output),
        }
    }
}

impl Anew {
    fn write(
        &mut self,
        output: &mut Outputs,
        act: impl FnOnce(&mut RunStream, &mut ToLines<'_>) -> Result<()>,
    ) -> Result<()> {
        let Anew { stream, chunks, made, line, lines } = self;
        let mut sink = ToLines { chunks, made, line, lines, output, failure: None };
        let acted = act(stream, &mut sink);
        match sink.failure {
            Some(failure) => Err(failure),
            None => acted,
        }
    }

    fn finish(self, output: &mut Outputs) -> Result<u64> {
        let Anew { stream, mut chunks, made, mut line, mut lines } = self;
        let mut sink = ToLines {
            chunks: &mut chunks,
            made: &made,
            line: &mut line,
            lines: &mut lines,
            output,
            failure: None,
        };
        let finished = stream.finish(&mut sink);
        if let Some(failure) = sink.failure {
            return Err(failure);
        }
        let samples = finished?.samples;
        // What is lost was reported when it was found.
        chunks.finish()?;
        hand_on(&made, output)?;
        Ok(samples)
    }
}

/// Takes lines, and hands on the chunks that they fill.
struct ToLines<'a> {
    chunks: &'a mut ToChunks<Commit>,
    made: &'a Made,
    line: &'a mut Vec<u8>,
    lines: &'a mut u64,
    output: &'a mut Outputs,
    /// What is wrong, as it is.
    failure: Option<Error>,
}

impl ToLines<'_> {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.pop_if(|last| *last == b'\n').is_some() {
                *self.lines += 1;
                self.chunks.line(*self.lines, self.line)?;
                self.line.clear();
                hand_on(self.made, self.output)?;
            }
        }
        Ok(())
    }
}

impl Write for ToLines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(failure) = self.take(bytes) {
            let kind = failure.io().map_or(io::ErrorKind::Other, io::Error::kind);
            self.failure = Some(failure);
            return Err(kind.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn hand_on(made: &Made, output: &mut Outputs) -> Result<()> {
    for chunk in made.take() {
        let (info, samples) = (chunk.info.clone(), chunk.samples);
        output.chunk(&info, samples, &chunk.bytes()?)?;
    }
    Ok(())
}
