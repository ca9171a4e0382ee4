//! The access token, and where sockets report events.

use std::path::Path;
use std::sync::Arc;

use crate::cli::net::address::{Address, SocketAddress};
use crate::cli::net::token::Token;
use crate::error::{Error, Result};

/// Something that happens at a socket, to be reported to people.
#[derive(Clone, Debug)]
pub enum Notice<'a> {
    /// A socket can be connected to, at this address.
    Listening(&'a str),
    /// Something is wrong at the address of this name.
    Trouble(&'a str, &'a str),
}

/// What every socket has to know.
#[derive(Clone)]
pub struct Network {
    /// Required from clients that connect by TCP, and sent on outgoing connections.
    pub token: Option<Token>,
    /// Told what happens.
    pub notice: Arc<dyn Fn(Notice<'_>) + Send + Sync>,
}

impl Network {
    /// Refuses to be open to the world without a token.
    ///
    /// # Errors
    ///
    /// A usage error, and a host that cannot be resolved.
    pub fn check(&self, address: &SocketAddress) -> Result<()> {
        if self.token.is_none()
            && address.is_open_to_others().map_err(|error| error.within(&address.to_string()))?
        {
            return Err(Error::usage(format!(
                "{address} can be reached from other machines, so it needs a token"
            ))
            .hint("give one with --token-file, or listen on 127.0.0.1 or a unix socket"));
        }
        Ok(())
    }

    /// The address that an argument names; none is that of standard input or output.
    ///
    /// # Errors
    ///
    /// An address that breaks the rules, or needs a token.
    pub(crate) fn address(&self, argument: Option<&Path>) -> Result<Address> {
        let address = argument.map_or(Ok(Address::Standard), Address::parse)?;
        if let Address::Socket(address) = &address {
            self.check(address)?;
        }
        Ok(address)
    }
}
