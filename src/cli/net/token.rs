//! The shared secret that authenticates a connection.

use std::fmt;
use std::io::{self, Read, Write};

use subtle::ConstantTimeEq;

use crate::error::{Error, Result};

/// Bytes of a token, at most.
const TOKEN: usize = 1024;

/// A token. It is never shown, and compared in a time that does not tell how much of it was right.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// The token of this text; a line feed at its end is none of it.
    ///
    /// # Errors
    ///
    /// What cannot be sent in a line and in a header. The error does not show it.
    pub fn new(text: &str) -> Result<Token> {
        let text = text.trim_end_matches(['\r', '\n']);
        let is_fit = (1..=TOKEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_fit {
            let fault = format!("a token must have 1 to {TOKEN} ASCII characters and no blanks");
            return Err(Error::usage(fault));
        }
        Ok(Token(text.to_string()))
    }

    /// Whether these bytes are the token.
    pub fn is(&self, bytes: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(bytes).into()
    }

    /// As the header of a web socket says it.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Sends it as the first line of a connection.
    pub(crate) fn send(&self, sink: &mut impl Write) -> io::Result<()> {
        sink.write_all(format!("TOKEN {}\n", self.0).as_bytes())
    }

    /// Reads the first line of a connection, and not a byte of what is after it; whether it is right.
    pub(crate) fn is_sent(&self, source: &mut impl Read) -> io::Result<bool> {
        let mut line = Vec::new();
        let mut byte = [0];
        while line.len() < TOKEN + 16 {
            if source.read(&mut byte)? == 0 {
                return Ok(false);
            }
            if byte[0] == b'\n' {
                let line = line.strip_suffix(b"\r").unwrap_or(&line);
                return Ok(line.strip_prefix(b"TOKEN ").is_some_and(|token| self.is(token)));
            }
            line.push(byte[0]);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_line_and_never_shown() {
        let token = Token::new("s3cret\n").expect("fit");
        assert!(token.is(b"s3cret") && !token.is(b"s3cre") && !token.is(b""));
        let sent = |text: &str| token.is_sent(&mut text.as_bytes()).expect("readable");
        assert!(sent("TOKEN s3cret\nrest") && sent("TOKEN s3cret\r\n"));
        assert!(
            !sent("TOKEN s3cret") && !sent("s3cret\n") && !sent("TOKEN wrong\n") && !sent(&"x".repeat(9999))
        );
        assert_eq!(format!("{token:?}"), "Token");
        for text in ["", "a b", "\u{e9}", &"x".repeat(2000)] {
            let error = Token::new(text).expect_err("unfit").to_string();
            assert!(text.len() < 2 || !error.contains(text));
        }
    }

    #[test]
    fn the_longest_token_is_taken_and_of_a_longer_line_no_more_is_read() {
        let longest = "x".repeat(TOKEN);
        let token = Token::new(&longest).expect("fit");
        assert!(token.is_sent(&mut format!("TOKEN {longest}\r\n").as_bytes()).expect("readable"));
        let mut endless = io::repeat(b'x').take(9_999);
        assert!(!token.is_sent(&mut endless).expect("readable"));
        assert_eq!(9_999 - endless.limit(), TOKEN as u64 + 16);
    }

    #[test]
    fn nothing_behind_the_line_is_read() {
        let token = Token::new("s3cret").expect("fit");
        let mut sent: &[u8] = b"TOKEN s3cret\nGET";
        assert!(token.is_sent(&mut sent).expect("readable"));
        assert_eq!(sent, b"GET");
    }

    #[test]
    fn each_end_says_the_token_as_the_other_reads_it() {
        let token = Token::new("s3cret").expect("fit");
        let mut sent = Vec::new();
        token.send(&mut sent).expect("memory");
        assert_eq!(sent, b"TOKEN s3cret\n");
        assert_eq!(token.bearer(), "Bearer s3cret");
    }
}
