//! Rules of notation: where JSON allows several notations, the protocol allows one.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::limits::KEPT;
use crate::protocol::check::keys::{ENVELOPE_KEYS, Inside, Key, of_message};
use crate::protocol::stream_types::MessageType;
use crate::protocol::text::integer;

/// How deep values may nest, as with the decoder's own limit.
const DEPTH: usize = 127;
/// Faults that are reported of one line's notation.
const SHOWN: usize = 8;
/// Keys of an object that are remembered, so that one that stands twice is seen.
const KEYS_KEPT: usize = KEPT / 4;

/// What a sound JSON object shows without being understood.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    pub kind: Option<String>,
    pub version: Option<u64>,
    pub run_id: Option<String>,
    pub seq: Option<u64>,
    pub batch: Option<u64>,
    pub faults: Vec<String>,
}

/// Why a line is no JSON.
#[derive(Debug)]
pub(crate) struct Broken {
    pub what: &'static str,
    /// Of the line, in bytes from 1.
    pub column: usize,
    /// Whether more of the line could have mended it.
    pub breaks_off: bool,
}

/// Looks through a line that holds a JSON object and nothing else.
pub(crate) fn scan(line: &[u8]) -> Result<Shape, Broken> {
    let text = std::str::from_utf8(line).map_err(|fault| Broken {
        what: "bytes that are not UTF-8",
        column: fault.valid_up_to() + 1,
        breaks_off: fault.error_len().is_none(),
    })?;
    let mut scan = Scanner { text, pos: 0, blank: None, is_known: true, shape: Shape::default() };
    let message = scan.peek_type();
    scan.is_known = message.is_some();
    let members = Members { keys: of_message(message), others: Inside::Any, ids: false };
    if scan.token() != Some(b'{') {
        return Err(scan.broken("no object"));
    }
    scan.object(members, 1)?;
    if scan.token().is_some() {
        return Err(scan.broken("text after the object"));
    }
    if let Some(at) = scan.blank {
        scan.fault(at, "blanks outside of strings");
    }
    Ok(scan.shape)
}

struct Scanner<'a> {
    text: &'a str,
    pos: usize,
    /// The first blank.
    blank: Option<usize>,
    /// Whether the message's type is known: others may hold any values.
    is_known: bool,
    shape: Shape,
}

/// The keys that an object may have, and what stands under others.
#[derive(Clone, Copy)]
struct Members {
    keys: &'static [Key],
    others: Inside,
    ids: bool,
}

enum Value<'a> {
    Null,
    /// As it stands between its quotes.
    Text(&'a str),
    Number(&'a str),
    Array {
        nulls_alone: bool,
        empty: bool,
    },
    Other,
}

impl<'a> Scanner<'a> {
    /// The type, where it is the first key.
    fn peek_type(&self) -> Option<MessageType> {
        let mut ahead =
            Scanner { text: self.text, pos: 0, blank: None, is_known: true, shape: Shape::default() };
        let mut take = |byte| {
            let there = ahead.token() == Some(byte);
            ahead.pos += usize::from(there);
            there.then_some(())
        };
        take(b'{')?;
        take(b'"')?;
        ahead.string().ok().filter(|key| *key == "type")?;
        if ahead.token() != Some(b':') {
            return None;
        }
        ahead.pos += 1;
        if ahead.token() != Some(b'"') {
            return None;
        }
        ahead.pos += 1;
        MessageType::of_name(ahead.string().ok()?)
    }

    fn broken(&self, what: &'static str) -> Broken {
        Broken { what, column: self.pos + 1, breaks_off: self.pos >= self.text.len() }
    }

    fn fault(&mut self, at: usize, what: impl std::fmt::Display) {
        if self.shape.faults.len() < SHOWN {
            self.shape.faults.push(format!("{what} (column {})", at + 1));
        }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    /// The next byte that is no blank.
    #[inline]
    fn token(&mut self) -> Option<u8> {
        while let Some(byte) = self.byte() {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(byte);
            }
            self.blank.get_or_insert(self.pos);
            self.pos += 1;
        }
        None
    }

    /// An object, from its brace on.
    fn object(&mut self, members: Members, depth: usize) -> Result<(), Broken> {
        let Members { keys, .. } = members;
        let is_message = depth == 1;
        let start = self.pos;
        let mut known_seen = 0u64;
        let mut others_seen: HashSet<Cow<'a, str>> = HashSet::new();
        let mut is_full = false;
        let mut highest = None;
        let mut envelope_in_order = true;
        let mut count = 0;
        self.pos += 1;
        if self.token() == Some(b'}') {
            self.pos += 1;
        } else {
            loop {
                if self.token() != Some(b'"') {
                    return Err(self.broken("no key where one has to be"));
                }
                let at = self.pos;
                self.pos += 1;
                let key = unescaped(self.string()?);
                let place = keys.iter().position(|known| known.name == key);
                let twice = match place {
                    Some(place) => known_seen >> place & 1 == 1,
                    None if others_seen.len() < KEYS_KEPT => !others_seen.insert(key.clone()),
                    None => {
                        if !is_full {
                            self.fault(
                                at,
                                format_args!(
                                    "more than {KEYS_KEPT} keys in an object; whether the others stand twice is not checked"
                                ),
                            );
                        }
                        is_full = true;
                        others_seen.contains(&key)
                    }
                };
                known_seen |= place.map_or(0, |place| 1 << place);
                if twice {
                    self.fault(at, format_args!("key {key:?} stands twice"));
                }
                if is_message && count < ENVELOPE_KEYS && place != Some(count) {
                    envelope_in_order = false;
                }
                match (place, highest) {
                    (Some(place), Some(before)) if place >= before => highest = Some(place),
                    (Some(_), Some(before)) if envelope_in_order && !twice => {
                        let before = keys[before].name;
                        self.fault(at, format_args!("key {key:?} stands after {before:?}"));
                    }
                    (Some(_), None) => highest = place,
                    _ => {}
                }
                if members.ids && !is_decimal(&key, u64::from(u32::MAX)) {
                    self.fault(at, format_args!("key {key:?} is not an id"));
                }
                if self.token() != Some(b':') {
                    return Err(self.broken("no ':' after a key"));
                }
                self.pos += 1;
                let inside = place.map_or(members.others, |place| keys[place].inside);
                let value = self.value(inside, depth)?;
                self.member(at, &key, place.is_some(), inside, &value);
                if is_message && !twice {
                    self.keep(&key, &value);
                }
                count += 1;
                match self.token() {
                    Some(b',') => self.pos += 1,
                    Some(b'}') => break self.pos += 1,
                    _ => return Err(self.broken("neither ',' nor '}' after a value")),
                }
            }
        }
        let mut missing = false;
        for (place, key) in keys.iter().enumerate() {
            if key.required && known_seen >> place & 1 == 0 {
                missing |= place < ENVELOPE_KEYS;
                self.fault(start, format_args!("key {:?} is missing", key.name));
            }
        }
        if is_message && !envelope_in_order && !missing {
            self.fault(start, "the line does not begin with the keys type, v, run_id, seq");
        }
        Ok(())
    }

    /// Checks what holds for any value under a key.
    fn member(&mut self, at: usize, key: &str, known: bool, inside: Inside, value: &Value<'_>) {
        match (value, inside) {
            _ if !self.is_known => {}
            (Value::Null, _) => self.fault(at, format_args!("key {key:?} is null instead of left out")),
            (Value::Array { nulls_alone: true, empty }, inside)
                if matches!(inside, Inside::Nullable) || !known && !empty =>
            {
                self.fault(at, format_args!("column {key:?} holds no value and has to be left out"));
            }
            (Value::Text(text), Inside::Digits) if !is_decimal(text, u64::MAX) => {
                self.fault(at, format_args!("{key} {text:?} is not a 64-bit number in plain digits"));
            }
            _ => {}
        }
    }

    fn keep(&mut self, key: &str, value: &Value<'_>) {
        match (key, value) {
            ("type", Value::Text(text)) => self.shape.kind = Some(unescaped(text).into_owned()),
            ("run_id", Value::Text(text)) => self.shape.run_id = Some(unescaped(text).into_owned()),
            ("v", Value::Number(text)) => self.shape.version = number(text),
            ("seq", Value::Number(text)) => self.shape.seq = number(text),
            ("batch", Value::Number(text)) => self.shape.batch = number(text),
            _ => {}
        }
    }

    fn value(&mut self, inside: Inside, depth: usize) -> Result<Value<'a>, Broken> {
        match self.token() {
            Some(b'"') => {
                self.pos += 1;
                self.string().map(Value::Text)
            }
            Some(b'-' | b'0'..=b'9') => self.number().map(Value::Number),
            Some(b'{' | b'[') if depth == DEPTH => Err(self.broken("values nested too deep")),
            Some(b'{') => {
                let (keys, others) = match inside {
                    Inside::Object(keys) => (keys, Inside::Any),
                    Inside::Map(keys) => (&[][..], Inside::Object(keys)),
                    _ => (&[][..], Inside::Any),
                };
                let members = Members { keys, others, ids: matches!(inside, Inside::Ids) };
                self.object(members, depth + 1).map(|()| Value::Other)
            }
            Some(b'[') => self.array(inside, depth + 1),
            Some(b'n') => self.word("null").map(|()| Value::Null),
            Some(b't') => self.word("true").map(|()| Value::Other),
            Some(b'f') => self.word("false").map(|()| Value::Other),
            _ => Err(self.broken("a missing value")),
        }
    }

    fn array(&mut self, inside: Inside, depth: usize) -> Result<Value<'a>, Broken> {
        let element = match inside {
            Inside::Objects(keys) => Inside::Object(keys),
            _ => Inside::Any,
        };
        self.pos += 1;
        if self.token() == Some(b']') {
            self.pos += 1;
            return Ok(Value::Array { nulls_alone: true, empty: true });
        }
        let mut nulls_alone = true;
        loop {
            nulls_alone &= matches!(self.value(element, depth)?, Value::Null);
            match self.token() {
                Some(b',') => self.pos += 1,
                Some(b']') => break self.pos += 1,
                _ => return Err(self.broken("neither ',' nor ']' after an element")),
            }
        }
        Ok(Value::Array { nulls_alone, empty: false })
    }

    fn word(&mut self, word: &str) -> Result<(), Broken> {
        let rest = &self.text.as_bytes()[self.pos..];
        if !rest.starts_with(word.as_bytes()) {
            let breaks_off = word.as_bytes().starts_with(rest);
            return Err(Broken { breaks_off, ..self.broken("a missing value") });
        }
        self.pos += word.len();
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Broken> {
        let start = self.pos;
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.pos += 1;
        }
        if self.pos == start { Err(self.broken("a number without a digit")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<&'a str, Broken> {
        let start = self.pos;
        if self.byte() == Some(b'-') {
            self.pos += 1;
        }
        if self.byte() == Some(b'0') {
            self.pos += 1;
        } else {
            self.digits()?;
        }
        let whole = self.pos;
        if self.byte() == Some(b'.') {
            self.pos += 1;
            self.digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.pos += 1;
            if matches!(self.byte(), Some(b'+' | b'-')) {
                self.pos += 1;
            }
            self.digits()?;
        }
        let text = &self.text[start..self.pos];
        if self.pos > whole && integer(text).is_none() {
            self.float(start, text);
        }
        Ok(text)
    }

    fn float(&mut self, at: usize, text: &str) {
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => {
                if significant(text) > significant(&format!("{value:e}")) {
                    self.fault(at, format_args!("{text} is {value}, which takes fewer digits"));
                }
            }
            _ => self.fault(at, format_args!("{text} is beyond the numbers of 64 bits")),
        }
    }

    /// A string, from after its opening quote, as it stands.
    fn string(&mut self) -> Result<&'a str, Broken> {
        let start = self.pos;
        loop {
            match self.byte() {
                None => return Err(self.broken("a string without an end")),
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                Some(0..0x20) => return Err(self.broken("a control character in a string")),
                Some(_) => self.pos += 1,
            }
        }
        self.pos += 1;
        Ok(&self.text[start..self.pos - 1])
    }

    fn escape(&mut self) -> Result<(), Broken> {
        let start = self.pos;
        self.pos += 1;
        match self.byte() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.pos += 1,
            Some(b'u') => {
                let first = self.code_unit()?;
                let is_pair = (0xd800..0xdc00).contains(&first)
                    && self.text.as_bytes()[self.pos..].starts_with(b"\\u")
                    && {
                        self.pos += 1;
                        (0xdc00..0xe000).contains(&self.code_unit()?)
                    };
                if (0xd800..0xe000).contains(&first) && !is_pair {
                    self.fault(start, "half a surrogate pair in a string");
                }
            }
            _ => return Err(self.broken("an unknown escape in a string")),
        }
        Ok(())
    }

    /// The four hex digits after a `u`.
    fn code_unit(&mut self) -> Result<u32, Broken> {
        self.pos += 1;
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.byte().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit * 16 + digit.ok_or_else(|| self.broken("an unknown escape in a string"))?;
            self.pos += 1;
        }
        Ok(unit)
    }
}

/// What a string's text says.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    serde_json::from_str(&format!("\"{text}\"")).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// An integer, in any notation that JSON has for it.
fn number(text: &str) -> Option<u64> {
    integer(text)?.parse().ok()
}

/// Whether `text` is a number up to `most`, in digits and without leading zeros.
fn is_decimal(text: &str, most: u64) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
        && !(text.len() > 1 && text.starts_with('0'))
        && text.parse().is_ok_and(|number: u64| number <= most)
}

/// How many digits of a number carry its value.
fn significant(text: &str) -> usize {
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').len()
}
