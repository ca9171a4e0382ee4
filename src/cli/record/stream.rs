//! The stream of a recording and its targets.

use crate::cli::args::{Format, Record as Args};
use crate::cli::exit::{Status, is_broken_pipe};
use crate::cli::io::{Deadline, Target};
use crate::cli::net::Network;
use crate::cli::output::outputs::Outputs;
use crate::cli::ui::messages::Messages;
use crate::error::{Error, Result};

pub(crate) struct Stream {
    /// `None` where nobody wants it, or nobody any more.
    written: Option<Box<Outputs>>,
    is_binary: bool,
    /// Why nobody wants it any more.
    pub failure: Option<Error>,
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
        limit: Option<&Deadline>,
    ) -> Result<Self> {
        if targets.is_empty() {
            return Ok(Stream { written: None, is_binary: false, failure: None });
        }
        let format = args.written.format();
        let outputs = Outputs::open(targets, &args.live, network, format, true, limit, messages)?;
        Ok(Stream { written: Some(Box::new(outputs)), is_binary: format == Format::Binary, failure: None })
    }

    pub fn is_wanted(&self) -> bool {
        self.written.is_some()
    }

    /// Whether it is wanted as chunks, and not as messages.
    pub fn is_binary(&self) -> bool {
        self.is_wanted() && self.is_binary
    }

    /// Waits for as many readers as were asked for.
    ///
    /// # Errors
    ///
    /// An address that nobody answers at.
    pub fn wait_for_subscribers(&mut self) -> Result<()> {
        self.written.as_mut().map_or(Ok(()), |written| written.wait_for_subscribers())
    }

    /// Has something written, and lets readers have it. When the last target has failed the stream is not
    /// wanted any more, and `failure` says why.
    ///
    /// # Errors
    ///
    /// What cannot be made.
    pub fn write(&mut self, act: impl FnOnce(&mut Outputs) -> Result<()>) -> Result<()> {
        let Some(written) = &mut self.written else { return Ok(()) };
        let Err(error) = act(written).and_then(|()| written.publish()) else { return Ok(()) };
        if !is_broken_pipe(&error) && !error.is_of_output() {
            return Err(error);
        }
        self.failure = Some(error);
        if let Some(written) = self.written.take() {
            written.abandon();
        }
        Ok(())
    }

    /// Has something written, which readers may have once it is whole.
    ///
    /// # Errors
    ///
    /// What cannot be made or written.
    pub fn write_hidden(&mut self, act: impl FnOnce(&mut Outputs) -> Result<()>) -> Result<()> {
        let Some(written) = &mut self.written else { return Ok(()) };
        act(written)
    }

    /// Ends the writing, once every reader has what waits for it.
    ///
    /// # Errors
    ///
    /// A target that cannot be brought to its place.
    pub fn commit(self) -> Result<Status> {
        self.written.map_or(Ok(Status::Done), |written| written.commit())
    }
}
