//! The stream of a recording, on its way to every target of its.

use crate::cli::args::Record as Args;
use crate::cli::messages::Messages;
use crate::cli::outlet::Outlet;
use crate::cli::runs::Written;
use crate::cli::{Status, is_broken_pipe};
use crate::error::Result;
use crate::stream::{Network, Target};

pub(super) struct Stream {
    /// `None` where nobody wants it, or nobody any more.
    written: Option<Written>,
    /// Whether nothing else is recorded.
    is_all: bool,
}

impl Stream {
    /// Opens the targets.
    ///
    /// # Errors
    ///
    /// One that cannot be opened.
    pub fn open(
        targets: &[Target],
        args: &Args,
        network: &Network,
        messages: &Messages,
        is_all: bool,
    ) -> Result<Self> {
        if targets.is_empty() {
            return Ok(Stream { written: None, is_all });
        }
        let outlet = Outlet::open(targets, &args.live, network, true, messages)?;
        Ok(Stream { written: Some(Written::new(args.format, outlet)), is_all })
    }

    pub fn is_wanted(&self) -> bool {
        self.written.is_some()
    }

    /// Waits for as many readers as were asked for.
    ///
    /// # Errors
    ///
    /// An address that nobody answers at.
    pub fn wait_for_readers(&mut self) -> Result<()> {
        self.written.as_mut().map_or(Ok(()), |written| written.place().wait_for_readers())
    }

    /// Has something written, and lets readers have it.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn write(&mut self, act: impl FnOnce(&mut Written) -> Result<()>) -> Result<()> {
        self.write_hidden(|written| act(written).and_then(|()| written.place().publish()))
    }

    /// Has something written, which readers may have once it is whole. Where profiles are made too, they go
    /// on when the last reader has gone.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn write_hidden(&mut self, act: impl FnOnce(&mut Written) -> Result<()>) -> Result<()> {
        let Some(written) = &mut self.written else { return Ok(()) };
        match act(written) {
            Err(error) if is_broken_pipe(&error) && !self.is_all => {
                self.written = None;
                Ok(())
            }
            Err(error) => {
                let outlet = written.place();
                Err(if outlet.failed().is_some() { outlet.named(error) } else { error })
            }
            Ok(()) => Ok(()),
        }
    }

    /// Ends the writing, once every reader has what waits for it.
    ///
    /// # Errors
    ///
    /// A target that cannot be brought to its place.
    pub fn commit(self) -> Result<Status> {
        self.written.map_or(Ok(Status::Done), |written| written.into_place().commit())
    }
}
