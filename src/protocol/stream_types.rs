//! The message types that a stream holds: `raw,agg:5s,loss`.

use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};

/// A message type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MessageType {
    Meta,
    StrDef,
    FrameDef,
    Raw,
    Agg,
    Loss,
    Heartbeat,
    Error,
    End,
}

impl MessageType {
    /// Every type of this schema version.
    pub const ALL: [MessageType; 9] = [
        MessageType::Meta,
        MessageType::StrDef,
        MessageType::FrameDef,
        MessageType::Raw,
        MessageType::Agg,
        MessageType::Loss,
        MessageType::Heartbeat,
        MessageType::Error,
        MessageType::End,
    ];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            MessageType::Meta => "meta",
            MessageType::StrDef => "str_def",
            MessageType::FrameDef => "frame_def",
            MessageType::Raw => "raw",
            MessageType::Agg => "agg",
            MessageType::Loss => "loss",
            MessageType::Heartbeat => "heartbeat",
            MessageType::Error => "error",
            MessageType::End => "end",
        }
    }

    /// The type of that name.
    pub fn of_name(name: &str) -> Option<MessageType> {
        MessageType::ALL.into_iter().find(|known| known.name() == name)
    }

    /// What a reader needs besides the types it asked for.
    fn is_implied(self) -> bool {
        use MessageType::{End, Error, FrameDef, Meta, StrDef};
        matches!(self, Meta | StrDef | FrameDef | End | Error)
    }
}

/// A choice of message types, by default everything but heartbeats, with one final agg table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamTypes {
    /// The items as they were written; empty for the default.
    items: Vec<String>,
    wanted: Vec<MessageType>,
    unwanted: Vec<MessageType>,
    window: Option<Duration>,
    heartbeat: Option<Duration>,
}

impl StreamTypes {
    /// Whether messages of this type are written.
    pub fn has(&self, message: MessageType) -> bool {
        if self.unwanted.contains(&message) {
            false
        } else if self.wanted.is_empty() {
            message != MessageType::Heartbeat
        } else {
            self.wanted.contains(&message) || message.is_implied()
        }
    }

    /// Whether this type was asked for by its own name.
    pub fn asks_for(&self, message: MessageType) -> bool {
        self.wanted.contains(&message)
    }

    /// Length of an agg window; `None` for one final table.
    pub fn window(&self) -> Option<Duration> {
        self.window
    }

    /// Time between two heartbeats.
    pub fn heartbeat(&self) -> Duration {
        self.heartbeat.unwrap_or(Duration::from_secs(1))
    }

    /// The items as they were written; `None` for the default.
    pub fn items(&self) -> Option<&[String]> {
        (!self.items.is_empty()).then_some(&self.items)
    }
}

impl FromStr for StreamTypes {
    type Err = Error;

    fn from_str(list: &str) -> Result<Self> {
        let mut types = StreamTypes::default();
        for item in list.split(',').map(str::trim) {
            let (negative, rest) = match item.strip_prefix('-') {
                Some(rest) => (true, rest),
                None => (false, item),
            };
            let (name, period) = match rest.split_once(':') {
                Some((name, period)) => (name, Some(period)),
                None => (rest, None),
            };
            let Some(message) = MessageType::of_name(name) else {
                let names = MessageType::ALL.map(MessageType::name).join(", ");
                return Err(Error::usage(format!("unknown message type '{name}'; the types are {names}")));
            };
            if types.wanted.contains(&message) || types.unwanted.contains(&message) {
                let fault = if types.wanted.contains(&message) == negative {
                    "both requested and removed"
                } else {
                    "named twice"
                };
                return Err(Error::usage(format!("message type '{name}' is {fault}")));
            }
            if let Some(text) = period {
                let slot = match message {
                    MessageType::Agg if !negative => &mut types.window,
                    MessageType::Heartbeat if !negative => &mut types.heartbeat,
                    _ if negative => {
                        let fault = format!("'{item}' removes a type, which takes no period: -{name}");
                        return Err(Error::usage(fault));
                    }
                    _ => return Err(Error::usage(format!("message type '{rest}' takes no period"))),
                };
                *slot =
                    Some(parse_duration(text).map_err(|fault| Error::usage(format!("'{item}': {fault}")))?);
            }
            if negative { &mut types.unwanted } else { &mut types.wanted }.push(message);
            types.items.push(item.to_string());
        }
        Ok(types)
    }
}

/// A period such as `500ms`, `5s`, `2m` or `1h`, in whole microseconds and not zero.
///
/// # Errors
///
/// A sentence on what is wrong with `text`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let micros = match unit {
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err(format!("'{text}' is not a duration; write it like 500ms, 5s, 2m or 1h")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a duration; write it like 500ms, 5s, 2m or 1h"))?;
    match number.checked_mul(micros) {
        Some(0) => Err(format!("the period '{text}' is zero")),
        // A window that begins before time 0 then begins at a number of 64 bits.
        Some(micros) if i64::try_from(micros).is_ok() => Ok(Duration::from_micros(micros)),
        _ => Err(format!("the period '{text}' is too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(list: &str) -> StreamTypes {
        list.parse().expect(list)
    }

    fn names(list: &str) -> String {
        let types = types(list);
        MessageType::ALL
            .into_iter()
            .filter(|t| types.has(*t))
            .map(MessageType::name)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn what_is_needed_to_read_comes_along() {
        assert_eq!(names("raw"), "meta str_def frame_def raw error end");
        assert_eq!(names("raw,agg:5s,loss"), "meta str_def frame_def raw agg loss error end");
    }

    #[test]
    fn a_minus_takes_out() {
        assert_eq!(names("raw,-end"), "meta str_def frame_def raw error");
        assert_eq!(names("-raw"), "meta str_def frame_def agg loss error end");
    }

    #[test]
    fn the_default_is_all_but_heartbeats() {
        let default = StreamTypes::default();
        assert!(MessageType::ALL.into_iter().all(|t| default.has(t) != (t == MessageType::Heartbeat)));
    }

    #[test]
    fn faults_name_the_item() {
        for (list, word) in [
            ("raw,foo", "'foo'"),
            ("raw:5s", "'raw:5s'"),
            ("raw,-raw", "both"),
            ("agg,agg:5s", "twice"),
            ("agg:5", "'agg:5'"),
            ("agg:0s", "zero"),
            ("-agg:5s", "removes a type, which takes no period: -agg"),
            ("", "''"),
        ] {
            let error = list.parse::<StreamTypes>().expect_err(list).to_string();
            assert!(error.contains(word), "{list}: {error}");
        }
    }

    #[test]
    fn periods_have_units() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert!(parse_duration("99999999999999999h").is_err());
        assert!(parse_duration("9223372036854775s").is_err() && parse_duration("9223372036854s").is_ok());
    }
}
