//! Messages from profilers through a shared pipe.
//!
//! Several processes write into one pipe, each message in packets that the system keeps whole: the process
//! id as a u32, big-endian, then the length as another, whose highest bit is set in a message's last packet,
//! then so many bytes. A message is a profile, or a JSON object.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::format::is_profile;
use crate::limits::CHUNK_BYTES;

/// Process id of a profiler.
pub(crate) type Profiler = u32;

const LAST: u32 = 1 << 31;
/// Bytes of a packet; the system keeps fewer together.
const PACKET: usize = 64 * 1024;
/// Processes that may have said a part of something.
const PROFILERS: usize = 4096;

/// A message of a profiler.
#[derive(Debug)]
pub(crate) enum ProfilerMessage {
    /// A part of its run.
    Profile(Vec<u8>),
    /// Something about its run.
    Fact(Fact),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Fact {
    /// It is about to sample.
    Begin(Begin),
    /// Its next part is the last one of its run.
    Last,
    /// Its run is over, all of it handed over.
    End,
    /// The system does not let it sample.
    Denied { detail: String },
    /// The process cannot be read: it has ended, or is none of this CPython.
    Unreadable { detail: String },
    /// It was asked for something that cannot be.
    Refused { detail: String },
    /// The target ended: its exit status, or a signal's number below zero, where that can be known.
    Exit { status: Option<i32> },
    /// A name that is not UTF-8 has escapes in its place.
    Escaped { name: String },
    /// A process that the target had started could not be sampled.
    Missed { pid: u32 },
}

/// What a profiler knows of its target.
#[derive(Debug, Deserialize)]
pub(crate) struct Begin {
    pub pid: u32,
    /// Unix time, and the profiler's clock at the same instant.
    pub wall_us: i64,
    pub monotonic_us: u64,
    pub host: Option<String>,
    /// Its command line; empty where it cannot be had.
    pub arguments: Vec<String>,
}

/// Takes messages out of a pipe.
pub(crate) struct Packets<R> {
    pipe: R,
    parts: HashMap<Profiler, Vec<u8>>,
}

impl<R: Read> Packets<R> {
    pub fn new(pipe: R) -> Self {
        Packets { pipe, parts: HashMap::new() }
    }

    /// The next message; `None` once nobody holds the other end.
    ///
    /// # Errors
    ///
    /// Bytes that are not a packet or not a message; nothing after them can be separated.
    pub fn next(&mut self) -> Result<Option<(Profiler, ProfilerMessage)>> {
        loop {
            let mut head = [0; 8];
            if !self.fill(&mut head)? {
                return Ok(None);
            }
            let [profiler, length] =
                [0, 4].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes")));
            let size = (length & !LAST) as usize;
            if size > PACKET || (self.parts.len() >= PROFILERS && !self.parts.contains_key(&profiler)) {
                return Err(Error::profile("the profiler's pipe holds something else than its packets"));
            }
            let mut piece = vec![0; size];
            if !self.fill(&mut piece)? {
                return Ok(None);
            }
            let message = self.parts.entry(profiler).or_default();
            message.append(&mut piece);
            if message.len() as u64 > CHUNK_BYTES {
                return Err(Error::profile("the profiler hands over a profile without end"));
            }
            if length & LAST != 0 {
                let message = self.parts.remove(&profiler).unwrap_or_default();
                return Ok(Some((profiler, parse_message(message)?)));
            }
        }
    }

    /// Bytes of messages that were never finished.
    pub fn unfinished(self) -> HashMap<Profiler, u64> {
        self.parts.into_iter().map(|(profiler, part)| (profiler, part.len() as u64)).collect()
    }

    /// Whether there was so much.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool> {
        match self.pipe.read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(io::Error::into(error)),
        }
    }
}

fn parse_message(message: Vec<u8>) -> Result<ProfilerMessage> {
    if is_profile(&message) {
        return Ok(ProfilerMessage::Profile(message));
    }
    let fact = serde_json::from_slice(&message);
    fact.map(ProfilerMessage::Fact)
        .map_err(|error| Error::profile(format!("the profiler says what nobody knows: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(profiler: u32, piece: &[u8], is_last: bool) -> Vec<u8> {
        let length = piece.len() as u32 | if is_last { LAST } else { 0 };
        [&profiler.to_be_bytes(), &length.to_be_bytes(), piece].concat()
    }

    #[test]
    fn messages_of_several_profilers_come_apart_and_unfinished_ones_are_counted() {
        let bytes = [
            packet(7, b"{\"type\":", false),
            packet(8, b"{\"type\":\"end\"}", true),
            packet(7, b"\"exit\",\"status\":-9}", true),
            packet(8, b"HCAT", false),
        ];
        let mut packets = Packets::new(io::Cursor::new(bytes.concat()));
        let mut next = || packets.next().expect("sound");
        assert!(matches!(next(), Some((8, ProfilerMessage::Fact(Fact::End)))));
        assert!(matches!(next(), Some((7, ProfilerMessage::Fact(Fact::Exit { status: Some(-9) })))));
        assert!(next().is_none());
        assert_eq!(packets.unfinished(), HashMap::from([(8, 4)]));
    }

    #[test]
    fn what_is_no_packet_is_refused_before_it_takes_memory() {
        for bytes in [packet(1, b"noise", true), [[0xff; 8]; 2].concat(), packet(1, b"{}", true)] {
            assert!(Packets::new(&bytes[..]).next().is_err());
        }
    }

    #[test]
    fn a_packet_has_so_many_bytes_at_most_and_so_many_profilers_speak_at_once() {
        let longest = packet(1, &vec![b' '; PACKET], false);
        let rest = packet(1, b"{\"type\":\"end\"}", true);
        let next = |bytes: &[u8]| Packets::new(bytes).next();
        assert!(matches!(
            next(&[&longest[..], &rest].concat()),
            Ok(Some((1, ProfilerMessage::Fact(Fact::End))))
        ));
        assert!(next(&packet(1, &vec![b' '; PACKET + 1], false)).is_err());
        let begun: Vec<u8> =
            (0..PROFILERS as u32).flat_map(|profiler| packet(profiler, b" ", false)).collect();
        assert!(matches!(
            next(&[&begun[..], &rest].concat()),
            Ok(Some((1, ProfilerMessage::Fact(Fact::End))))
        ));
        let another = packet(PROFILERS as u32, b"{\"type\":\"end\"}", true);
        assert!(next(&[&begun[..], &another].concat()).is_err());
    }

    #[test]
    fn a_pipe_that_cannot_be_read_has_not_ended() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("a bad block"))
            }
        }
        let error = Packets::new(Broken).next().expect_err("an error");
        assert_eq!(error.kind(), crate::error::ErrorKind::Io);
    }
}
