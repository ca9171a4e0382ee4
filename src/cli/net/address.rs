//! Addresses in arguments: a file, a standard stream, or a socket to listen on or connect to.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A place that bytes come from or go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `-`.
    Standard,
    /// A path, or `file:PATH`.
    File(PathBuf),
    /// What a socket leads to.
    Socket(SocketAddress),
}

/// One end of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketAddress {
    /// How the bytes travel.
    pub transport: Transport,
    /// Whether others connect to it, and not it to others.
    pub listens: bool,
}

/// How bytes travel through a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// `unix:PATH`, `unix-listen:PATH`.
    Unix(PathBuf),
    /// `tcp:HOST:PORT`, `tcp-listen:HOST:PORT`.
    Tcp(Host),
    /// `ws:HOST:PORT/PATH`, `ws-listen:HOST:PORT`: text frames, one line each.
    Web(Host, String),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name or an address, without brackets.
    pub name: String,
    /// 0 is any that is free.
    pub port: u16,
}

const LOOPBACK: &str = "127.0.0.1";

impl Address {
    /// The place that an argument names.
    ///
    /// # Errors
    ///
    /// An unknown scheme, and an address that breaks the rules of a known one.
    pub fn parse(argument: &Path) -> Result<Address> {
        let file = || Ok(Address::File(argument.to_path_buf()));
        let Some(text) = argument.to_str() else { return file() };
        if text == "-" {
            return Ok(Address::Standard);
        }
        let Some((scheme, rest)) = text.split_once(':') else { return file() };
        let socket = |transport, listens| Ok(Address::Socket(SocketAddress { transport, listens }));
        let listens = scheme.ends_with("-listen");
        match scheme {
            "file" => Ok(Address::File(PathBuf::from(rest))),
            "unix" | "unix-listen" if rest.is_empty() => Err(Error::usage(format!(
                "'{text}' names no socket; write it like {scheme}:/run/profile.sock"
            ))),
            "unix" | "unix-listen" => socket(Transport::Unix(PathBuf::from(rest)), listens),
            "tcp" | "tcp-listen" => socket(Transport::Tcp(Host::parse(scheme, rest, None)?), listens),
            "ws" | "ws-listen" => {
                let is_url = rest.starts_with("//");
                let rest = rest.strip_prefix("//").unwrap_or(rest);
                let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
                let path = if path.starts_with('/') { path.to_string() } else { format!("/{path}") };
                socket(Transport::Web(Host::parse(scheme, host, is_url.then_some(80))?, path), listens)
            }
            "wss" => Err(Error::usage(format!("'{text}': TLS is not supported"))
                .hint("use a proxy for it and connect to that")),
            _ if is_scheme(scheme) && !argument.exists() => {
                Err(Error::usage(format!("'{text}': unknown scheme '{scheme}:'")).hint(
                    "known: file: unix: unix-listen: tcp: tcp-listen: ws: ws-listen:; a file of that name \
                     is written ./NAME or file:NAME",
                ))
            }
            _ => file(),
        }
    }
}

/// Whether what stands before a colon is meant as a scheme: letters, more than a drive has.
fn is_scheme(text: &str) -> bool {
    text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

impl Host {
    fn parse(scheme: &str, text: &str, usual_port: Option<u16>) -> Result<Host> {
        let fault = || {
            Error::usage(format!(
                "'{scheme}:{text}' is not an address; write it like {scheme}:127.0.0.1:4000"
            ))
            .hint("write an IPv6 address in brackets: [::1]:4000")
        };
        let (name, port) = match (text.rsplit_once(':'), usual_port) {
            _ if text.starts_with('[') => {
                let (name, port) = text[1..].split_once(']').ok_or_else(fault)?;
                (name, port.strip_prefix(':'))
            }
            (Some((name, _)), _) if name.contains(':') => return Err(fault()),
            (Some((name, port)), _) => (name, Some(port)),
            (None, Some(_)) => (text, None),
            (None, None) => ("", Some(text)),
        };
        let port = match port {
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok(),
            Some(_) => None,
            None => usual_port,
        };
        let name = if name.is_empty() { LOOPBACK } else { name };
        let known =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':' | b'%');
        if !name.bytes().all(known) {
            return Err(fault());
        }
        Ok(Host { name: name.to_string(), port: port.ok_or_else(fault)? })
    }

    /// The addresses that it stands for.
    ///
    /// # Errors
    ///
    /// A name that cannot be resolved, or stands for nothing.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = (self.name.as_str(), self.port).to_socket_addrs()?.collect();
        if found.is_empty() {
            return Err(Error::usage(format!("the host {} has no address", self.name)));
        }
        Ok(found)
    }
}

impl SocketAddress {
    /// Whether machines other than this one may connect to it.
    ///
    /// # Errors
    ///
    /// A host that cannot be resolved.
    pub fn is_open_to_others(&self) -> Result<bool> {
        match &self.transport {
            Transport::Tcp(host) | Transport::Web(host, _) if self.listens => {
                Ok(host.resolve()?.iter().any(|address| !address.ip().to_canonical().is_loopback()))
            }
            _ => Ok(false),
        }
    }

    /// Whether lines travel as text frames.
    pub fn is_web(&self) -> bool {
        matches!(self.transport, Transport::Web(..))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// As it is written. What stands after a `?` may be a secret and is left out.
impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listen = if self.listens { "-listen" } else { "" };
        match &self.transport {
            Transport::Unix(path) => write!(f, "unix{listen}:{}", path.display()),
            Transport::Tcp(host) => write!(f, "tcp{listen}:{host}"),
            Transport::Web(host, path) => {
                let path = path.split('?').next().unwrap_or_default().trim_end_matches('/');
                write!(f, "ws{listen}:{host}{path}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        match Address::parse(Path::new(text)) {
            Ok(Address::Standard) => "standard".to_string(),
            Ok(Address::File(path)) => format!("file {}", path.display()),
            Ok(Address::Socket(socket)) => socket.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn an_argument_names_a_file_unless_it_begins_with_a_known_scheme() {
        for (text, is) in [
            ("-", "standard"),
            ("a.bin", "file a.bin"),
            ("file:tcp:1", "file tcp:1"),
            ("./udp:1", "file ./udp:1"),
            ("run-12:30.jsonl", "file run-12:30.jsonl"),
            ("c:\\a.bin", "file c:\\a.bin"),
            ("unix:/a b", "unix:/a b"),
            ("unix-listen:s", "unix-listen:s"),
            ("tcp:host-1.example:99", "tcp:host-1.example:99"),
            ("tcp-listen:4000", "tcp-listen:127.0.0.1:4000"),
            ("tcp-listen:[::1]:0", "tcp-listen:[::1]:0"),
            ("ws:h:1/p?token=secret", "ws:h:1/p"),
            ("ws://h/p", "ws:h:80/p"),
            ("ws-listen:0.0.0.0:80", "ws-listen:0.0.0.0:80"),
        ] {
            assert_eq!(told(text), is);
        }
        for text in
            ["tcp:", "tcp:h:", "tcp:h:65536", "tcp:h:+1", "tcp:::1:80", "tcp:[::1]", "tcp:a b:1", "ws:h"]
        {
            assert!(told(text).contains("is not an address"), "{text}: {}", told(text));
        }
        assert!(told("udp:h:1").contains("unknown scheme 'udp:'"));
        assert!(told("https://h/").contains("unknown scheme 'https:'"));
        assert!(told("wss://h/").contains("TLS is not supported"));
        assert!(told("unix:").contains("names no socket"));
    }

    #[test]
    fn a_listener_is_open_to_others_unless_it_is_on_the_loopback() {
        for (text, is) in [
            ("tcp-listen:1", false),
            ("tcp-listen:localhost:1", false),
            ("ws-listen:[::1]:1", false),
            ("tcp-listen:[::ffff:127.0.0.1]:1", false),
            ("tcp-listen:0.0.0.0:1", true),
            ("ws-listen:[::]:1", true),
            ("tcp:192.0.2.1:1", false),
            ("unix-listen:s", false),
        ] {
            let Ok(Address::Socket(socket)) = Address::parse(Path::new(text)) else { panic!("{text}") };
            assert_eq!(socket.is_open_to_others().expect("an address"), is, "{text}");
        }
    }
}
