//! Parses the JSON text of a line.
//!
//! An integer is what JSON Schema calls one: `2.0` and `2e0` are the integer 2, by their digits, so nothing is
//! rounded however large it is; `2.5` is none. What is wrong is said in words about the line.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use crate::error::{Error, Result};
use crate::limits::FACTS;

/// The longest line for simd-json, whose tape takes many times the line.
const TAPE: usize = 1024 * 1024;
/// Digits of an integer that is written out: more have no place in 128 bits.
const DIGITS: usize = 39;
/// Bytes of a fault, about: it may quote the line.
const WORDS: usize = 300;

/// The value of a line.
///
/// # Errors
///
/// A line that does not hold such a value.
pub(crate) fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T> {
    if line.len() <= TAPE
        && let Ok(value) = simd_json::serde::from_slice(&mut line.to_vec())
    {
        return Ok(value);
    }
    read(line)
}

/// The same, for values that are a small part of the line.
pub(crate) fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T> {
    let fault = match serde_json::from_slice(line) {
        Ok(value) => return Ok(value),
        Err(fault) => fault,
    };
    // A wide integer ends for serde_json where its digits do, so that one in another notation is a fault of the text.
    let integers = match with_integers(line) {
        Cow::Owned(text) => text,
        Cow::Borrowed(_) => return Err(in_words(line, &fault, true)),
    };
    match serde_json::from_slice(&integers) {
        Ok(value) => Ok(value),
        Err(_) if !fault.is_data() => Err(in_words(line, &fault, true)),
        // Its columns are not those of the line.
        Err(fault) => Err(in_words(&integers, &fault, false)),
    }
}

fn in_words(line: &[u8], fault: &serde_json::Error, has_column: bool) -> Error {
    if fault.classify() == Category::Eof {
        return if line.trim_ascii() == b"{" {
            Error::stream("not a message: an object over several lines")
                .hint("each message must be on one line; jq -c . writes them so")
        } else {
            Error::stream("not a message: the line ends within it")
        };
    }
    let mut what = fault.to_string();
    // The line's number is the caller's to say.
    if let Some(at) = what.rfind(" at line ") {
        what.truncate(at);
    }
    let mut hint = None;
    if what == "trailing characters" {
        let rest = fault.column().checked_sub(1).and_then(|at| line.get(at..)).unwrap_or_default();
        what = "text after the object".to_string();
        if line.contains(&b'\r') && rest.starts_with(b"{") {
            what = "lines that end in a carriage return alone".to_string();
            hint = Some("tr '\\r' '\\n' mends them");
        }
    }
    let column = if has_column { format!(" (column {})", fault.column()) } else { String::new() };
    let error = Error::stream(format!("not a message: {}{column}", quoted(&what)));
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// A list of facts, of at most [`FACTS`]; or null.
pub(crate) fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Vec<T>>, D::Error> {
    struct Few<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut few = Vec::new();
            while let Some(entry) = list.next_element()? {
                is_few(few.len())?;
                few.push(entry);
            }
            Ok(few)
        }
    }

    struct Seed<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Seed<T> {
        type Value = Vec<T>;
        fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<T>, D::Error> {
            from.deserialize_seq(Few(PhantomData))
        }
    }

    from.deserialize_option(Optional(Seed(PhantomData)))
}

/// Facts by their names, at most [`FACTS`]; or null.
pub(crate) fn few_by_key<'de, D, K, T>(from: D) -> Result<Option<BTreeMap<K, T>>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord,
    T: Deserialize<'de>,
{
    struct Few<K, T>(PhantomData<(K, T)>);

    impl<'de, K: Deserialize<'de> + Ord, T: Deserialize<'de>> Visitor<'de> for Few<K, T> {
        type Value = BTreeMap<K, T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BTreeMap<K, T>, A::Error> {
            let mut few = BTreeMap::new();
            while let Some((key, value)) = map.next_entry()? {
                is_few(few.len())?;
                few.insert(key, value);
            }
            Ok(few)
        }
    }

    struct Seed<K, T>(PhantomData<(K, T)>);

    impl<'de, K: Deserialize<'de> + Ord, T: Deserialize<'de>> DeserializeSeed<'de> for Seed<K, T> {
        type Value = BTreeMap<K, T>;
        fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<BTreeMap<K, T>, D::Error> {
            from.deserialize_map(Few(PhantomData))
        }
    }

    from.deserialize_option(Optional(Seed(PhantomData)))
}

/// What its seed gives, or nothing.
struct Optional<S>(S);

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for Optional<S> {
    type Value = Option<S::Value>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("facts or null")
    }
    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        self.0.deserialize(from).map(Some)
    }
}

fn is_few<E: serde::de::Error>(entries: usize) -> Result<(), E> {
    if entries < FACTS {
        Ok(())
    } else {
        Err(E::custom(format_args!("more than {FACTS} entries, the limit")))
    }
}

/// Text that may quote a whole line, no longer than is of use to people.
pub(crate) fn quoted(text: &str) -> Cow<'_, str> {
    if text.len() <= WORDS {
        return Cow::Borrowed(text);
    }
    let end = (0..=WORDS).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    Cow::Owned(format!("{}...", &text[..end]))
}

/// JSON with the digits of those of its numbers that are integers in another notation.
pub(crate) fn with_integers(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    let mut done = 0;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => at = end_of_string(text, at),
            b'-' | b'0'..=b'9' => {
                let start = at;
                let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                at += text[at..].iter().take_while(|byte| is_part(byte)).count();
                let number = std::str::from_utf8(&text[start..at]).unwrap_or_default();
                if let Some(integer) = integer(number).filter(|integer| integer != number) {
                    let out = out.get_or_insert_with(|| Vec::with_capacity(text.len()));
                    out.extend_from_slice(&text[done..start]);
                    out.extend_from_slice(integer.as_bytes());
                    done = at;
                }
            }
            _ => at += 1,
        }
    }
    match out {
        None => Cow::Borrowed(text),
        Some(mut out) => {
            out.extend_from_slice(&text[done..]);
            Cow::Owned(out)
        }
    }
}

/// The place after a string's closing quote.
fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(next) = memchr::memchr2(b'"', b'\\', text.get(at..).unwrap_or_default()) {
        at += next;
        if text[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    text.len()
}

/// The digits of a JSON number that is an integer.
pub(crate) fn integer(number: &str) -> Option<String> {
    let (sign, unsigned) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let has_whole = whole == "0" || !whole.is_empty() && !whole.starts_with('0');
    let is_json = has_whole && fraction.is_empty() != mantissa.contains('.');
    if !is_json || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    let zeros = exponent
        .checked_sub(fraction.len() as i64)?
        .checked_add((digits.len() - significant.len()) as i64)?;
    let significant = significant.trim_start_matches('0');
    if significant.is_empty() {
        return Some("0".to_string());
    }
    let zeros = usize::try_from(zeros).ok().filter(|zeros| *zeros <= DIGITS)?;
    (significant.len() + zeros <= DIGITS).then(|| format!("{sign}{significant}{}", "0".repeat(zeros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_fraction_is_an_integer_by_its_digits() {
        for (text, expected) in [
            ("2", "2"),
            ("2.0", "2"),
            ("-2.000", "-2"),
            ("1e3", "1000"),
            ("1.5E+1", "15"),
            ("1500e-2", "15"),
            ("0.0", "0"),
            ("-0.0", "0"),
            ("-0", "0"),
            ("0e99999999999", "0"),
            ("9007199254740993.0", "9007199254740993"),
            ("1.8446744073709551615e19", "18446744073709551615"),
        ] {
            assert_eq!(integer(text).as_deref(), Some(expected), "{text}");
        }
        for text in
            ["2.5", "1e-1", "1e40", "", "-", "01", "1.", ".5", "1e", "1e99999999999999999999", "1-2", "0.1e0"]
        {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn strings_and_other_numbers_stay_as_they_are() {
        let text = br#"{"a":"1.0 \" 2.0","b":[1.0,2.5,-3e0,4],"c":"\\"}"#;
        assert_eq!(&*with_integers(text), br#"{"a":"1.0 \" 2.0","b":[1,2.5,-3,4],"c":"\\"}"#);
        for text in [&br#"{"a":4,"b":"1.0"}"#[..], b"\"open 1.0", b"{\"a\":\"\\", b""] {
            assert!(matches!(with_integers(text), Cow::Borrowed(same) if same == text));
        }
    }
}
