//! Network settings from the arguments: the token, and where events are reported.

use std::env;
use std::fs;
use std::sync::Arc;

use crate::cli::args::Access;
use crate::cli::net::{Network, Notice, Token};
use crate::cli::ui::messages::Messages;
use crate::error::{Error, Result};

/// Holds the token, where neither option is given.
pub(crate) const TOKEN_VARIABLE: &str = "TACHYON_JSONL_TOKEN";

/// What the arguments and the environment say.
///
/// # Errors
///
/// A token that is none; it is not shown.
pub(crate) fn network(access: &Access, messages: &Messages) -> Result<Network> {
    let token = match (&access.token, &access.token_file) {
        (Some(text), _) => Some(Token::new(text.shown())?),
        (None, Some(path)) => {
            let name = path.display().to_string();
            let text = fs::read_to_string(path).map_err(|error| Error::from(error).within(&name))?;
            Some(Token::new(&text).map_err(|error| error.within(&name))?)
        }
        (None, None) => match env::var(TOKEN_VARIABLE) {
            Ok(text) if text.is_empty() => None,
            Ok(text) => Some(Token::new(&text).map_err(|error| error.within(TOKEN_VARIABLE))?),
            Err(env::VarError::NotPresent) => None,
            Err(env::VarError::NotUnicode(_)) => return Err(Error::usage("no text").within(TOKEN_VARIABLE)),
        },
    };
    let messages = *messages;
    let notice = move |notice: Notice<'_>| match notice {
        Notice::Listening(name) => messages.listening(name),
        Notice::Trouble(name, what) => messages.warning(name, what),
    };
    Ok(Network { token, notice: Arc::new(notice) })
}
