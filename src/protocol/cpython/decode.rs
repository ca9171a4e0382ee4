//! Decodes CPython's own JSON Lines.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, Visitor};

use crate::error::{Error, Result};
use crate::limits::LINE_MAX;
use crate::protocol::cpython::{CpythonEntry, CpythonFrame};
use crate::protocol::decode::too_long;
use crate::protocol::text;

/// A message of CPython's own, of either version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpythonMessage {
    /// Opens a run.
    Meta {
        /// Planned time between two instants, microseconds.
        sample_interval_usec: Option<u64>,
        /// What the profiler looked at, where known.
        mode: Option<String>,
    },
    /// Ids and the bytes of their strings.
    Strings(Vec<(u32, Vec<u8>)>),
    /// Frames.
    Frames(Vec<CpythonFrame>),
    /// A part of the final table.
    Agg {
        /// What is counted: "frame".
        kind: Option<String>,
        /// "final".
        scope: Option<String>,
        /// Samples that hold a frame, of the whole run.
        samples_total: u64,
        /// Rows.
        entries: Vec<CpythonEntry>,
    },
    /// Closes a run.
    End {
        /// Samples that hold a frame.
        samples_total: Option<u64>,
    },
    /// A type that is not known.
    Other,
}

#[derive(Deserialize)]
struct Strings {
    #[serde(alias = "defs")]
    strings: Vec<StringEntry>,
}

#[derive(Deserialize)]
struct StringEntry {
    str_id: u32,
    value: Text,
}

#[derive(Deserialize)]
struct Frames {
    #[serde(alias = "defs")]
    frames: Vec<CpythonFrame>,
}

#[derive(Deserialize)]
struct Meta {
    sample_interval_usec: Option<u64>,
    mode: Option<String>,
}

#[derive(Deserialize)]
struct Agg {
    kind: Option<String>,
    scope: Option<String>,
    samples_total: u64,
    entries: Vec<CpythonEntry>,
}

#[derive(Deserialize)]
struct End {
    samples_total: Option<u64>,
}

/// Decodes a line that [`decode`](crate::protocol::decode) has found to be a message of CPython's, of type
/// `kind`.
///
/// # Errors
///
/// A line that is no such message.
pub fn decode_cpython(kind: &str, line: &[u8]) -> Result<CpythonMessage> {
    if line.len() >= LINE_MAX && !is_one_string(kind, line) {
        return Err(too_long(line.len()));
    }
    Ok(match kind {
        "meta" => {
            let Meta { sample_interval_usec, mode } = parse(kind, line)?;
            CpythonMessage::Meta { sample_interval_usec, mode }
        }
        "string_table" | "str_def" => {
            let Strings { strings } = parse(kind, line)?;
            CpythonMessage::Strings(strings.into_iter().map(|entry| (entry.str_id, entry.value.0)).collect())
        }
        "frame_table" | "frame_def" => CpythonMessage::Frames(parse::<Frames>(kind, line)?.frames),
        "agg" => {
            let Agg { kind, scope, samples_total, entries } = parse(kind, line)?;
            CpythonMessage::Agg { kind, scope, samples_total, entries }
        }
        "end" => CpythonMessage::End { samples_total: parse::<End>(kind, line)?.samples_total },
        _ => CpythonMessage::Other,
    })
}

/// Whether a message defines one string.
fn is_one_string(kind: &str, line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct One {
        #[serde(alias = "defs", rename = "strings")]
        _strings: [IgnoredAny; 1],
    }
    matches!(kind, "string_table" | "str_def") && text::read::<One>(line).is_ok()
}

fn parse<T: DeserializeOwned>(kind: &str, line: &[u8]) -> Result<T> {
    text::read(line).map_err(|error| {
        let what = error.detail().trim_start_matches("no message: ");
        Error::stream(format!("not a {kind} message of CPython's: {what}"))
    })
}

/// The bytes of a text. Python writes bytes that it could not decode as lone surrogates, U+DC80 for 0x80
/// up to U+DCFF for 0xff: they come back as those bytes, other lone surrogates as three bytes each.
struct Text(Vec<u8>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Text;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Text, E> {
                if bytes.len() > u32::MAX as usize {
                    return Err(E::custom("a text of more than 4 GiB"));
                }
                Ok(Text(unescaped(bytes)))
            }
        }
        // Only asked for bytes does the parser take lone surrogates.
        deserializer.deserialize_bytes(TextVisitor).map_err(D::Error::custom)
    }
}

fn unescaped(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        match rest {
            // U+DC80 to U+DCFF.
            [0xed, second @ 0xb2..=0xb3, third @ 0x80..=0xbf, tail @ ..] => {
                text.push((second & 3) << 6 | third & 0x3f);
                rest = tail;
            }
            _ => {
                text.push(*first);
                rest = tail;
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(json: &str) -> Vec<u8> {
        let line = format!("{{\"strings\":[{{\"str_id\":0,\"value\":{json}}}]}}");
        match decode_cpython("string_table", line.as_bytes()).expect("a message") {
            CpythonMessage::Strings(mut strings) => strings.remove(0).1,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lone_surrogates_are_the_bytes_that_python_could_not_decode() {
        assert_eq!(text_of(r#""a\udcff.py""#), b"a\xff.py");
        assert_eq!(text_of(r#""\udc80\udcc3x""#), b"\x80\xc3x");
        assert_eq!(text_of(r#""\ud800!""#), b"\xed\xa0\x80!");
        assert_eq!(text_of(r#""\udc00""#), b"\xed\xb0\x80");
        assert_eq!(text_of(r#""\ud83d\ude00 \u00e9""#), "\u{1f600} \u{e9}".as_bytes());
        assert_eq!(text_of("\"plain é\""), "plain é".as_bytes());
    }

    #[test]
    fn both_versions_say_the_same() {
        let frame = r#"[{"frame_id":1,"path_str_id":2,"func_str_id":1,"line":3}]"#;
        let old = decode_cpython("frame_table", format!("{{\"frames\":{frame}}}").as_bytes());
        let new = decode_cpython("frame_def", format!("{{\"defs\":{frame}}}").as_bytes());
        assert_eq!(old.expect("a message"), new.expect("a message"));
    }
}
