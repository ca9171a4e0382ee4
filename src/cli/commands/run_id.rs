//! Run ids: given by the user, derived from the content, or random.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::{Error, Result};

/// Whether the run id is made up here, so that it can name any number of runs.
pub(crate) fn is_made_up(run_id: &str) -> bool {
    matches!(run_id, "auto" | "random")
}

/// The usage error of one id for several runs.
pub(crate) fn several_runs() -> Error {
    Error::usage("--run-id can name only one run")
}

/// Sixteen random bytes.
///
/// # Errors
///
/// A system that has none to give.
pub(crate) fn random_id() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::from(std::io::Error::other(error)))?;
    Ok(bytes)
}

/// Sixteen bytes as a run id that no command takes for an option: it does not begin with a hyphen.
pub(crate) fn own_id(bytes: [u8; 16]) -> String {
    let id = URL_SAFE_NO_PAD.encode(bytes);
    match id.strip_prefix('-') {
        Some(rest) => format!("_{rest}"),
        None => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_that_is_made_up_looks_like_an_option() {
        assert_eq!(own_id([0xfb; 16]), "_".to_string() + &URL_SAFE_NO_PAD.encode([0xfb; 16])[1..]);
        assert_eq!(own_id([7; 16]), URL_SAFE_NO_PAD.encode([7; 16]));
        assert!(
            (0..=255).all(|first| own_id([first; 16]).len() == 22 && !own_id([first; 16]).starts_with('-'))
        );
    }
}
