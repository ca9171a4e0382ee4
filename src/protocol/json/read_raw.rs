//! A fast reader for `raw` bodies in the notation that this crate writes. Their columns of integers are most of a
//! stream; any other notation is left to the general parser.

use crate::model::NONE;
use crate::protocol::columns::{RawColumns, ThreadColumns};

/// Reads a line from after its envelope to its end. `None` where it is not in our own shape, with
/// `columns` left in any state.
pub(crate) fn raw(bytes: &[u8], columns: &mut RawColumns) -> Option<()> {
    let mut text = Text { bytes, pos: 0 };
    columns.clear();
    text.key(b"\"batch\":")?;
    columns.batch = text.number()?;
    text.key(b",\"start_usec\":")?;
    columns.start_usec = text.number()?;
    text.key(b",\"samples\":")?;
    columns.samples = text.number()?;
    text.key(b",\"stack_frame_id\":")?;
    text.column(|bytes, at| {
        let (frame, end) = number(bytes, at)?;
        columns.stack_frame_id.push(u32::try_from(frame).ok()?);
        Some(end)
    })?;
    if text.key(b",\"stack_parent\":").is_some() {
        text.column(|bytes, at| {
            let (parent, end) = node(bytes, at)?;
            columns.stack_parent.push(parent);
            Some(end)
        })?;
    } else {
        columns.stack_parent.resize(columns.stack_frame_id.len(), NONE);
    }
    text.key(b",\"threads\":[")?;
    if text.key(b"]").is_none() {
        let start = columns.start_usec;
        loop {
            let thread = columns.next_thread();
            text.thread(start, thread)?;
            if text.key(b",").is_none() {
                break;
            }
        }
        text.key(b"]")?;
    }
    text.key(b"}")?;
    text.bytes[text.pos..].iter().all(u8::is_ascii_whitespace).then_some(())
}

const ASCII_ZEROS: u64 = u64::from_le_bytes([b'0'; 8]);

struct Text<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl Text<'_> {
    #[inline]
    fn key(&mut self, key: &[u8]) -> Option<()> {
        let there = self.bytes.get(self.pos..)?.starts_with(key);
        there.then(|| self.pos += key.len())
    }

    fn number(&mut self) -> Option<u64> {
        let (number, end) = number(self.bytes, self.pos)?;
        self.pos = end;
        Some(number)
    }

    /// A list of whatever `item` takes: it is given the bytes and a position, and returns the position after it. The position
    /// stays in a register over the whole list.
    #[inline(always)]
    fn column(&mut self, mut item: impl FnMut(&[u8], usize) -> Option<usize>) -> Option<()> {
        self.key(b"[")?;
        if self.key(b"]").is_some() {
            return Some(());
        }
        let (bytes, mut at) = (self.bytes, self.pos);
        loop {
            at = item(bytes, at)?;
            match *bytes.get(at)? {
                b',' => at += 1,
                b']' => {
                    self.pos = at + 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    /// A list in which values come in runs: what is spelled as the value before it is that value again. `each` is
    /// called with a value and how often it repeats.
    #[inline(always)]
    fn runs<T>(
        &mut self,
        item: impl Fn(&[u8], usize) -> Option<(T, usize)>,
        mut each: impl FnMut(T, usize),
    ) -> Option<()> {
        self.column(|bytes, at| {
            let (value, end) = item(bytes, at)?;
            let length = end + 1 - at;
            let again = if bytes.get(end) == Some(&b',') { repeats(bytes, end + 1, length) } else { 0 };
            each(value, 1 + again);
            // Each is as long as the first with its comma, so this is the comma after the last.
            Some(end + again * length)
        })
    }

    fn thread(&mut self, start: u64, thread: &mut ThreadColumns) -> Option<()> {
        self.key(b"{\"thread_id\":\"")?;
        thread.thread_id = self.number()?;
        self.key(b"\",\"interpreter_id\":")?;
        thread.interpreter_id = u32::try_from(self.number()?).ok()?;
        self.key(b",\"ts_delta_usec\":")?;
        let mut time = start;
        self.column(|bytes, at| {
            // A branch for what is rare, not a sum: where the next number is must not wait for it.
            let end = match number(bytes, at) {
                Some((delta, end)) => {
                    time = time.checked_add(delta)?;
                    end
                }
                None => {
                    let (delta, end) = negative(bytes, at)?;
                    time = time.checked_sub(delta)?;
                    end
                }
            };
            thread.times_usec.push(time);
            Some(end)
        })?;
        self.key(b",\"status\":")?;
        let status = |bytes: &[u8], at| {
            let (status, end) = number(bytes, at)?;
            Some((u8::try_from(status).ok()?, end))
        };
        self.runs(status, |status, times| match times {
            1 => thread.status.push(status),
            _ => thread.status.resize(thread.status.len() + times, status),
        })?;
        if self.key(b",\"stack\":").is_some() {
            self.runs(node, |node, times| thread.push_stack(node, times))?;
        } else {
            thread.push_stack(NONE, thread.status.len());
        }
        self.key(b"}")
    }
}

/// How often the `length` bytes before `at` come again from there on.
#[inline(always)]
fn repeats(bytes: &[u8], at: usize, length: usize) -> usize {
    let word =
        |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u64::from_le_bytes(*word));
    let mut same = 0;
    // Each byte is held against the one that stands as far before it.
    while let (Some(here), Some(before)) = (word(at + same), word(at + same - length)) {
        let others = here ^ before;
        if others != 0 {
            same += others.trailing_zeros() as usize / 8;
            break;
        }
        same += 8;
    }
    // Mostly there is nothing to divide.
    if same < length { 0 } else { same / length }
}

/// The number that begins at `at`, as JSON has it, and the place after it.
#[inline(always)]
fn number(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let chunk = bytes.get(at..).and_then(|rest| rest.first_chunk());
    let (number, length) = match chunk.and_then(|chunk| short_number(u64::from_le_bytes(*chunk))) {
        Some(short) => short,
        None => long_number(bytes, at),
    };
    (length > 0).then_some((number, at + length))
}

/// The magnitude of a number with a minus before it, and the place after it.
#[cold]
fn negative(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    if bytes.get(at) == Some(&b'-') { number(bytes, at + 1) } else { None }
}

/// A number of at most seven digits that is followed by something else, and its length, out of eight bytes.
#[inline(always)]
fn short_number(bytes: u64) -> Option<(u64, usize)> {
    let digits = bytes ^ ASCII_ZEROS;
    // The top bit of each byte that is no digit, up to the first one: only bytes after that can be wrong.
    let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
    let bits = others.trailing_zeros() & !7;
    // A zero in front of others is none of JSON's.
    if bits == 0 || bits == 64 || digits & 0xff == 0 && bits > 8 {
        return None;
    }
    // In front of the digits come zeros, so that there are eight; then pairs, fours and all are joined.
    let eight = digits << (64 - bits);
    let pairs = (eight & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(10 << 8 | 1) >> 8;
    let fours = (pairs & 0x00ff_00ff_00ff_00ff).wrapping_mul(100 << 16 | 1) >> 16;
    let number = (fours & 0x0000_ffff_0000_ffff).wrapping_mul(10_000 << 32 | 1) >> 32;
    Some((number, bits as usize / 8))
}

/// A number of any length, or near the end, and its length: 0 where there is none. (Two words come back in
/// registers; an `Option` of them would not.)
#[cold]
fn long_number(bytes: &[u8], at: usize) -> (u64, usize) {
    let rest = bytes.get(at..).unwrap_or_default();
    let digits = &rest[..rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())];
    let number = match digits {
        [_] | [b'1'..=b'9', ..] => str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    number.map_or((0, 0), |number| (number, digits.len()))
}

/// A node or null, and the place after it.
#[inline(always)]
fn node(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    if bytes.get(at) == Some(&b'n') {
        return bytes[at..].starts_with(b"null").then_some((NONE, at + 4));
    }
    let (node, end) = number(bytes, at)?;
    Some((u32::try_from(node).ok().filter(|node| *node != NONE)?, end))
}

#[cfg(test)]
mod tests {
    fn number(text: &str) -> Option<(u64, usize)> {
        super::number(text.as_bytes(), 0)
    }

    #[test]
    fn numbers_of_every_length_are_read_up_to_what_follows() {
        let mut value = 7u64;
        loop {
            let digits = value.to_string();
            for behind in ["", ",", "]", ",12345678", "/0000000", ":999999999", "\u{80}\u{80}\u{80}\u{80}"] {
                assert_eq!(number(&format!("{digits}{behind}")), Some((value, digits.len())), "{behind}");
            }
            let Some(next) = value.checked_mul(10) else { break };
            value = next + value % 7;
        }
        assert_eq!(number("18446744073709551615"), Some((u64::MAX, 20)));
    }

    #[test]
    fn what_comes_again_is_counted_in_whole() {
        let repeats = |text: &str, at: usize, length: usize| super::repeats(text.as_bytes(), at, length);
        assert_eq!(repeats("35,35,35,351,12345678", 3, 3), 2);
        assert_eq!(repeats("35,36,35,12345678", 3, 3), 0);
        assert_eq!(repeats("1,1,1,1,1,1,1,1,1]}]}]}12345678", 2, 2), 7);
        // Near the end what is left is read one by one.
        assert_eq!(repeats("7,7,7]", 2, 2), 0);
        for times in 0..40 {
            let text = format!("{}12,345678901", "1234567,".repeat(times + 1));
            assert_eq!(repeats(&text, 8, 8), times);
        }
    }

    #[test]
    fn what_is_no_number_of_json_is_none() {
        for text in
            ["", "-1", "+1", " 1", "01", "00", "012345678,", "01,3456789", "a", "18446744073709551616"]
        {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(number("0,2345678"), Some((0, 1)));
        assert_eq!(number("1e9"), Some((1, 1)));
    }
}
