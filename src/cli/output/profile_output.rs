//! The output of a profile: a file or pipe that is written to, or subscribers that are served.

use std::fs::File;
use std::io::{Read, Seek};

use tempfile::SpooledTempFile;

use crate::cli::args::{DropPolicy, Format, Live as Args};
use crate::cli::exit::Status;
use crate::cli::io::{Deadline, Output, Target};
use crate::cli::net::{Class, Item};
use crate::cli::output::live::Live;
use crate::cli::output::outputs::{chunk_item, framed_chunk};
use crate::cli::ui::messages::Messages;
use crate::error::{Error, Result};
use crate::format::Chunk;

/// Bytes of a profile that go to readers at once.
const PIECE: usize = 256 * 1024;

/// A target of one profile, open.
pub(crate) struct ProfileOutlet {
    name: String,
    place: Place,
    is_framed: bool,
    messages: Messages,
}

enum Place {
    Output(Output),
    Readers(Box<Live>),
}

impl ProfileOutlet {
    /// Opens the target, for chunks after their lengths or for a profile as it is.
    ///
    /// # Errors
    ///
    /// A target that cannot be opened, and readers who would lose what cannot be missed.
    pub fn open(target: &Target, args: &Args, is_framed: bool, messages: &Messages) -> Result<Self> {
        let name = target.name();
        let named = |error: Error| error.within(&name);
        let place = match target {
            Target::Socket(..) if !is_framed && args.drop_policy == Some(DropPolicy::Oldest) => {
                return Err(Error::usage(
                    "a profile in one piece cannot be dropped in part; --format binary sends chunks",
                ));
            }
            Target::Socket(address, network) => {
                let mut live = Live::new(args, network.clone(), Format::Binary, false, Deadline::default());
                live.sinks().open(address).map_err(named)?;
                live.wait_for_subscribers().map_err(named)?;
                Place::Readers(Box::new(live))
            }
            target => Place::Output(target.open(args.stall_timeout).map_err(named)?.with_large_pipe()),
        };
        Ok(ProfileOutlet { name, place, is_framed, messages: *messages })
    }

    /// The file in the making, for who writes back and forth in it; `None` where only writing on is possible.
    pub fn file(&mut self) -> Option<&mut File> {
        match &mut self.place {
            Place::Output(output) => output.file(),
            Place::Readers(_) => None,
        }
    }

    /// Writes all that was set aside, from its start.
    ///
    /// # Errors
    ///
    /// What cannot be read or written.
    pub fn spooled(&mut self, mut spool: SpooledTempFile) -> Result<()> {
        let live = match &mut self.place {
            Place::Output(output) => {
                return output.spooled(spool).map_err(|error| Error::from(error).of_output(&self.name));
            }
            Place::Readers(live) => live,
        };
        spool.rewind().map_err(|error| Error::from(error).within(&self.name))?;
        for seq in 0.. {
            let mut piece = Vec::with_capacity(PIECE);
            let read = (&mut spool).take(PIECE as u64).read_to_end(&mut piece);
            if read.map_err(|error| Error::from(error).within(&self.name))? == 0 {
                break;
            }
            let item = Item {
                run: "profile".into(),
                seq,
                // Of use as a whole only.
                class: if seq == 0 { Class::Opens } else { Class::Kept },
                in_batch: true,
                samples: None,
                span: None,
                text: piece.into(),
            };
            live.message(item).map_err(|error| error.of_output(&self.name))?;
        }
        Ok(())
    }

    /// Appends a chunk.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn chunk(&mut self, mut chunk: Chunk) -> Result<()> {
        let head = chunk.header;
        match &mut self.place {
            Place::Output(output) if self.is_framed => {
                let length = u32::try_from(chunk.size).unwrap_or(u32::MAX).to_be_bytes();
                output.chunk(&[&length[..], &head].concat(), &mut chunk.body())
            }
            Place::Output(output) => output.chunk(&head, &mut chunk.body()),
            Place::Readers(live) => {
                let (info, samples) = (chunk.info.clone(), chunk.samples);
                let bytes = chunk.bytes()?;
                let item = if self.is_framed {
                    framed_chunk(&info, samples, &bytes)?
                } else {
                    chunk_item(&info, samples, bytes)
                };
                live.message(item)
            }
        }
        .map_err(|error| error.of_output(&self.name))
    }

    /// Ends the writing, once readers have what waits for them.
    ///
    /// # Errors
    ///
    /// A file that cannot be brought to disk or to its place.
    pub fn commit(self) -> Result<Status> {
        let ProfileOutlet { name, place, messages, .. } = self;
        let named = |error: Error| error.within(&name);
        match place {
            Place::Output(mut output) => {
                let displaced = output.displaced();
                if let Some(error) = &displaced {
                    messages.fault(&name, error);
                }
                output.commit().map_err(named)?;
                Ok(if displaced.is_none() { Status::Done } else { Status::Partial })
            }
            Place::Readers(live) => {
                let lacking = live.finish().map_err(named)?;
                for lacking in &lacking {
                    messages.fault(&lacking.name, &Error::stream(&lacking.what));
                }
                Ok(if lacking.is_empty() { Status::Done } else { Status::Partial })
            }
        }
    }
}
