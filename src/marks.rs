//! Marks that tools put in front of a text: byte order marks and record separators.

/// What begins a text in a sequence of JSON texts, as RFC 7464 and `jq --seq` have it.
const RECORD_SEPARATOR: u8 = 0x1e;

/// What to do with a JSON array where lines are read.
pub(crate) const LINES_OF_ARRAY: &str = "jq -c '.[]' makes lines of its elements";

/// What comes after a byte order mark; `None` where there is no mark. That of UTF-16 counts, too: a tool that adds it
/// does not always encode what follows.
pub(crate) fn after_byte_order_mark(start: &[u8]) -> Option<&[u8]> {
    match start {
        [0xef, 0xbb, 0xbf, rest @ ..] | [0xff, 0xfe, rest @ ..] | [0xfe, 0xff, rest @ ..] => Some(rest),
        _ => None,
    }
}

/// The record separators before a text.
pub(crate) fn record_separators(text: &[u8]) -> usize {
    text.iter().take_while(|byte| **byte == RECORD_SEPARATOR).count()
}

/// A text without the marks before it.
pub(crate) fn unmarked(start: &[u8]) -> &[u8] {
    let text = after_byte_order_mark(start).unwrap_or(start);
    text[record_separators(text)..].trim_ascii_start()
}

/// Whether a text begins as a JSON object, after marks or not. A pstats file begins with a brace, too, and so does a
/// text in UTF-16.
pub(crate) fn begins_an_object(start: &[u8]) -> bool {
    let rest = unmarked(start).strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'"' | b'}')))
}

/// Whether a text begins as a JSON array of objects, after marks or not. A line of a log may begin with a bracket, too.
pub(crate) fn begins_an_array(start: &[u8]) -> bool {
    let text = unmarked(start);
    let is_before = |byte: &&u8| **byte == b'[' || byte.is_ascii_whitespace();
    text.first() == Some(&b'[') && begins_an_object(&text[text.iter().take_while(is_before).count()..])
}
